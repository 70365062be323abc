"""Runs copiers with live writers, disturbs all parts at random moments, and judges the result.

``FaultRun(lab, seed, faults).run()``; the command line is :mod:`harness.faults.soak`. All random choices come from the
seed; their timing depends on the machine.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.copy import PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from harness.copiers.copier_pool import Copier
from harness.faults.judge import Damage, judge
from harness.faults.kinds import FaultMaker
from harness.faults.lab import FaultLab
from harness.faults.points import POINTS, REACHED
from harness.faults.writers import Writers
from harness.load import Kind, load, tiny_topics
from harness.processes import wait_for

LANES = 3
SLICE_SECONDS = 2
#: A zombie is woken when its partitions have grown by this many offsets, or after this many seconds.
_FAR_OFFSETS = 300
_FREEZE_SECONDS = 6.0
_FINISH_SECONDS = 240.0


@dataclass
class FaultResult:
    """The result of a run."""

    seed: int
    faults: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    damage: Damage = field(default_factory=Damage)
    seconds: float = 0.0
    went_back: int = 0

    def line(self) -> str:
        """A one-line summary."""
        found = self.damage
        return (
            f"seed {self.seed}: {self.faults} faults in {self.seconds:.0f} s, {found.records} records, "
            f"lost {found.lost}, duplicated {found.duplicated}, reordered {found.reordered}, "
            f"wrong offsets {found.wrong_offsets}, downgraded {found.downgraded}, named {found.named}; "
            f"{dict(sorted(self.kinds.items()))}"
        )


@dataclass
class _Zombie:
    copier: Copier
    since: float
    ends: int


class FaultRun:
    """One copy that is disturbed until there were enough faults; then repaired, finished and judged.

    :param age_seconds: how far before now the live writers' records are.
    :param kinds: faults to choose from; None: all.
    :param points: also let some copiers kill or stop themselves at exact moments.
    :param without: nets that are off in every copier.
    :param in_transactions: all partitions have the verdict ``transactional``.
    :param with_topics: also copy existing topics with all kinds of logs.
    """

    def __init__(
        self,
        lab: FaultLab,
        seed: int,
        faults: int,
        *,
        age_seconds: float = 0,
        kinds: list[str] | None = None,
        points: bool = True,
        without: Sequence[str] = (),
        with_topics: bool = False,
        via: str = "direct",
        in_transactions: bool = False,
        max_seconds: float = 600,
    ) -> None:
        self.lab = lab
        self.seed = seed
        self.rng = random.Random(seed)
        self._wanted = faults
        self._points = points
        self._without = list(without)
        self._deadline = time.monotonic() + max_seconds
        self._kinds = kinds
        prefix = lab.name("r") + "."
        self._writers = Writers(lab.source, prefix, seed, age_seconds=age_seconds)
        self._writers.create_topics()
        topics = list(self._writers.names.values())
        self._compacted = [self._writers.names["compact"]]
        if with_topics:
            more = tiny_topics(prefix + "lies.")
            load(lab.source, more, seed=seed)
            topics += [topic.name for topic in more]
            self._compacted += [topic.name for topic in more if topic.kind is Kind.COMPACTED]
        self._writers.start()
        self._writers.wait_for_records(300)
        verdicts = self._in_transactions(topics) if in_transactions else {}
        self.copy = lab.copying(
            topics, lanes=LANES, via=via, job_fields={"slice_seconds": SLICE_SECONDS}, verdicts=verdicts
        )
        self._tail = self.copy.write_job("tail", segment_max_bytes=50_000)
        self._at_work: dict[int, list[Copier]] = {lane: [] for lane in range(LANES)}
        self._armed: dict[int, str] = {}
        self._zombies: list[_Zombie] = []
        self._target_ends = lab.target_ends()
        self._hit = Counter[str]()
        self._named: list[str] = []

    def _in_transactions(self, topics: list[str]) -> dict[tuple[str, int], Verdict]:
        admin = self.lab.source.admin()
        found = admin.list_topics(timeout=10).topics
        return {(name, number): Verdict.TRANSACTIONAL for name in topics for number in found[name].partitions}

    # -- what faults see -----------------------------------------------------------------------------------------------

    def copiers(self) -> list[Copier]:
        """The copiers that run and are not stopped."""
        return [item for items in self._at_work.values() for item in items if item.state not in ("", "T")]

    def freeze(self, copier: Copier) -> None:
        """Register a stopped copier, to wake it later."""
        self._zombies.append(_Zombie(copier, time.monotonic(), self._ends(copier.lane)))

    def target_partitions(self) -> list[tuple[str, int]]:
        """All partitions of the copy."""
        return [item.key for item in self._tail.partitions]

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> FaultResult:
        """Disturb, repair, finish and judge the copy."""
        began = time.monotonic()
        result = FaultResult(self.seed)
        maker = FaultMaker(self, self._kinds)
        try:
            with self.lab.healthy():
                self._hurt(maker)
                maker.finish()
            self._stop_all()
            self._writers.stop()
            results = self._finish()
        finally:
            self._stop_all()
        result.kinds = Counter(maker.made) + self._hit
        result.faults = result.kinds.total()
        result.went_back = sum(len(item.went_back) for item in results)
        result.damage = judge(self.copy, self._compacted)
        result.damage.named += self._named
        self._check_reported(result.damage, results)
        result.seconds = time.monotonic() - began
        return result

    def _hurt(self, maker: FaultMaker) -> None:
        next_fault = time.monotonic() + 0.5
        while maker.count + self._hit.total() < self._wanted and not self._named:
            self._tend()
            if time.monotonic() >= next_fault:
                maker.make()
                next_fault = time.monotonic() + self.rng.uniform(0.05, 0.7)
            if time.monotonic() > self._deadline:
                return
            time.sleep(0.02)

    def _tend(self) -> None:
        """Keep a copier working on each lane, notice those that stopped themselves, wake zombies in time."""
        for lane, items in self._at_work.items():
            for copier in list(items):
                self._look_at(copier, items)
            if not any(not item.stopped for item in items):
                items.append(self._start(lane))
        for zombie in list(self._zombies):
            far = self._ends(zombie.copier.lane) - zombie.ends > _FAR_OFFSETS
            if not zombie.copier.running or far or time.monotonic() - zombie.since > _FREEZE_SECONDS:
                self._zombies.remove(zombie)
                zombie.copier.signal(signal.SIGCONT)

    def _look_at(self, copier: Copier, items: list[Copier]) -> None:
        at = self._armed.get(copier.pid)
        if not copier.running:
            items.remove(copier)
            if copier.exit_code in (1, 2, 70):
                self._named.append(_last_error(copier))
            if at is not None and at.startswith("kill") and REACHED in copier.text():
                self._hit[at.rpartition(":")[0]] += 1
            self._armed.pop(copier.pid, None)
        elif at is not None and at.startswith("stop") and copier.stopped and REACHED in copier.text():
            self._hit[at.rpartition(":")[0]] += 1
            self._armed.pop(copier.pid)
            self.freeze(copier)

    def _start(self, lane: int) -> Copier:
        options = ["--without", ",".join(self._without)] if self._without else []
        at = None
        if self._points and self.rng.random() < 0.6:
            point = self.rng.choice(POINTS)
            number = 1 if point in ("lease", "runs", "runs-written", "ends") else self.rng.randrange(1, 12)
            at = f"{self.rng.choice(['kill', 'stop'])}:{point}:{number}"
            options += ["--at", at]
        copier = self.lab.copier(self.copy, lane, "tail", *options)
        if at is not None:
            self._armed[copier.pid] = at
        return copier

    def _ends(self, lane: int) -> int:
        """Sum of the target's ends of a lane; the last known sum while no broker answers."""
        return self._target_ends.ends([item.key for item in self._tail.lanes[lane].partitions])

    def _stop_all(self) -> None:
        for items in self._at_work.values():
            for copier in items:
                copier.kill()
            items.clear()

    def _finish(self) -> list[PartitionResult]:
        """Copy the rest, up to the source's ends, with undisturbed copiers."""
        wire = self.copy.clients.wire("source")
        keys = list(self.copy.partitions)
        # A lost transaction of a writer ends by its timeout.
        wait_for(
            "open transactions end",
            lambda: wire.list_offsets(keys, "stable") == wire.list_offsets(keys, "latest"),
            60,
        )
        self.copy.write_job("seed", segment_max_bytes=50_000)
        options = ["--without", ",".join(self._without)] if self._without else []
        copiers = [self.lab.copier(self.copy, lane, "seed", *options) for lane in range(LANES)]
        results = []
        for copier in copiers:
            code = copier.wait(_FINISH_SECONDS)
            if code != 0:
                self._named.append(_last_error(copier))
            results += copier.results()
        return results

    def _check_reported(self, damage: Damage, results: Sequence[PartitionResult]) -> None:
        """A downgrade counts as damage of offsets when the copier does not report it."""
        said = sum(item.verdict is Verdict.MAPPED for item in results)
        if said < damage.downgraded:
            damage.wrong_offsets += damage.downgraded - said
            damage.where.append(f"{damage.downgraded} partitions are mapped, {said} were reported")


def _last_error(copier: Copier) -> str:
    errors = [str(item.error) for item in copier.results() if item.error is not None]
    return errors[0] if errors else copier.text()[-1500:]
