"""``way-back plan``, ``run``, ``resume``, ``status``, ``keep`` and ``return``: clients return to the old cluster.

All take the spec of the first migration: the way back is derived from it and from its journal, each time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.abandon import (
    AbandonApproveOption,
    Abandonment,
    AbandonReasonOption,
    TargetUnreadOption,
    abandon_answer,
)
from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, JsonOption, answering, speak_of_way_back
from airflow_provider_kafka_migration.cli.freeze_notice import end_with_open_freeze
from airflow_provider_kafka_migration.cli.migrate import (
    Course,
    DataPlane,
    MigrationOpener,
    TakeoverOption,
    UntilOption,
    VerboseOption,
    drive,
    make_view,
    rollback_answer,
    status_of,
)
from airflow_provider_kafka_migration.cli.plan import write_document
from airflow_provider_kafka_migration.cli.session import SpecArgument, identity, person, resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer
    from airflow_provider_kafka_migration.record.context import PhaseContext

way_back_app = typer.Typer(
    help="Let clients return to the old cluster after they have switched: it goes on receiving what is written to the "
    "new one, at the same offsets, until someone says keep or back.",
    no_args_is_help=True,
)


def _derived(file: Path) -> MigrationSpec:
    """Return the spec of the way back of the migration in a file.

    :raises Terminal: its clients were not told to switch yet.
    """
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.way_back.derived_spec import derive

    first = Migration.open(load_spec(file), identity(), resolver(), actor=person(), kind="cli")
    with first, first.reading() as context:
        spec = derive(context.record)
    # From here on; before, what a text advises concerns the first migration.
    speak_of_way_back()
    return spec


@way_back_app.command("plan")
@answering
def plan_way_back(
    file: SpecArgument,
    spec_output: Annotated[
        Path | None,
        typer.Option(
            "--spec-output",
            metavar="FILE",
            help="Also write the spec of the way back to this file. It is a spec like any other: with it, `way-back` "
            "leads to the new cluster again after clients have returned.",
            show_default=False,
        ),
    ] = None,
) -> Answer:
    """Show what a way back would do. Reads both clusters and writes nothing: no claim, no journal."""
    from airflow_provider_kafka_migration.planning.make import make_plans

    spec = _derived(file)
    if spec_output is not None:
        write_document(spec_output, json.dumps(spec.model_dump(mode="json", by_alias=True), indent=2).encode() + b"\n")
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration, migration.reading() as context:
        made, *_ = make_plans(context)
    adopted = [(topic, item) for topic in made.topics for item in topic.partitions if item.adopted is not None]
    total = sum(len(topic.partitions) for topic in made.topics)
    new = [topic.name for topic in made.topics if not topic.exists_on_target]
    lines = [
        f"[bold]{escape(spec.migration_id)}[/]: {len(made.topics)} topics, {total} partitions go back",
        f"{len(adopted)} partitions go on behind what the first migration has copied, {total - len(adopted)} are new",
        *([f"topics that are created on the old cluster: {escape(', '.join(new))}"] if new else []),
    ]
    data: dict[str, Any] = {
        "migration_id": spec.migration_id,
        "digest": made.digest(),
        "adopted_partitions": len(adopted),
        "new_partitions": total - len(adopted),
        "new_topics": new,
        "plan": made.model_dump(mode="json"),
        "spec": spec.model_dump(mode="json", by_alias=True),
    }
    return Answer(data, lines)


@way_back_app.command("run")
@answering
def run(
    file: SpecArgument,
    until: UntilOption = None,
    takeover: TakeoverOption = False,
    *,
    plane: DataPlane,
    json_output: JsonOption = False,
) -> Answer:
    """Begin the way back, or bring the old cluster up to date again. Exit status 10: a person decides, keep or back.

    The old cluster receives what was written to the new one since the client switch. Run it again at any time.
    """
    return drive(_derived(file), file, Course(None, until, takeover), plane, may_start=True, json_output=json_output)


@way_back_app.command("resume")
@answering
def resume(file: SpecArgument, *, course: Course, plane: DataPlane, json_output: JsonOption = False) -> Answer:
    """Continue a way back that was started before. Like run, but it never starts a new one."""
    return drive(_derived(file), file, course, plane, may_start=False, json_output=json_output)


@way_back_app.command("status")
@answering
def status(file: SpecArgument, verbose: VerboseOption = False) -> Answer:
    """Show the state of the way back, from its journal alone. Exit status 10 if it waits for a person."""
    return status_of(_derived(file), file, verbose=verbose)


@way_back_app.command("return")
@answering
def return_clients(file: SpecArgument, *, course: Course, plane: DataPlane, json_output: JsonOption = False) -> Answer:
    """Go back: with the code of `way-back run`, stop the new cluster's producers, copy the rest and let clients return.

    Exit status 10: clients may return now; give the new code once they use the old cluster again. What went back is
    then compared and signed.
    """
    return drive(_derived(file), file, course, plane, may_start=False, json_output=json_output)


@way_back_app.command("keep")
@answering
def keep(
    file: SpecArgument,
    approve: Annotated[
        str | None, typer.Option("--approve", metavar="CODE", help="The code that keep shows.", show_default=False)
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, for the journal and the report.")] = "",
    takeover: TakeoverOption = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Keep the new cluster: end the way back. The old cluster gets its settings and ACLs back and is released.

    Without --approve it shows what will be put back, and the code. Exit status 10: the code is wanted. Exit status 1:
    it has ended, but something could not be put back; run it again.
    """
    from airflow_provider_kafka_migration.approvals import check, way_back
    from airflow_provider_kafka_migration.record import rolling_back

    spec = _derived(file)
    view = make_view(quiet=json_output)
    end_with_open_freeze(spec, file)
    opener = MigrationOpener(spec, view, takeover=takeover)
    with view, opener.open() as migration:
        with migration.reading() as context:
            is_open = way_back.check_can_keep(context.record) and not rolling_back.has_begun(context.journal)
            if is_open and approve is None:
                return _ask_to_keep(way_back.facts(context.record), spec)
            if is_open and approve is not None:
                # Before claiming: who may not keep it does not take the way back from its holder.
                check.check_keep(context.record, _kept(context, approve))
        if is_open and approve is not None:
            held = migration.journal_context
            check.check_approval(held, _kept(held, approve))
            if not way_back.is_keep_decided(held.record):
                migration.release("a second person has to keep the new cluster, too")
                return _ask_the_second(spec, approve)
        reason = reason or f"the new cluster is kept ({person()})"
        result = migration.run("rollback", reason=reason, code=approve or "")
    return rollback_answer(spec, result)


