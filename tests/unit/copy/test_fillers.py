"""Fillers below a log start, and trials of empty transactions: killed, raced and repeated, they fill exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from copy_specs import IDS
from simulated import apis
from simulated.cluster import SimulatedCluster, data_batch
from simulated.small import KEY

from airflow_provider_kafka_migration.copy import holes
from airflow_provider_kafka_migration.copy.holes import (
    Fill,
    delete_fillers_again,
    fill_and_wait,
    fill_log_start,
    filler_batch,
)
from airflow_provider_kafka_migration.errors import BrokerBusy, ForeignData, PermissionMissing
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, patched_header
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    """A cluster with an empty topic; a batch has ten fillers."""
    monkeypatch.setattr(holes, "FILLER_BATCH_RECORDS", 10)
    with SimulatedCluster("target", brokers=2) as cluster:
        cluster.create("t")
        yield cluster


@pytest.fixture
def wire(target: SimulatedCluster) -> Iterator[Wire]:
    with Wire(ClientConfig.from_librdkafka(target.settings, "target"), patience_seconds=2.0) as found:
        yield found


def fill(wire: Wire, until: int = 35) -> int:
    return fill_log_start(wire, *KEY, until, IDS)


def assert_filled(target: SimulatedCluster, until: int = 35) -> None:
    """Every offset has one filler, and nothing else is there."""
    log = target.log(KEY)
    assert sorted(log.content()) == list(range(until))
    assert {batch.producer_id for batch in log.views()} == {IDS.filler_producer_id}


def test_progress_is_reported(target: SimulatedCluster, wire: Wire) -> None:
    seen: list[tuple[int, int]] = []
    end = fill_log_start(wire, *KEY, 35, IDS, on_progress=lambda done, wanted: seen.append((done, wanted)))
    assert (end, seen) == (35, [(10, 35), (20, 35), (30, 35), (35, 35)])
    assert_filled(target)


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("api", [apis.PRODUCE, apis.LIST_OFFSETS, apis.METADATA])
def test_connections_that_break(target: SimulatedCluster, wire: Wire, api: int, kind: Any) -> None:
    target.fault(kind, api, skip=1 if api == apis.PRODUCE else 0)
    assert fill(wire) == 35
    assert_filled(target)


def test_a_filling_that_was_killed_goes_on(target: SimulatedCluster, wire: Wire) -> None:
    fill(wire, 12)
    assert fill(wire) == 35
    assert_filled(target)


@pytest.mark.parametrize("count", [10, 4])
def test_another_copier_fills_as_well(target: SimulatedCluster, wire: Wire, count: int) -> None:
    """Its next fillers come first, with the same borders or with others."""
    log = target.log(KEY)

    def race() -> None:
        raw = RawBatch(filler_batch(count, 1_700_000_000_000))
        header = patched_header(raw, IDS.filler_producer_id, IDS.filler_producer_epoch, log.log_end)
        log.append(header + bytes(raw.payload))

    target.fault("act", apis.PRODUCE, action=race)
    assert fill(wire) == 35
    assert_filled(target)


def test_a_leader_that_moves(target: SimulatedCluster, wire: Wire) -> None:
    target.fault("act", apis.PRODUCE, action=lambda: target.move_leader(KEY, 1))
    assert fill(wire) == 35
    assert_filled(target)


@pytest.mark.parametrize("producer_id", [-1, 99])
def test_records_of_others_are_never_filled_over(target: SimulatedCluster, wire: Wire, producer_id: int) -> None:
    log = target.log(KEY)
    log.append(data_batch([b"theirs"], 0))
    if producer_id == 99:
        log.write_marker(99, 0, commit=True)
    before = list(log.batches)
    with pytest.raises(ForeignData, match="not fillers"):
        fill(wire)
    assert log.batches == before


def test_records_of_others_between_two_fillers(target: SimulatedCluster, wire: Wire) -> None:
    target.fault("act", apis.PRODUCE, action=lambda: target.log(KEY).append(data_batch([b"theirs"], 0)))
    with pytest.raises(ForeignData, match="instead of 10"):
        fill(wire)


def test_a_log_that_is_longer_than_wanted(target: SimulatedCluster, wire: Wire) -> None:
    fill(wire, 20)
    with pytest.raises(ForeignData, match="at or beyond 15"):
        fill(wire, 15)


def test_an_end_that_is_not_replicated(target: SimulatedCluster, wire: Wire) -> None:
    fill(wire, 10)
    target.log(KEY).unreplicated = 2
    with pytest.raises(BrokerBusy, match="behind the log end"):
        fill(wire)


def test_a_topic_that_may_not_be_written(target: SimulatedCluster, wire: Wire) -> None:
    target.fault("code", apis.PRODUCE, code=error_codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(PermissionMissing):
        fill(wire)


def test_only_fillers_are_deleted_again(target: SimulatedCluster, wire: Wire) -> None:
    fill(wire)
    other = target.create("other")
    target.produce("other", [b"theirs"] * 5)
    found = delete_fillers_again(wire, {KEY: 0, ("other", 0): 0}, {KEY: 35, ("other", 0): 3}, IDS.filler_producer_id)
    assert found == {KEY: 35}
    assert (target.log(KEY).log_start, other.log_start) == (35, 0)


def test_a_partition_that_cannot_be_read_does_not_stop_the_others(target: SimulatedCluster, wire: Wire) -> None:
    fill(wire)
    target.create("other")
    target.fault("code", apis.FETCH, code=error_codes.TOPIC_AUTHORIZATION_FAILED, topic="other", times=10**6)
    found = delete_fillers_again(wire, {KEY: 0, ("other", 0): 0}, {KEY: 35, ("other", 0): 3}, IDS.filler_producer_id)
    assert isinstance(found[("other", 0)], PermissionMissing)
    assert found[KEY] == 35


# -- a trial of empty transactions ------------------------------------------------------------------------------------


def test_a_trial_fills_its_offsets(target: SimulatedCluster) -> None:
    config = ClientConfig.from_librdkafka(target.settings, "target")
    found = fill_and_wait(config, "trial", {KEY: Fill(3, 0, "token")}, seconds=10)
    assert [(item.log_end_offset, item.token, item.error) for item in found.values()] == [(3, "token", None)]
    assert target.log(KEY).log_end == 3


def test_a_trial_without_the_right_to_its_ids(target: SimulatedCluster) -> None:
    target.forbidden_ids = ("trial",)
    began = time.monotonic()
    with pytest.raises(PermissionMissing):
        fill_and_wait(
            ClientConfig.from_librdkafka(target.settings, "target"), "trial", {KEY: Fill(1, 0, None)}, seconds=200
        )
    assert time.monotonic() - began < 100
