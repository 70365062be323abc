"""Makes the plan from the spec and the live clusters. Only reads; two plans of unchanged clusters are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from airflow_provider_kafka_migration.access.mapping import plan_acls, plan_group_configs, plan_quotas, plan_users
from airflow_provider_kafka_migration.adoption.make import MadeAdoption, make_adoption, with_starts
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.plan import ClusterFacts, Plan
from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.groups.left_out import left_out_groups
from airflow_provider_kafka_migration.groups.offsets import plan_groups
from airflow_provider_kafka_migration.kafka.admin.topics import Configs
from airflow_provider_kafka_migration.lanes.assignment import assign_lanes
from airflow_provider_kafka_migration.pages.plan import documents
from airflow_provider_kafka_migration.planning import late_start, mirror_starts, source_snapshot, verdicts
from airflow_provider_kafka_migration.planning.schemas import make_schema_plan, put_schema_plan, summary_of
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics import probe
from airflow_provider_kafka_migration.topics import target_topics as topology_topics
from airflow_provider_kafka_migration.topics.configs import TargetRules
from airflow_provider_kafka_migration.verbs import in_former_words


class MadePlans(NamedTuple):
    """A plan, and the documents that it refers to."""

    plan: Plan
    schemas: SchemaPlan | None
    adoption: MadeAdoption | None


def put_plan(
    record: MigrationRecord,
    source: Cluster,
    target: Cluster,
    plan: Plan,
    schemas: SchemaPlan | None = None,
    adoption: MadeAdoption | None = None,
) -> str:
    """Write a plan with its documents and return its digest. ``plan.json`` comes last, after all that it refers to.

    :param schemas: the schema plan that the plan refers to, if it is not stored already.
    :param adoption: the adoption that the plan refers to, likewise.
    """
    digest, data = plan.digest(), plan.canonical()
    if schemas is not None:
        put_schema_plan(record, schemas)
    if adoption is not None:
        adoption.put(record)
    record.journal_store.put(record.key(f"plans/{digest[:16]}.json"), data)
    shown = schemas or record.schema_plan_of(plan)
    for name, content in sorted(documents(record.spec, plan, source.config, target.config, shown).items()):
        record.journal_store.put(record.key(f"plan/{name}"), content.encode())
    record.journal_store.put(record.key(keys.PLAN), data)
    return digest


# -- make -------------------------------------------------------------------------------------------------------------


PHASE = "plan"


def make_plan(context: PhaseContext) -> Plan:
    """Make the plan from the current state of the clusters. Errors as those of :func:`make_plans`."""
    return make_plans(context).plan


def make_plans(context: PhaseContext) -> MadePlans:
    """Make the plan from the current state of the clusters, the schema plan from that of the registries, the adoption.

    :returns: the schema plan is None if the spec names no registry, or if one could not be read (``Plan.unknown``).
        The adoption is None if the spec adopts nothing.
    :raises Terminal: nothing is selected, or names on the target collide; one error lists all problems.
    :raises PermissionMissing: the configs of source topics may not be read.
    """
    context.progress(Progress(PHASE, "reading both clusters"))
    spec = context.spec
    found = source_snapshot.read_source(context)
    verdicts.check_names(spec, sorted(found.topics), migration_id=spec.migration_id)
    target_facts = ClusterFacts.model_validate(context.target.admin.facts())
    context.progress(Progress(PHASE, f"target: {len(found.topics)} topics"))
    target = target_topics(context.record, context.target, target_facts, sorted(found.topics), found.unknown)
    first = late_start.first_offsets(context, found)
    topics = [verdicts.topic_plan(spec, facts, found, target, first) for _, facts in sorted(found.topics.items())]
    adoption = make_adoption(context, topics)
    if adoption is not None:
        topics = [with_starts(spec, topic, adoption.document) for topic in topics]
    context.progress(Progress(PHASE, "groups, ACLs, users, quotas"))
    groups = plan_groups(context.spec, context.source, found.topics, found.stable, found.unknown)
    schemas = make_schema_plan(context, {topic.name: topic.target_name for topic in topics}, found.unknown)
    plan = Plan(
        migration_id=spec.migration_id,
        source=found.facts,
        target=target_facts,
        topics=topics,
        groups=groups,
        acls=plan_acls(context.record, context.source, context.target, found.topics, found.unknown),
        users=plan_users(context.spec, context.source, context.target, found.unknown),
        quotas=plan_quotas(context.spec, context.source, context.target, found.unknown),
        group_configs=plan_group_configs(context.source, context.target, groups, found.unknown),
        lanes=assign_lanes(
            {
                (topic.name, item.partition): item.size_bytes
                for topic in topics
                for item in topic.partitions
                if not item.left_out
            },
            spec.seed.lanes,
        ),
        excluded_topics=found.excluded,
        excluded_groups=left_out_groups(context.spec, context.source, found.topics, found.unknown),
        notes=_notes(context.spec),
        defaults_drift=verdicts.defaults_drift(found, target.rules),
        unknown=dict(sorted(found.unknown.items())),
        missing_topics=found.missing,
        estimate=verdicts.estimate(spec, topics),
        schemas=None if schemas is None else summary_of(schemas),
        adoption=None if adoption is None else adoption.summary(),
        spec_digest=canonical_digest(in_former_words(spec.model_dump(mode="json"))),
    )
    return MadePlans(plan, schemas, adoption)


def plan_of_look(
    record: MigrationRecord, target: Cluster, found: source_snapshot.SourceSnapshot, *, notes: list[str]
) -> Plan:
    """Make the plan of topics alone from an existing snapshot of the source; only the target is queried.

    :raises Terminal: names on the target collide; one error lists all problems.
    """
    spec = record.spec
    verdicts.check_names(spec, sorted(found.topics), migration_id=spec.migration_id)
    target_facts = ClusterFacts.model_validate(target.admin.facts())
    present = target_topics(record, target, target_facts, sorted(found.topics), found.unknown)
    topics = [verdicts.topic_plan(spec, facts, found, present) for _, facts in sorted(found.topics.items())]
    return Plan(
        migration_id=spec.migration_id,
        source=found.facts,
        target=target_facts,
        topics=topics,
        lanes=assign_lanes({key: found.sizes.get(key, -1) for key in found.keys}, spec.seed.lanes),
        excluded_topics=found.excluded,
        notes=notes,
        unknown=dict(sorted(found.unknown.items())),
        missing_topics=found.missing,
        estimate=verdicts.estimate(spec, topics),
        spec_digest=canonical_digest(in_former_words(spec.model_dump(mode="json"))),
    )


def target_topics(
    record: MigrationRecord, target: Cluster, facts: ClusterFacts, topics: list[str], unknown: dict[str, str]
) -> verdicts.TargetTopics:
    """Read the target's topics and what it knows about topic configs."""
    admin = target.admin
    names = [record.spec.topics.target_name(name) for name in topics]
    described = admin.describe_topics(names)
    there = [name for name in names if described[name].error is None]
    configs = admin.topic_configs(there)
    for name, item in configs.items():
        if item.error is not None:
            raise item.error.exception(
                "configs of a target topic cannot be read",
                record.where(PHASE, cluster="target", topic=name),
                operation="DescribeConfigs on Topic",
            )
    ids = topology_topics.journaled_ids(record)
    ours = frozenset(name for name in there if ids.get(name) == described[name].topic_id)
    shared = _shared(record, target, {name: len(described[name].partitions) for name in there if name not in ours})
    return verdicts.TargetTopics(
        rules=_rules(target, facts, names, configs, unknown),
        present={name: _before_us(record, name, item.overrides, shared) for name, item in configs.items()},
        ours=ours,
        shared=shared,
        no_compare=probe.no_compare(record),
        factors={name: described[name].replication_factor for name in there},
    )


