"""The validation: eight checks, nothing deleted before the content is proven, and evidence of success and failure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.admin import REFUSED
from phase_world.jobs import MIGRATION
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    EvidenceInvalid,
    FreezeFailed,
    MigrationError,
    Terminal,
    TopologyRefused,
    Transient,
    ValidationFailed,
)
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.state import State

VALIDATE, EVIDENCE = "validate", "evidence"


def outcomes(world: World) -> dict[str, str]:
    data = world.stored("results/validation.json")
    assert data is not None
    return {item["name"]: item["outcome"] for item in json.loads(data)["checks"]}


def failed_checks(world: World) -> list[str]:
    """Validate; return the names of the checks that failed."""
    with pytest.raises(ValidationFailed):
        world.run(VALIDATE)
    return [name for name, outcome in outcomes(world).items() if outcome == "FAILED"]


def retention(world: World) -> str:
    return world.target.topics["orders"].configs["retention.ms"]


def attempts(world: World) -> list[str]:
    keys = [info.key for info in world.evidence_store.list(f"{MIGRATION}/evidence-attempts/")]
    return [key for key in keys if key.endswith(".json")]


def test_a_migration_without_differences_passes_and_gets_its_retention_back(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    assert retention(world) == "-1"
    world.run(VALIDATE)
    found = outcomes(world)
    assert found.pop("independent") == "NOT_RUN", "there is no Spark here"
    assert set(found.values()) == {"PASSED"}
    assert retention(world) == "86400000"
    assert world.target.topics["state"].configs == {"cleanup.policy": "compact"}
    runs = world.verifier.runs
    assert world.run(VALIDATE).already_done
    assert world.verifier.runs == runs == 1
    assert attempts(world) == []


# -- content ----------------------------------------------------------------------------------------------------------


def test_a_record_that_differs_fails_and_keeps_everything_on_the_target(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    log = world.target.log("orders")
    end = log.end
    log.batches.clear()
    log.end = 0
    log.write(b"x", b"b", b"c")
    for data in world.source.log("orders").batches[1:]:
        log.put(data, log.end)
    log.end = end
    assert "content" in failed_checks(world)
    assert retention(world) == "-1", "nothing is deleted that a person may need"
    assert len(attempts(world)) == 1
    assert world.state is State.VALIDATING


def test_a_partition_without_a_result_was_not_compared(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.verifier.silent.add(("orders", 1))
    assert failed_checks(world) == ["topic_parity", "content"]
    assert retention(world) == "-1"
    assert "orders-1: the partition was not compared" in str(json.loads(world.stored("results/validation.json") or b""))
    world.verifier.silent.clear()
    world.run(VALIDATE)
    assert retention(world) == "86400000"


@pytest.mark.parametrize(("kind", "error"), [("transient", Transient), ("terminal", ValidationFailed)])
def test_a_partition_that_cannot_be_compared(worlds: Worlds, kind: str, error: type[MigrationError]) -> None:
    world = worlds.at(VALIDATE)
    world.verifier.errors["state", 0] = {"kind": kind, "what": "the disk is gone"}
    with pytest.raises(error, match="the disk is gone"):
        world.run(VALIDATE)
    assert retention(world) == "-1"
    assert bool(world.steps("validated")) is (kind == "terminal")


def test_without_a_verifier_nothing_is_proven(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.context().verifier = None
    with pytest.raises(Terminal, match="no verifier was given"):
        world.run(VALIDATE)


def test_without_an_offset_map_nothing_can_be_compared(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    for store in (world.evidence_store, world.journal_store):
        store.answers[f"{MIGRATION}/offset-map.json"] = lambda _: None
    with pytest.raises(FreezeFailed, match=r"there is no offset-map\.json"):
        world.run(VALIDATE)


def test_content_that_has_passed_is_not_read_again_after_retention_is_back(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    # The groups fail, the content passes: retention is restored, and it deletes.
    world.target.groups["billing"].offsets["orders", 0] = GroupOffset(0)
    assert failed_checks(world) == ["groups"]
    assert retention(world) == "86400000"
    world.target.log("orders").cut(4)
    world.target.groups["billing"].offsets["orders", 0] = GroupOffset(2)
    world.restart()
    world.run(VALIDATE)
    assert world.verifier.runs == 1
    assert outcomes(world)["counts_and_offsets"] == "PASSED"


# -- the other checks -------------------------------------------------------------------------------------------------


def test_records_that_are_gone_before_they_were_compared_are_a_loss(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.target.log("orders", 1).cut(7)
    assert "counts_and_offsets" in failed_checks(world)
    assert retention(world) == "-1"


def test_records_behind_the_boundary_fail_or_warn_by_policy(worlds: Worlds) -> None:
    for policy, outcome in (("stop", "FAILED"), ("note", "WARNING")):
        validation = {"before_cutover": False, "on_late_writes": policy}
        world = worlds.at(VALIDATE, validation=validation)
        world.source.log("orders").write(b"late", producer_id=7)
        if policy == "stop":
            assert "counts_and_offsets" in failed_checks(world)
        else:
            world.run(VALIDATE)
        assert outcomes(world)["counts_and_offsets"] == outcome


def test_a_sentinel_that_is_not_on_the_target_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    log = world.target.log("state")
    fence = log.batches.pop()
    log.batches.pop()
    log.end = 5
    log.write(b"no sentinel")
    log.put(fence, log.end)
    found = failed_checks(world)
    assert "sentinels" in found
    assert "content" in found
    assert retention(world) == "-1"


def test_with_end_offsets_no_sentinel_is_missed(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE, cutover={"freeze": "acl", "sentinel": "end_offsets"})
    world.run(VALIDATE)
    assert outcomes(world)["sentinels"] == "PASSED"
    assert not any(value and b"migration_id" in value for value in world.target.log("orders").values().values())


def test_a_group_that_was_moved_back_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.target.groups["audit"].offsets["state", 0] = GroupOffset(1)
    assert failed_checks(world) == ["groups"]


def test_a_group_that_is_gone_on_the_target_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    del world.target.groups["audit"]
    assert failed_checks(world) == ["groups"]


def test_a_group_that_cannot_be_read_on_the_target_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.outside.fail(
        "target.admin.groups_offsets", lambda found: {**found, "audit": GroupOffsets("audit", error=REFUSED)}
    )
    assert failed_checks(world) == ["groups"]


def test_without_group_results_the_check_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    for name in ("groups", "groups-final"):
        world.journal_store.answers[f"{MIGRATION}/results/{name}.json"] = lambda _: None
    assert failed_checks(world) == ["groups"]


def test_a_topic_with_another_config_or_width_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.outside.fail("target.admin.alter_topic_configs", lambda answers: answers)
    world.source.topics["orders"].logs.append(type(world.source.log("orders"))())
    assert failed_checks(world) == ["topic_parity"]


def test_what_is_excluded_stays_as_it_is_on_the_target(worlds: Worlds) -> None:
    """For instance the throttles of a reassignment that runs on the target."""
    world = worlds.at(VALIDATE)
    configs = world.target.topics["orders"].configs
    configs["leader.replication.throttled.replicas"] = "0:1"
    assert configs["retention.ms"] == "-1"
    world.run(VALIDATE)
    assert configs == {"leader.replication.throttled.replicas": "0:1", "retention.ms": "86400000"}


def test_a_topic_that_the_target_does_not_describe_is_not_equal(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.outside.fail("target.admin.describe_topics", lambda _: {})
    assert failed_checks(world) == ["topic_parity"]


def test_retention_that_is_refused_does_not_pass(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.outside.fail("target.admin.alter_topic_configs", lambda answers: dict.fromkeys(answers, REFUSED))
    with pytest.raises(TopologyRefused):
        world.run(VALIDATE)
    assert not world.steps("validated")
    world.outside.heal()
    world.run(VALIDATE)
    assert world.verifier.runs == 1, "the content was proven before"


def test_a_config_that_changed_on_the_source_fails_by_policy(worlds: Worlds) -> None:
    for policy, outcome in (("repair", "FAILED"), ("note", "WARNING")):
        world = worlds.at(VALIDATE)
        world.change_spec(topology={"follow_new": False, "on_source_drift": policy})
        world.source.topics["orders"].configs["retention.ms"] = "1000"
        if policy == "repair":
            assert failed_checks(world) == ["source_drift"]
        else:
            world.run(VALIDATE)
        assert outcomes(world)["source_drift"] == outcome


def test_a_source_whose_drift_cannot_be_read_has_not_stood_still(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.change_spec(topology={"follow_new": False, "on_source_drift": "repair"})
    world.outside.fail("source.admin.describe_acls", Terminal("not permitted", next_step="grant Describe"))
    assert failed_checks(world) == ["source_drift"]


def test_an_outage_is_an_error_and_no_outcome(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.outside.fail("target.wire.list_offsets.earliest", BrokerUnreachable("away"))
    with pytest.raises(BrokerUnreachable):
        world.run(VALIDATE)
    assert not world.steps("validated")


def test_access_that_was_never_copied_or_is_given_by_people_is_named(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    world.change_spec(
        acls={"target_auth": "iam", "target_cluster_arn": "arn:aws:kafka:eu-west-1:123456789012:cluster/a/b"}
    )
    world.run(VALIDATE)
    data = json.loads(world.stored("results/validation.json") or b"")
    assert "ACLs were not compared: the target's rights are IAM policies, which a person applies" in str(data)
    assert outcomes(world)["source_drift"] == "WARNING"


def test_a_source_log_that_was_truncated_since_fails(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    log = world.source.log("state")
    log.batches.pop()
    log.end = 5
    assert "counts_and_offsets" in failed_checks(world)


@pytest.mark.parametrize(
    ("records", "policy", "outcome"), [(0, "stop", "WARNING"), (1, "stop", "FAILED"), (1, "note", "WARNING")]
)
def test_partitions_that_appeared_in_the_freeze_are_named(
    worlds: Worlds, records: int, policy: str, outcome: str
) -> None:
    section = {"cutover": {"freeze": "acl", "on_bypass": policy}}
    world = worlds.at("cutover.freeze", **section)

    def widen(answer: Any) -> Any:
        world.source.topics["orders"].logs.append(type(world.source.log("orders"))())
        return answer

    world.outside.fail("source.admin.create_acls", widen, times=1)
    for phase in ("freeze", "sentinels", "final_drain", "snapshot_groups", "commit_groups", "floor_guard"):
        world.run(f"cutover.{phase}")
    (entry,) = world.steps("born_after_freeze")
    assert entry.details["partitions"] == ["orders-2"]
    world.run("approve_switch")
    if records:
        world.source.log("orders", 2).write(b"late")
    if outcome == "FAILED":
        assert failed_checks(world) == ["topic_parity"]
    else:
        world.run(VALIDATE)
    assert outcomes(world)["topic_parity"] == outcome


# -- evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_is_published_once_and_checked_again(worlds: Worlds) -> None:
    world = worlds.at(EVIDENCE)
    world.run(EVIDENCE)
    assert world.state is State.FINALIZED
    assert len(attempts(world)) == 1
    assert world.run(EVIDENCE).already_done
    assert len(attempts(world)) == 1


def test_without_a_passed_validation_there_is_no_evidence(worlds: Worlds) -> None:
    world = worlds.at(VALIDATE)
    with pytest.raises(Terminal, match="there is no passed validation"):
        world.run(EVIDENCE)
    world.target.groups["audit"].offsets["state", 0] = GroupOffset(1)
    assert failed_checks(world) == ["groups"]
    with pytest.raises(Terminal, match="there is no passed validation"):
        world.run(EVIDENCE)
    assert not world.steps("evidence_uploaded")


def test_a_result_that_was_changed_is_not_the_journaled_one(worlds: Worlds) -> None:
    world = worlds.at(EVIDENCE)
    world.journal_store.answers[f"{MIGRATION}/results/validation.json"] = lambda data: (data or b"").replace(
        b"3 partitions", b"4 partitions"
    )
    with pytest.raises(Terminal, match="there is no passed validation"):
        world.run(EVIDENCE)


@pytest.mark.parametrize("changed", [None, b"{}"])
def test_evidence_that_is_missing_or_was_changed_is_named(worlds: Worlds, changed: bytes | None) -> None:
    world = worlds.at(EVIDENCE)
    world.run(EVIDENCE)
    (key,) = attempts(world)
    world.evidence_store.answers[key] = lambda _: changed
    with pytest.raises(EvidenceInvalid, match="missing or was changed"):
        world.run(EVIDENCE)


def test_the_latest_evidence_is_restored_from_its_attempt(worlds: Worlds) -> None:
    world = worlds.at(EVIDENCE)
    world.run(EVIDENCE)
    alias = f"{MIGRATION}/evidence.json"
    stored = world.evidence_store.get(alias)
    world.evidence_store.put(alias, b"{}")
    world.run(EVIDENCE)
    assert world.evidence_store.get(alias) == stored
