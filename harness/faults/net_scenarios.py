"""For each net a situation in which only that net prevents or finds the damage: run with it, and without it.

With all nets the result is exact, or the damage (which comes from outside) is named; without the net there is damage,
and the harness finds it. The target's brokers must forget producers soon (:data:`SWEEPING`).
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import Literal

from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from harness.copiers.copier_pool import Copier
from harness.copiers.copying import Copying
from harness.faults.judge import Damage, judge
from harness.faults.kinds import elect_preferred, reassign
from harness.faults.lab import FaultLab
from harness.faults.proxy import PRODUCE, WRITE_TXN_MARKERS, HeldRequest
from harness.faults.writers import THREE_YEARS_SECONDS
from harness.processes import HarnessError, wait_for
from harness.raw_writer import RawTransactions, RawWriter, plain

#: Every fifth of a second target brokers expire producers whose last record is older than a day.
SWEEPING = {"producer.id.expiration.check.interval.ms": "200"}
_SWEEP_SECONDS = 0.7
_WAIT_SECONDS = 120.0
_SLICE_SECONDS = 2
_HOLE_RECORDS = 300


class Stage:
    """One topic with one partition, its copy, and the events of the scenario.

    :param without: nets that are off in all copiers.
    """

    def __init__(self, lab: FaultLab, without: list[str], *, age_seconds: float = 0) -> None:
        self.lab = lab
        self.topic = lab.name("stage")
        lab.source.create_topic(self.topic, 1, config={"retention.ms": "-1"})
        self.writer = RawWriter(lab.source.bootstrap)
        self._transactions: RawTransactions | None = None
        self._timestamp = int((time.time() - age_seconds) * 1000)
        self._number = 0
        self._options = ["--without", ",".join(without)] if without else []
        self._copy: Copying | None = None
        self._named: list[str] = []

    @property
    def copy(self) -> Copying:
        """The copy, created when the first copier starts."""
        if self._copy is None:
            self._copy = self.lab.copying([self.topic], job_fields={"slice_seconds": _SLICE_SECONDS})
        return self._copy

    def batches(self, count: int, records: int = 20) -> Stage:
        """Write batches to the source, with enough records that the copier forwards each batch as it is."""
        for _ in range(count):
            values = [b"%d" % (self._number + index) for index in range(records)]
            self._number += records
            self._timestamp += 1
            self.writer.write(self.topic, 0, plain(*values, timestamp=self._timestamp))
        return self

    def hole(self, records: int = _HOLE_RECORDS) -> Stage:
        """Write an aborted transaction: a hole of ``records`` offsets, and its marker."""
        if self._transactions is None:
            self._transactions = RawTransactions(self.writer, f"stage-{self.topic}")
        values = [b"aborted-%d" % index for index in range(records)]
        self._transactions.write(self.topic, 0, plain(*values, timestamp=self._timestamp))
        self._transactions.end(commit=False)
        return self

    def adopted(self) -> Stage:
        """Copy everything, and let a new migration take the partition over at its end."""
        self.copied()
        self._copy = self.lab.copying(
            [self.topic], job_fields={"slice_seconds": _SLICE_SECONDS, "on_mismatch": "stop"}, adopted=True
        )
        return self

    def copier(self, *options: str) -> Copier:
        """Start a copier for all current records of the source."""
        self.copy.write_job("seed")
        return self.lab.copier(self.copy, 0, "seed", *self._options, *options)

    def copied(self, *options: str) -> Stage:
        """Copy all current records of the source, or record the named error."""
        return self.ended(self.copier(*options))

    def ended(self, copier: Copier) -> Stage:
        """Wait for the end of a copier; record a named error."""
        if copier.wait(90) != 0:
            errors = [item.error for item in copier.results() if item.error is not None]
            self._named.append(str(errors[0]["what"]) if errors else copier.text()[-1500:])
        return self

    def caught(self, api_key: int, skip: int) -> HeldRequest:
        """Start a copier, hold back its request in transit, and kill it."""
        catch = self.lab.target.proxy.hold([api_key], skip)
        copier = self.copier()
        held = catch(_WAIT_SECONDS)
        if held is None:
            raise HarnessError(f"no request {api_key} was caught: {copier.text()[-1000:]}")
        copier.kill()
        return held

    def stopped(self, at: str) -> Copier:
        """Start a copier that stops itself at a point."""
        copier = self.copier("--at", f"stop:{at}")
        wait_for(f"copier stops at {at}", lambda: copier.stopped or not copier.running, _WAIT_SECONDS)
        if not copier.running:
            raise HarnessError(f"the copier ended before {at}: {copier.text()[-1000:]}")
        return copier

    def deliver(self, held: HeldRequest) -> Stage:
        """Let the held request arrive."""
        held.deliver()
        if not held.answered.wait(_WAIT_SECONDS):
            raise HarnessError("a request that was caught is not answered")
        return self

    def wake(self, copier: Copier) -> Stage:
        """Continue a copier, give it time for its next action, then kill it."""
        copier.signal(signal.SIGCONT)
        end = time.monotonic() + 1.0
        while copier.running and time.monotonic() < end:
            time.sleep(0.01)
        copier.kill()
        return self

    def sweep(self) -> Stage:
        """Wait until the target's brokers have forgotten producers whose records are old."""
        time.sleep(_SWEEP_SECONDS)
        return self

    def judge(self) -> Damage:
        """Judge the result."""
        self.writer.wire.close()
        damage = judge(self.copy)
        damage.named += self._named
        return damage


