"""The signed file: what is written can be read, and no byte of it can change unnoticed."""

from __future__ import annotations

import base64
import json

import pytest
import rfc8785
from nacl.signing import SigningKey

from airflow_provider_kafka_migration.documents.evidence import (
    EvidenceBundle,
    key_fingerprint,
    open_bundle,
    parse_public_key,
    parse_seed,
    sign_bundle,
)
from airflow_provider_kafka_migration.errors import ConnectionInvalid, EvidenceInvalid

KEY = SigningKey(b"\x01" * 32)
OTHER = SigningKey(b"\x02" * 32)


def bundle(**changes: object) -> EvidenceBundle:
    return EvidenceBundle.model_validate(
        {
            "migration_id": "m1",
            "tool_version": "1",
            "signed_at": "2026-04-24T10:40:00Z",
            "outcome": "PASSED",
            "config_fingerprint": "f",
            "journal": [],
            "source": {},
            "target": {},
            "plan": {},
            "topology": {},
            "acls": {},
            "seed": {},
            "tail": {},
            "drain_final": {},
            "cutover": {},
            "validation": {},
            "plan_digest": "",
            **changes,
        }
    )


def test_what_was_signed_is_read_back() -> None:
    data = sign_bundle(bundle(cutover={"name": "Zürich \u2028 €"}), KEY)
    found, content, key = open_bundle(data, bytes(KEY.verify_key))
    assert found.cutover == {"name": "Zürich \u2028 €"}
    assert content["migration_id"] == "m1"
    assert key == bytes(KEY.verify_key)


def test_the_envelope_has_the_seeds_three_keys() -> None:
    envelope = json.loads(sign_bundle(bundle(), KEY))
    assert set(envelope) == {"bundle_json", "signature_b64", "public_key_b64"}
    payload = envelope["bundle_json"].encode()
    assert rfc8785.dumps(json.loads(payload)) == payload
    KEY.verify_key.verify(payload, base64.b64decode(envelope["signature_b64"]))


def test_every_flipped_bit_is_noticed() -> None:
    data = sign_bundle(bundle(), KEY)
    for position in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[position] ^= 1 << bit
            with pytest.raises(EvidenceInvalid):
                open_bundle(bytes(altered))


@pytest.mark.parametrize("change", [b" ", b"\n", b"\x00"], ids=["space", "newline", "nul"])
def test_every_inserted_byte_is_noticed(change: bytes) -> None:
    data = sign_bundle(bundle(), KEY)
    for position in range(len(data) + 1):
        with pytest.raises(EvidenceInvalid):
            open_bundle(data[:position] + change + data[position:])


def test_every_truncation_is_noticed() -> None:
    data = sign_bundle(bundle(), KEY)
    for length in range(len(data)):
        with pytest.raises(EvidenceInvalid):
            open_bundle(data[:length])


def test_a_bundle_signed_again_by_somebody_else_needs_the_outside_key() -> None:
    forged = sign_bundle(bundle(outcome="PASSED", migration_id="m2"), OTHER)
    open_bundle(forged)  # integrity alone cannot tell
    with pytest.raises(EvidenceInvalid, match="another key"):
        open_bundle(forged, bytes(KEY.verify_key))


def test_a_canonical_file_that_is_no_bundle_is_refused() -> None:
    payload = rfc8785.dumps({"hello": 1})
    data = rfc8785.dumps(
        {
            "bundle_json": payload.decode(),
            "signature_b64": base64.b64encode(KEY.sign(payload).signature).decode(),
            "public_key_b64": base64.b64encode(bytes(KEY.verify_key)).decode(),
        }
    )
    with pytest.raises(EvidenceInvalid, match="not an evidence bundle"):
        open_bundle(data)


@pytest.mark.parametrize(
    "text", ["01" * 32, "01" * 32 + "\n", base64.b64encode(b"\x01" * 32).decode(), "01" * 31 + "01"]
)
def test_signing_keys_as_hex_or_base64(text: str) -> None:
    assert bytes(parse_seed(text)) == b"\x01" * 32


@pytest.mark.parametrize("text", ["", "secret-that-must-not-show", "01" * 31, base64.b64encode(b"\x01" * 33).decode()])
def test_a_bad_signing_key_is_refused_and_never_quoted(text: str) -> None:
    with pytest.raises(ConnectionInvalid) as caught:
        parse_seed(text, reference="file:/x")
    assert not text or text not in str(caught.value)


def test_public_keys_from_files() -> None:
    public = bytes(KEY.verify_key)
    assert parse_public_key(public) == public
    assert parse_public_key(public.hex()) == public
    assert parse_public_key(f"# our key\n{public.hex()}\n".encode()) == public
    assert parse_public_key(base64.b64encode(public)) == public
    with pytest.raises(EvidenceInvalid):
        parse_public_key("no key")
    assert key_fingerprint(public).startswith("SHA256:")
