"""Consumer groups that leave one cluster and continue on the other, with the offsets that somebody has translated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from demo.mirrors.world import ORDERS, PAYMENTS, PREFIX, Flow
from harness.clients import GroupReader, commit_offsets, committed_offsets, positions
from harness.compare import PartitionContent, TopicPartitionKey, bounds, read
from harness.mirror_client import MirrorClient
from harness.processes import HarnessError, wait_for

_READ_SECONDS = 120.0
_LIVE_RECORDS_PER_SECOND = 100

#: What all groups read.
TOPICS = (ORDERS, PAYMENTS)

Offsets = dict[TopicPartitionKey, int]
Content = Mapping[str, Mapping[int, PartitionContent]]


@dataclass(frozen=True)
class GroupPlan:
    """A group and where it is.

    :param name: what follows the source's alias: a group that has members on both clusters could not go over.
    :param behind: it has committed this many offsets below each partition's end, or at its log start; None: it reads
        while producers write, and leaves somewhere.
    """

    name: str
    where: str
    behind: int | None


LIVE = GroupPlan("billing", "reading", None)
GROUPS = (
    LIVE,
    GroupPlan("reports", "50 behind", 50),
    GroupPlan("audit", "5,000 behind", 5_000),
)

#: Who has translated the offsets, in the order of the table.
BY_KAFKA = "Kafka's RemoteClusterUtils"
BY_US = "translate group"
BY_SYNC = "the mirror's group sync"


@dataclass
class Failover:
    """How a group fared that has gone over: its records read again and skipped, which both should be 0."""

    flow: str
    group: str
    where: str
    by: str
    read_on_source: int
    read_on_target: int
    reread: int
    skipped: int


@dataclass
class _Reader:
    """A consumer on the target, and the group that it continues."""

    plan: GroupPlan
    by: str
    reader: GroupReader


@dataclass
class GroupsOf:
    """The groups of a flow: they are on its source, and go over to its target."""

    flow: Flow
    _live: GroupReader | None = None
    _left_at: dict[str, Offsets] = field(default_factory=dict)
    _readers: list[_Reader] = field(default_factory=list)

    @property
    def _on_source(self) -> dict[str, str]:
        return self.flow.source.client_config()

    @property
    def _on_target(self) -> dict[str, str]:
        return self.flow.target.client_config()

    def _name(self, plan: GroupPlan) -> str:
        return f"{PREFIX}{self.flow.source_alias}.{plan.name}"

    def settle(self) -> None:
        """Commit each group's position on the source, and let the live one read."""
        ends = bounds(self._on_source, TOPICS)
        for plan in GROUPS:
            if plan.behind is None:
                commit_offsets(self._on_source, self._name(plan), positions(self._on_source, TOPICS, 1.0))
                continue
            offsets = {
                (topic, number): max(content.end - plan.behind, content.log_start)
                for topic, numbers in ends.items()
                for number, content in numbers.items()
            }
            commit_offsets(self._on_source, self._name(plan), offsets)
        self._live = GroupReader(
            self._on_source, self._name(LIVE), TOPICS, records_per_second=_LIVE_RECORDS_PER_SECOND
        ).start()

    def has_read(self, records: int) -> bool:
        """Whether the live group has read as many records."""
        return self._live is not None and self._live.count() >= records

    def leave(self) -> None:
        """Let the live group's member commit and leave; wait until the mirror has what it has read, and says so.

        A group that goes over earlier continues at the end of the copy, and gets what arrives behind it once more.
        """
        assert self._live is not None
        self._live.stop()
        self._left_at = {plan.name: committed_offsets(self._on_source, self._name(plan), TOPICS) for plan in GROUPS}
        self.flow.wait_for(self._left_at[LIVE.name])
        self.flow.wait_published()
        self.flow.wait_synced()

    def go_over(self, kafka: MirrorClient) -> None:
        """Start a consumer of each group on the target for each way of translating, with its offsets.

        :raises HarnessError: somebody has no offset for a partition.
        """
        ways: Sequence[tuple[str, Callable[[str], Offsets]]] = (
            (BY_KAFKA, lambda group: kafka.translate(self.flow.source_alias, group)),
            (BY_US, self._translated),
            (BY_SYNC, lambda group: committed_offsets(self._on_target, group, self._remote_topics)),
        )
        for plan in GROUPS:
            for number, (by, translate) in enumerate(ways):
                offsets = translate(self._name(plan))
                wanted = {(self.flow.remote(topic), partition) for topic, partition in self._left_at[plan.name]}
                if set(offsets) != wanted:
                    raise HarnessError(f"{by}: {plan.name} has offsets of {sorted(offsets)}, not of {sorted(wanted)}")
                # The last way has committed already, and is continued under the group's own name.
                name = self._name(plan) if by == BY_SYNC else f"failed-over-{number}.{self._name(plan)}"
                if by != BY_SYNC:
                    commit_offsets(self._on_target, name, offsets)
                reader = GroupReader(self._on_target, name, self._remote_topics)
                self._readers.append(_Reader(plan, by, reader.start()))

    def _translated(self, group: str) -> Offsets:
        answer = self.flow.ask("translate", "group", self.flow.spec, group)
        return {
            (str(item["to_topic"]), int(item["partition"])): int(item["to_offset"])
            for item in answer["groups"][group]
            if item["is_copied"] and item["to_offset"] is not None
        }

    @property
    def _remote_topics(self) -> list[str]:
        return [self.flow.remote(topic) for topic in TOPICS]

    def judge(self) -> list[Failover]:
        """Wait until all consumers have read everything, and count. Producers must be frozen, and mirrors at the end.

        :raises HarnessError: a consumer does not reach the end in time.
        """
        for item in self._readers:
            wait_for(f"group {item.reader.group} at the end", item.reader.caught_up, _READ_SECONDS, 0.3)
        self.stop()
        content = read(self._on_source, TOPICS)
        return [self._judge(item, content) for item in self._readers]

    def _judge(self, item: _Reader, content: Content) -> Failover:
        """Compare what was read on the target with what the group had not read when it left the source."""
        wanted = _from(content, self._left_at[item.plan.name])
        seen = Counter(
            ((topic, partition), digest)
            for topic in TOPICS
            for partition in content[topic]
            for _, digest in item.reader.seen.get((self.flow.remote(topic), partition), [])
        )
        return Failover(
            self.flow.name,
            self._name(item.plan),
            item.plan.where,
            item.by,
            self._live.count() if item.plan is LIVE and self._live is not None else 0,
            seen.total(),
            (seen - wanted).total(),
            (wanted - seen).total(),
        )

    def stop(self) -> None:
        """End all consumers."""
        for reader in [self._live, *(item.reader for item in self._readers)]:
            if reader is not None:
                reader.stop()


def _from(content: Content, offsets: Offsets) -> Counter[tuple[TopicPartitionKey, bytes]]:
    """Records at or behind these offsets, by their digests."""
    return Counter(
        ((topic, number), part.digest(index))
        for topic, numbers in content.items()
        for number, part in numbers.items()
        for index, own in enumerate(part.offsets)
        if own >= offsets[topic, number]
    )
