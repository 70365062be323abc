"""``status``: one screen for whoever is woken: where a migration is, what it waits for, and what to type next.

All of it comes from the journal and from what the copiers have last written to its storage; no cluster is asked.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, commands_in
from airflow_provider_kafka_migration.journal.owner_process import Life
from airflow_provider_kafka_migration.record.times import parse_iso, words
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.journal import JournalEntry
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.migration import Migration, Status
    from airflow_provider_kafka_migration.record.context import PhaseContext
    from airflow_provider_kafka_migration.spec import MigrationSpec

#: The approval that a state waits for.
_APPROVALS = {State.DRAIN_READY: "cutover", State.AWAITING_CLIENT_SWITCH: "client_switch"}
_ALIVE = {Life.RUNS: "its process runs", Life.ENDED: "its process has ended", Life.UNKNOWN: ""}
#: States of which the copiers report progress, with their job.
_COPYING = {State.SEED: "seed", State.TAIL: "tail", State.DRAIN_READY: "tail", State.CUTOVER: "tail"}


@dataclass(frozen=True)
class Look:
    """What status shows beyond :class:`Status`.

    :param now: when it was read.
    :param since: when the present state was entered.
    :param spent: seconds in each state, in the order of their first time; the present one until now.
    :param code: code of the approval that is waited for, as it was shown last; empty: it was not shown yet.
    :param in_airflow: the holder is a run of a DAG.
    :param alive: whether the holder's process runs, as far as this machine can know.
    :param copied: the newest progress of the copy, as a sentence; empty: none is copying.
    :param producers: where producers write, in one sentence, while no freeze is open.
    """

    now: datetime
    since: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)
    code: str = ""
    shown_at: str = ""
    in_airflow: bool = False
    alive: str = ""
    copied: str = ""
    producers: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-serializable data."""
        return {
            "since": self.since or None,
            "spent_seconds": {state: round(seconds, 1) for state, seconds in self.spent.items()},
            "approval": {"code": self.code, "shown_at": self.shown_at} if self.code else None,
            "copied": self.copied,
            "producers": self.producers,
        }

    def ago(self, at: str) -> str:
        """Return how long ago something was; clocks of machines differ, so it is never in the future."""
        return f"{words(max((self.now - parse_iso(at)).total_seconds(), 0.0))} ago" if at else ""


def look(context: PhaseContext, found: Status) -> Look:
    """Read what status shows beyond :class:`Status`."""
    journal, now = context.journal, context.now()
    if found.state is None:
        return Look(now)
    entered = [entry for entry in journal.entries() if entry.seq == 0 or not entry.is_step]
    kind = _APPROVALS.get(found.state)
    shown = None if kind is None else _shown(journal, kind, entered[-1])
    claim = journal.current_claim
    return Look(
        now=now,
        since=entered[-1].at,
        spent=_spent(entered, now, is_over=found.state.is_terminal),
        code="" if shown is None else str(shown.details["code"]),
        shown_at="" if shown is None else shown.at,
        in_airflow=claim is not None and claim.owner.kind == "dag_run",
        alive="" if claim is None or claim.owner.process is None else _ALIVE[claim.owner.process.life()],
        copied=_copied(context, found, now),
        producers=_producers(context, found),
    )


def _shown(journal: Journal, kind: str, entered: JournalEntry) -> JournalEntry | None:
    from airflow_provider_kafka_migration.record import steps

    entry = journal.find_step(steps.APPROVAL_SHOWN, kind)
    return entry if entry is not None and entry.seq > entered.seq else None


def _spent(entered: list[JournalEntry], now: datetime, *, is_over: bool) -> dict[str, float]:
    spent: dict[str, float] = {}
    ends = [*(parse_iso(entry.at) for entry in entered[1:]), now]
    for number, (entry, end) in enumerate(zip(entered, ends, strict=True)):
        if is_over and number == len(entered) - 1:
            break
        state = entry.to_state.value
        spent[state] = spent.get(state, 0.0) + max((end - parse_iso(entry.at)).total_seconds(), 0.0)
    return spent


def _copied(context: PhaseContext, found: Status, now: datetime) -> str:
    """Return the newest progress of the copy, and how old it is."""
    from airflow_provider_kafka_migration.jobs import copy_jobs

    job = _COPYING.get(found.working_state) if found.working_state is not None else None
    try:
        progress = None if job is None else copy_jobs.read_progress(context.record, job)
    except (KeyError, TypeError, ValueError):  # damaged, or of another version: no reason to show nothing else
        return "what the copiers have reported last cannot be read"
    if progress is None:
        return ""
    text = str(progress).removeprefix(f"{progress.phase}: ")
    at = None if progress.snapshot is None else progress.snapshot.document.get("at")
    if not at:
        return text
    return f"{text}; reported {words(max((now - parse_iso(str(at))).total_seconds(), 0.0))} ago"


