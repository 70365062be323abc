"""The archive that Apicurio's import takes: schemas with fixed ids (``contentId``), versions and states."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema

ENABLED, DISABLED, DRAFT = "ENABLED", "DISABLED", "DRAFT"

_SYSTEM = {"systemName": "kafka-migration", "systemDescription": "", "systemVersion": "3.0.0"}


def content_hash(schema: Schema) -> str:
    """Return the hash by which Apicurio recognizes a content: of its bytes and of its references as JSON."""
    return hashlib.sha256(schema.text.encode() + (_references(schema) or "").encode()).hexdigest()


def media_type(schema: Schema) -> str:
    """Return the content type that Apicurio stores with a schema."""
    return "application/x-protobuf" if schema.type == "PROTOBUF" else "application/json"


def archive(rows: Sequence[RegisteredSchema], *, highest: Mapping[str, int]) -> bytes:
    """Return an archive with these versions, one content for each id.

    :param highest: the highest version that each subject has, 0 for none. Apicurio does not take another "latest"
        branch for a subject with versions, so higher ones come as drafts: a draft that is enabled afterwards becomes
        the latest version.
    """
    now = int(time.time() * 1000)
    who = {"owner": "", "createdOn": now, "modifiedBy": "", "modifiedOn": now}
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            manifest = {**_SYSTEM, "exportVersion": "3.0", "exportedOn": now, "exportedBy": "", "dbVersion": "100"}
            _write(file, "manifest.Manifest.json", manifest)
            for id_, schema in {row.id: row.schema for row in rows}.items():
                _write_content(file, id_, schema)
            by_subject: dict[str, list[RegisteredSchema]] = {}
            for row in sorted(rows, key=lambda row: row.version):
                by_subject.setdefault(row.subject, []).append(row)
            # The order of the entries matters: Apicurio imports them one after the other.
            for number, (subject, versions) in enumerate(by_subject.items()):
                _write(file, f"{number}.Artifact.json", _artifact(subject, versions[0].schema) | who)
            for number, row in enumerate(row for versions in by_subject.values() for row in versions):
                state = DISABLED if row.deleted else ENABLED
                if 0 < highest.get(row.subject, 0) < row.version:
                    state = DRAFT
                _write(file, f"{number}.ArtifactVersion.json", _version(row, number + 1, state) | who)
            for number, (subject, versions) in enumerate(by_subject.items()):
                if not highest.get(subject):
                    _write(file, f"{number}.Branch.json", _branch(subject, versions) | who)
        return buffer.getvalue()


def _write(file: zipfile.ZipFile, name: str, document: dict[str, Any]) -> None:
    file.writestr(name, json.dumps(document, separators=(",", ":")))


def _write_content(file: zipfile.ZipFile, id_: int, schema: Schema) -> None:
    digest = content_hash(schema)
    content = {
        "contentId": id_,
        "canonicalHash": digest,
        "contentHash": digest,
        "artifactType": None,
        "contentType": media_type(schema),
        "serializedReferences": _references(schema),
    }
    _write(file, f"{digest}.Content.json", content)
    file.writestr(f"{digest}.Content.data", schema.text.encode())


def _references(schema: Schema) -> str | None:
    """Return references as Apicurio serializes them; this text is part of the content's hash."""
    if not schema.references:
        return None
    return json.dumps(
        [
            {"groupId": None, "artifactId": each.subject, "version": str(each.version), "name": each.name}
            for each in schema.references
        ],
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _artifact(subject: str, schema: Schema) -> dict[str, Any]:
    described = {"name": None, "description": None, "labels": None}
    return {"groupId": None, "artifactId": subject, "artifactType": schema.type, **described}


def _version(row: RegisteredSchema, global_id: int, state: str) -> dict[str, Any]:
    """Return a version. Confluent's API shows ``versionOrder`` as the version."""
    return {
        "globalId": global_id,
        "groupId": None,
        "artifactId": row.subject,
        "version": str(row.version),
        "versionOrder": row.version,
        "state": state,
        "name": None,
        "description": None,
        "labels": None,
        "contentId": row.id,
    }


def _branch(subject: str, versions: Sequence[RegisteredSchema]) -> dict[str, Any]:
    return {
        "groupId": None,
        "artifactId": subject,
        "branchId": "latest",
        "description": None,
        "systemDefined": True,
        "versions": [str(row.version) for row in versions],
    }
