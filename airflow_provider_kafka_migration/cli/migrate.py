"""``run``, ``resume``, ``status``, ``rollback``, ``backup``, ``restore``, ``throttle`` and ``release``."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import (
    Answer,
    ExitCode,
    JsonOption,
    Markdown,
    Stop,
    answering,
    error_console,
)
from airflow_provider_kafka_migration.cli.freeze_notice import end_with_open_freeze
from airflow_provider_kafka_migration.cli.session import (
    SpecArgument,
    identity,
    journal_store,
    open_journal,
    person,
    resolver,
)
from airflow_provider_kafka_migration.errors import IllegalTransition, Where
from airflow_provider_kafka_migration.record.announcements import Announcements
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec, parse_bytes
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.cli.freeze_guard import FreezeGuard
    from airflow_provider_kafka_migration.cli.progress import ProgressView
    from airflow_provider_kafka_migration.cli.runner import InProcessRunner, Outcome, Tail
    from airflow_provider_kafka_migration.documents.cutover import ApprovalFacts
    from airflow_provider_kafka_migration.engines.run import EngineRunner
    from airflow_provider_kafka_migration.journal.entries import Owner
    from airflow_provider_kafka_migration.migration import Migration, Status
    from airflow_provider_kafka_migration.record.context import PhaseResult
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.split import Side, SplitJob


class RunnerKind(StrEnum):
    """Where the data plane runs."""

    local = "local"
    spark = "spark"


ApproveOption = Annotated[
    str | None,
    typer.Option(
        "--approve", metavar="CODE", help="Answer the pending approval with the code it showed.", show_default=False
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="PHASE", help="Stop after this phase, for instance seed.", show_default=False),
]
TakeoverOption = Annotated[
    bool, typer.Option("--takeover", help="Take the migration over from another owner; its next write is refused.")
]
RunnerOption = Annotated[
    RunnerKind,
    typer.Option("--runner", help="Run the data plane in threads of this process, or on the Spark engine of the spec."),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", help="Spark master for spark-submit, with --runner spark; else as in the spec, or local[4,4]."
    ),
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Concurrent lanes, with --runner local.")]


VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show the figures of the copiers as they wrote them.")
]


@dataclass(frozen=True)
class DataPlane:
    """The options that say where the data plane runs."""

    runner: RunnerOption = RunnerKind.local
    master: MasterOption = None
    threads: ThreadsOption = 4

    def check(self, spec: MigrationSpec) -> None:
        """Check that Spark's jobs can get their connections, before anything is written.

        :raises ReferencesUnfit: they cannot. :raises SealingKeyMissing: there is no usable public sealing key.
        """
        from airflow_provider_kafka_migration.cli.runner import make_engine_of
        from airflow_provider_kafka_migration.provider.engine_jobs import place_of
        from airflow_provider_kafka_migration.provider.job_references import travel
        from airflow_provider_kafka_migration.references.sealing import PUBLIC_KEY_VARIABLE

        if self.runner is RunnerKind.spark:
            engine = make_engine_of(spec, self.master)
            travel(spec, place_of(engine, os.environ.get(PUBLIC_KEY_VARIABLE, "")))

    def make_runner(
        self, spec: MigrationSpec, known: Resolver, view: ProgressView, stop: Stop
    ) -> InProcessRunner | EngineRunner:
        """Return the runner that copies: Spark, or this process."""
        from airflow_provider_kafka_migration.cli.runner import InProcessRunner, spark_runner

        if self.runner is RunnerKind.spark:
            return spark_runner(spec, known, view.show, stop, master=self.master)
        return InProcessRunner(known, view.show, stop, threads=self.threads)


@dataclass(frozen=True)
class Course:
    """The options that say how far a migration runs."""

    approve: ApproveOption = None
    until: UntilOption = None
    takeover: TakeoverOption = False


def cli_owner() -> Owner:
    """Return this command as the owner of a claim: the user, the host and this process."""
    from airflow_provider_kafka_migration.journal.entries import Owner
    from airflow_provider_kafka_migration.journal.owner_process import OwnerProcess

    return Owner("cli", identity(), person(), OwnerProcess.of_this_process())


_IN_PROCESS = DataPlane()


class MigrationOpener:
    """Opens a migration for the command line, as often as it is needed."""

    def __init__(
        self,
        spec: MigrationSpec,
        view: ProgressView,
        *,
        takeover: bool = False,
        plane: DataPlane = _IN_PROCESS,
    ) -> None:
        self._spec = spec
        self._view = view
        self._takeover = takeover
        self._plane = plane
        self._resolver = resolver()
        self._announcements = _announcements(spec, self._resolver)

    def open(self, stop: Stop | None = None, *, actor: str | None = None) -> Migration:
        """Open the migration in the name of this user."""
        from airflow_provider_kafka_migration.migration import Migration

        runner = self._plane.make_runner(self._spec, self._resolver, self._view, stop or Stop())
        return Migration.open(
            self._spec,
            identity(),
            self._resolver,
            actor=actor or person(),
            kind="cli",
            process=cli_owner().process,
            takeover=self._takeover,
            runner=runner,
            verifier=runner,
            progress=self._view.show,
            announcements=self._announcements,
        )

    def open_tail(self) -> Tail:
        """Return the tail, not started yet. After a takeover, this command already holds the migration."""
        from airflow_provider_kafka_migration.cli.runner import Tail

        stop = Stop()
        return Tail(self.open(stop, actor=f"{person()} (tail)"), stop)

    def open_guard(self) -> FreezeGuard:
        """Return the thread that enforces the limit of a freeze, not started yet."""
        from airflow_provider_kafka_migration.cli.freeze_guard import FreezeGuard

        phase = "freeze_limit" if self._spec.kind == "mirror" else "cutover.freeze_limit"
        return FreezeGuard(self.open(actor=f"{person()} (freeze limit)"), phase=phase)


def _announcements(spec: MigrationSpec, known: Resolver) -> Announcements | None:
    """Return what tells people about freezes by the spec's notifier; None: the spec has none for that."""
    section = spec.notifications
    if not section.notifier or "freeze" not in section.events:
        return None

    def send(text: str) -> None:
        # Airflow takes seconds to import, and a notifier needs it.
        from airflow_provider_kafka_migration.notifications.migration import notify_of_freeze

        notify_of_freeze(spec, known, text)

    return Announcements(send)


