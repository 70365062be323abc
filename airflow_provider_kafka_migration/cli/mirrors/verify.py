"""``kafka-migration mirror verify``: whether both sides of a mirror hold the same records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, JsonOption, Stop, answering_or
from airflow_provider_kafka_migration.cli.migrate import DataPlane, MasterOption, MigrationOpener, RunnerKind, make_view
from airflow_provider_kafka_migration.cli.session import SpecArgument, read_spec
from airflow_provider_kafka_migration.errors import ContentsDiffer, ContentsUnchecked

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_kafka_migration.documents.mirror import MirrorVerification, Verified
    from airflow_provider_kafka_migration.mirrors.verification import Scope

_SHOWN = 20
#: Another command of this kind continues what a killed one has begun.
_RUN = "kafka-migration mirror verify --independent"
_COLORS: dict[Verified, str] = {"different": "bold red", "unchecked": "yellow", "nothing": "dim", "equal": "green"}
_WORDS: dict[Verified, str] = {"unchecked": "NOT CHECKED", "different": "DIFFERENT", "nothing": "nothing to compare"}


# Exit status 1 says that contents differ, which nobody knows after an error.
@answering_or(ExitCode.UNCHECKED)
def verify(
    file: SpecArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="PATTERN",
            help="Regular expression for whole topic names, on either side; may be repeated. Default: all topics.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=1,
            help="Compare only the last N offsets of each partition. Default: all that both sides still have.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Partitions that are compared at a time.")] = 4,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent",
            help="Read both sides with Spark's own Kafka source instead of the code that copies; needs Spark and its "
            "Kafka connector (spark.kafka_connector). Killed, the same command goes on.",
        ),
    ] = False,
    master: MasterOption = None,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Compare the contents of both sides of a mirror, record by record, up to where it is copied.

    It reads only and needs no claim: the mirror may run meanwhile, be paused, promoted or ended. Exit status 0: all
    that was to be compared is equal; 1: something differs; 4: nothing differs so far, but not everything could be
    checked, or nothing was compared, or the command failed.
    """
    from airflow_provider_kafka_migration.mirrors.verification import Scope

    for pattern in topic or ():
        try:
            re.compile(pattern)
        except re.error as error:
            raise typer.BadParameter(f"--topic {pattern}: {error}") from None
    scope = Scope(tuple(topic or ()), last)
    if independent:
        found = _verify_independently(file, scope, master, quiet=json_output)
    else:
        found = _verify(file, scope, threads, quiet=json_output)
    code = ExitCode.OK if found.is_equal else ExitCode.FAILED if found.count("different") else ExitCode.UNCHECKED
    return Answer({"equal": found.is_equal, **found.model_dump(mode="json")}, _lines(found), code=code)


def _verify(file: Path, scope: Scope, threads: int, *, quiet: bool) -> MirrorVerification:
    from airflow_provider_kafka_migration.mirrors import verification

    spec = read_spec(file).check_kind("mirror", path=str(file))
    view, stop = make_view(quiet=quiet), Stop()
    with view, MigrationOpener(spec, view).open(stop) as migration, migration.reading() as context:
        return verification.verify(context, scope, threads=threads, stop=stop.is_set)


def _verify_independently(file: Path, scope: Scope, master: str | None, *, quiet: bool) -> MirrorVerification:
    """Compare as a Spark job, and return what it has found.

    :raises ContentsUnchecked: it could not run, or there was nothing to compare.
    """
    from airflow_provider_kafka_migration.mirrors.verification import last_verification
    from airflow_provider_kafka_migration.phases.mirrors import verify as phase

    spec = read_spec(file).check_kind("mirror", path=str(file))
    view, stop, plane = make_view(quiet=quiet), Stop(), DataPlane(RunnerKind.spark, master)
    plane.check(spec)
    with view, MigrationOpener(spec, view, plane=plane).open(stop) as migration, migration.reading() as context:
        former = last_verification(context.record)
        try:
            phase.run(context, run=_RUN, topics=scope.topics, last=scope.last, independent=True)
        except (ContentsDiffer, ContentsUnchecked):
            found = last_verification(context.record)
            if found is None or found == former:
                raise
            return found
        found = last_verification(context.record)
    assert found is not None
    return found


def _lines(found: MirrorVerification) -> list[str | Table]:
    from airflow_provider_kafka_migration.mirrors.verification import in_order, note_of

    rows = list(in_order(found))
    table = Table("partition", "outcome", "source offsets", "equal records", "", box=None, pad_edge=False)
    for item in rows[:_SHOWN]:
        has_range = item.source_start_offset >= 0
        offsets = f"{item.source_start_offset} to {item.source_end_offset - 1}" if has_range else ""
        outcome = f"[{_COLORS[item.outcome]}]{_WORDS.get(item.outcome, item.outcome)}[/]"
        table.add_row(
            escape(f"{item.topic}-{item.partition}"), outcome, offsets, str(item.compared), escape(note_of(item))
        )
    lines: list[str | Table] = [table]
    if len(rows) > _SHOWN:
        lines.append(f"and {len(rows) - _SHOWN} more partitions; --json has all of them")
    lines.append(_summary(found))
    return lines


def _summary(found: MirrorVerification) -> str:
    records = sum(item.compared for item in found.partitions)
    counts = f"{found.count('equal')} of {len(found.partitions)} partitions are equal, {records} records compared"
    counts += f" by the {escape(found.reader)}" if found.reader else ""
    name = f"[bold]{escape(found.migration_id)}[/]"
    if found.count("different"):
        return f"{name}: [bold red]{found.count('different')} partitions DIFFER[/]; {counts}"
    if found.count("unchecked"):
        return f"{name}: [yellow]{found.count('unchecked')} partitions could not be checked[/]; {counts}"
    if not found.count("equal"):
        return f"{name}: [yellow]nothing was compared[/], which proves nothing"
    return f"{name}: [green]equal[/]; {counts}"
