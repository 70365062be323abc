"""The offset map of a partition that other producers write to as well: every run has its own length.

Transaction markers and records of other producers lie between two runs, so a run does not reach up to the next one as
it does in :class:`~.offset_map.PartitionMap`. The migration wrote the record at a target offset exactly if a run covers
the offset.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.copy import CopyBegun, FinalMap, MapPage, MappedPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, ObjectExists, OffsetMapInvalid, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka import transactions as requests
from airflow_provider_kafka_migration.kafka.wire import GROUP_COORDINATOR, TopicPartition, Wire, by_topic
from airflow_provider_kafka_migration.offset_map.runs import (
    How,
    OffsetRange,
    PartitionMap,
    TranslatedPosition,
    read_partition_map,
    topic_key,
)
from airflow_provider_kafka_migration.storage.base import ObjectStore


class TransactionalMap(PartitionMap):
    """Runs with individual lengths, ascending on both sides. A look-up is O(log runs); a run takes 24 bytes.

    The guarantee of :meth:`translate` is that of :class:`~.offset_map.PartitionMap`: of the *migration's* records, the
    next one read from the answer on is the first whose source offset is at least the requested one.

    :param start: first source offset that is copied, and the target's log end when the copy began.
    :param copied_until_offset: one past the last source offset that is known to be copied (holes included), while the
        map is open.
    :param producer_ids: producer ids under which the runs were written.
    :raises OffsetMapInvalid: the runs go backwards or overlap.
    """

    __slots__ = ("_counts", "_start", "copied_until_offset", "producer_ids")

    def __init__(
        self,
        start: OffsetRange,
        runs: Iterable[OffsetRange] = (),
        *,
        copied_until_offset: int | None = None,
        source_end_offset: int | None = None,
        target_end_offset: int | None = None,
        producer_ids: Iterable[int] = (),
    ) -> None:
        self._counts = array("q")
        self._start = start
        self.copied_until_offset = copied_until_offset
        self.producer_ids = frozenset(producer_ids)
        super().__init__(runs, source_end_offset=source_end_offset, target_end_offset=target_end_offset)

    def _push(self, run: OffsetRange) -> None:
        source, target, counts = self._source, self._target, self._counts
        count = run.count or 0
        if count <= 0:
            return
        if source:
            source_end, target_end = source[-1] + counts[-1], target[-1] + counts[-1]
            if run.source_start < source_end or run.target_start < target_end:
                raise OffsetMapInvalid(
                    f"run {run.source_start} -> {run.target_start} overlaps the one that ends at "
                    f"{source_end} -> {target_end}",
                    next_step="restore the partition's map objects from an earlier version of the bucket",
                )
            if (run.source_start, run.target_start) == (source_end, target_end):
                counts[-1] += count
                return
        source.append(run.source_start)
        target.append(run.target_start)
        counts.append(count)

    def _state(self) -> tuple[object, ...]:
        return (self._start, self._counts, *super()._state())

    def __repr__(self) -> str:
        return f"TransactionalMap({self._start}, {list(self.runs())}, {self.source_end_offset})"

    def runs(self) -> Iterator[OffsetRange]:
        """Yield the runs, each with its length."""
        for source, target, count in zip(self._source, self._target, self._counts, strict=True):
            yield OffsetRange(source, target, count)

    def _count(self, index: int) -> int:
        return self._counts[index]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, which is always ``transactional``."""
        return Verdict.TRANSACTIONAL

    @property
    def source_start_offset(self) -> int | None:
        """The first source offset that was copied, or would have been."""
        return self._start.source_start

    @property
    def target_start_offset(self) -> int | None:
        """The target offset of the first copied record; without one yet, the target's log end when the copy began."""
        return self._target[0] if self._target else self._start.target_start

    @property
    def skips_holes(self) -> bool:
        """Always True: a transactional copy never fills holes."""
        return True

    @property
    def copied_ends(self) -> tuple[int, int]:
        """Exclusive ends of what was copied: on the source, holes included, and on the target."""
        return self._copied_until(), self._end()

    def source_of(self, target_offset: int) -> int:
        """Return the source offset of the copied record at a target offset, or of the next copied one behind it."""
        index = bisect_right(self._target, target_offset) - 1
        if index >= 0 and target_offset < self._target[index] + self._counts[index]:
            return self._source[index] + target_offset - self._target[index]
        return self._source[index + 1] if index + 1 < len(self._source) else self._copied_until()

    def source_position(self, target_end_offset: int) -> int:
        """Return the next source offset to copy if the target's log ended at ``target_end_offset``."""
        index = bisect_left(self._target, target_end_offset) - 1
        if index < 0:
            return self._start.source_start
        return self._source[index] + min(target_end_offset - self._target[index], self._counts[index])

    def covers(self, target_offset: int) -> bool:
        """Return whether the migration wrote the record at a target offset."""
        index = bisect_right(self._target, target_offset) - 1
        return index >= 0 and target_offset < self._target[index] + self._counts[index]

    def overlaps(self, from_offset: int, until_offset: int) -> bool:
        """Return whether a copied record lies in ``[from_offset, until_offset)`` on the target."""
        index = bisect_left(self._target, until_offset) - 1
        return index >= 0 and from_offset < self._target[index] + self._counts[index]

    def _copied_until(self) -> int:
        if self.source_end_offset is not None:
            return self.source_end_offset
        last = self._source[-1] + self._counts[-1] if self._source else self._start.source_start
        return last if self.copied_until_offset is None else max(last, self.copied_until_offset)

    def _end(self) -> int:
        if self._target:
            return self._target[-1] + self._counts[-1]
        return self._start.target_start

    def translate(self, source_offset: int) -> TranslatedPosition:
        """Return where a consumer that committed ``source_offset`` continues; see the class for the guarantee."""
        source, target, counts = self._source, self._target, self._counts
        if source_offset < self._start.source_start:
            return TranslatedPosition(target[0] if target else self._start.target_start, How.RESET_TO_START)
        if source_offset > self._copied_until():
            return TranslatedPosition(self._end(), How.CLAMPED)
        index = bisect_right(source, source_offset) - 1
        distance = source_offset - source[index] if index >= 0 else 0
        is_last = index == len(source) - 1
        # One past a run belongs to that run only if the run is the last one.
        if index >= 0 and (distance < counts[index] or (distance == counts[index] and is_last)):
            found = target[index] + distance
            return TranslatedPosition(found, How.EQUAL if found == source_offset else How.EXACT)
        if not source:
            return TranslatedPosition(self._end(), How.EQUAL if self._end() == source_offset else How.EXACT)
        return TranslatedPosition(self._end() if is_last else target[index + 1], How.HOLE_FORWARD)

    def override(self, from_target_offset: int, runs: Iterable[OffsetRange]) -> bool:
        """Drop what lies at or above a target offset, then add runs.

        :returns: True if something was dropped.
        """
        kept = bisect_left(self._target, from_target_offset)
        dropped = kept < len(self._target)
        del self._source[kept:], self._target[kept:], self._counts[kept:]
        if kept and self._target[-1] + self._counts[-1] > from_target_offset:
            self._counts[-1] = from_target_offset - self._target[-1]
            dropped = True
        for run in runs:
            self._push(run)
        return dropped

    def copy(self) -> TransactionalMap:
        """Return an independent map with the same runs."""
        return TransactionalMap(
            self._start,
            self.runs(),
            copied_until_offset=self.copied_until_offset,
            source_end_offset=self.source_end_offset,
            target_end_offset=self.target_end_offset,
            producer_ids=self.producer_ids,
        )

    def inverse(self) -> TransactionalMap:
        """Return the map from target to source. Records of others on the target are its holes."""
        return TransactionalMap(
            OffsetRange(self._start.target_start, self._start.source_start),
            (OffsetRange(run.target_start, run.source_start, run.count) for run in self.runs()),
            copied_until_offset=self._end(),
            source_end_offset=self.target_end_offset,
            target_end_offset=self.source_end_offset,
            producer_ids=self.producer_ids,
        )

    def closed(self, source_end_offset: int, target_end_offset: int) -> TransactionalMap:
        """Return the map of a finished copy; it ends with the last copied record, wherever the log ends by now."""
        twin = self.copy()
        twin.source_end_offset = source_end_offset
        twin.target_end_offset = min(twin._end(), target_end_offset)
        return twin


