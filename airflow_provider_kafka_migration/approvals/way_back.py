"""Keep or back: what a person is shown about a way back, and the code that keeping the new cluster needs.

*Back* is the approval of the cutover of the way back, with its code. *Keep* ends the way back and cannot be undone
either, so it has a code of its own, over other facts: neither code can ever stand for the other decision.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.documents.plan import TopicPlan
from airflow_provider_kafka_migration.errors import ApprovalRefused, IllegalTransition
from airflow_provider_kafka_migration.planning import leave_out
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back import guard
from airflow_provider_kafka_migration.way_back.derived_spec import section_of


def keep_code(record: MigrationRecord) -> str:
    """Return the code that keeping the new cluster needs."""
    return code_of(_keep_binding(record))


def _keep_binding(record: MigrationRecord) -> dict[str, Any]:
    """Return what keeping would put back, as data that changes only when that does."""
    settings = record.journal.find_step(steps.COPY_SETTINGS)
    return {
        "kind": "keep",
        "migration_id": record.migration_id,
        "plan": record.plan().digest() if record.has_plan() else "",
        "settings": "" if settings is None else str(settings.details["digest"]),
        "deny_acls": len(guard.bindings(record.journal)),
    }


def is_keep_decided(record: MigrationRecord) -> bool:
    """Whether a person has kept the new cluster with its code: in the approval, or in a *keep* that has begun."""
    if rolling_back.has_begun(record.journal):
        return True
    is_by_two = bool(record.spec.approvals.second_users)
    return rolling_back.is_kept(record.journal, ("cutover", "cutover/second"), is_by_two=is_by_two)


def check_keep(record: MigrationRecord, code: str) -> None:
    """Check that the code alone keeps the new cluster, without a person's answer in the journal.

    :raises ApprovalRefused: it is not the code of now, or the spec names the people who decide that.
    """
    check_code(record, code)
    section = record.spec.approvals
    if section.assigned_users or section.second_users:
        raise ApprovalRefused(
            "the spec names the people who may keep the new cluster, and "
            + ("not two of them have" if section.second_users else "none of them has"),
            where=record.where("way_back"),
            next_step="one after the other, they run `kafka-migration way-back keep FILE --approve CODE`",
        )


def check_code(record: MigrationRecord, code: str) -> None:
    """Check the code of a person who wants to keep the new cluster.

    :raises ApprovalRefused: it is not the code of now.
    """
    given = code.strip().strip("`'\"").lower()
    wanted = keep_code(record)
    if given == wanted:
        return
    raise ApprovalRefused(
        f"the code {given[:20]!r} does not keep the new cluster"
        if given
        else "a way back ends by keeping the new cluster, which needs its code",
        where=record.where("way_back"),
        next_step="`kafka-migration way-back keep FILE` shows what will be put back, and the code for it"
        + ("; two people have to keep it" if record.spec.approvals.second_users else ""),
        details={"given": given[:20]},
    )


def leave_out_code(record: MigrationRecord, topics: list[TopicPlan]) -> str:
    """Return the code that leaving topics out of the way back needs."""
    return code_of(leave_out.binding(record, topics))


def check_leave_out(record: MigrationRecord, topics: list[TopicPlan], code: str) -> None:
    """Check the code of a person who leaves topics out of the way back.

    :raises ApprovalRefused: it is not the code of now.
    """
    given = code.strip().strip("`'\"").lower()
    if given == leave_out_code(record, topics):
        return
    raise ApprovalRefused(
        f"the code {given[:20]!r} does not leave these topics out of the way back",
        where=record.where("way_back"),
        next_step="`kafka-migration way-back leave-out FILE TOPIC` shows what does not go back then, and the code for "
        "it",
        details={"given": given[:20], "topics": [topic.name for topic in topics]},
    )


def check_can_keep(record: MigrationRecord) -> bool:
    """Check that the way back may still end with *keep*; False: it has ended so already.

    :raises IllegalTransition: there is no way back, or clients were told to return.
    """
    record.journal.refresh()
    state = record.journal.working_state
    if record.journal.tip_state is State.ROLLED_BACK:
        return False
    if state is None:
        raise IllegalTransition(
            "there is no way back to end: nothing was set on the old cluster",
            where=record.where("way_back"),
            next_step="nothing is to be done: the old cluster is as the first migration left it",
        )
    if state in (State.AWAITING_CLIENT_SWITCH, State.VALIDATING, State.FINALIZED):
        raise IllegalTransition(
            f"the new cluster cannot be kept any more: the way back is in state {state}",
            where=record.where("way_back"),
            next_step="clients may use the old cluster already: complete the return (`kafka-migration way-back return "
            "FILE`); to move forward again, start a way back of the way back",
        )
    return True


def ask_again_at(record: MigrationRecord) -> datetime | None:
    """When a person is to be asked again; None before the first migration's clients have switched."""
    switched = guard.first_migration(record).journal.find_step(steps.CLIENT_SWITCH_ACKNOWLEDGED)
    return None if switched is None else parse_iso(switched.at) + section_of(record.spec).keep_for


def _still_running(record: MigrationRecord) -> str:
    """Return the state of the migration that is reversed, while it has not ended; empty: it has."""
    journal = guard.first_migration(record).journal
    tip = journal.tip_state
    return "" if tip is None or tip.is_terminal else str(tip)


def facts(record: MigrationRecord) -> dict[str, Any]:
    """Return what the approvals of a way back show in addition: which migration it reverses, and both decisions."""
    assert record.spec.adopt is not None
    due = ask_again_at(record)
    # A way back that has failed before its plan was made can be ended, too.
    planned = record.plan().topics if record.has_plan() else []
    opened = record.journal.find_step(steps.READY_FOR_CLIENT_RETURN)
    adopted = sum(item.adopted is not None for topic in planned for item in topic.partitions)
    return {
        "reverses": record.spec.adopt.migration_id,
        "new_cluster": record.spec.source.name or record.spec.source.conn_id,
        "old_cluster": record.spec.target.name or record.spec.target.conn_id,
        "keep_code": keep_code(record),
        "ask_again_at": "" if due is None else iso(due),
        "is_overdue": due is not None and record.now() >= due,
        "adopted_partitions": adopted,
        "new_partitions": sum(len(topic.partitions) for topic in planned) - adopted,
        "deny_acls": len(guard.bindings(record.journal)),
        "first_state": _still_running(record),
        "left_out": leave_out.left_out(record),
        "todo": "" if opened is None else str(opened.details.get("todo", "")),
    }