def _producers(context: PhaseContext, found: Status) -> str:
    """Say where producers may write while no freeze is open."""
    from airflow_provider_kafka_migration.freeze import open_freeze

    if found.freeze is not None:
        return ""
    attempt = context.record.freeze()
    if found.state in (State.FINALIZED, State.VALIDATING):
        return "write to the target; those of the source stay stopped"
    if found.state is State.AWAITING_CLIENT_SWITCH:
        return "stopped on the source for good; they may write to the target as soon as their applications switch"
    if attempt is not None and attempt.lifted:
        return open_freeze.lifted_since(context.record, attempt.requested_at)
    return "write to the source; this migration stops none at present"


# -- what to type next ------------------------------------------------------------------------------------------------


def next_steps(spec: MigrationSpec, found: Status, seen: Look, file: str) -> list[str]:
    """Return what a person does next, with the command; an open freeze has its own commands.

    The commands say FILE, which :func:`commands_in` replaces, unless they are of another group.

    :param file: path of the spec.
    """
    if found.state is None:
        return [_to_begin(spec, file)]
    kind = _APPROVALS.get(found.state)
    # An open freeze says itself what goes on and what frees the producers; but not the code that is waited for.
    if found.resume is None or (found.freeze is not None and kind is None):
        return []
    if found.resume.is_done:
        return _after_the_end(spec, found, file)
    if "kafka-migration " in found.resume.reason:
        return [found.resume.reason, *held_elsewhere(seen)]
    if kind is not None:
        return list(_approval_steps(spec, kind, seen))
    return list(_work_steps(found, seen))


def _approval_steps(spec: MigrationSpec, kind: str, seen: Look) -> Iterator[str]:
    what = "the cutover" if kind == "cutover" else "the client switch, once all clients use the target"
    takeover = " --takeover" if seen.in_airflow else ""
    command = "kafka-migration way-back return" if spec.is_way_back else "kafka-migration resume"
    code = f", with the code {seen.code}" if seen.code else ""
    if seen.in_airflow:
        yield f"a person approves {what}; in Airflow: Required Actions, task approve_{kind}{code}"
    elif seen.code:
        yield f"a person approves {what}: `{command} FILE --approve {seen.code}`"
    else:
        yield f"a person approves {what}"
    yield f"to read what will happen, and the code: `kafka-migration resume FILE{takeover}`"
    if kind == "cutover":
        yield f"to give up and end the migration: `kafka-migration rollback FILE{takeover}`"


def _work_steps(found: Status, seen: Look) -> Iterator[str]:
    state = found.working_state
    why = f"{state} has failed: correct what the last line says; then " if found.state is State.FAILED else ""
    if seen.in_airflow:
        task = "the red task" if why else f"the task of {state}, if it does not run"
        yield f"{why}in Airflow: clear {task}; the migration continues where it stopped"
        yield "to continue from here instead: `kafka-migration resume FILE --takeover`"
    else:
        yield f"{why}if no command runs it: `kafka-migration resume FILE` continues where it stopped"


def _to_begin(spec: MigrationSpec, file: str) -> str:
    if spec.is_way_back:
        return (
            f"`kafka-migration way-back plan {shlex.quote(file)}` shows what would go back; `kafka-migration way-back "
            f"run {shlex.quote(file)}` begins it"
        )
    return "`kafka-migration precheck FILE` checks both clusters; `kafka-migration run FILE` starts the migration"


def _after_the_end(spec: MigrationSpec, found: Status, file: str) -> list[str]:
    if found.state is not State.FINALIZED:
        return ["nothing: it has ended; a new migration needs another migration_id"]
    storage = f" --storage {shlex.quote(spec.storage.conn_id)}" if spec.storage.conn_id else ""
    place = f"{spec.storage.evidence_location}/{spec.migration_id}/evidence.json"
    command = f"kafka-migration way-back plan {shlex.quote(file)}"
    again = (
        f"to lead clients to the new cluster again: `{command} --spec-output back.yaml` writes the spec of this way "
        "back, and `way-back` with that spec leads there"
        if spec.is_way_back
        else f"to go back to the old cluster with what was written since: `{command}`"
    )
    return [
        f"to verify the evidence: `kafka-migration verify-evidence {shlex.quote(place)}{storage} --public-key KEY`",
        again,
    ]


def spoken(value: Any) -> Any:
    """Return data whose texts name the commands that a person can type here."""
    if isinstance(value, str):
        return commands_in(value)
    if isinstance(value, Mapping):
        return {key: spoken(item) for key, item in value.items()}
    return [spoken(item) for item in value] if isinstance(value, list) else value


def status_data(found: Status, seen: Look, file: str) -> dict[str, Any]:
    """Return what both kinds of status show, as JSON-serializable data."""
    data = found.as_dict(file)
    return {**data, **{name: spoken(data[name]) for name in ("resume", "freeze")}, **seen.as_dict()}


