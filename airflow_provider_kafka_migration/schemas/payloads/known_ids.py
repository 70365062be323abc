"""Which ids and subjects the source registry has, and whether payloads decode with the schemas of these ids."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_kafka_migration.registry.model import Schema, Subject
from airflow_provider_kafka_migration.schema_ids.wire_format import Part
from airflow_provider_kafka_migration.schemas.payloads.decode import CannotDecode, Decodes, decoder
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, unread_id

#: A number, or a GUID in lower case.
IdValue = int | str


class KnownIds:
    """What a snapshot of the source registry says, and its answers for single ids."""

    def __init__(self, source: RegistrySnapshot) -> None:
        self._source = source
        self._ids = source.by_id()
        self._guids = {item.guid.lower() for item in source.all_versions() if item.guid}
        self._answers: dict[tuple[str, int], Schema | None] = {}
        self._unread: dict[str, str] = {}
        self._decoders: dict[tuple[str, int], Decodes | CannotDecode] = {}
        # What is left out of the migration may still name a topic.
        self._subjects = {Subject.parse(name) for name in (*source.subjects, *source.left_out)}
        self.has_zero = any(id_ == 0 for _, id_ in self._ids)

    def add(self, answers: RegistrySnapshot) -> None:
        """Add the registry's answers for single ids."""
        self._answers |= answers.ids
        self._unread |= answers.unread

    def is_shown(self, context: str, id_: int) -> bool:
        """Whether the snapshot has an id, so that nobody has to ask for it."""
        return (context, id_) in self._ids

    def has(self, context: str, id_: IdValue) -> bool | None:
        """Return whether the registry has an id; None if it was not asked, or did not answer."""
        if isinstance(id_, str):
            return id_ in self._guids
        if (context, id_) in self._ids:
            return True
        return self._answers[context, id_] is not None if (context, id_) in self._answers else None

    def why_unread(self, context: str, ids: Iterable[IdValue]) -> str:
        """Return why some id could not be looked up; empty if all could."""
        keys = (unread_id(context, id_) for id_ in ids if isinstance(id_, int))
        return next((f"{key}: {self._unread[key]}" for key in keys if key in self._unread), "")

    def has_subject(self, context: str, topic: str, part: Part) -> bool:
        """Whether the registry has a subject that is named after a topic and its part."""
        return Subject(context, f"{topic}-{part}") in self._subjects

    def names_topic(self, context: str, topic: str, part: Part, ids: Iterable[IdValue]) -> bool:
        """Whether one of these ids belongs to the subject that is named after a topic and its part."""
        subject = Subject(context, f"{topic}-{part}").qualified
        return any(
            item.subject == subject for id_ in ids if isinstance(id_, int) for item in self._ids.get((context, id_), ())
        )

    def decodes(self, context: str, id_: int, payload: bytes) -> bool:
        """Return whether what follows an id is a value of its schema.

        :raises CannotDecode: nobody can tell.
        """
        found = self._decoders.get((context, id_))
        if found is None:
            try:
                found = self._decoder(context, id_)
            except CannotDecode as error:
                found = error
            self._decoders[context, id_] = found
        if isinstance(found, CannotDecode):
            raise found
        return found(payload)

    def _decoder(self, context: str, id_: int) -> Decodes:
        shown = self._ids.get((context, id_))
        schema = shown[0].schema if shown else self._answers.get((context, id_))
        if schema is None:
            raise CannotDecode("the registry has not shown it")
        return decoder(schema, context, self._find)

    def _find(self, subject: str, number: int) -> Schema | None:
        found = self._source.subjects.get(subject)
        if found is None or not found.versions:
            return None
        # Some servers permit -1, "the latest version".
        item = found.version(number) if number > 0 else found.versions[-1]
        return None if item is None else item.schema
