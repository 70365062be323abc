"""``journal.jsonl``: the journal as one file."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from journal_support import ALICE, FINGERPRINT, OpenJournal, Ticking, go_to

from airflow_provider_kafka_migration.errors import StorageUnavailable
from airflow_provider_kafka_migration.journal import Journal
from airflow_provider_kafka_migration.journal.view import contradiction, materialised_key, render
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore

VIEW = "m1/journal.jsonl"


def lines(store: ObjectStore) -> list[dict[str, Any]]:
    """The view's lines."""
    data = store.get(VIEW)
    assert data is not None
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().removesuffix("\n").split("\n")]


def test_the_seeds_fields_come_first(store: ObjectStore, open_journal: OpenJournal) -> None:
    journal = open_journal()
    go_to(journal, State.SEED)
    journal.transition(State.TAIL, "seed complete: 900 records, 4 partitions\u2028é")
    found = lines(store)
    assert [list(line)[:5] for line in found] == [["migration_id", "from", "to", "at", "reason"]] * len(found)
    assert found[-1]["reason"] == "seed complete: 900 records, 4 partitions\u2028é"
    assert [(line["from"], line["to"]) for line in found if not line["step"]] == [
        ("planned", "precheck"),
        ("precheck", "topology_copy"),
        ("topology_copy", "seed"),
        ("seed", "tail"),
    ]
    assert [line["hash"] for line in found] == [entry.hash for entry in journal.entries()]
    assert materialised_key("m1") == VIEW


class Dying(LocalStore):
    """The process is killed when it is about to rewrite the view."""

    dead = False

    def put(self, key: str, data: bytes) -> None:
        if self.dead and key == VIEW:
            raise KeyboardInterrupt
        super().put(key, data)


def test_a_crash_before_the_rewrite_heals_at_the_next_claim(local_store: LocalStore, open_local: OpenJournal) -> None:
    dying = Dying(local_store.folder)
    journal = Journal.create_or_open(dying, "m1", FINGERPRINT, owner=ALICE, clock=Ticking())
    dying.dead = True
    with pytest.raises(KeyboardInterrupt):
        journal.transition(State.PRECHECK, "go")
    assert len(lines(local_store)) == 2
    again = open_local()
    assert again.tip_state is State.PRECHECK
    assert len(lines(local_store)) == 3
    assert len(again.entries()) == 3


def test_a_crash_before_the_rewrite_heals_at_the_next_append(local_store: LocalStore, open_local: OpenJournal) -> None:
    other = open_local()
    dying = Dying(local_store.folder)
    journal = Journal.create_or_open(dying, "m1", FINGERPRINT, owner=ALICE, clock=Ticking())
    dying.dead = True
    with pytest.raises(KeyboardInterrupt):
        journal.transition(State.PRECHECK, "go")
    other.transition(State.TOPOLOGY_COPY, "go on")
    assert len(lines(local_store)) == 4


class Unwritable(LocalStore):
    """The view cannot be written."""

    def put(self, key: str, data: bytes) -> None:
        raise StorageUnavailable("no space left")


def test_an_entry_counts_even_if_the_view_cannot_be_written(
    local_store: LocalStore, open_local: OpenJournal, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        journal = Journal.create_or_open(Unwritable(local_store.folder), "m1", FINGERPRINT, owner=ALICE)
        go_to(journal, State.SEED)
    assert "journal.jsonl could not be rewritten" in caplog.text
    assert local_store.get(VIEW) is None
    assert open_local().tip_state is State.SEED
    assert len(lines(local_store)) == 5


def test_many_steps_do_not_rewrite_it_each_time(
    local_store: LocalStore, open_local: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_local()
    puts: list[str] = []
    original = LocalStore.put

    def put(self: LocalStore, key: str, data: bytes) -> None:
        puts.append(key)
        original(self, key, data)

    monkeypatch.setattr(LocalStore, "put", put)
    for number in range(100):
        journal.step("group_committed", str(number))
    assert len(puts) <= 5
    journal.transition(State.PRECHECK, "a transition always does")
    assert len(lines(local_store)) == 103


def test_the_last_steps_of_a_process_are_in_it(
    local_store: LocalStore, open_local: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifted freeze is a step behind a transition, and may stay the last entry for days."""
    journal = open_local()
    journal.transition(State.PRECHECK, "go")
    journal.step("freeze_lifted", "1")
    assert len(lines(local_store)) == 3, "steps behind each other do not each rewrite it"
    journal.close()
    assert [line["step"] for line in lines(local_store)][-1] == "freeze_lifted"
    puts: list[str] = []
    monkeypatch.setattr(LocalStore, "put", lambda _self, key, _data: puts.append(key))
    journal.close()
    assert puts == [], "closing twice writes nothing"


def test_the_last_of_many_writers_leaves_it_complete(store: ObjectStore, open_journal: OpenJournal) -> None:
    journals = [open_journal() for _ in range(8)]

    def work(journal: Journal) -> None:
        for number in range(3):
            journal.step("x", str(number))
            journal.materialise()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, journals))
    assert [line["seq"] for line in lines(store)] == list(range(26))


def test_a_view_that_is_behind_or_unreadable_is_no_contradiction(open_local: OpenJournal) -> None:
    entries = open_local().entries()
    for view in (b"", render(entries[:1]), render(entries)[:-20], b"\xff\n{}\n[1]\nnull\n", render(entries)):
        assert contradiction(view, entries) is None
    problem = contradiction(render(entries), entries[:1])
    assert problem is not None
    assert (problem.kind, problem.seq) == ("missing", 1)
