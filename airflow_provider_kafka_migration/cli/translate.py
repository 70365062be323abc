"""``kafka-migration translate``: positions of one cluster on the other one, read-only and without a claim."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, answering, error_console
from airflow_provider_kafka_migration.cli.session import SpecArgument, identity, read_spec, resolver
from airflow_provider_kafka_migration.errors import Transient
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_duration

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
    from airflow_provider_kafka_migration.translate import Direction, Translated, Translator
    from airflow_provider_kafka_migration.translate.publish import StatePublisher

translate_app = typer.Typer(
    help="Translate offsets, times and consumer groups between the two clusters.", no_args_is_help=True
)

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Its name on the cluster of the question.", show_default=False)
]
PartitionArgument = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Partition.", show_default=False)]
BackOption = Annotated[
    bool, typer.Option("--back", help="The question is about the target: translate from target to source.")
]


def _open(spec: MigrationSpec) -> Translator:
    from airflow_provider_kafka_migration.translate import Translator

    return Translator.open(spec, resolver())


def _direction(back: bool) -> Direction:
    return "to_source" if back else "to_target"


@translate_app.command("offset")
@answering
def translate_offset(
    file: SpecArgument,
    topic: TopicArgument,
    partition: PartitionArgument,
    offsets: Annotated[list[int], typer.Argument(metavar="OFFSET", min=0, help="Offsets.", show_default=False)],
    back: BackOption = False,
) -> Answer:
    """Show where a consumer that has read up to an offset continues on the other cluster."""
    spec = read_spec(file)
    with _open(spec) as translator:
        found = [translator.offset(topic, partition, offset, _direction(back)) for offset in offsets]
    return _answer(spec, {"positions": [item.as_dict() for item in found]}, [_table(found)], found)


@translate_app.command("time")
@answering
def translate_time(
    file: SpecArgument,
    topic: TopicArgument,
    partition: PartitionArgument,
    times: Annotated[
        list[str],
        typer.Argument(
            metavar="TIME",
            help="ISO 8601 with a time zone (2026-11-23T04:00:00+00:00), or milliseconds since 1970.",
            show_default=False,
        ),
    ],
    back: BackOption = False,
) -> Answer:
    """Show the first record at or after a time, as one cluster answers it, and its place on the other one."""
    spec, parsed = read_spec(file), [_time(text) for text in times]
    with _open(spec) as translator:
        found = [translator.timestamp(topic, partition, when, _direction(back)) for when in parsed]
    return _answer(spec, {"positions": [item.as_dict() for item in found]}, [_table(found)], found)


@translate_app.command("group")
@answering
def translate_group(
    file: SpecArgument,
    groups: Annotated[
        list[str],
        typer.Argument(metavar="GROUP", help="Consumer groups; with --regex, expressions.", show_default=False),
    ],
    regex: Annotated[
        bool, typer.Option("--regex", help="GROUP is a regular expression that the whole name has to match.")
    ] = False,
    back: BackOption = False,
) -> Answer:
    """Show the committed offsets of consumer groups, and where their consumers continue on the other cluster."""
    spec = read_spec(file)
    with _open(spec) as translator:
        found = _groups(translator, groups, _direction(back), regex=regex)
    text: list[Any] = []
    for name, positions in sorted(found.items()):
        text += [f"[bold]{escape(name)}[/]", _table(positions) if positions else "no committed offsets"]
    if not found:
        text.append("no group matches")
    data = {"groups": {name: [item.as_dict() for item in positions] for name, positions in sorted(found.items())}}
    return _answer(spec, data, text, [item for positions in found.values() for item in positions])


@translate_app.command("publish")
@answering
def publish(
    file: SpecArgument,
    source_alias: Annotated[
        str | None,
        typer.Option(
            "--source-alias", help="The source in MirrorMaker 2's words; default: the mirror's.", show_default=False
        ),
    ] = None,
    target_alias: Annotated[
        str | None,
        typer.Option(
            "--target-alias", help="The target in MirrorMaker 2's words; default: the mirror's.", show_default=False
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator",
            help="replication.policy.separator of the clients; default: the mirror's, or a dot.",
            show_default=False,
        ),
    ] = None,
    internal_separator: Annotated[
        str | None,
        typer.Option(
            "--internal-separator",
            help="In the names of internal topics; . with replication.policy.internal.topic.separator.enabled=false. "
            "Default: the separator.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Write one round and end.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="Time between two rounds.")] = "60s",
) -> Answer:
    """Write the positions of all selected groups into MirrorMaker 2's state topics on the target, until interrupted.

    RemoteClusterUtils and MirrorClient of Kafka then answer from the exact offset map. Only one such command may run
    for an alias. It creates the topics that are missing, and changes nothing else.
    """
    spec = read_spec(file)
    topics = _state_topics(spec, source_alias, target_alias, separator, internal_separator)
    try:
        pause = parse_duration(interval).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(f"--interval: {error}") from None
    written = {"rounds": 0, "checkpoints": 0, "offset_syncs": 0, "heartbeats": 0}
    with _publisher(spec, topics) as publisher:
        while True:
            try:
                found = publisher.publish()
            except Transient as error:
                if once:
                    raise
                error_console().print(f"[yellow]this round was not written[/]: {escape(str(error))}")
            else:
                written["rounds"] += 1
                for name, count in asdict(found).items():
                    written[name] += count
                changed = f"{found.checkpoints} checkpoints, {found.offset_syncs} offset syncs"
                error_console().print(f"round {written['rounds']}: {changed}")
                for name, why in sorted(publisher.unread.items()):
                    error_console().print(f"[yellow]group {escape(name)} was left out[/]: {escape(str(why))}")
            if once:
                left_out = {name: error.what for name, error in sorted(publisher.unread.items())}
                break
            time.sleep(pause)
    return Answer(
        data={"migration_id": spec.migration_id, "topics": topics.names(), **written, "unread_groups": left_out},
        text=[f"{topics.checkpoints}: {written['checkpoints']} checkpoints written"],
    )


def _state_topics(
    spec: MigrationSpec,
    source_alias: str | None,
    target_alias: str | None,
    separator: str | None,
    internal_separator: str | None,
) -> StateTopics:
    """Name the state topics; a mirror's spec has what its command line does not say."""
    from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics

    known = spec.mirror if spec.kind == "mirror" else None
    source = source_alias or (known.source_alias if known else "")
    target = target_alias or (known.target_alias if known else "")
    if not source or not target:
        raise typer.BadParameter("--source-alias and --target-alias are needed: only the spec of a mirror has aliases")
    between = separator or (known.separator if known else ".")
    return StateTopics(source, target, between, internal_separator or between)


