"""The target side of a lane: copies each partition by compare-and-append or in transactions, as its verdict says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from airflow_provider_kafka_migration.copy.append import Appender, Channel
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Sent
from airflow_provider_kafka_migration.copy.resume import Resumed, ResumeFinder
from airflow_provider_kafka_migration.copy.transaction_resume import TransactionalResumer
from airflow_provider_kafka_migration.copy.transactions import TransactionalAppender
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import MigrationError, Terminal
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, group_name
from airflow_provider_kafka_migration.storage.base import ObjectStore


def is_transactional(copy: PartitionCopy) -> bool:
    """Return whether a partition is copied in transactions."""
    return copy.spec.verdict is Verdict.TRANSACTIONAL


class Writers:
    """Both appenders and both ways to resume, behind one interface.

    :param append: the appender for compare-and-append.
    :param map_store: store for the map pages of transactional partitions.
    """

    def __init__(
        self,
        job: CopyJob,
        target: Wire,
        append: Appender,
        map_store: ObjectStore,
        *,
        deadline: float,
        on_trouble: Callable[[PartitionCopy, MigrationError], None],
        on_confirmed: Callable[[PartitionCopy, Sent | None], None],
    ) -> None:
        self._append = append

        def pages(copy: PartitionCopy) -> MapPages:
            return MapPages(map_store, job.migration_id, *copy.key)

        self._transactional = TransactionalAppender(
            target,
            group_name(job.migration_id),
            pages=pages,
            deadline=deadline,
            on_trouble=on_trouble,
            on_confirmed=on_confirmed,
        )
        self._transactional_resumer = TransactionalResumer(
            job.migration_id, target, pages=pages, on_session=self._transactional.begin
        )

    def _of(self, copy: PartitionCopy) -> Appender | TransactionalAppender:
        return self._transactional if is_transactional(copy) else self._append

    @property
    def channels(self) -> list[Channel]:
        """All open channels."""
        return self._append.channels + self._transactional.channels

    @property
    def throttled_seconds(self) -> float:
        """For how long the target's brokers have throttled this lane."""
        return self._append.throttling.seconds + self._transactional.throttling.seconds

    def set_wake(self, wake: Callable[[], object]) -> None:
        """Set what wakes the copier's loop when background work has ended."""
        self._append.wake = self._transactional.wake = wake

    def prepare(self) -> None:
        """See :meth:`Appender.prepare`."""
        self._append.prepare()

    def attach(self, copies: Iterable[PartitionCopy]) -> None:
        """Give each partition its channels."""
        for copy in copies:
            self._of(copy).attach([copy])

    def detach(self, copy: PartitionCopy) -> None:
        """Take a partition off its channels."""
        self._of(copy).detach(copy)

    def lose(self, channel: Channel, error: MigrationError) -> None:
        """Drop a broken connection."""
        side = self._append if channel in self._append.channels else self._transactional
        side.lose(channel, error)

    def close(self) -> None:
        """Close all connections."""
        self._append.close()
        self._transactional.close()

    def is_settling(self, copy: PartitionCopy) -> bool:
        """Return whether unanswered requests may still change the position of the copy."""
        return self._of(copy).is_settling(copy)

    def pump(self, now: float) -> None:
        """Send what can be sent now.

        :raises SliceExpired: the deadline has passed.
        """
        self._append.pump(now)
        self._transactional.pump(now)

    def next_due(self, now: float) -> float:
        """Return when to pump next even if no answer comes before (monotonic clock)."""
        return self._transactional.next_due(now)

    def resume(
        self, copies: Sequence[PartitionCopy], resumer: ResumeFinder, lane_maps: LaneMaps
    ) -> dict[PartitionCopy, Resumed]:
        """Return the resume points of all partitions, each found according to its verdict.

        :raises Transient: no broker of a cluster answers, or the storage does not.
        """
        in_transactions = [copy for copy in copies if is_transactional(copy)]
        found: dict[PartitionCopy, Resumed] = {}
        if in_transactions:
            try:
                found.update(self._transactional_resumer.resume(in_transactions))
            except Terminal as error:
                # A right on the group or the ids is missing: compare-and-append partitions need neither.
                found.update(dict.fromkeys(in_transactions, error))
        others = [copy for copy in copies if not is_transactional(copy)]
        if others:
            found.update(resumer.resume(others, lane_maps))
        return found
