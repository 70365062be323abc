"""A broker's socket on loopback. As in Kafka, one connection's requests are answered one after the other."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

from simulated.handlers import Broker, Drop

if TYPE_CHECKING:
    from simulated.cluster import SimulatedCluster


class Server:
    """The listener of one broker, with a thread for each connection."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker = Broker(cluster, broker_id)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._connections: set[socket.socket] = set()
        self._is_open = True
        self._thread = threading.Thread(target=self._accept, name=f"{cluster.name}-{broker_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._is_open = False
        # A listener that is only closed would let accept() wait on.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections, as a broker does that restarts."""
        with self._cluster.changed:
            for connection in list(self._connections):
                _shut(connection)

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._cluster.changed:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                head = _receive(connection, 4)
                frame = _receive(connection, struct.unpack(">i", head)[0])
                answer = self._broker.answer(frame)
                connection.sendall(struct.pack(">i", len(answer)) + answer)
        except (OSError, EOFError, Drop):
            _shut(connection)
        except Exception as error:
            # The model does not know what to answer: the test fails, whatever the client makes of it.
            self._cluster.failures.append(error)
            _shut(connection)
        finally:
            with self._cluster.changed:
                self._connections.discard(connection)
            connection.close()


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster
