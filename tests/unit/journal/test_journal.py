"""Entries, transitions, steps, failures."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import logging
from typing import Any

import pytest
import rfc8785
from journal_support import ALICE, BOB, FINGERPRINT, OpenJournal, Ticking, go_to

from airflow_provider_kafka_migration.errors import (
    ClaimLost,
    FingerprintChanged,
    IllegalTransition,
    JournalConflict,
    ObjectExists,
    PhaseOver,
    SourceGap,
    StorageRefused,
    StorageUnavailable,
    Where,
)
from airflow_provider_kafka_migration.journal import Fingerprint, Journal
from airflow_provider_kafka_migration.journal.entries import MAX_LOST_RACES
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore

S = State


def stored(store: ObjectStore) -> list[dict[str, Any]]:
    """Entries as they lie in the store."""
    found = [store.get(info.key) for info in store.list("m1/journal/")]
    return [json.loads(data) for data in found if data is not None]


def test_the_whole_forward_path(store: ObjectStore, open_journal: OpenJournal) -> None:
    journal = open_journal()
    go_to(journal, S.FINALIZED)
    assert journal.history == FORWARD
    assert journal.tip_state is S.FINALIZED
    assert journal.resume().is_done
    again = Journal(store, "m1")
    assert again.entries() == journal.entries()
    assert again.verify().entries == 11
    keys = [info.key for info in store.list("m1/journal/")]
    assert keys == [f"m1/journal/{seq:020d}.json" for seq in range(11)]


def test_shape_of_an_entry(store: ObjectStore, open_journal: OpenJournal) -> None:
    journal = open_journal()
    journal.transition(S.PRECHECK, "plan is ready", {"plan_sha256": "ab"})
    first, claim, last = stored(store)
    assert first["details"]["fingerprint"] == FINGERPRINT.as_details()
    assert claim["step"] == "claimed"
    assert {key: last[key] for key in last if key not in ("hash", "at")} == {
        "version": 1,
        "seq": 2,
        "prev_hash": claim["hash"],
        "migration_id": "m1",
        "from": "planned",
        "to": "precheck",
        "reason": "plan is ready",
        "actor": "alice",
        "generation": 1,
        "step": None,
        "step_key": None,
        "details": {"plan_sha256": "ab"},
    }
    assert last["at"].startswith("2026-04-24T10:40:0")
    assert last["at"].endswith(".000Z")
    unsigned = {key: value for key, value in last.items() if key != "hash"}
    assert last["hash"] == hashlib.sha256(rfc8785.dumps(unsigned)).hexdigest()


def test_going_where_it_is_writes_nothing(open_journal: OpenJournal) -> None:
    journal = open_journal()
    entry = journal.transition(S.PRECHECK, "first")
    journal.step("looked")
    assert open_journal().transition(S.PRECHECK, "cleared task") == entry
    assert journal.transition(S.PRECHECK, "again") == entry
    assert len(open_journal().entries()) == 4


@pytest.mark.parametrize("to", [S.SEED, S.CUTOVER, S.FINALIZED, S.PLANNED])
def test_no_state_can_be_skipped(open_local: OpenJournal, to: State) -> None:
    journal = open_local()
    journal.transition(S.PRECHECK, "go")
    before = journal.entries()
    with pytest.raises(IllegalTransition):
        journal.transition(to, "too far")
    assert open_local().entries() == before


def test_a_stale_view_is_refreshed_before_anything_is_refused(open_local: OpenJournal) -> None:
    """Another process of the run went on: what looks illegal from the old view is not."""
    slow, quick = open_local(), open_local()
    go_to(quick, S.SEED)
    assert slow.tip_state is S.PLANNED
    slow.transition(S.TAIL, "seed is done")
    assert slow.history == (S.PLANNED, S.PRECHECK, S.TOPOLOGY_COPY, S.SEED, S.TAIL)


def test_a_stale_view_is_refreshed_before_anything_is_left_out(open_local: OpenJournal) -> None:
    slow, quick = open_local(), open_local()
    go_to(slow, S.SEED)
    quick.refresh()
    quick.transition(S.TAIL, "seed is done")
    with pytest.raises(IllegalTransition, match="tail cannot go to seed"):
        slow.transition(S.SEED, "looks like a no-op, but is a way back")


@pytest.mark.parametrize("here", [S.DRAIN_READY, S.CUTOVER])
def test_ways_back_have_to_be_named(open_local: OpenJournal, here: State) -> None:
    journal = open_local()
    go_to(journal, here)
    with pytest.raises(IllegalTransition, match="may not move the migration"):
        journal.transition(S.TAIL, "a seed task that was thought dead: seed is done")
    assert journal.tip_state is here
    journal.transition(S.TAIL, "not yet", from_states=[here])
    assert journal.tip_state is S.TAIL
    go_to(journal, S.CUTOVER)


def test_is_past(open_local: OpenJournal) -> None:
    journal = open_local()
    go_to(journal, S.SEED)
    assert journal.is_past(S.PRECHECK)
    assert not journal.is_past(S.SEED)
    assert not journal.is_past(S.TAIL)
    journal.fail(RuntimeError())
    assert journal.is_past(S.PRECHECK)
    assert not journal.is_past(S.SEED)
    assert journal.working_state is S.SEED
    journal.transition(S.ROLLED_BACK, "abort")
    assert not journal.is_past(S.PRECHECK)


# ---- steps


def test_steps_are_found_by_name_and_key(open_journal: OpenJournal) -> None:
    journal = open_journal()
    journal.step("group_committed", "orders", {"offset": 1})
    journal.step("group_committed", "billing", {"offset": 2})
    journal.step("group_committed", "orders", {"offset": 3})
    journal.step("sentinels")
    again = open_journal()
    assert [entry.details["offset"] for entry in again.steps("group_committed")] == [1, 2, 3]
    assert [entry.details["offset"] for entry in again.steps("group_committed", "orders")] == [1, 3]
    found = again.find_step("group_committed", "orders")
    assert found is not None
    assert found.details == {"offset": 3}
    assert (found.from_state, found.to_state) == (S.PLANNED, S.PLANNED)
    assert again.find_step("group_committed", "unknown") is None
    assert again.find_step("sentinels") is not None
    assert again.find_step("sentinels", "x") is None
    assert again.history == (S.PLANNED,)


def test_a_step_without_a_key_is_there_once_also_behind_transitions(open_journal: OpenJournal) -> None:
    """A transition has neither a step nor a key; it ends no search."""
    journal = open_journal()
    first = journal.step_once("groups_written")
    go_to(journal, S.TAIL)
    assert journal.step_once("groups_written") == first
    assert journal.step_once("groups_written", again_after="came_late") == first
    journal.step("came_late")
    second = journal.step_once("groups_written", again_after="came_late")
    assert second != first
    assert journal.step_once("groups_written", again_after="came_late") == second


def test_step_once(open_journal: OpenJournal) -> None:
    one, two = open_journal(), open_journal()
    first = one.step_once("frozen", "webhook", {"try": 1})
    assert two.step_once("frozen", "webhook", {"try": 2}) == first
    assert one.step_once("frozen", "webhook", {"try": 3}).details == {"try": 1}
    assert two.step_once("frozen", "acl", {"try": 1}).seq == first.seq + 1


def test_steps_stay_in_their_states(open_local: OpenJournal) -> None:
    zombie, journal = open_local(), open_local()
    go_to(zombie, S.TAIL)
    journal.refresh()
    go_to(journal, S.VALIDATING)
    with pytest.raises(PhaseOver, match=r"only in seed, tail, but.*validating"):
        zombie.step("lane_done", "3", only_in=(S.TAIL, S.SEED))
    with pytest.raises(PhaseOver):
        zombie.check_holds(only_in=(S.TAIL,))
    assert zombie.fail(RuntimeError("late"), only_in=(S.TAIL,)) is None
    assert open_local().tip_state is S.VALIDATING


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1.5, 1.5),
        (True, True),
        (Colour.RED, "red"),
        (("a", ["b"]), ["a", ["b"]]),
        ({1: {"x": 2**60}}, {"1": {"x": str(2**60)}}),
        ("\ud800 broken", "\\ud800 broken"),
        ("é \u2028 line", "é \u2028 line"),
        (None, None),
    ],
)
def test_whatever_happened_can_be_journaled(open_local: OpenJournal, given: Any, kept: Any) -> None:
    journal = open_local()
    journal.step("thing", "key", {"value": given})
    again = open_local()
    entry = again.find_step("thing")
    assert entry is not None
    assert entry.details["value"] == kept
    assert again.verify().is_good


# ---- failures


def test_failing_and_coming_back(open_journal: OpenJournal) -> None:
    journal = open_journal()
    go_to(journal, S.SEED)
    error = SourceGap("gone", where=Where(topic="t", partition=3), next_step="look", details={"lost": 7})
    entry = journal.fail(error)
    assert entry is not None
    assert entry.details["error"] == error.as_dict()
    assert entry.reason == str(error)
    again = open_journal()
    assert again.tip_state is S.FAILED
    assert again.resume().state is S.SEED
    with pytest.raises(IllegalTransition):
        again.transition(S.TAIL, "seed is done, I think")
    again.transition(S.SEED, "resumed")
    assert again.history[-3:] == (S.SEED, S.FAILED, S.SEED)


def test_many_failures_lose_no_state(open_local: OpenJournal) -> None:
    """More than 4 failures in a row, of several tasks at once too: the journal never fills the 4 hops with them."""
    journal = open_local()
    go_to(journal, S.TAIL)
    for number in range(9):
        assert journal.fail(RuntimeError(str(number))) is not None
    assert journal.history[-2:] == (S.TAIL, S.FAILED)
    assert len(journal.steps("failed_again")) == 8
    assert journal.resume().state is S.TAIL


def test_text_of_foreign_exceptions_is_not_journaled(open_local: OpenJournal, local_store: LocalStore) -> None:
    journal = open_local()
    try:
        raise ValueError("password=hunter2")
    except ValueError as error:
        entry = journal.fail(error)
    assert entry is not None
    assert "ValueError" in entry.reason
    assert "test_text_of_foreign_exceptions" in entry.reason
    assert all(b"hunter2" not in (local_store.get(info.key) or b"") for info in local_store.list())


def test_fail_never_hides_the_error(open_local: OpenJournal, caplog: pytest.LogCaptureFixture) -> None:
    journal, lost = open_local(), open_local()
    open_local(BOB, takeover=True)
    with caplog.at_level(logging.WARNING):
        assert lost.fail(RuntimeError()) is None
    assert "CLAIM_LOST" in caplog.text
    journal = open_local(ALICE, takeover=True)
    go_to(journal, S.FINALIZED)
    assert journal.fail(RuntimeError()) is None
    assert open_local().tip_state is S.FINALIZED


@pytest.mark.parametrize("state", FORWARD[:6])
def test_rolling_back_from_the_six_and_from_their_failure(open_local: OpenJournal, state: State) -> None:
    journal = open_local()
    go_to(journal, state)
    journal.fail(RuntimeError())
    journal.transition(S.ROLLED_BACK, "abort")
    assert open_local().resume().is_done


@pytest.mark.parametrize("state", FORWARD[6:9])
def test_no_rolling_back_afterwards(open_local: OpenJournal, state: State) -> None:
    journal = open_local()
    go_to(journal, state)
    for _ in range(2):
        with pytest.raises(IllegalTransition, match=rf"a rollback is possible up to drain_ready.*{state}"):
            journal.transition(S.ROLLED_BACK, "abort")
        journal.fail(RuntimeError())


@pytest.mark.parametrize("end", [S.FINALIZED, S.ROLLED_BACK])
def test_nothing_follows_the_end(open_local: OpenJournal, end: State) -> None:
    journal = open_local()
    if end is S.FINALIZED:
        go_to(journal, end)
    else:
        journal.transition(end, "abort")
    count = len(journal.entries())
    with pytest.raises(IllegalTransition):
        journal.step("late")
    with pytest.raises(IllegalTransition):
        journal.transition(S.TAIL, "again", from_states=[end])
    journal.release()
    other = open_local(BOB)
    assert other.transition(end, "a cleared last task").to_state is end
    with pytest.raises(IllegalTransition):
        other.step("late")
    assert len(open_local(BOB, takeover=True).entries()) == count


# ---- opening


def test_without_a_journal(store: ObjectStore) -> None:
    journal = Journal(store, "m1")
    assert not journal.exists
    assert (journal.tip, journal.tip_state, journal.working_state, journal.entries()) == (None, None, None, ())
    assert journal.resume().state is S.PLANNED
    with pytest.raises(IllegalTransition, match="no journal yet"):
        journal.claim(ALICE)
    with pytest.raises(IllegalTransition, match="no journal yet"):
        journal.transition(S.PRECHECK, "go")
    assert list(store.list()) == []


def test_a_reader_cannot_write(store: ObjectStore, open_journal: OpenJournal) -> None:
    open_journal()
    reader = Journal(store, "m1")
    with pytest.raises(ClaimLost, match="has not claimed"):
        reader.step("sneaky")
    with pytest.raises(ClaimLost):
        reader.check_holds()
    assert not reader.holds()
    assert reader.generation == 0


def test_migrations_share_a_store(store: ObjectStore) -> None:
    one = Journal.create_or_open(store, "a", FINGERPRINT, owner=ALICE)
    two = Journal.create_or_open(store, "a.b", FINGERPRINT, owner=BOB)
    one.transition(S.PRECHECK, "go")
    two.step("x")
    assert (len(Journal(store, "a").entries()), len(Journal(store, "a.b").entries())) == (3, 3)


@pytest.mark.parametrize("migration_id", ["", "a/b", "../a", ".a", "a b", "x" * 201, "a\n"])
def test_bad_migration_ids(local_store: LocalStore, migration_id: str) -> None:
    with pytest.raises(StorageRefused, match="migration_id"):
        Journal(local_store, migration_id)


def test_the_first_details_are_kept(local_store: LocalStore) -> None:
    def open_with(value: int) -> Journal:
        return Journal.create_or_open(local_store, "m", FINGERPRINT, owner=ALICE, details={"spec": value})

    open_with(1)
    assert open_with(2).entries()[0].details["spec"] == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"source_cluster_id": "other"}, r"source_cluster_id: 'source-id' -> 'other'"),
        ({"target_cluster_id": "other"}, r"target_cluster_id: 'target-id' -> 'other'"),
        ({"buckets": {"journal": "s3://x"}}, r"buckets.journal: 's3://jb' -> 's3://x'"),
        ({"prefixes": {"journal": "q"}}, r"prefixes.journal: 'p' -> 'q'"),
        ({"buckets": {"journal": "s3://jb", "evidence": "e"}}, r"buckets.evidence: None -> 'e'"),
    ],
)
def test_changed_fingerprint_is_named(open_journal: OpenJournal, change: dict[str, Any], named: str) -> None:
    changed = dataclasses.replace(FINGERPRINT, **change)
    before = open_journal().entries()
    with pytest.raises(FingerprintChanged, match=named) as caught:
        open_journal(fingerprint=changed)
    assert len(caught.value.details["changes"]) == 1
    with pytest.raises(FingerprintChanged):
        open_journal(BOB, takeover=True, fingerprint=changed)
    assert open_journal().entries() == before


def test_fingerprint_of_locations() -> None:
    one = Fingerprint.of_locations("s", "t", {"journal": "s3://b/p/q/", "evidence": "s3://e", "archive": "file:///a/b"})
    assert one.fields() == {
        "source_cluster_id": "s",
        "target_cluster_id": "t",
        "buckets.archive": "file://",
        "buckets.evidence": "s3://e",
        "buckets.journal": "s3://b",
        "prefixes.archive": "a/b",
        "prefixes.evidence": "",
        "prefixes.journal": "p/q",
    }
    two = Fingerprint.of_locations("s", "t", {"archive": "file:///a/b", "evidence": "s3://e/", "journal": "s3://b/p/q"})
    assert one.sha256 == two.sha256
    assert len(one.sha256) == 64


class Broken(LocalStore):
    """The store stops working."""

    works = True

    def put_new(self, key: str, data: bytes) -> None:
        if not self.works:
            raise StorageUnavailable("no answer")
        super().put_new(key, data)


def test_fail_does_not_hide_the_error_behind_a_broken_store(
    local_store: LocalStore, open_local: OpenJournal, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken(local_store.folder)
    journal = Journal.create_or_open(store, "m1", FINGERPRINT, owner=ALICE)
    store.works = False
    assert journal.fail(RuntimeError()) is None
    assert "no answer" in caplog.text
    with pytest.raises(StorageUnavailable):
        journal.step("x")
    assert open_local().tip_state is S.PLANNED


class Overwriting(LocalStore):
    """An object store that does not know If-None-Match and ignores it, as some do."""

    def put_new(self, key: str, data: bytes) -> None:
        self.put(key, data)


def test_a_store_that_ignores_create_only_is_refused(local_store: LocalStore) -> None:
    with pytest.raises(StorageRefused, match="If-None-Match"):
        Journal.create_or_open(Overwriting(local_store.folder), "m1", FINGERPRINT, owner=ALICE)


def test_it_is_refused_at_each_claim(open_local: OpenJournal, local_store: LocalStore) -> None:
    """Its first entry is there, so that nothing has to be created that could show it."""
    open_local().release("done")
    with pytest.raises(StorageRefused, match="If-None-Match"):
        Journal.create_or_open(Overwriting(local_store.folder), "m1", FINGERPRINT, owner=BOB)
    assert Journal.create_or_open(local_store, "m1", FINGERPRINT, owner=BOB).generation == 2


class Stuck(LocalStore):
    """Somebody else is always faster, and then cannot be seen."""

    def put_new(self, key: str, data: bytes) -> None:
        raise ObjectExists("taken")


def test_lost_races_are_bounded(open_local: OpenJournal, local_store: LocalStore) -> None:
    open_local()
    waits: list[float] = []
    journal = Journal(Stuck(local_store.folder), "m1", clock=Ticking(), sleep=waits.append)
    journal.claim(ALICE)
    with pytest.raises(JournalConflict):
        journal.step("x")
    assert len(waits) == MAX_LOST_RACES
    assert max(waits) <= 0.1
