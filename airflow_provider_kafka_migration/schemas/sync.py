"""Bring the schemas of the source registry to the target registry, as often as needed, and write the map of ids.

A pass puts back what a killed run has left changed, reads the source, reads the target, plans, carries the plan out,
and writes the map of ids and the result. Passes repeat while records are copied: new schemas appear, and copiers ask
for ids that they have found in records. A pass that finds nothing new asks the source for one list per subject, and
nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Literal

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.schemas import (
    SchemaConflict,
    SchemaFailure,
    SchemaIdMap,
    SchemaPlan,
    SchemasResult,
)
from airflow_provider_kafka_migration.errors import (
    Interrupted,
    MigrationError,
    SchemaConflicts,
    SchemaIdUnknown,
    SchemaNotFound,
)
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.background import BackgroundPasses
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Subject
from airflow_provider_kafka_migration.schema_ids.id_map import UndecidedId, WantedId
from airflow_provider_kafka_migration.schemas.apply import Applied, Apply
from airflow_provider_kafka_migration.schemas.id_map_document import (
    Held,
    NewIds,
    copied_ids,
    publish_id_map,
    unanswered,
    update_id_map,
    wanted_ids,
)
from airflow_provider_kafka_migration.schemas.levels import copy_levels
from airflow_provider_kafka_migration.schemas.modes import PHASE, TemporarySettings, former_modes, restore_source
from airflow_provider_kafka_migration.schemas.open import RegistryPair, open_pair
from airflow_provider_kafka_migration.schemas.parallel import ENDS_RUN
from airflow_provider_kafka_migration.schemas.payloads.judge import Decided, decide_ids, undecided_ids
from airflow_provider_kafka_migration.schemas.payloads.known_ids import KnownIds
from airflow_provider_kafka_migration.schemas.plan_schemas import (
    PlanSettings,
    ids_to_ask,
    plan_schemas,
    target_selection,
)
from airflow_provider_kafka_migration.schemas.references import VersionKey, reference_keys
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import (
    ReadsRegistry,
    RegistrySnapshot,
    SnapshotCache,
    SubjectSnapshot,
    ask_ids,
    read_snapshot,
)
from airflow_provider_kafka_migration.schemas.unlisted import find_unlisted, spelled_out
from airflow_provider_kafka_migration.schemas.written import Written, last_plan, last_started_plan

log = logging.getLogger(__name__)

Reason = Literal["schemas", "tail", "final", "cli"]
#: Every so many passes of a tail, levels and modes of known subjects are read again, and the target with them.
FULL_PASS_EVERY = 10
#: The source registry is asked again after this time before an id counts as absent.
CONFIRM_SECONDS = 2.0
#: How often it is asked for an id that it may have given a moment ago: one of the next after the highest that it shows.
#: A node that lags behind shows neither. Ids far above were never given; those below it has shown, or deleted.
LAG_ANSWERS = 10
_NEXT_IDS = 1000
#: Ids that records wait for, of which one pass journals the reason; the result has all of them.
_HELD_PER_PASS = 20
#: Conflicts of these kinds are for people to know: the versions are registered nevertheless.
_HARMLESS = ("compatibility",)


def synchronize(
    context: PhaseContext,
    pair: RegistryPair,
    *,
    reason: Reason,
    progress: Callable[[Progress], None] | None = None,
) -> SchemasResult:
    """Run one pass and return its result, which is also written to ``results/schemas.json``.

    What one schema, level or mode was refused for is in ``failed`` of the result; everything else is carried out.

    :param reason: ``schemas`` and ``cli`` write nothing if there are conflicts and ``on_conflict`` is ``stop``;
        ``final`` writes all that it can, then fails; ``tail`` goes on.
    :raises SchemaConflicts: see ``reason``.
    :raises ClaimLost: another owner has taken over.
    :raises MigrationError: a registry cannot be read, or stopped answering.
    """
    return _Pass(context, pair, reason, progress or context.progress).run()


class _Pass:
    """One pass."""

    def __init__(
        self, context: PhaseContext, pair: RegistryPair, reason: Reason, progress: Callable[[Progress], None]
    ) -> None:
        self._context = context
        self._record = context.record
        self._pair = pair
        self._reason = reason
        self._section = context.spec.schemas
        self._parallel = self._section.max_parallel_requests
        self._progress = progress
        self._settings = TemporarySettings(self._record, pair.target, "target", parallel=self._parallel)
        self._selection = selection_of(self._record)
        self._unlisted = ""
        self._asked: set[WantedId] = set()
        #: why ids that copiers ask for cannot be answered, as far as reading the source has shown
        self._why_held: dict[WantedId, MigrationError] = {}
        self._undecided: list[SchemaFailure] = []

    def run(self) -> SchemasResult:
        """Run it."""
        if self._section.topic is not None:
            return SchemasResult(
                migration_id=self._record.migration_id,
                reason=self._reason,
                at=iso(self._context.now()),
                id_mode="topic",
            )
        self._record.journal.refresh()
        self._settings.restore_open()
        if self._reason == "tail" and self._record.open_registry_settings("source") and not self._record.is_frozen():
            # A lifted freeze could not reach the source registry, which still refuses new schemas.
            restore_source(self._record, self._pair.source)
        publish_id_map(self._record)
        document = self._record.schema_id_map()
        wanted = wanted_ids(self._record)
        asked = self._asked = unanswered(wanted, document)
        undecided = undecided_ids(self._record, document)
        light = self._reason == "tail" and self._pair.passes % FULL_PASS_EVERY != 0
        if self._reason != "tail":
            found = find_unlisted(lambda: self._context.source.wire, self._pair.source, self._selection)
            self._unlisted = found.note
            self._selection = replace(self._selection, asked=self._selection.asked | found.names)
        source = self._read_source(light)
        add_copied_for_records(
            self._record,
            self._pair.source,
            source,
            wanted - asked,
            parallel=self._parallel,
            cache=self._pair.source_cache,
            light=light,
        )
        new = self._answer(asked, source)
        if undecided:
            new.decided, self._undecided = self._decide(undecided, source)
        digest = _digest(source)
        settled = self._pair.settled
        if light and not (asked or undecided) and settled is not None and settled[0] == digest:
            self._pair.passes += 1
            return settled[1]
        target = self._read_target(source)
        plan = plan_schemas(self._record.migration_id, source, target, self._plan_settings(document))
        result = self._carry_out(plan, source, target, new, for_records=bool(asked or undecided))
        self._pair.passes += 1
        done = not (result.failed or result.conflicts or result.unread)
        self._pair.settled = (digest, result) if done else None
        return result

    # ---- reading

    def _read_source(self, light: bool) -> RegistrySnapshot:
        found = read_snapshot(
            self._pair.source,
            self._selection,
            parallel=self._parallel,
            progress=self._report_line("source registry"),
            cache=self._pair.source_cache,
            light=light,
        )
        # While the source is read-only by the freeze, its own modes are those from before it.
        return found.with_modes(former_modes(self._record, "source"))

    def _read_target(self, source: RegistrySnapshot) -> RegistrySnapshot:
        found = read_snapshot(
            self._pair.target,
            target_selection(source, self._selection),
            parallel=self._parallel,
            progress=self._report_line("target registry"),
            cache=self._pair.target_cache,
        )
        ask_ids(
            self._pair.target,
            found,
            ids_to_ask(source, found, self._selection),
            parallel=self._parallel,
            progress=self._report_line("target registry"),
        )
        return found

    def _plan_settings(self, document: SchemaIdMap | None) -> PlanSettings:
        planned = self._record.schema_plan() if self._record.has_plan() else None
        mode = document.id_mode if document is not None else planned.id_mode if planned is not None else None
        return PlanSettings(
            selection=self._selection,
            ids=self._section.ids if mode is None or mode == "topic" else mode,
            global_config=self._section.global_config,
            normalize=self._section.normalize,
            topics_of_migration=self._selection.topics,
            topic_ids=planned.topics if planned is not None else (),
            written=Written(self._record),
            copied_ids=copied_ids(document),
            unlisted=self._unlisted,
        )

    # ---- ids that copiers ask for

    def _answer(self, asked: Iterable[WantedId], source: RegistrySnapshot) -> NewIds:
        """Find what copiers ask for; what the selection does not have is added to the snapshot of the source."""
        new = NewIds()
        by_id = source.by_id()
        guids = {item.guid.lower() for item in source.all_versions() if item.guid}
        ids = {(item.context, int(item.value)) for item in asked if item.kind == "id"} - by_id.keys()
        self._ask(source, ids)
        wanted_guids = {str(item.value).lower() for item in asked if item.kind == "guid"} - guids
        missing = {key for key in ids if key in source.ids and source.ids[key] is None}
        if missing or wanted_guids:
            self._confirm(source, missing)
        new.absent = {key for key in missing if key in source.ids and source.ids[key] is None}
        outside = {key for key in ids if source.ids.get(key) is not None}
        if outside or wanted_guids:
            everything = self._read_all()
            self._add(source, everything, outside, wanted_guids, new)
        return new

    def _decide(
        self, undecided: list[UndecidedId], source: RegistrySnapshot
    ) -> tuple[set[Decided], list[SchemaFailure]]:
        """Decode the records in which copiers have found ids of parts that no subject is named after."""
        known = KnownIds(source)
        unknown = {(item.context, item.id) for item in undecided if not known.is_shown(item.context, item.id)}
        answers = RegistrySnapshot()
        self._ask(answers, unknown)
        known.add(answers)
        return decide_ids(self._context.source.wire, known, undecided, self._record.where(PHASE, cluster="source"))

    def _confirm(self, source: RegistrySnapshot, missing: set[tuple[str, int]]) -> None:
        """Ask again for absent ids: a node that is behind lacks the newest, and an absent id is absent for good."""
        highest: dict[str, int] = {}
        for context, id_ in source.by_id():
            highest[context] = max(id_, highest.get(context, 0))
        ask = missing
        for _ in range(LAG_ANSWERS):
            time.sleep(CONFIRM_SECONDS)
            for key in ask:
                del source.ids[key]
            self._ask(source, ask)
            new = {key for key in ask if 0 < key[1] - highest.get(key[0], 0) <= _NEXT_IDS}
            ask = {key for key in new if key in source.ids and source.ids[key] is None}
            if not ask:
                return
            self._progress(Progress(PHASE, f"{len(ask)} ids in records may be newer than what the source shows"))

    def _ask(self, source: RegistrySnapshot, ids: set[tuple[str, int]]) -> None:
        ask_ids(self._pair.source, source, ids, parallel=self._parallel, cache=self._pair.source_cache)

    def _read_all(self) -> RegistrySnapshot:
        """Read the whole source registry: an id in records does not depend on the selection."""
        return read_snapshot(
            self._pair.source,
            Selection(topics=self._selection.topics),
            parallel=self._parallel,
            progress=self._report_line("source registry"),
            cache=self._pair.source_cache,
        )

    def _add(
        self,
        source: RegistrySnapshot,
        everything: RegistrySnapshot,
        ids: set[tuple[str, int]],
        guids: set[str],
        new: NewIds,
    ) -> None:
        by_id = everything.by_id()
        for key in sorted(ids):
            if key in by_id:
                _include(source, everything, by_id[key][0])
                continue
            error = SchemaNotFound(
                f"records have the schema id {key[1]} of context {key[0]}; the source registry has the schema, but no "
                "subject with it",
                where=self._record.where(PHASE, cluster="source"),
                next_step="register the schema under a subject of the source again: it gets its id back",
                details={"context": key[0], "id": key[1]},
            )
            self._why_held[WantedId(key[0], "id", key[1])] = error
        by_guid = {item.guid.lower(): item for item in everything.all_versions() if item.guid}
        for guid in sorted(guids):
            if guid in by_guid:
                _include(source, everything, by_guid[guid])
            elif not everything.unread:
                # The registry has listed all of its schemas, and none has this GUID.
                new.absent_guids.add(guid)
            else:
                what, why = min(everything.unread.items())
                self._note_unread_guid(guid, f"{what}: {why}")

    def _note_unread_guid(self, guid: str, unread: str) -> None:
        for item in self._asked:
            if item.kind == "guid" and str(item.value).lower() == guid:
                self._why_held[item] = SchemaIdUnknown(
                    f"records wait for the schema GUID {guid}; no schema of the source registry that could be read has "
                    f"it, and a part of the registry could not be read ({unread})",
                    where=self._record.where(PHASE, cluster="source"),
                    next_step="correct what keeps the registry from answering; the next pass reads it again",
                    details={"context": item.context, "kind": item.kind, "id": item.value},
                )

    # ---- writing

    def _carry_out(
        self,
        plan: SchemaPlan,
        source: RegistrySnapshot,
        target: RegistrySnapshot,
        new: NewIds,
        *,
        for_records: bool,
    ) -> SchemasResult:
        blocking = [item for item in plan.conflicts if item.kind not in _HARMLESS]
        fails = self._section.on_conflict == "stop"
        if blocking and fails and self._reason in ("schemas", "cli"):
            raise self._conflicts(blocking)
        if for_records or _registers(plan):
            self._journal_start(plan)
        apply = Apply(
            self._record,
            self._pair.target,
            plan,
            source,
            target,
            self._settings,
            normalize=self._section.normalize,
            parallel=self._parallel,
            ids_ignored=self._pair.ids_ignored,
            report=self._report,
        )
        try:
            apply.register()
        except BaseException as error:
            self._settings.restore_after(error)
            raise
        self._settings.restore()
        applied = apply.applied
        self._pair.ids_ignored = applied.ids_ignored
        copy_levels(self._record, self._pair.target, plan, target, self._selection, applied, parallel=self._parallel)
        result = self._write(plan, source, applied, new)
        if blocking and fails and self._reason == "final":
            raise self._conflicts(blocking)
        return result

    def _journal_start(self, plan: SchemaPlan) -> None:
        """Journal what is about to be registered: after a kill, nothing else shows whose these versions are."""
        journal, digest = self._record.journal, plan.digest()
        before = journal.find_step(steps.SCHEMAS_COPYING)
        if before is not None and before.details["plan"]["digest"] == digest:
            return
        journal.check_holds()
        self._record.journal_store.put(self._record.key(keys.schema_plan(digest)), plan.canonical())
        journal.step(
            steps.SCHEMAS_COPYING,
            details={"reason": self._reason, "plan": {"document": keys.schema_plan(digest), "digest": digest}},
            reason=f"schemas: {_registers(plan)} versions to register",
        )

    def _write(self, plan: SchemaPlan, source: RegistrySnapshot, applied: Applied, new: NewIds) -> SchemasResult:
        """Write the map of ids, then the plan and the result, then the journal."""
        found = NewIds.of(source, applied.places)
        found.absent, found.absent_guids, found.decided = new.absent, new.absent_guids, new.decided
        document, conflicts, grown = update_id_map(self._record, plan.id_mode, found)
        for (context, id_), error in conflicts:
            subject = Subject(context, f"schema id {id_}").qualified
            applied.fail(subject, 0, error)
        held = Held(self._record, source, plan, applied, self._why_held).failures(unanswered(self._asked, document))
        held += self._undecided
        digest = plan.digest()
        result = SchemasResult(
            migration_id=self._record.migration_id,
            reason=self._reason,
            at=iso(self._context.now()),
            id_mode=plan.id_mode,
            subjects=len(plan.subjects),
            versions=sum(len(item.versions) for item in plan.subjects),
            registered=applied.registered,
            deleted=applied.deleted,
            configs=applied.configs,
            ids=len(document.ids),
            plan_digest=digest,
            conflicts=list(plan.conflicts),
            failed=[*held, *applied.failed],
            unread=dict(plan.unread),
        )
        journal = self._record.journal
        journal.check_holds()
        first = journal.find_step(steps.SCHEMAS_COPIED) is None
        # A pass that was killed before this point may have copied what no journaled plan names.
        changed = bool(applied.changed or grown or first) or self._names_more(plan)
        if changed:
            self._record.journal_store.put(self._record.key(keys.schema_plan(digest)), plan.canonical())
        self._record.put_result(keys.SCHEMAS, result)
        if changed:
            self._journal(plan, document, result, applied)
        self._report_held(held)
        return result

    def _names_more(self, plan: SchemaPlan) -> bool:
        """Whether a plan has versions that the last one which was carried out lacks."""
        last = last_plan(self._record)
        return last is None or bool(_versions(plan) - _versions(last))

    def _report_held(self, held: list[SchemaFailure]) -> None:
        """Show why partitions wait; the journal gets each id once, and at most some in one pass."""
        if not held:
            return
        more = f" (and {len(held) - 1} more ids)" if len(held) > 1 else ""
        self._progress(Progress(PHASE, f"{held[0].error['what']}{more}"))
        journaled = {entry.step_key for entry in self._record.journal.steps(steps.SCHEMAS_FAILED)}
        for item in [item for item in held if item.schema_id not in journaled][:_HELD_PER_PASS]:
            self._record.journal.step_once(
                steps.SCHEMAS_FAILED, key=item.schema_id, details={"error": item.error}, reason=item.error["what"]
            )

    def _journal(self, plan: SchemaPlan, document: SchemaIdMap, result: SchemasResult, applied: Applied) -> None:
        counts = {
            "registered": applied.registered,
            "deleted": applied.deleted,
            "configs": applied.configs,
            "modes": applied.modes,
            "failed": len(result.failed),
            "conflicts": len(result.conflicts),
        }
        details: dict[str, Any] = {
            "reason": self._reason,
            "id_mode": plan.id_mode,
            "subjects": result.subjects,
            "versions": result.versions,
            "ids": result.ids,
            **counts,
            "plan": {"document": keys.schema_plan(result.plan_digest), "digest": result.plan_digest},
            "id_map": {"document": keys.SCHEMA_ID_MAP, "digest": document.digest()},
        }
        if applied.found:
            details["found"] = [list(key) for key in sorted(applied.found)]
        if applied.notes:
            details["notes"] = applied.notes[:20]
        text = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing to do"
        self._record.journal.step(steps.SCHEMAS_COPIED, details=details, reason=f"schemas: {text}")
        self._progress(Progress(PHASE, f"{result.subjects} subjects, {result.versions} versions: {text}"))

    def _conflicts(self, conflicts: list[SchemaConflict]) -> SchemaConflicts:
        return SchemaConflicts(
            f"the target registry contradicts the plan in {len(conflicts)} places; {conflicts[0].what}",
            where=self._record.where(PHASE, cluster="target"),
            next_step="resolve the conflicts on the target, or copy all others with schemas.on_conflict: note",
            details={"conflicts": [item.model_dump(mode="json") for item in conflicts[:100]]},
        )

    # ---- progress

    def _report(self, what: str, done: int, total: int) -> None:
        self._progress(Progress(PHASE, what, done=done, total=total, unit="versions"))

    def _report_line(self, what: str) -> Callable[[str], None]:
        return lambda text: self._progress(Progress(PHASE, f"{what}: {text}"))


def selection_of(record: MigrationRecord) -> Selection:
    """Return which subjects move, by the spec and by the topics of the plan."""
    topics = {topic.name: topic.target_name for topic in record.plan().topics} if record.has_plan() else {}
    selection = Selection.from_spec(record.spec.schemas, topics)
    plan = last_plan(record) if record.has_plan() else None
    planned = {item.subject for item in plan.subjects if not item.versions} if plan is not None else set()
    return replace(selection, asked=spelled_out(selection) | planned)


def _versions(plan: SchemaPlan) -> set[VersionKey]:
    return {(subject.subject, item.version) for subject in plan.subjects for item in subject.versions}


def _registers(plan: SchemaPlan) -> int:
    return sum(item.action == "register" for subject in plan.subjects for item in subject.versions)


def add_copied_for_records(
    record: MigrationRecord,
    registry: ReadsRegistry,
    source: RegistrySnapshot,
    wanted: Iterable[WantedId],
    *,
    parallel: int,
    cache: SnapshotCache | None = None,
    light: bool = False,
) -> None:
    """Add versions outside the selection that were copied because records have their ids, with what they refer to.

    :param wanted: what copiers have asked for and the map of ids has.
    :raises MigrationError: the registry cannot be read.
    """
    by_id = source.by_id()
    guids = {item.guid.lower() for item in source.all_versions() if item.guid}
    ids = {(item.context, int(item.value)) for item in wanted if item.kind == "id"} - by_id.keys()
    wanted_guids = {str(item.value).lower() for item in wanted if item.kind == "guid"} - guids
    plan = last_started_plan(record) if ids or wanted_guids else None
    missing = {key for key in _versions(plan) if source.version(*key) is None} if plan is not None else set()
    if not missing:
        return
    names = {subject for subject, _ in missing}
    more = read_snapshot(registry, Selection.exactly(names), parallel=parallel, cache=cache, light=light)
    source.unread |= {key: why for key, why in more.unread.items() if key.startswith("subject ")}
    for item in more.all_versions():
        asked = (Subject.parse(item.subject).context, item.id) in ids or item.guid.lower() in wanted_guids
        if asked and (item.subject, item.version) in missing:
            _include(source, more, item)


def _include(source: RegistrySnapshot, everything: RegistrySnapshot, item: RegisteredSchema) -> None:
    """Add a version of the whole registry to a snapshot, with all that it refers to."""
    todo: list[VersionKey] = [(item.subject, item.version)]
    while todo:
        subject, number = todo.pop()
        version = everything.version(subject, number)
        if version is None or source.version(subject, number) is not None:
            continue
        whole = everything.subjects[subject]
        known = source.subjects.get(subject)
        before = known or SubjectSnapshot(subject, (), whole.config, whole.mode, as_reference=True)
        versions = sorted((*before.versions, version), key=lambda each: each.version)
        source.subjects[subject] = replace(before, versions=tuple(versions))
        source.left_out.pop(subject, None)
        todo += reference_keys(version, everything)
    source.subjects = dict(sorted(source.subjects.items()))


def _digest(source: RegistrySnapshot) -> str:
    """A digest of all that a plan takes from the source."""
    return canonical_digest(
        {
            "subjects": [
                [name, item.config, item.mode, [[each.version, each.id, each.deleted] for each in item.versions]]
                for name, item in source.subjects.items()
            ],
            "levels": [source.global_config, source.context_configs, source.global_mode, source.context_modes],
            "unread": source.unread,
        }
    )


# -- while records are copied -----------------------------------------------------------------------------------------


def _is_left_to_cutover(record: MigrationRecord) -> bool:
    """Whether a cutover brings over what is left. A mirror has none, and its copiers may wait for a schema."""
    return record.spec.kind != "mirror" and record.is_frozen()


class SchemaFollower(BackgroundPasses[ExitStack]):
    """Runs passes in its own thread, with its own connections, until the ``with`` block ends.

    A pass runs every ``schemas.interval``, and as soon as a copier asks for an id. Errors are logged and journaled,
    each kind once; they never end the copy. A lost claim ends the follower. During a freeze it pauses: the cutover runs
    the passes and answers copiers then, and two processes would only put back each other's modes.

    :param poll_seconds: how often the journal store is listed for ids that copiers ask for.
    """

    thread_name = "schemas"
    failed_text = "Schemas could not be copied"
    ended_text = "The copy of schemas has ended"
    final = ENDS_RUN
    # A pass puts modes of the target registry back at its end, also behind a copy that failed.
    patience_seconds = 120.0

    def __init__(
        self,
        context: PhaseContext,
        open_registries: Callable[[PhaseContext], RegistryPair] = open_pair,
        *,
        poll_seconds: float = 1.0,
    ) -> None:
        self._interval = context.spec.schemas.interval.total_seconds()
        super().__init__(self._interval, first_seconds=0.0)
        self._context = context
        self._open_registries = open_registries
        self._poll_seconds = poll_seconds
        self._pair: RegistryPair | None = None
        #: ids that copiers had asked for when the last pass began
        self._answered: set[WantedId | UndecidedId] = set()
        self._reported: set[str] = set()

    def once(self, memory: dict[str, Any]) -> None:
        """Run one pass in this thread if one is due or a copier asks for an id; for a task that wakes up now and then.

        :param memory: what the caller remembers between two calls, JSON-serializable.
        :raises ClaimLost: another owner has taken over.
        """
        if not self._context.spec.schemas.copies:
            return
        journal = self._context.journal
        self._reported = {entry.step_key or "" for entry in journal.steps(steps.SCHEMAS_FAILED)}
        pair: RegistryPair | None = None
        try:
            asked = len(wanted_ids(self._context.record)) + len(undecided_ids(self._context.record, None))
            is_due = time.time() - float(memory.get("schemas_at", 0.0)) >= self._interval
            if not is_due and asked == memory.get("schema_ids_asked", 0):
                return
            pair = self._open_registries(self._context)
            journal.refresh()
            if not _is_left_to_cutover(self._context.record):
                synchronize(self._context, pair, reason="tail", progress=self._progress)
            memory.update(schemas_at=time.time(), schema_ids_asked=asked)
        except ENDS_RUN:
            raise
        except Exception as error:
            self._tell(error)
        finally:
            if pair is not None:
                pair.close()

    def _is_wanted(self) -> bool:
        return self._context.spec.schemas.copies

    def _open(self) -> ExitStack:
        return ExitStack()

    def _pass(self, own: ExitStack) -> None:
        self._answered = set()
        if self._pair is None:
            self._pair = self._open_registries(self._context)
            own.callback(self._pair.close)
        self._answered = self._asked_for()
        self._context.journal.refresh()
        if _is_left_to_cutover(self._context.record):
            return
        # A pass that the end of the copy has interrupted has put back what it had changed; no other one follows.
        with suppress(Interrupted):
            synchronize(self._context, self._pair, reason="tail", progress=self._progress)

    def _asked_for(self) -> set[WantedId | UndecidedId]:
        record = self._context.record
        return {*wanted_ids(record), *undecided_ids(record, None)}

    def _progress(self, line: Progress) -> None:
        """Report, and end a pass that the copy has ended before: it puts back what it has changed."""
        if self._stop.is_set():
            raise Interrupted(
                "the copy of records has ended before this pass over the schemas",
                where=self._context.where(PHASE),
                next_step="none: the next pass continues",
            )
        self._context.progress(line)

    def _wait(self) -> bool:
        """Wait for the next pass, or until a copier asks for an id; return True as soon as the copy has ended."""
        waited = 0.0
        while waited < self._interval:
            if self._stop.wait(min(self._poll_seconds, self._interval - waited)):
                return True
            waited += self._poll_seconds
            try:
                if self._asked_for() - self._answered:
                    return False
            except MigrationError as error:
                log.warning("Ids that copiers ask for could not be listed: %s", error)
        return self._stop.is_set()

    def _tell(self, error: Exception) -> None:
        """Log an error in each pass, and journal each kind of error once."""
        super()._tell(error)
        why = error.what if isinstance(error, MigrationError) else f"{type(error).__name__}: {error}"
        self._context.progress(Progress(PHASE, f"schemas could not be copied: {why}"))
        if not isinstance(error, MigrationError) or error.code in self._reported:
            return
        self._reported.add(error.code)
        try:
            self._context.journal.step(
                steps.SCHEMAS_FAILED, key=error.code, details={"error": error.as_dict()}, reason=error.what
            )
        except MigrationError as second:
            log.warning("The error could not be journaled: %s", second)
