"""Topics on the target of real brokers: created, adopted, refused, widened, filled, put back; again and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.errors import ForeignData, Terminal, TopicRecreated, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS, NewTopic
from airflow_provider_kafka_migration.planning import growth
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.topics import copy_settings, target_topics
from airflow_provider_kafka_migration.topics.configs import COPY_TIME, LONG_MAX
from harness.processes import wait_for
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration

SOURCE_CONFIGS = {
    "retention.ms": "86400000",
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "1000",
    "segment.bytes": "2097152",
    "max.message.bytes": "2000000",
}


def test_a_topic_is_copied_with_copy_time_settings_and_put_back_in_two_steps(control: Control) -> None:
    name = f"{control.prefix}orders"
    control.source_cluster.create_topic(name, 3, SOURCE_CONFIGS)
    context, plan = control.planned()
    assert plan.topic(name).target_configs == SOURCE_CONFIGS

    result = copy_topics(context)
    assert result.details["created"] == 1
    facts = context.target.admin.describe_topics([name])[name]
    assert [item.partition for item in facts.partitions] == [0, 1, 2]
    copying = control.overrides(name)
    assert copying.items() >= COPY_TIME.items()
    assert copying["message.timestamp.after.max.ms"] == LONG_MAX
    assert "min.compaction.lag.ms" not in copying

    again = copy_topics(control.context())
    assert again.already_done
    assert again.details["summary"] == result.details["summary"]

    control.on_target(copy_settings.restore_producer_visible)
    visible = control.overrides(name)
    assert visible["cleanup.policy"] == "compact"
    assert visible["max.message.bytes"] == "2000000"
    assert visible["retention.ms"] == "-1"
    assert visible["min.compaction.lag.ms"] == LONG_MAX
    assert "message.timestamp.after.max.ms" not in visible
    assert control.on_target(copy_settings.restore_producer_visible).already_done

    control.on_target(copy_settings.restore_deleting)
    assert control.overrides(name) == SOURCE_CONFIGS == copy_settings.expected_configs(context.record)[name]
    # A cleared floor guard must not hold the cleaner back again.
    assert control.on_target(copy_settings.restore_producer_visible).already_done
    assert control.overrides(name) == SOURCE_CONFIGS


def test_log_starts_are_filled_and_cut(control: Control) -> None:
    name = f"{control.prefix}cut"
    control.source_cluster.create_topic(name, 2)
    control.produce(name, 150, 0)
    control.produce(name, 5, 1)
    context = control.context()
    context.source.wire.delete_records({(name, 0): 120, (name, 1): 5})
    context, plan = control.planned()
    assert [item.target_start_offset for item in plan.topic(name).partitions] == [120, 5]
    result = copy_topics(context)
    assert result.details["log_starts_filled"] == {"partitions": 2, "offsets": 125}
    keys = [(name, 0), (name, 1)]
    assert context.target.wire.list_offsets(keys, "earliest") == {(name, 0): 120, (name, 1): 5}
    assert context.target.wire.list_offsets(keys, "log_end") == {(name, 0): 120, (name, 1): 5}
    assert copy_topics(control.context()).already_done


def test_foreign_data_is_refused_and_nothing_is_touched(control: Control) -> None:
    names = [f"{control.prefix}{stem}" for stem in ("a", "b", "c")]
    for name in names:
        control.source_cluster.create_topic(name)
    control.target_cluster.create_topic(names[1])
    control.produce(names[1], 3, cluster=control.target_cluster)
    context, _ = control.planned()
    with pytest.raises(ForeignData) as caught:
        copy_topics(context)
    assert caught.value.details["topics"] == {names[1]: {"0": 3}}
    described = context.target.admin.describe_topics(names)
    assert [name for name in names if described[name].error is None] == [names[1]]
    assert control.overrides(names[1]) == {}


def test_an_empty_topic_is_adopted_widened_and_restored_by_a_rollback(control: Control) -> None:
    name = f"{control.prefix}there"
    control.source_cluster.create_topic(name, 4, {"retention.ms": "7200000"})
    control.target_cluster.create_topic(name, 1, {"segment.ms": "3600000", "retention.ms": "1000000"})
    context, plan = control.planned()
    drift = {item["config"]: (item["target"], item["planned"]) for item in plan.topic(name).drift}
    assert drift == {"retention.ms": ("1000000", "7200000"), "segment.ms": ("3600000", None)}
    result = copy_topics(context)
    assert result.details["adopted"] == 1
    assert result.details["widened"] == 1
    assert len(context.target.admin.describe_topics([name])[name].partitions) == 4
    settings = control.context().record.copy_settings()
    assert settings is not None
    assert settings.topics[name].before == {"segment.ms": "3600000", "retention.ms": "1000000"}
    # What is written down at the second run must not be our own settings.
    copy_topics(control.context())
    assert control.context().record.copy_settings() == settings
    control.on_target(copy_settings.restore_for_rollback)
    assert control.overrides(name) == {"segment.ms": "3600000", "retention.ms": "1000000"}


def test_a_wider_topic_is_refused(control: Control) -> None:
    name = f"{control.prefix}wide"
    control.source_cluster.create_topic(name, 1)
    control.target_cluster.create_topic(name, 3)
    context, _ = control.planned()
    with pytest.raises(TopologyRefused, match="more partitions"):
        copy_topics(context)
    assert control.overrides(name) == {}


def test_drift_is_refused_by_policy(make_control: Callable[..., Control]) -> None:
    control = make_control(topology={"on_config_drift": "stop"})
    name = f"{control.prefix}drift"
    control.source_cluster.create_topic(name, 1, {"retention.ms": "7200000"})
    control.target_cluster.create_topic(name, 1, {"retention.ms": "1000000"})
    context, _ = control.planned()
    with pytest.raises(TopologyRefused) as caught:
        copy_topics(context)
    assert list(caught.value.details["topics"]) == [name]


def test_a_crash_between_creation_and_journal_is_healed(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{control.prefix}{stem}" for stem in ("a", "b")]
    for name in names:
        control.source_cluster.create_topic(name)
    context, _ = control.planned()
    create = context.target.admin.create_topics

    def create_and_die(*args: object, **options: object) -> object:
        create(*args, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(context.target.admin, "create_topics", create_and_die)
    with pytest.raises(KeyboardInterrupt):
        copy_topics(context)
    other = control.context()
    result = copy_topics(other)
    assert result.details["created"] == 0
    assert result.details["adopted"] == 2
    assert copy_topics(control.context()).already_done
    # They were ours by intention, so a rollback puts the plan's configs on them, not what was found.
    settings = other.record.copy_settings()
    assert settings is not None
    assert {item.before is None for item in settings.topics.values()} == {True}


def test_a_lost_answer_to_a_creation_is_no_foreign_topic(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request was done, its answer was lost, the second one meets the first one's topics."""
    names = [f"{control.prefix}{stem}" for stem in ("a", "b", "other")]
    control.source_cluster.create_topics({name: (2, {}) for name in names})
    context, _ = control.planned()
    create = context.target.admin.create_topics

    def create_twice(topics: list[NewTopic], **options: bool) -> object:
        own = [topic for topic in topics if topic.name != names[2]]
        assert not any(item.error for item in create(own, **options).values())
        control.target_cluster.create_topic(names[2], 5)
        wait_for("all three", lambda: not any(i.error for i in admin.describe_topics(names).values()), 120)
        return create(topics, **options)

    admin = control.context().target.admin
    monkeypatch.setattr(context.target.admin, "create_topics", create_twice)
    with pytest.raises(ForeignData) as caught:
        copy_topics(context)
    assert list(caught.value.details["topics"]) == [names[2]], "only what really is somebody else's"
    journaled = target_topics.journaled_ids(control.context().record)
    facts = admin.describe_topics(names)
    assert journaled == {name: facts[name].topic_id for name in names[:2]}


