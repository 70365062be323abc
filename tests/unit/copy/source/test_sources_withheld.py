"""Records that a source does not give: nothing is concluded, others go on, and what stays so is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from source_logs import record

from airflow_provider_kafka_migration.copy import source
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, Trouble
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED, FetchAnswer, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.logs import FULL_WAIT_MS
from airflow_provider_kafka_migration.kafka.wire import Wire

END = 100
TRIES = len(source.WITHHELD_PAUSES)


class Broker:
    """A leader of two partitions; what it says of the first one is up to the test."""

    def __init__(self) -> None:
        self.closed = False
        self.epoch = 4
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.asked: tuple[Sequence[FetchRange], int, int] | None = None
        self._answer: Callable[[Any], None] | None = None

    def leaders(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, 1)

    present_leaders = leaders

    def leader_epochs(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, self.epoch)

    def forget_leaders(self, _keys: Sequence[tuple[str, int]]) -> None:
        return

    def open_connection(self, _broker_id: int) -> Broker:
        return self

    def submit(self, _key: int, _version: int, parts: list[Any], on_answer: Callable[[Any], None]) -> None:
        self.asked, self._answer = parts[0], on_answer

    def answer(self, *partitions: FetchedPartition, error_code: int = 0, throttle_ms: int = 0) -> None:
        self.asked, on_answer = None, self._answer
        assert on_answer is not None
        on_answer([None, None, None, None, FetchAnswer(throttle_ms, error_code, 0, list(partitions))])

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
        self.now = 100.0
        self.broker = Broker()
        self.chunks: list[tuple[int, int, int]] = []
        self.troubles: list[MigrationError] = []
        self.local_start: int | None = 0
        monkeypatch.setattr(source.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(
            source.fetch, "encode", lambda ranges, _version, **more: (ranges, more["max_wait_ms"], more["isolation"])
        )
        monkeypatch.setattr(source.fetch, "decode", lambda answer, _version: answer[0])
        monkeypatch.setattr(source, "local_log_start", self._local_log_start)
        self.source = source.KafkaSource(
            cast(Wire, self.broker),
        )
        self.local_epochs: list[int] = []
        self.copies = [self._copy(number) for number in range(partitions)]
        self.source.attach(self.copies)
        answer = self.broker.answer

        def answered(*items: FetchedPartition, **more: int) -> None:
            answer(*items, **more)
            self.take()

        self.broker.answer = answered  # type: ignore[method-assign]

    def _local_log_start(self, _wire: object, _key: object, leader_epoch: int) -> int | None:
        self.local_epochs.append(leader_epoch)
        return self.local_start

    @staticmethod
    def _copy(number: int) -> PartitionCopy:
        spec = CopyPartition(
            topic="t",
            target_topic="t",
            partition=number,
            source_start_offset=0,
            target_start_offset=0,
            verdict=Verdict.EQUAL,
        )
        copy = PartitionCopy(spec, 0)
        copy.state = CopyState.RUNNING
        return copy

    def _on_chunk(self, copy: PartitionCopy, chunk: Chunk) -> None:
        self.chunks.append((chunk.partition, chunk.until_offset, len(chunk.batches)))

    def take(self) -> None:
        """Take what the source side has brought."""
        for item in self.source.poll():
            if isinstance(item, Trouble):
                self.troubles.append(item.error)
            else:
                self._on_chunk(item.copy, item.chunk)

    def pump(self) -> tuple[list[int], int, int]:
        """The next fetch: (partitions, wait in ms, isolation)."""
        self.source.fetch_more(self.now, lambda _: True)
        if self.broker.asked is None:
            self.now = self.source.next_due(self.now)
            self.source.fetch_more(self.now, lambda _: True)
        assert self.broker.asked is not None
        ranges, wait, isolation = self.broker.asked
        return sorted(item.partition for item in ranges), wait, isolation

    def silent(self, number: int = 0) -> FetchedPartition:
        return FetchedPartition("t", number, 0, END, END, 0, [], memoryview(b""))

    def batch(self, offset: int, number: int = 0) -> FetchedPartition:
        return self.silent(number)._replace(records=memoryview(encode_batch([record(offset)])))

    def cycle(self, probe: FetchedPartition | None = None) -> None:
        """Asked with others, alone, and for a proof."""
        for item in (self.silent(), self.silent(), probe or self.silent()):
            self.pump()
            self.broker.answer(item)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, 1)


def test_nothing_in_a_local_log_is_a_hole_after_three_answers(world: World) -> None:
    asked = []
    for _ in range(3):
        asked.append(world.pump()[1:])
        assert not world.chunks
        world.broker.answer(world.silent())
    assert asked[1][0] == FULL_WAIT_MS
    assert asked[2] == (FULL_WAIT_MS, READ_UNCOMMITTED)
    assert world.chunks == [(0, END, 0)]


def test_the_leader_of_the_probe_tells_what_is_local(world: World) -> None:
    for _ in range(3):
        world.pump()
        world.broker.answer(world.silent())
    assert (world.chunks, world.local_epochs) == ([(0, END, 0)], [4])


def test_a_probe_of_another_leader_proves_nothing(world: World) -> None:
    for _ in range(2):
        world.pump()
        world.broker.answer(world.silent())
    world.pump()
    # Meanwhile the partition was attached to its leader again, which is the same broker in a later epoch.
    world.broker.epoch = 5
    world.source.detach(world.copies[0])
    world.source.attach(world.copies)
    world.broker.answer(world.silent())
    assert (world.chunks, world.local_epochs, world.troubles) == ([], [], [])
    world.cycle()
    assert (world.chunks, world.local_epochs) == ([(0, END, 0)], [5])


def test_a_later_batch_proves_a_hole_up_to_it(world: World) -> None:
    world.local_start = None
    world.cycle(world.batch(40))
    assert world.chunks == [(0, 40, 0)], "its records come with read_committed"


def test_a_hole_may_have_swallowed_whole_epochs(world: World) -> None:
    """Behind it the epoch before it ends below the position, as if the source had been cut off."""
    world.copies[0].read.leader_epoch = 1
    later = memoryview(encode_batch([record(40)], leader_epoch=3))
    world.cycle(world.silent()._replace(records=later))
    assert (world.chunks[-1][1], world.copies[0].read.leader_epoch) == (40, 3)
    world.cycle()
    assert (world.chunks[-1][1], world.copies[0].read.leader_epoch) == (END, world.broker.epoch)


@pytest.mark.parametrize("local_start", [1, None])
def test_what_is_not_local_rests_and_is_named_in_the_end(world: World, local_start: int | None) -> None:
    world.local_start = local_start
    for pause in source.WITHHELD_PAUSES:
        world.cycle()
        assert not world.troubles
        assert world.source.next_due(world.now) == pytest.approx(world.now + pause)
        world.now += pause
    world.cycle()
    assert [error.code for error in world.troubles] == ["RECORDS_WITHHELD"]
    assert not world.chunks


def test_tries_are_counted_anew_when_records_have_come(world: World) -> None:
    world.local_start = END
    for _ in range(3):
        for _ in range(TRIES):
            world.cycle()
            world.now += 10
        world.pump()
        world.broker.answer(world.batch(world.copies[0].read.next_offset))
    assert len(world.chunks) == 3
    assert not world.troubles


def test_a_partition_without_answers_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2)
    world.local_start = 1
    seen = []
    for _ in range(8):
        partitions = world.pump()[0]
        seen.append(partitions)
        other = world.batch(world.copies[1].read.next_offset, 1)
        world.broker.answer(*([world.silent()] if 0 in partitions else []), *([other] if 1 in partitions else []))
    assert all(1 in before or 1 in after for before, after in pairwise(seen))
    assert [0] in seen
    assert {number for number, _, _ in world.chunks} == {1}


def test_a_batch_that_stays_cut_is_named(world: World) -> None:
    piece = world.batch(0)
    piece = piece._replace(records=piece.records[:40])
    for _ in range(TRIES + 1):
        for _ in range(2):
            world.pump()
            world.broker.answer(piece)
        world.now += 10
    assert [error.code for error in world.troubles] == ["RECORDS_WITHHELD"]


def test_an_answer_that_says_nothing_of_a_partition_is_named(world: World) -> None:
    world.pump()
    world.broker.answer()
    world.pump()
    world.broker.answer(error_code=70)
    assert [error.code for error in world.troubles] == ["BROKER_BUSY", "BROKER_BUSY"]
    world.pump()
    world.broker.answer(throttle_ms=100)
    assert len(world.troubles) == 2, "a quota is no trouble"
