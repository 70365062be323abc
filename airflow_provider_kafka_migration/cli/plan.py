"""``plan``, ``precheck``, ``validate`` and ``schema``: what would happen, and what would stop it."""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, JsonOption, answering, next_step_for
from airflow_provider_kafka_migration.cli.migrate import MigrationOpener, TakeoverOption, make_view
from airflow_provider_kafka_migration.cli.session import SpecArgument, read_document, read_spec
from airflow_provider_kafka_migration.errors import (
    DocumentUnreadable,
    MigrationError,
    PrecheckBlocked,
    SpecInvalid,
    Where,
)
from airflow_provider_kafka_migration.spec import json_schema

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.plan import (
        MeasuredRates,
        PartitionPlan,
        Plan,
        SchemaPlanSummary,
        TopicPlan,
    )
    from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
    from airflow_provider_kafka_migration.pages.plan import SchemaPlans
    from airflow_provider_kafka_migration.record.context import PhaseContext


_SEVERITY_STYLES = {"Blocker": "bold red", "Warning": "yellow", "Info": "dim"}


class PlanFormat(StrEnum):
    """How a plan is shown."""

    table = "table"
    json = "json"
    markdown = "markdown"


@answering
def plan(
    file: SpecArgument,
    form: Annotated[PlanFormat, typer.Option("--format", help="table, json (plan.json itself) or markdown.")] = (
        PlanFormat.table
    ),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write plan.json to this file.", show_default=False)
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            "--documents",
            metavar="FOLDER",
            help="Also write plan.json, plan.md, runbook.md, permissions.md and cost-estimate.json into this folder.",
            show_default=False,
        ),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff",
            metavar="EARLIER",
            help="Show the changes since an earlier plan.json: a path, file:// or s3:// address.",
            show_default=False,
        ),
    ] = None,
    moving: Annotated[
        bool, typer.Option("--moving", help="With --diff: also offsets, sizes, lags and states, which always change.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Read from the source for a few seconds, and estimate with that rate.")
    ] = False,
) -> Answer:
    """Show what a migration would do. Reads both clusters and writes nothing: no claim, no journal."""
    from airflow_provider_kafka_migration.planning import source_snapshot
    from airflow_provider_kafka_migration.planning.make import make_plans

    spec = read_spec(file)
    earlier = None if diff is None else _earlier(diff, spec.storage.conn_id)
    view = make_view(quiet=True)
    with MigrationOpener(spec, view).open() as migration, migration.reading() as context:
        made, schemas, _ = make_plans(context)
        measured = source_snapshot.measure(context, made) if measure or spec.estimate.measure else None
        beside = _documents(context, made, schemas, measured)
    if output is not None:
        write_document(output, made.canonical())
    if documents is not None:
        for name, content in sorted({**beside, "plan.json": made.canonical().decode()}.items()):
            write_document(documents / name, content.encode())
    if earlier is not None:
        return diff_answer(earlier[0], made, form, moving=moving, schemas=_comparable(*earlier, made, schemas))
    documents_of_plan = {"plan": made, "schemas": schemas, "measured": measured}
    shown = {name: item.model_dump(mode="json") for name, item in documents_of_plan.items() if item is not None}
    data: dict[str, Any] = {"digest": made.digest(), **shown}
    if form is PlanFormat.json:
        return Answer(data, raw=json.dumps(shown["plan"], indent=2))
    if form is PlanFormat.markdown:
        return Answer(data, raw=beside["plan.md"] + (f"\n{measured.summary()}\n" if measured is not None else ""))
    return Answer(data, [*_tables(made), *([escape(measured.summary())] if measured is not None else [])])


def _documents(
    context: PhaseContext, made: Plan, schemas: SchemaPlan | None, measured: MeasuredRates | None
) -> dict[str, str]:
    """Return the documents next to the plan: file name -> content."""
    from airflow_provider_kafka_migration.pages.plan import documents
    from airflow_provider_kafka_migration.planning.source_snapshot import NAME

    found = documents(context.spec, made, context.source.config, context.target.config, schemas)
    if measured is not None:
        found[NAME] = measured.canonical().decode() + "\n"
    if schemas is not None and made.schemas is not None:
        # Its name has its digest, so it has no line break at its end.
        found[made.schemas.document] = schemas.canonical().decode()
    return found


def _earlier(place: str, reference: str | None) -> tuple[Plan, SchemaPlan | None]:
    """Read the earlier plan, before contacting any cluster, so that a typo is reported immediately.

    :returns: the schema plan is None if the plan has none, or if it is not where a migration or --documents puts it.
    """
    from airflow_provider_kafka_migration.documents.plan import Plan

    try:
        plan = Plan.parse(read_document(place, reference))
    except ValidationError as error:
        raise DocumentUnreadable(
            f"this is not a plan.json: {len(error.errors())} fields are wrong or missing",
            where=Where(path=place),
            next_step="give the path of a plan.json, for instance one below plans/ in the migration's journal location",
        ) from None
    return plan, _earlier_schemas(place, reference, plan)


