"""The freeze per the journal: its attempts, their deadline, the steps within it, and how a freeze is lifted.

A cutover is one or more *attempts*. An attempt begins with a journal step before the first producer is stopped, and
ends either with READY_FOR_CLIENT_SWITCH or lifted. Every step of the cutover runs inside :func:`frozen_step`. When the
limit has passed, or when the step has failed for good, it lifts the freeze and takes the migration back to ``tail``
(producers never stay stopped for a migration that does not continue, docs/decisions/0007).

The promotion of a mirror has attempts, too, which end with the step ``promoted`` or lifted. Its steps are not here but
in :mod:`~.mirrors.promotion_freeze`; the methods, the limit and the lift are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal

from airflow_provider_kafka_migration.errors import (
    HANDS_OFF,
    ConnectionInvalid,
    FreezeFailed,
    GroupsIncomplete,
    MigrationError,
    PermissionMissing,
    PhaseOver,
    StillFrozen,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.freeze import by_hand, source_registry, tail_stop, words
from airflow_provider_kafka_migration.freeze.webhook import ATTEMPTS, REQUEST_SECONDS, FreezeWebhook, WebhookAnswer
from airflow_provider_kafka_migration.freeze.without_acls import check_closed, matches
from airflow_provider_kafka_migration.kafka.admin.access import Acl, acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches
from airflow_provider_kafka_migration.kafka.wire import REQUEST_SECONDS as BROKER_SECONDS
from airflow_provider_kafka_migration.plain_secrets import is_address, is_reference
from airflow_provider_kafka_migration.record import handover, rolling_back, steps, times
from airflow_provider_kafka_migration.record.changes import (
    SENDING_SECONDS,
    Change,
    Changes,
    Client,
    Standing,
    wait_for_open,
)
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

# -- freeze methods ---------------------------------------------------------------------------------------------------
#
# The three ways to stop producers and to let them continue: webhook, manual, ACLs.


PHASE = "cutover"
log = logging.getLogger(__name__)

#: No request to stop producers is sent when less than twice this is left of the limit; it ends this long before it.
_MARGIN_SECONDS = 1.0
#: How long a request for ACLs, with its retries, may take to take effect.
ACL_SECONDS = SENDING_SECONDS + BROKER_SECONDS
_WRITING = frozenset({"WRITE", "ALL"})
EVERYBODY = "User:*"


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
    acls = planned_acls(context.record, attempt.key)
    how = by_hand.instructions(context.spec, method=attempt.method, deadline=attempt.deadline, acls=acls)
    # While the journal can be read: these lines are what is left when it cannot.
    log.warning("Producers are stopped (freeze %s). If the migration cannot free them: %s", attempt.number, how)
    return done


def _freeze(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    if attempt.method == "webhook":
        receiver = webhook_receiver(context)
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

    :raises FreezeFailed: it failed; producers may still be stopped.
    """
    if attempt.method == "webhook":
        receiver = webhook_receiver(context)
        tip = context.journal.tip
        answer = _client(receiver).call(
            context.migration_id,
            "unfreeze",
            now=context.now(),
            deadline=attempt.deadline,
            order=tip.seq if tip is not None else 0,
        )
        return taken(answer, receiver)
    if attempt.method == "acl":
        return _remove_acls(context.record, context.source)
    return {"todo": words.lifted(attempt.method)}


def _client(receiver: Receiver, **options: Any) -> FreezeWebhook:
    return FreezeWebhook(receiver.address, receiver.secret, direction=receiver.direction, **options)


def check_receiver(context: PhaseContext) -> None:
    """Resolve the webhook's address and secret as a freeze would, but send nothing; other methods need neither.

    A freeze that cannot resolve them could not be lifted either, so this is checked before one is journaled.

    :raises ConnectionInvalid: the reference to one of them leads nowhere, or to something else.
    :raises FreezeFailed: the spec has no address.
    """
    if context.spec.cutover.freeze == "webhook":
        webhook_receiver(context)


def taken(answer: WebhookAnswer, receiver: Receiver) -> dict[str, Any]:
    """Return what the journal keeps of an answer."""
    return {"webhook": {"status": answer.status, "attempts": answer.attempts, "signed": receiver.secret is not None}}


