"""Passes in a thread while records are copied."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, avro, world

from airflow_provider_kafka_migration.journal import Journal, Owner
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key
from airflow_provider_kafka_migration.schemas import sync
from airflow_provider_kafka_migration.schemas.sync import SchemaFollower
from harness.fake_registry import Reply, Request

pytestmark = pytest.mark.slow


def wait_until(what: Callable[[], Any]) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "it did not happen within a minute"
        time.sleep(0.02)


def follower(at: World) -> SchemaFollower:
    return SchemaFollower(at.context, lambda _context: at.pair(), poll_seconds=0.05)


def known(at: World) -> set[int]:
    document = at.context.record.schema_id_map()
    return {source for _, source, _ in document.ids} if document is not None else set()


def test_new_schemas_are_copied_every_interval(tmp_path: Path) -> None:
    with world(tmp_path, interval="1s") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        with follower(at):
            wait_until(lambda: 5 in known(at))
            at.source.seed("b-value", avro("B", "x"), id=6)
            wait_until(lambda: 6 in known(at))


def test_a_wanted_id_does_not_wait_for_the_interval(tmp_path: Path) -> None:
    with world(tmp_path, interval="1h") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        with follower(at):
            wait_until(lambda: 5 in known(at))
            at.source.seed("b-value", avro("B", "x"), id=6)
            at.context.journal_store.put_new(wanted_key("m1", ".", 6), b"{}")
            at.context.journal_store.put_new(wanted_key("m1", ".", 7), b"{}")
            wait_until(lambda: 6 in known(at) and at.id_map().absent == [(".", 7)])


def test_errors_are_journaled_once_and_passes_go_on(tmp_path: Path) -> None:
    with world(tmp_path, interval="1s") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        at.source.before = lambda _request: Reply.error(403, 40301, "no")
        with follower(at):
            wait_until(lambda: ("schemas_failed", "REGISTRY_FORBIDDEN") in at.steps())
            asked = len(at.source.requests)
            wait_until(lambda: len(at.source.requests) > asked)
            at.source.before = None
            wait_until(lambda: 5 in known(at))
        assert at.steps().count((steps.SCHEMAS_FAILED, "REGISTRY_FORBIDDEN")) == 1


def test_a_lost_claim_ends_it(tmp_path: Path) -> None:
    with world(tmp_path, interval="1s") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        with follower(at) as running:
            wait_until(lambda: 5 in known(at))
            Journal(at.context.journal_store, "m1").claim(Owner("cli", "other", "other"), takeover=True)
            at.source.seed("b-value", avro("B", "x"), id=6)
            assert running._thread is not None
            running._thread.join(timeout=60)
            assert not running._thread.is_alive()
        assert known(at) == {5}
        assert "b-value" not in at.target_subjects()


def test_without_registries_nothing_runs(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        section = at.context.spec.schemas.model_copy(update={"source": None, "target": None})
        at.context.spec = at.context.spec.model_copy(update={"schemas": section})
        with follower(at) as running:
            assert running._thread is None
        assert at.source.requests == []


def test_it_pauses_during_a_freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cutover runs the passes then."""
    events: list[str] = []
    original, is_frozen = sync.synchronize, MigrationRecord.is_frozen

    def note_pass(*arguments: Any, **options: Any) -> Any:
        events.append("pass")
        return original(*arguments, **options)

    def note_frozen(record: MigrationRecord) -> bool:
        found = is_frozen(record)
        events.extend(["frozen"] if found else [])
        return found

    monkeypatch.setattr(sync, "synchronize", note_pass)
    monkeypatch.setattr(MigrationRecord, "is_frozen", note_frozen)
    with world(tmp_path, interval="1s") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        with follower(at):
            wait_until(lambda: 5 in known(at))
            now = iso(at.context.now())
            details = {"method": "manual", "requested_at": now, "deadline": now}
            at.context.journal.step(steps.FREEZE_REQUESTED, "1", details)
            wait_until(lambda: events[-3:] == ["frozen"] * 3)
            passes, looks = events.count("pass"), len(events)
            at.source.seed("b-value", avro("B", "x"), id=6)
            at.context.journal_store.put_new(wanted_key("m1", ".", 6), b"{}")
            wait_until(lambda: len(events) > looks + 1)
            assert events.count("pass") == passes
            at.context.journal.step(steps.FREEZE_LIFTED, "1", {})
            wait_until(lambda: 6 in known(at))


def test_the_end_of_the_copy_ends_a_pass_which_puts_modes_back(tmp_path: Path) -> None:
    with world(tmp_path, interval="1h", ids="keep", max_parallel_requests=1) as at:
        for number in range(200):
            at.source.seed(f"s-{number:03d}", avro(f"S{number}", "x"), id=number + 1)
        registering, ended = threading.Event(), threading.Event()

        def hold(request: Request) -> None:
            if request.method == "POST":
                registering.set()
                ended.wait(60)

        at.target.before = hold
        with follower(at) as running:
            assert registering.wait(60)
            assert "IMPORT" in at.target.state()["modes"].values()
            # What leaving the block does first; the request that is under way ends afterwards.
            running._stop.set()
            ended.set()
        assert at.target.state()["modes"] == {"": "READWRITE"}
        assert len(at.target_subjects()) < 200
        assert not [name for name, _ in at.steps() if name == steps.SCHEMAS_FAILED]
