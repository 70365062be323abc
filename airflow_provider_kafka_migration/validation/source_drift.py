"""Check: what was changed on the source during the migration is on the target, too, or is named."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    worst,
)
from airflow_provider_kafka_migration.drift import source_drift
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.way_back import seen_from_first

_FIX = "make both clusters equal, or set topology.on_source_drift: note"
_WITHDRAWN = "this change removes write access on the source; if it should apply to the target, too, make it by hand"


def check(record: MigrationRecord, source: Cluster, target: Cluster) -> CheckResult:
    """Check what changed on the source: differing configs and ACLs fail, users and quotas warn; ``ignore`` only warns.

    A change that removes write access is a warning, too: it stops producers, or keeps them off the source for good
    after the switch, while on the target they are meant to write. Changes before the freeze were checked there.
    What cannot be read is a failure, too, because it may have changed.
    """
    serious = Outcome.WARNING if record.spec.topology.on_source_drift == "note" else Outcome.FAILED
    plan = record.plan()
    try:
        drift = source_drift.read_drift(record, source, target, plan)
    except Terminal as error:
        finding = f"the changes on the source could not be read: {error.what}; {error.next_step}"
        return CheckResult(name="source_drift", outcome=serious, summary="not checked", findings=[finding])
    drift, withdrawn = source_drift.split(drift)
    # A way back that has begun gives the source's topics copy-time settings, and puts their own back at its end.
    of_configs = Outcome.WARNING if seen_from_first.has_set_configs(record) else serious
    rows = [{"what": line, "outcome": of_configs.value} for line in drift.config_lines]
    rows += [{"what": line, "outcome": serious.value} for line in drift.acl_lines]
    rows += [{"what": f"{line}: {_WITHDRAWN}", "outcome": Outcome.WARNING.value} for line in withdrawn.lines]
    rows += [{"what": line, "outcome": Outcome.WARNING.value} for line in drift.other_lines]
    rows += [{"what": f"{what}: {why}", "outcome": Outcome.WARNING.value} for what, why in sorted(drift.named.items())]
    findings = [f"{row['what']} ({_FIX})" if row["outcome"] == Outcome.FAILED else row["what"] for row in rows]
    if access := _access_unchecked(record):
        findings.append(access)
        rows.append({"what": access, "outcome": Outcome.WARNING.value})
    return CheckResult(
        name="source_drift",
        outcome=worst(Outcome(row["outcome"]) for row in rows),
        summary=_drift_summary(record, len(plan.topics), len(rows)),
        partitions=[dict(row) for row in rows],
        findings=findings,
    )


def _access_unchecked(record: MigrationRecord) -> str:
    """Return why ACLs were not compared; empty if they were, or if the spec does not copy them."""
    section = record.spec.acls
    if section.policy == "skip":
        return ""
    if not record.is_access_copied():
        return "ACLs, users and quotas were not compared: the journal has no entry that they were copied"
    if section.target_auth == "iam":
        return "ACLs were not compared: the target's rights are IAM policies, which a person applies"
    return ""


def _drift_summary(record: MigrationRecord, topics: int, differences: int) -> str:
    section = record.spec.acls
    parts = [f"configs of {topics} topics"]
    if record.is_access_copied():
        parts += ["ACLs"] if section.policy != "skip" and section.target_auth == "kafka" else []
        parts += ["users"] + (["quotas"] if section.quotas != "skip" else [])
    text = f"{', '.join(parts)} compared with the source"
    return text + (f": {differences} findings" if differences else ": nothing differs")
