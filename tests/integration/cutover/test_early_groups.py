"""Groups that follow before the cutover, on real brokers: exact whenever a consumer starts on the target."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from cutover_support import Lab
from test_groups import member, results, unread

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.phases import rollback
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from harness import clients
from harness.processes import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]

SECONDS = 240.0
ON: dict[str, Any] = {"early_sync": True, "early_sync_interval": "200ms"}


def on_source(lab: Lab, group: str, offsets: dict[tuple[str, int], int]) -> None:
    clients.commit_offsets(lab.source_cluster.client_config(), group, offsets)


def on_target(lab: Lab, group: str) -> dict[tuple[str, int], int]:
    return dict(clients.committed_offsets(lab.target_cluster.client_config(), group, lab.topics))


def until(lab: Lab, group: str, expected: dict[tuple[str, int], int]) -> None:
    wait_for(f"{group} is at {expected}", lambda: on_target(lab, group) == expected, SECONDS, 0.5)


def left_alone(context: PhaseContext) -> dict[str, str]:
    data = context.record.result(keys.EARLY_GROUPS)
    found = json.loads(data)["groups"] if data is not None else []
    return {item["group"]: item["skipped_reason"] for item in found if item["skipped_reason"]}


def values(found: dict[Any, list[tuple[Any, ...]]]) -> list[bytes]:
    return sorted(value for records in found.values() for _, value in records)


def test_groups_follow_before_the_cutover_which_is_exact_nevertheless(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    topic, shifted = sorted([unique_name("early"), unique_name("early-shifted")])
    fill({topic: 2, shifted: 1}, 200)
    lab = make_lab([topic, shifted], verdicts={shifted: Verdict.SHIFTED}, groups=ON)
    idle, rehearsal, busy = (f"{lab.migration_id}.{name}" for name in ("idle", "rehearsal", "busy"))
    for group in (idle, rehearsal, busy):
        on_source(lab, group, {(topic, 0): 50, (topic, 1): 60, (shifted, 0): 70})
    context = lab.begin()
    # Somebody has tried this group out on the target, and left again.
    clients.commit_offsets(lab.target_cluster.client_config(), rehearsal, {(topic, 0): 5})
    with member(lab.target_cluster, busy, topic, **{"enable.auto.commit": False}):
        lab.start_tail()
        until(lab, idle, {(topic, 0): 50, (topic, 1): 60, (shifted, 0): 70})
        wait_for("both are named", lambda: set(left_alone(context)) == {rehearsal, busy}, SECONDS, 0.5)
        assert on_target(lab, rehearsal) == {(topic, 0): 5}
    # Killed in the middle: the next driver goes on from what was recorded.
    lab.kill_tail()
    on_source(lab, idle, {(topic, 0): 150})
    lab.start_tail()
    until(lab, idle, {(topic, 0): 150, (topic, 1): 60, (shifted, 0): 70})
    assert context.record.groups() is None, "nothing of this is an outcome of the cutover"
    # Who started on the target now would read exactly what is not read yet.
    missing = values(unread(lab.source_cluster, idle, [topic]))
    assert len(missing) == 50 + 140
    # Read again from earlier on, on the source: the target stays until the cutover decides.
    on_source(lab, idle, {(topic, 0): 100})
    lab.enter_cutover(context)
    assert on_target(lab, idle)[topic, 0] == 150
    lab.advance(context)
    assert on_target(lab, idle) == {(topic, 0): 100, (topic, 1): 60, (shifted, 0): 70}
    assert on_target(lab, rehearsal) == {(topic, 0): 50, (topic, 1): 60, (shifted, 0): 70}
    assert results(context)[idle].skipped_reason == ""
    for group in (idle, rehearsal):
        assert values(unread(lab.target_cluster, group, [topic])) == values(unread(lab.source_cluster, group, [topic]))
    assert len(context.journal.steps(steps.GROUPS_WRITTEN)) == 1


def test_a_rollback_lists_commands_that_remove_what_was_written(
    make_lab: MakeLab, fill: Fill, unique_name: Name
) -> None:
    topic = unique_name("early-rollback")
    fill({topic: 2}, 20)
    lab = make_lab([topic], groups=ON)
    on_source(lab, lab.group, {(topic, 0): 7, (topic, 1): 8})
    context = lab.begin()
    lab.start_tail()
    until(lab, lab.group, {(topic, 0): 7, (topic, 1): 8})
    rollback.run(context, reason="not now")
    lab.join_tail(SECONDS)
    assert on_target(lab, lab.group) == {(topic, 0): 7, (topic, 1): 8}, "data on the target is never touched"
    report = json.loads(context.evidence_store.get(context.key(keys.ROLLBACK_REPORT)) or b"{}")
    commands = [item for item in report["clean_up"] if item.startswith("kafka-consumer-groups.sh ")]
    assert len(commands) == 2
    for command in commands:
        arguments = shlex.split(command)[1:]
        assert arguments[:2] == ["--bootstrap-server", "TARGET"]
        lab.target_cluster.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *arguments[2:])
    until(lab, lab.group, {})
