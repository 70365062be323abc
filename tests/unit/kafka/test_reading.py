"""One stretch of a log, when the broker has nothing to say of it, or says it in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from source_logs import record

from airflow_provider_kafka_migration.errors import BrokerBusy, OutsideOfLog, RecordsWithheld
from airflow_provider_kafka_migration.kafka import logs
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.logs import FULL_WAIT_MS, Span, fetch_span, local_log_start, read_span

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
        self.epoch = 4

    def leaders(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, 1)

    def leader_epochs(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, self.epoch)

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
    monkeypatch.setattr(logs, "local_log_start", lambda _wire, _key, _epoch: start["start"])
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


def test_the_leader_that_gave_nothing_is_the_one_that_tells_what_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another leader's local log may begin below the offset, which is remote only for the one that was asked."""
    wire = FakeWire(answer(), answer(), answer(), answer(), answer(), answer())
    told: list[int] = []

    def local_start(_wire: object, _key: object, leader_epoch: int) -> int:
        told.append(leader_epoch)
        assert wire.asked[-1][0].leader_epoch == leader_epoch
        if len(told) == 1:
            # The leader has moved since the probe: the broker of the old epoch is not the leader any more.
            wire.epoch += 1
            raise BrokerBusy("FENCED_LEADER_EPOCH")
        return 0

    monkeypatch.setattr(logs, "local_log_start", local_start)
    assert span(wire).until_offset == 100
    assert told == [4, 5]
    assert len(wire.asked) == 6, "nothing of the first probe is used"


class Asked(NamedTuple):
    """Where a ListOffsets request went, and what it demanded."""

    broker_id: int
    leader_epoch: int
    timestamp: int


class OffsetsWire:
    """A leader that compares epochs."""

    def __init__(self, epoch: int, highest_version: int = 10) -> None:
        self.config = SimpleNamespace(name="source")
        self.epoch = epoch
        self.asked: list[Asked] = []
        self.forgotten: list[tuple[str, int]] = []
        self.api_versions = {2: (1, highest_version)}

    def leaders(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, 7)

    def forget_leaders(self, keys: Iterable[tuple[str, int]]) -> None:
        self.forgotten += keys

    def connection(self, broker_id: int) -> Any:
        def call(request: Any, *, version: int) -> Any:
            (part,) = request.topics[0].partitions
            self.asked.append(Asked(broker_id, part.current_leader_epoch, part.timestamp))
            is_fenced = part.current_leader_epoch not in (-1, self.epoch)
            found = SimpleNamespace(partition_index=0, error_code=74 if is_fenced else 0, offset=3)
            return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[found])])

        return SimpleNamespace(api_versions=self.api_versions, call=call)


def test_what_is_local_is_asked_with_the_epoch_of_the_leader() -> None:
    wire = OffsetsWire(epoch=5)
    assert local_log_start(wire, KEY, 5) == 3  # type: ignore[arg-type]
    assert wire.asked == [Asked(7, 5, -4)]
    with pytest.raises(BrokerBusy, match="FENCED_LEADER_EPOCH"):
        local_log_start(wire, KEY, 4)  # type: ignore[arg-type]
    assert wire.forgotten == [KEY]


def test_without_an_epoch_nobody_can_tell_what_is_local() -> None:
    wire = OffsetsWire(epoch=5)
    assert local_log_start(wire, KEY, -1) is None  # type: ignore[arg-type]
    assert local_log_start(OffsetsWire(5, highest_version=7), KEY, 5) is None  # type: ignore[arg-type]
    assert wire.asked == []


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
