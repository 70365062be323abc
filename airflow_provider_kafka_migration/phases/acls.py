"""ACLs: the plan's bindings are created on the target; partial failure is data, and fails the phase at its end."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.errors import TopologyRefused
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.phases.plan_acls import plan_acls, target_acl

PHASE = "topology_copy"
STEP = "acls_copied"


def run(context: PhaseContext) -> PhaseResult:
    """Create what is missing; merge and replace never delete (seed 001's table); refuse stops on any difference.

    :raises TopologyRefused: the policy refuses, or bindings could not be created.
    """
    policy = context.spec.acls.policy
    if policy == "skip":
        details: dict[str, Any] = {"policy": policy, "summary": "ACLs are not copied (acls.policy: skip)"}
        context.journal.step_once(STEP, details=details)
        return PhaseResult(PHASE, details["summary"], details)
    plans = plan_acls(context, {topic.name for topic in context.load_plan().topics})
    to_create = [plan for plan in plans if plan.action == "create"]
    target_only = [plan for plan in plans if plan.action == "target_only"]
    if policy == "refuse" and (to_create or target_only):
        raise TopologyRefused(
            f"ACLs differ: {len(to_create)} only on the source, {len(target_only)} only on the target",
            where=context.where(PHASE),
            next_step="make them equal, or set acls.policy: merge",
            details={"create": [p.model_dump(mode="json") for p in to_create]},
        )
    context.journal.check_holds()
    results = context.target.admin.create_acls([target_acl(plan) for plan in to_create])
    failures = [{"acl": str(acl), "error": error.as_dict()} for acl, error in sorted(results.items()) if error]
    if failures:
        raise TopologyRefused(
            f"{len(failures)} of {len(to_create)} ACLs could not be created; the first: {failures[0]['acl']}",
            where=context.where(PHASE),
            next_step="grant Alter on the target cluster to the migration's principal; then clear topology_copy",
            details={"failures": failures},
        )
    details = {
        "policy": policy,
        "created": [str(target_acl(plan)) for plan in to_create],
        "existed": sum(plan.action == "exists" for plan in plans),
        "filtered": [{"acl": str(target_acl(p)), "why": p.reason} for p in plans if p.action == "filtered"],
        "target_only": [str(target_acl(plan)) for plan in target_only],
        "summary": f"{len(to_create)} ACLs created, {sum(p.action == 'exists' for p in plans)} were there",
    }
    context.journal.step(STEP, details=details)
    return PhaseResult(PHASE, str(details["summary"]), details, already_done=not to_create)
