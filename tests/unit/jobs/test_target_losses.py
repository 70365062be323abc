"""What people are told of records that the target has lost after they were copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import ready

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.cli.status import trouble_rows
from airflow_provider_kafka_migration.copy.archive import write_loss
from airflow_provider_kafka_migration.documents.copy import LaneReading, TargetLossRecord
from airflow_provider_kafka_migration.evidence import bundle
from airflow_provider_kafka_migration.jobs import target_losses
from airflow_provider_kafka_migration.jobs.copy_jobs import read_progress
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.record import steps
from tests.spark_support import make_job

CASES = Path(__file__).resolve().parents[2] / "cases"
LOSS = TargetLossRecord.parse((CASES / "target_loss" / "v1" / "loss.json").read_bytes())


def test_documents_of_version_1_are_read_and_written() -> None:
    data = (CASES / "target_loss" / "v1" / "loss.json").read_bytes().strip()
    assert TargetLossRecord.parse(data).canonical() == data
    data = (CASES / "lane_reading" / "v1" / "lane_with_ends.json").read_bytes().strip()
    assert LaneReading.parse(data).canonical() == data


@pytest.mark.parametrize("kind", ["cutover", "client_switch"])
def test_approvals_and_evidence_name_them(tmp_path: Path, kind: Any) -> None:
    context = ready(tmp_path)
    assert "that the target lost" not in request.make_facts(context, kind).body
    write_loss(context.journal_store, LOSS)
    body = request.make_facts(context, kind).body
    assert "## Records that the target lost after they were copied" in body
    assert "the target lost offsets 20..59 of orders" in body
    (left,) = (
        item for item in bundle.not_copied(context.record, context.record.plan()) if item["kind"] == "target_loss"
    )
    assert (left["name"], left["offsets"]) == ("orders-1", [20, 60])


def test_the_journal_has_each_of_them_once(tmp_path: Path) -> None:
    context = ready(tmp_path)
    target_losses.note(context)
    assert context.journal.steps(steps.TARGET_LOST_RECORDS) == []
    write_loss(context.journal_store, LOSS)
    for _ in range(2):
        target_losses.note(context)
    write_loss(context.journal_store, LOSS.model_copy(update={"from_target_offset": 80, "seen_at": "2026-11-02"}))
    target_losses.note(context)
    entries = context.journal.steps(steps.TARGET_LOST_RECORDS)
    assert [entry.details["from_target_offset"] for entry in entries] == [60, 80]
    assert "orders-1: the target lost offsets 20..59" in entries[0].reason


def test_a_loss_that_killed_copiers_meet_again_is_told_once(tmp_path: Path) -> None:
    """The copy goes on towards 60 from 20, is killed at 35 and at 50; later it loses what is below 80."""
    context = ready(tmp_path)
    for number, fields in enumerate(
        ({}, {"to_target_offset": 35}, {"to_target_offset": 50}, {"from_target_offset": 80, "to_target_offset": 70})
    ):
        target_losses.note(context)
        write_loss(context.journal_store, LOSS.model_copy(update={"seen_at": f"2026-11-0{number + 1}", **fields}))
    target_losses.note(context)
    first, second = target_losses.found(context.record)
    assert [(item["to_target_offset"], item["seen_at"]) for item in first["seen_again"]] == [
        (35, "2026-11-02"),
        (50, "2026-11-03"),
    ]
    assert "the target lost offsets 20..59" in first["what"]
    assert "went on from 35 at 2026-11-02, from 50 at 2026-11-03" in first["what"]
    assert (second["from_target_offset"], "seen_again" in second) == (80, False)
    assert len(context.journal.steps(steps.TARGET_LOST_RECORDS)) == 2


def test_the_same_place_lost_twice_is_two_losses(tmp_path: Path) -> None:
    context = ready(tmp_path)
    write_loss(context.journal_store, LOSS.model_copy(update={"seen_at": "2026-11-01", "to_target_offset": 35}))
    write_loss(context.journal_store, LOSS.model_copy(update={"seen_at": "2026-11-02", "to_target_offset": 20}))
    assert [item["to_target_offset"] for item in target_losses.found(context.record)] == [35, 20]


def test_progress_and_status_say_so(tmp_path: Path) -> None:
    context = ready(tmp_path)
    job = make_job("tail", "file:///unused", 1, 1, None).model_copy(update={"migration_id": context.migration_id})
    progress = JobProgress(job, context.journal_store)
    progress._standing["orders", 0, False].went_back = ((60, 20),)
    document = progress.write_progress()
    said = read_progress(context.record, "tail")
    assert said is not None
    assert said.went_back == 1
    assert "THE TARGET LOST RECORDS after they were copied in 1 partition" in said.message

    class Found:
        progress = {"tail": document}

    ((name, text),) = trouble_rows(Found())  # type: ignore[arg-type]
    assert (name, text.startswith("the target lost records of 1 partitions")) == ("tail", True)
