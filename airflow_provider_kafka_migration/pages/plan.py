"""The documents next to plan.json, made from it: plan.md, runbook.md, permissions.md, cost-estimate.json. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.documents.adoption import AdoptedStart
from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.groups.left_out import group_reason
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.pages import schemas as schema_facts
from airflow_provider_kafka_migration.pages.rendering import entity, render
from airflow_provider_kafka_migration.phase_table import TASKS, Place
from airflow_provider_kafka_migration.plain_secrets import shown_address
from airflow_provider_kafka_migration.spec import MigrationSpec

# -- plan cost --------------------------------------------------------------------------------------------------------
#
# The estimated cost of a migration: transfer, S3 requests and storage, with the assumptions. Pure.


_GB = 1_000_000_000
_MONTH_SECONDS = 30 * 86400


class CostItem(Part):
    """One item of the cost: a quantity and its price in US dollars."""

    name: str
    quantity: float
    unit: str
    usd: float


class CostEstimate(Document):
    """``plan/cost-estimate.json``."""

    version: int = 1
    migration_id: str
    plan_digest: str
    items: list[CostItem]
    total_usd: float
    assumptions: list[str] = Field(default_factory=list)


def estimate_cost(spec: MigrationSpec, plan: Plan) -> CostEstimate:
    """Estimate the cost of one migration. Sizes that brokers do not report count as 0; the assumptions state that."""
    rates = spec.estimate
    total = plan.total_bytes
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    via_s3 = spec.seed.via != "direct"
    segments = sum(_segments(item.size_bytes, spec) for topic in plan.topics for item in topic.partitions)
    journal_puts = 60 + 2 * partitions
    copies = 3 if via_s3 else 2
    items = [_item("network transfer", copies * total / _GB, "GB", rates.usd_per_gb_transfer)]
    items.append(_item("validation reads both sides", 2 * total / _GB, "GB", rates.usd_per_gb_transfer))
    items.append(_item("S3 journal requests", journal_puts / 1000, "1000 requests", rates.usd_per_1000_puts))
    if via_s3:
        items.append(_item("S3 segment writes", segments / 1000, "1000 requests", rates.usd_per_1000_puts))
        items.append(_item("S3 segment reads", segments / 1000, "1000 requests", rates.usd_per_1000_gets))
        months = rates.keep_segments.total_seconds() / _MONTH_SECONDS
        items.append(_item("S3 segment storage", total / _GB * months, "GB months", rates.usd_per_gb_month))
    return CostEstimate(
        migration_id=plan.migration_id,
        plan_digest=plan.digest(),
        items=items,
        total_usd=round(sum(item.usd for item in items), 2),
        assumptions=_assumptions(spec, plan),
    )


def _segments(size_bytes: int, spec: MigrationSpec) -> int:
    return math.ceil(max(size_bytes, 0) / spec.seed.segment_max_bytes)


def _item(name: str, quantity: float, unit: str, usd_each: float) -> CostItem:
    return CostItem(name=name, quantity=round(quantity, 3), unit=unit, usd=round(quantity * usd_each, 4))


def _assumptions(spec: MigrationSpec, plan: Plan) -> list[str]:
    rates: dict[str, Any] = spec.estimate.model_dump(mode="json")
    assumptions = [f"estimate.{name} = {value}" for name, value in sorted(rates.items())]
    assumptions.append(f"{plan.total_bytes:,} bytes on the source's leaders, compressed as they are, copied once")
    assumptions.append(
        "data that is produced while the migration runs, and the machines of Spark and Airflow, are not included"
    )
    if any(item.size_bytes < 0 for topic in plan.topics for item in topic.partitions):
        assumptions.append(
            "the source does not tell the size of some partitions: they count as 0, so the estimate is too low"
        )
    return assumptions


# -- documents --------------------------------------------------------------------------------------------------------


def documents(
    spec: MigrationSpec,
    plan: Plan,
    source: ClientConfig | None = None,
    target: ClientConfig | None = None,
    schemas: SchemaPlan | None = None,
) -> dict[str, str]:
    """Return file name -> content. Equal plans give equal documents.

    :param source: the source's connection, for the name of the migration's principal; None: a placeholder is written.
    :param target: the same for the target.
    :param schemas: the schema plan that belongs to the plan; None: no schemas move.
    """
    cost = estimate_cost(spec, plan)
    return {
        "cost-estimate.json": cost.canonical().decode() + "\n",
        "permissions.md": render(
            "permissions.md.j2", plan=plan, sides=_sides(spec, plan, source, target), registries=registry_rights(spec)
        ),
        "plan.md": _plan_page(plan, cost, schemas),
        "runbook.md": _runbook(spec, plan),
    }


def _plan_page(plan: Plan, cost: CostEstimate, schemas: SchemaPlan | None) -> str:
    return render(
        "plan.md.j2",
        plan=plan,
        cost=cost,
        schemas=None if schemas is None else schema_facts.plan_facts(schemas),
        partitions=[item for topic in plan.topics for item in topic.partitions],
        copy_time=_copy_time(plan),
        fill_time=_time(plan.estimate.fill_seconds) if plan.estimate is not None else "unknown",
        dropped_configs=[(t.name, name, why) for t in plan.topics for name, why in sorted(t.dropped_configs.items())],
        drift=[
            (topic.target_name, item["config"], *(_or_default(item[side]) for side in ("target", "source", "planned")))
            for topic in plan.topics
            for item in topic.drift
        ],
        not_equal=[
            (f"{topic.name}-{item.partition}", item.verdict.value, item.reason)
            for topic in plan.topics
            for item in topic.partitions
            if item.verdict is not Verdict.EQUAL
        ],
        adopted=[
            (f"{topic.name}-{item.partition}", *_adopted(item.adopted))
            for topic in plan.topics
            for item in topic.partitions
            if item.adopted is not None
        ],
        acls_not_created=[
            acl for acl in plan.acls if acl.action in ("filtered", "unsupported", "deferred", "target_only")
        ],
        excluded_groups=[(group.group, group.type, group_reason(group)) for group in plan.excluded_groups],
    )


def _adopted(start: AdoptedStart) -> tuple[str, ...]:
    counts = {
        "twice": start.earlier.duplicates,
        "aborted": start.earlier.aborted_records,
        "missing": start.earlier.missing,
    }
    below = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count > 0)
    return (
        f"{start.source_offset:,}",
        f"{start.target_offset:,}",
        start.proof,
        f"{start.compared_records:,}",
        below,
        start.note,
    )


def _runbook(spec: MigrationSpec, plan: Plan) -> str:
    """Return what will happen in this migration, in order, with the commands for on-call."""
    scheme, _, host = shown_address(spec.cutover.producer_freeze_webhook or "").partition("://")
    return render(
        "runbook.md.j2",
        spec=spec,
        plan=plan,
        partitions=[item for topic in plan.topics for item in topic.partitions],
        copy_time=_copy_time(plan),
        webhook_scheme=scheme,
        webhook_host=host,
        lifted=words.lifted(spec.cutover.freeze),
        in_order=_in_order,
    )


def _in_order(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the tasks of each step and its text, in the order of the table of phases.

    :param texts: by task, or by tasks that make one step, separated by commas. A task of the line without a text has
        the summary of its row.
    """
    steps = {task: tasks for tasks in texts for task in tasks.split(", ")}
    shown: set[str] = set()
    for row in TASKS:
        tasks = steps.get(row.id, row.id if row.place is Place.LINE else "")
        if tasks and tasks not in shown:
            shown.add(tasks)
            yield tasks, texts.get(tasks, row.summary)


