"""Task ``schemas``: bring the source registry's schemas to the target registry, before the first record is copied.

It may run again at any time until the clients switch: a pass changes only what the target lacks. While records are
copied, seed and tail run such passes by themselves (:class:`~.schemas.sync.SchemaFollower`).
"""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.schemas import SchemasResult
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.schemas.complete import synchronize_completely
from airflow_provider_kafka_migration.schemas.open import open_pair

PHASE = "schemas"


def run(context: PhaseContext) -> PhaseResult:
    """Run one complete pass; do nothing if the spec names no registries.

    :raises SchemaConflicts: the target registry contradicts the plan (``on_conflict: stop``); nothing was written.
    :raises SchemasIncomplete: some schemas could not be written; all others are on the target.
    :raises Terminal: the plan does not know the registries, because they could not be read when it was made.
    """
    section = context.spec.schemas
    if not section.configured:
        return PhaseResult(PHASE, "no schema registry is configured", {})
    plan = context.record.schema_plan()
    if plan is None:
        raise Terminal(
            "the plan has no schemas, although the spec names schema registries: they could not be read when it was "
            "made, or the spec names them only since then",
            where=context.where(PHASE),
            next_step="before anything was copied, clear plan; later, take the section schemas out of the spec again",
        )
    if plan.id_mode == "topic":
        return PhaseResult(PHASE, f"the schemas move with the topic {section.topic}", {})
    context.journal.check_holds()
    former = context.journal.find_step(steps.SCHEMAS_COPIED)
    with open_pair(context) as pair:
        result = synchronize_completely(context, pair, reason="schemas")
    changed = result.registered or result.deleted or result.configs
    return PhaseResult(PHASE, _summary(result), _details(result), already_done=former is not None and not changed)


def _summary(result: SchemasResult) -> str:
    parts = [
        f"{result.subjects} subjects with {result.versions} versions are on the target ({result.id_mode} ids)",
        f"{result.registered} registered, {result.deleted} deleted again",
    ]
    parts += [f"{len(result.conflicts)} conflicts"] if result.conflicts else []
    parts += [f"{len(result.failed)} NOT copied"] if result.failed else []
    return ", ".join(parts)


def _details(result: SchemasResult) -> dict[str, object]:
    return {
        **result.model_dump(mode="json", include={"subjects", "versions", "registered", "deleted", "ids", "id_mode"}),
        "conflicts": [item.what for item in result.conflicts[:50]],
        "failed": [f"{item.name}: {item.error.get('what')}" for item in result.failed[:50]],
        "unread": dict(sorted(result.unread.items())[:50]),
    }
