"""What the migration has written to the target registry, from its journal. A rollback deletes nothing there."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.record import MigrationRecord


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
        for subject in plan.subjects:
            numbers = {item.version for item in subject.versions if item.action == "register"}
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
    for entry in reversed(record.journal.steps(steps.SCHEMAS_COPIED)):
        return _plan(record, str(entry.details["plan"]["document"]), str(entry.details["plan"]["digest"]))
    return record.schema_plan()


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
