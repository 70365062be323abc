"""How copies in transactions are chosen: by the spec, by a topic that others write to, by what the probe sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.errors import ForeignData, TopologyRefused
from airflow_provider_kafka_migration.phases import plan as plan_phase
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.topics import copy_settings, probe, target_topics
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration


def _verdicts(plan: Plan) -> dict[str, set[Verdict]]:
    return {topic.name: {item.verdict for item in topic.partitions} for topic in plan.topics}


def _configs(context: PhaseContext, topic: str) -> dict[str, str]:
    return dict(context.target.admin.topic_configs([topic])[topic].overrides)


def test_a_topic_of_others_is_copied_into_only_if_the_spec_says_so(make_control: Callable[..., Control]) -> None:
    control = make_control(offsets={"on_foreign_writer": "note"})
    shared, own = f"{control.prefix}shared", f"{control.prefix}own"
    before = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    control.source_cluster.create_topics({shared: (2, {"retention.ms": "7200000"}), own: (1, {})})
    control.target_cluster.create_topics({shared: (3, before)})
    control.produce(shared, 5)
    control.produce(own, 5)
    control.produce(shared, 7, cluster=control.target_cluster)

    plain = make_control(control.prefix)
    context, plan = plain.planned()
    assert _verdicts(plan) == {shared: {Verdict.EQUAL}, own: {Verdict.EQUAL}}
    with pytest.raises(ForeignData, match="on_foreign_writer"):
        target_topics.refuse(context.record, plan, target_topics.read_presence(context.record, context.target, plan))

    context, plan = control.planned()
    assert _verdicts(plan) == {shared: {Verdict.TRANSACTIONAL}, own: {Verdict.EQUAL}}
    assert "holds data of others" in plan.topic(shared).partitions[0].reason
    assert plan.topic(shared).target_configs == before
    codes = {item.code: item for item in precheck.find_all(context, plan)}
    assert codes["W028"].subject == shared
    assert not {"B010", "B013", "B026"} & codes.keys()

    copy_topics(context)
    assert [entry.details["topics"].keys() for entry in context.journal.steps("topic_shared")] == [{shared}]
    assert shared not in target_topics.journaled_ids(context.record)
    assert _configs(context, shared)["cleanup.policy"] == "delete"
    # A plan that is made again says the same: the copy-time settings are not taken for the topic's own.
    plan_phase.run(context)
    assert context.record.plan().topic(shared) == plan.topic(shared)
    assert copy_topics(context).already_done
    copy_settings.restore_producer_visible(context.record, context.target)
    copy_settings.restore_deleting(context.record, context.target)
    assert _configs(context, shared) == before


def test_a_topic_of_others_is_never_widened(make_control: Callable[..., Control]) -> None:
    control = make_control(offsets={"on_foreign_writer": "note"})
    shared = f"{control.prefix}shared"
    control.source_cluster.create_topics({shared: (3, {})})
    control.target_cluster.create_topics({shared: (1, {})})
    control.produce(shared, 7, cluster=control.target_cluster)
    context, plan = control.planned()
    assert "B029" in {item.code for item in precheck.find_all(context, plan)}
    with pytest.raises(TopologyRefused, match="fewer partitions"):
        copy_topics(context)


def test_the_spec_may_ask_for_transactions_everywhere(make_control: Callable[..., Control]) -> None:
    control = make_control(offsets={"mode": "transactional"})
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 2)
    control.produce(name, 5)
    context = control.context()
    plan_phase.run(context)
    plan = context.record.plan()
    assert _verdicts(plan) == {name: {Verdict.TRANSACTIONAL}}
    assert {item.target_start_offset for item in plan.topic(name).partitions} == {0}
    findings = {item.code for item in precheck.find_all(context, plan)}
    assert not [code for code in findings if code.startswith("B")]
    outcomes = context.journal.find_step(steps.PROBED)
    assert outcomes is not None
    assert outcomes.details["outcomes"]["transactions"] == ""


def test_a_target_that_does_not_compare_is_copied_to_in_transactions(
    make_control: Callable[..., Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes appends out of order: the probe's second append is let in."""
    control = make_control()
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 2)
    control.produce(name, 5)
    context = control.context()
    plan_phase.run(context)
    assert _verdicts(context.record.plan()) == {name: {Verdict.EQUAL}}
    monkeypatch.setattr(probe, "_append", lambda *_: 0)
    result = precheck.run(context)
    assert {"W027", "W024"} <= {item["code"] for item in result.details["findings"]}
    plan = context.record.plan()
    assert _verdicts(plan) == {name: {Verdict.TRANSACTIONAL}}
    assert "does not compare sequences" in plan.topic(name).partitions[0].reason

    strict = make_control(control.prefix, offsets={"mode": "mapped"})
    context = strict.context()
    plan_phase.run(context)
    findings = {item.code for item in precheck.find_all(context, context.record.plan())}
    assert "B020" in findings