def _sides(
    spec: MigrationSpec, plan: Plan, source: ClientConfig | None, target: ClientConfig | None
) -> list[dict[str, Any]]:
    """Return the rights of each side's principal: as data, as commands, and as an IAM policy."""
    items = permissions.needed(spec, plan)
    sides = []
    for name, config, arn in (("source", source, None), ("target", target, spec.acls.target_cluster_arn)):
        principal = permissions.principal_of(config)
        needed = [item for item in items if item.side == name]
        sides.append(
            {
                "name": name,
                "principal": principal,
                "needed": needed,
                "commands": [permissions.command(principal, item) for item in needed],
                "policy": json.dumps(permissions.iam_policy(spec, needed, arn), indent=2),
            }
        )
    return sides


def registry_rights(spec: MigrationSpec) -> list[dict[str, Any]]:
    """Return what the users of both registries must be permitted to do; empty where no registry is configured."""
    schemas = spec.schemas
    found = []
    if schemas.source:
        rows = [("GET", "/contexts, /subjects and below, /schemas/ids, /config, /mode", "to plan, copy and compare")]
        if schemas.source_registry == "readonly":
            rows.append(("PUT, DELETE", "/mode", "schemas.source_registry: readonly, and to put the mode back"))
        found.append({"name": "source", "reference": schemas.source, "rows": rows})
    if schemas.target and schemas.copies:
        rows = [
            ("GET", "/contexts, /subjects and below, /schemas/ids, /config, /mode", "to plan and to compare"),
            ("POST", "/subjects/SUBJECT, /subjects/SUBJECT/versions", "to look up and to register schemas"),
            ("PUT, DELETE", "/config/SUBJECT", "compatibility levels of subjects and contexts"),
            ("PUT, DELETE", "/mode/SUBJECT", "modes of subjects and contexts; IMPORT while ids are written"),
        ]
        if schemas.include_deleted:
            rows.append(
                ("DELETE", "/subjects/SUBJECT, /subjects/SUBJECT/versions/N", "what is soft-deleted there, too")
            )
        if schemas.global_config:
            rows.append(("PUT", "/config, /mode", "schemas.global_config"))
        if schemas.ids != "translate":
            rows.append(("PUT", "/mode", "to keep ids where the registry sets IMPORT only as a whole"))
            rows.append(("POST", "/apis/registry/v3/admin/import", "to keep ids in an Apicurio registry (role admin)"))
        found.append({"name": "target", "reference": schemas.target, "rows": rows})
    return found


