"""Measures one copy: from the first to the last record that is readable on the target, the same for every peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from benchmarks.peers.base import Peer, Task, Usage

_POLL_SECONDS = 0.01
_USAGE_SECONDS = 0.05
#: A worker copies nothing yet so long before its first record is readable.
IDLE_BEFORE_SECONDS = 0.5
#: A copier must show its first record within this time after its start (a JVM on a busy machine).
FIRST_RECORD_SECONDS = 180.0


@dataclass(frozen=True)
class Content:
    """What a topic of the source holds.

    :param ends: partition -> end offset.
    :param visible: partition -> records that a committed reader sees.
    :param stored_bytes: of all batches, as they are stored.
    :param record_bytes: of a record's key and value, on average.
    """

    ends: Mapping[int, int]
    visible: Mapping[int, int]
    stored_bytes: int
    record_bytes: float

    @property
    def records(self) -> int:
        return sum(self.visible.values())


@dataclass(frozen=True)
class Sample:
    """One look at the target and at the copier.

    :param seconds: since the start of the peer.
    :param fraction: of the whole copy that is readable on the target.
    """

    seconds: float
    fraction: float
    cpu_seconds: float


@dataclass(frozen=True)
class CopyResult:
    """One row of a scenario.

    :param complete: False if the time allowed was over; rates are then of what was copied.
    :param cpu_seconds: of all processes of the copier, for the whole topic.
    :param start_seconds: from the start of its processes to the first record on the target.
    :param worker_peak_mib: largest resident size of a worker above its size before the copy; None if unknown.
    """

    peer: str
    title: str
    complete: bool
    records_per_second: float
    stored_mb_per_second: float
    data_mb_per_second: float
    seconds: float
    cpu_seconds: float
    cpu_seconds_with_start: float
    start_seconds: float
    peak_rss_mib: float
    worker_peak_mib: float | None

    def as_dict(self) -> dict[str, Any]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def judge(peer: str, title: str, content: Content, first: Sample, last: Sample, peak: Usage) -> CopyResult:
    """What two looks say: at the first record seen on the target, and at the last.

    :param peak: ``rss_bytes`` and ``worker_bytes`` are the largest seen.
    """
    share = last.fraction - first.fraction
    seconds = max(last.seconds - first.seconds, 1e-6)
    if share <= 0:
        raise ValueError(f"{title}: all of the copy was there at the first look: too little data to measure")
    rate = share / seconds
    data_bytes = content.records * content.record_bytes
    above = None if peak.idle_bytes is None else max(0, peak.worker_bytes - peak.idle_bytes) / 2**20
    return CopyResult(
        peer=peer,
        title=title,
        complete=last.fraction >= 1.0,
        records_per_second=content.records * rate,
        stored_mb_per_second=content.stored_bytes * rate / 1e6,
        data_mb_per_second=data_bytes * rate / 1e6,
        seconds=seconds,
        cpu_seconds=(last.cpu_seconds - first.cpu_seconds) / share,
        cpu_seconds_with_start=last.cpu_seconds,
        start_seconds=first.seconds,
        peak_rss_mib=peak.rss_bytes / 2**20,
        worker_peak_mib=above,
    )


class Watch:
    """Looks at a topic of the target, over a connection of its own."""

    def __init__(self, bootstrap: str, topic: str, wanted: Mapping[int, int]) -> None:
        self._wire = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": bootstrap}, "target"))
        self._keys = [(topic, number) for number in sorted(wanted)]
        self._wanted = {(topic, number): count for number, count in wanted.items()}
        self._total = max(1, sum(wanted.values()))

    def fraction(self) -> float:
        """How much of what is wanted is readable; 1.0 only when every partition is complete."""
        try:
            ends = self._wire.list_offsets(self._keys, "latest")
        except Transient:
            return 0.0
        got = sum(min(ends[key], self._wanted[key]) for key in self._keys)
        return got / self._total

    def close(self) -> None:
        self._wire.close()


class _Peak:
    """Follows what a peer uses."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._sizes: list[tuple[float, int]] = []
        self._at = 0.0
        self.last = Usage(0.0, 0, 0)
        self.peak = self.last

    def look(self, *, now: bool = False) -> Usage:
        if now or time.monotonic() - self._at >= _USAGE_SECONDS:
            self.last = self._peer.measure()
            self._at = time.monotonic()
            self.peak = Usage(
                self.last.cpu_seconds,
                max(self.peak.rss_bytes, self.last.rss_bytes),
                max(self.peak.worker_bytes, self.last.worker_bytes),
                self.last.idle_bytes if self.last.idle_bytes is not None else self.peak.idle_bytes,
            )
            self._sizes.append((self._at, self.last.worker_bytes))
        return self.last

    def note_idle(self) -> None:
        """The first record is there: where the peer does not tell, its worker's size a moment ago was the idle one."""
        now = time.monotonic()
        before = [size for at, size in self._sizes if size and at <= now - IDLE_BEFORE_SECONDS]
        if self.peak.idle_bytes is None and before:
            self.peak = replace(self.peak, idle_bytes=before[-1])


def measure_copy(
    peer: Peer, task: Task, content: Content, *, max_seconds: float, say: Callable[[str], None] = lambda _: None
) -> CopyResult:
    """Run a peer on a task and measure it; the peer is stopped afterwards, whatever happens.

    :param max_seconds: longest time from the first record on; then what was copied so far counts.
    :raises HarnessError: the copier has failed.
    :raises TimeoutError: no record in time.
    """
    watch = Watch(task.target, task.target_topic, content.ends if peer.keeps_offsets else content.visible)
    try:
        begun = time.monotonic()
        peer.start(task)
        peak = _Peak(peer)
        first = _first(peer, watch, peak, begun)
        last = _last(watch, peak, begun, first, max_seconds, say)
        return judge(peer.name, peer.title, content, first, last, peak.peak)
    finally:
        peer.stop()
        watch.close()


def _first(peer: Peer, watch: Watch, peak: _Peak, begun: float) -> Sample:
    while True:
        fraction = watch.fraction()
        seconds = time.monotonic() - begun
        if fraction > 0:
            sample = Sample(seconds, fraction, peak.look(now=True).cpu_seconds)
            peak.note_idle()
            return sample
        peak.look()
        if seconds > FIRST_RECORD_SECONDS:
            raise TimeoutError(f"{peer.title}: no record on the target within {FIRST_RECORD_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _last(
    watch: Watch, peak: _Peak, begun: float, first: Sample, max_seconds: float, say: Callable[[str], None]
) -> Sample:
    told = time.monotonic()
    while True:
        fraction = watch.fraction()
        seconds = time.monotonic() - begun
        over = seconds - first.seconds > max_seconds
        if fraction >= 1 or over:
            return Sample(seconds, fraction, peak.look(now=True).cpu_seconds)
        peak.look()
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"{fraction:.0%}")
        time.sleep(_POLL_SECONDS)