@dataclass(frozen=True)
class Receiver:
    """The webhook's address and signing secret. Both may be secret; without ``secret`` requests are not signed."""

    address: str = field(repr=False)
    secret: str | None = field(repr=False)
    #: ``back`` for a way back
    direction: str = ""


def webhook_receiver(context: PhaseContext) -> Receiver:
    """Return the spec's webhook with its references resolved.

    :raises FreezeFailed: the spec no longer has an address.
    :raises ConnectionInvalid: a reference leads nowhere.
    """
    section = context.spec.cutover
    if not section.producer_freeze_webhook:
        raise FreezeFailed(
            "the producers were stopped through a webhook, but the spec no longer has its address",
            where=context.where(words.phase_of(context.spec)),
            next_step="put cutover.producer_freeze_webhook back into the spec",
        )
    secret = context.resolver.text(section.webhook_secret).strip() if section.webhook_secret else None
    adopt = context.spec.adopt
    direction = "back" if adopt is not None and adopt.from_ == "way_back" else ""
    return Receiver(webhook_address(section.producer_freeze_webhook, context.resolver), secret, direction)


def webhook_address(given: str, resolver: Resolver) -> str:
    """Return the address to call: the one in the spec, or the one its reference leads to. It may be secret.

    :raises ConnectionInvalid: it is not an address, or the reference leads nowhere, or to something else.
    """
    by_reference = is_reference(given)
    address = resolver.text(given).strip() if by_reference else given
    if is_address(address):
        return address
    # Even an invalid address may be secret, so it is not quoted.
    key = "cutover.producer_freeze_webhook"
    raise ConnectionInvalid(
        f"{key} refers to something that is not an http or https address"
        if by_reference
        else f"{key} is not an http or https address",
        where=Where(path=given if by_reference else key),
        next_step="enter the complete address there, for instance https://host/freeze"
        + ("?token=..." if by_reference else ""),
    )


# -- ACLs ------------------------------------------------------------------------------------------------------------


def writing_principals(acls: tuple[Acl, ...], topic: str) -> set[str]:
    """Return the principals that some ACL allows to write to a topic."""
    return {
        acl.principal for acl in acls if acl.permission == "ALLOW" and acl.operation in _WRITING and matches(acl, topic)
    }


def deny_bindings(acls: tuple[Acl, ...], topics: list[str], own: OwnPrincipal) -> list[Acl]:
    """Return the missing DENY WRITE bindings for each principal that may write to these topics, except the migration's.

    One binding per principal and topic: a DENY for ``User:*`` would override the migration's own ALLOW, too.

    :raises FreezeFailed: everyone may write to a topic, and no list of principals can stop that; or one of the
        principals may be the migration's own, which has to write there.
    """
    wanted: set[Acl] = set()
    open_topics: list[str] = []
    for topic in topics:
        for principal in writing_principals(acls, topic) - {own.name}:
            if principal == EVERYBODY:
                open_topics.append(topic)
            else:
                wanted.add(Acl("TOPIC", topic, "LITERAL", principal, "*", "WRITE", "DENY"))
    if open_topics:
        raise FreezeFailed(
            f"{EVERYBODY} may write to {len(open_topics)} topics, among them {open_topics[0]}: ACLs cannot stop all "
            "principals and still let the migration write its sentinels",
            next_step="use cutover.freeze: webhook or manual, or name the producers in the source's ACLs",
            details={"topics": open_topics},
        )
    missing = sorted(wanted - set(acls))
    if missing and own.name is None and own.writes:
        raise FreezeFailed(
            f"the migration's own principal on the {own.role} is not known, so that a DENY could stop the migration "
            f"itself; {missing[0].principal} would be denied on {missing[0].resource_name}",
            next_step=f"set {own.setting} to the principal of the migration as the ACLs name it "
            "(DENY overrides ALLOW; for a super user, any name that no ACL has)",
            details={"principals": sorted({acl.principal for acl in missing})},
        )
    return missing


_OPPOSITE = {"source": "target", "target": "source"}


