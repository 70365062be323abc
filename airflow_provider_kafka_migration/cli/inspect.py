"""Commands that only read: ``verify-evidence``, ``journal`` and ``offset-map``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airflow_provider_kafka_migration.cli.frame import Answer, ExitCode, answering
from airflow_provider_kafka_migration.cli.session import (
    SpecArgument,
    StorageOption,
    evidence_store,
    journal_store,
    open_journal,
    read_document,
    read_spec,
)
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Where
from airflow_provider_kafka_migration.spec import load_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
    from airflow_provider_kafka_migration.documents.journal import JournalEntry
    from airflow_provider_kafka_migration.offset_map.runs import PartitionMap


# -- commands evidence ------------------------------------------------------------------------------------------------
#
# ``verify-evidence``: offline, loud on any problem, and without trust in the file itself.


@answering
def verify_evidence(
    place: Annotated[
        str,
        typer.Argument(
            metavar="EVIDENCE", help="evidence.json as a path, a file:// or an s3:// address.", show_default=False
        ),
    ],
    public_key: Annotated[
        str | None,
        typer.Option(
            "--public-key",
            metavar="KEY",
            help="The key that must have signed it, kept outside the evidence: 64 hex digits, base64, or the path of a "
            "file that holds either of them or the 32 bytes.",
            show_default=False,
        ),
    ] = None,
    storage: StorageOption = None,
) -> Answer:
    """Check the signature and form of an evidence bundle. Exit status 1 if even one byte was changed.

    Without --public-key this only proves that the file is unaltered since the key inside it signed it.
    """
    from airflow_provider_kafka_migration.documents.evidence import parse_public_key
    from airflow_provider_kafka_migration.evidence.verify import verify_evidence as verify

    key, path = ("", "") if public_key is None else _key(public_key)
    trusted = parse_public_key(key, path=path) if key else None
    found = verify(read_document(place, storage), trusted)
    bundle = found.bundle
    text: list[Any] = [
        f"[green]verified[/]: migration {escape(bundle.migration_id)}, outcome {bundle.outcome.value}, "
        f"signed {bundle.signed_at}, journal of {found.journal_entries} entries",
        f"key {found.fingerprint}" + (" (as expected)" if found.trusted else ""),
    ]
    if not found.trusted:
        text.append("[yellow]integrity only[/]: use --public-key KEY to verify who signed it")
    text += [f"[yellow]warning[/]: {escape(item)}" for item in bundle.warnings]
    return Answer(data={"verified": True, **found.as_dict()}, text=text)


def _key(given: str) -> tuple[str | bytes, str]:
    """Return a public key as it was given or as the file with this path has it, and the path."""
    from airflow_provider_kafka_migration.documents.evidence import is_public_key

    if is_public_key(given):
        return given, ""
    try:
        return Path(given).read_bytes(), given
    except (OSError, ValueError) as error:
        raise DocumentUnreadable(
            f"--public-key is neither a key (64 hex digits or the base64 of 32 bytes) nor a file that can be read: "
            f"{getattr(error, 'strerror', None) or error}",
            where=Where(path=given),
            next_step="give the public key itself, or the path of its file",
        ) from None


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(name="verify-evidence")(verify_evidence)


# -- commands journal -------------------------------------------------------------------------------------------------
#
# ``journal show`` and ``journal verify``: read-only, without a claim.


journal_app = typer.Typer(help="Inspect a migration's journal.", no_args_is_help=True)


@journal_app.command("show")
@answering
def show_journal(
    file: SpecArgument,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Only state changes, without the steps inside a state.")
    ] = False,
    last: Annotated[int, typer.Option("--last", min=0, help="Only this many last entries; 0: all.")] = 0,
) -> Answer:
    """Show the entries of the journal: every transition and step, with time and actor."""
    spec = read_spec(file)
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
def verify(file: SpecArgument) -> Answer:
    """Read the whole journal and check numbers, hashes and the chain. Exit status 1 if anything was altered."""
    spec = read_spec(file)
    open_journal(spec)
    from airflow_provider_kafka_migration.journal.view import verify_journal

    report = verify_journal(journal_store(spec), spec.migration_id)
    report.raise_for_problems()
    data: dict[str, Any] = report.as_dict()
    return Answer(
        data=data,
        text=[f"[green]intact[/]: {report.entries} entries of {spec.migration_id}, tip {report.tip_hash}"],
    )


# -- inspect ----------------------------------------------------------------------------------------------------------


offset_map_app = typer.Typer(help="Inspect a migration's offset map.", no_args_is_help=True)

MapArgument = Annotated[
    str,
    typer.Argument(
        metavar="MAP",
        help="offset-map.json as a path or s3:// address, or the migration's spec (.yaml), which gives its location.",
        show_default=False,
    ),
]
_SHOWN_RUNS = 1000


def load_map(place: str, storage: str | None) -> OffsetMapDocument:
    """Return the offset map at a path or address, or the one of a spec.

    :raises DocumentUnreadable: it does not exist, or is not an offset map.
    """
    from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument

    if place.endswith((".yaml", ".yml")):
        spec = load_spec(Path(place))
        store, key = evidence_store(spec), f"{spec.migration_id}/offset-map.json"
        data, where = store.get(key), f"{store.uri}/{key}"
        if data is None:
            raise DocumentUnreadable(
                "there is no offset map yet",
                where=Where(migration_id=spec.migration_id, path=where),
                next_step="wait for the end of the seed, which writes it; until then, see the offsets in the plan",
            )
    else:
        data, where = read_document(place, storage), place
    try:
        return OffsetMapDocument.parse(data)
    except ValueError:
        raise DocumentUnreadable(
            "not an offset map", where=Where(path=where), next_step="give the path of an offset-map.json or of the spec"
        ) from None


def _one(document: OffsetMapDocument, topic: str, partition: int) -> MappedPartition:
    try:
        return document.partition(topic, partition)
    except KeyError:
        topics = sorted({entry.topic for entry in document.partitions})
        raise DocumentUnreadable(
            "the offset map has no such partition",
            where=Where(migration_id=document.migration_id, topic=topic, partition=partition),
            next_step=f"choose one of its topics: {', '.join(topics[:20])}{' ...' if len(topics) > 20 else ''}",
        ) from None


@offset_map_app.command()
@answering
def show(
    place: MapArgument,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this source topic.", show_default=False)] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", help="With --topic: show the runs of this partition.")
    ] = None,
    storage: StorageOption = None,
) -> Answer:
    """Show the map: verdict, offsets on both sides and number of runs per partition, or the runs of one partition."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    document = load_map(place, storage)
    if topic is not None and partition is not None:
        return _runs(document, _one(document, topic, partition))
    chosen = [entry for entry in document.partitions if topic in (None, entry.topic)]
    table = Table("topic", "partition", "verdict", "source", "target", "runs", box=None, pad_edge=False)
    for entry in chosen:
        renamed = "" if entry.topic == entry.target_topic else f" -> {entry.target_topic}"
        table.add_row(
            escape(entry.topic + renamed),
            str(entry.partition),
            entry.verdict,
            _span(entry.source_start_offset, entry.source_end_offset),
            _span(entry.target_start_offset, entry.target_end_offset),
            str(len(entry.runs) // 3),
        )
    data = {
        "migration_id": document.migration_id,
        "complete": document.complete,
        "partitions": [
            {**entry.model_dump(mode="json", exclude={"runs"}), "runs": len(entry.runs) // 3} for entry in chosen
        ],
    }
    note = [] if document.complete else ["The copy continues: this is the map so far."]
    return Answer(data=data, text=[table, *note])


def _span(start: int | None, end: int | None) -> str:
    return f"[{'-' if start is None else start}, {'...' if end is None else end})".replace("[", r"\[")


def _runs(document: OffsetMapDocument, entry: MappedPartition) -> Answer:
    partition_map = _read(entry)
    runs = [(run.source_start, run.target_start, run.count) for run in partition_map.runs()]
    table = Table("source from", "target from", "offsets", "source - target", box=None, pad_edge=False)
    for source, target, count in runs[:_SHOWN_RUNS]:
        table.add_row(str(source), str(target), "open" if count is None else str(count), str(source - target))
    text: list[Any] = [f"{entry.topic}-{entry.partition}: {entry.verdict}", table]
    if len(runs) > _SHOWN_RUNS:
        text.append(f"... {len(runs) - _SHOWN_RUNS} more; --json shows all")
    data = {
        "migration_id": document.migration_id,
        **entry.model_dump(mode="json", exclude={"runs"}),
        "runs": [{"source_start": source, "target_start": target, "count": count} for source, target, count in runs],
    }
    return Answer(data=data, text=text)


def _read(entry: MappedPartition) -> PartitionMap:
    from airflow_provider_kafka_migration.offset_map.transactional import read_map

    return read_map(entry)


@offset_map_app.command()
@answering
def translate(
    place: MapArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Source topic.", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Partition.", show_default=False)],
    offsets: Annotated[list[int], typer.Argument(metavar="OFFSET", help="Source offsets.", show_default=False)],
    storage: StorageOption = None,
) -> Answer:
    """Show where a consumer that has committed a source offset continues on the target."""
    document = load_map(place, storage)
    partition_map = _read(_one(document, topic, partition))
    found = [(offset, partition_map.translate(offset)) for offset in offsets]
    table = Table("source offset", "target offset", "how", box=None, pad_edge=False)
    for offset, translation in found:
        target = "-" if translation.target_offset is None else str(translation.target_offset)
        table.add_row(str(offset), target, translation.how.value)
    data = {
        "migration_id": document.migration_id,
        "topic": topic,
        "partition": partition,
        "translations": [
            {"source_offset": offset, "target_offset": item.target_offset, "how": item.how.value}
            for offset, item in found
        ],
    }
    return Answer(data=data, text=[table])


