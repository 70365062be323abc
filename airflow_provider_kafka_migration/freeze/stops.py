"""The requests that stop producers, and that let them continue: webhook, ACLs, or by people.

Each request to stop is journaled before it is sent and after its answer, and taken back if it came too late
(:mod:`~.record.changes`). To let producers continue needs no claim.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from airflow_provider_kafka_migration.errors import (
    FreezeFailed,
    MigrationError,
    PhaseOver,
    StillFrozen,
    Transient,
)
from airflow_provider_kafka_migration.freeze import by_hand, deny_acls, webhook_spec, words
from airflow_provider_kafka_migration.freeze.webhook import (
    ATTEMPTS,
    OVERTAKEN,
    REQUEST_SECONDS,
    FreezeWebhook,
    WebhookAnswer,
)
from airflow_provider_kafka_migration.freeze.webhook_spec import Receiver, taken
from airflow_provider_kafka_migration.freeze.without_acls import check_closed
from airflow_provider_kafka_migration.kafka.admin.access import Acl, acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import batches
from airflow_provider_kafka_migration.kafka.wire import REQUEST_SECONDS as BROKER_SECONDS
from airflow_provider_kafka_migration.record import handover, rolling_back, steps, times
from airflow_provider_kafka_migration.record.changes import (
    SENDING_SECONDS,
    Change,
    Changes,
    Client,
    Standing,
    wait_for_open,
)
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

#: No request to stop producers is sent when less than twice this is left of the limit; it ends this long before it.
_MARGIN_SECONDS = 1.0
#: How long a request for ACLs, with its retries, may take to take effect.
ACL_SECONDS = SENDING_SECONDS + BROKER_SECONDS


def freeze(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Stop producers; return details for the journal. Idempotent.

    Each request is journaled before it is sent and after its answer, and taken back if it came too late
    (:class:`Changes`).

    :raises FreezeFailed: the webhook failed, ACLs cannot stop all producers, or too little of the limit is left.
    :raises PhaseOver: the attempt was given up; producers are free.
    :raises ClaimLost: another owner has taken over; if the attempt has ended, producers are free.
    :raises StillFrozen: the attempt was given up, and what this call has done too late could not be taken back.
    """
    done = _freeze(context, attempt)
    acls = deny_acls.planned_acls(context.record, attempt.key)
    how = by_hand.instructions(context.spec, method=attempt.method, deadline=attempt.deadline, acls=acls)
    # While the journal can be read: these lines are what is left when it cannot.
    log.warning("Producers are stopped (freeze %s). If the migration cannot free them: %s", attempt.number, how)
    context.announce(words.made(attempt.number, attempt.method, attempt.deadline, how))
    return done


