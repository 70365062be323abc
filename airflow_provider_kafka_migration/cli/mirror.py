"""``kafka-migration mirror``: one flow of a mirror, from the command line."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import (
    Answer,
    ExitCode,
    JsonOption,
    Stop,
    answering,
    commands_in,
    speak_of_mirror,
)
from airflow_provider_kafka_migration.cli.freeze_notice import end_with_open_freeze
from airflow_provider_kafka_migration.cli.migrate import (
    DataPlane,
    MigrationOpener,
    TakeoverOption,
    VerboseOption,
    make_view,
)
from airflow_provider_kafka_migration.cli.mirrors.abandon import abandon
from airflow_provider_kafka_migration.cli.mirrors.fail_back import fail_back
from airflow_provider_kafka_migration.cli.mirrors.hand_over import hand_over
from airflow_provider_kafka_migration.cli.mirrors.import_properties import import_properties
from airflow_provider_kafka_migration.cli.mirrors.verify import verify
from airflow_provider_kafka_migration.cli.plan import plan
from airflow_provider_kafka_migration.cli.session import SpecArgument, identity, journal_store, open_journal, read_spec
from airflow_provider_kafka_migration.cli.status import (
    Look,
    held_elsewhere,
    holder,
    look,
    mirror_steps,
    raw_rows,
    screen,
    status_data,
    trouble_rows,
)
from airflow_provider_kafka_migration.cli.translate import translate_app
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    IllegalTransition,
    MigrationError,
    RequestRefused,
    RequestUnanswered,
    Where,
)
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State, mirror_name

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, MirrorVerification, Want
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.metrics.groups import GroupFigures
    from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
    from airflow_provider_kafka_migration.migration import Status
    from airflow_provider_kafka_migration.record.context import PhaseResult

mirror_app = typer.Typer(
    help="Mirror a cluster continuously: a copy that goes on until somebody stops it.", no_args_is_help=True
)
mirror_app.command("plan")(plan)
mirror_app.command("import")(import_properties)
mirror_app.command("fail-back")(fail_back)
mirror_app.command("hand-over")(hand_over)
mirror_app.command("abandon")(abandon)
mirror_app.command("verify")(verify)
mirror_app.add_typer(translate_app, name="translate")


ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, for the journal.")]
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


def _load(file: Path) -> MigrationSpec:
    speak_of_mirror()
    return read_spec(file).check_kind("mirror", path=str(file))


@mirror_app.command("run")
@answering
def run(
    file: SpecArgument, takeover: TakeoverOption = False, *, plane: DataPlane, json_output: JsonOption = False
) -> Answer:
    """Mirror until somebody pauses, promotes or ends it. It continues where an earlier run stopped.

    A paused mirror stays paused (exit status 10): kafka-migration mirror resume lets it go on.
    """
    spec = _load(file)
    return _run(spec, file, plane, takeover=takeover, quiet=json_output)


def _run(spec: MigrationSpec, file: Path, plane: DataPlane, *, takeover: bool, quiet: bool) -> Answer:
    from airflow_provider_kafka_migration.cli.mirror_runner import MirrorRunner

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
        "state": _name(state),
        "phases": [
            {"phase": item.phase, "summary": item.summary, "already_done": item.already_done} for item in runner.results
        ],
    }
    code = ExitCode.WAITS if state is State.PAUSED else ExitCode.OK
    return Answer(data, [f"{escape(spec.migration_id)} is {_name(state)}"], code=code)


def _tell_of_freeze(spec: MigrationSpec, file: Path) -> None:
    """Make the command's last lines say whether producers are frozen, if it may freeze them."""
    if spec.freezes_promotion:
        end_with_open_freeze(spec, file)


def _guard_of(spec: MigrationSpec, opener: MigrationOpener) -> Callable[[], AbstractContextManager[object]]:
    """Return what opens the guard of a freeze's limit; nothing for a mirror that stops no producers."""
    return opener.open_guard if spec.freezes_promotion else nullcontext


def _name(state: State | None) -> str:
    return "not started" if state is None else mirror_name(state)


# -- status -----------------------------------------------------------------------------------------------------------


@mirror_app.command("status")
@answering
def status(file: SpecArgument, verbose: VerboseOption = False) -> Answer:
    """Show a mirror's state, lag, groups, last comparison and last request, from its journal alone.

    Exit status 10 if it is paused.
    """
    return status_answer(file, verbose=verbose)