def drive(
    spec: MigrationSpec, file: Path, course: Course, plane: DataPlane, *, may_start: bool, json_output: bool
) -> Answer:
    """Run a migration up to the next approval.

    :param may_start: whether it may begin a new migration.
    """
    from airflow_provider_kafka_migration.cli.runner import STOPS, MigrationRunner

    spec = spec.check_kind("migration", path=str(file))
    view = make_view(quiet=json_output)
    end_with_open_freeze(spec, file)
    opener = MigrationOpener(spec, view, takeover=course.takeover, plane=plane)
    if not may_start:
        _check_started(spec, opener)
    if course.until is not None and course.until not in STOPS:
        raise typer.BadParameter(f"{course.until} is not one of {', '.join(STOPS)}", param_hint="--until")
    with view, opener.open() as migration:
        if migration.status().state is None:
            plane.check(spec)
        driver = MigrationRunner(
            migration, opener.open_tail, opener.open_guard, person=person(), on_result=view.done, until=course.until
        )
        outcome = driver.go(course.approve)
        status = migration.status()
    return _answer(spec, outcome, status)


def _check_started(spec: MigrationSpec, opener: MigrationOpener) -> None:
    with opener.open() as migration:
        if migration.status().state is None:
            raise IllegalTransition(
                "there is no migration to resume",
                where=Where(migration_id=spec.migration_id, path=migration.journal_uri),
                next_step="start one with kafka-migration run, or check migration_id and storage.journal in the spec",
            )


