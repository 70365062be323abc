"""A lane and a source that deletes, loses, withholds or refuses records: it never takes silence for a hole."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.small import KEY, SMALL_FETCHES, error_code, plain, trouble_code, with_hole
from simulated.topics import fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy.partition import topic_gone
from airflow_provider_kafka_migration.documents.copy import SourceGapRecord, TombstoneSettings
from airflow_provider_kafka_migration.kafka import error_codes

READS = (apis.FETCH, apis.LIST_OFFSETS, apis.METADATA, apis.OFFSET_FOR_LEADER_EPOCH)


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("api", READS)
@pytest.mark.parametrize("skip", [0, 2])
def test_connections_that_break(worlds: Worlds, api: int, kind: Any, skip: int) -> None:
    copy = worlds.copy(with_hole, job_fields=SMALL_FETCHES)
    assert copy.slice()["t"].done
    copy.source.produce("t", [b"later"] * 20)
    copy.source.fault(kind, api, skip=skip)
    result = copy.slice()["t"]
    assert (result.done, result.error) == (True, None)
    copy.assert_equal("t")


@pytest.mark.parametrize(
    "code",
    [
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.FENCED_LEADER_EPOCH,
        error_codes.UNKNOWN_LEADER_EPOCH,
        error_codes.OFFSET_NOT_AVAILABLE,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_errors_that_pass(worlds: Worlds, code: int) -> None:
    copy = worlds.copy(with_hole, job_fields=SMALL_FETCHES)
    fault = copy.source.fault("code", apis.FETCH, code=code, times=2, skip=1)
    result = copy.slice()["t"]
    assert (result.done, result.error, fault.hits) == (True, None, 2)
    copy.assert_equal("t")


def test_a_topic_that_may_not_be_read_stops_alone(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: fill_source(source, 3))
    copy.source.fault("code", apis.FETCH, code=error_codes.TOPIC_AUTHORIZATION_FAILED, times=10**6, topic="holey")
    results = copy.slice()
    assert error_code(results.pop("holey")) == "PERMISSION_MISSING"
    assert all(result.done for result in results.values())


def test_leaders_that_move(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole, source={"brokers": 2}, job_fields=SMALL_FETCHES)
    copy.source.fault("act", apis.FETCH, skip=1, action=lambda: copy.source.move_leader(KEY, 1))
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_a_partition_without_a_leader_holds_up_no_other(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: fill_source(source, 7))
    copy.source.topics["holey"].leaders[0] = -1
    results = copy.slice(seconds=4)
    assert trouble_code(results.pop("holey")) == "BROKER_BUSY"
    assert all(result.done for result in results.values())
    copy.source.topics["holey"].leaders[0] = 0
    assert copy.slice()["holey"].done


# -- answers without records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["empty", "cut", "leave_out"])
@pytest.mark.parametrize("times", [1, 2])
def test_answers_that_show_nothing_are_no_hole(worlds: Worlds, kind: Any, times: int) -> None:
    copy = worlds.copy(plain, job_fields=SMALL_FETCHES)
    fault = copy.source.fault(kind, apis.FETCH, skip=2, times=times)
    result = copy.slice()["t"]
    assert (result.done, result.error, result.holes, fault.hits) == (True, None, 0, times)
    copy.assert_equal("t")


def test_records_in_remote_storage_are_waited_for(worlds: Worlds) -> None:
    """The leader answers nothing, and its local log begins above the offset: this proves nothing."""
    copy = worlds.copy(plain)
    copy.source.log(KEY).local_start = 20
    fault = copy.source.fault("empty", apis.FETCH, times=10**6)
    result = copy.slice(seconds=4)["t"]
    assert (result.records, result.holes, result.done) == (0, 0, False)
    fault.times = 0
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_a_hole_at_the_end_is_proven_by_the_local_log(worlds: Worlds) -> None:
    """The last batches below the high watermark were compacted away: nothing is there, and the leader can tell."""

    def fill(source: SimulatedCluster) -> None:
        plain(source, 10)
        source.log(KEY).compact(range(5, 10))

    copy = worlds.copy(fill)
    result = copy.slice()["t"]
    assert (result.done, result.records, result.holes, result.target_offset) == (True, 5, 5, 10)
    copy.assert_equal("t")


def test_a_hole_at_the_end_is_not_proven_by_an_old_broker(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot tell whether records lie in remote storage, so one more record is needed."""
    from simulated import handlers

    monkeypatch.setitem(handlers.API_VERSIONS, apis.LIST_OFFSETS, (1, 7))

    def fill(source: SimulatedCluster) -> None:
        plain(source, 10)
        source.log(KEY).compact(range(5, 10))

    copy = worlds.copy(fill)
    result = copy.slice(seconds=4)["t"]
    assert (result.done, result.records, result.holes) == (False, 5, 0)
    copy.source.produce("t", [b"one more"])
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_an_open_transaction_holds_records_back(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    copy.source.transaction("t", [b"open"] * 3, commit=None)
    copy.source.produce("t", [b"behind"] * 2)
    result = copy.slice(copy.job(until={"t": 35}), seconds=1.2)["t"]
    assert (result.done, result.records, result.held_back) == (False, 30, 5)
    copy.source.transaction("t", [], commit=True)
    assert copy.slice(copy.job(until={"t": 36}))["t"].done
    copy.assert_equal("t")


# -- gaps -------------------------------------------------------------------------------------------------------------


def test_what_was_deleted_before_it_was_copied_stops_the_copy(worlds: Worlds) -> None:
    copy = worlds.copy(plain, job_fields=SMALL_FETCHES)
    copy.source.fault("act", apis.FETCH, skip=2, action=lambda: copy.source.log(KEY).delete_until(25))
    result = copy.slice()["t"]
    assert error_code(result) == "SOURCE_GAP"
    assert result.gaps == []
    assert max(copy.target.log(KEY).content()) < 25


def test_a_gap_that_may_be_recorded_becomes_a_hole(worlds: Worlds) -> None:
    copy = worlds.copy(plain, job_fields={**SMALL_FETCHES, "on_source_gap": "note"})
    copy.source.fault("act", apis.FETCH, skip=2, action=lambda: copy.source.log(KEY).delete_until(25))
    result = copy.slice()["t"]
    [(first, until)] = result.gaps
    assert (result.done, until, result.target_offset, result.holes) == (True, 25, 30, 25 - first)
    assert sorted(copy.target.log(KEY).content()) == [*range(first), *range(25, 30)]
    [record] = [
        SourceGapRecord.parse(copy.store.get(info.key) or b"")
        for info in copy.store.list("")
        if "source-gaps" in info.key
    ]
    assert (record.from_offset, record.until_offset, record.topic) == (first, 25, "t")


def test_a_source_that_begins_later_than_planned_is_no_gap(worlds: Worlds) -> None:
    """Nothing was copied yet, so nothing is lost: retention was faster than the start."""
    copy = worlds.copy(plain)
    copy.source.log(KEY).delete_until(10)
    result = copy.slice()["t"]
    assert (result.done, result.gaps, result.error, result.records) == (True, [], None, 20)
    copy.assert_equal("t")


# -- truncation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grown", [0, 40])
def test_a_source_that_lost_what_was_copied(worlds: Worlds, grown: int) -> None:
    """The epoch tells, also where the log has grown beyond the position since."""
    copy = worlds.copy(plain)
    assert copy.slice()["t"].done
    copy.source.log(KEY).truncate(20)
    copy.source.produce("t", [b"others"] * grown)
    copy.source.produce("t", [b"more"])
    before = list(copy.target.log(KEY).batches)
    result = copy.slice(copy.job(until={"t": 61}))["t"]
    assert error_code(result) == "SOURCE_TRUNCATED"
    assert result.error is not None
    assert "20..29" in str(result.error["what"])
    assert copy.target.log(KEY).batches == before


def test_a_source_that_loses_what_was_read_within_the_slice(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 100), job_fields=SMALL_FETCHES)

    def lose() -> None:
        copy.source.log(KEY).truncate(4)
        copy.source.produce("t", [b"others"] * 200)

    copy.source.fault("act", apis.FETCH, skip=6, action=lose)
    assert error_code(copy.slice()["t"]) == "SOURCE_TRUNCATED"


