"""The measured estimate: where the next fetch begins, which rate is used, and whose plan it belongs to. No broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.documents.plan import MeasuredRates, Plan
from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.kafka.batches.header import HEAD
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition, FetchRange
from airflow_provider_kafka_migration.planning import source_snapshot
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore

CASES = Path(__file__).resolve().parents[2] / "cases" / "plan"


def _batch(base_offset: int, records: int, payload: int = 100, magic: int = 2) -> bytes:
    head = HEAD.pack(base_offset, 49 + payload, 0, magic, 0, 0, records - 1, 0, 0, -1, -1, -1, records)
    return bytes(head) + bytes(payload)


def _plan() -> Plan:
    return Plan.parse((CASES / "plan.v1.json").read_bytes())


class _Wire:
    """Partitions of 1,000 records in batches of 10, two at a time; some cannot be read."""

    def __init__(self, broken: set[str]) -> None:
        self.broken = broken

    def fetch_once(self, ranges: list[FetchRange], **_: Any) -> list[FetchedPartition]:
        (item,) = ranges
        if item.topic in self.broken:
            raise BrokerUnreachable("gone")
        data = _batch(item.offset, 10) + _batch(item.offset + 10, 10) + _batch(item.offset + 20, 10)[:-1]
        return [FetchedPartition(item.topic, item.partition, 0, 1000, 1000, 0, [], memoryview(data))]


def _context(folder: Path, rate: str = "100MB", broken: frozenset[str] = frozenset()) -> PhaseContext:
    spec = parse_spec(
        {
            "migration_id": "orders-2026",
            "source": {"conn_id": "env:S"},
            "target": {"conn_id": "env:T"},
            "storage": {"journal": folder.as_uri()},
            "estimate": {"copy_bytes_per_second": rate},
        }
    )
    cluster = SimpleNamespace(wire=_Wire(set(broken)), close=lambda: None)
    cluster.clone = lambda: cluster
    store = LocalStore(str(folder))
    record = MigrationRecord(spec, cast(Any, None), store, store, store, now=lambda: datetime.now(UTC))
    context = SimpleNamespace(
        spec=spec,
        record=record,
        source=cluster,
        journal_store=store,
        progress=lambda _: None,
        key=record.key,
    )
    return cast(PhaseContext, context)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", -1),
        (_batch(5, 3)[:-1], -1),
        (_batch(5, 3), 8),
        (_batch(5, 3) + _batch(90, 10), 100),
        (_batch(5, 3) + _batch(90, 10)[:-1], 8),
        (_batch(7, 1, magic=1), 8),
    ],
)
def test_the_next_fetch_begins_after_the_last_whole_batch(data: bytes, expected: int) -> None:
    assert source_snapshot.next_offset(memoryview(data)) == expected


def test_all_is_read_once_and_the_smaller_rate_counts(tmp_path: Path) -> None:
    plan = _plan()
    found = source_snapshot.measure(_context(tmp_path, "1KB"), plan)
    offsets = {
        (topic.name, item.partition): item.end_offset - item.log_start_offset
        for topic in plan.topics
        for item in topic.partitions
    }
    assert len(found.partitions) == source_snapshot.MAX_PARTITIONS
    assert found.read_bytes == sum(-(-offsets[key] // 20) * 482 for key in found.partitions)
    assert (found.copy_bytes_per_second, found.limited_by) == (1000, "spec")
    assert found.plan_digest == plan.digest()
    assert found.read_bytes_per_second > 1000
    fast = source_snapshot.measure(_context(tmp_path, "100GB"), plan)
    assert fast.limited_by == "source"
    assert fast.copy_bytes_per_second == fast.read_bytes_per_second
    assert "MB/s" in fast.summary()


def test_what_cannot_be_read_is_named_and_the_given_rate_stays(tmp_path: Path) -> None:
    plan = _plan()
    names = frozenset(topic.name for topic in plan.topics)
    found = source_snapshot.measure(_context(tmp_path, broken=names), plan)
    assert found.errors
    assert all(error.endswith(": gone") for error in found.errors)
    assert (found.read_bytes_per_second, found.copy_bytes_per_second) == (0, 100_000_000)
    assert "nothing could be read" in found.summary()


def test_an_answer_without_partitions_is_named(tmp_path: Path) -> None:
    plan = _plan()
    context = _context(tmp_path)
    context.source.wire.fetch_once = lambda *_, **__: []  # type: ignore[method-assign]
    found = source_snapshot.measure(context, plan)
    assert len(found.errors) == len(found.partitions)
    topic, partition = found.partitions[0]
    assert any(item.startswith(f"{topic}-{partition}: the answer to a fetch omits 1 of 1") for item in found.errors)
    assert found.copy_bytes_per_second == 100_000_000


def test_headers_that_an_answer_leaves_out_are_unknown_and_not_absent(tmp_path: Path) -> None:
    partitions = [SimpleNamespace(partition=number) for number in range(2)]
    found = source_snapshot.SourceSnapshot(None, {"orders": SimpleNamespace(partitions=partitions)}, {}, [])  # type: ignore[arg-type,dict-item]
    found.configs = {"orders": SimpleNamespace(get=lambda _: "delete")}  # type: ignore[dict-item]
    found.starts = dict.fromkeys(found.keys, 0)
    found.stable = dict.fromkeys(found.keys, 10)
    wire = _Wire(set())
    answer = wire.fetch_once

    def fetch(ranges: list[FetchRange], **more: Any) -> list[FetchedPartition]:
        return [found for item in ranges if item.partition == 1 for found in answer([item], **more)]

    wire.fetch_once = fetch  # type: ignore[method-assign]
    source_snapshot._Sampler(cast(Any, wire), found).run()
    assert "omits 1 of 2 partitions; the first is orders-0" in found.unknown["batch headers on the source"]
    assert (found.samples["orders", 0].codecs, found.samples["orders", 1].codecs) == (set(), {"none"})


def test_a_measurement_counts_for_its_own_plan_only(tmp_path: Path) -> None:
    context, plan = _context(tmp_path, "1KB"), _plan()
    assert plan.estimate is not None
    assert source_snapshot.copy_seconds(context.record, plan) == plan.estimate.copy_seconds
    measured = source_snapshot.measure(context, plan).model_copy(update={"copy_seconds": 1234.0})
    context.journal_store.put(context.key(keys.MEASURED_RATES), measured.canonical())
    assert source_snapshot.copy_seconds(context.record, plan) == 1234.0
    other = plan.model_copy(update={"notes": ["another plan"]})
    assert source_snapshot.copy_seconds(context.record, other) == plan.estimate.copy_seconds


def test_the_example_of_version_1_stays_readable() -> None:
    data = (CASES / "measured-rates.v1.json").read_bytes()
    assert MeasuredRates.parse(data).canonical() == data.strip()
