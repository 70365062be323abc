"""A copy continues from the target's log, whatever its predecessor, another writer or the brokers have left there."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster, data_batch
from simulated.copying import SimulatedCopy
from simulated.small import SMALL_FETCHES, error_code, plain
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch, patched_header, records


def half_copied(worlds: Worlds, **options: Any) -> SimulatedCopy:
    """A copy that had ended at offset 15 when the source got 15 more records."""
    copy = worlds.copy(lambda source: plain(source, 15), **options)
    assert copy.slice()["t"].done
    copy.source.produce("t", [b"%d" % number for number in range(15, 30)])
    return copy


# -- foreign data -----------------------------------------------------------------------------------------------------


def test_records_of_another_producer_stop_the_copy(worlds: Worlds) -> None:
    copy = half_copied(worlds)
    copy.target.log(("t", 0)).append(data_batch([b"foreign"], 0))
    before = list(copy.target.log(("t", 0)).batches)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)
    assert copy.target.log(("t", 0)).batches == before


def test_the_right_records_of_another_producer_stop_the_copy(worlds: Worlds) -> None:
    """Another tool copies as well: the content is equal, but its sequence numbers say nothing about ours."""
    copy = half_copied(worlds)
    theirs = list(records(copy.source.log(("t", 0)).views()[3]))
    copy.target.log(("t", 0)).append(encode_batch([r._replace(offset=n) for n, r in enumerate(theirs)]))
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)
    assert result.error is not None
    assert result.error["details"] == {"producer_id": -1, "target_offset": 19}


def test_markers_of_another_producer_are_a_filled_hole_too_many(worlds: Worlds) -> None:
    copy = half_copied(worlds)
    copy.target.log(("t", 0)).write_marker(9, 0, commit=True)
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.records) == (True, Verdict.MAPPED, 15)
    copy.assert_in_order("t")
    copy.assert_mapped("t")


def test_excess_markers_stop_a_copy_that_must_be_equal(worlds: Worlds) -> None:
    copy = half_copied(worlds, job_fields={"on_mismatch": "stop"})
    copy.target.log(("t", 0)).write_marker(9, 0, commit=True)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)


def test_a_target_that_differs_from_the_source_stops_the_copy(worlds: Worlds) -> None:
    """The batch has the migration's producer id and the right sequence, but other content."""
    copy = worlds.copy(plain)
    producer = copy.producers.data_producer_id
    wrong = data_batch([b"wrong", b"values"], 0, producer_id=producer, sequence=0)
    copy.target.log(("t", 0)).append(plain_attributes(wrong))
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)


