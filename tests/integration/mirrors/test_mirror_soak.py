"""A soak of two flows in both directions: processes of mirrors and brokers of both clusters fail at random.

``MIRROR_SOAK_SEED`` repeats a run's choices, ``MIRROR_SOAK_SECONDS`` changes its length (default: five minutes).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import bounds, compare
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow
from tests.integration.mirrors.scenario_support import topics_of

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(14_400)]

_HEALED_SECONDS = 600.0
#: A short slice also shortens the time after which a topic that is not there counts as deleted.
_SLICE_SECONDS = 20
#: A broker that has just started may not know its topics yet; librdkafka's producer would give up on them.
_PATIENT = {"topic.metadata.propagation.max.ms": "3600000"}


@dataclass
class Runner:
    """A flow whose command is started again whenever it has died of a fault."""

    flow: Flow
    process: subprocess.Popen[str] | None = None
    logs: list[Path] = field(default_factory=list)

    def start(self, *arguments: str) -> None:
        log = self.flow.folder / f"{self.flow.name}-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("w", encoding="utf-8") as output:
            self.process = self.flow._popen("run", output, *arguments)

    def check(self) -> None:
        """It has not ended by itself: whatever happens to brokers, a mirror tries again."""
        assert self.process is not None
        assert self.process.poll() is None, self.logs[-1].read_text(encoding="utf-8")[-4000:]

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def freeze(self, seconds: float) -> None:
        """Nobody else takes it over meanwhile, so it goes on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def overtake(self, seconds: float) -> None:
        """Freeze it for longer than a slice while a second command mirrors: it must end, and write nothing."""
        frozen, log = self.process, self.logs[-1]
        assert frozen is not None
        frozen.send_signal(signal.SIGSTOP)
        try:
            self.start("--takeover")
            time.sleep(seconds)
            frozen.send_signal(signal.SIGCONT)
            status = frozen.wait(SECONDS)
        finally:
            # SIGKILL also ends a process that is stopped.
            frozen.kill()
            frozen.wait()
        text = " ".join(log.read_text(encoding="utf-8").split())
        assert status not in (ExitCode.OK, ExitCode.WAITS), text[-4000:]
        assert "lost the migration" in text or "taken over the migration" in text, text[-4000:]


def test_two_flows_under_random_faults(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = int(os.environ.get("MIRROR_SOAK_SEED") or random.SystemRandom().randrange(1 << 32))
    seconds = float(os.environ.get("MIRROR_SOAK_SECONDS") or 300)
    print(f"MIRROR_SOAK_SEED={seed} MIRROR_SOAK_SECONDS={seconds:g}", flush=True)
    choose, kinds = random.Random(seed), Counter[str]()
    topic, group = "soak.orders", "soak.group"
    with ExitStack() as opened:
        clusters = {
            alias: opened.enter_context(KafkaCluster(tmp_path_factory.mktemp(alias), version))
            for alias, version in (("A", "3.9.1"), ("B", "4.1.1"))
        }
        producers, runners = {}, []
        for number, cluster in enumerate(clusters.values()):
            cluster.create_topics({topic: (3, {})})
            producer = LiveProducer(
                {**cluster.client_config(), **_PATIENT},
                {topic: range(3)},
                records_per_second=150,
                seed=choose.randrange(1 << 16),
            )
            producers[list(clusters)[number]] = opened.enter_context(producer)
        for source, target in (("A", "B"), ("B", "A")):
            flow = Flow(
                clusters[source],
                clusters[target],
                tmp_path,
                f"{source}-to-{target}".lower(),
                "soak.",
                (source, target),
                {"mirror": {"two_way": True}, "tail": {"slice_seconds": _SLICE_SECONDS}},
            )
            runners.append(Runner(flow))
            opened.callback(_kill, runners[-1])
            runners[-1].start()
        for runner in runners:
            wait_for(f"{runner.flow.name} mirrors", lambda flow=runner.flow: flow.state() == "mirroring", SECONDS, 1.0)  # type: ignore[misc]

        def broker(action: str) -> Callable[[], None]:
            def fail() -> None:
                cluster = clusters[choose.choice("AB")]
                if action == "kill":
                    cluster.kill(0)
                    time.sleep(choose.uniform(0, 3))
                    cluster.restart(0)
                else:
                    cluster.pause()
                    time.sleep(choose.uniform(1, 8))
                    cluster.resume()

            return fail

        def mirror(action: str) -> Callable[[], None]:
            def fail() -> None:
                runner = choose.choice(runners)
                if action == "freeze":
                    runner.freeze(choose.uniform(1, 10))
                    return
                if action == "overtake":
                    runner.overtake(_SLICE_SECONDS + choose.uniform(2, 10))
                    return
                runner.end(signal.SIGKILL if action == "kill" else signal.SIGTERM)
                time.sleep(choose.uniform(0, 3))
                runner.start()

            return fail

        def groups() -> None:
            for alias, cluster in clusters.items():
                config = cluster.client_config()
                commit_offsets(config, f"{group}.{alias}", positions(config, [topic], choose.uniform(0.1, 0.9)))

        faults = {
            "mirror killed": mirror("kill"),
            "mirror stopped": mirror("stop"),
            "mirror frozen": mirror("freeze"),
            "mirror overtaken": mirror("overtake"),
            "broker killed": broker("kill"),
            "broker frozen": broker("freeze"),
            "groups moved": groups,
        }
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            name = choose.choice(sorted(faults))
            faults[name]()
            kinds[name] += 1
            time.sleep(choose.uniform(0.5, 6))
            for runner in runners:
                runner.check()
        for producer in producers.values():
            producer.freeze()
        for runner in runners:
            config = runner.flow.source.client_config()
            wanted = positions(config, [topic], 1.0)
            commit_offsets(config, f"{group}.{runner.flow.aliases[0]}", wanted)

            def healed(flow: Flow = runner.flow) -> bool:
                return _is_complete(flow, topic, f"{group}.{flow.aliases[0]}")

            wait_for(f"{runner.flow.name} has everything", healed, _HEALED_SECONDS, 1.0)
            runner.check()
        for runner in runners:
            flow = runner.flow
            remote = flow.remote([topic])
            compare(flow.source.client_config(), flow.target.client_config(), remote).check()
            acknowledged = {
                (remote[name], number): records
                for (name, number), records in producers[flow.aliases[0]].acknowledged.items()
            }
            assert lost_records(flow.target.client_config(), acknowledged) == []
        assert topics_of(clusters["A"], "soak") == {topic, f"B.{topic}"}, "no cycle"
        assert topics_of(clusters["B"], "soak") == {topic, f"A.{topic}"}
        records = sum(producer.count() for producer in producers.values())
        print(f"seed {seed}: {sum(kinds.values())} faults {dict(sorted(kinds.items()))}, {records} records", flush=True)


def _is_complete(flow: Flow, topic: str, group: str) -> bool:
    remote = flow.remote([topic])[topic]
    if remote not in topics_of(flow.target):
        return False
    here = bounds(flow.source.client_config(), [topic])[topic]
    there = bounds(flow.target.client_config(), [remote])[remote]
    wanted = {(remote, number): item.end for number, item in here.items()}
    if {(remote, number): item.end for number, item in there.items()} != wanted:
        return False
    return committed_offsets(flow.target.client_config(), group, [remote]) == wanted


def _kill(runner: Runner) -> None:
    if runner.process is not None and runner.process.poll() is None:
        runner.process.kill()
        runner.process.wait()
