"""How far each partition is proven: stored ranges, and whether they still hold for the current logs."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import Literal

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.comparison import KEPT_DIFFERENCES
from airflow_provider_kafka_migration.compare.record_ids import gathered_ids, id_fields
from airflow_provider_kafka_migration.compare.spans import Spans
from airflow_provider_kafka_migration.copy.read_watch import times_overtaken
from airflow_provider_kafka_migration.documents.proof import (
    ContentRange,
    PartitionContent,
    ProvenPartition,
    ProvenRange,
)
from airflow_provider_kafka_migration.errors import OutsideOfLog
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, read_batches
from airflow_provider_kafka_migration.kafka.logs import fetch_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.offset_map.runs import How, PartitionMap, topic_key
from airflow_provider_kafka_migration.storage.base import ObjectStore

# -- content joined ---------------------------------------------------------------------------------------------------
#
# Combines the results of comparing several ranges of one partition.


Method = Literal["payload", "decoded", "archive"]


def joined(first: PartitionContent, second: PartitionContent) -> PartitionContent:
    """Combine the results of comparing two ranges of the same partition.

    Each digest is computed over the two digests, so it depends on where the ranges meet; the digests of the two sides
    are still equal exactly if nothing differs.
    """
    spans = Spans()
    for from_offset, until_offset in (*first.uncompared, *second.uncompared):
        spans.add(from_offset, until_offset)
    ids = gathered_ids(first)
    ids.merge(gathered_ids(second))
    return PartitionContent(
        topic=first.topic,
        partition=first.partition,
        source_records=first.source_records + second.source_records,
        target_records=first.target_records + second.target_records,
        compared=first.compared + second.compared,
        source_digest=_digest(first.source_digest, second.source_digest),
        target_digest=_digest(first.target_digest, second.target_digest),
        method=_method(first, second),
        explained=dict(sorted((Counter(first.explained) + Counter(second.explained)).items())),
        uncompared=spans.ranges(),
        uncompared_records=first.uncompared_records + second.uncompared_records,
        archive_records=first.archive_records + second.archive_records,
        uncompared_reason=first.uncompared_reason or second.uncompared_reason,
        difference_count=first.difference_count + second.difference_count,
        differences=[*first.differences, *second.differences][:KEPT_DIFFERENCES],
        error=first.error or second.error,
        # Without the same rule, the ids of one of the two are unknown.
        schema_id_rule=first.schema_id_rule if first.schema_id_rule == second.schema_id_rule else "",
        **id_fields(ids),
    )


def _digest(first: str, second: str) -> str:
    return hashlib.sha256(bytes.fromhex(first) + bytes.fromhex(second)).hexdigest()


def _method(first: PartitionContent, second: PartitionContent) -> Method:
    methods = {item.method for item in (first, second) if item.source_records or item.target_records}
    if methods == {"archive"}:
        return "archive"
    return "payload" if methods <= {"payload"} else "decoded"


# -- proven -----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


def proven_prefix(migration_id: str) -> str:
    """Return the prefix of a migration's documents, with a slash at the end."""
    return f"{migration_id}/proven/"


def proven_key(migration_id: str, topic: str, partition: int) -> str:
    """Return the key of a partition's document below the journal location."""
    return f"{proven_prefix(migration_id)}{topic_key(topic)}-{partition}.json"


def load_proven(store: ObjectStore, migration_id: str, compared: ContentRange) -> ProvenPartition:
    """Load how far a partition is proven; an empty document before its first comparison.

    A document proves nothing if it cannot be read, begins elsewhere, or is older than tombstones that were read too
    late: the partition is then compared from its start.
    """
    empty = ProvenPartition(
        migration_id=migration_id,
        topic=compared.topic,
        target_topic=compared.target_topic,
        partition=compared.partition,
        verdict=compared.verdict,
        overtaken_times=times_overtaken(store, migration_id, *compared.key),
    )
    data = store.get(proven_key(migration_id, *compared.key))
    if data is None:
        return empty
    try:
        found = ProvenPartition.parse(data)
    except ValidationError as error:
        log.warning("%s-%d: the document of what was proven cannot be read: %s", *compared.key, error)
        return empty
    same = (found.migration_id, found.topic, found.target_topic, found.partition) == (
        migration_id,
        compared.topic,
        compared.target_topic,
        compared.partition,
    )
    if not same or not holds_tombstones(found, empty.overtaken_times):
        return empty
    return found if found.proven is None or _begins(found.proven, compared) else empty


