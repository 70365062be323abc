"""``schemas plan``, ``schemas copy``, ``schemas diff`` and ``schemas verify``: the registries of a migration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, JsonOption, answering
from airflow_provider_kafka_migration.cli.migrate import MigrationOpener, TakeoverOption, make_view
from airflow_provider_kafka_migration.cli.plan import PlanFormat, write_document
from airflow_provider_kafka_migration.cli.session import SpecArgument, read_spec
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import RegistryUnreachable, SpecInvalid, Where
from airflow_provider_kafka_migration.spec import MigrationSpec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.schemas import SchemaCheck, SchemaPlan, SchemasResult
    from airflow_provider_kafka_migration.record.context import PhaseContext

schemas_app = typer.Typer(help="Plan, copy and compare the schemas of a migration.", no_args_is_help=True)

_SUBJECTS = ("subject", "on the target", "type", "versions", "settings", "topics that use it")
_TOPICS = (
    "topic",
    "ids in",
    "decided by",
    "context",
    "known ids in keys",
    "known ids in values",
    "unknown ids",
    "to check",
)
_PHASE = "schemas"


@schemas_app.command("plan")
@answering
def plan_schemas(
    file: SpecArgument,
    form: Annotated[PlanFormat, typer.Option("--format", help="table, json (the schema plan itself) or markdown.")] = (
        PlanFormat.table
    ),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the schema plan to this file.", show_default=False)
    ] = None,
) -> Answer:
    """Show which schemas would move, with which ids, and which topics carry ids. It only reads.

    It works before a migration, too; then it also reads the topics of the source. In a migration it takes the topics
    of its plan, and the id mode with which records have been copied.
    """
    spec = read_spec(file)
    with _reading(spec) as context:
        made = _plan_now(context, sample=True)
    if output is not None:
        write_document(output, made.canonical())
    data = {"digest": made.digest(), "plan": made.model_dump(mode="json")}
    if form is PlanFormat.json:
        return Answer(data, raw=json.dumps(data["plan"], indent=2))
    if form is PlanFormat.markdown:
        return Answer(data, raw=_markdown(made))
    return Answer(data, _tables(made))


@schemas_app.command("copy")
@answering
def copy_schemas(file: SpecArgument, takeover: TakeoverOption = False, *, json_output: JsonOption = False) -> Answer:
    """Copy schemas to the target registry, as the task schemas of the DAG does. Exit status 1 if any was refused.

    It claims the migration, which must have created its topics (`run --until topology_copy`), and releases it at the
    end. It may run again at any time before the cutover ends; if killed, the next call continues.
    """
    spec = read_spec(file)
    _check_configured(spec)
    view = make_view(quiet=json_output)
    with view, MigrationOpener(spec, view, takeover=takeover).open() as migration:
        try:
            done = migration.run(_PHASE)
        finally:
            migration.release("schemas copy on the command line has ended")
        with migration.reading() as context:
            result = context.record.schemas_result()
    data = {
        "migration_id": spec.migration_id,
        "summary": done.summary,
        "already_done": done.already_done,
        "result": None if result is None else result.model_dump(mode="json"),
    }
    refused = _refused_rows(result) if result is not None else []
    shown: list[RenderableType] = [f"[{'yellow' if refused else 'green'}]{escape(done.summary)}[/]"]
    if refused:
        shown.append(_table(("what", "subject", "why"), refused))
    return Answer(data, shown, code=ExitCode.FAILED if refused else ExitCode.OK)


@schemas_app.command("diff")
@answering
def diff_schemas(file: SpecArgument, *, json_output: JsonOption = False) -> Answer:
    """Show what the target registry lacks or has differently. Reads only. Exit status 1 if there is anything.

    These are the versions that the next copy would register, conflicts, and what could not be read. `schemas verify`
    also compares levels, modes, deletions and ids.
    """
    spec = read_spec(file)
    with _reading(spec, quiet=json_output) as context:
        made = _plan_now(context, sample=False)
    rows = list(_differences(made))
    data = {
        "migration_id": spec.migration_id,
        "id_mode": made.id_mode,
        "equal": not rows,
        "differences": [{"what": what, "subject": subject, "why": why} for what, subject, why in rows],
    }
    if not rows:
        versions = sum(len(item.versions) for item in made.subjects)
        equal = f"[green]nothing to copy[/]: {len(made.subjects)} subjects, {versions} versions are on the target"
        return Answer(data, [equal])
    return Answer(data, [_table(("what", "subject", "why"), rows)], code=ExitCode.FAILED)


@schemas_app.command("verify")
@answering
def verify_schemas(file: SpecArgument, *, json_output: JsonOption = False) -> Answer:
    """Compare both registries completely. Reads only. Exit status 1 if anything differs or could not be read.

    Compared are subjects, versions, references, deletions, levels and modes, and whether each id of the id map resolves
    on both sides to the same schema. What only the target has is a warning: its clients may have registered it.
    `validate`, in a migration, also checks all ids that occur in copied records.
    """
    from airflow_provider_kafka_migration.schemas.check import judge

    spec = read_spec(file)
    with _reading(spec, quiet=json_output) as context:
        made, found = _compare(context)
    verdict = judge(found, made.conflicts if spec.schemas.on_conflict == "note" else ())
    failed = verdict.outcome is Outcome.FAILED
    data = {
        "migration_id": spec.migration_id,
        "outcome": verdict.outcome.value,
        "findings": verdict.partitions,
        "check": found.model_dump(mode="json"),
    }
    style = {Outcome.PASSED: "green", Outcome.WARNING: "yellow"}.get(verdict.outcome, "red")
    shown: list[RenderableType] = [f"[{style}]{verdict.outcome.value}[/]: {escape(verdict.summary)}"]
    if verdict.partitions:
        rows = [(row["outcome"], row["what"], row["why"]) for row in verdict.partitions]
        shown.append(_table(("", "what", "why"), rows))
    return Answer(data, shown, code=ExitCode.FAILED if failed else ExitCode.OK)


def _compare(context: PhaseContext) -> tuple[SchemaPlan, SchemaCheck]:
    """Plan from what both registries have now, and compare them, without a claim.

    :raises SpecInvalid: the spec names only one registry.
    :raises MigrationError: a registry cannot be read.
    """
    from airflow_provider_kafka_migration.record.times import iso
    from airflow_provider_kafka_migration.schemas.modes import former_modes
    from airflow_provider_kafka_migration.schemas.open import open_pair
    from airflow_provider_kafka_migration.schemas.sync import selection_of
    from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries

    record = context.record
    made = _plan_now(context, sample=False)
    id_map = record.schema_id_map() if context.journal.exists else None
    ids = {(origin, number): "the id map" for origin, number, _ in id_map.ids} if id_map is not None else {}
    # Where ids are kept, a schema with renamed references has another GUID; only records show whether that matters.
    guids = {
        guid: "the id map"
        for guid, there in (id_map.guids if id_map is not None else ())
        if made.id_mode == "translate" or guid.lower() == there.lower()
    }
    with open_pair(context) as pair:
        found = compare_registries(
            pair.source,
            pair.target,
            made,
            id_map,
            FoundInRecords(ids, guids),
            selection=selection_of(record),
            at=iso(context.now()),
            former_source_modes=former_modes(record, "source"),
            parallel=context.spec.schemas.max_parallel_requests,
        )
    return made, found


def _differences(made: SchemaPlan) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps both registries from being equal: kind, subject with version, and the reason."""
    for subject in made.subjects:
        for version in subject.versions:
            if version.action == "register":
                deleted = ", soft-deleted on the source" if version.deleted else ""
                yield "missing", f"{subject.subject} version {version.version}", f"id {version.id}{deleted}"
    for conflict in made.conflicts:
        version_text = f" version {conflict.version}" if conflict.version else ""
        yield f"conflict ({conflict.kind})", f"{conflict.subject}{version_text}", conflict.what
    for what, why in sorted(made.unread.items()):
        yield "not read", what, why


