"""What the journal's tests share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_kafka_migration.journal import Fingerprint, Journal, Owner
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.base import ObjectStore

FINGERPRINT = Fingerprint("source-id", "target-id", {"journal": "s3://jb"}, {"journal": "p"})
ALICE = Owner("dag_run", "kafka_migration/run-1", "alice")
BOB = Owner("cli", "bob@host", "bob")

OpenJournal = Callable[..., Journal]


class Ticking:
    """A clock that goes on by a second at each look."""

    def __init__(self) -> None:
        self.now = datetime(2026, 4, 24, 10, 40, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def opener(store: ObjectStore) -> OpenJournal:
    """Creates or opens the journal of ``m1``, as another process would: nothing is shared but the store."""

    def do(owner: Owner = ALICE, **more: Any) -> Journal:
        fingerprint = more.pop("fingerprint", FINGERPRINT)
        return Journal.create_or_open(store, "m1", fingerprint, owner=owner, clock=Ticking(), **more)

    return do


def go_to(journal: Journal, state: State) -> None:
    """Walk the forward path up to a state."""
    assert journal.tip_state is not None
    for next_state in FORWARD[FORWARD.index(journal.tip_state) + 1 : FORWARD.index(state) + 1]:
        journal.transition(next_state, f"to {next_state}")
