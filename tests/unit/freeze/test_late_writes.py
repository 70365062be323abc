"""What counts as written behind the boundary: read from logs with markers, transactions, and records deleted since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.small import KEY, plain

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.freeze import late_writes
from airflow_provider_kafka_migration.freeze.late_writes import LateWrites, read_late_writes
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.wire import Wire

#: The cutover ended here: ten records are below it.
BOUNDARY = 10


@pytest.fixture
def source() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(name="source") as cluster:
        plain(cluster, BOUNDARY)
        yield cluster


@pytest.fixture
def wire(source: SimulatedCluster) -> Iterator[Wire]:
    with Clients({"source": source.settings, "target": None, "storage": None}) as clients:
        yield clients.wire("source")


def late(wire: Wire, source: SimulatedCluster, **options: Any) -> LateWrites | None:
    ends = {KEY: source.log(KEY).high_watermark}
    return read_late_writes(wire, {KEY: BOUNDARY}, ends, **options).get(KEY)


def test_a_source_that_ends_at_the_boundary_has_none(source: SimulatedCluster, wire: Wire) -> None:
    assert late(wire, source) is None


def test_a_single_record_counts(source: SimulatedCluster, wire: Wire) -> None:
    source.produce("t", [b"late"])
    found = late(wire, source)
    assert found is not None
    assert (found.records, found.is_open, found.deleted_offsets, found.producer_ids) == (1, False, 0, ())
    assert str(found).startswith("1 records were written to the source after the cutover")


def test_markers_and_aborted_records_do_not(source: SimulatedCluster, wire: Wire) -> None:
    source.log(KEY).write_marker(5, 0, commit=True)
    source.transaction("t", [b"never", b"seen"], commit=False, producer_id=78)
    assert source.log(KEY).high_watermark > BOUNDARY + 3
    assert late(wire, source) is None


def test_an_open_transaction_counts_before_it_has_ended(source: SimulatedCluster, wire: Wire) -> None:
    """Its records may be committed once clients have switched: nothing else behind the boundary gives it away."""
    source.transaction("t", [b"1", b"2"], commit=None, producer_id=78)
    found = late(wire, source)
    assert found is not None
    assert (found.records, found.is_open) == (0, True)
    assert "an open transaction may hold more" in str(found)


def test_what_lies_before_an_open_transaction_is_counted_too(source: SimulatedCluster, wire: Wire) -> None:
    source.transaction("t", [b"1", b"2", b"3"], commit=True)
    source.transaction("t", [b"4"], commit=None, producer_id=78)
    found = late(wire, source)
    assert found is not None
    assert (found.records, found.is_open, len(found.producer_ids)) == (3, True, 1)


def test_a_closed_transaction_is_not_open(source: SimulatedCluster, wire: Wire) -> None:
    source.transaction("t", [b"1", b"2", b"3"], commit=True)
    found = late(wire, source)
    assert found is not None
    assert (found.records, found.is_open) == (3, False)


def test_offsets_that_the_source_has_deleted_since_are_named(source: SimulatedCluster, wire: Wire) -> None:
    source.produce("t", [b"1", b"2", b"3", b"4"], batch=1)
    source.log(KEY).delete_until(BOUNDARY + 3)
    found = late(wire, source)
    assert found is not None
    assert (found.records, found.deleted_offsets) == (1, 3)
    source.log(KEY).delete_until(BOUNDARY + 4)
    gone = late(wire, source)
    assert gone is not None
    assert (gone.records, gone.deleted_offsets) == (0, 4)


def test_records_of_a_way_back_are_ours(source: SimulatedCluster, wire: Wire) -> None:
    source.transaction("t", [b"1", b"2"], commit=True)
    assert late(wire, source, ours={77}) is None
    source.produce("t", [b"theirs"])
    found = late(wire, source, ours={77})
    assert found is not None
    assert found.records == 1


def test_what_others_write_by_right_does_not_count(source: SimulatedCluster, wire: Wire) -> None:
    """The end that is asked for lies in the middle of the log: clients write behind it."""
    source.produce("t", [b"late"])
    source.produce("t", [b"by right"] * 3)
    found = read_late_writes(wire, {KEY: BOUNDARY}, {KEY: BOUNDARY + 1})[KEY]
    assert (found.records, found.is_open) == (1, False)


def test_counting_ends_and_says_so(source: SimulatedCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_writes, "MAX_COUNTED", 4)
    source.produce("t", [b"late"] * 9, batch=2)
    found = late(wire, source)
    assert found is not None
    assert str(found).startswith("at least 4 records")


def test_a_log_that_cannot_be_read_is_not_one_without_records(source: SimulatedCluster, wire: Wire) -> None:
    source.produce("t", [b"late"])
    source.fault("code", apis.FETCH, code=error_codes.TOPIC_AUTHORIZATION_FAILED, times=10**6, topic="t")
    with pytest.raises(PermissionMissing):
        late(wire, source)
