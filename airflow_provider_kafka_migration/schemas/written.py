"""What the migration has written to the target registry, from its journal. A rollback deletes nothing there."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import Kind, open_settings
from airflow_provider_kafka_migration.schemas.modes import has_values


class Written:
    """What the target has from this migration, by the journal as it is known now; everything else there is foreign.

    Versions are journaled before they are registered, and levels before they are set, so this is right after a kill.
    """

    def __init__(self, record: MigrationRecord) -> None:
        self._record = record

    @cached_property
    def _plans(self) -> list[SchemaPlan]:
        """The plans that registered something, or were about to."""
        documents: dict[str, str] = {}
        for entry in self._record.journal.steps():
            if entry.step not in (steps.SCHEMAS_COPYING, steps.SCHEMAS_COPIED) or "plan" not in entry.details:
                continue
            if entry.details.get("registered", True):
                documents[str(entry.details["plan"]["document"])] = str(entry.details["plan"]["digest"])
        return [_plan(self._record, document, digest) for document, digest in documents.items()]

    @cached_property
    def _versions(self) -> dict[tuple[str, int, str], list[SchemaPlan]]:
        """The plans by the (source subject, source version, target subject) that each has registered."""
        found: dict[tuple[str, int, str], list[SchemaPlan]] = {}
        for plan in self._plans:
            for subject in plan.subjects:
                for version in subject.versions:
                    if version.action == "register":
                        found.setdefault((subject.subject, version.version, subject.target_subject), []).append(plan)
        return found

    def has_registered(self, subject: str, version: int, target: str, target_version: int) -> bool:
        """Whether a version of the target comes from the registration of a source version.

        A registry answers a registration with the version that it has already, if it holds both to be one schema. What
        was live on the target when the registration was planned is therefore not the migration's own.

        :raises DocumentUnreadable: a plan that was carried out is missing.
        """
        plans = self._versions.get((subject, version, target), ())
        return any(target_version not in plan.present.get(target, ()) for plan in plans)

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Target subjects that have versions from this migration, and had no live ones before.

        :raises DocumentUnreadable: a plan that was carried out is missing.
        """
        return frozenset(
            target
            for (_, _, target), plans in self._versions.items()
            if any(target not in item.present for item in plans)
        )

    def has_set(self, kind: Kind, scope: str, found: Any) -> bool:
        """Whether a level or mode that a scope of the target has is one that the migration has set there."""
        journal = self._record.journal
        wanted = [
            entry.details["wanted"][scope]
            for entry in journal.steps(steps.SCHEMA_LEVELS_COPIED)
            if entry.details["kind"] == kind and scope in entry.details["wanted"]
        ]
        opened = open_settings(journal, "target", kind).get(scope)
        wanted += [] if opened is None else [opened.wanted]
        return any(has_values(kind, found, value) for value in wanted)


def written_schemas(record: MigrationRecord) -> list[dict[str, Any]]:
    """Return the target subjects to which versions were registered, ascending, with their source versions.

    A version of a subject that was on the target before is listed only if the migration has registered it.

    :raises DocumentUnreadable: a plan that was carried out is missing.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in record.journal.steps(steps.SCHEMAS_COPIED):
        if not entry.details.get("registered"):
            continue
        plan = _plan(record, str(entry.details["plan"]["document"]), str(entry.details["plan"]["digest"]))
        there = entry.details.get("found", [])
        for subject in plan.subjects:
            numbers = {
                item.version
                for item in subject.versions
                if item.action == "register" and [subject.subject, item.version] not in there
            }
            if numbers:
                row = found.setdefault(
                    subject.target_subject,
                    {"subject": subject.target_subject, "source_subject": subject.subject, "source_versions": []},
                )
                row["source_versions"] = sorted({*row["source_versions"], *numbers})
    return [found[name] for name in sorted(found)]


def last_plan(record: MigrationRecord) -> SchemaPlan | None:
    """Return the schema plan that was carried out last, or the one of the plan phase; None: there is none.

    :raises DocumentUnreadable: it is missing.
    """
    return _latest(record, steps.SCHEMAS_COPIED) or record.schema_plan()


def last_started_plan(record: MigrationRecord) -> SchemaPlan | None:
    """Return the plan of the last pass that had something to copy, even if the pass was killed; None: there is none.

    :raises DocumentUnreadable: it is missing.
    """
    return _latest(record, steps.SCHEMAS_COPYING, steps.SCHEMAS_COPIED)


def _latest(record: MigrationRecord, *names: str) -> SchemaPlan | None:
    for entry in reversed(record.journal.steps()):
        if entry.step in names and "plan" in entry.details:
            return _plan(record, str(entry.details["plan"]["document"]), str(entry.details["plan"]["digest"]))
    return None


def _plan(record: MigrationRecord, document: str, digest: str) -> SchemaPlan:
    key = record.key(document)
    data = record.journal_store.get(key)
    plan = None if data is None else SchemaPlan.parse(data)
    if plan is None or plan.digest() != digest:
        raise DocumentUnreadable(
            f"{key} is {'missing' if plan is None else 'not the schema plan that was carried out'}",
            where=record.where("rollback", path=f"{record.journal_store.uri}/{key}"),
            next_step="restore the object from an earlier version in the bucket",
        )
    return plan
