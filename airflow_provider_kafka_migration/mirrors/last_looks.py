"""The last looks at the source of a mirror that is promoted as planned: no record may stay behind unnamed.

Before the promotion the source's ends must stand still for a window, with everything replicated and no transaction
open. Nothing keeps a producer from writing after that. So the source is read once more after the copiers are fenced,
and what it got meanwhile is named.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.documents.mirror import Promotion
from airflow_provider_kafka_migration.errors import FreezeFailed, TopicRecreated
from airflow_provider_kafka_migration.freeze import late_writes
from airflow_provider_kafka_migration.freeze.late_writes import BehindBoundary
from airflow_provider_kafka_migration.freeze.stand_still import POLL_SECONDS, Holders, SourceEnds, StillWatch
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord

#: What draws the boundary, for people.
_AFTER: Final = "the promotion's copy had ended"


class SourceMovedError(Exception):
    """The source does not stand still at the mirror's stop; the text says why and what to do."""


class SourceWatch:
    """Watches the source from its first look on, until its ends have not moved for a whole window.

    What is done between :meth:`begin` and :meth:`wait` counts as part of the window.

    :param stop: up to where everything is copied.
    """

    def __init__(self, context: PhaseContext, stop: StopAt) -> None:
        self._record, self._source, self._stop = context.record, context.source, stop
        window = context.spec.cutover.freeze_stable_window.total_seconds()
        self._still = StillWatch(window, time.monotonic())

    def begin(self) -> None:
        """Look for the first time.

        :raises SourceMovedError: the source has more than was copied, or partitions that are not mirrored yet.
        """
        self._check_followed()
        self._look()

    def wait(self) -> dict[TopicPartition, int]:
        """Look until the ends have stood still for the whole window, at least once; return them.

        :raises SourceMovedError: as :meth:`begin`.
        """
        self._until_still()
        self._check_followed()
        return self._until_still()

    def _check_followed(self) -> None:
        try:
            follow.check_all_followed(self._record, self._source)
        except (FreezeFailed, TopicRecreated) as error:
            raise SourceMovedError(error.what) from error

    def _until_still(self) -> dict[TopicPartition, int]:
        while (ends := self._look()) is None:
            time.sleep(POLL_SECONDS)
        return ends

    def _look(self) -> dict[TopicPartition, int] | None:
        """Return the source's ends if they have stood still for the whole window; None: not long enough."""
        look = SourceEnds.read(self._record, self._source)
        why = _why_moving(self._source, look, self._stop)
        if why:
            raise SourceMovedError(why)
        return look.high_watermark if self._still.see(look.log_end, time.monotonic(), settled=True) else None


def _why_moving(source: Cluster, look: SourceEnds, stop: StopAt) -> str:
    """Say what keeps the source's ends away from the stop: transactions, replicas or producers; empty: nothing."""
    moved = sorted(key for key, end in look.high_watermark.items() if end > (stop.offset(*key) or 0))
    held = [key for key in look.open_transactions if key in set(moved)]
    if held:
        topic, partition = held[0]
        offset = look.stable[topic, partition]
        return (
            f"open transactions hold back the ends of {len(held)} partitions of the source, the first is "
            f"{topic}-{partition} from offset {offset} on: {Holders.of(source, held).text}. Let the application "
            f"end its transaction, or abort it (kafka-transactions.sh abort --topic {topic} --partition {partition} "
            f"--start-offset {offset}); then promote again"
        )
    if moved:
        topic, partition = moved[0]
        return (
            f"producers still write to {len(moved)} partitions of the source, the first is {topic}-{partition}: "
            "stop them, then promote again"
        )
    if look.unreplicated:
        key = look.unreplicated[0]
        return (
            f"the last records of {len(look.unreplicated)} partitions of the source are not on all in-sync replicas "
            f"yet, so they cannot be copied: {', '.join(map(partition_name, look.unreplicated[:5]))}; the first has "
            f"offsets {look.high_watermark[key]} to {look.log_end[key] - 1}. Bring its replicas back "
            "(kafka-topics.sh --describe --under-replicated-partitions); then promote again"
        )
    return ""


# -- after the fence --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meanwhile:
    """What the source got while the mirror was promoted, by partition, and where that could not be checked."""

    late: dict[str, str]
    unchecked: dict[str, str]

    @property
    def problems(self) -> list[str]:
        """Lines for people, one for each partition."""
        rows = [
            f"source: {name}: {text}; stop the producer, and have them sent to the target"
            for name, text in sorted(self.late.items())
        ]
        return rows + [
            f"source: {'' if name == 'source' else f'{name}: '}not checked for records that came meanwhile: {why}"
            for name, why in sorted(self.unchecked.items())
        ]

    @property
    def summary(self) -> str:
        """Part of the promotion's summary; empty if the source was checked and got nothing."""
        text = ""
        if self.late:
            text += f"; {len(self.late)} partitions of the source got records meanwhile that are NOT on the target"
        if self.unchecked:
            what = "the source" if "source" in self.unchecked else f"{len(self.unchecked)} partitions of the source"
            text += f"; {what} could NOT be checked for records that came meanwhile"
        return text


def read_meanwhile(record: MigrationRecord, source: Cluster, promotion: Promotion | None) -> Meanwhile:
    """Read what the source has behind the copy. A source that cannot be read counts as not checked.

    What an earlier process has found stays known where the source cannot be read any more.

    :param promotion: the stored document; None: it is missing.
    """
    if promotion is None:
        return Meanwhile({}, {"source": f"{keys.PROMOTION} is missing, which has the ends of the copy"})
    boundary: dict[TopicPartition, int | None] = dict.fromkeys(record.partitions())
    for item in promotion.partitions:
        boundary[item.topic, item.partition] = item.source_end_offset if item.source_end_offset >= 0 else None
    found: BehindBoundary = late_writes.read_behind(source, boundary, after=_AFTER)
    known = {
        name: text
        for name, text in promotion.late_writes.items()
        if name in found.unchecked or "source" in found.unchecked
    }
    return Meanwhile({**known, **found.late}, dict(found.unchecked))
