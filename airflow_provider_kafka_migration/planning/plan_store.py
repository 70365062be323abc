"""Where a plan is kept: ``plan.json``, ``plans/<digest>.json`` for ever, and the documents beside it."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.pages.plan import documents
from airflow_provider_kafka_migration.record.context import PhaseContext

KEY = "plan.json"


def put_plan(context: PhaseContext, plan: Plan) -> str:
    """Write a plan with its documents; its digest. ``plan.json`` is last: what it names is there by then."""
    digest, data = plan.digest(), plan.canonical()
    context.journal_store.put(context.key(f"plans/{digest[:16]}.json"), data)
    for name, content in sorted(documents(context.spec, plan, context.source.config, context.target.config).items()):
        context.journal_store.put(context.key(f"plan/{name}"), content.encode())
    context.journal_store.put(context.key(KEY), data)
    return digest
