"""Names of remote topics: made and taken apart again, cycles, hops."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import NamingPolicyUnusable
from airflow_provider_kafka_migration.naming.policies import (
    DefaultPolicy,
    FlowNames,
    RenamePolicy,
    hops,
    load_policy,
    why_unusable_alias,
)
from airflow_provider_kafka_migration.spec.mirror import MirrorSection
from airflow_provider_kafka_migration.spec.sections import RenameSection, TopicsSection

_NAME = st.text("ab.-_", min_size=1, max_size=6)
_SEPARATOR = st.text(".-_", min_size=1, max_size=3)


@given(st.lists(_NAME, min_size=1, max_size=4, unique=True), _SEPARATOR, _NAME, st.data())
def test_a_name_is_taken_apart_as_it_was_made(
    aliases: list[str], separator: str, topic: str, data: st.DataObject
) -> None:
    """Any usable aliases, any separator, several hops: the way back names each cluster, in order."""
    usable = [alias for alias in aliases if not why_unusable_alias(alias, separator)]
    assume(usable)
    policy = DefaultPolicy(frozenset(usable), separator)
    assume(policy.topic_source(topic) is None)
    path = data.draw(st.lists(st.sampled_from(usable), max_size=4))
    name = topic
    for alias in path:
        name = policy.format_remote_topic(alias, name)
    assert hops(policy, name) == tuple(reversed(path))
    if path:
        assert policy.topic_source(name) == path[-1]


@given(_NAME, _SEPARATOR, st.text("ab.-_", max_size=6))
def test_an_alias_is_unusable_exactly_if_names_with_it_are_ambiguous(alias: str, separator: str, rest: str) -> None:
    if not why_unusable_alias(alias, separator):
        assert f"{alias}{separator}{rest}".partition(separator)[0] == alias
    else:
        assert f"{alias}{separator}".partition(separator)[0] != alias


def test_only_known_aliases_count() -> None:
    """MirrorMaker 2 takes a local topic ``a.b`` for a remote topic of ``a``."""
    policy = DefaultPolicy(frozenset({"A", "B"}))
    assert (policy.topic_source("A.orders"), policy.upstream_topic("A.orders")) == ("A", "orders")
    for local in ("a.b", "orders.A", "A", "A.", ".A", "AB.orders"):
        assert policy.topic_source(local) is None
        assert policy.upstream_topic(local) is None


@pytest.mark.parametrize(
    ("alias", "separator"), [("a.b", "."), ("a-", "--"), ("a b", "."), ("", "."), ("x__y", "__"), ("a_", "__")]
)
def test_unusable_aliases(alias: str, separator: str) -> None:
    assert why_unusable_alias(alias, separator)


def _flow(source: str, target: str, max_hops: int | None = None) -> FlowNames:
    return FlowNames(DefaultPolicy(frozenset({"A", "B", "C"})), source, target, max_hops)


def test_a_topic_never_goes_back_to_a_cluster_that_it_came_through() -> None:
    back = _flow("B", "A")
    assert back.why_not("orders") == ""
    assert back.why_not("C.orders") == ""
    assert "cycle" in back.why_not("A.orders")
    assert "cycle" in back.why_not("C.A.orders")
    assert back.why_not("a.orders") == "", "a local topic"


def test_flows_in_a_ring_come_to_rest() -> None:
    """Three clusters, all six flows, repeated until nothing changes: each topic is once on each path, and no longer."""
    flows = [_flow(source, target) for source in "ABC" for target in "ABC" if source != target]
    topics = {name: {"orders"} for name in "ABC"}
    for _ in range(20):
        before = {name: set(found) for name, found in topics.items()}
        for flow in flows:
            found = {flow.remote(topic) for topic in before[flow.source_alias] if not flow.why_not(topic)}
            topics[flow.target_alias] |= found
        if topics == before:
            break
    else:
        pytest.fail("the names never come to rest")
    assert topics["A"] == {"orders", "B.orders", "C.orders", "B.C.orders", "C.B.orders"}


def test_hops_are_limited() -> None:
    flow = _flow("B", "C", max_hops=1)
    assert flow.why_not("orders") == ""
    assert "max_hops" in flow.why_not("A.orders")
    assert _flow("B", "C", max_hops=2).why_not("A.orders") == ""


def test_renamed_topics_say_nothing_about_their_source() -> None:
    policy = RenamePolicy("copy-", {"orders": "bookings"})
    assert policy.format_remote_topic("A", "orders") == "bookings"
    assert policy.format_remote_topic("A", "payments") == "copy-payments"
    assert hops(policy, "copy-payments") == ()


@pytest.mark.parametrize("separator", [".", "_", "-", "__"])
@pytest.mark.parametrize("naming", ["default", "identity", "rename"])
def test_state_topics_of_mirror_maker_are_left_out(separator: str, naming: Any) -> None:
    """``translate publish`` writes them on the target; one of them would stop the following of all new topics."""
    section = MirrorSection(source_alias="A", target_alias="B", known_aliases=["C"], naming=naming, separator=separator)
    topics = TopicsSection().of_flow(RenameSection(), section.names(RenameSection()))
    written = [
        "heartbeats",
        f"A{separator}heartbeats",
        f"C{separator}A{separator}heartbeats",
        f"A{separator}checkpoints{separator}internal",
        f"mm2-offset-syncs{separator}B{separator}internal",
        f"mm2-configs{separator}A{separator}internal",
    ]
    assert [name for name in written if topics.selects(name)] == []
    assert "the mirror, translate publish or MirrorMaker 2 writes it" in topics.why_left_out(f"A{separator}heartbeats")
    users = [
        "my-heartbeats",
        "heartbeats-1",
        "heartbeats.x",
        "a.heartbeats",
        "shop_heartbeats",
        "checkpoints",
        "internal",
    ]
    assert [name for name in users if not topics.selects(name)] == []


def test_internal_topics_may_have_a_separator_of_their_own() -> None:
    """``replication.policy.internal.topic.separator.enabled=false``; some include them by name."""
    keys: dict[str, Any] = {"source_alias": "A", "target_alias": "B", "separator": "_"}
    named = TopicsSection(include=["A.checkpoints.internal", "A_checkpoints_internal"])
    section = MirrorSection(**keys, state_topics={"internal_separator": "."})
    topics = named.of_flow(RenameSection(), section.names(RenameSection()))
    assert [name for name in named.include if topics.selects(name)] == []
    plain = named.of_flow(RenameSection(), MirrorSection(**keys).names(RenameSection()))
    assert [name for name in named.include if plain.selects(name)] == ["A.checkpoints.internal"], "a user's topic"


class _Suffix:
    """A policy of somebody else's: the alias behind the name; it has only KIP-382's two methods."""

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        return f"{topic}@{source_cluster_alias}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition("@")[2] if "@" in topic else None


class _Endless(_Suffix):
    def upstream_topic(self, topic: str) -> str:
        return topic


def test_a_policy_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("naming_of_somebody_else")
    module.Suffix, module.Nothing = _Suffix, object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    policy = load_policy(f"{module.__name__}.Suffix")
    assert policy.format_remote_topic("A", "orders") == "orders@A"
    assert hops(policy, "orders@A@B") == ("B",), "without upstream_topic only the last hop is known"
    assert hops(_Endless(), "orders@A") == ("A",)
    with pytest.raises(NamingPolicyUnusable, match="lacks"):
        load_policy(f"{module.__name__}.Nothing")
    for wrong in ("nothing", "no.such.module", f"{module.__name__}.Missing"):
        with pytest.raises(NamingPolicyUnusable, match="cannot be used"):
            load_policy(wrong)


def test_remote_topics_are_listed_with_their_hops() -> None:
    assert _flow("A", "B").remote_topics(["B.A.x", "x", "C.x", "a.x"]) == {"B.A.x": ("B", "A"), "C.x": ("C",)}