@dataclass(frozen=True)
class OwnPrincipal:
    """The migration's own principal on a cluster.

    :param name: as ACLs name it; None: neither the spec nor the connection tells it.
    :param writes: whether the migration writes to topics of the cluster while producers are stopped there.
    :param setting: where people set the name. The spec of a way back is derived from that of the first migration, in
        which the clusters have the opposite roles.
    """

    role: Literal["source", "target"]
    name: str | None
    writes: bool
    setting: str

    @classmethod
    def of(cls, spec: MigrationSpec, cluster: Cluster) -> OwnPrincipal:
        """Return that of a cluster, by the spec or else by the connection's user name."""
        section, username = getattr(spec, cluster.role), cluster.config.username
        name = section.principal or (f"User:{username}" if username else None)
        setting = f"{cluster.role}.principal in the spec"
        if spec.is_way_back:
            setting = f"{_OPPOSITE[cluster.role]}.principal in the first migration's spec"
        # A mirror that fails back writes to the former source, whose producers are still stopped.
        writes = cluster.role == "target" or spec.cutover.sentinel == "record" or spec.kind == "mirror"
        return cls(cluster.role, name, writes, setting)


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
        bindings = _denials(record, source, listing.acls, topics)
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
            _raise_failures(record, source.admin.create_acls(some), "created")
    return {"deny_acls": len(bindings), "principals": sorted({acl.principal for acl in bindings})}


def count_denials(record: MigrationRecord, source: Cluster) -> int:
    """Return how many DENY bindings a freeze would create now; none unless ACLs stop the producers.

    What keeps a freeze from being made at all is for the precheck and the freeze to say.
    """
    if record.spec.cutover.freeze != "acl":
        return 0
    topics = sorted({topic for topic, _ in record.partitions()})
    try:
        return len(_denials(record, source, source.admin.describe_acls().acls, topics))
    except FreezeFailed:
        return 0


def _denials(record: MigrationRecord, source: Cluster, acls: Sequence[Acl], topics: list[str]) -> list[Acl]:
    # What an earlier attempt has added, and could not remove, is this one's to remove, too.
    others = tuple(acl for acl in acls if acl not in all_planned_acls(record))
    return deny_bindings(others, topics, OwnPrincipal.of(record.spec, source))


def planned_acls(record: MigrationRecord, attempt: str) -> list[Acl]:
    """Return the DENY bindings of an attempt, from the journal as last read; the source is not asked."""
    entry = record.journal.find_step(steps.FREEZE_ACLS, attempt)
    return [Acl(*fields) for fields in entry.details["acls"]] if entry else []


def all_planned_acls(record: MigrationRecord) -> set[Acl]:
    """Return the DENY bindings of all attempts, from the journal as last read."""
    return {Acl(*fields) for entry in record.journal.steps(steps.FREEZE_ACLS) for fields in entry.details["acls"]}


def _remove_acls(record: MigrationRecord, source: Cluster) -> dict[str, Any]:
    """Remove the bindings of all attempts: a late request of an earlier one may have added some after its lift."""
    bindings = sorted(all_planned_acls(record))
    if bindings:
        _raise_failures(record, source.admin.delete_acls(bindings), "removed")
    return {"deny_acls_removed": len(bindings)}


def _raise_failures(record: MigrationRecord, results: dict[Acl, ItemError | None], verb: str) -> None:
    failed = {acl: error for acl, error in results.items() if error is not None}
    if not failed:
        return
    acl, error = next(iter(sorted(failed.items())))
    if error.unauthorized:
        raise PermissionMissing(
            f"ACLs cannot be {verb} on the source",
            where=record.where(words.phase_of(record.spec), cluster="source"),
            next_step="grant the migration's principal Alter on the source cluster, or set cutover.freeze: webhook or "
            "manual",
        )
    raise FreezeFailed(
        f"{len(failed)} of {len(results)} ACLs could not be {verb}; the first: {acl}: {error}",
        where=record.where(words.phase_of(record.spec), cluster="source"),
        next_step="fix the cause in the broker's message, then clear the task: it retries only what failed",
        details={"failed": [{"acl": str(item), "error": str(problem)} for item, problem in sorted(failed.items())]},
    )