def _freeze(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    if attempt.method == "webhook":
        receiver = webhook_spec.webhook_receiver(context)
        with _stopping(context, attempt, "webhook", REQUEST_SECONDS) as change:
            webhook = _client(receiver, may_send=partial(_seconds_to_stop, context, attempt))
            now, deadline = context.now(), attempt.deadline
            answer = webhook.call(context.migration_id, "freeze", now=now, deadline=deadline, order=change.order)
            change.is_settled = answer.attempts == 1
        return taken(answer, receiver)
    if attempt.method == "acl":
        return _put_acls(context, attempt)
    return {"confirmed_by": "the approval of the cutover"}


def unfreeze(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Let producers continue; return details for the journal. Idempotent. It needs no claim.

    Call it once the journal says that no step of the attempt may follow: its last entry is then later than every
    request to stop them.

    :raises PhaseOver: the next freeze has begun, and frees the producers when it ends.
    :raises FreezeFailed: it failed; producers may still be stopped.
    """
    if attempt.method == "webhook":
        receiver = webhook_spec.webhook_receiver(context)
        return taken(_ask_to_free(context, attempt, _client(receiver)), receiver)
    if attempt.method == "acl":
        return deny_acls.remove(context.record, context.source)
    return {"todo": words.lifted(attempt.method)}


def _ask_to_free(context: PhaseContext, attempt: FreezeAttempt, webhook: FreezeWebhook) -> WebhookAnswer:
    """Ask a receiver to free the producers, and once more if another lifter has asked it later than this one."""
    while True:
        tip = context.journal.tip
        order = tip.seq if tip is not None else 0
        try:
            return webhook.call(
                context.migration_id, "unfreeze", now=context.now(), deadline=attempt.deadline, order=order
            )
        except FreezeFailed as error:
            if not error.details.get(OVERTAKEN):
                raise
            context.journal.refresh()
            check_not_followed(context.record, attempt)
            tip = context.journal.tip
            if tip is None or tip.seq <= order:
                raise


def free(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Do the same for whoever holds the migration, journaled like a request to stop: the next freeze waits for it.

    A request that is still under way would otherwise free those whom the next freeze has stopped. Receivers of a
    webhook refuse it by its order, so only ACLs are waited for.

    :raises PhaseOver: the next freeze has begun, and frees the producers when it ends.
    :raises FreezeFailed: it failed; producers may still be stopped.
    """
    if attempt.method != "acl" or not deny_acls.all_planned_acls(context.record):
        return unfreeze(context, attempt)
    changes = Changes(
        context.journal,
        _free_key(attempt),
        standing=lambda: Standing.SUPERSEDED if _is_followed(context.record, attempt) else Standing.GOES_ON,
        over=lambda: _given_up(context, attempt),
        allowed={"unless_step": (steps.FREEZE_REQUESTED, str(attempt.number + 1))},
    )
    admin, is_begun = context.source.admin, False
    try:
        with changes.making("removal of the DENY ACLs", ACL_SECONDS, _nothing, admin):
            is_begun = True
            return unfreeze(context, attempt)
    except Transient:
        if is_begun:
            raise
    # Producers first: while the journal takes no entry, no other freeze can begin either.
    return unfreeze(context, attempt)


def wait_for_frees(context: PhaseContext, former: FreezeAttempt | None, *, behind: int = -1) -> int:
    """Wait until nothing can free producers any more for the freeze before the one that begins.

    Call it before the new attempt is journaled, while nobody is stopped, and after that with the number that it
    returned: then no other request of that kind may follow.

    :returns: number of the journal's last entry.
    """
    if former is not None:
        key = _free_key(former)
        wait_for_open(context.journal, key, now=context.now, sleep=context.sleep, behind=behind)
    tip = context.journal.tip
    return -1 if tip is None else tip.seq


def _free_key(attempt: FreezeAttempt) -> str:
    return f"{attempt.key}/free"


def _is_followed(record: MigrationRecord, attempt: FreezeAttempt) -> bool:
    last = record.freeze()
    return last is not None and last.number > attempt.number


def check_not_followed(record: MigrationRecord, attempt: FreezeAttempt) -> None:
    """Check that the producers are not those of the next freeze, per the journal as last read.

    :raises PhaseOver: they are.
    """
    last = record.freeze()
    if last is not None and last.number != attempt.number:
        raise PhaseOver(
            f"freeze {last.number} has begun since freeze {attempt.number}, and frees the producers when it ends",
            where=record.where(words.phase_of(record.spec)),
            next_step="nothing needs to be done: this task belongs to the freeze before",
        )


def _nothing() -> None:
    """Producers that should be stopped again are for the freeze that has stopped them: it reads the source's ends."""


def _client(receiver: Receiver, **options: Any) -> FreezeWebhook:
    return FreezeWebhook(receiver.address, receiver.secret, direction=receiver.direction, **options)


def _put_acls(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    record, source = context.record, context.source
    entry = record.journal.find_step(steps.FREEZE_ACLS, attempt.key)
    if entry is None:
        listing = source.admin.describe_acls()
        if not listing.authorizer:
            raise FreezeFailed(
                "the source has no authorizer, so ACLs cannot stop any producer",
                where=record.where(words.phase_of(record.spec), cluster="source"),
                next_step="use cutover.freeze: webhook or manual",
            )
        topics = sorted({topic for topic, _ in record.partitions()})
        check_closed(source, listing.acls, topics)
        bindings = deny_acls.missing_denials(record, source, listing.acls, topics)
        # Journaled before they are created: after a crash only the journal knows which ones the migration has added.
        entry = record.journal.step(
            steps.FREEZE_ACLS,
            key=attempt.key,
            details={"acls": [acl_row(acl) for acl in bindings]},
            reason=f"{len({acl.principal for acl in bindings})} principals to deny",
            unless_step=(steps.FREEZE_GIVEN_UP, attempt.key),
        )
    bindings = [Acl(*fields) for fields in entry.details["acls"]]
    for some in batches(bindings):
        with _stopping(context, attempt, f"{len(some)} DENY ACLs", ACL_SECONDS, source.admin):
            _seconds_to_stop(context, attempt)
            deny_acls.raise_failures(record, source.admin.create_acls(some), "created")
    return {"deny_acls": len(bindings), "principals": sorted({acl.principal for acl in bindings})}


def hold(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Have producers kept stopped until an explicit ``unfreeze``: no earlier deadline may take effect after READY.

    A check of the source after this call also sees what was written while the receiver was late. Idempotent.

    :raises PhaseOver: the freeze was given up, so producers must not be stopped for it again.
    :raises FreezeFailed: the webhook's receiver refused, or the freeze is over, or nearly.
    :raises FreezeUnconfirmed: the receiver did not answer; ask again while the freeze lasts.
    :raises StillFrozen: as :func:`freeze`.
    """
    if attempt.method != "webhook":
        return {}
    # A reference's backend may be slow, so references are resolved before the checks and not between them.
    receiver = webhook_spec.webhook_receiver(context)
    check_not_given_up(context, attempt)
    context.journal.step_once(steps.FREEZE_HELD, attempt.key, {"method": attempt.method}, **in_force(attempt))
    with _stopping(context, attempt, "webhook without a deadline", REQUEST_SECONDS) as change:
        # After READY no caller asks again.
        attempts = ATTEMPTS if attempt.ready else 1
        webhook = _client(receiver, attempts=attempts, may_send=partial(_seconds_to_stop, context, attempt))
        answer = webhook.hold(context.migration_id, now=context.now(), order=change.order)
        change.is_settled = answer.attempts == 1
    return taken(answer, receiver)


def changes_of(context: PhaseContext, attempt: FreezeAttempt) -> Changes:
    """Return what journals each request of an attempt to stop something, and undoes it if it came too late."""
    return Changes(
        context.journal,
        attempt.key,
        standing=lambda: standing(context.record, attempt),
        over=lambda: _given_up(context, attempt),
        allowed=in_force(attempt),
    )


def in_force(attempt: FreezeAttempt) -> dict[str, Any]:
    """Return the conditions under which the journal takes a step of an attempt, as :meth:`Journal.step` takes them.

    A cutover goes on while a failure of the tail beside it is journaled; and it may be the next one already.
    """
    if attempt.ready:
        return {"unless_step": (steps.ABANDONED, None)}
    if attempt.request is None:
        return {"only_in": {State.CUTOVER, State.FAILED}, "unless_step": (steps.FREEZE_LIFTED, attempt.key)}
    return {"unless_step": (steps.FREEZE_GIVEN_UP, attempt.key)}


def standing(record: MigrationRecord, attempt: FreezeAttempt) -> Standing:
    """Return what has become of an attempt, by the journal as last read, regardless of who holds the claim."""
    last, is_abandoned = record.freeze(), rolling_back.is_abandoned(record.journal)
    if last is None or (last.ready and not is_abandoned):
        return Standing.GOES_ON if last is None or last.number == attempt.number else Standing.SUPERSEDED
    state = record.journal.tip_state
    if is_abandoned or last.lifted or last.given_up or (state is not None and state.is_terminal):
        return Standing.OVER
    return Standing.GOES_ON if last.number == attempt.number else Standing.SUPERSEDED


def _stopping(
    context: PhaseContext, attempt: FreezeAttempt, what: str, seconds: float, client: Client | None = None
) -> AbstractContextManager[Change]:
    return changes_of(context, attempt).making(what, seconds, partial(take_back, context, attempt), client)


def take_back(context: PhaseContext, attempt: FreezeAttempt) -> None:
    """Free producers that a request of this process has stopped after they were freed; no claim is needed.

    Once clients may be on the target, or if a newer attempt is in force, it does nothing.

    :raises StillFrozen: they could not be freed. Unless another owner has taken over, the journal has the freeze open
        again, so that whoever runs goes on trying.
    """
    if standing(context.record, attempt) is not Standing.OVER:
        return
    try:
        unfreeze(context, attempt)
    except PhaseOver as over:
        log.info("Freeze %s is not taken back: %s", attempt.number, over)
    except MigrationError as error:
        _reopen(context, attempt, error)
        what = f"freeze {attempt.number} had ended when a request to stop producers took effect, and they are stopped"
        abandoned = rolling_back.is_abandoned(context.journal)
        raise still_frozen(context.record, attempt, error, what=what, abandoned=abandoned) from error


def _reopen(context: PhaseContext, attempt: FreezeAttempt, error: MigrationError) -> None:
    details = {"error": error.as_dict()}
    unless = None if rolling_back.is_abandoned(context.journal) else attempt.last_step
    try:
        context.journal.step(steps.FREEZE_CAME_LATE, attempt.key, details, unless_step=unless)
    except MigrationError as second:
        log.warning("That producers are stopped again is not in the journal: %s", second)


def _seconds_to_stop(context: PhaseContext, attempt: FreezeAttempt) -> float:
    """Return how long a request to stop producers may take, right before it is sent.

    :raises PhaseOver, ClaimLost: as :func:`check_not_given_up`.
    :raises FreezeFailed: the limit has passed, or so little is left that the request could end after it.
    """
    check_not_given_up(context, attempt)
    if attempt.ready:
        return REQUEST_SECONDS
    check_deadline(context.record, attempt)
    left = seconds_left(context.record, attempt) - _MARGIN_SECONDS
    if left < _MARGIN_SECONDS:
        raise FreezeFailed(
            f"only {left + _MARGIN_SECONDS:.1f} s of max_producer_freeze are left, so producers are not asked to stop "
            "any more: the request could take effect after the limit",
            where=context.where(words.phase_of(context.spec)),
            next_step="find the slow step (the journal has the seconds of each); raise cutover.max_producer_freeze or "
            f"choose a quieter hour; then {words.again(context.spec)}",
            details={"attempt": attempt.number, "deadline": iso(attempt.deadline)},
        )
    return left


def check_not_given_up(context: PhaseContext, attempt: FreezeAttempt) -> None:
    """Check that this process holds the claim, and that steps of the attempt may follow.

    :raises ClaimLost: another owner has taken over.
    :raises PhaseOver: the attempt was given up.
    """
    is_cutover = attempt.request is None
    context.journal.check_holds(only_in={State.CUTOVER, State.FAILED} if is_cutover else None)
    end = steps.FREEZE_LIFTED if is_cutover else steps.FREEZE_GIVEN_UP
    if context.journal.find_step(end, attempt.key) is not None:
        raise _given_up(context, attempt)


def _given_up(context: PhaseContext, attempt: FreezeAttempt) -> PhaseOver:
    is_mirror = attempt.request is not None
    return PhaseOver(
        f"freeze {attempt.number} was given up, so nothing may follow that belongs to it",
        where=context.where(words.phase_of(context.spec)),
        next_step="stop; the mirror goes on, and a new request to promote it begins a new freeze"
        if is_mirror
        else "stop; the cutover starts again with drain_ready and a new approval",
    )


# -- the limit ---------------------------------------------------------------------------------------------------------


def check_deadline(record: MigrationRecord, attempt: FreezeAttempt) -> None:
    """Raise :class:`FreezeFailed` when producers have been frozen for longer than ``max_producer_freeze``."""
    over = (record.now() - attempt.deadline).total_seconds()
    if attempt.ready or over <= 0:
        return
    raise FreezeFailed(
        f"producers have been frozen for longer than max_producer_freeze "
        f"({record.spec.cutover.max_producer_freeze.total_seconds():g} s), by {over:.1f} s",
        where=record.where(words.phase_of(record.spec)),
        next_step=f"{too_slow(record, attempt)}; then {words.again(record.spec)}",
        details={"attempt": attempt.number, "deadline": iso(attempt.deadline)},
    )


def too_slow(record: MigrationRecord, attempt: FreezeAttempt) -> str:
    """Say what helps against a freeze that has lasted too long: what most of its time has gone into; one clause."""
    found = handover.measure_freeze(record, attempt.key, actor=record.journal.actor)
    if found is None or not found.is_mostly_handover or record.spec.cutover.in_one_task or attempt.request is not None:
        return (
            "find the slow step (the journal has the seconds of each); raise cutover.max_producer_freeze or choose a "
            "quieter hour"
        )
    return (
        f"{times.words(found.handover_seconds)} of {times.words(found.frozen_seconds)} were hand-overs between tasks: "
        "set cutover.in_one_task: true, which runs all steps in one task, or raise cutover.max_producer_freeze "
        f"({words.IF_PARAMS})"
    )


def seconds_left(record: MigrationRecord, attempt: FreezeAttempt) -> float:
    """Return the seconds until the freeze is lifted; never below 0."""
    return max((attempt.deadline - record.now()).total_seconds(), 0.0)


def still_frozen(
    record: MigrationRecord, attempt: FreezeAttempt, cause: MigrationError, *, what: str = "", abandoned: bool = False
) -> StillFrozen:
    """Return the error of a freeze that cannot be lifted now, with instructions for a person.

    :param abandoned: the migration was abandoned, so no client writes to the target.
    """
    return by_hand.still_frozen(
        record.spec,
        what or f"producers are still frozen, and freeze {attempt.number} cannot be lifted",
        cause,
        method=attempt.method,
        deadline=attempt.deadline,
        acls=deny_acls.planned_acls(record, attempt.key),
        held=attempt.held,
        abandoned=abandoned,
    )
