"""Fillers that a crash has brought back are deleted again, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.copy.holes import delete_fillers_again
from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition, FetchRange

KEY = ("orders", 0)
FILLER, OTHER = 7, 8


class FakeWire:
    """A log that begins with one batch of a producer."""

    def __init__(self, producer_id: int, error: MigrationError | None = None) -> None:
        batch = encode_batch([Record(0, 0, None, None, [])], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        self.records = memoryview(batch)
        self.error = error
        self.config = SimpleNamespace(name="target")
        self.deleted: dict[tuple[str, int], int] = {}

    def fetch_once(self, ranges: Sequence[FetchRange], **_: Any) -> list[FetchedPartition]:
        fields: dict[str, Any] = dict.fromkeys(FetchedPartition._fields, 0)
        return [FetchedPartition(**{**fields, "topic": ranges[0].topic, "aborted": [], "records": self.records})]

    def retrying(self, attempt: Callable[[], Any]) -> Any:
        return attempt()

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        if self.error is not None:
            raise self.error
        self.deleted.update(offsets)
        return dict(offsets)


def run(wire: FakeWire, log_start_offset: int) -> dict[tuple[str, int], int | MigrationError]:
    return delete_fillers_again(wire, {KEY: log_start_offset}, {KEY: 40}, FILLER)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("producer_id", "log_start_offset", "deleted"),
    [(FILLER, 0, {KEY: 40}), (FILLER, 40, {}), (FILLER, 60, {}), (OTHER, 0, {})],
    ids=["fillers are back", "as it was", "cut further", "records of others"],
)
def test_log_starts(producer_id: int, log_start_offset: int, deleted: dict[tuple[str, int], int]) -> None:
    wire = FakeWire(producer_id)
    assert run(wire, log_start_offset) == deleted
    assert wire.deleted == deleted


def test_what_stands_in_the_way_is_a_value() -> None:
    error = BrokerBusy("moving", next_step="wait")
    assert run(FakeWire(FILLER, error), 0) == {KEY: error}