@offset_map_app.command()
@answering
def check(
    place: MapArgument,
    storage: StorageOption = None,
) -> Answer:
    """Check the map for consistency: verdicts, order of the runs, and that translations never go backwards."""
    document = load_map(place, storage)
    problems = [problem for entry in document.partitions for problem in _problems(entry)]
    count = len(document.partitions)
    data = {"migration_id": document.migration_id, "partitions": count, "problems": problems}
    if problems:
        lines = [f"[red]{escape(item['partition'])}[/]: {escape(item['problem'])}" for item in problems]
        return Answer(data=data, text=lines, code=ExitCode.FAILED)
    return Answer(data=data, text=[f"[green]good[/]: {count} partitions of {document.migration_id}"])


def _problems(entry: MappedPartition) -> Iterator[dict[str, str]]:
    from airflow_provider_kafka_migration.errors import OffsetMapInvalid

    name = f"{entry.topic}-{entry.partition}"
    try:
        partition_map = _read(entry)
    except OffsetMapInvalid as error:
        yield {"partition": name, "problem": error.what}
        return
    own = str(partition_map.verdict or "")
    if entry.verdict != own:
        yield {"partition": name, "problem": f"the verdict is {entry.verdict!r}, but the runs yield {own!r}"}
    yield from ({"partition": name, "problem": text} for text in _backwards(partition_map))


def _backwards(partition_map: PartitionMap) -> Iterator[str]:
    """Check translations at the borders of the runs, where they could go wrong; inside a run they are a sum."""
    last_source, last_target = -1, -1
    for run in partition_map.runs():
        borders = [
            run.source_start,
            *([run.source_start + run.count - 1, run.source_start + run.count] if run.count else []),
        ]
        for source in borders:
            target = partition_map.translate(source).target_offset
            if target is None or target < last_target:
                yield f"offset {last_source} maps to {last_target}, but {source} to {target}"
                return
            last_source, last_target = source, target