def test_a_new_leader_with_the_same_log_loses_nothing(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    assert copy.slice()["t"].done
    copy.source.log(KEY).leader_epoch += 3
    copy.source.produce("t", [b"later"] * 8)
    assert copy.slice()["t"].done
    copy.assert_equal("t")


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_created_again_is_another_one(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    job = copy.job()
    assert copy.slice(job)["t"].done
    copy.source.delete("t")
    plain(copy.source, 60)
    assert error_code(copy.slice(job)["t"]) == "TOPIC_RECREATED"


@pytest.mark.parametrize(("side", "expected"), [("source", "TOPIC_RECREATED"), ("target", "TARGET_TOPIC_MISSING")])
def test_a_topic_that_was_deleted(worlds: Worlds, side: str, expected: str) -> None:
    """It counts as deleted once the cluster has answered so for half of the slice."""
    copy = worlds.copy(plain, job_fields={"slice_seconds": 2})
    job = copy.job()
    getattr(copy, side).delete("t")
    result = copy.slice(job, seconds=6)["t"]
    assert error_code(result) == expected


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ({}, "clear tail (or kafka-migration resume FILE)"),
        ({"mirror": True}, "kafka-migration mirror pause FILE, then mirror resume FILE"),
        ({"way_back": True}, "leave-out FILE t`"),
    ],
)
def test_the_advice_for_a_deleted_target_topic_can_be_followed(
    worlds: Worlds, kind: dict[str, bool], advice: str
) -> None:
    copy = worlds.copy(plain)
    job = copy.job().model_copy(update={**kind, "name": "tail"})
    error = topic_gone(job, job.partitions[0], "target")
    assert advice in error.next_step


def test_a_topic_that_comes_back_was_not_deleted(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    job = copy.job()
    topic = copy.source.topics.pop("t")
    copy.source.fault("act", apis.METADATA, skip=2, action=lambda: copy.source.topics.update(t=topic))
    assert copy.slice(job)["t"].done


# -- tombstones -------------------------------------------------------------------------------------------------------


def test_tombstones_that_compaction_may_have_removed(worlds: Worlds) -> None:
    """The copy was away for longer than ``delete.retention.ms`` while the source was compacted."""
    settings = TombstoneSettings(on_overtaken="stop", retention_ms={"t": 1})
    copy = worlds.copy(plain, job_fields={"tombstones": settings})
    assert copy.slice()["t"].done
    copy.source.produce("t", [None, b"1", b"2", None, b"3"], batch=1)
    copy.source.produce("t", [b"4"] * 5, batch=1)
    copy.source.log(KEY).compact([30, 31, 33])
    result = copy.slice()["t"]
    assert error_code(result) == "TOMBSTONES_OVERTAKEN"
