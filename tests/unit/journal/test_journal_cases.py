"""Journals written by version 1 stay readable, for ever: their files are never rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kafka_migration.documents.journal import JournalEntry, parse_entry
from airflow_provider_kafka_migration.journal import Fingerprint, Journal, Owner
from airflow_provider_kafka_migration.journal.spec_guard import last_spec
from airflow_provider_kafka_migration.journal.view import contradiction
from airflow_provider_kafka_migration.record import freeze_attempt, rolling_back
from airflow_provider_kafka_migration.record.changes import open_changes
from airflow_provider_kafka_migration.state import MIGRATION, State
from airflow_provider_kafka_migration.storage.local import LocalStore

CASES = Path(__file__).parents[2] / "cases" / "journal" / "v1"
FILES = sorted(CASES.glob("*.json"))
TIP_HASH = "877e2719d16e114a74bf1592674f1a17dbf4b7338118dbaa61cc3e67af0d77d1"


@pytest.fixture
def journal(local_store: LocalStore) -> Journal:
    """The example journal, in a store."""
    for file in FILES:
        local_store.put(f"orders-2026/journal/{file.name}", file.read_bytes())
    local_store.put("orders-2026/journal.jsonl", (CASES / "journal.jsonl").read_bytes())
    return Journal(local_store, "orders-2026")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_entry_is_readable(file: Path) -> None:
    entry, expected_hash = parse_entry(file.read_bytes(), path=file.name)
    assert entry.hash == expected_hash
    assert entry.version == 1
    assert entry.seq == int(file.stem)
    assert JournalEntry.parse(file.read_bytes()) == entry
    assert entry.canonical() == file.read_bytes()


def test_what_they_add_up_to(journal: Journal) -> None:
    s = State
    assert journal.history == (
        *(s.PLANNED, s.PRECHECK, s.TOPOLOGY_COPY, s.SEED, s.FAILED, s.SEED, s.TAIL, s.DRAIN_READY, s.TAIL),
        *(s.DRAIN_READY, s.CUTOVER, s.AWAITING_CLIENT_SWITCH, s.VALIDATING, s.FINALIZED),
    )
    report = journal.verify()
    assert (report.entries, report.tip_hash) == (len(FILES), TIP_HASH)
    claim = journal.current_claim
    assert claim is not None
    assert claim.generation == 3
    assert claim.owner == Owner("dag_run", "kafka_migration/manual__2026-04-24T10:40:00+00:00", "alice")
    assert [entry.step for entry in journal.steps() if entry.step_key is None] == [
        *("created", "claimed", "spec_recorded", "failed_again", "claimed", "released", "claimed")
    ]
    lane = journal.find_step("lane_done", "3")
    assert lane is not None
    assert lane.details == {
        "records": 900,
        "bytes": 524288,
        "ratio": 0.25,
        "largest": "9223372036854775807",
        "ok": True,
        "nothing": None,
        "names": ["é", "€"],
    }
    spec = last_spec(journal)
    assert spec is not None
    assert spec.details["fields"]["tail.drain_max_partition_lag"] == 50
    assert contradiction((CASES / "journal.jsonl").read_bytes(), journal.entries()) is None


def test_its_fingerprint_still_fits(journal: Journal) -> None:
    journal.check_fingerprint(
        Fingerprint.of_locations(
            "7RkfUBxLQ9eRSaXCS4OaJw",
            "MkU3OEVBNTcwNTJENDM2Qk",
            {
                "journal": "s3://migrations/kafka",
                "archive": "s3://migrations/kafka/archive",
                "evidence": "s3://evidence/kafka",
            },
        )
    )


def test_the_examples_are_complete() -> None:
    """Each kind of entry that version 1 writes has an example."""
    entries = [parse_entry(file.read_bytes(), path=file.name)[0] for file in FILES]
    steps = {entry.step for entry in entries}
    assert steps >= {None, "created", "claimed", "released", "failed_again", "spec_recorded", "spec_changed"}
    assert {entry.to_state for entry in entries} == MIGRATION.states - {State.ROLLED_BACK}


# -- a promoted mirror that was abandoned -----------------------------------------------------------------------------

ABANDONED = CASES.parent / "abandoned-mirror"


def test_a_promoted_mirror_that_was_opened_again_and_abandoned(local_store: LocalStore) -> None:
    for file in sorted(ABANDONED.glob("*.json")):
        local_store.put(f"a-to-b/journal/{file.name}", file.read_bytes())
    journal = Journal(local_store, "a-to-b")
    assert journal.history[-3:] == (State.TAIL, State.PROMOTED, State.ENDED)
    assert (journal.is_closed, journal.verify().is_good) == (True, True)
    attempt = freeze_attempt.latest(journal)
    assert attempt is not None
    assert (attempt.ready, attempt.lifted, attempt.request) == (True, True, 1)
    assert rolling_back.is_abandoned(journal)
    assert open_changes(journal, "1") == open_changes(journal, "1/free") == []