def _copy_time(plan: Plan) -> str:
    return _time(plan.estimate.copy_seconds) if plan.estimate is not None else "unknown"


def _time(seconds: float) -> str:
    if seconds < 0:
        return "unknown (the source does not tell the sizes of its partitions)"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _or_default(value: object) -> object:
    return "(default)" if value is None else value


# -- plan diff --------------------------------------------------------------------------------------------------------
#
# What changed between two plans, for people and machines. Pure.


#: Figures that change all the time on a live cluster; shown only on request.
MOVING = frozenset(
    {
        "end_offset",
        "estimate",
        "estimated_holes",
        "estimated_records",
        "high_watermark",
        "lag",
        "size_bytes",
        "state",
        "total_bytes",
        # Figures of the sample that finds schema ids.
        *("key_ids", "key_known_ids", "sampled_records", "value_ids", "value_known_ids"),
        *("tried_records", "decoded_records"),
    }
)
#: Lists of the plan whose items have an identity: list -> fields that identify an item.
_KEYS: dict[str, tuple[str, ...]] = {
    "topics": ("name",),
    "partitions": ("partition",),
    "groups": ("group",),
    "excluded_groups": ("group",),
    "acls": (
        *("principal", "permission", "operation", "resource_type"),
        *("resource_name", "pattern_type", "host", "target_resource_name"),
    ),
    "users": ("name",),
    "quotas": ("entity",),
    "group_configs": ("group",),
    "lanes": ("lane",),
    "drift": ("config",),
    "defaults_drift": ("config",),
    "subjects": ("subject",),
    "versions": ("version",),
    "ids_in_topics": ("topic",),
    "conflicts": ("kind", "subject", "version", "id"),
}


