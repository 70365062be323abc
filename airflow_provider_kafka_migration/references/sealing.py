"""Sealed references: the connections of one job, encrypted for the machines that copy.

A deployment has a key pair. The public part is in the spec or in the configuration; whoever submits a job encrypts with
it and needs no secret. The private part is in the environment of Spark's driver and executors, so only they can read
what travels in between as an argument, in a closure of Spark, or in an object store.

The encryption is libsodium's sealed box (X25519, XSalsa20-Poly1305). What is encrypted also says to which migration,
job and submission it belongs and until when it is valid; the reader compares that before it uses anything. A sealed box
does not prove who made it. Therefore everything that decides *where* records go is in the argument of the job itself,
or in an object whose digest is in that argument; an object that is replaced while the job runs can only prolong the
validity and replace keys of the storage.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    SealedReferencesAltered,
    SealedReferencesExpired,
    SealedReferencesForeign,
    SealingKeyMissing,
    SealingKeyWrong,
    Where,
)
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.names import is_self_contained
from airflow_provider_kafka_migration.references.resolver import Resolver
from airflow_provider_kafka_migration.references.secret_stores import library_missing_for

#: Environment variable with the private key, or with a reference to it. Several of them are separated by white space.
KEY_VARIABLE = "KAFKA_MIGRATION_SEALING_KEY"

#: Environment variable with the public key, for whoever submits jobs without a configuration of Airflow.
PUBLIC_KEY_VARIABLE = "KAFKA_MIGRATION_SEALING_PUBLIC_KEY"

_PRIVATE, _PUBLIC = "kmpriv1_", "kmpub1_"
_KEY_BYTES = 32
_VERSION = "v1"
_MAX_CONTENT_BYTES = 4 * 1024 * 1024


# -- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicKey:
    """The public part of a key pair: ``kmpub1_...``."""

    text: str

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Read a public key.

        :raises SealingKeyMissing: it is none. The text is never quoted, because it may be a private key.
        """
        if text.strip().startswith(_PRIVATE):
            raise SealingKeyMissing(
                "the public sealing key is a private one",
                next_step="replace the pair, because a secret was where anybody may read it; then configure the "
                f"public key, which begins with {_PUBLIC}",
            )
        key = cls(text.strip())
        if _key_bytes(key.text, _PUBLIC) is None:
            raise SealingKeyMissing(
                "the text given as the public sealing key is none",
                next_step=f"write what `kafka-migration sealing-key` has printed; it begins with {_PUBLIC}",
            )
        return key

    @property
    def id(self) -> str:
        """A short name of the pair, for messages: the beginning of the key's SHA-256."""
        return hashlib.sha256(self.bytes).hexdigest()[:12]

    @property
    def bytes(self) -> bytes:
        """The key's 32 bytes."""
        found = _key_bytes(self.text, _PUBLIC)
        if found is None:
            raise ValueError("not a public key")
        return found


@dataclass(frozen=True)
class PrivateKey:
    """The private part of a key pair: ``kmpriv1_...``. Secret; its ``repr`` does not show it."""

    _text: str

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.id})"

    @classmethod
    def new(cls) -> PrivateKey:
        """Make a new pair."""
        return cls(_PRIVATE + _encoded(bytes(_nacl().PrivateKey.generate())))

    @property
    def text(self) -> str:
        """The key as text: write it only where secrets may be."""
        return self._text

    @property
    def public(self) -> PublicKey:
        """The public part."""
        return PublicKey(_PUBLIC + _encoded(bytes(self.box_key().public_key)))

    def box_key(self) -> Any:
        """Return the key as PyNaCl takes it."""
        return _nacl().PrivateKey(_key_bytes(self._text, _PRIVATE))