def _refused_rows(result: SchemasResult) -> list[tuple[str, str, str]]:
    rows = [(str(item.error.get("code", "refused")), item.name, str(item.error.get("what"))) for item in result.failed]
    rows += [(f"conflict ({item.kind})", item.subject, item.what) for item in result.conflicts]
    rows += [("not read", what, why) for what, why in sorted(result.unread.items())]
    return rows


# -- reading ----------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(spec: MigrationSpec, *, quiet: bool = True) -> Iterator[PhaseContext]:
    """Open a migration without a claim, with the id mode with which its records have been copied."""
    _check_configured(spec)
    view = make_view(quiet=quiet)
    with view, MigrationOpener(spec, view).open() as migration, migration.reading() as context:
        yield _with_recorded_mode(context)


def _check_configured(spec: MigrationSpec) -> None:
    if not spec.schemas.configured:
        raise SpecInvalid(
            "the spec moves no schemas",
            where=Where(migration_id=spec.migration_id, path="schemas"),
            next_step="set schemas.source and schemas.target (docs/schemas.md)",
        )


def _with_recorded_mode(context: PhaseContext) -> PhaseContext:
    """Return the context with the recorded id mode: ``auto`` might decide otherwise today."""
    known = context.record.schema_id_map() if context.journal.exists else None
    if known is None or known.id_mode == "topic":
        return context
    section = context.spec.schemas.model_copy(update={"ids": known.id_mode})
    return replace(context, spec=context.spec.model_copy(update={"schemas": section}))


