"""The base of all persisted documents: a version, canonical JSON, a digest."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from airflow_provider_kafka_migration.documents.canonical_json import canonical_json

_D = TypeVar("_D", bound="Document")


class Part(BaseModel):
    """A part of a document. Unknown keys are never written, but tolerated when reading."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class GrownPart(Part):
    """A part that has gained fields since documents with it were first journaled.

    A field of ``LATER_FIELDS`` is written only where it differs from its default, so earlier documents keep their
    digests.
    """

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        for name in self.LATER_FIELDS:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                data.pop(name, None)
        return data


class Document(Part):
    """A persisted document. Subclasses carry ``version``; later versions must read earlier ones."""

    #: Fields that were added after documents of this version were first written. The canonical form leaves them out
    #: while they have their default, so that a document journaled before keeps its digest.
    LATER_FIELDS: ClassVar[tuple[str, ...]] = ()

    version: int = 1

    def canonical(self) -> bytes:
        """Return RFC 8785 canonical JSON; integers beyond 2**53, which clients may choose, are strings in it."""
        data = self.model_dump(mode="json", by_alias=True)
        for name in self.LATER_FIELDS:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del data[name]
        return canonical_json(data)

    def digest(self) -> str:
        """Return the SHA-256 over the canonical form, as 64 hex digits."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @classmethod
    def parse(cls: type[_D], data: bytes) -> _D:
        """Read a document; raise pydantic's ``ValidationError`` if its structure is wrong."""
        return cls.model_validate_json(data)


def canonical_digest(value: Any) -> str:
    """Return the SHA-256 over the RFC 8785 form of JSON data, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
