"""Signed JWTs with which this machine asks for tokens (RFC 7523)."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.kafka.auth.oidc import Assertion

#: No assertion, key or template is larger.
_FILE_BYTES = 1024 * 1024
_KEY = "sasl.oauthbearer.assertion."


def assertion_text(settings: Assertion) -> str:
    """Return an assertion that is valid now. Files are read each time, because they may have been renewed.

    :raises ConnectionInvalid: a file cannot be read, or the key cannot sign.
    """
    if settings.file:
        return _read(settings.file, f"{_KEY}file").strip()
    header, payload = _template(settings)
    now = int(time.time())
    payload |= {
        "iat": now,
        "exp": now + settings.expires_seconds,
        "nbf": now - settings.not_before_seconds,
        **{
            name: value
            for name, value in (("sub", settings.subject), ("iss", settings.issuer), ("aud", settings.audience))
            if value
        },
        **({"jti": str(uuid.uuid4())} if settings.has_id else {}),
    }
    return _signed({**header, "alg": settings.algorithm, "typ": "JWT"}, payload, settings)


def _signed(header: dict[str, Any], payload: dict[str, Any], settings: Assertion) -> str:
    try:
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        raise ConnectionInvalid(
            "signed OAuth assertions need the package joserfc, which this machine lacks",
            next_step="pip install joserfc on every machine that copies",
        ) from None
    pem = settings.key_pem or _read(settings.key_file, f"{_KEY}private.key.file")
    kind = RSAKey if settings.algorithm == "RS256" else ECKey
    try:
        key: Any = kind.import_key(pem, password=settings.key_passphrase or None)
        return jwt.encode(header, payload, key, algorithms=[settings.algorithm])
    except (JoseError, ValueError, TypeError) as error:
        # The error's text may quote the key; its type does not.
        raise ConnectionInvalid(
            f"the private key of the OAuth assertion cannot sign with {settings.algorithm}: {type(error).__name__}",
            next_step=f"check {_KEY}private.key.file or .pem, its .passphrase, and {_KEY}algorithm",
        ) from None


def _template(settings: Assertion) -> tuple[dict[str, Any], dict[str, Any]]:
    if not settings.template_file:
        return {}, {}
    key = f"{_KEY}jwt.template.file"
    try:
        found = json.loads(_read(settings.template_file, key))
    except ValueError:
        found = None
    parts = [found.get(name) if isinstance(found, dict) else None for name in ("header", "payload")]
    if not all(isinstance(part, dict) for part in parts):
        raise ConnectionInvalid(
            "the template of the OAuth assertion is not a JSON object with the objects header and payload",
            next_step=f"correct the file of {key}",
        )
    return parts[0] or {}, parts[1] or {}


def _read(path: str, key: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_BYTES + 1)
        if len(content) <= _FILE_BYTES:
            return content.decode("utf-8")
        reason = f"it is larger than {_FILE_BYTES} bytes"
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    raise ConnectionInvalid(f"the file of {key} cannot be read: {reason}", next_step=f"check {key} on this machine")
