"""Where decided steps go on the target: markers for holes, runs of the offset map where the shift changes.

All is arithmetic on three numbers of a partition: the shift in force (source offset less target offset), the source
offset that is decided next, and the target offset where the next step will land. Too many markers (a hole filled
twice), holes left out (mapped), a log that begins elsewhere: each is only another shift from some record on, and a new
run is durable before the first record that needs it is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.copy.transform import Append, Hole, Step
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import ForeignData, HolesExceedBudget, Where
from airflow_provider_kafka_migration.offset_map.maps import LaneMaps
from airflow_provider_kafka_migration.offset_map.runs import Run

log = logging.getLogger(__name__)

#: So many markers are always within ``max_markers_per_record``: at the head of a log there are no records yet.
GRACE_MARKERS = 1_000_000
#: For so long holes must have been filled before what is left of them is judged by the time it takes.
_MEASURED_SECONDS = 10.0


class Placer:
    """Queues steps for a lane's partitions and writes runs ahead."""

    def __init__(self, job: CopyJob, maps: LaneMaps) -> None:
        self._job = job
        self._maps = maps

    def place(self, copy: PartitionCopy, steps: Sequence[Step]) -> None:
        """Queue steps that follow on what was placed before.

        :raises ForeignData: a hole was filled twice, and the policy is to fail.
        :raises HolesExceedBudget: more holes than may be filled, and the policy is to fail.
        :raises OffsetMapConflict: somebody else writes this partition's runs.
        """
        if copy.spec.verdict is Verdict.TRANSACTIONAL:
            place_in_transactions(copy, steps)
            return
        runs: list[Run] = []
        placed: list[Step] = []
        for step in steps:
            if isinstance(step, Hole):
                self._place_hole(copy, step, placed)
            else:
                self._place_append(copy, step, placed, runs)
        if runs:
            self._maps.write_ahead(copy.spec, copy.confirmed_offset, runs)
        copy.queue(placed)

    def _place_hole(self, copy: PartitionCopy, hole: Hole, placed: list[Step]) -> None:
        end = hole.source_offset + hole.count
        missing = end - copy.shift - copy.projected_offset
        copy.source_offset = end
        if missing <= 0 or not copy.fills_holes:
            return
        if not self._may_fill(copy, missing):
            copy.fills_holes = False
            copy.verdict = Verdict.MAPPED
            return
        placed.append(Hole(end - missing, missing))
        copy.projected_offset += missing
        copy.markers += missing

    def _place_append(self, copy: PartitionCopy, step: Append, placed: list[Step], runs: list[Run]) -> None:
        for source_offset, number in step.runs:
            target_offset = copy.projected_offset + number
            extra = target_offset + copy.shift - source_offset
            if extra:
                if extra > 0 and copy.fills_holes:
                    self._overfilled(copy, extra, source_offset)
                self._begin_run(copy, Run(source_offset, target_offset), runs)
        placed.append(step)
        copy.source_offset = step.source_next_offset
        copy.projected_offset += step.record_count

    def _begin_run(self, copy: PartitionCopy, run: Run, runs: list[Run]) -> None:
        runs.append(run)
        copy.shift = run.shift
        copy.verdict = Verdict.MAPPED

    def _overfilled(self, copy: PartitionCopy, extra: int, source_offset: int) -> None:
        if (copy.spec.on_mismatch or self._job.on_mismatch) == "fail":
            raise ForeignData(
                f"a hole was filled twice: {extra} control markers too many before source offset {source_offset}",
                where=self._where(copy),
                next_step="delete the target topic and start again, or set offsets.on_mismatch: mapped",
                details={"extra_markers": extra, "source_offset": source_offset},
            )
        log.warning(
            "%s-%s: %s control markers too many before source offset %s, going on as mapped",
            *copy.key,
            extra,
            source_offset,
        )

    def _may_fill(self, copy: PartitionCopy, count: int) -> bool:
        why = self._over_budget(copy, count)
        if why is None:
            return True
        if (copy.spec.on_mismatch or self._job.on_mismatch) == "fail":
            raise HolesExceedBudget(
                f"{why} for {copy.total_records} records is more than may be spent on holes",
                where=self._where(copy),
                next_step="raise offsets.max_markers, offsets.max_markers_per_record and offsets.max_fill_time, or let "
                "the partition become mapped (offsets.mode: auto, offsets.on_mismatch: mapped)",
                details={
                    "markers": copy.markers + count,
                    "records": copy.total_records,
                    "max_markers": self._job.max_markers,
                    "max_fill_seconds": self._job.max_fill_seconds,
                },
            )
        log.warning("%s-%s: %s exceeds the budget for holes, going on as mapped", *copy.key, why)
        return False

    def _over_budget(self, copy: PartitionCopy, count: int) -> str | None:
        """What filling a hole would spend too much of; None: it may be filled."""
        total = copy.markers + count
        by_records = max(GRACE_MARKERS, copy.total_records * self._job.max_markers_per_record)
        if total > min(self._job.max_markers, by_records):
            return f"writing {total} control markers"
        limit = self._job.max_fill_seconds
        rest = copy.remaining_fill_seconds
        # At the beginning of a slice a few slow answers would say too much.
        if rest > limit and copy.fill_seconds >= min(_MEASURED_SECONDS, limit):
            return f"filling holes for another {rest:.0f} s"
        return None

    def settle_end(self, copy: PartitionCopy) -> None:
        """All is copied, and the target's markers reach beyond the source's end: what follows has another shift.

        :raises ForeignData: as :meth:`place`.
        """
        extra = copy.excess_markers
        if extra <= 0 or not copy.fills_holes:
            return
        self._overfilled(copy, extra, copy.source_offset)
        runs: list[Run] = []
        self._begin_run(copy, Run(copy.source_offset, copy.projected_offset), runs)
        self._maps.write_ahead(copy.spec, copy.confirmed_offset, runs)

    def _where(self, copy: PartitionCopy) -> Where:
        return Where(
            migration_id=self._job.migration_id,
            phase=self._job.name,
            topic=copy.spec.topic,
            partition=copy.spec.partition,
            offset=copy.confirmed_source_offset,
        )


def place_in_transactions(copy: PartitionCopy, steps: Sequence[Step]) -> None:
    """Queue what has records: the leader chooses the offsets, and holes leave nothing but a later position."""
    for step in steps:
        if isinstance(step, Hole):
            copy.source_offset = step.source_offset + step.count
        else:
            copy.queue([step])
            copy.source_offset = step.source_next_offset
        copy.owes_position = True
