"""Three consumer groups with different offsets, their switch to the target, and its effect on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demo.access import GROUP_PREFIX, PREFIX
from harness.clients import GroupReader, commit_offsets, committed_offsets, judge_group, positions
from harness.compare import PartitionContent, TopicPartitionKey, read
from harness.processes import wait_for

_CATCH_UP_SECONDS = 120.0
_LIVE_RECORDS_PER_SECOND = 50

Config = Mapping[str, Any]
Offsets = dict[TopicPartitionKey, int]


@dataclass(frozen=True)
class GroupPlan:
    """A group: its topics, its position (0 log start, 1 end), and a partition it has never committed."""

    name: str
    topics: tuple[str, ...]
    fraction: float
    never: TopicPartitionKey | None = None


#: At the end; keeps consuming on the source until it is switched.
LIVE = GroupPlan(f"{GROUP_PREFIX}billing", (f"{PREFIX}orders", f"{PREFIX}payments"), 1.0)
#: In the middle.
HALFWAY = GroupPlan(f"{GROUP_PREFIX}reports", (f"{PREFIX}customers", f"{PREFIX}clicks", f"{PREFIX}orders"), 0.5)
#: Never committed on one partition.
PARTLY = GroupPlan(f"{GROUP_PREFIX}audit", (f"{PREFIX}payments", f"{PREFIX}alerts"), 0.75, (f"{PREFIX}payments", 1))

GROUPS = (LIVE, HALFWAY, PARTLY)


@dataclass
class Switched:
    """The effect of the switch on one group. ``reread`` and ``skipped`` count records and should be 0."""

    group: str
    reread: int
    skipped: int
    read_on_source: int
    read_on_target: int


@dataclass
class Groups:
    """The groups of the demo.

    :param source: super user's librdkafka keys of the source; ``target`` likewise.
    :param on_source: the consumers' own librdkafka keys there; ``on_target`` likewise.
    """

    source: Config
    target: Config
    on_source: Config
    on_target: Config
    _started_at: dict[str, Offsets] = field(default_factory=dict)
    _live: GroupReader | None = None

    def settle(self) -> None:
        """Commit each group's position on the source, and start the live one."""
        for plan in GROUPS:
            offsets = positions(self.source, plan.topics, plan.fraction)
            if plan.never is not None:
                del offsets[plan.never]
            commit_offsets(self.on_source, plan.name, offsets)
            self._started_at[plan.name] = offsets
        # Slower than the producer, so that unread records are left when it is switched, at any position.
        self._live = GroupReader(
            self.on_source, LIVE.name, LIVE.topics, records_per_second=_LIVE_RECORDS_PER_SECOND
        ).start()

    def live_records(self) -> int:
        """Records that the live group has consumed so far."""
        return self._live.count() if self._live is not None else 0

    def leave_source(self) -> None:
        """Let the live group's member commit and leave: the first half of its switch."""
        if self._live is not None:
            self._live.stop()

    def committed(self, config: Config) -> dict[str, Offsets]:
        """Group -> its committed offsets on a cluster."""
        return {plan.name: committed_offsets(config, plan.name, plan.topics) for plan in GROUPS}

    def switch(self) -> list[Switched]:
        """Let all groups continue on the target up to its end; return what each of them got twice or never."""
        return [self._switch(plan) for plan in GROUPS]

    def stop(self) -> None:
        """End the live consumer, whatever happened."""
        self.leave_source()

    def _switch(self, plan: GroupPlan) -> Switched:
        before = [self._live] if plan is LIVE and self._live is not None else []
        reader = GroupReader(self.on_target, plan.name, plan.topics)
        with reader:
            wait_for(f"group {plan.name} at the target's end", reader.caught_up, _CATCH_UP_SECONDS, 0.3)
        on_source = read(self.source, plan.topics)
        started_at = self._started_at[plan.name]
        judged = judge_group([*before, reader], started_at, on_source)
        return Switched(
            plan.name,
            judged.reread + _read_from_before(reader, started_at, on_source),
            judged.skipped,
            sum(item.count() for item in before),
            reader.count(),
        )


def _read_from_before(
    reader: GroupReader, started_at: Offsets, content: Mapping[str, Mapping[int, PartitionContent]]
) -> int:
    """Records that a group got although it had committed beyond them long before."""
    again = 0
    for (topic, number), seen in reader.seen.items():
        part = content[topic][number]
        done = _digests_below(part, started_at.get((topic, number), 0))
        again += sum(digest in done for _, digest in seen)
    return again


def _digests_below(part: PartitionContent, offset: int) -> set[bytes]:
    return {part.digest(index) for index, own in enumerate(part.offsets) if own < offset}


def names(plans: Sequence[GroupPlan] = GROUPS) -> list[str]:
    """Names of the groups."""
    return [plan.name for plan in plans]
