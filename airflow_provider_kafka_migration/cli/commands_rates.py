"""``throttle``: change the rates of a migration that runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from airflow_provider_kafka_migration.cli.frame import Answer, DebugOption, JsonOption, answering
from airflow_provider_kafka_migration.cli.session import SpecArgument, identity, journal_store, open_journal
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.spec_types import parse_bytes

_RATE_HELP = "Bytes per second and lane, for instance 10MB; none: no limit; spec: what the spec says."
SeedRate = Annotated[str | None, typer.Option("--seed", metavar="RATE", help=_RATE_HELP, show_default=False)]
TailRate = Annotated[str | None, typer.Option("--tail", metavar="RATE", help=_RATE_HELP, show_default=False)]


def _rate(text: str, option: str) -> int | None:
    if text == "spec":
        return None
    try:
        rate = 0 if text == "none" else parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if rate == 0 and text != "none":
        raise typer.BadParameter("a rate of 0 would stop the copy; none takes the limit away", param_hint=option)
    return rate


@answering
def throttle(
    file: SpecArgument,
    seed: SeedRate = None,
    tail: TailRate = None,
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """Change how fast a running seed or tail may read, or show it. Nothing is claimed, nothing is started again.

    Copiers obey within seconds, in this process, on Spark and in both halves of a split migration. What was set holds
    until it is set again, over restarts and over changes of max_bytes_per_second in the spec.
    """
    from airflow_provider_kafka_migration.lanes.assignment import JOBS, read_rates, set_rates

    spec = load_spec(file)
    open_journal(spec)
    store = journal_store(spec)
    given = {"seed": seed, "tail": tail}
    changes = {job: _rate(text, f"--{job}") for job, text in given.items() if text is not None}
    if changes:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        found = set_rates(store, spec.migration_id, changes, set_by=identity(), set_at=now)
    else:
        found = read_rates(store, spec.migration_id)
    of_spec = {"seed": spec.seed.max_bytes_per_second, "tail": spec.tail.max_bytes_per_second}
    in_force = {job: (found.rates[job] or None) if job in found.rates else of_spec[job] for job in JOBS}
    lines = [
        f"{job}: {_shown(in_force[job])} ({'set while it runs' if job in found.rates else 'as the spec says'})"
        for job in JOBS
    ]
    data = {"migration_id": spec.migration_id, "max_bytes_per_second": in_force, "set": dict(found.rates)}
    return Answer(data, lines)


def _shown(rate: int | None) -> str:
    return "no limit" if rate is None else f"{rate:,} bytes per second and lane"


def register_rates(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(throttle)
