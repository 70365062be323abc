"""The signing key of a migration's evidence: resolved late, checked against the expected public key."""

from __future__ import annotations

from nacl.signing import SigningKey

from airflow_provider_kafka_migration.documents.evidence import key_fingerprint, parse_public_key, parse_seed
from airflow_provider_kafka_migration.errors import ConnectionInvalid, EvidenceInvalid, MigrationError
from airflow_provider_kafka_migration.record.context import PhaseContext


def load_signing_key(context: PhaseContext) -> SigningKey:
    """Load the key that ``evidence.signing_key`` refers to.

    :raises ConnectionInvalid: there is no reference, or it does not lead to a key.
    :raises EvidenceInvalid: ``evidence.public_key`` expects another key.
    """
    reference = context.spec.evidence.signing_key
    if reference is None:
        raise ConnectionInvalid(
            "the evidence cannot be signed: the spec has no evidence.signing_key",
            where=context.where("evidence"),
            next_step="add evidence.signing_key: file:PATH, env:NAME or an Airflow connection, with an Ed25519 seed",
        )
    key = parse_seed(context.resolver.text(reference), reference=reference)
    expected = context.spec.evidence.public_key
    if expected is not None and parse_public_key(expected) != bytes(key.verify_key):
        raise EvidenceInvalid(
            f"the signing key is not the expected one: its public key is {bytes(key.verify_key).hex()}",
            where=context.where("evidence"),
            next_step="correct evidence.signing_key, or evidence.public_key if the key was changed on purpose",
        )
    return key


def fingerprint_for_people(context: PhaseContext) -> str:
    """Return the public key's fingerprint, for approvals; empty if there is no usable key yet."""
    try:
        return key_fingerprint(bytes(load_signing_key(context).verify_key))
    except MigrationError:
        return ""
