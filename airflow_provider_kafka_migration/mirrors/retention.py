"""What a mirror's target deletes while it is mirrored (``mirror.target_retention``).

Once a topic is copied, its own settings about compaction and segments are in force. By default (``source``) the mirror
then moves the log starts of the target to where those of the source are: the target has what the source has, whatever
clocks, timestamps and markers would make of retention. The last data batch of a partition always stays, because a
copier finds there where it was. Topics with content that the mirror has taken over and never wrote (``adopt``) delete
by their own retention instead: that content may exist nowhere else. With ``own``, the brokers delete by the retention
of the target's topics.

Each pass compares the target with what is wanted, so a process may die anywhere. Topics are journaled, with their ids,
before their settings change: a topic that is created again to be copied again begins with the copy-time settings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_provider_kafka_migration.copy.resuming.log_tail import last_batches
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.mirror import RetentionProblems
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.target import CopySettings
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.kafka.logs import LogEnds, by_leader, read_ends
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.background import BackgroundPasses, own_connections
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions, load_maps
from airflow_provider_kafka_migration.record.partition_names import partition_name, target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings

log = logging.getLogger(__name__)

PHASE = "mirror"
#: How long a pass waits for topics that are nearly copied; the next pass looks again.
_CATCH_UP_SECONDS = 5.0
_POLL_SECONDS = 0.2
_MAX_STORED = 20
#: Until the first pass: the copiers get a head start, and a mirror that ends within this time makes no pass.
_FIRST_SECONDS = 2.0


@dataclass
class Pass:
    """What one pass has done.

    :param begun: target topics that delete and compact from now on.
    :param changed: target topics whose configs were changed.
    :param moved: new log start by target partition.
    :param problems: what could not be done, by source partition (``orders-1``), or by step if it concerns more.
    """

    begun: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: dict[TopicPartition, int] = field(default_factory=dict)
    problems: dict[str, MigrationError] = field(default_factory=dict)

    def __str__(self) -> str:
        """The outcome, for people; empty if nothing was done."""
        parts = [f"{len(self.begun)} topics delete and compact from now on"] if self.begun else []
        parts += [f"settings of {len(self.changed)} topics changed"] if self.changed else []
        parts += [f"log starts of {len(self.moved)} partitions moved"] if self.moved else []
        return ", ".join(parts)

    @property
    def problem(self) -> str:
        """The first problem, and how many there are, for people; empty if there is none."""
        if not self.problems:
            return ""
        first, more = next(iter(sorted(self.problems))), len(self.problems) - 1
        return f"{first}: {self.problems[first].what}" + (f" (and {more} more)" if more else "")

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note the error of a part of the pass, and go on behind it; a lost claim ends the pass."""
        try:
            yield
        except HANDS_OFF:
            raise
        except MigrationError as error:
            self.problems[what] = error


