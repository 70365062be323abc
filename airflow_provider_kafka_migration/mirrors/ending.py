"""How a mirror pauses and ends: paused, promoted with or without its source, or ended.

Copiers have stopped before any of it: their job has ended, or nobody else can get their lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, PromotedPartition, Promotion
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import DocumentUnreadable, IllegalTransition, MigrationError, Terminal
from airflow_provider_kafka_migration.freeze import fence, stops, words
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.mirrors import last_looks, promotion_freeze, requests
from airflow_provider_kafka_migration.mirrors.copy_ends import copy_ends
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.offset_maps import (
    SourcePositions,
    build_document,
    keep_final_maps,
    store_final,
)
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import MIRROR, State
from airflow_provider_kafka_migration.topics import copy_settings, topics_gone
from airflow_provider_kafka_migration.way_back import guard

PHASE = "mirror"


def pause(context: PhaseContext, request: MirrorRequest) -> PhaseResult:
    """Note that the mirror is paused. Nothing on the target changes, so that it can go on at any time."""
    summary = f"paused by {request.requested_by}{_why(request)}"
    context.journal.refresh()
    _leave_failed(context, "the mirror is paused")
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
    missing = _missing_topics(context)
    try:
        partitions = _partitions(context, {}, without=missing)
        return {keys.FINAL_OFFSET_MAP: _close_map(context, partitions, without=missing)}, _named(missing)
    except Terminal as error:
        return {}, [f"offset map: {error.what}"]


def _end(context: PhaseContext, request: MirrorRequest, offset_map: dict[str, Any], problems: list[str]) -> PhaseResult:
    problems = problems + put_back(context)
    summary = f"ended by {request.requested_by}{_why(request)}" + _problems_text(problems)
    details = {"state": "ended", "problems": problems, **offset_map, **_asked(request)}
    context.journal.transition(State.ENDED, summary, details, from_states=MIRROR.endings[State.ENDED])
    return PhaseResult(PHASE, summary, details)


def promote(
    context: PhaseContext,
    request: MirrorRequest,
    source_ends: dict[tuple[str, int], int],
    problems: Sequence[str] = (),
    attempt: FreezeAttempt | None = None,
) -> PhaseResult:
    """Promote the target after everything was copied: up to these ends of a source that stands still.

    :param problems: what could not be done before, such as offsets of groups that were not written.
    :param attempt: the freeze that keeps producers stopped; None: people have stopped them.
    :raises FreezeFailed: the limit of the freeze has passed.
    :raises PhaseOver: the freeze was given up meanwhile.

    It is promoted from the journal's step ``promoted`` on; what follows is completed by whoever comes next
    (:func:`complete_promotion`).
    """
    partitions = _partitions(context, source_ends, is_complete=True)
    return _promote(context, request, partitions, seen_at=iso(context.now()), problems=problems, attempt=attempt)


def promote_without_source(context: PhaseContext, request: MirrorRequest) -> PhaseResult:
    """Promote the target although the source may never come back; tell what may be lost.

    The flow is fenced first: its copiers get a stop that they have passed, and nobody else gets their lanes while the
    ends are read.

    Remote topics that somebody has deleted are named, and hold up no other one.

    :raises IllegalTransition: nothing is mirrored yet, or none of the remote topics is left.
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
        missing = _missing_topics(context)
        partitions, seen_at = _partitions(context, known, without=missing), str(progress.get("at") or "")
        if not partitions:
            raise IllegalTransition(
                "the mirror cannot be promoted: none of its remote topics exists on the target any more",
                where=record.where(PHASE, cluster="target"),
                next_step="check that the target's connection leads to the right cluster; if the topics were deleted, "
                "end the mirror",
            )
        return _promote(context, request, partitions, seen_at=seen_at, problems=_named(missing), without=missing)


def _missing_topics(context: PhaseContext) -> set[str]:
    """Return the remote topics of which all brokers of the target say that they do not exist any more.

    A partition that has no leader at present is not among them: the target may have it again soon.

    :raises Transient: no broker of the target answers.
    """
    planned = {item.target_topic: "" for item in context.record.partitions().values()}
    return set(topics_gone.find_gone(context.target.admin, planned))


