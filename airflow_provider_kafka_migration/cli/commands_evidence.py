"""``verify-evidence``: offline, loud, and without trust in what the file says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import Answer, DebugOption, JsonOption, answering
from airflow_provider_kafka_migration.cli.session import StorageOption, read_document
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Where


@answering
def verify_evidence(
    place: Annotated[
        str,
        typer.Argument(
            metavar="EVIDENCE", help="evidence.json as a path, a file:// or an s3:// address.", show_default=False
        ),
    ],
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key",
            metavar="FILE",
            help="The key that must have signed it (64 hex digits, base64 or 32 bytes), kept outside of the evidence.",
            show_default=False,
        ),
    ] = None,
    storage: StorageOption = None,
    *,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """Check the signature and form of an evidence bundle. Exit status 1 if one byte of it was changed.

    Without --public-key it only shows that the file is unaltered since it was signed by the key inside of it.
    """
    from airflow_provider_kafka_migration.documents.evidence import parse_public_key
    from airflow_provider_kafka_migration.evidence.verify import verify_evidence as verify

    trusted = parse_public_key(_key(public_key), path=str(public_key)) if public_key is not None else None
    found = verify(read_document(place, storage), trusted)
    bundle = found.bundle
    text: list[Any] = [
        f"[green]verified[/]: migration {escape(bundle.migration_id)}, outcome {bundle.outcome.value}, "
        f"signed {bundle.signed_at}, journal of {found.journal_entries} entries",
        f"key {found.fingerprint}" + (" (as expected)" if found.trusted else ""),
    ]
    if not found.trusted:
        text.append("[yellow]integrity only[/]: give --public-key FILE to know who signed it")
    text += [f"[yellow]warning[/]: {escape(item)}" for item in bundle.warnings]
    return Answer(data={"verified": True, **found.as_dict()}, text=text)


def _key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DocumentUnreadable(
            f"the public key cannot be read: {error.strerror}", where=Where(path=str(path)), next_step="check the path"
        ) from None


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(name="verify-evidence")(verify_evidence)
