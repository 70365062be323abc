"""The final drain: set the tail's stop, wait until the target has everything, copy the last schemas, write the maps.

The tail ends by itself: ``control/tail-stop.json`` has the exclusive source offset of each partition, and copiers poll
it. The brokers decide when the drain is done: each partition's log end on the target must correspond to its end on the
source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition, StopAt
from airflow_provider_kafka_migration.documents.cutover import Boundary
from airflow_provider_kafka_migration.errors import (
    DrainTimeout,
    ForeignData,
    FreezeFailed,
    ObjectExists,
    leave_out_of_way_back,
)
from airflow_provider_kafka_migration.freeze import frozen, stand_still, stops, words
from airflow_provider_kafka_migration.freeze.final_schemas import FinalSchemas
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt, boundary_ends
from airflow_provider_kafka_migration.record.offset_maps import (
    SourcePositions,
    build_document,
    keep_final_maps,
    only_holes,
    store_final,
)
from airflow_provider_kafka_migration.record.partition_names import by_name, partition_name, target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "cutover"
POLL_SECONDS = 0.25
#: After this time the tail has reacted to a stop: it polls twice a second and finishes its current chunk.
SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class Drained:
    """How far one partition is drained.

    :param position: source offset that corresponds to the target's end.
    :param lag: in source offsets; holes at the end of a mapped partition do not count.
    """

    key: TopicPartition
    source_end: int
    target_end: int
    position: int
    lag: int
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """Return the state as data, for the evidence's ``drain_final``."""
        return {
            "topic": self.key[0],
            "partition": self.key[1],
            "source_end_offset": self.source_end,
            "target_end_offset": self.target_end,
            "lag": self.lag,
            "verdict": self.verdict,
        }


