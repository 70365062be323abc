"""The soaks of mirrors choose what their seed says, and see what they have to see at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.compare import Comparison, Record
from harness.faults.judge import Damage
from tests import soak_support
from tests.soak_support import Route, Site, Soak, check_settled

pytestmark = pytest.mark.slow


def choices(monkeypatch: pytest.MonkeyPatch, seed: int, count: int) -> tuple[list[str], Soak]:
    """The first faults of a run; ``never`` finds nothing that could fail."""
    made: list[str] = []
    clock = SimpleNamespace(monotonic=lambda: float(len(made)), sleep=lambda _: None)
    monkeypatch.setattr(soak_support, "time", clock)
    soak = Soak(seed, count)
    soak._began = 0
    faults = {name: lambda name=name: made.append(name) or name != "never" for name in ("a", "b", "c", "never")}
    soak.run(faults, lambda: None, (0, 1))
    return made, soak


def test_a_seed_repeats_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    made, soak = choices(monkeypatch, 5, 12)
    assert [sorted(made[start : start + 4]) for start in (0, 4, 8)] == [["a", "b", "c", "never"]] * 3
    assert dict(soak.kinds) == {"a": 3, "b": 3, "c": 3}
    assert choices(monkeypatch, 5, 12)[0] == made
    assert any(choices(monkeypatch, seed, 12)[0] != made for seed in range(6, 10))


class Chain:
    """A -> B -> C, where producers write to A alone, as the clusters' answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = {"A": {"t"}, "B": {"A.t", "t"}, "C": {"B.A.t", "B.t", "t"}}
        self.lost: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.damage = Damage(records=3)
        self.records = [Record(0, 0, None, b"0"), Record(1, 0, None, b"1")]
        self.sites = [Site(alias, self._cluster(alias), ["t"], "g", [self._producer()]) for alias in "ABC"]
        a, b, c = self.sites
        self.routes = [
            Route(a, b, {"t": "A.t"}, "g"),
            Route(b, c, {"t": "B.t"}, "g"),
            Route(b, c, {"A.t": "B.A.t"}, "g"),
        ]
        monkeypatch.setattr(soak_support, "judge_equal", lambda *_: self.damage)
        monkeypatch.setattr(soak_support, "compare", lambda *_: Comparison())
        monkeypatch.setattr(soak_support, "lost_records", self._lost)
        monkeypatch.setattr(soak_support, "topics_of", lambda cluster, _: self.topics[cluster.alias])

    @staticmethod
    def _cluster(alias: str) -> Any:
        return SimpleNamespace(alias=alias, client_config=lambda: {"alias": alias})

    def _producer(self) -> Any:
        return SimpleNamespace(acknowledged={("t", 0): self.records}, count=lambda: len(self.records))

    def _lost(self, config: dict[str, str], acknowledged: dict[tuple[str, int], list[Record]]) -> list[str]:
        self.asked += [(config["alias"], topic) for topic, _ in acknowledged]
        return self.lost

    def check(self) -> Damage:
        return check_settled(self.sites, self.routes, "t")


def test_records_are_looked_for_on_each_cluster_that_they_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch)
    assert chain.check().records == 9
    expected = {("A", "t"), ("B", "A.t"), ("C", "B.A.t"), ("B", "t"), ("C", "B.t"), ("C", "t")}
    assert sorted(chain.asked) == sorted(expected)


@pytest.mark.parametrize("kind", ["damage", "lost", "order", "twice", "nothing", "cycle", "missing topic"])
def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    chain = Chain(monkeypatch)
    if kind == "damage":
        chain.damage.duplicated = 1
    elif kind == "lost":
        chain.lost.append("a record")
    elif kind == "order":
        chain.records.reverse()
    elif kind == "twice":
        chain.records.append(chain.records[-1])
    elif kind == "nothing":
        for site in chain.sites:
            site.producers[0].acknowledged.clear()
    elif kind == "cycle":
        chain.topics["A"].add("B.A.t")
    else:
        chain.topics["C"].remove("B.A.t")
    with pytest.raises(AssertionError):
        chain.check()