def test_a_target_beyond_the_source_stops_the_copy(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    assert copy.slice()["t"].done
    # The epochs do not tell, as with brokers that do not give any.
    copy.source.api_keys -= {apis.OFFSET_FOR_LEADER_EPOCH}
    source = copy.source.log(("t", 0))
    source.truncate(20)
    result = copy.slice(copy.job(until={"t": 30}))["t"]
    assert error_code(result) == "FOREIGN_DATA"
    assert "beyond" in str(result.error) or "ends at 20" in str(result.error)


def plain_attributes(batch: bytes) -> bytes:
    """The same batch, written again without the transactional bit."""
    raw = RawBatch(memoryview(batch))
    return encode_batch(
        list(records(raw)), producer_id=raw.producer_id, producer_epoch=0, base_sequence=raw.base_sequence
    )


# -- what a predecessor has left --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 20])
def test_any_size_of_the_last_batches(worlds: Worlds, batch: int) -> None:
    """Few records at the end prove little, so the check reads further back; a large batch is compared as a whole."""
    copy = worlds.copy(lambda source: plain(source, 60, batch))
    assert copy.slice()["t"].done
    copy.source.produce("t", [b"later"] * 20, batch=batch)
    assert copy.slice()["t"].records == 20
    copy.assert_equal("t")


@pytest.mark.parametrize("empty_answers", [0, 2])
def test_a_long_stretch_of_markers_at_the_end(worlds: Worlds, empty_answers: int) -> None:
    """More markers than the first window has offsets lie behind the last record; the first answers may be empty."""

    def fill(source: SimulatedCluster) -> None:
        plain(source, 10)
        for _ in range(500):
            source.log(("t", 0)).write_marker(5, 0, commit=True)

    copy = worlds.copy(fill)
    first = copy.slice()["t"]
    assert (first.done, first.records, first.target_offset) == (True, 10, 510)
    copy.source.produce("t", [b"behind the hole"])
    copy.target.fault("empty", apis.FETCH, times=empty_answers)
    result = copy.slice()["t"]
    assert (result.done, result.records, result.resumed_offset) == (True, 1, 510)
    copy.assert_equal("t")


def test_markers_that_a_dead_copier_wrote_late(worlds: Worlds) -> None:
    """A hole is filled twice: the records behind it land later, and the take-over corrects the map.

    The zombie's markers come just before the append behind the hole, and the copier dies before its answer.
    """

    def fill(source: SimulatedCluster) -> None:
        plain(source, 10)
        for _ in range(4):
            source.log(("t", 0)).write_marker(5, 0, commit=True)

    copy = worlds.copy(fill)
    assert copy.slice()["t"].target_offset == 14
    copy.source.produce("t", [b"%d" % number for number in range(6)], batch=3)
    target, producer = copy.target.log(("t", 0)), copy.producers.data_producer_id
    target.write_marker(copy.target.coordinators.init("zombie")[0], 0, commit=False)
    behind = copy.source.log(("t", 0)).views()[-2]
    target.append(as_copied(behind, producer, target.producers[producer].last_sequence + 1))
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.records, result.target_offset) == (True, Verdict.MAPPED, 3, 21)
    copy.assert_in_order("t")
    copy.assert_mapped("t")


def displaced(worlds: Worlds, **options: Any) -> SimulatedCopy:
    """A target that has a record at the offset at which the source has a marker."""
    copy = worlds.copy(lambda source: plain(source, 20), **options)
    assert copy.slice()["t"].done
    copy.source.log(("t", 0)).write_marker(5, 0, commit=True)
    copy.source.produce("t", [b"behind the marker"])
    target, producer = copy.target.log(("t", 0)), copy.producers.data_producer_id
    behind = copy.source.log(("t", 0)).views()[-1]
    target.append(as_copied(behind, producer, target.producers[producer].last_sequence + 1))
    return copy


def test_a_record_in_the_place_of_a_marker_was_displaced(worlds: Worlds) -> None:
    """No record can have been copied from the offset of a marker: without this rule it would be copied twice."""
    copy = displaced(worlds)
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.records) == (True, Verdict.MAPPED, 0)
    copy.assert_in_order("t")
    copy.assert_mapped("t")


def test_displaced_records_stop_a_copy_that_must_be_equal(worlds: Worlds) -> None:
    copy = displaced(worlds, job_fields={"on_mismatch": "stop"})
    before = list(copy.target.log(("t", 0)).batches)
    assert error_code(copy.slice()["t"]) == "FOREIGN_DATA"
    assert copy.target.log(("t", 0)).batches == before


def as_copied(batch: RawBatch, producer_id: int, sequence: int) -> bytes:
    """A source batch as the copier sends it."""
    return patched_header(batch, producer_id, 0, sequence) + bytes(batch.payload)


def test_records_that_the_source_has_compacted_since_do_not_count(worlds: Worlds) -> None:
    copy = half_copied(worlds)
    copy.source.log(("t", 0)).compact(range(11, 14))
    assert copy.slice()["t"].done
    target = copy.target.log(("t", 0)).content()
    assert sorted(target) == list(range(30))


def test_a_source_that_has_deleted_what_was_copied(worlds: Worlds) -> None:
    copy = half_copied(worlds)
    copy.source.log(("t", 0)).delete_until(15)
    assert copy.slice()["t"].done
    assert copy.target.log(("t", 0)).log_end == 30