def _named(missing: set[str]) -> list[str]:
    return [
        f"{topic} does not exist on the target any more, so nothing is left of its copy" for topic in sorted(missing)
    ]


def promoted_already(record: MigrationRecord) -> PhaseResult | None:
    """Return the result of a promotion that is complete; None: there is none."""
    record.journal.refresh()
    if record.journal.tip_state is not State.PROMOTED:
        return None
    entry = next(item for item in reversed(record.journal.entries()) if not item.is_step)
    return PhaseResult(PHASE, f"the mirror is promoted already: {entry.reason}", dict(entry.details), already_done=True)


def after_promotion(context: PhaseContext) -> PhaseResult | None:
    """Return the result of a promotion that is complete, after trying again what it has left; None: there is none.

    :raises Transient: the target does not answer.
    """
    done = promoted_already(context.record)
    if done is None or (left := free_former_again(context)) is None:
        return done
    summary = f"{done.summary}; now: {'; '.join(left) or 'the producers of the target are free'}"
    return PhaseResult(PHASE, summary, {**done.details, "problems_now": left})


def check_mirrored(record: MigrationRecord) -> None:
    """Raise unless the mirror is mirroring or paused.

    :raises IllegalTransition: there is nothing to promote yet, or no more.
    """
    record.journal.refresh()
    _check_not_promoted(record)
    state = record.journal.working_state
    if state not in MIRROR.endings[State.PROMOTED] or record.job("tail") is None:
        raise IllegalTransition(
            f"a mirror in state {state} cannot be promoted: not all partitions have been copied yet",
            where=record.where(PHASE),
            next_step="let it run until it mirrors (kafka-migration mirror status), or end it",
        )


def _promote(
    context: PhaseContext,
    request: MirrorRequest,
    partitions: list[PromotedPartition],
    *,
    seen_at: str,
    problems: Sequence[str] = (),
    attempt: FreezeAttempt | None = None,
    without: Collection[str] = (),
) -> PhaseResult:
    record = context.record
    offset_map = _close_map(context, partitions, without=without)
    problems = list(problems)
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
    others = sum(item.of_others for item in partitions)
    summary += f", {others} offsets behind the copy are of others, who write to the target already" if others else ""
    stopped, freeze = promotion_freeze.described(context)
    summary += stopped + _problems_text(problems)
    details = {
        "state": "promoted",
        **freeze,
        "promotion": key,
        "of_others": others,
        "possibly_lost": lost,
        "problems": problems,
        keys.FINAL_OFFSET_MAP: offset_map,
        **_asked(request),
    }
    _leave_failed(context, "the mirror is promoted")
    unless = None
    if attempt is not None:
        # After the step the freeze is never lifted, so its limit must not have passed before, and nobody given it up.
        stops.check_deadline(record, attempt)
        unless = (steps.FREEZE_GIVEN_UP, attempt.key)
    context.journal.step(steps.PROMOTED, details=details, reason=summary, unless_step=unless)
    return _complete(context, summary, details)


def complete_promotion(context: PhaseContext) -> PhaseResult | None:
    """Complete a promotion whose process died; None: there is none that is journaled and not complete.

    :raises DocumentUnreadable: its offset map is missing.
    :raises IllegalTransition: it is abandoned.
    """
    record = context.record
    record.journal.refresh()
    entry = record.journal.find_step(steps.PROMOTED)
    if entry is None or record.journal.tip_state is State.PROMOTED:
        return None
    # People may have taken the mirror over from the task whose job has just ended.
    rolling_back.check_not_begun(record.journal, record.spec, PHASE)
    _leave_failed(context, "the mirror is promoted")
    job = record.job("tail")
    assert job is not None
    with copy_jobs.lanes_kept(context, PHASE, job):
        return _complete(context, entry.reason, dict(entry.details))


