"""KIP-368: a connection renews its login and its certificates between requests, and keeps all requests in order."""

from __future__ import annotations

import logging
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from sasl_broker import AUTHENTICATE, ECHO, HANDSHAKE, SaslBroker

from airflow_provider_kafka_migration.errors import AuthenticationFailed, BrokerUnreachable
from airflow_provider_kafka_migration.kafka import connection as module
from airflow_provider_kafka_migration.kafka.auth import tls_files
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.poller import SocketPoller
from harness.certificates import Authority, Pair

pytestmark = pytest.mark.slow

PASSWORD = "password-of-alice"


@pytest.fixture
def broker() -> Iterator[SaslBroker]:
    running = SaslBroker().start()
    yield running
    running.stop()


def connected(broker: SaslBroker, **keys: Any) -> BrokerConnection:
    timeout_seconds = keys.pop("timeout_seconds", 20)
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
    values = {
        "bootstrap.servers": f"127.0.0.1:{broker.port}",
        "security.protocol": "SASL_PLAINTEXT" if broker.tls is None else "SSL",
        **(login if broker.tls is None else {}),
        **keys,
    }
    return BrokerConnection(
        ClientConfig.from_librdkafka(values, "target"), "127.0.0.1", broker.port, timeout_seconds=timeout_seconds
    )