# -- the target's brokers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unreplicated", [1, 3])
def test_nothing_is_read_from_an_end_that_is_not_replicated(worlds: Worlds, unreplicated: int) -> None:
    copy = half_copied(worlds)
    target = copy.target.log(("t", 0))
    target.unreplicated = unreplicated
    appends = copy.target.requests.count(apis.PRODUCE)
    result = copy.slice(seconds=1.2)["t"]
    assert (result.done, result.records, result.resumed_offset) == (False, 0, -1)
    assert result.trouble is not None
    assert copy.target.requests.count(apis.PRODUCE) == appends
    target.unreplicated = 0
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_replicas_that_catch_up_within_the_slice(worlds: Worlds) -> None:
    copy = half_copied(worlds)
    target = copy.target.log(("t", 0))
    target.unreplicated = 3
    copy.target.fault("act", apis.LIST_OFFSETS, skip=2, action=lambda: setattr(target, "unreplicated", 0))
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_a_target_that_has_lost_its_end_gets_it_again(worlds: Worlds) -> None:
    """An unclean election between two slices: the log itself says where to continue."""
    copy = half_copied(worlds)
    assert copy.slice()["t"].done
    copy.target.log(("t", 0)).truncate(20)
    result = copy.slice()["t"]
    assert (result.done, result.records, result.resumed_offset) == (True, 15, 15)
    copy.assert_equal("t")


def test_a_target_that_loses_its_end_within_the_slice(worlds: Worlds) -> None:
    copy = worlds.copy(plain, job_fields=SMALL_FETCHES)
    target = copy.target.log(("t", 0))
    copy.target.fault("act", apis.PRODUCE, skip=2, action=lambda: target.truncate(7))
    result = copy.slice()["t"]
    assert result.done
    assert [end for _, end in result.went_back] == [5]
    copy.assert_equal("t")


# -- log starts -------------------------------------------------------------------------------------------------------


def from_nine(source: SimulatedCluster) -> None:
    plain(source)
    source.log(("t", 0)).delete_until(9)


def test_a_log_start_that_went_back_is_moved_again(worlds: Worlds) -> None:
    """A broker that crashed has forgotten that the fillers were deleted."""
    copy = worlds.copy(from_nine)
    target = copy.target.log(("t", 0))
    assert (target.log_start, target.log_end) == (9, 9)
    assert copy.slice()["t"].done
    copy.source.produce("t", [b"later"])
    target.log_start = 0
    # What DeleteRecords has removed from the model comes back from the broker's disk.
    filler = data_batch([None] * 9, 0, producer_id=copy.producers.filler_producer_id, sequence=0)
    target.batches.insert(0, plain_attributes(filler))
    assert copy.slice()["t"].done
    assert target.log_start == 9
    copy.assert_equal("t")


def test_a_log_start_above_everything_copied(worlds: Worlds) -> None:
    copy = half_copied(worlds)
    copy.target.log(("t", 0)).delete_until(15)
    result = copy.slice()["t"]
    assert error_code(result) == "FLOOR_VIOLATED"


def test_a_target_whose_fillers_are_not_all_written(worlds: Worlds) -> None:
    copy = worlds.copy(from_nine)
    target = copy.target.log(("t", 0))
    target.log_start = target.log_end = 0
    target.batches.clear()
    result = copy.slice(seconds=1.2)["t"]
    assert result.trouble is not None
    assert "fillers" in str(result.trouble["what"])
    assert result.records == 0


# -- shifted ----------------------------------------------------------------------------------------------------------


def test_a_shifted_copy_begins_behind_what_is_there(worlds: Worlds) -> None:
    source, target = worlds.clusters()
    plain(source, 12)
    target.create("t")
    target.produce("t", [b"theirs"] * 7)
    copy = SimulatedCopy(worlds.folder(), source, target, verdicts={"t": Verdict.SHIFTED})
    assert copy.slice()["t"].target_offset == 19
    source.produce("t", [b"later"] * 18)
    result = copy.slice()["t"]
    assert (result.done, result.target_offset, result.verdict) == (True, 37, Verdict.SHIFTED)
    content = target.log(("t", 0)).content()
    assert {offset - 7: record.value for offset, record in content.items() if offset >= 7} == {
        offset: record.value for offset, record in source.log(("t", 0)).content().items()
    }
