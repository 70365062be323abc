"""Bring changes of the source after the plan to the target while the tail runs, or stop the cutover, by policy.

The order of a pass, and what a crash in between leaves:

1. Changed topic configs become a journaled supplement of the plan; from then on the two restore steps use them. Each
   pass sets the copy-time settings of these topics again, so the next pass heals a crash before that.
2. ACLs, users and quotas: creations are journaled first (:mod:`~.access.created_access`), and each pass compares both
   sides again. DENY is created first and removed last, so no door is open in between. Changes that withdraw write
   access (:mod:`~.source_drift`) are held back and named if they may be how producers are stopped for the cutover.

Nothing is changed from the request of a freeze until the freeze is lifted, and nothing once a rollback has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.access import apply, created_access, write_grants
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.plan import ConfigChange, Plan, PlanSupplement
from airflow_provider_kafka_migration.drift import source_drift
from airflow_provider_kafka_migration.drift.source_drift import SourceDrift
from airflow_provider_kafka_migration.errors import HANDS_OFF, FreezeFailed, MigrationError
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.overtaken import tombstone_settings
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings, target_topics

log = logging.getLogger(__name__)

PHASE = "tail"
STEPS = (steps.DRIFT_FOLLOWED, steps.DRIFT_NAMED)
_HELD = (
    "it takes write access away, as stopping producers by hand does, so it is not taken over; if it is meant to be "
    "permanent, make the same change on the target by hand"
)
_OPENS = (
    "without the changes that are held back for the same principal it would give more access than on the source: make "
    "both changes by hand"
)
_MAX_LINES = 200


def follow(context: PhaseContext) -> list[str]:
    """Run one pass and return what was taken over, as lines for people.

    :raises MigrationError: something cannot be read or set; the next pass tries again.
    """
    record = context.record
    context.journal.refresh()
    if not _may_change(record):
        return []
    plan = record.plan()
    write_grants.see(record, context.source, context.target)
    drift = source_drift.read_drift(record, context.source, context.target, plan)
    if _refuses(context.spec):
        _name(record, dict.fromkeys(drift.lines, "it stops the cutover (topology.on_source_drift: stop)"))
        return []
    _name(record, drift.named)
    if _may_be_stopped_by_hand(context.spec) or record.is_being_promoted():
        drift, _ = _hold_back(record, drift)
    lines = list(drift.config_lines)
    if drift.configs:
        _supplement(record, drift.configs)
    _refresh_proof(record, context.source, record.plan())
    _set_copy_time(record, context.target, record.plan())
    context.journal.refresh()
    if not _access_follows(context.spec) or not _may_change(record):
        _journal_followed(context, lines)
        return lines
    return lines + _take_access(context, drift, lines)


def _refuses(spec: MigrationSpec) -> bool:
    return spec.topology.on_source_drift == "stop"


def _access_follows(spec: MigrationSpec) -> bool:
    """Whether ACLs, users and quotas are taken over: not if a policy is to stop at any difference."""
    section = spec.acls
    follows = spec.topology.on_source_drift == "repair"
    return follows and section.policy != "refuse" and section.quotas != "refuse"


def _may_be_stopped_by_hand(spec: MigrationSpec) -> bool:
    """Whether a withdrawal of write access may, at any time, be how a person stops producers.

    Not in a mirror, unless it is being promoted: it goes on for years, and a right that is withdrawn has to go on the
    target, too.
    A webhook's receiver does so only once the request is in the journal, and from then on the tail changes nothing.
    """
    return _access_follows(spec) and spec.cutover.freeze == "manual" and spec.kind != "mirror"


def _hold_back(record: MigrationRecord, drift: SourceDrift) -> tuple[SourceDrift, list[str]]:
    """Name withdrawals of write access: (what may be taken over, what must not be without the withdrawals)."""
    rest, withdrawn = source_drift.split(drift)
    rest, opening = source_drift.without_open_doors(rest, withdrawn)
    _name(record, dict.fromkeys(withdrawn.lines, _HELD))
    _name(record, dict.fromkeys(opening.lines, _OPENS))
    return rest, opening.lines


def _may_change(record: MigrationRecord) -> bool:
    attempt = record.freeze()
    is_frozen = attempt is not None and not attempt.lifted
    if is_frozen or rolling_back.has_begun(record.journal):
        return False
    return record.journal.tip_state in (State.TAIL, State.DRAIN_READY)


def _name(record: MigrationRecord, named: Mapping[str, str]) -> None:
    """Journal each item, once."""
    for what, why in sorted(named.items()):
        key = canonical_digest([what, why])[:16]
        if record.journal.find_step(steps.DRIFT_NAMED, key) is None:
            log.warning("changed on the source: %s: %s", what, why)
            record.journal.step(steps.DRIFT_NAMED, key=key, details={"what": what, "why": why}, reason=f"{what}: {why}")


def _journal_followed(context: PhaseContext, lines: Sequence[str]) -> None:
    if not lines:
        return
    more = len(lines) - _MAX_LINES
    shown = [*lines[:_MAX_LINES], *([f"and {more} more"] if more > 0 else [])]
    reason = f"{len(lines)} changes of the source were taken over; the first: {lines[0]}"
    context.journal.step(steps.DRIFT_FOLLOWED, details={"changes": shown}, reason=reason)
    context.progress(Progress(PHASE, reason))


# -- topic configs ---------------------------------------------------------------------------------------------------


def _supplement(record: MigrationRecord, changed: Mapping[str, ConfigChange]) -> None:
    """Write and journal the new configs before any of them is set."""
    number = len(record.journal.steps(steps.PLAN_SUPPLEMENTED)) + 1
    document = PlanSupplement(migration_id=record.migration_id, number=number, configs=dict(sorted(changed.items())))
    digest = document.digest()
    name = keys.supplement(number, digest)
    record.journal.check_holds()
    record.journal_store.put(record.key(name), document.canonical())
    record.journal.step(
        steps.PLAN_SUPPLEMENTED,
        key=str(number),
        details={"document": name, "digest": digest, "partitions": [], "configs": sorted(changed)},
        reason=f"configs of {len(changed)} topics have changed on the source",
    )


def _refresh_proof(record: MigrationRecord, source: Cluster, plan: Plan) -> None:
    """Update the tail's job: the rules of its background comparison, and how long tombstones stay on the source.

    Both follow from the current configs. Each pass checks this once configs have changed, so the next pass heals a
    crash before it.
    """
    job = record.job(PHASE) if any(item.configs for item in record.supplements()) else None
    if job is None or job.generation != record.journal.generation:
        return
    changed = job.model_copy(
        update={
            "proof": job.proof and (copy_jobs.proof_settings(record, source, plan) or job.proof),
            "tombstones": job.tombstones and tombstone_settings(record.spec, source, plan, job.tombstones),
            "target_compacts": copy_jobs.target_compacts(record.spec, plan, job),
        }
    )
    if changed == job:
        return
    record.journal.refresh()
    if not _may_change(record):
        return
    record.journal.check_holds()
    record.journal_store.put(copy_jobs.job_key(record, PHASE), changed.canonical())


def _set_copy_time(record: MigrationRecord, target: Cluster, plan: Plan) -> None:
    """Set the copy-time settings that follow from changed configs, for instance a limit for larger batches."""
    changed = {name for item in record.supplements() for name in item.configs}
    part = plan.model_copy(update={"topics": [topic for topic in plan.topics if topic.name in changed]})
    if not part.topics or record.copy_settings() is None:
        return
    settings = copy_settings.save(record, part, target_topics.read_presence(record, target, part))
    record.journal.refresh()
    if not _may_change(record):
        return
    record.journal.check_holds()
    names = {topic.target_name for topic in part.topics}
    copy_settings.apply_configs(record, target, copy_settings.in_force(record, target, settings, names))


# -- access ----------------------------------------------------------------------------------------------------------


def _take_access(context: PhaseContext, drift: SourceDrift, done: Sequence[str] = ()) -> list[str]:
    """Take over ACLs, users and quotas, and return the changes. All possible changes are made before failures raise.

    :param done: changes that the same pass has already taken over; journaled together.
    """
    context.journal.check_holds()
    failures: list[dict[str, Any]] = []
    lines = _take_acls(context.record, context.target, drift, failures)
    if drift.new_users:
        users = apply.create_users(context, failures)["users_created"]
        lines += [f"user created on the target: {name}" for name in users]
    lines += _remove_users(context.record, context.target, drift.gone_users, failures)
    answers = created_access.set_quotas(context.record, context.target, drift.quotas, drift.present_quotas)
    failures += [
        apply.failed_item("quota", str(entity), error) for entity, error in answers.items() if error is not None
    ]
    if answers and not any(answers.values()):
        lines += drift.quota_lines
    _journal_followed(context, [*done, *lines])
    if failures:
        raise apply.failure(
            context.record,
            failures,
            phase=PHASE,
            what="changes of the source could not be made on the target",
            after="the tail retries by itself",
        )
    return lines


def _take_acls(
    record: MigrationRecord, target: Cluster, drift: SourceDrift, failures: list[dict[str, Any]]
) -> list[str]:
    lines: list[str] = []

    def note(verb: str, answers: Mapping[Acl, ItemError | None]) -> None:
        lines.extend(f"ACL {verb} on the target: {acl}" for acl in sorted(answers) if answers[acl] is None)
        failures.extend(
            apply.failed_item("acl", str(acl), error) for acl, error in sorted(answers.items()) if error is not None
        )

    def only(acls: Sequence[Acl], permission: str) -> list[Acl]:
        return [acl for acl in acls if acl.permission == permission]

    note("created", created_access.create_acls(record, target, only(drift.missing_acls, "DENY")))
    note("removed", created_access.remove_acls(record, target, only(drift.surplus_acls, "ALLOW")))
    if failures:
        # An ALLOW without its DENY would open a door.
        return lines
    note("created", created_access.create_acls(record, target, only(drift.missing_acls, "ALLOW")))
    note("removed", created_access.remove_acls(record, target, only(drift.surplus_acls, "DENY")))
    # A removal whose process died before the journal knew of it. People who put such an ACL there later shall keep it.
    created_access.remove_acls(record, target, drift.absent_acls)
    return lines


def _remove_users(
    record: MigrationRecord, target: Cluster, names: Sequence[str], failures: list[dict[str, Any]]
) -> list[str]:
    lines = []
    for name, error in sorted(created_access.remove_users(record, target, names).items()):
        if error is not None:
            failures.append(apply.failed_item("user", name, error))
        else:
            lines.append(f"user removed on the target: {name}")
    return lines


# -- before the freeze, and for people -------------------------------------------------------------------------------


def check_before_freeze(context: PhaseContext) -> None:
    """Check again right before producers are stopped. Access is taken over now; configs need a new approval.

    Withdrawals of write access are taken over only if the migration itself stops the producers (``freeze: acl``):
    otherwise they may already be what stops the producers, and these producers are to write to the target.

    :raises FreezeFailed: something has changed that the target does not have.
    :raises MigrationError: something cannot be read; this is never taken as "nothing has changed".
    """
    record = context.record
    drift = source_drift.read_drift(record, context.source, context.target, record.plan())
    policy = context.spec.topology.on_source_drift
    if policy == "note":
        _name(
            record,
            {**dict.fromkeys(drift.lines, "not taken over (topology.on_source_drift: note)"), **drift.named},
        )
        return
    _name(record, drift.named)
    lines = drift.lines
    if _access_follows(context.spec):
        opening: list[str] = []
        if context.spec.cutover.freeze != "acl":
            drift, opening = _hold_back(record, drift)
        lines = drift.config_lines + opening
        if drift.acl_lines or drift.other_lines:
            _take_access(context, drift)
    if lines:
        raise _changed(record, lines)


def _changed(record: MigrationRecord, lines: Sequence[str]) -> FreezeFailed:
    follows = record.spec.topology.on_source_drift == "repair"
    return FreezeFailed(
        f"{len(lines)} things have changed on the source since the plan; the first: {lines[0]}",
        where=record.where("cutover", cluster="source"),
        next_step=(
            "the tail takes over changes within topology.refresh_interval (its log says if it cannot)"
            if follows
            else "undo the change on the source, or set topology.on_source_drift to repair or note and clear tail"
        )
        + f"; then {words.again(record.spec)}",
        details={"changes": list(lines)},
    )


def facts(record: MigrationRecord, source: Cluster, target: Cluster) -> list[list[str]]:
    """Rows for an approval: what was taken over, what was named, and what differs now."""
    rows = [
        ["taken over", line]
        for entry in record.journal.steps(steps.DRIFT_FOLLOWED)
        for line in entry.details["changes"]
    ]
    named = [
        ["named", f"{item.details['what']}: {item.details['why']}"] for item in record.journal.steps(steps.DRIFT_NAMED)
    ]
    try:
        drift = source_drift.read_drift(record, source, target, record.plan())
        rows += [["given at the switch", line] for line in write_grants.gone(record, source, target)]
    except HANDS_OFF:
        raise
    except MigrationError as error:
        return [*rows, *named, ["could not be checked", error.what]]
    held: list[list[str]] = []
    if _may_be_stopped_by_hand(record.spec):
        drift, withdrawn = source_drift.split(drift)
        held = [["held back", f"{line}: {_HELD}"] for line in withdrawn.lines]
    shown = {text for _, text in held}
    rows += [row for row in named if row[1] not in shown] + held
    return rows + [["not on the target yet", line] for line in drift.lines]