def _complete(context: PhaseContext, summary: str, details: dict[str, Any]) -> PhaseResult:
    """Fence the copiers and enter the last state.

    Not earlier: a mirror that goes on could not write under a fenced id. And not later: a copier that was suspended
    could write behind the first records of clients.

    :raises Transient: partitions are not fenced that could be; whoever comes next completes it.
    """
    fenced = _fence(context)
    # Not before the step: a mirror whose promotion is given up goes on, and needs its own settings for that.
    held = promotion_freeze.hold_if_open(context, source_gone=bool(details["source_gone"]))
    left = [*held, *put_back(context)]
    # After the fence: nothing of the mirror may come behind what producers write.
    granted = write_grants.grant_at_promotion(context.record, context.target)
    # Behind the fence, too: clients of a mirror that fails back go to the cluster that they have left.
    context.journal.check_holds()
    former = guard.free_former(context)
    problems = left + [f"fence: {item['topic']}-{item['partition']}: {item['reason']}" for item in fenced["unfenced"]]
    problems += [
        f"write grant: {item['acl']}: {item['error']['message'] or item['error']['name']}; create it by hand"
        for item in granted["failures"]
    ]
    details = {**details, "fence": fenced["summary"], "write_grants": granted["granted"]}
    details["problems"] = [*details["problems"], *problems, *former]
    summary = f"{summary}; {fenced['summary']}" + _granted_text(granted) + _former_text(former)
    if details["source_gone"]:
        _write_promotion(context, details["problems"], former_stopped=former)
    else:
        # Last of all, and again after a kill: nothing else sees what producers have written since the copy has ended.
        meanwhile = last_looks.read_meanwhile(context.record, context.source, _stored_promotion(context.record))
        details["problems"] += meanwhile.problems
        details |= {"late_writes": meanwhile.late, "not_checked": meanwhile.unchecked}
        summary += meanwhile.summary
        _write_promotion(
            context,
            details["problems"],
            late_writes=meanwhile.late,
            not_checked=meanwhile.unchecked,
            source_checked_at=iso(context.now()),
            former_stopped=former,
        )
    context.journal.transition(State.PROMOTED, summary, details, from_states=MIRROR.endings[State.PROMOTED])
    attempt = context.record.freeze()
    if attempt is not None and not attempt.lifted:
        context.announce(words.ready(attempt.number, is_mirror=True))
    return PhaseResult(PHASE, summary, details)


def _stored_promotion(record: MigrationRecord) -> Promotion | None:
    data = record.result(keys.PROMOTION)
    return None if data is None else Promotion.parse(data)


def _write_promotion(context: PhaseContext, problems: list[str], **fields: Any) -> None:
    """Complete ``results/promotion.json``; repeated after a kill."""
    document = _stored_promotion(context.record)
    if document is not None:
        update = {"problems": problems, **fields}
        context.record.put_result(keys.PROMOTION, document.model_copy(update=update))


def _granted_text(granted: dict[str, Any]) -> str:
    text = f"; {granted['granted']} write grants" if granted["granted"] else ""
    return text + (f", {len(granted['failures'])} could NOT be given" if granted["failures"] else "")


def _former_text(former: list[str]) -> str:
    return f"; {'; '.join(former)}" if former else ""


def has_left(record: MigrationRecord) -> bool:
    """Whether a finished promotion has left producers of the target stopped."""
    document = _stored_promotion(record)
    return document is not None and bool(document.former_stopped) and record.journal.tip_state is State.PROMOTED


def free_former_again(context: PhaseContext) -> list[str] | None:
    """Free the producers of a promoted mirror's target that its promotion could not free; None: there are none.

    The journal is closed then, so ``results/promotion.json`` says what is left.

    :returns: what is left now.
    :raises Transient: the target does not answer.
    """
    document = _stored_promotion(context.record)
    if document is None or not has_left(context.record):
        return None
    left = guard.free_former(context)
    others = [text for text in document.problems if text not in document.former_stopped]
    _write_promotion(context, [*others, *left], former_stopped=left)
    return left


def _fence(context: PhaseContext) -> dict[str, Any]:
    record = context.record
    done = record.journal.find_step(steps.COPIERS_FENCED)
    if done is not None:
        return dict(done.details)
    document = record.offset_map()
    if document is None:
        raise DocumentUnreadable(
            "the finished offset map of the promotion is missing, so the copiers cannot be fenced",
            where=record.where(PHASE),
            next_step="restore offset-map.json from an earlier version in the bucket, then run the command again",
        )
    details = fence.write_fence(record, context.target, document, accept_transient=False)
    return dict(record.journal.step_once(steps.COPIERS_FENCED, details=details, reason=details["summary"]).details)