def _shared(record: MigrationRecord, target: Cluster, partitions: dict[str, int]) -> frozenset[str]:
    """Topics with data of others that the user wants to copy into; topics that are already shared stay shared."""
    if record.spec.offsets.on_foreign_writer != "note" or not partitions:
        return frozenset()
    keys = [(name, number) for name, count in partitions.items() for number in range(count)]
    ends = target.wire.list_offsets(keys, "log_end")
    with_data = {name for (name, _), end in ends.items() if end > 0}
    return frozenset(with_data | (topology_topics.journaled_shared(record) & set(partitions)))


def _before_us(
    record: MigrationRecord, name: str, overrides: Mapping[str, str], shared: frozenset[str]
) -> Mapping[str, str]:
    """A shared topic's configs before it got copy-time settings: those that it ends with."""
    settings = record.copy_settings() if name in shared else None
    known = None if settings is None else settings.topics.get(name)
    return overrides if known is None or known.before is None else known.before


def _rules(
    target: Cluster, facts: ClusterFacts, names: list[str], there: dict[str, Configs], unknown: dict[str, str]
) -> TargetRules:
    """Defaults of a topic that does not exist yet; or, where all topics exist, the configs not set on them."""
    admin = target.admin
    defaults: dict[str, str | None] | None = None
    absent = next((name for name in names if name not in there), None)
    if absent is not None:
        answer = admin.new_topic_configs(absent)
        if answer.error is None:
            defaults = {name: item.value for name, item in answer.values.items()}
        else:
            unknown["defaults of new topics on the target"] = answer.error.name
    else:
        defaults = {}
        for item in there.values():
            for name, value in item.values.items():
                if not value.is_override or name not in defaults:
                    defaults[name] = value.value
    broker = admin.broker_configs(facts.brokers[0])
    tiered = None if broker.error else broker.get("remote.log.storage.system.enable", "false") == "true"
    return TargetRules(facts, defaults, tiered)


