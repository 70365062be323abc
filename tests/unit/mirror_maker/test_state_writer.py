"""Which records a round writes: only changes, only what readers translate to the right place. Against brute force."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint, OffsetSync
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.mirror_maker.state_writer import GroupPosition, StateWriter, _Known
from airflow_provider_kafka_migration.offset_map.runs import How, OffsetRange, PartitionMap

TOPICS = StateTopics("A", "B")


def writer() -> Any:
    """A writer without connections, whose topics are empty."""
    made = StateWriter.__new__(StateWriter)
    made._topics, made._known, made._logs = TOPICS, _Known(), ()  # type: ignore[assignment]
    made.sent = []  # type: ignore[attr-defined]
    made._send = made._send_syncs = made.sent.extend  # type: ignore[attr-defined, method-assign]
    made._read = lambda: None  # type: ignore[method-assign]
    return made


def position(offset: int, there: int | None = None, *, has_record: bool = True, group: str = "g") -> GroupPosition:
    return GroupPosition(group, "t", "A.t", 0, offset, offset if there is None else there, "", has_record)


def test_a_round_writes_only_what_has_changed() -> None:
    made = writer()
    first = made.write([position(5)], {("t", 0): (9, 9)})
    assert (first.checkpoints, first.offset_syncs) == (1, 2)
    again = made.write([position(5)], {("t", 0): (9, 9)})
    assert (again.checkpoints, again.offset_syncs) == (0, 0)
    back = made.write([position(3)], {("t", 0): (9, 9)})
    assert (back.checkpoints, back.offset_syncs) == (1, 0), "a group that was set back, and no smaller sync"


def test_nothing_counts_as_written_that_the_target_did_not_take() -> None:
    made = writer()

    def refuse(_items: Any) -> None:
        raise OSError

    good, made._send = made._send, refuse
    made._send_syncs = refuse
    with pytest.raises(OSError):
        made.write([position(5)], {("t", 0): (9, 9)})
    made._send = made._send_syncs = good
    assert made.write([position(5)], {("t", 0): (9, 9)}).checkpoints == 1


def test_a_text_that_is_too_long_keeps_no_other_group_from_being_written() -> None:
    made = writer()
    long = position(5, group="long")._replace(metadata="ü" * 16_384)
    assert made.write([long, position(6)], {}).checkpoints == 2
    found = [Checkpoint.decode(item.key, item.value) for item in made.sent if item.topic == TOPICS.checkpoints]
    assert {(item.group, item.upstream_offset, item.metadata) for item in found} == {("long", 5, ""), ("g", 6, "")}
    assert made.write([long, position(6)], {}).checkpoints == 0


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[int], PartitionMap]:
    """Source offsets that have records, with holes that were not filled, and the map of the copy."""
    offsets, runs, source = [], [OffsetRange(0, 0)], 0
    for gap in draw(st.lists(st.sampled_from([0, 0, 0, 1, 4]), min_size=1, max_size=30)):
        if gap:
            source += gap
            runs.append(OffsetRange(source, len(offsets)))
        offsets.append(source)
        source += 1
    return offsets, PartitionMap(runs)


def read_back(syncs: list[OffsetSync], offset: int) -> int:
    """How MirrorMaker 2 translates a group's offset (OffsetSyncStore): behind the sync's record, never beyond it."""
    below = [sync for sync in syncs if sync.upstream_offset <= offset]
    if not below:
        return 0
    sync = below[-1]
    return sync.downstream_offset if sync.upstream_offset == offset else sync.downstream_offset + 1


@given(partitions(), st.lists(st.integers(0, 60), max_size=6))
def test_no_offset_sync_makes_a_reader_skip_a_record(made: tuple[list[int], PartitionMap], groups: list[int]) -> None:
    offsets, found = made
    end = offsets[-1] + 1
    positions = []
    for offset in sorted(groups):
        there, how = found.translate(min(offset, end))
        assert there is not None
        exact = how in (How.EQUAL, How.EXACT) and min(offset, end) < end
        positions.append(position(min(offset, end), there, has_record=exact, group=f"g{len(positions)}"))
    target = writer()
    target.write(positions, {("t", 0): (offsets[-1], len(offsets) - 1)})
    syncs = [OffsetSync.decode(item.key, item.value) for item in target.sent if item.topic == TOPICS.offset_syncs]
    assert syncs == sorted(syncs)
    for offset in range(end + 3):
        unread = [number for number, at in enumerate(offsets) if at >= offset]
        assert read_back(syncs, offset) <= (unread[0] if unread else len(offsets)), f"offset {offset} skips"
    checkpoints = [Checkpoint.decode(item.key, item.value) for item in target.sent if item.topic == TOPICS.checkpoints]
    assert {(item.upstream_offset, item.downstream_offset) for item in checkpoints} == {
        (item.upstream_offset, item.downstream_offset) for item in positions
    }


def test_names() -> None:
    assert TOPICS.names() == ["A.checkpoints.internal", "mm2-offset-syncs.A.internal", "heartbeats", "A.heartbeats"]
    other = StateTopics("dc1", "dc2", "__", "__")
    assert other.checkpoints == "dc1__checkpoints__internal"
    assert other.remote_heartbeats == "dc1__heartbeats"
    assert StateTopics("A", "B", "_", ".").names()[::3] == ["A.checkpoints.internal", "A_heartbeats"]
    on_source = StateTopics("A", "B", syncs_on="source")
    assert on_source.of_groups("source") == ["mm2-offset-syncs.B.internal"], "it is named after the other cluster"
    assert on_source.of_groups("target") == ["A.checkpoints.internal"]
    assert TOPICS.of_groups("source") == []


@pytest.mark.parametrize("aliases", [("my.src", "B"), ("A", "b.c"), ("", "B"), ("A", "A")])
def test_aliases_that_clients_could_not_tell_from_topics_are_refused(aliases: tuple[str, str]) -> None:
    with pytest.raises(SpecInvalid):
        StateTopics(*aliases)