def flat_runs(runs: Iterable[OffsetRange]) -> list[int]:
    """Return runs as gaps and lengths: three numbers per run, which are small where runs lie close together."""
    flat: list[int] = []
    source_end = target_end = 0
    for run in runs:
        count = run.count or 0
        flat += (run.source_start - source_end, run.target_start - target_end, count)
        source_end, target_end = run.source_start + count, run.target_start + count
    return flat


def runs_of(flat: list[int]) -> Iterator[OffsetRange]:
    """Yield the runs of :func:`flat_runs`.

    :raises ValueError: the list is cut off.
    """
    source_end = target_end = 0
    for source_gap, target_gap, count in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        run = OffsetRange(source_end + source_gap, target_end + target_gap, count)
        source_end, target_end = run.source_start + count, run.target_start + count
        yield run


def read_map(entry: MappedPartition) -> PartitionMap:
    """Read a partition's map, of either kind, from a document.

    :raises OffsetMapInvalid: the runs are not complete, or go backwards.
    """
    if entry.verdict != Verdict.TRANSACTIONAL.value:
        return read_partition_map(entry)
    if len(entry.runs) % 3 or entry.source_start_offset is None or entry.target_start_offset is None:
        raise OffsetMapInvalid(
            "the runs of a partition's offset map are not complete",
            where=Where(topic=entry.topic, partition=entry.partition),
            next_step="take offset-map.json from the evidence bucket again",
        )
    start = OffsetRange(entry.source_start_offset, entry.target_start_offset)
    runs = [
        OffsetRange(run.source_start + start.source_start, run.target_start + start.target_start, run.count)
        for run in runs_of(entry.runs)
    ]
    return TransactionalMap(
        start, runs, source_end_offset=entry.source_end_offset, target_end_offset=entry.target_end_offset
    )