# -- frozen -----------------------------------------------------------------------------------------------------------


#: How long whoever gives a freeze up may take to lift it, before others finish it.
GIVEN_UP_SECONDS = 60.0
#: Failures that a person may fix while producers are still frozen, if enough time is left.
_HEALABLE = (GroupsIncomplete,)


def verified_attempt(record: MigrationRecord, step: str) -> FreezeAttempt:
    """Return the attempt that a step of the cutover belongs to.

    :raises FreezeFailed: nothing is frozen.
    """
    attempt = record.freeze()
    if attempt is None or attempt.lifted or attempt.given_up or attempt.verified is None:
        is_over = attempt is not None and (attempt.lifted or attempt.given_up)
        state = "was lifted" if is_over else "is not verified"
        error = FreezeFailed(
            f"the freeze {state}, so the step {step} must not run",
            where=record.where(PHASE),
            next_step=words.again(record.spec),
        )
        if attempt is not None and attempt.lifted:
            error.add_next_step(words.lifted(attempt.method))
        raise error
    return attempt


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
    receiver = webhook_receiver(context)
    check_not_given_up(context, attempt)
    context.journal.step_once(steps.FREEZE_HELD, attempt.key, {"method": attempt.method}, **in_force(attempt))
    with _stopping(context, attempt, "webhook without a deadline", REQUEST_SECONDS) as change:
        # After READY no caller asks again.
        attempts = ATTEMPTS if attempt.ready else 1
        webhook = _client(receiver, attempts=attempts, may_send=partial(_seconds_to_stop, context, attempt))
        answer = webhook.hold(context.migration_id, now=context.now(), order=change.order)
        change.is_settled = answer.attempts == 1
    return taken(answer, receiver)


# -- requests that come too late ---------------------------------------------------------------------------------------


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
    except MigrationError as error:
        _reopen(context, attempt, error)
        what = f"freeze {attempt.number} had ended when a request to stop producers took effect, and they are stopped"
        raise still_frozen(context.record, attempt, error, what=what) from error


def _reopen(context: PhaseContext, attempt: FreezeAttempt, error: MigrationError) -> None:
    details = {"error": error.as_dict()}
    try:
        context.journal.step(steps.FREEZE_CAME_LATE, attempt.key, details, unless_step=attempt.last_step)
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


@contextmanager
def frozen_step(context: PhaseContext, name: str) -> Iterator[FreezeAttempt]:
    """Run a step of the cutover while producers are frozen.

    If the step raises, the freeze is lifted if the step failed for good or the limit has passed. With time left, a
    transient failure keeps the freeze, since a retry is cheaper for all than a second freeze.
    """
    attempt = verified_attempt(context.record, name)
    with lifting(context, attempt):
        check_deadline(context.record, attempt)
        yield attempt


@contextmanager
def lifting(context: PhaseContext, attempt: FreezeAttempt) -> Iterator[None]:
    """Lift the freeze of an attempt when the block fails, under the conditions of :func:`frozen_step`."""
    try:
        yield
    except (*HANDS_OFF, StillFrozen):
        # StillFrozen: freeing them has just failed, and perhaps after the claim was lost. Its advice must be seen.
        raise
    except Exception as error:
        if attempt.ready or may_be_tried_again(context.record, attempt, error):
            raise
        lift(context, attempt, reason=_reason(error))
        if isinstance(error, MigrationError):
            error.add_next_step(f"the freeze is lifted: {words.lifted(attempt.method)}")
        raise


def may_be_tried_again(record: MigrationRecord, attempt: FreezeAttempt, error: Exception) -> bool:
    """Whether a failed step may be run again while producers stay stopped: a retry is cheaper than a second freeze."""
    from_outside = isinstance(error, Transient) and error.code != "DRAIN_TIMEOUT"
    return (from_outside or isinstance(error, _HEALABLE)) and seconds_left(record, attempt) > 0


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, MigrationError) else f"{type(error).__name__} in the migration's code"


