"""What a copy job has moved, over all its runs: for its journal entry, for the evidence and for people.

Records and holes are exact whatever was killed meanwhile: they follow from the sequence numbers in the target's log, or
from the map of a copy in transactions. Bytes are what the drivers have counted: a killed one could not tell its last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.documents.copied_records import CopiedRecords
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import get_result, partition_name, put_result
from airflow_provider_kafka_migration.record.offset_maps import load_maps

ALL_RUNS = "all runs"
AS_COUNTED = "all runs, as far as their drivers have counted"


def job_figures(
    context: PhaseContext, job: CopyJob, progress: Mapping[str, Any], *, after: str | None = None
) -> dict[str, Any]:
    """The figures of a finished job.

    :param progress: its last progress document.
    :param after: the job before it, whose records are not this one's.
    """
    counted = progress.get("all_runs") or progress
    figures: dict[str, Any] = {
        "records": int(counted.get("records", 0)),
        "copied_bytes": int(counted.get("copied_bytes", 0)),
        "source_bytes": int(counted.get("source_bytes", 0)),
        "holes": int(counted.get("holes", 0)),
        "seconds": counted.get("seconds", -1),
        "runs": int(counted.get("runs", 1)),
        "figures_of": AS_COUNTED,
    }
    copied = _copied(context, job, progress)
    if copied is None:
        return figures
    put_result(context, f"{job.name}-records", copied)
    before = _read(context, after) if after else None
    if after and before is None:
        return figures
    figures["records"] = _difference(copied.records, {} if before is None else before.records)
    if len(copied.holes) == len(copied.records):
        figures["holes"] = _difference(copied.holes, {} if before is None else before.holes)
    return {**figures, "figures_of": ALL_RUNS}


def _difference(now: Mapping[str, int], before: Mapping[str, int]) -> int:
    """A partition that has come since counts from nothing, one that was dropped no longer counts."""
    return sum(now[name] - before.get(name, 0) for name in sorted(now))


def _read(context: PhaseContext, job_name: str) -> CopiedRecords | None:
    data = get_result(context, f"{job_name}-records")
    return None if data is None else CopiedRecords.parse(data)


def _copied(context: PhaseContext, job: CopyJob, progress: Mapping[str, Any]) -> CopiedRecords | None:
    """Totals of all partitions; None if one of them is not known, or the last driver was killed before its end."""
    if not progress.get("finished"):
        return None
    told = {(item["topic"], item["partition"]): item for item in progress.get("partitions", [])}
    transactional = {item.key: item for item in job.partitions if item.verdict is Verdict.TRANSACTIONAL}
    maps = load_maps(context, transactional) if transactional else {}
    records, holes = {}, {}
    for item in job.partitions:
        name = partition_name(item.key)
        if item.key in maps:
            records[name] = sum(run.count or 0 for run in maps[item.key].runs())
            continue
        total = int(told.get(item.key, {}).get("total_records", -1))
        if total < 0:
            return None
        records[name], holes[name] = total, int(told[item.key]["total_holes"])
    return CopiedRecords(migration_id=context.migration_id, job=job.name, records=records, holes=holes)
