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
from airflow_provider_kafka_migration.schema_ids.id_map import WantedId, wanted_key

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
        self.news = JobNews(**{"job": "tail", **of_news}, clock=lambda: self.now)
        self.opened = opened
        self.news._migration = opened

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


def test_a_driver_that_stays_silent_is_no_news_to_whoever_knows_it(worlds: Worlds, looks: Looks) -> None:
    """The task was woken up for it, and its next trigger has just begun to look."""
    again = Looks(looks.world, known="1 partitions have failed, the driver is silent")
    looks.report(at="1")
    assert [again.after(1), again.after(PROGRESS_SECONDS)] == ["the driver is silent"] * 2
    looks.report(at="2")
    assert again.after(PROGRESS_SECONDS) == "", "the next silence is news again"
    assert again.after(NOTICE_SECONDS) == "the driver is silent"


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
    looks.opened.spec = looks.world.spec
    looks.after(0)
    looks.world.journal_store.put(wanted_key(looks.world.spec.migration_id, ".", 7), b"")
    assert looks.after(1) == "copiers ask for schema ids (7)"


def test_another_id_is_other_news(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition would stand still for a quarter of an hour: the task was woken up for "1 schema id" before."""
    looks.world.change_spec(schemas={"source": "env:R1", "target": "env:R2"})
    looks.opened.spec = looks.world.spec
    found = [{WantedId(".", "id", 7)}, {WantedId(".", "id", 8)}, {WantedId("team", "id", 8)}]
    monkeypatch.setattr("airflow_provider_kafka_migration.job_news.wanted_ids", lambda _record: found[0])
    texts = []
    while found:
        texts.append(looks.after(1))
        found.pop(0)
    assert texts == [f"copiers ask for schema ids ({name})" for name in ("7", "8", "team:8")]


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
    looks.after(0)
    assert "gone" in looks.news.failure
    for _ in range(5):
        # As its trigger does: connections may have been replaced.
        looks.news.close()
        assert not looks.news.is_open
        looks.news._migration = looks.opened
        looks.after(1)
    assert len(asked) == 1


def test_a_source_that_is_away_hides_no_other_news(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is why partitions are stuck."""

    def away(*_: object) -> None:
        raise BrokerUnreachable("gone")

    looks.after(0)
    monkeypatch.setattr("airflow_provider_kafka_migration.job_news.compare", away)
    looks.report(at="2", partitions_stuck=3, stuck_seconds=NOTICE_SECONDS)
    assert looks.after(PROGRESS_SECONDS) == "partitions are stuck"
    monkeypatch.undo()
    looks.after(PROGRESS_SECONDS)
    assert looks.news.failure == ""
