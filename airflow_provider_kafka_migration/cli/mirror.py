"""``kafka-migration mirror``: one flow of a mirror, from the command line."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import (
    Answer,
    ExitCode,
    JsonOption,
    Stop,
    answering,
)
from airflow_provider_kafka_migration.cli.freeze_notice import end_with_open_freeze
from airflow_provider_kafka_migration.cli.migrate import (
    DataPlane,
    MigrationOpener,
    TakeoverOption,
    make_view,
)
from airflow_provider_kafka_migration.cli.mirrors.abandon import abandon
from airflow_provider_kafka_migration.cli.mirrors.fail_back import fail_back
from airflow_provider_kafka_migration.cli.mirrors.flow import ReasonOption, load_mirror, now, state_name
from airflow_provider_kafka_migration.cli.mirrors.hand_over import hand_over
from airflow_provider_kafka_migration.cli.mirrors.import_properties import import_properties
from airflow_provider_kafka_migration.cli.mirrors.status import status
from airflow_provider_kafka_migration.cli.mirrors.topics import hops, topics
from airflow_provider_kafka_migration.cli.mirrors.verify import verify
from airflow_provider_kafka_migration.cli.plan import plan
from airflow_provider_kafka_migration.cli.session import SpecArgument, identity, journal_store, open_journal
from airflow_provider_kafka_migration.cli.translate import translate_app
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    IllegalTransition,
    MigrationError,
    RequestRefused,
    RequestUnanswered,
    Where,
)
from airflow_provider_kafka_migration.freeze.words import MIRROR_WAY_OUT
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, Want
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.record.context import PhaseResult

mirror_app = typer.Typer(
    help="Mirror a cluster continuously: a copy that goes on until somebody stops it.", no_args_is_help=True
)
mirror_app.command("plan")(plan)
mirror_app.command("import")(import_properties)
mirror_app.command("fail-back")(fail_back)
mirror_app.command("hand-over")(hand_over)
mirror_app.command("abandon")(abandon)
mirror_app.command("status")(status)
mirror_app.command("topics")(topics)
mirror_app.command("hops")(hops)
mirror_app.command("verify")(verify)
mirror_app.add_typer(translate_app, name="translate")


ApproveEndOption = Annotated[
    str | None,
    typer.Option("--approve", metavar="CODE", help="The code that is shown without it.", show_default=False),
]
LeaveRequestOption = Annotated[
    bool,
    typer.Option(
        "--leave-request",
        help="Leave the request if this command ends before the mirror has acted (Ctrl-C, --timeout); else it is "
        "withdrawn. A request to promote or end is turned down if nobody has begun with it within approvals.max_age.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.0, help="Seconds to wait until whoever runs the mirror has acted.")
]

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
#: How long the source of a mirror is asked whether it is there.
_SOURCE_SECONDS = 3.0
#: What a mirror that mirrors, or is paused, is in; also one that has failed there.
_MIRRORS = (State.TAIL, State.PAUSED)
#: What a request leads to.
_LEADS_TO: dict[str, State] = {
    "run": State.TAIL,
    "paused": State.PAUSED,
    "promoted": State.PROMOTED,
    "ended": State.ENDED,
}
#: Only what mirrors looks for requests: plan, precheck, topology and seed do so when they start.
_HOW_TO_END_A_SEED = (
    "the mirror does not mirror yet, and looks for requests only when a task starts. Run this command again with "
    "--takeover; or with --leave-request, and then let the task that runs in Airflow (seed) start again, or stop "
    "kafka-migration mirror run and start it again"
)


@mirror_app.command("run")
@answering
def run(
    file: SpecArgument, takeover: TakeoverOption = False, *, plane: DataPlane, json_output: JsonOption = False
) -> Answer:
    """Mirror until somebody pauses, promotes or ends it. It continues where an earlier run stopped.

    A paused mirror stays paused (exit status 10): kafka-migration mirror resume lets it go on.
    """
    spec = load_mirror(file)
    return _run(spec, file, plane, takeover=takeover, quiet=json_output)


def _run(spec: MigrationSpec, file: Path, plane: DataPlane, *, takeover: bool, quiet: bool) -> Answer:
    from airflow_provider_kafka_migration.cli.mirrors.runner import MirrorRunner

    view = make_view(quiet=quiet)
    stop = Stop()
    _tell_of_freeze(spec, file)
    opener = MigrationOpener(spec, view, takeover=takeover, plane=plane)
    with view, opener.open(stop) as migration:
        if migration.status().state is None:
            plane.check(spec)
        runner = MirrorRunner(migration, stop, on_result=view.done, guard=_guard_of(spec, opener))
        state = runner.go()
        migration.release("the mirror's command has ended")
    data = {
        "migration_id": spec.migration_id,
        "state": state_name(state),
        "phases": [
            {"phase": item.phase, "summary": item.summary, "already_done": item.already_done} for item in runner.results
        ],
    }
    code = ExitCode.WAITS if state is State.PAUSED else ExitCode.OK
    return Answer(data, [f"{escape(spec.migration_id)} is {state_name(state)}"], code=code)


def _tell_of_freeze(spec: MigrationSpec, file: Path) -> None:
    """Make the command's last lines say whether producers are frozen, if it may freeze them."""
    if spec.freezes_promotion:
        end_with_open_freeze(spec, file)


