"""Source logs for tests: batches as a broker would keep them, and what a read_committed consumer sees of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.kafka.batches.header import compress


def record(offset: int, value: bytes | None = b"v", *, time: int = 1000, key: bytes | None = b"k") -> Record:
    """A record for tests that care for offsets only."""
    return Record(offset, time, key, value, [])


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction."""
    found = Record(offset, 1, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0), [])
    return encode_batch([found], producer_id=producer, producer_epoch=0, transactional=True, control=True)


def legacy(offset: int, magic: int, codec: int, records: list[Record]) -> bytes:
    """A message of an old format; a wrapper if there is a codec."""
    if codec == 0:
        return _message(offset, magic, 0, records[0])
    first = records[0].offset if magic else 0
    inner = b"".join(_message(found.offset - first, magic, 0, found) for found in records)
    wrapper = Record(0, records[-1].timestamp, None, compress(codec, inner), [])
    return _message(records[-1].offset, magic, codec, wrapper)


def _message(offset: int, magic: int, attributes: int, content: Record) -> bytes:
    import zlib

    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", content.timestamp) if magic else b"")
    for part in (content.key, content.value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@dataclass
class Transaction:
    """An aborted transaction, as a broker's index knows it."""

    producer: int
    first_offset: int
    last_offset: int


@dataclass
class SourceLog:
    """Batches in offset order, and what they mean."""

    #: (bytes, base offset, next offset)
    batches: list[tuple[bytes, int, int]] = field(default_factory=list)
    aborted: list[Transaction] = field(default_factory=list)
    #: what consumers see, in order
    visible: list[Record] = field(default_factory=list)
    end_offset: int = 0

    def add(self, data: bytes, base: int, next_offset: int, seen: list[Record]) -> None:
        self.batches.append((data, base, next_offset))
        self.visible += seen
        self.end_offset = next_offset

    def fetch(self, position: int, batch_count: int) -> tuple[bytes, list[tuple[int, int]], int]:
        """(batches, aborted list, offset up to which they cover) as a broker answers a fetch at ``position``."""
        found = [batch for batch in self.batches if batch[2] > position][:batch_count]
        if not found:
            return b"", [], self.end_offset
        until = found[-1][2]
        aborted = [
            (transaction.producer, transaction.first_offset)
            for transaction in self.aborted
            if transaction.last_offset >= position and transaction.first_offset < until
        ]
        return b"".join(data for data, _, _ in found), aborted, until


@st.composite
def source_logs(draw: st.DrawFn, prefix: Callable[[int], bytes] = lambda _offset: b"") -> SourceLog:
    """Any mix of batches: holes, transactions that interleave, markers, empty batches, old formats, append times.

    :param prefix: returns what the value of each record begins with.
    """
    log = SourceLog()
    log.end_offset = draw(st.sampled_from([0, 5, 1_000_000]))
    # producer -> (fate, first offset, records of its open transaction in order)
    running: dict[int, tuple[bool, int, list[Record]]] = {}
    order: list[tuple[int | None, Record]] = []
    for _ in range(draw(st.integers(1, 14))):
        _add_batch(draw, log, running, order, prefix)
    for producer in sorted(running):
        _end(log, running, order, producer)
    log.visible = [found for _, found in order]
    return log


def _end(
    log: SourceLog,
    running: dict[int, tuple[bool, int, list[Record]]],
    order: list[tuple[int | None, Record]],
    producer: int,
) -> None:
    commits, first, mine = running.pop(producer)
    offset = log.end_offset
    log.add(marker(offset, producer, commit=commits), offset, offset + 1, [])
    if not commits:
        log.aborted.append(Transaction(producer, first, offset))
        lost = {id(found) for found in mine}
        order[:] = [pair for pair in order if id(pair[1]) not in lost]


def _add_batch(
    draw: st.DrawFn,
    log: SourceLog,
    running: dict[int, tuple[bool, int, list[Record]]],
    order: list[tuple[int | None, Record]],
    prefix: Callable[[int], bytes],
) -> None:
    base = log.end_offset + draw(st.sampled_from([0, 0, 0, 3]))  # whole batches can be compacted away
    kind = draw(st.sampled_from(["plain", "plain", "txn", "txn", "end", "legacy", "empty"]))
    if kind == "end" and running:
        _end(log, running, order, draw(st.sampled_from(sorted(running))))
        return
    span = draw(st.integers(1, 6))
    codec = draw(st.sampled_from([0, 3, 4]))
    if kind == "legacy":
        _add_legacy(draw, log, order, base, codec, prefix)
        return
    kept = [] if kind == "empty" else draw(st.lists(st.integers(0, span - 1), unique=True).map(sorted))
    if kind == "plain" and draw(st.booleans()):
        kept = list(range(span))
    found = [
        record(base + delta, prefix(base + delta) + b"%d" % (base + delta), time=draw(st.integers(-1, 9999)))
        for delta in kept
    ]
    producer = draw(st.sampled_from([1, 2, 3])) if kind == "txn" else draw(st.sampled_from([-1, 1, 2]))
    append_time = draw(st.sampled_from([None, None, 777]))
    data = encode_batch(
        found,
        codec,
        base_offset=base,
        last_offset=base + span - 1,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        transactional=kind == "txn",
        log_append_time=append_time,
    )
    log.add(data, base, base + span, [])
    seen = found if append_time is None else [one._replace(timestamp=append_time) for one in found]
    order += [(producer, one) for one in seen]
    if kind == "txn":
        fate, first, mine = running.get(producer, (draw(st.booleans()), base, []))
        running[producer] = (fate, first, mine + seen)


def _add_legacy(
    draw: st.DrawFn,
    log: SourceLog,
    order: list[tuple[int | None, Record]],
    base: int,
    codec: int,
    prefix: Callable[[int], bytes],
) -> None:
    magic = draw(st.integers(0, 1))
    codec = 3 if codec == 4 else codec
    deltas = [0] if codec == 0 else draw(st.lists(st.integers(0, 5), min_size=1, unique=True).map(sorted))
    time = 500 if magic else -1
    found = [record(base + delta, prefix(base + delta) + b"old %d" % (base + delta), time=time) for delta in deltas]
    log.add(legacy(base, magic, codec, found), base, found[-1].offset + 1, [])
    order += [(None, one) for one in found]
