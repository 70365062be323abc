"""What a schema registry holds, as plain values. The names are those of Confluent's REST API."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

#: The context of subjects without one in their name.
DEFAULT_CONTEXT = "."
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
Mode = Literal["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"]


class Subject(NamedTuple):
    """A subject and its context.

    >>> Subject.parse(":.payments:orders-value")
    Subject(context='.payments', name='orders-value')
    >>> Subject.parse("orders-value").qualified
    'orders-value'
    """

    context: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Split a name as the registry gives it."""
        match = _QUALIFIED.fullmatch(text)
        return cls(DEFAULT_CONTEXT, text) if match is None else cls(match[1], match[2])

    @property
    def qualified(self) -> str:
        """The name for the registry; subjects of the default context have no prefix."""
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


@dataclass(frozen=True, order=True)
class Reference:
    """A schema that another schema imports.

    :param name: the name by which the schema refers to it (Avro type, Protobuf import, JSON ``$ref``).
    :param subject: qualified; a name without a context means the context of the subject that refers to it.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """The content of a schema, without its place in a registry.

    :param metadata: as the server returned it; empty where there is none or the server does not know it.
    :param rule_set: likewise.
    """

    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    rule_set: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class RegisteredSchema:
    """A version of a subject.

    :param subject: qualified.
    :param guid: empty where the server has none.
    :param deleted: soft-deleted; only known where the version was listed with and without deleted ones.
    """

    subject: str
    version: int
    id: int
    schema: Schema
    guid: str = ""
    deleted: bool = False
