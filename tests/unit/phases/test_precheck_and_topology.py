"""Before the copy: what stops a migration, and target topics that are made once and never taken from others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from phase_world.admin import NOT_PERMITTED, REFUSED, TOPIC_EXISTS, UNKNOWN_TOPIC
from phase_world.outside import Killed
from phase_world.world import PRODUCER_ACL, World, Worlds

from airflow_provider_kafka_migration.documents.plan import Finding
from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClaimLost,
    ForeignData,
    IllegalTransition,
    MigrationError,
    PermissionMissing,
    PrecheckBlocked,
    StorageRefused,
    Terminal,
    TopicRecreated,
    TopologyRefused,
)
from airflow_provider_kafka_migration.kafka.admin.topics import CreatedTopic
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.planning import growth
from airflow_provider_kafka_migration.record.finding_codes import finding

PRECHECK, COPY = "precheck", "topology_copy"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_PAUSE_SECONDS", 0.0)


def check_with(monkeypatch: pytest.MonkeyPatch, **checks: Any) -> None:
    """Replace the checks: each is a list of findings, or an error that it ends with."""

    def make(what: Any) -> Any:
        def check(*_: Any) -> Iterator[Finding]:
            if isinstance(what, BaseException):
                raise what
            yield from what

        return check

    monkeypatch.setattr(precheck, "CHECKS", {name: make(what) for name, what in checks.items()})


def findings(world: World) -> list[dict[str, Any]]:
    data = world.stored("results/precheck.json")
    assert data is not None
    return list(json.loads(data)["findings"])


# -- precheck ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AuthenticationFailed("who are you"), "B004"),
        (BrokerUnreachable("away"), "B003"),
        (PermissionMissing("not permitted"), "B005"),
        (StorageRefused("denied"), "B030"),
        (Terminal("something else"), "B001"),
    ],
)
def test_a_check_that_fails_blocks_and_the_others_are_still_reported(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, error: MigrationError, code: str
) -> None:
    world = worlds.at(PRECHECK)
    check_with(monkeypatch, broken=error, fine=[finding("W012", "a warning", subject="orders")])
    with pytest.raises(PrecheckBlocked, match=f"1 blockers: {code}"):
        world.run(PRECHECK)
    assert [item["code"] for item in findings(world)] == [code, "W012"]
    assert world.steps("prechecked")[-1].details["counts"]["Blocker"] == 1


def test_a_claim_that_was_lost_is_no_finding(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at(PRECHECK)
    check_with(monkeypatch, broken=ClaimLost("another process"))
    with pytest.raises(ClaimLost):
        world.run(PRECHECK)
    assert world.stored("results/precheck.json") is None


def test_warnings_pass_and_those_that_the_spec_accepts_are_journaled_with_their_reason(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at(PRECHECK)
    world.change_spec(waive={"W012": "we know"})
    check_with(monkeypatch, some=[finding("W012", "a warning"), finding("W015", "another")])
    result = world.run(PRECHECK)
    assert result.details["waived"] == ["W012"]
    (entry,) = world.steps("findings_waived")
    assert entry.details["why"] == {"W012": "we know"}
    assert len(entry.details["findings"]) == 1


@pytest.mark.parametrize("code", ["B003", "W999"])
def test_only_known_warnings_can_be_accepted(worlds: Worlds, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    world = worlds.at(PRECHECK)
    world.change_spec(waive=[code])
    check_with(monkeypatch, broken=BrokerUnreachable("away") if code == "B003" else [])
    with pytest.raises(PrecheckBlocked, match=f"waive has {code}: only codes of warnings can be waived"):
        world.run(PRECHECK)
    assert not any(item["waived"] for item in findings(world))
    assert not world.steps("findings_waived")


def test_one_cluster_under_two_names_is_a_blocker(worlds: Worlds) -> None:
    world = worlds.at("plan")
    world.target.cluster_id = "source-id"
    world.run("plan")
    with pytest.raises(PrecheckBlocked, match="B002"):
        world.run(PRECHECK)
    # Somebody marks the red task as a success.
    with pytest.raises(PrecheckBlocked, match=r"ended with 1 blockers.*B002"):
        world.run(COPY)
    assert not world.target.topics


def test_a_spec_that_has_changed_is_planned_again_before_it_is_checked(worlds: Worlds) -> None:
    world = worlds.at(PRECHECK)
    first = world.stored("plan.json")
    world.change_spec(topics={"exclude": ["state"]})
    world.run(PRECHECK)
    second = world.stored("plan.json")
    assert first != second
    assert [topic["name"] for topic in json.loads(second or b"")["topics"]] == ["orders"]
    world.run(COPY)
    assert sorted(world.target.topics) == ["orders"]


def test_a_target_that_does_not_compare_sequences_changes_the_plan(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at(PRECHECK, offsets={"mode": "auto"})

    def probe(context: Any, _plan: Any) -> Iterator[Finding]:
        if not context.journal.find_step("probed"):
            context.journal.step("probed", details={"outcomes": {"sequence": "code 0"}, "uses_transactions": False})
        return iter(())

    monkeypatch.setattr(precheck, "CHECKS", {"probe": probe})
    world.run(PRECHECK)
    plan = json.loads(world.stored("plan.json") or b"")
    verdicts = {item["verdict"] for topic in plan["topics"] for item in topic["partitions"]}
    assert verdicts == {"transactional"}
    growth.check_is_of(world.context().record, world.context().record.plan())


# -- topology ---------------------------------------------------------------------------------------------------------


def test_topics_are_created_as_the_source_has_them_and_begin_where_it_begins(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.run(COPY)
    assert {name: len(topic.logs) for name, topic in world.target.topics.items()} == {"orders": 2, "state": 1}
    assert [(log.start, log.end) for log in world.target.topics["orders"].logs] == [(0, 0), (5, 5)]
    assert PRODUCER_ACL in (world.target.acls or ())
    created = list(world.target.created)
    assert world.run(COPY).already_done
    assert world.target.created == created


def test_a_plan_that_was_not_checked_is_not_carried_out(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.source.create("new")
    world.run("plan")
    with pytest.raises(IllegalTransition, match="the plan is newer than its precheck"):
        world.run(COPY)
    assert not world.target.topics


def test_a_topic_with_data_of_others_is_not_touched(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.target.create("orders", 2, retention_ms="5").logs[0].write(b"foreign")
    with pytest.raises(ForeignData, match="1 target topics hold data that is not from this migration: orders"):
        world.run(COPY)
    assert sorted(world.target.topics) == ["orders"]
    assert world.target.topics["orders"].configs == {"retention.ms": "5"}


def test_an_empty_topic_is_adopted_and_widened_but_never_narrowed(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.target.create("orders", 1)
    result = world.run(COPY)
    assert result.details["topology"]["adopted"] == 1
    assert len(world.target.topics["orders"].logs) == 2
    world = worlds.at(COPY)
    world.target.create("orders", 3)
    with pytest.raises(TopologyRefused, match="1 target topics have more partitions than the source: orders"):
        world.run(COPY)
    assert len(world.target.topics["orders"].logs) == 3


@pytest.mark.parametrize(
    ("describe", "error"),
    [
        (lambda found: {**found, "orders": type(found["orders"])("orders", error=NOT_PERMITTED)}, PermissionMissing),
        (BrokerUnreachable("away"), BrokerUnreachable),
    ],
)
def test_a_target_topic_that_cannot_be_described_is_not_a_missing_one(
    worlds: Worlds, describe: Any, error: type[MigrationError]
) -> None:
    world = worlds.at(COPY)
    world.target.create("orders", 2).logs[0].write(b"foreign")
    world.outside.fail("target.admin.describe_topics", describe)
    with pytest.raises(error):
        world.run(COPY)
    assert world.target.created == ["orders"]


def test_topics_that_cannot_be_created_are_named_and_the_others_are(worlds: Worlds) -> None:
    world = worlds.at(COPY)

    def refuse_state(answers: dict[str, CreatedTopic]) -> dict[str, CreatedTopic]:
        if "state" in answers and answers["state"].error is None:
            del world.target.topics["state"]
            return {**answers, "state": CreatedTopic("state", error=REFUSED)}
        return answers

    world.outside.fail("target.admin.create_topics", refuse_state)
    with pytest.raises(TopologyRefused, match="1 target topics could not be created or widened; state"):
        world.run(COPY)
    assert sorted(world.target.topics) == ["orders"]
    world.outside.heal()
    world.run(COPY)
    assert world.target.created.count("orders") == 1


@pytest.mark.parametrize("written", [False, True])
def test_a_name_that_was_taken_in_between_is_ours_only_if_it_is_empty(worlds: Worlds, written: bool) -> None:
    world = worlds.at(COPY)

    def taken(answers: dict[str, CreatedTopic]) -> dict[str, CreatedTopic]:
        if written:
            world.target.log("orders").write(b"foreign")
        return {**answers, "orders": CreatedTopic("orders", error=TOPIC_EXISTS)}

    world.outside.fail("target.admin.create_topics", taken, times=1)
    if written:
        with pytest.raises(ForeignData, match="created by someone else at the same moment"):
            world.run(COPY)
        assert not any("orders" in entry.details["topics"] for entry in world.steps("topic_created"))
    else:
        world.run(COPY)
        assert "orders" in world.steps("topic_created")[0].details["topics"]


def test_a_topic_that_a_killed_run_created_is_foreign_once_others_have_written_to_it(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.outside.fail("target.admin.create_topics", lose_the_process, times=1)
    with pytest.raises(Killed):
        world.run(COPY)
    world.restart()
    assert not world.steps("topic_created")
    world.target.log("orders").write(b"foreign")
    with pytest.raises(ForeignData, match="1 target topics hold data that is not from this migration: orders"):
        world.run(COPY)


def lose_the_process(_answer: Any) -> Any:
    raise Killed("behind the creation")


def test_partitions_that_the_source_has_gained_are_added_by_policy(worlds: Worlds) -> None:
    for follow in (True, False):
        world = worlds.at(COPY)
        world.change_spec(topology={"follow_new": follow, "on_source_drift": "note"})
        world.run(PRECHECK)
        world.source.topics["orders"].logs.append(type(world.source.log("orders"))())
        if follow:
            world.run(COPY)
            assert len(world.target.topics["orders"].logs) == 3
            assert len(world.steps("partitions_followed")) == 1
        else:
            with pytest.raises(TopologyRefused, match="1 source topics have more partitions than the plan"):
                world.run(COPY)
            assert not world.target.topics


def recreate(world: World) -> None:
    world.source.create("orders", 2)


def narrow(world: World) -> None:
    world.source.topics["orders"].logs.pop()


def delete(world: World) -> None:
    del world.source.topics["orders"]


@pytest.mark.parametrize(
    ("happens", "error", "text"),
    [
        (recreate, TopicRecreated, "deleted and created again"),
        (narrow, TopicRecreated, "has 1 partitions, but 2 were planned"),
        (delete, Terminal, "a planned topic is no longer on the source"),
    ],
)
def test_a_source_topic_that_is_not_the_planned_one(
    worlds: Worlds, happens: Any, error: type[MigrationError], text: str
) -> None:
    world = worlds.at(COPY)
    happens(world)
    with pytest.raises(error, match=text):
        world.run(COPY)
    assert not world.target.topics


def test_a_broker_that_has_just_started_and_knows_no_topic_is_asked_again(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.outside.fail(
        "source.admin.describe_topics",
        lambda found: {name: type(item)(name, error=UNKNOWN_TOPIC) for name, item in found.items()},
        times=3,
    )
    world.run(COPY)
    assert sorted(world.target.topics) == ["orders", "state"]


def test_rights_that_the_copy_needs_are_named_before_it_begins(worlds: Worlds) -> None:
    world = worlds.at(COPY)

    def only_reading(found: dict[str, Any]) -> dict[str, Any]:
        return {name: type(item)(name, item.topic_id, False, item.partitions, frozenset({"READ"}), item.error)
                for name, item in found.items()}  # fmt: skip

    world.outside.fail("target.admin.describe_topics", only_reading)
    with pytest.raises(PermissionMissing, match="lacks rights on target topics: ALTER_CONFIGS on 2 topics"):
        world.run(COPY)
    assert not world.steps("producer_ids")


def test_an_acl_that_is_refused_is_named_and_made_by_the_next_run(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.outside.fail("target.admin.create_acls", lambda answers: dict.fromkeys(answers, REFUSED))
    with pytest.raises(TopologyRefused, match="1 access settings could not be set on the target"):
        world.run(COPY)
    assert not world.steps("acls_copied")
    world.outside.heal()
    world.run(COPY)
    assert len(world.steps("acls_copied")) == 1


def test_acls_that_may_not_be_read_are_not_no_acls(worlds: Worlds) -> None:
    world = worlds.at(COPY)
    world.outside.fail("source.admin.describe_acls", PermissionMissing("Describe is missing"))
    with pytest.raises(PermissionMissing):
        world.run(COPY)
    assert not world.steps("acls_copied")


@pytest.mark.parametrize("policy", ["refuse", "merge"])
def test_acls_that_differ_are_refused_by_policy_before_one_is_made(worlds: Worlds, policy: str) -> None:
    world = worlds.at(COPY, acls={"policy": policy})
    if policy == "merge":
        world.run(COPY)
        assert PRODUCER_ACL in (world.target.acls or ())
        return
    with pytest.raises(TopologyRefused, match="ACLs differ: 1 only on the source"):
        world.run(COPY)
    assert PRODUCER_ACL not in (world.target.acls or ())
