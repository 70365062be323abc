"""The pace of the comparison in the background, and when it does not run at all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.copy_job import (
    CopyJob,
    CopyLane,
    CopyPartition,
    ProducerIds,
    ProofSettings,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.replication.clients import Clients
from airflow_provider_kafka_migration.replication.lane_prover import LaneProver, Pace
from airflow_provider_kafka_migration.storage.base import ObjectStore


def test_the_pace_holds_readers_back_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(1_000, wait)
    for _ in range(20):
        pace(500)
    # 10,000 bytes at 1,000 per second.
    assert now[0] - 100.0 == pytest.approx(10.0)
    # Idle time is not saved up beyond one second.
    now[0] += 1_000
    began = now[0]
    pace(1_000)
    assert now[0] == began
    pace(3_000)
    assert now[0] - began == pytest.approx(3.0)


def test_without_a_limit_nobody_waits() -> None:
    def never(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s")

    Pace(None, never)(10**12)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"proof": None}, Verdict.EQUAL),
        ({"name": "restore"}, Verdict.EQUAL),
        ({"name": "seed"}, Verdict.EQUAL),
        ({}, Verdict.TRANSACTIONAL),
    ],
)
def test_only_a_tail_that_is_told_to_compares(
    local_store: ObjectStore, changes: dict[str, Any], verdict: Verdict
) -> None:
    class Nothing(Clients):
        def wire(self, name: str, **_: Any) -> Any:
            raise AssertionError(f"{name} was opened")

    spec = CopyPartition(
        topic="t", target_topic="t", partition=0, source_start_offset=0, target_start_offset=0, verdict=verdict
    )
    lane = CopyLane(lane=0, transactional_id="x", partitions=[spec])
    job = CopyJob(
        migration_id="m1",
        name="tail",
        generation=1,
        journal_location="file:///tmp",
        archive_location="file:///tmp",
        via="direct",
        producers=ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0),
        lanes=[lane],
        proof=ProofSettings(),
    ).model_copy(update=changes)
    prover = LaneProver(job, lane, Nothing({}), local_store, time.monotonic() + 60)
    assert prover.runs is False
    with prover:
        pass
    assert LaneProver(
        job.model_copy(update={"name": "tail", "proof": ProofSettings()}),
        lane.model_copy(update={"partitions": [spec.model_copy(update={"verdict": Verdict.EQUAL})]}),
        Nothing({}),
        local_store,
        time.monotonic() + 60,
    ).runs