def late_append(lab: FaultLab, without: list[str]) -> Damage:
    """An append of a dead copier arrives when its successor is far ahead."""
    stage = Stage(lab, without).batches(40)
    held = stage.caught(PRODUCE, 10)
    return stage.copied().deliver(held).batches(10).copied().judge()


def late_append_after_sweep(lab: FaultLab, without: list[str]) -> Damage:
    """The same with records of three years ago, when the brokers have forgotten the producer."""
    stage = Stage(lab, without, age_seconds=THREE_YEARS_SECONDS).batches(40)
    held = stage.caught(PRODUCE, 10)
    return stage.copied().sweep().deliver(held).batches(10).copied().judge()


def late_markers(lab: FaultLab, without: list[str]) -> Damage:
    """Markers of a dead copier arrive when its successor has filled the hole and continued."""
    stage = Stage(lab, without).batches(2).hole().batches(2).hole().batches(2)
    held = stage.caught(WRITE_TXN_MARKERS, 1)
    return stage.copied().deliver(held).batches(10).copied().judge()


def zombie_after_sweep(lab: FaultLab, without: list[str]) -> Damage:
    """A stopped copier wakes beyond its slice, just after the brokers have forgotten the producer of old records."""
    stage = Stage(lab, without, age_seconds=THREE_YEARS_SECONDS).batches(40)
    zombie = stage.stopped("append:6")
    return stage.copied().sweep().wake(zombie).batches(10).copied().judge()


def two_fillers(lab: FaultLab, without: list[str]) -> Damage:
    """A copier stops in the middle of a hole; the next one has read the log end when the first one continues."""
    stage = Stage(lab, without).batches(2).hole().batches(10)
    first = stage.stopped("markers:2")
    second = stage.stopped("markers-gap:1")
    stage.wake(first)
    second.signal(signal.SIGCONT)
    second.wait(_WAIT_SECONDS)
    return stage.batches(10).copied().judge()


def foreign_writer(lab: FaultLab, without: list[str]) -> Damage:
    """A foreign producer writes a record to a target partition while it is copied."""
    stage = Stage(lab, without).batches(40)
    catch = lab.target.proxy.hold([PRODUCE], 5)
    copier = stage.copier()
    held = catch(_WAIT_SECONDS)
    if held is None:
        raise HarnessError("no append was caught")
    with RawWriter(lab.target.bootstrap) as writer:
        writer.append(stage.topic, 0, encode_batch(plain(b"not yours"), 0))
    return stage.deliver(held).ended(copier).judge()


def unreplicated_markers(lab: FaultLab, without: list[str]) -> Damage:
    """A copier dies when its markers are on the leader alone; the next one comes before the followers have them."""
    stage = Stage(lab, without).batches(2).hole().batches(10)
    # The first broker leads, because a newcomer sends it all requests.
    wire, key = stage.copy.clients.wire("target"), (stage.topic, 0)
    reassign(lab.target, {key: [1, 2, 3]})
    elect_preferred(lab.target, [key])
    wait_for("the first broker leads", lambda: wire.metadata([key[0]])[key[0]].leaders.get(0) == 1, _WAIT_SECONDS)
    followers = [1, 2]

    def ends(which: Literal["latest", "log_end"]) -> int:
        return wire.list_offsets([key], which)[key]

    # After the check of its deadline, because a slow machine may take longer than a slice to get here.
    zombie = stage.stopped("markers-gap:2")
    for index in followers:
        lab.target.pause(index)
    try:
        zombie.signal(signal.SIGCONT)
        # The markers are on the leader now, and no follower fetches them.
        wait_for("markers on the leader", lambda: ends("log_end") > ends("latest") + 1, _WAIT_SECONDS, 0.01)
        zombie.kill()
        second = stage.copier()
        time.sleep(0.7)
    finally:
        for index in followers:
            lab.target.resume(index)
    second.wait(60)
    return stage.batches(10).copied().judge()


