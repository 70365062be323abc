"""What Spark does in a real migration: copiers, and the comparison of contents."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from airflow_provider_kafka_migration.compare.mirrored import MirrorChecker
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyPartition, StopAt
from airflow_provider_kafka_migration.documents.mirror import ComparedPartition, MirrorComparison
from airflow_provider_kafka_migration.documents.proof import (
    ContentDifference,
    ContentRange,
    PartitionContent,
    SchemaIdUse,
)
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings
from airflow_provider_kafka_migration.errors import SchemaIdUnknown, Where
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.schema_ids.id_map import Absent, LiveIdMap
from airflow_provider_kafka_migration.schema_ids.rewrite import IdRewriter
from airflow_provider_kafka_migration.schema_ids.wire_format import encode_id, id_in_payload
from airflow_provider_kafka_migration.storage.base import ObjectStore
from phase_world.cluster import ClusterState
from phase_world.logs import Log
from phase_world.outside import Outside

MIGRATION = "m1"
#: How often copiers look for ids that they lack.
_PATIENCE = 150


class _SimClients:
    """The connections of an executor (``copy.clients.Clients``)."""

    def __init__(self, context: PhaseContext) -> None:
        self._context = context

    def wire(self, role: str, *, read_only: bool) -> Any:
        """See ``Clients.wire``; nothing that compares may write."""
        assert read_only
        return (self._context.source if role == "source" else self._context.target).wire


def compare_ranges(context: PhaseContext, job: MirrorComparison) -> list[ComparedPartition]:
    """Compare the partitions of a mirror's job as an executor does."""
    clients: Any = _SimClients(context)
    with MirrorChecker(job, clients, context.journal_store) as checker:
        return [checker.check(piece) for piece in job.ranges]


class SimCopiers:
    """Copies whole batches at equal offsets, as far as a job asks for, and reports as a driver does.

    :param leaves: partitions by source key that are copied only up to an offset, whatever the job says.
    :param fails: partitions by source key that fail with an error.
    """

    def __init__(self, source: ClusterState, target: ClusterState, store: ObjectStore, outside: Outside) -> None:
        self._source, self._target = source, target
        self._store, self._outside = store, outside
        self.leaves: dict[tuple[str, int], int] = {}
        self.fails: dict[tuple[str, int], dict[str, Any]] = {}
        #: jobs as they were submitted, by name
        self.submitted: list[CopyJob] = []
        #: partitions by source key that the last run held because of a schema id, and that id
        self.held: dict[tuple[str, int], SchemaIdUnknown] = {}
        #: next source offset of each partition, as copiers have confirmed it last
        self.positions: dict[tuple[str, int], int] = {}
        #: called at the end of each run, before the job is reported as finished
        self.then: Callable[[], None] = lambda: None
        #: called once a run has reported its end
        self.reported: Callable[[], None] = lambda: None

    def submit(self, _spec: Any, _location: str, key: str, _read_progress: Any) -> None:
        """Run a job to its end. See ``CopyRunner``."""
        data = self._store.get(key)
        assert data is not None, key
        job = CopyJob.parse(data)
        self.submitted.append(job)
        self._outside.call(f"copiers.{job.name}", lambda: self.copy(job), changes="records")
        for _ in range(_PATIENCE if self.held else 0):
            # A real copier goes on as soon as the id map has the id; somebody else has to put it there.
            time.sleep(0.02)
            self.copy(job)
            if not self.held:
                break
        self.then()
        self._report(job)
        self.reported()
        if self.fails:
            raise RuntimeError("the driver ended with exit code 1")

    def copy(self, job: CopyJob) -> None:
        """Copy what is there by now, up to the stop offsets of the job; an unknown schema id holds its partition."""
        self.held = {}
        stop = StopAt.in_force(self._store.get(job.stop_key)) if job.stop_key else None
        for item in job.partitions:
            if item.topic not in self._source.topics:
                continue  # a copier stops this partition and goes on with the others
            until = item.until_offset if stop is None else stop.offset(*item.key)
            source = self._source.log(*item.key)
            end = source.offset("stable") if until is None else min(until, source.offset("stable"))
            try:
                self._copy_one(item, source, min(end, self.leaves.get(item.key, end)), self._rewriter(job, item))
            except SchemaIdUnknown as error:
                self.held[item.key] = error
        self.positions.update({item.key: self._position(item) for item in job.partitions})
        # Without an event: figures that a real driver writes while it runs. They say nothing about the job's end.
        key = f"{job.migration_id}/progress/{job.name}.json"
        now = json.loads(self._document(job))
        former = json.loads(self._store.objects.get(key, b"{}"))
        now["finished"] = former.get("finished", False) if former.get("generation") == job.generation else False
        self._store.objects[key] = json.dumps(now).encode()

    def _position(self, item: CopyPartition) -> int:
        """Return the next source offset; a copier does not count what others have written to the target meanwhile."""
        if item.topic not in self._source.topics:
            return self.positions.get(item.key, -1)
        end = self._target.log(item.target_topic, item.partition).end
        return min(end + item.source_start_offset - item.target_start_offset, self._source.log(*item.key).end)

    def _rewriter(self, job: CopyJob, item: CopyPartition) -> IdRewriter | None:
        settings = job.schema_ids
        topic = None if settings is None else settings.topics.get(item.topic)
        if settings is None or topic is None or not topic.rewrite:
            return None
        ids = LiveIdMap(self._store, MIGRATION, settings.id_map_key)
        where = Where(topic=item.topic, partition=item.partition)
        return IdRewriter(
            topic.parts, ids, context=topic.context, decoded=topic.decoded, strict=settings.strict, where=where
        )

    def _copy_one(self, item: CopyPartition, source: Log, end: int, rewriter: IdRewriter | None) -> None:
        target = self._target.log(item.target_topic, item.partition)
        shift = item.source_start_offset - item.target_start_offset
        for data in list(source.batches):
            batch = RawBatch(memoryview(data))
            if target.end <= batch.base_offset - shift and batch.next_offset <= end:
                changed = data if rewriter is None else bytes(rewriter.rewrite(batch).data)
                target.put(changed, batch.base_offset - shift)

    def _report(self, job: CopyJob) -> None:
        self._store.put(f"{job.migration_id}/progress/{job.name}.json", self._document(job))

    def _document(self, job: CopyJob) -> bytes:
        rows = [self._row(item) for item in job.partitions]
        total = sum(row["total_records"] for row in rows)
        document = {
            "generation": job.generation,
            "run": f"run-{len(self.submitted)}",
            "seconds": 1.0,
            "records_per_second": 1.0,
            "finished": True,
            "partitions_done": len(rows),
            "partitions_total": len(rows),
            "partitions_failed": len(self.fails),
            "records": total,
            "copied_bytes": 10 * total,
            "source_bytes": 10 * total,
            "total_bytes": 10 * total,
            "holes": 0,
            "partitions": rows,
        }
        return json.dumps(document).encode()

    def _row(self, item: CopyPartition) -> dict[str, Any]:
        log = self._target.log(item.target_topic, item.partition)
        return {
            "topic": item.topic,
            "topic_id": item.topic_id,
            "partition": item.partition,
            "verdict": item.verdict.value,
            "source_offset": self.positions.get(item.key, -1),
            "lag": 0,
            "total_records": len(log.values()),
            "total_holes": 0,
            "target_offset": log.end,
            "error": self.fails.get(item.key),
            "failed": item.key in self.fails,
        }


