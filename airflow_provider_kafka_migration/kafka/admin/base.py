"""The shared base of the admin modules that call confluent-kafka's AdminClient."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_provider_kafka_migration.errors import (
    BrokerRefused,
    BrokerUnreachable,
    KerberosUnsupported,
    MigrationError,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, WireAdmin, item_error
from airflow_provider_kafka_migration.kafka.auth import kerberos
from airflow_provider_kafka_migration.kafka.auth.tls_files import TlsFiles

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.wire import Wire


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

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


class AdminBase(WireAdmin):
    """The AdminClient, besides the wire and its conventions."""

    def __init__(self, wire: Wire, name: str) -> None:
        super().__init__(wire, name)
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
                self.prepare_login()
                futures = ask(self._open_client())
                wait(futures.values(), ANSWER_SECONDS)
                return {item: _answer(future, done) for item, future in futures.items() if future.done()}
            except (KafkaException, RuntimeError, TypeError, ValueError) as error:
                raise self._local_error(error.args[0]) from None

        self.wire.metadata([])
        return self.wire.retrying(attempt)

    def prepare_login(self) -> None:
        """Get the ticket that a client of confluent-kafka needs, which connects by itself, where logins use Kerberos.

        Before each call, because tickets end after some hours.
        """
        if self.wire.config.kerberos is not None:
            kerberos.fill_ticket_cache(self.wire.config.kerberos, self.wire.connection().host, self.where())

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
