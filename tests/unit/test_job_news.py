"""What wakes up a task whose job runs elsewhere: read from the storage and the source, and nothing is changed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.job_news import NOTICE_SECONDS, PROGRESS_SECONDS, JobNews
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key

_MIRROR: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "naming": "rename"},
    "topology": {"follow_new": True},
}


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


class Looks:
    """A mirror whose job runs, and the watch, with a clock that only tests move."""

    def __init__(self, world: World, **of_news: Any) -> None:
        self.world = world
        self.now = 1000.0
        self.closed = False
        #: What the driver has reported last.
        self.document: dict[str, Any] = {"at": "1"}

        def close() -> None:
            self.closed = True

        opened: Any = SimpleNamespace(spec=world.spec, reading=lambda: nullcontext(world.context()), close=close)
        self.news = JobNews(opened, **{"job": "tail", **of_news}, clock=lambda: self.now)

    def report(self, **document: Any) -> None:
        self.document = document

    def after(self, seconds: float) -> str:
        self.now += seconds
        return self.news.check()


@pytest.fixture
def looks(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> Looks:
    without_probes(monkeypatch)
    found = Looks(worlds.at("tail", **_MIRROR))
    monkeypatch.setattr(MigrationRecord, "job_progress", lambda _record, name: {"tail": found.document}[name])
    return found


def test_a_mirror_that_copies_has_no_news(looks: Looks) -> None:
    seen, asked = len(looks.world.context().journal.entries()), list(looks.world.source.created)
    assert looks.after(0) == ""
    for number in range(20):
        looks.report(at=str(number))
        assert looks.after(PROGRESS_SECONDS) == ""
    assert (len(looks.world.context().journal.entries()), looks.world.source.created) == (seen, asked), "it only reads"
    looks.news.close()
    assert looks.closed


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"partitions_failed": 2}, "2 partitions have failed"),
        ({"partitions_went_back": 1}, "1 partitions have lost records on the target"),
        ({"partitions_stuck": 1, "stuck_seconds": NOTICE_SECONDS}, "partitions are stuck"),
        ({"partitions_stuck": 1, "stuck_seconds": 1.0}, ""),
    ],
)
def test_what_people_are_told_of_is_news(looks: Looks, document: dict[str, Any], text: str) -> None:
    looks.after(0)
    looks.report(at="2", **document)
    assert looks.after(1) == "", "the storage is not asked each second"
    assert looks.after(PROGRESS_SECONDS) == text


def test_a_driver_that_is_silent_is_news_by_the_clock_of_this_machine(looks: Looks) -> None:
    looks.after(0)
    assert looks.after(NOTICE_SECONDS - 1) == ""
    assert looks.after(PROGRESS_SECONDS) == "the driver is silent"
    looks.report(at="2")
    assert looks.after(PROGRESS_SECONDS) == ""


def test_topics_that_the_plan_does_not_have_are_news(looks: Looks) -> None:
    looks.after(0)
    for name in ("refunds", "returns", "reviews", "rebates"):
        looks.world.source.create(name)
    assert looks.after(1) == ""
    looks.report(at="2")
    found = looks.after(PROGRESS_SECONDS)
    assert found.startswith("topics of the source differ from the plan (new: rebates, refunds, returns and 1 more (")
    looks.world.source.create("rewards")
    looks.report(at="3")
    assert looks.after(PROGRESS_SECONDS) not in ("", found), "another list is other news"


def test_ids_that_copiers_wait_for_are_news_at_each_look(looks: Looks) -> None:
    registries = {"source": "env:R1", "target": "env:R2"}
    looks.world.change_spec(schemas=registries)
    looks.news._migration.spec = looks.world.spec
    looks.after(0)
    looks.world.journal_store.put(wanted_key(looks.world.spec.migration_id, ".", 7), b"")
    assert looks.after(1) == "copiers ask for 1 schema ids"


def test_topics_are_not_looked_at_where_nobody_follows_them(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)
    monkeypatch.setattr(MigrationRecord, "job_progress", lambda _record, _name: {})
    world = worlds.at("tail", **{**_MIRROR, "topology": {"follow_new": False}})
    for looks in (Looks(world), Looks(worlds.at("tail", **_MIRROR), job="seed")):
        looks.world.source.create("refunds")
        assert looks.after(0) == ""


def test_a_source_that_is_away_is_not_asked_at_each_look(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def away(*_: object) -> None:
        asked.append(looks.now)
        raise BrokerUnreachable("gone")

    monkeypatch.setattr("airflow_provider_kafka_migration.job_news.compare", away)
    with pytest.raises(BrokerUnreachable):
        looks.after(0)
    for _ in range(5):
        looks.after(1)
    assert len(asked) == 1
