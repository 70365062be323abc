"""Who holds a migration."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from journal_support import ALICE, BOB, OpenJournal, go_to, opener

from airflow_provider_kafka_migration.errors import ClaimHeld, ClaimLost, StorageRefused
from airflow_provider_kafka_migration.journal import Claim, Journal, Owner
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import Bytes, ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import S3Store


def test_the_first_claim(open_journal: OpenJournal) -> None:
    journal = open_journal()
    claim = journal.current_claim
    assert claim == Claim(ALICE, 1, "2026-04-24T10:40:02.000Z")
    assert journal.generation == 1
    assert journal.holds()


class _Overwriting(LocalStore):
    """A store that ignores ``If-None-Match``."""

    def put_new(self, key: str, data: Bytes, *, sha256: str | None = None) -> None:
        self.put(key, data)


def test_a_store_that_overwrites_is_refused_at_every_claim(tmp_path: Path) -> None:
    open_journal = opener(_Overwriting(tmp_path))
    for _ in range(3):
        with pytest.raises(StorageRefused, match="overwrites an existing object"):
            open_journal()


def test_a_store_that_begins_to_overwrite_is_refused_at_the_next_claim(tmp_path: Path) -> None:
    """A gateway whose settings were changed, or a bucket that was moved to another service."""
    before = opener(LocalStore(tmp_path))()
    with pytest.raises(StorageRefused, match="overwrites an existing object"):
        opener(_Overwriting(tmp_path))()
    before.refresh()
    assert len(before.entries()) == 2


def test_a_lost_answer_is_no_proof_that_a_store_overwrites(s3_in_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that keeps no metadata takes what is there for the put whose answer was lost."""
    store = S3Store(s3_in_process.config, s3_in_process.bucket(), "journal", sleep=lambda _: None)
    opener(store)()
    put, head, fails = store._client.put_object, store._client.head_object, [503]

    def unlucky(**request: Any) -> Any:
        if fails:
            raise ClientError(
                {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": fails.pop()}}, "Put"
            )
        return put(**request)

    monkeypatch.setattr(store._client, "put_object", unlucky)
    monkeypatch.setattr(store._client, "head_object", lambda **request: {**head(**request), "Metadata": {}})
    assert opener(store)().holds()
    assert not fails


def test_the_same_run_again_changes_nothing(open_journal: OpenJournal) -> None:
    first = open_journal()
    cleared = open_journal(Owner(ALICE.kind, ALICE.identity, "carol, who cleared the task"))
    assert cleared.generation == 1
    assert len(cleared.entries()) == 2
    assert first.holds()
    assert cleared.step("x").actor == "carol, who cleared the task"
    assert first.step("y").actor == "alice"


def test_another_owner_is_refused_and_told_who_holds_it(open_journal: OpenJournal) -> None:
    journal = open_journal()
    with pytest.raises(ClaimHeld) as caught:
        open_journal(BOB)
    text = str(caught.value)
    assert "dag_run kafka_migration/run-1" in text
    assert "alice" in text
    assert "2026-04-24T10:40:02.000Z" in text
    assert "takeover" in text
    assert caught.value.details["generation"] == 1
    assert journal.holds()
    assert len(open_journal().entries()) == 2


def test_same_identity_of_another_kind_is_another_owner(open_journal: OpenJournal) -> None:
    open_journal()
    with pytest.raises(ClaimHeld):
        open_journal(Owner("cli", ALICE.identity, ALICE.actor))


def test_after_a_takeover_the_first_ones_next_write_is_refused(open_journal: OpenJournal) -> None:
    stale = open_journal()
    go_to(stale, State.SEED)
    taker = open_journal(BOB, takeover=True)
    assert taker.generation == 2
    entry = taker.tip
    assert entry is not None
    assert entry.details["taken_over_from"] == {
        "kind": "dag_run",
        "identity": "kafka_migration/run-1",
        "generation": 1,
    }
    count = len(taker.entries())
    with pytest.raises(
        ClaimLost, match=r"run-1 \(generation 1\) has lost the migration to cli bob@host \(generation 2\)"
    ):
        stale.step("lane_done", "1")
    with pytest.raises(ClaimLost):
        stale.transition(State.TAIL, "seed is done")
    with pytest.raises(ClaimLost):
        stale.check_holds()
    with pytest.raises(ClaimLost):
        stale.step_once("lane_done", "1")
    assert stale.fail(RuntimeError()) is None
    stale.release()
    assert not stale.holds()
    taker.refresh()
    assert len(taker.entries()) == count
    assert taker.current_claim is not None
    assert taker.current_claim.owner == BOB
    taker.transition(State.TAIL, "mine now")


def test_a_stale_holder_of_the_same_run_stays_stale_after_the_run_took_it_back(open_journal: OpenJournal) -> None:
    stale = open_journal()
    open_journal(BOB, takeover=True)
    back = open_journal(ALICE, takeover=True)
    assert back.generation == 3
    with pytest.raises(ClaimLost):
        stale.step("x")
    back.step("x")


def test_a_takeover_that_stays_set_is_used_once(open_journal: OpenJournal) -> None:
    """Two runs were started with the Param: each of their tasks would take the migration from the other one."""
    one, two = (Owner("dag_run", f"kafka_migration/run-{name}", "plan") for name in ("a", "b"))
    open_journal()
    first = open_journal(one, takeover="once")
    assert first.generation == 2
    assert open_journal(one, takeover="once").generation == 2, "the other tasks of the run are the same owner"
    second = open_journal(two, takeover="once")
    assert second.generation == 3, "another run is another decision"
    with pytest.raises(ClaimHeld, match="takeover of this run has been used"):
        open_journal(one, takeover="once")
    second.release()
    with pytest.raises(ClaimLost, match="takeover of this run has been used"):
        open_journal(one, takeover="once")
    assert open_journal(Owner("dag_run", "kafka_migration/run-c", "plan"), takeover="once").generation == 4


def test_a_run_that_held_it_before_does_not_take_it_from_the_next_holder(open_journal: OpenJournal) -> None:
    """Its takeover was about the owner at its start, whether or not there was one."""
    open_journal(takeover="once").release()
    open_journal(BOB)
    with pytest.raises(ClaimHeld, match="takeover of this run has been used"):
        open_journal(takeover="once")


def test_runs_of_the_same_id_in_two_airflows_are_two_owners(open_journal: OpenJournal) -> None:
    blue, green = (Owner("dag_run", "kafka_mirror/scheduled__2026", "mirror", None, name) for name in ("blue", "green"))
    journal = open_journal(blue)
    with pytest.raises(ClaimHeld, match="scheduled__2026 in another Airflow") as held:
        open_journal(green)
    assert "set its Variable back: kafka_migration_installation_id=" in held.value.next_step
    cleared = Owner("dag_run", "kafka_mirror/scheduled__2026", "another task", None, "blue")
    assert open_journal(cleared).generation == 1
    assert open_journal(green, takeover=True).generation == 2
    with pytest.raises(ClaimLost):
        journal.step("anything")


@pytest.mark.parametrize(("recorded", "now"), [("", "blue"), ("blue", "")])
def test_where_an_airflow_is_not_known_its_run_decides(open_journal: OpenJournal, recorded: str, now: str) -> None:
    """Journals of earlier releases name no Airflow, and one that cannot read its id must still free producers."""
    run = ("dag_run", "kafka_migration/run-1", "seed", None)
    open_journal(Owner(*run, recorded))
    assert open_journal(Owner(*run, now)).generation == 1


def test_release_lets_others_in(open_journal: OpenJournal) -> None:
    journal = open_journal()
    journal.release("evening")
    assert journal.current_claim is None
    assert not journal.holds()
    with pytest.raises(ClaimLost):
        journal.step("x")
    journal.release()
    other = open_journal(BOB)
    assert other.generation == 2
    assert other.entries()[-2].reason == "evening"
    with pytest.raises(ClaimHeld):
        open_journal(ALICE)


def test_whoever_was_taken_over_stays_out_after_the_release(open_journal: OpenJournal) -> None:
    """The takeover was meant to stop this owner: it does not come back by itself because the other one has ended."""
    open_journal()
    open_journal(BOB, takeover=True).release("done")
    with pytest.raises(ClaimLost):
        open_journal(ALICE)
    third = Owner("cli", "carol@host", "carol")
    open_journal(third).release()
    with pytest.raises(ClaimLost):
        open_journal(ALICE)
    back = open_journal(ALICE, takeover=True)
    assert back.holds()
    back.release()
    assert open_journal(ALICE).holds(), "it was let in again"


def test_a_process_that_did_not_notice_the_release(open_journal: OpenJournal) -> None:
    one, two = open_journal(), open_journal()
    one.release()
    with pytest.raises(ClaimLost, match="has released"):
        two.step("x")


def test_adopting_by_generation(store: ObjectStore, open_journal: OpenJournal) -> None:
    open_journal()
    driver = Journal(store, "m1")
    claim = driver.adopt(1, actor="spark driver")
    assert claim.owner == Owner(ALICE.kind, ALICE.identity, "spark driver")
    assert driver.step("lane_done", "0").actor == "spark driver"
    open_journal(BOB, takeover=True)
    with pytest.raises(ClaimLost):
        driver.step("lane_done", "1")
    for generation in (0, 1, 3):
        with pytest.raises(ClaimLost):
            Journal(store, "m1").adopt(generation, actor="spark driver")
    assert Journal(store, "m1").adopt(2, actor="d").owner.identity == BOB.identity


def test_of_many_claimers_of_a_free_migration_one_gets_it(
    store: ObjectStore, open_journal: OpenJournal, writers: int
) -> None:
    open_journal().release()
    barrier = threading.Barrier(writers)

    def claim(number: int) -> int | None:
        journal = Journal(store, "m1")
        barrier.wait()
        try:
            return journal.claim(Owner("cli", str(number), "x")).generation
        except ClaimHeld:
            return None

    with ThreadPoolExecutor(writers) as pool:
        results = list(pool.map(claim, range(writers)))
    assert results.count(2) == 1
    assert results.count(None) == writers - 1
    assert Journal(store, "m1").verify().is_good


def test_of_many_takers_each_gets_it_once_and_the_last_keeps_it(
    store: ObjectStore, open_journal: OpenJournal, writers: int
) -> None:
    open_journal()

    def take(number: int) -> Journal:
        journal = Journal(store, "m1")
        journal.claim(Owner("cli", str(number), "x"), takeover=True)
        return journal

    with ThreadPoolExecutor(writers) as pool:
        journals = list(pool.map(take, range(writers)))
    assert sorted(journal.generation for journal in journals) == list(range(2, 2 + writers))
    assert [journal.generation for journal in journals if journal.holds()] == [1 + writers]
    assert Journal(store, "m1").verify().is_good
