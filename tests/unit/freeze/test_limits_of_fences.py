"""The marker that fences a copy's producer: found where it is, written where it is missing, never twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.partition_log import PartitionLog, Refused

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.errors import PermissionMissing, Terminal, Transient
from airflow_provider_kafka_migration.freeze.fence import Fenced, fence_producer
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire

KEYS: list[TopicPartition] = [("t", 0), ("t", 1)]
#: The copy has written so many records into each partition, as the producer of this id and epoch.
END, PRODUCER, EPOCH = 6, 7, 3


@pytest.fixture
def target() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(name="target") as cluster:
        cluster.create("t", 2)
        for key in KEYS:
            copied(cluster.log(key), 0)
        yield cluster


@pytest.fixture
def wire(target: SimulatedCluster) -> Iterator[Wire]:
    with Clients({"source": None, "target": target.settings, "storage": None}) as clients:
        yield clients.wire("target")


def copied(log: PartitionLog, sequence: int) -> None:
    """Append as the copy does."""
    found = [Record(number, 1_700_000_000_000, b"key", b"%d" % number, []) for number in range(END)]
    log.append(encode_batch(found, producer_id=PRODUCER, producer_epoch=EPOCH, base_sequence=sequence))


def fence(wire: Wire, *, patience_seconds: float = 0.0) -> Fenced:
    return fence_producer(wire, dict.fromkeys(KEYS, END), PRODUCER, EPOCH, patience_seconds=patience_seconds)


def is_refused(log: PartitionLog) -> bool:
    """Whether a copier that wakes up, and has the right next sequence, is refused."""
    before = list(log.batches)
    try:
        copied(log, END)
    except Refused as error:
        assert log.batches == before
        return error.code == error_codes.INVALID_PRODUCER_EPOCH
    return False


def test_each_partition_gets_a_marker_and_the_copy_is_refused(target: SimulatedCluster, wire: Wire) -> None:
    found = fence(wire)
    assert (found.markers, found.problems) == (dict.fromkeys(KEYS, END), {})
    for key in KEYS:
        assert target.log(key).log_end == END + 1
        assert is_refused(target.log(key))


def test_a_second_fence_finds_the_first_and_writes_nothing(target: SimulatedCluster, wire: Wire) -> None:
    fence(wire)
    asked = target.requests.count(apis.WRITE_TXN_MARKERS)
    assert fence(wire).markers == dict.fromkeys(KEYS, END)
    assert target.requests.count(apis.WRITE_TXN_MARKERS) == asked


def test_a_marker_behind_records_of_applications_is_found(target: SimulatedCluster, wire: Wire) -> None:
    """More than the first look reads: clients were quick, or the fence is repeated much later."""
    for _ in range(40):
        target.produce("t", [b"x" * 100] * 5)
    target.log(KEYS[0]).write_marker(PRODUCER, EPOCH + 1, commit=False)
    target.produce("t", [b"later"])
    end = target.log(KEYS[0]).log_end
    assert fence(wire).markers == {KEYS[0]: END + 200, KEYS[1]: END}
    assert target.log(KEYS[0]).log_end == end


@pytest.mark.parametrize(("producer_id", "epoch"), [(PRODUCER, EPOCH), (PRODUCER + 1, EPOCH + 1)])
def test_a_marker_that_fences_nobody_is_none(
    target: SimulatedCluster, wire: Wire, producer_id: int, epoch: int
) -> None:
    """Of the copy's own epoch, as its holes have it, or of another producer."""
    target.log(KEYS[0]).write_marker(producer_id, epoch, commit=False)
    assert fence(wire).markers == {KEYS[0]: END + 1, KEYS[1]: END}
    assert is_refused(target.log(KEYS[0]))


def test_the_search_begins_at_the_log_start_where_clients_have_deleted_the_end_of_the_copy(
    target: SimulatedCluster, wire: Wire
) -> None:
    """A log whose start lies above the copy's end cannot be read from there: it is fenced all the same."""
    target.produce("t", [b"theirs"] * 5)
    target.log(KEYS[0]).delete_until(END + 2)
    found = fence(wire)
    assert found.problems == {}
    assert found.markers == {KEYS[0]: END + 5, KEYS[1]: END}
    assert fence(wire).markers == found.markers


def test_a_marker_is_written_again_if_it_was_dropped(target: SimulatedCluster, wire: Wire) -> None:
    """The broker says that all is well, and has written nothing: only the log counts."""
    log = target.log(KEYS[0])

    def drop() -> None:
        log.batches.pop()
        log.log_end -= 1

    # After the first request, each look asks for three kinds of ends.
    target.fault("act", apis.WRITE_TXN_MARKERS, action=lambda: target.fault("act", apis.LIST_OFFSETS, action=drop))
    found = fence(wire, patience_seconds=60.0)
    assert target.requests.count(apis.WRITE_TXN_MARKERS) == 2
    assert found.markers == dict.fromkeys(KEYS, END)
    assert is_refused(log)


@pytest.mark.parametrize("unreplicated", [1, 3])
def test_what_is_not_replicated_is_not_fenced(target: SimulatedCluster, wire: Wire, unreplicated: int) -> None:
    """The marker may be lost with its leader: it is no fence before the replicas have it."""
    fence(wire)
    target.log(KEYS[0]).unreplicated = unreplicated
    found = fence(wire)
    assert found.markers == {KEYS[1]: END}
    assert isinstance(found.problems[KEYS[0]], Transient)
    assert "not replicated yet" in found.problems[KEYS[0]].what
    target.log(KEYS[0]).unreplicated = 0
    assert fence(wire).markers == dict.fromkeys(KEYS, END)


def test_one_partition_without_a_leader_stops_no_other(target: SimulatedCluster, wire: Wire) -> None:
    target.topics["t"].leaders[0] = -1
    found = fence(wire)
    assert found.markers == {KEYS[1]: END}
    assert set(found.problems) == {KEYS[0]}


def test_a_missing_right_is_named_and_not_waited_for(target: SimulatedCluster, wire: Wire) -> None:
    target.writes_markers = False
    found = fence(wire, patience_seconds=3600.0)
    assert found.markers == {}
    assert {type(error) for error in found.problems.values()} == {PermissionMissing}
    assert not is_refused(target.log(KEYS[0]))


def test_the_last_epoch_has_no_next_one(wire: Wire) -> None:
    with pytest.raises(Terminal, match="is the last one"):
        fence_producer(wire, {KEYS[0]: END}, PRODUCER, 32_767)
