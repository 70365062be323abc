"""A job that goes on takes over what may still change in the spec: a person changes it because the copy has stopped."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.split import Split
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.phases import backup, seed
from airflow_provider_kafka_migration.planning import tail_job
from airflow_provider_kafka_migration.spec.advice import JOB_FIELDS

#: What a job keeps for good: its identity, what was planned, and what cannot change after the precheck.
KEPT = {"version", "migration_id", "name", "source_reference", "target_reference", "storage_reference"}
KEPT |= {"journal_location", "archive_location", "via", "producers", "timestamps", "stop_key", "way_back", "mirror"}
KEPT |= {"target_deletes", "target_compacts", "provenance"}

CHANGES: list[tuple[str, str, Any, str, Any]] = [
    ("offsets", "max_markers", 7, "max_markers", 7),
    ("offsets", "max_markers_per_record", 2.5, "max_markers_per_record", 2.5),
    ("offsets", "max_fill_time", "2h", "max_fill_seconds", 7200.0),
    ("offsets", "on_mismatch", "stop", "on_mismatch", "stop"),
    ("offsets", "on_source_gap", "note", "on_source_gap", "note"),
    ("seed", "segment_max_bytes", "64MiB", "segment_max_bytes", 64 * 1024 * 1024),
    ("seed", "max_concurrent_partitions", 9, "max_concurrent_partitions", 9),
]


def seed_job(world: World) -> CopyJob:
    seed.prepare(world.context())
    job = world.context().record.job("seed")
    assert job is not None
    return job


def written_tail_job(world: World) -> CopyJob:
    context = world.context()
    return tail_job.write(context.record, context.source, context.record.job("tail"))


@pytest.mark.parametrize(("section", "key", "value", "field", "expected"), CHANGES)
@pytest.mark.parametrize("phase", ["seed", "tail"])
def test_a_changed_key_reaches_the_job(
    worlds: Worlds, phase: str, section: str, key: str, value: Any, field: str, expected: Any
) -> None:
    world = worlds.at(phase)
    write = seed_job if phase == "seed" else written_tail_job
    before = write(world)
    assert getattr(before, field) != expected
    world.change_spec(**{section: {**world.spec.model_dump(mode="json")[section], key: value}})
    after = write(world)
    assert getattr(after, field) == expected
    assert [item.key for item in after.partitions] == [item.key for item in before.partitions]


@pytest.mark.parametrize("phase", ["seed", "tail"])
def test_the_policy_of_single_topics_reaches_their_partitions(worlds: Worlds, phase: str) -> None:
    by_topic = [{"topics": ["orders"], "mode": "auto"}]
    world = worlds.at(phase, offsets={"by_topic": by_topic})
    write = seed_job if phase == "seed" else written_tail_job
    assert {item.on_mismatch for item in write(world).partitions} == {"note"}
    world.change_spec(offsets={"by_topic": by_topic, "on_mismatch": "stop"})
    assert {item.on_mismatch for item in write(world).partitions} == {"stop"}


def test_every_field_of_a_job_is_renewed_or_kept_on_purpose(worlds: Worlds) -> None:
    """A new field belongs into a row of KEYS if the spec decides it, or into KEPT."""
    assert set(CopyJob.model_fields) == JOB_FIELDS | KEPT | {"generation", "lanes"}
    world = worlds.at("seed")
    job = seed_job(world)
    context = world.context()
    assert copy_jobs.renewed(context.record, context.source, job) == job


def test_a_backup_that_goes_on_takes_over_changed_limits(worlds: Worlds) -> None:
    split = Split(worlds.at("plan"))
    context = split._context("source", Journal(split.world.journal_store, MIGRATION))
    backup.prepare(context)
    before = context.record.job("backup")
    split.world.change_spec(seed={"max_bytes_per_second": 5_000, "segment_max_bytes": "64MiB"})
    changed = split._context("source", Journal(split.world.journal_store, MIGRATION))
    backup.prepare(changed)
    after = changed.record.job("backup")
    assert before is not None
    assert after is not None
    assert (after.max_bytes_per_second, after.segment_max_bytes) == (5_000, 64 * 1024 * 1024)
    assert (after.generation, after.lanes) == (before.generation, before.lanes)
