"""Batches written, compacted and read back by Apache Kafka's own code (tests/cases/batches/GoldenBatches.java)."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.api import (
    HEAD_BYTES,
    AnyBatch,
    LegacyBatch,
    RawBatch,
    Record,
    encode_batch,
    patched_header,
    read_batches,
    rebuild,
    records,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "cases" / "batches" / "golden.json").read_text())
V2 = [vector for vector in GOLDEN if vector["name"].startswith("v2")]


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def content(value: bytes | None) -> str | None:
    """As the golden file has it: large values as digests."""
    if value is None:
        return None
    return f"sha256:{hashlib.sha256(value).hexdigest()}" if len(value) > 1000 else value.hex()


def shown(record: Record) -> list[Any]:
    headers = [[name.hex(), content(value)] for name, value in record.headers]
    return [record.offset, record.timestamp, content(record.key), content(record.value), headers]


def read(batch: AnyBatch) -> list[Record]:
    return list(batch.records() if isinstance(batch, LegacyBatch) else records(batch))


def check_all(data: bytes) -> None:
    for batch in read_batches(data)[0]:
        batch.check_crc()


def test_all_formats_and_codecs_are_there() -> None:
    names = {vector["name"] for vector in GOLDEN}
    assert {f"v2-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")} <= names
    assert {f"v{magic}-{codec}" for magic in (0, 1) for codec in ("none", "gzip", "snappy", "lz4")} <= names


@pytest.mark.parametrize("vector", GOLDEN, ids=named)
def test_reads_what_kafka_wrote(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["data"])
    batches, consumed = read_batches(data)
    assert consumed == len(data)
    assert len(batches) == len(vector["batches"])
    for batch, expected in zip(batches, vector["batches"], strict=True):
        batch.check_crc()
        assert batch.magic == expected["magic"]
        assert batch.last_offset == expected["last_offset"]
        assert batch.next_offset == expected["last_offset"] + 1
        assert batch.codec == expected["codec"]
        assert batch.size_bytes == expected["size_bytes"]
        assert batch.is_log_append_time == expected["log_append_time"]
        assert [shown(record) for record in read(batch)] == expected["records"]


@pytest.mark.parametrize("vector", V2, ids=named)
def test_header_fields(vector: dict[str, Any]) -> None:
    batch = RawBatch(memoryview(bytes.fromhex(vector["data"])))
    (expected,) = vector["batches"]
    fields = {
        "base_offset": batch.base_offset,
        "count": batch.record_count,
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "leader_epoch": batch.leader_epoch,
        "delete_horizon": batch.base_timestamp if batch.has_delete_horizon else None,
    }
    assert fields == {name: expected[name] for name in fields}


@pytest.mark.parametrize("vector", V2, ids=named)
def test_patched_header_is_a_clean_batch(vector: dict[str, Any]) -> None:
    batch = RawBatch(memoryview(bytes.fromhex(vector["data"])))
    head = patched_header(batch, 4711, 2, 2**31 - 1)
    assert len(head) == HEAD_BYTES
    sent = RawBatch(memoryview(head + bytes(batch.payload)))
    assert sent.crc == crc32c(sent.data[21:])
    assert (sent.base_offset, sent.leader_epoch, sent.producer_id, sent.producer_epoch) == (0, -1, 4711, 2)
    assert sent.base_sequence == 2**31 - 1
    assert sent.attributes == batch.codec
    assert (sent.record_count, sent.last_offset_delta) == (batch.record_count, batch.last_offset_delta)
    if not batch.is_control and not batch.is_log_append_time:
        expected = [record._replace(offset=record.offset - batch.base_offset) for record in records(batch)]
        assert list(records(sent)) == expected


def test_delete_horizon_goes_and_record_times_stay() -> None:
    for codec in ("none", "zstd"):
        vector = next(vector for vector in V2 if vector["name"] == f"v2-horizon-{codec}")
        batch = RawBatch(memoryview(bytes.fromhex(vector["data"])))
        assert batch.has_delete_horizon
        sent = RawBatch(memoryview(patched_header(batch, 1, 0, 0) + bytes(batch.payload)))
        assert not sent.has_delete_horizon
        times = [record[1] for record in vector["batches"][0]["records"]]
        assert [record.timestamp for record in records(sent)] == times
        rebuilt = [record for run in rebuild(batch) for record in records(run)]
        assert [shown(record) for record in rebuilt] == vector["batches"][0]["records"]


@pytest.mark.parametrize("vector", V2, ids=named)
def test_rebuilt_runs_hold_the_same_records(vector: dict[str, Any]) -> None:
    batch = RawBatch(memoryview(bytes.fromhex(vector["data"])))
    runs = rebuild(batch)
    for run in runs:
        run.check_crc()
        assert run.is_full
        assert run.codec == batch.codec
        assert not run.attributes & ~7
        assert run.max_timestamp == max(record.timestamp for record in records(run))
    for before, after in itertools.pairwise(runs):
        assert before.next_offset < after.base_offset
    assert [shown(record) for run in runs for record in records(run)] == vector["batches"][0]["records"]


@pytest.mark.parametrize("vector", GOLDEN, ids=named)
def test_legacy_and_new_records_convert(vector: dict[str, Any]) -> None:
    found = [record for batch in read_batches(bytes.fromhex(vector["data"]))[0] for record in read(batch)]
    if found:
        again = RawBatch(memoryview(encode_batch(found, vector["batches"][0]["codec"])))
        again.check_crc()
        assert list(records(again)) == found


@pytest.mark.parametrize("vector", GOLDEN, ids=named)
def test_each_flipped_bit_is_noticed(vector: dict[str, Any]) -> None:
    for batch in read_batches(bytes.fromhex(vector["data"]))[0]:
        # Offset, length and the leader epoch of magic 2 are not under the CRC.
        first = 16 if batch.magic == 2 else 12
        for position in range(first, batch.size_bytes, max(1, batch.size_bytes // 60)):
            damaged = bytearray(batch.data)
            damaged[position] ^= 0x40
            with pytest.raises(BatchMalformed):
                check_all(bytes(damaged))


def test_visible_time_of_log_append_time() -> None:
    for name in ("v2-log-append-time", "v1-log-append-time-gzip"):
        vector = next(vector for vector in GOLDEN if vector["name"] == name)
        (batch,) = read_batches(bytes.fromhex(vector["data"]))[0]
        assert batch.is_log_append_time
        assert {record.timestamp for record in read(batch)} == {vector["batches"][0]["records"][0][1]}
