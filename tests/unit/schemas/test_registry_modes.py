"""Modes and levels that are changed for a while: set, put back, and left to others where others have changed them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, avro, client, world

from airflow_provider_kafka_migration.errors import ClaimLost, RegistryForbidden, SchemaSettingsNotRestored
from airflow_provider_kafka_migration.journal import Journal, Owner
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Progress
from airflow_provider_kafka_migration.record.registry_settings import journal_setting, open_settings
from airflow_provider_kafka_migration.schemas.modes import (
    TemporarySettings,
    former_modes,
    make_source_readonly,
    restore_source,
)
from airflow_provider_kafka_migration.schemas.sync import synchronize
from airflow_provider_kafka_migration.state import State
from harness.fake_registry import Reply, Request

pytestmark = pytest.mark.slow


def settings(at: World) -> TemporarySettings:
    return TemporarySettings(at.context.record, client(at.target, "target"), "target")


def still_open(at: World) -> dict[str, Any]:
    at.context.journal.refresh()
    return {scope: item.former for scope, item in open_settings(at.context.journal, "target", "mode").items()}


def test_a_kill_between_journal_and_change(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        at.target.store.modes["b"] = "READWRITE"
        journal_setting(at.context.journal, "target", "mode", {"a": None, "b": "READWRITE"}, "IMPORT", reason="test")
        assert settings(at).restore_open() == 2
        assert at.target.state()["modes"] == {"": "READWRITE", "b": "READWRITE"}
        assert at.target.writes == []
        assert still_open(at) == {}


def test_a_kill_between_restoring_and_journal(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        first = settings(at)
        first.change("mode", ["a"], "IMPORT")
        del at.target.store.modes["a"]
        assert settings(at).restore_open() == 1
        assert at.target.state()["modes"] == {"": "READWRITE"}
        assert still_open(at) == {}
        assert settings(at).restore_open() == 0


def test_the_first_former_mode_counts(tmp_path: Path) -> None:
    """A run that changes again what a killed one has left must not take mode IMPORT for the former one."""
    with world(tmp_path) as at:
        settings(at).change("mode", ["a"], "IMPORT")
        again = settings(at)
        again.change("mode", ["a"], "IMPORT")
        again.restore()
        assert at.target.state()["modes"] == {"": "READWRITE"}


def test_what_somebody_else_has_set_meanwhile_stays(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        own = settings(at)
        own.change("mode", ["a"], "IMPORT")
        at.target.store.modes["a"] = "READONLY"
        own.restore()
        assert at.target.store.modes["a"] == "READONLY"
        entry = at.context.journal.find_step(steps.SCHEMA_MODE_RESTORED)
        assert entry is not None
        assert entry.details["left"] == {"a": "READONLY"}
        assert still_open(at) == {}


def test_what_cannot_be_put_back_stays_open(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        own = settings(at)
        own.change("mode", ["a", "b"], "IMPORT")

        def refuse(request: Request) -> Reply | None:
            if request.method != "GET" and request.path == "/mode/a":
                return Reply.error(503, 503, "busy")
            return None

        at.target.before = refuse
        with pytest.raises(SchemaSettingsNotRestored, match="subject a"):
            own.restore()
        assert still_open(at) == {"a": None}
        assert "b" not in at.target.store.modes
        at.target.before = None
        assert settings(at).restore_open() == 1
        assert at.target.state()["modes"] == {"": "READWRITE"}


def test_a_registry_that_does_not_keep_what_is_put_back(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        own = settings(at)
        own.change("mode", ["a"], "IMPORT")
        at.target.before = lambda request: Reply.json({}) if request.method == "DELETE" else None
        with pytest.raises(SchemaSettingsNotRestored, match="is IMPORT after it was put back"):
            own.restore()
        assert still_open(at) == {"a": None}


def test_a_registry_that_cannot_remove_a_mode(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        own = settings(at)
        own.change("mode", ["a"], "IMPORT")
        at.target.before = lambda request: Reply.error(405, 405, "no") if request.method == "DELETE" else None
        own.restore()
        assert at.target.store.modes["a"] == "READWRITE"
        assert still_open(at) == {}


def test_without_the_claim_nothing_is_changed_or_journaled(tmp_path: Path) -> None:
    """What this object has changed itself is put back: nobody else may know that it has reached the registry."""
    with world(tmp_path) as at:
        own = settings(at)
        own.change("mode", ["a"], "IMPORT")
        other = Journal(at.context.journal_store, "m1")
        other.claim(Owner("cli", "other", "other"), takeover=True)
        with pytest.raises(ClaimLost):
            own.restore()
        with pytest.raises(ClaimLost):
            own.change("mode", ["b"], "IMPORT")
        assert at.target.store.modes == {}
        assert open_settings(other, "target", "mode").keys() == {"a"}


def test_without_the_claim_what_others_have_set_stays(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        own = settings(at)
        own.change("mode", ["a", "b"], "IMPORT")
        Journal(at.context.journal_store, "m1").claim(Owner("cli", "other", "other"), takeover=True)
        at.target.store.modes = {"a": "READONLY", "b": "IMPORT"}
        own.restore_after(ClaimLost("lost", next_step="none"))
        assert at.target.store.modes == {"a": "READONLY"}


def test_a_slow_request_that_arrives_after_a_takeover_leaves_nothing(tmp_path: Path) -> None:
    """The new owner has put everything back, and journaled that, before the mode is set."""
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=1)
        owners: list[Journal] = []

        def take_over(request: Request) -> None:
            if request.method == "PUT" and request.path == "/mode/a-value" and not owners:
                other = Journal(at.context.journal_store, "m1")
                other.claim(Owner("cli", "other", "other"), takeover=True)
                owners.append(other)
                record = replace(at.context, journal=other).record
                assert TemporarySettings(record, client(at.target, "target"), "target").restore_open() == 1

        at.target.before = take_over
        with at.pair() as pair, pytest.raises(ClaimLost):
            synchronize(at.context, pair, reason="tail")
        assert [request.path for request in at.target.writes if request.method == "PUT"] == ["/mode/a-value"]
        assert at.target.state()["modes"] == {"": "READWRITE"}
        owners[0].refresh()
        assert not open_settings(owners[0], "target", "mode")


def test_an_interrupted_pass_puts_modes_back(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=1)

        def interrupt(line: Progress) -> None:
            if line.unit == "versions":
                assert at.target.store.modes == {"a-value": "IMPORT"}
                raise KeyboardInterrupt

        with at.pair() as pair, pytest.raises(KeyboardInterrupt):
            synchronize(at.context, pair, reason="schemas", progress=interrupt)
        assert at.target.state()["modes"] == {"": "READWRITE"}
        assert still_open(at) == {}


def test_a_lost_claim_ends_a_pass(tmp_path: Path) -> None:
    """The journal keeps the modes open for the next owner, who closes them."""
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=1)
        owners: list[Journal] = []

        def take_over(request: Request) -> None:
            if request.method == "POST" and not owners:
                other = Journal(at.context.journal_store, "m1")
                other.claim(Owner("cli", "other", "other"), takeover=True)
                owners.append(other)

        at.target.before = take_over
        with at.pair() as pair, pytest.raises(ClaimLost):
            synchronize(at.context, pair, reason="schemas")
        assert at.target.store.modes == {}
        assert open_settings(owners[0], "target", "mode").keys() == {"a-value"}


def test_a_mode_that_another_process_puts_back_too_early_is_set_again(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        for number in range(3):
            at.source.seed(
                "a-value", avro("A", "x", f"y{number}", **{f"y{number}": 0}), id=number + 1, version=number + 1
            )
        restored: list[int] = []

        def another_process(request: Request, _reply: Reply) -> None:
            if request.method == "POST" and not restored:
                restored.append(settings(at).restore_open())

        at.target.after = another_process
        result = at.synchronize()
        assert restored == [1]
        assert (result.registered, result.failed) == (3, [])
        assert at.target.state()["modes"] == {"": "READWRITE"}
        assert still_open(at) == {}


def test_another_process_puts_back_what_is_about_to_be_set(tmp_path: Path) -> None:
    """It finds the mode unchanged and closes the entry; the change that follows must be open in the journal again."""
    with world(tmp_path) as at:
        own = settings(at)
        closed: list[int] = []

        def another_process(request: Request) -> None:
            if request.method == "PUT" and not closed:
                closed.append(settings(at).restore_open())

        at.target.before = another_process
        own.change("mode", ["a"], "IMPORT")
        assert closed == [1]
        assert still_open(at) == {"a": None}
        own.restore()
        assert at.target.state()["modes"] == {"": "READWRITE"}
        assert still_open(at) == {}


# -- read-only source -------------------------------------------------------------------------------------------------


def test_a_read_only_source_and_back(tmp_path: Path) -> None:
    with world(tmp_path, state=State.AWAITING_CLIENT_SWITCH, ids="keep", global_config=True) as at:
        at.source.seed("a-value", avro("A", "x"), id=1)
        at.source.seed("b-value", avro("B", "x"), id=2)
        at.source.store.modes = {"b-value": "READWRITE", "c-value": "READONLY"}
        registry = client(at.source, "source")
        record = at.context.record
        scopes = make_source_readonly(
            TemporarySettings(record, registry, "source"), {"b-value": "READWRITE", "c-value": "READONLY"}
        )
        assert scopes == ["", "b-value"]
        assert at.source.state()["modes"] == {"": "READONLY", "b-value": "READONLY", "c-value": "READONLY"}
        assert former_modes(record, "source") == {"": "READWRITE", "b-value": "READWRITE"}
        # The freeze is not copied: the target takes writes.
        assert at.synchronize("final").failed == []
        assert at.target.state()["modes"] == {"": "READWRITE", "b-value": "READWRITE"}
        assert restore_source(record, registry) == 2
        assert at.source.state()["modes"] == {"": "READWRITE", "b-value": "READWRITE", "c-value": "READONLY"}
        assert restore_source(record, registry) == 0


def test_a_source_that_could_not_be_made_read_only_is_put_back(tmp_path: Path) -> None:
    with world(tmp_path) as at:
        registry = client(at.source, "source")

        def refuse(request: Request) -> Reply | None:
            return Reply.error(403, 40301, "no") if request.path == "/mode/b" and request.method == "PUT" else None

        at.source.before = refuse
        at.source.store.modes["b"] = "READWRITE"
        with pytest.raises(RegistryForbidden):
            make_source_readonly(TemporarySettings(at.context.record, registry, "source"), {"b": "READWRITE"})
        assert at.source.store.mode == "READONLY"
        restore_source(at.context.record, registry)
        assert at.source.state()["modes"] == {"": "READWRITE", "b": "READWRITE"}