def retain_once(
    context: PhaseContext,
    capped: dict[TopicPartition, tuple[int, int]] | None = None,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Pass:
    """Run one pass. A partition or topic with a problem does not keep the others from being done.

    :param capped: what passes remember: (wanted log start, high watermark) of partitions whose last batch was in the
        way, so that it is not searched for again in each pass.
    :param is_stopped: whether the pass is to end before its next change.
    :raises ClaimLost: another process has the mirror.
    :raises MigrationError: a cluster does not answer or refuses; the next pass tries again.
    """
    record, found = context.record, Pass()
    settings = record.copy_settings()
    if not _may_go_on(context, is_stopped) or settings is None:
        return found
    partitions = _partitions(context, settings)
    known = copy_settings.mirrored_topics(record)
    if context.spec.mirror.target_retention == "keep":
        partitions = {key: item for key, item in partitions.items() if item.target_topic in known}
    else:
        found.begun = _begin(context, partitions, known, is_stopped)
    names = {item.target_topic for item in partitions.values()} & (known.keys() | set(found.begun))
    if names:
        with found.noting("topic settings"):
            wanted = copy_settings.in_force(record, context.target, settings, names)
            # A request under way when another process promotes may still set configs of the copy; nobody deletes by
            # them.
            if not _may_go_on(context, is_stopped):
                return found
            found.changed = copy_settings.apply_configs(record, context.target, wanted)
    if context.spec.mirror.target_retention == "source":
        may_delete = {name for name in names if "delete" in settings.topics[name].final.get("cleanup.policy", "delete")}
        may_delete -= {item.target_topic for item in partitions.values() if item.adopted}
        own = {key: item for key, item in partitions.items() if item.target_topic in may_delete}
        moves = _log_starts_to_move(context, own, {} if capped is None else capped, found.problems)
        # A request under way when another process promotes may still delete: only what the copy wrote, see _confirmed.
        if moves and _may_go_on(context, is_stopped):
            with found.noting("log starts"):
                context.target.wire.delete_records(moves)
                found.moved = moves
    return found


def _may_go_on(context: PhaseContext, is_stopped: Callable[[], bool]) -> bool:
    """Read the journal and return whether the target is still the mirror's. Call this directly before each change.

    :raises ClaimLost: another process has the mirror.
    """
    journal = context.journal
    journal.check_holds()
    is_mirrored = journal.tip_state is State.TAIL and journal.find_step(steps.PROMOTED) is None
    return is_mirrored and not is_stopped()


def _partitions(context: PhaseContext, settings: CopySettings) -> dict[TopicPartition, CopyPartition]:
    """Return the partitions of topics that are the mirror's alone: where others write, nothing is changed."""
    job = context.record.job("tail")
    found = [] if job is None else [item for item in job.partitions if item.target_topic in settings.topics]
    shared = {item.target_topic for item in found if item.verdict is Verdict.TRANSACTIONAL}
    return {item.key: item for item in found if item.target_topic not in shared}


def _begin(
    context: PhaseContext,
    partitions: Mapping[TopicPartition, CopyPartition],
    known: Mapping[str, str],
    is_stopped: Callable[[], bool],
) -> list[str]:
    """Journal the topics that have been copied up to what the source had a moment ago, and return their names."""
    names = sorted({item.target_topic for item in partitions.values()})
    facts = context.target.admin.describe_topics(names) if names else {}
    ids = {name: item.topic_id for name, item in facts.items() if item.error is None}
    new = {name for name in ids if name not in known or known[name] != ids[name]}
    behind = _behind(context, {key: item for key, item in partitions.items() if item.target_topic in new})
    begun = {name: ids[name] for name in sorted(new - {partitions[key].target_topic for key in behind})}
    if begun and not _may_go_on(context, is_stopped):
        return []
    if begun:
        policy = context.spec.mirror.target_retention
        context.journal.step(
            steps.TARGET_RETENTION,
            details={"topics": begun, "retention": policy},
            reason=f"{len(begun)} target topics delete and compact from now on (mirror.target_retention: {policy})",
        )
    return sorted(begun)


def _behind(context: PhaseContext, partitions: Mapping[TopicPartition, CopyPartition]) -> set[TopicPartition]:
    """Return the partitions that do not have yet what the source had when this was called, or cannot be asked for."""
    wanted = _with_leaders(context.source.wire, partitions)
    places = _with_leaders(context.target.wire, [target_key(partitions[key]) for key in wanted])
    left = {key for key in wanted if target_key(partitions[key]) in places}
    lost = partitions.keys() - left
    if not left:
        return lost
    ends = context.source.wire.list_offsets(sorted(left), "stable")
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while True:
        there = context.target.wire.list_offsets([target_key(partitions[key]) for key in sorted(left)], "log_end")
        positions = SourcePositions.load(context.record, context.target)
        left = {key for key in left if positions.of(partitions[key], there[target_key(partitions[key])]) < ends[key]}
        if not left or time.monotonic() >= deadline:
            return left | lost
        time.sleep(_POLL_SECONDS)


def _with_leaders(wire: Wire, keys: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions that have a leader."""
    problems: dict[TopicPartition, MigrationError] = {}
    return {key for group in by_leader(wire, keys, problems).values() for key in group}


def _log_starts_to_move(
    context: PhaseContext,
    partitions: Mapping[TopicPartition, CopyPartition],
    capped: dict[TopicPartition, tuple[int, int]],
    problems: dict[str, MigrationError],
) -> dict[TopicPartition, int]:
    """Return the log starts that the target is to get, because the source has deleted what is below them.

    :param problems: gets the partitions that cannot be asked for.
    """
    confirmed = _confirmed(context)
    partitions = {key: item for key, item in partitions.items() if key in confirmed}
    if not partitions:
        return {}
    target = context.target.wire
    due = {
        key: ends
        for key, ends in _ends(context, partitions, problems).items()
        if ends.source.log_start_offset > partitions[key].source_start_offset
        and ends.target.log_start_offset < ends.target.high_watermark
    }
    same = _of_same_topics(context, {key: partitions[key] for key in due})
    maps = load_maps(context.record, context.target, same) if same else {}
    wanted: dict[TopicPartition, tuple[int, LogEnds]] = {}
    for key, item in same.items():
        place, ends, start = target_key(item), due[key].target, maps[key].translate(due[key].source.log_start_offset)
        offset = min(start.target_offset or 0, confirmed[key])
        if offset > ends.log_start_offset and capped.get(place) != (offset, ends.high_watermark):
            wanted[place] = offset, ends
    last = last_batches(
        target, {place: (ends.log_start_offset, ends.high_watermark) for place, (_, ends) in wanted.items()}
    )
    moved: dict[TopicPartition, int] = {}
    for place, (offset, ends) in wanted.items():
        batch = last[place]
        if not isinstance(batch, RawBatch):
            continue  # it cannot be read now, or nothing but markers is there: a copier needs none of them deleted
        if batch.base_offset < offset:
            capped[place] = (offset, ends.high_watermark)
        if min(offset, batch.base_offset) > ends.log_start_offset:
            moved[place] = min(offset, batch.base_offset)
    return moved


class _Ends(NamedTuple):
    """Both logs of one partition."""

    source: LogEnds
    target: LogEnds


def _ends(
    context: PhaseContext, partitions: Mapping[TopicPartition, CopyPartition], problems: dict[str, MigrationError]
) -> dict[TopicPartition, _Ends]:
    """Read both logs of each partition; those that cannot be read go to ``problems``."""
    here = read_ends(context.source.wire, partitions)
    there = read_ends(context.target.wire, [target_key(item) for item in partitions.values()])
    found: dict[TopicPartition, _Ends] = {}
    for key in sorted(partitions):
        source, target = here[key], there[target_key(partitions[key])]
        if isinstance(source, LogEnds) and isinstance(target, LogEnds):
            found[key] = _Ends(source, target)
        else:
            error = target if isinstance(source, LogEnds) else source
            assert isinstance(error, MigrationError)
            problems[partition_name(key)] = error
    return found


def _of_same_topics(
    context: PhaseContext, partitions: Mapping[TopicPartition, CopyPartition]
) -> dict[TopicPartition, CopyPartition]:
    """Return the partitions whose topics are those that were copied: the log start of a new topic is another matter.

    Called after the log starts were read: a topic that is created again in between has another id here. Topics without
    ids (before Kafka 2.8) count as the same.
    """
    if not partitions:
        return {}
    begun = copy_settings.mirrored_topics(context.record)
    here = context.source.admin.describe_topics(sorted({item.topic for item in partitions.values()}))
    there = context.target.admin.describe_topics(sorted({item.target_topic for item in partitions.values()}))

    def is_same(facts: TopicFacts, known: str) -> bool:
        return facts.error is None and (not known or facts.topic_id == known)

    return {
        key: item
        for key, item in partitions.items()
        if is_same(here[item.topic], item.topic_id) and is_same(there[item.target_topic], begun[item.target_topic])
    }


def _confirmed(context: PhaseContext) -> dict[TopicPartition, int]:
    """Return the target offset below which all is the copy's own, by source partition; those not known are left out.

    It is the log end that the present driver's copiers have confirmed. Records of others, of clients after a promotion,
    too, lie at or above it. So no deletion that is capped by it can reach them, however late it arrives.
    """
    job, progress = context.record.job("tail"), context.record.job_progress("tail")
    if job is None or progress.get("generation") != job.generation:
        return {}
    return {
        (str(row["topic"]), int(row["partition"])): int(row["target_offset"])
        for row in progress["partitions"]
        # Before the first slice of a driver the target offset is that of an earlier driver, perhaps of another topic.
        if not row["failed"] and row["source_offset"] >= 0 and row["target_offset"] >= 0
    }


class TargetRetention(BackgroundPasses[PhaseContext]):
    """Runs passes in a thread with its own connections until the ``with`` block ends."""

    thread_name = "target-retention"
    failed_text = "The target keeps what the source has deleted"
    ended_text = "Nothing is deleted on the target any more"

    def __init__(self, context: PhaseContext) -> None:
        seconds = context.spec.topology.refresh_interval.total_seconds()
        super().__init__(seconds, first_seconds=min(seconds, _FIRST_SECONDS))
        self._context = context
        self._capped: dict[TopicPartition, tuple[int, int]] = {}
        #: the problem of the pass before; None: there was none in this process
        self._told: str | None = None

    def once(self, memory: dict[str, Any]) -> None:
        """Run one pass in this thread, for a task that wakes up now and then.

        :param memory: remembers the last problem, so that it is reported a single time.
        """
        self._told = memory.get("retention")
        self._attempt(self._pass, self._context)
        memory["retention"] = self._told

    def _open(self) -> AbstractContextManager[PhaseContext]:
        return own_connections(self._context)

    def _pass(self, own: PhaseContext) -> None:
        done = retain_once(own, self._capped, is_stopped=self._stop.is_set)
        if done.begun or done.changed:
            own.progress(Progress(PHASE, f"retention on the target: {done}"))
        self._report(done)

    def _tell(self, error: Exception) -> None:
        if not isinstance(error, MigrationError):
            super()._tell(error)
            error = MigrationError(f"{type(error).__name__}: {error}")
        self._report(Pass(problems={"the whole pass": error}))

    def _report(self, done: Pass) -> None:
        """Report and store the problem of a pass, if it is another one than that of the pass before."""
        if done.problem == self._told:
            return
        if done.problem:
            log.warning("%s; the next pass tries again: %s", self.failed_text, done.problem)
            self._context.progress(Progress(PHASE, f"retention on the target: {done.problem}"))
        _store(self._context, done.problems)
        self._told = done.problem


def _store(context: PhaseContext, problems: Mapping[str, MigrationError]) -> None:
    """Store the problems for ``mirror status``. A failure is only logged: people only miss a line."""
    record = context.record
    try:
        if not problems and last_problems(record) is None:
            return
        first = {name: problems[name].what for name in sorted(problems)[:_MAX_STORED]}
        found = RetentionProblems(
            migration_id=record.migration_id, at=iso(context.now()), count=len(problems), problems=first
        )
        record.put_result(keys.TARGET_RETENTION, found)
    except MigrationError as error:
        log.warning("The problems of the target's retention could not be stored: %s", error)


def last_problems(record: MigrationRecord) -> RetentionProblems | None:
    """Return what the last pass could not do, for people; None: it has done everything."""
    data = record.result(keys.TARGET_RETENTION)
    found = None if data is None else RetentionProblems.parse(data)
    return found if found is not None and found.count else None
