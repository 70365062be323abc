"""Sign the evidence and upload it under its immutable key and as the latest, together with a report for people."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nacl.signing import SigningKey

from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle, key_fingerprint, sign_bundle
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import HANDS_OFF, EvidenceInvalid, ObjectExists, Terminal
from airflow_provider_kafka_migration.evidence import bundle as evidence_bundle
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.pages import report
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.signing import load_signing_key
from airflow_provider_kafka_migration.record.times import iso

PHASE = "evidence"


ALIAS = "evidence.json"
REPORT_ALIAS = "evidence.html"
NO_LOCK = (
    "the evidence is not locked: the bucket has no Object Lock, or its answers do not show that it was applied "
    "(s3:GetObjectRetention); anyone who may write to the bucket may replace this evidence; keep its digest and the "
    "public key somewhere else"
)


@dataclass(frozen=True)
class Published:
    """Where an attempt was stored. Keys are relative to the evidence store."""

    key: str
    report_key: str
    sha256: str
    outcome: str
    signed_at: str
    public_key: str
    locked: bool
    retain_until: str
    uri: str

    def as_dict(self) -> dict[str, Any]:
        """Return the details for the journal."""
        return {
            "key": self.key,
            "report_key": self.report_key,
            "sha256": self.sha256,
            "outcome": self.outcome,
            "signed_at": self.signed_at,
            "public_key": self.public_key,
            "key_fingerprint": key_fingerprint(bytes.fromhex(self.public_key)),
            "object_lock": self.locked,
            "retain_until": self.retain_until,
            "uri": self.uri,
        }


def publish(context: PhaseContext, outcome: Outcome) -> Published:
    """Sign and upload one attempt and the aliases; verify what is stored. Also for failed validations.

    After a kill at any point, the next run makes another attempt; attempts never replace each other.
    """
    record = context.record
    key = load_signing_key(context)
    context.journal.check_holds()
    now = context.now()
    retain_until = now + context.spec.evidence.retention
    locked = _put_public_key(record, key, now, retain_until)
    bundle, data = _signed(record, outcome, key, now, retain_until, locked=locked)
    name = attempt_name(now, outcome, data)
    stored = _put_new(record, f"{name}.json", data, retain_until)
    if stored != locked:
        # The bucket's lock was switched between two objects: the bundle must state what applies to this one.
        locked = stored
        bundle, data = _signed(record, outcome, key, now, retain_until, locked=locked)
        name = attempt_name(now, outcome, data)
        _put_new(record, f"{name}.json", data, retain_until)
    page = report.render(bundle, hashlib.sha256(data).hexdigest(), bytes(key.verify_key))
    _put_new(record, f"{name}.html", page, retain_until)
    _check_stored(record, f"{name}.json", data, bytes(key.verify_key))
    store = context.evidence_store
    store.put_locked(context.key(REPORT_ALIAS), page, retain_until)
    store.put_locked(context.key(ALIAS), data, retain_until)
    return Published(
        key=context.key(f"{name}.json"),
        report_key=context.key(f"{name}.html"),
        sha256=hashlib.sha256(data).hexdigest(),
        outcome=outcome.value,
        signed_at=bundle.signed_at,
        public_key=bytes(key.verify_key).hex(),
        locked=locked,
        retain_until=iso(retain_until),
        uri=f"{store.uri}/{context.key(ALIAS)}",
    )


def sign_end(context: PhaseContext, outcome: Outcome) -> tuple[dict[str, Any], str]:
    """Publish signed evidence of an end by people: (details for the journal, words for the summary).

    What cannot be signed for good, for want of a key for example, keeps nobody from ending it.

    :raises Transient: the evidence store does not answer; run the same again.
    """
    try:
        published = publish(context, outcome).as_dict()
    except HANDS_OFF:
        raise
    except Terminal as error:
        return {"not_signed": error.as_dict()}, f"; this is NOT signed: {error.what}"
    context.journal.step(steps.EVIDENCE_UPLOADED, details=published, reason=f"evidence {published['outcome']}")
    return {"evidence": published}, f"; signed by {published['key_fingerprint']}: {published['uri']}"


def attempt_name(now: datetime, outcome: Outcome, data: bytes) -> str:
    """Return ``evidence-attempts/<timestamp>-<outcome>-<hash>``, the key of an attempt without its suffix."""
    stamp = now.strftime("%Y%m%dT%H%M%S.%fZ")
    return f"evidence-attempts/{stamp}-{outcome.value}-{hashlib.sha256(data).hexdigest()[:16]}"


def _signed(
    record: MigrationRecord,
    outcome: Outcome,
    key: SigningKey,
    now: datetime,
    retain_until: datetime,
    *,
    locked: bool,
) -> tuple[EvidenceBundle, bytes]:
    lock = {"applied": locked, "mode": "COMPLIANCE" if locked else "", "retain_until": iso(retain_until)}
    bundle = evidence_bundle.build(
        record, outcome, signed_at=now, object_lock=lock, warnings=[] if locked else [NO_LOCK]
    )
    return bundle, sign_bundle(bundle, key)


def _put_public_key(record: MigrationRecord, key: SigningKey, now: datetime, retain_until: datetime) -> bool:
    """Store the public key as the attempt's first object; return whether the store locks objects."""
    public = bytes(key.verify_key)
    text = f"# Ed25519 public key, {key_fingerprint(public)}\n{public.hex()}\n"
    name = f"evidence-attempts/{now.strftime('%Y%m%dT%H%M%S.%fZ')}-public-key.txt"
    return _put_new(record, name, text.encode(), retain_until)


def _put_new(record: MigrationRecord, name: str, data: bytes, retain_until: datetime) -> bool:
    key = record.key(name)
    try:
        return record.evidence_store.put_locked(key, data, retain_until, new=True)
    except ObjectExists:
        if record.evidence_store.get(key) == data:
            return record.evidence_store.put_locked(key, data, retain_until)
        raise


def _check_stored(record: MigrationRecord, name: str, data: bytes, public_key: bytes) -> None:
    stored = record.evidence_store.get(record.key(name))
    if stored != data:
        raise EvidenceInvalid(
            "the evidence store does not return the bytes that were stored",
            where=record.where(PHASE, path=f"{record.evidence_store.uri}/{record.key(name)}"),
            next_step="check the bucket and everything between it and this machine (proxies, gateways)",
        )
    verify_evidence(stored, public_key)


def publish_failure(context: PhaseContext) -> Published | None:
    """Publish an attempt for a failed validation; ``None`` if it cannot be signed. Never hides the failure itself."""
    with suppress(Terminal):
        return publish(context, Outcome.FAILED)
    return None