def lift(context: PhaseContext, attempt: FreezeAttempt, *, reason: str, ends: bool = False) -> dict[str, Any]:
    """Go back to ``tail`` and free the producers. Idempotent: any part may have been done before.

    The migration leaves ``cutover`` before the first producer is freed: whatever dies or cannot be journaled after
    that, no step of the cutover runs while producers write again. The tail's stop is withdrawn, so that a running tail
    continues: before, unless the attempt may have restored configs that producers notice. Then the topics first get
    their copy-time settings again (:mod:`~.freeze.tail_stop`), for which the producers do not wait. A mirror stays in
    its state, and journals that it gives the attempt up; its stop is withdrawn once its copiers have reached it.

    :param ends: the migration ends, so nothing has to continue.
    :raises StillFrozen: the freeze could not be lifted, or not journaled as lifted; the error says what a person has
        to do, and the next call tries again.
    :raises PhaseOver: READY_FOR_CLIENT_SWITCH or another freeze is journaled, or that the mirror is promoted.
    """
    record = context.record
    is_cutover = attempt.request is None
    try:
        # A process that has lost the migration must not free producers, and no process may do so once clients may be on
        # the target: writes to the source would make the clusters diverge. Without the journal neither is known.
        context.journal.check_holds()
        _check_not_ready(record, attempt)
        _leave(record, attempt, reason)
        is_restored = is_cutover and tail_stop.may_be_restored(record, attempt)
        if is_cutover and not is_restored:
            tail_stop.clear_tail_stop(record)
        done = unfreeze(context, attempt)
        # They are free now, unless a request to stop them is still under way in another process, or was sent by one
        # that is dead. Nothing says "lifted" before that is over and they were freed again.
        if wait_for_open(context.journal, attempt.key, now=context.now, sleep=context.sleep):
            _check_not_ready(record, attempt)
            done = unfreeze(context, attempt)
    except (*HANDS_OFF, PhaseOver):
        raise
    except MigrationError as error:
        raise still_frozen(record, attempt, error) from error
    details = {"reason": reason, **done}
    details["frozen_seconds"] = round((context.now() - attempt.stopped_at).total_seconds(), 3)
    if is_restored:
        details |= tail_stop.lift(context, ends=ends)
    try:
        context.journal.step(steps.FREEZE_LIFTED, key=attempt.key, details=details)
    except Transient as error:
        what = f"freeze {attempt.number} was lifted, but that cannot be journaled"
        raise still_frozen(record, attempt, error, what=what) from error
    # Producers are free and that is journaled: a registry that cannot be reached delays neither.
    return {**details, **source_registry.put_back_or_name(context, attempt.key)}


def free_abandoned(context: PhaseContext, attempt: FreezeAttempt) -> dict[str, Any]:
    """Free the producers of a migration that was abandoned after READY, or of such a promotion. Idempotent.

    The journal has the step ``abandoned``, so no client is told to switch any more.

    :raises StillFrozen: the producers could not be freed; the error says what a person has to do. Call it again.
    """
    if attempt.lifted:
        return {}
    record = context.record
    try:
        context.journal.check_holds()
        done = unfreeze(context, attempt)
        # A receiver may have been asked behind READY to keep them stopped, by a process that is slow, or dead.
        if wait_for_open(context.journal, attempt.key, now=context.now, sleep=context.sleep):
            done = unfreeze(context, attempt)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        raise still_frozen(record, attempt, error, abandoned=True) from error
    details = {"reason": "abandoned", **done}
    details["frozen_seconds"] = round((context.now() - attempt.stopped_at).total_seconds(), 3)
    context.journal.step(steps.FREEZE_LIFTED, key=attempt.key, details=details)
    return {**details, **source_registry.put_back_or_name(context, attempt.key)}


