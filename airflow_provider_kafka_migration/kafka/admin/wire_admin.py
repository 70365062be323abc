"""What all admin modules share: errors of single items as data, bounded retries, the wire.

Copiers import it on Spark's executors, which have no confluent-kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerRefused, MigrationError, PermissionMissing, Where
from airflow_provider_kafka_migration.kafka import error_codes

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.wire import Wire


K = TypeVar("K", bound=Hashable)

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
#: A broker that starts fails so for some seconds; a plug-in of a broker that throws fails so each time.
FAULT_SECONDS = 10.0
_FAULT = error_codes.bare_name(error_codes.UNKNOWN_SERVER_ERROR)


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

    @property
    def is_unclear(self) -> bool:
        """Whether the change may have been made, or be made yet, all the same."""
        return self.code in (REQUEST_TIMED_OUT, error_codes.UNKNOWN_SERVER_ERROR)

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
    text = message or ""
    # Some brokers answer with a dump of the request, including ports and object ids: useless, and different each time.
    shown = "" if text.startswith("Request Request(") else text
    return ItemError(code, error_codes.bare_name(code), shown, error_codes.retriable(code))


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


class WireAdmin:
    """The wire and the conventions of all admin calls.

    Reads raise errors that concern the whole request and return errors of single items as data. Changes return
    ``{item: ItemError | None}`` (``None``: done), so that one bad item never hides the others.
    """

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.name = name
        #: Tests replace it.
        self._sleep: Callable[[float], None] = time.sleep
        self.retry_seconds = RETRY_SECONDS

    @property
    def send_until(self) -> float:
        """See :attr:`Wire.send_until`."""
        return self.wire.send_until

    @send_until.setter
    def send_until(self, moment: float) -> None:
        self.wire.send_until = moment

    def close_client(self) -> None:
        """End what knows the cluster besides the wire: nothing here."""

    def api_version(self, api_key: int) -> int:
        """Return the highest version of an api that the brokers support, -1 if they do not know it."""
        return int(self.wire.connection().api_versions.get(api_key, (-1, -1))[1])

    def where(self, **place: Any) -> Where:
        """Return a place on this cluster."""
        return Where(cluster=self.name, **place)

    def check(self, code: int, message: str | None, what: str, *, operation: str = "", **place: Any) -> None:
        """Raise our error for a code that concerns the whole answer to a request that changes nothing."""
        error = item_error(code, message)
        if error is not None:
            if code == error_codes.UNKNOWN_SERVER_ERROR:
                text = f"{what}: {error.message}" if error.message else what
                raise error_codes.error_of_read(code, text, where=self.where(**place))
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
        :param done_codes: codes that mean "already done" when the previous attempt of this item timed out or failed
            inside the broker, which may still have done it.
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
                    if error is not None and error.is_unclear:
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
        if error.name == _FAULT:
            return after_seconds <= min(FAULT_SECONDS, self.retry_seconds)
        limit = min(SPREADING_SECONDS, self.retry_seconds) if error.code in SPREADING_CODES else self.retry_seconds
        return error.retriable and after_seconds <= limit


def _code(error: ItemError | None) -> int:
    return 0 if error is None else error.code
