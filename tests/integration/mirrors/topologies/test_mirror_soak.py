"""A soak of two flows in both directions: processes of mirrors and brokers of both clusters fail at random.

``MIRROR_SOAK_SEED`` repeats a run's choices, ``MIRROR_SOAK_SECONDS`` changes its length (default: five minutes).
"""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow
from tests.soak_support import LONG_SLICES, PATIENT, Fault, Route, Site, Soak, check_settled, settle

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(14_400)]

_HEALED_SECONDS = 600.0
_SLICE_SECONDS = LONG_SLICES["tail"]["slice_seconds"]


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
            self.process.wait(240)
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
        # The last one: it was frozen before it had claimed the migration.
        refusals = ("lost the migration", "taken over the migration", "[CLAIM_HELD]")
        assert any(refusal in text for refusal in refusals), text[-4000:]


def test_two_flows_under_random_faults(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    soak = Soak.from_environment(300)
    topic = "soak.orders"
    with ExitStack() as opened:
        sites = []
        for alias, version in (("A", "3.9.1"), ("B", "4.1.1")):
            cluster = opened.enter_context(KafkaCluster(tmp_path_factory.mktemp(alias), version))
            cluster.create_topics({topic: (3, {})})
            producer = LiveProducer(
                {**cluster.client_config(), **PATIENT},
                {topic: range(3)},
                records_per_second=150,
                seed=soak.choose.randrange(1 << 16),
            )
            sites.append(Site(alias, cluster, [topic], f"soak.group.{alias}", [opened.enter_context(producer)]))
        runners, routes = [], []
        for source, target in (sites, sites[::-1]):
            flow = Flow(
                source.cluster,
                target.cluster,
                tmp_path,
                f"{source.alias}-to-{target.alias}".lower(),
                "soak.",
                (source.alias, target.alias),
                {"mirror": {"two_way": True}, **LONG_SLICES},
            )
            routes.append(Route(source, target, flow.remote([topic]), source.group))
            runners.append(Runner(flow))
            opened.callback(_kill, runners[-1])
            runners[-1].start()
        for runner in runners:
            wait_for(f"{runner.flow.name} mirrors", lambda flow=runner.flow: flow.state() == "mirroring", SECONDS, 1.0)  # type: ignore[misc]

        def check() -> None:
            for runner in runners:
                runner.check()

        faults = {
            **_mirror_faults(soak, runners),
            **soak.broker_faults([site.cluster for site in sites]),
            **soak.group_fault(sites),
        }
        soak.run(faults, check, (0.5, 6))
        settle(soak, sites, routes, _HEALED_SECONDS, check)
        damage = check_settled(sites, routes, "soak")
        print(f"{soak}, {sum(site.count() for site in sites)} records, {damage}", flush=True)


def _mirror_faults(soak: Soak, runners: list[Runner]) -> dict[str, Fault]:
    choose = soak.choose

    def end(number: int) -> Fault:
        def fail() -> None:
            runner = choose.choice(runners)
            runner.end(number)
            time.sleep(choose.uniform(0, 3))
            runner.start()

        return fail

    def freeze() -> None:
        choose.choice(runners).freeze(choose.uniform(1, 10))

    def overtake() -> None:
        choose.choice(runners).overtake(_SLICE_SECONDS + choose.uniform(2, 10))

    return {
        "mirror killed": end(signal.SIGKILL),
        "mirror stopped": end(signal.SIGTERM),
        "mirror frozen": freeze,
        "mirror overtaken": overtake,
    }


def _kill(runner: Runner) -> None:
    if runner.process is not None and runner.process.poll() is None:
        runner.process.kill()
        runner.process.wait()