def _guard_of(spec: MigrationSpec, opener: MigrationOpener) -> Callable[[], AbstractContextManager[object]]:
    """Return what opens the guard of a freeze's limit; nothing for a mirror that stops no producers."""
    return opener.open_guard if spec.freezes_promotion else nullcontext


# -- status -----------------------------------------------------------------------------------------------------------


# -- requests ---------------------------------------------------------------------------------------------------------


@mirror_app.command("pause")
@answering
def pause(
    file: SpecArgument,
    reason: ReasonOption = "",
    timeout: TimeoutOption = 120.0,
    takeover: TakeoverOption = False,
    leave_request: LeaveRequestOption = False,
    *,
    plane: DataPlane,
) -> Answer:
    """Pause a mirror, wherever it runs: copiers end their work, and nothing is copied until it is resumed."""
    return _ask(
        load_mirror(file),
        file,
        "paused",
        plane,
        reason=reason,
        timeout=timeout,
        takeover=takeover,
        leave_request=leave_request,
    )


@mirror_app.command("resume")
@answering
def resume(
    file: SpecArgument,
    reason: ReasonOption = "",
    timeout: TimeoutOption = 120.0,
    takeover: TakeoverOption = False,
    *,
    plane: DataPlane,
    json_output: JsonOption = False,
) -> Answer:
    """Let a paused mirror go on. If nobody else runs it, this command does, as run; else it waits for its holder."""
    from airflow_provider_kafka_migration.mirrors import requests

    spec = load_mirror(file)
    journal = open_journal(spec)
    _check_not_ended(spec, journal)
    request = requests.write(journal.store, spec.migration_id, "run", by=identity(), at=now(), reason=reason)
    if takeover or not _is_held(journal):
        return _run(spec, file, plane, takeover=takeover, quiet=json_output)
    if journal.working_state in _MIRRORS:
        _wait(spec, journal, request, timeout)
    # Before its seed has ended there is no pause to wait for the end of: only an earlier request is withdrawn.
    owner = journal.current_claim.owner if journal.current_claim else ""
    state = state_name(journal.tip_state)
    data = {"migration_id": spec.migration_id, "requested": "run", "state": state}
    return Answer(data, [f"{escape(spec.migration_id)} is {state}; {escape(str(owner))} holds it"])


@mirror_app.command("promote")
@answering
def promote(
    file: SpecArgument,
    source_gone: Annotated[
        bool,
        typer.Option(
            "--source-gone", help="The source may never come back: fence the flow, and tell what may be lost."
        ),
    ] = False,
    approve: ApproveEndOption = None,
    reason: ReasonOption = "",
    timeout: TimeoutOption = 600.0,
    takeover: TakeoverOption = False,
    leave_request: LeaveRequestOption = False,
    *,
    plane: DataPlane,
) -> Answer:
    """End a mirror so that its target is used on its own.

    Stop the producers of the source first, unless cutover.freeze says that the mirror does: everything is copied to its
    end, and if the source still moves then, the request is refused and the mirror goes on. With --source-gone nobody is
    stopped, and nothing more is copied; if the source answers all the same, that needs the code that is shown then.
    """
    spec = load_mirror(file)
    if source_gone and _needs_code(spec, "promoted") and _source_answers(spec):
        waits = _ask_for_code(spec, file, "promote --source-gone", approve, _SOURCE_ANSWERS)
        if waits is not None:
            return waits
    return _ask(
        *(spec, file, "promoted", plane),
        reason=reason,
        timeout=timeout,
        takeover=takeover,
        leave_request=leave_request,
        source_gone=source_gone,
    )


@mirror_app.command("end")
@answering
def end(
    file: SpecArgument,
    approve: ApproveEndOption = None,
    reason: ReasonOption = "",
    timeout: TimeoutOption = 120.0,
    takeover: TakeoverOption = False,
    leave_request: LeaveRequestOption = False,
    *,
    plane: DataPlane,
) -> Answer:
    """End a mirror for good. Topics and content stay on the target.

    Without --approve it shows the code for that. Exit status 10: the code is wanted.
    """
    spec = load_mirror(file)
    if _needs_code(spec, "ended"):
        waits = _ask_for_code(spec, file, "end", approve, _END)
        if waits is not None:
            return waits
    return _ask(
        spec,
        file,
        "ended",
        plane,
        reason=reason,
        timeout=timeout,
        takeover=takeover,
        leave_request=leave_request,
    )


_END = (
    "nothing more is copied, and it never goes on: only a mirror with another migration_id can begin again",
    "topics and content stay on the target, and get the settings that they have without a mirror",
)
_SOURCE_ANSWERS = (
    "[bold red]the source answers[/]: without it, records that it has and that are not copied yet are lost",
    "`mirror promote FILE`, without --source-gone, copies them first and loses nothing",
)


def _needs_code(spec: MigrationSpec, want: Want) -> bool:
    """Whether a request would have an effect: what is promoted or has ended already needs no code."""
    return not _is_done(open_journal(spec), want)


def _source_answers(spec: MigrationSpec) -> bool:
    """Ask the source for a few seconds whether it is there.

    The time counts from the first request: to load Airflow and look up a connection may take longer than that.
    """
    found: list[str] = []
    migration = MigrationOpener(spec, make_view(quiet=True)).open()
    with suppress(Exception):  # one that cannot be found is not asked
        _ = migration.source

    def look() -> None:
        with suppress(Exception), migration:
            found.append(migration.source.cluster_id or "")

    thread = threading.Thread(target=look, name="source-answers", daemon=True)
    thread.start()
    thread.join(_SOURCE_SECONDS)
    return bool(found)


def _ask_for_code(
    spec: MigrationSpec, file: Path, command: str, given: str | None, lines: tuple[str, ...]
) -> Answer | None:
    """Return the answer that asks for a code; None: the given one is right.

    :raises ApprovalRefused: it is not the one of now: another request has come since, for example.
    """
    from airflow_provider_kafka_migration.mirrors import requests

    wanted = requests.code(journal_store(spec), spec.migration_id, command)
    if given is not None and given.strip().lower() == wanted:
        return None
    if given is not None:
        raise ApprovalRefused(
            f"the code {given[:20]!r} is not the present one for `mirror {command}`",
            where=Where(migration_id=spec.migration_id),
            next_step=f"`kafka-migration mirror {command} FILE`, without --approve, shows it",
        )
    name, _, options = command.partition(" ")
    typed = " ".join(filter(None, (f"kafka-migration mirror {name} {file}", options, f"--approve {wanted}")))
    data = {"migration_id": spec.migration_id, "waiting": {"approval": command, "code": wanted}}
    shown = [*lines, f"[yellow]waits for an operator[/]: {escape(typed)}"]
    return Answer(data, shown, code=ExitCode.WAITS)


def _check_not_ended(spec: MigrationSpec, journal: Journal) -> None:
    state = journal.tip_state
    if state is not None and state.is_terminal:
        raise IllegalTransition(
            f"the mirror is {state}",
            where=Where(migration_id=spec.migration_id, phase=state.value),
            next_step="clients use its target now: to bring what they write there back, make the opposite mirror with "
            f"kafka-migration mirror fail-back FILE; {MIRROR_WAY_OUT}"
            if state is State.PROMOTED
            else "start a new mirror with another migration_id (not with mirror.naming: identity in both directions: "
            "all records would arrive twice)",
        )


def _is_held(journal: Journal) -> bool:
    """Whether somebody may run the mirror: a run of Airflow, or a command that has not surely ended."""
    from airflow_provider_kafka_migration.journal.owner_process import Life

    claim = journal.current_claim
    if claim is None:
        return False
    return claim.owner.process is None or claim.owner.process.life() is not Life.ENDED


def _ask(
    spec: MigrationSpec,
    file: Path,
    want: Want,
    plane: DataPlane,
    *,
    reason: str,
    timeout: float,
    takeover: bool,
    leave_request: bool,
    source_gone: bool = False,
) -> Answer:
    """Write a request, and wait until the mirror's holder has acted; without a holder, act here."""
    from airflow_provider_kafka_migration.mirrors import requests

    journal = open_journal(spec)
    if not _is_done(journal, want):
        _check_not_ended(spec, journal)
        if want != "ended" and journal.working_state not in _MIRRORS:
            raise IllegalTransition(
                f"the mirror is {state_name(journal.working_state)}: it does not mirror yet",
                where=Where(migration_id=spec.migration_id),
                next_step="wait until it does (kafka-migration mirror status FILE), or stop the run itself: the next "
                "run continues",
            )
        former = requests.read(journal.store, spec.migration_id)
        request = requests.write(
            *(journal_store(spec), spec.migration_id, want),
            by=identity(),
            at=now(),
            reason=reason,
            source_gone=source_gone,
            valid_until=_valid_until(spec, want, timeout),
        )
        try:
            if takeover or not _is_held(journal):
                _act(spec, file, plane, takeover=takeover, phase="mirror" if _needs_source(request) else "finish")
            else:
                _wait(spec, journal, request, timeout)
        except BaseException:
            # Nobody waits for it any more: it must not be carried out at a moment that nobody has chosen.
            if not leave_request:
                _withdraw(journal, request, former)
            raise
    left = _try_again(spec, file, plane) if want == "promoted" else None
    journal.refresh()
    # The command that has acted may have released the mirror since.
    tip = next((entry for entry in reversed(journal.entries()) if not entry.is_step), None)
    details = {} if tip is None else dict(tip.details)
    text = "" if tip is None else tip.reason
    data = {"migration_id": spec.migration_id, "state": state_name(journal.tip_state), "details": details}
    lines = [f"{escape(spec.migration_id)} is {state_name(journal.tip_state)}: {escape(text)}"]
    if left is not None:
        data["problems_now"] = left
        lines.append(escape(f"tried again: {'; '.join(left) or 'the producers of the target are free'}"))
    return Answer(data, lines)


