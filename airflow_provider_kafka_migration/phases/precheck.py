"""Precheck: find everything that would stop the migration and report it together; read-only on the source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_kafka_migration.checks import (
    access,
    adoption,
    merged,
    mirrors,
    schemas,
    source,
    spark,
    target,
    topics,
)
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.plan import Finding, Plan, PrecheckResult, Severity, Verdict
from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClaimLost,
    Interrupted,
    KerberosUnavailable,
    KerberosUnsupported,
    MigrationError,
    PermissionMissing,
    PrecheckBlocked,
    StorageRefused,
    StorageUnavailable,
    TokenUnavailable,
)
from airflow_provider_kafka_migration.planning.make import write_plan
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.finding_codes import CODES, finding, seen_with_subject
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics import probe
from airflow_provider_kafka_migration.verbs import in_former_words

log = logging.getLogger(__name__)

PHASE = "precheck"

Check = Callable[[PhaseContext, Plan], Iterator[Finding]]

_ORDER = {Severity.BLOCKER: 0, Severity.WARNING: 1, Severity.INFO: 2}
_BY_ERROR: tuple[tuple[type[MigrationError], str], ...] = (
    (AuthenticationFailed, "B004"),
    (TokenUnavailable, "B004"),
    (KerberosUnavailable, "B004"),
    (KerberosUnsupported, "B004"),
    (BrokerUnreachable, "B003"),
    (PermissionMissing, "B005"),
    (StorageRefused, "B030"),
    (StorageUnavailable, "B030"),
)


def run(context: PhaseContext) -> PhaseResult:
    """Run all checks.

    :raises PrecheckBlocked: there are blockers; raised after all checks have run, with all findings.
    """
    plan = _present_plan(context)
    context.journal.check_holds()
    found = find_all(context, plan)
    if _plan_is_outdated(context.record, plan):
        # The probe has just shown that records cannot be appended by sequence here, which changes the verdicts.
        write_plan(context)
        plan = context.record.plan()
        found = find_all(context, plan)
    findings = [_waived(context.spec, item) for item in found]
    result = PrecheckResult(migration_id=context.migration_id, plan_digest=plan.digest(), findings=findings)
    context.record.put_result(keys.PRECHECK, result)
    counts = {severity.value: sum(item.severity is severity for item in findings) for severity in Severity}
    details: dict[str, Any] = {
        "counts": counts,
        "findings": [item.model_dump(mode="json") for item in findings],
        "waived": sorted({item.code for item in findings if item.waived}),
    }
    log.info("%s", as_table(findings))
    context.journal.step(steps.PRECHECKED, details=details)
    _journal_waivers(context.record, findings)
    blockers = [item for item in findings if item.severity is Severity.BLOCKER]
    if blockers:
        raise PrecheckBlocked(
            f"{len(blockers)} blockers: " + "; ".join(_line(item) for item in blockers[:10]),
            where=context.where(PHASE),
            next_step=f"{blockers[0].fix}; then clear precheck",
            details=details,
        )
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if name != Severity.BLOCKER)
    return PhaseResult(PHASE, f"precheck passed: {summary}", details)


def _present_plan(context: PhaseContext) -> Plan:
    """Return the plan; if the spec has changed since, make a new one first: an outdated plan must not be used."""
    plan = context.record.plan()
    if plan.spec_digest and plan.spec_digest != canonical_digest(in_former_words(context.spec.model_dump(mode="json"))):
        log.info("The spec has changed since the plan was made; planned again: %s", write_plan(context).summary)
        return context.record.plan()
    return plan


def _plan_is_outdated(record: MigrationRecord, plan: Plan) -> bool:
    verdicts = {item.verdict for topic in plan.topics for item in topic.partitions}
    return bool(verdicts - {Verdict.TRANSACTIONAL}) and bool(probe.no_compare(record))


def find_all(context: PhaseContext, plan: Plan) -> list[Finding]:
    """Run all checks and return all findings, blockers first. A check that fails is a finding; the others still run."""
    findings: list[Finding] = []
    for number, (name, check) in enumerate(CHECKS.items()):
        context.progress(Progress(PHASE, name, number, len(CHECKS), "checks"))
        try:
            findings += check(context, plan)
        except (ClaimLost, Interrupted):
            raise
        except MigrationError as error:
            findings.append(_failed_check(name, error))
    findings += _unknown_waivers(context.spec)
    unique = {(item.code, item.subject, item.seen): item for item in findings}
    return sorted(unique.values(), key=lambda item: (_ORDER[item.severity], item.code, item.subject, item.seen))


def _unknown_waivers(spec: MigrationSpec) -> list[Finding]:
    """Only known warnings can be waived; a typo or a blocker in ``waive`` must not look like consent."""
    wrong = sorted(code for code in set(spec.waive) if code not in CODES or not code.startswith("W"))
    if not wrong:
        return []
    seen = f"waive has {', '.join(wrong)}: only codes of warnings can be waived"
    return [finding("B001", seen, subject="waive", fix="correct waive in the spec")]


def _waived(spec: MigrationSpec, item: Finding) -> Finding:
    waived = item.severity is Severity.WARNING and item.code in spec.waive
    return item.model_copy(update={"waived": waived})


def _journal_waivers(record: MigrationRecord, findings: list[Finding]) -> None:
    """Journal who accepted which warnings: the actor of this entry, by the spec of this run."""
    waived = [item for item in findings if item.waived]
    if waived:
        codes = sorted({item.code for item in waived})
        why = record.spec.waive if isinstance(record.spec.waive, dict) else {}
        details = {
            "findings": [f"{item.code} {item.subject}: {item.seen}" for item in waived],
            "why": {code: why.get(code, "") for code in codes},
        }
        text = ", ".join(f"{code} ({why[code]})" if why.get(code) else code for code in codes)
        record.journal.step(steps.FINDINGS_WAIVED, details=details, reason=f"accepted by the spec's waive: {text}")


def _failed_check(name: str, error: MigrationError) -> Finding:
    code = next((code for kind, code in _BY_ERROR if isinstance(error, kind)), "B001")
    return finding(code, f"{name}: {error.what}", subject=str(error.where), fix=error.next_step)


def _line(item: Finding) -> str:
    return f"{item.code} {item.title}: {seen_with_subject(item.model_dump())}"


def as_table(findings: list[Finding]) -> str:
    """Format findings as lines of a log."""
    if not findings:
        return "precheck: no findings"
    lines = [f"precheck: {len(findings)} findings"]
    for item in findings:
        waived = ", waived" if item.waived else ""
        lines.append(f"  {item.severity.value + waived:<16} {_line(item)}")
        lines.append(f"  {'':<16} -> {item.fix}")
    return "\n".join(lines)


def _clusters(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    if plan.source.cluster_id == plan.target.cluster_id:
        yield finding("B002", f"both have the cluster id {plan.source.cluster_id}")


CHECKS: dict[str, Check] = {
    "clusters": _clusters,
    "selection": topics.check_selection,
    "what could not be looked at": access.check_unknown,
    "storage": target.check_storage,
    "Spark": spark.check_spark,
    "signing key": target.check_signing,
    "freeze webhook": target.check_receiver,
    "permissions": access.check_permissions,
    "state topics of MirrorMaker 2": access.check_state_topics,
    "heartbeats behind unknown aliases": mirrors.check_heartbeats,
    "producers that ACLs stop": access.check_denials,
    "topics on the target": topics.check_present,
    "topics with the records of both clusters": merged.check_merged,
    "adopted partitions": adoption.check_adoption,
    "replication": topics.check_replication,
    "configs": topics.check_configs,
    "kept records": topics.check_kept_records,
    "topics to be created": topics.check_creatable,
    "offsets": topics.check_verdicts,
    "message sizes": target.check_message_sizes,
    "timestamps": target.check_timestamps,
    "transaction timeouts": target.check_transaction_timeouts,
    "retention of offsets": target.check_offsets_retention,
    "disk": target.check_disk,
    "transactions": source.check_transactions,
    "sentinels": source.check_sentinels,
    "coupled topics": source.check_coupled_topics,
    "retention": source.check_retention,
    "control markers": source.check_markers,
    "tombstones": source.check_tombstones,
    "groups": access.check_groups,
    "groups that are left out": access.check_left_out_groups,
    "ACLs": access.check_acls,
    "clients that the target denies": access.check_target_denials,
    "ACLs that reach further": access.check_reach,
    "others who may write to remote topics": access.check_remote_writers,
    "users": access.check_users,
    "quotas and group configs": access.check_quotas,
    "schema registries": schemas.check_registries,
    "schemas": schemas.check_schemas,
    "probe of the target": target.check_probe,
}