@way_back_app.command("abandon")
@answering
def abandon_return(
    file: SpecArgument,
    approve: AbandonApproveOption = None,
    target_unread: TargetUnreadOption = False,
    reason: AbandonReasonOption = "",
    takeover: TakeoverOption = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Abandon a return that clients were told to make, as long as none has written to the old cluster.

    The producers of the new cluster write again, and the new cluster is kept. Without --approve it shows what will
    happen, and the code. Exit status 10: the code is wanted.
    """
    decision = Abandonment(approve, target_unread, reason, takeover)
    return abandon_answer(_derived(file), file, decision, quiet=json_output)


@way_back_app.command("leave-out")
@answering
def leave_out(
    file: SpecArgument,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics, by their names on either cluster.")],
    approve: Annotated[
        str | None, typer.Option("--approve", metavar="CODE", help="The code that leave-out shows.", show_default=False)
    ] = None,
    takeover: TakeoverOption = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Leave topics out of a way back that has begun, because strangers wrote to them on the old cluster. Others go on.

    Without --approve it shows what does not go back then, and the code. Exit status 10: the code is wanted.
    """
    from airflow_provider_kafka_migration.approvals import way_back
    from airflow_provider_kafka_migration.planning import leave_out as planning

    spec = _derived(file)
    view = make_view(quiet=json_output)
    end_with_open_freeze(spec, file)
    with view, MigrationOpener(spec, view, takeover=takeover).open() as migration:
        with migration.reading() as context:
            planning.check_allowed(context.record)
            named = planning.named(context.record, topics)
            if approve is None:
                facts = planning.facts(context.record, context.source, context.target, named)
                return _ask_to_leave_out(facts, way_back.leave_out_code(context.record, named), spec)
            way_back.check_leave_out(context.record, named, approve)
        document = planning.leave_out(migration.context, named, by=person(), code=approve)
        migration.release("topics were left out")
    data = {"migration_id": spec.migration_id, "left_out": document.dropped}
    text = f"{len(document.dropped)} topics do not go back: {', '.join(sorted(document.dropped))}"
    lines = [escape(text), "the others go on: kafka-migration way-back run FILE (in Airflow: clear the red task)"]
    return Answer(data, lines)


def _ask_to_leave_out(facts: list[dict[str, Any]], code: str, spec: MigrationSpec) -> Answer:
    lines = [f"[bold]Leave {len(facts)} topics out of the way back[/] {escape(spec.migration_id)}:"]
    for topic in facts:
        lines.append(f"  {escape(topic['topic'])} ({escape(topic['old_topic'])} on the old cluster)")
        lines += [
            escape(f"    the {side} cluster's topic could not be read: {topic[f'{side}_unread']}")
            for side in ("new", "old")
            if topic[f"{side}_unread"]
        ]
        for item in topic["partitions"]:
            error = item["error"]
            lines.append(
                f"    partition {item['partition']}: the old cluster ends at {_shown(item['old_end_offset'])}; offsets "
                f"{item['from_offset']} to {_shown(item['new_end_offset'])} of the new one would go back"
                + (escape(f"; [{error['code']}] {error['what']}") if error else "")
            )
        for item in topic["group_offsets"]:
            former = "nothing" if item["former_offset"] is None else item["former_offset"]
            lines.append(
                escape(f"    group {item['group']}, partition {item['partition']}: the way back has set it to ")
                + f"{item['offset']} on the old cluster, where it had {former}; set it back by hand if it is to be used"
            )
    names = " ".join(topic["topic"] for topic in facts)
    lines += [
        "  nothing more of them is copied; what has come back already stays, and so does what others wrote",
        "  at the return their producers are not stopped, and their groups are not moved. This cannot be undone.",
        f"[yellow]waits for an operator[/]: kafka-migration way-back leave-out FILE {escape(names)} --approve {code}",
    ]
    data = {
        "migration_id": spec.migration_id,
        "waiting": {"approval": "leave_out", "code": code, "topics": facts},
    }
    return Answer(data, lines, code=ExitCode.WAITS)


def _shown(end_offset: int | None) -> str:
    return "?" if end_offset is None else str(end_offset)


def _kept(context: PhaseContext, code: str) -> ApprovalAnswer:
    """Return the answer of whoever runs the command."""
    from airflow_provider_kafka_migration.approvals import check, way_back
    from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
    from airflow_provider_kafka_migration.record.times import iso

    record = context.record
    return ApprovalAnswer(
        migration_id=record.migration_id,
        kind="cutover",
        decision="abort",
        code=code,
        responders=[Responder(user_id=person(), user_name=person())],
        answered_at=iso(context.now()),
        body_shown=json.dumps(way_back.facts(record), sort_keys=True),
        second=check.is_second_keep(record, person(), code),
    )


def _ask_the_second(spec: MigrationSpec, code: str) -> Answer:
    lines = [
        f"[green]{escape(person())} keeps the new cluster[/]; a second person has to, too (approvals.second_users)",
        f"[yellow]waits for an operator[/]: kafka-migration way-back keep FILE --approve {escape(code)}",
    ]
    data = {"migration_id": spec.migration_id, "waiting": {"approval": "keep", "second": True, "code": code}}
    return Answer(data, lines, code=ExitCode.WAITS)


def _ask_to_keep(facts: dict[str, Any], spec: MigrationSpec) -> Answer:
    lines = [
        f"[bold]Keep the new cluster[/] ({escape(facts['new_cluster'])}) and release the old one "
        f"({escape(facts['old_cluster'])}):",
        f"  {facts['adopted_partitions'] + facts['new_partitions']} partitions of it receive nothing more; their "
        "topics get their own settings back",
        f"  {facts['deny_acls']} DENY ACLs of the way back are removed",
        "  what was copied to it stays there. This cannot be undone.",
        f"[yellow]waits for an operator[/]: kafka-migration way-back keep FILE --approve {facts['keep_code']}",
    ]
    data = {"migration_id": spec.migration_id, "waiting": {"approval": "keep", "code": facts["keep_code"], **facts}}
    return Answer(data, lines, code=ExitCode.WAITS)