def _answer(spec: MigrationSpec, outcome: Outcome, status: Status) -> Answer:
    data: dict[str, Any] = {
        "migration_id": spec.migration_id,
        "state": str(status.state),
        "phases": [
            {"phase": item.phase, "summary": item.summary, "already_done": item.already_done}
            for item in outcome.results
        ],
        "waiting": None,
    }
    if outcome.waiting is None:
        lines = [f"[green]{escape(spec.migration_id)} is {status.state}[/]"]
        if status.state is State.FINALIZED:
            data["evidence"] = f"{spec.storage.evidence_location}/{spec.migration_id}/evidence.json"
            lines += _evidence_lines(spec, data["evidence"])
        return Answer(data, lines)
    facts = outcome.waiting
    data["waiting"] = {"approval": facts.kind, "code": facts.code, "subject": facts.subject, "body": facts.body}
    steps = _next_steps(facts, way_back="way_back" in facts.facts)
    return Answer(data, [Markdown(facts.body), "", *steps], code=ExitCode.WAITS)


def _evidence_lines(spec: MigrationSpec, place: str) -> list[str]:
    storage = f" --storage {shlex.quote(spec.storage.conn_id)}" if spec.storage.conn_id else ""
    command = f"kafka-migration verify-evidence {shlex.quote(place)}{storage} --public-key KEY"
    return [f"evidence: {escape(place)}", f"to verify it anywhere: {escape(command)}"]


def _next_steps(facts: ApprovalFacts, *, way_back: bool) -> list[str]:
    command = "way-back return" if way_back else "resume"
    lines = [f"[yellow]waits for an operator[/]: kafka-migration {command} FILE --approve {facts.code}"]
    if facts.kind == "client_switch":
        lines.append(
            "`kafka-migration resume FILE` refreshes the groups' offsets on the target; run it before each client moves"
        )
    else:
        lines.append("mirroring is paused in the meantime; resume catches up first")
    return lines


def make_view(*, quiet: bool) -> ProgressView:
    """Return the view that shows progress."""
    from airflow_provider_kafka_migration.cli.progress import ProgressView

    return ProgressView(error_console(), quiet=quiet)


@answering
def run(file: SpecArgument, *, course: Course, plane: DataPlane, json_output: JsonOption = False) -> Answer:
    """Run a migration as far as possible without a person. Exit status 10: it waits for an approval.

    It continues where an earlier call stopped. The approvals of the cutover and of the client switch end the call;
    answer them with --approve and the code that was shown.
    """
    return drive(load_spec(file), file, course, plane, may_start=True, json_output=json_output)


@answering
def resume(file: SpecArgument, *, course: Course, plane: DataPlane, json_output: JsonOption = False) -> Answer:
    """Continue a migration that was started before: after a failure, an interruption, or at an approval.

    Like run, but it never starts a new migration.
    """
    return drive(load_spec(file), file, course, plane, may_start=False, json_output=json_output)


@answering
def status(file: SpecArgument, verbose: VerboseOption = False) -> Answer:
    """Show where a migration is, what it waits for and what to type next, from its journal alone, without a claim.

    Exit status 10 if it waits for an operator.
    """
    spec = load_spec(file)
    if spec.kind == "mirror":
        from airflow_provider_kafka_migration.cli.mirrors import status as mirror_status

        return mirror_status.status_answer(file, verbose=verbose)
    return status_of(spec, file, verbose=verbose)


def status_of(spec: MigrationSpec, file: Path, *, verbose: bool) -> Answer:
    """Return the state of a migration as a command's answer."""
    from airflow_provider_kafka_migration.cli.status import status_answer

    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        return status_answer(spec, file, migration, verbose=verbose)


