"""OAuth tokens of a process: one for each client of an identity provider, fetched in the background before it expires.

A lane must not wait for an identity provider while it copies. A token is therefore renewed by a thread at 80 % of its
lifetime, as long as somebody uses it; who asks waits only where there is no valid token at all, and not for ever.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.errors import MigrationError, Where
from airflow_provider_kafka_migration.kafka import clock
from airflow_provider_kafka_migration.kafka.auth.oidc import OidcSettings
from airflow_provider_kafka_migration.kafka.auth.token_endpoint import FetchedToken, fetch_token, unavailable

log = logging.getLogger(__name__)

#: How long somebody without a valid token waits for one.
WAIT_SECONDS = 25.0
#: The part of its lifetime after which a token is renewed.
RENEWED_AFTER = 0.8
#: A token is not used when it expires within this part of its lifetime, or within so many seconds.
_SPARE_PART, _SPARE_SECONDS = 0.05, 5.0
#: After a failure the endpoint is left alone for this long: many lanes ask at the same time.
_PAUSE_SECONDS = 1.0
#: After this time nobody waits for a fetch any more: a server may send one byte at a time for ever.
_GIVEN_UP_SECONDS = 60.0
#: Pause between attempts to renew a token that is still valid.
_RENEWAL_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class Token:
    """A token and its moments on the clock that counts time asleep. ``repr`` hides it.

    :param renewed_at: when the next one is fetched.
    :param used_until: when it is no longer given out.
    """

    value: str = field(repr=False)
    principal: str
    renewed_at: float
    used_until: float
    expires_at: float

    @property
    def expires_at_epoch(self) -> float:
        """When it expires, in seconds since 1970."""
        return time.time() + self.expires_at - clock.elapsed_seconds()


class TokenSource:
    """The token of one client of an identity provider. Thread-safe.

    :param fetch: what fetches a token; tests replace it.
    """

    def __init__(self, settings: OidcSettings, fetch: Callable[[OidcSettings], FetchedToken] = fetch_token) -> None:
        self._settings = settings
        self._fetch = fetch
        self._changed = threading.Condition()
        self._token: Token | None = None
        self._failure: MigrationError | None = None
        self._failed_at = -1e9
        #: when the fetch that is under way began
        self._fetching_since: float | None = None
        self._is_used = False
        self._timer: threading.Timer | None = None

    def get(self, cluster: str = "", timeout_seconds: float = WAIT_SECONDS) -> Token:
        """Return a valid token; wait only if there is none.

        :param cluster: for errors.
        :raises TokenUnavailable: the endpoint gives none in time.
        :raises AuthenticationFailed: it refuses the client, or its certificate is not accepted.
        :raises ConnectionInvalid: it is no token endpoint, or a file of the connection cannot be read.
        """
        with self._changed:
            asked_at = clock.elapsed_seconds()
            self._is_used = True
            while True:
                now = clock.elapsed_seconds()
                if self._token is not None and now < self._token.used_until:
                    if now >= self._token.renewed_at:
                        self._start(_RENEWAL_PAUSE_SECONDS)
                    return self._token
                if self._failure is not None and self._failed_at >= min(asked_at, now - _PAUSE_SECONDS):
                    raise self._failure_for(self._failure, cluster)
                self._start(0.0)
                left = asked_at + timeout_seconds - now
                if left <= 0 or not self._changed.wait(left):
                    late = unavailable(self._settings, f"no whole answer within {timeout_seconds:g} seconds")
                    raise self._failure_for(late, cluster)

    def forget(self, value: str) -> bool:
        """Give a token that the broker refused to nobody any more; return whether it was the present one."""
        with self._changed:
            if self._token is None or self._token.value != value:
                return False
            self._token = None
            return True

    @staticmethod
    def _failure_for(failure: MigrationError, cluster: str) -> MigrationError:
        """Return an error of the caller's own, because several threads may raise it."""
        where = Where(cluster=cluster or None, path=failure.where.path)
        return type(failure)(failure.what, where=where, next_step=failure.next_step, details=failure.details)

    def _start(self, pause_seconds: float) -> None:
        """Fetch in the background, once at a time. The lock is held."""
        now = clock.elapsed_seconds()
        if self._fetching_since is not None and now < self._fetching_since + _GIVEN_UP_SECONDS:
            return
        if now < self._failed_at + pause_seconds:
            return
        self._fetching_since = now
        threading.Thread(target=self._renew, args=(now,), name="oauth-token", daemon=True).start()

    def _renew(self, began: float) -> None:
        failure: MigrationError | None = None
        token: Token | None = None
        try:
            token = _token(self._fetch(self._settings), began)
        except MigrationError as error:
            failure = error
        except Exception as error:
            # Whatever it is, those who wait have to know; its text may quote a secret.
            failure = unavailable(self._settings, type(error).__name__)
        with self._changed:
            if self._fetching_since == began:
                self._fetching_since = None
            if token is not None:
                self._token, self._failure = token, None
            elif failure is not None:
                self._failure, self._failed_at = failure, clock.elapsed_seconds()
                self._log_failure(failure)
            self._plan_renewal()
            self._changed.notify_all()

    def _log_failure(self, failure: MigrationError) -> None:
        left = self._token.used_until - clock.elapsed_seconds() if self._token is not None else 0.0
        if left > 0:
            log.warning("%s; the present token remains valid for %.0f seconds", failure.what, left)

    def _plan_renewal(self) -> None:
        """Wake a thread when the token has to be renewed. The lock is held."""
        if self._token is None:
            return
        now = clock.elapsed_seconds()
        due = max(self._token.renewed_at, self._failed_at + _RENEWAL_PAUSE_SECONDS)
        if due >= self._token.used_until:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(max(0.0, due - now), self._renew_if_used)
        self._timer.daemon = True
        self._timer.start()

    def _renew_if_used(self) -> None:
        with self._changed:
            # A process that has stopped logging in asks nobody any more; the next login fetches a token again.
            if self._is_used:
                self._is_used = False
                self._start(0.0)


def _token(fetched: FetchedToken, began: float) -> Token:
    lifetime = fetched.lifetime_seconds
    spare = min(lifetime * _SPARE_PART, _SPARE_SECONDS)
    return Token(
        value=fetched.value,
        principal=fetched.principal,
        renewed_at=began + lifetime * RENEWED_AFTER,
        used_until=began + lifetime - spare,
        expires_at=began + lifetime,
    )


# -- the sources of this process ---------------------------------------------------------------------------------------

_lock = threading.Lock()
_sources: dict[OidcSettings, TokenSource] = {}


def source_of(settings: OidcSettings) -> TokenSource:
    """Return this process' source of tokens for these settings."""
    with _lock:
        return _sources.setdefault(settings, TokenSource(settings))


def _forget() -> None:
    """Begin anew in a forked process: it has no threads, and its copy of a lock may be held for ever."""
    global _lock
    _lock = threading.Lock()
    _sources.clear()


os.register_at_fork(after_in_child=_forget)
