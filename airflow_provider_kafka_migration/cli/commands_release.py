"""``release``: let go of a migration."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import Answer, DebugOption, JsonOption, answering
from airflow_provider_kafka_migration.cli.migrate import TakeoverOption, cli_owner
from airflow_provider_kafka_migration.cli.session import SpecArgument, open_journal
from airflow_provider_kafka_migration.spec import load_spec


@answering
def release(
    file: SpecArgument,
    takeover: TakeoverOption = False,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the journal.")] = "",
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """Let go of a migration, so that another run or person can claim it without a takeover.

    Releases what this user holds on this host by a command that has ended. What another owner holds, or a command that
    still runs, needs --takeover: its next write is then refused. No cluster is asked, and the state stays as it is.
    """
    from airflow_provider_kafka_migration.lanes.claim_watch import publish_claim

    spec = load_spec(file)
    journal = open_journal(spec)
    holder = journal.current_claim
    state = journal.tip_state
    if holder is None or (state is not None and state.is_terminal):
        text = "nobody holds the migration" if holder is None else f"the migration is {state}: there is nothing to hold"
        return Answer({"migration_id": spec.migration_id, "released": None}, [escape(text)])
    owner = cli_owner()
    journal.claim(owner, takeover=takeover)
    publish_claim(journal.store, spec.migration_id, journal.generation, str(owner))
    journal.release(reason or f"released by {owner.actor}")
    journal.close()
    return Answer(
        {"migration_id": spec.migration_id, "released": str(holder.owner)},
        [f"[green]released[/]: {escape(str(holder.owner))} held it since {holder.since}"],
    )


def register_release(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(release)
