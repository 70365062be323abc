"""``kafka-migration mirror topics`` and ``hops``: which topics are mirrored, and which remote ones may be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import (
    Answer,
    ExitCode,
    answering,
)
from airflow_provider_kafka_migration.cli.migrate import (
    MigrationOpener,
    make_view,
)
from airflow_provider_kafka_migration.cli.mirrors.flow import ReasonOption, load_mirror, now
from airflow_provider_kafka_migration.cli.session import SpecArgument, identity
from airflow_provider_kafka_migration.spec import MigrationSpec

if TYPE_CHECKING:
    pass


@answering
def topics(
    file: SpecArgument,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="Show the remote topics whose source topic is gone, and the code to delete them."
        ),
    ] = False,
    approve: Annotated[
        str | None, typer.Option("--approve", metavar="CODE", help="The code that --delete shows.", show_default=False)
    ] = None,
    reason: ReasonOption = "",
) -> Answer:
    """Show which topics of the source are mirrored, under which names, and why others are not.

    With --delete: remote topics whose source topic was deleted or created again. Exit status 10 if there are any: the
    code is wanted (--approve CODE). The mirror deletes them while it mirrors.
    """
    if delete or approve is not None:
        return _deletable(load_mirror(file), approve, reason)
    spec = load_mirror(file)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        names = sorted(migration.source.admin.describe_topics())
    rows = [
        {"topic": name, "remote_topic": "" if why else spec.topics.target_name(name), "left_out": why}
        for name in names
        for why in [spec.topics.why_left_out(name)]
    ]
    table = Table("topic", "on the target", "left out", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(row[name]) for name in ("topic", "remote_topic", "left_out")))
    return Answer({"migration_id": spec.migration_id, "topics": rows}, [table])


@answering
def hops(file: SpecArgument) -> Answer:
    """Show the remote topics on the target, and the clusters that each has come through, the nearest first."""
    spec = load_mirror(file)
    names = spec.mirror.names(spec.topics.rename)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        found = names.remote_topics(migration.target.admin.describe_topics())
    rows = [{"topic": topic, "hops": len(path), "through": list(path)} for topic, path in found.items()]
    table = Table("topic", "hops", "through", box=None, pad_edge=False)
    for topic, path in found.items():
        table.add_row(escape(topic), str(len(path)), " <- ".join(path))
    return Answer({"migration_id": spec.migration_id, "topics": rows}, [table])


def _deletable(spec: MigrationSpec, approve: str | None, reason: str) -> Answer:
    from airflow_provider_kafka_migration.mirrors import deletions

    with MigrationOpener(spec, make_view(quiet=True)).open() as migration, migration.reading() as context:
        found = deletions.waiting(context.record, context.target)
        if approve is not None:
            deletions.approve(context.record, found, approve, by=identity(), at=now(), reason=reason)
    wanted = deletions.code(spec.migration_id, found)
    table = Table("remote topic", "log ends", "why", box=None, pad_edge=False)
    for item in found:
        table.add_row(escape(item.remote_topic), ", ".join(map(str, item.log_end_offsets)), escape(item.why))
    data: dict[str, Any] = {
        "migration_id": spec.migration_id,
        "deletable": [item.model_dump(mode="json") for item in found],
        "approved": approve is not None,
        "code": wanted,
    }
    if approve is not None:
        return Answer(data, [table, "approved: the mirror deletes them within topology.refresh_interval while it runs"])
    if not found:
        return Answer(data, ["no remote topic has lost its source topic"])
    asks = f"[yellow]waits for an operator[/]: kafka-migration mirror topics FILE --delete --approve {wanted}"
    return Answer(data, [table, "With all content. This cannot be undone.", asks], code=ExitCode.WAITS)
