"""Publishes the exact positions of consumer groups in MirrorMaker 2's formats, for its clients and for itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_kafka_migration.documents.cutover import Translation
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.mirror_maker import state_topics
from airflow_provider_kafka_migration.mirror_maker.heartbeats import Heartbeats
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.mirror_maker.state_writer import GroupPosition, StateWriter, Written
from airflow_provider_kafka_migration.naming.policies import DefaultPolicy, FlowNames
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.translate.translator import Translator


class StatePublisher:
    """Writes checkpoints, offset syncs and heartbeats of one flow, round by round.

    Only positions that the copy has reached are published: a checkpoint whose target offset does not exist yet would
    send consumers to the end. One publisher per flow: two would undo each other's checkpoints.

    :param context: a context that only reads.
    :raises TopologyRefused: a state topic cannot be created, or has several partitions.
    :raises ForeignData: a state topic holds something that another tool has written, or a tombstone.
    """

    def __init__(self, context: PhaseContext, topics: StateTopics) -> None:
        self._context = context
        #: groups whose offsets the last round could not read, and so has left as they were
        self.unread: dict[str, MigrationError] = {}
        self._translator = Translator(context)
        own = [topics.heartbeats, topics.remote_heartbeats]
        self.created = state_topics.create(context.target, [*topics.of_groups("target"), *own])
        syncs_on = context.source if topics.syncs_on == "source" else None
        if syncs_on is not None:
            self.created += state_topics.create(syncs_on, topics.of_groups("source"))
        self._writer = StateWriter(context.target, topics, syncs_on)
        self._heartbeats = Heartbeats(context.source, context.target, topics, _names(context, topics).remote_heartbeats)

    def publish(self) -> Written:
        """Read the groups and the offset map again, and write what has changed.

        A group whose offsets cannot be read holds up no other one: it is in :attr:`unread`.

        :raises MigrationError: the groups cannot be read, or the target has not taken a record. Nothing is lost: the
            next round writes it.
        """
        self._translator.refresh()
        written = self._writer.write(self._positions(), self._translator.last_records())
        self._heartbeats.beat()
        return replace(written, heartbeats=self._heartbeats.count)

    def _positions(self) -> Iterator[GroupPosition]:
        last = self._translator.last_records()
        selects, self.unread = self._context.spec.groups.selects, {}
        for group, positions in self._translator.selected_groups(selects, unread=self.unread).items():
            for item in positions:
                if item.to_offset is None or not item.is_copied:
                    continue
                end = last.get((item.from_topic, item.partition))
                has_place = item.how in (Translation.EQUAL, Translation.EXACT)
                has_record = has_place and end is not None and item.from_offset <= end[0]
                yield GroupPosition(
                    group,
                    item.from_topic,
                    item.to_topic,
                    item.partition,
                    item.from_offset,
                    item.to_offset,
                    item.metadata,
                    has_record,
                )


def _names(context: PhaseContext, topics: StateTopics) -> FlowNames:
    """Return the names of the flow; those of a mirror know further aliases."""
    mirror = context.spec.mirror
    known = mirror.aliases if context.spec.kind == "mirror" else frozenset()
    aliases = frozenset({topics.source_alias, topics.target_alias, *known})
    policy = DefaultPolicy(aliases, topics.separator)
    return FlowNames(policy, topics.source_alias, topics.target_alias, mirror.max_hops, aliases, topics.separator)