def status_answer(file: Path, *, verbose: bool) -> Answer:
    """Return the state of a mirror as a command's answer."""
    from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
    from airflow_provider_kafka_migration.mirrors import (
        group_deletions,
        group_sync,
        mirror_maker_state,
        missed_tombstones,
        requests,
        retention,
        verification,
    )

    spec = _load(file)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        found = migration.status()
        request = requests.read(migration.journal_store, spec.migration_id)
        silence = migration.tail_silence() if found.state is State.TAIL else ""
        with migration.reading() as context:
            seen = look(context, found)
            snapshot = Snapshot.of(context.journal_store, context.record.job_progress("tail"))
            tombstones = missed_tombstones.last_risk(context.record)
            kept = retention.last_problems(context.record)
            missing = group_deletions.read_missing(context.record)
            deleted = group_deletions.deleted(context.record)
            copies = spec.mirror.sync_groups and found.working_state in (State.SEED, State.TAIL)
            synced = group_sync.last_report(context.record) if copies else None
            verified = verification.last_verification(context.record)
            state_topics = mirror_maker_state.last_reports(context.record)
    copied = {} if snapshot is None else _figures(spec, snapshot)
    groups = None if snapshot is None or snapshot.groups is None else _groups(snapshot.groups)
    data = {
        **status_data(found, seen, str(file)),
        "state": None if found.state is None else mirror_name(found.state),
        "lag": copied.get("lag"),
        "verdicts": copied.get("verdicts"),
        "silence": silence,
        "next": [commands_in(line) for line in mirror_steps(found, seen)],
        "groups": groups,
        "group_sync": None if synced is None or not synced.problem else synced.model_dump(mode="json"),
        "groups_missing": [item.model_dump(mode="json") for item in missing],
        "groups_deleted": deleted,
        "verification": None if verified is None else _verified(verified),
        "request": request.model_dump(mode="json"),
        "tombstones_at_risk": tombstones,
        "retention_problems": None if kept is None else kept.model_dump(mode="json"),
        "state_topics": {name: item.model_dump(mode="json") for name, item in state_topics.items()},
    }
    lines = _status_lines(spec, found, request, data, seen, str(file))
    if synced is not None and synced.problem:
        text = f"groups are NOT brought up to date since {synced.failing_since}: {synced.problem}"
        lines.append(f"[bold red]{escape(text)}[/]")
    for item in missing:
        since = f"gone from the source since {item.since}" if item.since else "not listed by the source"
        lines.append(escape(f"group {item.group}: {since}; kept on the target: {item.kept}"))
    if tombstones is not None:
        lines.append(f"{tombstones['at']}: {escape(str(tombstones['reason']))}")
    if kept is not None:
        name, what = next(iter(kept.problems.items()))
        text = f"the target keeps what the source has deleted, {kept.count} problems, the first is {name}: {what}"
        lines.append(escape(f"{kept.at}: {text}"))
    for name, report in state_topics.items():
        if report.problem:
            lines.append(escape(f"{report.at}: {name} of MirrorMaker 2: {report.problem}"))
    lines += [screen(raw_rows(found))] if verbose else []
    paused = found.state is State.PAUSED
    return Answer(data, lines, code=ExitCode.WAITS if paused else ExitCode.OK)


def _figures(spec: MigrationSpec, snapshot: Snapshot) -> dict[str, Any]:
    """Return what the copiers have last reported, as the metrics have it: the lag, and partitions by verdict."""
    from airflow_provider_kafka_migration.jobs.copy_jobs import metrics_settings

    found = list(snapshot.samples(metrics_settings(spec), time.time(), recent=None))
    values = {item.metric.name: item.value for item in found if item.metric.level == "migration"}
    verdicts = {item.labels["verdict"]: int(item.value) for item in found if item.metric.name == "partitions"}
    unknown = int(values["lag_unknown_partitions"])
    if unknown == len(snapshot.standings):
        return {"lag": None, "verdicts": verdicts}
    lag = {
        "total": int(values["lag_records"]),
        "largest": int(values["largest_lag_records"]),
        "seconds": values.get("lag_seconds"),
        "held_back": int(values["held_back_records"]),
        "partitions_unknown": unknown,
        "at": snapshot.document.get("at"),
    }
    if spec.mirror.merges and "skipped_records" in values:
        lag["skipped"] = int(values["skipped_records"])
    return {"lag": lag, "verdicts": verdicts}


def _groups(found: GroupFigures) -> dict[str, Any]:
    at = datetime.fromtimestamp(found.at, UTC).isoformat(timespec="milliseconds")
    return {
        "at": at,
        "groups": found.groups,
        "behind": found.behind,
        "failed": found.failed,
        "left_alone": found.left_alone,
    }