@answering
def rollback(
    file: SpecArgument,
    reason: Annotated[str, typer.Option("--reason", help="Reason, for the journal and the report.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    takeover: TakeoverOption = False,
    withdraw_access: Annotated[
        bool,
        typer.Option(
            "--withdraw-access", help="Also remove ACLs, SCRAM users and quotas that the migration created there."
        ),
    ] = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """End a migration before its cutover: lift the freeze, reset settings, stop the tail, write a report.

    Topics, data, ACLs, users and quotas on the target stay; the report lists them. Exit status 1: the migration has
    ended, but something could not be put back; run it again.
    """
    spec = load_spec(file).check_kind("migration", path=str(file))
    view = make_view(quiet=json_output)
    end_with_open_freeze(spec, file)
    with MigrationOpener(spec, view, takeover=takeover).open() as migration:
        if not yes:
            _ask_for_the_code(migration)
        with view:
            result = migration.run("rollback", reason=reason, withdraw_access=withdraw_access)
    return rollback_answer(spec, result)


def _ask_for_the_code(migration: Migration) -> None:
    """Have a person type the code of *Abort*: a rollback is final, and a wrong terminal has ended other things.

    :raises ApprovalRefused: another code was typed.
    :raises IllegalTransition: it is too late to roll back.
    """
    from airflow_provider_kafka_migration.approvals import check, request
    from airflow_provider_kafka_migration.phases import rollback as phase

    with migration.reading() as context:
        if phase.check_allowed(context.record) is None:
            return
        state = context.journal.working_state or "not started"
        typer.echo(f"Roll back {context.migration_id} ({state})? This ends the migration.", err=True)
        code = typer.prompt(f"Type {request.abort_code(context.record)} to roll it back", err=True)
        check.check_abort_code(context.record, code)


def rollback_answer(spec: MigrationSpec, result: PhaseResult) -> Answer:
    """Return the end of a migration as a command's answer; what could not be put back makes it a failure.

    What could only not be listed does not: running the same again would change nothing.
    """
    from airflow_provider_kafka_migration.phases.rollback import INVENTORIES

    problems = result.details.get("problems", [])
    is_left = any(item["part"] not in INVENTORIES for item in problems)
    data = {
        "migration_id": spec.migration_id,
        "summary": result.summary,
        "already_done": result.already_done,
        "details": result.details,
    }
    lines = [escape(result.summary)]
    lines += [escape(f"  {item['part']}: {item['what']}. Next: {item['next_step']}") for item in problems]
    return Answer(data, lines, code=ExitCode.FAILED if is_left else ExitCode.OK)


# -- commands split ---------------------------------------------------------------------------------------------------
#
# ``backup`` and ``restore``: for clusters that cannot see each other.


def _open(spec: MigrationSpec, side: Side, view: ProgressView, plane: DataPlane, *, takeover: bool = False) -> SplitJob:
    from airflow_provider_kafka_migration.split import SplitJob

    known = resolver()
    copies = plane.make_runner(spec, known, view, Stop())
    return SplitJob(spec, side, known, copies, owner=cli_owner(), takeover=takeover, progress=view.show)


def _split_answer(spec: MigrationSpec, result: PhaseResult) -> Answer:
    data = {"migration_id": spec.migration_id, "summary": result.summary, "details": result.details}
    return Answer(data, [escape(result.summary)])


@answering
def backup(
    file: SpecArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until backup --finish sets the end.")] = False,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="End a continuous backup at the source's current ends. Stop producers first."),
    ] = False,
    *,
    plane: DataPlane,
    json_output: JsonOption = False,
) -> Answer:
    """Archive the source's topics in the storage of the spec. Contacts the source and the storage, not the target.

    Without --follow it stops at the end offsets that the source has at its start. If killed, the next call continues
    where the archive ends.
    """
    spec = load_spec(file)
    view = make_view(quiet=json_output)
    with view, _open(spec, "source", view, plane) as job:
        return _split_answer(spec, job.backup(follow=follow, finish=finish))


@answering
def restore(
    file: SpecArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow a continuous backup; stop where backup --finish ends it.")
    ] = False,
    groups: Annotated[bool, typer.Option(help="Commit the archived offsets of consumer groups at the end.")] = True,
    takeover: TakeoverOption = False,
    *,
    plane: DataPlane,
    json_output: JsonOption = False,
) -> Answer:
    """Create the archived topics on the target, with equal offsets. Contacts storage and target, not the source.

    At the end everything is compared with the archive. If killed, the next call continues from the target's log ends.
    """
    spec = load_spec(file)
    view = make_view(quiet=json_output)
    with view, _open(spec, "target", view, plane, takeover=takeover) as job:
        return _split_answer(spec, job.restore(follow=follow, commit_groups=groups))


# -- commands rates ---------------------------------------------------------------------------------------------------
#
# ``throttle``: change the rates of a running migration.


_RATE_HELP = "Bytes per second and lane, for instance 10MB; none: no limit; spec: the value in the spec."
SeedRate = Annotated[str | None, typer.Option("--seed", metavar="RATE", help=_RATE_HELP, show_default=False)]
TailRate = Annotated[str | None, typer.Option("--tail", metavar="RATE", help=_RATE_HELP, show_default=False)]


def _rate(text: str, option: str) -> int | None:
    if text == "spec":
        return None
    try:
        rate = 0 if text == "none" else parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if rate == 0 and text != "none":
        raise typer.BadParameter("a rate of 0 would stop the copy; none removes the limit", param_hint=option)
    return rate


@answering
def throttle(
    file: SpecArgument,
    seed: SeedRate = None,
    tail: TailRate = None,
) -> Answer:
    """Change or show how fast a running seed or tail may read, without a claim and without a restart.

    Copiers apply it within seconds, in this process, on Spark and in both halves of a split migration. A rate stays in
    force until it is set again, across restarts and changes of max_bytes_per_second in the spec.
    """
    from airflow_provider_kafka_migration.lanes.assignment import JOBS, read_rates, set_rates

    spec = load_spec(file)
    open_journal(spec)
    store = journal_store(spec)
    given = {"seed": seed, "tail": tail}
    changes = {job: _rate(text, f"--{job}") for job, text in given.items() if text is not None}
    if changes:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        found = set_rates(store, spec.migration_id, changes, set_by=identity(), set_at=now)
    else:
        found = read_rates(store, spec.migration_id)
    of_spec = {"seed": spec.seed.max_bytes_per_second, "tail": spec.tail.max_bytes_per_second}
    in_force = {job: (found.rates[job] or None) if job in found.rates else of_spec[job] for job in JOBS}
    lines = [
        f"{job}: {_shown(in_force[job])} ({'set while it runs' if job in found.rates else 'as the spec says'})"
        for job in JOBS
    ]
    data = {"migration_id": spec.migration_id, "max_bytes_per_second": in_force, "set": dict(found.rates)}
    return Answer(data, lines)


def _shown(rate: int | None) -> str:
    return "no limit" if rate is None else f"{rate:,} bytes per second and lane"


# -- commands release -------------------------------------------------------------------------------------------------
#
# ``release``: release a migration.


@answering
def release(
    file: SpecArgument,
    takeover: TakeoverOption = False,
    reason: Annotated[str, typer.Option("--reason", help="Reason, for the journal.")] = "",
) -> Answer:
    """Release a migration, so that another run or person can claim it without a takeover.

    It releases a migration held by a command of this user on this host that has ended. If another owner or a running
    command holds it, --takeover is needed: the holder's next write is then refused. No cluster is contacted, and the
    state does not change.
    """
    from airflow_provider_kafka_migration.lanes.slices import publish_claim

    spec = load_spec(file)
    journal = open_journal(spec)
    holder = journal.current_claim
    state = journal.tip_state
    if holder is None or journal.is_closed:
        text = "the migration has no holder" if holder is None else f"the migration is {state} and cannot be held"
        return Answer({"migration_id": spec.migration_id, "released": None}, [escape(text)])
    owner = cli_owner()
    journal.claim(owner, takeover=takeover, reopen=True)
    publish_claim(journal.store, spec.migration_id, journal.generation, str(owner))
    journal.release(reason or f"released by {owner.actor}")
    journal.close()
    return Answer(
        {"migration_id": spec.migration_id, "released": str(holder.owner)},
        [f"[green]released[/]: {escape(str(holder.owner))} held it since {holder.since}"],
    )


#: In the order of the help.
COMMANDS = (run, resume, status, rollback, release, backup, restore, throttle)
