"""One TCP connection to one broker: TLS, SASL, and frames sent and received without blocking.

The hot path passes lists of buffers (header, payload, header, payload ...) that go to the socket unchanged. A record
batch is therefore never copied between the fetch that reads it and the produce request that writes it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    BrokerRefused,
    BrokerUnreachable,
    ConnectionInvalid,
    MigrationError,
    SliceExpired,
    Where,
)
from airflow_provider_kafka_migration.kafka import clock, error_codes
from airflow_provider_kafka_migration.kafka.auth.login import Dialogue, Login, Message
from airflow_provider_kafka_migration.kafka.auth.tls_files import TlsFiles, are_young
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.messages import response_class

# -- receive buffers --------------------------------------------------------------------------------------------------
#
# Receive buffers are reused.
#
# Memory that is new to a process costs a page fault per 4 KiB: more than everything else that a copier does with the
# bytes. The buffer of a large answer therefore returns to its pool when no view of it is left. Python itself counts the
# views: a bytearray with exported views cannot be resized.


#: Answers up to this size get a new buffer that is not pooled.
SMALL_BYTES = 64 * 1024
_GRAIN_BYTES = 1024 * 1024
#: The most that a pool keeps; buffers beyond it are created and then discarded.
POOL_BYTES = 40 * 1024 * 1024


class ReceiveBuffers:
    """Buffers of one connection. Not thread-safe: one owner."""

    def __init__(self, pool_bytes: int = POOL_BYTES) -> None:
        self._pool_bytes = pool_bytes
        self._kept: list[bytearray] = []

    @property
    def kept_bytes(self) -> int:
        """Total size of the buffers in the pool, in use or not."""
        return sum(len(buffer) for buffer in self._kept)

    def take(self, size: int) -> memoryview:
        """Return a writable view of exactly ``size`` bytes. It contains leftovers from earlier answers.

        The buffer is free again once this view and all views derived from it are deleted.
        """
        if size <= SMALL_BYTES:
            return memoryview(bytearray(size))
        free = [buffer for buffer in self._kept if _is_free(buffer)]
        fitting = min((buffer for buffer in free if len(buffer) >= size), key=len, default=None)
        if fitting is None:
            fitting = bytearray(-(-size // _GRAIN_BYTES) * _GRAIN_BYTES)
            self._keep(fitting, free)
        return memoryview(fitting)[:size]

    def _keep(self, buffer: bytearray, free: list[bytearray]) -> None:
        """Put a new buffer into the pool and drop free ones, all too small for this answer, to make room."""
        excess = self.kept_bytes + len(buffer) - self._pool_bytes
        for small in sorted(free, key=len):
            if excess <= 0:
                break
            excess -= len(small)
            self._kept = [kept for kept in self._kept if kept is not small]
        if excess <= 0:
            self._kept.append(buffer)


def _is_free(buffer: bytearray) -> bool:
    """Return whether no view of the buffer is left. Constant time: shortening does not reallocate the memory."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


# -- connection -------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
OnResponse = Callable[[memoryview], None]

#: A response larger than this is a sign of a broken stream (for instance plain text sent to a TLS port).
MAX_FRAME_BYTES = 512 * 1024 * 1024
#: What a read-only connection may send: Fetch, ListOffsets, Metadata, OffsetFetch, FindCoordinator, SaslHandshake,
#: ApiVersions, OffsetForLeaderEpoch, SaslAuthenticate. None of these requests writes anything.
READING_APIS = frozenset({1, 2, 3, 9, 10, 17, 18, 23, 36})
_MAX_IOV = 512
#: Longest wait for a TCP connection, for machines that do not answer at all.
CONNECT_SECONDS = 5.0
#: A TLS alert's first two bytes: what a TLS port answers to a client without TLS.
_TLS_ALERT = b"\x15\x03"
#: Pauses before certificates that do not fit together, and were replaced a moment ago, are read again.
_RELOAD_PAUSES_SECONDS = (0.2, 0.5, 1.0)
#: The parts of a session's lifetime after which a login is renewed. Java's clients wait for 85 to 95 %, but a copier's
#: requests may queue before ours.
_RENEWED_AFTER = (0.65, 0.8)
#: Brokers refuse to renew a login within a second (KIP-368).
_LEAST_SESSION_SECONDS = 1.1
#: Longest wait for a new socket that replaces one in use: a copier waits meanwhile.
_REPLACE_SECONDS = 10.0
_RECEIVE_BUFFER_BYTES = 2 * 1024 * 1024


