"""The driver that compares a mirror: what it makes of rows that Spark does not return."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.compare.mirrored import MirrorResults, unchecked
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison, MirroredRange
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules
from airflow_provider_kafka_migration.errors import BrokerUnreachable, PermissionMissing, ResultMissing
from airflow_provider_kafka_migration.spark import compare_mirror
from airflow_provider_kafka_migration.spark.compare import grouped
from airflow_provider_kafka_migration.spark.launch import main_file, main_name
from airflow_provider_kafka_migration.spark.tasks import TaskFunction
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences
from airflow_provider_kafka_migration.storage.local import LocalStore


def _range(partition: int) -> MirroredRange:
    rules = TopicRules(compacted=False)
    return MirroredRange(
        range=ContentRange(
            topic="orders",
            target_topic="A.orders",
            partition=partition,
            verdict=Verdict.EQUAL,
            source_start_offset=0,
            source_end_offset=10 * (partition + 1),
            target_start_offset=0,
            target_end_offset=10 * (partition + 1),
        ),
        first_source_offset=0,
        first_target_offset=0,
        source_rules=rules,
        target_rules=rules,
    )


@pytest.fixture
def job(tmp_path: Path) -> MirrorComparison:
    return MirrorComparison(
        migration_id="m1",
        name="compare-0123456",
        run="d/r/verify",
        spec_digest="0" * 64,
        journal_location=f"file://{tmp_path}",
        state="mirroring",
        started_at="2026-04-24T10:40:00Z",
        ranges=[_range(number) for number in range(3)],
    )


class Runner:
    """Returns a row for each partition but some."""

    def __init__(self, without: Sequence[int] = (), slots: int = 2) -> None:
        self.without = set(without)
        self.groups = 0
        self.free = slots

    def run(self, _function: TaskFunction, columns: Any, numbers: Sequence[int], **_: str) -> list[dict[str, Any]]:
        self.groups = len(numbers)
        rows = (("orders", number, 10, 0, None) for number in range(3) if number not in self.without)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def slots(self) -> int:
        return self.free

    def cancel(self, group: str) -> None: ...

    def stop(self) -> None: ...


def _pointer(job: MirrorComparison) -> JobPointer:
    return JobPointer(job.journal_location, "m1/jobs/compare-0123456.json", JobReferences(""))


def test_each_partition_has_a_row(job: MirrorComparison) -> None:
    runner = Runner()
    compare_mirror.verify(runner, job, _pointer(job))
    assert runner.groups == 3


@pytest.mark.parametrize(("slots", "tasks"), [(1, 16), (4, 16), (8, 32), (50, 60)])
def test_executors_that_come_after_the_slots_were_counted_find_tasks(slots: int, tasks: int) -> None:
    groups = grouped(Runner(slots=slots), [_range(number).range for number in range(60)])
    assert len(groups) == tasks
    assert sorted(key for group in groups for key in group) == [("orders", number) for number in range(60)]


def test_partitions_without_a_row_fail_the_driver(job: MirrorComparison) -> None:
    with pytest.raises(ResultMissing, match=r"2 of 3 partitions have no row .*orders-0"):
        compare_mirror.verify(Runner(without=[0, 2]), job, _pointer(job))


def test_a_driver_fails_if_nothing_could_be_compared(job: MirrorComparison, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    results = MirrorResults(job, store)
    for number, piece in enumerate(job.ranges):
        error = (BrokerUnreachable if number else PermissionMissing)("no", next_step="do")
        results.write(piece, unchecked(piece, "no"), error)
    with pytest.raises(PermissionMissing):
        compare_mirror._check_any(job, store)
    results.write(job.ranges[0], unchecked(job.ranges[0], "its offset map was corrected"), None)
    compare_mirror._check_any(job, store)


def test_its_main_is_there() -> None:
    assert main_file(main_name("compare-0123456")).name == "compare_mirror.py"
