"""MirrorMaker 2's state topics, written while a mirror copies (``mirror.state_topics``).

Two kinds of passes, each in a thread of its own: heartbeats are due each second, and reading the positions of thousands
of groups takes longer than that. Nothing here stops the copy: a problem is reported, stored for ``mirror status``, and
the next pass tries again. Before each write a pass checks that its process still has the mirror, so that a process that
has slept does not write older positions over those of its successor. After a promotion nothing is written any more.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

from airflow_provider_kafka_migration.documents.cutover import AHEAD_OF_COPY, GroupSnapshot, Translation
from airflow_provider_kafka_migration.documents.mirror import StateTopicsReport
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError, OffsetMapInvalid
from airflow_provider_kafka_migration.groups.commit import read_groups
from airflow_provider_kafka_migration.groups.sync import HeldTranslator, TooLate, never
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.mirror_maker import state_topics
from airflow_provider_kafka_migration.mirror_maker.heartbeats import Heartbeats
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.mirror_maker.state_writer import GroupPosition, StateWriter, Written
from airflow_provider_kafka_migration.mirrors.group_sync import is_mirroring
from airflow_provider_kafka_migration.offset_map.recent import KeptMaps
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.background import BackgroundPasses, own_connections
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.partition_names import partition_name, target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso

log = logging.getLogger(__name__)

PHASE = "mirror"
#: A heartbeat is checked against the journal, and reported to the storage, this often only: each is a request.
_CHECK_SECONDS = 5.0
_REPORT_SECONDS = 10.0
#: Until the first pass: the copiers get a head start.
_FIRST_SECONDS = 2.0
#: A cluster that does not answer must not hold up the beats of the flow itself for long.
_BEAT_PATIENCE_SECONDS = 3.0


# -- positions of groups ----------------------------------------------------------------------------------------------


def open_writer(context: PhaseContext) -> StateWriter:
    """Create the topics of positions that are missing, and read what they have.

    :raises TopologyRefused: one cannot be created, or has several partitions.
    :raises ForeignData: one has a record of another format.
    """
    topics = StateTopics.of(context.spec)
    syncs_on = context.source if topics.syncs_on == "source" else None
    state_topics.create(context.target, topics.of_groups("target"))
    if syncs_on is not None:
        state_topics.create(syncs_on, topics.of_groups("source"))
    return StateWriter(context.target, topics, syncs_on)


def write_once(
    context: PhaseContext, writer: StateWriter, is_over: Callable[[], bool] = never, kept: KeptMaps | None = None
) -> tuple[Written, int]:
    """Write the positions of all groups that are mirrored, if they have changed; also return the groups without any.

    :param is_over: asked directly before each write.
    :param kept: what earlier passes have read of maps of copies in transactions.
    :returns: what was written, and the number of groups whose positions could not be read on the source.
    :raises TooLate: nothing is mirrored any more, or the pass is over.
    :raises ClaimLost: another owner has taken over.
    :raises MigrationError: a cluster does not answer or refuses.
    """

    def check() -> None:
        if is_over() or not is_mirroring(context):
            raise TooLate

    check()
    # The groups first: what is copied until the map is read counts for them, too.
    groups = read_groups(context.record, context.source)
    translator = HeldTranslator.live(context.record, context.target, kept)
    last = last_records(translator)
    positions = [item for group in groups for item in _positions(group, translator, last)]
    failed = sum(group.error is not None for group in groups)
    return writer.write(positions, last, check=check), failed


def last_records(translator: HeldTranslator) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets (source, target) of the last copied record by source partition; empty ones are absent.

    In a partition whose holes are filled, it may be the marker of a hole. A copy with an error is left out.
    """
    found = {}
    for key, item in translator.partitions.items():
        end, start = translator.ends[target_key(item)], translator.maps[key].target_start_offset or 0
        if end <= start or key in translator.failing:
            continue
        try:
            found[key] = (translator.maps[key].source_of(end - 1), end - 1)
        except OffsetMapInvalid as error:
            # A missing page of one map holds up no other partition; the group sync names it.
            log.warning("The last copied record of %s is not known: %s", partition_name(key), error)
    return found


def _positions(
    group: GroupSnapshot, translator: HeldTranslator, last: Mapping[TopicPartition, tuple[int, int]]
) -> Iterator[GroupPosition]:
    """Yield the positions of a group. One that the copy has not reached is the end of the copy, on both sides.

    A group that reads as fast as it is written to is always ahead of what copiers have confirmed.
    """
    if group.error is not None:
        return
    for item in translator.translate(group):
        place = (item.target_topic, item.partition)
        is_ahead = item.reason.startswith(AHEAD_OF_COPY)
        source_offset = translator.source_ends.get(place, -1) if is_ahead else item.source_offset
        if item.target_offset is None or source_offset < 0:
            continue
        end = last.get((item.topic, item.partition))
        has_place = item.translation in (Translation.EQUAL, Translation.EXACT)
        yield GroupPosition(
            group.group,
            item.topic,
            item.target_topic,
            item.partition,
            source_offset,
            item.target_offset,
            item.metadata,
            has_place and end is not None and source_offset <= end[0],
        )