#: Fields that stand for the whole item where a change shows it in one line.
_NAMED = ("target_name", "action", "verdict", "state", "target_subject", "what")


class Change(Part):
    """One difference. ``before`` is null for an addition, ``after`` for a removal."""

    path: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {_short(self.after)}"
        if self.after is None:
            return f"- {self.path}: {_short(self.before)}"
        return f"~ {self.path}: {_short(self.before)} -> {_short(self.after)}"


class PlanDiff(Document):
    """The differences of two plans, ascending by path."""

    version: int = 1
    before: str = Field(description="digest of the earlier plan")
    after: str = Field(description="digest of the later plan")
    changes: list[Change]


#: The schema plans of an earlier and a later plan; None where a plan has none.
SchemaPlans = tuple[SchemaPlan | None, SchemaPlan | None]


def diff_plans(before: Plan, after: Plan, *, moving: bool = False, schemas: SchemaPlans | None = None) -> PlanDiff:
    """Compare two plans.

    :param moving: also show offsets, sizes, lags and states, which change all the time.
    :param schemas: the schema plans of both, to compare subject by subject; None: only their figures are compared.
    """
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    if schemas is not None:
        old["schemas"], new["schemas"] = (_comparable(item) for item in schemas)
    changes = sorted(_changes("", old, new, moving), key=lambda change: change.path)
    return PlanDiff(before=before.digest(), after=after.digest(), changes=changes)


def _comparable(plan: SchemaPlan | None) -> dict[str, Any] | None:
    """Return a schema plan as data, with other names for lists that are something else in a plan."""
    if plan is None:
        return None
    data = plan.model_dump(mode="json", exclude={"version", "migration_id"})
    data["ids_in_topics"] = data.pop("topics")
    for subject in data["subjects"]:
        subject["used_by"] = subject.pop("topics")
    return data


def as_text(diff: PlanDiff) -> str:
    """Return one line per difference."""
    if not diff.changes:
        return "the plans are equal" if diff.before == diff.after else "nothing but moving figures differs"
    return "\n".join(str(change) for change in diff.changes)


def as_markdown(diff: PlanDiff) -> str:
    """Return the differences as a Markdown table."""
    rows = [
        (change.path, *(None if value is None else _short(value) for value in (change.before, change.after)))
        for change in diff.changes
    ]
    return render("plan_diff.md.j2", diff=diff, rows=rows, no_changes=as_text(diff))


def _changes(path: str, old: Any, new: Any, moving: bool) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            if moving or name not in MOVING:
                yield from _member(f"{path}.{name}" if path else name, name, old.get(name), new.get(name), moving)
        return
    yield Change(path=path, before=old, after=new)


def _member(path: str, name: str, old: Any, new: Any, moving: bool) -> Iterator[Change]:
    keys = _KEYS.get(name)
    if keys is None or not isinstance(old, list) or not isinstance(new, list):
        yield from _changes(path, old, new, moving)
        return
    before, after = _by_key(old, keys), _by_key(new, keys)
    for key in sorted(before.keys() | after.keys()):
        yield from _changes(f"{path}[{key}]", before.get(key), after.get(key), moving)


def _by_key(items: list[Any], keys: tuple[str, ...]) -> dict[str, Any]:
    # A lane's partitions are pairs of topic and partition, not objects.
    return {
        " ".join(map(str, item) if isinstance(item, list) else (_diff_text(item[key]) for key in keys)): item
        for item in items
    }


def _diff_text(value: Any) -> str:
    return entity(value, ",") if isinstance(value, list) else str(value)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        named = [str(value[key]) for key in _NAMED if value.get(key)]
        return ", ".join(named) or f"{len(value)} fields"
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
