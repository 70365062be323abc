"""Two clusters with a live producer each, two flows of one ``mirrors.yaml``, and the publishers of their state."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, positions
from harness.compare import TopicPartitionKey, bounds
from harness.load import Kind, TopicLoad, load
from harness.processes import HarnessError, Process, start, wait_for

FOLDER = Path(__file__).resolve().parents[2] / "build" / "mirror-demo"

EAST, WEST = "east", "west"
_VERSIONS = {EAST: "3.9.1", WEST: "4.1.1"}
PREFIX = "shop."
ORDERS, PAYMENTS, BALANCES = f"{PREFIX}orders", f"{PREFIX}payments", f"{PREFIX}balances"
#: Both clusters have these topics, each with records of its own.
TOPICS = (
    TopicLoad(ORDERS, Kind.KEYED, 3, 18_000, 300, "lz4"),
    # Aborted transactions and markers: offsets have gaps.
    TopicLoad(PAYMENTS, Kind.TRANSACTIONAL, 2, 4_000, 200),
    TopicLoad(BALANCES, Kind.COMPACTED, 1, 2_000, 200, "zstd"),
)
_LIVE = {ORDERS: range(3)}
_LIVE_RECORDS_PER_SECOND = 150

#: Starting Python and connecting to two clusters takes its time where other programs run, too.
_STEP_SECONDS = 180.0
_COPY_SECONDS = 120.0
PUBLISH_SECONDS = 1


@dataclass
class Flow:
    """A flow, named as in ``mirrors.yaml``, and the processes that belong to it."""

    source: KafkaCluster
    target: KafkaCluster
    source_alias: str
    target_alias: str
    folder: Path
    environment: Mapping[str, str]
    mirror: Process | None = None
    publisher: Process | None = None
    kills: int = 0
    _logs: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``east->west``."""
        return f"{self.source_alias}->{self.target_alias}"

    @property
    def spec(self) -> str:
        """How the command line names the flow."""
        return f"{self.folder / 'mirrors.yaml'}#{self.name}"

    def remote(self, topic: str) -> str:
        """Name on the target."""
        return f"{self.source_alias}.{topic}"

    @property
    def topics(self) -> dict[str, str]:
        """Name on the source -> name on the target."""
        return {topic.name: self.remote(topic.name) for topic in TOPICS}

    def ask(self, *command: str, statuses: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """The JSON answer of a command.

        :raises HarnessError: it failed.
        """
        done = subprocess.run(
            [_program(), *command, "--json"],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=_STEP_SECONDS,
        )
        if done.returncode not in statuses:
            raise HarnessError(f"kafka-migration {' '.join(command)}:\n{done.stdout}{done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def start(self) -> None:
        """Start the mirror in the background; it continues where an earlier one stopped."""
        self.mirror = self._start("mirror", "mirror", "run", self.spec)

    def wait_mirroring(self) -> None:
        """:raises HarnessError: it does not mirror in time, or it has ended."""
        wait_for(f"{self.name} mirrors", self._is_mirroring, _STEP_SECONDS, 0.5)

    def _is_mirroring(self) -> bool:
        assert self.mirror is not None
        self.mirror.check_running()
        return bool(self.ask("mirror", "status", self.spec, statuses=(0, 10))["state"] == "mirroring")

    def kill(self) -> None:
        """Kill the mirror with SIGKILL, and start it again."""
        assert self.mirror is not None
        self.mirror.kill()
        self.kills += 1
        self.start()

    def publish(self) -> None:
        """Write the state that Kafka's own mirror clients read, beside the mirror, round by round."""
        aliases = ("--source-alias", self.source_alias, "--target-alias", self.target_alias)
        interval = ("--interval", f"{PUBLISH_SECONDS}s")
        self.publisher = self._start("publish", "translate", "publish", self.spec, *aliases, *interval)

    def wait_published(self) -> None:
        """Wait until a round of the publisher has begun and ended from now on.

        :raises HarnessError: there is no such round in time.
        """
        begun = self._rounds()
        # The next round to be printed may have read the groups already.
        wait_for(f"two rounds of {self.name}'s publisher", lambda: self._rounds() >= begun + 2, _STEP_SECONDS, 0.2)

    def _rounds(self) -> int:
        assert self.publisher is not None
        self.publisher.check_running()
        return len(re.findall(r"^round \d+:", self.publisher.log.read_text(encoding="utf-8"), re.MULTILINE))

    def groups_synced_at(self) -> str:
        """When the mirror has last brought the groups on the target up to date; empty: never."""
        groups = self.ask("mirror", "status", self.spec, statuses=(0, 10))["groups"]
        return "" if groups is None else str(groups["at"])

    def wait_synced(self) -> None:
        """Wait until the mirror has brought the groups up to date twice from now on."""
        for _ in range(2):
            before = self.groups_synced_at()

            def newer(before: str = before) -> bool:
                return self.groups_synced_at() > before

            wait_for(f"{self.name}: the groups' offsets", newer, _STEP_SECONDS, 0.2)

    def wait_for(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Wait until these positions of the source are mirrored. The demo's offsets are equal.

        :raises HarnessError: the copy does not reach them in time.
        """

        def has_them() -> bool:
            admin = self.target.admin()  # must outlive the call
            known, names = admin.list_topics(timeout=20).topics, {self.remote(topic) for topic, _ in offsets}
            if not names <= set(known):
                return False
            there = bounds(self.target.client_config(), names)
            return all(there[self.remote(topic)][number].end >= offset for (topic, number), offset in offsets.items())

        wait_for(f"positions of {self.source_alias} on {self.target_alias}", has_them, _COPY_SECONDS, 0.3)

    def wait_for_everything(self) -> None:
        """Wait until each remote partition ends where its source ends now. Errors as :meth:`wait_for`."""
        self.wait_for(positions(self.source.client_config(), list(self.topics), 1.0))

    def stop(self) -> None:
        """Stop what runs."""
        for process in (self.publisher, self.mirror):
            if process is not None:
                process.stop()

    def _start(self, what: str, *command: str) -> Process:
        log = self.folder / f"{self.source_alias}-to-{self.target_alias}-{what}.log"
        self._logs.append(log)
        return start(f"{what} {self.name}", [_program(), *command], log, env={**os.environ, **self.environment})

    def logs(self) -> list[Path]:
        """Logs of all processes so far."""
        return list(dict.fromkeys(self._logs))


def _program() -> str:
    return str(Path(sys.executable).with_name("kafka-migration"))


class World:
    """All running parts. When the stack closes, they are stopped in reverse order of their start."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.clusters = {alias: KafkaCluster(FOLDER / alias, version) for alias, version in _VERSIONS.items()}
        self.producers: dict[str, LiveProducer] = {}
        self.flows: list[Flow] = []

    def start_clusters(self) -> None:
        """Start both clusters, and give both of them topics with records.

        :raises HarnessError: one of them did not start.
        """
        with ThreadPoolExecutor(len(self.clusters), thread_name_prefix="start") as pool:
            for cluster in self.clusters.values():
                self._stack.callback(cluster.stop, graceful=False)
            for future in [pool.submit(cluster.start) for cluster in self.clusters.values()]:
                future.result()
            seeded = enumerate(self.clusters.values(), 1)
            for future in [pool.submit(load, cluster, TOPICS, seed=seed) for seed, cluster in seeded]:
                future.result()

    def start_producers(self) -> None:
        """Start a live producer on each cluster."""
        for seed, (alias, cluster) in enumerate(self.clusters.items(), 11):
            producer = LiveProducer(
                cluster.client_config(), _LIVE, records_per_second=_LIVE_RECORDS_PER_SECOND, seed=seed
            )
            self.producers[alias] = producer.start()
            self._stack.callback(producer.stop)

    def start_flows(self) -> None:
        """Write ``mirrors.yaml``, and start both flows and their publishers.

        :raises HarnessError: a flow does not mirror in time.
        """
        (FOLDER / "mirrors.yaml").write_text(yaml.safe_dump(mirrors_yaml(FOLDER), sort_keys=False), encoding="utf-8")
        environment = {
            f"KAFKA_{alias.upper()}": json.dumps(cluster.client_config()) for alias, cluster in self.clusters.items()
        }
        for source, target in ((EAST, WEST), (WEST, EAST)):
            flow = Flow(self.clusters[source], self.clusters[target], source, target, FOLDER, environment)
            self.flows.append(flow)
            self._stack.callback(flow.stop)
            flow.start()
        for flow in self.flows:
            flow.wait_mirroring()
            flow.publish()

    def topic_names(self, alias: str) -> set[str]:
        """Topics of a cluster that belong to the demo's applications, local and remote ones."""
        admin = self.clusters[alias].admin()  # must outlive the call
        return {name for name in admin.list_topics(timeout=20).topics if PREFIX in name}

    def logs(self) -> list[Path]:
        """Files that tell what happened."""
        return [path for flow in self.flows for path in flow.logs()] or [FOLDER]


def mirrors_yaml(folder: Path) -> dict[str, Any]:
    """``mirrors.yaml``: what a person would write, with shorter intervals."""
    return {
        "clusters": {alias: {"conn_id": f"env:KAFKA_{alias.upper()}"} for alias in _VERSIONS},
        "storage": {"journal": f"file://{folder}/journal"},
        "defaults": {
            # Remote topics, too: a flow leaves out what would come round by itself.
            "topics": {"include": [rf"((east|west)\.)*{re.escape(PREFIX)}.*"]},
            "groups": {"include": [rf"{re.escape(PREFIX)}.*"]},
            "mirror": {"sync_interval": "1s"},
            "seed": {"via": "direct", "slice_seconds": 5},
            "tail": {"slice_seconds": 5},
            "topology": {"refresh_interval": "5s"},
            "acls": {"policy": "skip", "quotas": "skip"},
        },
        "flows": {f"{EAST}->{WEST}": {}, f"{WEST}->{EAST}": {}},
    }
