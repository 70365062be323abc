"""How a mirror pauses and ends: paused, promoted with or without its source, or ended.

Copiers have stopped before any of it: their job has ended, or nobody else can get their lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, PromotedPartition, Promotion
from airflow_provider_kafka_migration.errors import IllegalTransition, MigrationError, Terminal
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.mirrors import requests
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions, build_document, store_final
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import MIRROR, State
from airflow_provider_kafka_migration.topics import copy_settings

PHASE = "mirror"


def pause(context: PhaseContext, request: MirrorRequest) -> PhaseResult:
    """Note that the mirror is paused. Nothing on the target changes, so that it can go on at any time."""
    summary = f"paused by {request.requested_by}{_why(request)}"
    context.journal.transition(State.PAUSED, summary, _asked(request), from_states={State.TAIL})
    return PhaseResult(PHASE, summary, {"state": "paused", **_asked(request)})


def end(context: PhaseContext, request: MirrorRequest) -> PhaseResult:
    """End the mirror: its topics get the settings that they are to have, and keep their content.

    If it mirrors already, its copiers are stopped as for a promotion, and its offset map is finished.

    :raises IllegalTransition: it is promoted.
    :raises Transient: the target or the storage does not answer; the request stays.
    """
    record, journal = context.record, context.journal
    journal.refresh()
    if journal.tip_state is State.ENDED:
        return PhaseResult(PHASE, "the mirror has ended already", {"state": "ended", **_asked(request)})
    _check_not_promoted(record)
    _leave_failed(context, "the mirror is ended")
    job = record.job("tail")
    if job is None:
        return _end(context, request, {}, [])
    requests.stop_where_they_are(record)
    with copy_jobs.lanes_kept(context, PHASE, job):
        offset_map, problems = _map_if_possible(context)
        return _end(context, request, offset_map, problems)


def _map_if_possible(context: PhaseContext) -> tuple[dict[str, Any], list[str]]:
    """Finish the offset map; what can never be read (a deleted topic) does not keep a mirror from ending."""
    try:
        return {keys.FINAL_OFFSET_MAP: _close_map(context, _partitions(context, {}))}, []
    except Terminal as error:
        return {}, [f"offset map: {error.what}"]


def _end(context: PhaseContext, request: MirrorRequest, offset_map: dict[str, Any], problems: list[str]) -> PhaseResult:
    problems = problems + _put_back(context)
    summary = f"ended by {request.requested_by}{_why(request)}" + _problems_text(problems)
    details = {"state": "ended", "problems": problems, **offset_map, **_asked(request)}
    context.journal.transition(State.ENDED, summary, details, from_states=MIRROR.endings[State.ENDED])
    return PhaseResult(PHASE, summary, details)


def promote(context: PhaseContext, request: MirrorRequest, source_ends: dict[tuple[str, int], int]) -> PhaseResult:
    """Promote the target after everything was copied: up to these ends of a source that stands still."""
    partitions = _partitions(context, source_ends, is_complete=True)
    return _promote(context, request, partitions, seen_at=iso(context.now()))


def promote_without_source(context: PhaseContext, request: MirrorRequest) -> PhaseResult:
    """Promote the target although the source may never come back; tell what may be lost.

    The flow is fenced first: its copiers get a stop that they have passed, and nobody else gets their lanes while the
    ends are read.

    :raises IllegalTransition: nothing is mirrored yet.
    """
    record = context.record
    check_mirrored(record)
    job = record.job("tail")
    assert job is not None
    requests.stop_where_they_are(record)
    progress = record.job_progress("tail")
    known = {
        (str(item["topic"]), int(item["partition"])): int(item["source_offset"]) + max(int(item["lag"]), 0)
        for item in progress.get("partitions", [])
        if int(item.get("source_offset", -1)) >= 0
    }
    with copy_jobs.lanes_kept(context, PHASE, job):
        return _promote(context, request, _partitions(context, known), seen_at=str(progress.get("at") or ""))


def check_mirrored(record: MigrationRecord) -> None:
    """Raise unless the mirror is mirroring or paused.

    :raises IllegalTransition: there is nothing to promote yet.
    """
    record.journal.refresh()
    state = record.journal.working_state
    if state not in MIRROR.endings[State.PROMOTED] or record.job("tail") is None:
        raise IllegalTransition(
            f"a mirror in state {state} cannot be promoted: not all partitions have been copied yet",
            where=record.where(PHASE),
            next_step="let it run until it mirrors (kafka-migration mirror status), or end it",
        )


def _promote(
    context: PhaseContext, request: MirrorRequest, partitions: list[PromotedPartition], *, seen_at: str
) -> PhaseResult:
    record = context.record
    offset_map = _close_map(context, partitions)
    problems = _put_back(context)
    document = Promotion(
        migration_id=record.migration_id,
        source_gone=request.source_gone,
        at=iso(context.now()),
        requested_by=request.requested_by,
        reason=request.reason,
        partitions=partitions,
        source_seen_at=seen_at,
        problems=problems,
    )
    key = record.put_result(keys.PROMOTION, document)
    lost = sum(item.possibly_lost for item in partitions)
    summary = f"promoted by {request.requested_by}{_why(request)}: {len(partitions)} partitions"
    if request.source_gone:
        summary += f", {lost} source offsets are known to be missing, and what the source got after {seen_at}"
    summary += _problems_text(problems)
    details = {
        "state": "promoted",
        "promotion": key,
        "possibly_lost": lost,
        "problems": problems,
        keys.FINAL_OFFSET_MAP: offset_map,
        **_asked(request),
    }
    _leave_failed(context, "the mirror is promoted")
    context.journal.step(steps.PROMOTED, details=details, reason=summary)
    context.journal.transition(State.PROMOTED, summary, details, from_states=MIRROR.endings[State.PROMOTED])
    return PhaseResult(PHASE, summary, details)


def _check_not_promoted(record: MigrationRecord) -> None:
    if record.journal.tip_state is State.PROMOTED:
        raise IllegalTransition(
            "the mirror is promoted already",
            where=record.where(PHASE),
            next_step="start a new mirror with another migration_id",
        )


def _leave_failed(context: PhaseContext, reason: str) -> None:
    """Go back to the state that failed: a mirror ends from where it was."""
    journal = context.journal
    if journal.tip_state is State.FAILED and journal.working_state is not None:
        journal.transition(journal.working_state, reason)


def _close_map(context: PhaseContext, partitions: list[PromotedPartition]) -> dict[str, str]:
    """Store the finished map. It counts once the journal says that the mirror has ended, and has its digest."""
    ends = {(item.topic, item.partition): item for item in partitions}
    document = build_document(
        context.record,
        context.target,
        {key: item.mirrored_until for key, item in ends.items()},
        {key: item.target_end_offset for key, item in ends.items()},
    )
    context.journal.check_holds()
    return {"uri": store_final(context.record, document), "sha256": document.digest()}


def _partitions(
    context: PhaseContext, source_ends: dict[tuple[str, int], int], *, is_complete: bool = False
) -> list[PromotedPartition]:
    """Read how far each partition is mirrored.

    :param is_complete: everything below ``source_ends`` was copied: behind the last record there are only holes.
    """
    record, target = context.record, context.target
    found = record.partitions()
    ends = target.wire.list_offsets([target_key(item) for item in found.values()], "log_end")
    positions = SourcePositions.load(record, target)
    return [
        PromotedPartition(
            topic=item.topic,
            partition=item.partition,
            target_topic=item.target_topic,
            mirrored_until=max(
                positions.of(item, ends[target_key(item)]), source_ends.get(key, -1) if is_complete else -1
            ),
            target_end_offset=positions.target_end(item, ends[target_key(item)]),
            source_end_offset=source_ends.get(key, -1),
        )
        for key, item in found.items()
    ]


def _put_back(context: PhaseContext) -> list[str]:
    """Give the topics the settings that they have without a copy. A failure is reported, and the mirror still ends."""
    record = context.record
    parts: dict[str, Callable[[], Any]] = {
        "topic settings": lambda: record.copy_settings() and copy_settings.restore_deleting(record, context.target)
    }
    problems = []
    for name, part in parts.items():
        try:
            part()
        except MigrationError as error:
            problems.append(f"{name}: {error.what}")
    return problems


def _asked(request: MirrorRequest) -> dict[str, Any]:
    return {
        "requested_by": request.requested_by,
        "requested_at": request.requested_at,
        "reason": request.reason,
        "request": request.number,
        "source_gone": request.source_gone,
    }


def _why(request: MirrorRequest) -> str:
    return f" ({request.reason})" if request.reason else ""


def _problems_text(problems: list[str]) -> str:
    return f"; {len(problems)} parts could NOT be put back" if problems else ""
