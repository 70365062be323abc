"""Apicurio 3.x's own API, which does what its variant of Confluent's API does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from airflow_provider_kafka_migration.errors import RegistryRefused
from airflow_provider_kafka_migration.registry import answers, detection
from airflow_provider_kafka_migration.registry.answers import AnswerMalformed
from airflow_provider_kafka_migration.registry.model import RegisteredSchema
from airflow_provider_kafka_migration.registry.rest import Answer, BoundedRestClient

#: Subjects are artifacts of this group.
GROUP = "default"


class Apicurio:
    """Apicurio's own API beside the one that is compatible with Confluent's.

    :param info: what the server says of itself.
    """

    def __init__(self, rest: BoundedRestClient, info: dict[str, Any]) -> None:
        self._rest = rest
        self._bases = detection.apicurio_bases(rest)
        self.info = info

    @classmethod
    def beside(cls, rest: BoundedRestClient) -> Apicurio | None:
        """Return the API that belongs to a base URL; None if it does not answer there."""
        info = detection.apicurio_info(rest)
        return None if info is None else cls(rest, info)

    def has_compatibility_rule(self, subject: str) -> bool:
        """Return whether a subject has a compatibility level of its own."""
        answer = self._get(f"{_artifact(subject)}/rules")
        if answer.status == 404:
            return False
        with self._parsing():
            return "COMPATIBILITY" in answers.texts(self._json(answer), "the rules")

    def delete_compatibility_rule(self, subject: str) -> None:
        """Remove the compatibility level of a subject; do nothing if it has none."""
        answer = self._send("DELETE", f"{_artifact(subject)}/rules/COMPATIBILITY")
        if answer.status != 404:
            self._right(answer)

    def version(self, subject: str, version: int) -> RegisteredSchema | None:
        """Return a version in any state; None if there is none.

        The compatible API hides a subject of which all versions are soft-deleted, although it lists its versions.
        """
        answer = self._get(f"{_artifact(subject)}/versions/{version}")
        if answer.status == 404:
            return None
        with self._parsing():
            found = answers.mapping(self._json(answer))
            content_id = answers.number(found.get("contentId"), "contentId")
            content = self._right(self._get(f"ids/contentIds/{content_id}"))
            references = answers.sequence(
                self._json(self._get(f"ids/contentIds/{content_id}/references")), "references"
            )
            schema = answers.schema(
                {
                    "schema": answers.utf8(content.content, "the content"),
                    "schemaType": found.get("artifactType"),
                    "references": [_reference(each) for each in answers.sequence(references, "references")],
                }
            )
        return RegisteredSchema(subject, version, content_id, schema, deleted=found.get("state") == "DISABLED")

    def _json(self, answer: Answer) -> Any:
        return self._rest.json_of(self._right(answer))

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except AnswerMalformed as malformed:
            raise self._rest.invalid(str(malformed)) from None

    def _get(self, path: str) -> Answer:
        return self._send("GET", path)

    def _send(self, method: str, path: str) -> Answer:
        return self._rest.exchange(method, [f"{base}/{path}" for base in self._bases])

    def _right(self, answer: Answer) -> Answer:
        if not answer.succeeded:
            raise RegistryRefused(
                f"Apicurio's own API answered HTTP {answer.status}",
                where=self._rest.where,
                next_step="check the rights of the user in the connection, and Apicurio's own log",
                details={"status": answer.status},
            )
        return answer


def _reference(value: Any) -> dict[str, Any]:
    """Return a reference as Confluent's API writes it; versions are texts here."""
    reference = answers.mapping(value, "a reference")
    version = answers.text(reference.get("version"), "the version of a reference")
    if not (version.isascii() and version.isdigit()):
        raise AnswerMalformed("is wrong: the version of a reference is not a number")
    return {"name": reference.get("name"), "subject": reference.get("artifactId"), "version": int(version[:12])}


def _artifact(subject: str) -> str:
    return f"groups/{GROUP}/artifacts/{quote(subject, safe='')}"
