"""``validate`` and ``schema``: nothing is contacted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_kafka_migration.cli.frame import Answer, DebugOption, JsonOption, answering
from airflow_provider_kafka_migration.cli.session import SpecArgument
from airflow_provider_kafka_migration.errors import MigrationError, SpecInvalid, Where
from airflow_provider_kafka_migration.spec import json_schema, load_spec


@answering
def validate(file: SpecArgument, *, json_output: JsonOption = False, debug: DebugOption = False) -> Answer:
    """Check a spec, without contacting anything. All mistakes are shown at once."""
    try:
        spec = load_spec(file)
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
    """The same error with a line for each mistake."""
    lines = "".join(f"\n  - {item['path']}: {item['reason']}" for item in found)
    count = f"{len(found)} mistake{'s' if len(found) > 1 else ''}"
    return SpecInvalid(
        f"{count} in the spec:{lines}", where=error.where, next_step="correct all of them", details=error.details
    )


@answering
def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file in place of stdout.", show_default=False)
    ] = None,
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
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
            f"the schema cannot be written: {error.strerror}", where=Where(path=str(output)), next_step="check the path"
        ) from None
    return Answer(data={"written": str(output)}, text=[f"written: {output}"])


def register_spec(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(validate)
    app.command()(schema)
