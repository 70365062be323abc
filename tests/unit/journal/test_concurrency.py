"""Many writers at the same time lose nothing."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from journal_support import ALICE, FINGERPRINT, OpenJournal, opener

from airflow_provider_kafka_migration.journal import Journal, verify_journal
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore

pytestmark = pytest.mark.slow


def test_processes_of_one_run_lose_nothing(store: ObjectStore, open_journal: OpenJournal, writers: int) -> None:
    """Threads, each with a journal of its own, as the tasks of a run have."""
    open_journal()

    def work(number: int) -> None:
        journal = opener(store)()
        for turn in range(2):
            journal.step("lane_done", f"{number}/{turn}")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    journal = open_journal()
    expected = Counter(f"{number}/{turn}" for number in range(writers) for turn in range(2))
    assert Counter(entry.step_key for entry in journal.steps("lane_done")) == expected
    report = journal.verify()
    assert report.entries == 2 + 2 * writers
    for number in range(writers):
        own = [
            entry.step_key for entry in journal.steps("lane_done") if (entry.step_key or "").startswith(f"{number}/")
        ]
        assert own == [f"{number}/{turn}" for turn in range(2)]


def test_threads_on_one_journal_lose_nothing(store: ObjectStore, open_journal: OpenJournal, writers: int) -> None:
    journal = open_journal()
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda number: journal.step("x", str(number)), range(3 * writers)))
    assert {entry.step_key for entry in open_journal().steps("x")} == {str(number) for number in range(3 * writers)}
    assert journal.verify().entries == 2 + 3 * writers


def test_creators_make_one_journal(store: ObjectStore, writers: int) -> None:
    with ThreadPoolExecutor(writers) as pool:
        journals = list(pool.map(lambda _: opener(store)(), range(writers)))
    assert {journal.generation for journal in journals} == {1}
    assert verify_journal(store, "m1").entries == 2


def test_a_step_wanted_by_many_is_done_once(store: ObjectStore, open_journal: OpenJournal, writers: int) -> None:
    journals = [open_journal() for _ in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        found = list(pool.map(lambda journal: journal.step_once("frozen", "webhook"), journals))
    assert len({entry.seq for entry in found}) == 1
    assert len(open_journal().steps("frozen")) == 1


def test_a_transition_wanted_by_many_is_done_once(store: ObjectStore, open_journal: OpenJournal, writers: int) -> None:
    journals = [open_journal() for _ in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda journal: journal.transition(State.PRECHECK, "go"), journals))
    assert open_journal().history == (State.PLANNED, State.PRECHECK)


def test_steps_beside_transitions(store: ObjectStore, open_journal: OpenJournal) -> None:
    """The tail's steps and the drain sensor's transition meet: neither is lost, and steps take the state they find."""
    stepping, moving = open_journal(), open_journal()
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED, State.TAIL):
        moving.transition(state, "go")
    with ThreadPoolExecutor(2) as pool:
        steps = pool.submit(lambda: [stepping.step("slice", str(number)) for number in range(20)])
        moves = pool.submit(
            lambda: [
                (
                    moving.transition(State.DRAIN_READY, "drained"),
                    moving.transition(State.TAIL, "not yet", from_states=[State.DRAIN_READY]),
                )
                for _ in range(5)
            ]
        )
        steps.result()
        moves.result()
    journal = open_journal()
    assert len(journal.steps("slice")) == 20
    assert journal.history[4:] == (State.TAIL, *(State.DRAIN_READY, State.TAIL) * 5)
    assert journal.verify().is_good


def _work(folder: str, number: int) -> None:
    journal = Journal.create_or_open(LocalStore(folder), "m1", FINGERPRINT, owner=ALICE)
    for turn in range(5):
        journal.step("x", f"{number}/{turn}")


def test_real_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_work, args=(str(tmp_path), number)) for number in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    journal = Journal(LocalStore(tmp_path), "m1")
    assert len({entry.step_key for entry in journal.steps("x")}) == 30
    assert journal.verify().entries == 32


@pytest.mark.parametrize("reverse", [False, True])
def test_a_list_that_misses_an_entry_in_the_middle(
    open_local: OpenJournal, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """A list taken while entries are written may have N and lack N-1: the entry is there all the same."""
    journal = open_local()
    for number in range(5):
        journal.step("x", str(number))
    original = LocalStore.list

    def gappy(self: LocalStore, prefix: str = "", *, start_after: str | None = None):  # type: ignore[no-untyped-def]
        found = [info for info in original(self, prefix, start_after=start_after) if not info.key.endswith("4.json")]
        return iter(found[::-1] if reverse else found)

    monkeypatch.setattr(LocalStore, "list", gappy)
    assert len(Journal(local_store, "m1").entries()) == 7
