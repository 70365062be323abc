"""Copies in transactions: records, map and position appear together, whatever coordinators answer and whoever dies."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster, data_batch
from simulated.copying import MIGRATION, SimulatedCopy
from simulated.kill import KillSwitch
from simulated.partition_log import Refused
from simulated.small import KEY, SMALL_FETCHES, error_code, plain
from simulated.topics import KINDS, fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import group_name, read_position, transactional_id

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def in_transactions(worlds: Worlds, fill: Any = plain, *, version: int = 2, **options: Any) -> SimulatedCopy:
    verdicts = dict.fromkeys(["t", *KINDS], Verdict.TRANSACTIONAL)
    return worlds.copy(fill, target={"transaction_version": version}, verdicts=verdicts, **options)


def assert_copied(copy: SimulatedCopy, *topics: str) -> None:
    """Every record once and in order, the map right, the position at the end."""
    copy.target.coordinators.settle()
    for topic in topics or ("t",):
        copy.assert_in_order(topic)
        copy.assert_mapped(topic)
        position = copy.target.coordinators.offsets[(group_name(MIGRATION), (topic, 0))]
        assert position.offset == copy.source.log((topic, 0)).last_stable_offset


@VERSIONS
def test_topics_of_each_kind(worlds: Worlds, version: int) -> None:
    copy = in_transactions(worlds, lambda source: fill_source(source, 11), version=version)
    assert all(result.done for result in copy.slice().values())
    assert_copied(copy, *KINDS)
    for topic in KINDS:
        copy.source.produce(topic, [b"later", b"latest"])
    assert {result.records for result in copy.slice().values()} == {2}
    assert_copied(copy, *KINDS)


@VERSIONS
def test_markers_that_come_late(worlds: Worlds, version: int) -> None:
    """EndTxn answers before the markers are written; until then the id is busy."""
    copy = in_transactions(worlds, version=version, job_fields=SMALL_FETCHES)
    copy.target.coordinators.marker_delay = 4
    assert copy.slice()["t"].done
    copy.source.produce("t", [b"later"] * 7)
    assert copy.slice()["t"].done
    assert_copied(copy)


APIS = (
    apis.PRODUCE,
    apis.INIT_PRODUCER_ID,
    apis.FIND_COORDINATOR,
    apis.OFFSET_FETCH,
    apis.TXN_OFFSET_COMMIT,
    apis.END_TXN,
)


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("api", [*APIS, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN])
@VERSIONS
def test_connections_that_break(worlds: Worlds, version: int, api: int, kind: Any) -> None:
    copy = in_transactions(worlds, version=version)
    fault = copy.target.fault(kind, api)
    result = copy.slice()["t"]
    assert (result.done, result.error) == (True, None)
    assert_copied(copy)
    assert fault.hits == (1 if version == 1 or api in APIS else 0)


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (apis.PRODUCE, error_codes.NOT_LEADER_OR_FOLLOWER),
        (apis.PRODUCE, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.PRODUCE, error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (apis.PRODUCE, error_codes.TRANSACTION_ABORTABLE),
        (apis.INIT_PRODUCER_ID, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.OFFSET_FETCH, error_codes.UNSTABLE_OFFSET_COMMIT),
        (apis.TXN_OFFSET_COMMIT, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.TXN_OFFSET_COMMIT, error_codes.NOT_COORDINATOR),
        (apis.END_TXN, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.END_TXN, error_codes.COORDINATOR_NOT_AVAILABLE),
        (apis.END_TXN, error_codes.INVALID_TXN_STATE),
    ],
)
def test_errors_that_pass(worlds: Worlds, api: int, code: int) -> None:
    copy = in_transactions(worlds)
    fault = copy.target.fault("code", api, code=code)
    result = copy.slice()["t"]
    assert (result.done, result.error, fault.hits) == (True, None, 1)
    assert_copied(copy)


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (apis.ADD_PARTITIONS_TO_TXN, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.ADD_PARTITIONS_TO_TXN, error_codes.NOT_COORDINATOR),
        (apis.ADD_OFFSETS_TO_TXN, error_codes.CONCURRENT_TRANSACTIONS),
        (apis.ADD_OFFSETS_TO_TXN, error_codes.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_errors_that_pass_with_version_1(worlds: Worlds, api: int, code: int) -> None:
    copy = in_transactions(worlds, version=1)
    fault = copy.target.fault("code", api, code=code)
    result = copy.slice()["t"]
    assert (result.done, result.error, fault.hits) == (True, None, 1)
    assert_copied(copy)


@pytest.mark.parametrize(
    ("api", "code", "expected"),
    [
        (apis.PRODUCE, error_codes.TOPIC_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (apis.INIT_PRODUCER_ID, error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (apis.TXN_OFFSET_COMMIT, error_codes.GROUP_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (apis.OFFSET_FETCH, error_codes.GROUP_AUTHORIZATION_FAILED, "PERMISSION_MISSING"),
        (apis.END_TXN, error_codes.INVALID_PRODUCER_EPOCH, "SLICE_EXPIRED"),
        (apis.PRODUCE, error_codes.PRODUCER_FENCED, "SLICE_EXPIRED"),
    ],
)
def test_errors_that_stay(worlds: Worlds, api: int, code: int, expected: str) -> None:
    copy = in_transactions(worlds)
    copy.target.fault("code", api, code=code, times=10**6)
    result = copy.slice()["t"]
    assert error_code(result) == expected
    # What was appended is not visible: no transaction was committed.
    assert copy.target.log(KEY).content() == {}


def test_ids_that_may_not_be_used_stop_only_their_partitions(worlds: Worlds) -> None:
    def fill(source: SimulatedCluster) -> None:
        plain(source)
        source.create("equal")
        source.produce("equal", [b"1", b"2"])

    copy = worlds.copy(fill, target={"forbidden_ids": ("kafka-migration.",)}, verdicts={"t": Verdict.TRANSACTIONAL})
    results = copy.slice()
    assert error_code(results["t"]) == "PERMISSION_MISSING"
    assert results["equal"].done
    copy.assert_equal("equal")


def test_a_newer_incarnation_fences_the_former_one(worlds: Worlds) -> None:
    copy = in_transactions(worlds, job_fields=SMALL_FETCHES)
    name = transactional_id(MIGRATION, *KEY)

    def take_over() -> None:
        with contextlib.suppress(Refused):
            copy.target.coordinators.init(name)  # ends the open transaction

    copy.target.fault("act", apis.PRODUCE, skip=1, action=take_over)
    result = copy.slice()["t"]
    assert error_code(result) == "SLICE_EXPIRED"
    assert copy.slice()["t"].done
    assert_copied(copy)


def test_applications_write_between_the_transactions(worlds: Worlds) -> None:
    copy = in_transactions(worlds, job_fields=SMALL_FETCHES)
    target = copy.target.log(KEY)
    theirs = data_batch([b"theirs"], 0)
    copy.target.fault("act", apis.PRODUCE, times=3, action=lambda: target.append(theirs))
    assert copy.slice()["t"].done
    content = target.content()
    offset_map = copy.offset_map("t")
    ours = {offset: record for offset, record in content.items() if offset_map.covers(offset)}  # type: ignore[attr-defined]
    assert len(content) - len(ours) == 3
    assert {offset_map.source_of(offset): record.value for offset, record in ours.items()} == {
        offset: record.value for offset, record in copy.source.log(KEY).content().items()
    }


# -- large things -----------------------------------------------------------------------------------------------------


def test_batches_that_are_too_large_are_split(worlds: Worlds) -> None:
    copy = in_transactions(worlds, lambda source: plain(source, 200, 100), target_limits={"t": 300})
    assert copy.slice()["t"].done
    assert_copied(copy)


def test_a_record_that_is_too_large_stops_behind_the_records_before_it(worlds: Worlds) -> None:
    def fill(source: SimulatedCluster) -> None:
        plain(source, 7)
        source.produce("t", [b"before", b"x" * 3000, b"behind"])

    copy = in_transactions(worlds, fill, target_limits={"t": 1000})
    assert error_code(copy.slice()["t"]) == "RECORD_TOO_LARGE"
    assert [record.value for record in copy.target.log(KEY).content().values()][-1] == b"before"
    copy.target.log(KEY).max_batch_bytes = 10_000
    assert copy.slice()["t"].done
    assert_copied(copy)


def test_a_map_that_does_not_fit_into_the_commit_goes_to_pages(worlds: Worlds) -> None:
    """Each record is a run of its own, and the broker takes less metadata than others do."""

    def fill(source: SimulatedCluster) -> None:
        plain(source, 400, 1)
        source.log(KEY).compact(range(1, 400, 2))

    copy = in_transactions(worlds, fill)
    copy.target.coordinators.max_metadata_bytes = 300
    assert copy.slice()["t"].done
    assert_copied(copy)
    assert copy.target.coordinators.offsets[(group_name(MIGRATION), KEY)].metadata.count("page")
    copy.source.produce("t", [b"later"])
    assert copy.slice()["t"].done
    assert_copied(copy)


# -- positions that were lost -----------------------------------------------------------------------------------------


def test_a_position_that_somebody_deleted(worlds: Worlds) -> None:
    copy = in_transactions(worlds)
    assert copy.slice()["t"].done
    copy.target.coordinators.offsets.clear()
    before = list(copy.target.log(KEY).batches)
    assert error_code(copy.slice()["t"]) == "POSITION_LOST"
    assert copy.target.log(KEY).batches == before


def test_a_target_that_ends_below_the_position(worlds: Worlds) -> None:
    copy = in_transactions(worlds)
    assert copy.slice()["t"].done
    copy.target.log(KEY).truncate(10)
    assert error_code(copy.slice()["t"]) == "POSITION_LOST"


def test_a_target_with_other_records_at_the_position(worlds: Worlds) -> None:
    copy = in_transactions(worlds)
    assert copy.slice()["t"].done
    target = copy.target.log(KEY)
    target.truncate(10)
    for _ in range(60):
        target.append(data_batch([b"others"], 0))
    assert error_code(copy.slice()["t"]) == "POSITION_LOST"


def test_a_target_that_has_deleted_what_was_copied(worlds: Worlds) -> None:
    copy = in_transactions(worlds)
    assert copy.slice()["t"].done
    target = copy.target.log(KEY)
    target.delete_until(target.log_end)
    copy.source.produce("t", [b"later"])
    result = copy.slice()["t"]
    assert (result.done, result.records) == (True, 1)


def test_a_first_start_does_not_wait_for_the_replicas(worlds: Worlds) -> None:
    """Where others write all the time, they are always behind; what they have is where the copy may begin."""
    copy = in_transactions(worlds)
    target = copy.target.log(KEY)
    for value in (b"theirs", b"not replicated"):
        target.append(data_batch([value], 0))
    target.unreplicated = 1
    assert copy.slice()["t"].done
    assert copy.offset_map("t").source_position(0) == 0
    position = copy.target.coordinators.offsets[(group_name(MIGRATION), ("t", 0))]
    assert read_position(position.offset, position.metadata).start == OffsetRange(0, 1)


@VERSIONS
@pytest.mark.slow
def test_kills_with_late_markers(worlds: Worlds, version: int) -> None:
    """The successor waits until the transaction of the dead copier is over, and reads only stable positions."""
    for at in range(8, 60, 6):
        copy = in_transactions(worlds, version=version, job_fields=SMALL_FETCHES)
        copy.target.coordinators.marker_delay = 5
        switch = KillSwitch(copy.source, copy.target, at=at, after=True)
        switch.run(copy.slice)
        assert copy.slice()["t"].done
        assert_copied(copy)
        worlds.close()
