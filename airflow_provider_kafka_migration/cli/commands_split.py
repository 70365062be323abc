"""``backup`` and ``restore``: for clusters that cannot see each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.ending import Stop
from airflow_provider_kafka_migration.cli.frame import Answer, DebugOption, JsonOption, answering
from airflow_provider_kafka_migration.cli.migrate import (
    MasterOption,
    RunnerKind,
    RunnerOption,
    TakeoverOption,
    ThreadsOption,
    cli_owner,
    make_runner,
    make_view,
)
from airflow_provider_kafka_migration.cli.session import SpecArgument, resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.cli.progress import ProgressView
    from airflow_provider_kafka_migration.record.context import PhaseResult
    from airflow_provider_kafka_migration.split import Side, SplitJob


def _open(
    spec: MigrationSpec,
    side: Side,
    view: ProgressView,
    *,
    runner: RunnerKind,
    master: str,
    threads: int,
    takeover: bool = False,
) -> SplitJob:
    from airflow_provider_kafka_migration.split import SplitJob

    known = resolver()
    copies = make_runner(runner, known, view, Stop(), master=master, threads=threads)
    return SplitJob(spec, side, known, copies, owner=cli_owner(), takeover=takeover, progress=view.show)


def _split_answer(spec: MigrationSpec, result: PhaseResult) -> Answer:
    data = {"migration_id": spec.migration_id, "summary": result.summary, "details": result.details}
    return Answer(data, [escape(result.summary)])


@answering
def backup(
    file: SpecArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until a backup --finish says where the end is.")
    ] = False,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="End a continuous backup at the source's present ends. Stop producers before."),
    ] = False,
    runner: RunnerOption = RunnerKind.local,
    master: MasterOption = "local[4,4]",
    threads: ThreadsOption = 4,
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """Archive the source's topics in the storage of the spec. Knows the source and the storage, not the target.

    Without --follow it ends at the ends that the source has when it starts. Killed anywhere, it goes on where the
    archive ends.
    """
    spec = load_spec(file)
    view = make_view(quiet=json_output)
    with view, _open(spec, "source", view, runner=runner, master=master, threads=threads) as job:
        return _split_answer(spec, job.backup(follow=follow, finish=finish))


@answering
def restore(
    file: SpecArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow a backup that goes on; ends where backup --finish says.")
    ] = False,
    groups: Annotated[bool, typer.Option(help="Commit the archived offsets of consumer groups at the end.")] = True,
    takeover: TakeoverOption = False,
    runner: RunnerOption = RunnerKind.local,
    master: MasterOption = "local[4,4]",
    threads: ThreadsOption = 4,
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """Make the archived topics on the target, with equal offsets. Knows the storage and the target, not the source.

    At the end everything is compared with the archive. Killed anywhere, it goes on from the target's log ends.
    """
    spec = load_spec(file)
    view = make_view(quiet=json_output)
    with view, _open(spec, "target", view, runner=runner, master=master, threads=threads, takeover=takeover) as job:
        return _split_answer(spec, job.restore(follow=follow, commit_groups=groups))


def register_split(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (backup, restore):
        app.command()(command)
