"""``kafka-migration translate`` and the public translator, on simulated migrations in every stage."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.world import SIGNING_KEY, World, Worlds, without_probes
from typer.testing import Result

from airflow_provider_kafka_migration.cli import translate as commands
from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.documents.cutover import Translation
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    BrokerRefused,
    ForeignData,
    MigrationError,
    NotInMigration,
    Terminal,
)
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffsets
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.mirror_maker.state_writer import Written
from airflow_provider_kafka_migration.translate import Translator

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def made() -> Worlds:
    return Worlds()


@pytest.fixture
def at(made: Worlds, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], World]:
    """A migration at the beginning of a phase."""
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    without_probes(monkeypatch)
    return made.at


@pytest.fixture
def command(
    at: Callable[[str], World], monkeypatch: pytest.MonkeyPatch, invoke: Invoke, spec_file: Path
) -> Callable[..., dict[str, Any]]:
    """Run ``translate`` on a migration that has switched, and return its answer."""
    world = at("evidence")
    monkeypatch.setattr(commands, "_open", lambda _spec: Translator(world.context()))

    def run(*arguments: object) -> dict[str, Any]:
        name, *rest = arguments
        result = invoke("translate", name, spec_file, *rest, "--json")
        assert result.exit_code == ExitCode.OK, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    return run


def test_before_the_plan_there_is_nothing_to_translate(at: Callable[[str], World]) -> None:
    with pytest.raises(Terminal, match="no plan yet"):
        Translator(at("plan").context())


def test_before_the_copy_every_position_is_one_that_is_not_copied(at: Callable[[str], World]) -> None:
    for phase in ("topology_copy", "seed"):
        translator = Translator(at(phase).context())
        found = translator.offset("orders", 0, 2)
        assert (found.to_topic, found.to_offset, found.how) == ("orders", 2, Translation.EQUAL)
        assert not found.is_copied, phase
        assert translator.offset("orders", 0, 0).is_copied, "a consumer at the log's start misses nothing"


def test_while_the_tail_runs_it_says_what_has_been_copied(at: Callable[[str], World]) -> None:
    world = at("drain_ready")
    translator = Translator(world.context())
    end = world.source.log("orders").end
    assert translator.offset("orders", 0, end).is_copied
    world.source.log("orders").write(b"later")
    translator.refresh()
    assert not translator.offset("orders", 0, end + 1).is_copied
    assert not translator.offset("orders", 0, end + 1, "to_source").is_copied


def test_a_group_goes_there_and_back(at: Callable[[str], World]) -> None:
    world = at("evidence")
    translator = Translator(world.context())
    there = {(item.from_topic, item.partition): item for item in translator.group("billing")}
    assert there["orders", 0].to_offset == 2
    assert there["orders", 1].how in (Translation.EQUAL, Translation.CLAMPED)
    assert all(item.is_copied for item in there.values() if item.how is Translation.EQUAL)
    back = {(item.from_topic, item.partition): item for item in translator.group("billing", "to_source")}
    assert back["orders", 0].to_offset == 2
    assert sorted(translator.groups("bill.*|audit")) == ["audit", "billing"]
    assert translator.groups("bill") == {}, "the whole name has to match"


def test_what_clients_wrote_after_the_switch_has_no_place_on_the_source(at: Callable[[str], World]) -> None:
    world = at("evidence")
    world.target.log("orders").write(b"new life")
    translator = Translator(world.context())
    found = translator.offset("orders", 0, world.target.log("orders").end, "to_source")
    assert found.how is Translation.CLAMPED
    assert not found.is_copied
    assert found.to_offset == world.source.log("orders").end


def test_offsets_outside_of_the_migration_are_named(at: Callable[[str], World]) -> None:
    world = at("evidence")
    world.source.create("other")
    world.source.group("mixed", orders_0=1, other_0=0)
    found = {item.from_topic: item for item in Translator(world.context()).group("mixed")}
    assert found["orders"].to_offset == 1
    assert (found["other"].to_offset, found["other"].how) == (None, Translation.SKIPPED)
    assert found["other"].reason == "it is not part of the migration"


def test_what_does_not_exist_is_an_error_that_names_it(at: Callable[[str], World]) -> None:
    translator = Translator(at("evidence").context())
    with pytest.raises(NotInMigration, match="orders, state"):
        translator.offset("order", 0, 1)
    with pytest.raises(NotInMigration, match="partition"):
        translator.offset("orders", 9, 1)
    with pytest.raises(NotInMigration, match="no such consumer group"):
        translator.group("nobody")
    with pytest.raises(ValueError, match="negative"):
        translator.offset("orders", 0, -1)
    with pytest.raises(ValueError, match="time zone"):
        translator.timestamp("orders", 0, datetime(2026, 11, 23))


@pytest.mark.parametrize("partial", [False, True])
def test_offsets_that_cannot_be_read_are_never_an_empty_answer(at: Callable[[str], World], partial: bool) -> None:
    world = at("evidence")
    error = ItemError(16, "NOT_COORDINATOR")
    answer = GroupOffsets("billing", errors={("orders", 0): error}) if partial else GroupOffsets("billing", error=error)
    world.outside.fail("source.admin.groups_offsets", lambda _found: {"billing": answer})
    with pytest.raises(BrokerRefused, match="NOT_COORDINATOR"):
        Translator(world.context()).group("billing")


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_group_that_cannot_be_read_holds_up_no_other_one_that_is_published(
    at: Callable[[str], World], is_missing: bool
) -> None:
    """It is named, and is not there as a group without offsets."""
    world = at("evidence")

    def without(found: dict[str, GroupOffsets]) -> dict[str, GroupOffsets]:
        if is_missing:
            return {name: item for name, item in found.items() if name != "billing"}
        return {**found, "billing": GroupOffsets("billing", error=ItemError(88, "UNSTABLE_OFFSET_COMMIT"))}

    world.outside.fail("source.admin.groups_offsets", without)
    translator = Translator(world.context())
    unread: dict[str, MigrationError] = {}
    assert list(translator.selected_groups(world.spec.groups.selects, unread=unread)) == ["audit"]
    assert list(unread) == ["billing"]
    assert ("were not answered" if is_missing else "UNSTABLE_OFFSET_COMMIT") in unread["billing"].what
    with pytest.raises(MigrationError, match="billing"):
        translator.groups(".*")


def test_commands(command: Callable[..., dict[str, Any]], invoke: Invoke, spec_file: Path) -> None:
    found = command("offset", "orders", 0, 0, 2)["positions"]
    assert [(item["from_offset"], item["to_offset"], item["how"]) for item in found] == [
        (0, 0, "equal"),
        (2, 2, "equal"),
    ]
    assert command("offset", "orders", 0, 2, "--back")["positions"][0]["to_offset"] == 2
    assert list(command("group", "billing")["groups"]) == ["billing"]
    assert list(command("group", "--regex", ".*i.*")["groups"]) == ["audit", "billing"]
    assert command("group", "--regex", "nobody.*")["groups"] == {}
    shown = invoke("translate", "offset", spec_file, "orders", 0, 999).stdout
    assert "not copied yet" in shown
    assert invoke("translate", "group", spec_file, "nobody").exit_code == ExitCode.FAILED


@pytest.mark.parametrize("time", ["yesterday", "2026-11-23T04:00:00"])
def test_a_time_that_is_none_is_refused_before_anything_is_opened(invoke: Invoke, spec_file: Path, time: str) -> None:
    result = invoke("translate", "time", spec_file, "orders", 0, time)
    assert result.exit_code == 2
    assert time in result.output


class _Publisher:
    """Publishes what it is given, round by round."""

    def __init__(self, *rounds: Written | Exception, unread: dict[str, MigrationError] | None = None) -> None:
        self.rounds = list(rounds)
        self.unread = unread or {}

    def publish(self) -> Written:
        found = self.rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Make the command publish rounds; returns the pauses between them, the last of which a signal ends."""

    def make(*rounds: Written | Exception, unread: dict[str, MigrationError] | None = None) -> list[float]:
        made, pauses = _Publisher(*rounds, unread=unread), list[float]()
        monkeypatch.setattr(commands, "_publisher", lambda _spec, _topics: contextlib.nullcontext(made))

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if not made.rounds:
                raise KeyboardInterrupt

        monkeypatch.setattr(commands.time, "sleep", pause)
        return pauses

    return make


