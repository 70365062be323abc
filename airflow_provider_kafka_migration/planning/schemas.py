"""The schema plan: reads both registries and samples records. It changes nothing.

A registry that cannot be read makes the schemas *unknown*: the plan names it, precheck makes a finding of it, and the
task ``schemas`` refuses to run. It never means that there are no schemas.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.plan import SchemaPlanSummary
from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.record import MigrationRecord


def summary_of(plan: SchemaPlan) -> SchemaPlanSummary:
    """Return the figures of a schema plan, with the digest that the plan refers to it by."""
    digest = plan.digest()
    versions = [version for subject in plan.subjects for version in subject.versions]
    return SchemaPlanSummary(
        document=keys.schema_plan(digest),
        digest=digest,
        id_mode=plan.id_mode,
        subjects=len(plan.subjects),
        versions=len(versions),
        deleted_versions=sum(version.deleted for version in versions),
        conflicts=len(plan.conflicts),
        topics_with_ids=sum(item.parts != "none" for item in plan.topics),
        unread=len(plan.unread),
    )


def put_schema_plan(record: MigrationRecord, plan: SchemaPlan) -> None:
    """Write a schema plan, before the plan that refers to it."""
    record.journal_store.put(record.key(keys.schema_plan(plan.digest())), plan.canonical())
