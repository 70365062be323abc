"""Reads values out of a registry's JSON. A wrong type or a missing field is an error, never a default."""

from __future__ import annotations

from typing import Any, get_args

from airflow_provider_kafka_migration.registry.model import Reference, RegisteredSchema, Schema, SchemaType

#: Schema ids are signed 32-bit integers in the wire format; versions likewise.
LARGEST = 2**31 - 1
_TYPES: tuple[SchemaType, ...] = get_args(SchemaType)


class AnswerMalformed(Exception):
    """An answer has another shape; the text completes "the answer of the registry ..."."""


def mapping(value: Any, what: str = "the answer") -> dict[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise AnswerMalformed(f"is wrong: {what} is not a JSON object but {_kind(value)}")
    return value


def text(value: Any, what: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise AnswerMalformed(f"is wrong: {what} is not a text but {_kind(value)}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise AnswerMalformed(f"is wrong: {what} is not valid Unicode")
    return value


def utf8(value: bytes, what: str) -> str:
    """Return bytes as a text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise AnswerMalformed(f"is wrong: {what} is not UTF-8") from None


def number(value: Any, what: str) -> int:
    """Return an id or a version."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise AnswerMalformed(f"is wrong: {what} is not an integer but {_kind(value)}")
    if not 0 <= value <= LARGEST:
        raise AnswerMalformed(f"is wrong: {what} is out of range")
    return value


def texts(value: Any, what: str) -> list[str]:
    """Return a list of texts."""
    return [text(each, f"an entry of {what}") for each in sequence(value, what)]


def numbers(value: Any, what: str) -> list[int]:
    """Return a list of ids or versions."""
    return [number(each, f"an entry of {what}") for each in sequence(value, what)]


def sequence(value: Any, what: str) -> list[Any]:
    """Return a JSON list."""
    if not isinstance(value, list):
        raise AnswerMalformed(f"is wrong: {what} is not a list but {_kind(value)}")
    return value


def schema(value: dict[str, Any]) -> Schema:
    """Return the schema in an answer. A missing ``schemaType`` means Avro: the protocol is older than the field."""
    name = value.get("schemaType") or "AVRO"
    type_: SchemaType | None = next((each for each in _TYPES if each == name), None)
    if type_ is None:
        raise AnswerMalformed("is wrong: schemaType is none of AVRO, JSON, PROTOBUF")
    return Schema(
        type=type_,
        text=text(value.get("schema"), "schema"),
        references=tuple(_reference(each) for each in sequence(value.get("references") or [], "references")),
        metadata=mapping(value.get("metadata") or {}, "metadata"),
        rule_set=mapping(value.get("ruleSet") or {}, "ruleSet"),
    )


def registered(value: Any) -> RegisteredSchema:
    """Return a version of a subject."""
    answer = mapping(value)
    return RegisteredSchema(
        subject=text(answer.get("subject"), "subject"),
        version=number(answer.get("version"), "version"),
        id=number(answer.get("id"), "id"),
        schema=schema(answer),
        guid=text(answer.get("guid") or "", "guid"),
        deleted=answer.get("deleted") is True,
    )


def body(schema_: Schema) -> dict[str, Any]:
    """Return a schema as the body of a request."""
    document: dict[str, Any] = {"schemaType": schema_.type, "schema": schema_.text}
    if schema_.references:
        document["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in schema_.references
        ]
    if schema_.metadata:
        document["metadata"] = schema_.metadata
    if schema_.rule_set:
        document["ruleSet"] = schema_.rule_set
    return document


def _reference(value: Any) -> Reference:
    answer = mapping(value, "a reference")
    return Reference(
        name=text(answer.get("name"), "the name of a reference"),
        subject=text(answer.get("subject"), "the subject of a reference"),
        version=number(answer.get("version"), "the version of a reference"),
    )


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
