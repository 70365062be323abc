"""Both sides of a comparison may delete and compact meanwhile, if the options say so."""

from __future__ import annotations

import pytest
from content_support import (
    COMPACTED,
    DELETED_ONLY,
    NOW_MS,
    MemoryLog,
    content_range,
    copy_of,
    kinds,
    log_of,
    record,
    rewrite,
)

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, Stretch, compare_stretch, range_map
from airflow_provider_kafka_migration.documents.proof import TopicRules


def compared(source: MemoryLog, target: MemoryLog, rules: TopicRules | None, *, max_keys: int = 400_000) -> Stretch:
    whole = content_range(0, 30)
    options = ContentOptions(now_ms=NOW_MS, target_rules=rules, max_keys=max_keys)
    return compare_stretch(whole, range_map(whole), rules or DELETED_ONLY, source, target, options)


@pytest.mark.parametrize("max_keys", [400_000, 1])
def test_older_records_of_a_key_may_be_missing_on_the_target(max_keys: int) -> None:
    source = log_of(30, key_every=10)
    target = rewrite(copy_of(source), {3: None, 14: None})
    found = compared(source, target, COMPACTED, max_keys=max_keys)
    assert found.content.is_equal
    assert found.content.compared == 28
    assert found.source_only is not None
    assert found.source_only.explained == {"compacted": 2}
    strict = compared(source, target, None)
    assert kinds(strict.content) == [("missing", 3), ("missing", 14)], "as the validation of a migration has it"
    assert strict.source_only is None


def test_the_last_record_of_a_key_may_not() -> None:
    source = log_of(30, key_every=10)
    found = compared(source, rewrite(copy_of(source), {23: None}), COMPACTED)
    assert (kinds(found.content), found.content.difference_count) == ([("missing", 23)], 1)
    assert found.content.source_digest != found.content.target_digest


def test_a_later_record_beyond_the_range_explains_it() -> None:
    """Clients of a promoted mirror write the same keys."""
    source = log_of(30, key_every=10)
    target = rewrite(copy_of(source), {23: None}, [record(31, key=b"key 3")])
    assert compared(source, target, COMPACTED).content.is_equal


def test_what_lies_below_the_log_start_of_the_target_was_deleted() -> None:
    source = log_of(30)
    target = copy_of(source)
    target.log_start = 20
    found = compared(source, target, DELETED_ONLY)
    assert found.content.is_equal
    assert found.source_only is not None
    assert (found.content.compared, found.source_only.deleted_records) == (10, 20)
    assert found.source_only.deleted.ranges() == [(0, 20)]


def test_nothing_else_may_be_missing_where_nothing_is_compacted() -> None:
    source = log_of(30, key_every=10)
    target = rewrite(copy_of(source), {3: None})
    assert kinds(compared(source, target, DELETED_ONLY).content) == [("missing", 3)]


def test_misplaced_records_are_still_recognized() -> None:
    source = log_of(30)
    target = rewrite(copy_of(source), {11: record(11)._replace(value=b"value 10", timestamp=record(10).timestamp)})
    found = compared(source, target, DELETED_ONLY)
    assert kinds(found.content) == [("duplicate", 11)]


def _with_tombstone(time: int) -> tuple[MemoryLog, MemoryLog]:
    """A key that is written at 3, 13 and 23, where it is deleted; and its copy."""
    source = log_of(30, key_every=10)
    deleted = record(23, key=b"key 3", value=None)._replace(timestamp=time)
    source = rewrite(source, {23: deleted})
    return source, copy_of(source)


@pytest.mark.parametrize("last", [30, 8])
@pytest.mark.parametrize("max_keys", [400_000, 1])
def test_a_tombstone_is_lost_while_an_earlier_record_of_its_key_is_there(last: int, max_keys: int) -> None:
    """The deleted key would live on on the target; also if the record lies before the compared range."""
    source, target = _with_tombstone(NOW_MS - 60_000)
    options = ContentOptions(now_ms=NOW_MS, target_rules=COMPACTED, max_keys=max_keys)

    def compared_to(other: MemoryLog) -> Stretch:
        whole = content_range(30 - last, 30)
        return compare_stretch(whole, range_map(whole), COMPACTED, source, other, options)

    found = compared_to(rewrite(target, {23: None}))
    assert kinds(found.content) == [("missing", 23)]
    found = compared_to(rewrite(target, {13: None, 23: None}))
    assert kinds(found.content) == ([("missing", 13)] if last == 30 else []) + [("missing", 23)]
    found = compared_to(rewrite(target, {3: None, 13: None, 23: None}))
    assert found.content.is_equal
    assert found.source_only is not None
    assert found.source_only.explained["expired"] == 1


def test_a_tombstone_from_the_future_cannot_be_judged() -> None:
    source, target = _with_tombstone(NOW_MS + 10**12)
    found = compared(source, rewrite(target, {3: None, 13: None, 23: None}), COMPACTED)
    assert found.content.is_equal
    assert found.source_only is not None
    assert (found.source_only.undated_records, found.source_only.explained) == (3, {})
    found = compared(source, rewrite(target, {23: None}), COMPACTED)
    assert kinds(found.content) == [("missing", 23)], "the key lives on, whatever time it is"
