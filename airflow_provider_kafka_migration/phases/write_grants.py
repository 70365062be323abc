"""WRITE on the target for producers, given when clients may switch (``acls.write_grants: at_cutover``)."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.errors import TopologyRefused
from airflow_provider_kafka_migration.phases import created_access
from airflow_provider_kafka_migration.phases.context import PhaseContext
from airflow_provider_kafka_migration.phases.migrated import migrated_partitions
from airflow_provider_kafka_migration.phases.plan_acls import plan_acls, target_acl

#: Name of the journal step; ``plan_acls`` defers nothing any more once it is there.
STEP = "write_grants"


def grant(context: PhaseContext) -> dict[str, Any]:
    """Create the bindings that topology_copy has held back. Idempotent; details for the journal.

    :raises TopologyRefused: some could not be created; all are listed.
    """
    if context.spec.acls.write_grants == "at_once" or context.spec.acls.target_auth != "kafka":
        return {"granted": 0}
    entry = context.journal.find_step(STEP)
    if entry is not None:
        return dict(entry.details)
    plans = plan_acls(context, {topic for topic, _ in migrated_partitions(context)})
    bindings = sorted({target_acl(plan) for plan in plans if plan.action == "deferred"})
    context.journal.check_holds()
    results = created_access.create_acls(context, bindings)
    failures = [{"acl": str(acl), "error": error.as_dict()} for acl, error in sorted(results.items()) if error]
    if failures:
        raise TopologyRefused(
            f"{len(failures)} of {len(bindings)} write grants could not be created; the first: {failures[0]['acl']}",
            where=context.where("cutover", cluster="target"),
            next_step="grant the migration's principal Alter on the target cluster; then approve the cutover again",
            details={"failures": failures},
        )
    details = {"granted": len(bindings), "acls": [str(acl) for acl in bindings]}
    return dict(context.journal.step_once(STEP, details=details).details)