class Client:
    """Sends numbered requests, several at a time, as a lane does, and keeps the answers in their order."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.sent = 0
        self.answers: list[int] = []
        self._poller = SocketPoller()

    def send(self) -> None:
        number, self.sent = self.sent, self.sent + 1

        def on_response(frame: memoryview) -> None:
            self.answers.append(int.from_bytes(bytes(frame[4:]), "big"))

        self.connection.submit(ECHO, 0, [number.to_bytes(8, "big")], on_response)

    def poll(self, seconds: float = 0.05) -> None:
        def on_broken(_: BrokerConnection, error: BrokerUnreachable) -> None:
            raise error

        self._poller.wait([self.connection], seconds, on_broken)

    def finish(self) -> None:
        deadline = time.monotonic() + 120
        while len(self.answers) < self.sent:
            assert time.monotonic() < deadline, (self.sent, len(self.answers))
            self.poll()
        assert self.answers == list(range(self.sent))
        self._poller.close()


def keep_busy(client: Client, until: float) -> None:
    """Keep five requests on their way."""
    while time.monotonic() < until:
        while client.connection.in_flight < 5:
            client.send()
        client.poll()


# -- logins ------------------------------------------------------------------------------------------------------------


def test_dozens_of_sessions_on_one_connection_with_requests_in_flight(
    broker: SaslBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_SESSION_SECONDS", 0.0)
    broker.lifetime_seconds, broker.pause_seconds = 0.1, 0.002
    client = Client(connected(broker))
    deadline = time.monotonic() + 120
    while broker.logins < 25 and time.monotonic() < deadline:
        keep_busy(client, time.monotonic() + 0.2)
    client.finish()
    assert broker.logins >= 25
    assert broker.violations == []
    assert client.sent > 100
    client.connection.close()


def test_requests_wait_for_the_end_of_a_renewal(broker: SaslBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_SESSION_SECONDS", 0.0)
    broker.lifetime_seconds = 0.01
    client = Client(connected(broker))
    broker.answers_logins.clear()
    time.sleep(0.05)
    broker.lifetime_seconds = 3600.0
    for _ in range(3):
        client.send()
    assert client.connection.in_flight == 4  # the hand-shake, and three requests
    deadline = time.monotonic() + 120
    while broker.seen[-1] != AUTHENTICATE or broker.logins < 2:
        assert time.monotonic() < deadline
        client.poll()
    assert ECHO not in broker.seen
    assert client.connection.waiting_seconds(time.monotonic() + 60) > 50
    broker.answers_logins.set()
    client.finish()
    assert broker.seen[-5:] == [HANDSHAKE, AUTHENTICATE, ECHO, ECHO, ECHO]
    client.connection.close()


def test_blocking_calls_renew_too_also_after_the_session_has_ended(
    broker: SaslBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_SESSION_SECONDS", 0.0)
    broker.lifetime_seconds = 0.01
    connection = connected(broker)
    for number in range(3):
        time.sleep(0.03)
        assert bytes(connection.call_raw(ECHO, 0, [b"%d" % number])) == b"%d" % number
    assert broker.logins == 4
    assert broker.violations == []
    connection.close()


def test_a_session_without_end_is_never_renewed(broker: SaslBroker) -> None:
    connection = connected(broker)
    assert connection._login_due_at is None
    assert bytes(connection.call_raw(ECHO, 0, [b"x"])) == b"x"
    assert broker.logins == 1
    connection.close()


def test_a_renewal_comes_in_time_and_never_within_a_second() -> None:
    connection = BrokerConnection.__new__(BrokerConnection)
    for lifetime, least, most in ((3600.0, 0.65 * 3600, 0.8 * 3600), (0.5, 1.1, 1.1)):
        connection._plan_renewal(1000.0, lifetime)
        assert connection._login_due_at is not None
        assert least - 0.001 <= connection._login_due_at - 1000.0 <= most + 0.001


def test_a_refused_renewal_loses_the_connection_and_a_refused_login_is_terminal(
    broker: SaslBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_SESSION_SECONDS", 0.0)
    broker.lifetime_seconds = 0.01
    connection = connected(broker)
    time.sleep(0.05)
    broker.accepts = lambda _: False
    with pytest.raises(
        BrokerUnreachable, match=r"could not be renewed.*refused the SASL login of alice: bad"
    ) as caught:
        connection.call_raw(ECHO, 0, [b"x"])
    assert PASSWORD not in str(caught.value)
    assert connection.closed
    assert ECHO not in broker.seen
    with pytest.raises(AuthenticationFailed):
        connected(broker)


def test_a_broker_that_ends_during_a_login_is_asked_once_more_before_the_password_counts_as_wrong(
    broker: SaslBroker,
) -> None:
    """Brokers are restarted while a tail runs; an error that a person must mend would end it."""

    def goes_away(times: int) -> None:
        left = [True] * times

        def accepts(_: bytes) -> bool:
            if left:
                left.pop()
                raise ConnectionError
            return True

        broker.accepts = accepts

    goes_away(1)
    connected(broker).close()
    assert broker.logins == 2
    goes_away(2)
    with pytest.raises(AuthenticationFailed, match="closed the connection during the SASL login"):
        connected(broker)
    broker.accepts = lambda _: False
    with pytest.raises(AuthenticationFailed, match="refused"):
        connected(broker)
    assert broker.logins == 5, "an answer is an answer: the login is not tried again"


def test_a_broker_that_does_not_answer_a_login_in_time_has_refused_nothing(broker: SaslBroker) -> None:
    broker.answers_logins.clear()
    with pytest.raises(BrokerUnreachable, match="no answer within the time limit"):
        connected(broker, timeout_seconds=0.3)
    broker.answers_logins.set()


def test_a_broker_s_words_about_a_login_are_quoted_without_the_secret(broker: SaslBroker) -> None:
    broker.accepts, broker.refusal = (lambda _: False), f"cannot parse {PASSWORD}"
    with pytest.raises(AuthenticationFailed, match=r"cannot parse \*\*\*") as caught:
        connected(broker)
    assert PASSWORD not in str(caught.value)


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "authority")
    made.create()
    return made


@pytest.fixture
def tls_broker(authority: Authority) -> Iterator[SaslBroker]:
    def context() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = authority.server()
        made.load_cert_chain(pair.certificate, pair.key)
        made.load_verify_locations(authority.certificate)
        made.verify_mode = ssl.CERT_REQUIRED
        return made

    running = SaslBroker(tls=context).start()
    yield running
    running.stop()


def der(pair: Pair) -> bytes:
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    return certificate.public_bytes(serialization.Encoding.DER)


def replace(target: Path, source: Path) -> None:
    """Replace a file as something does that renews certificates: readers see the old or the new one."""
    shutil.copy(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


def tls_keys(authority: Authority, folder: Path, pair: Pair) -> dict[str, str]:
    for name, source in (("own.pem", pair.certificate), ("own.key", pair.key)):
        replace(folder / name, source)
    return {
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(folder / "own.pem"),
        "ssl.key.location": str(folder / "own.key"),
    }


def test_a_new_certificate_is_used_without_losing_a_request(
    tls_broker: SaslBroker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "CHECK_SECONDS", 0.05)
    tls_broker.pause_seconds = 0.002
    old, new = authority.client("old"), authority.client("new")
    client = Client(connected(tls_broker, **tls_keys(authority, tmp_path, old)))
    keep_busy(client, time.monotonic() + 0.5)
    assert tls_broker.certificates == [der(old)]
    tls_keys(authority, tmp_path, new)
    deadline = time.monotonic() + 120
    while len(tls_broker.certificates) < 2 and time.monotonic() < deadline:
        keep_busy(client, time.monotonic() + 0.1)
    keep_busy(client, time.monotonic() + 0.5)
    client.finish()
    assert tls_broker.certificates == [der(old), der(new)]
    assert not client.connection.closed
    client.connection.close()


def test_a_request_that_an_answer_causes_does_not_overtake_those_that_wait_for_the_new_socket(
    tls_broker: SaslBroker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "CHECK_SECONDS", 0.0)
    old, new = authority.client("old"), authority.client("new")
    connection = connected(tls_broker, **tls_keys(authority, tmp_path, old))
    answers: list[bytes] = []

    def send(text: bytes, then: Callable[[], None] = lambda: None) -> None:
        def on_response(frame: memoryview) -> None:
            answers.append(bytes(frame[4:]))
            then()

        connection.submit(ECHO, 0, [text], on_response)

    tls_keys(authority, tmp_path, new)
    # The first request sees that the files have changed; the second one, that they change no more.
    send(b"first", lambda: send(b"caused"))
    for number in range(3):
        send(b"%d" % number)
    assert len(connection._held) == 3
    deadline = time.monotonic() + 120
    while connection.in_flight:
        assert time.monotonic() < deadline, answers
        connection.wait(0.1)
    assert answers == [b"first", b"0", b"1", b"2", b"caused"]
    assert tls_broker.certificates == [der(old), der(new)]
    connection.close()


def test_an_idle_connection_takes_the_new_certificate_before_its_next_request(
    tls_broker: SaslBroker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "CHECK_SECONDS", 0.0)
    old, new = authority.client("old"), authority.client("new")
    connection = connected(tls_broker, **tls_keys(authority, tmp_path, old))
    tls_keys(authority, tmp_path, new)
    for _ in range(3):
        assert bytes(connection.call_raw(ECHO, 0, [b"x"])) == b"x"
    assert tls_broker.certificates == [der(old), der(new)]
    connection.close()


def test_a_certificate_without_its_key_leaves_the_old_connection_in_use(
    tls_broker: SaslBroker,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tls_files, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(tls_files, "FAILED_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "_RELOAD_PAUSES_SECONDS", (0.01,))
    old, new = authority.client("old"), authority.client("new")
    connection = connected(tls_broker, **tls_keys(authority, tmp_path, old))
    replace(tmp_path / "own.pem", new.certificate)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert bytes(connection.call_raw(ECHO, 0, [b"x"])) == b"x"
    assert "the old connection is used on" in caplog.text
    assert tls_broker.certificates == [der(old)]
    replace(tmp_path / "own.key", new.key)
    for _ in range(3):
        assert bytes(connection.call_raw(ECHO, 0, [b"x"])) == b"x"
    assert tls_broker.certificates == [der(old), der(new)]
    connection.close()


def test_a_new_connection_waits_for_the_second_of_two_files(
    tls_broker: SaslBroker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = authority.client("old"), authority.client("new")
    keys = tls_keys(authority, tmp_path, old)
    replace(tmp_path / "own.pem", new.certificate)
    monkeypatch.setattr(module.time, "sleep", lambda _: replace(tmp_path / "own.key", new.key))
    connected(tls_broker, **keys).close()
    assert tls_broker.certificates == [der(new)]
