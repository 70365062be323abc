"""The spec of a way back: both ends and all names swapped, and nothing that the old cluster did not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context, make_plan

from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.errors import SpecInvalid, Terminal
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.way_back import derived_spec


def _derive(folder: Path, plan: Plan | None = None, **sections: Any) -> MigrationSpec:
    context = make_context(folder, state=State.FINALIZED, plan=plan, **sections)
    return derived_spec.derive(context.record)


def _renamed(names: dict[str, str], *, verdict: Verdict = Verdict.EQUAL) -> Plan:
    plan = make_plan(dict.fromkeys(names, 1), verdict=verdict)
    topics = [topic.model_copy(update={"target_name": names[topic.name]}) for topic in plan.topics]
    return plan.model_copy(update={"topics": topics})


def test_both_ends_are_swapped_and_the_journal_is_its_own(tmp_path: Path) -> None:
    found = _derive(tmp_path, topology={"follow_new": True}, offsets={"mode": "equal"})
    assert found.migration_id == "m1.back"
    assert (found.source.conn_id, found.target.conn_id) == ("env:T", "env:S")
    assert found.adopt is not None
    assert (found.adopt.from_, found.adopt.migration_id) == ("way_back", "m1")
    assert found.is_way_back
    assert found.topology.on_config_drift == "note"
    assert (found.acls.policy, found.acls.quotas) == ("skip", "skip")
    assert (found.offsets.mode, found.offsets.on_mismatch) == ("auto", "stop")
    assert found.seed.via == "direct"
    assert found.evidence.signing_key is not None


def test_groups_follow_by_the_section_of_the_way_back_only(tmp_path: Path) -> None:
    found = _derive(tmp_path, groups={"early_sync": True, "sync_interval": "9s"})
    assert (found.groups.early_sync, found.groups.sync_interval.total_seconds()) == (False, 9)


def test_the_same_record_gives_the_same_spec(tmp_path: Path) -> None:
    first, again = (_derive(tmp_path / name) for name in ("a", "b"))
    dumps = [item.model_dump(mode="json", exclude={"storage", "evidence"}) for item in (first, again)]
    assert dumps[0] == dumps[1]
    assert parse_spec(first.model_dump(mode="json", by_alias=True)) == first, "a file of it means the same"


def test_names_are_inverted(tmp_path: Path) -> None:
    plan = _renamed({"orders": "new.orders", "state": "kept"})
    rename = {"prefix": "new.", "topics": {"state": "kept"}}
    topics = _derive(tmp_path, plan, topics={"include": ["orders", "state", "late.*"], "rename": rename}).topics
    assert {name: topics.target_name(name) for name in ("new.orders", "kept")} == {
        "new.orders": "orders",
        "kept": "state",
    }
    assert topics.selects("new.late-1"), "a topic that is new on the new cluster, by the names of the selection there"
    assert not topics.selects("late-1")
    assert not topics.selects("orders"), "the new cluster's own topic of that name is not what was migrated"


def test_a_renamed_topic_that_stays_away_leaves_no_rename_behind(tmp_path: Path) -> None:
    plan = _renamed({"orders": "new.orders", "state": "new.state"})
    section = {"include": ["orders", "state"], "rename": {"prefix": "new."}}
    topics = _derive(tmp_path, plan, topics=section, way_back={"exclude": ["new\\.state"]}).topics
    assert topics.rename.topics == {"new.orders": "orders"}
    assert not topics.selects("new.state")


def test_an_exclude_does_not_hide_a_topic_that_was_migrated(tmp_path: Path) -> None:
    plan = _renamed({"orders": "tmp.orders"})
    section = {"exclude": ["tmp.*"], "rename": {"topics": {"orders": "tmp.orders"}}}
    topics = _derive(tmp_path, plan, topics=section).topics
    assert topics.selects("tmp.orders")
    assert not topics.selects("tmp.other")


def test_topics_stay_away_by_the_spec_and_if_they_were_copied_in_transactions(tmp_path: Path) -> None:
    plan = make_plan({"orders": 1, "shared": 1})
    shared = [
        topic.model_copy(
            update={
                "partitions": [item.model_copy(update={"verdict": Verdict.TRANSACTIONAL}) for item in topic.partitions]
            }
        )
        if topic.name == "shared"
        else topic
        for topic in plan.topics
    ]
    topics = _derive(tmp_path, plan.model_copy(update={"topics": shared}), way_back={"exclude": ["private-.*"]}).topics
    assert topics.selects("orders")
    assert not topics.selects("shared")
    assert not topics.selects("private-1")


def test_the_freeze_of_the_new_side_has_a_key_of_its_own(tmp_path: Path) -> None:
    assert _derive(tmp_path / "a", cutover={"freeze": "acl", "on_bypass": "note"}).cutover.freeze == "acl"
    found = _derive(tmp_path / "b", cutover={"freeze": "acl"}, way_back={"freeze": "manual", "freeze_old": "acl"})
    assert found.cutover.freeze == "manual"
    assert found.cutover.on_bypass == "stop"
    assert derived_spec.section_of(found).freeze_old == "acl"


def test_registries_are_swapped_and_keep_their_ids(tmp_path: Path) -> None:
    registries = {"source": "env:SR", "target": "env:TR", "ids": "keep"}
    found = _derive(tmp_path, schemas=registries).schemas
    assert (found.source, found.target, found.ids) == ("env:TR", "env:SR", "keep")


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"seed": {"via": "split"}}, "seed.via"),
        ({"schemas": {"source": "env:A", "target": "env:B", "ids": "translate"}}, "translate"),
        ({"schemas": {"source": "env:A", "target": "env:B", "rename": {"subjects": {"a": "b"}}}}, "schemas.rename"),
    ],
)
def test_what_cannot_go_back_is_refused_with_the_reason(tmp_path: Path, sections: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecInvalid, match=what) as refused:
        _derive(tmp_path, **sections)
    assert refused.value.next_step


@pytest.mark.parametrize("state", FORWARD[: FORWARD.index(State.VALIDATING)])
def test_there_is_none_before_clients_have_switched(tmp_path: Path, state: State) -> None:
    with pytest.raises(Terminal, match="no way back yet") as refused:
        derived_spec.derive(make_context(tmp_path, state=state).record)
    wanted = "acknowledge" if state is State.AWAITING_CLIENT_SWITCH else "rollback"
    assert wanted in str(refused.value.next_step)


def test_a_name_that_is_too_long_is_refused_before_anything_is_written() -> None:
    assert derived_spec.way_back_id("a" * 95) == "a" * 95 + ".back"
    with pytest.raises(SpecInvalid, match="longer than 100"):
        derived_spec.way_back_id("a" * 96)