def _lag_text(lag: dict[str, Any] | None, seen: Look) -> str:
    if lag is None:
        return ""
    text = f"{lag['total']} offsets, the largest {lag['largest']}, seen at {lag['at']}, {seen.ago(lag['at'] or '')}"
    if lag["seconds"] is not None:
        text += f"; the oldest missing record is {lag['seconds']:.1f} s old"
    if lag["held_back"]:
        text += f"; open transactions hold {lag['held_back']} more back"
    if "skipped" in lag:
        text += f"; {lag['skipped']} records came through the target or over too many clusters, and were not copied"
    return text


def _groups_text(groups: dict[str, Any] | None) -> str:
    if groups is None:
        return ""
    text = f"{groups['groups']} brought up to date at {groups['at']}"
    return text + f"; {groups['behind']} behind ({groups['failed']} failed), {groups['left_alone']} left alone"


def _deleted_text(groups: list[str]) -> str:
    if not groups:
        return ""
    return f"{len(groups)} deleted on the target because the source deleted them, the last is {groups[-1]}"


def _heartbeat_text(reports: dict[str, Any]) -> str:
    found = reports.get("heartbeats")
    at = found["written_at"] if found else ""
    return f"the newest of the source on the target is of {at}" if at else ""


def _verified(found: MirrorVerification) -> dict[str, Any]:
    return {
        "finished_at": found.finished_at,
        "equal": found.is_equal,
        "topics": found.topics,
        "last": found.last,
        "partitions": {outcome: found.count(outcome) for outcome in ("equal", "different", "unchecked", "nothing")},
        "records": sum(item.compared for item in found.partitions),
    }


def _verified_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "never"
    counts = found["partitions"]
    what = f"the last {found['last']} offsets of " if found["last"] is not None else ""
    what += f"the topics {' '.join(found['topics'])}" if found["topics"] else "all topics"
    parts = [f"{counts['equal']} partitions equal"]
    names = {"different": "DIFFERENT", "unchecked": "not checked", "nothing": "with nothing to compare"}
    parts += [f"{counts[outcome]} {name}" for outcome, name in names.items() if counts[outcome]]
    return f"{what} at {found['finished_at']}: {', '.join(parts)}; {found['records']} equal records"


