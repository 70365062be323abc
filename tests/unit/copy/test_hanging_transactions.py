"""A transaction that nobody ends holds a partition back at a lag of 0: it has a name, an age, and is trouble."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from simulated import apis
from simulated.copying import SimulatedCopy
from simulated.small import KEY, plain
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.documents.copy import CopyJob, PartitionResult
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionFacts, TransactionsAdmin
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.lanes import job_progress
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.storage.local import LocalStore
from tests.spark_support import make_job

PRODUCER_ID = 77


def hanging(worlds: Worlds, **options: Any) -> tuple[SimulatedCopy, CopyJob]:
    """A topic with an open transaction at offset 10, and many records of others behind it."""
    copy = worlds.copy(lambda source: plain(source, 10), **options)
    assert copy.slice()["t"].done
    records = [Record(0, 1_700_000_000_000, None, b"open", [])]
    batch = encode_batch(records, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0, transactional=True)
    copy.source.log(KEY).append(batch, transactional=True)
    copy.source.produce("t", [b"of others"] * 1000)
    return copy, copy.job("tail", until={"t": 10**9})


def test_a_copier_names_whose_transaction_holds_a_partition_back(worlds: Worlds) -> None:
    copy, job = hanging(worlds)
    result = copy.slice(job, seconds=4.0)["t"]
    assert (result.lag, result.held_back, result.is_held, result.error) == (0, 1001, True, None)
    assert (result.held_by, result.held_since_ms) == (f"producer id {PRODUCER_ID}", -1)


@pytest.mark.parametrize(
    ("state", "partitions", "since_ms"),
    [("Ongoing", (KEY,), 1_800_000_000_000), ("Ongoing", (), -1), ("CompleteAbort", (), -1)],
)
def test_its_age_is_that_of_the_transaction_and_not_of_its_records(
    worlds: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    partitions: tuple[tuple[str, int], ...],
    since_ms: int,
) -> None:
    """Applications choose the times of their records: one that writes of last year holds nobody back for a year."""
    copy, job = hanging(worlds)
    facts = TransactionFacts("app", PRODUCER_ID, state, 1)
    described = replace(facts, partitions=partitions, start_time_ms=1_800_000_000_000)
    asked: list[set[int]] = []

    def listed(_self: TransactionsAdmin, *, producer_ids: set[int]) -> list[TransactionFacts]:
        asked.append(producer_ids)
        return [facts]

    monkeypatch.setattr(TransactionsAdmin, "list_transactions", listed)
    monkeypatch.setattr(TransactionsAdmin, "describe_transactions", lambda _self, _listed: [described])
    result = copy.slice(job, seconds=4.0)["t"]
    assert result.held_by == f"transactional id app (producer id {PRODUCER_ID})"
    assert result.held_since_ms == since_ms
    assert asked == [{PRODUCER_ID}], "a cluster may have a hundred thousand transactional ids"


def test_nobody_is_named_where_the_brokers_do_not_say_it(worlds: Worlds) -> None:
    copy, job = hanging(worlds)
    copy.source.fault("code", apis.DESCRIBE_PRODUCERS, times=10**6, code=29)
    result = copy.slice(job, seconds=4.0)["t"]
    assert (result.is_held, result.held_by, result.held_since_ms) == (True, "", -1)


def test_a_transaction_that_ends_in_time_holds_nothing_back(worlds: Worlds) -> None:
    copy, job = hanging(worlds)
    copy.source.log(KEY).write_marker(PRODUCER_ID, 0, commit=True)
    result = copy.slice(job, seconds=4.0)["t"]
    assert (result.is_held, result.held_by, result.held_back) == (False, "", 0)


# -- the driver -------------------------------------------------------------------------------------------------------


def held(position: int = 10, **fields: Any) -> PartitionResult:
    values = {"lag": 0, "held_back": 1001, "is_held": True, "held_by": "producer id 77", **fields}
    return PartitionResult(
        lane=0,
        topic="orders",
        partition=0,
        source_offset=position,
        target_offset=position,
        resumed_offset=position,
        verdict="equal",
        **values,
    )


class Driver:
    """A tail's progress under a clock of the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.progress = JobProgress(make_job("tail", "file:///unused", 1, 1, None), LocalStore(folder))
        self.now = 1_800_000_000.0
        monkeypatch.setattr(job_progress, "utc_now", lambda: datetime.fromtimestamp(self.now, UTC))

    def after(self, seconds: float, result: PartitionResult) -> list[dict[str, Any]]:
        self.now += seconds
        self.progress.record([result])
        return self.progress.progress()["troubles"]  # type: ignore[return-value]


def test_what_is_held_back_for_longer_than_a_transaction_may_last_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, monkeypatch)
    assert driver.after(0, held()) == []
    assert driver.after(899, held()) == []
    (trouble,) = driver.after(1, held())
    assert (trouble["state"], trouble["code"], trouble["topic"]) == ("stuck", "TRANSACTION_HOLDS", "orders")
    assert trouble["seconds"] >= 900
    assert "an open transaction of producer id 77 holds back everything from source offset 10" in trouble["what"]
    assert driver.progress.progress()["partitions_stuck"] == 1
    assert not driver.progress.finished
    # Somebody has aborted it.
    assert driver.after(60, held(2000, is_held=False, held_back=0)) == []


def test_transactions_that_follow_each_other_are_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, monkeypatch)
    for number in range(10):
        assert driver.after(600, held(10 + number)) == []


def test_one_that_was_left_behind_long_ago_is_trouble_from_the_first_slice_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, monkeypatch)
    (trouble,) = driver.after(0, held(held_since_ms=int((driver.now - 86_400) * 1000)))
    assert trouble["seconds"] >= 86_399


def test_a_partition_at_its_stop_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, monkeypatch)
    assert driver.after(0, held(held_since_ms=0, done=True)) == []
