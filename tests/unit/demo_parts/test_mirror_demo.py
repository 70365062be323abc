"""The mirror demo counts what a group reads again and skips, and its exit status tells problems."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.spec.mirrors_file import parse_mirrors
from demo.mirrors import verdict, world
from demo.mirrors.failover import BY_US, GROUPS, LIVE, TOPICS, Failover, GroupsOf, _Reader
from demo.mirrors.world import ORDERS, Flow, mirrors_yaml
from demo.mirrors.world import TOPICS as LOADS
from harness.clients import GroupReader
from harness.compare import PartitionContent


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def groups(tmp_path: Any) -> GroupsOf:
    cluster: Any = SimpleNamespace(client_config=dict)
    return GroupsOf(Flow(cluster, cluster, "east", "west", tmp_path, {}))


#: Offsets 1 and 3 are holes.
OFFSETS = [0, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("read", "reread", "skipped"),
    [((4, 5, 6), 0, 0), ((2, 4, 5, 6), 1, 0), ((5, 6), 0, 1), ((4, 4, 5, 6), 1, 0), ((0, 2, 6), 2, 2), ((), 0, 3)],
)
def test_reread_and_skipped_records_are_counted(
    groups: GroupsOf, read: tuple[int, ...], reread: int, skipped: int
) -> None:
    part = PartitionContent(0, 7, array("q", OFFSETS), bytearray(b"".join(map(digest, OFFSETS))))
    content = {topic: {0: part if topic == ORDERS else PartitionContent(0, 0)} for topic in TOPICS}
    groups._left_at = {LIVE.name: {(ORDERS, 0): 3}}
    reader = GroupReader({}, "g", [])
    reader.seen["east." + ORDERS, 0] = [(offset, digest(offset)) for offset in read]
    found = groups._judge(_Reader(LIVE, BY_US, reader), content)
    assert (found.reread, found.skipped, found.read_on_target) == (reread, skipped, len(read))


def test_every_failover_that_is_not_exact_is_a_problem() -> None:
    exact = Failover("f", "g", "", BY_US, 0, 5, 0, 0)
    again = Failover("f", "again", "", BY_US, 0, 5, 1, 0)
    never = Failover("f", "never", "", BY_US, 0, 5, 0, 1)
    assert [text.split()[1] for text in verdict._group_problems([exact, again, never])] == ["again", "never"]


def test_the_file_of_the_demo_is_two_flows_without_a_cycle(tmp_path: Any) -> None:
    flows = parse_mirrors(mirrors_yaml(tmp_path))
    assert sorted(flows) == ["east->west", "west->east"]
    for name, spec in flows.items():
        source, _, target = name.partition("->")
        assert spec.mirror.two_way
        for item in LOADS:
            assert not spec.topics.why_left_out(item.name)
            assert "cycle" in spec.topics.why_left_out(f"{target}.{item.name}")
        assert spec.groups.selects(f"{world.PREFIX}{source}.{GROUPS[0].name}")
