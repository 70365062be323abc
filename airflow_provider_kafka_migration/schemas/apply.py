"""Carry out a schema plan: register versions, delete again those that are deleted on the source, set levels and modes.

The order of a run: mode IMPORT where fixed ids need it; all versions, referenced ones first; deletions, referring ones
first; former modes back; levels and modes of the source. Each step reads what is there, so a run that was killed is
continued by running it again: a registration of what is already there changes nothing.

An error of one version is data, and everything that does not depend on it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.documents.schemas import (
    PlannedSubject,
    PlannedVersion,
    SchemaConflict,
    SchemaFailure,
    SchemaPlan,
)
from airflow_provider_kafka_migration.errors import (
    MigrationError,
    NotInImportMode,
    RegistryRefused,
    SchemaConflicts,
    SchemaIdConflict,
    SchemaIdIgnored,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaReferenceMissing,
    Transient,
)
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.schemas.content import same_schema
from airflow_provider_kafka_migration.schemas.modes import PHASE, ImportMode, TemporarySettings
from airflow_provider_kafka_migration.schemas.parallel import ENDS_RUN, in_order
from airflow_provider_kafka_migration.schemas.references import (
    VersionKey,
    reference_keys,
    registration_order,
    schema_for_target,
)
from airflow_provider_kafka_migration.schemas.snapshot import MAX_FAILURES_IN_ROW, RegistrySnapshot
from airflow_provider_kafka_migration.schemas.written import Written
from airflow_provider_kafka_migration.spec.advice import begin_again

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry

#: The claim is read from the journal at most this often; each reading lists the journal.
_CLAIM_SECONDS = 2.0
_REPORT_SECONDS = 2.0
#: Rounds over versions whose registration was refused for a setting that the migration may change.
MAX_ROUNDS = 4
#: Products that refuse another schema under a used id by themselves.
_CHECK_IDS = ("confluent", "redpanda")

#: Versions in one import, unless a group of schemas that belong together has more.
_IMPORT_ROWS = 500
#: Refusals that :meth:`Apply._remedy` can end.
_SETTING_IS_IN_THE_WAY = (SchemaIncompatible, NotInImportMode)

_Errors = dict[VersionKey, MigrationError]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Place:
    """Where a source version is on the target."""

    subject: str
    version: int
    id: int
    guid: str = ""


@dataclass
class Applied:
    """What a run has done, and where everything is now.

    :param places: every version that is on the target, by source subject and version.
    :param found: source versions whose registration the target answered with a version of its own that it had before.
    :param notes: for people.
    :param ids_ignored: what the target registry did instead of keeping an id; empty: it has kept all of them. From
        then on nothing is registered, because each version would get a wrong id.
    """

    registered: int = 0
    deleted: int = 0
    configs: int = 0
    modes: int = 0
    places: dict[VersionKey, Place] = field(default_factory=dict)
    found: set[VersionKey] = field(default_factory=set)
    failed: list[SchemaFailure] = field(default_factory=list)
    conflicts: list[SchemaConflict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ids_ignored: str = ""

    @property
    def changed(self) -> int:
        """The number of writes that changed the target."""
        return self.registered + self.deleted + self.configs + self.modes

    def fail(self, subject: str, version: int, error: MigrationError) -> None:
        """Note the error of one version, or of a subject's level or mode (version 0)."""
        self.failed.append(SchemaFailure(subject=subject, version=version, error=error.as_dict()))


class Claim:
    """Checks before writes that the migration is still held, reading the journal now and then. Thread-safe."""

    def __init__(self, record: MigrationRecord) -> None:
        self._record = record
        self._lock = threading.Lock()
        self._checked = -_CLAIM_SECONDS

    def check(self) -> None:
        """Check the claim, unless it was checked a moment ago.

        :raises ClaimLost: another owner has taken over.
        """
        with self._lock:
            if time.monotonic() - self._checked >= _CLAIM_SECONDS:
                self._record.journal.check_holds()
                self._checked = time.monotonic()


