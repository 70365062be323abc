"""Finds names that a registry has a level, a mode or an alias for, and no versions: no list of the API shows them.

An alias as Confluent documents it is the config of a name without versions, and levels are often set before the first
version of a subject. Clients notice if they are lost. Two ways lead to such names:

* The registry's own topic, ``_schemas`` on the source cluster, has all of them. It counts only if its subjects are
  those that the registry lists: else it is that of another registry. Only names are taken from it, values from the API.
* Without it, likely names are asked for: ``TOPIC-key`` and ``TOPIC-value`` of the migrated topics, and names that the
  spec spells out (``schemas.include`` without a pattern, ``schemas.rename.subjects``). Others stay unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_provider_kafka_migration.errors import BatchMalformed, FingerprintChanged, MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch, iter_batches, records
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, FetchRange
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.schemas.selection import SUFFIXES, Selection
from airflow_provider_kafka_migration.schemas.snapshot import ReadsRegistry

#: Where Confluent's registry and Karapace keep what they know, unless they are told otherwise.
TOPIC = "_schemas"
#: Of kinds whose names have no levels before they have versions.
_WITHOUT = ("apicurio",)
_FETCH_BYTES = 4 * 1024 * 1024
_MAX_BYTES = 256 * 1024 * 1024
_LITERAL = re.compile(r"[\w:./@ -]+")


@dataclass(frozen=True)
class Unlisted:
    """Names to ask for, and what that leaves open, for people; empty: nothing."""

    names: frozenset[str] = frozenset()
    note: str = ""


def find_unlisted(open_wire: Callable[[], Wire] | None, registry: ReadsRegistry, selection: Selection) -> Unlisted:
    """Return names without versions that a selection may have. Only reads.

    :param open_wire: gives the connection to the source cluster; None: nobody knows it.
    :raises MigrationError: the registry does not answer, or the connection leads to another cluster.
    """
    if registry.kind() in _WITHOUT:
        return Unlisted(spelled_out(selection))
    listed = frozenset(registry.subjects(deleted=True))
    try:
        names = _names_in_topic(_opened(open_wire), listed)
    except FingerprintChanged:
        raise
    except (MigrationError, BatchMalformed) as error:
        why = error.what
    except _NotOurs as error:
        why = str(error)
    else:
        return Unlisted((names | spelled_out(selection)) - listed)
    likely = frozenset(f"{topic}{suffix}" for topic in selection.topics for suffix in SUFFIXES)
    return Unlisted(
        (likely | spelled_out(selection)) - listed,
        "names without versions (aliases; levels and modes before a first schema) are in no list of the registry, "
        f"and its topic {TOPIC} does not show them ({why}). Asked for: TOPIC-key and TOPIC-value of the migrated "
        "topics, and names that schemas.include and schemas.rename.subjects spell out; name others there",
    )


def spelled_out(selection: Selection) -> frozenset[str]:
    """Return the names of a spec that are no patterns."""
    return frozenset({*(name for name in selection.include if _LITERAL.fullmatch(name)), *selection.renames})


class _NotOurs(Exception):
    pass


def _opened(open_wire: Callable[[], Wire] | None) -> Wire:
    if open_wire is None:
        raise _NotOurs("the source cluster is not known here")
    return open_wire()


def _names_in_topic(wire: Wire, listed: frozenset[str]) -> frozenset[str]:
    """Return the names with a level or mode in the registry's topic.

    :raises _NotOurs: there is no such topic, or it is not that of this registry.
    :raises MigrationError: it cannot be read.
    """
    facts = wire.metadata([TOPIC]).get(TOPIC)
    if facts is None or facts.error_code or set(facts.leaders) != {0}:
        raise _NotOurs("there is none with one partition that may be read")
    live = dict(_entries(wire))
    subjects = {name for (kind, name, _), is_live in live.items() if kind == "SCHEMA" and is_live}
    if subjects != listed:
        raise _NotOurs("its subjects are not those that the registry lists")
    return frozenset(name for (kind, name, _), is_live in live.items() if kind in ("CONFIG", "MODE") and is_live)


def _entries(wire: Wire) -> Iterator[tuple[tuple[str, str, int], bool]]:
    """Yield (kind, subject, version) of each record, and whether it has a value."""
    place = (TOPIC, 0)
    position, end = wire.list_offsets([place], "earliest")[place], wire.list_offsets([place], "stable")[place]
    read = 0
    while position < end:
        before = position
        for answer in wire.fetch_once([FetchRange(*place, position, _FETCH_BYTES)], isolation=READ_COMMITTED):
            read += len(answer.records)
            for batch in iter_batches(answer.records):
                position = max(position, batch.next_offset)
                if not batch.is_control:
                    found = batch.records() if isinstance(batch, LegacyBatch) else records(batch)
                    yield from (item for record in found if (item := _entry(record.key, record.value)) is not None)
        if position == before or read > _MAX_BYTES:
            raise _NotOurs("it cannot be read to its end")


def _entry(key: bytes | None, value: bytes | None) -> tuple[tuple[str, str, int], bool] | None:
    try:
        parsed = json.loads(key or b"")
        kind, subject = parsed["keytype"], parsed["subject"]
    except (ValueError, LookupError, TypeError):
        return None  # the registry itself skips such a record
    if not isinstance(kind, str) or not isinstance(subject, str) or subject.endswith(":"):
        return None  # the whole registry, or a context: these are asked for anyway
    version = parsed.get("version")
    return (kind, subject, version if isinstance(version, int) else 0), value is not None