def _earlier_schemas(place: str, reference: str | None, plan: Plan) -> SchemaPlan | None:
    from airflow_provider_kafka_migration.documents.schemas import SchemaPlan

    if plan.schemas is None:
        return None
    folder = place.rpartition("/")[0] or "."
    for above in (folder, folder.rpartition("/")[0] or "."):
        try:
            found = SchemaPlan.parse(read_document(f"{above}/{plan.schemas.document}", reference))
        except (DocumentUnreadable, ValidationError):
            continue
        if found.digest() == plan.schemas.digest:
            return found
    return None


def _comparable(
    before: Plan, before_schemas: SchemaPlan | None, after: Plan, after_schemas: SchemaPlan | None
) -> SchemaPlans | None:
    """Return both schema plans, if each plan's schema plan is at hand; else only the figures can be compared."""
    pairs = ((before.schemas, before_schemas), (after.schemas, after_schemas))
    is_complete = all((summary is None) is (document is None) for summary, document in pairs)
    return (before_schemas, after_schemas) if is_complete else None


def diff_answer(
    before: Plan, after: Plan, form: PlanFormat, *, moving: bool, schemas: SchemaPlans | None = None
) -> Answer:
    """Return the differences between two plans as a command's answer.

    :param schemas: both schema plans; None: they are not at hand, so only their figures are compared.
    """
    from airflow_provider_kafka_migration.pages.plan import as_markdown, as_text, diff_plans

    found = diff_plans(before, after, moving=moving, schemas=schemas)
    data = {"digest": after.digest(), "diff": found.model_dump(mode="json")}
    if form is PlanFormat.json:
        return Answer(data, raw=json.dumps(found.model_dump(mode="json"), indent=2))
    if form is PlanFormat.markdown:
        return Answer(data, raw=as_markdown(found))
    head = f"plan {found.before[:8]} -> {found.after[:8]}: {len(found.changes)} changes"
    text = [head, escape(as_text(found))]
    if schemas is None and before.schemas is not None and after.schemas is not None:
        text.append(
            "[dim]note[/] the earlier schema plan is not next to its plan: only figures of schemas are compared"
        )
    return Answer(data, text)


def write_document(path: Path, data: bytes) -> None:
    """Write a file, and create its folder if needed.

    :raises DocumentUnreadable: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise DocumentUnreadable(
            f"the plan cannot be written: {error.strerror}", where=Where(path=str(path)), next_step="check the path"
        ) from None


def _topic_row(topic: TopicPlan) -> list[str]:
    verdicts = Counter(item.verdict.value for item in topic.partitions)
    size = sum(max(item.size_bytes, 0) for item in topic.partitions)
    renamed = "" if topic.name == topic.target_name else f" -> {topic.target_name}"
    return [
        f"{topic.name}{renamed}",
        str(len(topic.partitions)),
        str(topic.replication_factor),
        f"{size / 1e6:.1f}",
        str(sum(_offsets(item) for item in topic.partitions)),
        ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items())),
        ", ".join(topic.kinds),
    ]


def _offsets(item: PartitionPlan) -> int:
    """Offsets of a partition's log; of a mirror that begins later (``mirror.start: latest``), those from there on."""
    first = item.log_start_offset if item.adopted else item.source_start_offset
    return max(item.end_offset - first, 0)


_TOPIC_HEAD = ("topic", "partitions", "replicas", "MB", "offsets", "verdicts", "kind")
_GROUP_HEAD = ("group", "type", "state", "topics", "lag")


def _group_rows(made: Plan) -> list[list[str]]:
    return [
        [group.group, group.type, group.state, str(len(group.topics_in_scope)), str(group.lag)] for group in made.groups
    ]


def _facts(made: Plan) -> list[str]:
    actions = Counter(acl.action for acl in made.acls)
    return [
        f"plan {made.digest()[:8]} of {made.migration_id}",
        f"source {made.source.cluster_id}: Kafka {made.source.kafka_version}, {made.source.mode} mode, "
        f"{len(made.source.brokers)} brokers",
        f"target {made.target.cluster_id}: Kafka {made.target.kafka_version}, {made.target.mode} mode, "
        f"{len(made.target.brokers)} brokers",
        f"{len(made.topics)} topics, {sum(len(topic.partitions) for topic in made.topics)} partitions, "
        f"{made.total_bytes / 1e6:.1f} MB, {len(made.lanes)} lanes",
        "ACLs: " + (", ".join(f"{count} {action}" for action, count in sorted(actions.items())) or "none"),
        *([_schemas_fact(made.schemas)] if made.schemas is not None else []),
    ]