def _plan_now(context: PhaseContext, *, sample: bool) -> SchemaPlan:
    """Make the schema plan from what both registries answer now.

    :param sample: also find out where records carry ids. Without it, no cluster is asked once there is a plan.
    :raises MigrationError: a registry cannot be read.
    """
    from airflow_provider_kafka_migration.planning.make import make_plans
    from airflow_provider_kafka_migration.planning.schemas import make_schema_plan

    _check_answers(context)
    unknown: dict[str, str] = {}
    if context.record.has_plan():
        topics = {topic.name: topic.target_name for topic in context.record.plan().topics}
        made = make_schema_plan(context, topics, unknown, sample=sample)
    else:
        plan, made, _ = make_plans(context)
        unknown = plan.unknown
    if made is None:
        raise RegistryUnreachable(
            f"the registries cannot be compared: {unknown.get('schemas', 'no reason was recorded')}",
            where=Where(migration_id=context.migration_id, phase=_PHASE),
            next_step="run the command again; `kafka-migration precheck FILE` checks both registries and all rights",
        )
    return made


def _check_answers(context: PhaseContext) -> None:
    """Ask both registries for something small, so that the usual mistakes in connections are named as such."""
    section = context.spec.schemas
    if section.source:
        with context.registry("source") as registry:
            registry.config(None)
    if section.target and not section.topic:
        with context.registry("target") as registry:
            registry.config(None)


# -- output -----------------------------------------------------------------------------------------------------------


def _markdown(made: SchemaPlan) -> str:
    from airflow_provider_kafka_migration.pages.rendering import render
    from airflow_provider_kafka_migration.pages.schemas import plan_facts

    return render("plan_schemas.md.j2", schemas=plan_facts(made)).lstrip("\n")


def _tables(made: SchemaPlan) -> list[RenderableType]:
    from airflow_provider_kafka_migration.pages.schemas import plan_facts

    facts = plan_facts(made)
    shown: list[RenderableType] = [
        escape(f"schema plan {made.digest()[:8]} of {made.migration_id}"),
        escape(f"ids: {facts['id_mode']}: {facts['meaning']}"),
        escape(f"why: {facts['reason']}"),
        escape(f"registries: {facts['source_kind']} -> {facts['target_kind']}"),
        f"{facts['subjects']} subjects, {facts['versions']} versions ({facts['deleted_versions']} soft-deleted): "
        f"{facts['to_register']} to register, {facts['present']} already on the target",
    ]
    parts: list[tuple[Sequence[str], Sequence[Sequence[object]], str]] = [
        (_SUBJECTS, facts["rows"], ""),
        (("conflict", "subject", "what"), facts["conflicts"], "red"),
        (_TOPICS, facts["topics"], ""),
        (("left out", "why"), facts["left_out"], ""),
        (("could not be read", "why"), facts["unread"], "red"),
    ]
    for head, rows, style in parts:
        if rows:
            shown += ["", _table(head, rows, style)]
    return [*shown, *(f"[dim]note[/] {escape(note)}" for note in facts["notes"])]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], style: str = "") -> Table:
    table = Table(*head, box=None, pad_edge=False, style=style)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table
