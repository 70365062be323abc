"""Records tell where they come from; those that have come through the target are left out, whatever batch has them."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.copy.provenance import ProvenanceMarker
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, RawBatch, Record, encode_batch, records
from airflow_provider_kafka_migration.kafka.batches.header import GZIP, NONE
from airflow_provider_kafka_migration.kafka.batches.records import Headers

_NAME = b"where"


def _marker(max_hops: int | None = None, partition: int = 0) -> ProvenanceMarker:
    settings = ProvenanceSettings(header="where", source_cluster_id="A", target_cluster_id="B", max_hops=max_hops)
    return ProvenanceMarker(settings, "t", partition)


def _batch(*headers: Headers, codec: int = NONE, base_offset: int = 100, **more: int | None) -> RawBatch:
    """One record for each list of headers."""
    found = [
        Record(base_offset + number, 1000 + number, b"k%d" % number, None if number == 1 else b"v%d" % number, item)
        for number, item in enumerate(headers)
    ]
    return RawBatch(memoryview(encode_batch(found, codec, **more)))  # type: ignore[arg-type]


def _read(batch: AnyBatch | None) -> list[Record]:
    assert isinstance(batch, RawBatch)
    batch.check_crc()
    return list(records(batch))


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_record_gets_one_header_behind_its_own(codec: int) -> None:
    own: list[Headers] = [[], [(b"x", None)], [(b"x", b"1"), (b"x", b"2")]]
    batch = _batch(*own, codec=codec)
    marked = _marker().mark(batch)
    assert _read(marked) == [
        record._replace(headers=[*record.headers, (_NAME, b"A/t/0/%d" % record.offset)]) for record in records(batch)
    ]
    assert isinstance(marked, RawBatch)
    assert (marked.codec, marked.is_full, marked.next_offset) == (codec, True, batch.next_offset)


def test_more_than_63_headers_need_another_length_of_their_number() -> None:
    headers: Headers = [(b"h%d" % number, b"x") for number in range(64)]
    (record,) = _read(_marker().mark(_batch(headers[:63])))
    assert record.headers == [*headers[:63], (_NAME, b"A/t/0/100")]
    (record,) = _read(_marker().mark(_batch(headers)))
    assert len(record.headers) == 65


def test_records_that_have_come_through_the_target_are_left_out() -> None:
    came: Headers = [(_NAME, b"B/t/0/7")]
    batch = _batch([], came, [(b"x", b"y")], [*came, (_NAME, b"C/t/0/9")])
    marked = _marker().mark(batch)
    assert [record.offset for record in _read(marked)] == [100, 102]
    assert isinstance(marked, RawBatch)
    assert (marked.next_offset, marked.max_timestamp) == (batch.next_offset, 1002)
    assert _marker().mark(_batch(came, came)) is None


def test_records_that_are_left_out_are_counted() -> None:
    came: Headers = [(_NAME, b"B/t/0/7")]
    counts: list[int] = []
    settings = ProvenanceSettings(header="where", source_cluster_id="A", target_cluster_id="B")
    marker = ProvenanceMarker(settings, "t", 0, on_skipped=counts.append)
    for batch in (_batch([], came, [], came), _batch([]), _batch(came, came, came)):
        marker.mark(batch)
    assert counts == [2, 3]


@pytest.mark.parametrize(
    "headers",
    [
        [(_NAME, b"B/other/0/7")],
        [(_NAME, b"B/t/1/7")],
        [(_NAME, b"B/t/00/7")],
        [(_NAME, b"X/B/t/0/7")],
        [(_NAME, None)],
        [(_NAME, b"B")],
        [(b"other", b"B/t/0/7")],
    ],
)
def test_a_header_of_another_place_was_handed_on_by_an_application(headers: Headers) -> None:
    assert len(_read(_marker(max_hops=1).mark(_batch(headers)))) == 1


def test_names_that_only_begin_like_the_target_s_place() -> None:
    assert len(_read(_marker().mark(_batch([(_NAME, b"BB/t/0/7")])))) == 1
    assert len(_read(_marker(partition=1).mark(_batch([(_NAME, b"B/t/11/7")])))) == 1


@pytest.mark.parametrize(
    ("max_hops", "kept"), [(None, [100, 101, 102]), (3, [100, 101, 102]), (2, [100, 101]), (1, [100])]
)
def test_hops_are_counted(max_hops: int | None, kept: list[int]) -> None:
    batch = _batch([], [(_NAME, b"C/t/0/7")], [(_NAME, b"D/t/0/7"), (_NAME, b"C/t/0/9")])
    assert [record.offset for record in _read(_marker(max_hops).mark(batch))] == kept


def test_a_header_of_the_source_itself_is_no_hop() -> None:
    """An application on the source has written a record again that had come back to it through other topics."""
    own = (_NAME, b"A/t/0/5")
    batch = _batch([own], [own, (_NAME, b"B/u/0/9")], [own, (_NAME, b"C/t/0/7")], [own, (_NAME, b"B/t/0/7")])
    assert [record.offset for record in _read(_marker(max_hops=1).mark(batch))] == [100, 101]
    assert [record.offset for record in _read(_marker(max_hops=2).mark(batch))] == [100, 101, 102]


def test_times_of_the_broker_stay() -> None:
    batch = _batch([], [(_NAME, b"B/t/0/7")], log_append_time=5000)
    (record,) = _read(_marker().mark(batch))
    assert record.timestamp == 5000


def test_a_damaged_batch_does_not_get_a_valid_checksum() -> None:
    data = bytearray(_batch([], []).data)
    data[-3] ^= 1
    with pytest.raises(BatchMalformed):
        _marker().mark(RawBatch(memoryview(bytes(data))))
