"""WRITE on the target for producers, granted when clients may switch (``acls.write_grants: at_cutover``).

The grants are journaled before the freeze: a webhook's receiver may stop producers by revoking their rights on the
source, and then the source no longer shows who may write. With ``freeze: manual`` a person may have done so at any time
before, so all grants seen since the plan count, and the approval names those that the source no longer has.

A mirror goes on for years, and its source may be gone when it is promoted. So it journals what is held back whenever
that changes, and a promotion gives what the last entry has: rights that were withdrawn meanwhile are not among it. A
source that shows no ACL, or one broker that knows fewer than the others, withdraws nothing.

A cutover that is abandoned before READY takes its grants back, because the copy goes on and a producer that is already
on the target would write into it. The step that fails does so, the watch on the limit, the rollback, and in the end
each pass of the tail.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_provider_kafka_migration.access import created_access, source_listing
from airflow_provider_kafka_migration.access.mapping import grants_writing, make_plans, plan_acls, target_acl
from airflow_provider_kafka_migration.documents.plan import AclPlan
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError, PhaseOver, TopologyRefused
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.kafka.admin import access
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

log = logging.getLogger(__name__)

#: Where a migration is that goes on after its cutover was abandoned.
_NO_CUTOVER = (State.TAIL, State.DRAIN_READY)
_ABANDONED = (*_NO_CUTOVER, State.ROLLED_BACK)

_GONE = (
    "it is no longer on the source, as after producers are stopped by hand, and is still given on the target; "
    "if it was removed permanently, add the principal to acls.exclude_principals"
)


def _is_held_back(spec: MigrationSpec) -> bool:
    return spec.acls.write_grants == "at_cutover" and spec.acls.target_auth == "kafka"


def _plans(record: MigrationRecord, source: Cluster, target: Cluster) -> list[AclPlan]:
    return plan_acls(record, source, target, {topic for topic, _ in record.partitions()})


def _deferred(plans: Sequence[AclPlan]) -> set[Acl]:
    return {target_acl(plan) for plan in plans if plan.action == "deferred"}


def _outlives_the_source(spec: MigrationSpec) -> bool:
    """Whether a grant that disappeared on the source before the freeze may have been revoked to stop producers."""
    return _is_held_back(spec) and spec.cutover.freeze == "manual" and spec.kind != "mirror"


def _known(record: MigrationRecord) -> set[Acl]:
    """Grants due by the plan, or seen since; without principals that the spec now excludes."""
    rows = [
        row
        for name in (steps.WRITE_GRANTS_SEEN, steps.WRITE_GRANTS_HELD)
        for entry in record.journal.steps(name)
        for row in entry.details["acls"]
    ]
    known = _deferred(record.plan().acls) | {Acl(*row) for row in rows}
    excluded = record.spec.acls.exclude_principals
    return {acl for acl in known if not any(re.fullmatch(pattern, acl.principal) for pattern in excluded)}


def see(record: MigrationRecord, source: Cluster, target: Cluster) -> None:
    """Journal grants held back that were not known yet: they may disappear on the source before the freeze begins.

    Of a mirror: journal all that are held back now, if they are others than before. While it is being promoted, those
    that have disappeared stay among them: that may be how producers were stopped.

    :raises MigrationError: the ACLs of a cluster cannot be read.
    """
    if record.spec.kind == "mirror" and _is_held_back(record.spec):
        _see_of_mirror(record, source, target)
        return
    if not _outlives_the_source(record.spec):
        return
    new = sorted(_deferred(_plans(record, source, target)) - _known(record))
    if new:
        rows = [access.acl_row(acl) for acl in new]
        record.journal.step(
            steps.WRITE_GRANTS_SEEN, details={"acls": rows}, reason=f"{len(rows)} more write grants wait for the switch"
        )


def _see_of_mirror(record: MigrationRecord, source: Cluster, target: Cluster) -> None:
    before, there = _held_by_mirror(record), target.admin.describe_acls()
    if not there.authorizer:
        # Nothing can be granted there now, which does not mean that nothing is held back.
        return
    acls = source_listing.read_acls(record, source)
    now = _held_back(record, acls, there)
    if record.is_being_promoted():
        now |= before
    elif withdrawn := before - now:
        if not acls:
            raise source_listing.none_at_all(record, "ACLs")
        now |= withdrawn & _held_back(record, source_listing.of_all_brokers(record, source), there)
    if now != before:
        _journal_held(record, now)


def _held_back(record: MigrationRecord, acls: Sequence[Acl], there: AclListing) -> set[Acl]:
    """Return what is held back of the source's bindings.

    :param there: the bindings of the target.
    """
    topics = {topic for topic, _ in record.partitions()}
    return _deferred(make_plans(record.spec, acls, there, topics, writes_granted=record.are_writes_granted()))


def gone(record: MigrationRecord, source: Cluster, target: Cluster) -> list[str]:
    """Lines for people: grants that the switch will give although the source no longer has them.

    :raises MigrationError: the ACLs of a cluster cannot be read.
    """
    if not _outlives_the_source(record.spec) or record.write_grants() is not None:
        return []
    plans = _plans(record, source, target)
    return [f"{acl}: {_GONE}" for acl in sorted(_known(record) - _deferred(plans) - _there(plans))]


def _there(plans: list[AclPlan]) -> set[Acl]:
    return {target_acl(plan) for plan in plans if plan.action in ("exists", "target_only")}


def remember(record: MigrationRecord, source: Cluster, target: Cluster) -> None:
    """Journal what is held back now, before anyone other than the migration stops producers."""
    if _is_held_back(record.spec) and record.spec.cutover.freeze != "acl":
        plans = _plans(record, source, target)
        held = _deferred(plans)
        if _outlives_the_source(record.spec):
            held |= _known(record) - _there(plans)
        _journal_held(record, held)


def _journal_held(record: MigrationRecord, held: set[Acl]) -> None:
    rows = [access.acl_row(acl) for acl in sorted(held)]
    record.journal.step(
        steps.WRITE_GRANTS_HELD, details={"acls": rows}, reason=f"{len(rows)} write grants wait for the switch"
    )


def _held_by_mirror(record: MigrationRecord) -> set[Acl]:
    """Return what a mirror holds back, by its last look at the source."""
    held = record.journal.find_step(steps.WRITE_GRANTS_HELD)
    return _deferred(record.plan().acls) if held is None else {Acl(*row) for row in held.details["acls"]}


def _remembered(record: MigrationRecord, plans: list[AclPlan]) -> set[Acl]:
    """Grants held back before the freeze that the target does not have yet."""
    if record.spec.cutover.freeze == "acl" or not (held := record.journal.steps(steps.WRITE_GRANTS_HELD)):
        return set()
    return {Acl(*row) for row in held[-1].details["acls"]} - _there(plans)


def grant(record: MigrationRecord, source: Cluster, target: Cluster) -> dict[str, Any]:
    """Create the bindings that topology_copy has held back. Idempotent; returns details for the journal.

    :raises TopologyRefused: some could not be created; the error lists all.
    :raises PhaseOver: the cutover was abandoned meanwhile, and the bindings are removed again.
    """
    if not _is_held_back(record.spec):
        return {"granted": 0}
    entry = record.write_grants()
    if entry is not None:
        return dict(entry.details)
    plans = _plans(record, source, target)
    bindings = sorted(_deferred(plans) | _remembered(record, plans))
    record.journal.check_holds()
    try:
        results = created_access.create_acls(record, target, bindings)
    finally:
        _remove_if_abandoned(record, target, bindings)
    # Whoever takes the grants of the former cutover back may have taken some of these meanwhile.
    ours = created_access.created_acls(record)
    taken = [acl for acl, error in results.items() if error is None and acl not in ours]
    results |= created_access.create_acls(record, target, taken)
    failures = [{"acl": str(acl), "error": error.as_dict()} for acl, error in sorted(results.items()) if error]
    if failures:
        raise TopologyRefused(
            f"{len(failures)} of {len(bindings)} write grants could not be created; the first: {failures[0]['acl']}",
            where=record.where("cutover", cluster="target"),
            next_step=f"grant the migration's principal Alter on the target cluster; then {words.again(record.spec)}",
            details={"failures": failures},
        )
    details = {"granted": len(bindings), "acls": [str(acl) for acl in bindings]}
    return dict(record.journal.step(steps.WRITE_GRANTS, details=details, only_in={State.CUTOVER}).details)


def _remove_if_abandoned(record: MigrationRecord, target: Cluster, bindings: Sequence[Acl]) -> None:
    """Remove grants that this process has created while somebody else abandoned the cutover, or the promotion.

    That needs no claim: it undoes only what this process has just done. If somebody else has finished the cutover
    instead, clients need these grants.

    :raises PhaseOver: the cutover was abandoned.
    """
    record.journal.refresh()
    is_mirror = record.spec.kind == "mirror"
    is_over = rolling_back.is_abandoned(record.journal) if is_mirror else record.journal.working_state in _ABANDONED
    if not is_over or not bindings:
        return
    where = record.where("cutover", cluster="target")
    errors = {acl: error for acl, error in target.admin.delete_acls(bindings).items() if error is not None}
    rows = "; ".join(str(acl) for acl in sorted(errors))
    raise PhaseOver(
        f"the {'promotion' if is_mirror else 'cutover'} was abandoned while write grants were being created on the "
        "target",
        where=where,
        next_step=f"remove these ACLs on the target by hand: {rows}" if errors else "nothing: they are removed again",
    )


def take_back(record: MigrationRecord, target: Cluster, *, only_in: Collection[State] | None = None) -> list[str]:
    """Remove the grants of a cutover that was abandoned. Idempotent; returns those that were removed, for people.

    The caller knows that the cutover is abandoned, and holds the migration, unless it has ended. If the next cutover
    overtakes this call, what it has granted meanwhile is given again.

    :param only_in: states in which no cutover goes on; None: none can begin any more.
    :raises TopologyRefused: some could not be removed; the error lists all.
    :raises PhaseOver: the migration is in none of these states.
    :raises MigrationError: the target does not answer.
    """
    if not _is_held_back(record.spec):
        return []
    # Until the switch, or the promotion, nothing else lets anybody write.
    bindings = sorted(acl for acl in created_access.created_acls(record) if grants_writing(acl))
    given = record.write_grants()
    if not bindings and given is None:
        return []
    acls = [str(acl) for acl in bindings]
    if not record.journal.is_closed:
        record.journal.check_holds(only_in=only_in)
        if given is not None:
            # Before they are removed: a grant that is journaled later belongs to the next cutover.
            reason = f"the cutover was abandoned: {len(acls)} write grants are removed"
            record.journal.step(steps.WRITE_GRANTS_TAKEN_BACK, details={"acls": acls}, reason=reason, only_in=only_in)
    results = created_access.remove_acls(record, target, bindings)
    failures = [{"acl": str(acl), "error": error.as_dict()} for acl, error in sorted(results.items()) if error]
    if failures:
        raise TopologyRefused(
            f"{len(failures)} of {len(bindings)} write grants of an abandoned cutover are still on the target; the "
            f"first: {failures[0]['acl']}",
            where=record.where("cutover", cluster="target"),
            next_step="grant the migration's principal Alter on the target cluster, or remove them by hand; the tail, "
            "and whoever ends it, try again",
            details={"failures": failures},
        )
    _give_again(record, target, bindings)
    return acls


def _give_again(record: MigrationRecord, target: Cluster, removed: Sequence[Acl]) -> None:
    """Create what the next cutover has granted while the same bindings of the former one were being removed."""
    record.journal.refresh()
    given = record.write_grants()
    if given is not None:
        created_access.create_acls(record, target, [acl for acl in removed if str(acl) in given.details["acls"]])


def passes(spec: MigrationSpec) -> tuple[Callable[[PhaseContext], object], ...]:
    """What the tail repeats: a process that abandoned a cutover may have died before it took the grants back."""
    return (_take_back_in_tail,) if _is_held_back(spec) and spec.kind != "mirror" else ()


def _take_back_in_tail(context: PhaseContext) -> None:
    record = context.record
    context.journal.refresh()
    attempt = record.freeze()
    if context.journal.tip_state in _NO_CUTOVER and (attempt is None or attempt.lifted):
        take_back(record, context.target, only_in=_NO_CUTOVER)


def take_back_if_lifted(context: PhaseContext) -> list[str]:
    """Remove the grants of a cutover whose freeze was lifted, as far as that can be done now; the tail does the rest.

    Producers are free by then, so a target that does not answer is only named.
    """
    record = context.record
    try:
        attempt = record.freeze()
        if attempt is None or attempt.ready or not (attempt.lifted or attempt.given_up):
            return []
        return take_back(record, context.target, only_in=_NO_CUTOVER)
    except MigrationError as error:
        log.warning("The write grants of the lifted cutover are not taken back yet: %s", error)
        return []


@contextmanager
def taken_back_if_lifted(context: PhaseContext) -> Iterator[None]:
    """Around a step of the cutover: take its grants back when it fails and its freeze was lifted."""
    try:
        yield
    except HANDS_OFF:
        raise
    except Exception:
        take_back_if_lifted(context)
        raise


def grant_at_promotion(record: MigrationRecord, target: Cluster) -> dict[str, Any]:
    """Create the bindings that a mirror has held back, from the journal and the target alone. Idempotent.

    :returns: details for the journal: ``granted``, and ``failures`` by binding. A failure does not keep the target
        from being used, so it is for a person.
    :raises Transient: the target does not answer.
    :raises PhaseOver: the promotion was abandoned meanwhile, and the bindings are removed again.
    """
    if not _is_held_back(record.spec):
        return {"granted": 0, "failures": []}
    entry = record.write_grants()
    if entry is not None:
        return dict(entry.details)
    record.journal.check_holds()
    bindings = sorted(_held_by_mirror(record))
    try:
        results = created_access.create_acls(record, target, bindings)
    finally:
        _remove_if_abandoned(record, target, bindings)
    failures = [{"acl": str(acl), "error": error.as_dict()} for acl, error in sorted(results.items()) if error]
    details = {
        "granted": len(bindings) - len(failures),
        "acls": [str(acl) for acl in bindings],
        "failures": failures,
    }
    return dict(record.journal.step_once(steps.WRITE_GRANTS, details=details).details)
