"""The consumer groups of a mirror in metrics: counted from the last round of the group sync."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from job_snapshots import NOW, entry, snapshot, values

from airflow_provider_kafka_migration.documents.cutover import (
    AHEAD_OF_COPY,
    COPY_HAS_AN_ERROR,
    NOTHING_COPIED,
    GroupResult,
    GroupsResult,
    TranslatedOffset,
)
from airflow_provider_kafka_migration.documents.mirror import GroupSyncReport
from airflow_provider_kafka_migration.jobs.copy_jobs import metrics_settings
from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore


def group(name: str, reason: str = "", **more: Any) -> GroupResult:
    offset = TranslatedOffset(
        topic="orders",
        partition=0,
        target_topic="A.orders",
        source_offset=9,
        target_offset=7,
        translation="equal",
        verdict="equal",
        reason=reason,
    )
    return GroupResult(group=name, type="classic", source_state="Empty", target_state="Empty", offsets=[offset], **more)


def sync_of(store: LocalStore, *groups: GroupResult) -> None:
    at = datetime.fromtimestamp(NOW - 30, UTC).isoformat()
    store.put("orders/results/groups.json", GroupsResult(migration_id="orders", at=at, groups=[*groups]).canonical())


def groups_in(found: Snapshot) -> dict[str, float]:
    return {name[0]: value for name, value in values(found).items() if name[0].startswith("groups")}


def test_early_rounds_of_a_migration_count_until_its_cutover(local_store: LocalStore) -> None:
    at = datetime.fromtimestamp(NOW - 30, UTC).isoformat()
    early = GroupsResult(migration_id="orders", at=at, groups=[group("one"), group("two")])
    local_store.put("orders/results/groups-early.json", early.canonical())
    assert groups_in(snapshot(local_store, entry("orders", 0, 0)))["groups"] == 2
    sync_of(local_store, group("one"))
    assert groups_in(snapshot(local_store, entry("orders", 0, 0)))["groups"] == 1


def test_groups_are_counted_by_what_became_of_them(local_store: LocalStore) -> None:
    sync_of(
        local_store,
        group("there"),
        group("set-back", "the target is ahead: it has 12; a group is never set back"),
        group("ahead", f"{AHEAD_OF_COPY}: it is held at the end of the copy, 7"),
        group("broken", f"{COPY_HAS_AN_ERROR}, so nobody knows how far it is: others write to it"),
        group("nothing", NOTHING_COPIED),
        group("failed", failures=[{"code": "PERMISSION_MISSING", "what": "refused"}]),
        group("active", f"{AHEAD_OF_COPY}: held", skipped_reason="it has members on the target (state Stable)"),
    )
    assert groups_in(snapshot(local_store, entry("orders", 0, 0))) == {
        "groups": 7,
        "groups_behind": 4,
        "groups_failed": 1,
        "groups_left_alone": 1,
        "groups_sync_age_seconds": 30,
    }


def test_before_the_first_round_and_in_other_jobs_nothing_is_known(local_store: LocalStore) -> None:
    assert groups_in(snapshot(local_store, entry("orders", 0, 0))) == {}
    sync_of(local_store, group("there"))
    assert groups_in(snapshot(local_store, entry("orders", 0, 0), job="seed")) == {}


def test_a_sync_that_has_never_succeeded_has_an_age(local_store: LocalStore) -> None:
    """Without a series there would be no alert."""
    since = datetime.fromtimestamp(NOW - 300, UTC).isoformat()
    report = GroupSyncReport(migration_id="orders", at=since, failing_since=since, problem="no right")
    local_store.put("orders/results/group-sync.json", report.canonical())
    assert groups_in(snapshot(local_store, entry("orders", 0, 0))) == {"groups_sync_age_seconds": 300}
    sync_of(local_store, group("there"))
    assert groups_in(snapshot(local_store, entry("orders", 0, 0)))["groups_sync_age_seconds"] == 30


@pytest.mark.parametrize("kind", ["mirror", "migration"])
def test_a_mirror_has_its_flow_as_a_label(minimal_spec: dict[str, Any], kind: str) -> None:
    content = {**minimal_spec, "kind": kind}
    if kind == "mirror":
        content |= {"mirror": {"source_alias": "A", "target_alias": "B"}, "seed": {"via": "direct"}}
    assert metrics_settings(parse_spec(content)).flow == ("A->B" if kind == "mirror" else "")