# -- partitions that appear between plan and topology ------------------------------------------------------------------


def test_partitions_that_appeared_since_the_plan_are_taken_up(control: Control) -> None:
    names = [f"{control.prefix}{stem}" for stem in ("grows", "stays")]
    control.source_cluster.create_topics({name: (2, {}) for name in names})
    context, plan = control.planned()
    admin = context.source.admin
    assert admin.create_partitions({names[0]: 4}) == {names[0]: None}
    control.produce(names[0], 30, 3)
    admin.wire.delete_records({(names[0], 3): 7})
    result = copy_topics(context)
    assert result.details["log_starts_filled"] == {"partitions": 1, "offsets": 7}
    amended = context.record.plan()
    assert [item.partition for item in amended.topic(names[0]).partitions] == [0, 1, 2, 3]
    assert amended.topic(names[0]).partitions[3].target_start_offset == 7
    assert amended.topic(names[1]) == plan.topic(names[1])
    before = {key for lane in plan.lanes for key in lane.partitions}
    after = {key for lane in amended.lanes for key in lane.partitions}
    assert after - before == {(names[0], 2), (names[0], 3)}
    assert all(set(lane.partitions) <= set(amended.lanes[lane.lane].partitions) for lane in plan.lanes)
    (followed,) = context.journal.steps(steps.PARTITIONS_FOLLOWED)
    assert followed.details["topics"] == {names[0]: [2, 4]}
    assert followed.details["former_digest"] == plan.digest()
    assert followed.details["digest"] == amended.digest()
    assert context.journal_store.get(context.key(f"plans/{plan.digest()[:16]}.json")) == plan.canonical()
    assert len(context.target.admin.describe_topics(names)[names[0]].partitions) == 4
    assert copy_topics(control.context()).already_done
    # It may grow again between two attempts; what is there is widened.
    assert admin.create_partitions({names[1]: 3}) == {names[1]: None}
    assert copy_topics(control.context()).details["widened"] == 1
    assert len(context.target.admin.describe_topics(names)[names[1]].partitions) == 3


