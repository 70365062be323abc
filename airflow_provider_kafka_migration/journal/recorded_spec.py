"""The spec in force as the journal has it: for who has no file and no form, and must act all the same."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_provider_kafka_migration.errors import DocumentUnreadable, Where
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.spec_guard import flatten, last_spec

#: A rollback calls it: an older address would be the wrong one.
_MUST_BE_KNOWN = frozenset({"cutover.producer_freeze_webhook"})


def spec_to_record(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as the journal's first entry keeps it: without Spark's conf, which no reader of a journal needs.

    All other fields are there: a rollback without the spec's file calls the webhook and the notifier. In them the spec
    has references where a secret is needed.

    :param spec: the spec as JSON data, all defaults applied.
    """
    kept: dict[str, Any] = copy.deepcopy(dict(spec))
    if kept.get("spark", {}).get("conf"):
        kept["spark"]["conf"] = {}
    return kept


def recorded_spec(journal: Journal) -> dict[str, Any]:
    """The spec as JSON data: as the migration was started, with all changes since.

    Of values that may hold a secret by mistake the journal keeps only a hash after a change. Such a change is left
    out, except where it would matter. Spark's conf is never there.

    :raises DocumentUnreadable: the journal has no spec, or only the hash of an address that is needed.
    """
    entries = journal.entries()
    first = entries[0].details.get("spec") if entries else None
    if not isinstance(first, dict):
        raise DocumentUnreadable(
            "the journal does not have the spec of this migration",
            where=Where(migration_id=journal.migration_id, path=journal.store.uri),
            next_step="use the command line with the spec's file: kafka-migration rollback FILE",
        )
    spec: dict[str, Any] = copy.deepcopy(first)
    last = last_spec(journal)
    started = flatten(first)
    for path, value in sorted((last.details["fields"] if last is not None else {}).items()):
        if value == started.get(path):
            continue
        if isinstance(value, str) and value.startswith("sha256:"):
            _check_not_needed(journal, path, value)
            continue
        _put(spec, path, value)
    return spec


def _check_not_needed(journal: Journal, path: str, value: str) -> None:
    if path in _MUST_BE_KNOWN:
        raise DocumentUnreadable(
            f"{path} was changed, and the journal keeps only a hash of it ({value})",
            where=Where(migration_id=journal.migration_id, path=path),
            next_step="use the command line with the spec's file: kafka-migration rollback FILE",
        )


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        child = spec.get(section)
        spec[section] = child if isinstance(child, dict) else {}
        spec = spec[section]
    spec[last] = value
