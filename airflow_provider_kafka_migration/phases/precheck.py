"""Precheck: everything that would stop the migration, all at once; read-only on the source."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.findings import Finding, Severity
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.errors import MigrationError, PrecheckBlocked
from airflow_provider_kafka_migration.phases import topology_topics
from airflow_provider_kafka_migration.phases.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.phases.migrated import put_result
from airflow_provider_kafka_migration.phases.probe import probe_target
from airflow_provider_kafka_migration.storage.base import ObjectStore

PHASE = "precheck"
STEP = "prechecked"
RESULT = "precheck"

Check = Callable[[PhaseContext, Plan], Iterator[Finding]]


class PrecheckResult(Document):
    """``results/precheck.json``."""

    version: int = 1
    migration_id: str
    findings: list[Finding] = Field(default_factory=list)


def run(context: PhaseContext) -> PhaseResult:
    """Run all checks.

    :raises PrecheckBlocked: with all findings, after all checks have run.
    """
    plan = context.load_plan()
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        context.progress(Progress(PHASE, name))
        try:
            findings += check(context, plan)
        except MigrationError as error:
            findings.append(_failed_check(name, error))
    findings = sorted(
        (_waived(context, item) for item in findings), key=lambda item: (item.severity, item.code, item.subject)
    )
    result = PrecheckResult(migration_id=context.migration_id, findings=findings)
    put_result(context, RESULT, result)
    counts = {severity.value: sum(item.severity is severity for item in findings) for severity in Severity}
    blockers = [item for item in findings if item.severity is Severity.BLOCKER]
    details: dict[str, Any] = {
        "counts": counts,
        "findings": [item.model_dump(mode="json") for item in findings],
        "waived": [item.code for item in findings if item.waived],
    }
    context.journal.step(STEP, details=details)
    if blockers:
        raise PrecheckBlocked(
            f"{len(blockers)} blockers: "
            + "; ".join(f"{item.code} {item.title}: {item.seen}" for item in blockers[:10]),
            where=context.where(PHASE),
            next_step=blockers[0].fix + "; then clear precheck",
            details=details,
        )
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    return PhaseResult(PHASE, f"precheck passed: {summary}", details)


def _waived(context: PhaseContext, finding: Finding) -> Finding:
    waived = finding.severity is Severity.WARNING and finding.code in context.spec.waive
    return finding.model_copy(update={"waived": waived})


def _failed_check(name: str, error: MigrationError) -> Finding:
    return Finding(
        code="B001",
        severity=Severity.BLOCKER,
        title=f"{name} could not be checked",
        seen=error.what,
        fix=error.next_step or "see the error",
        subject=str(error.where),
    )


def _clusters(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    if plan.source.cluster_id == plan.target.cluster_id:
        yield Finding(
            code="B002",
            severity=Severity.BLOCKER,
            title="source and target are the same cluster",
            seen=f"both have the cluster id {plan.source.cluster_id}",
            fix="correct one of the two connections",
        )


def _topics(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    for topic in plan.topics:
        minimum = int(topic.target_configs.get("min.insync.replicas", "1"))
        if 0 < topic.replication_factor < minimum:
            yield Finding(
                code="B011",
                severity=Severity.BLOCKER,
                title="min.insync.replicas above the replication factor",
                seen=f"{minimum} above {topic.replication_factor}: nothing could be written",
                fix="lower it on the source topic, exclude it (topology.config_exclude), or raise the factor",
                subject=topic.name,
            )
        if topic.replication_factor != topic.source_replication_factor and topic.replication_factor > 0:
            yield Finding(
                code="W012",
                severity=Severity.WARNING,
                title="replication factor differs",
                seen=f"{topic.replication_factor} on the target, {topic.source_replication_factor} on the source",
                fix="add brokers to the target, or accept it (waive W012)",
                subject=topic.name,
            )
    for name, present in sorted(topology_topics.look(context, plan).items()):
        partitions = next(len(topic.partitions) for topic in plan.topics if topic.target_name == name)
        if not present.ours and not present.empty:
            ends = [end for end in present.end_offsets.values() if end > 0]
            yield Finding(
                code="B010",
                severity=Severity.BLOCKER,
                title="target topic holds foreign data",
                seen=f"{sum(ends)} offsets in {len(ends)} partitions",
                fix="delete the topic on the target, leave it out (topics.exclude), or rename it (topics.rename)",
                subject=name,
            )
        if present.partitions > partitions:
            yield Finding(
                code="B013",
                severity=Severity.BLOCKER,
                title="target topic has more partitions",
                seen=f"{present.partitions} on the target, {partitions} on the source",
                fix="delete the topic on the target, or rename it (topics.rename)",
                subject=name,
            )


def _probe(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    fixes = {
        "sequence": ("B020", "the target does not compare sequences", "this target cannot be copied to exactly"),
        "fillers": ("B021", "log starts cannot be filled", "set offsets.mode: shifted, or see what the broker says"),
        "markers": (
            "B022",
            "control markers cannot be written",
            "grant ClusterAction (or Alter, 3.8 and later) on the target cluster, or set offsets.mode: mapped",
        ),
    }
    result = probe_target(context)
    for name, (code, title, fix) in fixes.items():
        outcome = result.outcomes.get(name, "not tried")
        needed = name != "markers" or context.spec.offsets.mode != "mapped"
        if outcome and needed:
            yield Finding(code=code, severity=Severity.BLOCKER, title=title, seen=outcome, fix=fix)


def _storage(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    stores: dict[str, ObjectStore] = {
        "archive": context.archive_store,
        "evidence": context.evidence_store,
        "journal": context.journal_store,
    }
    for role, store in stores.items():
        key = context.key(f"precheck/{uuid.uuid4().hex}")
        try:
            store.put_new(key, b"kafka-migration precheck")
            content = store.get(key)
        except MigrationError as error:
            yield Finding(
                code="B030",
                severity=Severity.BLOCKER,
                title="storage is not writable",
                seen=error.what,
                fix=error.next_step,
                subject=f"{role} {store.uri}",
            )
            continue
        if content != b"kafka-migration precheck":
            yield Finding(
                code="B031",
                severity=Severity.BLOCKER,
                title="storage does not read back what was written",
                seen="other content",
                fix="check the object store",
                subject=f"{role} {store.uri}",
            )


def _signing(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    if context.spec.evidence.signing_key is None:
        yield Finding(
            code="B040",
            severity=Severity.BLOCKER,
            title="no signing key",
            seen="evidence.signing_key is not set",
            fix="make one with `kafka-migration keygen` and give a reference to it (env:, file: or a connection)",
        )


def _transactions(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    for topic in plan.topics:
        held = [item for item in topic.partitions if item.high_watermark > item.end_offset]
        if held:
            yield Finding(
                code="W050",
                severity=Severity.WARNING,
                title="open transactions",
                seen=f"in {len(held)} partitions the last stable offset is below the high watermark",
                fix="end or abort hanging transactions before the cutover (kafka-transactions.sh)",
                subject=topic.name,
            )


CHECKS: dict[str, Check] = {
    "clusters": _clusters,
    "topics": _topics,
    "storage": _storage,
    "signing key": _signing,
    "open transactions": _transactions,
    "probe of the target": _probe,
}
