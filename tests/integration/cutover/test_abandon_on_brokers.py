"""Real brokers: clients were told to switch, the target is dead, and the producers of the source write again."""

from __future__ import annotations

import pytest
from cutover_support import CUTOVER_STEPS, Lab
from test_freeze import acl_lab, denials, may_write, wait_for
from test_freeze_outages import opened

from airflow_provider_kafka_migration.approvals import abandon, check
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.phases import groups
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State

__all__ = ["acl_lab"]

pytestmark = pytest.mark.integration


def _back_out(context: PhaseContext, *, unread: bool) -> None:
    check.check_approval(
        context,
        ApprovalAnswer(
            migration_id=context.migration_id,
            kind="client_switch",
            decision="back_out",
            code=abandon.abandon_code(context.record),
            responders=[Responder(user_id="ann", user_name="ann")],
            answered_at=iso(context.now()),
            body_shown="",
            target_unread=unread,
        ),
    )


def test_a_target_that_dies_after_ready_keeps_no_producer_stopped(acl_lab: Lab) -> None:
    lab = acl_lab
    topic = lab.topics[0]
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS:
        if step is groups.commit_groups:
            lab.join_tail()
        step(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    assert denials(lab.source_cluster, context, topic) == ["User:alice"]
    found = abandon.read_target(context.record, context.target)
    assert (found.late, found.unchecked) == ({}, {}), "the fence's marker is no record"
    with opened(lab, "target") as migration:
        with pytest.raises(ApprovalRefused, match="not known whether clients"):
            _back_out(migration.journal_context, unread=False)
        _back_out(migration.journal_context, unread=True)
        result = migration.run("abandon")
    assert "the DENY ACLs of the freeze are removed" in result.summary
    assert denials(lab.source_cluster, context, topic) == []
    wait_for(lambda: may_write(lab.source_cluster, "alice", topic))
    context.journal.refresh()
    assert context.journal.tip_state is State.ROLLED_BACK
