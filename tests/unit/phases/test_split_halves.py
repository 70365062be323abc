"""Backup and restore: the archive decides what is complete, and groups are committed only to what was restored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from phase_world.admin import BUSY, REFUSED
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.split import Split
from phase_world.world import KEYS, Worlds

from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    CopyFailed,
    GroupsIncomplete,
    MigrationError,
    Terminal,
    Transient,
    ValidationFailed,
)
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffsets

ENDS = {("orders", 0): 5, ("orders", 1): 10, ("state", 0): 5}


@pytest.fixture
def split(worlds: Worlds) -> Split:
    """A source with records, and an empty target."""
    return Split(worlds.at("plan"))


def end(split: Split) -> dict[str, Any] | None:
    data = split.world.archive_store.get(f"{MIGRATION}/backup/end.json")
    return None if data is None else dict(json.loads(data))


def ranges(split: Split) -> dict[tuple[str, int], int]:
    found = end(split)
    assert found is not None
    return {(item["topic"], item["partition"]): item["until_offset"] for item in found["ranges"]}


def on_target(split: Split) -> dict[str, dict[tuple[str, int], int]]:
    groups = split.world.target.groups.items()
    return {name: {key: item.offset for key, item in group.offsets.items()} for name, group in groups}


def assert_restored(split: Split) -> None:
    for key in KEYS:
        assert split.world.target.log(*key).values() == split.world.source.log(*key).values()


# -- backup -----------------------------------------------------------------------------------------------------------


def test_a_backup_ends_at_the_stable_ends_with_groups_and_a_manifest(split: Split) -> None:
    split.world.source.log("orders").open_from = 3
    split.backup()
    assert ranges(split) == {**ENDS, ("orders", 0): 3}
    for name in ("backup/source.json", "backup/groups.json", "manifest.json"):
        assert split.world.archive_store.get(f"{MIGRATION}/{name}") is not None
    assert not split.world.target.topics


def test_a_second_backup_goes_on_to_the_present_ends(split: Split) -> None:
    split.backup()
    split.world.source.log("orders").write(b"later")
    split.backup()
    assert ranges(split) == {**ENDS, ("orders", 0): 6}


def test_what_is_not_in_the_archive_is_not_backed_up_whatever_the_job_says(split: Split) -> None:
    split.leaves["orders", 1] = 8
    with pytest.raises(
        CopyFailed, match="1 partitions are not archived up to their end; the first one is archived up "
    ):
        split.backup()
    assert end(split) is None
    split.world.source.log("orders").write(b"later")
    split.leaves.clear()
    split.backup()
    assert ranges(split) == ENDS, "an unfinished backup keeps the ends that it began with"


@pytest.mark.parametrize("call", ["source.wire.list_offsets.*", "source.admin.describe_topics"])
def test_a_source_that_is_away_is_not_an_empty_one(split: Split, call: str) -> None:
    split.world.outside.fail(call, BrokerUnreachable("away"))
    with pytest.raises(BrokerUnreachable):
        split.backup()
    assert end(split) is None


def test_a_group_that_cannot_be_read_is_in_the_backup_with_its_error(split: Split) -> None:
    split.world.outside.fail(
        "source.admin.groups_offsets", lambda found: {**found, "billing": GroupOffsets("billing", error=BUSY)}
    )
    split.backup()
    split.world.outside.heal()
    with pytest.raises(GroupsIncomplete, match="the first is billing"):
        split.restore()
    assert on_target(split) == {"audit": {("state", 0): 5}}
    assert_restored(split)


def test_a_continuous_backup_ends_where_it_is_finished(split: Split) -> None:
    with pytest.raises(Transient, match="no stop was set for it"):
        split.backup(follow=True)
    split.world.source.log("state").write(b"later")
    split.backup(finish=True)
    assert ranges(split) == {**ENDS, ("state", 0): 6}
    split.world.source.log("state").write(b"even later")
    split.backup(finish=True)
    assert ranges(split) == {**ENDS, ("state", 0): 7}, "the stop of a complete backup is not that of the next one"


def test_a_finish_that_died_keeps_its_stop(split: Split) -> None:
    split.world.outside.fail("copiers.backup", Killed("no process"), times=1)
    with pytest.raises(Killed):
        split.backup(finish=True)
    split.world.source.log("state").write(b"later")
    split.backup(finish=True)
    assert ranges(split) == ENDS


def test_the_source_is_described_once(split: Split) -> None:
    split.backup()
    first = split.world.archive_store.get(f"{MIGRATION}/backup/source.json")
    split.world.source.topics["orders"].configs["retention.ms"] = "1"
    split.backup()
    assert split.world.archive_store.get(f"{MIGRATION}/backup/source.json") == first


def test_of_two_backups_that_begin_together_the_first_description_counts_for_both(split: Split) -> None:
    split.backup()
    key = f"{MIGRATION}/backup/source.json"
    first = split.world.archive_store.get(key)
    looks: list[bytes | None] = []

    def not_yet(stored: bytes | None) -> bytes | None:
        looks.append(stored)
        return None if len(looks) == 1 else stored

    split.world.archive_store.answers[key] = not_yet
    split.world.source.topics["orders"].configs["retention.ms"] = "1"
    split.backup()
    assert len(looks) > 1
    assert split.world.archive_store.objects[key] == first


def test_a_backup_that_is_killed_anywhere_is_complete_after_the_next(worlds: Worlds) -> None:
    counted = Split(worlds.at("plan"))
    counted.backup()
    count = len(counted.world.outside.changes)
    assert count > 10
    for number in range(0, count, 2):
        split = Split(worlds.at("plan"))
        split.world.outside.dies_after = number
        with pytest.raises(Killed):
            split.backup()
        split.world.outside.revive()
        split.backup()
        assert ranges(split) == ENDS, number
        assert end(split) == end(counted), number


# -- restore ----------------------------------------------------------------------------------------------------------


def test_a_complete_backup_is_restored_with_configs_and_groups(split: Split) -> None:
    split.backup()
    result = split.restore()
    assert result.details["complete"]
    assert_restored(split)
    assert split.world.target.log("orders", 1).start == 5
    assert split.world.target.topics["orders"].configs == {"retention.ms": "86400000"}
    assert on_target(split) == {
        "billing": {("orders", 0): 2, ("orders", 1): 10},
        "audit": {("state", 0): 5},
    }


def test_without_a_backup_there_is_nothing_to_restore(split: Split) -> None:
    with pytest.raises(Transient, match="there is no backup to restore"):
        split.restore()
    assert not split.world.target.topics


def test_a_backup_that_has_not_ended_gives_neither_configs_nor_groups(split: Split) -> None:
    split.leaves["orders", 1] = 8
    with pytest.raises(CopyFailed):
        split.backup()
    split.leaves.clear()
    result = split.restore()
    assert not result.details["complete"]
    assert split.world.target.log("orders", 1).end == 8
    assert split.world.target.topics["orders"].configs["retention.ms"] == "-1"
    assert not split.world.target.commits
    split.backup()
    assert split.restore().details["complete"]
    assert_restored(split)
    assert len(split.world.target.commits) == 2


def test_groups_are_left_out_on_demand(split: Split) -> None:
    split.backup()
    split.restore(commit_groups=False)
    assert not split.world.target.commits


def test_a_restore_asks_the_source_for_nothing(worlds: Worlds, caplog: pytest.LogCaptureFixture) -> None:
    """Neither how long it keeps tombstones, nor its records to compare them: it has no way to it."""
    split = Split(worlds.at("plan", validation={"before_cutover": True}))
    with pytest.raises(Transient):
        split.backup(follow=True)
    split.backup(finish=True)
    split.restore(follow=True)
    assert_restored(split)
    assert "must not use the source" not in caplog.text


def test_a_restore_that_follows_needs_the_stop_of_the_backup(split: Split) -> None:
    with pytest.raises(Transient):
        split.backup(follow=True)
    with pytest.raises(Transient, match="the restore has ended, but no stop was set for it"):
        split.restore(follow=True)
    split.backup(finish=True)
    assert split.restore(follow=True).details["complete"]
    assert_restored(split)


def test_a_target_that_differs_from_the_archive_gets_no_groups(split: Split) -> None:
    split.backup()
    split.restore(commit_groups=False)
    log = split.world.target.log("orders")
    log.batches[0] = log.batches[0][:-2] + b"z" + log.batches[0][-1:]
    with pytest.raises(ValidationFailed, match="1 partitions differ from the archive; the first is orders-0: value"):
        split.restore()
    assert not split.world.target.commits


def test_groups_that_are_not_those_of_the_backup_are_not_committed(split: Split) -> None:
    split.backup()
    key = f"{MIGRATION}/backup/groups.json"
    split.world.archive_store.answers[key] = lambda data: (data or b"").replace(b"billing", b"billinh")
    with pytest.raises(Terminal, match="missing, or are not those of the backup"):
        split.restore()
    assert not split.world.target.commits


def test_a_group_that_is_refused_is_named_and_repeated(split: Split) -> None:
    split.backup()
    split.world.outside.fail(
        "target.admin.alter_group_offsets", lambda answers: dict.fromkeys(answers, REFUSED), times=1
    )
    with pytest.raises(GroupsIncomplete, match="the offsets of 1 groups could not be committed; the first is audit"):
        split.restore()
    split.restore()
    assert on_target(split)["audit"] == {("state", 0): 5}


def test_a_target_with_data_of_others_is_not_restored_over(split: Split) -> None:
    split.backup()
    split.world.target.create("orders", 2).logs[0].write(b"foreign")
    with pytest.raises(MigrationError, match="hold data that is not from this migration"):
        split.restore()
    assert "restore" not in split.runs


def test_a_restore_that_is_killed_anywhere_is_complete_after_the_next(worlds: Worlds) -> None:
    prepared = worlds.at("plan")
    Split(prepared).backup()
    counted = Split(prepared.fork())
    counted.restore()
    count = len(counted.world.outside.changes)
    assert count > 20
    for number in range(0, count, 2):
        split = Split(prepared.fork())
        split.world.outside.dies_after = number
        with pytest.raises(Killed):
            split.restore()
        split.world.outside.revive()
        split.restore()
        assert_restored(split)
        assert on_target(split) == on_target(counted), number
        assert sorted(split.world.target.commits) == sorted(counted.world.target.commits), number
        assert split.world.target.topics["orders"].configs == counted.world.target.topics["orders"].configs, number
