"""AWS Glue Schema Registry: recognized and refused. What an adapter for it would have to do is written here.

Glue has neither Confluent's REST API nor its ids. An adapter needs three things:

1. A client with the reading half (``schemas.snapshot.ReadsRegistry``) and, for a target, the writing half of
   :class:`~.client.Registry`. A schema of a Glue registry is a subject, a schema version is a version. Glue has no
   numeric ids, so the adapter answers with ids of its own, and ``kind()`` with a name that no import door has: ids are
   then always translated.
2. Another place of ids in records: Glue's serializers write the byte 3, a byte for the compression, and a version id of
   16 bytes (a UUID) in front of the payload. ``schema_ids.wire_format`` knows forms of equal length only. Between Glue
   and a registry with 4-byte ids the length of records changes, so a lane could not patch them in place.
3. A way to name it in a spec: ``glue:REGISTRY_NAME``, or a connection of type ``aws``.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from airflow_provider_kafka_migration.errors import RegistryRefused, Where

SCHEME = "glue:"
_HOST = re.compile(r"glue(?:-fips)?\.[a-z0-9-]+\.(?:amazonaws\.com(?:\.cn)?|api\.aws)")


def is_glue(reference: str, url: str = "") -> bool:
    """Return whether a reference, or an address behind it, leads to the AWS Glue Schema Registry."""
    if reference.startswith(SCHEME):
        return True
    try:
        return bool(_HOST.fullmatch(urlsplit(url).hostname or ""))
    except ValueError:
        return False


def refuse_glue(reference: str, url: str = "") -> None:
    """Do nothing for other registries.

    :raises RegistryRefused: it is Glue, for which no client is built in.
    """
    if is_glue(reference, url):
        raise RegistryRefused(
            "AWS Glue Schema Registry is not built in: it has another API, and other ids in records",
            where=Where(path=reference),
            next_step="leave schemas out of the spec and move them with AWS's own tools (docs/schemas.md)",
        )
