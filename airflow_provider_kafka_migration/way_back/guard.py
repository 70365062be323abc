"""The old cluster while the way back runs: its producers are kept out, and let in again when it ends.

``freeze_old: acl`` denies WRITE on the old topics to each principal that may write there. The bindings are journaled
before they are created, so a process that dies in between leaves nothing that the next one does not know. They are
removed when clients may return, or when the new cluster is kept. From then on the journal takes no more of them, so
whoever ends the way back knows all; and a process that was slow, and creates one nevertheless, takes it back. With
``none``, and for principals that no ACL stops, the copier itself notices: an append that does not land where it must
stops its partition with ``FOREIGN_DATA``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    FreezeFailed,
    MigrationError,
    PermissionMissing,
    PhaseOver,
    TopologyRefused,
)
from airflow_provider_kafka_migration.freeze import by_hand
from airflow_provider_kafka_migration.freeze.deny_acls import (
    OwnPrincipal,
    all_planned_acls,
    deny_bindings,
    planned_acls,
)
from airflow_provider_kafka_migration.freeze.stops import ACL_SECONDS
from airflow_provider_kafka_migration.freeze.webhook import FreezeWebhook
from airflow_provider_kafka_migration.freeze.webhook_spec import taken, webhook_receiver
from airflow_provider_kafka_migration.freeze.without_acls import check_closed
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.admin.access import Acl, acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.changes import Changes, Standing, wait_for_open
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics.configs import changes, copy_time_configs
from airflow_provider_kafka_migration.topics.copy_settings import COPY_TIME_BATCH_BYTES
from airflow_provider_kafka_migration.way_back.derived_spec import section_of

PHASE = "topology_copy"
#: Key of the journal's steps about requests that keep producers out.
_GUARD = "old_cluster"
#: What a person has to do at the return if the first migration's producers were stopped by hand.
START_PRODUCERS = "start the producers of the old cluster"
_WITHOUT = "or set way_back.freeze_old: none, and keep producers out of the old cluster by other means"


def put(context: PhaseContext, plan: Plan) -> dict[str, Any]:
    """Keep producers out of the old topics; idempotent. Does nothing in other migrations, or with ``none``.

    :raises TopologyRefused: the old cluster has no authorizer, or ACLs cannot keep everybody out.
    :raises PermissionMissing: the migration may not create ACLs there.
    :raises IllegalTransition: the way back is ended by *keep*, so nobody is denied any more.
    :raises PhaseOver: the same, seen when the bindings were to be journaled; or clients may return by now.
    """
    record = context.record
    if not record.spec.is_way_back or section_of(record.spec).freeze_old == "none":
        return {"deny_acls": 0}
    _check_not_over(record)
    listing = context.target.admin.describe_acls()
    where = record.where(PHASE, cluster="target")
    if not listing.authorizer:
        raise TopologyRefused(
            "the old cluster has no authorizer, so ACLs cannot keep producers out of it",
            where=where,
            next_step=f"configure one, {_WITHOUT}",
        )
    try:
        names = sorted(topic.target_name for topic in plan.topics)
        check_closed(context.target, listing.acls, old_topics(plan))
        missing = deny_bindings(listing.acls, names, OwnPrincipal.of(record.spec, context.target))
    except FreezeFailed as error:
        raise TopologyRefused(
            error.what,
            where=where,
            next_step=old_cluster_advice(error),
            details=error.details,
        ) from error
    if not missing:
        reason = "0 further principals to deny on the old cluster"
        record.journal.step_once(steps.OLD_CLUSTER_GUARDED, None, {"acls": []}, reason=reason)
    if missing:
        reason = f"{len(missing)} DENY ACLs keep producers out of the old cluster"
        record.journal.step(
            steps.OLD_CLUSTER_GUARDED,
            details={"acls": [acl_row(acl) for acl in missing]},
            reason=reason,
            unless_step=(steps.ROLLBACK_BEGUN, None),
        )
        undo, admin = partial(_undo, context, missing), context.target.admin
        with _changes(context).making("DENY ACLs on the old cluster", ACL_SECONDS, undo, admin):
            _check(record, admin.create_acls(missing), "created")
    return {"deny_acls": len(bindings(record.journal))}


def _check_not_over(record: MigrationRecord) -> None:
    """Read the journal and check that nobody has begun to let producers in.

    :raises IllegalTransition: by *keep*.
    :raises PhaseOver: by the return.
    """
    record.journal.refresh()
    rolling_back.check_not_begun(record.journal, record.spec, PHASE)
    if _is_over(record.journal):
        raise _over(record)


def _is_over(journal: Journal) -> bool:
    """Whether somebody has begun to let producers in, by the journal as last read."""
    ends = (steps.READY_FOR_CLIENT_RETURN, steps.ROLLBACK_BEGUN, steps.ABANDONED)
    return any(journal.find_step(step) is not None for step in ends)


def _over(record: MigrationRecord) -> PhaseOver:
    return PhaseOver(
        "producers may write to the old cluster again, so nobody is kept out there any more",
        where=record.where(PHASE, cluster="target"),
        next_step="none: the way back has moved on",
    )


def _changes(context: PhaseContext) -> Changes:
    """Return what undoes bindings that were created while somebody let producers in."""
    return Changes(
        context.journal,
        _GUARD,
        standing=lambda: Standing.OVER if _is_over(context.journal) else Standing.GOES_ON,
        over=lambda: _over(context.record),
        allowed={"unless_step": (steps.ROLLBACK_BEGUN, None)},
    )


def _undo(context: PhaseContext, created: list[Acl]) -> None:
    try:
        _remove(context, set(created))
    except MigrationError as error:
        rows = "; ".join(str(acl) for acl in sorted(created))
        error.add_next_step(f"the way back is over: if they are still there, remove these ACLs by hand: {rows}")
        raise


def old_topics(plan: Plan) -> list[str]:
    """Return the topics that the old cluster had before, by their names there. Nobody there knows the others."""
    return sorted(topic.target_name for topic in plan.topics if topic.exists_on_target)


def old_cluster_advice(error: FreezeFailed) -> str:
    """Return the next step for producers of the old cluster that ACLs cannot keep out.

    ``source`` and ``target`` are those of the way back; the spec that people write is that of the first migration.
    """
    if "principals" in error.details:
        return (
            "set source.principal in the first migration's spec to the principal of the migration on the old cluster "
            f"as its ACLs name it (DENY overrides ALLOW), {_WITHOUT}"
        )
    return f"name the producers in the old cluster's ACLs, {_WITHOUT}"


def bindings(journal: Journal) -> set[Acl]:
    """Return the DENY bindings that this way back has created, or was about to create."""
    return {Acl(*row) for entry in journal.steps(steps.OLD_CLUSTER_GUARDED) for row in entry.details["acls"]}


def known_denials(record: MigrationRecord) -> set[Acl]:
    """Return the DENY bindings on the target that clients do not meet: who lets them return removes these.

    They are of this way back, and of the migration that it reverses, or of the mirror that this mirror reverses.
    """
    adopt = record.spec.adopt
    if adopt is None or adopt.from_ not in ("way_back", "mirror"):
        return set()
    return bindings(record.journal) | all_planned_acls(first_migration(record))


def remove(context: PhaseContext) -> dict[str, Any]:
    """Remove the bindings of :func:`put`, for the end of the way back; idempotent.

    Once the journal says that the end has begun, no more are journaled, so these are all. A request that is still under
    way may create some late: they are removed again once it must have ended.

    :raises PermissionMissing: the migration may not remove ACLs any more.
    :raises TopologyRefused: some could not be removed; the error lists all.
    """
    return _remove_all(context, bindings(context.journal))


def _remove_all(context: PhaseContext, wanted: set[Acl]) -> dict[str, Any]:
    removed = _remove(context, wanted)
    if wait_for_open(context.journal, _GUARD, now=context.now, sleep=context.sleep):
        removed = _remove(context, wanted)
    return removed


def open_for_return(context: PhaseContext) -> dict[str, Any] | None:
    """Let producers into the old cluster again, once its copiers are fenced; idempotent. None: not a way back.

    Besides the bindings of this way back, those go with which the first migration froze its producers: clients
    return to what they left. If its webhook's receiver holds them, it gets ``unfreeze`` for the first migration, which
    nobody else sends. Producers that were stopped by hand are a person's: ``todo`` says so.

    :raises PermissionMissing: the migration may not remove ACLs any more.
    :raises TopologyRefused: some could not be removed; the error lists all.
    :raises FreezeFailed: the receiver has not freed the producers of the old cluster.
    :raises ConnectionInvalid: the receiver's address or secret cannot be found.
    """
    record = context.record
    if not record.spec.is_way_back:
        return None
    done = record.journal.find_step(steps.READY_FOR_CLIENT_RETURN)
    if done is not None:
        return dict(done.details)
    record.journal.check_holds()
    forward = first_migration(record)
    removed = _remove_all(context, bindings(record.journal) | all_planned_acls(forward))
    details = {**removed, **_free_first(context, forward), "returns_to": forward.migration_id}
    reason = f"ready_for_client_return: the old cluster has all records again; {removed['deny_acls_removed']} DENY ACLs"
    return dict(record.journal.step(steps.READY_FOR_CLIENT_RETURN, details=details, reason=f"{reason} removed").details)


def free_former(context: PhaseContext) -> list[str]:
    """Let the producers of a mirror's target write again that the mirror which this one reverses has stopped.

    That mirror's promotion keeps them stopped, and clients go there once this one is promoted. Idempotent.

    :returns: what is left for a person, with what to run; such a promotion is completed all the same.
    :raises Transient: the target does not answer; whoever completes the promotion tries again.
    """
    record = context.record
    if record.spec.kind != "mirror" or record.spec.adopt is None or record.spec.adopt.from_ != "mirror":
        return []
    forward, problems = first_migration(record), []
    denied = all_planned_acls(forward)
    try:
        _remove(context, denied)
    except (PermissionMissing, TopologyRefused) as error:
        how = by_hand.remove_commands(sorted(denied), cluster="TARGET")
        problems.append(f"producers of {_names_target(record)} are still denied: {error.what}; {how}")
    try:
        _unfreeze_first(context, forward)
    except (FreezeFailed, ConnectionInvalid) as error:
        problems.append(
            f"producers of {_names_target(record)}, which {forward.migration_id} has stopped by its webhook, are not "
            f'free: {error.what}; have its receiver take {{"migration_id": "{forward.migration_id}", "action": '
            '"unfreeze"}'
        )
    return problems


def _names_target(record: MigrationRecord) -> str:
    return record.spec.mirror.target_alias or "the target"


def _unfreeze_first(context: PhaseContext, forward: MigrationRecord) -> dict[str, Any]:
    """Have the webhook's receiver free the producers that the first migration has stopped; nothing by other methods.

    :raises FreezeFailed: it has not. :raises ConnectionInvalid: its address or secret cannot be found.
    """
    attempt = forward.freeze()
    if attempt is None or attempt.method != "webhook":
        return {}
    # The first migration may be a way back itself: then its requests had the direction, and it has let clients return.
    direction = "back" if forward.journal.find_step(steps.READY_FOR_CLIENT_RETURN) else ""
    receiver = webhook_receiver(context)
    webhook = FreezeWebhook(receiver.address, receiver.secret, direction=direction)
    # That journal has ended: all of its requests are older than this one.
    tip = forward.journal.tip
    order = tip.seq + 1 if tip is not None else 0
    answer = webhook.call(forward.migration_id, "unfreeze", now=context.now(), deadline=attempt.deadline, order=order)
    return taken(answer, receiver)


def _free_first(context: PhaseContext, forward: MigrationRecord) -> dict[str, Any]:
    """Let the producers of the old cluster write that the first migration has stopped, other than by ACLs."""
    attempt = forward.freeze()
    if attempt is not None and attempt.method == "manual":
        return {"todo": START_PRODUCERS}
    name = forward.migration_id
    try:
        return _unfreeze_first(context, forward)
    except (FreezeFailed, ConnectionInvalid) as error:
        raise type(error)(
            f"the old cluster has all records again, but its producers, which migration {name} has stopped by its "
            f"webhook, are not free: {error.what}",
            where=error.where,
            next_step=f'make the receiver answer `unfreeze` of "{name}" as done (its owners may have to free the '
            "producers of the old cluster themselves), or add cutover.producer_freeze_webhook if the spec no longer "
            "has it, or correct cutover.webhook_secret or what they refer to; then clear cutover.floor_guard, or run "
            "`kafka-migration way-back resume FILE`. "
            "Clients must not return before; do not free the producers of the new cluster",
            details=error.details,
        ) from error


def first_migration(record: MigrationRecord) -> MigrationRecord:
    """Return the record of the migration that a way back reverses, to be read only. Both share all locations.

    Its ``spec`` is that of the way back: read from it what is in journal and stores.
    """
    assert record.spec.adopt is not None
    name = str(record.spec.adopt.migration_id)
    spec = record.spec.model_copy(update={"migration_id": name})
    journal = Journal(record.journal_store, name)
    journal.refresh()
    stores = (record.journal_store, record.archive_store, record.evidence_store)
    return MigrationRecord(spec, journal, *stores, now=record.now)


def left_by_first(record: MigrationRecord) -> list[Acl]:
    """Return the bindings with which the first migration has stopped the producers of the old cluster, as planned.

    *Keep* leaves them: whoever still writes to the old cluster would write to one that nobody reads any more.
    """
    forward = first_migration(record)
    attempt = forward.freeze()
    if attempt is None or attempt.method != "acl" or attempt.lifted:
        return []
    return planned_acls(forward, attempt.key)


def _remove(context: PhaseContext, wanted: set[Acl]) -> dict[str, Any]:
    if wanted:
        # All of them: a listing that lacks one, as that of a broker that is behind, is no proof that it is gone.
        _check(context.record, context.target.admin.delete_acls(sorted(wanted)), "removed")
    return {"deny_acls_removed": len(wanted), "principals": sorted({acl.principal for acl in wanted})}


def _check(record: MigrationRecord, results: dict[Acl, ItemError | None], verb: str) -> None:
    failed = {acl: error for acl, error in sorted(results.items()) if error is not None}
    if not failed:
        return
    acl, error = next(iter(failed.items()))
    what = f"{len(failed)} of {len(results)} ACLs of the old cluster could not be {verb}; the first: {acl}: {error}"
    kind = PermissionMissing if error.unauthorized else TopologyRefused
    raise kind(
        what,
        where=record.where(PHASE, cluster="target"),
        next_step="grant the migration's principal Alter on the old cluster, or correct what the broker's message "
        "names; then run the same step again: it repeats only what failed",
        details={"failed": [{"acl": str(item), "error": str(problem)} for item, problem in failed.items()]},
    )


# -- settings ---------------------------------------------------------------------------------------------------------


def check_settings(record: MigrationRecord, target: Cluster, plan: Plan) -> None:
    """Refuse old topics that would need copy-time settings, if the spec does not allow to set any.

    :raises TopologyRefused: the error lists the topics, with what each of them would have to have.
    """
    if not record.spec.is_way_back or section_of(record.spec).source_settings == "set":
        return
    present = target.admin.topic_configs(sorted(topic.target_name for topic in plan.topics if topic.exists_on_target))
    wrong: dict[str, dict[str, str | None]] = {}
    for topic in plan.topics:
        if topic.target_name not in present:
            continue
        wanted = copy_time_configs(topic, plan.target, max_batch_bytes=COPY_TIME_BATCH_BYTES)
        change = changes(present[topic.target_name].overrides, wanted)
        if change:
            wrong[topic.target_name] = change
    if not wrong:
        return
    first = next(iter(wrong))
    raise TopologyRefused(
        f"{len(wrong)} old topics have settings with which records that come back could be deleted or changed; "
        f"{first}: {', '.join(f'{name}={value}' for name, value in wrong[first].items())} would be needed",
        where=record.where(PHASE, cluster="target", topic=first),
        next_step="set way_back.source_settings: set, which puts them back at the end; or set them by hand",
        details={"topics": wrong},
    )
