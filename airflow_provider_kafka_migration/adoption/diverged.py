"""What the former source of a mirror has beyond the mirror's end, when clients of the promoted side fail back to it.

A mirror that was promoted without its source ends where its copiers had come to. A source that returns may have more:
records that were acknowledged there and never mirrored, or only the markers of its last transactions. Nothing of it is
ever overwritten: ``adopt.on_diverged`` decides what becomes of a partition with such records.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kafka_migration.adoption.last_records import LogEnd
from airflow_provider_kafka_migration.adoption.starts import Candidate
from airflow_provider_kafka_migration.documents.adoption import AdoptedStart
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import only_holes
from airflow_provider_kafka_migration.verbs import Choice


@dataclass(frozen=True)
class PastDiverged:
    """Where the copy of such a partition begins, or why it does not (one of the two texts)."""

    start: AdoptedStart
    refused: str = ""
    left_out: str = ""


def past_diverged(
    context: PhaseContext, candidate: Candidate, start: AdoptedStart, target: LogEnd, policy: Choice
) -> PastDiverged:
    """Decide about a partition of the target (the former source) whose log ends behind the boundary.

    :param start: the boundary.
    :param target: the bounds of its log now.
    :param policy: ``adopt.on_diverged``.
    :raises MigrationError: a log cannot be read.
    """
    end = target.log_end_offset
    if why := target.why_not_at(end):
        return PastDiverged(start, refused=why)
    behind = f"offsets {start.target_offset} to {end - 1} of {candidate.target_topic}-{candidate.partition}"
    first = max(start.target_offset, target.log_start_offset)
    if first == start.target_offset and only_holes(context.target, candidate.target_key, first, end):
        return PastDiverged(_behind_holes(context, candidate, start, end, behind))
    what = f"{behind} were never mirrored: the cluster has records that the promoted one lacks"
    if policy == "note":
        return PastDiverged(start, left_out=left_out_by_policy(what))
    if policy == "repair":
        note = f"{what}; they stay, and what clients wrote since the promotion follows from {end} on"
        return PastDiverged(start.model_copy(update={"target_offset": end, "note": note}))
    return PastDiverged(
        start,
        refused=f"{what}. Keep them apart, then set adopt.on_diverged: repair puts what clients have written since "
        "behind them, note copies nothing to this partition",
    )


def left_out_by_policy(what: str) -> str:
    """Return why nothing is copied to a partition whose logs have diverged."""
    return f"{what}; nothing is copied to this partition (adopt.on_diverged)"


def _behind_holes(
    context: PhaseContext, candidate: Candidate, start: AdoptedStart, end: int, behind: str
) -> AdoptedStart:
    """Begin behind markers. Offsets stay as they are if the source has as many holes, such as the mirror's fence."""
    source_offset = start.source_offset + end - start.target_offset
    if only_holes(context.source, candidate.key, start.source_offset, source_offset):
        update = {"source_offset": source_offset, "target_offset": end, "source_hole_end_offset": -1}
        return start.model_copy(
            update={**update, "note": f"{behind} are no records, and the other side has none there"}
        )
    note = f"{behind} are no records; what clients wrote since the promotion follows from {end} on"
    return start.model_copy(update={"target_offset": end, "note": note})
