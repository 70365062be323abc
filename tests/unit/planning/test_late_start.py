"""A mirror that begins at the source's ends begins where no transaction is cut in two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import Span
from airflow_provider_kafka_migration.planning import late_start, mirror_starts
from airflow_provider_kafka_migration.planning.late_start import _Look, _TooMuchError, first_offsets
from airflow_provider_kafka_migration.planning.source_snapshot import SourceSnapshot

KEY = ("orders", 0)


class Log:
    """A log that producers write transactions to."""

    def __init__(self, *, restarts: bool = False) -> None:
        self.batches: list[RawBatch] = []
        self.start = self.end = 0
        #: whether each transaction begins at sequence 0 (transaction.version 2)
        self.restarts = restarts
        self.sequences: dict[int, int] = {}
        #: the batches of each transaction: first offset, and the one behind the last
        self.open: dict[int, list[tuple[int, int]]] = {}
        self.ended: list[list[tuple[int, int]]] = []
        self.reads: list[int] = []

    def _put(self, count: int, **options: Any) -> int:
        base = self.end
        records = [Record(base + number, 1, b"key", b"value", []) for number in range(count)]
        self.batches.append(RawBatch(memoryview(encode_batch(records, **options))))
        self.end += count
        return base

    def write(self, producer: int, count: int = 1) -> None:
        sequence = self.sequences.get(producer, 0)
        base = self._put(
            count, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=producer > 0
        )
        self.sequences[producer] = sequence + count
        if producer > 0:
            self.open.setdefault(producer, []).append((base, base + count))

    def finish(self, producer: int) -> None:
        self._put(1, producer_id=producer, producer_epoch=0, transactional=True, control=True)
        if producer in self.open:
            self.ended.append(self.open.pop(producer))
        if self.restarts:
            self.sequences[producer] = 0

    @property
    def stable(self) -> int:
        return min((batches[0][0] for batches in self.open.values()), default=self.end)

    @property
    def best(self) -> int:
        """The highest start that cuts nothing, by trying all."""
        return max(
            start
            for start in range(self.stable + 1)
            if not any(self._begin(batches) < start <= batches[-1][0] for batches in self.ended)
        )

    def _begin(self, batches: list[tuple[int, int]]) -> int:
        """Where a transaction begins, of which retention may have deleted the first batches."""
        return min((max(base, self.start) for base, past in batches if past > self.start), default=self.start)

    def fetch_span(self, _wire: Any, key: Any, from_offset: int, *, isolation: int, max_bytes: int) -> Span:
        assert (key, isolation, max_bytes) == (KEY, READ_UNCOMMITTED, late_start._FETCH_BYTES)
        assert from_offset >= self.start
        self.reads.append(from_offset)
        batches = [item for item in self.batches if item.next_offset > from_offset][:3]
        data = b"".join(bytes(item.data) for item in batches)
        until = batches[-1].next_offset if batches else from_offset
        return Span(list(batches), memoryview(data), [], until, self.end)

    def look(self, monkeypatch: pytest.MonkeyPatch, limit_bytes: int = 10**9) -> int:
        monkeypatch.setattr(late_start, "fetch_span", self.fetch_span)
        return _Look(None, KEY, limit_bytes).start(self.start, self.stable, self.end)  # type: ignore[arg-type]


def test_where_nothing_is_open_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(1)
    log.finish(1)
    log.write(0, 5)
    assert log.look(monkeypatch) == 7
    assert log.reads == []


def test_it_begins_with_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(1)
    log.finish(1)
    log.write(2, 3)
    log.write(0)
    assert log.look(monkeypatch) == 2
    assert min(log.reads) == 2, "nothing has ended above it: nothing below it matters"


def test_a_transaction_that_has_ended_beside_it_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(1)  # 0
    log.write(2)  # 1: open
    log.write(1)  # 2
    log.finish(1)
    assert log.stable == 1
    assert log.look(monkeypatch) == 0


def test_nor_is_one_that_this_would_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(0, 10)
    log.write(3)  # 10
    log.write(1)  # 11
    log.write(3)  # 12
    log.finish(3)
    log.write(2)  # 14: open
    log.write(1)  # 15
    log.finish(1)
    assert log.stable == 14
    assert log.look(monkeypatch) == 10


def test_one_whose_records_all_lie_below_is_left_out_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(1)
    log.write(2)
    log.finish(1)
    assert log.stable == log.look(monkeypatch) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_how_far_it_looks_back(monkeypatch: pytest.MonkeyPatch, restarts: bool) -> None:
    """With sequences that begin at 0, or behind a producer's earlier marker, it knows where a transaction begins."""
    log = Log(restarts=restarts)
    log.write(0, 5_000)
    log.write(1)
    log.finish(1)
    log.write(2)
    log.write(1)
    log.finish(1)
    assert log.look(monkeypatch) == log.stable == 5_002
    assert min(log.reads) == (5_002 if restarts else 4_002)