# -- transactional position -------------------------------------------------------------------------------------------
#
# The position of a partition's copy, as an offset with metadata that a group commits on the target (KIP-656).
#
# The committed offset is the next *source* offset to copy. Its metadata has what only the commit makes true: the target
# offsets of the records that were committed with it. ``TxnOffsetCommit`` writes both inside the transaction that has
# the records, so position, records and map can never differ.
#
# The metadata is JSON of at most some thousand bytes (brokers refuse more than ``offset.metadata.max.bytes``, 4,096 by
# default). Older runs go to pages in the object store, written before the commit that names them.


#: Below the brokers' default limit of 4,096 bytes.
MAX_METADATA_BYTES = 3_800
_VERSION = 1


def group_name(migration_id: str) -> str:
    """Return the group on the target whose offsets are source positions. It never has a member."""
    return f"kafka-migration.{migration_id}"


def transactional_id(migration_id: str, target_topic: str, partition: int) -> str:
    """Return the transactional id of a partition's copy.

    It is stable across restarts, lanes and runs of the DAG, so a copier of a partition fences all earlier ones.
    """
    return f"kafka-migration.{migration_id}.copy.{target_topic}-{partition}"


@dataclass(frozen=True)
class Position:
    """The content of a commit.

    :param source_offset: next source offset to copy.
    :param target_offset: one past the last committed record; before there is one, the target's log end when the copy
        began.
    :param start: first source offset that is copied, and the target's log end when the copy began.
    :param page: name of the newest page of the map; empty: there is none.
    :param runs: runs since that page, ascending.
    :param producer_ids: producer ids under which these runs were written.
    :param committed_at: time of the commit, in seconds since 1970.
    :param source_epoch: leader epoch of the last source batch that was read by then; -1: not known.
    """

    source_offset: int
    target_offset: int
    start: OffsetRange
    page: str = ""
    runs: tuple[OffsetRange, ...] = ()
    producer_ids: tuple[int, ...] = ()
    committed_at: int = 0
    source_epoch: int = -1

    def extended(
        self,
        runs: Iterable[OffsetRange],
        source_offset: int,
        producer_id: int,
        committed_at: int,
        source_epoch: int = -1,
    ) -> Position:
        """Return the position after a transaction that has appended these runs.

        An unknown epoch (-1) replaces a known one, which would not belong to the new position.
        """
        added = tuple(runs)
        last = added[-1] if added else None
        ids = {*self.producer_ids, producer_id} if added else set(self.producer_ids)
        return replace(
            self,
            source_offset=source_offset,
            target_offset=self.target_offset if last is None else last.target_start + (last.count or 0),
            runs=self.runs + added,
            producer_ids=tuple(sorted(ids)),
            committed_at=committed_at,
            source_epoch=source_epoch,
        )

    def paged(self, page: str) -> Position:
        """Return the same position with its runs moved to a page."""
        return replace(self, page=page, runs=(), producer_ids=())

    def metadata(self) -> str:
        """Return the position as metadata of the committed offset, in ASCII."""
        document: dict[str, object] = {
            "v": _VERSION,
            "start": [self.start.source_start, self.start.target_start],
            "target": self.target_offset,
            "at": self.committed_at,
        }
        if self.page:
            document["page"] = self.page
        if self.producer_ids:
            document["ids"] = list(self.producer_ids)
        if self.source_epoch >= 0:
            document["epoch"] = self.source_epoch
        if self.runs:
            document["runs"] = base64.b64encode(_packed(flat_runs(self.runs))).decode()
        return json.dumps(document, separators=(",", ":"), sort_keys=True)


