"""Against the encoder and decoder of kafka-python, which share no code with ours."""

from __future__ import annotations

from batch_strategies import batch_of, records_of, view
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from airflow_provider_kafka_migration.kafka.batches.api import Record, records

NONE, GZIP, LZ4 = 0, 1, 3
CONTENT = st.one_of(st.none(), st.binary(max_size=60))
HEADERS = st.lists(st.tuples(st.sampled_from(["", "a", "é"]), st.one_of(st.none(), st.binary(max_size=5))), max_size=4)
#: kafka-python wants the packages of the other codecs
CODECS = st.sampled_from([NONE, GZIP, LZ4])


@given(st.lists(st.tuples(st.integers(0, 2**41), CONTENT, CONTENT, HEADERS), min_size=1, max_size=20), CODECS)
def test_reads_what_kafka_python_wrote(
    content: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], codec: int
) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=12,
        producer_epoch=1,
        base_sequence=34,
        batch_size=1 << 20,
    )
    for offset, (time, key, value, headers) in enumerate(content):
        builder.append(offset, timestamp=time, key=key, value=value, headers=headers)
    batch = view(bytes(builder.build()))
    batch.check_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (12, 1, 34)
    # What would not get smaller is written unpacked.
    assert batch.codec in (codec, NONE)
    assert list(records(batch)) == [
        Record(offset, time, key, value, [(name.encode(), header) for name, header in headers])
        for offset, (time, key, value, headers) in enumerate(content)
    ]


@given(records_of(), CODECS)
def test_kafka_python_reads_what_we_wrote(found: list[Record], codec: int) -> None:
    found = [
        record._replace(headers=[(name, value) for name, value in record.headers if name != b"\xff"])
        for record in found
    ]
    theirs = DefaultRecordBatch(bytes(batch_of(found, codec).data))
    assert theirs.validate_crc()
    assert [
        (record.offset, record.timestamp, record.key, record.value, [(n.encode(), v) for n, v in record.headers])
        for record in theirs
    ] == found