def test_the_log_s_start_ends_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(0, 1_500)
    log.write(1, 4)
    log.write(2)
    log.write(1)
    log.finish(1)
    # Retention has deleted the first batches, and the sequence no longer says that this was the first one.
    log.start = 1_502
    assert log.look(monkeypatch) == 1_502


def test_it_reads_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(1)
    log.finish(1)
    for _ in range(300):
        log.write(0, 20)
    log.write(2)
    log.write(1)
    log.finish(1)
    with pytest.raises(_TooMuchError):
        log.look(monkeypatch, 5_000)
    assert log.look(monkeypatch) == log.stable


def test_a_first_batch_that_begins_below_the_window_begins_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(2, 2)
    log.write(1)
    log.write(2)
    log.finish(2)
    monkeypatch.setattr(late_start, "_FIRST_WINDOW_OFFSETS", 1)
    assert log.look(monkeypatch) == 0


_OPS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["write", "write", "finish"]), st.integers(1, 3)))


@given(_OPS, st.booleans(), st.integers(0, 6), st.sampled_from([1, 3, 50]))
def test_it_is_the_highest_offset_that_cuts_nothing(
    ops: list[tuple[int, str, int]], restarts: bool, deleted: int, window: int
) -> None:
    log = Log(restarts=restarts)
    for producer, what, count in ops:
        if what == "write":
            log.write(producer, count)
        elif producer > 0:
            log.finish(producer)
    log.start = min(deleted, log.stable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_start, "_FIRST_WINDOW_OFFSETS", window)
        assert log.look(patch) == max(log.best, log.start)


def test_what_retention_has_deleted_of_a_transaction_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.write(0)
    log.write(2)  # 1: deleted below
    log.write(0)
    log.write(1)  # 3: open
    log.write(2)  # 4
    log.finish(2)
    log.start = 2
    assert log.best == log.look(monkeypatch) == 3


# -- all partitions ---------------------------------------------------------------------------------------------------


def snapshot(*stable: int) -> SourceSnapshot:
    facts = SimpleNamespace(topic_id="id", partitions=[SimpleNamespace(partition=n) for n in range(len(stable))])
    found = SourceSnapshot(None, {"orders": facts}, {}, [])  # type: ignore[arg-type, dict-item]
    for number, offset in enumerate(stable):
        found.starts["orders", number] = 0
        found.stable["orders", number] = offset
        found.high_watermarks["orders", number] = offset + 10
    return found


@pytest.mark.parametrize(
    ("error", "why"),
    [(_TooMuchError(), "bytes would have to be read"), (BrokerUnreachable("it is down"), "it is down")],
)
def test_where_it_cannot_be_known_the_plan_says_so(monkeypatch: pytest.MonkeyPatch, error: Exception, why: str) -> None:
    limits: list[int] = []

    class Look:
        def __init__(self, _wire: Any, key: Any, limit_bytes: int) -> None:
            self.key, self.limit_bytes, self.read_bytes = key, limit_bytes, 0
            limits.append(limit_bytes)

        def start(self, _log_start: int, stable: int, _high_watermark: int) -> int:
            self.read_bytes = late_start.PARTITION_BYTES
            if self.key == ("orders", 1):
                raise error
            return stable - 1

    monkeypatch.setattr(late_start, "_Look", Look)
    monkeypatch.setattr(late_start, "ALL_BYTES", late_start.PARTITION_BYTES + 7)
    monkeypatch.setattr(mirror_starts, "are_known", lambda _: False)
    found = snapshot(5, 6, 7)
    context: Any = SimpleNamespace(record=None, source=SimpleNamespace(wire=None))
    assert first_offsets(context, found) == {("orders", 0): 4, ("orders", 1): 6, ("orders", 2): 6}
    ((what, reason),) = found.unknown.items()
    assert "orders-1" in what
    assert "may be cut in two" in what
    assert why in reason
    assert limits[:2] == [late_start.PARTITION_BYTES, 7], "all of them together"
