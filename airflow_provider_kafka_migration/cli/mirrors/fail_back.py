"""``kafka-migration mirror fail-back``: the mirror that leads clients of a promoted mirror back to its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, answering
from airflow_provider_kafka_migration.cli.migrate import MigrationOpener, make_view
from airflow_provider_kafka_migration.cli.plan import write_document
from airflow_provider_kafka_migration.cli.session import SpecArgument, read_spec
from airflow_provider_kafka_migration.errors import IllegalTransition
from airflow_provider_kafka_migration.state import State, mirror_name, position
from airflow_provider_kafka_migration.verbs import Choice, choose

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.record.context import PhaseContext


def _on_diverged(word: str) -> Choice:
    """Read ``adopt.on_diverged``, as an option."""
    try:
        return cast(Choice, choose("adopt.on_diverged", word))
    except ValueError as error:
        raise typer.BadParameter(f"--on-diverged: {error}") from None


@answering
def fail_back(
    file: SpecArgument,
    spec_output: Annotated[
        Path | None,
        typer.Option(
            "--spec-output",
            metavar="FILE",
            help="Write the spec of the mirror back to this file; mirror run FILE starts it.",
            show_default=False,
        ),
    ] = None,
    on_diverged: Annotated[
        str,
        typer.Option(
            "--on-diverged",
            metavar="[stop|note|repair]",
            help="Partitions of the former source with records that were never mirrored (adopt.on_diverged).",
        ),
    ] = "stop",
) -> Answer:
    """Show how the clients of a promoted mirror can fail back, and write the spec of that mirror.

    It copies only what was written since the promotion, to the former source. Reads both clusters and writes nothing
    there. Exit status 1 if a partition cannot go back: the answer names each of them.
    """
    from airflow_provider_kafka_migration.adoption.boundary import forward_record
    from airflow_provider_kafka_migration.planning.make import make_plans
    from airflow_provider_kafka_migration.way_back.fail_back import derive

    policy = _on_diverged(on_diverged)
    forward = read_spec(file).check_kind("mirror", path=str(file))
    with MigrationOpener(forward, make_view(quiet=True)).open() as migration, migration.reading() as context:
        adopt = forward.adopt
        is_second = adopt is not None and adopt.from_ == "mirror"
        first = forward_record(context, str(adopt.migration_id)).spec if adopt is not None and is_second else None
        spec = derive(context.record, on_diverged=policy, first=first)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration, migration.reading() as context:
        _check_not_begun(context)
        made, _, adoption = make_plans(context)
    if spec_output is not None:
        write_document(spec_output, json.dumps(spec.model_dump(mode="json", by_alias=True), indent=2).encode() + b"\n")
    document = None if adoption is None else adoption.document
    starts = [] if document is None else [item.model_dump(mode="json") for item in document.partitions]
    named = {
        kind: [
            {"topic": item.topic, "partition": item.partition, "reason": item.reason}
            for item in (getattr(document, kind) if document is not None else [])
        ]
        for kind in ("refused", "left_out")
    }
    total = sum(len(topic.partitions) for topic in made.topics)
    new = total - len(starts) - len(named["refused"]) - len(named["left_out"])
    lines = [
        f"[bold]{escape(spec.migration_id)}[/]: {len(made.topics)} topics, {total} partitions",
        f"{len(starts)} partitions go on behind the end of {escape(forward.migration_id)}, {new} are new",
        *(
            f"[bold red]{kind.replace('_', ' ')}[/] {escape(item['topic'])}-{item['partition']}: "
            f"{escape(item['reason'])}"
            for kind, items in named.items()
            for item in items
        ),
        f"its promotion frees the producers that {escape(forward.migration_id)} has stopped there",
        *([f"kafka-migration mirror run {escape(str(spec_output))}"] if spec_output is not None else []),
    ]
    data = {
        "migration_id": spec.migration_id,
        "adopted_partitions": starts,
        "new_partitions": new,
        **named,
        "spec": spec.model_dump(mode="json", by_alias=True),
    }
    return Answer(data, lines, code=ExitCode.FAILED if named["refused"] else ExitCode.OK)


def _check_not_begun(context: PhaseContext) -> None:
    """Refuse to look for a boundary behind which the mirror back itself has written."""
    state = context.journal.working_state
    place, begins = position(state) if state is not None else -1, position(State.TOPOLOGY_COPY)
    if state is None or (place is not None and begins is not None and place < begins):
        return
    raise IllegalTransition(
        f"the mirror back has begun already: {context.migration_id} is {mirror_name(state)}",
        where=context.where("fail_back"),
        next_step="run it with its spec (kafka-migration mirror run FILE, or mirror status FILE)",
    )
