"""Synchronize and insist that everything is on the target: before records are copied, and before clients switch."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.schemas import SchemaFailure, SchemasResult
from airflow_provider_kafka_migration.errors import SchemasIncomplete, Transient
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.schemas.modes import PHASE
from airflow_provider_kafka_migration.schemas.open import RegistryPair
from airflow_provider_kafka_migration.schemas.sync import Reason, synchronize

#: What could not be read and is a schema; levels and modes that could not be read are findings of the validation.
_SCHEMAS = ("source: subject ", "target: subject ", "source: schema id ", "target: schema id ")
_SHOWN = 5
_OTHER_WAYS = ", or copy all others with schemas.on_conflict: note"


def synchronize_completely(context: PhaseContext, pair: RegistryPair, *, reason: Reason) -> SchemasResult:
    """Run one pass; everything has to be on the target afterwards.

    With ``schemas.on_conflict: note`` that does not include what the target contradicts or refuses for good.

    :raises SchemaConflicts: the target registry contradicts the plan.
    :raises SchemasIncomplete: some schemas were refused or could not be read; all others are on the target.
    :raises Transient: the same, and trying again may help for each of them.
    :raises MigrationError: a registry cannot be read, or has stopped answering.
    """
    result = synchronize(context, pair, reason=reason)
    reports = context.spec.schemas.on_conflict == "note"
    failed = [item for item in result.failed if not reports or _is_never_accepted(item, reason)]
    unread = {key: why for key, why in result.unread.items() if key.startswith(_SCHEMAS)}
    lines = [f"{item.name}: {item.error.get('what', '')}" for item in failed]
    lines += [f"{key}: {why}" for key, why in sorted(unread.items())]
    if not lines:
        return result
    kinds = {str(item.error.get("kind")) for item in failed} | ({"terminal"} if unread else set())
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    kind = Transient if kinds == {"transient"} else SchemasIncomplete
    raise kind(
        f"{len(lines)} schemas, levels or modes are not on the target: {'; '.join(lines[:_SHOWN])}{more}",
        where=context.where(PHASE),
        next_step=f"correct what the first one names{'' if reports else _OTHER_WAYS}; then clear the task: only what "
        "is missing is tried again",
        details={
            "failed": [item.model_dump(mode="json") for item in failed[:100]],
            "unread": dict(sorted(unread.items())[:100]),
        },
    )


def _is_never_accepted(item: SchemaFailure, reason: Reason) -> bool:
    """Whether a failure stops the migration even with ``on_conflict: note``, which is about the target's refusals.

    Another try may help after a transient error, and a drain would never end for records that wait for a schema.
    """
    return item.error.get("kind") == "transient" or (bool(item.schema_id) and reason == "final")