def holds_tombstones(document: ProvenPartition, overtaken_times: int) -> bool:
    """Return whether the comparison began after tombstones were last read too late.

    The source may since have deleted a value that was found equal before, without the copy having seen the tombstone.

    :param overtaken_times: number of the partition's objects that exist now.
    """
    return document.overtaken_times == overtaken_times


def store_proven(store: ObjectStore, document: ProvenPartition) -> None:
    """Replace a partition's document. Two writers may overwrite each other: what is lost is compared again."""
    store.put(proven_key(document.migration_id, *document.key), document.canonical())


def forget_proven(store: ObjectStore, migration_id: str, topic: str, partition: int) -> bool:
    """Discard what was proven of a partition whose target topic was replaced; return whether there was anything."""
    key = proven_key(migration_id, topic, partition)
    data = store.get(key)
    if data is None:
        return False
    try:
        found = ProvenPartition.parse(data)
    except ValidationError:
        return False  # an unreadable document proves nothing
    if found.proven is None and found.differing is None:
        return False
    nothing = {"proven": None, "differing": None, "differed_times": 0, "postponed": "", "postponed_at": ""}
    store_proven(store, found.model_copy(update=nothing))
    return True


def _begins(proven: ProvenRange, compared: ContentRange) -> bool:
    return (proven.source_start_offset, proven.target_start_offset) == (
        compared.source_start_offset,
        compared.target_start_offset,
    )


def fits(proven: ProvenRange, compared: ContentRange, offset_map: PartitionMap, id_rule: str = "") -> bool:
    """Return whether a proven range is the first part of what must be compared, according to the current map.

    :param id_rule: how the topic's schema ids are gathered and compared now (``SchemaIdSettings.rule``). A range that
        was compared in another way, or whose ids were not gathered, is compared again.
    """
    if proven.content.schema_id_rule != id_rule:
        return False
    if not _begins(proven, compared) or proven.source_end_offset > compared.source_end_offset:
        return False
    if proven.source_end_offset == compared.source_end_offset:
        return proven.target_end_offset <= compared.target_end_offset
    if proven.target_end_offset > compared.target_end_offset:
        return False
    if len(offset_map) == 1:
        shift = next(offset_map.runs()).shift
        return proven.source_end_offset - shift == proven.target_end_offset
    # The runs may have been corrected since: the last proven record must still be where it was.
    found = offset_map.translate(proven.source_end_offset - 1)
    return found.how in (How.EQUAL, How.EXACT) and found.target_offset == proven.target_end_offset - 1


def rest_of(compared: ContentRange, proven: ProvenRange | None) -> ContentRange | None:
    """Return the part of a range that is left to compare; None if nothing is."""
    if proven is None:
        return compared
    left = compared.model_copy(
        update={"source_start_offset": proven.source_end_offset, "target_start_offset": proven.target_end_offset}
    )
    is_over = left.source_start_offset >= left.source_end_offset and left.target_start_offset >= left.target_end_offset
    return None if is_over else left


class Anchor:
    """The leader epoch at a target offset: below it, in the same topic, the same epoch means the same log.

    :param offset: -1 where nothing was written yet.
    :param topic_id: of the target topic; empty where its brokers do not report it, and then nothing stays proven.
    """

    def __init__(self, offset: int = -1, epoch: int = -1, topic_id: str = "") -> None:
        self.offset = offset
        self.epoch = epoch
        self.topic_id = topic_id

    @classmethod
    def below(cls, wire: Wire, key: TopicPartition, target_end_offset: int) -> Anchor:
        """Take the anchor of everything below an offset.

        Take it before the log is read, and before :func:`still_holds` checks a range that is to grow: whatever is
        rewritten after that has another epoch or topic id than the anchor.
        """
        topic_id = _topic_id(wire, key[0])
        if target_end_offset <= 0:
            return cls(topic_id=topic_id)
        epoch = _epoch_at(wire, key, target_end_offset - 1)
        return cls(topic_id=topic_id) if epoch is None else cls(target_end_offset - 1, epoch, topic_id)