class Apply:
    """One run of a plan.

    :param source: the snapshot that the plan was made from; it has the content of all planned versions.
    :param present: the target as the plan has seen it.
    :param settings: what is changed on the target for a while; the caller puts it back.
    :param normalize: ask the target registry to normalize schemas (only without fixed ids).
    :param parallel: requests at the same time.
    :param ids_ignored: how the target has ignored a fixed id before, see :attr:`Applied.ids_ignored`.
    """

    def __init__(
        self,
        record: MigrationRecord,
        target: Registry,
        plan: SchemaPlan,
        source: RegistrySnapshot,
        present: RegistrySnapshot,
        settings: TemporarySettings,
        *,
        normalize: bool = False,
        parallel: int = 8,
        ids_ignored: str = "",
        report: Report = lambda _what, _done, _total: None,
    ) -> None:
        self._record = record
        self._target = target
        self._plan = plan
        self._present = present
        self._settings = settings
        self._normalize = normalize and plan.id_mode == "translate"
        self._parallel = max(1, parallel)
        self._report = report
        self._claim = Claim(record)
        self._written = Written(record)
        self._fixed = plan.id_mode == "keep"
        self._subjects = {item.subject: item for item in plan.subjects}
        self._stays_live = frozenset(plan.stays_live)
        self._planned: dict[VersionKey, PlannedVersion] = {
            (item.subject, version.version): version for item in plan.subjects for version in item.versions
        }
        self._source = source
        self._order = registration_order(source)
        self._import_mode = ImportMode(
            settings,
            target,
            plan.import_scope,
            occupied=self._occupied,
            vacant=self._vacant,
            read_only={
                item.target_subject for item in plan.subjects if item.mode and item.mode == self._present_mode(item)
            },
            parallel=self._parallel,
        )
        self._lock = threading.Lock()
        self._deleted_now: set[tuple[str, int]] = set()
        self._unwritable: dict[str, MigrationError] = {}
        self._waits: dict[VersionKey, set[VersionKey]] = {}
        self._unanswered = 0
        self._total = 0
        self._reported = 0.0
        self.applied = Applied(ids_ignored=ids_ignored if self._fixed else "")

    # ---- the run

    def register(self) -> None:
        """Bring all versions to the target, and delete again those that are deleted on the source.

        :raises ClaimLost: another owner has taken over.
        """
        self._take_present()
        todo = self._to_register()
        if todo and self._plan.import_scope == "apicurio":
            self._import_all(todo)
        elif todo:
            if self._fixed and self._plan.import_scope:
                subjects = {self._subjects[subject].target_subject: subject for subject, _ in todo}
                refused = self._import_mode.set(subjects)
                self._unwritable = {subjects[name]: error for name, error in refused.items()}
            self._register_all(todo)
        self._delete_all()

    def _take_present(self) -> None:
        """Note what the plan has found on the target."""
        for key, version in self._planned.items():
            if version.action == "exists":
                subject = self._subjects[key[0]].target_subject
                found = self._present.version(subject, version.target_version)
                guid = found.guid if found is not None else ""
                self.applied.places[key] = Place(subject, version.target_version, version.target_id, guid)

    def _to_register(self) -> list[VersionKey]:
        """The versions to register, in their order."""
        chosen = [key for key in self._order if (item := self._planned.get(key)) and item.action == "register"]
        last: dict[str, VersionKey] = {}
        for key in chosen:
            # The versions of a subject are registered one after the other: a target without fixed ids numbers them.
            before = [last[key[0]]] if key[0] in last else []
            # With fixed ids, the answer to the first one shows whether the target keeps them.
            probe = chosen[:1] if self._fixed and key != chosen[0] else []
            self._waits[key] = {*self._references(key), *before, *probe}
            last[key[0]] = key
        return chosen

    def _references(self, key: VersionKey) -> list[VersionKey]:
        """What a source version refers to."""
        item = self._source.version(*key)
        return [] if item is None else reference_keys(item, self._source)

    # ---- registering

    def _register_all(self, todo: list[VersionKey]) -> None:
        """Register in rounds: what a setting of the target has refused is tried again once that is changed."""
        self._total = len(todo)
        for round_ in range(MAX_ROUNDS):
            last = round_ == MAX_ROUNDS - 1
            refused, waiting = self._round(todo)
            left = waiting | refused
            todo = [key for key in todo if key in left]
            if not todo:
                return
            if last or not self._remedy(refused):
                for key in todo:
                    self.applied.fail(*key, left[key])
                return

    def _remedy(self, refused: Mapping[VersionKey, MigrationError]) -> bool:
        """Change the settings for which versions were refused. Return whether another round is worthwhile."""
        lift = self._targets_of(refused, SchemaIncompatible)
        again = self._targets_of(refused, NotInImportMode) if self._fixed else set()
        failed = self._settings.lift_levels(lift) | self._import_mode.again(again)
        return len(failed) < len(lift | again)

    def _targets_of(self, refused: Mapping[VersionKey, MigrationError], kind: type[MigrationError]) -> set[str]:
        """The target subjects of versions that were refused in one way."""
        return {self._subjects[key[0]].target_subject for key, error in refused.items() if isinstance(error, kind)}

    def _round(self, todo: list[VersionKey]) -> tuple[_Errors, _Errors]:
        """Register versions in parallel.

        :returns: versions that may succeed once a setting is changed, and those that wait for one of these; each with
            the refusal.
        """
        refused: _Errors = {}
        waiting: _Errors = {}

        def may_start(key: VersionKey) -> bool:
            blocked = self._waits_for(key, refused | waiting)
            if blocked is not None:
                waiting[key] = blocked
                return False
            error = self._why_not(key)
            if error is not None:
                self.applied.fail(*key, error)
            return error is None

        def ended(key: VersionKey, result: Place | MigrationError) -> None:
            if isinstance(result, MigrationError):
                self._no_answer(result)
                if isinstance(result, _SETTING_IS_IN_THE_WAY):
                    refused[key] = result
                else:
                    self._failed(key, result)
            else:
                self._unanswered = 0
                self.applied.places[key] = result
                if self._is_foreign(key, result):
                    self.applied.found.add(key)
                else:
                    self.applied.registered += 1
            self._tell()

        in_order(todo, self._waits, self._register, parallel=self._parallel, may_start=may_start, ended=ended)
        return refused, waiting

    def _is_foreign(self, key: VersionKey, place: Place) -> bool:
        """Whether the answer to a registration is a version that the target had before, and not from this migration."""
        there = self._present.version(place.subject, place.version)
        if self._fixed or there is None or there.deleted or (place.subject, place.version) in self._deleted_now:
            return False
        return not self._written.has_registered(*key, place.subject, place.version)

    def _failed(self, key: VersionKey, error: MigrationError) -> None:
        self.applied.fail(*key, error)
        if isinstance(error, SchemaIdIgnored) and error.details.get("got", [None])[0] != self._planned[key].target_id:
            self.applied.ids_ignored = self.applied.ids_ignored or error.what
        if isinstance(error, Transient) and not self._fixed:
            # The target numbers versions in the order of their registration: the later ones wait for the next run.
            self._unwritable[key[0]] = error

    def _waits_for(self, key: VersionKey, refused: _Errors) -> MigrationError | None:
        """The refusal that ends the waiting of a version once it is remedied."""
        before = [other for other in self._waits[key] if other[0] == key[0] and not self._fixed]
        return next((refused[other] for other in (*self._references(key), *before) if other in refused), None)

    def _no_answer(self, error: MigrationError) -> None:
        """Give up once the registry no longer answers: each request takes its full time limit then."""
        self._unanswered = self._unanswered + 1 if isinstance(error, Transient) else 0
        if self._unanswered >= MAX_FAILURES_IN_ROW:
            raise error

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._report("versions registered", self.applied.registered, self._total)

    def _why_not(self, key: VersionKey) -> MigrationError | None:
        """Why a version cannot be registered: its subject cannot be written, its id would be a wrong one, or a
        reference is missing.
        """
        if self.applied.ids_ignored:
            return SchemaIdIgnored(
                f"version {key[1]} of subject {key[0]} was not registered, because the target registry ignores fixed "
                f"ids: {self.applied.ids_ignored}",
                where=self._record.where(PHASE, cluster="target"),
                next_step="delete the version that it has registered; this registry needs schemas.ids: translate, so "
                f"{begin_again(self._record.spec)} and that key",
            )
        if key[0] in self._unwritable:
            return self._unwritable[key[0]]
        if self._source.version(*key) is None:
            return SchemaNotFound(
                f"version {key[1]} of subject {key[0]} is planned, but the source registry did not return it",
                where=self._record.where(PHASE, cluster="source"),
                next_step="clear the task: it reads the source registry again",
            )
        for other in self._references(key):
            if other not in self.applied.places:
                return SchemaReferenceMissing(
                    f"version {key[1]} of subject {key[0]} refers to version {other[1]} of subject {other[0]}, which "
                    "is not on the target",
                    where=self._record.where(PHASE, cluster="target"),
                    next_step="see the failures and conflicts of this synchronization for the reason",
                    details={"subject": other[0], "version": other[1]},
                )
        return None

    def _register(self, key: VersionKey) -> Place:
        """Register one version and return its place."""
        self._claim.check()
        subject = self._subjects[key[0]]
        planned = self._planned[key]
        schema = self._target_schema(key)
        self._delete_same_before(key)
        if not self._fixed:
            found = self._target.register(subject.target_subject, schema, normalize=self._normalize)
            return Place(subject.target_subject, found.version, found.id, found.guid)
        if self._plan.target_kind not in _CHECK_IDS:
            self._check_id(key, schema)
        try:
            found = self._target.register(
                subject.target_subject, schema, id=planned.target_id, version=planned.target_version
            )
        except SchemaIdConflict:
            # A registry that compares texts may refuse what it has itself reformatted.
            same = self._target.lookup(subject.target_subject, schema, deleted=True)
            if same is None or (same.id, same.version) != (planned.target_id, planned.target_version):
                raise
            found = same
        except SchemaIdIgnored as error:
            twin = self._live_twin(key)
            if twin is None or list(error.details.get("got", ())) != [planned.target_id, twin.target_version]:
                raise
            # The registry holds one version of this schema in the subject, and the live one is what counts.
            self.applied.notes.append(
                f"version {key[1]} of subject {key[0]} is deleted on the source and has the schema of "
                f"version {twin.version}; the target registry does not keep both"
            )
            return Place(subject.target_subject, twin.target_version, twin.target_id)
        return Place(subject.target_subject, found.version, found.id, found.guid)

    def _target_schema(self, key: VersionKey) -> Schema:
        """Return a source version's schema as the target gets it, once its references are there."""
        item = self._source.version(*key)
        assert item is not None  # checked by _why_not
        placed = {other: self._placed(other) for other in self._references(key)}
        subject = self._subjects[key[0]].target_subject
        schema = schema_for_target(item, self._source, subject, placed, contexts=self._present.has_contexts)
        assert schema is not None
        return schema

    def _placed(self, key: VersionKey) -> VersionKey:
        """Where a version is on the target, or will be."""
        place = self.applied.places.get(key)
        if place is not None:
            return place.subject, place.version
        return self._subjects[key[0]].target_subject, self._planned[key].target_version

    def _check_id(self, key: VersionKey, schema: Schema) -> None:
        """Check that no other schema has taken an id since the target was read; some registries would replace it."""
        planned = self._planned[key]
        context = Subject.parse(self._subjects[key[0]].target_subject).context
        found = self._target.schema_by_id(planned.target_id, context=context)
        if found is None or same_schema(found, schema, metadata=False, rule_set=False):
            return
        raise SchemaIdConflict(
            f"another schema has been registered under id {planned.target_id} since the target registry was read, so "
            f"version {key[1]} of subject {key[0]} cannot keep it",
            where=self._record.where(PHASE, cluster="target"),
            next_step="remove the foreign schema from the target, or copy all others with schemas.on_conflict: note; "
            f"to keep both, {begin_again(self._record.spec)} and schemas.ids: translate",
            details={"id": planned.target_id, "context": context},
        )

    def _live_twin(self, key: VersionKey) -> PlannedVersion | None:
        """The live version of a subject with the id of a deleted one."""
        mine = self._planned[key]
        if not mine.deleted:
            return None
        same = (
            item for item in self._subjects[key[0]].versions if item.target_id == mine.target_id and not item.deleted
        )
        return next(same, None)

    # ---- deleting

    def _delete_same_before(self, key: VersionKey) -> None:
        """Delete earlier versions with the same schema that are deleted on the source.

        A registry answers the registration of a schema with the live version that has it, so a subject that had its
        schema deleted and registered again would come out with one version.
        """
        planned = self._planned[key]
        for other in self._subjects[key[0]].versions:
            before = (key[0], other.version)
            if other.version >= planned.version or not other.deleted or other.digest != planned.digest:
                continue
            place = self.applied.places.get(before)
            if place is not None and not self._is_deleted(place) and not self._is_kept(before, place):
                self._delete(place)

    def _delete_all(self) -> None:
        """Delete again what is deleted on the source; what refers to others first, because it would block them."""
        chosen = []
        waits: dict[VersionKey, set[VersionKey]] = {}
        for key in reversed(self._order):
            planned, place = self._planned.get(key), self.applied.places.get(key)
            if planned is None or place is None or not planned.deleted:
                continue
            if self._is_deleted(place) or self._is_kept(key, place):
                if key in self.applied.found and not self._is_live_too(key, place):
                    self.applied.fail(*key, self._stays(key, place))
                continue
            chosen.append(key)
            for other in self._references(key):
                waits.setdefault(other, set()).add(key)

        def ended(key: VersionKey, result: MigrationError | None) -> None:
            if result is not None:
                self._no_answer(result)
                self.applied.fail(*key, result)

        in_order(
            chosen,
            waits,
            lambda key: self._delete(self.applied.places[key]),
            parallel=self._parallel,
            may_start=lambda _key: True,
            ended=ended,
        )

    def _is_kept(self, key: VersionKey, place: Place) -> bool:
        """Whether a live version of the source has this place, too, or the version there is not the migration's."""
        return key in self._stays_live or key in self.applied.found or self._is_live_too(key, place)

    def _is_live_too(self, key: VersionKey, place: Place) -> bool:
        live = (
            self.applied.places.get((key[0], item.version))
            for item in self._subjects[key[0]].versions
            if not item.deleted
        )
        return any(other is not None and other.version == place.version for other in live)

    def _stays(self, key: VersionKey, place: Place) -> SchemaConflicts:
        """The error of a deleted version whose place is one of the target's own, which only a person may delete."""
        return SchemaConflicts(
            f"version {key[1]} of subject {key[0]} is deleted on the source, and the target holds version "
            f"{place.version} of {place.subject}, which this migration has not registered, to be the same schema: it "
            "stays live",
            where=self._record.where(PHASE, cluster="target"),
            next_step="delete that version on the target if nobody needs it, or copy all others with "
            "schemas.on_conflict: note; then clear the task",
            details={"subject": place.subject, "version": place.version},
        )

    def _delete(self, place: Place) -> None:
        self._claim.check()
        try:
            self._target.delete_version(place.subject, place.version)
        except (SchemaNotFound, RegistryRefused):
            # Somebody has deleted it already, if the registry lists it among the deleted ones only.
            live, every = (self._target.versions(place.subject, deleted=flag) for flag in (False, True))
            if place.version in live or place.version not in every:
                raise
        else:
            with self._lock:
                self.applied.deleted += 1
        self._deleted_now.add((place.subject, place.version))

    def _is_deleted(self, place: Place) -> bool:
        if (place.subject, place.version) in self._deleted_now:
            return True
        found = self._present.version(place.subject, place.version)
        return found is not None and found.deleted

    # ---- what the target had

    def _occupied(self, scope: str) -> bool:
        """Whether a scope of the target has schemas, including soft-deleted ones."""
        if Subject.parse(scope).name:
            return scope in self._present.subjects
        return bool(self._names_in(scope))

    def _names_in(self, scope: str) -> frozenset[str]:
        """The subjects that the target listed in a context, or in the whole registry."""
        return self._present.names_in(Subject.parse(scope).context if scope else None)

    def _vacant(self, scope: str) -> bool:
        """Whether nobody else has subjects in a context, or in the whole registry."""
        return self._names_in(scope) <= self._written.subjects

    def _present_mode(self, item: PlannedSubject) -> str | None:
        found = self._present.subjects.get(item.target_subject)
        return None if found is None else found.mode

    # ---- Apicurio

    def _import_all(self, todo: list[VersionKey]) -> None:
        """Import through Apicurio's own API, which takes ids, versions and deleted states as they are.

        Schemas that refer to each other are imported together. If a batch is refused, its groups are tried one by one.
        """
        chosen = set(todo)
        rows: dict[VersionKey, RegisteredSchema] = {}
        for key in todo:
            error = self._why_not_imported(key, chosen)
            if error is not None:
                chosen.discard(key)
                self.applied.fail(*key, error)
            else:
                rows[key] = self._row(key)
        self._total = len(rows)
        groups = _connected({key: [other for other in self._references(key) if other in rows] for key in rows})
        for batch in _batches(groups, _IMPORT_ROWS):
            self._claim.check()
            try:
                self._import([key for group in batch for key in group], rows)
            except ENDS_RUN:
                raise
            except MigrationError as error:
                self._no_answer(error)
                self._import_one_by_one(batch, rows, error)

    def _import_one_by_one(
        self, groups: list[list[VersionKey]], rows: Mapping[VersionKey, RegisteredSchema], first: MigrationError
    ) -> None:
        for group in groups:
            try:
                if len(groups) == 1:
                    raise first
                self._import(group, rows)
            except ENDS_RUN:
                raise
            except MigrationError as error:
                self._no_answer(error)
                for key in group:
                    self.applied.fail(*key, error)

    def _import(self, batch: list[VersionKey], rows: Mapping[VersionKey, RegisteredSchema]) -> None:
        own_api = self._target.apicurio()
        if own_api is None:
            raise RegistryRefused(
                "Apicurio's own API, which can keep schema ids, does not answer under the host of the target registry",
                where=self._record.where(PHASE, cluster="target"),
                next_step="make /apis/registry/v3 reachable under the URL of the connection",
            )
        own_api.import_schemas([rows[key] for key in batch])
        for key in batch:
            row = rows[key]
            self.applied.places[key] = Place(row.subject, row.version, row.id)
            self.applied.registered += 1
            if row.deleted:
                self._deleted_now.add((row.subject, row.version))
                self.applied.deleted += 1
        self._unanswered = 0
        self._tell()

    def _why_not_imported(self, key: VersionKey, chosen: set[VersionKey]) -> MigrationError | None:
        """As :meth:`_why_not`; what is imported together counts as being there."""
        missing = [other for other in self._references(key) if other not in chosen and other not in self.applied.places]
        return self._why_not(key) if missing or self._source.version(*key) is None else None

    def _row(self, key: VersionKey) -> RegisteredSchema:
        planned = self._planned[key]
        return RegisteredSchema(
            self._subjects[key[0]].target_subject,
            planned.target_version,
            planned.target_id,
            self._target_schema(key),
            deleted=planned.deleted,
        )


def _connected(references: Mapping[VersionKey, list[VersionKey]]) -> list[list[VersionKey]]:
    """Group versions that share a subject or refer to each other; inside a group, they keep their order."""
    leader: dict[str, str] = {key[0]: key[0] for key in references}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for key, others in references.items():
        for other in others:
            leader[find(other[0])] = find(key[0])
    groups: dict[str, list[VersionKey]] = {}
    for key in references:
        groups.setdefault(find(key[0]), []).append(key)
    return list(groups.values())


def _batches(groups: list[list[VersionKey]], size: int) -> list[list[list[VersionKey]]]:
    """Put groups together until they have about ``size`` versions."""
    found: list[list[list[VersionKey]]] = []
    count = size
    for group in groups:
        if count >= size:
            found.append([])
            count = 0
        found[-1].append(group)
        count += len(group)
    return found
