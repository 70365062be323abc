"""Figures of a copy job speak of all its drivers, and its records are those that the target's log has."""

from __future__ import annotations

from pathlib import Path

from job_documents import job, lane, partition, result
from placing_world import World

from airflow_provider_kafka_migration.copy.partition import ResumePoint
from airflow_provider_kafka_migration.documents.copy import CopiedRecords
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.storage.local import LocalStore

CASES = Path(__file__).parents[2] / "cases" / "copied_records" / "v1"


def test_a_new_driver_counts_on_from_the_one_before(local_store: LocalStore) -> None:
    both = lane(0, partition("a", 0), partition("a", 1))
    first = JobProgress(job([both], "seed"), local_store)
    first.record([result(both, "a", 0, records=7, copied_bytes=70, total_records=7, total_holes=1)])
    first.write_progress()
    second = JobProgress(job([both], "seed"), local_store)
    second.record([result(both, "a", 0, done=True, records=3, copied_bytes=30, total_records=12, total_holes=1)])
    second.record([result(both, "a", 1, done=True)])
    progress = second.progress()
    assert progress["records"] == 3, "what this driver has moved"
    everything = progress["all_runs"]
    assert isinstance(everything, dict)
    assert (everything["runs"], everything["records"], everything["copied_bytes"]) == (2, 10, 100)
    partitions = progress["partitions"]
    assert isinstance(partitions, list)
    assert [(item["total_records"], item["total_holes"]) for item in partitions] == [(12, 1), (-1, -1)]


def test_a_progress_document_of_an_earlier_release_is_one_run(local_store: LocalStore) -> None:
    local_store.put("m1/progress/seed.json", b'{"version":1,"records":5,"copied_bytes":50,"partitions":[]}')
    everything = JobProgress(job([lane(0, partition("a", 0))], "seed"), local_store).progress()["all_runs"]
    assert isinstance(everything, dict)
    assert (everything["runs"], everything["records"], everything["holes"]) == (2, 5, 0)


def test_records_on_the_target_follow_from_its_log(local_store: LocalStore) -> None:
    """Sequence numbers count records, so a log that ends at 10 with sequence 7 has three markers."""
    world = World(local_store, Verdict.EQUAL)
    copy = world.copy
    copy.resume(ResumePoint(10, 10, 7, 0))
    assert (copy.confirmed_records, copy.confirmed_holes) == (7, 3)
    world.place([10, 11], [14])
    assert copy.confirmed_records == 7, "decided is not confirmed"
    copy.write.take_append()
    assert (copy.confirmed_records, copy.result(done=False).total_records) == (7, 7)
    copy.confirm_append()
    assert (copy.confirmed_records, copy.confirmed_holes) == (9, 3)
    copy.reset(resume_at=0.0)
    assert copy.confirmed_records == -1, "until the log was read again nobody knows"


def test_a_stored_document_is_read() -> None:
    found = CopiedRecords.parse((CASES / "seed.json").read_bytes())
    assert found.records == {"orders-0": 900, "orders-1": 0}
    assert found.holes == {"orders-0": 3, "orders-1": 0}
