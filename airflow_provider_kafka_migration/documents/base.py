"""What all persisted documents share: a version, canonical JSON, a digest."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import rfc8785
from pydantic import BaseModel, ConfigDict

_D = TypeVar("_D", bound="Document")


class Part(BaseModel):
    """A piece of a document. Unknown keys are kept out of what we write, but tolerated in what we read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Document(Part):
    """A document that persists. Subclasses carry ``version``; later versions must read earlier ones."""

    version: int = 1

    def canonical(self) -> bytes:
        """RFC 8785 canonical JSON. Offsets beyond 2**53 do not occur: a log would need 285 years at 1 M rec/s."""
        return rfc8785.dumps(self.model_dump(mode="json", by_alias=True))

    def digest(self) -> str:
        """SHA-256 over the canonical form, as 64 hex digits."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @classmethod
    def parse(cls: type[_D], data: bytes) -> _D:
        """Read a document; raises pydantic's ``ValidationError`` on a wrong shape."""
        return cls.model_validate_json(data)


def canonical_digest(value: Any) -> str:
    """SHA-256 over the RFC 8785 form of JSON-able data, as 64 hex digits."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()
