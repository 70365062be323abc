"""What all admin modules share: per-item errors as data, bounded retries, the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.errors import for_code

from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    BrokerRefused,
    MigrationError,
    PermissionMissing,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.wire import Wire


K = TypeVar("K", bound=Hashable)

#: Error codes that say "this principal may not": topic, group, cluster, transactional id, delegation token.
AUTHORIZATION_CODES = frozenset({29, 30, 31, 53, 65})
SECURITY_DISABLED = 54
REQUEST_TIMED_OUT = 7
NOT_CONTROLLER = 41

#: One admin request carries at most so many items, so that brokers and we stay within bounds.
BATCH_ITEMS = 200
#: Longest time that one operation retries its retriable items, seconds.
RETRY_SECONDS = 60.0
#: Codes that are retriable only because metadata spreads slowly: after this time the thing is really not there.
SPREADING_CODES = frozenset({3, 5, 100})
SPREADING_SECONDS = 3.0
#: Time a broker may take for one admin request, milliseconds.
REQUEST_TIMEOUT_MS = 30_000
#: How long we wait for its answer: longer, so that a slow broker's REQUEST_TIMED_OUT comes in, and not silence.
REQUEST_WAIT_SECONDS = REQUEST_TIMEOUT_MS / 1000 + 15.0


@dataclass(frozen=True)
class ItemError:
    """What a broker said about one item of a request: a topic, a partition, an ACL.

    :param code: Kafka's error code; name: its name, for instance ``TOPIC_ALREADY_EXISTS``.
    :param message: the broker's own text, empty if it gave none.
    """

    code: int
    name: str
    message: str = ""
    retriable: bool = False

    @property
    def unauthorized(self) -> bool:
        """The principal may not do this."""
        return self.code in AUTHORIZATION_CODES

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    def as_dict(self) -> dict[str, Any]:
        """The error as data, for reports and journals."""
        return {"code": self.code, "name": self.name, "message": self.message}

    def exception(self, what: str, where: Where, *, operation: str = "") -> MigrationError:
        """The error of the product for this item: permission, busy or refused.

        :param operation: the permission that is needed, for instance ``Create on Cluster kafka-cluster``.
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
    """The error behind a code of the protocol; ``None`` for 0."""
    if code == 0:
        return None
    kind = for_code(code)
    name = str(getattr(kind, "message", None) or kind.__name__)
    text = message or ""
    # Some brokers answer with a dump of the request, ports and object ids included: useless, never twice the same.
    return ItemError(code, name, "" if text.startswith("Request Request(") else text, error_codes.retriable(code))


def batches(
    items: Iterable[K], size: int = BATCH_ITEMS, weight: Callable[[K], int] | None = None, max_weight: int = 0
) -> Iterator[list[K]]:
    """Cut items into lists of at most ``size`` and, where items weigh something, ``max_weight``; order kept."""
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


class AdminBase:
    """The wire and the habits of all admin calls.

    Reads raise for what concerns the whole request and carry errors of single items as data. Changes answer
    ``{item: ItemError | None}`` (``None``: done), so that one bad item never hides the others.
    """

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.name = name
        #: Replaced by tests.
        self._sleep: Callable[[float], None] = time.sleep
        self.retry_seconds = RETRY_SECONDS

    def api_version(self, api_key: int) -> int:
        """The highest version of an api that the brokers speak, -1 if they do not know it."""
        return int(self.wire.connection().api_versions.get(api_key, (-1, -1))[1])

    def where(self, **place: Any) -> Where:
        """A place on this cluster."""
        return Where(cluster=self.name, **place)

    def check(self, code: int, message: str | None, what: str, *, operation: str = "", **place: Any) -> None:
        """Raise the product's error for a code that concerns a whole response."""
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

        :param weight: of an item; a batch weighs at most ``max_weight`` (or is one item).
        :param done_codes: codes that mean "already done" when the former attempt of this item timed out: a broker
            that answers too late may have done it all the same.
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
            if pending:
                self._sleep(pause)
                pause = min(pause * 2, 3.0)
        return results

    def _again(self, error: ItemError, after_seconds: float) -> bool:
        """Whether an item is sent again ``after_seconds`` from the begin of its operation."""
        limit = min(SPREADING_SECONDS, self.retry_seconds) if error.code in SPREADING_CODES else self.retry_seconds
        return error.retriable and after_seconds <= limit


def _code(error: ItemError | None) -> int:
    return 0 if error is None else error.code


class Codes:
    """Names of a numbered list of the protocol, both ways. Unknown numbers keep their number in the name."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._numbers = {name: number for number, name in names.items()}

    def name(self, number: int) -> str:
        """The name of a number, ``UNKNOWN_n`` if a newer broker brought it."""
        return self._names.get(number, f"UNKNOWN_{number}")

    def number(self, name: str) -> int:
        """The number of a name; raises ``KeyError``."""
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
