"""Sign the evidence and upload it under its immutable key and as the latest, together with a report for people.

Keys: ``<migration_id>/evidence-attempts/<timestamp>-<outcome>-<hash>.json`` and the alias
``<migration_id>/evidence.json``. COMPLIANCE Object Lock is tried first. If the bucket does not support it, the
evidence itself records that: the first object of an attempt is the public key, so how that object was stored is known
before the bundle is signed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from airflow_provider_kafka_migration.errors import EvidenceInvalid, Terminal
from airflow_provider_kafka_migration.evidence.publish import ALIAS, publish
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "evidence"


def run(context: PhaseContext) -> PhaseResult:
    """Publish the evidence of a validated migration.

    :raises Terminal: validation has not passed.
    :raises ConnectionInvalid: there is no signing key.
    :raises EvidenceInvalid: the stored evidence does not verify.
    """
    done = _published_before(context.record)
    if done is not None:
        return PhaseResult(PHASE, _summary(done), done, already_done=True)
    result = context.record.passed_validation()
    if result is None:
        raise Terminal(
            "there is no passed validation, so there is nothing to publish evidence of",
            where=context.where(PHASE),
            next_step="clear validate",
        )
    published = publish(context, result.outcome)
    details = published.as_dict()
    context.journal.step(steps.EVIDENCE_UPLOADED, details=details, reason=_summary(details))
    return PhaseResult(PHASE, _summary(details), details)


def _published_before(record: MigrationRecord) -> dict[str, Any] | None:
    """Return the details of the journaled upload, after checking that it is still there, unchanged."""
    entry = record.journal.find_step(steps.EVIDENCE_UPLOADED)
    if entry is None:
        return None
    details = dict(entry.details)
    data = record.evidence_store.get(details["key"])
    if data is None or hashlib.sha256(data).hexdigest() != details["sha256"]:
        raise EvidenceInvalid(
            "the evidence that the journal names is missing or was changed",
            where=record.where(PHASE, path=f"{record.evidence_store.uri}/{details['key']}"),
            next_step="restore the object from an earlier version in the bucket; the journal has its SHA-256",
        )
    if record.evidence_store.get(record.key(ALIAS)) != data:
        record.evidence_store.put(record.key(ALIAS), data)
    return details


def _summary(details: dict[str, Any]) -> str:
    lock = f"locked until {details['retain_until']}" if details["object_lock"] else "NOT locked"
    return f"evidence {details['outcome']} signed by {details['key_fingerprint']}, {lock}: {details['uri']}"
