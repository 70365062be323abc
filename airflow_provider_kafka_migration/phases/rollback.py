"""Rollback before the client switch: free producers, remove ACLs, restore copy-time settings, and stop the tail.

People can abandon a migration later, too, as long as no client has written to the target (:func:`abandon`): producers
are freed then, and the rest is undone as in a rollback.

Data on the target is never touched: ``rollback-report.json`` lists it, with the commands that delete it. The *Keep* of
a way back is a rollback, too; its report is also in signed evidence, with the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.access import left as access_left
from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.approvals import abandon as abandonment
from airflow_provider_kafka_migration.approvals import way_back
from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import HANDS_OFF, IllegalTransition, MigrationError
from airflow_provider_kafka_migration.evidence.publish import sign_end
from airflow_provider_kafka_migration.freeze import frozen, source_registry, words
from airflow_provider_kafka_migration.groups import early
from airflow_provider_kafka_migration.groups.written import LeftOffsets, read_left, unread_left
from airflow_provider_kafka_migration.kafka.admin.access import acl_row
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.partition_names import by_name, partition_name, target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import Role
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.schemas.modes import TemporarySettings
from airflow_provider_kafka_migration.schemas.settings_left import has_open, put_back_target
from airflow_provider_kafka_migration.schemas.written import written_schemas
from airflow_provider_kafka_migration.state import ABANDON_FROM, ROLLBACK_FROM, State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics.topics_gone import find_gone
from airflow_provider_kafka_migration.way_back import guard

PHASE = "rollback"
_REGISTRY_PARTS: dict[Role, str] = {"source": "source registry", "target": "target registry"}
_TOPICS = "topics"
_TAIL = "tail"
_GRANTS = "write grants"
_QUOTAS = "quotas"
_ACCESS = "access"
#: Parts that only list what stays: there is nothing in them that could be put back.
INVENTORIES = ("inventory", "schemas inventory", "groups inventory", "access inventory")
_TOPICS_AGAIN = (
    "then run the rollback again (after a *keep*: `kafka-migration way-back keep FILE`): it tries these topics again, "
    "unless somebody has changed their settings in the meantime"
)
_RUN_AGAIN = "run the rollback again once the registry answers: it puts back what the journal has open"


class RollbackReport(Document):
    """``<migration_id>/rollback-report.json`` in the evidence store."""

    LATER_FIELDS = ("groups_left", "groups_of_others", "deny_acls_left", "acls_left", "users_left", "quotas_left")

    version: int = 1
    migration_id: str
    rolled_back_from: str
    at: str
    reason: str = ""
    undone: dict[str, Any] = Field(description="what was restored, by part")
    problems: list[dict[str, Any]] = Field(default_factory=list, description="parts that could not be restored")
    left_on_target: list[dict[str, Any]] = Field(
        description="topics that stay on the target: partitions and end offsets"
    )
    left_in_registry: list[dict[str, Any]] = Field(
        default_factory=list, description="subjects that stay on the target registry, with the versions written there"
    )
    groups_left: list[dict[str, Any]] = Field(
        default_factory=list,
        description="offsets that a way back, or groups.early_sync, leaves for groups on the target, with those they "
        "had there before; unread: nobody knows whether it is there",
    )
    groups_of_others: list[dict[str, Any]] = Field(
        default_factory=list,
        description="the same where somebody else has committed another offset since: leave those alone",
    )
    deny_acls_left: list[list[str]] = Field(
        default_factory=list,
        description="DENY ACLs of the first migration's freeze that keep of a way back leaves on the old cluster: "
        "resource type, name, pattern, principal, host, operation, permission",
    )
    acls_left: list[list[str]] = Field(
        default_factory=list,
        description="ACLs that the migration has created on the target: resource type, name, pattern, principal, host, "
        "operation, permission",
    )
    users_left: list[dict[str, Any]] = Field(
        default_factory=list, description="SCRAM users that the migration has created on the target"
    )
    quotas_left: list[dict[str, Any]] = Field(
        default_factory=list,
        description="client quotas that the migration has set and the target did not have; overwritten ones are undone",
    )
    clean_up: list[str] = Field(description="commands that would remove all this; they are not run")


def check_allowed(record: MigrationRecord, code: str = "") -> State | None:
    """Return the state to roll back from; ``None`` if the migration is rolled back already.

    :param code: ends a way back (*keep*), unless a person has decided that before.
    :raises IllegalTransition: it is too late to roll back; the error says why.
    :raises ApprovalRefused: a way back ends by *keep*, which needs its code.
    """
    record.journal.refresh()
    if record.journal.tip_state is State.ROLLED_BACK:
        return None
    state = record.journal.working_state or State.PLANNED
    if state in ROLLBACK_FROM or _can_leave_cutover(record, state):
        if record.spec.is_way_back and not way_back.is_keep_decided(record):
            way_back.check_keep(record, code)
        return state
    raise IllegalTransition(
        f"a migration in state {state} cannot be rolled back",
        where=record.where(PHASE),
        next_step=_instead(state),
        details={"state": state.value, "possible_from": [item.value for item in ROLLBACK_FROM]},
    )


def _can_leave_cutover(record: MigrationRecord, state: State) -> bool:
    """Whether clients were not told to switch yet, so that the cutover can go back to ``tail`` as after a lift."""
    if state is not State.CUTOVER:
        return False
    attempt = record.freeze()
    return attempt is None or not attempt.ready


def _instead(state: State) -> str:
    if state in (State.CUTOVER, State.AWAITING_CLIENT_SWITCH, State.VALIDATING):
        late = f"{words.WAY_OUT}. Otherwise " if state is not State.VALIDATING else ""
        return (
            f"{late}clients may already use the target, so the source may lack their records: complete the switch; "
            "clients can then return, with what they have written, by `kafka-migration way-back run FILE` "
            "(docs/way-back.md)"
        )
    return "the migration has ended; start a new one with another migration_id"


def run(context: PhaseContext, *, reason: str = "", code: str = "", withdraw_access: bool = False) -> PhaseResult:
    """Undo what the migration has set, report what it leaves on the target, and end the migration.

    Producers come first: while they are still frozen, nothing else is undone and the migration does not end, since
    nothing would free them after that. The rest is best effort: a part that fails does not stop the others, and is in
    the report. Idempotent: all parts may be undone twice. From the step ``rollback_begun`` on no other phase runs. The
    transition to ``rolled_back`` comes last. After that, a run tries again only what could not be put back on the
    schema registries, the settings of topics, and the stop of the tail.

    :param code: the code of *keep*, for a way back that nobody has decided to end before.
    :param withdraw_access: also remove the ACLs, SCRAM users and quotas that the migration has created on the target.
    :raises IllegalTransition: it is too late to roll back.
    :raises ApprovalRefused: a way back ends by *keep*, which needs its code.
    :raises StillFrozen: the freeze could not be lifted; the error says what a person has to do. Run it again.
    """
    record = context.record
    state = check_allowed(record, code)
    if state is None:
        return _again(context, withdraw_access=withdraw_access)
    context.journal.check_holds()
    if state is State.CUTOVER:
        # Leave ``cutover`` before anything else: after that no step can tell clients to switch.
        frozen.back_to_tail(record, "the migration is rolled back", unless_ready=record.freeze())
    # While producers are still frozen nothing else is undone: in ``tail`` the copy continues and its topics need their
    # copy-time settings, whether the rollback or the cutover is run again.
    freed = _unfreeze(context)
    begun = {"reason": reason, **({"code": code} if code else {})}
    context.journal.step_once(
        steps.ROLLBACK_BEGUN, None, begun, reason="the rollback undoes what the migration has set"
    )
    return _undo(context, state, reason, freed, withdraw_access=withdraw_access)


def abandon(context: PhaseContext, *, reason: str = "") -> PhaseResult:
    """End a migration whose clients were told to switch, and of which none has: they stay on the source.

    The decision is journaled first, so nobody can acknowledge the switch any more; then the producers are freed, and
    the rest is undone as in a rollback, and signed. Killed anywhere, it continues when it is run again.

    :raises IllegalTransition: it is too early or too late for that.
    :raises ApprovalRefused: the people who have to decide it have not; or clients have written to the target.
    :raises StillFrozen: the producers could not be freed; the error says what a person has to do. Run it again.
    """
    record, journal = context.record, context.journal
    if not abandonment.check_possible(record):
        return _again(context, withdraw_access=False)
    journal.check_holds()
    abandonment.decide(context, reason)
    state = journal.working_state or State.AWAITING_CLIENT_SWITCH
    freed = frozen.free_abandoned(context, abandonment.ready_attempt(record))
    return _undo(context, state, reason, {"lifted": {abandonment.ready_attempt(record).key: freed}}, is_abandoned=True)


def _undo(
    context: PhaseContext,
    state: State,
    reason: str,
    freed: dict[str, Any],
    *,
    is_abandoned: bool = False,
    withdraw_access: bool = False,
) -> PhaseResult:
    """Undo the rest once the producers are free, report what stays, and end the migration."""
    record = context.record
    problems: list[dict[str, Any]] = []
    # Copiers first: what runs beside them changes topics and ACLs of the target, too.
    stopped = _attempt(_TAIL, problems, lambda: _stop_tail(record))
    # Not best effort: once the journal has ended, nothing would know of these ACLs any more. But behind the freeze: a
    # way back holds the producers of the new cluster, and an old cluster that does not answer must not keep them.
    released = _release_old_cluster(context) if record.spec.is_way_back else None
    undone = {
        "freeze": freed,
        "tail": stopped,
        "schemas": _restore_registries(context, problems),
        _TOPICS: _attempt(_TOPICS, problems, lambda: _restore_topics(context)),
        **_restore_access(context, problems, {_GRANTS, _QUOTAS, *([_ACCESS] if withdraw_access else ())}),
    }
    # Topics that were adopted are not the migration's: never advise to delete them.
    created = {str(name) for entry in context.journal.steps(steps.TOPIC_CREATED) for name in entry.details["topics"]}
    left = _attempt(INVENTORIES[0], problems, lambda: _left_on_target(record, context.target)) or []
    subjects = _attempt(INVENTORIES[1], problems, lambda: written_schemas(record)) or []
    if released is not None:
        undone["guard"] = released
    offsets = _attempt(INVENTORIES[2], problems, lambda: read_left(record, context.target))
    if offsets is None:
        what = problems[-1]["what"]
        offsets = _attempt(INVENTORIES[2], problems, lambda: unread_left(record, what)) or LeftOffsets([], [])
    access = _attempt(INVENTORIES[3], problems, lambda: access_left.read_left(record, context.target))
    if access is None:
        access = access_left.known_left(record)
    report = RollbackReport(
        migration_id=context.migration_id,
        rolled_back_from=state.value,
        at=iso(context.now()),
        reason=reason,
        undone={name: _plain(value) for name, value in undone.items()},
        problems=problems,
        left_on_target=left,
        left_in_registry=subjects,
        groups_left=offsets.own,
        groups_of_others=offsets.others,
        deny_acls_left=[] if released is None else [acl_row(acl) for acl in guard.left_by_first(record)],
        acls_left=access.acl_rows,
        users_left=access.user_rows,
        quotas_left=access.quota_rows,
        # What a way back has brought to the old cluster stays there, next to its records.
        clean_up=(early.clean_up(offsets.own) if released is None else [])
        + [
            f"kafka-topics.sh --bootstrap-server TARGET --delete --topic {item['topic']}"
            for item in left
            if record.spec.adopt is None or item["topic"] in created
        ]
        + access.commands,
    )
    key = context.key(keys.ROLLBACK_REPORT)
    context.evidence_store.put(key, report.canonical())
    what = "abandoned in" if is_abandoned else "rolled back from"
    summary = f"{what} {state}: {len(left)} topics stay on the target"
    summary += f", {len(subjects)} subjects on the target registry" if subjects else ""
    summary += f", {len(offsets.own)} offsets of groups on the target" if offsets.own and released is None else ""
    summary += _access_text(access)
    summary += _told(problems)
    lifted = record.freeze() if undone["freeze"]["lifted"] else None
    summary += f"; {words.lifted(lifted.method)}" if lifted else ""
    details: dict[str, Any] = {
        "report": f"{context.evidence_store.uri}/{key}",
        "digest": report.digest(),
        "rolled_back_from": state.value,
        "problems": problems,
        "left_on_target": [item["topic"] for item in left],
    }
    if is_abandoned:
        details["written_meanwhile"], told = abandonment.written_meanwhile(record, context.target)
        summary += told
    if released is not None:
        summary = f"old_cluster_released: the new cluster is kept; {summary}"
        left_acls = len(report.deny_acls_left)
        summary += f"; {left_acls} DENY ACLs of the first migration stay on the old cluster" if left_acls else ""
        kept = {**released, "problems": problems, "reason": reason}
        kept |= {"report": details["report"], "digest": details["digest"]}
        kept |= {"group_offsets_left": len(report.groups_left), "deny_acls_left": left_acls}
        context.journal.step(steps.OLD_CLUSTER_RELEASED, details=kept, reason=summary)
        signed, told = sign_end(context, Outcome.KEPT)
        details |= signed
        summary += told
        # Again: a process that was slow may have created one of them in the meantime, and died of it.
        _release_old_cluster(context)
    elif is_abandoned:
        signed, told = sign_end(context, Outcome.ABANDONED)
        details |= signed
        summary += told
    context.journal.step(steps.ROLLED_BACK, details=details, reason=summary)
    sources = ABANDON_FROM if is_abandoned else ROLLBACK_FROM
    context.journal.transition(State.ROLLED_BACK, reason or summary, details, from_states=sources)
    return PhaseResult("abandon" if is_abandoned else PHASE, summary, details)


def _release_old_cluster(context: PhaseContext) -> dict[str, Any]:
    """Remove what keeps producers out of the old cluster; nothing once clients could return: they are let in already.

    An old cluster that has died since must not keep the end of an abandoned return waiting.
    """
    if context.journal.find_step(steps.READY_FOR_CLIENT_RETURN) is not None:
        return {"deny_acls_removed": 0, "principals": []}
    return guard.remove(context)


def _restore_access(context: PhaseContext, problems: list[dict[str, Any]], parts: Collection[str]) -> dict[str, Any]:
    """Undo what the migration has changed of the target's access settings, and return what was done, by part.

    :param parts: grants of writing; quotas that it has overwritten; all access that it has created.
    """
    record = context.record
    undo: dict[str, Callable[[], Any]] = {
        _GRANTS: lambda: write_grants.take_back(record, context.target),
        _QUOTAS: lambda: access_left.restore_quotas(record, context.target),
        _ACCESS: lambda: access_left.withdraw(record, context.target),
    }
    found = {part: _attempt(part, problems, act) for part, act in undo.items() if part in parts}
    return {part: done for part, done in found.items() if done}


def _access_text(left: access_left.AccessLeft) -> str:
    counts = {"ACLs": len(left.acls), "users": len(left.users or {}), "quotas": len(left.quotas or {})}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"; {told} of the migration stay on the target" if told else ""


def _told(problems: list[dict[str, Any]]) -> str:
    """Say how many parts are not put back, and how many could not be listed."""
    unlisted = sum(item["part"] in INVENTORIES for item in problems)
    left = len(problems) - unlisted
    told = f"; {left} parts could NOT be restored" if left else ""
    return told + (f"; {unlisted} lists of what stays are not complete" if unlisted else "")


def _again(context: PhaseContext, *, withdraw_access: bool) -> PhaseResult:
    """Try again what could not be put back, without the journal, which is closed once a migration has ended.

    Producers come first, if the outcome of a request to stop them is not known: then they are freed once more. The rest
    is what both registries are to get back, topics that still have what the copy has set, the tail's stop, and access
    on the target. What could not be listed is in the report, as that; nobody has to do anything about it.
    """
    freed = frozen.free_after_end(context)
    entry = context.journal.find_step(steps.ROLLED_BACK)
    details = dict(entry.details) if entry else {}
    problems: list[dict[str, Any]] = []
    former = details.get("problems", [])
    refused = [item for item in former if item.get("part") == _TOPICS]
    if any(item.get("part") == _TAIL for item in former):
        _attempt(_TAIL, problems, lambda: _stop_tail(context.record))
    topics = _attempt(_TOPICS, problems, partial(_restore_topics_after_end, context, refused)) if refused else None
    restored = {
        role: _attempt(_REGISTRY_PARTS[role], problems, partial(_restore_after_end, context, role))
        for role in _REGISTRY_PARTS
    }
    parts = {str(item.get("part")) for item in former} | ({_ACCESS} if withdraw_access else set())
    access = _restore_access(context, problems, parts)
    summary = "the migration is rolled back already"
    summary += f"; {words.lifted(freed)}" if freed else ""
    done = {f"{role}_registry": count for role, count in restored.items() if count}
    summary += f"; modes and levels put back now: {sum(done.values())}" if done else ""
    summary += f"; topics with their own settings now: {len(topics)}" if topics else ""
    summary += _told(problems)
    summary += f"; taken back on the target now: {', '.join(access)}" if access else ""
    now = {**done, **({_TOPICS: len(topics)} if topics else {}), **access}
    details |= {"problems": problems, **({"restored_now": now} if now else {})}
    return PhaseResult(PHASE, summary, details, already_done=not now and not freed)


def _restore_topics(context: PhaseContext) -> PhaseResult:
    try:
        return copy_settings.restore_for_rollback(context.record, context.target)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        error.add_next_step(_TOPICS_AGAIN)
        raise


def _restore_topics_after_end(context: PhaseContext, refused: list[dict[str, Any]]) -> list[str]:
    """Return the topics that get their own settings now; an error that names no topics concerned all."""
    named = {name for item in refused for name in item.get("details", {}).get("topics", {})}
    settings = context.record.copy_settings()
    names = named or set(settings.topics if settings is not None else ())
    return copy_settings.restore_after_end(context.record, context.target, names)


def _restore_after_end(context: PhaseContext, role: Role) -> int:
    if not has_open(context.record, role):
        return 0
    try:
        with closing(context.registry(role)) as registry:
            return TemporarySettings(context.record, registry, role).restore_after_end()
    except MigrationError as error:
        error.add_next_step(_RUN_AGAIN)
        raise


def _attempt(name: str, problems: list[dict[str, Any]], undo: Callable[[], Any]) -> Any:
    """Undo one part; a failure becomes a problem in the report, unless this process must not continue at all."""
    try:
        return undo()
    except HANDS_OFF:
        raise
    except MigrationError as error:
        problems.append({"part": name, **error.as_dict()})
        return None


def _plain(value: Any) -> Any:
    return value.details if isinstance(value, PhaseResult) else value


def _stop_tail(record: MigrationRecord) -> dict[str, Any]:
    """Stop the copiers where they are: a stop offset that they have already passed stops them immediately."""
    key = record.key(keys.TAIL_STOP)
    partitions = record.partitions()
    stop = StopAt(migration_id=record.migration_id, offsets={partition_name(item): 0 for item in partitions})
    record.journal_store.put(key, stop.canonical())
    return {"stopped": len(partitions)}


def _restore_registries(context: PhaseContext, problems: list[dict[str, Any]]) -> dict[str, Any]:
    """Give both registries the modes and levels that the migration has changed for a while. They keep all schemas.

    Each is a part of its own: one that is down does not keep the other from getting them back.
    """
    found: dict[str, Any] = {}
    found |= _attempt(_REGISTRY_PARTS["source"], problems, lambda: source_registry.put_back(context)) or {}
    found |= _attempt(_REGISTRY_PARTS["target"], problems, lambda: _restore_target(context)) or {}
    return found


def _restore_target(context: PhaseContext) -> dict[str, Any]:
    try:
        count = put_back_target(context)
    except HANDS_OFF:
        raise
    except MigrationError as error:
        error.add_next_step(_RUN_AGAIN)
        raise
    return {"target_registry": {"restored": count}} if count else {}


def _unfreeze(context: PhaseContext) -> dict[str, Any]:
    """Lift the freeze that may still be in force, including the ACLs of an attempt whose end is not in the journal."""
    attempt = context.record.freeze()
    if attempt is None or attempt.lifted:
        return {"lifted": {}}
    return {"lifted": {attempt.key: frozen.lift(context, attempt, reason="rollback", ends=True)}}


def _left_on_target(record: MigrationRecord, target: Cluster) -> list[dict[str, Any]]:
    """List the topics of the migration that exist on the target, with their end offsets; ``unread``: why not.

    Only a topic that every broker reports as missing is left out.
    """
    partitions = record.partitions()
    names = sorted({item.target_topic for item in partitions.values()})
    if not names:
        return []
    facts = target.admin.describe_topics(names)
    existing = {name for name in names if name in facts and facts[name].error is None}
    gone = find_gone(target.admin, dict.fromkeys(sorted(set(names) - existing), "")) if existing != set(names) else {}
    keys = [target_key(item) for item in partitions.values() if item.target_topic in existing]
    keys = [key for key in keys if key[1] < len(facts[key[0]].partitions)]
    ends = target.wire.list_offsets(keys, "latest") if keys else {}
    return [
        {
            "topic": name,
            "partitions": len(facts[name].partitions),
            "end_offsets": by_name({key: end for key, end in ends.items() if key[0] == name}),
        }
        if name in existing
        else {"topic": name, "unread": str(facts[name].error if name in facts else "the cluster did not answer for it")}
        for name in names
        if name not in gone
    ]
