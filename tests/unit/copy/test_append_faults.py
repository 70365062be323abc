"""What a lane makes of refused, lost, late and odd answers of the target: nothing is doubled, nothing is left out."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster, data_batch
from simulated.small import KEY, SMALL_FETCHES, error_code, plain, trouble_code, with_hole
from simulated.topics import fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch, records

WRITES = (apis.PRODUCE, apis.WRITE_TXN_MARKERS)
READS = (apis.LIST_OFFSETS, apis.METADATA, apis.INIT_PRODUCER_ID, apis.FIND_COORDINATOR)


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("api", [*WRITES, *READS])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_connections_that_break(worlds: Worlds, api: int, kind: Any, skip: int) -> None:
    copy = worlds.copy(with_hole, job_fields=SMALL_FETCHES)
    fault = copy.target.fault(kind, api, skip=skip)
    result = copy.slice()["t"]
    assert (result.done, result.error) == (True, None)
    copy.assert_equal("t")
    assert fault.hits or skip


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (apis.PRODUCE, error_codes.NOT_ENOUGH_REPLICAS),
        (apis.PRODUCE, error_codes.REQUEST_TIMED_OUT),
        (apis.PRODUCE, error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (apis.PRODUCE, error_codes.UNKNOWN_PRODUCER_ID),
        (apis.PRODUCE, error_codes.KAFKA_STORAGE_ERROR),
        (apis.WRITE_TXN_MARKERS, error_codes.NOT_ENOUGH_REPLICAS),
        (apis.WRITE_TXN_MARKERS, error_codes.NOT_LEADER_OR_FOLLOWER),
        (apis.LIST_OFFSETS, error_codes.NOT_LEADER_OR_FOLLOWER),
        (apis.INIT_PRODUCER_ID, error_codes.COORDINATOR_LOAD_IN_PROGRESS),
        (apis.FIND_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE),
        (apis.METADATA, error_codes.LEADER_NOT_AVAILABLE),
    ],
)
def test_errors_that_pass(worlds: Worlds, api: int, code: int) -> None:
    copy = worlds.copy(with_hole, job_fields=SMALL_FETCHES)
    fault = copy.target.fault("code", api, code=code, times=2, topic="t" if api in WRITES else None)
    result = copy.slice()["t"]
    assert (result.done, result.error, fault.hits) == (True, None, 2)
    copy.assert_equal("t")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (error_codes.TOPIC_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (error_codes.INVALID_TIMESTAMP, "BROKER_REFUSED"),
        (error_codes.INVALID_RECORD, "BROKER_REFUSED"),
    ],
)
def test_errors_that_stay_stop_one_partition_only(worlds: Worlds, code: int, expected: str) -> None:
    copy = worlds.copy(lambda source: fill_source(source, 1))
    copy.target.fault("code", apis.PRODUCE, code=code, times=10**6, topic="plain")
    results = copy.slice()
    assert error_code(results.pop("plain")) == expected
    assert copy.target.log(("plain", 0)).batches == []
    for topic, result in results.items():
        assert result.done
        copy.assert_equal(topic)


def test_leaders_that_move(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole, target={"brokers": 2}, job_fields=SMALL_FETCHES)
    copy.target.fault("act", apis.PRODUCE, skip=1, action=lambda: copy.target.move_leader(KEY, 1))
    copy.target.fault("act", apis.WRITE_TXN_MARKERS, skip=1, action=lambda: copy.target.move_leader(KEY, 0))
    assert copy.slice()["t"].done
    assert (copy.target.topics["t"].leaders, copy.target.log(KEY).leader_epoch) == ([0], 2)
    copy.assert_equal("t")


def test_a_partition_without_a_leader(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole)
    copy.target.topics["t"].leaders[0] = -1
    result = copy.slice(seconds=1.5)["t"]
    assert (result.records, trouble_code(result)) == (0, "BROKER_BUSY")
    copy.target.topics["t"].leaders[0] = 0
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_a_throttled_lane_pauses(worlds: Worlds) -> None:
    copy = worlds.copy(plain, job_fields=SMALL_FETCHES)
    copy.target.fault("throttle", apis.PRODUCE, seconds=0.3)
    copy.source.fault("throttle", apis.FETCH, skip=1, seconds=0.2)
    result = copy.slice()["t"]
    assert result.done
    assert result.target_throttled_seconds >= 0.3
    assert result.source_throttled_seconds >= 0.2
    copy.assert_equal("t")


# -- large batches ----------------------------------------------------------------------------------------------------


def test_batches_that_are_too_large_are_split(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 200, 100), target_limits={"t": 300})
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.records) == (True, Verdict.EQUAL, 200)
    assert max(len(data) for data in copy.target.log(KEY).batches) <= 300
    copy.assert_equal("t")


def test_a_record_that_is_too_large_stops_behind_the_records_before_it(worlds: Worlds) -> None:
    def fill(source: Any) -> None:
        plain(source, 7)
        source.produce("t", [b"before", b"x" * 3000, b"behind"])

    copy = worlds.copy(fill, target_limits={"t": 1000})
    result = copy.slice()["t"]
    assert (error_code(result), result.done) == ("RECORD_TOO_LARGE", False)
    assert sorted(copy.target.log(KEY).content()) == list(range(8))
    copy.target.log(KEY).max_batch_bytes = 10_000
    assert copy.slice()["t"].done
    copy.assert_equal("t")


# -- other writers ----------------------------------------------------------------------------------------------------


def test_another_producer_between_two_appends(worlds: Worlds) -> None:
    copy = worlds.copy(plain, job_fields=SMALL_FETCHES)

    def write() -> None:
        copy.target.log(KEY).append(data_batch([b"foreign"], 0))

    copy.target.fault("act", apis.PRODUCE, skip=1, action=write)
    result = copy.slice()["t"]
    assert (error_code(result), result.done) == ("FOREIGN_DATA", False)


def test_another_producer_while_a_hole_is_filled(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole)

    def write() -> None:
        copy.target.log(KEY).append(data_batch([b"1", b"2", b"3"], 0))

    copy.target.fault("act", apis.WRITE_TXN_MARKERS, skip=1, action=write)
    assert error_code(copy.slice()["t"]) == "FOREIGN_DATA"


def test_another_copier_of_the_migration_is_not_foreign(worlds: Worlds) -> None:
    """It has appended the same next batch with the same sequence: nothing is doubled."""
    copy = worlds.copy(plain, job_fields=SMALL_FETCHES)
    target, producer = copy.target.log(KEY), copy.producers.data_producer_id

    def append() -> None:
        batch = copy.source.log(KEY).views()[2]
        target.append(copied(batch, producer, 10))

    copy.target.fault("act", apis.PRODUCE, skip=1, action=append)
    result = copy.slice()["t"]
    assert (result.done, result.verdict) == (True, Verdict.EQUAL)
    copy.assert_equal("t")


def copied(batch: RawBatch, producer: int, sequence: int) -> bytes:
    """A batch of the source as another copier writes it."""
    found = [record._replace(offset=number) for number, record in enumerate(records(batch))]
    return encode_batch(found, producer_id=producer, producer_epoch=0, base_sequence=sequence)


def test_a_zombies_markers_within_a_hole_fill_a_part_of_it(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole)
    copy.target.fault(
        "act", apis.WRITE_TXN_MARKERS, skip=1, action=lambda: copy.target.log(KEY).write_marker(4242, 0, commit=False)
    )
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.target_offset) == (True, Verdict.EQUAL, 20)
    copy.assert_equal("t")


def test_a_zombies_markers_behind_a_hole_displace_records(worlds: Worlds) -> None:
    """A former incarnation fills the hole as well: order and content stay, the map shows where."""
    copy = worlds.copy(with_hole)

    def fill() -> None:
        copy.target.log(KEY).write_marker(4242, 0, commit=False)

    copy.target.fault("act", apis.WRITE_TXN_MARKERS, skip=2, action=fill)
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.target_offset) == (True, Verdict.MAPPED, 21)
    copy.assert_in_order("t")
    copy.assert_mapped("t")


def ends_with_hole(source: SimulatedCluster) -> None:
    """Nothing comes behind the hole, so that no append notices what is there."""
    plain(source, 10)
    for _ in range(4):
        source.log(KEY).write_marker(5, 0, commit=True)


# The first request registers the copier, the second writes a single marker, the third all others.
@pytest.mark.parametrize("skip", [1, 2])
def test_one_foreign_record_at_the_end_of_a_hole_that_ends_the_source(worlds: Worlds, skip: int) -> None:
    copy = worlds.copy(ends_with_hole)
    foreign = copy.target.fault(
        "act",
        apis.WRITE_TXN_MARKERS,
        skip=skip,
        action=lambda: copy.target.log(KEY).append(data_batch([b"foreign"], 0)),
    )
    result = copy.slice()["t"]
    assert foreign.hits == 1
    assert (error_code(result), result.done) == ("FOREIGN_DATA", False)


def test_one_marker_too_many_at_the_end_of_the_source_is_in_the_map(worlds: Worlds) -> None:
    copy = worlds.copy(ends_with_hole)
    copy.target.fault(
        "act", apis.WRITE_TXN_MARKERS, skip=2, action=lambda: copy.target.log(KEY).write_marker(4242, 0, commit=False)
    )
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.target_offset) == (True, Verdict.MAPPED, 15)
    copy.source.produce("t", [b"later"])
    later = copy.slice()["t"]
    assert (later.done, later.records, later.target_offset) == (True, 1, 16)
    copy.assert_in_order("t")
    copy.assert_mapped("t")


# -- holes ------------------------------------------------------------------------------------------------------------


def test_a_newer_incarnation_of_the_lane_fences_markers(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole)
    job = copy.job()

    def fence() -> None:
        epoch = copy.target.coordinators.init(job.lanes[0].transactional_id)
        copy.target.log(KEY).write_marker(*epoch, commit=False)

    copy.target.fault("act", apis.INIT_PRODUCER_ID, action=fence)
    result = copy.slice(job)["t"]
    assert error_code(result) == "SLICE_EXPIRED"
    assert copy.slice()["t"].done
    copy.assert_in_order("t")


def test_markers_that_are_dropped_are_sent_again(worlds: Worlds) -> None:
    """The broker answers success for markers of which it wrote nothing, or only some."""
    copy = worlds.copy(lambda source: with_hole(source, 30))
    target = copy.target.log(KEY)

    def forget() -> None:
        del target.batches[-2:]
        target.log_end -= 2

    # The first request asks for the permission, the second writes a single marker, the third all others.
    copy.target.fault("act", apis.WRITE_TXN_MARKERS, skip=2, action=forget)
    result = copy.slice()["t"]
    assert (result.done, result.holes, result.verdict) == (True, 30, Verdict.EQUAL)
    copy.assert_equal("t")


def test_the_right_to_write_markers_may_be_withdrawn(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: with_hole(source, 30))
    copy.target.fault(
        "act", apis.WRITE_TXN_MARKERS, skip=1, action=lambda: setattr(copy.target, "writes_markers", False)
    )
    result = copy.slice()["t"]
    assert (result.done, result.holes, result.transaction_holes) == (True, 30, 29)
    copy.assert_equal("t")


def test_holes_that_cannot_be_filled_stop_only_partitions_that_have_some(worlds: Worlds) -> None:
    """The migration may neither write markers nor use its transactional ids."""

    def fill(source: Any) -> None:
        with_hole(source)
        source.create("whole")
        source.produce("whole", [b"1", b"2"])

    copy = worlds.copy(fill, target={"writes_markers": False, "forbidden_ids": ("simulated.",)})
    results = copy.slice()
    assert error_code(results["t"]) == "PERMISSION_MISSING"
    assert results["whole"].done
    copy.assert_equal("whole")


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (apis.ADD_PARTITIONS_TO_TXN, error_codes.NOT_COORDINATOR),
        (apis.ADD_PARTITIONS_TO_TXN, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.END_TXN, error_codes.NOT_COORDINATOR),
        (apis.END_TXN, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.INIT_PRODUCER_ID, error_codes.CONCURRENT_TRANSACTIONS),
    ],
)
def test_empty_transactions_with_busy_coordinators(worlds: Worlds, api: int, code: int) -> None:
    copy = worlds.copy(lambda source: with_hole(source, 12), target={"writes_markers": False})
    copy.target.coordinators.marker_delay = 3
    fault = copy.target.fault("code", api, code=code, times=2, skip=1)
    result = copy.slice()["t"]
    assert (result.done, result.error, fault.hits) == (True, None, 2)
    assert result.transaction_holes == 12
    copy.assert_equal("t")


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("api", [apis.ADD_PARTITIONS_TO_TXN, apis.END_TXN])
def test_empty_transactions_over_connections_that_break(worlds: Worlds, api: int, kind: Any) -> None:
    copy = worlds.copy(lambda source: with_hole(source, 12), target={"writes_markers": False})
    copy.target.fault(kind, api, skip=2)
    result = copy.slice()["t"]
    assert (result.done, result.verdict) == (True, Verdict.EQUAL)
    copy.assert_equal("t")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (error_codes.TOPIC_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (error_codes.PRODUCER_FENCED, "SLICE_EXPIRED"),
    ],
)
def test_empty_transactions_that_are_refused(worlds: Worlds, code: int, expected: str) -> None:
    copy = worlds.copy(with_hole, target={"writes_markers": False})
    copy.target.fault("code", apis.ADD_PARTITIONS_TO_TXN, code=code, times=10**6)
    assert error_code(copy.slice()["t"]) == expected


def test_holes_beyond_the_budget_stop_a_copy_that_must_be_equal(worlds: Worlds) -> None:
    copy = worlds.copy(with_hole, job_fields={"max_markers": 2, "on_mismatch": "stop"})
    assert error_code(copy.slice()["t"]) == "HOLES_EXCEED_BUDGET"
    assert len(copy.target.log(KEY).content()) <= 10
