"""The layouts of MirrorMaker 2's records: bytes that Kafka 4.1.1 has written itself, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint, Heartbeat, OffsetSync

OFFSETS = st.integers(0, 2**62)
NAMES = st.text(min_size=1, max_size=40)

GOLDEN = [
    (
        OffsetSync("orders", 0, 4999, 5006),
        "00 06 6f 72 64 65 72 73 00 00 00 00",
        "00 00 00 00 00 00 13 87 00 00 00 00 00 00 13 8e",
    ),
    (
        Checkpoint("g1", "A.orders", 0, 5000, 5007),
        "00 02 67 31 00 08 41 2e 6f 72 64 65 72 73 00 00 00 00",
        "00 00 00 00 00 00 00 00 13 88 00 00 00 00 00 00 13 8f 00 00",
    ),
    (
        Checkpoint("u10049", "sr4.t4", 0, 10049, 7980),
        "00 06 75 31 30 30 34 39 00 06 73 72 34 2e 74 34 00 00 00 00",
        "00 00 00 00 00 00 00 00 27 41 00 00 00 00 00 00 1f 2c 00 00",
    ),
    (Heartbeat("A", "B", 0x01A2014AA980), "00 01 41 00 01 42", "00 00 00 00 01 a2 01 4a a9 80"),
]


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_records_are_byte_equal_to_those_of_kafka(
    record: OffsetSync | Checkpoint | Heartbeat, key: str, value: str
) -> None:
    encoded = record.encode()
    assert encoded.key.hex(" ") == key
    assert encoded.value.hex(" ") == value
    assert type(record).decode(encoded.key, encoded.value) == record


@given(NAMES, NAMES, st.integers(0, 2**31 - 1), OFFSETS, OFFSETS, st.text(max_size=100))
def test_checkpoints_survive(group: str, topic: str, partition: int, up: int, down: int, metadata: str) -> None:
    made = Checkpoint(group, topic, partition, up, down, metadata)
    assert Checkpoint.decode(*made.encode()) == made
    sync = OffsetSync(topic, partition, up, down)
    assert OffsetSync.decode(*sync.encode()) == sync


def test_what_breaks_kafka_s_readers_is_never_written() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checkpoint("g", "t", 0, 5, -1).encode()
    with pytest.raises(ValueError, match=r"32,767"):
        OffsetSync("x" * 40_000, 0, 1, 1).encode()


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_a_record_that_is_cut_is_not_read(
    record: OffsetSync | Checkpoint | Heartbeat, key: str, value: str, cut: int
) -> None:
    found_key, found_value = record.encode()
    with pytest.raises(ValueError, match=r"bytes|ends"):
        type(record).decode(found_key[:-cut], found_value[:-cut])


def test_another_version_is_refused() -> None:
    key, value = Heartbeat("A", "B", 1).encode()
    with pytest.raises(ValueError, match="version 1"):
        Heartbeat.decode(key, b"\x00\x01" + value[2:])
