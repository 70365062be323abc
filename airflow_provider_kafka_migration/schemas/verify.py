"""Compares both registries after a copy, and resolves every id that occurs in copied records.

The comparison does not trust the actions of the plan: a version counts as copied if the target registry shows the same
schema where the plan and the id map say that it is. :func:`verify` compares snapshots; it asks the target registry only
where the texts of two schemas differ (see ``schemas.equality``). Compared are subjects, versions,
references, soft-deletions, explicit levels and modes, and, with equal ids, that each id and version number is the same.
What could not be read is in ``unread`` of the result and never counts as equal.

A schema that was copied, and that the source registry has deleted permanently since, stays on the target. That is
proven, and then a warning, if the source registry was read completely and lists it no more, not even among its deleted
schemas. A registry that has none of the subjects that were copied is another one, and proves nothing.

Not compared, because the target may have them for good reasons: subjects that no source subject moves to, and further
keys of a target's config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kafka_migration.documents.schemas import (
    IdMode,
    SchemaCheck,
    SchemaDifference,
    SchemaIdMap,
    SchemaPlan,
)
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.schemas.content import same_schema
from airflow_provider_kafka_migration.schemas.equality import Equality, keeps_metadata
from airflow_provider_kafka_migration.schemas.levels import planned_config
from airflow_provider_kafka_migration.schemas.plan_schemas import target_selection
from airflow_provider_kafka_migration.schemas.references import (
    VersionKey,
    places_references,
    reference_keys,
    registration_order,
    schema_for_target,
)
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import (
    ReadsRegistry,
    RegistrySnapshot,
    Report,
    SubjectSnapshot,
    ask_ids,
    read_snapshot,
    unread_config,
    unread_id,
    unread_mode,
    unread_subject,
    unread_version,
)

#: (context, id)
IdKey = tuple[str, int]
#: Of ids that the source does not have, the target is asked for so many: bytes that only look like an id may be
#: millions of different numbers.
MAX_UNKNOWN_ASKED = 200


@dataclass(frozen=True)
class FoundInRecords:
    """Schema ids of copied records, as the source has them.

    :param ids: (source context, id) to a record in which it occurs, for people: ``orders-3 at offset 17``.
    :param guids: GUID in lower case, likewise.
    :param incomplete: topic or partition to why its ids were not gathered, or not all of them.
    """

    ids: Mapping[IdKey, str] = field(default_factory=dict)
    guids: Mapping[str, str] = field(default_factory=dict)
    incomplete: Mapping[str, str] = field(default_factory=dict)


def compare_registries(
    source: ReadsRegistry,
    target: ReadsRegistry,
    plan: SchemaPlan,
    id_map: SchemaIdMap | None,
    found: FoundInRecords,
    *,
    selection: Selection,
    at: str,
    former_source_modes: Mapping[str, str | None] | None = None,
    parallel: int = 10,
    progress: Report | None = None,
) -> SchemaCheck:
    """Read both registries completely, without a cache, and compare them.

    :param former_source_modes: modes of the source that the migration has changed itself, by scope.
    :raises MigrationError: a registry does not answer.
    """
    selection = _selection_of(plan, selection)
    here = read_snapshot(source, selection, parallel=parallel, progress=progress)
    _add_planned(here, source, plan, selection, parallel=parallel, progress=progress)
    here = here.with_modes(former_source_modes or {})
    shown = here.by_id()
    ask_ids(source, here, [key for key in found.ids if key not in shown], parallel=parallel, progress=progress)
    names = target_selection(here, selection, (item.target_subject for item in plan.subjects))
    there = read_snapshot(target, names, parallel=parallel, progress=progress)
    copied = frozenset() if id_map is None else frozenset((context, number) for context, number, _ in id_map.ids)
    known = [key for key in found.ids if key in shown or here.ids.get(key) is not None or key in copied]
    wanted = target_ids(known, plan.id_mode, id_map, selection)
    wanted |= absent_ids(here, found.ids, id_map, selection)
    ask_ids(target, there, wanted, parallel=parallel, progress=progress)
    return verify(here, there, plan, id_map, found, selection=selection, at=at)


def _add_planned(
    here: RegistrySnapshot,
    source: ReadsRegistry,
    plan: SchemaPlan,
    selection: Selection,
    *,
    parallel: int,
    progress: Report | None,
) -> None:
    """Add versions that were copied although the selection does not have them.

    Records have their ids, or they were the latest ones when they were copied.
    """
    missing = {
        (subject.subject, item.version)
        for subject in plan.subjects
        for item in subject.versions
        if here.version(subject.subject, item.version) is None
    }
    if not missing:
        return
    names = Selection.exactly(subject for subject, _ in missing)
    more = read_snapshot(source, names, parallel=parallel, progress=progress)
    here.unread |= more.unread
    here.requests += more.requests
    for subject, number in sorted(missing):
        item = more.version(subject, number)
        if item is None or (item.deleted and not selection.include_deleted):
            continue
        known = here.subjects.get(subject) or replace(more.subjects[subject], versions=(), as_reference=True)
        versions = tuple(sorted((*known.versions, item), key=lambda each: each.version))
        here.subjects[subject] = replace(known, versions=versions)


def target_ids(ids: Iterable[IdKey], id_mode: IdMode, id_map: SchemaIdMap | None, selection: Selection) -> set[IdKey]:
    """Return the (context, id) pairs that the target has to resolve for ids of the source."""
    mapped = _Mapped(id_mode, id_map, selection)
    return {key for item in ids if (key := mapped.in_records(item)) is not None}


def absent_ids(
    source: RegistrySnapshot, ids: Iterable[IdKey], id_map: SchemaIdMap | None, selection: Selection
) -> set[IdKey]:
    """Return (context, id) pairs that the target must not have: ids in records that the source does not have.

    Copiers leave them as they are. Registries count ids up from 1, so the smallest ones come first; see
    :data:`MAX_UNKNOWN_ASKED`.
    """
    copied = frozenset() if id_map is None else frozenset((context, number) for context, number, _ in id_map.ids)
    shown = source.by_id()
    absent = [
        key for key in ids if key not in shown and key not in copied and key in source.ids and source.ids[key] is None
    ]
    absent.sort(key=lambda key: (key[1], key[0]))
    return {(selection.target_context(context), number) for context, number in absent[:MAX_UNKNOWN_ASKED]}


def verify(
    source: RegistrySnapshot,
    target: RegistrySnapshot,
    plan: SchemaPlan,
    id_map: SchemaIdMap | None,
    found: FoundInRecords,
    *,
    selection: Selection,
    at: str,
) -> SchemaCheck:
    """Compare two snapshots. The result's differences and unread things are ascending by subject and version.

    :param source: has answers for those of ``found.ids`` that none of its versions has.
    :param target: has answers for :func:`target_ids` and :func:`absent_ids`.
    :param id_map: needed with ``translate``.
    """
    return _Comparison(source, target, plan, id_map, _selection_of(plan, selection)).run(found, at)


def _selection_of(plan: SchemaPlan, selection: Selection) -> Selection:
    """A registry that moves with its topic moves as a whole, under its own names."""
    return Selection() if plan.id_mode == "topic" else selection


class _Mapped:
    """Ids of the source to ids of the target."""

    def __init__(self, id_mode: IdMode, id_map: SchemaIdMap | None, selection: Selection) -> None:
        self._translates = id_mode == "translate"
        self._selection = selection
        self._ids = {} if id_map is None else {(context, source): target for context, source, target in id_map.ids}
        self._absent = frozenset() if id_map is None else frozenset(id_map.absent)
        self._absent_guids = frozenset() if id_map is None else frozenset(item.lower() for item in id_map.absent_guids)
        self._guids = {} if id_map is None else {source.lower(): target.lower() for source, target in id_map.guids}

    def id(self, key: IdKey) -> IdKey | None:
        """Return (target context, target id) of a schema; None if the id map does not have it."""
        number = self._ids.get(key) if self._translates else key[1]
        return None if number is None else (self._selection.target_context(key[0]), number)

    def in_records(self, key: IdKey) -> IdKey | None:
        """Return (target context, id) that copied records have for an id of the source; None: it is not known.

        Copiers leave an id as it is once the map has it as absent, even if its schema appears later.
        """
        return (self._selection.target_context(key[0]), key[1]) if self.was_absent(key) else self.id(key)

    def was_absent(self, key: IdKey) -> bool:
        """Whether the source registry did not have an id when copiers asked for it."""
        return self._translates and key in self._absent

    def was_copied(self, key: IdKey) -> bool:
        """Whether the map has an id: its schema was copied, and the source may have lost it since."""
        return key in self._ids

    def copied_guid(self, guid: str) -> str | None:
        """Return the GUID on the target of a schema that was copied; None: the map does not have it."""
        return self._guids.get(guid)

    def guid_in_records(self, guid: str) -> str | None:
        """Return the GUID that copied records have for one of the source; None: it is not known.

        Only ``translate`` rewrites records. Without it they keep their GUID, even if the schema has another one on the
        target because its references were renamed.
        """
        return self._guids.get(guid) if self._translates and guid not in self._absent_guids else guid


class _Comparison:
    """One comparison."""

    def __init__(
        self,
        source: RegistrySnapshot,
        target: RegistrySnapshot,
        plan: SchemaPlan,
        id_map: SchemaIdMap | None,
        selection: Selection,
    ) -> None:
        self._source = source
        self._target = target
        self._plan = plan
        self._selection = selection
        self._mapped = _Mapped(plan.id_mode, id_map, selection)
        self._metadata = keeps_metadata(target.kind)
        self._equality = Equality(target)
        self._differences: list[SchemaDifference] = []
        self._unread: dict[str, str] = {}
        #: source version to the version of the target that holds it
        self._places: dict[VersionKey, VersionKey] = {}
        self._used: set[VersionKey] = set()
        #: source versions whose counterpart could not be read
        self._unplaced: set[VersionKey] = set()
        self._unread_here, self._unread_there = source.unread_subjects(), target.unread_subjects()
        self._source_ids = source.by_id()
        self._source_guids = {item.guid.lower(): item for item in source.all_versions() if item.guid}
        self._is_same_registry = any(item.subject in source.subjects for item in plan.subjects)
        self._unknown: list[int] = []
        self._not_asked = 0

    def run(self, found: FoundInRecords, at: str) -> SchemaCheck:
        """Compare everything."""
        self._unread |= {f"source: {key}": why for key, why in self._source.unread.items()}
        self._unread |= {f"target: {key}": why for key, why in self._target.unread.items()}
        self._unread |= {f"ids in records of {key}": why for key, why in found.incomplete.items()}
        for key in registration_order(self._source):
            self._compare_version(key)
        for subject in self._source.subjects.values():
            self._compare_subject(subject)
        self._compare_planned()
        self._compare_scopes()
        resolved = sum(self._resolves(key, where) for key, where in sorted(found.ids.items()))
        resolved += sum(self._resolves_guid(guid, where) for guid, where in sorted(found.guids.items()))
        versions = list(self._source.all_versions())
        return SchemaCheck(
            migration_id=self._plan.migration_id,
            at=at,
            id_mode=self._plan.id_mode,
            subjects=len(self._source.subjects),
            versions=len(versions),
            deleted_versions=sum(item.deleted for item in versions),
            ids_in_records=len(found.ids) + len(found.guids),
            ids_resolved=resolved,
            ids_unknown_to_source=sorted(set(self._unknown)),
            ids_not_asked=self._not_asked,
            differences=sorted(self._differences, key=lambda item: (item.subject, item.version, item.what)),
            unread=dict(sorted(self._unread.items())),
        )

    # -- versions

    def _compare_version(self, key: VersionKey) -> None:
        item = self._source.version(*key)
        assert item is not None  # the order has versions of the snapshot only
        subject = self._selection.target_subject(item.subject)
        if self._is_unread(subject, item.version) or self._needs_unread(item):
            self._unplaced.add(key)
            self._unread.setdefault(f"subject {key[0]}, version {key[1]}", "its counterpart, or a reference, is unread")
            return
        expected = schema_for_target(item, self._source, subject, self._places, contexts=self._target.has_contexts)
        there = self._counterpart(item, subject)
        if there is None:
            self._differ(item, f"{subject} on the target does not have it")
            return
        self._places[key] = (subject, there.version)
        self._used.add((subject, there.version))
        if expected is None:
            self._differ(item, "a schema that it refers to is not on the target")
        elif not self._equality.holds(expected, there):
            self._differ(item, f"{_place(there)} on the target is another schema: {_what_differs(expected, there)}")
        if there.deleted != item.deleted:
            self._differ(item, f"{_place(there)} is {_state(there)} on the target and {_state(item)} on the source")
        self._check_rules(item, there)
        wanted = self._mapped.id((Subject.parse(item.subject).context, item.id))
        if wanted is None:
            self._differ(item, f"the id map does not have its id {item.id}")
        elif wanted[1] != there.id:
            self._differ(item, f"{_place(there)} on the target has the id {there.id} instead of {wanted[1]}")

    def _counterpart(self, item: RegisteredSchema, subject: str) -> RegisteredSchema | None:
        """Find the version of the target: by number where ids are kept, by the mapped id where they are translated."""
        found = self._target.subjects.get(subject)
        if found is None:
            return None
        if self._plan.id_mode != "translate":
            return found.version(item.version)
        wanted = self._mapped.id((Subject.parse(item.subject).context, item.id))
        same = [other for other in found.versions if wanted is not None and other.id == wanted[1]]
        same.sort(
            key=lambda other: ((subject, other.version) in self._used, other.deleted != item.deleted, other.version)
        )
        return same[0] if same else None

    def _is_unread(self, subject: str, version: int) -> bool:
        """Whether it is unknown what the target has: then nothing is missing or different, but unread."""
        unread = self._target.unread
        if unread_subject(subject) in unread:
            return True
        if self._plan.id_mode != "translate":
            return unread_version(subject, version) in unread
        return subject in self._unread_there

    def _needs_unread(self, item: RegisteredSchema) -> bool:
        """Whether a schema refers to one that could not be read on either side."""
        return any(
            key in self._unplaced or unread_version(*key) in self._source.unread
            for key in reference_keys(item, self._source)
        )

    def _check_rules(self, item: RegisteredSchema, there: RegisteredSchema) -> None:
        """Note metadata and rules that the target does not keep: nobody could remove such a difference."""
        lost = [
            name
            for name, here, other, kept in (
                ("metadata", item.schema.metadata, there.schema.metadata, self._metadata),
                ("rule set", item.schema.rule_set, there.schema.rule_set, False),
            )
            if here and not other and not kept
        ]
        if lost:
            key = f"{' and '.join(lost)} of {item.subject}, version {item.version}"
            self._unread[key] = f"the target registry ({self._target.kind}) has not kept it"

    # -- subjects

    def _compare_subject(self, here: SubjectSnapshot) -> None:
        target = self._selection.target_subject(here.subject)
        if unread_subject(target) in self._target.unread:
            return
        there = self._target.subjects.get(target)
        config = planned_config(here, self._selection)
        self._compare_config(here.subject, target, config, there.config if there else None)
        self._compare_mode(here.subject, target, here.mode, there.mode if there else None)
        if there is not None and not here.as_reference and self._selection.versions == "all":
            self._find_extra(here, there)

    def _find_extra(self, here: SubjectSnapshot, there: SubjectSnapshot) -> None:
        """Find versions that only the target has, unless it is unknown which ones belong to the source."""
        if here.subject in self._unread_here:
            return
        if any((here.subject, item.version) in self._unplaced for item in here.versions):
            return
        for item in there.versions:
            # Of subjects that move without their deleted versions, the target may have deleted ones of its own.
            expected = self._selection.include_deleted or not item.deleted
            if expected and (there.subject, item.version) not in self._used:
                what = f"{_place(item)} ({_state(item)}) is only on the target"
                self._differences.append(
                    SchemaDifference(subject=here.subject, version=item.version, what=what, only_on_target=True)
                )

    def _compare_planned(self) -> None:
        """Find subjects that came to the source after the plan, or left it.

        A registry that moves with its topic has them on the target as well: no plan is carried out for them.
        """
        if self._plan.id_mode == "topic":
            return
        planned = {item.subject for item in self._plan.subjects}
        for name in self._source.subjects.keys() - planned:
            if name not in self._plan.left_out:
                self._differences.append(SchemaDifference(subject=name, what="it is not in the last schema plan"))
            else:
                self._unread[f"subject {name}"] = f"left out of the plan: {self._plan.left_out[name]}"
        for name in planned - self._source.subjects.keys():
            if unread_subject(name) in self._source.unread:
                continue
            what, is_gone = "it was copied, and the source registry no longer has it", self._is_gone(name)
            if is_gone:
                what = f"it was copied, and then permanently deleted on the source; {self._what_stays(name)}"
            self._differences.append(SchemaDifference(subject=name, what=what, only_on_target=is_gone))

    def _is_gone(self, subject: str) -> bool:
        """Whether the source has surely deleted a subject that was copied."""
        return subject not in self._source.left_out and self._is_same_registry

    def _what_stays(self, subject: str) -> str:
        """Say what the target has of a subject that the source has deleted permanently."""
        target = self._selection.target_subject(subject)
        there = self._target.subjects.get(target)
        live = [str(item.version) for item in there.versions if not item.deleted] if there is not None else []
        if not live:
            return f"{target} has no live version on the target"
        numbers = f"version{'s' if len(live) > 1 else ''} {', '.join(live)}"
        return f"{numbers} of {target} stay{'' if len(live) > 1 else 's'} live on the target; delete it there if wanted"

    # -- levels and modes

    def _compare_scopes(self) -> None:
        contexts = {*self._source.context_configs, *self._source.context_modes}
        for context in sorted(contexts - {DEFAULT_CONTEXT}):
            target = self._selection.target_context(context)
            here, there = f":{context}:", f":{target}:"
            if target == DEFAULT_CONTEXT:
                self._unread[f"level and mode of context {context}"] = (
                    "its subjects move to the default context, which has the level and mode of the whole registry"
                )
                continue
            config = self._source.context_configs.get(context)
            self._compare_config(here, there, config, self._target.context_configs.get(target))
            mode = self._source.context_modes.get(context)
            self._compare_mode(here, there, mode, self._target.context_modes.get(target))
        if self._plan.global_config or self._plan.id_mode == "topic":
            self._compare_config("", "", self._source.global_config, self._target.global_config)
        if self._plan.global_config:
            self._compare_mode("", "", self._source.global_mode, self._target.global_mode)

    def _compare_config(
        self, here: str, there: str, wanted: Mapping[str, Any] | None, found: Mapping[str, Any] | None
    ) -> None:
        if unread_config(here) in self._source.unread or unread_config(there) in self._target.unread:
            return
        wanted, found = wanted or {}, found or {}
        names = {*wanted, *({"compatibilityLevel"} & found.keys())}
        for name in sorted(names):
            if wanted.get(name) != found.get(name):
                self._differences.append(
                    SchemaDifference(
                        subject=here,
                        what=f"{name} of {there or 'the registry'} is {_value(found.get(name))} on the target and "
                        f"{_value(wanted.get(name))} on the source",
                        only_on_target=name not in wanted,
                    )
                )

    def _compare_mode(self, here: str, there: str, wanted: str | None, found: str | None) -> None:
        if unread_mode(here) in self._source.unread or unread_mode(there) in self._target.unread:
            return
        if wanted == found:
            return
        if wanted is not None and self._target.global_mode is None:
            self._unread[f"mode {wanted} of {here or 'the registry'}"] = "the target registry knows no modes"
            return
        self._differences.append(
            SchemaDifference(
                subject=here,
                what=f"the mode of {there or 'the registry'} is {_value(found)} on the target and {_value(wanted)} on "
                "the source",
                # In mode IMPORT, clients cannot register schemas.
                only_on_target=wanted is None and found != "IMPORT",
            )
        )

    # -- ids in records

    def _resolves(self, key: IdKey, where: str) -> bool:
        """Whether the target resolves an id of a copied record to the schema that it has on the source."""
        context, id_ = key
        expected = self._expected(key)
        if expected is None:
            if key in self._source.ids:
                self._stays_unknown(key, where)
            else:
                self._unread[f"source: {unread_id(*key)}"] = self._source.unread.get(unread_id(*key), "not looked up")
            return False
        name = f"id {id_} of context {context} occurs in records ({where})"
        if not expected and any(self._needs_unread(item) for item in self._source_ids.get(key, ())):
            self._unread[unread_id(*key)] = "a schema that its schema refers to could not be read"
            return False
        if not expected:
            return self._unresolved(f"{name}, but a schema that its schema refers to is not on the target")
        wanted = self._mapped.in_records(key)
        if wanted is None:
            return self._unresolved(f"{name}, but the id map does not have it")
        if self._mapped.was_absent(key):
            name += ", and was copied as it is because the source registry did not have it then"
        if wanted not in self._target.ids:
            why = self._target.unread.get(unread_id(*wanted), "not looked up")
            self._unread[f"target: {unread_id(*wanted)}"] = why
            return False
        there = self._target.ids[wanted]
        if there is None:
            return self._unresolved(f"{name}, but the target registry has no schema under id {wanted[1]}")
        if not any(
            self._equality.same(schema, Subject.parse(subject).context, there, wanted[0], metadata=False)
            for subject, schema in expected
        ):
            return self._unresolved(f"{name}, but id {wanted[1]} is another schema on the target")
        return True

    def _stays_unknown(self, key: IdKey, where: str) -> None:
        """Note an id that the source does not have. Records keep it, so it must not be a schema of the target."""
        wanted = (self._selection.target_context(key[0]), key[1])
        if self._mapped.was_copied(key):
            self._stays_copied(key, where)
        elif unread_id(*wanted) in self._target.unread:
            self._unread[f"target: {unread_id(*wanted)}"] = self._target.unread[unread_id(*wanted)]
        elif self._target.ids.get(wanted) is not None:
            self._unresolved(
                f"id {key[1]} of context {key[0]} occurs in records ({where}); the source registry does not have it, "
                f"and the target registry has a schema under id {key[1]}, with which consumers decode them"
            )
        else:
            self._not_asked += wanted not in self._target.ids
            self._unknown.append(key[1])

    def _stays_copied(self, key: IdKey, where: str) -> None:
        """Note an id that the source no longer has, and whose schema was copied: the target must still have it."""
        name = f"id {key[1]} of context {key[0]} ({where})"
        wanted = self._mapped.id(key)
        if wanted is not None and wanted in self._target.ids and self._target.ids[wanted] is None:
            self._unresolved(f"{name} is no longer on the source, and the target has no schema under id {wanted[1]}")
            return
        named = [
            f"version {version.version} of {subject.subject}"
            for subject in self._plan.subjects
            for version in subject.versions
            if (Subject.parse(subject.subject).context, version.id) == key
        ]
        what = f" ({named[0]})" if named else ""
        self._unread[name] = f"the source registry no longer has its schema{what}, which was copied before"

    def _expected(self, key: IdKey) -> list[tuple[str, Schema]] | None:
        """Return the schemas of an id as the target should have them, each with a target subject; None: no such id."""
        context = key[0]
        found: list[tuple[str, Schema]] = []
        for item in self._source_ids.get(key, ()):
            subject = self._selection.target_subject(item.subject)
            schema = schema_for_target(item, self._source, subject, self._places, contexts=self._target.has_contexts)
            if schema is not None:
                found.append((subject, schema))
        if found:
            return found
        asked = self._source.ids.get(key)
        if asked is None:
            return [] if key in self._source_ids else None
        # The schema of a subject that does not move: it has no subject of its own on the target.
        referrer = Subject(self._selection.target_context(context), "").qualified
        placed = places_references(asked, context, referrer, self._places, contexts=self._target.has_contexts)
        return [] if placed is None else [(referrer, placed)]

    def _resolves_guid(self, guid: str, where: str) -> bool:
        name = f"GUID {guid} occurs in records ({where})"
        here = self._source_guids.get(guid)
        if here is None:
            return self._was_guid_copied(guid, name)
        wanted = self._mapped.guid_in_records(guid)
        if wanted is None:
            return self._unresolved(f"{name}, but the id map does not have it")
        place = self._places.get((here.subject, here.version))
        there = None if place is None else self._target.version(*place)
        if there is None or there.guid.lower() != wanted:
            has = "" if there is None else f"; {_place(there)} has {there.guid or 'none'}"
            return self._unresolved(f"{name}, but no copied version has the GUID {wanted} on the target{has}")
        return True

    def _was_guid_copied(self, guid: str, name: str) -> bool:
        """Judge a GUID that no version of the source has: it was deleted there for good, or is unread."""
        wanted = self._mapped.copied_guid(guid)
        if wanted is None or self._unread_here or not self._is_same_registry:
            self._unread[f"source: schema GUID {guid}"] = f"no version that was read has it; {name}"
            return False
        there = next((item for item in self._target.all_versions() if item.guid.lower() == wanted), None)
        if there is None and self._unread_there:
            self._unread[f"target: schema GUID {wanted}"] = f"no version that was read has it; {name}"
        elif there is None:
            self._unresolved(f"{name}, its schema was copied, and neither registry has it any more")
        else:
            self._unread[name] = (
                f"the source registry no longer has its schema, which was copied; {_place(there)} on the target has it"
            )
        return False

    def _unresolved(self, what: str) -> bool:
        self._differences.append(SchemaDifference(subject="", what=what))
        return False

    def _differ(self, item: RegisteredSchema, what: str) -> None:
        self._differences.append(SchemaDifference(subject=item.subject, version=item.version, what=what))


def _place(item: RegisteredSchema) -> str:
    return f"version {item.version} of {item.subject}"


def _state(item: RegisteredSchema) -> str:
    return "soft-deleted" if item.deleted else "live"


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)


def _what_differs(expected: Schema, there: RegisteredSchema) -> str:
    """Name the part that differs; never the content."""
    found = there.schema
    if expected.type != found.type:
        return f"its type is {found.type} instead of {expected.type}"
    context = Subject.parse(there.subject).context
    plain = {"metadata": False, "rule_set": False, "first_context": context, "second_context": context}
    if same_schema(expected, found, **plain):  # type: ignore[arg-type]
        return "its metadata or rule set differs"
    without = (Schema(item.type, item.text) for item in (expected, found))
    return "its references differ" if same_schema(*without) else "its text differs"