ALIASES = ("--source-alias", "old", "--target-alias", "new")


def test_publish_once_says_what_it_wrote(
    publishing: Callable[..., list[float]], invoke: Invoke, spec_file: Path
) -> None:
    pauses = publishing(Written(3, 2, 2))
    answer = json.loads(invoke("translate", "publish", spec_file, *ALIASES, "--once", "--json").stdout)
    assert (answer["rounds"], answer["checkpoints"], answer["offset_syncs"]) == (1, 3, 2)
    assert answer["topics"][0] == "old.checkpoints.internal"
    assert pauses == []


def test_publish_names_groups_that_it_has_left_out(
    publishing: Callable[..., list[float]], invoke: Invoke, spec_file: Path
) -> None:
    unread = {"billing": BrokerBusy("a commit is pending")}
    publishing(Written(3), Written(1), unread=unread)
    result = invoke("translate", "publish", spec_file, *ALIASES)
    assert result.stderr.count("group billing was left out") == 2
    publishing(Written(3), unread=unread)
    answer = json.loads(invoke("translate", "publish", spec_file, *ALIASES, "--once", "--json").stdout)
    assert (answer["checkpoints"], answer["unread_groups"]) == (3, {"billing": "a commit is pending"})


@pytest.mark.parametrize(("more", "first"), [((), "A-checkpoints"), (("--source-alias", "X"), "X-checkpoints")])
def test_publish_takes_the_aliases_of_a_mirror(
    publishing: Callable[..., list[float]], invoke: Invoke, tmp_path: Path, more: tuple[str, ...], first: str
) -> None:
    publishing(Written(1))
    spec = tmp_path / "mirror.yaml"
    spec.write_text(
        "kind: mirror\nmigration_id: a-to-b\nsource: {conn_id: env:A}\ntarget: {conn_id: env:B}\n"
        f"storage: {{journal: 'file://{tmp_path}/journal'}}\n"
        "mirror: {source_alias: A, target_alias: B, separator: '-'}\n"
    )
    found = invoke("mirror", "translate", "publish", spec, *more, "--once", "--json")
    assert json.loads(found.stdout)["topics"][0] == f"{first}-internal"