@contextmanager
def _publisher(spec: MigrationSpec, topics: StateTopics) -> Iterator[StatePublisher]:
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.translate.publish import StatePublisher

    with Migration.open(spec, identity(), resolver(), actor="publish") as migration, migration.reading() as context:
        yield StatePublisher(context, topics)


def _groups(
    translator: Translator, names: Iterable[str], direction: Direction, *, regex: bool
) -> dict[str, list[Translated]]:
    if not regex:
        return {name: translator.group(name, direction) for name in names}
    found: dict[str, list[Translated]] = {}
    for pattern in names:
        found.update(translator.groups(pattern, direction))
    return found


def _time(text: str) -> datetime | int:
    if text.isdecimal():
        return int(text)
    from datetime import datetime

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is neither ISO 8601 nor milliseconds") from None
    if found.tzinfo is None:
        raise typer.BadParameter(f"{text} has no time zone; write for instance {text}+00:00")
    return found


def _table(found: Iterable[Translated]) -> Table:
    table = Table("topic", "partition", "offset", "there", "offset there", "how", "", box=None, pad_edge=False)
    for item in found:
        there = "-" if item.to_offset is None else str(item.to_offset)
        note = item.reason or ("" if item.is_copied else "not copied yet")
        table.add_row(
            escape(item.from_topic),
            str(item.partition),
            str(item.from_offset),
            escape(item.to_topic) or "-",
            there,
            item.how.value,
            note,
        )
    return table


def _answer(spec: MigrationSpec, data: dict[str, Any], text: list[Any], found: Iterable[Translated]) -> Answer:
    if any(not item.is_copied and item.to_offset is not None for item in found):
        text.append("[yellow]not copied yet[/]: do not start a consumer there before the copy has reached it")
    return Answer(data={"migration_id": spec.migration_id, **data}, text=text)