class SimVerifier:
    """Compares the values of both logs.

    :param errors: partitions by source key that cannot be compared.
    """

    def __init__(self, source: ClusterState, target: ClusterState, outside: Outside) -> None:
        self._source, self._target, self._outside = source, target, outside
        self.errors: dict[tuple[str, int], dict[str, Any]] = {}
        #: what the comparison knows about schema ids in records, and where the id map is
        self.settings: Callable[[], SchemaIdSettings | None] = lambda: None
        self.store: ObjectStore | None = None
        #: partitions that no result is returned for
        self.silent: set[tuple[str, int]] = set()
        self.runs = 0

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """Compare each range. See ``ContentVerifier``."""
        self.runs += 1
        self._outside.call("verifier", lambda: None)
        return [self._one(item) for item in reversed(ranges) if item.key not in self.silent]

    def _one(self, item: ContentRange) -> PartitionContent:
        error = self.errors.get(item.key)
        here = _values(self._source.log(*item.key), item.source_start_offset, item.source_end_offset)
        there = _values(
            self._target.log(item.target_topic, item.partition), item.target_start_offset, item.target_end_offset
        )
        if error is not None:
            return PartitionContent(
                topic=item.topic, partition=item.partition, source_records=0, target_records=0, compared=0, error=error
            )
        here, ids = self._mapped(item.topic, here)
        differing = [offset for offset in sorted(here.keys() | there.keys()) if here.get(offset) != there.get(offset)]
        return PartitionContent(
            topic=item.topic,
            partition=item.partition,
            source_records=len(here),
            target_records=len(there),
            compared=len(here) - len(differing),
            source_digest=str(sorted(here.items())),
            target_digest=str(sorted(there.items())),
            difference_count=len(differing),
            differences=[
                ContentDifference(kind="changed", source_offset=offset, target_offset=offset, detail="value")
                for offset in differing
            ],
            **ids,
        )

    def _mapped(self, topic: str, values: dict[int, bytes | None]) -> tuple[dict[int, bytes | None], dict[str, Any]]:
        """Return the values as the target should have them, and the ids that occur in them."""
        settings = self.settings()
        of_topic = None if settings is None else settings.topics.get(topic)
        if settings is None or of_topic is None or self.store is None:
            return values, {}
        ids = LiveIdMap(self.store, MIGRATION, settings.id_map_key)
        mapped, uses = {}, dict[int, list[int]]()
        for offset, value in values.items():
            found = None if value is None else id_in_payload(value, 0, len(value))
            mapped[offset] = value
            if value is None or found is None:
                continue
            uses.setdefault(found[1], []).append(offset)
            target = ids.find(of_topic.context, *found)
            if of_topic.rewrite and target is not None and not isinstance(target, Absent):
                mapped[offset] = value[:1] + encode_id(found[0], target) + value[5:]
        rows = [
            SchemaIdUse(part="value", kind="id32", id=number, count=len(offsets), first_offset=min(offsets))
            for number, offsets in sorted(uses.items())
        ]
        return mapped, {"schema_ids": rows, "schema_id_rule": settings.rule(topic)}


def _values(log: Log, start: int, end: int) -> dict[int, bytes | None]:
    return {offset: value for offset, value in log.values().items() if start <= offset < end}
