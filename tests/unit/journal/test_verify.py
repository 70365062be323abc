"""An altered, missing or forked entry is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
from journal_support import ALICE, BOB, OpenJournal, go_to

from airflow_provider_kafka_migration.documents.journal import content_hash
from airflow_provider_kafka_migration.errors import DocumentUnreadable, JournalTampered
from airflow_provider_kafka_migration.journal import Journal, entries, verify_journal
from airflow_provider_kafka_migration.journal.entries import entry_key
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore

Tamper = Callable[[LocalStore], None]


def read(store: LocalStore, seq: int) -> dict[str, Any]:
    """An entry's content."""
    data = store.get(entry_key("m1", seq))
    assert data is not None
    content: dict[str, Any] = json.loads(data)
    return content


def write(store: LocalStore, seq: int, content: dict[str, Any], *, rehash: bool = False) -> None:
    """Overwrite an entry, as somebody with access to the bucket could."""
    if rehash:
        content = {**content, "hash": content_hash(content)}
    store.put(entry_key("m1", seq), rfc8785.dumps(content))


def remove(store: LocalStore, seq: int) -> None:
    """Delete an entry."""
    (store.folder / entry_key("m1", seq)).unlink()


def change(seq: int, *, rehash: bool = False, **fields: Any) -> Tamper:
    """Change fields of an entry."""
    return lambda store: write(store, seq, {**read(store, seq), **fields}, rehash=rehash)


def rewrite_from(seq: int, **fields: Any) -> Tamper:
    """Change an entry and make all hashes after it fit."""

    def do(store: LocalStore) -> None:
        write(store, seq, {**read(store, seq), **fields}, rehash=True)
        for later in range(seq + 1, 9):
            write(store, later, {**read(store, later), "prev_hash": read(store, later - 1)["hash"]}, rehash=True)

    return do


def copy(from_seq: int, to_seq: int) -> Tamper:
    """Put an entry in another one's place."""
    return lambda store: write(store, to_seq, read(store, from_seq))


def raw(seq: int, data: bytes) -> Tamper:
    """Put any bytes in an entry's place."""
    return lambda store: store.put(entry_key("m1", seq), data)


def pretty(store: LocalStore) -> None:
    """The same content in other bytes."""
    store.put(entry_key("m1", 4), json.dumps(read(store, 4), indent=1).encode())


def drop_view(store: LocalStore) -> None:
    """Somebody who knows about the view deletes it, too."""
    (store.folder / "m1/journal.jsonl").unlink()


LAST = 8

CASES: list[tuple[str, Tamper, str, int]] = [
    ("one word", change(4, reason="another reason"), "altered", 4),
    ("the first entry's fingerprint", change(0, details={}), "altered", 0),
    ("the last entry", change(LAST, reason="another"), "altered", LAST),
    ("one more field", change(4, note="hello"), "altered", 4),
    ("other bytes", pretty, "altered", 4),
    ("not JSON", raw(4, b"{"), "altered", 4),
    ("not text", raw(4, b"\xff\xfe"), "altered", 4),
    ("empty", raw(4, b""), "altered", 4),
    ("a list", raw(4, b"[]"), "altered", 4),
    ("no version", raw(4, b"{}"), "altered", 4),
    ("an unknown state", change(4, rehash=True, to="somewhere"), "altered", 4),
    ("changed with its hash", change(4, rehash=True, reason="another reason"), "forked", 5),
    ("an entry of a fork", change(4, rehash=True, prev_hash="f" * 64), "forked", 4),
    ("a first entry that follows something", change(0, rehash=True, prev_hash="f" * 64), "forked", 0),
    ("missing in the middle", lambda store: remove(store, 4), "missing", 4),
    ("missing at the start", lambda store: remove(store, 0), "missing", 0),
    ("missing at the end", lambda store: remove(store, LAST), "missing", LAST),
    ("two missing at the end", lambda store: [remove(store, seq) for seq in (7, 8)] and None, "missing", 7),
    ("repeated", copy(3, 4), "foreign", 4),
    ("swapped for a later one", copy(5, 4), "foreign", 4),
    ("of another migration", change(4, rehash=True, migration_id="m2"), "foreign", 4),
    ("rewritten up to the end", rewrite_from(4, reason="another"), "altered", 4),
    ("a skipped state", rewrite_from(4, to="validating"), "illegal", 4),
    ("by who did not hold it", rewrite_from(4, generation=7), "illegal", 4),
    ("begins elsewhere", rewrite_from(0, to="tail"), "illegal", 0),
]


@pytest.fixture
def tampered(request: pytest.FixtureRequest, open_local: OpenJournal, local_store: LocalStore) -> tuple[str, int]:
    """A journal of nine entries, 0 to 8, that somebody has been at; what should be found, and where."""
    _, tamper, kind, seq = request.param
    journal = open_local()
    journal.step("looked", "a")
    go_to(journal, State.TAIL)
    journal.step("looked", "b")
    journal.step("looked", "c")
    journal.materialise()
    assert len(journal.entries()) == LAST + 1
    assert verify_journal(local_store, "m1").is_good
    tamper(local_store)
    return kind, seq


