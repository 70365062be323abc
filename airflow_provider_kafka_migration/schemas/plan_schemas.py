"""Plans what moves from one registry to the other: id mode, versions, levels, conflicts.

The plan is a function of two snapshots and the spec. It asks the target registry only where a version has another text
than expected (see ``schemas.equality``).

**Id mode.** ``keep``: the target gets the same ids and versions. ``translate``: the target assigns them. ``auto`` keeps
ids if nothing on the target contradicts them, and either all of them are there already or the target registry can
import fixed ids (mode IMPORT of Confluent and Redpanda, the import of Apicurio); otherwise it translates. The choice is
made once: later passes of the same migration give the recorded mode, because records have been copied with it.

**Import scope.** The narrowest scope whose mode has to be IMPORT: the subject, unless the target's registry or all its
contexts concerned are in mode IMPORT already.

**Ids are per context** where the target knows contexts; other kinds of registries have one series of ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from airflow_provider_kafka_migration.documents.schemas import (
    IdMode,
    PlannedSubject,
    PlannedVersion,
    SchemaConflict,
    SchemaPlan,
    TopicIds,
)
from airflow_provider_kafka_migration.registry.model import (
    DEFAULT_CONTEXT,
    RegisteredSchema,
    Schema,
    Subject,
)
from airflow_provider_kafka_migration.schemas.content import (
    ContentKey,
    content_key,
    record_names,
    schema_digest,
)
from airflow_provider_kafka_migration.schemas.equality import Equality, keeps_metadata
from airflow_provider_kafka_migration.schemas.levels import (
    OwnLevels,
    effective_mode,
    has_own_scope,
    is_stricter,
    level_of,
    own_levels,
    planned_config,
)
from airflow_provider_kafka_migration.schemas.references import (
    VersionKey,
    reference_keys,
    registration_order,
    schema_for_target,
)
from airflow_provider_kafka_migration.schemas.selection import Selection, topics_of
from airflow_provider_kafka_migration.schemas.snapshot import (
    RegistrySnapshot,
    unread_id,
    unread_mode,
    unread_version,
)
from airflow_provider_kafka_migration.schemas.written import Written

ImportScope = Literal["", "subject", "context", "registry", "apicurio"]

_IMPORTS: dict[str, ImportScope] = {"confluent": "subject", "redpanda": "subject", "apicurio": "apicurio"}
#: Modes in which a registry accepts no new schema.
_CLOSED_MODES = frozenset({"READONLY", "READONLY_OVERRIDE", "FORWARD"})
#: Notes name so many subjects, and count all.
_NAMED_SUBJECTS = 10


@dataclass(frozen=True)
class PlanSettings:
    """What the spec and the migration decide.

    :param ids: ``auto``, or the mode to plan for; a later pass gives the mode of the recorded plan.
    :param topics_of_migration: source topics to target topics.
    :param topic_ids: where the records of topics carry ids, see ``schemas.payloads.detect``.
    :param written: what the target has from this migration; None: nothing yet.
    :param unlisted: which names without versions could not be looked for, for people; empty: all were.
    :param copied_ids: (source context, source id) to the id on the target, of what was copied before with new ids.
    """

    selection: Selection
    ids: Literal["auto", "keep", "translate"] = "auto"
    global_config: bool = False
    normalize: bool = False
    topics_of_migration: Mapping[str, str] = field(default_factory=dict)
    topic_ids: Sequence[TopicIds] = ()
    written: Written | None = None
    copied_ids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    unlisted: str = ""


class _Decided(NamedTuple):
    """The outcome for one id mode."""

    versions: dict[VersionKey, PlannedVersion]
    conflicts: list[SchemaConflict]


# -- what others use --------------------------------------------------------------------------------------------------


def plan_schemas(
    migration_id: str, source: RegistrySnapshot, target: RegistrySnapshot, settings: PlanSettings
) -> SchemaPlan:
    """Plan the copy from one registry to the other.

    :param target: has all subjects of :func:`target_names`, and the answers for :func:`ids_to_ask`.
    :raises SchemaReferenceLoop: schemas of the source refer to each other in a circle.
    """
    return _Planner(migration_id, source, target, settings).plan()


def target_names(source: RegistrySnapshot, selection: Selection) -> frozenset[str]:
    """Return the subjects of the target that a plan has to know, qualified."""
    return frozenset(selection.target_subject(name) for name in source.subjects)


def target_selection(source: RegistrySnapshot, selection: Selection, names: Iterable[str] = ()) -> Selection:
    """Return what has to be read of the target: its subjects, and the contexts that get a level or mode.

    :param names: further subjects of the target.
    """
    contexts = {selection.target_context(name) for name in {*source.context_configs, *source.context_modes}}
    unlisted = (selection.target_subject(name) for name, item in source.subjects.items() if not item.versions)
    return Selection.exactly({*target_names(source, selection), *names}, contexts, unlisted)


def ids_to_ask(source: RegistrySnapshot, target: RegistrySnapshot, selection: Selection) -> set[tuple[str, int]]:
    """Return (context, id) pairs that the target has to be asked for: source ids that no subject read there has.

    What the target's lists answer is taken up in its snapshot.
    """
    wanted = {
        (_id_space(target, selection.target_context(Subject.parse(item.subject).context)), item.id)
        for item in source.all_versions()
    }
    known = {(_id_space(target, context), id_) for context, id_ in target.by_id()}
    return target.answer_by_listing(wanted - known)


# -- planning ---------------------------------------------------------------------------------------------------------


def _id_space(target: RegistrySnapshot, context: str) -> str:
    return context if target.has_contexts else DEFAULT_CONTEXT


class _Planner:
    """Plans one pass."""

    def __init__(
        self, migration_id: str, source: RegistrySnapshot, target: RegistrySnapshot, settings: PlanSettings
    ) -> None:
        self._migration_id = migration_id
        self._source = source
        self._target = target
        self._settings = settings
        self._selection = settings.selection
        self._metadata = keeps_metadata(target.kind)
        self._left_out = dict(source.left_out)
        self._notes: list[str] = []
        self._order = self._movable(registration_order(source))
        # Names without versions have a level or a mode.
        unlisted = [name for name, item in source.subjects.items() if not item.versions]
        names = dict.fromkeys((*(subject for subject, _ in self._order), *unlisted))
        self._targets = {name: self._selection.target_subject(name) for name in names}
        self._by_id = self._ids_of_target()
        self._equality = Equality(target)

    def plan(self) -> SchemaPlan:
        """Return the plan."""
        shared = self._rename_conflicts() + self._reference_conflicts() + self._alias_conflicts()
        mode, reason, scope, decided = self._choose(shared)
        # These exist in both id modes, so they must not decide between them.
        own_live = self._own_live_versions(decided)
        own = self._own_levels(decided)
        conflicts = [*shared, *decided.conflicts, *own_live, *own.conflicts]
        return SchemaPlan(
            migration_id=self._migration_id,
            id_mode=mode,
            reason=reason,
            source_kind=self._source.kind,
            target_kind=self._target.kind,
            import_scope=scope,
            subjects=self._subjects(decided, conflicts),
            context_configs={
                name: dict(sorted(value.items()))
                for name, value in sorted(self._source.context_configs.items())
                if has_own_scope(name, self._selection)
            },
            context_modes={
                name: value
                for name, value in sorted(self._source.context_modes.items())
                if has_own_scope(name, self._selection)
            },
            global_config=dict(self._source.global_config or {}) if self._settings.global_config else {},
            global_mode=(self._source.global_mode or "") if self._settings.global_config else "",
            conflicts=sorted(conflicts, key=lambda item: (item.subject, item.version, item.kind)),
            stays_live=sorted((item.subject, item.version) for item in own_live),
            kept_configs=own.configs,
            kept_modes=own.modes,
            present=self._present(decided),
            left_out=dict(sorted(self._left_out.items())),
            topics=sorted(self._settings.topic_ids, key=lambda item: item.topic),
            notes=self._all_notes(mode, decided),
            unread=self._unread(),
        )

    # -- what can move

    def _movable(self, order: list[VersionKey]) -> list[VersionKey]:
        """Leave out what is not known well enough, and what refers to it."""
        out: set[VersionKey] = set()
        unread = self._target.unread_subjects()
        for key in order:
            subject, version = key
            item = self._source.version(subject, version)
            assert item is not None  # the order has versions of the snapshot only
            target = self._selection.target_subject(subject)
            if target in unread:
                self._leave_out(key, out, f"the subject {target} of the target could not be read")
                continue
            for needed in reference_keys(item, self._source):
                if needed in out or unread_version(*needed) in self._source.unread:
                    self._leave_out(key, out, f"it refers to version {needed[1]} of {needed[0]}, which is not known")
        return [key for key in order if key not in out]

    def _leave_out(self, key: VersionKey, out: set[VersionKey], why: str) -> None:
        out.add(key)
        self._left_out.setdefault(key[0], f"version {key[1]}: {why}")

    def _unread(self) -> dict[str, str]:
        found = {f"source: {key}": why for key, why in self._source.unread.items()}
        found |= {f"target: {key}": why for key, why in self._target.unread.items()}
        return dict(sorted(found.items()))

    # -- the id mode

    def _choose(self, shared: list[SchemaConflict]) -> tuple[IdMode, str, ImportScope, _Decided]:
        wanted = self._settings.ids
        keep = self._decide_keep()
        registers = any(item.action == "register" for item in keep.versions.values())
        scope = self._import_scope()
        if wanted == "keep":
            if registers and not scope:
                keep = self._registers_nothing(keep)
            return "keep", "schemas.ids: keep", scope if registers else "", keep
        if wanted == "auto" and not keep.conflicts and not registers:
            return "keep", "every schema is on the target already, under its id and version", "", keep
        if wanted == "auto" and not keep.conflicts and scope:
            return "keep", f"nothing on the target contradicts the ids, and {_IMPORT_WORDS[scope]}", scope, keep
        if wanted == "translate":
            reason = "schemas.ids: translate"
        elif keep.conflicts:
            others = len(keep.conflicts) - 1
            more = f" (and {others} more conflicts)" if others else ""
            reason = f"ids cannot be kept: {keep.conflicts[0].what}{more}"
        else:
            reason = f"ids cannot be kept: {self._cannot_import().what}"
        return "translate", reason, "", self._decide_translate()

    def _import_scope(self) -> ImportScope:
        scope = _IMPORTS.get(self._target.kind, "")
        if self._target.kind == "unknown" and self._settings.ids == "keep":
            # The protocol has mode IMPORT, and the spec demands it.
            scope = "subject"
        if scope == "subject":
            contexts = {Subject.parse(name).context for name in self._targets.values()}
            if self._target.global_mode is None and unread_mode("") not in self._target.unread:
                return ""  # a release without modes
            if self._target.global_mode == "IMPORT":
                return "registry"
            if contexts and all(self._target.context_modes.get(context) == "IMPORT" for context in contexts):
                return "context"
        return scope

    def _registers_nothing(self, keep: _Decided) -> _Decided:
        """Leave out what is not there yet: the target would register it under ids of its own."""
        versions = {
            key: item.model_copy(update={"action": "conflict"}) if item.action == "register" else item
            for key, item in keep.versions.items()
        }
        return _Decided(versions, [*keep.conflicts, self._cannot_import()])

    def _cannot_import(self) -> SchemaConflict:
        kind = self._target.kind
        if kind == "unknown":
            what = (
                "it is not known which product the target registry is and whether it can import schemas under fixed "
                "ids; schemas.ids: keep tries mode IMPORT"
            )
        else:
            what = (
                f"the target registry ({kind}) cannot import schemas under fixed ids; use schemas.ids: translate, "
                "or a target that can"
            )
        return SchemaConflict(
            kind="unsupported",
            subject="",
            what=what,
        )

    # -- keep

    def _ids_of_target(self) -> dict[tuple[str, int], list[tuple[Schema, str]]]:
        """Schemas of the target by (id space, id), each with the context of its references."""
        found: dict[tuple[str, int], list[tuple[Schema, str]]] = {}
        for (context, id_), items in self._target.by_id().items():
            space = found.setdefault((_id_space(self._target, context), id_), [])
            space += [(item.schema, context) for item in items]
        for (context, id_), schema in self._target.ids.items():
            if schema is not None:
                found.setdefault((_id_space(self._target, context), id_), []).append((schema, context))
        return found

    def _decide_keep(self) -> _Decided:
        decided = _Decided({}, [])
        places = {key: (self._targets[key[0]], key[1]) for key in self._order}
        #: (id space, id) to the first schema of this plan that takes the id
        taken: dict[tuple[str, int], tuple[Schema, str, VersionKey]] = {}
        contents = self._contents_of_target()
        for key in self._order:
            item = self._item(key)
            target = self._targets[key[0]]
            schema = schema_for_target(item, self._source, target, places, contexts=self._target.has_contexts)
            conflict = None
            action: Literal["register", "exists", "conflict"] = "register"
            if schema is None:
                action = "conflict"
            else:
                there = self._target.version(target, item.version)
                if there is not None:
                    conflict = self._kept_version_conflict(item, schema, there)
                    # A live version that is deleted on the target has to be registered again.
                    action = "register" if there.deleted and not item.deleted else "exists"
                if conflict is None:
                    conflict = self._kept_id_conflict(item, schema, taken) or self._mode_conflict(
                        key, action, _CLOSED_MODES
                    )
                if conflict is None and self._target.kind == "apicurio":
                    conflict = self._one_id_per_content(item, schema, contents)
            if conflict is not None:
                decided.conflicts.append(conflict)
                action = "conflict"
            decided.versions[key] = self._planned(item, action, item.version, item.id)
        return decided

    def _kept_version_conflict(
        self, item: RegisteredSchema, schema: Schema, there: RegisteredSchema
    ) -> SchemaConflict | None:
        where = f"version {item.version} of {there.subject} on the target"
        if not self._equality.holds(schema, there):
            return self._conflict("version", item, f"{where} is another schema (id {there.id})")
        if there.id != item.id:
            return self._conflict("id", item, f"{where} is the same schema, but has the id {there.id}, not {item.id}")
        return None

    def _kept_id_conflict(
        self, item: RegisteredSchema, schema: Schema, taken: dict[tuple[str, int], tuple[Schema, str, VersionKey]]
    ) -> SchemaConflict | None:
        target = self._targets[item.subject]
        context = Subject.parse(target).context
        space = (_id_space(self._target, context), item.id)
        for other, other_context in self._by_id.get(space, ()):
            if not self._equality.same(schema, context, other, other_context):
                return self._conflict("id", item, f"the id {item.id} belongs to another schema on the target")
        if space not in self._by_id and (space not in self._target.ids or unread_id(*space) in self._target.unread):
            return self._conflict("id", item, f"whether the id {item.id} is free on the target could not be read")
        first = taken.setdefault(space, (schema, context, (item.subject, item.version)))
        if not self._equality.same(schema, context, first[0], first[1]):
            subject, version = first[2]
            return self._conflict(
                "id",
                item,
                f"the id {item.id} belongs to version {version} of {subject}, too, which is another schema "
                "and moves to the same series of ids",
            )
        return None

    def _contents_of_target(self) -> dict[ContentKey, tuple[int, str]]:
        """Ids of the target by content, each with a version that has it."""
        return {
            content_key(item.schema, item.subject): (item.id, f"{item.subject} version {item.version} on the target")
            for item in self._target.all_versions()
        }

    def _one_id_per_content(
        self, item: RegisteredSchema, schema: Schema, contents: dict[ContentKey, tuple[int, str]]
    ) -> SchemaConflict | None:
        """Apicurio identifies a schema by its content, so that content cannot have two ids."""
        key = content_key(schema, self._targets[item.subject])
        id_, where = contents.setdefault(key, (item.id, f"{item.subject} version {item.version}"))
        if id_ == item.id:
            return None
        what = f"the same schema has the id {id_} ({where}), and Apicurio keeps one id per content"
        return self._conflict("unsupported", item, what)

    # -- translate

    def _decide_translate(self) -> _Decided:
        decided = _Decided({}, [])
        places: dict[VersionKey, VersionKey] = {}
        used: dict[str, set[int]] = {}
        for key in self._order:
            item = self._item(key)
            target = self._targets[key[0]]
            schema = schema_for_target(item, self._source, target, places, contexts=self._target.has_contexts)
            there = None if schema is None else self._match(target, schema, item, used.setdefault(target, set()))
            action: Literal["register", "exists", "conflict"] = "register" if there is None else "exists"
            if there is not None:
                used[target].add(there.version)
                places[key] = (target, there.version)
            conflict = self._mode_conflict(key, action, _CLOSED_MODES | {"IMPORT"})
            if conflict is not None:
                decided.conflicts.append(conflict)
                action = "conflict"
            decided.versions[key] = self._planned(item, action, there.version if there else 0, there.id if there else 0)
        decided.conflicts.extend(self._level_conflicts(decided))
        return decided

    def _match(self, target: str, schema: Schema, item: RegisteredSchema, used: set[int]) -> RegisteredSchema | None:
        """Find a version of the target's subject with the same schema, first among those not matched yet.

        A deleted version is there if the target has it deleted or not; a live one only if the target's is live.
        """
        found = self._target.subjects.get(target)
        same = [other for other in (found.versions if found else ()) if self._equality.shows(schema, other)]
        if (
            found is not None
            and not same
            and any(other.version not in used and other.schema.type == schema.type for other in found.versions)
        ):
            there = self._equality.find(schema, target)
            same = [] if there is None else [there]
        same = [other for other in same if (item.deleted or not other.deleted) and not self._lacks_rules(item, other)]
        same.sort(key=lambda other: (other.version in used, other.deleted != item.deleted, other.version))
        return same[0] if same else None

    def _lacks_rules(self, item: RegisteredSchema, there: RegisteredSchema) -> bool:
        """Whether a version of the target has the schema, but not the rule set, which the target may be able to keep.

        If the migration has registered it, the target has dropped the rule set, and would do so again.
        """
        if not self._metadata or not item.schema.rule_set or there.schema.rule_set:
            return False
        return self._settings.copied_ids.get((Subject.parse(item.subject).context, item.id)) != there.id

    def _level_conflicts(self, decided: _Decided) -> list[SchemaConflict]:
        """Find subjects whose schemas the target checks more strictly than the source did."""
        found: list[SchemaConflict] = []
        for name in sorted({key[0] for key in self._order}):
            new = [item for key, item in decided.versions.items() if key[0] == name and item.action == "register"]
            total = sum(1 for key in decided.versions if key[0] == name)
            if not new or total < 2:
                continue
            here = level_of(self._source, name, None)
            explicit = self._source.subjects[name].config
            there = level_of(self._target, self._targets[name], explicit)
            if not is_stricter(there, here):
                continue
            found.append(
                SchemaConflict(
                    kind="compatibility",
                    subject=name,
                    target_subject=self._targets[name],
                    what=f"the target would check {total} versions of {self._targets[name]} with {there}, the source "
                    f"has {here}; give the subject, its context or the target registry the level of the source "
                    "(schemas.global_config: true copies the global one)",
                )
            )
        return [] if self._settings.global_config else found

    # -- conflicts of both modes

    def _mode_conflict(self, key: VersionKey, action: str, closed: frozenset[str]) -> SchemaConflict | None:
        """Find a mode that forbids a write.

        A mode that the subject also has on the source is no conflict: the migration has set it, and may change it.
        """
        if action != "register":
            return None
        target = self._targets[key[0]]
        scope, mode = effective_mode(self._target, target)
        own = self._source.subjects[key[0]].mode
        if mode not in closed or (scope == target and own == mode):
            return None
        return self._conflict(
            "mode",
            self._item(key),
            f"the target accepts no such schemas: {scope or 'the registry'} has mode {mode}; set it to READWRITE",
        )

    def _own_live_versions(self, decided: _Decided) -> list[SchemaConflict]:
        """Find live versions of the target that are deleted on the source, and that this migration has not registered.

        They may be in use, so nothing but a person can decide to delete them.
        """
        live = {
            (self._targets[key[0]], item.target_version) for key, item in decided.versions.items() if not item.deleted
        }
        written = self._settings.written
        found: list[SchemaConflict] = []
        for key, item in decided.versions.items():
            target = self._targets[key[0]]
            there = self._target.version(target, item.target_version)
            if item.action != "exists" or not item.deleted or there is None or there.deleted:
                continue
            if (target, there.version) in live or (
                written is not None and written.has_registered(*key, target, there.version)
            ):
                continue
            what = (
                f"it is deleted on the source, and the target has it live as version {there.version} of {target}, "
                "which this migration has not registered; delete it there if nobody needs it"
            )
            found.append(self._conflict("version", self._item(key), what))
        return found

    def _present(self, decided: _Decided) -> dict[str, list[int]]:
        """The live versions of the target's subjects that get further ones."""
        names = {self._targets[key[0]] for key, item in decided.versions.items() if item.action == "register"}
        return {
            name: live
            for name in sorted(names & self._target.subjects.keys())
            if (live := [item.version for item in self._target.subjects[name].versions if not item.deleted])
        }

    def _own_levels(self, decided: _Decided) -> OwnLevels:
        placed = {
            (self._targets[key[0]], item.target_version)
            for key, item in decided.versions.items()
            if item.action != "conflict"
        }
        return own_levels(self._source, self._target, self._selection, self._targets, placed, self._settings.written)

    def _rename_conflicts(self) -> list[SchemaConflict]:
        """Find subjects that meet under one name, or leave the context to which the ids of their records go."""
        first: dict[str, str] = {}
        found: list[SchemaConflict] = []

        def conflict(kind: Literal["content", "unsupported"], subject: str, what: str) -> None:
            target = self._targets[subject]
            found.append(SchemaConflict(kind=kind, subject=subject, target_subject=target, what=what))

        for subject, target in sorted(self._targets.items()):
            other = first.setdefault(target, subject)
            if other != subject:
                conflict("content", subject, f"{other} and {subject} would both become {target}; change schemas.rename")
            wanted = self._selection.target_context(Subject.parse(subject).context)
            if Subject.parse(target).context != wanted:
                conflict(
                    "unsupported",
                    subject,
                    f"schemas.rename moves {subject} to {target}, but the ids of its records go to the context "
                    f"{wanted}; move whole contexts with schemas.contexts",
                )
        return found

    def _reference_conflicts(self) -> list[SchemaConflict]:
        found: list[SchemaConflict] = []
        for key in self._order:
            for needed in reference_keys(self._item(key), self._source):
                if self._source.version(*needed) is None:
                    what = f"it refers to version {needed[1]} of {needed[0]}, which the source registry does not have"
                    found.append(self._conflict("reference", self._item(key), what))
        return found

    def _alias_conflicts(self) -> list[SchemaConflict]:
        """Find subjects of the target that are aliases of others: what is written to them would land elsewhere."""
        found: list[SchemaConflict] = []
        for subject, target in sorted(self._targets.items()):
            there = self._target.subjects.get(target)
            alias = (there.config or {}).get("alias") if there else None
            wanted = planned_config(self._source.subjects[subject], self._selection).get("alias")
            if alias and alias != wanted:
                found.append(
                    SchemaConflict(
                        kind="content",
                        subject=subject,
                        target_subject=target,
                        what=f"{target} is an alias of {alias} on the target; remove the alias or rename the subject",
                    )
                )
        return found

    # -- values

    def _item(self, key: VersionKey) -> RegisteredSchema:
        item = self._source.version(*key)
        assert item is not None  # all keys come from the snapshot
        return item

    def _conflict(
        self,
        kind: Literal["id", "version", "content", "compatibility", "reference", "mode", "unsupported"],
        item: RegisteredSchema,
        what: str,
    ) -> SchemaConflict:
        return SchemaConflict(
            kind=kind,
            subject=item.subject,
            target_subject=self._targets[item.subject],
            version=item.version,
            id=item.id,
            what=f"{item.subject} version {item.version} (id {item.id}): {what}",
        )

    def _planned(
        self,
        item: RegisteredSchema,
        action: Literal["register", "exists", "conflict"],
        target_version: int,
        target_id: int,
    ) -> PlannedVersion:
        return PlannedVersion(
            version=item.version,
            id=item.id,
            deleted=item.deleted,
            digest=schema_digest(item.schema),
            action=action,
            target_version=target_version,
            target_id=target_id,
        )

    def _subjects(self, decided: _Decided, conflicts: list[SchemaConflict]) -> list[PlannedSubject]:
        """Return the subjects; a conflict of a whole subject, or of a reference, takes its versions with it."""
        versions: dict[str, list[PlannedVersion]] = {
            name: [] for name in self._targets if not self._source.subjects[name].versions
        }
        blocked = {
            (item.subject, item.version) for item in conflicts if item.kind in ("reference", "content", "unsupported")
        }
        for key in self._order:
            item = decided.versions[key]
            needs = reference_keys(self._item(key), self._source)
            if key in blocked or (key[0], 0) in blocked or any(needed in blocked for needed in needs):
                blocked.add(key)
                item = item.model_copy(update={"action": "conflict"})
            elif item.action == "conflict":
                blocked.add(key)
            versions.setdefault(key[0], []).append(item)
        return [self._subject(name, versions[name]) for name in sorted(versions)]

    def _subject(self, name: str, versions: list[PlannedVersion]) -> PlannedSubject:
        found = self._source.subjects[name]
        names = frozenset[str]().union(*(record_names(item.schema) for item in found.versions))
        return PlannedSubject(
            subject=name,
            target_subject=self._targets[name],
            type=found.versions[-1].schema.type if found.versions else "",
            versions=sorted(versions, key=lambda item: item.version),
            config=planned_config(found, self._selection),
            mode=found.mode or "",
            as_reference=found.as_reference,
            topics=topics_of(name, self._settings.topics_of_migration, names),
        )

    def _all_notes(self, mode: IdMode, decided: _Decided) -> list[str]:
        notes = [*self._notes, *([self._settings.unlisted] if self._settings.unlisted else [])]
        notes += self._dropped(decided)
        if not self._settings.global_config and self._source.global_config != self._target.global_config:
            notes.append(
                f"the global compatibility level stays {_text(self._target.global_config)}; the source has "
                f"{_text(self._source.global_config)} (schemas.global_config: true copies it)"
            )
        if not self._target.has_contexts and any(Subject.parse(name).context != "." for name in self._targets.values()):
            notes.append(
                f"the target registry ({self._target.kind}) has no contexts: subjects keep them as a part of their "
                "name, and all ids are one series"
            )
        merged = {*self._source.context_configs, *self._source.context_modes}
        notes += [
            f"the level and mode of the context {name} are not copied: its subjects move to the default context, which "
            "has those of the whole registry"
            for name in sorted(merged)
            if not has_own_scope(name, self._selection)
        ]
        renamed = {source for source, target in self._settings.topics_of_migration.items() if source != target}
        for name in sorted(self._targets):
            by_record = [topic for topic in topics_of(name, renamed, self._record_names(name)) if not _by_topic(name)]
            if by_record and self._targets[name] == name:
                notes.append(
                    f"{name} is named after the renamed topic {by_record[0]} and its record, and keeps its name; "
                    "if serializers on the target derive it from the topic, add it to schemas.rename.subjects"
                )
        notes += self._own_versions(decided)
        if mode == "keep":
            notes += self._changed_guids()
        if mode == "translate":
            notes += self._merged_keys()
        if mode == "translate" and self._settings.normalize:
            notes.append("schemas.normalize: the target registry may print schemas in another form")
        return notes

    def _merged_keys(self) -> list[str]:
        """Name ids that become one, if keys have ids: keys that differ only by them become equal, and are compacted."""
        topics = [item.topic for item in self._settings.topic_ids if item.parts in ("key", "both")]
        ids: dict[tuple[str, ContentKey], set[int]] = {}
        for item in (self._item(key) for key in self._order if topics):
            context = Subject.parse(item.subject).context
            ids.setdefault((context, content_key(item.schema, item.subject)), set()).add(item.id)
        several = sorted(sorted(found) for found in ids.values() if len(found) > 1)
        if not several:
            return []
        return [
            f"{len(several)} schemas have several ids on the source and may get one on the target; the first has the "
            f"ids {', '.join(map(str, several[0]))}. If {topics[0]}, or another topic with ids in its keys, is "
            "compacted, keys that differ only by these ids become equal there, and only the newest record stays"
        ]

    def _changed_guids(self) -> list[str]:
        """Name schemas that get another GUID, which is a hash over the schema with its references."""
        places = {key: (self._targets[key[0]], key[1]) for key in self._order}
        changed = set()
        for item in (self._item(key) for key in self._order):
            if not item.guid or not item.schema.references:
                continue
            target = self._targets[item.subject]
            schema = schema_for_target(item, self._source, target, places, contexts=self._target.has_contexts)
            if schema is not None and schema.references != item.schema.references:
                changed.add(item.subject)
        if not changed:
            return []
        return [
            f"{len(changed)} subjects have references that are written in another way on the target, so their schemas "
            f"get other GUIDs there; the first is {min(changed)}. Records keep their ids, but those with a GUID in a "
            "header need schemas.ids: translate"
        ]

    def _dropped(self, decided: _Decided) -> list[str]:
        """Name the subjects whose metadata or rule sets the target drops, as far as that can be known before."""
        items = {key: self._item(key).schema for key in self._order}
        if not self._metadata:
            having = {key[0] for key, schema in items.items() if schema.metadata or schema.rule_set}
            what = f"the target registry ({self._target.kind}) keeps no metadata and no rule sets"
            return [f"{what}: it drops those of {_listed(having)}"] if having else []
        with_rules = {key for key, schema in items.items() if schema.rule_set}
        without = {key for key in with_rules if self._is_without_rules(key, decided.versions[key])}
        notes = []
        if without:
            notes.append(
                f"the target registry ({self._target.kind}) has schemas of {_listed({key[0] for key in without})} "
                "without their rule sets (Confluent's community build drops them)"
            )
        unknown = {key[0] for key in with_rules if decided.versions[key].action == "register"}
        if unknown and not any(item.schema.rule_set for item in self._target.all_versions()):
            notes.append(
                f"the target registry ({self._target.kind}) does not show before they are written whether it keeps the "
                f"rule sets of {_listed(unknown)} (Confluent's community build drops them); validation names those "
                "that are missing"
            )
        return notes

    def _is_without_rules(self, key: VersionKey, decided: PlannedVersion) -> bool:
        there = self._target.version(self._targets[key[0]], decided.target_version)
        return decided.action == "exists" and there is not None and not there.schema.rule_set

    def _own_versions(self, decided: _Decided) -> list[str]:
        """Name subjects whose latest version on the target may be one that the source does not have."""
        if self._selection.versions != "all":
            return []
        placed = {(self._targets[key[0]], item.target_version) for key, item in decided.versions.items()}
        own = [
            target
            for source, target in sorted(self._targets.items())
            if (there := self._target.subjects.get(target)) is not None
            and not self._source.subjects[source].as_reference
            and any(not item.deleted and (target, item.version) not in placed for item in there.versions)
        ]
        if not own:
            return []
        return [f"{len(own)} subjects have versions on the target that the source does not have; the first is {own[0]}"]

    def _record_names(self, name: str) -> frozenset[str]:
        return frozenset[str]().union(*(record_names(item.schema) for item in self._source.subjects[name].versions))


_IMPORT_WORDS: dict[ImportScope, str] = {
    "subject": "the target registry can import under fixed ids, subject by subject",
    "context": "the contexts concerned are in mode IMPORT on the target",
    "registry": "the target registry is in mode IMPORT",
    "apicurio": "Apicurio can import under fixed ids",
}


def _by_topic(subject: str) -> bool:
    return Subject.parse(subject).name.endswith(("-key", "-value"))


def _listed(subjects: Collection[str]) -> str:
    """Count subjects, and name them, or the first of them."""
    shown = ", ".join(sorted(subjects)[:_NAMED_SUBJECTS]) + (", ..." if len(subjects) > _NAMED_SUBJECTS else "")
    return f"{len(subjects)} subject{'' if len(subjects) == 1 else 's'} ({shown})"


def _text(config: Mapping[str, Any] | None) -> str:
    return str((config or {}).get("compatibilityLevel") or "unset")