def run(
    context: PhaseContext,
    *,
    poll_seconds: float = POLL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> PhaseResult:
    """Write the tail's stop, wait until all partitions are drained, write ``offset-map.json``.

    :raises DrainTimeout: the target was not complete within ``drain_timeout``; the freeze is lifted.
    :raises ForeignData: a target partition ends beyond the source's end.
    """
    record = context.record
    with frozen.frozen_step(context, steps.FINAL_DRAIN) as attempt:
        done = record.cutover_step(attempt, steps.FINAL_DRAIN)
        if done is not None and record.offset_map() is not None:
            return PhaseResult(PHASE, done["summary"], done, already_done=True)
        timer = frozen.StepTimer.start(record, attempt, steps.FINAL_DRAIN)
        boundary = record.boundary()
        _check_same_attempt(record, attempt, boundary)
        ends = boundary_ends(record, boundary)
        write_tail_stop(record, boundary)
        with FinalSchemas(context, attempt) as schemas:
            drained = _wait(context, attempt, ends, schemas, poll_seconds, sleep)
            schemas.finish()
        if context.spec.cutover.on_bypass == "note":
            drained, ends = _move_boundary(context, boundary, ends, sleep)
        bypasses = stand_still.check_not_bypassed(record, context.source, attempt, ends)
        map_details = _write_offset_map(record, context.target, ends, drained)
        details = timer.done(
            {**_details(drained, map_details), "bypasses": [item.model_dump(mode="json") for item in bypasses]}
        )
        return PhaseResult(PHASE, details["summary"], details)


def _details(drained: list[Drained], map_details: dict[str, Any]) -> dict[str, Any]:
    verdicts: dict[str, int] = {}
    for item in drained:
        verdicts[item.verdict] = verdicts.get(item.verdict, 0) + 1
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    return {
        "summary": f"the target has everything: {len(drained)} partitions ({counts})",
        "verdicts": verdicts,
        "partitions": [item.as_dict() for item in drained],
        "offset_map": map_details,
    }


def _check_same_attempt(record: MigrationRecord, attempt: FreezeAttempt, boundary: Boundary) -> None:
    if boundary.attempt != attempt.number or record.cutover_step(attempt, steps.SENTINELS) is None:
        raise FreezeFailed(
            "the sentinels of this freeze are not written yet",
            where=record.where(PHASE),
            next_step="clear cutover.sentinels",
        )


def write_tail_stop(record: MigrationRecord, boundary: Boundary) -> None:
    """Write ``control/tail-stop.json``: create-only, except over a stop that was withdrawn when a freeze was lifted.

    :raises FreezeFailed: another stop is in force.
    """
    key = record.key(keys.TAIL_STOP)
    document = StopAt(migration_id=record.migration_id, offsets=boundary.ends)
    data = document.canonical()
    record.journal.check_holds()
    try:
        record.journal_store.put_new(key, data)
    except ObjectExists:
        there = record.journal_store.get(key) or b"{}"
        if there == data:
            return
        if StopAt.parse(there).offsets:
            raise FreezeFailed(
                "another stop of the tail, at other offsets, is already in force",
                where=record.where(PHASE, path=f"{record.journal_store.uri}/{key}"),
                next_step="find out who else acts on this migration (kafka-migration journal)",
            ) from None
        record.journal_store.put(key, data)


def _wait(
    context: PhaseContext,
    attempt: FreezeAttempt,
    ends: dict[TopicPartition, int],
    schemas: FinalSchemas,
    poll_seconds: float,
    sleep: Callable[[float], None],
) -> list[Drained]:
    timeout = context.spec.cutover.drain_timeout.total_seconds()
    started = context.now()
    while True:
        drained = read_drained(context.record, context.source, context.target, ends)
        late = [item for item in drained if item.lag]
        context.progress(
            Progress(PHASE, "final drain", done=len(drained) - len(late), total=len(drained), unit="partitions")
        )
        if not late:
            return drained
        stops.check_deadline(context.record, attempt)
        waited = (context.now() - started).total_seconds()
        if waited > timeout:
            raise _too_late(context.record, late, timeout)
        schemas.answer()
        sleep(poll_seconds)


def _move_boundary(
    context: PhaseContext, boundary: Boundary, ends: dict[TopicPartition, int], sleep: Callable[[float], None]
) -> tuple[list[Drained], dict[TopicPartition, int]]:
    """Move the boundary to where the tail stopped: with ``on_bypass: note`` it may have copied past the boundary.

    Records that the tail copied before it read its stop are valid. So wait until the tail has stopped, and take that
    position as the end of the source.
    """
    while True:
        before = read_drained(context.record, context.source, context.target, ends)
        sleep(SETTLE_SECONDS)
        drained = read_drained(context.record, context.source, context.target, ends)
        if [item.target_end for item in before] == [item.target_end for item in drained]:
            break
    moved = {item.key: max(item.position, ends[item.key]) for item in drained}
    if moved != ends:
        context.record.put_result(keys.BOUNDARY, boundary.model_copy(update={"ends": by_name(moved)}))
    return read_drained(context.record, context.source, context.target, moved), moved


def _too_late(record: MigrationRecord, late: list[Drained], timeout: float) -> DrainTimeout:
    worst = max(late, key=lambda item: item.lag)
    return DrainTimeout(
        f"{len(late)} partitions are not drained after {timeout:g} s; the largest lag is {worst.lag} at "
        f"{partition_name(worst.key)}",
        where=record.where(PHASE, topic=worst.key[0], partition=worst.key[1]),
        next_step="check in the log of the tail's task that the tail runs. The freeze is lifted: "
        f"{words.again(record.spec)}",
        details={"partitions": [item.as_dict() for item in late]},
    )


def read_drained(
    record: MigrationRecord, source: Cluster, target: Cluster, ends: dict[TopicPartition, int]
) -> list[Drained]:
    """Read how far all partitions are drained, in ascending order.

    :raises ForeignData: a target partition ends beyond the source's end.
    """
    partitions = record.partitions()
    keys = [target_key(item) for item in partitions.values()]
    # The log end first: a high watermark that is read later and has reached it proves that it is replicated.
    log_ends = target.wire.list_offsets(keys, "log_end")
    high_watermarks = target.wire.list_offsets(keys, "latest")
    positions = SourcePositions.load(record, target)
    found = []
    for key, item in partitions.items():
        log_end = log_ends[target_key(item)]
        settled = high_watermarks[target_key(item)] >= log_end
        found.append(_drained(record, source, item, ends[key], log_end, positions, settled=settled))
    return found


def _drained(
    record: MigrationRecord,
    source: Cluster,
    item: CopyPartition,
    source_end: int,
    target_end: int,
    positions: SourcePositions,
    *,
    settled: bool,
) -> Drained:
    position = positions.of(item, target_end)
    verdict = positions.verdict(item)
    lag = source_end - position
    if lag < 0 and record.spec.cutover.on_bypass != "note":
        raise ForeignData(
            f"the target ends {-lag} offsets beyond the source's end",
            where=record.where(PHASE, cluster="target", topic=item.target_topic, partition=item.partition),
            next_step="once the freeze is lifted, " + leave_out_of_way_back(item.topic)
            if record.spec.is_way_back
            else "find out who writes to the target topic (DescribeProducers): before the client switch, only the "
            "migration may write there",
            details={"target_end_offset": target_end, "source_end_offset": source_end},
        )
    if lag > 0 and positions.is_mapped(item.key) and only_holes(source, item.key, position, source_end):
        lag = 0
    end = positions.target_end(item, target_end)
    return Drained(item.key, source_end, end, position, max(lag, 0 if settled else 1), verdict)


def _write_offset_map(
    record: MigrationRecord, target: Cluster, ends: dict[TopicPartition, int], drained: list[Drained]
) -> dict[str, Any]:
    document = build_document(record, target, ends, {item.key: item.target_end for item in drained})
    keep_final_maps(record, target, document)
    uri = store_final(record, document)
    return {"uri": uri, "sha256": document.digest(), "size_bytes": len(document.canonical())}
