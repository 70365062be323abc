"""One sentinel record per source partition, exactly once (docs/decisions/0008).

Record: header ``x-kbe-cutover-sentinel: <migration_id>``, key ``__kbe_sentinel__``, value
``{"migration_id": "<id>", "partition": <p>, "timestamp": "<iso8601>"}``.

A task may be killed between two sentinels or between a sentinel and its journal entry. Still each sentinel is written
exactly once: all sentinels of an attempt share one producer id, journaled before the first one, and each has sequence 0
on its partition. A broker answers a repetition of such a batch with the offset of the first one and writes nothing
(KIP-98). In case the broker has forgotten the producer id, the end of the partition is searched for a sentinel of this
migration before one is written.

With ``sentinel: end_offsets`` nothing is written, and the frozen log ends are the boundary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import Boundary, Sentinel
from airflow_provider_kafka_migration.errors import BrokerRefused, MigrationError, Transient
from airflow_provider_kafka_migration.freeze import frozen, stand_still, stops, words
from airflow_provider_kafka_migration.freeze.sentinel_records import find_sentinels, sentinel_record
from airflow_provider_kafka_migration.kafka import error_codes, produce
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, api_version
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import by_name, partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso

PHASE = "cutover"

#: Partitions per produce request and journal entry.
CHUNK = 200
_HEADER_BYTES = 61
_PRODUCE_TIMEOUT_MS = 20_000


def run(context: PhaseContext, *, sleep: Callable[[float], None] = time.sleep) -> PhaseResult:
    """Write the missing sentinels; write ``results/boundary.json`` with the end of the source.

    :raises FreezeFailed: nothing is frozen, or a producer wrote to the source after the freeze.
    """
    with frozen.frozen_step(context, steps.SENTINELS) as attempt:
        done = context.record.cutover_step(attempt, steps.SENTINELS)
        if done is not None:
            return PhaseResult(PHASE, _summary(context.record.boundary()), done, already_done=True)
        timer = frozen.StepTimer.start(context.record, attempt, steps.SENTINELS)
        boundary = _boundary(context, attempt, sleep)
        key = context.record.put_result(keys.BOUNDARY, boundary)
        details = timer.done(
            {"boundary": key, "digest": boundary.digest(), "sentinels": len(boundary.sentinels), "mode": boundary.mode}
        )
        return PhaseResult(PHASE, _summary(boundary), details)


def _summary(boundary: Boundary) -> str:
    if boundary.mode == "end_offsets":
        return f"the end of {len(boundary.ends)} source partitions is recorded"
    return f"{len(boundary.sentinels)} sentinels written, one per source partition"


def _boundary(context: PhaseContext, attempt: FreezeAttempt, sleep: Callable[[float], None]) -> Boundary:
    mode = context.spec.cutover.sentinel
    sentinels: list[Sentinel] = []
    if mode == "record":
        written = _write_all(context, attempt, sleep)
        sentinels = [Sentinel(topic=key[0], partition=key[1], offset=written[key]) for key in sorted(written)]
    ends = _settled_ends(
        context.record,
        context.source,
        attempt,
        {(item.topic, item.partition): item.offset for item in sentinels},
        sleep,
    )
    return Boundary(
        migration_id=context.migration_id, attempt=attempt.number, mode=mode, sentinels=sentinels, ends=by_name(ends)
    )


def _settled_ends(
    record: MigrationRecord,
    source: Cluster,
    attempt: FreezeAttempt,
    sentinels: dict[TopicPartition, int],
    sleep: Callable[[float], None],
) -> dict[TopicPartition, int]:
    """Return the source's ends once all of it, including the sentinels, is on all in-sync replicas and can be copied.

    With ``on_bypass: note`` the log never stops growing: the boundary is the last stable offset once it has passed
    the sentinels.
    """
    goes_on = record.spec.cutover.on_bypass == "note"
    while True:
        look = stand_still.SourceEnds.read(record, source)
        behind_sentinels = all(look.stable[key] > offset for key, offset in sentinels.items())
        if behind_sentinels and (goes_on or look.stable == look.log_end):
            return look.stable
        stops.check_deadline(record, attempt)
        sleep(stand_still.POLL_SECONDS)


# -- writing ---------------------------------------------------------------------------------------------------------


def _write_all(
    context: PhaseContext, attempt: FreezeAttempt, sleep: Callable[[float], None]
) -> dict[TopicPartition, int]:
    """Write the missing sentinels; return the offset of the sentinel of every partition."""
    record = context.record
    written = _journaled(record, attempt)
    todo = [key for key in record.partitions() if key not in written]
    if not todo:
        return written
    if not written:
        _check_untouched(record, context.source, attempt)
    producer_id, epoch = _producer(record, context.source, attempt)
    for chunk in _chunks(todo):
        found = find_sentinels(record, context.source, attempt, chunk)
        missing = [key for key in chunk if key not in found]
        found.update(_write(record, context.source, attempt, missing, (producer_id, epoch), sleep))
        context.journal.step(
            steps.SENTINELS_WRITTEN,
            key=attempt.key,
            details={"offsets": by_name(found), "partitions": [[*key, found[key]] for key in sorted(found)]},
        )
        written.update(found)
        context.progress(Progress(PHASE, "sentinels", done=len(written), total=len(record.partitions())))
    return written


def _journaled(record: MigrationRecord, attempt: FreezeAttempt) -> dict[TopicPartition, int]:
    return {
        (topic, partition): offset
        for entry in record.journal.steps(steps.SENTINELS_WRITTEN, attempt.key)
        for topic, partition, offset in entry.details["partitions"]
    }


def _check_untouched(record: MigrationRecord, source: Cluster, attempt: FreezeAttempt) -> None:
    """Check before the first sentinel that no producer has written since the freeze was verified."""
    assert attempt.verified is not None
    if _producer_entry(record, attempt) is not None:
        return  # a killed run may have written some already; they are found one by one
    ends = attempt.verified.ends
    expected = {key: ends[partition_name(key)] for key in record.partitions() if partition_name(key) in ends}
    stand_still.check_not_bypassed(record, source, attempt, expected)


def _producer_entry(record: MigrationRecord, attempt: FreezeAttempt) -> Any:
    return record.journal.find_step(steps.SENTINEL_PRODUCER, attempt.key)


def _producer(record: MigrationRecord, source: Cluster, attempt: FreezeAttempt) -> tuple[int, int]:
    """Return the producer id of this attempt's sentinels, journaled before its first use."""
    entry = _producer_entry(record, attempt)
    if entry is None:
        producer_id, epoch = source.wire.init_producer_id()
        # step_once: two tasks that run at the same time must use the same id.
        entry = record.journal.step_once(
            steps.SENTINEL_PRODUCER, key=attempt.key, details={"producer_id": producer_id, "producer_epoch": epoch}
        )
    return int(entry.details["producer_id"]), int(entry.details["producer_epoch"])