def _status_lines(
    spec: MigrationSpec, found: Status, request: MirrorRequest, data: dict[str, Any], seen: Look, file: str
) -> list[Any]:
    flow = f"{spec.mirror.source_alias} -> {spec.mirror.target_alias}, naming {spec.mirror.naming}"
    since = f", since {seen.since} ({seen.ago(seen.since)})" if seen.since else ""
    rows = {
        "mirror": f"{found.migration_id} ({flow})",
        "state": f"{_name(found.state)}{since}",
        "failed in": _name(found.working_state) if found.working_state is not found.state else "",
        "silent": data["silence"],
        "lag": _lag_text(data["lag"], seen),
        "partitions": ", ".join(f"{count} {name}" for name, count in sorted((data["verdicts"] or {}).items())),
        "groups": _groups_text(data["groups"]),
        "groups deleted": _deleted_text(data["groups_deleted"]),
        "heartbeat": _heartbeat_text(data["state_topics"]),
        "compared": _verified_text(data["verification"]),
        "held by": holder(found, seen),
        "last": f"{seen.ago(found.last.at)}: {found.last.reason}" if found.last else "",
        "request": "" if not request.number else f"{request.want} by {request.requested_by} at {request.requested_at}",
        "refused": request.refused,
    }
    frozen = [*found.freeze.lines(file), *held_elsewhere(seen)] if found.freeze is not None else []
    alarms = [("PRODUCERS" if not number else "", line) for number, line in enumerate(frozen)]
    steps = [("next" if not number else "", line) for number, line in enumerate(data["next"])]
    return [screen([*alarms, *rows.items(), *steps, *trouble_rows(found)])]


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
        _load(file),
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

    spec = _load(file)
    journal = open_journal(spec)
    _check_not_ended(spec, journal)
    request = requests.write(journal.store, spec.migration_id, "run", by=identity(), at=_now(), reason=reason)
    if takeover or not _is_held(journal):
        return _run(spec, file, plane, takeover=takeover, quiet=json_output)
    if journal.working_state in _MIRRORS:
        _wait(spec, journal, request, timeout)
    # Before its seed has ended there is no pause to wait for the end of: only an earlier request is withdrawn.
    owner = journal.current_claim.owner if journal.current_claim else ""
    state = _name(journal.tip_state)
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
    spec = _load(file)
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
    spec = _load(file)
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _check_not_ended(spec: MigrationSpec, journal: Journal) -> None:
    state = journal.tip_state
    if state is not None and state.is_terminal:
        raise IllegalTransition(
            f"the mirror is {state}",
            where=Where(migration_id=spec.migration_id, phase=state.value),
            next_step="clients use its target now: to bring what they write there back, make the opposite mirror with "
            "kafka-migration mirror fail-back FILE"
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
                f"the mirror is {_name(journal.working_state)}: it does not mirror yet",
                where=Where(migration_id=spec.migration_id),
                next_step="wait until it does (kafka-migration mirror status FILE), or stop the run itself: the next "
                "run continues",
            )
        former = requests.read(journal.store, spec.migration_id)
        request = requests.write(
            *(journal_store(spec), spec.migration_id, want),
            by=identity(),
            at=_now(),
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
    data = {"migration_id": spec.migration_id, "state": _name(journal.tip_state), "details": details}
    lines = [f"{escape(spec.migration_id)} is {_name(journal.tip_state)}: {escape(text)}"]
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
            requests.withdraw(journal.store, request, former, by=identity(), at=_now())
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


@mirror_app.command("topics")
@answering
def topics(
    file: SpecArgument,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="Show the remote topics whose source topic is gone, and the code to delete them."
        ),
    ] = False,
    approve: Annotated[
        str | None, typer.Option("--approve", metavar="CODE", help="The code that --delete shows.", show_default=False)
    ] = None,
    reason: ReasonOption = "",
) -> Answer:
    """Show which topics of the source are mirrored, under which names, and why others are not.

    With --delete: remote topics whose source topic was deleted or created again. Exit status 10 if there are any: the
    code is wanted (--approve CODE). The mirror deletes them while it mirrors.
    """
    if delete or approve is not None:
        return _deletable(_load(file), approve, reason)
    spec = _load(file)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        names = sorted(migration.source.admin.describe_topics())
    rows = [
        {"topic": name, "remote_topic": "" if why else spec.topics.target_name(name), "left_out": why}
        for name in names
        for why in [spec.topics.why_left_out(name)]
    ]
    table = Table("topic", "on the target", "left out", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(row[name]) for name in ("topic", "remote_topic", "left_out")))
    return Answer({"migration_id": spec.migration_id, "topics": rows}, [table])


@mirror_app.command("hops")
@answering
def hops(file: SpecArgument) -> Answer:
    """Show the remote topics on the target, and the clusters that each has come through, the nearest first."""
    spec = _load(file)
    names = spec.mirror.names(spec.topics.rename)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        found = names.remote_topics(migration.target.admin.describe_topics())
    rows = [{"topic": topic, "hops": len(path), "through": list(path)} for topic, path in found.items()]
    table = Table("topic", "hops", "through", box=None, pad_edge=False)
    for topic, path in found.items():
        table.add_row(escape(topic), str(len(path)), " <- ".join(path))
    return Answer({"migration_id": spec.migration_id, "topics": rows}, [table])


def _deletable(spec: MigrationSpec, approve: str | None, reason: str) -> Answer:
    from airflow_provider_kafka_migration.mirrors import deletions

    with MigrationOpener(spec, make_view(quiet=True)).open() as migration, migration.reading() as context:
        found = deletions.waiting(context.record, context.target)
        if approve is not None:
            deletions.approve(context.record, found, approve, by=identity(), at=_now(), reason=reason)
    wanted = deletions.code(spec.migration_id, found)
    table = Table("remote topic", "log ends", "why", box=None, pad_edge=False)
    for item in found:
        table.add_row(escape(item.remote_topic), ", ".join(map(str, item.log_end_offsets)), escape(item.why))
    data: dict[str, Any] = {
        "migration_id": spec.migration_id,
        "deletable": [item.model_dump(mode="json") for item in found],
        "approved": approve is not None,
        "code": wanted,
    }
    if approve is not None:
        return Answer(data, [table, "approved: the mirror deletes them within topology.refresh_interval while it runs"])
    if not found:
        return Answer(data, ["no remote topic has lost its source topic"])
    asks = f"[yellow]waits for an operator[/]: kafka-migration mirror topics FILE --delete --approve {wanted}"
    return Answer(data, [table, "With all content. This cannot be undone.", asks], code=ExitCode.WAITS)
