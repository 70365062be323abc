"""``journal show`` and ``journal verify``: read only, nothing is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, DebugOption, JsonOption, answering
from airflow_provider_kafka_migration.cli.session import SpecArgument, journal_store, open_journal
from airflow_provider_kafka_migration.spec import load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.journal import JournalEntry

journal_app = typer.Typer(help="Look at a migration's journal.", no_args_is_help=True)


@journal_app.command("show")
@answering
def show_journal(
    file: SpecArgument,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Only changes of the state, without the steps inside of it.")
    ] = False,
    last: Annotated[int, typer.Option("--last", min=0, help="Only the last entries; 0: all.")] = 0,
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """Show the entries of the journal: every transition and step, with time and actor."""
    spec = load_spec(file)
    entries = [entry for entry in open_journal(spec).entries() if not (transitions and entry.is_step)]
    chosen = entries[-last:] if last else entries
    return Answer(
        data={
            "migration_id": spec.migration_id,
            "entries": [entry.model_dump(mode="json", by_alias=True) for entry in chosen],
        },
        text=[_table(chosen)],
    )


def _table(entries: list[JournalEntry]) -> Table:
    table = Table("seq", "at", "state", "step", "reason", "actor", box=None, pad_edge=False)
    for entry in entries:
        step = f"{entry.step or ''} {entry.step_key or ''}".strip()
        state = entry.to_state.value if entry.is_step else f"{entry.from_state.value} -> {entry.to_state.value}"
        style = "red" if entry.to_state.value == "failed" else ("" if entry.is_step else "bold")
        table.add_row(
            str(entry.seq), entry.at, state, escape(step), escape(entry.reason), escape(entry.actor), style=style
        )
    return table


@journal_app.command()
@answering
def verify(file: SpecArgument, *, json_output: JsonOption = False, debug: DebugOption = False) -> Answer:
    """Read the whole journal again and check numbers, hashes and the chain. Exit status 1 if anything was altered."""
    spec = load_spec(file)
    open_journal(spec)
    from airflow_provider_kafka_migration.journal.verify import verify_journal

    report = verify_journal(journal_store(spec), spec.migration_id)
    report.raise_for_problems()
    data: dict[str, Any] = report.as_dict()
    return Answer(
        data=data,
        text=[f"[green]intact[/]: {report.entries} entries of {spec.migration_id}, tip {report.tip_hash}"],
    )
