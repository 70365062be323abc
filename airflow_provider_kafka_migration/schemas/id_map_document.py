"""Write the map of schema ids, which copiers read while it is written. It only grows.

The holder of the migration's claim writes it, in up to two processes at the same time (the tail, and the cutover's last
pass). So each version is a create-only object with the next number: whoever comes second reads the other's version, and
adds to it. Nothing that a version holds is ever missing from, or different in, a later one.

Copiers read only ``schemas/id-map.json``, a copy of the newest version. A process that was suspended may replace it by
an older copy. Copiers then wait for some ids, but never use other ones, and the next pass copies the newest again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_kafka_migration.documents.schemas import IdMode, SchemaFailure, SchemaIdMap, SchemaPlan
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    ObjectExists,
    SchemaIdMapConflict,
    SchemaIdUnknown,
    SchemasIncomplete,
    Transient,
)
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Subject
from airflow_provider_kafka_migration.schema_ids.id_map import WantedId, parse_wanted_key, wanted_prefix
from airflow_provider_kafka_migration.schemas.apply import Applied, Place
from airflow_provider_kafka_migration.schemas.payloads.judge import Decided
from airflow_provider_kafka_migration.schemas.references import VersionKey
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, unread_id

log = logging.getLogger(__name__)

#: Each one fails only because another process has written a version.
_TRIES = 20

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
    #: (source topic, part, source id, whether payloads with it decode)
    decided: set[Decided] = field(default_factory=set)

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
    """Add to the map what it lacks, as a new version.

    :returns: the map, ids whose schema has another id on the target than the map says, and whether anything was added.
    :raises ClaimLost: another owner has taken over; nothing is written.
    """
    changed = False
    for _ in range(_TRIES):
        number, found = record.schema_id_map_version()
        before = found or SchemaIdMap(migration_id=record.migration_id, id_mode=id_mode)
        after, conflicts = _merged(record, before, new)
        changed = changed or after != before or found is None
        if number and after == before:
            publish_id_map(record)
            return after, conflicts, changed
        record.journal.check_holds()
        try:
            record.journal_store.put_new(record.key(keys.schema_id_map_version(number + 1)), after.canonical())
        except ObjectExists:
            log.info("Another process of this owner has extended the map of schema ids; its version is read first")
    raise Transient(
        f"other processes have extended the map of schema ids {_TRIES} times while this one tried to",
        where=record.where("schemas", path=f"{record.journal_store.uri}/{record.key(keys.SCHEMA_ID_MAPS)}"),
        next_step="make sure that at most the tail and one other task of this migration run, then clear the task",
    )


def publish_id_map(record: MigrationRecord) -> None:
    """Make ``schemas/id-map.json`` a copy of the newest version. It may be an older one after a kill or a stall.

    :raises ClaimLost: another owner has taken over; nothing is written.
    """
    key = record.key(keys.SCHEMA_ID_MAP)
    for _ in range(_TRIES):
        number, newest = record.schema_id_map_version()
        if not number or newest is None or record.journal_store.get(key) == newest.canonical():
            return
        record.journal.check_holds()
        record.journal_store.put(key, newest.canonical())
    log.warning("%s is rewritten by other processes all the time; the next pass copies the newest version again", key)


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
    decided_before = {item[:3] for item in before.decided}
    after = before.model_copy(
        update={
            "ids": sorted((context, source, target) for (context, source), target in ids.items()),
            "guids": sorted(guids.items()),
            "absent": sorted(absent),
            "absent_guids": sorted(absent_guids),
            "decided": sorted([*before.decided, *(item for item in new.decided if item[:3] not in decided_before)]),
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
        "their topic; if not, go on with schemas.on_conflict: note",
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


@dataclass
class Held:
    """Finds out why ids that copiers ask for are not in the map after a pass. Their partitions wait.

    :param known: reasons that reading the source has shown, by id.
    """

    record: MigrationRecord
    source: RegistrySnapshot
    plan: SchemaPlan
    applied: Applied
    known: Mapping[WantedId, MigrationError]

    def failures(self, wanted: Iterable[WantedId]) -> list[SchemaFailure]:
        """Return one failure for each id, with the reason."""
        return [
            SchemaFailure(subject="", schema_id=_name(item), error=self._error(item).as_dict())
            for item in sorted(wanted, key=lambda item: (item.context, item.kind, str(item.value)))
        ]

    def _error(self, item: WantedId) -> MigrationError:
        if item in self.known:
            return self.known[item]
        reasons = [self._why_not(version, item) for version in self._versions(item)]
        if not reasons:
            unread = self.source.unread.get(unread_id(item.context, int(item.value))) if item.kind == "id" else None
            reasons = [(f"the source registry could not be asked for it: {unread or 'there was no answer'}", True)]
        # One version on the target is enough, so one that may still come counts.
        why, is_transient = next((reason for reason in reasons if reason[1]), reasons[0])
        kind = SchemaIdUnknown if is_transient else SchemasIncomplete
        return kind(
            f"records wait for the schema {_name(item)}, which is not on the target: {why}",
            where=self.record.where("schemas", cluster="target"),
            next_step="remove this reason; the next pass copies the schema, and the partitions continue by themselves",
            details={"context": item.context, "kind": item.kind, "id": item.value},
        )

    def _versions(self, item: WantedId) -> list[RegisteredSchema]:
        if item.kind == "guid":
            return [found for found in self.source.all_versions() if found.guid.lower() == str(item.value).lower()]
        return self.source.by_id().get((item.context, int(item.value)), [])

    def _why_not(self, version: RegisteredSchema, item: WantedId) -> tuple[str, bool]:
        """Why the target does not have a version, or not its GUID, and whether another pass may change that."""
        subject, number = version.subject, version.version
        place = self.applied.places.get((subject, number))
        if place is not None:
            return (
                f"version {place.version} of {place.subject} is on the target, but the target registry "
                f"({self.plan.target_kind}) has given no GUID for it; records with GUIDs in headers need a target "
                "registry that has GUIDs"
            ), False
        for failure in self.applied.failed:
            if (failure.subject, failure.version) == (subject, number):
                return str(failure.error.get("what")), failure.error.get("kind") == "transient"
        for conflict in self.plan.conflicts:
            if (conflict.subject, conflict.version) in ((subject, number), (subject, 0)):
                return conflict.what, False
        if subject in self.plan.left_out:
            return f"{subject}, {self.plan.left_out[subject]}", True
        return f"version {number} of {subject}, or a schema that it refers to, conflicts with the target", False


def _name(item: WantedId) -> str:
    return f"GUID {item.value}" if item.kind == "guid" else f"id {item.value} of context {item.context}"
