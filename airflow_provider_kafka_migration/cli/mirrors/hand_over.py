"""``kafka-migration mirror hand-over``: MirrorMaker 2 goes on where a mirror has ended."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, answering
from airflow_provider_kafka_migration.cli.migrate import MigrationOpener, make_view
from airflow_provider_kafka_migration.cli.session import SpecArgument, read_spec
from airflow_provider_kafka_migration.spec import MigrationSpec


@answering
def hand_over(
    file: SpecArgument,
    offsets_topic: Annotated[
        str,
        typer.Option(
            "--offsets-topic",
            metavar="TOPIC",
            help="offset.storage.topic of a Connect cluster. Default: mm2-offsets.ALIAS.internal, of dedicated mode.",
            show_default=False,
        ),
    ] = "",
    connector: Annotated[
        str, typer.Option("--connector", metavar="NAME", help="Name of the source connector in a Connect cluster.")
    ] = "MirrorSourceConnector",
) -> Answer:
    """Write the source offsets with which MirrorMaker 2 goes on behind a mirror that has ended.

    Stop MirrorMaker 2 before, and start it afterwards. Fences the mirror's copiers on the target, and writes to the
    offsets topic there. Exit status 1 if a partition cannot be handed over, for instance because somebody has written
    behind the copy: then no position is written.
    """
    from airflow_provider_kafka_migration.mirrors.hand_over import hand_over

    spec = read_spec(file).check_kind("mirror", path=str(file))
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration, migration.reading() as context:
        found = hand_over(context, offsets_topic=offsets_topic, connector=connector)
    refused = [
        {"topic": topic, "partition": number, "reason": reason} for (topic, number), reason in found.refused.items()
    ]
    properties = _properties(spec)
    data = {
        "migration_id": spec.migration_id,
        "offsets_topic": found.topic,
        "positions": [
            {"topic": topic, "partition": number, "offset": offset}
            for (topic, number), offset in found.positions.items()
        ],
        "refused": refused,
        "gone": [
            {"topic": topic, "partition": number, "reason": reason} for (topic, number), reason in found.gone.items()
        ],
        "properties": properties,
    }
    if refused:
        lines = [
            f"[bold red]refused[/] {escape(str(item['topic']))}-{item['partition']}: {escape(str(item['reason']))}"
            for item in refused
        ]
        return Answer(data, [*lines, "no position was written"], code=ExitCode.FAILED)
    lines = [
        f"[yellow]no position[/] {escape(topic)}-{number}: {escape(reason)}"
        for (topic, number), reason in found.gone.items()
    ]
    lines.append(f"{escape(found.topic)}: {len(found.positions)} partitions; MirrorMaker 2 goes on behind them with")
    lines += (f"  {escape(key)} = {escape(value)}" for key, value in properties.items())
    return Answer(data, lines)


def _properties(spec: MigrationSpec) -> dict[str, str]:
    """Return the properties without which MirrorMaker 2 would not find the topics, or copy more than was mirrored."""
    from airflow_provider_kafka_migration.mirrors.hand_over import MIRROR_MAKER_POLICIES

    section = spec.mirror
    flow = f"{section.source_alias}->{section.target_alias}"
    found = {"clusters": f"{section.source_alias}, {section.target_alias}", f"{flow}.enabled": "true"}
    found["replication.policy.class"] = MIRROR_MAKER_POLICIES[section.naming]
    if section.naming == "default" and section.separator != ".":
        found["replication.policy.separator"] = section.separator
    # A mirror has no records of aborted transactions.
    found[f"{section.source_alias}.consumer.isolation.level"] = "read_committed"
    found[f"{flow}.offset-syncs.topic.location"] = "target"
    return found