def read_position(source_offset: int, metadata: str) -> Position:
    """Read the position of a committed offset.

    :raises OffsetMapInvalid: this package has not written the metadata.
    """
    try:
        document = json.loads(metadata)
        if document["v"] != _VERSION:
            raise ValueError(f"version {document['v']}")
        source_start, target_start = document["start"]
        runs = tuple(runs_of(_unpacked(base64.b64decode(document.get("runs", ""), validate=True))))
        if runs and runs[-1].source_start + (runs[-1].count or 0) > source_offset:
            raise ValueError(f"its runs end behind the committed offset, {source_offset}")
        return Position(
            source_offset=source_offset,
            target_offset=int(document["target"]),
            start=OffsetRange(int(source_start), int(target_start)),
            page=str(document.get("page", "")),
            runs=runs,
            producer_ids=tuple(int(value) for value in document.get("ids", ())),
            committed_at=int(document.get("at", 0)),
            source_epoch=int(document.get("epoch", -1)),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise OffsetMapInvalid(
            f"the metadata of a committed position cannot be read: {error}",
            next_step="find out who else commits offsets to the migration's group on the target; then start the "
            "migration again with another migration_id. Where topics have the records of both clusters, delete nothing "
            "and do not start again: all records would arrive twice",
        ) from None


def _packed(numbers: Sequence[int]) -> bytes:
    """Return numbers as unsigned varints; gaps and lengths are never negative."""
    data = bytearray()
    for number in numbers:
        value = number
        while value > 127:
            data.append(value & 127 | 128)
            value >>= 7
        data.append(value)
    return bytes(data)


def _unpacked(data: bytes) -> list[int]:
    numbers: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    if shift:
        raise ValueError("the runs are cut off")
    return numbers


# -- transactional positions ------------------------------------------------------------------------------------------
#
# Reads the positions that transactional copies have committed on the target: for resumes, lags and the final drain.


_PARTITIONS_PER_REQUEST = 2_000
#: A position that is being committed becomes readable within this time.
_STABLE_SECONDS = 10.0


def read_positions(
    wire: Wire, group: str, keys: Iterable[TopicPartition]
) -> dict[TopicPartition, Position | MigrationError | None]:
    """Read the positions, by (target topic, partition); None: there is none.

    A partition has a :class:`BrokerBusy` while a transaction is being ended whose outcome the group does not know yet.

    :raises PermissionMissing: Describe on the group is missing.
    :raises Transient: the coordinator does not answer.
    """
    wanted = sorted(set(keys))
    found: dict[TopicPartition, Position | MigrationError | None] = dict.fromkeys(wanted)
    for start in range(0, len(wanted), _PARTITIONS_PER_REQUEST):
        found.update(_read(wire, group, wanted[start : start + _PARTITIONS_PER_REQUEST]))
    return found


def settled_positions(
    read: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, Position | MigrationError | None]],
    keys: Iterable[TopicPartition],
    unread: dict[TopicPartition, MigrationError] | None = None,
) -> dict[TopicPartition, Position | None]:
    """Read positions until no transaction is just being ended; None: nothing was committed yet.

    :param read: :func:`read_positions` of a cluster and a group.
    :param unread: receives the partitions whose position could not be read, with the reason, and they are missing in
        the answer; None: the first one is an error.
    :raises BrokerBusy: transactions are constantly being ended.
    :raises OffsetMapInvalid: a position was not written by this package.
    """
    left = set(keys)
    found: dict[TopicPartition, Position | None] = {}
    deadline = time.monotonic() + _STABLE_SECONDS
    while left:
        for place, answer in read(sorted(left)).items():
            if isinstance(answer, BrokerBusy) and time.monotonic() < deadline:
                continue  # a transaction is just being ended
            left.discard(place)
            if not isinstance(answer, MigrationError):
                found[place] = answer
            elif unread is None:
                raise answer
            else:
                unread[place] = answer
        if left:
            time.sleep(0.005)
    return found