def _notes(spec: MigrationSpec) -> list[str]:
    notes = [
        "delegation tokens are not copied: they are bound to a cluster's secret",
        "transactional ids are not portable: transactional producers start clean on the target",
        "secrets of SCRAM users cannot be read from a cluster: users without a reference in acls.users are only listed",
    ]
    if spec.acls.policy == "skip":
        notes.append("ACLs are not copied (acls.policy: skip)")
    if mirror_starts.is_late(spec):
        notes.append(
            "what the source's topics have when the mirror is first planned is not copied (mirror.start: latest)"
        )
    if spec.is_two_way:
        notes.append(
            "with mirror.two_way only ACLs of mirrored topics are copied, and no client quotas: the opposite flow "
            "would restore what is removed"
        )
    elif spec.acls.quotas == "skip":
        notes.append("client quotas are not copied (acls.quotas: skip)")
    return sorted(notes)


def write_plan(context: PhaseContext) -> PhaseResult:
    """Make the plan, write ``plan.json`` and the documents next to it, and journal its digest."""
    starts_are_known = mirror_starts.are_known(context.record)
    plan, schemas, adoption = make_plans(context)
    context.journal.check_holds()
    # Before the plan is written: without the entry, a plan that is made again would begin later.
    if not starts_are_known and not mirror_starts.keep(context.record, plan.topics):
        plan, schemas, adoption = make_plans(context)
    digest = put_plan(context.record, context.source, context.target, plan, schemas, adoption)
    if context.spec.estimate.measure:
        measured = source_snapshot.measure(context, plan)
        context.journal_store.put(context.key(keys.MEASURED_RATES), measured.canonical())
        context.progress(Progress(PHASE, measured.summary()))
    last = context.journal.find_step(steps.PLANNED)
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    summary = f"plan {digest[:8]}: {len(plan.topics)} topics, {partitions} partitions, {len(plan.groups)} groups"
    summary += f", {plan.schemas.subjects} subjects" if plan.schemas is not None else ""
    summary += f", {plan.adoption.partitions} partitions adopted" if plan.adoption is not None else ""
    details = {"digest": digest, "uri": f"{context.journal_store.uri}/{context.key(keys.PLAN)}", "summary": summary}
    if last is None or last.details.get("digest") != digest:
        context.journal.step(steps.PLANNED, details=details, reason=summary)
    return PhaseResult(PHASE, summary, details)
