"""A TCP proxy in front of a cluster's brokers, for faults of the network: it knows Kafka's frames.

It drops connections, discards responses, holds single requests back (even beyond the death of their sender) and changes
requests and responses. One thread, one event loop; brokers advertise its ports (``KafkaCluster(proxied=True)``).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: (api key, request without its length) -> the request that the broker gets
Rewrite = Callable[[int, bytes], bytes]
#: (api key, request, response, both without their lengths) -> the response that the client gets
RewriteAnswer = Callable[[int, bytes, bytes], bytes]

PRODUCE = 0
WRITE_TXN_MARKERS = 27
#: How long a client's connection to the broker outlives the client, so that the broker surely reads all requests.
_LINGER_SECONDS = 1.0
_CALL_SECONDS = 120.0


class HeldRequest:
    """A request that has left its sender and has not reached the broker."""

    def __init__(self, proxy: ClusterProxy, api_key: int, released: asyncio.Event) -> None:
        self.api_key = api_key
        self._proxy = proxy
        self._released = released
        #: set when the broker's response has come back
        self.answered = threading.Event()

    def deliver(self) -> None:
        """Let the request reach the broker now, whether its sender lives or not."""
        self._proxy.call_soon(self._released.set)


class _Hold:
    """Catches the n-th request with one of these keys."""

    def __init__(self, api_keys: Collection[int], skip: int) -> None:
        self.api_keys = frozenset(api_keys)
        self.skip = skip
        self.caught: HeldRequest | None = None
        self.event = threading.Event()


class ClusterProxy:
    """Proxies for all brokers of a cluster.

    :param ports: port for the clients -> port of the broker.
    """

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports = dict(ports)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cluster-proxy", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holds: list[_Hold] = []
        self._mute = False
        #: changes requests in transit
        self.rewrite: Rewrite | None = None
        #: changes responses in transit
        self.rewrite_answer: RewriteAnswer | None = None
        #: number of forwarded requests by api key
        self.requests: dict[int, int] = {}

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        """Close all."""
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_SECONDS)
        if not self._loop.is_running():
            self._loop.close()

    # -- faults ------------------------------------------------------------------------------------------------------

    def drop(self) -> int:
        """Reset all connections; return their number."""
        return self._call(self._drop())

    def lose_answers(self, seconds: float) -> None:
        """Forward requests but no responses for a while; then reset all connections."""
        self._mute = True
        time.sleep(seconds)
        self.drop()
        self._mute = False

    def hold(self, api_keys: Collection[int], skip: int = 0) -> Callable[[float], HeldRequest | None]:
        """Catch a request.

        :param skip: number of requests of these kinds to forward first.
        :returns: a function that waits (seconds) for the request; None: none came, and none is caught later.
        """
        hold = _Hold(api_keys, skip)
        self._holds.append(hold)

        def wait(seconds: float) -> HeldRequest | None:
            hold.event.wait(seconds)
            self._call(self._forget(hold))
            return hold.caught

        return wait

    # -- the loop's side ---------------------------------------------------------------------------------------------

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run a function in the loop's thread."""
        self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    async def _listen(self) -> None:
        for port, backend in self._ports.items():
            server = await asyncio.start_server(self._handler(backend), "127.0.0.1", port, limit=1 << 20)
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _drop(self) -> int:
        writers = list(self._writers)
        for writer in writers:
            writer.transport.abort()
        return len(writers) // 2

    async def _forget(self, hold: _Hold) -> None:
        if hold in self._holds:
            self._holds.remove(hold)

    def _handler(
        self, backend: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", backend, limit=1 << 20)
            except OSError:
                writer.transport.abort()
                return
            pair = {writer, broker_writer}
            self._writers |= pair
            held: list[HeldRequest] = []
            asked: deque[bytes] = deque()
            down = asyncio.ensure_future(self._down(broker_reader, writer, held, asked))
            try:
                await self._up(reader, broker_writer, down, held, asked)
            finally:
                down.cancel()
                self._writers -= pair
                for one in pair:
                    one.transport.abort()

        return handle

    async def _up(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        down: asyncio.Future[None],
        held: list[HeldRequest],
        asked: deque[bytes],
    ) -> None:
        """Requests of one connection, in order. Requests of a client that has disconnected still arrive."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not down.done():
                head = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", head)[0])
                (api_key,) = struct.unpack_from(">h", frame)
                self.requests[api_key] = self.requests.get(api_key, 0) + 1
                if self.rewrite is not None:
                    frame = self.rewrite(api_key, frame)
                released = self._catch(api_key, held)
                if released is not None:
                    await released.wait()
                asked.append(frame)
                writer.write(struct.pack(">i", len(frame)) + frame)
                await writer.drain()
        if not writer.is_closing():
            await asyncio.wait([down], timeout=_LINGER_SECONDS)

    def _catch(self, api_key: int, held: list[HeldRequest]) -> asyncio.Event | None:
        for hold in self._holds:
            if api_key not in hold.api_keys:
                continue
            if hold.skip:
                hold.skip -= 1
                continue
            released = asyncio.Event()
            hold.caught = HeldRequest(self, api_key, released)
            held.append(hold.caught)
            self._holds.remove(hold)
            hold.event.set()
            return released
        return None

    async def _down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        held: list[HeldRequest],
        asked: deque[bytes],
    ) -> None:
        """Responses of one connection. Brokers answer in the order of the requests; all clients here expect answers."""
        try:
            while True:
                head = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", head)[0])
                request = asked.popleft()
                for one in held:
                    one.answered.set()
                if self._mute or writer.is_closing():
                    continue
                if self.rewrite_answer is not None:
                    (api_key,) = struct.unpack_from(">h", request)
                    frame = self.rewrite_answer(api_key, request, frame)
                writer.write(struct.pack(">i", len(frame)) + frame)
                with contextlib.suppress(OSError):
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the broker has disconnected
        except Exception:
            traceback.print_exc()  # an error in `rewrite_answer` must not look like a slow broker
        finally:
            # The broker's connection is over, so end the client's.
            writer.transport.abort()
