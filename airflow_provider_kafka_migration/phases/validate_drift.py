"""The check of what changed on the source since the plan: topic configs and access rights are on the target, too."""

from __future__ import annotations

from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, worst
from airflow_provider_kafka_migration.drift import source_drift, write_withdrawals
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.record.context import PhaseContext

_FIX = "make both clusters equal, or set topology.on_source_drift: ignore"
_WITHDRAWN = "it takes write access away on the source; if it is meant for the target, too, change that by hand"


def check(context: PhaseContext) -> CheckResult:
    """Configs and ACLs that differ are failures, users and quotas warnings; with ``ignore`` all are warnings.

    What takes write access away is a warning, too: producers are stopped by it, or kept from the source for good after
    the switch, and on the target they are to write. What changed before the freeze was looked at there.
    What cannot be read is a failure, too: nobody knows whether it has changed.
    """
    serious = Outcome.WARNING if context.spec.topology.on_source_drift == "ignore" else Outcome.FAILED
    plan = context.load_plan()
    try:
        drift = source_drift.look(context, plan)
    except Terminal as error:
        finding = f"the source's changes could not be looked at: {error.what}; {error.next_step}"
        return CheckResult(name="source_drift", outcome=serious, summary="not checked", findings=[finding])
    drift, withdrawn = write_withdrawals.split(drift)
    rows = [{"what": line, "outcome": serious.value} for line in (*drift.config_lines, *drift.acl_lines)]
    rows += [{"what": f"{line}: {_WITHDRAWN}", "outcome": Outcome.WARNING.value} for line in withdrawn.lines]
    rows += [{"what": line, "outcome": Outcome.WARNING.value} for line in drift.other_lines]
    rows += [{"what": f"{what}: {why}", "outcome": Outcome.WARNING.value} for what, why in sorted(drift.named.items())]
    findings = [f"{row['what']} ({_FIX})" if row["outcome"] == Outcome.FAILED else row["what"] for row in rows]
    if access := _access_unchecked(context):
        findings.append(access)
        rows.append({"what": access, "outcome": Outcome.WARNING.value})
    return CheckResult(
        name="source_drift",
        outcome=worst(Outcome(row["outcome"]) for row in rows),
        summary=_summary(context, len(plan.topics), len(rows)),
        partitions=[dict(row) for row in rows],
        findings=findings,
    )


def _copied(context: PhaseContext) -> bool:
    return context.journal.find_step(source_drift.ACCESS_COPIED) is not None


def _access_unchecked(context: PhaseContext) -> str:
    """Why ACLs were not compared though they should be; empty if they were, or are not copied by the spec."""
    section = context.spec.acls
    if section.policy == "skip":
        return ""
    if not _copied(context):
        return "ACLs, users and quotas were not compared: the journal does not say that they were copied"
    if section.target_auth == "iam":
        return "ACLs were not compared: the target's rights are IAM policies, which a person applies"
    return ""


def _summary(context: PhaseContext, topics: int, differences: int) -> str:
    section = context.spec.acls
    parts = [f"configs of {topics} topics"]
    if _copied(context):
        parts += ["ACLs"] if section.policy != "skip" and section.target_auth == "kafka" else []
        parts += ["users"] + (["quotas"] if section.quotas != "skip" else [])
    text = f"{', '.join(parts)} compared with the source"
    return text + (f": {differences} findings" if differences else ": nothing differs")