def _read(wire: Wire, group: str, keys: list[TopicPartition]) -> dict[TopicPartition, Position | MigrationError | None]:
    request, version = requests.fetch_offsets(group, by_topic(keys))

    def attempt() -> dict[TopicPartition, Position | MigrationError | None]:
        broker_id = wire.coordinator(group, GROUP_COORDINATOR)
        answer = wire.connection(broker_id).call(request, version=version)
        where = Where(cluster=wire.config.name, group=group)
        if answer.error_code:
            raise error_codes.error_of_read(
                answer.error_code, "positions cannot be read", where=where, needs=f"Describe on Group {group}"
            )
        return {
            (topic.name, item.partition_index): _position(
                item, Where(cluster=wire.config.name, topic=topic.name, partition=item.partition_index)
            )
            for topic in answer.topics
            for item in topic.partitions
        }

    return wire.retrying(attempt)


def _position(item: object, where: Where) -> Position | MigrationError | None:
    code, offset = int(item.error_code), int(item.committed_offset)  # type: ignore[attr-defined]
    if code == error_codes.UNSTABLE_OFFSET_COMMIT:
        return BrokerBusy("a transaction is being ended", where=where, next_step="none: the position is read again")
    if code:
        return error_codes.error_of_read(code, "the position cannot be read", where=where)
    if offset < 0:
        return None
    try:
        return read_position(offset, str(item.metadata or ""))  # type: ignore[attr-defined]
    except MigrationError as error:
        return type(error)(error.what, where=where, next_step=error.next_step)


# -- transactional pages ----------------------------------------------------------------------------------------------
#
# Pages of the offset maps of transactional partitions, in the journal's object store.
#
# Objects below ``<migration_id>/transactional-map/<topic>/<partition>/``: ``<number:08d>-<digest>.json`` are pages,
# ``begun.json`` records that a position was committed on the target. Pages are named by their content and written
# before the commit that names them, so a page whose transaction was aborted does no harm: no commit names it.