def _write(
    record: MigrationRecord,
    source: Cluster,
    attempt: FreezeAttempt,
    keys: list[TopicPartition],
    producer: tuple[int, int],
    sleep: Callable[[float], None],
) -> dict[TopicPartition, int]:
    """Produce to these partitions until all have answered; a repeated batch is answered, but not written again."""
    now = record.now()
    batches = {
        key: encode_batch(
            [sentinel_record(record.migration_id, key[1], iso(now), int(now.timestamp() * 1000))],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
        )
        for key in keys
    }
    written: dict[TopicPartition, int] = {}
    if keys:
        record.journal.check_holds()
    while len(written) < len(keys):
        _produce_once(record, source, {key: batches[key] for key in keys if key not in written}, written)
        if len(written) < len(keys):
            stops.check_deadline(record, attempt)
            sleep(0.2)
    return written


def _produce_once(
    record: MigrationRecord, source: Cluster, batches: dict[TopicPartition, bytes], written: dict[TopicPartition, int]
) -> None:
    wire = source.wire
    for broker_id, led in _by_leader(wire.leaders(batches)):
        connection = wire.connection(broker_id)
        version = api_version(connection, produce.API_KEY, produce.MAX_VERSION)
        parts = produce.encode(
            [
                produce.ProduceBatch(*key, batches[key][:_HEADER_BYTES], batches[key][_HEADER_BYTES:])
                for key in sorted(led)
            ],
            timeout_ms=_PRODUCE_TIMEOUT_MS,
        )
        try:
            answer = produce.decode(connection.call_raw(produce.API_KEY, version, parts), version)
        except Transient:
            wire.forget_leaders(led)
            continue
        for item in answer.partitions:
            key = (item.topic, item.partition)
            if not item.error_code:
                written[key] = item.base_offset
            elif item.error_code in error_codes.STALE_METADATA:
                wire.forget_leaders([key])
            elif not error_codes.retriable(item.error_code):
                raise _refused(record, item.topic, item.partition, item.error_code)


def _refused(record: MigrationRecord, topic: str, partition: int, code: int) -> MigrationError:
    where = record.where(PHASE, cluster="source", topic=topic, partition=partition)
    error = error_codes.error_for(code, "the sentinel cannot be written", where=where)
    if not isinstance(error, BrokerRefused):
        return error
    return BrokerRefused(
        error.what,
        where=where,
        next_step="once the freeze is lifted, change what makes the topic refuse it, or set cutover.sentinel: "
        f"end_offsets, which writes nothing to the source; then {words.again(record.spec)}",
    )


def _by_leader(leaders: dict[TopicPartition, int]) -> list[tuple[int, list[TopicPartition]]]:
    grouped: dict[int, list[TopicPartition]] = {}
    for key in sorted(leaders):
        grouped.setdefault(leaders[key], []).append(key)
    return sorted(grouped.items())


def _chunks(keys: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    for start in range(0, len(keys), CHUNK):
        yield keys[start : start + CHUNK]


# -- looking for sentinels -------------------------------------------------------------------------------------------
