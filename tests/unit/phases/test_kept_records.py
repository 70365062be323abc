"""Topics that live by their brokers' defaults: the target must not delete what the source keeps, or says so before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from phase_world.world import ORDER, World, new_world, without_probes

from airflow_provider_kafka_migration.checks import topics
from airflow_provider_kafka_migration.errors import BrokerRefused
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.topics.kept_records import Keeping

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def only_what_two_clusters_need(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)


def world_with(**sections: Any) -> World:
    """A source whose brokers keep records for 30 days, and a target whose brokers keep them for 7."""
    world = new_world(**sections)
    world.source.topic_defaults["retention.ms"] = str(30 * DAY_MS)
    world.source.topics["orders"].configs.clear()
    return world


def run_to(world: World, phase: str) -> World:
    for name in ORDER[: ORDER.index(phase)]:
        world.clock.sleep(1)
        world.run(name)
    return world


def parity(world: World) -> dict[str, Any]:
    data = world.stored("results/validation.json")
    assert data is not None
    found: dict[str, Any] = next(item for item in json.loads(data)["checks"] if item["name"] == "topic_parity")
    return found


def findings(world: World) -> Iterator[tuple[str, str, str]]:
    for item in topics.check_kept_records(world.context(), world.context().record.plan()):
        yield item.code, item.subject, item.seen


def test_retention_by_default_is_carried_over() -> None:
    world = run_to(world_with(), "validate")
    assert list(findings(world)) == []
    world.run("validate")
    assert world.target.topics["orders"].configs["retention.ms"] == str(30 * DAY_MS)
    check = parity(world)
    assert check["outcome"] == "PASSED"
    row = next(item for item in check["partitions"] if item["topic"] == "orders")
    assert (row["retention_ms"], row["retention_bytes"]) == (30 * DAY_MS, -1)


def test_so_it_is_for_a_topic_that_follows_later() -> None:
    world = run_to(world_with(topology={"follow_new": True}), "drain_ready")
    late = world.source.create("late")
    late.configs.clear()
    late.logs[0].write(b"new")
    assert follow.follow(world.context()) == [("late", 0)]
    world.run("tail")
    for name in ORDER[ORDER.index("drain_ready") : ORDER.index("validate") + 1]:
        world.run(name)
    assert world.target.topics["late"].configs["retention.ms"] == str(30 * DAY_MS)


@pytest.mark.parametrize(("age_days", "gone"), [(20, 12), (3, 0)])
def test_what_the_spec_leaves_to_the_target_is_said_with_its_records(age_days: int, gone: int) -> None:
    world = world_with(topology={"config_exclude": [r"retention\..*"]})
    run_to(world, "validate")
    newest_ms = max(
        RawBatch(memoryview(data)).max_timestamp for log in world.source.topics["orders"].logs for data in log.batches
    )
    world.clock.sleep(newest_ms / 1000 + age_days * DAY_MS / 1000 - world.clock.now().timestamp())
    ((code, subject, seen),) = findings(world)
    assert (code, subject) == ("W049", "orders")
    assert f"{7 * DAY_MS} on the target, {30 * DAY_MS} on the source" in seen
    assert f"up to {gone} go" in seen
    world.run("validate")
    check = parity(world)
    assert check["outcome"] == "WARNING"
    assert f"up to {gone} records are due now" in check["findings"][0]


def test_a_source_that_refuses_lookups_by_time_leaves_the_number_not_known() -> None:
    """As Kafka 4.4 does where a stored record is larger than today's ``max.decompressed.message.bytes``."""
    world = run_to(world_with(topology={"config_exclude": [r"retention\..*"]}), "validate")
    world.outside.fail("source.wire.offsets_for", BrokerRefused("offsets cannot be listed: INVALID_RECORD (87)"))
    ((_, _, seen),) = findings(world)
    assert "it is not known how many go" in seen
    world.run("validate")
    check = parity(world)
    assert check["outcome"] == "WARNING"
    assert "the target deletes records that the source keeps" in check["findings"][0]
    assert "what is due now is not known" in check["findings"][0]
    assert "topics that is not known" in check["summary"]
    assert "records_due_now" not in next(item for item in check["partitions"] if item["topic"] == "orders")


@pytest.mark.parametrize(
    ("target", "source", "count"),
    [
        (Keeping(True, False, 7, -1), Keeping(True, False, 7, -1), 0),
        (Keeping(True, False, 8, -1), Keeping(True, False, 7, -1), 0),
        (Keeping(True, False, 7, -1), Keeping(True, False, 8, -1), 1),
        (Keeping(True, False, 7, -1), Keeping(True, False, -1, -1), 1),
        (Keeping(True, False, -1, -1), Keeping(True, False, 7, -1), 0),
        (Keeping(True, False, -1, 5), Keeping(True, False, -1, -1), 1),
        (Keeping(True, False, 7, -1), Keeping(False, True, 7, -1), 1),
        (Keeping(False, True, 7, 5), Keeping(False, True, 8, 6), 0),
        (Keeping(False, True, 7, -1), Keeping(True, False, 7, -1), 1),
        (Keeping(True, True, 7, 5), Keeping(True, False, 8, 6), 3),
    ],
)
def test_only_what_the_source_keeps_counts(target: Keeping, source: Keeping, count: int) -> None:
    assert len(target.loses_more_than(source)) == count


@pytest.mark.parametrize("missing", ["cleanup.policy", "retention.ms", "retention.bytes"])
def test_what_a_cluster_does_not_report_is_not_known(missing: str) -> None:
    values = {"cleanup.policy": "delete", "retention.ms": "7", "retention.bytes": "-1"}
    assert Keeping.of(values.get) == Keeping(True, False, 7, -1)
    values[missing] = ""
    assert Keeping.of(values.get) is None


@pytest.mark.parametrize("setting", ["retention.ms", "retention.bytes"])
def test_what_is_no_number_is_not_known(setting: str) -> None:
    values = {"cleanup.policy": "delete", "retention.ms": "7", "retention.bytes": "-1", setting: "not-a-number"}
    assert Keeping.of(values.get) is None