def _schemas_fact(schemas: SchemaPlanSummary) -> str:
    return (
        f"schemas: {schemas.subjects} subjects, {schemas.versions} versions, ids: {schemas.id_mode}, "
        f"{schemas.conflicts} conflicts (kafka-migration schemas plan shows all)"
    )


def _tables(made: Plan) -> list[RenderableType]:
    topics = Table(*_TOPIC_HEAD, box=None, pad_edge=False)
    for topic in made.topics:
        topics.add_row(*(escape(cell) for cell in _topic_row(topic)))
    shown: list[RenderableType] = [*(escape(fact) for fact in _facts(made)), "", topics]
    if made.groups:
        groups = Table(*_GROUP_HEAD, box=None, pad_edge=False)
        for row in _group_rows(made):
            groups.add_row(*(escape(cell) for cell in row))
        shown += ["", groups]
    return [*shown, *(f"[dim]note[/] {escape(note)}" for note in made.notes)]


@answering
def precheck(
    file: SpecArgument,
    takeover: TakeoverOption = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Check in one pass for everything that would stop a migration. Exit status 1 if there are blockers.

    It runs plan and precheck as the DAG does, journaled, and releases the migration at the end, so that the DAG or
    another person can continue without a takeover. It reads the source; on the target it creates a scratch topic to
    test what brokers accept, and removes it.
    """
    spec = read_spec(file)
    view = make_view(quiet=json_output)
    with view, MigrationOpener(spec, view, takeover=takeover).open() as migration:
        try:
            migration.run("plan")
            migration.run("spark_check")
            result = migration.run("precheck")
        except PrecheckBlocked as error:
            verdict = f"[bold red]blocked[/]: {escape(next_step_for('precheck', error.next_step))}"
            return _findings(error.details.get("findings", []), verdict, passed=False)
        finally:
            migration.release("precheck on the command line has ended")
    return _findings(result.details.get("findings", []), f"[green]{escape(result.summary)}[/]", passed=True)


def _findings(findings: list[dict[str, Any]], verdict: str, *, passed: bool) -> Answer:
    from airflow_provider_kafka_migration.record.finding_codes import seen_with_subject

    table = Table("code", "severity", "what", "seen", "what to do", box=None, pad_edge=False)
    for finding in findings:
        style = _SEVERITY_STYLES.get(str(finding["severity"]), "")
        severity = f"{finding['severity']}{' (waived)' if finding.get('waived') else ''}"
        table.add_row(
            str(finding["code"]),
            severity,
            escape(str(finding["title"])),
            escape(seen_with_subject(finding)),
            escape(next_step_for("precheck", str(finding["fix"]))),
            style=style,
        )
    shown: list[RenderableType] = [table, verdict] if findings else [verdict]
    return Answer({"passed": passed, "findings": findings}, shown, code=ExitCode.OK if passed else ExitCode.FAILED)


# -- commands spec ----------------------------------------------------------------------------------------------------
#
# ``validate`` and ``schema``: these contact nothing.


@answering
def validate(file: SpecArgument, *, json_output: JsonOption = False) -> Answer:
    """Check a spec without contacting anything, and show all mistakes together."""
    try:
        spec = read_spec(file)
    except SpecInvalid as error:
        found = error.details.get("mistakes")
        if not found or json_output:
            raise
        raise _listing(error, found) from None
    return Answer(
        data={"valid": True, "migration_id": spec.migration_id, "spec": spec.model_dump(mode="json")},
        text=[f"[green]valid[/]: migration {spec.migration_id}, {spec.source.conn_id} -> {spec.target.conn_id}"],
    )


def _listing(error: SpecInvalid, found: list[dict[str, str]]) -> MigrationError:
    """Return the same error with one line per mistake."""
    lines = "".join(f"\n  - {item['path']}: {item['reason']}" for item in found)
    count = f"{len(found)} mistake{'s' if len(found) > 1 else ''}"
    return SpecInvalid(
        f"{count} in the spec:{lines}", where=error.where, next_step="correct all of them", details=error.details
    )


@answering
def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.", show_default=False)
    ] = None,
) -> Answer:
    """Print the JSON schema of the spec, for editors and CI."""
    document = json_schema()
    text = json.dumps(document, indent=2) + "\n"
    if output is None:
        return Answer(data={"schema": document}, raw=text)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecInvalid(
            f"the schema cannot be written: {error.strerror}",
            where=Where(path=str(output)),
            next_step="check the path",
        ) from None
    return Answer(data={"written": str(output)}, text=[f"written: {output}"])


#: In the order of the help.
COMMANDS = (validate, schema, plan, precheck)
