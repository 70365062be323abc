"""Apache Kafka's own code and tools read what we write: encoded, rebuilt and split batches, and archived segments."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.copy.archive import SegmentWriter
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, rebuild, records
from airflow_provider_kafka_migration.kafka.batches.header import CODEC_NAMES
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.jars import kafka_jars

pytestmark = pytest.mark.integration


def java(version: str, *arguments: str) -> str:
    """Run Java with the jars of a Kafka version."""
    command = [kafka_jars.java(), "-Xmx256m", "-cp", kafka_jars.classpath(version), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def content(value: bytes | None) -> str:
    return "null" if value is None else f"x{value.hex()}"


def shown(batches: list[RawBatch]) -> list[str]:
    """What ReadBatches.java prints."""
    lines = []
    for batch in batches:
        codec = CODEC_NAMES[batch.codec]
        lines.append(f"batch {batch.base_offset} {batch.last_offset} {codec} {batch.max_timestamp}")
        for found in records(batch):
            fields = [str(found.offset), str(found.timestamp), content(found.key), content(found.value)]
            lines.append(" ".join(fields + [f"{name.decode()}={content(value)}" for name, value in found.headers]))
    return lines


def sample(first: int) -> list[Record]:
    """Records of all kinds; the 7th and 8th are missing."""
    times = [1_600_000_000_000, 0, -1, 1_700_000_000_000]
    found = [
        Record(first, times[0], b"key", b"value", [(b"a", b"1"), (b"a", None), (b"b", b"")]),
        Record(first + 1, times[1], None, b"", []),
        Record(first + 2, times[2], b"", None, []),
        Record(first + 3, times[3], b"large", bytes(range(256)) * 900, []),
        Record(first + 4, times[0] + 1, b"dense", b"kafka" * 40_000, []),
        Record(first + 5, times[0] + 2, None, None, [(b"only", b"header")]),
    ]
    return found + [
        Record(first + offset, times[0] + offset, b"k%d" % offset, b"v" * offset, []) for offset in range(8, 40)
    ]


@pytest.mark.parametrize("version", kafka_jars.DEFAULT_SETS)
def test_kafka_reads_encoded_rebuilt_and_split_batches(version: str, tmp_path: Path) -> None:
    batches: list[RawBatch] = []
    for codec in range(5):
        first = codec * 1000
        whole = RawBatch(memoryview(encode_batch(sample(first), codec, base_offset=first, last_offset=first + 60)))
        shifted = RawBatch(
            memoryview(
                encode_batch(sample(first + 100), codec, base_offset=first + 90, log_append_time=1_650_000_000_000)
            )
        )
        large = RawBatch(memoryview(encode_batch(sample(first + 200), codec)))
        batches += [whole, *rebuild(shifted, first + 102), *rebuild(large, max_batch_bytes=300_000)]
        batches += [RawBatch(memoryview(encode_batch([], codec, base_offset=first + 300, last_offset=first + 310)))]
    file = tmp_path / "batches.bin"
    file.write_bytes(b"".join(batch.data for batch in batches))
    source = Path(__file__).with_name("ReadBatches.java").read_text(encoding="utf-8")
    if not kafka_jars.has_class(version, "kafka-clients", "org.apache.kafka.common.record.Record"):
        source = source.replace("common.record.", "common.record.internal.")
    reader = tmp_path / "ReadBatches.java"
    reader.write_text(source, encoding="utf-8")
    out = java(version, str(reader), str(file))
    assert out.splitlines() == shown(batches)


@pytest.mark.parametrize("version", kafka_jars.DEFAULT_SETS)
def test_kafka_dump_log_reads_segments(version: str, tmp_path: Path) -> None:
    marker = Record(47, 5, b"\0\0\0\1", b"\0\0\0\0\0\0", [])
    data = (
        encode_batch(sample(0), 3, leader_epoch=2, last_offset=45)
        + encode_batch(
            [Record(46, 5, b"k", b"in a transaction", [])],
            4,
            producer_id=9,
            producer_epoch=1,
            base_sequence=0,
            transactional=True,
        )
        + encode_batch([marker], producer_id=9, producer_epoch=1, transactional=True, control=True)
        + encode_batch(sample(1000), 0, leader_epoch=3)
    )
    entry = SegmentWriter(LocalStore(tmp_path), "m", "orders", 0).put(data, [], 0, 1040)
    out = java(
        version,
        kafka_jars.dump_log_class(version),
        "--files",
        str(tmp_path / entry.key),
        "--deep-iteration",
        "--print-data-log",
    )
    assert "Log starting offset: 0" in out
    heads = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*?isvalid: (\w+)", out)
    assert heads == [
        ("0", "45", "38", "true"),
        ("46", "46", "1", "true"),
        ("47", "47", "1", "true"),
        ("1000", "1039", "38", "true"),
    ]
    assert "endTxnMarker: COMMIT" in out
    assert len(re.findall(r"^\| offset: ", out, re.MULTILINE)) == entry.record_count + 1
    assert re.search(r"\| offset: 46 .* payload: in a transaction", out)
    assert "Found invalid" not in out
