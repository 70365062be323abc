"""SCRAM users, client quotas and group configs on the target. Secrets come from references, never written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_kafka_migration.access import created_access
from airflow_provider_kafka_migration.access.plan_access import plan_group_configs, plan_quotas, plan_users
from airflow_provider_kafka_migration.documents.plan import QuotaPlan, UserPlan
from airflow_provider_kafka_migration.documents.target import Left
from airflow_provider_kafka_migration.errors import TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.admin_configs import ConfigResource
from airflow_provider_kafka_migration.kafka.admin.admin_quotas import QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.admin_users import DEFAULT_ITERATIONS, NewScramCredential
from airflow_provider_kafka_migration.kafka.admin.base import ItemError
from airflow_provider_kafka_migration.record.context import PhaseContext

PHASE = "topology_copy"
#: Kafka refuses fewer iterations.
MIN_ITERATIONS = 4096
DEFAULT_MECHANISMS = ("SCRAM-SHA-512",)

Failures = list[dict[str, Any]]


def _note(failures: Failures, kind: str, name: str, error: ItemError) -> None:
    failures.append({"kind": kind, "name": name, "error": error.as_dict(), "unauthorized": error.unauthorized})


# -- users -----------------------------------------------------------------------------------------------------------


def create_users(context: PhaseContext, failures: Failures) -> dict[str, Any]:
    """Create users for which a secret is given, with the source's mechanisms and iterations; report the others.

    A user that this migration has created is not created again: somebody may have changed its secret since.
    """
    plans = plan_users(context, {})
    done = created_access.created_users(context)
    wanted = [plan for plan in plans if plan.action == "create" and plan.name not in done]
    credentials = [item for plan in wanted for item in _credentials(context, plan)]
    context.journal.check_holds()
    created = []
    for name, error in sorted(context.target.admin.create_scram_credentials(credentials).items()) if wanted else ():
        if error is not None:
            _note(failures, "user", name, error)
            continue
        mechanisms = sorted(item.mechanism for item in credentials if item.name == name)
        context.journal.step(created_access.USER_CREATED, key=name, details={"mechanisms": mechanisms})
        created.append(name)
    left = [Left(name=plan.name, reason=plan.reason) for plan in plans if plan.action == "report"]
    return {"users_created": created, "users_left": left}


def _credentials(context: PhaseContext, plan: UserPlan) -> list[NewScramCredential]:
    secret = context.resolver.text(context.spec.acls.users[plan.name]).strip()
    wanted = plan.credentials or [(mechanism, DEFAULT_ITERATIONS) for mechanism in DEFAULT_MECHANISMS]
    return [
        NewScramCredential(plan.name, mechanism, secret, max(iterations, MIN_ITERATIONS))
        for mechanism, iterations in wanted
        if mechanism.startswith("SCRAM-")
    ]


# -- quotas ----------------------------------------------------------------------------------------------------------


def quota_plans(context: PhaseContext) -> list[QuotaPlan]:
    """Quotas as they are now on both sides."""
    unknown: dict[str, str] = {}
    plans = plan_quotas(context, unknown)
    if unknown:
        what, why = next(iter(unknown.items()))
        raise TopologyRefused(
            f"{what} cannot be looked at: {why}",
            where=context.where(PHASE),
            next_step="grant DescribeConfigs on the cluster, or set acls.quotas: skip",
        )
    return plans


def refuse_quotas(context: PhaseContext, plans: Sequence[QuotaPlan]) -> None:
    """Raise for differences under ``acls.quotas: refuse``."""
    different = [entity_text(plan) for plan in plans if plan.action in ("create", "overwrite", "target_only")]
    if context.spec.acls.quotas == "refuse" and different:
        raise TopologyRefused(
            f"client quotas of {len(different)} entities differ: {', '.join(different[:10])}",
            where=context.where(PHASE),
            next_step="make them equal, or set acls.quotas: copy or keep_target",
            details={"entities": different},
        )


def set_quotas(context: PhaseContext, plans: Sequence[QuotaPlan], failures: Failures) -> dict[str, Any]:
    """Set quotas that are missing or, by policy, different. Keys that only the target has stay."""
    changes: dict[QuotaEntity, dict[str, float | None]] = {}
    texts: dict[QuotaEntity, str] = {}
    left = []
    for plan in plans:
        missing = {key: value for key, value in plan.values.items() if plan.target_values.get(key) != value}
        if plan.action == "kept_on_target":
            missing = {key: value for key, value in missing.items() if key not in plan.target_values}
            left.append(Left(name=entity_text(plan), reason="the target has other values (acls.quotas: keep_target)"))
        if plan.action == "target_only":
            left.append(Left(name=entity_text(plan), reason="only on the target; left in place"))
        elif missing and plan.action != "exists":
            entity: QuotaEntity = tuple((kind, name) for kind, name in plan.entity)
            changes[entity] = dict(missing)
            texts[entity] = entity_text(plan)
    done = []
    present = {tuple((kind, name) for kind, name in plan.entity): plan.target_values for plan in plans}
    for entity, error in created_access.set_quotas(context, changes, present).items():
        if error is not None:
            _note(failures, "quota", texts[entity], error)
        else:
            done.append(texts[entity])
    return {"quotas_set": sorted(done), "quotas_left": left}


def entity_text(plan: QuotaPlan) -> str:
    """``user alice, client-id (default)``."""
    return ", ".join(f"{kind} {name if name is not None else '(default)'}" for kind, name in plan.entity)


# -- group configs ---------------------------------------------------------------------------------------------------


def set_group_configs(context: PhaseContext, failures: Failures) -> dict[str, Any]:
    """Configs of groups (4.1+) that the target does not have yet."""
    plans = plan_group_configs(context, context.load_plan().groups, {})
    wanted = {plan.group: dict(plan.configs) for plan in plans if plan.action == "create"}
    done = []
    for group, error in context.target.admin.alter_configs(ConfigResource.GROUP, wanted).items() if wanted else ():
        if error is not None:
            _note(failures, "group config", group, error)
        else:
            done.append(group)
    left = [Left(name=plan.group, reason=plan.reason) for plan in plans if plan.action == "unsupported"]
    return {"group_configs_set": sorted(done), "group_configs_left": left}