def write_private_key(path: Path, key: PrivateKey) -> None:
    """Write a private key to a new file that only this user may read.

    :raises ConnectionInvalid: the file exists, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(key.text + "\n")
    except FileExistsError:
        raise ConnectionInvalid(
            "the file exists, and a key in it may be in use",
            where=Where(path=str(path)),
            next_step="name a new file",
        ) from None
    except OSError as error:
        raise ConnectionInvalid(
            f"the file cannot be written: {error.strerror}", where=Where(path=str(path)), next_step="check the path"
        ) from None


def private_keys(environment: Mapping[str, str] | None = None, resolver: Resolver | None = None) -> list[PrivateKey]:
    """Return the private keys of this machine, from :data:`KEY_VARIABLE`.

    The variable holds keys, or references to texts that hold them (``file:PATH``, ``secretsmanager:NAME`` ...). While a
    key is replaced it holds the new and the old one.

    :raises SealingKeyMissing: there is none, or a text that is none.
    :raises ConnectionInvalid: a reference cannot be resolved.
    """
    variables = os.environ if environment is None else environment
    found: list[PrivateKey] = []
    for word in variables.get(KEY_VARIABLE, "").split():
        texts = (resolver or Resolver()).text(word).split() if is_self_contained(word) else [word]
        found += [_private_key(text) for text in texts]
    if not found:
        raise SealingKeyMissing(
            f"{this_machine()} has no private key that opens sealed references",
            where=Where(path=f"env:{KEY_VARIABLE}"),
            next_step=f"set {KEY_VARIABLE} for Spark's driver and executors on that machine, to the key or to a "
            "reference to it, as a secret of the platform (docs/spark.md)",
        )
    return found


def _private_key(text: str) -> PrivateKey:
    if _key_bytes(text, _PRIVATE) is None:
        # Never quote it: it may be most of a key.
        reason = "a public key instead of the private one" if text.startswith(_PUBLIC) else "a text that is no key"
        raise SealingKeyMissing(
            f"{KEY_VARIABLE} on {this_machine()} has {reason}",
            where=Where(path=f"env:{KEY_VARIABLE}"),
            next_step="give it the content of the file that `kafka-migration sealing-key` has written; it begins with "
            f"{_PRIVATE}",
        )
    return PrivateKey(text)


def _key_bytes(text: str, prefix: str) -> bytes | None:
    if not text.startswith(prefix):
        return None
    try:
        data = _decoded(text.removeprefix(prefix))
    except ValueError:
        return None
    return data if len(data) == _KEY_BYTES else None


# -- sealing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Binding:
    """What sealed references belong to.

    :param token: identifies one submission of a job; None: any, where the reader does not know it.
    """

    migration_id: str
    job: str
    token: str | None = None


def seal(content: Mapping[str, Any], key: PublicKey, binding: Binding, *, now: datetime, expires_at: datetime) -> str:
    """Encrypt a content for the owners of the private key: ``v1.KEY_ID.CIPHERTEXT``, of letters, digits, ``-_.``.

    :param content: a JSON object.
    """
    inside = {
        "bound_to": asdict(binding),
        "sealed_at": now.isoformat(),
        "expires_at": expires_at.isoformat(),
        "content": content,
    }
    # An attacker cannot choose a part of the content, so its length after compression tells him nothing about the rest.
    packed = zlib.compress(json.dumps(inside, sort_keys=True, separators=(",", ":")).encode(), 9)
    nacl = _nacl()
    return f"{_VERSION}.{key.id}.{_encoded(nacl.SealedBox(nacl.PublicKey(key.bytes)).encrypt(packed))}"


@dataclass(frozen=True, repr=False)
class Opened:
    """A decrypted content and its times.

    :param text: the ciphertext.
    """

    text: str
    content: dict[str, Any]
    binding: Binding
    sealed_at: datetime
    expires_at: datetime

    def check_expiry(self, now: datetime) -> None:
        """Check that the content may still be used.

        :raises SealedReferencesExpired: it may not.
        """
        if now >= self.expires_at:
            raise SealedReferencesExpired(
                f"the sealed references were valid until {_iso(self.expires_at)}; on {this_machine()} it is "
                f"{_iso(now)}",
                where=Where(migration_id=self.binding.migration_id, phase=self.binding.job),
                next_step=f"clear the task {self.binding.job}: it seals them again; check the clock of that machine if "
                "the time is wrong",
            )


def open_sealed(sealed: str, keys: Sequence[PrivateKey], binding: Binding) -> Opened:
    """Decrypt what :func:`seal` has returned, and check to what it belongs; the caller checks the expiry.

    :raises SealingKeyWrong: it was sealed for another key pair.
    :raises SealedReferencesAltered: it was changed or cut off.
    :raises SealedReferencesForeign: it belongs to something else.
    """
    where = Where(migration_id=binding.migration_id, phase=binding.job)
    version, _, rest = sealed.partition(".")
    key_id, _, box = rest.partition(".")
    if version != _VERSION or not key_id or not box:
        raise _altered("they are not of a form that this version knows", where)
    key = next((key for key in keys if key.public.id == key_id), None)
    if key is None:
        own = ", ".join(key.public.id for key in keys)
        raise SealingKeyWrong(
            f"the references were sealed for the key pair {key_id}, but {this_machine()} has the private key of {own}",
            where=where,
            next_step=f"give {KEY_VARIABLE} on that machine the private key of {key_id}, or configure the public key "
            "of the pair that it has, and clear the task",
        )
    return _checked(sealed, _decrypted(box, key, where), binding, where)


def _decrypted(box: str, key: PrivateKey, where: Where) -> Any:
    nacl = _nacl()
    from nacl.exceptions import CryptoError

    try:
        packed = nacl.SealedBox(key.box_key()).decrypt(_decoded(box))
        # Anybody who has the public key can encrypt something, so its size after decompression is bounded.
        return json.loads(zlib.decompressobj().decompress(packed, _MAX_CONTENT_BYTES))
    except (CryptoError, ValueError, zlib.error):
        raise _altered("they do not decrypt", where) from None


def _checked(sealed: str, inside: Any, binding: Binding, where: Where) -> Opened:
    try:
        found = Binding(**inside["bound_to"])
        times = datetime.fromisoformat(inside["sealed_at"]), datetime.fromisoformat(inside["expires_at"])
        opened = Opened(sealed, dict(inside["content"]), found, *times)
    except (KeyError, TypeError, ValueError):
        raise _altered("their content is incomplete", where) from None
    wanted = Binding(binding.migration_id, binding.job, binding.token or found.token)
    if found != wanted:
        raise SealedReferencesForeign(
            f"the sealed references belong to {_named(found)}, but {this_machine()} runs {_named(wanted)}",
            where=where,
            next_step="submit the job through its task, which seals the references for it",
        )
    return opened


def _named(binding: Binding) -> str:
    submission = f", submission {binding.token}" if binding.token else ""
    return f"the job {binding.job} of {binding.migration_id}{submission}"


def _altered(reason: str, where: Where) -> SealedReferencesAltered:
    return SealedReferencesAltered(
        f"the sealed references that reached {this_machine()} are not those that were sealed: {reason}",
        where=where,
        next_step="clear the task: it seals them again; if that does not help, something between the task and that "
        "machine changes or cuts off the arguments of jobs",
    )


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """Decode, and refuse what the encoder never writes: the standard decoder skips unknown characters."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encoded(data) != text:
        raise ValueError("not what the encoder writes")
    return data


def _nacl() -> Any:
    try:
        import nacl.public
    except ImportError:
        raise library_missing_for("sealed references", "pynacl", "") from None
    return nacl.public