def test_publish_goes_on_after_a_round_that_may_succeed_later(
    publishing: Callable[..., list[float]], invoke: Invoke, spec_file: Path
) -> None:
    pauses = publishing(Written(3), BrokerBusy("the target restarts"), Written(1))
    result = invoke("translate", "publish", spec_file, *ALIASES, "--interval", "5s")
    assert pauses == [5.0, 5.0, 5.0]
    assert "the target restarts" in result.stderr
    assert "round 2: 1 checkpoints" in result.stderr
    assert result.exit_code == 130


def test_publish_ends_with_an_error_that_a_person_has_to_correct(
    publishing: Callable[..., list[float]], invoke: Invoke, spec_file: Path
) -> None:
    publishing(Written(3), ForeignData("another tool writes"), Written(1))
    assert invoke("translate", "publish", spec_file, *ALIASES).exit_code == ExitCode.FAILED
    publishing(BrokerBusy("the target restarts"))
    assert invoke("translate", "publish", spec_file, *ALIASES, "--once").exit_code == ExitCode.TRY_AGAIN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--source-alias", "my.src", "--target-alias", "new"), "separator"),
        (("--source-alias", "old", "--target-alias", "old"), "same alias"),
        (("--source-alias", "old"), "only the spec of a mirror has aliases"),
        ((*ALIASES, "--interval", "soon"), "a duration is a number"),
    ],
)
def test_publish_refuses_what_no_client_could_read(
    invoke: Invoke, spec_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = invoke("translate", "publish", spec_file, *arguments)
    assert result.exit_code in (ExitCode.FAILED, ExitCode.USAGE)
    assert message in " ".join(result.output.split())
