"""The process of :mod:`benchmarks.peers.raw_limit`.

One thread reads, one writes for each target broker. Blocking sockets, buffers that are used again, requests in
flight on both sides. Nothing is verified but error codes: no resume, no leases, no check of offsets, no archive.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import sys
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

from airflow_provider_kafka_migration.kafka import fetch, produce
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from benchmarks.peers.base import note_idle_size

_FETCH_BYTES = 1024 * 1024
_ANSWER_BYTES = 16 * 1024 * 1024
_BUFFERS = 4
_REQUESTS_IN_FLIGHT = 5
_FETCH_VERSION, _PRODUCE_VERSION = 11, 8
_HEAD = struct.Struct(">qiibIhiqqqhii")
_CHECKED = struct.Struct(">hiqqqhii")


@dataclass
class _Link:
    """A blocking connection that sends requests and reads answers in order."""

    sock: socket.socket
    correlation: int = 0

    @classmethod
    def to(cls, wire: Wire, broker_id: int) -> _Link:
        broker = wire.broker(broker_id)
        sock = socket.create_connection((broker.host, broker.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * 1024 * 1024)
        return cls(sock)

    def send(self, api_key: int, version: int, parts: list[Any]) -> None:
        self.correlation += 1
        size = 10 + sum(map(len, parts))
        buffers = [memoryview(struct.pack(">ihhih", size, api_key, version, self.correlation, 0))]
        buffers += [memoryview(part) for part in parts]
        while buffers:
            sent = self.sock.sendmsg(buffers[:512])
            while buffers and sent >= len(buffers[0]):
                sent -= len(buffers.pop(0))
            if sent:
                buffers[0] = buffers[0][sent:]

    def receive(self, buffer: memoryview) -> memoryview:
        """The next answer, without its header."""
        (size,) = struct.unpack(">i", self._exactly(buffer[:4]))
        return self._exactly(buffer[:size])[4:]

    def _exactly(self, view: memoryview) -> memoryview:
        got = 0
        while got < len(view):
            count = self.sock.recv_into(view[got:])
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            got += count
        return view


@dataclass
class _Buffer:
    """A receive buffer and how many produce requests still need it."""

    view: memoryview
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _Writer:
    """The target side for the partitions of one leader."""

    link: _Link
    topic: str
    producer_id: int
    free: queue.Queue[_Buffer]
    work: queue.Queue[tuple[_Buffer, dict[int, list[memoryview]]] | None] = field(default_factory=queue.Queue)
    sequences: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _waiting: deque[_Buffer | None] = field(default_factory=deque)
    _answer: memoryview = field(default_factory=lambda: memoryview(bytearray(1024 * 1024)))

    def run(self) -> None:
        while (item := self._next()) is not None:
            buffer, batches = item
            rounds = max(len(found) for found in batches.values())
            for index in range(rounds):
                parts = [
                    self._patched(partition, found[index]) for partition, found in batches.items() if index < len(found)
                ]
                self.link.send(0, _PRODUCE_VERSION, produce.encode(parts, timeout_ms=30_000))
                self._waiting.append(buffer if index == rounds - 1 else None)
                if len(self._waiting) >= _REQUESTS_IN_FLIGHT:
                    self._confirm()
        while self._waiting:
            self._confirm()

    def _next(self) -> tuple[_Buffer, dict[int, list[memoryview]]] | None:
        while self._waiting and self.work.empty():
            self._confirm()
        return self.work.get()

    def _confirm(self) -> None:
        answer = produce.decode(self.link.receive(self._answer), _PRODUCE_VERSION)
        wrong = [item for item in answer.partitions if item.error_code]
        if wrong:
            raise RuntimeError(f"refused: {wrong[0]}")
        buffer = self._waiting.popleft()
        if buffer is not None:
            with buffer.lock:
                buffer.users -= 1
                if buffer.users == 0:
                    self.free.put(buffer)

    def _patched(self, partition: int, batch: memoryview) -> produce.ProduceBatch:
        _, _, _, _, _, attributes, last_delta, first_time, last_time, _, _, _, count = _HEAD.unpack_from(batch)
        sequence = self.sequences[partition]
        self.sequences[partition] = sequence + last_delta + 1
        checked = _CHECKED.pack(attributes & 7, last_delta, first_time, last_time, self.producer_id, 0, sequence, count)
        payload = batch[61:]
        crc = crc32c(payload, crc32c(checked))
        head = struct.pack(">qiibI", 0, len(batch) - 12, -1, 2, crc) + checked
        return produce.ProduceBatch(self.topic, partition, head, payload)


def copy(options: dict[str, Any]) -> None:
    """Copy all partitions from offset 0 to their ends."""
    source = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": options["source"]}, "source"))
    target = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": options["target"]}, "target"))
    until = {int(number): end for number, end in options["until"].items() if end > 0}
    topic, target_topic = options["topic"], options["target_topic"]
    leaders = target.leaders([(target_topic, number) for number in until])
    (source_broker,) = set(source.leaders([(topic, number) for number in until]).values())
    producer_id, _ = target.init_producer_id()
    free: queue.Queue[_Buffer] = queue.Queue()
    for _ in range(_BUFFERS):
        free.put(_Buffer(memoryview(bytearray(_ANSWER_BYTES + 4 * _FETCH_BYTES))))
    writers = {
        broker: _Writer(_Link.to(target, broker), target_topic, producer_id, free) for broker in set(leaders.values())
    }
    note_idle_size(Path(options["folder"]))
    threads = [threading.Thread(target=writer.run) for writer in writers.values()]
    for thread in threads:
        thread.start()
    writer_of = {number: writers[leaders[(target_topic, number)]] for number in until}
    _read(_Link.to(source, source_broker), topic, until, free, writer_of)
    for writer in writers.values():
        writer.work.put(None)
    for thread in threads:
        thread.join()


def _read(
    link: _Link, topic: str, until: dict[int, int], free: queue.Queue[_Buffer], writer_of: dict[int, _Writer]
) -> None:
    offsets = dict.fromkeys(until, 0)
    while left := [number for number in until if offsets[number] < until[number]]:
        # The one that is furthest behind first: an answer may not have room for all.
        left.sort(key=lambda number: offsets[number])
        ranges = [fetch.FetchRange(topic, number, offsets[number], _FETCH_BYTES) for number in left]
        buffer = free.get()
        link.send(1, _FETCH_VERSION, [fetch.encode(ranges, _FETCH_VERSION, max_wait_ms=100, max_bytes=_ANSWER_BYTES)])
        answer = fetch.decode(link.receive(buffer.view), _FETCH_VERSION)
        work: dict[int, dict[int, list[memoryview]]] = defaultdict(dict)
        for item in answer.partitions:
            batches, offsets[item.partition] = _batches(item.records, offsets[item.partition])
            if batches:
                work[id(writer_of[item.partition])][item.partition] = batches
        buffer.users = len(work)
        if not work:
            free.put(buffer)
        for found in work.values():
            writer_of[next(iter(found))].work.put((buffer, found))


def _batches(records: memoryview, offset: int) -> tuple[list[memoryview], int]:
    found, position = [], 0
    while position + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + length + 12 > len(records):
            break
        batch = records[position : position + length + 12]
        (last_delta,) = struct.unpack_from(">i", batch, 23)
        found.append(batch)
        offset = base + last_delta + 1
        position += length + 12
    return found, offset


if __name__ == "__main__":
    copy(json.loads(sys.argv[1]))
