"""Verify an evidence file, offline; a single changed byte is an error.

Verification covers the file's canonical form byte for byte, the signature, the journal's hash chain from its first to
its last entry, the plan's digest and fingerprint, and that the outcome is the one that validation found, or that the
journal has released the old cluster of a way back with the report in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.canonical_json import canonical_json
from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle, key_fingerprint, open_bundle
from airflow_provider_kafka_migration.documents.journal import SPEC_CHANGED, SPEC_RECORDED
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import EvidenceInvalid, JournalTampered
from airflow_provider_kafka_migration.journal.entries import Ledger
from airflow_provider_kafka_migration.record.steps import ABANDONED, FREEZE_LIFTED, OLD_CLUSTER_RELEASED


@dataclass(frozen=True)
class VerifiedEvidence:
    """An evidence file that verifies.

    :param trusted: the key was known from outside the file. False: integrity only, because anyone may have signed it.
    """

    bundle: EvidenceBundle
    public_key: bytes
    trusted: bool
    journal_entries: int
    journal_tip_hash: str

    @property
    def fingerprint(self) -> str:
        """The short name of the key."""
        return key_fingerprint(self.public_key)

    def as_dict(self) -> dict[str, Any]:
        """Return what verify-evidence prints."""
        return {
            "migration_id": self.bundle.migration_id,
            "outcome": self.bundle.outcome.value,
            "signed_at": self.bundle.signed_at,
            "tool_version": self.bundle.tool_version,
            "public_key": self.public_key.hex(),
            "key_fingerprint": self.fingerprint,
            "trusted": self.trusted,
            "journal_entries": self.journal_entries,
            "journal_tip_hash": self.journal_tip_hash,
            "plan_digest": self.bundle.plan_digest,
            "warnings": list(self.bundle.warnings),
        }


def verify_evidence(data: bytes, public_key: bytes | None = None) -> VerifiedEvidence:
    """Verify the bytes of an evidence file.

    :param public_key: the key that must have signed it, from outside the file; ``None``: the key in the file.
    :raises EvidenceInvalid: the file does not verify; the error names the first problem.
    """
    bundle, content, key = open_bundle(data, public_key)
    if bundle.version != 1:
        raise _invalid(f"it has version {bundle.version}, but this release reads version 1")
    ledger = _verify_journal(bundle.migration_id, content["journal"])
    _verify_plan(bundle, content)
    _verify_outcome(bundle)
    tip = ledger.tip
    return VerifiedEvidence(
        bundle=bundle,
        public_key=key,
        trusted=public_key is not None,
        journal_entries=len(ledger.entries),
        journal_tip_hash=tip.hash if tip else "",
    )


def _verify_journal(migration_id: str, entries: list[dict[str, Any]]) -> Ledger:
    ledger = Ledger(migration_id)
    if not entries:
        raise _invalid("it has no journal")
    for seq, entry in enumerate(entries):
        try:
            ledger.read(seq, canonical_json(entry))
        except JournalTampered as error:
            raise _invalid(f"its {error.what}") from error
    return ledger


def _verify_plan(bundle: EvidenceBundle, content: dict[str, Any]) -> None:
    if canonical_digest(content["plan"]) != bundle.plan_digest:
        raise _invalid("the plan in it does not have the stated digest")
    began_with = content["journal"][0].get("details", {}).get("fingerprint", {}).get("sha256", "")
    # Evidence of the first releases has the resume fingerprint under the name ``config_fingerprint``.
    if began_with != (bundle.resume_fingerprint or bundle.config_fingerprint):
        raise _invalid("its fingerprint is not the one that the journal began with")
    if bundle.resume_fingerprint:
        _verify_config(bundle, content)
    if content["plan"].get("migration_id") != bundle.migration_id:
        raise _invalid("the plan in it belongs to another migration")


def _verify_config(bundle: EvidenceBundle, content: dict[str, Any]) -> None:
    """Check that the configuration has the stated fingerprint and is the one that the journal recorded last."""
    if canonical_digest(content["config"]) != bundle.config_fingerprint:
        raise _invalid("the configuration in it does not have the stated fingerprint")
    recorded = [entry for entry in content["journal"] if entry.get("step") in (SPEC_RECORDED, SPEC_CHANGED)]
    if recorded and recorded[-1]["details"].get("fields") != content["config"]:
        raise _invalid("the configuration in it is not the one that the journal has recorded")


def _verify_outcome(bundle: EvidenceBundle) -> None:
    found = bundle.validation.get("outcome")
    if found is not None and found != bundle.outcome.value:
        raise _invalid(f"it states {bundle.outcome.value}, but its validation found {found}")
    if (bundle.outcome is Outcome.KEPT) != ("report" in bundle.way_back):
        raise _invalid("only a way back that ended with Keep has the outcome KEPT, and a report of the old cluster")
    if bundle.outcome is Outcome.KEPT:
        _verify_released(bundle)
    _verify_abandoned(bundle)


def _verify_abandoned(bundle: EvidenceBundle) -> None:
    """Check that the journal says so if the migration was abandoned, and that its producers are free."""
    steps = {entry.get("step"): entry for entry in bundle.journal}
    entry = steps.get(ABANDONED)
    if (bundle.outcome is Outcome.ABANDONED) != (entry is not None and bundle.outcome is not Outcome.KEPT):
        raise _invalid("only a migration whose journal says that it was abandoned has the outcome ABANDONED")
    if entry is None:
        return
    if bundle.cutover.get("abandoned") != {"at": entry["at"], **entry["details"]}:
        raise _invalid("its journal does not say that the migration was abandoned as it states")
    if FREEZE_LIFTED not in steps or steps[FREEZE_LIFTED]["seq"] < entry["seq"]:
        raise _invalid("its journal does not say that the producers of the source are free")


def _verify_released(bundle: EvidenceBundle) -> None:
    """Check that the journal has released the old cluster, with this report."""
    released = [entry for entry in bundle.journal if entry.get("step") == OLD_CLUSTER_RELEASED]
    if not released or released[-1]["details"] != bundle.way_back.get("old_cluster_released"):
        raise _invalid("its journal has not released the old cluster as it states")
    if canonical_digest(bundle.way_back["report"]) != released[-1]["details"]["digest"]:
        raise _invalid("the report in it is not the one that the journal has recorded")


def _invalid(reason: str) -> EvidenceInvalid:
    return EvidenceInvalid(
        f"the evidence does not verify: {reason}",
        next_step="do not trust it; compare it with the immutable attempts next to it in the evidence store",
    )
