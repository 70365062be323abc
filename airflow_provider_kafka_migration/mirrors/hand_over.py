"""Hands a mirror that has ended over to MirrorMaker 2: it goes on behind the last record that was mirrored.

MirrorMaker 2 begins where its source offsets say, and writes behind whatever is on the target. So its source offsets
are the ends of the finished offset map, and a partition is handed over only as long as its copy ends the log: if
somebody has written behind it, MirrorMaker 2 may have gone on already, and would copy everything since a second time.

A copier that was suspended could still write behind what MirrorMaker 2 has copied. So the copiers are fenced first, as
at a promotion, and the log may then go on with the fence's markers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.adoption.mirror_maker import read_records
from airflow_provider_kafka_migration.documents.copy import CopyPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerRefused, IllegalTransition, MigrationError, OffsetMapInvalid
from airflow_provider_kafka_migration.freeze import fence
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import LogEnds, read_ends, read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.mirror_maker.source_offsets import (
    CONNECTOR,
    OffsetsTopic,
    SourcePosition,
    last_positions,
    parse_position,
)
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateMessage, StateSender
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import closed_maps
from airflow_provider_kafka_migration.record.partition_names import partition_name, target_key
from airflow_provider_kafka_migration.state import State, mirror_name
from airflow_provider_kafka_migration.topics import topics_gone

PHASE = "hand_over"
#: ``replication.policy.class`` by ``mirror.naming``.
MIRROR_MAKER_POLICIES = {
    "default": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    "identity": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
}


@dataclass(frozen=True)
class HandedOver:
    """What was written.

    :param topic: the offsets topic.
    :param positions: the last mirrored source offset by source partition, as it was written; None: nothing was
        mirrored, so MirrorMaker 2 begins at the start.
    :param refused: why a partition was not handed over. Nothing is written if there is one.
    :param gone: partitions without a position, because their topic was deleted on the source.
    """

    topic: str
    positions: dict[TopicPartition, int | None] = field(default_factory=dict)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    gone: dict[TopicPartition, str] = field(default_factory=dict)


def hand_over(context: PhaseContext, *, offsets_topic: str = "", connector: str = CONNECTOR) -> HandedOver:
    """Write the source offsets, and read them back. MirrorMaker 2 must not run meanwhile.

    :param context: a context that only reads; no claim is needed, because the mirror has ended.
    :param offsets_topic: its ``offset.storage.topic``; empty: that of dedicated mode.
    :param connector: the connector's name; in dedicated mode there is only one.
    :raises IllegalTransition: the mirror has not ended, or MirrorMaker 2 cannot name topics as it does.
    :raises OffsetMapInvalid: it has ended without a finished offset map.
    :raises MigrationError: the target does not answer, or refuses to write.
    """
    section = context.spec.mirror
    _check_naming(context)
    document = _finished_map(context)
    topic = OffsetsTopic(section.source_alias, offsets_topic)
    found = HandedOver(topic.topic)
    partitions = dict(sorted(context.record.partitions().items()))
    _check_source(context, partitions, found)
    left = {key: item for key, item in partitions.items() if key not in found.gone}
    found.refused.update(_refused(context, left, document))
    if not found.refused:
        found.refused.update(_fence(context, left, document))
    if found.refused:
        return found
    topic.create(context.target.admin)
    known = _positions(context.target, topic, connector)
    ends = closed_maps(document)
    for key in left:
        until = ends[key].source_end_offset or 0
        found.positions[key] = until - 1 if until > 0 else None
    messages = list(_messages(found, known, topic, connector))
    StateSender(context.target.config, context.target.wire).send(messages)
    _check_written(found, _positions(context.target, topic, connector), context)
    return found


def _check_naming(context: PhaseContext) -> None:
    """Check that MirrorMaker 2 can name the topics as the mirror did.

    :raises IllegalTransition: none of its replication policies does.
    """
    naming = context.spec.mirror.naming
    if naming not in MIRROR_MAKER_POLICIES:
        raise IllegalTransition(
            f"a mirror with mirror.naming: {naming} is not handed over: none of MirrorMaker 2's replication policies "
            "names topics like that, so it would copy to other topics, from where this mirror has ended",
            where=context.record.where(PHASE),
            next_step="let MirrorMaker 2 copy to topics of other names, from their starts",
        )


def _finished_map(context: PhaseContext) -> OffsetMapDocument:
    record = context.record
    record.journal.refresh()
    state = record.journal.tip_state
    if state is not State.ENDED:
        raise IllegalTransition(
            "only a mirror that has ended is handed over; this one is "
            + ("not started" if state is None else mirror_name(state)),
            where=record.where(PHASE),
            next_step="end it first (kafka-migration mirror end FILE); a promoted target is not written any more",
        )
    document = record.offset_map()
    if document is None:
        raise OffsetMapInvalid(
            "the mirror has ended without a finished offset map, so nobody knows how far it has copied",
            where=record.where(PHASE),
            next_step="let MirrorMaker 2 copy to topics of other names, from their starts",
        )
    return document


def _check_source(context: PhaseContext, partitions: dict[TopicPartition, CopyPartition], found: HandedOver) -> None:
    """Note the partitions whose topic on the source is gone, is another one by now, or cannot be described.

    Only what every broker says is a deletion: without a position MirrorMaker 2 copies the topic a second time.
    """
    admin, planned = context.source.admin, {item.topic: item.topic_id for item in partitions.values()}
    topics = admin.describe_topics(sorted(planned))
    missing = [name for name in sorted(planned) if _is_unknown(topics.get(name))]
    gone = topics_gone.confirm(admin, planned, missing)
    for key, item in partitions.items():
        facts = topics.get(item.topic)
        if facts is None:
            found.refused[key] = "the source did not answer for its topic"
        elif _is_unknown(facts) and item.topic in gone and not topics_gone.was_created_again(gone[item.topic]):
            found.gone[key] = "its topic on the source was deleted, so nothing of it is left to copy"
        elif _is_unknown(facts):
            found.refused[key] = (
                "a broker of the source does not know its topic, and not all of them say that it was deleted: try again"
            )
        elif facts.error is not None:
            found.refused[key] = f"its topic on the source cannot be described: {facts.error}"
        elif item.topic_id and facts.topic_id != item.topic_id:
            found.refused[key] = "its topic on the source was deleted and created again since it was mirrored"


def _is_unknown(facts: TopicFacts | None) -> bool:
    error = None if facts is None else facts.error
    return error is not None and error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


def _refused(
    context: PhaseContext, partitions: dict[TopicPartition, CopyPartition], document: OffsetMapDocument
) -> Iterator[tuple[TopicPartition, str]]:
    """Yield the partitions whose copy does not end the target's log, with the reason."""
    ends = closed_maps(document)
    logs = read_ends(context.target.wire, [target_key(item) for item in partitions.values()])
    for key, item in partitions.items():
        log, found = logs[target_key(item)], ends.get(key)
        if found is None or found.target_end_offset is None:
            yield key, "the finished offset map does not have it"
        elif item.verdict is Verdict.TRANSACTIONAL:
            yield key, "others write to its target topic, so nobody can tell whether MirrorMaker 2 has gone on"
        elif isinstance(log, MigrationError):
            yield key, log.what
        elif isinstance(log, LogEnds) and (why := _behind(context, item, log, found.target_end_offset)):
            yield key, why


