"""Documents of version 1 stay readable: archive entries, manifest, written runs, offset-map.json.

The case files are never rewritten; a new version gets a folder of its own.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, build_manifest
from airflow_provider_kafka_migration.copy.transform import Append, BatchTransformer, Hole
from airflow_provider_kafka_migration.documents.copy import Manifest, OffsetMapDocument, SegmentEntry
from airflow_provider_kafka_migration.errors import SegmentTampered
from airflow_provider_kafka_migration.kafka.batches.api import records
from airflow_provider_kafka_migration.offset_map.runs import How, OffsetRange, read_partition_map
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.storage.local import LocalStore

CASES = Path(__file__).parents[3] / "cases"


@pytest.fixture
def archive(tmp_path: Path) -> LocalStore:
    """A copy of the archive of version 1."""
    shutil.copytree(CASES / "manifest" / "v1" / "archive", tmp_path / "archive")
    return LocalStore(tmp_path / "archive")


def test_segments_of_version_1(archive: LocalStore) -> None:
    index = SegmentIndex(archive, "orders-2026", "orders", 0, "zvuCzMKYSVuRTlOZbjQ8vw")
    entries = list(index.chain(0))
    assert [(entry.from_offset, entry.until_offset) for entry in entries] == [(0, 6), (6, 12)]
    decider = BatchTransformer(0)
    steps = [step for entry in entries for step in decider.decide_chunk(index.read(entry))]
    holes = [(step.source_offset, step.count) for step in steps if isinstance(step, Hole)]
    offsets = [record.offset for step in steps if isinstance(step, Append) for record in records(step.batch)]
    assert holes == [(3, 3), (9, 3)]
    assert offsets == [0, 1, 2, 6, 7, 8]


def test_manifest_of_version_1(archive: LocalStore) -> None:
    data = (CASES / "manifest" / "v1" / "manifest.json").read_bytes()
    manifest = Manifest.parse(data)
    assert manifest.version == 1
    assert build_manifest(archive, "orders-2026") == manifest
    assert manifest.canonical() == data.rstrip(b"\n")
    assert [(found.topic, found.partition) for found in manifest.partitions] == [(".hidden", 0), ("orders", 0)]


def test_a_later_version_may_add_fields(archive: LocalStore) -> None:
    """The seal is over what was written, not over the fields that this version knows."""
    from airflow_provider_kafka_migration.documents.copy import seal

    (key,) = [info.key for info in archive.list() if "/00000000000000000006." in info.key and info.key.endswith("json")]
    fields = json.loads(archive.get(key) or b"")
    fields |= {"version": 2, "future": {"a": 1}}
    archive.put(key, json.dumps({**fields, "entry_sha256": seal(fields)}).encode())
    found = SegmentIndex(archive, "orders-2026", "orders", 0).find(6)
    assert isinstance(found, SegmentEntry)
    assert found.version == 2
    archive.put(key, json.dumps(fields).encode())
    with pytest.raises(SegmentTampered):
        SegmentIndex(archive, "orders-2026", "orders", 0).find(6)


def test_offset_map_of_version_1() -> None:
    data = (CASES / "offset_map" / "v1" / "offset-map.json").read_bytes()
    document = OffsetMapDocument.parse(data)
    assert document.version == 1
    assert json.loads(document.canonical()) == {**json.loads(data), "complete": True}
    verdicts = {f"{entry.topic}-{entry.partition}": entry.verdict for entry in document.partitions}
    assert verdicts == {"compacted-0": "mapped", "old-0": "shifted", "orders-0": "equal", "orders-1": "equal"}
    mapped = read_partition_map(document.partition("compacted", 0))
    assert list(mapped.runs()) == [OffsetRange(0, 0, 10), OffsetRange(15, 10, 23), OffsetRange(60, 33, 7)]
    assert mapped.translate(12) == (10, How.HOLE_FORWARD)
    assert mapped.translate(61) == (34, How.EXACT)
    assert read_partition_map(document.partition("old", 0)).translate(5_000_000_007) == (7, How.EXACT)
    assert read_partition_map(document.partition("orders", 1)).translate(99) == (42, How.CLAMPED)


def test_written_runs_of_version_1(tmp_path: Path) -> None:
    shutil.copytree(CASES / "offset_map" / "v1" / "runs", tmp_path / "runs")
    log = RunLog(LocalStore(tmp_path / "runs"), "orders-2026", "compacted", 0, OffsetRange(0, 0))
    assert list(log.load().runs()) == [OffsetRange(0, 0, 10), OffsetRange(15, 10, 23), OffsetRange(60, 33, None)]
