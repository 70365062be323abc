"""Partitions that bring nothing are asked for apart, so that they cost the busy ones nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from source_logs import record

from airflow_provider_kafka_migration.copy import source
from airflow_provider_kafka_migration.copy.partition import CopyState, PartitionCopy, Trouble
from airflow_provider_kafka_migration.copy.transform import Chunk
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerUnreachable, MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from airflow_provider_kafka_migration.kafka.fetch import FetchAnswer, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import Wire

BUSY, IDLE = 3, 40


class FakeConnection:
    """Keeps what was asked until the test answers."""

    def __init__(self) -> None:
        self.closed = False
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.asked: tuple[Sequence[FetchRange], int] | None = None
        self._answer: Callable[[Any], None] | None = None

    def submit(self, _key: int, _version: int, parts: list[Any], on_answer: Callable[[Any], None]) -> None:
        assert self.asked is None
        self.asked, self._answer = parts[0], on_answer

    def answer(self, answer: FetchAnswer) -> None:
        self.asked, on_answer = None, self._answer
        assert on_answer is not None
        on_answer([None, None, None, None, answer])

    def close(self) -> None:
        self.closed = True


class FakeWire:
    """One leader for everything; its logs are batches of one record."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.ends: dict[tuple[str, int], int] = {}

    def present_leaders(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, 1)

    def leader_epochs(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, -1)

    def forget_leaders(self, _keys: Sequence[tuple[str, int]]) -> None:
        return

    def open_connection(self, _broker_id: int) -> FakeConnection:
        self.connections.append(FakeConnection())
        return self.connections[-1]

    def answer(self, connection: FakeConnection) -> list[tuple[str, int]]:
        """Answer what the connection was asked; which partitions that were."""
        assert connection.asked is not None
        ranges, _ = connection.asked
        connection.answer(FetchAnswer(0, 0, 0, [self._read(item) for item in ranges]))
        return [(item.topic, item.partition) for item in ranges]

    def _read(self, item: FetchRange) -> FetchedPartition:
        end = self.ends.get((item.topic, item.partition), 0)
        records = b"".join(encode_batch([record(offset)]) for offset in range(item.offset, end))
        return FetchedPartition(item.topic, item.partition, 0, end, end, 0, [], memoryview(records))


