"""Whether the target registry holds a schema: by content, and where texts differ, by the registry's own answer."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.schemas.content import canonical_text, message_order, same_schema
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot

_NO_METADATA = frozenset({"apicurio", "karapace", "redpanda"})


def keeps_metadata(kind: str) -> bool:
    """Whether a kind of registry stores metadata, and may store rule sets: that depends on its build."""
    return kind not in _NO_METADATA


class Equality:
    """Compares schemas as the source has them, with references rewritten, with those of the target."""

    def __init__(self, target: RegistrySnapshot) -> None:
        self._target = target
        self._metadata = keeps_metadata(target.kind)
        #: canonical texts (expected, on the target) that the target registry holds to be one schema
        self._equal: set[tuple[str, str]] = set()

    def same(
        self, expected: Schema, context: str, there: Schema, there_context: str, *, metadata: bool | None = None
    ) -> bool:
        """Return whether both mean the same, for all that is known without asking the registry.

        Metadata counts if the target keeps it, a rule set if the target has one: some builds of Confluent's registry
        accept rule sets and drop them.

        :param metadata: False: neither metadata nor rule sets count.
        """
        texts = (canonical_text(expected.type, expected.text), canonical_text(there.type, there.text))
        if texts in self._equal:
            there = replace(there, text=expected.text)
        counts = self._metadata if metadata is None else metadata
        return same_schema(
            expected,
            there,
            first_context=context,
            second_context=there_context,
            metadata=counts,
            rule_set=counts and bool(there.rule_set),
        )

    def shows(self, schema: Schema, there: RegisteredSchema) -> bool:
        """Return whether a version of the target has a schema by its content, without asking the registry."""
        context = Subject.parse(there.subject).context
        return self.same(schema, context, there.schema, context)

    def holds(self, schema: Schema, there: RegisteredSchema) -> bool:
        """Return whether a version of the target has a schema. If only the texts differ, the registry decides.

        Not about the order of Protobuf messages: a registry that normalizes may overlook it, and records depend on it.

        :raises Transient: the registry does not answer.
        """
        if self.shows(schema, there):
            return True
        alike = replace(there, schema=replace(there.schema, text=schema.text))
        if not self.shows(schema, alike) or message_order(schema) != message_order(there.schema):
            return False
        if self._target.find(there.subject, schema) != there.version:
            return False
        self._equal.add((canonical_text(schema.type, schema.text), canonical_text(schema.type, there.schema.text)))
        return True

    def find(self, schema: Schema, subject: str) -> RegisteredSchema | None:
        """Ask the registry for the version of a subject that has a schema in another form; None if there is none."""
        number = self._target.find(subject, schema)
        there = None if number is None else self._target.version(subject, number)
        return there if there is not None and self.holds(schema, there) else None
