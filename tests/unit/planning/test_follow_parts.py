"""How the source differs from the plan, and where new partitions go. No broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from phase_support import make_context, make_plan

from airflow_provider_kafka_migration.cli.runner import references
from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, CopyPartition, ProducerIds, halves
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, PartitionPlan, Plan, TopicPlan, Verdict
from airflow_provider_kafka_migration.errors import MigrationError, Terminal
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import PartitionFacts, TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.split import AbsentCluster
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import topics_gone

SPEC = parse_spec(
    {
        "migration_id": "m1",
        "source": {"conn_id": "env:FOLLOW_SOURCE"},
        "target": {"conn_id": "env:FOLLOW_TARGET"},
        "storage": {"journal": "s3://bucket/journal"},
        "topics": {"include": ["a.*"], "exclude": ["a-scratch"]},
    }
)
FACTS = ClusterFacts(cluster_id="c", kafka_version="4.1", mode="kraft", brokers=[1])
UNKNOWN = ItemError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "UNKNOWN_TOPIC_OR_PARTITION", "")


def facts(name: str, count: int, topic_id: str = "", error: ItemError | None = None) -> TopicFacts:
    partitions = tuple(PartitionFacts(number, 1, (1,), (1,)) for number in range(count))
    return TopicFacts(name, topic_id or f"id-{name}", partitions=partitions, error=error)


def plan(*topics: tuple[str, int]) -> Plan:
    def part(number: int) -> PartitionPlan:
        return PartitionPlan(
            partition=number,
            log_start_offset=0,
            end_offset=0,
            high_watermark=0,
            verdict=Verdict.EQUAL,
            source_start_offset=0,
            target_start_offset=0,
        )

    return Plan(
        migration_id="m1",
        source=FACTS,
        target=FACTS,
        topics=[
            TopicPlan(
                name=name,
                target_name=name,
                topic_id=f"id-{name}",
                partitions=[part(number) for number in range(count)],
                replication_factor=1,
                source_replication_factor=1,
                source_configs={},
                target_configs={},
            )
            for name, count in topics
        ],
        lanes=[],
        excluded_topics={"a-dropped": "it was deleted on the source"},
    )


def context(*seen: TopicFacts) -> PhaseContext:
    by_name = {item.name: item for item in seen}

    def describe(names: list[str] | None = None) -> dict[str, TopicFacts]:
        # A list of all topics leaves out those that are not there; asked for by name they come with an error.
        return (
            dict(by_name)
            if names is None
            else {name: by_name.get(name, facts(name, 0, error=UNKNOWN)) for name in names}
        )

    source = SimpleNamespace(admin=SimpleNamespace(describe_topics=describe))
    return cast(PhaseContext, SimpleNamespace(spec=SPEC, source=source))


def test_what_is_new_grown_and_gone() -> None:
    seen = [
        facts("a-same", 2),
        facts("a-grown", 4),
        facts("a-again", 1, "another-id"),
        facts("a-new", 2),
        facts("a-scratch", 1),
        facts("b-other", 1),
        facts("a-dropped", 1),
        facts("a-broken", 0, error=ItemError(5, "LEADER_NOT_AVAILABLE", "")),
    ]
    known = plan(("a-same", 2), ("a-grown", 2), ("a-again", 1), ("a-deleted", 1))
    news = follow.compare(context(*seen).spec, context(*seen).source, known)
    assert list(news.new) == ["a-new"]
    assert news.partitions == [("a-grown", 2), ("a-grown", 3), ("a-new", 0), ("a-new", 1)]
    assert set(news.gone) == {"a-again", "a-deleted"}
    assert "created again" in news.gone["a-again"]
    assert follow.compare(
        context(facts("a-same", 2)).spec, context(facts("a-same", 2)).source, plan(("a-same", 2))
    ) == follow.News({}, {}, {})


def test_a_topic_that_may_not_be_described_any_more_is_not_gone() -> None:
    hidden = facts("a-same", 0, error=ItemError(29, "TOPIC_AUTHORIZATION_FAILED", ""))
    news = follow.compare(context(hidden).spec, context(hidden).source, plan(("a-same", 1)))
    assert news.gone == {}
    assert news.unknown["a-same"].unauthorized


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ItemError(5, "LEADER_NOT_AVAILABLE", retriable=True), "BROKER_BUSY", "LEADER"),
        (ItemError(29, "TOPIC_AUTHORIZATION_FAILED"), "PERMISSION_MISSING", "TOPIC"),
        (None, "BROKER_BUSY", "NO_ANSWER"),
    ],
    ids=["busy", "hidden", "no answer"],
)
def test_a_topic_that_nobody_describes_holds_up_the_freeze(
    tmp_path: Path, error: ItemError | None, kind: str, says: str
) -> None:
    answer = {} if error is None else {"orders": facts("orders", 0, error=error)}
    answer = {} if error is None else {"orders": facts("orders", 0, error=error)}
    one = make_context(tmp_path, plan=make_plan({"orders": 1}), state=State.TAIL)
    one.source.admin.describe_topics = lambda *_: dict(answer)  # type: ignore[method-assign]
    with pytest.raises(MigrationError, match=f"orders cannot be described.*{says}") as caught:
        follow.check_all_followed(one.record, one.source)
    assert caught.value.code == kind


def test_a_pass_journals_a_deletion_only_when_all_brokers_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_gone, "time", SimpleNamespace(sleep=lambda _: None))
    known = make_plan({"orders": 1, "users": 1})
    topics = [topic.model_copy(update={"topic_id": f"id-of-{topic.name}"}) for topic in known.topics]
    one = make_context(tmp_path, plan=known.model_copy(update={"topics": topics}), state=State.TAIL)
    admin: Any = one.source.admin
    admin.topics = {"orders": "id-of-orders", "users": UNKNOWN}
    admin.other_brokers[2] = {"users": "id-of-users"}
    assert follow.follow(one) == []
    assert one.journal.steps(steps.SOURCE_TOPIC_GONE) == []
    admin.other_brokers[2] = {"users": UNKNOWN}
    follow.follow(one)
    assert [entry.details["topic"] for entry in one.journal.steps(steps.SOURCE_TOPIC_GONE)] == ["users"]


def partition(topic: str, number: int, size_bytes: int = 100) -> CopyPartition:
    return CopyPartition(
        topic=topic,
        target_topic=topic,
        partition=number,
        source_start_offset=0,
        target_start_offset=0,
        verdict=Verdict.EQUAL,
        size_bytes=size_bytes,
    )


@pytest.mark.parametrize("split", [False, True])
def test_new_partitions_join_the_lightest_lane(split: bool) -> None:
    lanes = [
        CopyLane(lane=0, transactional_id="t0", partitions=[partition("a", 0, 10_000_000)]),
        CopyLane(lane=3, transactional_id="t3", partitions=[partition("a", 1, 1000), partition("b", 0, 1000)]),
    ]
    job = CopyJob(
        migration_id="m1",
        name="tail",
        generation=1,
        journal_location="s3://bucket/journal",
        archive_location="s3://b/a",
        via="direct",
        producers=ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0),
        lanes=halves(lanes) if split else lanes,
    )
    missing = {("a", 2): partition("a", 2)}
    planned: dict[Any, CopyPartition] = {item.key: item for item in job.partitions if item.topic == "a"} | missing
    after = follow.lanes_with(job, planned, missing)
    assert {lane.lane: [item.key for item in lane.partitions] for lane in after if lane.half != "backup"} == {
        0: [("a", 0)],
        3: [("a", 1), ("a", 2)],
    }
    assert sum(lane.half == "backup" for lane in after) == (2 if split else 0)


def test_one_sided_jobs_are_given_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLLOW_SOURCE", '{"bootstrap.servers": "source:9092"}')
    monkeypatch.delenv("FOLLOW_TARGET", raising=False)
    assert set(references(SPEC, Resolver(), "backup")) == {"source", "storage"}
    monkeypatch.setenv("FOLLOW_TARGET", '{"bootstrap.servers": "target:9092"}')
    monkeypatch.delenv("FOLLOW_SOURCE")
    assert set(references(SPEC, Resolver(), "restore")) == {"target", "storage"}
    assert set(references(SPEC, Resolver(), "verify-archive")) == {"target", "storage"}


def test_a_cluster_that_must_not_be_known_says_so() -> None:
    absent = AbsentCluster("source")
    with pytest.raises(Terminal, match="must not use the source cluster, but asked for its wire"):
        _ = absent.wire
