"""Groups that are kept up to date while records are still copied: in mirrors, and on the old side of a way back.

Only groups that are idle on the target are written, and never backwards. A group may have read further on the source
than is copied. It is then held at the end of the copy: a consumer that starts on the target reads nothing again and
misses nothing of what is there, and an offset beyond the target's log end would send it to ``auto.offset.reset``.

The end of the copy is what copiers have confirmed, not the target's log end: others may have written there, and their
records are none that the group has read. A partition whose copy has an error is left alone, and so is one that the
target cannot be asked for, because its topic is gone or it has no leader; all others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.cutover import (
    AHEAD_OF_COPY,
    COPY_HAS_AN_ERROR,
    NOTHING_COPIED,
    GroupResult,
    GroupSnapshot,
    GroupsResult,
    TranslatedOffset,
    Translation,
)
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.groups.commit import (
    GroupTranslator,
    WriteLog,
    commit,
    make_result,
    read_groups,
    summarize,
)
from airflow_provider_kafka_migration.kafka.logs import by_leader
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.lanes.figures import is_same_topic
from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps
from airflow_provider_kafka_migration.record.background import BackgroundPasses, own_connections
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import committed_positions, live_translators
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord

_ERROR = COPY_HAS_AN_ERROR + ", so nobody knows how far it is: {what}"
_UNASKED = "the target cannot be asked how far the copy is: {what}"
_HELD = AHEAD_OF_COPY + ": it is held at the end of the copy, {end}"


@dataclass(frozen=True)
class HeldTranslator(GroupTranslator):
    """Translations that never point beyond what is copied.

    :param ends: where the copy ends on each target partition, by (target topic, partition).
    :param source_ends: the source offsets that belong to these ends; absent where that is not known.
    :param failing: why a copy is stuck, by (source topic, partition).
    :param unasked: the partitions that the target could not be asked for, by (source topic, partition).
    """

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    source_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    failing: Mapping[TopicPartition, str] = field(default_factory=dict)
    unasked: Mapping[TopicPartition, MigrationError] = field(default_factory=dict)

    @classmethod
    def live(  # type: ignore[override]
        cls, record: MigrationRecord, target: Cluster, kept: KeptMaps | None = None
    ) -> HeldTranslator:
        """With the open maps of the run log. Read the groups first, so that what was copied meanwhile counts.

        :param kept: what an earlier pass has read of maps of copies in transactions.

        Progress and the target's ends are read before the maps: a map that is read afterwards covers all below them.
        """
        partitions = record.partitions()
        copied, failing = confirmed_positions(record)
        highest, unasked = _highest(target, partitions)
        unread: dict[TopicPartition, MigrationError] = {}
        in_transactions = committed_positions(record, target, partitions, unread)
        # One position that somebody has altered holds up no other partition.
        failing.update({key: error.what for key, error in unread.items()})
        in_transactions.update(dict.fromkeys(unread))
        live = GroupTranslator.live(record, target, live_translators(record, target, in_transactions, kept))
        ends: dict[TopicPartition, int] = {}
        source_ends: dict[TopicPartition, int] = {}
        for key, item in partitions.items():
            place, position = target_key(item), in_transactions.get(key)
            if key in in_transactions:
                until = item.source_start_offset if position is None else position.source_offset
                confirmed = None if position is None else position.target_offset
            else:
                until = max(copied.get(key, -1), item.source_start_offset)
                confirmed = live.maps[key].translate(until).target_offset
            ends[place] = min(highest.get(place, 0), confirmed or 0)
            if ends[place] == confirmed:
                source_ends[place] = until
        return cls(live.partitions, live.maps, live.below, live.left_out, ends, source_ends, failing, unasked)

    @cached_property
    def _by_target(self) -> dict[TopicPartition, CopyPartition]:
        return {target_key(item): item for item in self.partitions.values()}

    def translate(self, group: GroupSnapshot) -> list[TranslatedOffset]:
        """Translate all offsets of a group, and hold those back that the copy has not reached."""
        return [self._held(item) for item in super().translate(group)]

    def _held(self, item: TranslatedOffset) -> TranslatedOffset:
        key = (item.topic, item.partition)
        if key in self.failing and item.target_offset is not None:
            return _skipped(item, _ERROR.format(what=self.failing[key]))
        if key in self.unasked and item.target_offset is not None:
            return _skipped(item, _UNASKED.format(what=self.unasked[key].what))
        end = self.ends.get((item.target_topic, item.partition))
        if item.target_offset is None or end is None or item.target_offset <= end:
            return item
        partition = self._by_target.get((item.target_topic, item.partition))
        if partition is not None and not partition.adopted and end <= partition.target_start_offset:
            # Below its start there are fillers at most, which are deleted: an offset there would be out of range.
            return _skipped(item, NOTHING_COPIED)
        return item.model_copy(update={"target_offset": end, "reason": _HELD.format(end=end)})


def _skipped(item: TranslatedOffset, reason: str) -> TranslatedOffset:
    return item.model_copy(update={"target_offset": None, "translation": Translation.SKIPPED, "reason": reason})


def _highest(
    target: Cluster, partitions: Mapping[TopicPartition, CopyPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MigrationError]]:
    """(high watermark by target partition, why others could not be asked for by source partition).

    :raises MigrationError: a broker does not answer, so nothing is known of any.
    """
    problems: dict[TopicPartition, MigrationError] = {}
    leaders = by_leader(target.wire, (target_key(item) for item in partitions.values()), problems)
    asked = [place for places in leaders.values() for place in places]
    found = target.wire.list_offsets(asked, "latest") if asked else {}
    return found, {key: problems[target_key(item)] for key, item in partitions.items() if target_key(item) in problems}


def confirmed_positions(record: MigrationRecord) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Return what copiers have confirmed last, and why copies are stuck: the tail's reports, or else the seed's.

    Confirmed are source offsets that are on the target, also those of slices that still run. Where a driver has just
    begun and knows no position yet, what was reported before counts. What was reported of a topic that was deleted and
    created again since does not count.
    """
    partitions = record.partitions()
    confirmed: dict[TopicPartition, int] = {}
    failing: dict[TopicPartition, str] = {}
    for name in ("seed", "tail"):
        snapshot = Snapshot.of(record.journal_store, record.job_progress(name))
        if snapshot is None:
            continue
        for row in snapshot.document.get("partitions", ()):
            key = (str(row["topic"]), int(row["partition"]))
            if key in partitions and not is_same_topic(row, partitions[key].topic_id):
                continue
            source_offset = snapshot.standings[key].source_offset
            if source_offset >= 0 or key not in confirmed:
                confirmed[key] = source_offset
            failing.pop(key, None)
            if row.get("error"):
                failing[key] = str(row["error"].get("what", ""))
    return confirmed, failing