def _behind(context: PhaseContext, item: CopyPartition, log: LogEnds, copy_end: int) -> str:
    """Return what lies behind a copy, or may lie there; empty: nothing but markers of the fence."""
    if log.log_end_offset == copy_end:
        return ""
    ids, end = context.record.producer_ids(), copy_end
    try:
        for batch in read_span(
            context.target.wire, target_key(item), copy_end, log.log_end_offset, isolation=READ_UNCOMMITTED
        ):
            if not fence.is_marker_of(batch, ids.data_producer_id, ids.data_producer_epoch):
                break
            end = batch.next_offset
    except MigrationError as error:
        return error.what
    if end == log.log_end_offset:
        return ""
    return (
        f"the target's log ends at {log.log_end_offset}, and the copy at {copy_end}: somebody has written behind it, "
        "perhaps MirrorMaker 2 itself"
    )


def _fence(
    context: PhaseContext, partitions: dict[TopicPartition, CopyPartition], document: OffsetMapDocument
) -> Iterator[tuple[TopicPartition, str]]:
    """Fence the copiers; yield the partitions that are not fenced, or to which a copier wrote before."""
    if not context.spec.cutover.fence_copiers:
        return
    wanted = [item for item in document.partitions if (item.topic, item.partition) in partitions]
    _, problems = fence.fence_markers(
        context.record, context.target, document.model_copy(update={"partitions": wanted})
    )
    for key, item in partitions.items():
        if (error := problems.get(target_key(item))) is not None:
            yield key, f"a suspended copier of the mirror could still write there, it is not fenced: {error.what}"
    fenced = {key: item for key, item in partitions.items() if target_key(item) not in problems}
    yield from _refused(context, fenced, document)


def _positions(target: Cluster, topic: OffsetsTopic, connector: str) -> dict[TopicPartition, int]:
    parsed = (parse_position(item, topic.source_alias) for item in read_records(target, topic.topic))
    return last_positions((item for item in parsed if item is not None), connector)


def _messages(
    found: HandedOver, known: dict[TopicPartition, int], topic: OffsetsTopic, connector: str
) -> Iterator[StateMessage]:
    """Yield what is not there yet; a position of a former MirrorMaker 2 is replaced or removed."""
    for key, offset in _wanted(found).items():
        if known.get(key) != offset:
            yield StateMessage(topic.topic, *SourcePosition(connector, key, offset).encode(topic.source_alias))


def _wanted(found: HandedOver) -> dict[TopicPartition, int | None]:
    """Return the positions that are to be there. A topic that comes back is another one: it begins at its start."""
    return {**found.positions, **dict.fromkeys(found.gone)}


def _check_written(found: HandedOver, read: dict[TopicPartition, int], context: PhaseContext) -> None:
    wanted = _wanted(found)
    wrong = [key for key, offset in wanted.items() if read.get(key) != offset]
    if wrong:
        raise BrokerRefused(
            f"{len(wrong)} source offsets in {found.topic} are others than those that were written; the first is for "
            f"{partition_name(wrong[0])}: {read.get(wrong[0])} instead of {wanted[wrong[0]]}",
            where=context.where(PHASE, cluster="target", topic=found.topic),
            next_step="check that no MirrorMaker 2 runs for this flow, then run the command again",
        )
