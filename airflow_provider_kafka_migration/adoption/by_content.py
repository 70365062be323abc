"""Finds where the copy of another tool ends, by partition, from what that tool recorded and from both logs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.adoption.alignment import Alignment, NeedsOlder, OffsetSync, Refusal, Rules, align
from airflow_provider_kafka_migration.adoption.contents import Contents, read_contents
from airflow_provider_kafka_migration.adoption.last_records import LogEnd, read_log_ends
from airflow_provider_kafka_migration.adoption.map_below import below_map
from airflow_provider_kafka_migration.adoption.open_transactions import read_holders
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.documents.adoption import AdoptedStart, EarlierFindings
from airflow_provider_kafka_migration.errors import MigrationError, OutsideOfLog
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.spec import AdoptSection

PHASE = "plan"

#: Each further window of a log is larger by this factor.
_WINDOW_GROWTH = 4


@dataclass(frozen=True)
class Recorded:
    """What a tool recorded of one partition.

    :param committed: last source offset that it has committed as copied; -1: none; None: the tool records no position.
    :param syncs: ascending by target offset.
    """

    committed: int | None = -1
    syncs: tuple[OffsetSync, ...] = ()


@dataclass(frozen=True)
class Topics:
    """What matters of the configs of a topic on both sides."""

    source_cleaned: bool
    target_cleaned: bool
    #: the target's timestamps are its own, so they cannot be compared
    has_append_times: bool


def find_by_content(
    context: PhaseContext,
    candidates: Mapping[TopicPartition, Candidate],
    recorded: Mapping[TopicPartition, Recorded],
    *,
    copies_aborted: bool | None,
    unrecorded: Recorded | None = None,
) -> FoundStarts:
    """Find the starts of partitions that another tool has copied, and has stopped copying.

    :param recorded: by (source topic, partition).
    :param copies_aborted: whether the tool read with read_uncommitted; None: unknown, both are tried.
    :param unrecorded: what holds for other partitions; by default, that nothing was committed.
    :raises Transient: a cluster does not answer.
    """
    adopt = context.spec.adopt
    assert adopt is not None
    found = FoundStarts()
    ends = _ends_that_stand_still(context, candidates, adopt, found)
    topics = read_topics(context, {candidates[key] for key in ends})
    floors = _floors(context, adopt, ends)
    for number, (key, (source_end, target_end)) in enumerate(sorted(ends.items()), 1):
        candidate = candidates[key]
        context.progress(Progress(PHASE, f"adoption: {key[0]}-{key[1]} ({number} of {len(ends)}): comparing both logs"))
        partition = _Partition(
            context=context,
            candidate=candidate,
            adopt=adopt,
            recorded=recorded.get(key, unrecorded or Recorded()),
            source_end=source_end,
            target_end=target_end,
            topics=topics[candidate.topic],
            down_to=floors.get(key),
        )
        try:
            partition.find(found, copies_aborted)
        except OutsideOfLog as error:
            found.refused[key] = f"{error.what}: the log was shortened while it was read; plan again"
    return found


def _ends_that_stand_still(
    context: PhaseContext, candidates: Mapping[TopicPartition, Candidate], adopt: AdoptSection, found: FoundStarts
) -> dict[TopicPartition, tuple[LogEnd, LogEnd]]:
    """Return (source end, target end) of the partitions to which nobody writes on the target; refuse the others."""
    keys = {key: item.target_key for key, item in candidates.items()}
    before = read_log_ends(context.target.wire, keys.values())
    if candidates:
        time.sleep(adopt.stable_window.total_seconds())
    after = read_log_ends(context.target.wire, keys.values())
    sources = read_log_ends(context.source.wire, keys)
    ends: dict[TopicPartition, tuple[LogEnd, LogEnd]] = {}
    held: dict[TopicPartition, str] = {}
    for key, target_key in sorted(keys.items()):
        source, first, second = sources[key], before[target_key], after[target_key]
        for side, item in (("source", source), ("target", first), ("target", second)):
            if isinstance(item, MigrationError):
                found.refused[key] = f"the {side}'s log cannot be read: {item.what}"
        if (
            isinstance(source, MigrationError)
            or isinstance(first, MigrationError)
            or isinstance(second, MigrationError)
        ):
            continue
        if first.log_end_offset != second.log_end_offset:
            found.refused[key] = (
                f"the target's log end moved from {first.log_end_offset} to {second.log_end_offset} within "
                f"{adopt.stable_window.total_seconds():g} s: the copier still runs, or others write there. Stop it, "
                "see that nothing starts it again, and plan again"
            )
            continue
        why = second.why_not_at(second.log_end_offset)
        if why:
            held[key] = why
            continue
        ends[key] = (source, second)
    holders = read_holders(context.target, (keys[key] for key in held))
    for key, why in held.items():
        who = holders.get(keys[key], "")
        found.refused[key] = f"{why}{who}; wait until it has ended, or abort it, and plan again"
    return ends


def read_topics(context: PhaseContext, candidates: Iterable[Candidate]) -> dict[str, Topics]:
    """Return what matters of the topics' configs, by source topic.

    :raises PermissionMissing: configs may not be read.
    """
    names = {item.topic: item.target_topic for item in candidates}
    sources = context.source.admin.topic_configs(sorted(names))
    targets = context.target.admin.topic_configs(sorted(set(names.values())))
    found = {}
    for source, target in names.items():
        here, there = _readable(context, sources[source], "source"), _readable(context, targets[target], "target")
        found[source] = Topics(
            source_cleaned="compact" in here.get("cleanup.policy"),
            target_cleaned="compact" in there.get("cleanup.policy"),
            has_append_times=there.get("message.timestamp.type") == "LogAppendTime",
        )
    return found


def _readable(context: PhaseContext, configs: Configs, side: str) -> Configs:
    if configs.error is not None:
        raise configs.error.exception(
            f"configs of a {side} topic cannot be read",
            context.where(PHASE, cluster=side, topic=configs.name),
            operation="DescribeConfigs on Topic",
        )
    return configs


def _floors(context: PhaseContext, adopt: AdoptSection, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the lowest committed offset of the selected groups by partition: so far down an exact map is wanted.

    A group that cannot be read is left out: where the map does not reach down to it, its position is refused by name.
    """
    if adopt.map_below != "exact":
        return {}
    wanted = set(keys)
    admin = context.source.admin
    names = [name for name in sorted(admin.list_groups()) if context.spec.groups.selects(name)]
    floors: dict[TopicPartition, int] = {}
    for answer in admin.groups_offsets(names, require_stable=False).values() if names else ():
        if answer.error is not None:
            continue
        for key, committed in answer.offsets.items():
            if key in wanted and committed.offset >= 0:
                floors[key] = min(floors.get(key, committed.offset), committed.offset)
    return floors


