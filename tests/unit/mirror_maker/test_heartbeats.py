"""Heartbeats: whose beat is where, what stops when a cluster is away, and what is never copied."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from phase_world.cluster import ClusterState, SimCluster
from phase_world.outside import Outside
from phase_world.state_records import SimSender, beats, use_sim_senders

from airflow_provider_kafka_migration.errors import BrokerBusy, ClaimLost, ForeignData, PermissionMissing
from airflow_provider_kafka_migration.mirror_maker.formats import Heartbeat
from airflow_provider_kafka_migration.mirror_maker.heartbeats import Heartbeats
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateMessage
from airflow_provider_kafka_migration.spec.mirror import MirrorSection
from airflow_provider_kafka_migration.spec.sections import RenameSection

DOWN = BrokerBusy("nobody answers")


@pytest.fixture(autouse=True)
def _sim_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    use_sim_senders(monkeypatch)


class Lab:
    """Clusters by alias, and flows between them whose clock moves on by a second with each round."""

    def __init__(self) -> None:
        self.outside = Outside()
        self.states = {alias: ClusterState(alias) for alias in "ABCZ"}
        self._seconds = itertools.count(1)
        self.steady = 0.0

    def flow(self, source: str, target: str, *, on_source: bool = False, **keys: Any) -> Heartbeats:
        section = MirrorSection(source_alias=source, target_alias=target, known_aliases=["A", "B", "C", "Z"], **keys)
        clusters = [SimCluster(role, self.states[alias], self.outside) for role, alias in self._sides(source, target)]
        return Heartbeats(
            *clusters,  # type: ignore[arg-type]
            StateTopics(source, target, section.separator, section.separator),
            section.names(RenameSection()).remote_heartbeats,
            on_source=on_source,
            clock=lambda: float(next(self._seconds)),
            steady=lambda: self.steady,
        )

    @staticmethod
    def _sides(source: str, target: str) -> Any:
        return (("source", source), ("target", target))

    def times(self, alias: str, topic: str) -> list[int]:
        return [item.timestamp_ms // 1000 for item in beats(self.states[alias], topic)]

    def keys(self, alias: str, topic: str) -> set[tuple[str, str]]:
        return {(item.source_alias, item.target_alias) for item in beats(self.states[alias], topic)}

    def write(self, alias: str, topic: str, beat: Heartbeat) -> None:
        if topic not in self.states[alias].topics:
            self.states[alias].create(topic)
        cluster = SimCluster("source", self.states[alias], Outside())
        SimSender(cluster.config, cluster.wire).send([StateMessage(topic, *beat.encode(), partition=0)])


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_beat_goes_over_the_source_and_comes_back_as_a_copy(lab: Lab) -> None:
    """As MirrorMaker 2: (B, A) on A, its bytes in ``A.heartbeats`` on B, and (A, B) in ``heartbeats`` on B."""
    flow = lab.flow("A", "B", on_source=True)
    for _ in range(3):
        flow.beat()
    assert lab.keys("A", "heartbeats") == {("B", "A")}
    assert lab.keys("B", "heartbeats") == {("A", "B")}
    assert lab.keys("B", "A.heartbeats") == {("B", "A")}
    assert lab.times("B", "A.heartbeats") == lab.times("A", "heartbeats") == lab.times("B", "heartbeats") == [1, 2, 3]
    assert flow.replicated_ms == 3000
    for alias, topic in (("A", "heartbeats"), ("B", "heartbeats"), ("B", "A.heartbeats")):
        assert lab.states[alias].topics[topic].configs == {"cleanup.policy": "compact"}


def test_an_answer_stands_for_a_beat_where_the_source_is_not_written_to(lab: Lab) -> None:
    flow = lab.flow("A", "B")
    flow.beat()
    flow.beat()
    assert lab.states["A"].topics == {}, "nothing is created there"
    assert lab.times("B", "A.heartbeats") == [1, 2]
    assert lab.keys("B", "A.heartbeats") == {("B", "A")}


@pytest.mark.parametrize("on_source", [False, True])
def test_the_copied_beats_stop_with_the_source_and_the_own_one_does_not(lab: Lab, on_source: bool) -> None:
    flow = lab.flow("A", "B", on_source=on_source)
    flow.beat()
    lab.outside.fail("source.*", DOWN)
    for _ in range(3):
        with pytest.raises(BrokerBusy):
            flow.beat()
    assert lab.times("B", "A.heartbeats") == [1], "nobody has reached the source"
    assert lab.times("B", "heartbeats") == [1, 2, 3, 4]
    assert flow.replicated_ms == 1000
    lab.outside.heal()
    flow.beat()
    assert lab.times("B", "A.heartbeats") == [1, 5]


@pytest.mark.parametrize("on_source", [False, True])
def test_no_beat_is_copied_in_a_round_in_which_the_source_fails_at_any_call(lab: Lab, on_source: bool) -> None:
    """Whatever the source has answered before in that round."""
    lab.write("A", "heartbeats", Heartbeat("Z", "A", 500))
    lab.flow("A", "B", on_source=on_source).beat()
    lab.outside.revive()
    flow = lab.flow("A", "B", on_source=on_source)
    flow.beat()
    count = sum(name.startswith("source.") for name in lab.outside.calls)
    assert count >= 4
    for skip in range(count):
        before = lab.times("B", "A.heartbeats")
        lab.outside.fail("source.*", DOWN, skip=skip)
        fresh = lab.flow("A", "B", on_source=on_source)
        with pytest.raises(BrokerBusy):
            fresh.beat()
        assert lab.times("B", "A.heartbeats") == before
        lab.outside.heal()


def test_hops_of_a_chain(lab: Lab) -> None:
    """A -> B -> C: C has a copy of the copy; what has come through the target is not copied back."""
    first, second, back = lab.flow("A", "B"), lab.flow("B", "C"), lab.flow("B", "A")
    for flow in (first, second, back):
        flow.beat()
    assert set(lab.states["C"].topics) == {"heartbeats", "B.heartbeats", "B.A.heartbeats"}
    assert lab.times("C", "B.A.heartbeats") == lab.times("B", "A.heartbeats")
    assert lab.keys("C", "B.heartbeats") == {("A", "B"), ("C", "B")}
    assert set(lab.states["A"].topics) == {"heartbeats", "B.heartbeats"}, "not B.A.heartbeats"
    lab.outside.fail("source.*", DOWN, times=2)
    with pytest.raises(BrokerBusy):
        first.beat()
    lab.outside.heal()
    second.beat()
    assert lab.times("C", "B.A.heartbeats") == [1], "A did not answer, so C hears nothing of it"
    near = lab.flow("B", "Z", max_hops=1)
    near.beat()
    assert "B.A.heartbeats" not in lab.states["Z"].topics


def test_a_restarted_flow_goes_on_and_copies_nothing_twice(lab: Lab) -> None:
    lab.write("A", "heartbeats", Heartbeat("Z", "A", 100))
    for _ in range(3):
        lab.flow("A", "B").beat()
    copied = [item for item in beats(lab.states["B"], "A.heartbeats") if item.source_alias == "Z"]
    assert copied == [Heartbeat("Z", "A", 100)]
    assert lab.flow("A", "B").replicated_ms is None, "it has not looked yet"


def test_a_target_that_does_not_take_a_beat_gets_it_with_the_next_round(lab: Lab) -> None:
    flow = lab.flow("A", "B")
    flow.beat()
    lab.write("A", "heartbeats", Heartbeat("Z", "A", 100))
    lab.steady = 100.0
    lab.outside.fail("target.wire.produce", DOWN, times=1)
    with pytest.raises(BrokerBusy):
        flow.beat()
    assert flow.replicated_ms == 1000, "what was not taken does not count"
    flow.beat()
    assert Heartbeat("Z", "A", 100) in beats(lab.states["B"], "A.heartbeats")


def test_a_topic_that_was_deleted_is_made_again(lab: Lab) -> None:
    flow = lab.flow("A", "B", on_source=True)
    flow.beat()
    del lab.states["B"].topics["A.heartbeats"]
    del lab.states["A"].topics["heartbeats"]
    with pytest.raises(BrokerBusy):
        flow.beat()
    flow.beat()
    flow.beat()
    assert lab.times("B", "A.heartbeats")[-1] == lab.times("A", "heartbeats")[-1] == 4


def _user_topic(lab: Lab, alias: str) -> None:
    lab.states[alias].create("heartbeats").logs[0].write(b"not a heartbeat")


def test_a_topic_of_an_application_is_not_written_to(lab: Lab) -> None:
    _user_topic(lab, "A")
    before = lab.states["A"].log("heartbeats").end
    with pytest.raises(ForeignData, match="another format"):
        lab.flow("A", "B", on_source=True).beat()
    assert lab.states["A"].log("heartbeats").end == before
    _user_topic(lab, "C")
    with pytest.raises(ForeignData, match="another format"):
        lab.flow("B", "C").beat()
    assert lab.states["C"].log("heartbeats").end == 1


def test_a_topic_of_an_application_on_the_source_is_named_and_the_source_has_answered(lab: Lab) -> None:
    _user_topic(lab, "A")
    lab.write("A", "heartbeats", Heartbeat("Z", "A", 100))
    flow = lab.flow("A", "B")
    with pytest.raises(ForeignData):
        flow.beat()
    assert lab.keys("B", "A.heartbeats") == {("B", "A"), ("Z", "A")}
    flow.beat()
    assert lab.times("B", "A.heartbeats")[-1] == 2


def test_a_topic_that_may_not_be_read_is_named_and_the_source_has_answered(lab: Lab) -> None:
    lab.write("A", "heartbeats", Heartbeat("Z", "A", 100))
    lab.outside.fail("source.wire.fetch_once", PermissionMissing("Read is missing"))
    flow = lab.flow("A", "B")
    with pytest.raises(PermissionMissing):
        flow.beat()
    assert lab.keys("B", "A.heartbeats") == {("B", "A")}


@pytest.mark.parametrize("on_source", [False, True])
def test_nothing_is_written_once_another_process_has_the_mirror(lab: Lab, on_source: bool) -> None:
    flow = lab.flow("A", "B", on_source=on_source)
    flow.beat()

    def lost() -> None:
        raise ClaimLost("another owner")

    ends = {alias: lab.times(alias, "heartbeats") for alias in "AB"}
    with pytest.raises(ClaimLost):
        flow.beat(lost)
    assert {alias: lab.times(alias, "heartbeats") for alias in "AB"} == ends


@pytest.mark.parametrize("naming", ["identity", "rename"])
@pytest.mark.parametrize("separator", [".", "_", "__"])
def test_the_alias_is_in_front_under_every_policy(lab: Lab, naming: str, separator: str) -> None:
    made: Callable[[], Heartbeats] = lambda: lab.flow("A", "B", naming=naming, separator=separator)  # noqa: E731
    lab.write("A", f"Z{separator}heartbeats", Heartbeat("A", "Z", 100))
    lab.write("A", "my-heartbeats", Heartbeat("A", "Z", 100))
    made().beat()
    assert set(lab.states["B"].topics) == {
        "heartbeats",
        f"A{separator}heartbeats",
        f"A{separator}Z{separator}heartbeats",
    }