def mirror_steps(found: Status, seen: Look) -> list[str]:
    """Return what a person does next with a mirror; an open freeze has its own commands."""
    if found.state is None:
        return ["`kafka-migration mirror plan FILE` shows what it will do; `kafka-migration mirror run FILE` starts it"]
    if found.state is State.PAUSED:
        return ["to let it go on: `kafka-migration mirror resume FILE`"]
    if found.state is State.PROMOTED and found.freeze is not None and found.freeze.standing == "abandoned":
        return []
    if found.state is State.PROMOTED:
        return ["to mirror back what clients write to the target: `kafka-migration mirror fail-back FILE`"]
    if found.state.is_terminal and found.last is not None and found.last.details.get("abandoned"):
        return [found.last.details["next"]]
    if found.state.is_terminal:
        return ["nothing: it has ended; a new mirror needs another migration_id"]
    if found.freeze is not None:
        return []
    if found.state is not State.TAIL or found.working_state is not found.state:
        return list(_work_steps(found, seen))
    run = "in Airflow: clear the task mirror" if seen.in_airflow else "`kafka-migration mirror run FILE`"
    return [f"nothing, while it runs; if nobody runs it: {run}"]


# -- the screen -------------------------------------------------------------------------------------------------------


def status_answer(spec: MigrationSpec, file: Path, migration: Migration, *, verbose: bool = False) -> Answer:
    """Return the state of a migration as a command's answer.

    :param verbose: also show the figures of the copiers as they wrote them.
    """
    found = migration.status()
    silence = migration.tail_silence()
    with migration.reading() as context:
        seen = look(context, found)
    waits = found.resume is not None and found.resume.waits
    steps = [commands_in(line) for line in next_steps(spec, found, seen, str(file))]
    data = {**status_data(found, seen, str(file)), "tail_silence": silence, "next": steps}
    rows = [*_rows(found, seen, silence, str(file)), *(("next" if not n else "", line) for n, line in enumerate(steps))]
    rows += trouble_rows(found)
    if verbose:
        rows += raw_rows(found)
    return Answer(data, [screen(rows)], code=ExitCode.WAITS if waits else ExitCode.OK)


def _rows(found: Status, seen: Look, silence: str, file: str) -> Iterator[tuple[str, str]]:
    yield "migration", found.migration_id
    yield "state", _state_text(found, seen)
    frozen = [*found.freeze.lines(file), *held_elsewhere(seen)] if found.freeze else [seen.producers]
    yield from (
        ("PRODUCERS" if found.freeze and not n else "producers" if not n else "", x) for n, x in enumerate(frozen)
    )
    yield "copied", seen.copied
    yield "SILENT", silence
    yield "held by", holder(found, seen)
    yield "last", f"{seen.ago(found.last.at)}: {found.last.reason}" if found.last else ""
    yield "validation", found.validation
    yield "phases", ", ".join(f"{state} {words(seconds)}" for state, seconds in seen.spent.items())


def held_elsewhere(seen: Look) -> Iterator[str]:
    """Say what the commands of an open freeze need beside what they say."""
    if seen.in_airflow:
        yield (
            "a run in Airflow holds the migration: clear the red task there; from here, add --takeover to these "
            "commands, and that run goes on no more"
        )


def holder(found: Status, seen: Look) -> str:
    """Return who holds the migration, since when, and whether that process still runs; empty: nobody."""
    if not found.owner:
        return ""
    alive = f"; {seen.alive}" if seen.alive else ""
    return f"{found.owner} since {found.claimed_since}, {seen.ago(found.claimed_since or '')}{alive}"


def _state_text(found: Status, seen: Look) -> str:
    if found.state is None:
        return "not started"
    where = f", failed in {found.working_state}" if found.working_state is not found.state else ""
    return f"{found.state}{where}, since {seen.since} ({seen.ago(seen.since)})"


def screen(rows: Iterable[tuple[str, str]]) -> Table:
    """Return rows as a table; names in capitals are alarms, and a row without a text is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in rows:
        if text:
            style = "bold red" if name.isupper() or "FAILED" in text else "bold"
            table.add_row(f"[{style}]{escape(name)}[/]", escape(commands_in(text)))
    return table


def raw_rows(found: Status) -> Iterator[tuple[str, str]]:
    """Yield the figures of the copiers as they wrote them, and the length of the journal."""
    yield "journal", f"{found.entries} entries, generation {found.generation}"
    for name, progress in found.progress.items():
        yield name, ", ".join(f"{key} {value}" for key, value in progress.items() if isinstance(value, int | float))


def trouble_rows(found: Status) -> list[tuple[str, str]]:
    """Return the partitions that are not copied, with the reason and what to do; only some if there are many."""
    rows = []
    for name, progress in found.progress.items():
        if count := progress.get("partitions_went_back"):
            rows.append(
                (name, f"the target lost records of {count} partitions after they were copied; the journal names them")
            )
        for item in progress.get("troubles") or ():
            state = "FAILED" if item["state"] == "failed" else "stuck, retrying"
            next_step = f". Next: {item['next_step']}" if item.get("next_step") else ""
            rows.append(
                (
                    f"{name} {item['topic']}-{item['partition']}",
                    f"{state} for {item['seconds']:.0f} s: [{item['code']}] {item['what']}{next_step}",
                )
            )
    return rows
