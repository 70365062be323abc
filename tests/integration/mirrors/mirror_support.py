"""A flow of a mirror on real brokers, driven by the command line as people do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.journal import Journal
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.open import open_store
from harness.brokers import KafkaCluster
from harness.compare import bounds
from harness.processes import wait_for
from tests.integration.test_cli_migration import Command

#: Each look at the state is a command of its own, and machines are busy.
SECONDS = 240.0

#: Processes of all flows. A test that fails must not leave a mirror behind, see conftest.py.
STARTED: list[subprocess.Popen[str]] = []


@dataclass
class Flow:
    """One flow: its spec file, and the command with the connections of its two clusters."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    name: str
    prefix: str
    aliases: tuple[str, str]
    sections: dict[str, Any] = field(default_factory=dict)
    #: options of the commands that copy
    plane: Sequence[str] = ()

    def __post_init__(self) -> None:
        pattern = self.prefix.replace(".", r"\.") + ".*"
        mirror = {
            "source_alias": self.aliases[0],
            "target_alias": self.aliases[1],
            "sync_interval": "500ms",
            **self.sections.pop("mirror", {}),
        }
        known = "|".join([*self.aliases, *mirror.get("known_aliases", [])])
        content: dict[str, Any] = {
            "migration_id": self.name,
            "kind": "mirror",
            "mirror": mirror,
            "source": {"conn_id": "env:MIRROR_SOURCE"},
            "target": {"conn_id": "env:MIRROR_TARGET"},
            "storage": {"journal": f"file://{self.folder}/{self.name}"},
            "topics": {"include": [rf"(({known})\.)*{pattern}"]},
            "groups": {"include": [pattern]},
            "seed": {"via": "direct", "slice_seconds": 5},
            "tail": {"slice_seconds": 2},
            "topology": {"refresh_interval": "1s"},
            "acls": {"policy": "skip", "quotas": "skip"},
            **self.sections,
        }
        self.spec = self.folder / f"{self.name}.yaml"
        self.spec.write_text(yaml.safe_dump(content), encoding="utf-8")
        self.command = Command(
            {
                "MIRROR_SOURCE": json.dumps(self.source.client_config()),
                "MIRROR_TARGET": json.dumps(self.target.client_config()),
            }
        )

    def remote(self, topics: Sequence[str]) -> dict[str, str]:
        """Names on the source -> names on the target."""
        return {topic: f"{self.aliases[0]}.{topic}" for topic in topics}

    def __call__(self, action: str, *arguments: str, status: int = 0) -> dict[str, Any]:
        """One command; its exit status must be this one. What cannot be undone is approved with the code it shows."""
        if needs_code(action, arguments):
            process = self.command.start("mirror", action, self.spec, *arguments, "--json")
            out, err = process.communicate(timeout=SECONDS)
            if process.returncode != ExitCode.WAITS:
                assert process.returncode == status, out + err
                answer: dict[str, Any] = json.loads(out)
                return answer
            arguments = (*arguments, "--approve", json.loads(out)["waiting"]["code"])
        return self.command("mirror", action, self.spec, *arguments, status=status)

    def state(self) -> str | None:
        """The state, as the status command shows it."""
        process = self.command.start("mirror", "status", self.spec, "--json")
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode in (ExitCode.OK, ExitCode.WAITS), out + err
        found: str | None = json.loads(out)["state"]
        return found

    def journal_state(self) -> State | None:
        """The state, as the journal has it: for waits, because each command takes seconds of processor time."""
        spec = load_spec(self.spec)
        journal = Journal(open_store(spec.storage.journal), spec.migration_id)
        journal.refresh()
        return journal.tip_state

    def begin(self, action: str = "run") -> tuple[subprocess.Popen[str], Path]:
        """Run the mirror in the background; return its process and its log."""
        path = self.folder / f"{self.name}-{time.monotonic_ns()}.log"
        with path.open("w", encoding="utf-8") as log:
            return self._popen(action, log), path

    def start(self, action: str = "run") -> subprocess.Popen[str]:
        """Run the mirror in the background, and wait until it mirrors."""
        process, log = self.begin(action)

        def mirrors() -> bool:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            return self.journal_state() is State.TAIL

        wait_for(f"{self.name} mirrors", mirrors, SECONDS, 0.5)
        return process

    def _popen(self, action: str, log: Any, *arguments: str) -> subprocess.Popen[str]:
        program = str(Path(sys.executable).with_name("kafka-migration"))
        return self.spawn([program, "mirror", action, str(self.spec), *arguments, *self.plane], log)

    def spawn(self, command: Sequence[str], log: Any) -> subprocess.Popen[str]:
        """Start a process that knows both clusters; a failed test leaves none of them running."""
        process = subprocess.Popen(
            command,
            env={**os.environ, **self.command.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
        )
        STARTED.append(process)
        return process

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """The mirror runs until the block ends; then it is stopped by a signal."""
        process = self.start()
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class KeptMirror:
    """The mirror of a flow as a process of its own, which somebody starts again when it was killed."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._process: subprocess.Popen[str] | None = None
        self._log: Path | None = None

    @property
    def name(self) -> str:
        """The aliases, for instance ``AB``."""
        return "".join(self.flow.aliases)

    def look(self) -> None:
        """Start it if it does not run, whatever has ended it."""
        if self._process is None or self._process.poll() is not None:
            self._process, self._log = self.flow.begin()

    def check(self) -> None:
        """It has not ended by itself: whatever happens to brokers, a mirror tries again."""
        assert self._process is not None
        assert self._log is not None
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8")[-4000:]

    def kill(self) -> None:
        """SIGKILL; nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def eventually(check: Callable[[], bool], what: str) -> None:
    """Wait as patiently as a busy machine needs."""
    wait_for(what, check, SECONDS, 0.5)


def flow_name(prefix: str) -> str:
    """The id of the mirror of the topics with this prefix."""
    return prefix.strip(".").lower().replace("_", "-")


def needs_code(action: str, arguments: Sequence[str]) -> bool:
    """Whether a command asks for a code: an end does, and a promotion without a source that may be there."""
    return "--approve" not in arguments and (action == "end" or "--source-gone" in arguments)


@contextmanager
def flow_of_doomed_source(
    source_folder: Path, target: KafkaCluster, folder: Path, prefix: str, *, partitions: int
) -> Iterator[Flow]:
    """A flow from a cluster that serves this test alone, so that the test may kill it.

    The source has one topic, ``orders`` behind the prefix.

    :param source_folder: of the source's brokers.
    :param folder: of the flow's spec, journal and logs.
    """
    with KafkaCluster(source_folder, "4.1.1", "kraft") as source:
        source.create_topics({f"{prefix}orders": (partitions, {})})
        yield Flow(source, target, folder, flow_name(prefix), prefix, ("A", "B"))


def promote_without_source(flow: Flow, *options: str) -> dict[str, Any]:
    """Promote a mirror whose source is gone, and return the answer."""
    promoted = flow("promote", "--source-gone", *options)
    assert promoted["state"] == "promoted"
    assert promoted["details"]["source_gone"] is True
    return promoted


def log_ends(cluster: KafkaCluster, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Log ends by (topic, partition)."""
    found = bounds(cluster.client_config(), list(topics))
    return {(topic, number): item.end for topic, numbers in found.items() for number, item in numbers.items()}
