"""The record of a migration: what phases learn from each other, as typed facts over the journal and the stores.

Each fact has one place here, with the journal step (:mod:`~.record.steps`) or the document (:mod:`~.record.keys`) that
it is read from, its type, and what it means if it is absent: ``None``, or an error that names what is missing. A
document that the journal says was written, and that is not in the store, is an error and never "nothing".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from airflow_provider_kafka_migration.copy.archive import joined, read_gaps
from airflow_provider_kafka_migration.copy.read_watch import describe, read_overtaken
from airflow_provider_kafka_migration.documents.adoption import Adoption, BelowMap
from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.copy import (
    BackupEnd,
    BackupSource,
    CopyJob,
    CopyPartition,
    OffsetMapDocument,
    ProducerIds,
    StopAt,
)
from airflow_provider_kafka_migration.documents.cutover import Boundary, FrozenTime, GroupsResult, GroupsSnapshot
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest
from airflow_provider_kafka_migration.documents.plan import (
    LeftOut,
    MeasuredRates,
    Plan,
    PlanSupplement,
    PrecheckResult,
    supplemented,
)
from airflow_provider_kafka_migration.documents.proof import Outcome, ValidationResult
from airflow_provider_kafka_migration.documents.schemas import (
    SchemaCheck,
    SchemaIdMap,
    SchemaPlan,
    SchemasResult,
    SchemaTopics,
    TopicIds,
)
from airflow_provider_kafka_migration.documents.target import CopySettings
from airflow_provider_kafka_migration.documents.way_back import WrittenGroups
from airflow_provider_kafka_migration.errors import DocumentUnreadable, FreezeFailed, Terminal, Where
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.offset_map.runs import topic_key
from airflow_provider_kafka_migration.record import freeze_attempt, keys, steps
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.registry_settings import OpenSetting, Role, open_settings
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import MIRROR, State
from airflow_provider_kafka_migration.storage.base import ObjectStore

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal

_COPIED_AGAIN = "; since then the topic was deleted on the target and copied again from the source's log start"
_D = TypeVar("_D", bound=Document)
_RESTORE = "restore the object from an earlier version in the bucket"


@dataclass(frozen=True)
class Fence:
    """The fence of the migration's producer, by (target topic, partition).

    :param markers: offset of the marker that fences; it takes this offset on the target, and the source has none there.
    :param unfenced: why the producer is not fenced.
    """

    markers: dict[TopicPartition, int]
    unfenced: dict[TopicPartition, str]


def _key_of(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return (topic, int(partition))


@dataclass(frozen=True)
class MigrationRecord:
    """Everything that a migration has recorded: its journal, and the documents in its stores.

    :param now: the clock that dates what is recorded.
    """

    spec: MigrationSpec
    journal: Journal
    journal_store: ObjectStore
    archive_store: ObjectStore
    evidence_store: ObjectStore
    now: Callable[[], datetime]

    @property
    def migration_id(self) -> str:
        """The migration's name."""
        return self.spec.migration_id

    def key(self, name: str) -> str:
        """Return the key of a document of this migration, the same in all of its stores."""
        return f"{self.spec.migration_id}/{name}"

    def where(self, phase: str, **fields: Any) -> Where:
        """Build a place in this migration, for errors."""
        return Where(migration_id=self.migration_id, phase=phase, **fields)

    def is_being_promoted(self) -> bool:
        """Whether the last request to a mirror is to promote it. Never of a migration."""
        return self.spec.kind == "mirror" and last_request(self.journal_store, self.migration_id).want == "promoted"

    # ---- plan and precheck

    def plan(self) -> Plan:
        """Load the plan that the journal points to, with all supplements that were added while the tail ran.

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: a supplement is missing, or is not what was journaled.
        """
        return supplemented(self._first_plan(), self.supplements())

    def has_plan(self) -> bool:
        """Whether the migration was planned."""
        return self.journal_store.get(self.key(keys.PLAN)) is not None

    def _first_plan(self) -> Plan:
        data = self.journal_store.get(self.key(keys.PLAN))
        if data is None:
            raise Terminal(
                "there is no plan yet",
                where=Where(migration_id=self.migration_id, path=f"{self.journal_store.uri}/{self.key(keys.PLAN)}"),
                next_step="run the plan phase first (task plan, or kafka-migration plan)",
            )
        return Plan.parse(data)

    def left_out_of_way_back(self) -> dict[str, str]:
        """The topics that people have left out of a way back, with their names on the target, ascending.

        :raises DocumentUnreadable: a supplement is missing, or is not what was journaled.
        """
        entries = self.journal.steps(steps.PLAN_SUPPLEMENTED)
        names = {str(name) for entry in entries for name in entry.details.get("left_out", {}).get("topics", [])}
        if not names:
            return {}
        known = [*self._first_plan().topics, *(topic for item in self.supplements() for topic in item.topics)]
        return dict(sorted({topic.name: topic.target_name for topic in known if topic.name in names}.items()))

    def ever_planned(self) -> set[str]:
        """All source topics that the plan or one of its supplements has ever contained, including dropped ones.

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: a supplement is missing, or is not what was journaled.
        """
        first = {topic.name for topic in self._first_plan().topics}
        return first | {topic.name for item in self.supplements() for topic in item.topics}

    def planned_ids(self) -> dict[str, str]:
        """The newest id on the source of each topic that was ever planned, also of dropped ones; empty: unknown.

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: a supplement is missing, or is not what was journaled.
        """
        found = {topic.name: topic.topic_id for topic in self._first_plan().topics}
        for item in self.supplements():
            found.update({topic.name: topic.topic_id for topic in item.topics})
        return found

    def supplements(self) -> list[PlanSupplement]:
        """Load the supplements of the plan, in their order.

        :raises DocumentUnreadable: one is missing, or is not what was journaled.
        """
        found = []
        for entry in self.journal.steps(steps.PLAN_SUPPLEMENTED):
            what = f"supplement {entry.step_key} of the plan is not what was journaled"
            name, digest = str(entry.details["document"]), str(entry.details["digest"])
            found.append(self._unaltered(PlanSupplement, name, digest, what=what))
        return found

    def measured_rates(self) -> MeasuredRates | None:
        """The last measurement of the source's rate; ``None`` if nothing was measured."""
        data = self.journal_store.get(self.key(keys.MEASURED_RATES))
        return None if data is None else MeasuredRates.parse(data)

    def precheck(self) -> PrecheckResult | None:
        """The result of the last precheck; ``None`` before the first one.

        :raises DocumentUnreadable: the journal has a precheck, but its result is missing.
        """
        data = self._result(keys.PRECHECK, steps.PRECHECKED)
        return None if data is None else PrecheckResult.parse(data)

    # ---- backup

    def backup_source(self) -> BackupSource | None:
        """The source as a backup found it, from the archive; ``None`` before a backup began."""
        data = self.archive_store.get(self.key(keys.BACKUP_SOURCE))
        return None if data is None else BackupSource.parse(data)

    def backup_end(self) -> BackupEnd | None:
        """What a complete backup contains, from the archive; ``None`` while no backup is complete."""
        data = self.archive_store.get(self.key(keys.BACKUP_END))
        return None if data is None else BackupEnd.parse(data)

    def backup_groups(self, end: BackupEnd) -> GroupsSnapshot:
        """Return the groups of a complete backup.

        :raises Terminal: the document is missing, or does not belong to this backup.
        """
        data = self.archive_store.get(end.groups)
        found = None if data is None else GroupsSnapshot.parse(data)
        if found is None or found.digest() != end.groups_digest:
            raise Terminal(
                "the archived offsets of consumer groups are missing, or are not those of the backup",
                where=self.where("backup", path=f"{self.archive_store.uri}/{end.groups}"),
                next_step="run the backup again",
            )
        return found

    # ---- target topics and access

    def copy_settings(self) -> CopySettings | None:
        """The configs of the target topics that the journal points to; ``None`` before the first topic was touched.

        :raises DocumentUnreadable: the document is missing. The topics' own settings would be taken from topics that
            have those of the copy by now.
        """
        entry = self.journal.find_step(steps.COPY_SETTINGS)
        if entry is None:
            return None
        key = self.key(str(entry.details["document"]))
        data = self.journal_store.get(key)
        if data is None:
            raise self._missing(key, steps.COPY_SETTINGS)
        return CopySettings.parse(data)

    def is_access_copied(self) -> bool:
        """Whether topology_copy has copied ACLs, users and quotas; before it, none can be kept up to date."""
        return self.journal.find_step(steps.ACLS_COPIED) is not None

    def are_writes_granted(self) -> bool:
        """Whether write access on the target is no longer held back until the client switch."""
        return self.spec.acls.write_grants == "at_once" or self.write_grants() is not None

    def write_grants(self) -> JournalEntry | None:
        """Return the step that gave write access on the target; ``None``: none did, or it was taken back."""
        given = self.journal.find_step(steps.WRITE_GRANTS)
        taken_back = self.journal.find_step(steps.WRITE_GRANTS_TAKEN_BACK)
        return given if given is None or taken_back is None or given.seq > taken_back.seq else None

    def is_retention_restored(self) -> bool:
        """Whether configs that delete data are back on the target; from then on records may be missing there."""
        return self.journal.find_step(steps.DELETING_RESTORED) is not None

    # ---- adoption

    def adoption(self) -> Adoption | None:
        """Load where adopted partitions begin; ``None`` if the spec adopts nothing.

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: the document is missing, or is not the one that the plan was made with.
        """
        summary = self._first_plan().adoption
        if summary is None:
            return None
        return self._unaltered(
            Adoption, summary.document, summary.digest, expected="the adoption that the plan was made with"
        )

    def maps_below(self) -> dict[TopicPartition, BelowMap]:
        """Load the positions below the boundary of adopted partitions, by (source topic, partition).

        A partition without a map is left out. Errors as those of :meth:`adoption`.
        """
        adoption = self.adoption() if self.has_plan() else None
        return {
            item.key: self._unaltered(
                BelowMap,
                keys.map_below(topic_key(item.topic), item.partition, item.start.below_digest),
                item.start.below_digest,
            )
            for item in (adoption.partitions if adoption is not None else ())
            if item.start.below_digest
        }

    # ---- schemas

    def schema_plan(self) -> SchemaPlan | None:
        """Load the schema plan that the plan points to; ``None`` if the plan has none.

        :raises Terminal: there is no plan yet.
        :raises DocumentUnreadable: the document is missing, or is not the one that the plan was made with.
        """
        return self.schema_plan_of(self._first_plan())

    def schema_plan_of(self, plan: Plan) -> SchemaPlan | None:
        """Load the schema plan that a plan points to; ``None`` if the plan has none. Errors as :meth:`schema_plan`."""
        summary = plan.schemas
        if summary is None:
            return None
        return self._unaltered(
            SchemaPlan,
            summary.document,
            summary.digest,
            expected="the schema plan that the plan was made with",
            next_step=f"{_RESTORE}; before anything was copied, run the plan phase again",
        )

    def schema_topics(self) -> list[TopicIds]:
        """Return where the records of each topic carry schema ids: the plan's topics, and those that were added since.

        Later samples replace earlier decisions.

        :raises DocumentUnreadable: the schema plan, a supplement or a later decision is missing, or is not what was
            recorded.
        """
        plan = self.schema_plan()
        found = {} if plan is None else {item.topic: item for item in plan.topics}
        for supplement in self.supplements():
            # Partitions that a topic has gained carry ids where its others do.
            found.update({item.topic: item for item in supplement.schema_topics if item.topic not in found})
        for entry in self.journal.steps(steps.SCHEMA_TOPICS_JUDGED):
            document = self._unaltered(SchemaTopics, str(entry.details["document"]), str(entry.details["digest"]))
            found.update({item.topic: item for item in document.topics})
        return [found[name] for name in sorted(found)]

    def schema_id_map(self) -> SchemaIdMap | None:
        """Load the map of schema ids as it is now; ``None`` before the first synchronization.

        :raises DocumentUnreadable: the journal has a synchronization, but the map is missing. A new one might give
            other ids to schemas whose ids are in records already.
        """
        return self.schema_id_map_version()[1]

    def schema_id_map_version(self) -> tuple[int, SchemaIdMap | None]:
        """Return the number of the newest version of the map of schema ids, and the map; see :meth:`schema_id_map`.

        0: there is only the copy for copiers, or nothing.
        """
        newest = max((info.key for info in self.journal_store.list(self.key(keys.SCHEMA_ID_MAPS))), default=None)
        key = newest or self.key(keys.SCHEMA_ID_MAP)
        data = self.journal_store.get(key)
        if data is None and self.journal.find_step(steps.SCHEMAS_COPIED) is not None:
            raise self._missing(key, steps.SCHEMAS_COPIED)
        number = 0 if newest is None else int(newest.rpartition("/")[2].removesuffix(".json"))
        return number, None if data is None else SchemaIdMap.parse(data)

    def schemas_result(self) -> SchemasResult | None:
        """The result of the last synchronization of the registries; ``None`` before the first one.

        :raises DocumentUnreadable: the journal has a synchronization, but its result is missing.
        """
        data = self._result(keys.SCHEMAS, steps.SCHEMAS_COPIED)
        return None if data is None else SchemasResult.parse(data)

    def schema_check(self) -> SchemaCheck | None:
        """The last comparison of the registries by the validation; ``None`` before the first one.

        :raises DocumentUnreadable: the journal has a comparison, but its result is missing.
        """
        data = self._result(keys.SCHEMAS_CHECK, steps.SCHEMAS_CHECKED)
        return None if data is None else SchemaCheck.parse(data)

    def open_registry_settings(self, role: Role) -> dict[str, OpenSetting]:
        """Return the modes of a registry that the migration has changed and that are still to be put back, by scope."""
        return open_settings(self.journal, role, "mode")

    # ---- copy

    def producer_ids(self) -> ProducerIds:
        """Load the producer ids that topology_copy allocated on the target.

        :raises Terminal: topology_copy has not run yet.
        """
        entry = self.journal.find_step(steps.PRODUCER_IDS)
        if entry is None:
            raise Terminal(
                "the producer ids of the migration are not allocated yet",
                where=self.where("seed"),
                next_step="run topology_copy first",
            )
        return ProducerIds.model_validate(dict(entry.details))

    def has_producer_ids(self) -> bool:
        """Whether topology_copy has allocated the producer ids."""
        return self.journal.find_step(steps.PRODUCER_IDS) is not None

    def job(self, name: str) -> CopyJob | None:
        """Load a copy job (``seed``, ``tail``, ``backup``, ``restore``); ``None`` if it was not written yet."""
        data = self.journal_store.get(self.key(keys.job(name)))
        return CopyJob.parse(data) if data is not None else None

    def job_progress(self, name: str) -> dict[str, Any]:
        """Load the progress of a job, which its driver rewrites every few seconds; empty before the first one."""
        data = self.journal_store.get(self.key(keys.progress(name)))
        return json.loads(data) if data else {}

    def partitions(self) -> dict[TopicPartition, CopyPartition]:
        """Return all partitions by (source topic, partition), ascending.

        The tail's job is the most recent: it has the partitions that appeared while the migration ran. Before it
        exists, the seed's job counts, and before that the plan.

        :raises Terminal: there is neither a job nor a plan yet.
        """
        jobs = (self.job(name) for name in ("tail", "seed", "restore", "backup"))
        job = next((job for job in jobs if job is not None), None)
        if job is not None:
            return {item.key: item for item in job.partitions}
        found = [
            CopyPartition.of_plan(topic, item)
            for topic in self.plan().topics
            for item in topic.partitions
            if not item.left_out
        ]
        return {item.key: item for item in sorted(found, key=lambda item: item.key)}

    def gaps(self) -> list[dict[str, Any]]:
        """All source ranges that retention deleted before they were read, by topic and partition.

        ``ranges`` are [first lost offset, first offset that still existed].
        """
        found = {key: list(gaps) for key, gaps in read_gaps(self._stores_of_copiers(), self.migration_id).items()}
        for name in (steps.SEED_DONE, steps.TAIL_DONE):
            for entry in self.journal.steps(name):
                for item in entry.details.get("gaps", []):
                    ranges = [(int(first), int(until)) for first, until in item["ranges"]]
                    found.setdefault((str(item["topic"]), int(item["partition"])), []).extend(ranges)
        return [
            {"topic": topic, "partition": partition, "ranges": [list(gap) for gap in joined(gaps)]}
            for (topic, partition), gaps in sorted(found.items())
        ]

    def overtaken(self) -> list[dict[str, Any]]:
        """All ranges of compacted partitions that were read so late that tombstones may have been removed.

        By topic, partition and offset, with their figures.
        """
        made_again = self._made_again()
        return [
            {
                "topic": item.topic,
                "partition": item.partition,
                "from_offset": item.from_offset,
                "until_offset": item.until_offset,
                "caught_up_at": item.caught_up_at,
                "caught_up_offset": item.caught_up_offset,
                "read_at": item.read_at,
                "gap_seconds": item.gap_seconds,
                "retention_ms": item.retention_ms,
                "what": describe(item)
                + (_COPIED_AGAIN if _is_before(item.read_at, made_again.get(item.topic)) else ""),
            }
            for item in read_overtaken(self._stores_of_copiers(), self.migration_id)
        ]

    def _made_again(self) -> dict[str, str]:
        """When target topics were last created again, by source topic."""
        entries = self.journal.steps(steps.TOPICS_MADE_AGAIN)
        names = {topic.target_name: topic.name for topic in self.plan().topics} if entries else {}
        return {names[name]: entry.at for entry in entries for name in entry.details["topics"] if name in names}

    def _stores_of_copiers(self) -> list[ObjectStore]:
        # Backup lanes can reach only the archive.
        return [self.journal_store, *([self.archive_store] if self.spec.seed.via == "split" else [])]

    def tail_stop(self) -> StopAt | None:
        """Where the tail is to end; ``None`` if there is no stop, or a lifted freeze has withdrawn it."""
        return StopAt.in_force(self.journal_store.get(self.key(keys.TAIL_STOP)))

    def has_tail_ended(self) -> bool:
        """Whether the tail has journaled its end since the last freeze request. A lifted freeze makes that end void."""
        done, asked = self.journal.find_step(steps.TAIL_DONE), self.journal.find_step(steps.FREEZE_REQUESTED)
        if done is None or asked is None:
            return done is not None
        lifted = self.journal.find_step(steps.FREEZE_LIFTED, asked.step_key)
        return done.seq > asked.seq and lifted is None

    # ---- cutover

    def freeze(self) -> FreezeAttempt | None:
        """Return the latest attempt to freeze, or ``None`` if there was none."""
        return freeze_attempt.latest(self.journal)

    def is_frozen(self) -> bool:
        """Whether a freeze was requested and not lifted, or the cutover is over."""
        attempt = self.freeze()
        return (attempt is not None and not attempt.lifted) or self.journal.is_past(State.CUTOVER)

    def cutover_step(self, attempt: FreezeAttempt, name: str) -> dict[str, Any] | None:
        """Details of a step of this attempt (``steps.SENTINELS`` and the next ones); ``None`` if it is not done."""
        entry = self.journal.find_step(steps.CUTOVER_STEP, f"{attempt.key}/{name}")
        return entry.details if entry else None

    def fence(self) -> Fence | None:
        """The fence of the migration's producer on the target; ``None`` before it, or if nothing was to be fenced.

        A fenced partition ends one offset above the copy's end in the offset map.
        """
        attempt = self.freeze()
        details = self.cutover_step(attempt, steps.FENCE) if attempt is not None else None
        if details is None and (entry := self.journal.find_step(steps.COPIERS_FENCED)) is not None:
            details = entry.details
        if details is None or "markers" not in details:
            return None
        return Fence(
            markers={_key_of(name): int(offset) for name, offset in details["markers"].items()},
            unfenced={
                (str(item["topic"]), int(item["partition"])): str(item["reason"])
                for item in details.get("unfenced", [])
            },
        )

    def boundary(self) -> Boundary:
        """Load the end of the source as the sentinels step recorded it.

        :raises FreezeFailed: the step was not done.
        """
        found = self.find_boundary()
        if found is None:
            raise FreezeFailed(
                "the end of the source is unknown, because the sentinels were not written",
                where=self.where("cutover"),
                next_step="clear cutover.sentinels",
            )
        return found

    def find_boundary(self) -> Boundary | None:
        """The end of the source as the sentinels step recorded it; ``None`` if the step was not done."""
        data = self.result(keys.BOUNDARY)
        return Boundary.parse(data) if data is not None else None

    def frozen_time(self) -> FrozenTime | None:
        """How long producers were frozen; ``None`` before the cutover is ready for the client switch.

        Only people read it: a missing document ends nothing, and the evidence names it.
        """
        data = self.result(keys.FROZEN_TIME)
        return FrozenTime.parse(data) if data is not None else None

    def client_switch(self) -> dict[str, Any] | None:
        """Details of the acknowledged client switch; ``None`` before it."""
        entry = self.journal.find_step(steps.CLIENT_SWITCH_ACKNOWLEDGED)
        return dict(entry.details) if entry is not None else None

    def freezes_lifted(self) -> list[JournalEntry]:
        """The entries of all freezes that were lifted, in order."""
        return self.journal.steps(steps.FREEZE_LIFTED)

    def groups_snapshot(self) -> GroupsSnapshot:
        """Load the groups of the source as the cutover found them.

        :raises FreezeFailed: there is no snapshot.
        :raises DocumentUnreadable: it cannot be parsed.
        """
        data = self.result(keys.GROUPS_SNAPSHOT)
        if data is None:
            raise FreezeFailed(
                "there is no snapshot of the groups",
                where=self.where("cutover"),
                next_step="clear cutover.snapshot_groups",
            )
        try:
            return GroupsSnapshot.parse(data)
        except ValueError as error:
            raise DocumentUnreadable(
                "the snapshot of the groups cannot be read",
                where=self.where("cutover"),
                next_step="clear cutover.snapshot_groups",
            ) from error

    def groups(self) -> GroupsResult | None:
        """The outcome of the last commit or sync of the groups; ``None`` before the first one."""
        data = self.result(keys.GROUPS)
        return GroupsResult.parse(data) if data is not None else None

    def final_groups(self) -> GroupsResult | None:
        """The outcome of the last sync before the clients switched; before that, of the last one so far."""
        data = self.result(keys.FINAL_GROUPS)
        return GroupsResult.parse(data) if data is not None else self.groups()

    def written_groups(self) -> WrittenGroups | None:
        """What was written for groups on the target while records were still copied; ``None``: nothing.

        :raises DocumentUnreadable: the journal has such writes, but the document is missing.
        """
        found = [self.journal.find_step(step) for step in (steps.OLD_GROUPS_WRITTEN, steps.GROUPS_WRITTEN)]
        step = next((str(entry.step) for entry in found if entry is not None), steps.GROUPS_WRITTEN)
        data = self._result(keys.WRITTEN_GROUPS, step)
        return None if data is None else WrittenGroups.parse(data)

    def left_out(self) -> LeftOut | None:
        """What the client switch found outside of the migration; ``None`` before it."""
        data = self.result(keys.LEFT_OUT)
        return LeftOut.parse(data) if data is not None else None

    # ---- offset map

    def offset_map(self) -> OffsetMapDocument | None:
        """Return the finished ``offset-map.json``; ``None`` before the final drain, or if it is missing.

        If a late update of the tail has replaced the finished map, the final drain's own copy is put back.

        Of a mirror, a map counts that the journal has since the mirror was promoted or ended. One that was stored
        before a process died may be of a mirror that has gone on.

        :raises DocumentUnreadable: it cannot be parsed.
        """
        data = self.evidence_store.get(self.key(keys.OFFSET_MAP))
        if data is None:
            return None
        document = self._parsed_map(data)
        is_final = document.complete
        if self.spec.kind == "mirror":
            is_final = is_final and hashlib.sha256(data).hexdigest() == self._final_map_digest()
        return document if is_final else self._kept_map()

    def _final_map_digest(self) -> str | None:
        """SHA-256 of the finished map, as the journal has it."""
        if self.spec.kind == "mirror":
            promoted = self.journal.find_step(steps.PROMOTED)
            if promoted is not None:
                return str(promoted.details[keys.FINAL_OFFSET_MAP]["sha256"])
            state = self.journal.tip_state
            if state not in MIRROR.endings:
                return None
            return next(
                (
                    str(entry.details[keys.FINAL_OFFSET_MAP]["sha256"])
                    for entry in reversed(self.journal.entries())
                    if entry.to_state is state and keys.FINAL_OFFSET_MAP in entry.details
                ),
                None,
            )
        attempt = self.freeze()
        done = self.cutover_step(attempt, steps.FINAL_DRAIN) if attempt is not None else None
        if done is None or (attempt is not None and attempt.lifted):
            return None
        return str(done["offset_map"]["sha256"])

    def _kept_map(self) -> OffsetMapDocument | None:
        digest = self._final_map_digest()
        data = self.result(keys.FINAL_OFFSET_MAP) if digest is not None else None
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            return None
        self.evidence_store.put(self.key(keys.OFFSET_MAP), data)
        return self._parsed_map(data)

    def _parsed_map(self, data: bytes) -> OffsetMapDocument:
        try:
            return OffsetMapDocument.parse(data)
        except ValueError as error:
            raise DocumentUnreadable(
                "offset-map.json cannot be read",
                where=self.where("cutover", path=f"{self.evidence_store.uri}/{self.key(keys.OFFSET_MAP)}"),
                next_step="clear cutover.final_drain: it rebuilds the map from the run log",
            ) from error

    # ---- validation

    def validation(self) -> ValidationResult | None:
        """The result of the last validation; ``None`` before the first one."""
        data = self.result(keys.VALIDATION)
        return ValidationResult.parse(data) if data is not None else None

    def passed_validation(self) -> ValidationResult | None:
        """The result of the last validation if it did not fail and is the journaled one; else ``None``."""
        entry = self.journal.find_step(steps.VALIDATED)
        result = self.validation()
        if entry is None or result is None or result.outcome is Outcome.FAILED:
            return None
        return result if entry.details.get("digest") == result.digest() else None

    # ---- results as documents

    def put_result(self, name: str, document: Document) -> str:
        """Write or replace ``results/<name>.json`` and return its key."""
        key = self.key(keys.result(name))
        self.journal_store.put(key, document.canonical())
        return key

    def result(self, name: str) -> bytes | None:
        """Read ``results/<name>.json``; ``None`` if there is none."""
        return self.journal_store.get(self.key(keys.result(name)))

    def stored_result(self, name: str) -> dict[str, Any]:
        """Read ``results/<name>.json`` as it is stored, for the evidence; empty if there is none."""
        data = self.result(name)
        value = json.loads(data) if data else {}
        return value if isinstance(value, dict) else {}

    def _result(self, name: str, step: str) -> bytes | None:
        """Read a result that is written before its journal step; ``None`` before the step."""
        data = self.result(name)
        if data is None and self.journal.find_step(step) is not None:
            raise self._missing(self.key(keys.result(name)), step)
        return data

    def _unaltered(
        self,
        kind: type[_D],
        name: str,
        digest: str,
        *,
        what: str = "",
        expected: str = "what was journaled",
        next_step: str = _RESTORE,
    ) -> _D:
        """Load a document of the journal store whose digest was recorded with its name.

        :param what: what the error says; by default that the document is missing, or not what is ``expected``.
        :raises DocumentUnreadable: it is missing, or has another digest.
        """
        key = self.key(name)
        data = self.journal_store.get(key)
        found = None if data is None else kind.parse(data)
        if found is None or found.digest() != digest:
            raise DocumentUnreadable(
                what or f"{key} is {'missing' if found is None else f'not {expected}'}",
                where=Where(migration_id=self.migration_id, path=f"{self.journal_store.uri}/{key}"),
                next_step=next_step,
            )
        return found

    def _missing(self, key: str, step: str) -> DocumentUnreadable:
        return DocumentUnreadable(
            f"{key} is missing, although the journal has the step {step}, which follows its writing",
            where=Where(migration_id=self.migration_id, path=f"{self.journal_store.uri}/{key}"),
            next_step=_RESTORE,
        )


