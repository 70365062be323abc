"""Where decided steps go on the target: markers for holes, runs of the offset map where the shift changes.

All is arithmetic on three numbers of a partition: the shift in force (source offset minus target offset), the source
offset that is decided next, and the target offset where the next step will land. Too many markers (a hole filled
twice), holes left out (mapped), a log that begins elsewhere: each of them only changes the shift from some record on,
and a new run is durable before the first record that needs it is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.copy.transform import Append, CopyOp, Hole
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import ForeignData, HolesExceedBudget
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.store import LaneMaps

log = logging.getLogger(__name__)

#: This many markers never exceed ``max_markers_per_record``: at the head of a log there are no records yet.
GRACE_MARKERS = 1_000_000
#: The time limit applies to the remaining holes only after holes have been filled for this long.
_MEASURED_SECONDS = 10.0


class OffsetLayout:
    """Queues steps for a lane's partitions, and makes their map runs durable before the records are sent."""

    def __init__(self, job: CopyJob, maps: LaneMaps) -> None:
        self._job = job
        self._maps = maps

    def place(self, copy: PartitionCopy, steps: Sequence[CopyOp]) -> None:
        """Queue steps that follow the ones placed before.

        :raises ForeignData: a hole was filled twice, and the policy is to fail.
        :raises HolesExceedBudget: there are more holes than the budget allows, and the policy is to fail.
        :raises OffsetMapConflict: another writer writes this partition's runs.
        """
        if copy.spec.verdict is Verdict.TRANSACTIONAL:
            place_in_transactions(copy, steps)
            return
        runs: list[OffsetRange] = []
        placed: list[CopyOp] = []
        for step in steps:
            if isinstance(step, Hole):
                self._place_hole(copy, step, placed)
            else:
                self._place_append(copy, step, placed, runs)
        if runs:
            self._maps.write_ahead(copy.spec, copy.write.confirmed_offset, runs)
        copy.write.queue(placed)

    def _place_hole(self, copy: PartitionCopy, hole: Hole, placed: list[CopyOp]) -> None:
        end = hole.source_offset + hole.count
        missing = end - copy.write.shift - copy.write.projected_offset
        copy.write.source_offset = end
        if missing <= 0 or not copy.write.fills_holes:
            return
        if not self._may_fill(copy, missing):
            copy.write.fills_holes = False
            copy.verdict = Verdict.MAPPED
            return
        placed.append(Hole(end - missing, missing))
        copy.write.projected_offset += missing
        copy.write.markers += missing

    def _place_append(self, copy: PartitionCopy, step: Append, placed: list[CopyOp], runs: list[OffsetRange]) -> None:
        for source_offset, number in step.runs:
            target_offset = copy.write.projected_offset + number
            extra = target_offset + copy.write.shift - source_offset
            if extra:
                if extra > 0 and copy.write.fills_holes:
                    self._overfilled(copy, extra, source_offset)
                self._begin_run(copy, OffsetRange(source_offset, target_offset), runs)
        placed.append(step)
        copy.write.source_offset = step.source_next_offset
        copy.write.projected_offset += step.record_count

    def _begin_run(self, copy: PartitionCopy, run: OffsetRange, runs: list[OffsetRange]) -> None:
        runs.append(run)
        copy.write.shift = run.shift
        copy.verdict = Verdict.MAPPED

    def _overfilled(self, copy: PartitionCopy, extra: int, source_offset: int) -> None:
        if (copy.spec.on_mismatch or self._job.on_mismatch) == "stop":
            raise ForeignData(
                f"a hole was filled twice: the target has {extra} control markers too many before source offset "
                f"{source_offset}",
                where=copy.where(self._job),
                next_step=self._job.after_foreign_data(
                    copy.spec.topic,
                    "find and stop whoever else writes to the target topic; then set offsets.on_mismatch: note "
                    "(or, if its offsets must stay equal, delete the target topic) and clear the task",
                ),
                details={"extra_markers": extra, "source_offset": source_offset},
            )
        log.warning(
            "%s-%s: %s control markers too many before source offset %s, continuing as mapped",
            *copy.key,
            extra,
            source_offset,
        )

    def _may_fill(self, copy: PartitionCopy, count: int) -> bool:
        why = self._over_budget(copy, count)
        if why is None:
            return True
        if (copy.spec.on_mismatch or self._job.on_mismatch) == "stop":
            raise HolesExceedBudget(
                f"{why} for {copy.write.total_records} records exceeds the budget for holes",
                where=copy.where(self._job),
                next_step="raise offsets.max_markers, offsets.max_markers_per_record and offsets.max_fill_time, or let "
                "the partition become mapped (offsets.on_mismatch: note), if its offsets need not stay equal; then "
                "clear the task",
                details={
                    "markers": copy.write.markers + count,
                    "records": copy.write.total_records,
                    "max_markers": self._job.max_markers,
                    "max_fill_seconds": self._job.max_fill_seconds,
                },
            )
        log.warning("%s-%s: %s exceeds the budget for holes, continuing as mapped", *copy.key, why)
        return False

    def _over_budget(self, copy: PartitionCopy, count: int) -> str | None:
        """Return which part of the budget filling a hole would exceed; None: the hole may be filled."""
        total = copy.write.markers + count
        by_records = max(GRACE_MARKERS, copy.write.total_records * self._job.max_markers_per_record)
        if total > min(self._job.max_markers, by_records):
            return f"writing {total} control markers"
        limit = self._job.max_fill_seconds
        rest = copy.remaining_fill_seconds
        # At the beginning of a slice, a few slow answers would weigh too much.
        if rest > limit and copy.write.fill_seconds >= min(_MEASURED_SECONDS, limit):
            return f"filling holes for another {rest:.0f} s"
        return None

    def settle_end(self, copy: PartitionCopy) -> None:
        """Begin a new run if all is copied and the target's markers reach beyond the source's end.

        Later records then have another shift.

        :raises ForeignData: as :meth:`place`.
        """
        extra = copy.write.excess_markers
        if extra <= 0 or not copy.write.fills_holes:
            return
        self._overfilled(copy, extra, copy.write.source_offset)
        runs: list[OffsetRange] = []
        self._begin_run(copy, OffsetRange(copy.write.source_offset, copy.write.projected_offset), runs)
        self._maps.write_ahead(copy.spec, copy.write.confirmed_offset, runs)


def place_in_transactions(copy: PartitionCopy, steps: Sequence[CopyOp]) -> None:
    """Queue the steps with records. The leader chooses the offsets; holes only advance the position."""
    for step in steps:
        if isinstance(step, Hole):
            copy.write.source_offset = step.source_offset + step.count
        else:
            copy.write.queue([step])
            copy.write.source_offset = step.source_next_offset
        copy.write.owes_position = True