def write_for_the_last_time(context: PhaseContext) -> list[str]:
    """Write the positions before a promotion, if the mirror writes any; return what is left for a person."""
    if not context.spec.mirror.state_topics.checkpoints:
        return []
    try:
        _, failed = write_once(context, open_writer(context))
    except HANDS_OFF:
        raise
    except Exception as error:
        # Whatever it is: nothing of it may hold up a promotion.
        log.warning("The last checkpoints were not written", exc_info=error)
        what = error.what if isinstance(error, MigrationError) else f"{type(error).__name__}: {error}"
        return [f"checkpoints: {what}; kafka-migration translate publish --once writes them"]
    return [f"checkpoints: {failed} groups could not be read"] if failed else []


# -- passes -----------------------------------------------------------------------------------------------------------


class _StatePasses(BackgroundPasses[PhaseContext]):
    """What both kinds of passes have in common: what they report.

    :param interval: time between two passes; None: no pass at all.
    """

    #: Of ``results/<result>.json``.
    result: ClassVar[str]
    #: What is written, for people.
    what: ClassVar[str]

    def __init__(self, context: PhaseContext, interval: timedelta | None) -> None:
        seconds = None if interval is None else interval.total_seconds()
        super().__init__(seconds, first_seconds=None if seconds is None else min(seconds, _FIRST_SECONDS))
        self._context = context
        #: the problem of the pass before; None: there was none in this process
        self._told: str | None = None
        self._stored_at = float("-inf")

    @abstractmethod
    def _forget(self) -> None:
        """Forget what this process knows of the topics: the next pass reads them again."""

    @abstractmethod
    def _written_at(self, problem: str) -> str:
        """Return the time up to which the target is known to have everything; empty: not known by this pass."""

    def _open(self) -> AbstractContextManager[PhaseContext]:
        return own_connections(self._context)

    def __enter__(self) -> Self:
        self._withdraw_if_off()
        return super().__enter__()

    def _withdraw_if_off(self) -> None:
        """Withdraw the report of a time in which this was on: it would look as if nothing arrived since."""
        if self._is_wanted() or self._context.spec.kind != "mirror":
            return
        try:
            former = last_report(self._context.record, self.result)
            if former is not None and (former.written_at or former.problem or former.never_since):
                withdrawn = former.model_copy(update={"written_at": "", "problem": "", "never_since": ""})
                self._context.record.put_result(self.result, withdrawn)
        except MigrationError as error:
            log.warning("The former state of the %s could not be withdrawn: %s", self.what, error)

    def once(self, memory: dict[str, Any]) -> None:
        """Run one pass in this thread if it is due, for a task that wakes up now and then.

        :param memory: remembers the last problem and the last pass.
        """
        self._withdraw_if_off()
        if not self._is_wanted():
            return
        assert self._interval_seconds is not None
        known = memory.get(self.result) or {}
        now = self._context.now()
        if known and timedelta(0) <= now - parse_iso(known["at"]) < timedelta(seconds=self._interval_seconds):
            return
        self._told = known.get("told")
        with self._open() as own:
            self._attempt(self._pass, own)
        memory[self.result] = {"at": iso(now), "told": self._told}

    def _tell(self, error: Exception) -> None:
        self._forget()
        if isinstance(error, TooLate):
            return
        if not isinstance(error, MigrationError):
            super()._tell(error)
        self._report(error.what if isinstance(error, MigrationError) else f"{type(error).__name__}: {error}")

    def _report(self, problem: str) -> None:
        """Report a problem, or that there is none, if that is new; store it now and then for people and metrics."""
        is_first, is_new = self._told is None, problem != (self._told or "")
        if is_new and problem:
            log.warning("%s; the next pass tries again: %s", self.failed_text, problem)
            self._context.progress(Progress(PHASE, f"{self.what}: {problem}"))
        self._told = problem
        if is_first or is_new or time.monotonic() - self._stored_at >= _REPORT_SECONDS:
            self._store(problem)

    def _store(self, problem: str) -> None:
        """Store the report. A failure is only logged: people only miss a line."""
        record = self._context.record
        self._stored_at = time.monotonic()
        try:
            at, written_at, never_since = iso(self._context.now()), self._written_at(problem), ""
            if not written_at:
                former = last_report(record, self.result)
                written_at = "" if former is None else former.written_at
                never_since = "" if written_at else (former.never_since if former is not None else "") or at
            found = StateTopicsReport(
                migration_id=record.migration_id,
                at=at,
                written_at=written_at,
                problem=problem,
                never_since=never_since,
            )
            record.put_result(self.result, found)
        except MigrationError as error:
            log.warning("The state of the %s could not be stored: %s", self.what, error)


