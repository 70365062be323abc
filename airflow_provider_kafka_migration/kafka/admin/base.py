"""The shared base of all admin modules: per-item errors as data, bounded retries, the wire, the AdminClient."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kafka.errors import for_code

from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    BrokerRefused,
    BrokerUnreachable,
    KerberosUnsupported,
    MigrationError,
    PermissionMissing,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.auth import kerberos
from airflow_provider_kafka_migration.kafka.auth.tls_files import TlsFiles

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.wire import Wire


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

#: Error codes for a missing permission: topic, group, cluster, transactional id, delegation token.
AUTHORIZATION_CODES = frozenset({29, 30, 31, 53, 65})
SECURITY_DISABLED = 54
REQUEST_TIMED_OUT = 7
NOT_CONTROLLER = 41

#: Most items in one admin request, to limit the load on the brokers and on us.
BATCH_ITEMS = 200
#: Longest time that one operation retries its retriable items, in seconds.
RETRY_SECONDS = 60.0
#: Codes that are retriable only because metadata spreads slowly; after SPREADING_SECONDS they are taken as final.
SPREADING_CODES = frozenset({3, 5, 100})
SPREADING_SECONDS = 3.0
#: Time a broker may take for one admin request, in milliseconds.
REQUEST_TIMEOUT_MS = 30_000
#: How long we wait for its answer: longer, so that we receive a slow broker's REQUEST_TIMED_OUT instead of nothing.
REQUEST_WAIT_SECONDS = REQUEST_TIMEOUT_MS / 1000 + 15.0
#: How long a call of the AdminClient waits for brokers, the controller and the answer.
CLIENT_WAIT = {"request_timeout": REQUEST_TIMEOUT_MS / 1000}
#: The same for topics, on which the controller may work for REQUEST_TIMEOUT_MS.
TOPICS_WAIT = {"request_timeout": REQUEST_WAIT_SECONDS, "operation_timeout": REQUEST_TIMEOUT_MS / 1000}
#: How long we wait for librdkafka, which normally gives up before.
ANSWER_SECONDS = REQUEST_WAIT_SECONDS + 5.0
#: The lowest code of a broker. Lower ones are librdkafka's own: nothing is known about the request then.
LOWEST_BROKER_CODE = -1
#: Codes of librdkafka for requests that got no answer.
NO_ANSWER = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._SSL}
)

#: The last one is shown; one before it may be the cause that the others hide.
_KEPT_ERRORS = 20
#: libsasl2's words for a mechanism whose plug-in is not installed.
_NO_MECHANISM = "No worthy mechs found"


@dataclass(frozen=True)
class ItemError:
    """A broker's error for one item of a request: a topic, a partition, an ACL.

    :param code: Kafka's error code; ``name`` is its name, for instance ``TOPIC_ALREADY_EXISTS``.
    :param message: the broker's own text; empty if the broker sent none.
    """

    code: int
    name: str
    message: str = ""
    retriable: bool = False

    @property
    def unauthorized(self) -> bool:
        """Whether the principal lacks the permission."""
        return self.code in AUTHORIZATION_CODES

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    def as_dict(self) -> dict[str, Any]:
        """Return the error as data, for reports and journals."""
        return {"code": self.code, "name": self.name, "message": self.message}

    def exception(self, what: str, where: Where, *, operation: str = "") -> MigrationError:
        """Return our error for this item: permission, busy or refused.

        :param operation: the required permission, for instance ``Create on Cluster kafka-cluster``.
        """
        details = self.as_dict()
        if self.unauthorized:
            return PermissionMissing(
                f"{what}: {self.name}",
                where=where,
                next_step=f"grant the migration's principal {operation or 'the operation'} on this cluster",
                details={**details, "operation": operation},
            )
        if self.retriable:
            return BrokerBusy(f"{what}: {self}", where=where, next_step="try again", details=details)
        return BrokerRefused(
            f"{what}: {self}", where=where, next_step="see the broker's message and its log", details=details
        )


def item_error(code: int, message: str | None = None) -> ItemError | None:
    """Return the error for a protocol code; ``None`` for 0."""
    if code == 0:
        return None
    kind = for_code(code)
    name = str(getattr(kind, "message", None) or kind.__name__)
    text = message or ""
    # Some brokers answer with a dump of the request, including ports and object ids: useless, and different each time.
    return ItemError(code, name, "" if text.startswith("Request Request(") else text, error_codes.retriable(code))


def batches(
    items: Iterable[K], size: int = BATCH_ITEMS, weight: Callable[[K], int] | None = None, max_weight: int = 0
) -> Iterator[list[K]]:
    """Cut items, in order, into lists of at most ``size`` items and, where items have a weight, ``max_weight``."""
    batch: list[K] = []
    total = 0
    for item in items:
        own = weight(item) if weight is not None else 0
        if batch and (len(batch) == size or (weight is not None and total + own > max_weight)):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += own
    if batch:
        yield batch


def _answer(future: Future[Any], done: int | None) -> Any:
    """Return the answer for one item, or the broker's error without the text that librdkafka puts where it sent none.

    :raises KafkaException: librdkafka's own error; nothing is known about the item then.
    """
    try:
        return future.result()
    except KafkaException as failure:
        code, text = failure.args[0].code(), failure.args[0].str()
        if code < LOWEST_BROKER_CODE:
            raise
        return None if code == done else item_error(code, "" if text in (KafkaError(code).str(), "(null)") else text)


class AdminBase:
    """The wire, the AdminClient and the conventions of all admin calls.

    Reads raise errors that concern the whole request and return errors of single items as data. Changes return
    ``{item: ItemError | None}`` (``None``: done), so that one bad item never hides the others.
    """

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.name = name
        #: Tests replace it.
        self._sleep: Callable[[float], None] = time.sleep
        self.retry_seconds = RETRY_SECONDS
        self._client: AdminClient | None = None
        self._client_errors: deque[object] = deque(maxlen=_KEPT_ERRORS)
        self._client_files = TlsFiles(())

    def close_client(self) -> None:
        """End librdkafka's threads and connections; the next call opens them again."""
        self._client = None

    def by_client(
        self, ask: Callable[[AdminClient], Mapping[K, Future[T]]], *, done: int | None = None
    ) -> dict[K, T | ItemError]:
        """Call the AdminClient once; return the answer or the error of each item that was answered in time.

        The wire talks to the cluster first: it names an address where nobody answers, a refused password or a TLS
        mistake, for which librdkafka waits until the time is up.

        :param done: a broker's code for items that already are as requested; their answer is ``None``.
        :raises BrokerUnreachable: librdkafka got no answer in time.
        :raises AuthenticationFailed: librdkafka got no token.
        :raises BrokerRefused: the AdminClient does not send this request, or does not understand its answer.
        """

        def attempt() -> dict[K, T | ItemError]:
            try:
                if self.wire.config.kerberos is not None:
                    # Before the client, which connects by itself; and each time, because tickets end after some hours.
                    host = self.wire.connection().host
                    kerberos.fill_ticket_cache(self.wire.config.kerberos, host, self.where())
                futures = ask(self._open_client())
                wait(futures.values(), ANSWER_SECONDS)
                return {item: _answer(future, done) for item, future in futures.items() if future.done()}
            except (KafkaException, RuntimeError, TypeError, ValueError) as error:
                raise self._local_error(error.args[0]) from None

        self.wire.metadata([])
        return self.wire.retrying(attempt)

    def check_client(self) -> None:
        """Open the AdminClient; nothing is sent.

        :raises KerberosUnsupported: confluent-kafka was built without it.
        """
        self._open_client()

    def _open_client(self) -> AdminClient:
        """Return the AdminClient; create it at the first call, because its threads do not survive a fork."""
        if self._client_files.have_changed():
            # librdkafka reads certificates only when a client is created.
            self.close_client()
        if self._client is None:
            if self.wire.config.read_only:
                raise BrokerRefused(
                    "the AdminClient was not opened: this connection is read-only",
                    where=self.where(),
                    next_step="report this as a bug: a comparison tried to change something",
                )
            self._client_errors.clear()
            self._client_files = TlsFiles(self.wire.config.tls_paths)
            config = {**self.wire.config.librdkafka(), "error_cb": self._client_errors.append}
            try:
                self._client = AdminClient(config)
            except KafkaException as error:
                if self.wire.config.kerberos is None or "GSSAPI" not in error.args[0].str():
                    raise
                raise KerberosUnsupported(
                    "this build of confluent-kafka has no Kerberos, and topics, configs, ACLs, users and groups are "
                    "read and changed by it",
                    where=self.where(),
                    next_step="install confluent-kafka from its source against a librdkafka with libsasl2 "
                    "(docs/connections.md, Kerberos), or give the migration another mechanism on this cluster",
                ) from None
        return self._client

    def _local_error(self, error: object) -> MigrationError:
        """Return our error for a request that got no answer, or that the AdminClient itself refuses."""
        if isinstance(error, KafkaError) and error.code() > 0:
            return error_codes.error_for(error.code(), f"librdkafka: {error.str()}", where=self.where())
        if not isinstance(error, KafkaError) or error.code() not in NO_ANSWER:
            return BrokerRefused(
                f"the AdminClient refuses the request or its answer: {error}",
                where=self.where(),
                next_step="report this as a bug",
            )
        if self._client is not None:
            self._client.poll(0)
        self.close_client()
        errors = [str(item) for item in self._client_errors]
        reasons = [error.str(), *errors[-1:]]
        if any(_NO_MECHANISM in reason for reason in errors):
            return KerberosUnsupported(
                f"libsasl2, by which librdkafka logs in, lacks its plug-in for Kerberos here ({_NO_MECHANISM})",
                where=self.where(),
                next_step="install it (Debian and Ubuntu: libsasl2-modules-gssapi-mit, Red Hat: cyrus-sasl-gssapi); "
                "then clear the task",
            )
        return BrokerUnreachable(
            f"the {self.name} cluster does not answer librdkafka: {'; '.join(reasons)}",
            where=self.where(broker=self.wire.config.bootstrap_servers),
            next_step="check the brokers, and that their advertised addresses can be reached; then clear the task",
        )

    def api_version(self, api_key: int) -> int:
        """Return the highest version of an api that the brokers support, -1 if they do not know it."""
        return int(self.wire.connection().api_versions.get(api_key, (-1, -1))[1])

    def where(self, **place: Any) -> Where:
        """Return a place on this cluster."""
        return Where(cluster=self.name, **place)

    def check(self, code: int, message: str | None, what: str, *, operation: str = "", **place: Any) -> None:
        """Raise our error for a code that concerns a whole response."""
        error = item_error(code, message)
        if error is not None:
            raise error.exception(what, self.where(**place), operation=operation)

    def in_batches(
        self,
        items: Sequence[K],
        send: Callable[[list[K]], Mapping[K, ItemError | None]],
        *,
        size: int = BATCH_ITEMS,
        weight: Callable[[K], int] | None = None,
        max_weight: int = 0,
        done_codes: frozenset[int] = frozenset(),
    ) -> dict[K, ItemError | None]:
        """Send items in batches and retry the retriable ones within :attr:`retry_seconds`.

        :param weight: weight of an item; a batch weighs at most ``max_weight``, or is a single item.
        :param done_codes: codes that mean "already done" when the previous attempt of this item timed out: a broker
            that answers too late may still have done it.
        """
        results: dict[K, ItemError | None] = {}
        maybe_done: set[K] = set()
        begun = time.monotonic()
        pending, pause = list(items), 0.1
        while pending:
            again: list[K] = []
            for batch in batches(pending, size, weight, max_weight):
                answers = send(batch)
                for item in batch:
                    error = answers.get(item, ItemError(-1, "NO_ANSWER", "the broker did not answer for this item"))
                    if error is not None and error.code in done_codes and item in maybe_done:
                        error = None
                    results[item] = error
                    if error is not None and error.code == REQUEST_TIMED_OUT:
                        maybe_done.add(item)
                    if error is not None and self._again(error, time.monotonic() + pause - begun):
                        again.append(item)
            pending = again
            if any(_code(results[item]) == NOT_CONTROLLER for item in pending):
                self.wire.metadata([])
                self.close_client()
            if pending:
                self._sleep(pause)
                pause = min(pause * 2, 3.0)
        return results

    def _again(self, error: ItemError, after_seconds: float) -> bool:
        """Return whether an item is sent again ``after_seconds`` after its operation began."""
        limit = min(SPREADING_SECONDS, self.retry_seconds) if error.code in SPREADING_CODES else self.retry_seconds
        return error.retriable and after_seconds <= limit


def _code(error: ItemError | None) -> int:
    return 0 if error is None else error.code


class Codes:
    """Maps numbers of the protocol to names and back. An unknown number appears in its name."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._numbers = {name: number for number, name in names.items()}

    def name(self, number: int) -> str:
        """Return the name of a number; ``UNKNOWN_n`` for one that only a newer broker knows."""
        return self._names.get(number, f"UNKNOWN_{number}")

    def number(self, name: str) -> int:
        """Return the number of a name; raises ``KeyError``."""
        return self._numbers[name]

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    @property
    def names(self) -> list[str]:
        """All known names, ascending by number."""
        return [self._names[number] for number in sorted(self._names)]


OPERATIONS = Codes(
    {
        2: "ALL",
        3: "READ",
        4: "WRITE",
        5: "CREATE",
        6: "DELETE",
        7: "ALTER",
        8: "DESCRIBE",
        9: "CLUSTER_ACTION",
        10: "DESCRIBE_CONFIGS",
        11: "ALTER_CONFIGS",
        12: "IDEMPOTENT_WRITE",
        13: "CREATE_TOKENS",
        14: "DESCRIBE_TOKENS",
        15: "TWO_PHASE_COMMIT",
    }
)
