"""Reads all versions of all subjects by pages: ``GET /schemas``, which Confluent's registry has.

One request returns hundreds of versions, where lists of versions take one or two requests per subject. The list counts
only if it is whole beyond doubt: each entry names its subject, version and whether it is deleted, and each page begins
with the last entry of the page before, so that entries which disappeared in between cannot hide others.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.errors import RegistryAnswerInvalid, RegistryForbidden
from airflow_provider_kafka_migration.registry import answers
from airflow_provider_kafka_migration.registry.answers import AnswerMalformed
from airflow_provider_kafka_migration.registry.model import RegisteredSchema
from airflow_provider_kafka_migration.registry.rest import BoundedRestClient, SchemaRegistryError

#: Confluent's registry returns at most 1,000 by default, whatever it is asked for.
PAGE = 500


def list_versions(rest: BoundedRestClient) -> list[RegisteredSchema] | None:
    """Return all versions, with soft-deleted ones; None if the registry has no such list, or it is not reliable.

    A subject may still be missing from it: compare with the list of subjects.
    """
    found: dict[tuple[str, int], RegisteredSchema] = {}
    last: tuple[str, int] | None = None
    while True:
        page = _page(rest, max(0, len(found) - 1))
        if page is None:
            return None
        keys = [(item.subject, item.version) for item in page]
        if last is not None:
            if not keys or keys[0] != last:
                return None
            keys, page = keys[1:], page[1:]
        if not page:
            return list(found.values())
        if len(set(keys)) < len(keys) or found.keys() & set(keys):
            return None
        found.update(zip(keys, page, strict=True))
        last = keys[-1]


def _page(rest: BoundedRestClient, offset: int) -> list[RegisteredSchema] | None:
    query = {"deleted": "true", "subjectPrefix": ":*:", "limit": str(PAGE), "offset": str(offset)}
    try:
        return [_registered(row) for row in answers.sequence(rest.get("schemas", query), "the list of schemas")]
    except (AnswerMalformed, SchemaRegistryError, RegistryAnswerInvalid, RegistryForbidden):
        # The registry is older or another product, the right for this list is missing, or a page of huge schemas is
        # larger than an answer may be. In all these cases the caller reads the lists per subject.
        return None


def _registered(row: Any) -> RegisteredSchema:
    item = answers.registered(row)
    if not isinstance(row.get("deleted"), bool):
        raise AnswerMalformed("does not say which versions are deleted")
    return item