class World:
    """A lane with few busy partitions and many idle ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.wire = FakeWire()
        self.got: dict[tuple[str, int], int] = {}
        self.troubles: list[MigrationError] = []
        self.held: set[PartitionCopy] = set()
        monkeypatch.setattr(source.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(source.fetch, "encode", lambda ranges, _version, **more: (ranges, more["max_wait_ms"]))
        monkeypatch.setattr(source.fetch, "decode", lambda answer, _version: answer[0])
        self.source = source.KafkaSource(
            cast(Wire, self.wire),
        )
        self.copies = [self._copy("busy", number) for number in range(BUSY)]
        self.copies += [self._copy("idle", number) for number in range(IDLE)]
        self.source.attach(self.copies)
        answer = self.wire.answer

        def answered(connection: FakeConnection) -> list[tuple[str, int]]:
            keys = answer(connection)
            self.take()
            return keys

        self.wire.answer = answered  # type: ignore[method-assign]

    @staticmethod
    def _copy(topic: str, number: int) -> PartitionCopy:
        spec = CopyPartition(
            topic=topic,
            target_topic=topic,
            partition=number,
            source_start_offset=0,
            target_start_offset=0,
            verdict=Verdict.EQUAL,
        )
        copy = PartitionCopy(spec, 0)
        copy.state = CopyState.RUNNING
        return copy

    def _on_chunk(self, copy: PartitionCopy, chunk: Chunk) -> None:
        assert chunk.from_offset == self.got.get(copy.key, 0), "read twice, or left out"
        self.got[copy.key] = chunk.until_offset

    def take(self) -> None:
        """Take what the source side has brought."""
        for item in self.source.poll():
            if isinstance(item, Trouble):
                self.troubles.append(item.error)
            else:
                self._on_chunk(item.copy, item.chunk)

    def write(self, *keys: tuple[str, int]) -> None:
        for key in keys:
            self.wire.ends[key] = self.wire.ends.get(key, 0) + 1

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.source.fetch_more(self.now, lambda copy: copy not in self.held)
        self.take()

    def sort(self) -> tuple[FakeConnection, FakeConnection]:
        """Rounds until the idle ones are apart: the connections of the busy and of the quiet ones."""
        for _ in range(20):
            self.write(*(("busy", number) for number in range(BUSY)))
            self.pass_time(0.1)
            self.wire.answer(self.wire.connections[0])
        self.pass_time(0.1)
        busy, quiet = self.wire.connections
        return busy, quiet


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def _asked(connection: FakeConnection) -> list[tuple[str, int]]:
    return [] if connection.asked is None else sorted((item.topic, item.partition) for item in connection.asked[0])


BUSY_KEYS = [("busy", number) for number in range(BUSY)]
IDLE_KEYS = [("idle", number) for number in range(IDLE)]


def test_busy_ones_are_asked_for_without_the_idle_ones(world: World) -> None:
    busy, quiet = world.sort()
    assert _asked(busy) == BUSY_KEYS
    assert _asked(quiet) == IDLE_KEYS
    # The idle ones' fetch waits at the broker, and nothing of it is sent again meanwhile.
    waiting = quiet.asked
    for _ in range(5):
        world.write(*BUSY_KEYS)
        world.wire.answer(busy)
        world.pass_time(0.05)
    assert quiet.asked is waiting
    assert world.got == world.wire.ends


def test_what_wakes_up_goes_over_to_the_busy_ones_at_once(world: World) -> None:
    busy, quiet = world.sort()
    world.write(("idle", 7))
    world.wire.answer(quiet)
    assert world.got[("idle", 7)] == 1
    world.wire.answer(busy)
    world.pass_time(0.001)
    assert _asked(busy) == sorted([*BUSY_KEYS, ("idle", 7)])
    world.write(("idle", 7))
    world.wire.answer(busy)
    assert world.got[("idle", 7)] == 2


def test_until_the_busy_ones_are_asked_again_it_stays_where_it_is_heard(world: World) -> None:
    """Else it would wait for the answer of a fetch that it is not in."""
    busy, quiet = world.sort()
    for count in range(1, 4):
        world.write(("idle", 7))
        world.wire.answer(quiet)
        assert world.got[("idle", 7)] == count
        world.pass_time(0.02)
        assert ("idle", 7) in _asked(quiet)
    assert ("idle", 7) not in _asked(busy)


def test_the_quiet_ones_rest_between_two_fetches(world: World) -> None:
    _, quiet = world.sort()
    world.write(("idle", 1))
    world.wire.answer(quiet)
    world.pass_time(0.001)
    assert quiet.asked is None
    due = world.source.next_due(world.now)
    assert world.now < due <= world.now + source.QUIET_PAUSE_SECONDS
    world.pass_time(due - world.now)
    assert quiet.asked is not None


def test_one_that_falls_silent_moves_and_is_never_read_twice(world: World) -> None:
    busy, quiet = world.sort()
    world.write(*BUSY_KEYS[1:])
    for _ in range(15):
        world.write(*BUSY_KEYS[1:])
        world.wire.answer(busy)
        world.pass_time(0.1)
    # Its last fetch is still on its way when the quiet ones' next one takes it over.
    assert BUSY_KEYS[0] in _asked(busy)
    world.wire.answer(quiet)
    world.pass_time(0.1)
    assert BUSY_KEYS[0] in _asked(quiet)
    world.write(BUSY_KEYS[0])
    world.wire.answer(busy)
    world.wire.answer(quiet)
    assert world.got[BUSY_KEYS[0]] == world.wire.ends[BUSY_KEYS[0]]
    assert not world.troubles


def test_what_waits_for_room_is_not_quiet(world: World) -> None:
    busy, quiet = world.sort()
    held = world.copies[0]
    held.write.pending_bytes = 1
    world.held.add(held)
    for _ in range(30):
        world.write(*BUSY_KEYS[1:])
        world.wire.answer(busy)
        if quiet.asked is not None:
            world.wire.answer(quiet)
        world.pass_time(0.1)
    held.write.pending_bytes = 0
    world.held.clear()
    world.wire.answer(busy)
    world.pass_time(0.01)
    assert held.key in _asked(busy)


def test_few_partitions_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FEW_PARTITIONS", BUSY + IDLE)
    world = World(monkeypatch)
    for _ in range(30):
        world.pass_time(0.5)
        world.wire.answer(world.wire.connections[0])
    assert len(world.wire.connections) == 1


def test_a_broken_connection_of_the_quiet_ones_leaves_the_busy_ones_alone(world: World) -> None:
    busy, quiet = world.sort()
    world.source.lose(quiet, BrokerUnreachable("gone"))  # type: ignore[arg-type]
    world.take()
    assert quiet.closed
    assert not busy.closed
    assert len(world.troubles) == IDLE
    # As the copier does after a reset.
    world.source.attach(world.copies)
    world.wire.answer(busy)
    world.pass_time(0.1)
    assert _asked(busy) == sorted(BUSY_KEYS + IDLE_KEYS)


def test_every_log_is_read_whole_whatever_moves(world: World) -> None:
    world.sort()
    keys: Mapping[int, tuple[str, int]] = dict(enumerate(BUSY_KEYS + IDLE_KEYS))
    for step in range(2000):
        if step % 3 == 0:
            world.write(keys[(step * step // 7) % len(keys)])
        for number, connection in enumerate(world.wire.connections):
            if connection.asked is not None and (step + number) % 2:
                world.wire.answer(connection)
        world.pass_time(0.07)
    for _ in range(4):
        for connection in world.wire.connections:
            if connection.asked is not None:
                world.wire.answer(connection)
        world.pass_time(0.5)
    assert world.got == world.wire.ends
    assert not world.troubles
