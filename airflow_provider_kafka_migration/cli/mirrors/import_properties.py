"""``kafka-migration mirror import``: the properties of a MirrorMaker 2 become a file of flows."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import Answer, answering
from airflow_provider_kafka_migration.errors import SpecInvalid, Where

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.mirror_maker.properties import Imported


@answering
def import_properties(
    file: Annotated[Path, typer.Argument(metavar="MM2.PROPERTIES", help="The file of a dedicated MirrorMaker 2.")],
    journal: Annotated[
        str, typer.Option("--journal", help="storage.journal of all flows: s3://bucket/prefix.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", help="The file of flows to write.")] = Path("mirrors.yaml"),
    connections: Annotated[
        Path | None,
        typer.Option(
            "--connections",
            help="Also write the connection of each cluster into this folder, as ALIAS.json of mode 0600, with the "
            "secrets of the properties, and refer to these files in the file of flows.",
            show_default=False,
        ),
    ] = None,
) -> Answer:
    """Write the flows of a MirrorMaker 2 as mirrors.yaml, and say what has no equivalent.

    Passwords never enter the file of flows. Existing files are not overwritten.
    """
    from airflow_provider_kafka_migration.mirror_maker.properties import read_properties
    from airflow_provider_kafka_migration.spec.mirrors_file import parse_mirrors

    found = read_properties(_text(file), path=str(file))
    document = _document(found, journal, connections)
    needs = [
        {"path": f"flows.{flow.name}.{key}", "reason": reason}
        for flow in found.flows
        for key, reason in flow.to_correct.items()
    ]
    needs += _checked(document, parse_mirrors, str(output))
    written = [_write(output, _yaml(document), 0o644)]
    if connections is not None:
        connections.mkdir(parents=True, exist_ok=True)
        for alias, keys in sorted(found.connections.items()):
            written.append(_write(connections / f"{alias}.json", json.dumps(keys, indent=2) + "\n", 0o600))
    data = {
        "flows": [flow.name for flow in found.flows],
        "written": written,
        "notes": {flow.name: dict(sorted(flow.notes.items())) for flow in found.flows},
        "connections": found.connection_notes,
        "unknown": found.unknown,
        "to_correct": needs,
    }
    return Answer(data=data, text=list(_lines(found, written, needs)))


def _text(file: Path) -> str:
    try:
        # Editors on Windows put a mark before the text.
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalid(
            f"the file cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}",
            where=Where(path=str(file)),
            next_step="give the path of a mm2.properties",
        ) from None


def _document(found: Imported, journal: str, connections: Path | None) -> dict[str, Any]:
    """The file of flows. What all flows share stands in ``defaults``.

    :param connections: folder of the connections' files; None: the clusters refer to Airflow's connections.
    """
    clusters = {
        flow.spec[role]["name"]: {"conn_id": _connection(flow.spec[role], connections)}
        for flow in found.flows
        for role in ("source", "target")
    }
    flows = {flow.name: _without_names(flow.spec, clusters) for flow in found.flows}
    shared = _shared(list(flows.values()))
    return {
        "clusters": clusters,
        "storage": {"journal": journal},
        "defaults": shared,
        "flows": {
            name: {key: value for key, value in flow.items() if key not in shared} for name, flow in flows.items()
        },
    }


def _connection(cluster: dict[str, str], folder: Path | None) -> str:
    # Whoever runs a flow may do so in another folder.
    return cluster["conn_id"] if folder is None else f"file:{folder.resolve() / cluster['name']}.json"


#: Keys of a flow, and of its section ``mirror``, that follow from its name in the file.
_OF_FILE = ("kind", "migration_id", "source", "target")
_OF_NAME = ("source_alias", "target_alias")


def _without_names(spec: dict[str, Any], clusters: Collection[str]) -> dict[str, Any]:
    """Return what a flow has to say itself.

    The aliases of the file's clusters are known without being named. Those of clusters whose flows run elsewhere are
    not: without them a topic that comes round through such a cluster would pass for a local one.
    """
    own = {key: value for key, value in spec.items() if key not in _OF_FILE}
    mirror = {key: value for key, value in own["mirror"].items() if key not in _OF_NAME}
    elsewhere = sorted(set(mirror.pop("known_aliases", ())) - set(clusters))
    return {**own, "mirror": {**mirror, **({"known_aliases": elsewhere} if elsewhere else {})}}


def _shared(flows: list[dict[str, Any]]) -> dict[str, Any]:
    first = flows[0]
    return {key: first[key] for key in sorted(first) if all(flow.get(key) == first[key] for flow in flows)}


def _checked(document: dict[str, Any], parse: Any, path: str) -> list[dict[str, str]]:
    """Return the mistakes that a person has to correct: a naming that needs a class, equal names in both directions."""
    try:
        parse(document, path=path)
    except SpecInvalid as error:
        mistakes: list[dict[str, str]] = error.details.get("mistakes", [])
        return mistakes or [{"path": "", "reason": error.what}]
    return []


def _yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=False, width=120)


def _write(path: Path, text: str, mode: int) -> str:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise SpecInvalid(
            "the file exists already", where=Where(path=str(path)), next_step="give another --output, or remove it"
        ) from None
    except OSError as error:
        raise SpecInvalid(
            f"the file cannot be written: {error.strerror}", where=Where(path=str(path)), next_step="check the folder"
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def _lines(found: Imported, written: list[str], needs: list[dict[str, str]]) -> Any:
    for path in written:
        yield f"[green]written[/]: {escape(path)}"
    for flow in found.flows:
        yield f"[bold]{escape(flow.name)}[/]"
        yield from (f"  {escape(key)}: {escape(reason)}" for key, reason in sorted(flow.notes.items()))
    for alias, notes in sorted(found.connection_notes.items()):
        yield f"[bold]connection of {escape(alias)}[/]"
        yield from (f"  {escape(key)}: {escape(reason)}" for key, reason in sorted(notes.items()))
    if found.unknown:
        from airflow_provider_kafka_migration.mirror_maker.properties import meant

        named = [f"{key} (did you mean {meant(key)}?)" if meant(key) else key for key in found.unknown]
        yield f"[yellow]unknown properties[/]: {escape(', '.join(named))}"
    for item in needs:
        yield f"[yellow]to correct[/] {escape(item['path'])}: {escape(item['reason'])}"
