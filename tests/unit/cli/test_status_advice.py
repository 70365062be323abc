"""Each command that ``status`` advises is accepted in that very state: of migrations, ways back and mirrors."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_kafka_migration.cli import mirror
from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.cli.migrate import cli_owner
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import COURSES, FORWARD, MIRROR, State
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.way_back import derived_spec

pytestmark = pytest.mark.slow

AIRFLOW = Owner("dag_run", "orders/manual__1", "tail")
CODE = "1a2b3c4d"
#: A command that is refused with one of these is no advice in this state.
_REFUSED = re.compile(r"ILLEGAL_TRANSITION|CLAIM_HELD|SPEC_INVALID|there is no way back|FINGERPRINT|No such command")
_FREEZES = {State.CUTOVER, State.AWAITING_CLIENT_SWITCH}
Kind = str


def journal_of(folder: Path, name: str, state: State | None, owner: Owner, kind: Kind = "migration") -> Journal | None:
    """A journal that has come to a state, on the path of its kind; None: there is none."""
    if state is None:
        return None
    course = COURSES["mirror" if kind == "mirror" else "migration"]
    details = {"kind": "mirror"} if kind == "mirror" else None
    journal = f"file://{folder}/journal"
    locations = {"journal": journal, "archive": f"{journal}/archive", "evidence": f"file://{folder}/evidence"}
    fingerprint = Fingerprint.of_locations("source-id", "target-id", locations)
    store = LocalStore(str(folder / "journal"))
    made = Journal.create_or_open(store, name, fingerprint, owner=owner, details=details)
    stop = state if state in course.forward else course.endings.get(state, (State.TAIL,))[0]
    for item in course.forward[1 : course.forward.index(stop) + 1]:
        made.transition(item, f"{item} starts")
    if state is State.FAILED:
        made.transition(State.FAILED, "the disk is full")
    elif state is not stop:
        made.transition(state, "a person has asked for it", from_states={stop})
    return made


def _fails(journal: Journal) -> None:
    journal.transition(State.FAILED, "the disk of broker 3 is full")


def _is_shown(journal: Journal) -> None:
    for kind in ("cutover", "client_switch"):
        journal.step(steps.APPROVAL_SHOWN, key=kind, details={"code": CODE})


def _is_frozen(journal: Journal, *, minutes: float = 10.0) -> None:
    now = datetime.now(UTC)
    is_mirror = journal.entries()[0].details.get("kind") == "mirror"
    details = {
        "request": 1 if is_mirror else None,
        "method": "webhook",
        "requested_at": iso(now - timedelta(minutes=1)),
        "deadline": iso(now + timedelta(minutes=minutes)),
    }
    journal.step(steps.FREEZE_REQUESTED, "1", details)


def _is_overdue(journal: Journal) -> None:
    _is_frozen(journal, minutes=-0.5)


def _is_ready(journal: Journal) -> None:
    _is_frozen(journal)
    journal.step(steps.READY, "1")


def _is_lifted(journal: Journal) -> None:
    _is_frozen(journal)
    journal.transition(State.TAIL, "the freeze was lifted", from_states={State.CUTOVER})
    journal.step(steps.FREEZE_LIFTED, "1")


def _is_given_up(journal: Journal) -> None:
    _is_frozen(journal)
    journal.transition(State.TAIL, "the limit has passed", from_states={State.CUTOVER})


def _is_rolled_back(journal: Journal) -> None:
    journal.step(steps.ROLLBACK_BEGUN)


def _is_abandoned(journal: Journal) -> None:
    _is_ready(journal)
    journal.step(steps.ABANDONED)


#: What else the journal may have, and in which states.
RECORDS: Mapping[str, tuple[Callable[[Journal], None] | None, frozenset[State]]] = {
    "nothing": (None, frozenset(FORWARD) | {State.ROLLED_BACK}),
    "a failure": (_fails, frozenset(FORWARD) - {State.FINALIZED}),
    "a code": (_is_shown, frozenset({State.DRAIN_READY, State.AWAITING_CLIENT_SWITCH})),
    "a freeze": (_is_frozen, frozenset({State.CUTOVER})),
    "a freeze beyond its limit": (_is_overdue, frozenset({State.CUTOVER})),
    "a freeze before its end": (_is_ready, frozenset(_FREEZES)),
    "a freeze that was lifted": (_is_lifted, frozenset({State.CUTOVER})),
    "a freeze that was given up": (_is_given_up, frozenset({State.CUTOVER})),
    "a rollback that has begun": (_is_rolled_back, frozenset(FORWARD[:6])),
    "a cutover that was abandoned": (_is_abandoned, frozenset(_FREEZES)),
}
CASES = [(state, record) for record, (_, states) in RECORDS.items() for state in sorted(states, key=str)]
NOT_STARTED: list[tuple[State | None, str]] = [(None, "nothing")]


def write_records(journal: Journal | None, record: str) -> None:
    write, _ = RECORDS[record]
    if write is not None and journal is not None:
        write(journal)


def advised(text: str) -> list[list[str]]:
    """The commands in a text, without what they are typed behind."""
    found = re.findall(r"`kafka-migration ([^`]+)`", " ".join(text.split()))
    return [shlex.split(command) for command in dict.fromkeys(found)]


def check_all(invoke: Any, *command: object) -> list[list[str]]:
    """Run each command that a status advises; return them."""
    shown = invoke(*command)
    assert shown.exit_code in (ExitCode.OK, ExitCode.WAITS), shown.output
    assert "FILE" not in shown.stdout, "what is advised can be typed as it is"
    commands = advised(shown.stdout)
    in_data = json.dumps(json.loads(invoke(*command, "--json").stdout))
    assert {tuple(item) for item in advised(in_data)} <= {tuple(item) for item in commands}, "both say the same"
    for item in commands:
        # Where a run of Airflow holds it, one line says so of all of the freeze's commands.
        needs_it = "add --takeover to these commands" in " ".join(shown.stdout.split())
        result = invoke(*item, *(["--takeover"] if needs_it and "--takeover" not in item else []))
        assert result.exit_code != ExitCode.USAGE, (item, result.output)
        refused = _REFUSED.search(result.output)
        assert refused is None, f"{' '.join(item)} answers {result.output}"
        assert result.exception is None or isinstance(result.exception, SystemExit), (item, result.exception)
    return commands


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands may write files; and none waits: for a second look at a tail, or for a mirror's holder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tail_health, "_LOOK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(mirror, "_wait", lambda *_: None)


@pytest.fixture(params=["command", "Airflow"])
def owner(request: pytest.FixtureRequest) -> Owner:
    return AIRFLOW if request.param == "Airflow" else cli_owner()


@pytest.mark.parametrize(("state", "record"), [*CASES, *NOT_STARTED])
def test_of_a_migration(
    invoke: Any, spec_file: Path, tmp_path: Path, state: State | None, record: str, owner: Owner
) -> None:
    write_records(journal_of(tmp_path, "orders-1", state, owner), record)
    commands = check_all(invoke, "status", spec_file)
    assert commands or (state is State.ROLLED_BACK)


@pytest.fixture
def switched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration whose clients have switched; which topics go back is not read from its plan."""
    first = journal_of(tmp_path, "orders-1", State.FINALIZED, cli_owner())
    assert first is not None
    monkeypatch.setattr(derived_spec, "_topics", lambda *_: {"include": ["orders"]})


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("state", "record"), [*CASES, *NOT_STARTED])
def test_of_a_way_back(
    invoke: Any, spec_file: Path, tmp_path: Path, state: State | None, record: str, owner: Owner
) -> None:
    name = derived_spec.way_back_id("orders-1")
    write_records(journal_of(tmp_path, name, state, owner), record)
    commands = check_all(invoke, "way-back", "status", spec_file)
    assert commands or (state is State.ROLLED_BACK)
    assert all(item[0] in ("way-back", "verify-evidence") for item in commands), commands


MIRROR_CASES = [
    *((state, "nothing") for state in sorted(MIRROR.states - {State.FAILED}, key=str)),
    *((state, "a failure") for state in MIRROR.forward),
    (State.TAIL, "a freeze"),
    (State.TAIL, "a freeze beyond its limit"),
    *NOT_STARTED,
]


@pytest.mark.parametrize(("state", "record"), MIRROR_CASES)
@pytest.mark.parametrize("group", [["mirror"], []], ids=["mirror status", "status"])
def test_of_a_mirror(
    invoke: Any, tmp_path: Path, state: State | None, record: str, group: list[str], owner: Owner
) -> None:
    file = tmp_path / "mirror.yaml"
    spec = {
        "migration_id": "east",
        "kind": "mirror",
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "storage": {"journal": f"file://{tmp_path}/journal", "evidence": f"file://{tmp_path}/evidence"},
    }
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    write_records(journal_of(tmp_path, "east", state, owner, "mirror"), record)
    commands = check_all(invoke, *group, "status", file)
    assert commands or state is State.ENDED or owner is AIRFLOW, "there, one clears a task"
    assert all(item[0] == "mirror" for item in commands), commands