@dataclass
class _Window:
    """The newest records of one log, as far down as they were read."""

    wire: Wire
    key: TopicPartition
    end: LogEnd
    until_offset: int
    from_offset: int
    with_aborted: bool
    with_times: bool
    contents: Contents = field(default_factory=Contents)

    def __post_init__(self) -> None:
        self.from_offset = max(self.from_offset, self.end.log_start_offset)
        self.contents = self._read(self.from_offset, self.until_offset)

    @property
    def is_whole(self) -> bool:
        return self.from_offset <= self.end.log_start_offset

    def grow(self) -> None:
        """Read older records, too."""
        size = max(self.until_offset - self.from_offset, 1) * (_WINDOW_GROWTH - 1)
        first = max(self.from_offset - size, self.end.log_start_offset)
        self.contents = self._read(first, self.from_offset).followed_by(self.contents)
        self.from_offset = first

    def _read(self, start_offset: int, stop_offset: int) -> Contents:
        return read_contents(
            self.wire,
            self.key,
            start_offset,
            stop_offset,
            with_aborted=self.with_aborted,
            with_times=self.with_times,
        )


@dataclass
class _Partition:
    """One partition whose boundary is looked for."""

    context: PhaseContext
    candidate: Candidate
    adopt: AdoptSection
    recorded: Recorded
    source_end: LogEnd
    target_end: LogEnd
    topics: Topics
    #: lowest committed offset of a group
    down_to: int | None

    def find(self, found: FoundStarts, copies_aborted: bool | None) -> None:
        """Add the start of the partition, or why it has none."""
        key = self.candidate.key
        if self.target_end.log_end_offset == 0 and self.recorded.committed in (None, -1):
            return  # nothing is there: an ordinary copy
        outcome = self._align(bool(copies_aborted) or copies_aborted is None)
        if copies_aborted is None and (isinstance(outcome, Refusal) or outcome.missing):
            other = self._align(False)
            outcome = outcome if isinstance(other, Refusal) else other
        if isinstance(outcome, Refusal):
            found.refused[key] = outcome.reason
            return
        if outcome.source_offset > self.source_end.log_end_offset:
            found.refused[key] = (
                f"the source's log ends at {self.source_end.log_end_offset}, below the position "
                f"{outcome.source_offset}: it was truncated, or the topic was created again"
            )
            return
        why = self._why_refused(outcome)
        if why:
            found.refused[key] = why
            return
        self._add(found, outcome)

    def _align(self, with_aborted: bool) -> Alignment | Refusal:
        source, target = self._windows(with_aborted)
        while not len(target.contents) and not target.is_whole:
            target.grow()
        if not len(target.contents):
            return self._align_empty(source)
        while True:
            outcome = align(source.contents, target.contents, self._rules(source, target))
            if not isinstance(outcome, NeedsOlder):
                return outcome
            if outcome.source:
                source.grow()
            if outcome.target:
                target.grow()

    def _windows(self, with_aborted: bool) -> tuple[_Window, _Window]:
        committed, least = self.recorded.committed, self.adopt.min_records
        with_times = not self.topics.has_append_times
        source = _Window(
            self.context.source.wire,
            self.candidate.key,
            self.source_end,
            self.source_end.last_stable_offset,
            0 if committed is None else min(committed + 1, self.source_end.last_stable_offset) - 2 * least,
            with_aborted,
            with_times,
        )
        end = self.target_end.log_end_offset
        target = _Window(
            self.context.target.wire,
            self.candidate.target_key,
            self.target_end,
            end,
            end - 4 * least,
            False,
            with_times,
        )
        return source, target

    def _rules(self, source: _Window, target: _Window) -> Rules:
        return Rules(
            committed=self.recorded.committed,
            syncs=self.recorded.syncs,
            min_records=self.adopt.min_records,
            down_to=self.down_to,
            everything=self.adopt.compare == "all",
            source_whole=source.is_whole,
            target_whole=target.is_whole,
            source_start_offset=self.source_end.log_start_offset,
            target_start_offset=self.target_end.log_start_offset,
            source_cleaned=self.topics.source_cleaned,
            target_cleaned=self.topics.target_cleaned,
        )

    def _align_empty(self, source: _Window) -> Alignment | Refusal:
        """Adopt an empty target log only if it never had a record, or if the source has none that it could lack."""
        committed = -1 if self.recorded.committed is None else self.recorded.committed
        if committed < 0 and self._never_had_records():
            return Alignment(
                self.source_end.log_start_offset,
                "content",
                0,
                whole=True,
                note="the target has aborted transactions only: nothing was copied",
            )
        beyond = source.contents.index_of(committed + 1)
        if committed < 0 or beyond < len(source.contents):
            return Refusal(
                f"the target has no records to compare (its log is {self.target_end.log_start_offset} to "
                f"{self.target_end.log_end_offset}), and the source has records above the committed position "
                f"{committed}: nothing shows which of them were copied"
            )
        doubt = ""
        if self._never_had_records() and (beyond > 0 or not source.is_whole):
            doubt = (
                f"the copier committed source offset {committed}, but the target never had a record (its log is 0 to "
                f"{self.target_end.log_end_offset}): its topic was created again since, and what the source has up to "
                "there is not on it"
            )
        return Alignment(
            max(committed + 1, self.source_end.log_start_offset),
            "offset_sync",
            0,
            doubt=doubt,
            note="the target has no records any more, and the source none above the committed position",
        )

    def _never_had_records(self) -> bool:
        """Whether an empty target log shows that nothing was ever committed there: nothing of it was deleted."""
        return self.target_end.log_start_offset == 0 and not self.topics.target_cleaned

    def _why_refused(self, outcome: Alignment) -> str:
        """Return why the policy for duplicates and other flaws does not allow the partition."""
        if self.adopt.on_duplicates == "note":
            return ""
        if outcome.doubt:
            return f"{outcome.doubt} (adopt.on_duplicates: {self.adopt.on_duplicates}). To take it over anyway: note"
        flaws = {
            "written twice or more": outcome.duplicates,
            "missing": outcome.missing,
            "of aborted transactions": outcome.aborted,
        }
        named = [f"{count} records {text}" for text, count in flaws.items() if count]
        if not named:
            return self._why_not_compared(outcome)
        what = f"the target has flaws below source offset {outcome.source_offset}: {', '.join(named)}"
        return (
            f"{what} (adopt.on_duplicates: stop). To take it over as it is: note. To copy it from its start: give the "
            f"topic {self.candidate.topic} a new name in topics.rename.topics, and plan again"
        )

    def _why_not_compared(self, outcome: Alignment) -> str:
        """Return that records may be there twice where nobody has compared; empty if the target has had no more."""
        extra = self._extra(outcome)
        if not extra:
            return ""
        return (
            f"{self._has_more(outcome, extra)} (adopt.on_duplicates: {self.adopt.on_duplicates}). adopt.compare: all "
            "counts them; to take it over as it is, set adopt.on_duplicates: note"
        )

    def _extra(self, outcome: Alignment) -> int:
        """Return how many more offsets the target has used than the source below the boundary, if not all was compared.

        A copy of each record once needs no more of them, whatever was deleted on either side since.
        """
        return 0 if outcome.whole else max(self.target_end.log_end_offset - outcome.source_offset, 0)

    def _has_more(self, outcome: Alignment, extra: int) -> str:
        return (
            f"only the newest records were compared, and the target has used {extra} more offsets than the source "
            f"below source offset {outcome.source_offset}: records are on it twice, others have written, or the copier "
            "wrote in transactions"
        )

    def _add(self, found: FoundStarts, outcome: Alignment) -> None:
        key, candidate, end = self.candidate.key, self.candidate, self.target_end.log_end_offset
        below = below_map(self.context.migration_id, candidate, outcome, end, self.adopt.map_below, self.recorded.syncs)
        if below is not None:
            found.below[key] = below
        found.starts[key] = AdoptedStart(
            source_offset=outcome.source_offset,
            target_offset=end,
            source_topic_id=candidate.source_topic_id,
            target_topic_id=candidate.target_topic_id,
            proof=outcome.proof,
            compared_records=outcome.compared_records,
            earlier=EarlierFindings(
                duplicates=_known(outcome.duplicates, whole=outcome.whole),
                aborted_records=_known(outcome.aborted, whole=outcome.whole),
                missing=_known(outcome.missing, whole=outcome.whole),
            ),
            below_digest="" if below is None else below.digest(),
            note=self._note(outcome),
        )

    def _note(self, outcome: Alignment) -> str:
        committed = self.recorded.committed
        beyond = outcome.source_offset - 1 - (-1 if committed is None else committed)
        notes = [text for text in (outcome.note, outcome.doubt) if text]
        extra = self._extra(outcome)
        if extra and not (outcome.duplicates or outcome.aborted):
            notes.append(self._has_more(outcome, extra))
        if committed is not None and beyond > 0:
            notes.append(f"the copier committed source offset {committed}, {beyond} below its last record")
        if not outcome.whole:
            notes.append(self._not_known(outcome))
        return "; ".join(notes)

    def _not_known(self, outcome: Alignment) -> str:
        """Return what was not compared. Holes of the source hide records that are twice, and are taken for missing."""
        count, fewer = outcome.compared_records, outcome.source_offset - self.target_end.log_end_offset
        compared = f"only the newest {count} records were compared" if count else "no records were compared"
        used = (
            f", and below the boundary the source has used {fewer} more offsets than the target (markers, compaction, "
            "or records that the target lacks)"
            if fewer > 0
            else ""
        )
        return f"{compared}{used}; whether older ones are twice or missing is not known (adopt.compare: all)"


def _known(count: int, *, whole: bool) -> int:
    """A count; -1 where only a part was compared and had none."""
    return count if whole or count else -1