def finish_given_up(context: PhaseContext) -> None:
    """Finish the lift of a freeze that somebody has given up and not lifted: whoever runs does it. Idempotent.

    Whoever gave it up has :data:`GIVEN_UP_SECONDS` to do it. A failure is logged; the next caller tries again.

    :raises ClaimLost: another owner has taken over.
    """
    attempt, state = context.record.freeze(), context.journal.tip_state
    if attempt is None or not attempt.is_open or not was_left(attempt, context.now()):
        return
    if state is None or state.is_terminal:
        return
    try:
        lift(context, attempt, reason="it was given up before, but its end was not journaled")
    except PhaseOver as error:
        log.info("Freeze %s is not lifted: %s", attempt.number, error)
    except StillFrozen as error:
        log.error("%s", error)
    else:
        log.warning("Freeze %s, which was given up, is lifted: %s", attempt.number, words.lifted(attempt.method))


def was_left(attempt: FreezeAttempt, now: datetime) -> bool:
    """Whether an attempt was given up so long ago that nobody may be lifting it any more."""
    return attempt.given_up_at is not None and (now - attempt.given_up_at).total_seconds() > GIVEN_UP_SECONDS


def _leave(record: MigrationRecord, attempt: FreezeAttempt, reason: str) -> None:
    """Make sure that no step of the attempt follows any more.

    :raises PhaseOver: the attempt's last step is journaled.
    """
    if attempt.request is None:
        back_to_tail(record, f"freeze {attempt.number} is lifted: {reason}", unless_ready=attempt)
    elif record.journal.find_step(steps.FREEZE_GIVEN_UP, attempt.key) is None:
        record.journal.step(
            steps.FREEZE_GIVEN_UP,
            key=attempt.key,
            details={"reason": reason},
            reason=f"freeze {attempt.number} is lifted: {reason}",
            unless_step=attempt.last_step,
        )


def _check_not_ready(record: MigrationRecord, attempt: FreezeAttempt) -> None:
    (name, key), last = attempt.last_step, record.freeze()
    if last is not None and last.number != attempt.number:
        raise PhaseOver(
            f"freeze {last.number} has begun since freeze {attempt.number}, and frees the producers when it ends",
            where=record.where(words.phase_of(record.spec)),
            next_step="nothing needs to be done: this task belongs to the freeze before",
        )
    if record.journal.find_step(name, key) is not None:
        raise PhaseOver(
            f"freeze {attempt.number} ended with {name}: it is too late to free the producers",
            where=record.where(words.phase_of(record.spec)),
            next_step="nothing needs to be done: the migration has continued, and clients may be on the target"
            + (f"; {words.WAY_OUT}" if attempt.request is None else ""),
        )


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
        acls=planned_acls(record, attempt.key),
        held=attempt.held,
        abandoned=abandoned,
    )


def back_to_tail(
    record: MigrationRecord,
    reason: str,
    details: dict[str, Any] | None = None,
    *,
    unless_ready: FreezeAttempt | None = None,
) -> None:
    """Go from ``cutover`` to ``tail``: the copy continues, and a new cutover begins with drain_ready and an approval.

    :raises PhaseOver: the attempt ``unless_ready`` has reached READY_FOR_CLIENT_SWITCH meanwhile.
    """
    journal = record.journal
    journal.refresh()
    if journal.tip_state is State.FAILED and journal.working_state is State.CUTOVER:
        journal.transition(State.CUTOVER, reason)
    if journal.tip_state is State.CUTOVER:
        unless = (steps.READY, unless_ready.key) if unless_ready else None
        journal.transition(State.TAIL, reason, details, from_states={State.CUTOVER}, unless_step=unless)


@dataclass(frozen=True)
class StepTimer:
    """Measures one step of the cutover for the journal."""

    record: MigrationRecord
    attempt: FreezeAttempt
    name: str
    started: datetime

    @classmethod
    def start(cls, record: MigrationRecord, attempt: FreezeAttempt, name: str) -> StepTimer:
        """Start measuring."""
        return cls(record, attempt, name, record.now())

    def done(self, details: dict[str, Any]) -> dict[str, Any]:
        """Journal the step with its seconds; return the details as journaled."""
        finished = self.record.now()
        full = {
            **details,
            "started_at": iso(self.started),
            "finished_at": iso(finished),
            "seconds": round((finished - self.started).total_seconds(), 3),
        }
        self.record.journal.step(steps.CUTOVER_STEP, key=f"{self.attempt.key}/{self.name}", details=full)
        return full
