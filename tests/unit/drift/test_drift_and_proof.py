"""Configs that change on the source change the rules by which the tail compares in the background."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from phase_support import ready

from airflow_provider_kafka_migration.documents.copy import CopyJob, ProducerIds, ProofSettings
from airflow_provider_kafka_migration.documents.proof import TopicRules
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.record.record import MigrationRecord

NEW = ProofSettings(topics={"orders": TopicRules(compacted=True, delete_retention_ms=5)})


@pytest.mark.parametrize(
    ("has_changed", "may_change", "expected"), [(True, True, NEW), (False, True, None), (True, False, None)]
)
def test_the_tails_job_gets_the_rules_of_the_new_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_changed: bool, may_change: bool, expected: object
) -> None:
    context = ready(tmp_path)
    job = CopyJob(
        migration_id="m1",
        name="tail",
        generation=context.journal.generation,
        journal_location="file:///tmp",
        archive_location="file:///tmp",
        via="direct",
        producers=ProducerIds(data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0),
        lanes=[],
        proof=ProofSettings(),
    )
    context.journal_store.put(copy_jobs.job_key(context.record, "tail"), job.canonical())
    plan = context.record.plan()
    changes = [SimpleNamespace(configs={"orders": {}})] if has_changed else []
    monkeypatch.setattr(MigrationRecord, "supplements", lambda _: changes)
    monkeypatch.setattr(copy_jobs, "proof_settings", lambda *_: NEW)
    monkeypatch.setattr(take_over, "_may_change", lambda _: may_change)
    take_over._refresh_proof(context.record, context.source, plan)
    found = context.record.job("tail")
    assert found is not None
    assert found.proof == (expected or ProofSettings())
    assert found.model_copy(update={"proof": job.proof}) == job, "nothing else has changed"