class MapPages:
    """The pages of one partition.

    :param topic: source topic.
    :param get: reads the object of a page; None: from the store.
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        topic: str,
        partition: int,
        *,
        get: Callable[[str], bytes | None] | None = None,
    ) -> None:
        self._store = store
        self._get = get or store.get
        self._migration_id = migration_id
        self._topic = topic
        self._partition = partition
        self.prefix = f"{migration_id}/transactional-map/{topic_key(topic)}/{partition}/"

    def put(self, position: Position) -> Position:
        """Write the runs of a position as a page; return the position with the page's name instead of the runs."""
        number = int(position.page.split("-", 1)[0]) + 1 if position.page else 1
        page = MapPage(
            migration_id=self._migration_id,
            topic=self._topic,
            partition=self._partition,
            number=number,
            previous=position.page,
            producer_ids=list(position.producer_ids),
            runs=flat_runs(position.runs),
        )
        data = page.canonical()
        name = f"{number:08d}-{hashlib.sha256(data).hexdigest()[:24]}"
        self._put_new(f"{self.prefix}{name}.json", data)
        return position.paged(name)

    def _put_new(self, key: str, data: bytes) -> None:
        try:
            self._store.put_new(key, data)
        except ObjectExists:
            if self._store.get(key) != data:
                raise self._invalid(key, "its content does not match its name") from None

    def load(self, position: Position) -> TransactionalMap:
        """Read the whole map of a committed position.

        :raises OffsetMapInvalid: a page is missing, or was changed.
        """
        pages = list(self._chain(position.page))
        pages.reverse()
        runs: list[OffsetRange] = []
        ids = set(position.producer_ids)
        for page in pages:
            runs += runs_of(page.runs)
            ids.update(page.producer_ids)
        return TransactionalMap(
            position.start,
            [*runs, *position.runs],
            copied_until_offset=position.source_offset,
            producer_ids=ids,
        )

    def _chain(self, name: str) -> Iterator[MapPage]:
        """Yield the pages, the newest first."""
        while name:
            page = self.read(name)
            yield page
            name = page.previous

    def read(self, name: str) -> MapPage:
        """Read one page. It never changes.

        :raises OffsetMapInvalid: it is missing, or was changed.
        """
        key = f"{self.prefix}{name}.json"
        data = self._get(key)
        if data is None:
            raise self._invalid(key, "it is missing")
        if hashlib.sha256(data).hexdigest()[:24] != name.split("-", 1)[1]:
            raise self._invalid(key, "its content does not match its name")
        try:
            page = MapPage.parse(data)
        except ValidationError as error:
            raise self._invalid(key, f"{error.error_count()} of its fields are invalid") from None
        if (page.migration_id, page.topic, page.partition) != (self._migration_id, self._topic, self._partition):
            raise self._invalid(key, f"it belongs to {page.migration_id} {page.topic}-{page.partition}")
        return page

    # -- whether a position was ever committed -----------------------------------------------------------------------

    def has_begun(self) -> bool:
        """Return whether a position of this partition was ever committed on the target."""
        return self._store.get(f"{self.prefix}begun.json") is not None

    def begin(self, group: str) -> None:
        """Record, after the first commit, that a position was committed: from now on, a missing position is lost."""
        document = CopyBegun(migration_id=self._migration_id, topic=self._topic, partition=self._partition, group=group)
        self._put_new(f"{self.prefix}begun.json", document.canonical())

    # -- when all is copied ------------------------------------------------------------------------------------------

    def finish(self, closed: TransactionalMap, entry: MappedPartition) -> None:
        """Store the map of the finished copy: the group's offsets may expire before the contents are compared."""
        document = FinalMap(migration_id=self._migration_id, producer_ids=sorted(closed.producer_ids), map=entry)
        key, data = f"{self.prefix}final.json", document.canonical()
        if self._store.get(key) != data:
            self._store.put(key, data)

    def load_final(self) -> TransactionalMap:
        """Read the map of the finished copy.

        :raises OffsetMapInvalid: it does not exist, or cannot be read.
        """
        key = f"{self.prefix}final.json"
        data = self._store.get(key)
        if data is None:
            raise self._invalid(
                key, "it does not exist (a migration writes it in cutover.final_drain, which may be cleared)"
            )
        try:
            document = FinalMap.parse(data)
        except ValidationError as error:
            raise self._invalid(key, f"{error.error_count()} of its fields are invalid") from None
        found = read_map(document.map)
        if not isinstance(found, TransactionalMap):
            raise self._invalid(key, f"its verdict is {document.map.verdict}")
        found.producer_ids = frozenset(document.producer_ids)
        return found

    def _invalid(self, key: str, why: str) -> OffsetMapInvalid:
        return OffsetMapInvalid(
            f"a page of the offset map cannot be used: {why}",
            where=Where(topic=self._topic, partition=self._partition, path=key),
            next_step="restore the object from a version of the bucket",
        )