def _check_not_promoted(record: MigrationRecord) -> None:
    if record.journal.tip_state is State.PROMOTED or record.journal.find_step(steps.PROMOTED) is not None:
        raise IllegalTransition(
            "the mirror is promoted already",
            where=record.where(PHASE),
            next_step="start a new mirror with another migration_id (not with mirror.naming: identity in both "
            "directions: all records would arrive twice)",
        )


def _leave_failed(context: PhaseContext, reason: str) -> None:
    """Go back to the state that failed: a mirror ends from where it was."""
    journal = context.journal
    if journal.tip_state is State.FAILED and journal.working_state is not None:
        journal.transition(journal.working_state, reason)


def _close_map(
    context: PhaseContext, partitions: list[PromotedPartition], *, without: Collection[str] = ()
) -> dict[str, str]:
    """Store the finished map. It counts once the journal says that the mirror has ended, and has its digest."""
    ends = {(item.topic, item.partition): item for item in partitions}
    document = build_document(
        context.record,
        context.target,
        {key: item.mirrored_until for key, item in ends.items()},
        {key: item.target_end_offset for key, item in ends.items()},
        without=without,
    )
    context.journal.check_holds()
    # The document has no producer ids, and without them a record that is there twice looks like one of others.
    keep_final_maps(context.record, context.target, document)
    return {"uri": store_final(context.record, document), "sha256": document.digest()}


def _partitions(
    context: PhaseContext,
    source_ends: dict[tuple[str, int], int],
    *,
    is_complete: bool = False,
    without: Collection[str] = (),
) -> list[PromotedPartition]:
    """Read how far each partition is mirrored.

    The copy ends where copiers have confirmed it, or where their own records end: others may have written behind it.

    :param is_complete: everything below ``source_ends`` was copied: behind the last record there are only holes.
    :param without: remote topics that do not exist any more.
    """
    record, target = context.record, context.target
    found = {key: item for key, item in record.partitions().items() if item.target_topic not in without}
    if not found:
        return []
    places = [target_key(item) for item in found.values()]
    ends = target.wire.list_offsets(places, "log_end")
    positions = SourcePositions.load(record, target)
    copied = copy_ends(record, target, positions, ends, target.wire.list_offsets(places, "earliest"))
    rows = []
    for key, item in found.items():
        log_end = ends[target_key(item)]
        end = copied.get(key, log_end)
        may_end_in_holes = key in copied and item.verdict is not Verdict.MAPPED and not positions.is_mapped(key)
        # A partition that has joined since the ends were read has none.
        if is_complete and may_end_in_holes and key in source_ends:
            # Every offset has its place, also holes at the end, whose markers the target may not tell from others.
            place = positions.maps[key].translate(source_ends[key]).target_offset
            end = max(end, min(end if place is None else place, log_end))
        rows.append(
            PromotedPartition(
                topic=item.topic,
                partition=item.partition,
                target_topic=item.target_topic,
                mirrored_until=max(positions.of(item, end), source_ends.get(key, -1) if is_complete else -1),
                target_end_offset=positions.target_end(item, end),
                source_end_offset=source_ends.get(key, -1),
                # Whoever copies in transactions shares the topic with others anyway.
                log_end_offset=log_end if key in copied else -1,
            )
        )
    return rows


def put_back(context: PhaseContext) -> list[str]:
    """Give the topics the settings that they have without a copy. A failure is reported, and the mirror still ends."""
    try:
        restore_settings(context)
    except MigrationError as error:
        return [f"topic settings: {error.what}"]
    return []


def restore_settings(context: PhaseContext) -> None:
    """Give the topics the settings that they have without a copy. Idempotent.

    :raises MigrationError: some could not be set.
    """
    if context.record.copy_settings():
        copy_settings.restore_deleting(context.record, context.target)


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
    return f"; {len(problems)} parts are NOT done, the first is {problems[0]}" if problems else ""
