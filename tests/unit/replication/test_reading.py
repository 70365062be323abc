"""One stretch of a log, when the broker has nothing to say of it, or says it in pieces."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from source_logs import record

from airflow_provider_kafka_migration.errors import BrokerBusy, OutsideOfLog, RecordsWithheld
from airflow_provider_kafka_migration.kafka.batches import encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.replication import reading
from airflow_provider_kafka_migration.replication.empty_answers import FULL_WAIT_MS
from airflow_provider_kafka_migration.replication.reading import Span, fetch_span, read_span

KEY = ("orders", 0)


def answer(
    records: bytes = b"", *, stable: int = 100, high: int = 100, error_code: int = 0, preferred: int = -1
) -> list[FetchedPartition]:
    return [FetchedPartition(*KEY, error_code, high, stable, 0, [], memoryview(records), preferred)]


def batch(base_offset: int, count: int = 1, size: int = 1) -> bytes:
    values = [record(base_offset + number)._replace(value=b"x" * size) for number in range(count)]
    return encode_batch(values)


class FakeWire:
    """Gives prepared answers, one after the other."""

    def __init__(self, *answers: list[FetchedPartition]) -> None:
        self.config = SimpleNamespace(name="source")
        self.answers = list(answers)
        self.asked: list[tuple[FetchRange, int, int]] = []

    def retrying(self, attempt: Callable[[], Any]) -> Any:
        while True:
            try:
                return attempt()
            except (BrokerBusy, RecordsWithheld):
                if not self.answers:
                    raise

    def fetch_once(self, ranges: list[FetchRange], *, isolation: int, max_wait_ms: int) -> list[FetchedPartition]:
        self.asked.append((ranges[0], isolation, max_wait_ms))
        return self.answers.pop(0)


def span(wire: FakeWire, offset: int = 7, **options: Any) -> Span:
    return fetch_span(wire, KEY, offset, **options)  # type: ignore[arg-type]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Where the leader's own log begins."""
    start: dict[str, int | None] = {"start": 0}
    monkeypatch.setattr(reading, "local_log_start", lambda _wire, _key: start["start"])
    return start


def test_an_answer_without_partitions_is_a_quota_that_is_used_up() -> None:
    assert [item.base_offset for item in span(FakeWire([], [], answer(batch(7)))).batches] == [7]  # type: ignore[union-attr]
    with pytest.raises(BrokerBusy, match="quota") as caught:
        span(FakeWire([], []))
    assert caught.value.where.offset == 7


def test_the_end_is_where_the_broker_says_it_is() -> None:
    found = span(FakeWire(answer(stable=7)))
    assert (found.batches, found.until_offset, found.end_offset) == ([], 7, 7)
    found = span(FakeWire(answer(stable=3, high=7)), isolation=READ_UNCOMMITTED)
    assert (found.batches, found.until_offset, found.end_offset) == ([], 7, 7)


def test_what_comes_at_the_second_time_was_late() -> None:
    wire = FakeWire(answer(), answer(batch(7, 3)))
    assert span(wire).until_offset == 10
    assert [asked[1:] for asked in wire.asked] == [(READ_COMMITTED, 0), (READ_COMMITTED, FULL_WAIT_MS)]


def test_a_later_batch_proves_a_hole_wherever_the_offset_is(local: dict[str, int | None]) -> None:
    for start in (0, 50, None):
        local["start"] = start
        wire = FakeWire(answer(stable=20), answer(stable=20), answer(batch(20), stable=20))
        found = span(wire)
        assert (found.batches, found.until_offset) == ([], 20)
        assert wire.asked[-1][1:] == (READ_UNCOMMITTED, FULL_WAIT_MS)


def test_a_hole_ends_where_it_is_proven(local: dict[str, int | None]) -> None:
    assert span(FakeWire(answer(stable=20), answer(stable=20), answer(batch(15), stable=30))).until_offset == 15
    assert span(FakeWire(answer(stable=20), answer(stable=20), answer(batch(25), stable=30))).until_offset == 20


def test_nothing_up_to_the_high_watermark_of_a_local_log_is_a_hole(local: dict[str, int | None]) -> None:
    for start in (0, 7):
        local["start"] = start
        assert span(FakeWire(answer(), answer(), answer())).until_offset == 100


@pytest.mark.parametrize(
    ("start", "probe", "reason"),
    [
        (8, answer(), "remote storage"),
        (None, answer(), "cannot tell"),
        (0, answer(preferred=3), "broker 3"),
        (0, answer(batch(7)), "has a batch there"),
        (0, answer(batch(7)[:40]), "not the whole batch"),
        (0, answer(high=7), "ends at 7"),
    ],
)
def test_anything_else_proves_nothing(
    local: dict[str, int | None], start: int | None, probe: list[FetchedPartition], reason: str
) -> None:
    local["start"] = start
    with pytest.raises(RecordsWithheld, match=reason) as caught:
        span(FakeWire(answer(), answer(), probe))
    assert (caught.value.where.topic, caught.value.where.offset) == ("orders", 7)


def test_a_batch_larger_than_the_fetch_is_asked_for_as_a_whole() -> None:
    large = batch(7, size=5000)
    wire = FakeWire(answer(large[:1000]), answer(large))
    assert span(wire, max_bytes=1000).until_offset == 8
    assert wire.asked[1][0].max_bytes == len(large)


def test_a_batch_that_stays_cut_is_named() -> None:
    with pytest.raises(RecordsWithheld, match="40 bytes of the batch at offset 7"):
        span(FakeWire(answer(batch(7)[:40])))


def test_offsets_outside_of_the_log_are_named() -> None:
    with pytest.raises(OutsideOfLog):
        span(FakeWire(answer(error_code=1)))


def test_a_span_goes_on_behind_a_hole_and_ends_with_the_log(local: dict[str, int | None]) -> None:
    wire = FakeWire(answer(), answer(), answer(batch(20)), answer(batch(20, 2)), answer(stable=22))
    found = list(read_span(wire, KEY, 7, 50))  # type: ignore[arg-type]
    assert [(item.base_offset, item.next_offset) for item in found] == [(20, 22)]  # type: ignore[union-attr]


def test_a_span_is_not_taken_as_empty_when_records_are_withheld(local: dict[str, int | None]) -> None:
    local["start"] = 60
    with pytest.raises(RecordsWithheld):
        list(read_span(FakeWire(answer(), answer(), answer()), KEY, 7, 50))  # type: ignore[arg-type]
