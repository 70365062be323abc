"""The OAuth token of a process: fetched once for all threads, renewed in time, and given out while it is valid."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_kafka_migration.errors import AuthenticationFailed, MigrationError, TokenUnavailable
from airflow_provider_kafka_migration.kafka.auth import tokens
from airflow_provider_kafka_migration.kafka.auth.oidc import OidcSettings
from airflow_provider_kafka_migration.kafka.auth.token_endpoint import FetchedToken
from airflow_provider_kafka_migration.kafka.auth.tokens import TokenSource

SETTINGS = OidcSettings("https://identity.example/token", "migrator", "hidden")


class Provider:
    """Stands for the token endpoint."""

    def __init__(self, lifetime_seconds: float = 3600.0) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.count = 0
        self.error: Exception | None = None
        self.is_free = threading.Event()
        self.is_free.set()

    def __call__(self, settings: OidcSettings) -> FetchedToken:
        assert settings == SETTINGS
        self.is_free.wait(20)
        self.count += 1
        if self.error is not None:
            raise self.error
        return FetchedToken(f"token-{self.count}", self.lifetime_seconds, "migrator")


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(tokens.clock, "elapsed_seconds", lambda: self.now)
        # Timers would wait for the real clock.
        monkeypatch.setattr(TokenSource, "_plan_renewal", lambda _: None)


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_threads_share_one_fetch() -> None:
    provider = Provider()
    provider.is_free.clear()
    source = TokenSource(SETTINGS, provider)
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(source.get) for _ in range(16)]
        provider.is_free.set()
        assert {future.result(20).value for future in futures} == {"token-1"}
    assert provider.count == 1


def test_a_token_is_renewed_before_it_expires_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Clock(monkeypatch)
    provider = Provider(100.0)
    source = TokenSource(SETTINGS, provider)
    assert source.get().value == "token-1"
    moment.now += 79
    assert source.get().value == "token-1"
    assert provider.count == 1
    moment.now += 2
    provider.is_free.clear()
    assert source.get().value == "token-1"  # the endpoint does not answer yet
    provider.is_free.set()
    eventually(lambda: source.get().value == "token-2")
    assert provider.count == 2


def test_it_is_renewed_although_nobody_asks_at_that_moment() -> None:
    provider = Provider(0.5)
    source = TokenSource(SETTINGS, provider)
    assert source.get().value == "token-1"
    eventually(lambda: provider.count == 2)
    # Nobody has used the second one, so there is no third one until somebody asks.
    time.sleep(1.0)
    assert provider.count == 2
    assert source.get().value == "token-3"


def test_an_outage_is_no_matter_while_the_token_is_valid(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moment = Clock(monkeypatch)
    provider = Provider(100.0)
    source = TokenSource(SETTINGS, provider)
    source.get()
    provider.error = TokenUnavailable("it is down", next_step="wait")
    moment.now += 85
    with caplog.at_level(logging.WARNING):
        assert source.get().value == "token-1"
        eventually(lambda: "it is down; the present token remains valid for 10 seconds" in caplog.text)
    moment.now += 3
    assert source.get().value == "token-1"
    assert provider.count == 2  # a pause between attempts
    moment.now += 8  # 96 of 100 seconds: too late to use it
    with pytest.raises(TokenUnavailable, match="it is down"):
        source.get("source")
    provider.error = None
    moment.now += 2
    assert source.get().value == f"token-{provider.count}"


def test_an_error_reaches_everybody_and_the_endpoint_is_left_alone_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = Clock(monkeypatch)
    provider = Provider()
    provider.error = AuthenticationFailed("the client is refused", next_step="check the secret")
    source = TokenSource(SETTINGS, provider)
    seen: list[MigrationError] = []
    for _ in range(5):
        with pytest.raises(AuthenticationFailed, match="the client is refused") as caught:
            source.get("target")
        seen.append(caught.value)
    assert provider.count == 1
    assert len(set(map(id, seen))) == 5
    assert {error.where.cluster for error in seen} == {"target"}
    moment.now += 1.5
    with pytest.raises(AuthenticationFailed):
        source.get()
    assert provider.count == 2


def test_waiting_is_bounded_and_a_fetch_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider()
    provider.is_free.clear()
    source = TokenSource(SETTINGS, provider)
    with pytest.raises(TokenUnavailable, match=r"no whole answer within 0\.1 seconds"):
        source.get(timeout_seconds=0.1)
    threads = threading.active_count()
    with pytest.raises(TokenUnavailable):
        source.get(timeout_seconds=0.1)
    assert threading.active_count() == threads
    monkeypatch.setattr(tokens, "_GIVEN_UP_SECONDS", 0.0)
    with pytest.raises(TokenUnavailable):
        source.get(timeout_seconds=0.1)
    assert threading.active_count() == threads + 1
    provider.is_free.set()
    assert source.get().value.startswith("token-")


def test_an_unexpected_error_does_not_leave_anybody_waiting() -> None:
    provider = Provider()
    provider.error = ZeroDivisionError("hidden")
    with pytest.raises(TokenUnavailable, match="ZeroDivisionError") as caught:
        TokenSource(SETTINGS, provider).get()
    assert "hidden" not in str(caught.value)


def test_a_refused_token_is_given_to_nobody_any_more() -> None:
    provider = Provider()
    source = TokenSource(SETTINGS, provider)
    first = source.get().value
    assert source.forget(first)
    assert not source.forget(first)
    assert source.get().value == "token-2"


def test_equal_settings_share_a_source_and_a_forked_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_sources", {})
    source = tokens.source_of(SETTINGS)
    assert tokens.source_of(OidcSettings("https://identity.example/token", "migrator", "hidden")) is source
    assert tokens.source_of(OidcSettings("https://identity.example/token", "other", "hidden")) is not source
    reader, writer = os.pipe()
    tokens._lock.acquire()  # held by another thread at the moment of the fork
    child = os.fork()
    if child == 0:
        os.write(writer, b"%d" % (tokens.source_of(SETTINGS) is not source))
        os._exit(0)
    tokens._lock.release()
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"


def test_moments_of_a_token() -> None:
    before = time.time()
    token = TokenSource(SETTINGS, Provider(100.0)).get()
    assert before + 100 <= token.expires_at_epoch <= time.time() + 100
    assert "token-1" not in repr(token)
    assert "hidden" not in repr(SETTINGS)