class TooLate(Exception):
    """Groups must not be written any more: others write them from now on."""


def never() -> bool:
    """Return False: nobody stops a pass that its caller runs itself."""
    return False


def check_in_time(
    context: PhaseContext, is_time: Callable[[MigrationRecord], bool], is_over: Callable[[], bool] = never
) -> None:
    """Check again right before the writes: a process may have slept since it began its pass.

    :param is_time: whether groups may be written by this pass; it reads the journal.
    :raises TooLate: it is not the time any more, and from now on another step writes groups; or the pass is over.
    :raises ClaimLost: another owner has taken over.
    """
    if is_over() or not is_time(context.record):
        raise TooLate
    context.journal.check_holds()


def sync_groups_once(
    context: PhaseContext,
    result_key: str,
    check: Callable[[], None],
    own_writes: Callable[[], WriteLog | None],
    *,
    kept: KeptMaps | None = None,
    refreshes: Callable[[str], bool] = lambda _group: False,
) -> GroupsResult | None:
    """Bring the groups on the target up to date; None: it is too late to write any. Failures are in the result.

    :param result_key: the result that is written, for instance ``keys.GROUPS``.
    :param check: called directly before each group is written; it raises :class:`TooLate`.
    :param own_writes: opens the record of what the pass writes, once the groups of the source are read.
    :param kept: what earlier passes have read of maps of copies in transactions.
    """
    record = context.record
    try:
        snapshots = read_groups(record, context.source)
        translator = HeldTranslator.live(record, context.target, kept)
        results = commit(
            context, snapshots, translator, own_writes(), before_each=check, reads_again=True, refreshes=refreshes
        )
    except TooLate:
        return None
    result = make_result(record, [_with_unasked(item, translator) for item in results], snapshots)
    record.put_result(result_key, result)
    return result


def _with_unasked(result: GroupResult, translator: HeldTranslator) -> GroupResult:
    """Add the partitions that the target could not be asked for: the group may be behind there."""
    places = [(item.topic, item.partition) for item in result.offsets]
    errors = [translator.unasked[place].as_dict() for place in places if place in translator.unasked]
    if not errors or result.skipped_reason:
        return result
    return result.model_copy(update={"failures": [*result.failures, *errors]})


#: Brings the groups up to date once; None: this is not the time for it. It asks before each group whether it is over.
Pass = Callable[[PhaseContext, Callable[[], bool]], GroupsResult | None]


class PeriodicSync(BackgroundPasses[PhaseContext]):
    """Runs passes in a thread with its own connections until the ``with`` block ends.

    :param interval: time between two passes; None: no pass at all.
    :param phase: for progress.
    """

    thread_name = "group-sync"
    failed_text = "Groups could not be brought up to date"
    ended_text = "Groups are no longer brought up to date"

    def __init__(
        self,
        context: PhaseContext,
        one_pass: Pass,
        interval: timedelta | None,
        *,
        phase: str,
    ) -> None:
        super().__init__(None if interval is None else interval.total_seconds())
        self._context = context
        self._one_pass = one_pass
        self._phase = phase
        self._told = ""

    def once(self, memory: dict[str, Any]) -> None:
        """Sync once in this thread, for a task that wakes up now and then.

        :param memory: remembers the outcome from one time to the next, so that only changes are reported.
        """
        if self._is_wanted():
            self._told = memory.get("groups", "")
            self._attempt(self._pass, self._context)
            memory["groups"] = self._told

    def _open(self) -> AbstractContextManager[PhaseContext]:
        return own_connections(replace(self._context, progress=lambda _progress: None))

    def _pass(self, own: PhaseContext) -> None:
        result = self._one_pass(own, self._stop.is_set)
        if result is not None:
            self._report(f"groups: {summarize(result.groups)}")

    def _tell(self, error: Exception) -> None:
        super()._tell(error)
        why = error.what if isinstance(error, MigrationError) else f"{type(error).__name__}: {error}"
        self._report(f"groups could not be brought up to date: {why}")

    def _report(self, outcome: str) -> None:
        """Report the outcome of a pass, if it is another one than that of the pass before."""
        if outcome != self._told:
            self._told = outcome
            self._context.progress(Progress(self._phase, outcome))