def stray_second_batch(lab: FaultLab, without: list[str]) -> Damage:
    """A second batch behind a boundary, whose first one was refused, arrives before the producer's other records."""
    stage = Stage(lab, without).batches(10).adopted().hole(3).batches(10)
    zombie = stage.stopped("append:1")
    ids = stage.copy.producers
    data = encode_batch(
        plain(b"stray"),
        producer_id=ids.data_producer_id,
        producer_epoch=ids.data_producer_epoch,
        base_sequence=20,
    )
    with RawWriter(lab.target.bootstrap) as writer:
        writer.try_append(stage.topic, 0, data)
    stage.wake(zombie)
    return stage.copied().judge()


def late_registration(lab: FaultLab, without: list[str]) -> Damage:
    """The registering marker of a dead copier arrives when its successor is far ahead."""
    stage = Stage(lab, without).batches(10).adopted().hole(3).batches(20)
    # The first of these requests only asks for the right to write markers.
    held = stage.caught(WRITE_TXN_MARKERS, 1)
    return stage.copied().deliver(held).batches(10).copied().judge()


def first_append_of_the_dead(lab: FaultLab, without: list[str]) -> Damage:
    """The first append behind a boundary is on its way when its copier dies; it arrives after that of the successor."""
    stage = Stage(lab, without).batches(10).adopted().hole(3).batches(20)
    held = stage.caught(PRODUCE, 0)
    return stage.copied().deliver(held).batches(10).copied().judge()


def foreign_behind_the_boundary(lab: FaultLab, without: list[str]) -> Damage:
    """A foreign producer writes exactly at the boundary, after the copier has read the log end."""
    stage = Stage(lab, without).batches(10).adopted().batches(20)
    copier = stage.stopped("append:1")
    with RawWriter(lab.target.bootstrap) as writer:
        writer.append(stage.topic, 0, encode_batch(plain(b"not yours"), 0))
    copier.signal(signal.SIGCONT)
    return stage.ended(copier).judge()


def without_owner(lab: FaultLab, without: list[str]) -> Damage:
    """Four copiers at the same time, with old records that brokers forget: the result of a race without any net."""
    rng = random.Random(lab.name("race"))
    stage = Stage(lab, without, age_seconds=THREE_YEARS_SECONDS)
    for _ in range(20):
        stage.batches(rng.randrange(1, 5)).hole(rng.randrange(1, 5))
    copiers = [stage.copier() for _ in range(4)]
    for copier in copiers:
        copier.wait(90)
    return stage.sweep().batches(10).copied().judge()


#: net -> (what is switched off, the situation, brokers that the target must have)
Scenario = Callable[[FaultLab, list[str]], Damage]
SCENARIOS: Mapping[str, tuple[list[str], Scenario, int]] = {
    "lease": (["lease"], two_fillers, 1),
    "deadline": (["deadline"], zombie_after_sweep, 1),
    "sequence": (["sequence"], late_append, 1),
    "resume_check": (["resume_check"], late_append_after_sweep, 1),
    "answer_check": (["answer_check"], foreign_writer, 1),
    "marker_fence": (["marker_fence"], late_markers, 1),
    "high_watermark": (["high_watermark"], unreplicated_markers, 3),
    "registration": (["registration"], stray_second_batch, 1),
    "registering_epoch": (["registering_epoch"], late_registration, 1),
    "adopted_sequence": (["sequence"], first_append_of_the_dead, 1),
    "adopted_answer_check": (["answer_check"], foreign_behind_the_boundary, 1),
    "all": (["lease", "deadline", "sequence", "resume_check", "marker_fence"], without_owner, 1),
}
#: With all nets these end with a named error: the damage comes from outside, so nets can only find it.
NAMED_WITH_ALL_NETS = frozenset({"resume_check", "answer_check", "adopted_answer_check"})
