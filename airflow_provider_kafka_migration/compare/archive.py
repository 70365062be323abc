"""Compares the target with the archive where the source deleted records before they were compared.

The archive of a seed through S3 holds each batch with the bytes that were read from the source, and a checksum. It ends
where the seed ended, so it does not contain what the tail copied (except in split mode).
"""

from __future__ import annotations

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, compare_content
from airflow_provider_kafka_migration.compare.logs import ArchiveLog, CommittedLog
from airflow_provider_kafka_migration.compare.proven import joined
from airflow_provider_kafka_migration.compare.spans import Spans
from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.documents.proof import ContentRange, PartitionContent, TopicRules
from airflow_provider_kafka_migration.errors import Interrupted, Terminal
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap

#: The reason where the archive is intact but ends before what was deleted.
NOT_ARCHIVED = "the archive does not have it"
_NOTHING_MAY_GO = TopicRules(compacted=False, delete_retention_ms=None)


def place_of(offset_map: PartitionMap, compared: ContentRange, source_offset: int) -> int:
    """Return the target offset, within the range, at which the counterpart of a source offset begins."""
    if source_offset <= compared.source_start_offset:
        return compared.target_start_offset
    if source_offset >= compared.source_end_offset:
        return compared.target_end_offset
    found = offset_map.translate(source_offset).target_offset
    assert found is not None
    return max(compared.target_start_offset, min(found, compared.target_end_offset))


def is_final(content: PartitionContent) -> bool:
    """Return whether comparing again would find no more: the archive was usable for all that the source deleted.

    Where it was not usable (access denied, a broken segment), a later comparison has to try it again.
    """
    return content.uncompared_reason in ("", NOT_ARCHIVED)


def compare_deleted(
    content: PartitionContent,
    compared: ContentRange,
    offset_map: PartitionMap,
    index: SegmentIndex,
    target: CommittedLog,
    options: ContentOptions,
) -> PartitionContent:
    """Complete a result with the archive: compare what it has of the ranges that the source had deleted.

    What the archive lacks, or cannot be used for, stays uncompared, with the reason. What differs is a difference.

    :raises Transient: the storage does not answer; trying again may help.
    """
    left, reason = Spans(), ""
    found = content.model_copy(update={"uncompared": [], "uncompared_reason": ""})
    for from_offset, until_offset in content.uncompared:
        try:
            # The archive covers a gap left by retention without having its records, which proves nothing.
            reach = min(index.read_until_offset(from_offset), until_offset)
            if reach > from_offset:
                found = _with_piece(found, compared, offset_map, (from_offset, reach), index, target, options)
        except Interrupted:
            raise
        except Terminal as error:
            reach, reason = from_offset, error.what
        if reach < until_offset:
            left.add(reach, until_offset)
            reason = reason or NOT_ARCHIVED
    return found.model_copy(update={"uncompared": left.ranges(), "uncompared_reason": reason if left else ""})


def _with_piece(
    content: PartitionContent,
    compared: ContentRange,
    offset_map: PartitionMap,
    stretch: tuple[int, int],
    index: SegmentIndex,
    target: CommittedLog,
    options: ContentOptions,
) -> PartitionContent:
    piece = compared.model_copy(
        update={
            "source_start_offset": stretch[0],
            "source_end_offset": stretch[1],
            "target_start_offset": place_of(offset_map, compared, stretch[0]),
            "target_end_offset": place_of(offset_map, compared, stretch[1]),
        }
    )
    source = ArchiveLog(index, stretch[0])
    found = compare_content(piece, offset_map, _NOTHING_MAY_GO, source, target, options)
    both = joined(content, found)
    return both.model_copy(
        update={
            # The comparison with the source has already read, and counted, the target's records of this range.
            "target_records": content.target_records + max(0, found.target_records - content.uncompared_records),
            "uncompared_records": max(0, content.uncompared_records - found.target_records),
            "archive_records": content.archive_records + found.compared,
        }
    )