def still_holds(wire: Wire, proven: ProvenRange, target_topic: str, partition: int) -> bool:
    """Return whether the target's log is still the one that was read, up to the anchor.

    A log start beyond the anchor is no evidence against it: what was deleted there was proven before. A topic that was
    deleted and recreated begins with the same epochs, so its id must be the same too. A range without an id (written
    by an older release) is not trusted.
    """
    key = (target_topic, partition)
    if not proven.target_topic_id or _topic_id(wire, target_topic) != proven.target_topic_id:
        return False
    if proven.anchor_offset < 0:
        return proven.target_end_offset <= proven.target_start_offset
    if wire.list_offsets([key], "earliest")[key] > proven.anchor_offset:
        return True
    return _epoch_at(wire, key, proven.anchor_offset) == proven.anchor_epoch


def is_another_log(wire: Wire, proven: ProvenRange, target_topic: str, partition: int) -> bool:
    """Return whether the target's log is certainly not the one that was read: other topic, lower end or other epoch.

    Where configs that compact may already be restored, the batch at the anchor may be missing; that proves nothing.
    """
    key = (target_topic, partition)
    if proven.target_topic_id and _topic_id(wire, target_topic) != proven.target_topic_id:
        return True
    if proven.anchor_offset < 0 or wire.list_offsets([key], "earliest")[key] > proven.anchor_offset:
        return False
    if wire.list_offsets([key], "log_end")[key] <= proven.anchor_offset:
        return True
    epoch = _epoch_at(wire, key, proven.anchor_offset)
    return epoch is not None and epoch != proven.anchor_epoch


def _topic_id(wire: Wire, topic: str) -> str:
    """Return the id of a topic; empty if the topic does not exist or its brokers do not report it."""
    found = wire.metadata([topic]).get(topic)
    return "" if found is None or found.error_code else found.topic_id


def _epoch_at(wire: Wire, key: TopicPartition, offset: int) -> int | None:
    """Return the leader epoch of the batch that covers an offset; None if there is none."""
    try:
        batches, _ = read_batches(fetch_span(wire, key, offset, isolation=0, max_bytes=1).records)
    except OutsideOfLog:
        return None
    if not batches or not isinstance(batches[0], RawBatch) or batches[0].base_offset > offset:
        return None
    return batches[0].leader_epoch


def grown(
    former: ProvenRange | None,
    piece: ContentRange,
    content: PartitionContent,
    anchor: Anchor,
    log_starts: tuple[int, int],
) -> ProvenRange:
    """Extend a proven range by the piece that follows it, which was found equal.

    :param piece: the compared range; it begins where ``former`` ends.
    :param log_starts: log starts of source and target.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    first = former or ProvenRange(
        source_start_offset=piece.source_start_offset,
        source_end_offset=piece.source_start_offset,
        target_start_offset=piece.target_start_offset,
        target_end_offset=piece.target_start_offset,
        content=content,
        pieces=0,
        first_at=now,
    )
    return first.model_copy(
        update={
            "source_end_offset": piece.source_end_offset,
            "target_end_offset": piece.target_end_offset,
            "anchor_offset": anchor.offset,
            "anchor_epoch": anchor.epoch,
            "target_topic_id": anchor.topic_id,
            "source_log_start_offset": log_starts[0],
            "target_log_start_offset": log_starts[1],
            "content": content if former is None else joined(former.content, content),
            "pieces": first.pieces + 1,
            "last_at": now,
        }
    )


def differing(document: ProvenPartition, content: PartitionContent) -> dict[str, object]:
    """Return what a difference changes in a partition's document."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"differing": content, "differed_times": document.differed_times + 1, "differed_at": now}
