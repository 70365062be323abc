"""Hypothesis strategies for records and batches."""

from __future__ import annotations

from hypothesis import strategies as st

from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch

TIMES = st.one_of(
    st.integers(-1, 2**41),
    st.sampled_from([-1, 0, 1_600_000_000_000, 2**62]),
)
CONTENT = st.one_of(st.none(), st.binary(max_size=80), st.sampled_from([b"", b"x" * 70_000]))
HEADERS = st.lists(st.tuples(st.sampled_from([b"", b"a", b"b", b"\xff"]), st.one_of(st.none(), st.binary(max_size=5))))
CODECS = st.integers(0, 4)


@st.composite
def records_of(draw: st.DrawFn, *, dense: bool = False, min_size: int = 1, max_size: int = 30) -> list[Record]:
    """Records with ascending offsets, with or without gaps."""
    offset = draw(st.sampled_from([0, 7, 1_000_000, 2**40]))
    found = []
    for _ in range(draw(st.integers(min_size, max_size))):
        offset += 1 if dense else draw(st.sampled_from([1, 1, 1, 2, 3, 200]))
        found.append(Record(offset, draw(TIMES), draw(CONTENT), draw(CONTENT), draw(HEADERS)))
    return found


def view(data: bytes) -> RawBatch:
    """A batch from its bytes."""
    return RawBatch(memoryview(data))


def batch_of(records: list[Record], codec: int = 0, **options: object) -> RawBatch:
    """A batch from its records."""
    return view(encode_batch(records, codec, **options))  # type: ignore[arg-type]


def plain(offset: int, value: bytes | None = b"v", *, time: int = 1000, key: bytes | None = b"k") -> Record:
    """A record for tests that care for offsets only."""
    return Record(offset, time, key, value, [])
