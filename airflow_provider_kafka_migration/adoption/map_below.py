"""Positions below a boundary that another tool left: from compared contents, or from its offset syncs.

What the tool wrote several times is mapped to the last copy: whoever starts there reads nothing twice behind it. And
nothing is skipped: each life of the tool began at or below the end of the one before it, so the records from any offset
on follow its last copy, in the last copies of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from airflow_provider_kafka_migration.adoption.alignment import Alignment, OffsetSync
from airflow_provider_kafka_migration.adoption.starts import Candidate
from airflow_provider_kafka_migration.documents.adoption import BelowMap
from airflow_provider_kafka_migration.offset_map.below import BelowRange, flat_ranges


def below_map(
    migration_id: str,
    candidate: Candidate,
    alignment: Alignment,
    target_end_offset: int,
    policy: Literal["exact", "offset_syncs", "none"],
    syncs: Iterable[OffsetSync] = (),
) -> BelowMap | None:
    """Return the map below a boundary; None: groups that lag behind it get no position.

    It is exact only if everything that the target has was compared, and nothing is missing; and only from the first
    source record that is there, unless that is the first one of the source. Else the ranges are positions that are
    known, and the translation takes the nearest one below.
    """
    if policy == "none":
        return None
    if policy == "exact":
        ranges = last_copies(alignment.ranges)
    else:
        known = [BelowRange(*sync, 1) for sync in syncs if sync.target_offset < target_end_offset]
        ranges = last_copies(item for item in known if item.source_first < alignment.source_offset)
    is_exact = policy == "exact" and alignment.whole and alignment.missing == 0
    begins = min((item.source_first for item in ranges), default=alignment.source_offset)
    return BelowMap(
        migration_id=migration_id,
        topic=candidate.topic,
        partition=candidate.partition,
        source_offset=alignment.source_offset,
        target_offset=target_end_offset,
        is_exact=is_exact,
        exact_from_offset=begins if is_exact and not alignment.from_source_start else 0,
        ranges=flat_ranges(ranges),
    )


def last_copies(ranges: Iterable[BelowRange]) -> list[BelowRange]:
    """Cut ranges so that each source offset is in the last one that has it; ascending on both sides."""
    found: list[BelowRange] = []
    lowest: int | None = None
    for item in sorted(ranges, key=lambda item: item.target_first, reverse=True):
        count = item.count if lowest is None else min(item.count, lowest - item.source_first)
        if count > 0:
            found.append(BelowRange(item.source_first, item.target_first, count))
            lowest = item.source_first
    return found[::-1]