class _Queued(NamedTuple):
    """A request that waits for the end of a renewal: correlation id, frame, callback."""

    correlation: int
    parts: list[memoryview]
    on_response: OnResponse


class BrokerConnection:
    """A connected, authenticated socket. Not thread-safe: one owner.

    It renews itself between requests, unnoticed by its owner: its login before the broker's session ends (KIP-368), and
    its socket when the files of its certificates have changed. Requests wait meanwhile and keep their order.

    :param timeout_seconds: limit for the connect, for the handshakes and for each :meth:`call`.
    """

    def __init__(
        self, config: ClientConfig, host: str, port: int, *, broker_id: int = -1, timeout_seconds: float = 30.0
    ) -> None:
        self.config = config
        self.host = host
        self.port = port
        self.broker_id = broker_id
        self.timeout_seconds = timeout_seconds
        #: Nothing is sent after this moment of the monotonic clock (the end of a copier's slice).
        self.send_deadline: float | None = None
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        self._client_id = config.client_id.encode()
        self._correlation = 0
        self._out: deque[memoryview] = deque()
        #: correlation id, callback, and when the request was queued (monotonic clock)
        self._waiting: deque[tuple[int, OnResponse, float]] = deque()
        self._head = bytearray(4)
        self._buffers = ReceiveBuffers()
        self._body: memoryview | None = None
        self._received = 0
        #: the dialogue of a login that is being renewed; requests wait in ``_held`` until it is over
        self._renewal: Dialogue | None = None
        self._held: deque[_Queued] = deque()
        #: when the login has to be renewed, on the clock that counts time asleep; None: never
        self._login_due_at: float | None = None
        self._is_replacing_socket = False
        self._files = TlsFiles(config.tls_paths)
        self._is_set_up = False
        #: whether an answer did not come in time
        self._is_silent = False
        #: whether any request other than those of the set-up was answered
        self._is_served = False
        self._login = Login(config, host, self._where)
        self._sock: socket.socket = self._connect()
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    # -- set-up ------------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> Where:
        return Where(cluster=self.config.name, broker=f"{self.host}:{self.port}")

    def _unreachable(self, reason: object) -> BrokerUnreachable:
        next_step = "check bootstrap.servers, the network and that the broker runs; then clear the task"
        if self._is_set_up and not self._is_served and not self.config.uses_sasl:
            # Brokers disconnect a client that sends anything but ApiVersions before it has logged in.
            next_step = "if this listener requires a login, write security.protocol SASL_SSL or SASL_PLAINTEXT; else "
            next_step += "check that the broker runs, and clear the task"
        return BrokerUnreachable(f"the broker does not answer: {reason}", where=self._where, next_step=next_step)

    def _set_up(self) -> None:
        self._negotiate()
        if self.config.uses_sasl:
            try:
                self._authenticate()
            except AuthenticationFailed:
                # Once more, if the broker has ended without an answer, as one that restarts does, or if the token may
                # come from before a change at the identity provider.
                is_worth_a_try = self._login.forget_token() or self.closed
                if not is_worth_a_try:
                    raise
                self.close()
                self._body, self._received = None, 0
                self._sock = self._connect()
                self._negotiate()
                self._authenticate()
        self._is_set_up = True

    def _tls_context(self) -> ssl.SSLContext | None:
        for pause in _RELOAD_PAUSES_SECONDS:
            try:
                return self.config.ssl_context()
            except ConnectionInvalid:
                if not are_young(self.config.tls_paths):
                    raise
            # A certificate and its key are replaced one after the other.
            time.sleep(pause)
        return self.config.ssl_context()

    def _connect(self) -> socket.socket:
        # Build the context first: files that cannot be loaded are an error of the connection, not of the broker.
        context = self._tls_context()
        try:
            raw = socket.create_connection((self.host, self.port), timeout=min(CONNECT_SECONDS, self.timeout_seconds))
        except OSError as error:
            raise self._unreachable(error) from None
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        sock = raw
        if context is not None:
            sock = self._handshake(context, raw)
        sock.setblocking(False)
        return sock

    def _handshake(self, context: ssl.SSLContext, raw: socket.socket) -> socket.socket:
        try:
            return context.wrap_socket(raw, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            raw.close()
            raise self._certificate_refused(error) from None
        except ssl.SSLError as error:
            raw.close()
            raise self._tls_failed(error) from None
        except OSError as error:
            raw.close()
            raise self._unreachable(f"the broker closed the connection during the TLS handshake ({error})") from None

    def _certificate_refused(self, error: ssl.SSLCertVerificationError) -> AuthenticationFailed:
        hints = {
            10: "renew the broker's certificate; if it was renewed, restart or update the brokers' key stores",
            9: "correct the clock of this machine, or wait until the broker's certificate is valid",
            18: "set ssl.ca.location to the broker's own certificate or the authority that signed it",
            62: f"use a name in bootstrap.servers and advertised.listeners that the certificate contains (it does not "
            f"contain {self.host}), or set ssl.endpoint.identification.algorithm to none",
            64: f"use a name in bootstrap.servers and advertised.listeners that the certificate contains (it does not "
            f"contain {self.host}), or set ssl.endpoint.identification.algorithm to none",
        }
        return AuthenticationFailed(
            f"this machine does not accept the broker's certificate: {error.verify_message.rstrip('.')}",
            where=self._where,
            next_step=hints.get(
                error.verify_code, "set ssl.ca.location to the authority that signed the broker's certificate"
            ),
        )

    def _tls_failed(self, error: ssl.SSLError) -> AuthenticationFailed:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if self.config.certificate_location or self.config.certificate_pem:
            next_step = (
                "check ssl.certificate.location and its key: the dates, and that the broker's trust store contains its "
            )
            next_step += "authority; check that the port belongs to this security.protocol"
        else:
            next_step = "check that the port belongs to this security.protocol; if the listener requires client "
            next_step += "certificates, write ssl.certificate.location and ssl.key.location"
        return AuthenticationFailed(f"the TLS handshake failed: {reason}", where=self._where, next_step=next_step)

    def _negotiate(self) -> None:
        # v3 carries the finalized features. A broker that does not know v3 answers UNSUPPORTED_VERSION, in v0.
        request = ApiVersionsRequest(client_software_name="kafka-migration", client_software_version="1")
        body = self._call_message(request, 3)
        answer = ApiVersionsResponse.decode(bytes(body), version=3, header=True)
        if answer.error_code == error_codes.UNSUPPORTED_VERSION:
            body = self._call_message(ApiVersionsRequest(), 0)
            answer = ApiVersionsResponse.decode(bytes(body), version=0, header=True)
        if answer.error_code:
            raise error_codes.error_of_read(answer.error_code, "the broker refused ApiVersions", where=self._where)
        self.api_versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        features = getattr(answer, "finalized_features", None) or []
        self.finalized_features = {feature.name: feature.max_version_level for feature in features}

    def _authenticate(self) -> None:
        dialogue = self._login.dialogue()
        message, sent_at = next(dialogue), 0.0
        while True:
            sent_at = clock.elapsed_seconds()
            try:
                answer = self.call(message.request, message.response_type, version=message.version)
            except BrokerUnreachable:
                if self._is_silent:
                    raise
                raise self._login.closed() from None
            try:
                message = dialogue.send(answer)
            except StopIteration as end:
                self._plan_renewal(sent_at, end.value)
                return

    # -- renewals ----------------------------------------------------------------------------------------------------

    def _plan_renewal(self, sent_at: float, lifetime_seconds: float) -> None:
        part = random.uniform(*_RENEWED_AFTER)  # noqa: S311 - so that connections do not renew at once
        due = sent_at + max(lifetime_seconds * part, _LEAST_SESSION_SECONDS)
        self._login_due_at = due if lifetime_seconds > 0 else None

    def _must_wait(self) -> bool:
        """Return whether a new request has to wait for a renewal; begin one that is due."""
        if not self._is_set_up:
            return False
        if self._renewal is None and not self._is_replacing_socket:
            if self._login_due_at is not None and clock.elapsed_seconds() >= self._login_due_at:
                self._begin_renewal()
            elif self._files.have_changed():
                self._is_replacing_socket = True
        if self._is_replacing_socket and not self._waiting:
            self._replace_socket()
            # Here, too: the callback of the last answer may send a request, which must not overtake those that wait.
            self._release()
        return self._renewal is not None or self._is_replacing_socket

    def _begin_renewal(self) -> None:
        """Send the first message of a login behind the requests in flight: the broker answers them before it."""
        try:
            self._renewal = self._login.dialogue()
            self._send_login(next(self._renewal))
        except MigrationError as error:
            raise self._not_renewed(error) from None

    def _send_login(self, message: Message) -> None:
        sent_at = clock.elapsed_seconds()
        version = self.version_for(message.request, message.version)

        def on_response(frame: memoryview) -> None:
            answer = message.response_type.decode(bytes(frame), version=version, header=True)
            self._continue_renewal(answer, sent_at)

        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        self._queue(self._correlation, self._encoded(message.request, version), on_response)
        self.on_writable()

    def _continue_renewal(self, answer: Any, sent_at: float) -> None:
        assert self._renewal is not None
        try:
            self._send_login(self._renewal.send(answer))
        except StopIteration as end:
            self._renewal = None
            self._plan_renewal(sent_at, end.value)
            self._release()
        except MigrationError as error:
            raise self._not_renewed(error) from None

    def _not_renewed(self, error: MigrationError) -> MigrationError:
        """Close the connection. Only the login of a new one can tell whether the credentials are still good."""
        if isinstance(error, SliceExpired) or self.closed:
            return error
        self._login.forget_token()
        self.close()
        return self._unreachable(f"the login could not be renewed on the open connection ({error.what})")

    def _release(self) -> None:
        """Send the requests that have waited."""
        while self._held:
            self._queue(*self._held.popleft())
        self.on_writable()

    def _replace_socket(self) -> None:
        """Continue on a new socket with the renewed certificates, or on the old one if that fails."""
        self._is_replacing_socket = False
        try:
            fresh = BrokerConnection(
                self.config,
                self.host,
                self.port,
                broker_id=self.broker_id,
                timeout_seconds=min(self.timeout_seconds, _REPLACE_SECONDS),
            )
        except MigrationError as error:
            self._files.failed()
            log.warning("the certificates have changed, but the old connection is used on: %s", error)
            return
        if fresh.api_versions != self.api_versions:
            fresh.close()
            self.close()
            raise self._unreachable("it has another version than before")
        # The new socket exists before the old one is closed, so that their descriptors differ.
        with contextlib.suppress(OSError):
            self._sock.close()
        self._sock, self._files, self._login_due_at = fresh._sock, fresh._files, fresh._login_due_at
        self._login, self.finalized_features = fresh._login, fresh.finalized_features
        self._body, self._received = None, 0
        log.info("%s:%s: connected again, because the files of the certificates have changed", self.host, self.port)

    # -- frames without blocking -------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the socket's file descriptor, for selectors."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._out)

    @property
    def in_flight(self) -> int:
        """Number of requests sent or queued whose answer has not arrived yet."""
        return len(self._waiting) + len(self._held)

    def waiting_seconds(self, now: float) -> float:
        """Return how long the oldest request has waited for its answer; 0 if none is waiting."""
        return now - self._waiting[0][2] if self._waiting else 0.0

    def no_answer(self) -> BrokerUnreachable:
        """Close the connection to a broker that does not answer: the outcome of its requests is unknown."""
        self.close()
        self._is_silent = True
        return self._unreachable("no answer within the time limit")

    def submit(
        self,
        api_key: int,
        version: int,
        parts: Sequence[Buffer],
        on_response: OnResponse,
        *,
        flexible: bool = False,
    ) -> None:
        """Queue a request and send as much as fits now.

        :param parts: the body as buffers; they must not change until the answer arrives.
        :param on_response: called with the answer, including its header (4 bytes, 5 for flexible versions).
        :param flexible: the version has a header with tagged fields (KIP-482).
        """
        self._check_may_send(api_key)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        tags = b"\0" if flexible else b""
        size = 10 + len(self._client_id) + len(tags) + sum(len(part) for part in parts)
        correlation = self._correlation
        head = struct.pack(">ihhih", size, api_key, version, correlation, len(self._client_id))
        frame = [memoryview(head + self._client_id + tags), *(memoryview(part) for part in parts if len(part))]
        self._enqueue(correlation, frame, on_response)

    def _enqueue(self, correlation: int, frame: list[memoryview], on_response: OnResponse) -> None:
        if self._must_wait():
            self._held.append(_Queued(correlation, frame, on_response))
            return
        self._queue(correlation, frame, on_response)
        self.on_writable()

    def _queue(self, correlation: int, frame: list[memoryview], on_response: OnResponse) -> None:
        self._out.extend(frame)
        self._waiting.append((correlation, on_response, time.monotonic()))

    def on_writable(self) -> None:
        """Send as much as the socket accepts. Nothing is sent after the deadline."""
        while self._out:
            if self.send_deadline is not None and clock.is_over(self.send_deadline):
                self.close()
                raise SliceExpired(
                    "the slice ended while bytes were waiting to be sent",
                    where=self._where,
                    next_step="none: the next slice continues from the target's log end",
                )
            try:
                sent = self._send_some()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise self._broken(error) from None
            self._drop_sent(sent)

    def _send_some(self) -> int:
        if isinstance(self._sock, ssl.SSLSocket):
            return self._sock.send(self._out[0])
        buffers = [self._out[index] for index in range(min(len(self._out), _MAX_IOV))]
        return self._sock.sendmsg(buffers)

    def _drop_sent(self, sent: int) -> None:
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.popleft())
        if sent:
            self._out[0] = self._out[0][sent:]

    def on_readable(self) -> None:
        """Receive what has arrived and pass complete answers to their callbacks, in order."""
        if not self._waiting:
            self._look_for_end()
        while self._waiting:
            try:
                frame = self._receive_some()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise self._broken(error) from None
            if frame is not None:
                self._dispatch(frame)
                del frame  # otherwise its buffer would not be free for the next answer

    def _look_for_end(self) -> None:
        """Detect a closed connection while no request is waiting: only its end or TLS's own messages can arrive.

        Without this check, an idle connection that the broker closed would wake its poller forever.
        """
        try:
            data = self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            raise self._broken(error) from None
        raise self._broken("the broker sent bytes without a request" if data else "the broker closed the connection")

    def _receive_some(self) -> memoryview | None:
        if self._body is None:
            count = self._sock.recv_into(memoryview(self._head)[self._received :])
            self._check_open(count)
            self._received += count
            if self._received == 4:
                (size,) = struct.unpack(">i", self._head)
                if self._head[:2] == _TLS_ALERT and not self.config.uses_tls:
                    raise self._wrong_protocol()
                if not 4 <= size <= MAX_FRAME_BYTES:
                    raise self._broken(f"an answer claims {size} bytes: is this a Kafka port, with the right protocol?")
                self._body, self._received = self._buffers.take(size), 0
            return None
        count = self._sock.recv_into(self._body[self._received :])
        self._check_open(count)
        self._received += count
        if self._received < len(self._body):
            return None
        body, self._body, self._received = self._body, None, 0
        return body

    def _check_open(self, count: int) -> None:
        if count == 0:
            raise self._broken("the broker closed the connection")

    def _dispatch(self, frame: memoryview) -> None:
        (correlation,) = struct.unpack_from(">i", frame)
        expected, on_response, _ = self._waiting.popleft()
        if correlation != expected:
            raise self._broken(f"answer {correlation} arrived where {expected} was expected")
        self._is_served = self._is_set_up
        try:
            on_response(frame)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            log.exception("an answer of %s:%s cannot be read", self.host, self.port)
            raise self._broken(f"its answer cannot be read ({error})") from error
        if self._is_replacing_socket and not self._waiting:
            self._replace_socket()
            self._release()

    def _broken(self, reason: object) -> BrokerUnreachable | AuthenticationFailed:
        self.close()
        if isinstance(reason, ssl.SSLError) and "ALERT" in (reason.reason or "") and not self._is_set_up:
            # With TLS 1.3 the broker checks the client's certificate after the client's handshake has ended.
            return self._tls_failed(reason)
        return self._unreachable(reason)

    def _wrong_protocol(self) -> ConnectionInvalid:
        self.close()
        return ConnectionInvalid(
            f"the port speaks TLS, but security.protocol is {self.config.protocol}",
            where=self._where,
            next_step="write security.protocol SSL or SASL_SSL, or use the port of the other listener",
        )

    @property
    def closed(self) -> bool:
        """Whether the connection is closed; the outcome of all its unanswered requests is unknown."""
        return self._sock.fileno() < 0

    def close(self) -> None:
        """Close immediately and drop queued bytes."""
        self._out.clear()
        self._waiting.clear()
        self._held.clear()
        self._renewal = None
        self._is_replacing_socket = False
        with contextlib.suppress(OSError, AttributeError):
            self._sock.close()

    # -- blocking calls ----------------------------------------------------------------------------------------------

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the socket can be read or written, and do so."""
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        if not pending:
            # poll, not select: select fails in processes with more than 1,024 open files, which are common.
            poller = select.poll()
            poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
            events = dict(poller.poll(max(0.0, timeout_seconds) * 1000)).get(self._sock.fileno(), 0)
            if events & select.POLLOUT:
                self.on_writable()
            if not events & ~select.POLLOUT:
                return
        self.on_readable()

    def call_raw(
        self, api_key: int, version: int, parts: Sequence[Buffer], timeout_seconds: float | None = None
    ) -> memoryview:
        """Send one request and wait for its answer; answers of earlier requests go to their callbacks."""
        box: list[memoryview] = []
        self.submit(api_key, version, parts, box.append)
        self._wait_for(box, timeout_seconds)
        return box[0][4:]

    def _wait_for(self, box: list[memoryview], timeout_seconds: float | None) -> None:
        deadline = time.monotonic() + (timeout_seconds or self.timeout_seconds)
        while not box:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.no_answer()
            self.wait(left)

    def _check_may_send(self, api_key: int) -> None:
        if self.config.read_only and api_key not in READING_APIS:
            raise BrokerRefused(
                f"request {api_key} was not sent: this connection is read-only",
                where=self._where,
                next_step="report this as a bug: a comparison tried to write",
            )

    def _call_message(self, request: Any, version: int, timeout_seconds: float | None = None) -> memoryview:
        self._check_may_send(request.API_KEY)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        box: list[memoryview] = []
        self._enqueue(self._correlation, self._encoded(request, version), box.append)
        self._wait_for(box, timeout_seconds)
        return box[0]

    def _encoded(self, request: Any, version: int) -> list[memoryview]:
        """Return the frame of a kafka-python message with the present correlation id."""
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation, client_id=self.config.client_id)
        return [memoryview(bytes(request.encode(header=True, framed=True)))]

    def call(
        self,
        request: Any,
        response_type: Any = None,
        *,
        version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a kafka-python message and wait for its answer.

        :param version: default: the highest that both sides know.
        :raises BrokerRefused: the broker does not know the request at all.
        """
        chosen = self.version_for(request, version)
        body = self._call_message(request, chosen, timeout_seconds)
        kind = response_type or response_class(type(request))  # type: ignore[arg-type]
        return kind.decode(bytes(body), version=chosen, header=True)

    def version_for(self, request: Any, wanted: int | None = None) -> int:
        """Choose the version of a message: the wanted one, or the highest that both sides know."""
        if wanted is not None and not self.api_versions:
            return wanted
        known = self.api_versions.get(request.API_KEY)
        top = request.max_version if wanted is None else wanted
        if known is None or top < known[0]:
            raise BrokerRefused(
                f"the broker does not support {type(request).__name__}"
                + (f" version {wanted}" if known is not None and wanted is not None else ""),
                where=self._where,
                next_step="see docs/compatibility.md for the supported versions of Kafka",
            )
        return int(min(top, known[1]))