class Checkpoints(_StatePasses):
    """Writes the positions of groups in a thread with its own connections until the ``with`` block ends."""

    thread_name = "mirror-maker-checkpoints"
    failed_text = "The checkpoints of MirrorMaker 2 are not written"
    ended_text = "The checkpoints of MirrorMaker 2 are no longer written"
    result = keys.MIRROR_MAKER_CHECKPOINTS
    what = "checkpoints"

    def __init__(self, context: PhaseContext) -> None:
        section = context.spec.mirror.state_topics
        is_on = context.spec.kind == "mirror" and section.checkpoints
        super().__init__(context, section.checkpoints_interval if is_on else None)
        self._writer: StateWriter | None = None
        self._kept = KeptMaps()

    def _forget(self) -> None:
        self._writer = None

    def _written_at(self, problem: str) -> str:
        return "" if problem else iso(self._context.now())

    def _pass(self, own: PhaseContext) -> None:
        if not is_mirroring(own):
            return
        if self._writer is None:
            self._writer = open_writer(own)
        _, failed = write_once(own, self._writer, self._stop.is_set, self._kept)
        self._report(f"{failed} groups could not be read on the source" if failed else "")


class HeartbeatPasses(_StatePasses):
    """Writes heartbeats in a thread with its own connections until the ``with`` block ends."""

    thread_name = "mirror-maker-heartbeats"
    failed_text = "The heartbeats of MirrorMaker 2 are not written"
    ended_text = "The heartbeats of MirrorMaker 2 are no longer written"
    result = keys.MIRROR_MAKER_HEARTBEATS
    what = "heartbeats"

    def __init__(self, context: PhaseContext) -> None:
        section = context.spec.mirror.state_topics
        is_on = context.spec.kind == "mirror" and section.heartbeats
        super().__init__(context, section.heartbeats_interval if is_on else None)
        self._heartbeats: Heartbeats | None = None
        self._checked_at = float("-inf")

    def _forget(self) -> None:
        """The writer itself looks at its topics again after an error."""

    def _written_at(self, _problem: str) -> str:
        found = None if self._heartbeats is None else self._heartbeats.replicated_ms
        try:
            return "" if found is None else iso(datetime.fromtimestamp(found / 1000, UTC))
        except (OverflowError, ValueError):
            return ""  # whoever writes to the topic may choose any 64 bits

    def _pass(self, own: PhaseContext) -> None:
        check = self._checks(own)
        check()
        if self._heartbeats is None:
            self._heartbeats = _open_heartbeats(own)
        self._heartbeats.beat(check)
        self._report("")

    def _checks(self, own: PhaseContext) -> Callable[[], None]:
        def check() -> None:
            if self._stop.is_set():
                raise TooLate
            if time.monotonic() - self._checked_at < _CHECK_SECONDS:
                return
            if not is_mirroring(own):
                raise TooLate
            self._checked_at = time.monotonic()

        return check


def _open_heartbeats(own: PhaseContext) -> Heartbeats:
    for cluster in (own.source, own.target):
        _be_impatient(cluster)
    spec = own.spec
    return Heartbeats(
        own.source,
        own.target,
        StateTopics.of(spec),
        spec.mirror.names(spec.topics.rename).remote_heartbeats,
        on_source=spec.mirror.state_topics.heartbeats_on_source,
        clock=lambda: own.now().timestamp(),
    )


def _be_impatient(cluster: Cluster) -> None:
    wire = cluster.wire
    wire.patience_seconds = wire.first_contact_seconds = _BEAT_PATIENCE_SECONDS


def last_report(record: MigrationRecord, result: str) -> StateTopicsReport | None:
    """Return what passes have last reported; None: none has run."""
    data = record.result(result)
    return None if data is None else StateTopicsReport.parse(data)


def last_reports(record: MigrationRecord) -> dict[str, StateTopicsReport]:
    """Return the last reports by what they are about, of what is switched on."""
    section = record.spec.mirror.state_topics
    wanted = {Checkpoints: section.checkpoints, HeartbeatPasses: section.heartbeats}
    found = {kind.what: last_report(record, kind.result) for kind, is_on in wanted.items() if is_on}
    return {what: report for what, report in found.items() if report is not None}