def _try_again(spec: MigrationSpec, file: Path, plane: DataPlane) -> list[str] | None:
    """Free producers of the target that a finished promotion has left stopped; None: there are none."""
    from airflow_provider_kafka_migration.mirrors.ending import has_left

    with MigrationOpener(spec, make_view(quiet=True)).open() as migration, migration.reading() as context:
        if not has_left(context.record):
            return None
    found = _act(spec, file, plane, takeover=False, phase="finish").details.get("problems_now")
    return None if found is None else list(found)


def _valid_until(spec: MigrationSpec, want: Want, timeout: float) -> str:
    """Return until when whoever runs the mirror may begin to promote or end it; empty: a pause may come late."""
    if want == "paused":
        return ""
    until = datetime.now(UTC) + timedelta(seconds=timeout) + spec.approvals.max_age
    return until.isoformat(timespec="seconds")


def _withdraw(journal: Journal, request: MirrorRequest, former: MirrorRequest) -> None:
    """Withdraw a request of this command, unless it is carried out already or another one counts."""
    from airflow_provider_kafka_migration.mirrors import requests

    try:
        journal.refresh()
        if journal.tip_state is not _LEADS_TO[request.want]:
            requests.withdraw(journal.store, request, former, by=identity(), at=now())
    except MigrationError as error:
        # It must not hide why the command ends; the request ends by itself.
        log.warning("The request could not be withdrawn, and is valid until %s: %s", request.valid_until, error)


def _is_done(journal: Journal, want: Want) -> bool:
    """Whether the mirror is and stays where the request leads to: a paused one may have been told to go on since."""
    from airflow_provider_kafka_migration.mirrors import requests

    state = journal.tip_state
    if state is not _LEADS_TO[want]:
        return False
    return state.is_terminal or requests.read(journal.store, journal.migration_id).want == want


def _needs_source(request: MirrorRequest) -> bool:
    from airflow_provider_kafka_migration.mirrors import requests

    return request.want == "paused" or requests.is_planned_promotion(request)


def _act(spec: MigrationSpec, file: Path, plane: DataPlane, *, takeover: bool, phase: str) -> PhaseResult:
    view = make_view(quiet=True)
    _tell_of_freeze(spec, file)
    opener = MigrationOpener(spec, view, takeover=takeover, plane=plane)
    with view, opener.open() as migration:
        with _guard_of(spec, opener)():
            result = migration.run(phase)
        migration.release("the mirror's command has ended")
    return result


def _wait(spec: MigrationSpec, journal: Journal, request: MirrorRequest, timeout: float) -> None:
    from airflow_provider_kafka_migration.mirrors import requests

    ends_at = time.monotonic() + timeout
    while True:
        journal.refresh()
        if journal.tip_state is _LEADS_TO[request.want]:
            return
        last = requests.read(journal.store, spec.migration_id)
        if last.number != request.number:
            raise RequestRefused(
                last.refused or f"another request came after this one: {last.want} by {last.requested_by}",
                where=Where(migration_id=spec.migration_id),
                next_step="see kafka-migration mirror status FILE; the mirror goes on as it says",
            )
        if time.monotonic() >= ends_at:
            claim = journal.current_claim
            raise RequestUnanswered(
                f"the mirror's holder has not acted within {timeout:g} s: {claim.owner if claim else 'nobody'}",
                where=Where(migration_id=spec.migration_id),
                next_step=_HOW_TO_END_A_SEED
                if journal.working_state not in _MIRRORS
                else (
                    "the request stays and is carried out once the mirror runs again"
                    if request.want == "run"
                    else "the request is withdrawn, unless --leave-request was given"
                )
                + "; if the mirror's holder is dead, run this command again with --takeover",
            )
        time.sleep(_POLL_SECONDS)


# -- topics -----------------------------------------------------------------------------------------------------------
