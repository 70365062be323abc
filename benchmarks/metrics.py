"""``python -m benchmarks.metrics``: what the metrics cost a copier, per batch and per sample. No brokers.

The hot path without sockets: parse the batches of a fetch, decide, place, patch headers, encode requests, confirm.
Sockets and the kernel come on top of it, so the share that metrics have of a real copier's processor time is smaller.
Results in ``benchmarks/results/metrics.json``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_kafka_migration.copy.latency import LatencyHistogram
from airflow_provider_kafka_migration.copy.layout import OffsetLayout
from airflow_provider_kafka_migration.copy.partition import Figures, PartitionCopy, ResumePoint, Sent
from airflow_provider_kafka_migration.copy.transform import Append, BatchTransformer
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, ProducerIds
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka import produce
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch, patched_header, read_batches
from airflow_provider_kafka_migration.lanes.figures import standing_of
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from airflow_provider_kafka_migration.storage.local import LocalStore
from benchmarks.run import write_json

RESULTS = Path(__file__).parent / "results" / "metrics.json"
BATCHES = 400
ROUNDS = 40
RECORD_BYTES = 200
#: Records in a batch: a slow producer's, whose batches are joined; usual ones; large ones.
SHAPES = (1, 100, 2000)
SAMPLED_PARTITIONS = 1000
SAMPLE_SECONDS = 5.0
AIM_SHARE = 0.01

_SPEC = CopyPartition(
    topic="t", target_topic="t", partition=0, source_start_offset=0, target_start_offset=0, verdict=Verdict.EQUAL
)
_IDS = ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0)


class HotPath:
    """A partition whose batches go all the way to a request and back, without a broker."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder = folder
        self._number = 0
        payload = b"x" * RECORD_BYTES
        now_ms = time.time_ns() // 1_000_000
        batches = [
            encode_batch(
                [Record(offset, now_ms, None, payload, ()) for offset in range(start, start + records)], leader_epoch=1
            )
            for start in range(0, BATCHES * records, records)
        ]
        self._data = b"".join(batches)
        self.appends = 0

    def run(self) -> None:
        """Copy all batches once."""
        self._number += 1
        job = CopyJob(
            migration_id="m1",
            name="tail",
            generation=1,
            journal_location="file:///j",
            archive_location="file:///a",
            via="direct",
            producers=_IDS,
            lanes=[],
        )
        copy = PartitionCopy(_SPEC, 0)
        maps = LaneMaps(LocalStore(self._folder / str(self._number)), "m1")
        maps.load(_SPEC, 0)
        copy.resume(ResumePoint(0, 0, 0, 0))
        layout, transformer = OffsetLayout(job, maps), BatchTransformer(0)
        layout.place(copy, list(transformer.decide(read_batches(self._data)[0])))
        self.appends = 0
        while copy.write.pending:
            step, _, sequence = copy.write.take_append()
            header = patched_header(step.batch, 1, 0, sequence)
            produce.encode([produce.ProduceBatch("t", 0, header, step.batch.payload)], timeout_ms=1000)
            copy.confirm_append(time.time_ns() // 1_000_000)
            self.appends += 1


def best_seconds(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the processor time of the fastest of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return min(found)


class SentBefore(NamedTuple):
    """``Sent`` without what metrics need."""

    target_offset: int
    record_count: int
    source_offset: int
    size_bytes: int
    runs: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, step: Append, target_offset: int) -> SentBefore:
        """See ``Sent.of``."""
        return cls(target_offset, step.record_count, step.source_offset, step.batch.size_bytes, step.runs)


class FiguresBefore:
    """``Figures`` without what metrics need."""

    def __init__(self) -> None:
        self.records = self.copied_bytes = 0

    def add_sent(self, sent: Sent) -> None:
        """See ``Figures.add_sent``."""
        self.records += sent.record_count
        self.copied_bytes += sent.size_bytes


def added_seconds(times: int = 2_000, rounds: int = 300) -> float:
    """Return what metrics add to each append: two more fields of ``Sent``, the clock, one entry in the histogram.

    The clock is read once per answer; here each answer has one batch, as in the worst case.
    """
    now_ms = time.time_ns() // 1_000_000
    (batch,) = read_batches(encode_batch([Record(0, now_ms, None, b"x", ())]))[0]
    step = Append(batch, 0, 1)  # type: ignore[arg-type]
    sent = Sent.of(step, 0)

    def before() -> None:
        figures = FiguresBefore()
        for _ in range(times):
            SentBefore.of(step, 0)
            figures.add_sent(sent)

    def now() -> None:
        figures = Figures()
        for _ in range(times):
            Sent.of(step, 0)
            figures.add_sent(sent, time.time_ns() // 1_000_000)

    return (best_seconds(now, rounds) - best_seconds(before, rounds)) / times


def sample_seconds() -> float:
    """Return what one sample of a lane's partitions costs, by the thread that writes figures."""
    copies = [PartitionCopy(_SPEC.model_copy(update={"partition": n}), 0) for n in range(SAMPLED_PARTITIONS)]
    for copy in copies:
        copy.resume(ResumePoint(0, 0, 0, 0))
        copy.read.last_stable_offset = copy.read.high_watermark = 5
        copy.figures.latency.add(5, 1)

    def sample() -> None:
        standing_of(copies)
        total = LatencyHistogram()
        for copy in copies:
            total.merge(copy.figures.latency.flat())

    return best_seconds(sample)


def main() -> int:
    """Measure and write the results; 1 if metrics cost more than :data:`AIM_SHARE`."""
    added, sampled = added_seconds(), sample_seconds()
    rows: list[dict[str, Any]] = []
    for records in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            path = HotPath(Path(folder), records)
            seconds = best_seconds(path.run)
            share = added * path.appends / seconds
            rows.append(
                {
                    "records_per_batch": records,
                    "appends": path.appends,
                    "path_us_per_append": round(seconds / path.appends * 1e6, 2),
                    "share": round(share, 5),
                }
            )
    sampling = sampled / SAMPLE_SECONDS
    result = {
        "added_us_per_append": round(added * 1e6, 3),
        "rows": rows,
        "sample_ms_of_1000_partitions": round(sampled * 1e3, 2),
        "sampling_share_of_a_processor": round(sampling, 5),
    }
    write_json(RESULTS, result)
    print(result)
    return 0 if all(row["share"] < AIM_SHARE for row in rows) and sampling < AIM_SHARE else 1


if __name__ == "__main__":
    raise SystemExit(main())
