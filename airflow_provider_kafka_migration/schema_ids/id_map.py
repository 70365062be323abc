"""What a schema id of the source is on the target: the document ``schemas/id-map.json`` as lookup tables.

Whoever keeps both registries in step writes the document, and only adds to it. Copiers read it, and ask for an id that
it lacks by creating an object ``<migration_id>/schemas/wanted/<context>/<id>``. The answer appears in the document: the
id's number on the target, or the fact that the source registry has no such id.

In keys or values that no subject is named after, an id is rewritten only if payloads with it decode. A copier asks for
that by an object ``<migration_id>/schemas/undecided/<topic>/<part>/<id>/<partition>-<offset>``: a record to decode.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.errors import DocumentUnreadable, ObjectExists, Where
from airflow_provider_kafka_migration.schema_ids.wire_format import Kind, Part
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = "."
#: The document is read again at most this often.
REFRESH_SECONDS = 1.0

SchemaIdValue = int | str


class Absent:
    """The type of :data:`ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


#: The source registry has answered that it has no such id: the bytes are not a schema id.
ABSENT = Absent()
Answer = SchemaIdValue | Absent | None


class IdMap:
    """The ids of one document.

    What was once recorded as absent stays absent, even if the same number appears among the ids later: records with it
    have already been copied unchanged.

    :param document: None for an empty map, which knows no id.
    """

    def __init__(self, document: SchemaIdMap | None = None) -> None:
        self._document = document
        self._answers: dict[tuple[str, SchemaIdValue], SchemaIdValue | Absent] = {}
        self._guids: dict[str, SchemaIdValue | Absent] = {}
        self._decided: dict[tuple[str, Part, int], bool] = {}
        if document is not None:
            self._load(document)

    def _load(self, document: SchemaIdMap) -> None:
        answers: dict[tuple[str, SchemaIdValue], SchemaIdValue | Absent] = {
            (context, source): target for context, source, target in document.ids
        }
        answers.update(dict.fromkeys(document.absent, ABSENT))
        guids: dict[str, SchemaIdValue | Absent] = {source.lower(): target for source, target in document.guids}
        guids.update({guid.lower(): ABSENT for guid in document.absent_guids})
        self._document, self._answers, self._guids = document, answers, guids
        self._decided = {(topic, part, id_): carries for topic, part, id_, carries in document.decided}

    @property
    def document(self) -> SchemaIdMap | None:
        """The document that the answers come from."""
        return self._document

    def find(self, context: str, kind: Kind, value: SchemaIdValue) -> Answer:
        """Return the id on the target, :data:`ABSENT`, or None if the map does not have the id (yet).

        :param context: of the source registry; GUIDs are the same in all contexts.
        """
        if kind == "guid":
            return self._guids.get(str(value))
        return self._answers.get((context, value))

    def has_zero(self, context: str) -> bool:
        """Return whether the source registry has a schema with the id 0: see :mod:`.wire_format`."""
        return self._answers.get((context, 0), ABSENT) is not ABSENT

    def carries(self, topic: str, part: Part, id_: int) -> bool | None:
        """Return whether payloads of a part that no subject is named after decode with an id; None: undecided (yet)."""
        return self._decided.get((topic, part, id_))

    def want(self, context: str, kind: Kind, value: SchemaIdValue, where: Where) -> None:
        """Ask for an id that the map lacks. This map has nobody to ask."""

    def want_decided(self, context: str, part: Part, id_: int, where: Where, *, is_ahead: bool = False) -> None:
        """Ask whether an id of a part is one. This map has nobody to ask."""


class LiveIdMap(IdMap):
    """The map of a running migration: it reads the document again when an id is missing.

    For one thread.

    :param store: the journal store.
    :param key: of the document; while it does not exist, the map is empty.
    :raises DocumentUnreadable: the object is no id map of this migration.
    """

    def __init__(self, store: ObjectStore, migration_id: str, key: str) -> None:
        super().__init__()
        self._store = store
        self._migration_id = migration_id
        self._key = key
        self._read_at = float("-inf")
        self._wanted: set[str] = set()
        #: (topic, part, id) that were asked for
        self._undecided: set[tuple[str, Part, int]] = set()

    def find(self, context: str, kind: Kind, value: SchemaIdValue) -> Answer:
        """See :meth:`IdMap.find`; reads the document again, at most once a second, before it answers None."""
        answer = super().find(context, kind, value)
        if answer is None and self._refresh():
            answer = super().find(context, kind, value)
        return answer

    def carries(self, topic: str, part: Part, id_: int) -> bool | None:
        """See :meth:`IdMap.carries`; reads the document again, at most once a second, before it answers None."""
        answer = super().carries(topic, part, id_)
        if answer is None and self._refresh():
            answer = super().carries(topic, part, id_)
        return answer

    def has_zero(self, context: str) -> bool:
        """See :meth:`IdMap.has_zero`."""
        if self._document is None:
            self._refresh()
        return super().has_zero(context)

    def _refresh(self) -> bool:
        """Read the document; return False if that was done a moment ago, or if there is none."""
        now = time.monotonic()
        if now - self._read_at < REFRESH_SECONDS:
            return False
        data = self._store.get(self._key)
        self._read_at = now
        if data is None:
            return False
        try:
            document = SchemaIdMap.parse(data)
        except ValidationError as error:
            raise self._unreadable(f"it is not an id map: {error.error_count()} fields are wrong") from None
        if document.migration_id != self._migration_id:
            raise self._unreadable(f"it belongs to the migration {document.migration_id}")
        self._load(document)
        return True

    def want(self, context: str, kind: Kind, value: SchemaIdValue, where: Where) -> None:
        """Ask for an id, once: create the object that the synchronization of the schemas reads.

        :param where: topic, partition and offset of the record that has it; for people.
        """
        request = {"context": context, "kind": kind, "id": value}
        self._ask(wanted_key(self._migration_id, context, value), request, where)

    def want_decided(self, context: str, part: Part, id_: int, where: Where, *, is_ahead: bool = False) -> None:
        """Ask whether an id of a part is one: create the object that the synchronization of the schemas reads.

        :param where: topic, partition and offset of a record that has it.
        :param is_ahead: nothing waits for this record yet: what was asked for already is not asked for again.
        """
        what = (str(where.topic), part, id_)
        if is_ahead and what in self._undecided:
            return
        self._undecided.add(what)
        key = undecided_key(self._migration_id, *what, where.partition or 0, where.offset or 0)
        self._ask(key, {"context": context, "part": part, "id": id_}, where)

    def _ask(self, key: str, what: dict[str, SchemaIdValue], where: Where) -> None:
        if key in self._wanted:
            return
        request = {**what, "topic": where.topic, "partition": where.partition, "offset": where.offset}
        log.info("the map of schema ids has no answer yet: %s", request)
        try:
            self._store.put_new(key, json.dumps(request, sort_keys=True).encode())
        except ObjectExists:
            log.debug("another copier has asked for it: %s", key)
        self._wanted.add(key)

    def _unreadable(self, why: str) -> DocumentUnreadable:
        return DocumentUnreadable(
            f"the map of schema ids cannot be used: {why}",
            where=Where(migration_id=self._migration_id, path=f"{self._store.uri}/{self._key}"),
            next_step="find out what wrote the object; only this migration's synchronization of schemas may write it",
        )


# -- wanted ids -------------------------------------------------------------------------------------------------------


class WantedId(NamedTuple):
    """An id that copiers have found in records, and that the map did not have."""

    context: str
    kind: Literal["id", "guid"]
    value: SchemaIdValue


def wanted_prefix(migration_id: str) -> str:
    """Return the prefix of the objects that ask for ids, in the journal store."""
    return f"{migration_id}/schemas/wanted/"


def wanted_key(migration_id: str, context: str, value: SchemaIdValue) -> str:
    """Return the key of the object that asks for an id or a GUID.

    Contexts begin with a dot, and a part of a key must not be one: dots are percent-encoded.
    """
    return f"{wanted_prefix(migration_id)}{quote(context, safe='').replace('.', '%2E')}/{value}"


def undecided_prefix(migration_id: str) -> str:
    """Return the prefix of the objects that ask whether ids of parts without a subject are ids."""
    return f"{migration_id}/schemas/undecided/"


def undecided_key(migration_id: str, topic: str, part: Part, id_: int, partition: int, offset: int) -> str:
    """Return the key of the object that asks for one id of one part, with a record that has it.

    The record is a part of the key: it may be deleted before anybody has decoded it, and then the next one asks.
    """
    name = quote(topic, safe="").replace(".", "%2E")
    return f"{undecided_prefix(migration_id)}{name}/{part}/{id_}/{partition}-{offset}"


class UndecidedId(NamedTuple):
    """An id in keys or values of a topic that no subject is named after, and a record that has it."""

    topic: str
    part: Part
    id: int
    context: str
    partition: int
    offset: int


def parse_undecided(data: bytes) -> UndecidedId | None:
    """Return what an object asks for; None if it is none of these."""
    try:
        found = json.loads(data)
        numbers = [found[name] for name in ("id", "partition", "offset")]
        texts = [found[name] for name in ("topic", "part", "context")]
    except (ValueError, LookupError, TypeError):
        return None
    if not all(isinstance(item, int) for item in numbers) or not all(isinstance(item, str) for item in texts):
        return None
    if texts[1] not in get_args(Part):
        return None
    return UndecidedId(texts[0], texts[1], numbers[0], texts[2], numbers[1], numbers[2])


def parse_wanted_key(migration_id: str, key: str) -> WantedId | None:
    """Return what an object asks for; None if its key is no such key."""
    prefix = wanted_prefix(migration_id)
    context, slash, value = key.removeprefix(prefix).partition("/")
    if not key.startswith(prefix) or not slash or not context or not value:
        return None
    if value.isascii() and value.isdigit():
        return WantedId(unquote(context), "id", int(value))
    return WantedId(unquote(context), "guid", value)