@pytest.mark.parametrize("tampered", CASES, ids=[case[0] for case in CASES], indirect=True)
def test_verify_names_it(tampered: tuple[str, int], local_store: LocalStore) -> None:
    kind, seq = tampered
    report = verify_journal(local_store, "m1")
    assert (report.problems[0].kind, report.problems[0].seq) == (kind, seq)
    assert report.as_dict()["problems"][0]["reason"]
    with pytest.raises(JournalTampered, match=f"entry {seq} is {kind}") as caught:
        Journal(local_store, "m1").verify()
    assert caught.value.details["seq"] == seq


@pytest.mark.parametrize("tampered", CASES, ids=[case[0] for case in CASES], indirect=True)
def test_nobody_goes_on_with_it(tampered: tuple[str, int], open_local: OpenJournal, local_store: LocalStore) -> None:
    before = {info.key: local_store.get(info.key) for info in local_store.list()}
    with pytest.raises(JournalTampered, match=f"entry {tampered[1]} is {tampered[0]}"):
        open_local()
    assert {info.key: local_store.get(info.key) for info in local_store.list()} == before


@pytest.mark.parametrize("comes_after", [3, None], ids=["late", "gone"])
def test_an_entry_that_is_listed_and_not_returned_is_read_again_for_a_while(
    open_local: OpenJournal, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch, comes_after: int | None
) -> None:
    monkeypatch.setattr(entries, "READ_AGAIN_SECONDS", 10.0)
    go_to(open_local(), State.SEED)
    data = local_store.get(entry_key("m1", 2))
    assert data is not None
    remove(local_store, 2)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == comes_after:
            local_store.put_new(entry_key("m1", 2), data)

    journal = Journal(local_store, "m1", sleep=sleep)
    if comes_after is None:
        with pytest.raises(JournalTampered, match="entry 2 is missing"):
            journal.refresh()
        assert sum(slept) == 10
    else:
        journal.refresh()
        assert sum(slept) == comes_after
        assert journal.tip_state is State.SEED


def test_all_problems_are_listed(open_local: OpenJournal, local_store: LocalStore) -> None:
    go_to(open_local(), State.DRAIN_READY)
    change(2, reason="x")(local_store)
    remove(local_store, 4)
    raw(5, b"?")(local_store)
    problems = verify_journal(local_store, "m1").problems
    assert [(problem.seq, problem.kind) for problem in problems] == [(2, "altered"), (4, "missing"), (5, "altered")]
    with pytest.raises(JournalTampered, match=r"entry 2 is altered.*\(2 more\)"):
        Journal(local_store, "m1").verify()


def test_other_objects_in_the_folder_are_named(open_local: OpenJournal, local_store: LocalStore) -> None:
    journal = open_local()
    local_store.put("m1/journal/00000000000000000001-copy.json", b"{}")
    local_store.put("m1/journal/1.json", b"{}")
    kinds = {(problem.kind, problem.reason.split()[0]) for problem in verify_journal(local_store, "m1").problems}
    assert kinds == {
        ("foreign", "m1/journal/00000000000000000001-copy.json"),
        ("foreign", "m1/journal/1.json"),
    }
    journal.step("they do no harm")
    assert open_local().tip == journal.tip


def test_a_holder_notices_what_is_written_beside_it(open_local: OpenJournal, local_store: LocalStore) -> None:
    """An entry that does not follow: the present holder stops at its next append."""
    journal = open_local()
    forged = {**read(local_store, 1), "seq": 2, "prev_hash": "0" * 64}
    write(local_store, 2, forged, rehash=True)
    with pytest.raises(JournalTampered, match="entry 2 is forked"):
        journal.step("x")


def test_a_later_release_is_told_from_tampering(open_local: OpenJournal, local_store: LocalStore) -> None:
    open_local()
    change(1, rehash=True, version=2)(local_store)
    for action in (open_local, lambda: verify_journal(local_store, "m1")):
        with pytest.raises(DocumentUnreadable, match="version 2"):
            action()


def test_a_good_journal(store: ObjectStore, open_journal: OpenJournal) -> None:
    go_to(open_journal(), State.SEED)
    taker = open_journal(BOB, takeover=True)
    taker.fail(RuntimeError())
    taker.release()
    open_journal(ALICE, takeover=True).transition(State.ROLLED_BACK, "abort")
    report = Journal(store, "m1").verify()
    tip = Journal(store, "m1").tip
    assert tip is not None
    assert report.is_good
    assert (report.entries, report.tip_hash) == (10, tip.hash)


def test_an_absent_journal_is_empty_and_good(store: ObjectStore) -> None:
    report = verify_journal(store, "m1")
    assert (report.entries, report.is_good, report.tip_hash) == (0, True, "0" * 64)


def test_a_deleted_view_is_no_problem(open_local: OpenJournal, local_store: LocalStore) -> None:
    open_local()
    drop_view(local_store)
    assert verify_journal(local_store, "m1").is_good
    open_local()
    assert local_store.get("m1/journal.jsonl") is not None
