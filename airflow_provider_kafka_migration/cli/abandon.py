"""``kafka-migration abandon``: the way out after READY_FOR_CLIENT_SWITCH, as long as no client has switched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import (
    Answer,
    ExitCode,
    JsonOption,
    answering,
    commands_in,
    speak_of_mirror,
)
from airflow_provider_kafka_migration.cli.freeze_notice import end_with_open_freeze
from airflow_provider_kafka_migration.cli.migrate import MigrationOpener, TakeoverOption, make_view, rollback_answer
from airflow_provider_kafka_migration.cli.session import SpecArgument, person
from airflow_provider_kafka_migration.record.rolling_back import abandon_command
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer
    from airflow_provider_kafka_migration.record.context import PhaseContext

AbandonApproveOption = Annotated[
    str | None, typer.Option("--approve", metavar="CODE", help="The code that abandon shows.", show_default=False)
]
TargetUnreadOption = Annotated[
    bool,
    typer.Option(
        "--target-unread",
        help="Also if the target's logs cannot be read: you accept that what a client may have written there is lost.",
    ),
]
AbandonReasonOption = Annotated[str, typer.Option("--reason", help="Reason, for the journal and the report.")]


#: What else abandoning does, by kind of spec.
_REST = {
    "migration": "  the rest is undone as in a rollback; topics and data on the target stay, and nothing more is "
    "copied to them",
    "mirror": "  the mirror ends: write grants on the target are taken back; topics and data stay there, and nothing "
    "more is copied to them",
}


@dataclass(frozen=True)
class Abandonment:
    """What the person who abandons has typed."""

    code: str | None
    target_unread: bool
    reason: str
    takeover: bool


@answering
def abandon(
    file: SpecArgument,
    approve: AbandonApproveOption = None,
    target_unread: TargetUnreadOption = False,
    reason: AbandonReasonOption = "",
    takeover: TakeoverOption = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Back out after READY_FOR_CLIENT_SWITCH: free the producers of the source and end the migration.

    For a target that is dead, or that clients cannot use. Possible until the client switch is acknowledged, and only if
    nobody has written to the target. Without --approve it shows what will happen, and the code. Exit status 10: the
    code is wanted. Exit status 1: it has ended, but something could not be put back; run it again.
    """
    spec = load_spec(file).check_kind("migration", path=str(file))
    return abandon_answer(spec, file, Abandonment(approve, target_unread, reason, takeover), quiet=json_output)


def abandon_answer(spec: MigrationSpec, file: Path, given: Abandonment, *, quiet: bool) -> Answer:
    """Show what abandoning would do, or do it; also for a way back, whose spec is derived, and for a mirror."""
    from airflow_provider_kafka_migration.approvals import abandon, check
    from airflow_provider_kafka_migration.record import rolling_back

    if spec.kind == "mirror":
        speak_of_mirror()
    view = make_view(quiet=quiet)
    end_with_open_freeze(spec, file)
    opener = MigrationOpener(spec, view, takeover=given.takeover)
    with view, opener.open() as migration:
        with migration.reading() as context:
            abandon.check_possible(context.record)
            is_open = not rolling_back.is_abandoned(context.journal)
            if is_open and given.code is None:
                claim = context.journal.current_claim
                # A run in Airflow waits for its own approval, so it holds the migration; or has ended with a promotion.
                is_held = claim is not None and claim.owner.kind == "dag_run" and not context.journal.is_closed
                return _ask(spec, file, abandon.facts(context.record, context.target), takeover=is_held)
            if is_open:
                # Before claiming: who may not abandon it does not take the migration from its holder.
                check.check_abandon(context, _answer(context, given))
        if is_open:
            held = migration.abandoning_context
            check.check_approval(held, _answer(held, given))
            if not abandon.is_decided(held.record):
                migration.release(f"a second person has to abandon the {spec.kind}, too")
                return _ask_the_second(spec, file, given.code or "")
        result = migration.run("abandon", reason=given.reason or f"abandoned by {person()}")
    return rollback_answer(spec, result)


def _answer(context: PhaseContext, given: Abandonment) -> ApprovalAnswer:
    """Return the answer of whoever runs the command."""
    from airflow_provider_kafka_migration.approvals import abandon, check
    from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
    from airflow_provider_kafka_migration.record.times import iso

    record, code = context.record, given.code or ""
    return ApprovalAnswer(
        migration_id=record.migration_id,
        kind="client_switch",
        decision="back_out",
        code=code,
        responders=[Responder(user_id=person(), user_name=person())],
        answered_at=iso(context.now()),
        body_shown=json.dumps({"code": abandon.abandon_code(record), "reason": given.reason}, sort_keys=True),
        second=check.is_second_abandon(record, person(), code),
        target_unread=given.target_unread,
    )


def _ask(spec: MigrationSpec, file: Path, facts: dict[str, Any], *, takeover: bool) -> Answer:
    found = facts["target"]
    lines = [
        f"[bold]Abandon[/] {escape(spec.migration_id)}: clients stay on the source. Producers are stopped there "
        f"({facts['method']}) since {facts['since']}",
        escape(f"  after it {facts['lifted']}"),
        _REST[spec.kind],
        *_target_lines(found, spec),
        "  This cannot be undone.",
    ]
    if not found["late"]:
        options = (" --target-unread" if found["unchecked"] else "") + (" --takeover" if takeover else "")
        command = commands_in(f"{abandon_command(spec, str(file))} --approve {facts['code']}{options}")
        lines.append(f"[yellow]waits for an operator[/]: {escape(command)}")
    data = {"migration_id": spec.migration_id, "waiting": {"approval": "abandon", **facts}}
    return Answer(data, lines, code=ExitCode.WAITS)


def _target_lines(found: dict[str, Any], spec: MigrationSpec) -> list[str]:
    if not found["late"] and not found["unchecked"]:
        return [f"  nobody has written to the target: its {found['partitions']} logs end where the copy has ended"]
    lines = [f"  [bold red]written on the target[/] {escape(f'{name}: {what}')}" for name, what in _some(found["late"])]
    if found["late"]:
        forward = "Complete the client switch" if spec.kind == "migration" else "Let clients stay on the target"
        lines.append(f"  so it cannot be abandoned: the source lacks these records. {forward}")
    lines += [f"  [bold red]not checked[/] {escape(f'{name}: {why}')}" for name, why in _some(found["unchecked"])]
    if found["unchecked"]:
        lines.append("  ask the clients' owners whether any has written there: that would be lost (--target-unread)")
    return lines


def _some(rows: dict[str, str]) -> list[tuple[str, str]]:
    return list(rows.items())[:20]


def _ask_the_second(spec: MigrationSpec, file: Path, code: str) -> Answer:
    command = commands_in(f"{abandon_command(spec, str(file))} --approve {code}")
    lines = [
        f"[green]{escape(person())} abandons the {spec.kind}[/]; a second person has to, too (approvals.second_users)",
        f"[yellow]waits for an operator[/]: {escape(command)}",
    ]
    data = {"migration_id": spec.migration_id, "waiting": {"approval": "abandon", "second": True, "code": code}}
    return Answer(data, lines, code=ExitCode.WAITS)