def _is_before(read_at: str, made_at: str | None) -> bool:
    return bool(read_at and made_at) and parse_iso(read_at) < parse_iso(str(made_at))


def last_request(store: ObjectStore, migration_id: str) -> MirrorRequest:
    """Return the last request; without one, the mirror is to run.

    Its number says which object comes next: of two people who ask at the same time, the slower one may have put the
    earlier request there, and one who was killed may have put none.

    :raises DocumentUnreadable: a later release wrote it, or it is damaged.
    """
    last = _stored_request(store, migration_id, keys.MIRROR_REQUEST)
    last = last or MirrorRequest(migration_id=migration_id, number=0, want="run")
    while following := _stored_request(store, migration_id, keys.mirror_request(last.number + 1)):
        last = following
    return last


def _stored_request(store: ObjectStore, migration_id: str, name: str) -> MirrorRequest | None:
    key = f"{migration_id}/{name}"
    data = store.get(key)
    if data is None:
        return None
    try:
        return MirrorRequest.parse(data)
    except ValidationError as error:
        raise DocumentUnreadable(
            f"the last request to the mirror cannot be read: {error.error_count()} mistakes, the first is "
            f"{error.errors(include_url=False, include_input=False)[0]['msg']}",
            where=Where(migration_id=migration_id, path=f"{store.uri}/{key}"),
            next_step="if a later release of the package wrote it, use that release here, too; else restore an earlier "
            "version of the object. Then ask again",
        ) from None
