"""Compares the contents of both sides of a mirror, record by record: while it runs, paused, promoted or ended.

It reads only, needs no claim, and so runs beside the mirror. A partition is compared from above both log starts up to
where copiers have confirmed that it is copied, or up to the end of a finished copy. Both sides may delete and compact
meanwhile; what is gone is named and never counted as equal.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.compare.mirrored import (
    MirrorSettings,
    compare_mirrored,
    why_not_compared,
)
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.mirror import (
    MirroredRange,
    MirrorVerification,
    Verified,
    VerifiedPartition,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules, is_compacted
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    Interrupted,
    MigrationError,
    NotInMigration,
    OffsetMapInvalid,
    PermissionMissing,
    Where,
)
from airflow_provider_kafka_migration.groups.sync import confirmed_positions
from airflow_provider_kafka_migration.jobs.copy_jobs import provenance_settings
from airflow_provider_kafka_migration.kafka.logs import LogEnds, read_ends
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, TransactionalMap
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.offset_maps import closed_maps, load_maps
from airflow_provider_kafka_migration.record.partition_names import target_key
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import MIRROR, mirror_name

log = logging.getLogger(__name__)

PHASE = "verify"
#: How long an open transaction on the target is waited for: those of the copiers themselves end soon.
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.5
_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Scope:
    """What is compared.

    :param topics: regular expressions for whole topic names, on either side; empty: all.
    :param last: only the last offsets of each partition; None: all that both sides still have.
    """

    topics: tuple[str, ...] = ()
    last: int | None = None

    def selects(self, item: CopyPartition) -> bool:
        """Whether a partition is wanted."""
        names = (item.topic, item.target_topic)
        return not self.topics or any(re.fullmatch(pattern, name) for pattern in self.topics for name in names)


@dataclass
class _Piece:
    """One partition: what is to be compared, or why it is not.

    :param end_offset: exclusive source offset up to which it is copied.
    :param map: open or closed; None as long as the outcome is known without it.
    :param below: what of the copy is no longer on both sides, for people.
    :param held_back: why less is compared than was copied.
    :param lacking: what the target must have and does not have any more.
    :param notes: what else a person should know.
    """

    item: CopyPartition
    end_offset: int = -1
    map: PartitionMap | None = None
    range: ContentRange | None = None
    below: str = ""
    held_back: str = ""
    lacking: str = ""
    notes: list[str] = field(default_factory=list)
    found: VerifiedPartition | None = None

    def ends(self, outcome: Verified, reason: str) -> None:
        """Note an outcome without a comparison."""
        self.found = VerifiedPartition(
            topic=self.item.topic,
            target_topic=self.item.target_topic,
            partition=self.item.partition,
            outcome=outcome,
            reason=reason,
            notes=self.notes,
        )


@dataclass(frozen=True)
class _Rules:
    """What each side may do to the records of a topic."""

    source: TopicRules
    target: TopicRules


def verify(
    context: PhaseContext, scope: Scope, *, threads: int = 4, stop: Callable[[], bool] = lambda: False
) -> MirrorVerification:
    """Compare, store the result as ``results/verification.json``, and return it.

    What prevents the comparison of a partition is in the result.

    :param context: a context that only reads.
    :param stop: called before each batch; True ends the comparison with :class:`Interrupted`.
    :raises NotInMigration: the scope selects nothing.
    :raises OffsetMapInvalid: the mirror has ended without a finished offset map.
    :raises Interrupted: a stop was requested.
    :raises MigrationError: the mirror's journal or documents cannot be read.
    """
    record = context.record
    started_at, state = iso(context.now()), record.journal.working_state
    pieces = _copied(record, context.target, scope)
    settings = mirror_settings(record)
    unfollowed: list[VerifiedPartition] = []
    try:
        unfollowed = _unfollowed(context, pieces)
        _place(context, pieces, scope)
        rules = _rules(context, [piece for piece in pieces if piece.range is not None])
    except Interrupted:
        raise
    except MigrationError as error:
        rules = {}
        for piece in pieces:
            if piece.found is None:
                piece.ends("unchecked", error.what)
    _compare_all(context, pieces, rules, settings, threads, stop)
    result = MirrorVerification(
        migration_id=record.migration_id,
        state=mirror_name(state) if state is not None else "",
        topics=list(scope.topics),
        last=scope.last,
        started_at=started_at,
        finished_at=iso(context.now()),
        partitions=ascending([*unfollowed, *(piece.found for piece in pieces if piece.found is not None)]),
    )
    try:
        record.put_result(keys.VERIFICATION, result)
    except MigrationError as error:
        log.warning("The result of the comparison could not be stored: %s", error)
    return result


def ascending(found: Sequence[VerifiedPartition]) -> list[VerifiedPartition]:
    """Return the partitions in the order in which a result has them."""
    return sorted(found, key=lambda item: (item.topic, item.partition))


def mirror_settings(record: MigrationRecord) -> MirrorSettings:
    """Return how the records are compared.

    :raises DocumentUnreadable: the schema plan is missing, or is not the one that the plan was made with.
    """
    return MirrorSettings(
        timestamps=record.spec.offsets.timestamps,
        ids=schema_id_settings(record),
        provenance=provenance_settings(record.spec, record.plan()),
    )


def last_verification(record: MigrationRecord) -> MirrorVerification | None:
    """Return the result of the last comparison; None: there was none."""
    data = record.result(keys.VERIFICATION)
    return None if data is None else MirrorVerification.parse(data)


# -- how far it is copied ---------------------------------------------------------------------------------------------


def _copied(record: MigrationRecord, target: Cluster, scope: Scope) -> list[_Piece]:
    """Return the selected partitions with their maps and the ends of their copies, ascending.

    :raises NotInMigration: the scope selects nothing.
    """
    partitions = {key: item for key, item in record.partitions().items() if scope.selects(item)}
    if not partitions:
        raise NotInMigration(
            "nothing is mirrored that matches" if scope.topics else "nothing is mirrored yet",
            where=Where(migration_id=record.migration_id, topic=" ".join(scope.topics) or None),
            next_step="see kafka-migration mirror topics FILE; --topic takes regular expressions for whole names",
        )
    document = record.offset_map()
    if document is not None:
        closed = closed_maps(document)
        return [_finished(record, item, closed.get(key)) for key, item in sorted(partitions.items())]
    if record.journal.tip_state in MIRROR.endings:
        raise OffsetMapInvalid(
            f"the mirror is {record.journal.tip_state}, and it has no finished offset map",
            where=record.where(PHASE),
            next_step="nobody knows where its copy ends: compare topics that you know to stand still by other means",
        )
    # The ends first: a map that is read afterwards covers all that lies below them.
    confirmed, failing = confirmed_positions(record)
    maps = load_maps(record, target, partitions)
    return [
        _under_way(item, maps[key], confirmed.get(key, -1), failing.get(key, ""))
        for key, item in sorted(partitions.items())
    ]


def _finished(record: MigrationRecord, item: CopyPartition, found: PartitionMap | None) -> _Piece:
    """A partition of a mirror that has ended or is promoted."""
    piece = _Piece(item, map=found)
    if found is None:
        piece.ends("unchecked", "the finished offset map of the mirror does not have the partition")
        return piece
    piece.end_offset = found.source_end_offset or 0
    if isinstance(found, TransactionalMap):
        why = _take_producer_ids(record, item, found)
        if why:
            piece.ends("unchecked", why)
    return piece


def _take_producer_ids(record: MigrationRecord, item: CopyPartition, found: TransactionalMap) -> str:
    """Give a finished map the producer ids of its copy; return why that is not possible.

    Without them, a record that the mirror has written twice would pass for one of other producers.
    """
    try:
        kept = MapPages(record.journal_store, record.migration_id, *item.key).load_final()
    except OffsetMapInvalid as error:
        return f"the producer ids of its copy are not known: {error.what}"
    if kept != found:
        return "the producer ids of its copy are not known: the map that was kept with them is another one"
    found.producer_ids = kept.producer_ids
    return ""


def _under_way(item: CopyPartition, found: PartitionMap, confirmed: int, error: str) -> _Piece:
    """A partition that is being copied.

    :param confirmed: exclusive source offset; -1: not known.
    :param error: why its copy goes no further; empty if it does.
    """
    end = found.copied_ends[0] if isinstance(found, TransactionalMap) else confirmed
    piece = _Piece(item, end, found)
    if error:
        piece.notes.append(f"its copy has an error and goes no further: {error}")
    if end < 0:
        piece.ends("unchecked", "copiers have not reported yet how far it is copied")
    return piece


def _map_again(record: MigrationRecord, target: Cluster, piece: _Piece) -> PartitionMap | None:
    """Return the map if it has changed: a copier that takes over may correct it."""
    if record.offset_map() is not None or isinstance(piece.map, TransactionalMap):
        return None
    found = load_maps(record, target, {piece.item.key: piece.item})[piece.item.key]
    return None if found == piece.map else found


# -- what both sides still have ---------------------------------------------------------------------------------------


def _place(context: PhaseContext, pieces: Sequence[_Piece], scope: Scope) -> None:
    """Determine the range of each partition; where there is none, its outcome.

    :raises MigrationError: a cluster does not answer.
    """
    left = [piece for piece in pieces if piece.found is None]
    _check_ids(context.source, left)
    left = [piece for piece in left if piece.found is None]
    here = read_ends(context.source.wire, [piece.item.key for piece in left])
    there = _settled_ends(context.target, left)
    for piece in left:
        source, target = here[piece.item.key], there[target_key(piece.item)]
        for side, found in (("source", source), ("target", target)):
            if isinstance(found, MigrationError) and piece.found is None:
                piece.ends("unchecked", f"{side}: {found.what}")
        if isinstance(source, LogEnds) and isinstance(target, _TargetEnds):
            _set_range(piece, source, target, scope)
    _check_kept(context, [piece for piece in left if piece.range is not None], there, scope)


def _check_kept(
    context: PhaseContext,
    pieces: Sequence[_Piece],
    there: Mapping[TopicPartition, _TargetEnds | MigrationError],
    scope: Scope,
) -> None:
    """Note what the target has deleted although it must have what the source has (``mirror.target_retention``).

    Until the mirror ends, it deletes on the target nothing that the source still has. The log starts of the source are
    read again, after those of the target: the mirror may have moved both meanwhile.

    :raises MigrationError: the source does not answer.
    """
    if context.spec.mirror.target_retention == "own":
        return
    suspects: dict[TopicPartition, int] = {}
    for piece in pieces:
        item, offset_map, target = piece.item, piece.map, there[target_key(piece.item)]
        if item.adopted or item.verdict is Verdict.TRANSACTIONAL or _is_closed(piece):
            continue  # others delete there, too
        assert offset_map is not None
        if isinstance(target, _TargetEnds) and target.log_start_offset > (offset_map.target_start_offset or 0):
            suspects[item.key] = offset_map.source_position(target.log_start_offset)
    again = read_ends(context.source.wire, suspects)
    for piece in pieces:
        if piece.item.key not in suspects:
            continue
        source, kept = again[piece.item.key], suspects[piece.item.key]
        if isinstance(source, MigrationError):
            piece.ends("unchecked", f"source: {source.what}")
            continue
        first = max(source.log_start_offset, piece.item.source_start_offset)
        if scope.last is not None:
            first = max(first, piece.end_offset - scope.last)
        if first < kept:
            piece.lacking = (
                f"the target has deleted source offsets {first} to {kept - 1}, which the source still has, although "
                f"mirror.target_retention is {context.spec.mirror.target_retention}"
            )


def _unfollowed(context: PhaseContext, pieces: Sequence[_Piece]) -> list[VerifiedPartition]:
    """Return the partitions of the compared topics that the source has, and that are not copied.

    What appears on the source after the end of a mirror is not its own.

    :raises MigrationError: the source does not answer.
    """
    if any(_is_closed(piece) for piece in pieces):
        return []
    targets = {piece.item.topic: piece.item.target_topic for piece in pieces}
    followed = set(context.record.partitions())
    facts = context.source.admin.describe_topics(sorted(targets))
    left_out = {
        (topic.name, item.partition): item.left_out
        for topic in context.record.plan().topics
        for item in topic.partitions
        if item.left_out
    }
    return [
        VerifiedPartition(
            topic=topic,
            target_topic=targets[topic],
            partition=item.partition,
            outcome="unchecked",
            reason=f"the mirror leaves it out: {left_out[topic, item.partition]}"
            if (topic, item.partition) in left_out
            else "the source has it, and the mirror does not follow it yet",
        )
        for topic in sorted(targets)
        for item in facts[topic].partitions
        if facts[topic].error is None and (topic, item.partition) not in followed
    ]


def _is_closed(piece: _Piece) -> bool:
    """Whether the mirror has ended or is promoted: what was copied is final, and clients may use the target."""
    return piece.map is None or piece.map.source_end_offset is not None


def _check_ids(source: Cluster, pieces: Sequence[_Piece]) -> None:
    """Note the partitions whose source topic is gone, or another one by now."""
    wrong = other_topics(source, {piece.item.key: piece.item.topic_id for piece in pieces})
    for piece in pieces:
        if piece.item.key in wrong:
            piece.ends("unchecked", wrong[piece.item.key])


def other_topics(source: Cluster, ids: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
    """Return the partitions whose source topic is gone, or another one by now, with the reason.

    :param ids: the topic id with which each partition was copied; empty: unknown.
    """
    facts = source.admin.describe_topics(sorted({topic for topic, _ in ids}))
    found: dict[TopicPartition, str] = {}
    for key, known in ids.items():
        topic = facts[key[0]]
        if topic.error is not None:
            found[key] = f"source: the topic cannot be described: {topic.error}"
        elif known and topic.topic_id and topic.topic_id != known:
            found[key] = "source: the topic was deleted and created again since it was copied"
    return found


@dataclass(frozen=True)
class _TargetEnds:
    log_start_offset: int
    high_watermark: int
    stable_offset: int


def _settled_ends(target: Cluster, pieces: Sequence[_Piece]) -> dict[TopicPartition, _TargetEnds | MigrationError]:
    """Read the ends on the target; wait a moment where an open transaction hides what is copied."""
    wanted = {target_key(piece.item): _target_end(piece) for piece in pieces}
    found: dict[TopicPartition, _TargetEnds | MigrationError] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    left = set(wanted)
    while left:
        ends = read_ends(target.wire, left)
        readable = [key for key, item in ends.items() if isinstance(item, LogEnds)]
        stable = target.wire.list_offsets(readable, "stable") if readable else {}
        for key, item in ends.items():
            found[key] = (
                _TargetEnds(item.log_start_offset, item.high_watermark, stable[key])
                if isinstance(item, LogEnds)
                else item
            )
        left = {
            key for key in readable if stable[key] < min(wanted[key], _high(found[key])) and time.monotonic() < deadline
        }
        if left:
            time.sleep(_POLL_SECONDS)
    return found


def _high(ends: _TargetEnds | MigrationError) -> int:
    return ends.high_watermark if isinstance(ends, _TargetEnds) else -1


def _target_end(piece: _Piece) -> int:
    """Return the exclusive target offset that belongs to the end of the copy."""
    found = piece.map
    assert found is not None
    if found.target_end_offset is not None:
        return found.target_end_offset
    if isinstance(found, TransactionalMap):
        return found.copied_ends[1]
    return found.translate(piece.end_offset).target_offset or 0


def _set_range(piece: _Piece, source: LogEnds, target: _TargetEnds, scope: Scope) -> None:
    """Set the range above both log starts and below the end of the copy, or say that nothing is left."""
    offset_map, item, source_start = piece.map, piece.item, source.log_start_offset
    assert offset_map is not None
    end, target_end = piece.end_offset, _target_end(piece)
    if target.stable_offset < min(target_end, target.high_watermark):
        end, target_end = min(end, offset_map.source_position(target.stable_offset)), target.stable_offset
        piece.held_back = f"an open transaction on the target hides what is copied from target offset {target_end} on"
    first = offset_map.source_start_offset or item.source_start_offset
    kept = max(first, source_start)
    if target.log_start_offset > (offset_map.target_start_offset or 0):
        kept = max(kept, offset_map.source_position(target.log_start_offset))
    start = kept if scope.last is None else max(kept, end - scope.last)
    if kept > first:
        starts = f"log starts: {source_start} on the source, {target.log_start_offset} on the target"
        piece.below = f"source offsets {first} to {kept - 1} are no longer on both sides ({starts})"
    if start >= end:
        why = piece.held_back or _hidden(piece, source, max(first, source_start), end)
        piece.ends("unchecked" if why else "nothing", why or piece.below or "neither side has an offset in this range")
        return
    piece.range = ContentRange(
        topic=item.topic,
        target_topic=item.target_topic,
        partition=item.partition,
        verdict=offset_map.verdict or item.verdict,
        source_start_offset=start,
        source_end_offset=end,
        target_start_offset=offset_map.translate(start).target_offset or 0,
        target_end_offset=target_end,
    )


def _hidden(piece: _Piece, source: LogEnds, first: int, end: int) -> str:
    """Return what the source has, or had, although there is no range to compare; empty: nothing.

    :param first: the first source offset that is to be on the target.
    :param end: exclusive end of the copy.
    """
    if first < end:
        return f"the target has deleted all that was copied; the source still has offsets {first} to {end - 1}"
    if _is_closed(piece):
        return ""  # what the source got since is not part of the copy
    copied = max(end, piece.item.source_start_offset)
    if source.log_start_offset > copied:
        lost = f"offsets {copied} to {source.log_start_offset - 1}"
        return f"the source has deleted {lost} before copiers have confirmed them"
    if end <= piece.item.source_start_offset and first < source.high_watermark:
        return f"nothing of it is copied yet; the source has offsets {first} to {source.high_watermark - 1}"
    return ""


# -- rules ------------------------------------------------------------------------------------------------------------


def _rules(context: PhaseContext, pieces: Sequence[_Piece]) -> dict[str, _Rules | MigrationError]:
    """Return by source topic what each side may do to its records.

    :raises MigrationError: a cluster does not answer.
    """
    names = {piece.item.topic: piece.item.target_topic for piece in pieces}
    if not names:
        return {}
    ever = {topic.name for topic in context.record.plan().topics if is_compacted(topic)}
    here = _topic_rules(context.source, {name: name in ever for name in names})
    there = _topic_rules(context.target, {target: source in ever for source, target in names.items()})
    found: dict[str, _Rules | MigrationError] = {}
    for source, target in names.items():
        mine, theirs = here[source], there[target]
        if isinstance(mine, TopicRules) and isinstance(theirs, TopicRules):
            found[source] = _Rules(mine, theirs)
        else:
            error = theirs if isinstance(mine, TopicRules) else mine
            assert isinstance(error, MigrationError)
            found[source] = error
    return found


def _topic_rules(cluster: Cluster, compacted: Mapping[str, bool]) -> dict[str, TopicRules | MigrationError]:
    """Return the rules of topics as their configs are now.

    :param compacted: whether a topic was compacted when the copy began; then it stays so: records are gone since.
    """
    found: dict[str, TopicRules | MigrationError] = {}
    for name, item in cluster.admin.topic_configs(sorted(compacted)).items():
        policy, retention = item.get("cleanup.policy"), item.get("delete.retention.ms")
        if item.error is not None or not policy or not retention:
            kind = BrokerBusy if item.error is not None and item.error.retriable else PermissionMissing
            found[name] = kind(
                f"the configs of {name} cannot be read: {item.error or 'the brokers do not tell them'}",
                where=Where(cluster=cluster.role, topic=name),
                next_step="grant DescribeConfigs on the topic",
            )
            continue
        is_compacted_now = compacted[name] or "compact" in policy
        found[name] = TopicRules(compacted=is_compacted_now, delete_retention_ms=int(retention))
    return found


# -- comparing --------------------------------------------------------------------------------------------------------


@dataclass
class _Meter:
    """What was read so far, for progress; shared by all threads."""

    context: PhaseContext
    total: int
    done: int = 0
    read_bytes: int = 0
    _told_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size_bytes: int) -> None:
        """Account for a batch."""
        with self._lock:
            self.read_bytes += size_bytes
            if time.monotonic() - self._told_at >= _PROGRESS_SECONDS:
                self._tell()

    def finish(self) -> None:
        """Account for a partition."""
        with self._lock:
            self.done += 1
            self._tell()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        text = f"{self.done} of {self.total} partitions compared, {self.read_bytes / 1e6:,.0f} MB read"
        self.context.progress(Progress(PHASE, text, self.done, self.total, "partitions"))


def _compare_all(
    context: PhaseContext,
    pieces: Sequence[_Piece],
    rules: Mapping[str, _Rules | MigrationError],
    settings: MirrorSettings,
    threads: int,
    stop: Callable[[], bool],
) -> None:
    """Compare all pieces that have a range, the longest first."""
    left = [piece for piece in pieces if piece.found is None]
    left.sort(key=lambda piece: -_length(piece))
    meter, failed = _Meter(context, len(left)), threading.Event()
    local = threading.local()
    opened: list[_Pair] = []

    def run(piece: _Piece) -> None:
        if not hasattr(local, "pair"):
            local.pair = _Pair(context.source.clone(), context.target.clone())
            opened.append(local.pair)
        comparer = _Comparer(context.record, local.pair, settings, meter, lambda: failed.is_set() or stop())
        comparer.compare(piece, rules[piece.item.topic])

    pool = ThreadPoolExecutor(max(1, min(threads, len(left))), thread_name_prefix="verify")
    try:
        for future in as_completed([pool.submit(run, piece) for piece in left]):
            future.result()
            meter.finish()
    except BaseException:
        failed.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for pair in opened:
            pair.close()


def _length(piece: _Piece) -> int:
    assert piece.range is not None
    return piece.range.source_end_offset - piece.range.source_start_offset


@dataclass(frozen=True)
class _Pair:
    """The two clusters of one thread."""

    source: Cluster
    target: Cluster

    def close(self) -> None:
        self.source.close()
        self.target.close()


class _Comparer:
    """Compares one partition at a time. Not thread-safe: one owner."""

    def __init__(
        self,
        record: MigrationRecord,
        clusters: _Pair,
        settings: MirrorSettings,
        meter: _Meter,
        stop: Callable[[], bool],
    ) -> None:
        self._record = record
        self._clusters = clusters
        self._settings = settings
        self._meter = meter
        self._stop = stop

    def compare(self, piece: _Piece, rules: _Rules | MigrationError) -> None:
        """Compare a piece and note the outcome in it.

        :raises Interrupted: a stop was requested.
        """
        try:
            if isinstance(rules, MigrationError):
                raise rules
            found = self._found(piece, rules)
            # Another topic of this name would make all of it different.
            _check_ids(self._clusters.source, [piece])
        except Interrupted:
            raise
        except MigrationError as error:
            self._clusters.close()  # a broken connection must not affect the next partition
            piece.ends("unchecked", why_not_compared(error))
            return
        if piece.found is None:
            piece.found = found

    def _found(self, piece: _Piece, rules: _Rules) -> VerifiedPartition:
        assert piece.map is not None
        return compare_mirrored(
            _mirrored(piece, rules),
            piece.map,
            self._settings,
            self._record.journal_store,
            self._record.migration_id,
            self._wire,
            map_again=lambda: _map_again(self._record, self._clusters.target, piece),
            stop=self._stop,
            pace=self._meter.add,
        )

    def _wire(self, role: str) -> Wire:
        return (self._clusters.source if role == "source" else self._clusters.target).wire


def _mirrored(piece: _Piece, rules: _Rules) -> MirroredRange:
    """Return what any process needs in order to compare a piece."""
    item, found = piece.item, piece.map
    assert piece.range is not None
    assert found is not None
    return MirroredRange(
        range=piece.range,
        topic_id=item.topic_id,
        first_source_offset=item.source_start_offset,
        first_target_offset=item.target_start_offset,
        copied_source_offset=found.source_end_offset,
        copied_target_offset=found.target_end_offset,
        source_rules=rules.source,
        target_rules=rules.target,
        below=piece.below,
        held_back=piece.held_back,
        lacking=piece.lacking,
        notes=piece.notes,
    )


def to_compare(context: PhaseContext, scope: Scope) -> tuple[list[MirroredRange], list[VerifiedPartition]]:
    """Determine what is to be compared, for other processes, and the outcomes that are known without it; ascending.

    :param context: a context that only reads.
    :raises NotInMigration: the scope selects nothing.
    :raises OffsetMapInvalid: the mirror has ended without a finished offset map.
    :raises MigrationError: the mirror's journal or documents cannot be read, or a cluster does not answer.
    """
    pieces = _copied(context.record, context.target, scope)
    unfollowed = _unfollowed(context, pieces)
    _place(context, pieces, scope)
    rules = _rules(context, [piece for piece in pieces if piece.range is not None])
    ranges: list[MirroredRange] = []
    for piece in pieces:
        if piece.found is not None:
            continue
        of_topic = rules[piece.item.topic]
        if isinstance(of_topic, MigrationError):
            piece.ends("unchecked", why_not_compared(of_topic))
        else:
            ranges.append(_mirrored(piece, of_topic))
    known = ascending([*unfollowed, *(piece.found for piece in pieces if piece.found is not None)])
    return sorted(ranges, key=lambda item: item.key), known


# -- for people -------------------------------------------------------------------------------------------------------

_SHOWN_DIFFERENCES = 3


def note_of(item: VerifiedPartition) -> str:
    """Return what a person should know about a partition, in one line; never the content of a record."""
    parts = [item.reason] if item.reason else []
    if item.difference_count:
        shown = ", ".join(
            f"{difference.kind} at source offset {difference.source_offset}, target offset {difference.target_offset}"
            + (f" ({difference.detail})" if difference.detail else "")
            for difference in item.differences[:_SHOWN_DIFFERENCES]
        )
        parts.append(f"{item.difference_count} differences: {shown}")
    for side, found in (("source", item.only_on_source), ("target", item.only_on_target)):
        if found:
            counts = ", ".join(f"{count} {reason}" for reason, count in found.items())
            parts.append(f"only on the {side}, as expected: {counts}")
    return "; ".join([*parts, *item.notes])


def in_order(found: MirrorVerification) -> Iterator[VerifiedPartition]:
    """Yield the partitions as a person reads them: differences first, then what could not be checked."""
    for outcome in ("different", "unchecked", "nothing", "equal"):
        yield from (item for item in found.partitions if item.outcome == outcome)
