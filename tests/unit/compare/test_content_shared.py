"""The content check beside foreign writers: theirs are passed over, whatever is wrong with ours is found."""

from __future__ import annotations

import pytest
from content_support import COMPACTED, DELETED_ONLY, NOW_MS, MemoryLog, batch, content_range, record

from airflow_provider_kafka_migration.compare.comparison import ContentOptions, compare_content
from airflow_provider_kafka_migration.compare.logs import OurLog
from airflow_provider_kafka_migration.documents.proof import PartitionContent
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, Record
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import TransactionalMap

OURS, THEIRS = 7, 900
#: runs of ten records, with three offsets of others or of markers between them
RUNS = [OffsetRange(number * 10, 5 + number * 13, 10) for number in range(4)]


def _batch(records: list[Record], producer_id: int) -> RawBatch:
    return batch(records, producer_id=producer_id, producer_epoch=1, base_sequence=0)


def _source() -> MemoryLog:
    return MemoryLog([batch([record(o, key=b"k%d" % (o % 3)) for o in range(at, at + 10)]) for at in range(0, 40, 10)])


def _ours() -> list[AnyBatch]:
    made: list[AnyBatch] = []
    for run in RUNS:
        records = [
            record(o, key=b"k%d" % (o % 3))._replace(offset=run.target_start + o - run.source_start)
            for o in range(run.source_start, run.source_start + 10)
        ]
        made.append(_batch(records, OURS))
    return made


def _foreign(offset: int) -> AnyBatch:
    return _batch([Record(offset, NOW_MS, b"k1", b"theirs", [])], THEIRS)


def _compare(batches: list[AnyBatch], rules: object = DELETED_ONLY) -> tuple[PartitionContent, OurLog]:
    offset_map = TransactionalMap(OffsetRange(0, 2), RUNS, producer_ids=[OURS]).closed(40, 10_000)
    ordered = sorted(batches, key=lambda item: item.last_offset)
    log = OurLog(MemoryLog(ordered), offset_map)
    compared = content_range(0, 40, verdict="transactional", target_end=offset_map.target_end_offset)
    compared = compared.model_copy(update={"target_start_offset": offset_map.target_start_offset})
    options = ContentOptions(now_ms=NOW_MS)
    return compare_content(compared, offset_map, rules, _source(), log, options), log  # type: ignore[arg-type]


def test_records_of_others_are_passed_over() -> None:
    found, log = _compare([*_ours(), _foreign(15), _foreign(16), _foreign(28), _foreign(2)])
    assert found.is_equal
    assert (found.source_records, found.target_records, found.compared) == (40, 40, 40)
    assert found.source_digest == found.target_digest
    assert log.foreign_records == 3  # the one before our first record is not even read


@pytest.mark.parametrize("rules", [DELETED_ONLY, COMPACTED])
def test_a_record_of_ours_that_is_there_twice_is_found(rules: object) -> None:
    """Outside of the map, under a producer id of ours: compaction does not explain it."""
    twice = _batch([record(9, key=b"k0")._replace(offset=16)], OURS)
    found, _ = _compare([*_ours(), _foreign(15), twice], rules)
    assert found.difference_count == 1
    assert [(item.kind, item.target_offset) for item in found.differences] == [("extra", 16)]
    assert found.source_digest != found.target_digest


def test_a_foreign_record_in_a_place_that_the_map_claims_is_found() -> None:
    ours = _ours()
    claimed = [record(o, key=b"k%d" % (o % 3))._replace(offset=18 + o - 10) for o in range(10, 20)]
    claimed[4] = claimed[4]._replace(value=b"theirs")
    found, _ = _compare([ours[0], _batch(claimed, THEIRS), *ours[2:]])
    assert found.difference_count == 1
    assert found.differences[0].source_offset == 14


def test_a_record_of_ours_that_is_missing_is_found() -> None:
    ours = _ours()
    found, _ = _compare([*ours[:2], ours[3], _foreign(28), _foreign(29)])
    assert found.difference_count == 10
    assert {item.kind for item in found.differences} == {"missing"}
