"""The tail's job, and what runs beside it: the same in a migration and in a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.documents.copy import CopyJob, StopAt
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.jobs import copy_jobs, target_losses
from airflow_provider_kafka_migration.planning.follow import Follower, lanes_with
from airflow_provider_kafka_migration.record import producer_ids
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import MapWriter, update_map
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.schemas.sync import SchemaFollower

PHASE: Final = "tail"

#: Something to do now and then while the tail copies.
Pass = Callable[[PhaseContext], object]


@contextmanager
def beside(context: PhaseContext, *before: Pass) -> Iterator[None]:
    """Run what has to run while the tail copies, in threads, until the ``with`` block ends.

    :param before: passes that run before those for changes of the source.
    """
    with (
        Follower(context, take_over.follow, target_losses.note, *write_grants.passes(context.spec), *before),
        SchemaFollower(context),
        MapWriter(context.record, context.target),
        copy_jobs.beside(context),
    ):
        yield


def follow(context: PhaseContext, memory: dict[str, Any], *before: Pass) -> None:
    """Run the same once, for a task that wakes up now and then."""
    producer_ids.renew_if_due(context.record, context.target, memory)
    Follower(context, take_over.follow, target_losses.note, *write_grants.passes(context.spec), *before).once()
    SchemaFollower(context).once(memory)
    update_map(context.record, context.target)


def write(record: MigrationRecord, source: Cluster, former: CopyJob | None) -> CopyJob:
    """Write the job and return it.

    :param former: the job of an earlier run; None: the seed's job is where it begins.
    :raises Terminal: nothing was seeded yet.
    """
    base = former or record.job("seed")
    if base is None:
        raise Terminal("there is no seed job", where=record.where(PHASE), next_step="run seed first")
    lanes = [
        lane.model_copy(
            update={"partitions": [item.model_copy(update={"until_offset": None}) for item in lane.partitions]}
        )
        for lane in base.lanes
        if lane.half != "backup"
    ]
    job = copy_jobs.build_job(record, source, "tail", copy_jobs.with_policies(record.spec, lanes), base)
    planned = copy_jobs.planned_partitions(record.spec, record.plan())
    # Partitions that were dropped from the plan are no longer copied; the follower picks up those that were added.
    job = job.model_copy(update={"lanes": lanes_with(job, planned, {})})
    record.journal.check_holds()
    record.journal_store.put(copy_jobs.job_key(record, PHASE), job.canonical())
    return job


def behind(
    record: MigrationRecord, target: Cluster, job: CopyJob, stop: StopAt, *, source: Cluster | None = None
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return partitions that have not reached their stop offset: (position, stop offset). Queries the brokers.

    :param source: as in :func:`copy_jobs.behind`.
    """
    until = {item.key: stop.offset(*item.key) for item in job.partitions}
    offsets = {key: 0 if value is None else value for key, value in until.items()}
    return copy_jobs.behind(record, target, job, offsets, source=source)
