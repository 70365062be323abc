"""The evidence bundle: one canonical JSON payload, signed with Ed25519.

The file is the RFC 8785 form of ``{"bundle_json": <text>, "public_key_b64": ..., "signature_b64": ...}`` and the text
of ``bundle_json`` is the RFC 8785 form of an :class:`EvidenceBundle`. Both forms are checked byte for byte when a
file is read, so that no byte in it can change unnoticed: no white space, no second spelling of base64.

The public key inside the file proves only integrity. Proof of identity needs a key from outside the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import Any

import rfc8785
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey
from pydantic import Field, ValidationError

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.canonical_json import canonical_json
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import ConnectionInvalid, EvidenceInvalid, Where

KEY_BYTES = 32
_ENVELOPE = ("bundle_json", "public_key_b64", "signature_b64")


class EvidenceBundle(Document):
    """The payload; each section is plain JSON data."""

    LATER_FIELDS = ("source_drift", "schemas", "way_back")

    version: int = 1
    migration_id: str
    tool_version: str
    signed_at: str = Field(description="UTC, ISO 8601")
    outcome: Outcome
    config_fingerprint: str = Field(description="SHA-256 over the canonical JSON of ``config``")
    config: dict[str, Any] = Field(
        default_factory=dict, description="the spec in force, flat: field to value; empty in early evidence"
    )
    resume_fingerprint: str = Field(
        "", description="SHA-256 over clusters, buckets and prefixes, as in the journal's first entry"
    )
    journal: list[dict[str, Any]] = Field(description="all entries as stored, hash chain included")
    source: dict[str, Any]
    target: dict[str, Any]
    plan: dict[str, Any]
    topology: dict[str, Any]
    acls: dict[str, Any]
    seed: dict[str, Any]
    tail: dict[str, Any]
    drain_final: dict[str, Any] = Field(description="per-partition lag at the end of the final drain")
    cutover: dict[str, Any] = Field(description="freeze, sentinels, frozen seconds, offset translations")
    validation: dict[str, Any]
    plan_digest: str
    groups: dict[str, Any] = Field(default_factory=dict)
    approvals: list[dict[str, Any]] = Field(default_factory=list)
    findings: list[dict[str, Any]] = Field(default_factory=list)
    waivers: list[str] = Field(default_factory=list)
    not_copied: list[dict[str, Any]] = Field(default_factory=list, description="what was left out, and why")
    versions: dict[str, str] = Field(default_factory=dict)
    artifacts: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="name to {uri, sha256, size_bytes} of the related documents"
    )
    source_drift: list[dict[str, Any]] = Field(
        default_factory=list, description="what changed on the source after the plan: applied, or only reported"
    )
    schemas: dict[str, Any] = Field(
        default_factory=dict,
        description="what was written to the target registry, and the comparison of both; empty: no registry",
    )
    way_back: dict[str, Any] = Field(
        default_factory=dict,
        description="which migration this one reverses, and its evidence; empty: none",
    )
    object_lock: dict[str, Any] = Field(default_factory=dict, description="mode, retain_until, applied")
    warnings: list[str] = Field(default_factory=list)


def parse_seed(text: str, *, reference: str = "") -> SigningKey:
    """Parse a signing key from 64 hex digits or the base64 of 32 bytes.

    :raises ConnectionInvalid: it is neither; the error never quotes the text.
    """
    raw = _key_bytes(text)
    if raw is None:
        raise ConnectionInvalid(
            "the signing key is neither 64 hex digits nor the base64 of 32 bytes",
            where=Where(path=reference or None),
            next_step="create one: python -c 'import secrets; print(secrets.token_hex(32))', in a file of mode 0600",
        )
    return SigningKey(raw)


def parse_public_key(text: str | bytes, *, path: str = "") -> bytes:
    """Parse a public key from 64 hex digits, base64 or 32 raw bytes; comments and white space around it are fine.

    :raises EvidenceInvalid: it is none of these.
    """
    if isinstance(text, bytes):
        if len(text) == KEY_BYTES:
            return text
        text = text.decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    raw = _key_bytes(lines[0]) if len(lines) == 1 else None
    if raw is None:
        raise EvidenceInvalid(
            "the public key is neither 64 hex digits nor the base64 of 32 bytes",
            where=Where(path=path or None),
            next_step="use the public key that was printed when the evidence was signed",
        )
    return raw


def is_public_key(text: str) -> bool:
    """Return whether a text is a public key itself, and not the name of a file that holds one."""
    return _key_bytes(text) is not None


def _key_bytes(text: str) -> bytes | None:
    text = text.strip()
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == KEY_BYTES else None


def key_fingerprint(public_key: bytes) -> str:
    """Return a short name of a public key for people: ``SHA256:`` and base64, as ssh-keygen prints it."""
    digest = base64.b64encode(hashlib.sha256(public_key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def sign_bundle(bundle: EvidenceBundle, key: SigningKey) -> bytes:
    """Return the signed file."""
    payload = bundle.canonical()
    return canonical_json(
        {
            "bundle_json": payload.decode(),
            "signature_b64": base64.b64encode(key.sign(payload).signature).decode(),
            "public_key_b64": base64.b64encode(bytes(key.verify_key)).decode(),
        }
    )


def open_bundle(data: bytes, public_key: bytes | None = None) -> tuple[EvidenceBundle, dict[str, Any], bytes]:
    """Check the form and the signature of a file.

    :param public_key: the expected key, from outside the file; ``None``: the file's own key (integrity only).
    :returns: the bundle, its JSON as signed, and the key that verified it.
    :raises EvidenceInvalid: the file differs in any way from what was written.
    """
    envelope = _envelope(data)
    payload = envelope["bundle_json"].encode()
    signature = _decode(envelope, "signature_b64", 64)
    own_key = _decode(envelope, "public_key_b64", KEY_BYTES)
    if public_key is not None and public_key != own_key:
        raise EvidenceInvalid(
            f"another key has signed the evidence: {key_fingerprint(own_key)}, expected {key_fingerprint(public_key)}",
            next_step="do not trust it; find out who created it",
        )
    try:
        VerifyKey(own_key).verify(payload, signature)
    except (BadSignatureError, ValueError) as error:
        raise _altered("the signature does not match the content") from error
    return (*_payload(payload), own_key)


def _envelope(data: bytes) -> dict[str, str]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _altered("it is not JSON") from error
    if not isinstance(value, dict) or sorted(value) != sorted(_ENVELOPE):
        raise _altered(f"it does not have exactly the keys {', '.join(_ENVELOPE)}")
    if not all(isinstance(item, str) for item in value.values()):
        raise _altered("its values are not text")
    try:
        canonical = canonical_json(value)
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise _altered("it has no canonical form") from error
    if canonical != data:
        raise _altered("its bytes are not the canonical form that was written")
    return value


def _decode(envelope: dict[str, str], key: str, size: int) -> bytes:
    text = envelope[key]
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _altered(f"{key} is not base64") from error
    # Base64 has spare bits at its end: a different last character can mean the same bytes.
    if len(raw) != size or base64.b64encode(raw).decode() != text:
        raise _altered(f"{key} is not the base64 of {size} bytes")
    return raw


def _payload(payload: bytes) -> tuple[EvidenceBundle, dict[str, Any]]:
    try:
        content = json.loads(payload)
        if canonical_json(content) != payload:
            raise _altered("the signed content is not in canonical form")
        return EvidenceBundle.model_validate(content), content
    except (ValueError, ValidationError, rfc8785.CanonicalizationError) as error:
        raise _altered(f"the signed content is not an evidence bundle: {type(error).__name__}") from error


def _altered(reason: str) -> EvidenceInvalid:
    return EvidenceInvalid(
        f"the evidence does not verify: {reason}",
        next_step="do not trust it; compare it with the immutable attempts next to it in the evidence store",
    )
