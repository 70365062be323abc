"""Write the document of schema ids, which copiers read while it is written. It only grows.

The holder of the migration's claim writes it. Two processes of one holder may do so at the same time, so each reads the
document again after it has written it, and writes again if entries of its own are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.schemas import IdMode, SchemaIdMap
from airflow_provider_kafka_migration.errors import DocumentUnreadable, SchemaIdMapConflict
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.registry.model import Subject
from airflow_provider_kafka_migration.schema_ids.id_map import WantedId, parse_wanted_key, wanted_prefix
from airflow_provider_kafka_migration.schemas.apply import Place
from airflow_provider_kafka_migration.schemas.references import VersionKey
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot

_TRIES = 5

SourceId = tuple[str, int]


@dataclass
class NewIds:
    """What a synchronization has learned.

    :param ids: (source context, source id) to the ids that its versions have on the target, in the order of the source.
    :param absent: (source context, id) that the source registry answered not to have.
    """

    ids: dict[SourceId, list[int]] = field(default_factory=dict)
    guids: dict[str, str] = field(default_factory=dict)
    absent: set[SourceId] = field(default_factory=set)
    absent_guids: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, source: RegistrySnapshot, places: Mapping[VersionKey, Place]) -> NewIds:
        """Return the ids of all versions that are on the target."""
        found = cls()
        for item in source.all_versions():
            place = places.get((item.subject, item.version))
            if place is None:
                continue
            targets = found.ids.setdefault((Subject.parse(item.subject).context, item.id), [])
            if place.id not in targets:
                targets.append(place.id)
            if item.guid and place.guid:
                found.guids.setdefault(item.guid, place.guid)
        return found


def copied_ids(document: SchemaIdMap | None) -> dict[SourceId, int]:
    """Return the ids of the document by (source context, source id); empty without a document."""
    return {} if document is None else {(context, source): target for context, source, target in document.ids}


def update_id_map(
    record: MigrationRecord, id_mode: IdMode, new: NewIds
) -> tuple[SchemaIdMap, list[tuple[SourceId, SchemaIdMapConflict]], bool]:
    """Add to the document what it lacks.

    :returns: the document, ids whose schema has another id on the target than the document says, and whether anything
        was added.
    :raises ClaimLost: another owner has taken over; nothing is written.
    """
    changed = False
    for _ in range(_TRIES):
        before = record.schema_id_map() or SchemaIdMap(migration_id=record.migration_id, id_mode=id_mode)
        after, conflicts = _merged(record, before, new)
        written = record.journal_store.get(record.key(keys.SCHEMA_ID_MAP)) is not None
        if after == before and written:
            return after, conflicts, changed
        record.journal.check_holds()
        record.journal_store.put(record.key(keys.SCHEMA_ID_MAP), after.canonical())
        changed = True
    raise DocumentUnreadable(
        "the map of schema ids does not keep what is written to it",
        where=record.where("schemas", path=f"{record.journal_store.uri}/{record.key(keys.SCHEMA_ID_MAP)}"),
        next_step="make sure that nothing else writes this object, then clear the task",
    )


def _merged(
    record: MigrationRecord, before: SchemaIdMap, new: NewIds
) -> tuple[SchemaIdMap, list[tuple[SourceId, SchemaIdMapConflict]]]:
    ids = {(context, source): target for context, source, target in before.ids}
    conflicts = []
    absent_before = {tuple(item) for item in before.absent}
    for key, targets in new.ids.items():
        known = ids.setdefault(key, targets[0])
        if known not in targets:
            conflicts.append((key, _conflict(record, key, known, targets[0])))
        elif key in absent_before and known != key[1]:
            conflicts.append((key, _was_absent(record, key, known)))
    guids = {**new.guids, **dict(before.guids)}
    absent = absent_before | (new.absent - ids.keys())
    absent_guids = set(before.absent_guids) | (new.absent_guids - guids.keys())
    after = before.model_copy(
        update={
            "ids": sorted((context, source, target) for (context, source), target in ids.items()),
            "guids": sorted(guids.items()),
            "absent": sorted(absent),
            "absent_guids": sorted(absent_guids),
        }
    )
    return after, conflicts


def _conflict(record: MigrationRecord, key: SourceId, known: int, found: int) -> SchemaIdMapConflict:
    return SchemaIdMapConflict(
        f"the schema with id {key[1]} of context {key[0]} was copied as id {known}, and has id {found} on the target "
        "now",
        where=record.where("schemas", cluster="target"),
        next_step=f"restore the schema under id {known} on the target: records that were copied already refer to it",
        details={"context": key[0], "id": key[1], "recorded": known, "found": found},
    )


def _was_absent(record: MigrationRecord, key: SourceId, known: int) -> SchemaIdMapConflict:
    return SchemaIdMapConflict(
        f"the source registry has answered that it has no schema with id {key[1]} in context {key[0]}, so records with "
        f"that id are copied unchanged; it has one now, which is id {known} on the target",
        where=record.where("schemas", cluster="source"),
        next_step="find the records with this id: if they are serialized with the schema, start a new migration for "
        "their topic; if not, go on with schemas.on_conflict: report",
        details={"context": key[0], "id": key[1], "target_id": known},
    )


# -- what copiers ask for ---------------------------------------------------------------------------------------------


def wanted_ids(record: MigrationRecord) -> set[WantedId]:
    """Return everything that copiers have ever asked for."""
    prefix = wanted_prefix(record.migration_id)
    found = (parse_wanted_key(record.migration_id, info.key) for info in record.journal_store.list(prefix))
    return {item for item in found if item is not None}


def unanswered(wanted: Iterable[WantedId], document: SchemaIdMap | None) -> set[WantedId]:
    """Return those that the document has no answer for."""
    if document is None:
        return set(wanted)
    ids = {(context, source) for context, source, _ in document.ids} | {tuple(item) for item in document.absent}
    guids = {source.lower() for source, _ in document.guids} | {item.lower() for item in document.absent_guids}
    return {
        item
        for item in wanted
        if (str(item.value).lower() not in guids if item.kind == "guid" else (item.context, item.value) not in ids)
    }
