"""Heartbeats of MirrorMaker 2: this flow's own, and those of the source under their remote names.

``heartbeats`` on the target gets the flow's own beat: the flow works, whatever the source does. What the source has in
its topics of heartbeats is copied to the target with the source's alias in front, the newest beat of each key. So
``<alias>.heartbeats`` gets nothing new while the source does not answer, and a chain of flows has a copy of a copy, by
whose name clients count the hops.

Who may not write to a source has no beat there that could be copied. Then an answer of the source takes its place: the
beat has the key that MirrorMaker 2 would have written on the source, and the time at which the source was asked.

These topics are no part of the copy: a beat each second for years would be all holes after compaction, and a promotion
waits until nobody writes to the source. So only the newest beat of each key is copied, without its offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from airflow_provider_kafka_migration.errors import HANDS_OFF, ForeignData, MigrationError, PermissionMissing
from airflow_provider_kafka_migration.mirror_maker.formats import Heartbeat
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateCluster, StateTopics, create
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateLog, StateMessage, StateSender, decoded

#: How often the source's topics are listed, to find further topics of heartbeats.
_LIST_SECONDS = 60.0
#: How many of the last offsets of a topic are read at the start. A key without a beat among them is copied with its
#: next one.
_LAST = 1_000
#: A beat that has not arrived after this time is dropped: the next one says more.
_PATIENCE_SECONDS = 10.0
#: What concerns one topic, and says that the cluster has answered.
_OF_ONE_TOPIC = (ForeignData, PermissionMissing)


def _unchecked() -> None:
    return None


class Heartbeats:
    """Writes heartbeats round by round. Not thread-safe.

    :param remote_names: returns the names on the target of those topics of the source that are heartbeats.
    :param on_source: whether beats are written to the source, too.
    """

    def __init__(
        self,
        source: StateCluster,
        target: StateCluster,
        topics: StateTopics,
        remote_names: Callable[[Iterable[str]], Mapping[str, str]],
        *,
        on_source: bool = False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._target, self._topics = source, target, topics
        self._remote_names, self._on_source = remote_names, on_source
        self._clock, self._steady = clock, steady
        self._logs: dict[str, tuple[StateLog, str]] = {}
        self._listed_at: float | None = None
        self._created: set[tuple[str, str]] = set()
        #: what the target's topics have, and what they are still to get, by (topic, key)
        self._written: dict[tuple[str, bytes], bytes] = {}
        self._left: dict[tuple[str, bytes], bytes] = {}
        #: how many beats the target got in the last round
        self.count = 0
        self._to_target = StateSender(target.config, target.wire, patience_seconds=_PATIENCE_SECONDS)
        self._to_source = (
            StateSender(source.config, source.wire, patience_seconds=_PATIENCE_SECONDS) if on_source else None
        )

    @property
    def replicated_ms(self) -> int | None:
        """Time of the newest beat of the source that the target has, in ms since 1970; None: it has none, or too old.

        Those that came from further away do not count: only the source itself writes its own.
        """
        name = self._topics.remote_heartbeats
        beats = [Heartbeat.decode(key, value) for (topic, key), value in self._written.items() if topic == name]
        return max((beat.timestamp_ms for beat in beats), default=None)

    def beat(self, check: Callable[[], None] = _unchecked) -> None:
        """Write one round.

        The flow's own beat does not depend on the source; a problem of the source is raised when the target has it.

        :param check: called directly before each write; what it raises ends the round.
        :raises ForeignData: a topic of this name has records of another format.
        :raises MigrationError: a cluster does not answer, or refuses; the next round tries again.
        """
        problem: MigrationError | None = None
        now_ms = int(self._clock() * 1000)
        try:
            self._ask_source(now_ms, check)
        except HANDS_OFF:
            raise
        except MigrationError as error:
            problem = error
            self._forget_topics(error)
        self._write(now_ms, check)
        if problem is not None:
            raise problem

    def _write(self, now_ms: int, check: Callable[[], None]) -> None:
        """Write the flow's own beat and what the source gave; what is not written stays for the next round."""
        topics = self._topics
        self._prepare(self._target, topics.heartbeats)
        own = Heartbeat(topics.source_alias, topics.target_alias, now_ms).encode()
        left = dict(self._left)
        check()
        try:
            self._to_target.send(
                [
                    StateMessage(topics.heartbeats, *own, partition=0),
                    *(StateMessage(topic, key, value, partition=0) for (topic, key), value in left.items()),
                ]
            )
        except MigrationError as error:
            self._forget_topics(error)
            raise
        self._written.update(left)
        self._left.clear()
        self.count = 1 + len(left)

    def _forget_topics(self, error: MigrationError) -> None:
        """Look at the topics again in the next round: they may have been deleted."""
        if not isinstance(error, _OF_ONE_TOPIC):
            self._listed_at = None
            self._created.clear()

    def _ask_source(self, now_ms: int, check: Callable[[], None]) -> None:
        """Take the newest beats of the source; note that it has answered, where that counts as a beat.

        A topic that may not be read, or has records of others, is left out, and named when the others have been read.
        """
        topics = self._topics
        if self._to_source is not None:
            self._prepare(self._source, topics.heartbeats)
        self._list_if_due()
        problem: MigrationError | None = None
        if self._to_source is not None:
            key, value = Heartbeat(topics.target_alias, topics.source_alias, now_ms).encode()
            check()
            self._to_source.send([StateMessage(topics.heartbeats, key, value, partition=0)])
        elif not self._logs:
            self._source.wire.metadata([])
        for log, remote in self._logs.values():
            try:
                self._take(log, remote)
            except _OF_ONE_TOPIC as error:
                problem = problem or error
        if self._to_source is None:
            self._prepare(self._target, topics.remote_heartbeats)
            key, value = Heartbeat(topics.target_alias, topics.source_alias, now_ms).encode()
            self._left[topics.remote_heartbeats, key] = value
        if problem is not None:
            raise problem

    def _list_if_due(self) -> None:
        now = self._steady()
        if self._listed_at is not None and now - self._listed_at < _LIST_SECONDS:
            return
        found = self._remote_names(self._source.wire.metadata(None))
        self._logs = {
            name: self._logs.get(name) or (StateLog(self._source.wire, name, last=_LAST), remote)
            for name, remote in found.items()
        }
        self._listed_at = now

    def _take(self, log: StateLog, remote: str) -> None:
        """Take the beats that a topic of the source has got. The target's copy is created with the first one."""
        read = log.read()
        foreign: ForeignData | None = None
        for key, value in read.values.items():
            try:
                decoded(read, key, value, Heartbeat.decode)
            except ForeignData as error:
                foreign = error
                continue
            self._prepare(self._target, remote)
            if self._written.get((remote, key)) != value:
                self._left[remote, key] = value
        if foreign is not None:
            raise foreign

    def _prepare(self, cluster: StateCluster, topic: str) -> None:
        """Create a topic that is missing, and check that one that exists has heartbeats; once.

        :raises ForeignData: its last records are none.
        """
        if (cluster.role, topic) in self._created:
            return
        create(cluster, [topic])
        read = StateLog(cluster.wire, topic, last=_LAST).read()
        for key, value in read.values.items():
            decoded(read, key, value, Heartbeat.decode)
            if cluster.role == "target":
                self._written[topic, key] = value
        self._created.add((cluster.role, topic))
