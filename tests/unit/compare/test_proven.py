"""Proven ranges: they grow, hold as long as the target's log is the one that was read, and old documents are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from content_support import compare, content_range, copy_of, log_of

from airflow_provider_kafka_migration.compare.proven import (
    Anchor,
    fits,
    grown,
    load_proven,
    proven_key,
    rest_of,
    store_proven,
)
from airflow_provider_kafka_migration.documents.proof import ContentRange, PassedContent, ProvenPartition, ProvenRange
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, PartitionMap
from airflow_provider_kafka_migration.storage.base import ObjectStore

CASES = Path(__file__).parents[2] / "cases" / "proven" / "v1"
WHOLE = content_range(0, 60)


def proven(until: int, *, shift: int = 0) -> ProvenRange:
    """The first ``until`` records of a faithful copy."""
    log = log_of(60)
    piece = content_range(0, until, shift)
    return grown(None, piece, compare(log, copy_of(log), content_range(0, until)), Anchor(until - 1, 3), (0, 0))


def partition(found: ProvenRange | None) -> ProvenPartition:
    return ProvenPartition(
        migration_id="m1", topic="orders", target_topic="orders", partition=0, verdict=WHOLE.verdict, proven=found
    )


def test_a_range_grows_piece_by_piece() -> None:
    log = log_of(60)
    first = proven(25)
    piece = rest_of(WHOLE, first)
    assert piece is not None
    assert (piece.source_start_offset, piece.target_start_offset, piece.source_end_offset) == (25, 25, 60)
    both = grown(first, piece, compare(log, copy_of(log), piece), Anchor(59, 4), (7, 2))
    assert (both.source_start_offset, both.source_end_offset, both.target_end_offset) == (0, 60, 60)
    assert (both.pieces, both.anchor_offset, both.anchor_epoch) == (2, 59, 4)
    assert (both.source_log_start_offset, both.target_log_start_offset) == (7, 2)
    assert (both.content.compared, both.content.source_records) == (60, 60)
    assert both.content.source_digest == both.content.target_digest != first.content.source_digest
    assert both.first_at == first.first_at
    assert rest_of(WHOLE, both) is None
    longer = WHOLE.model_copy(update={"target_end_offset": 61})
    assert rest_of(longer, both) is not None, "what only the target has at its end is compared"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"source_start_offset": 1}, False),
        ({"target_start_offset": 1}, False),
        ({"source_end_offset": 24, "target_end_offset": 24}, False),
        ({"source_end_offset": 25, "target_end_offset": 25}, True),
        ({"target_end_offset": 24}, False),
    ],
)
def test_a_range_that_is_no_first_part_of_what_is_compared_does_not_fit(
    changes: dict[str, int], *, expected: bool
) -> None:
    compared: ContentRange = WHOLE.model_copy(update=changes)
    assert fits(proven(25), compared, PartitionMap([OffsetRange(0, 0)])) is expected


def test_runs_that_were_corrected_since_make_a_range_worthless() -> None:
    compared = content_range(0, 60, target_end=50, verdict="mapped")
    late = PartitionMap([OffsetRange(0, 0), OffsetRange(40, 30)], source_end_offset=60, target_end_offset=50)
    assert fits(proven(25), compared, late)
    early = PartitionMap([OffsetRange(0, 0), OffsetRange(20, 10)], source_end_offset=60, target_end_offset=50)
    assert not fits(proven(25), compared, early)


@pytest.mark.parametrize(
    ("compared_as", "now", "expected"),
    [("", "value", False), ("value", "value", True), ("value", "both", False), ("value", "", False), ("", "", True)],
)
def test_a_range_whose_ids_were_gathered_in_another_way_does_not_fit(
    compared_as: str, now: str, *, expected: bool
) -> None:
    """Ranges of before ids were gathered have no rule: that their list is empty does not mean that no ids occur."""
    found = proven(25)
    content = found.content.model_copy(update={"schema_id_rule": compared_as})
    found = found.model_copy(update={"content": content})
    assert fits(found, WHOLE, PartitionMap([OffsetRange(0, 0)]), now) is expected


def test_documents_are_stored_and_read(local_store: ObjectStore) -> None:
    assert load_proven(local_store, "m1", WHOLE).proven is None
    document = partition(proven(25))
    store_proven(local_store, document)
    assert load_proven(local_store, "m1", WHOLE) == document


def test_what_cannot_be_read_or_is_of_another_place_proves_nothing(local_store: ObjectStore) -> None:
    key = proven_key("m1", "orders", 0)
    local_store.put(key, b'{"version": 1}')
    assert load_proven(local_store, "m1", WHOLE).proven is None
    local_store.put(key, partition(proven(25)).model_copy(update={"migration_id": "m2"}).canonical())
    assert load_proven(local_store, "m1", WHOLE).proven is None
    local_store.put(key, partition(proven(25)).canonical())
    assert load_proven(local_store, "m1", content_range(5, 60)).proven is None


def test_documents_of_version_1_are_read() -> None:
    found = ProvenPartition.parse((CASES / "partition.json").read_bytes())
    assert found.key == ("orders", 0)
    assert found.proven is not None
    assert (found.proven.source_end_offset, found.proven.anchor_epoch, found.proven.content.compared) == (25, 3, 25)
    assert found.proven.target_topic_id == "", "of an older release: read, and not trusted"
    later = ProvenPartition.parse((CASES / "partition-topic-id.json").read_bytes())
    assert later.proven is not None
    assert later.proven.target_topic_id == "0e7d4b52-5d0f-4c09-a7a6-0a4f4bb7d1a3"
    assert (later.proven.content.schema_ids, later.proven.content.schema_id_rule) == ([], "")
    passed = PassedContent.parse((CASES / "content-passed.json").read_bytes())
    assert passed.canonical() == (CASES / "content-passed.json").read_bytes(), "its digest is journaled"
    assert [item.key for item in passed.ranges] == [("orders", 0)]
    assert passed.sentinels.name == "sentinels"