def test_growth_is_refused_where_the_spec_does_not_want_to_follow(make_control: Callable[..., Control]) -> None:
    control = make_control(topology={"follow_new": False})
    name = f"{control.prefix}grows"
    control.source_cluster.create_topic(name, 1)
    context, plan = control.planned()
    assert context.source.admin.create_partitions({name: 2}) == {name: None}
    with pytest.raises(TopologyRefused, match="more partitions than the plan") as caught:
        copy_topics(context)
    assert caught.value.details["topics"] == {name: [1, 2]}
    assert context.record.plan().digest() == plan.digest()
    assert context.target.admin.describe_topics([name])[name].error is not None


def test_a_topic_that_was_created_again_since_the_plan_is_another_one(control: Control) -> None:
    names = [f"{control.prefix}{stem}" for stem in ("again", "gone")]
    control.source_cluster.create_topics({name: (2, {}) for name in names})
    context, _ = control.planned()
    control.source_cluster.delete_topics([names[0]])

    def created_again() -> bool:
        (answer,) = context.source.admin.create_topics([NewTopic(names[0], 2, 1)]).values()
        assert answer.error is None or answer.error.code == TOPIC_ALREADY_EXISTS
        return answer.error is None

    wait_for("the topic is gone, and there again", created_again, 120)
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        copy_topics(context)
    assert context.target.admin.describe_topics(names)[names[0]].error is not None
    other = control.context()
    control.source_cluster.delete_topics([names[1]])
    plan = other.record.plan()
    kept = plan.model_copy(update={"topics": [plan.topic(names[1])]})
    with pytest.raises(Terminal, match="no longer on the source"):
        growth.follow(other, kept)


# -- scenarios of MirrorMaker 2's own tests (MirrorConnectorsIntegrationBaseTest) --------------------------------------


def test_excluded_configs_keep_the_target_s_and_the_others_follow_the_source(
    make_control: Callable[..., Control],
) -> None:
    """testSyncTopicConfigs: an excluded config stays as the target has it; what the source resets is reset."""
    control = make_control(topology={"config_exclude": [r"delete\.retention\.ms"]})
    name = f"{control.prefix}synced"
    control.source_cluster.create_topic(name, 1, {"delete.retention.ms": "2000", "retention.bytes": "1000000"})
    target = {"delete.retention.ms": "7000", "retention.bytes": "5000000", "flush.messages": "9"}
    control.target_cluster.create_topic(name, 1, target)
    context, _ = control.planned()
    copy_topics(context)
    control.on_target(copy_settings.restore_producer_visible)
    control.on_target(copy_settings.restore_deleting)
    assert control.overrides(name) == {"delete.retention.ms": "7000", "retention.bytes": "1000000"}


@pytest.mark.parametrize(("side", "expected"), [("source", LONG_MAX), ("target", None)])
def test_defaults_come_from_the_side_that_is_asked_for(
    make_control: Callable[..., Control], side: str, expected: str | None
) -> None:
    """testReplicateSourceDefault and testReplicateTargetDefault: the release's own limit differs since 4.0."""
    control = make_control(topology={"use_defaults_from": side})
    name = f"{control.prefix}defaults"
    control.source_cluster.create_topic(name, 1)
    context, plan = control.planned()
    assert {item["config"] for item in plan.defaults_drift} >= {"message.timestamp.after.max.ms"}
    copy_topics(context)
    control.on_target(copy_settings.restore_producer_visible)
    control.on_target(copy_settings.restore_deleting)
    assert control.overrides(name).get("message.timestamp.after.max.ms") == expected
