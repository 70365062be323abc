"""The client of a schema registry: what all registries with Confluent's REST API have in common.

It stands on confluent-kafka's REST client (:mod:`.rest`) and not on its ``SchemaRegistryClient``, because the latter

* answers from caches that are never invalidated, so it would hide what changes while a migration runs;
* cannot register under a fixed id or version;
* drops fields that it does not know from configs and schemas, and takes ``null`` for any field that is missing;
* has no global mode or config that differs between "not set" and "not found".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from airflow_provider_kafka_migration.errors import (
    ImportModeRefused,
    MigrationError,
    NotInImportMode,
    RegistryReadOnly,
    RegistryRefused,
    SchemaIdConflict,
    SchemaIdIgnored,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    SchemaReferenced,
)
from airflow_provider_kafka_migration.registry import answers, apicurio, detection
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.answers import AnswerMalformed
from airflow_provider_kafka_migration.registry.apicurio import Apicurio
from airflow_provider_kafka_migration.registry.detection import Kind
from airflow_provider_kafka_migration.registry.listing import list_versions
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.registry.rest import BoundedRestClient, SchemaRegistryError

T = TypeVar("T")

SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
SUBJECT_SOFT_DELETED, VERSION_SOFT_DELETED = 40404, 40406
NO_CONFIG, NO_MODE = 40408, 40409
INCOMPATIBLE = (409, 40901)
INVALID_SCHEMA, INVALID_VERSION, NOT_PERMITTED, REFERENCE_EXISTS = 42201, 42202, 42205, 42206

#: Lists of this many versions or more are asked for a next page, because registries may cap their lists.
_LONG_LIST = 500
#: No registry has more entries in one list; a longer one is a loop of pages.
_LONGEST_LIST = 2_000_000

#: Registries that answer 404 for a level or a mode that is not set. The others may answer with a default.
_HONEST_KINDS: tuple[Kind, ...] = ("confluent", "karapace", "redpanda")


class Registry:
    """One schema registry. Thread-safe; every answer is fresh.

    :param role: for errors.
    :raises ConnectionInvalid: a certificate or key of the connection cannot be read.

    All methods raise ``RegistryUnreachable`` (Transient), ``RegistryForbidden``, ``RegistryRefused`` and
    ``RegistryAnswerInvalid`` (Terminal), in addition to the errors that they document.
    """

    def __init__(self, access: RegistryAccess, role: Literal["source", "target"]) -> None:
        self.role = role
        self.url = access.urls[0]
        self._rest = BoundedRestClient(access, role)
        self._kind: Kind | None = None

    @property
    def timeout_seconds(self) -> float:
        """Bound of one request, from connecting to the last byte of its answer."""
        return self._rest.timeout_seconds

    @property
    def send_until(self) -> float:
        """Moment of the monotonic clock after which nothing is sent."""
        return self._rest.send_until

    @send_until.setter
    def send_until(self, moment: float) -> None:
        self._rest.send_until = moment

    def __repr__(self) -> str:
        return f"Registry({self.role}, {self.url})"

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._rest.close()

    # -- what it is ---------------------------------------------------------------------------------------------------

    def kind(self) -> Kind:
        """Return which product answers; ``unknown`` if it gives no sign of any that we know."""
        if self._kind is not None:
            return self._kind
        kind, is_certain = detection.kind_of(self._rest)
        if is_certain:
            self._kind = kind
        return kind

    def apicurio(self) -> Apicurio | None:
        """Return Apicurio's own API; None for other products, or if it cannot be reached under the same host."""
        if self.kind() != "apicurio":
            return None
        return Apicurio.beside(self._rest)

    # -- read ---------------------------------------------------------------------------------------------------------

    def contexts(self) -> list[str]:
        """Return all contexts, sorted; ``["."]`` where the registry knows none."""
        try:
            found = self._pages("contexts", {}, answers.texts, always=True)
        except SchemaRegistryError as error:
            # Registries without contexts have no such path. A registry with contexts always answers 200.
            if error.http_status_code in (404, 405):
                return [DEFAULT_CONTEXT]
            raise self._error(error, "list the contexts") from None
        # Apicurio writes ":.:" where others write ".".
        return sorted({name.strip(":") or DEFAULT_CONTEXT for name in found} | {DEFAULT_CONTEXT})

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the qualified names of all subjects of all contexts, sorted.

        :param deleted: also those of which all versions are soft-deleted.
        """
        query = {"deleted": "true"} if deleted else {}
        # Without a prefix, registries with contexts list those of all contexts. In case one does not, and because
        # registries without contexts take the wildcard ":*:" literally, each context is asked for by its name.
        prefixes = [None, *(f":{context}:" for context in self.contexts() if context != DEFAULT_CONTEXT)]
        found: set[str] = set()
        with self._refused("list the subjects"):
            for prefix in prefixes:
                asked = query if prefix is None else {**query, "subjectPrefix": prefix}
                found.update(self._pages("subjects", asked, answers.texts, always=True))
        own_api = self.apicurio() if len(found) >= apicurio.SHOWN_SUBJECTS else None
        if own_api is not None:
            more = own_api.subjects() - found
            found |= {subject for subject in more if self.versions(subject, deleted=deleted)}
        return sorted(found)

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the versions of a subject in rising order; [] only if the registry says that it has no such subject.

        :param deleted: also soft-deleted ones.
        """
        path = f"subjects/{self._encoded(subject)}/versions"
        try:
            found = self._pages(path, {"deleted": "true"} if deleted else {}, answers.numbers)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code == SUBJECT_NOT_FOUND:
                return []
            raise self._error(error, f"list the versions of {subject}") from None
        own_api = self.apicurio() if len(found) >= apicurio.SHOWN_VERSIONS else None
        return sorted(found) if own_api is None else own_api.versions(subject, deleted=deleted)

    def all_versions(self) -> list[RegisteredSchema] | None:
        """Return all versions of all subjects, with soft-deleted ones, in few requests; None if it is not possible.

        A subject may be missing: compare with :meth:`subjects`.
        """
        return list_versions(self._rest) if self.kind() == "confluent" else None

    def schema(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        """Return one version of a subject.

        :param deleted: also if it is soft-deleted.
        :raises SchemaNotFound: the registry has no such subject or version.
        """
        path = f"subjects/{self._encoded(subject)}/versions/{version}"
        try:
            answer = self._rest.get(path, query={"deleted": "true"} if deleted else None)
        except SchemaRegistryError as error:
            hidden = self._hidden(subject, version) if deleted and error.error_code == SUBJECT_NOT_FOUND else None
            if hidden is not None:
                return hidden
            raise self._error(error, f"read version {version} of {subject}") from None
        return self._parsed(answers.registered, answer)

    def schema_by_id(self, id: int, *, context: str = DEFAULT_CONTEXT) -> Schema | None:
        """Return the schema of an id, or None if the registry says that it has none (code 40403)."""
        query = None if context == DEFAULT_CONTEXT else {"subject": f":{context}:"}
        try:
            answer = self._rest.get(f"schemas/ids/{id}", query=query)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code == SCHEMA_NOT_FOUND:
                return None
            raise self._error(error, f"read the schema with id {id}") from None
        found = self._parsed(answers.mapping, answer)
        # Confluent's registry searches the other contexts if the asked one does not have the id.
        subject = found.get("subject")
        if isinstance(subject, str) and self.kind() == "confluent" and Subject.parse(subject).context != context:
            return None
        return self._parsed(answers.schema, found)

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema | None:
        """Return the version of a subject that holds a schema; None if the registry says that there is none."""
        query = _flags(normalize=normalize, deleted=deleted)
        try:
            answer = self._post(f"subjects/{self._encoded(subject)}", answers.body(schema), query)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in (SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND):
                return None
            raise self._error(error, f"look up a schema in {subject}") from None
        # Apicurio omits the type here even if it is not Avro; the schema was found by its type, too.
        found = {"schemaType": schema.type} | self._parsed(answers.mapping, answer)
        return self._parsed(answers.registered, found)

    # -- write --------------------------------------------------------------------------------------------------------

    def register(
        self,
        subject: str,
        schema: Schema,
        *,
        id: int | None = None,
        version: int | None = None,
        normalize: bool = False,
    ) -> RegisteredSchema:
        """Register a schema; a schema that is already there keeps its version.

        :param id: fixed id; the subject must be in mode IMPORT.
        :param version: fixed version, together with ``id``.
        :raises SchemaIdConflict: another schema has this id.
        :raises SchemaIdIgnored: the registry chose another id or version by itself: it cannot keep them.
        :raises SchemaIncompatible: the schema breaks the subject's compatibility level.
        :raises SchemaInvalid: the schema cannot be parsed, or a reference cannot be resolved.
        :raises NotInImportMode: an id was given, but the subject is not in mode IMPORT.
        :raises RegistryReadOnly: the mode does not permit the write.
        """
        what = f"register a schema in {subject}"
        body = answers.body(schema)
        if id is not None:
            body["id"] = id
        if version is not None:
            body["version"] = version
        with self._refused(what):
            answer = self._post(f"subjects/{self._encoded(subject)}/versions", body, _flags(normalize=normalize))
        found = self._as_registered(
            self._parsed(answers.mapping, answer), subject, schema, version, normalize=normalize
        )
        if id is not None and (found.id != id or version not in (None, found.version)):
            raise SchemaIdIgnored(
                f"the {self.role} registry registered id {id}, version {version} of {subject} "
                f"as id {found.id}, version {found.version}",
                where=self._rest.where,
                next_step="delete the version that it has registered; this registry needs schemas.ids: translate: "
                "begin again with that key and another migration_id",
                details={"subject": subject, "id": id, "version": version, "got": [found.id, found.version]},
            )
        return found

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> None:
        """Soft-delete a version; with ``permanent``, remove one that is soft-deleted.

        Soft-deleting a version that is soft-deleted already changes nothing.

        :raises SchemaNotFound: there is no such version (any more).
        :raises SchemaReferenced: other schemas refer to it.
        """
        path = f"subjects/{self._encoded(subject)}/versions/{version}"
        try:
            self._rest.delete(path, query=_flags(permanent=permanent))
        except SchemaRegistryError as error:
            if error.error_code != VERSION_SOFT_DELETED or permanent:
                raise self._error(error, f"delete version {version} of {subject}") from None

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Soft-delete all versions of a subject and return them; with ``permanent``, remove a soft-deleted subject.

        Soft-deleting a subject that is soft-deleted already changes nothing and returns [].

        :raises SchemaNotFound: there is no such subject (any more).
        :raises SchemaReferenced: other schemas refer to one of its versions.
        """
        try:
            answer = self._rest.delete(f"subjects/{self._encoded(subject)}", query=_flags(permanent=permanent))
        except SchemaRegistryError as error:
            if error.error_code == SUBJECT_SOFT_DELETED and not permanent:
                return []
            raise self._error(error, f"delete {subject}") from None
        return sorted(self._parsed(lambda value: answers.numbers(value, "the deleted versions"), answer))

    # -- levels and modes ---------------------------------------------------------------------------------------------

    def config(self, subject: str | None) -> dict[str, Any] | None:
        """Return the config that is set at a level, as the registry writes it; None if none is set there.

        :param subject: qualified name, ``:.ctx:`` for a context, None for the whole registry.

        Apicurio answers 200 ``NONE`` for a subject without a level of its own. Its own API knows whether the subject
        has a rule of its own. Where that API cannot be reached, or the product is unknown, a level counts as set only
        if it takes effect (``defaultToGlobal``) and differs from the level of the registry, so a level that equals the
        registry's is reported as not set. Its effect is the same.
        """
        found = self._level("config", subject, (NO_CONFIG, SUBJECT_NOT_FOUND))
        if found is None or subject is None or self.kind() in _HONEST_KINDS:
            return found
        own_api = self.apicurio()
        if own_api is not None:
            return found if own_api.has_compatibility_rule(subject) else None
        effective = self._level("config", subject, (NO_CONFIG, SUBJECT_NOT_FOUND), {"defaultToGlobal": "true"})
        return found if found == effective and found != self._level("config", None, ()) else None

    def set_config(self, subject: str | None, config: dict[str, Any]) -> None:
        """Set the config of a level. Takes what :meth:`config` returns.

        Apicurio 3.0 refuses ``NONE`` where no level is set, and removes the level where one is set. Its own API sets
        it. Apicurio keeps nothing else of a config.
        """
        level = config.get("compatibilityLevel")
        if isinstance(level, str) and (own_api := self.apicurio()) is not None:
            own_api.set_compatibility_rule(subject, level)
            return
        body = {("compatibility" if key == "compatibilityLevel" else key): value for key, value in config.items()}
        with self._refused(f"set the config of {_level_name(subject)}"):
            self._rest.put(self._level_path("config", subject), body=body)

    def delete_config(self, subject: str | None) -> None:
        """Remove the config of a level; do nothing if it has none."""
        self._delete_level("config", subject, (NO_CONFIG, SUBJECT_NOT_FOUND))
        if subject is not None and (own_api := self.apicurio()) is not None:
            # Apicurio answers 200 to the request above, but keeps a level of NONE.
            own_api.delete_compatibility_rule(subject)

    def mode(self, subject: str | None) -> str | None:
        """Return the mode that is set at a level; None if none is set there. ``subject`` is as in :meth:`config`.

        Where the registry does not tell a mode from a default (Apicurio), a mode that equals the registry's is reported
        as not set. Its effect is the same. None for the whole registry means that it knows no modes.
        """
        found = self._mode(subject)
        if found is None or subject is None or self.kind() in _HONEST_KINDS:
            return found
        return found if found != self._mode(None) else None

    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> None:
        """Set the mode of a level.

        :param force: set IMPORT even though there are subjects.
        :raises ImportModeRefused: there are subjects, and ``force`` is not given.
        """
        path = self._level_path("mode", subject) + ("?force=true" if force else "")
        with self._refused(f"set the mode of {_level_name(subject)} to {mode}"):
            self._rest.put(path, body={"mode": mode})

    def delete_mode(self, subject: str | None) -> None:
        """Remove the mode of a level; do nothing if it has none."""
        self._delete_level("mode", subject, (NO_MODE, SUBJECT_NOT_FOUND))

    def _mode(self, subject: str | None) -> str | None:
        found = self._level("mode", subject, (NO_MODE, SUBJECT_NOT_FOUND))
        return None if found is None else self._parsed(lambda value: answers.text(value, "mode"), found.get("mode"))

    def _level(
        self, resource: str, subject: str | None, unset: tuple[int, ...], query: dict[str, str] | None = None
    ) -> dict[str, Any] | None:
        """Return the answer for a level, or None for one of the codes that mean "not set"."""
        try:
            answer = self._rest.get(self._level_path(resource, subject), query=query)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in unset:
                return None
            raise self._error(error, f"read the {resource} of {_level_name(subject)}") from None
        return self._parsed(answers.mapping, answer)

    def _delete_level(self, resource: str, subject: str | None, unset: tuple[int, ...]) -> None:
        try:
            self._rest.delete(self._level_path(resource, subject))
        except SchemaRegistryError as error:
            if not (error.http_status_code == 404 and error.error_code in unset):
                raise self._error(error, f"remove the {resource} of {_level_name(subject)}") from None

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _encoded(self, subject: str) -> str:
        """Encode a subject for a path. A name of dots only would be taken for a relative path.

        Confluent's server refuses such a segment even if it is encoded, and takes a name with its context.
        """
        if subject.strip("."):
            return quote(subject, safe="")
        return quote(f":.:{subject}", safe="") if self.kind() == "confluent" else subject.replace(".", "%2E")

    def _level_path(self, resource: str, subject: str | None) -> str:
        return resource if subject is None else f"{resource}/{self._encoded(subject)}"

    def _post(self, path: str, body: dict[str, Any], query: dict[str, str] | None) -> Any:
        return self._rest.send_request(path, method="POST", body=body, query=query)

    def _pages(
        self,
        path: str,
        query: dict[str, str],
        parse: Callable[[Any, str], list[T]],
        *,
        always: bool = False,
    ) -> list[T]:
        """Return a whole list. Registries cap long lists without a sign of it (Confluent: 20,000 subjects). So a high
        limit is given, because Apicurio's pages have no order, and then a next page is asked for until it brings
        nothing new. Registries that know neither send the same list again.

        :param always: ask for a next page even after a short list.
        """
        found: dict[T, None] = {}
        what = f"the list of {path.split('/')[-1]}"
        while True:
            asked = {**query, "limit": str(_LONGEST_LIST)}
            if found:
                asked["offset"] = str(len(found))
            page = self._parsed(lambda answer: parse(answer, what), self._rest.get(path, asked))
            before = len(found)
            found.update(dict.fromkeys(page))
            if len(found) == before or not (always or len(page) >= _LONG_LIST):
                return list(found)
            if len(found) > _LONGEST_LIST:
                raise self._rest.invalid(f"is wrong: {what} has no end")

    def _as_registered(
        self, answer: dict[str, Any], subject: str, schema: Schema, version: int | None, *, normalize: bool
    ) -> RegisteredSchema:
        """Return what was registered; older registries, Redpanda and Apicurio answer with the id only."""
        new_id = self._parsed(lambda value: answers.number(value, "id"), answer.get("id"))
        if answer.get("version") is not None:
            return self._parsed(answers.registered, {**answers.body(schema), **answer, "subject": subject})
        if version is not None:
            # A lookup would find any of several versions with this schema.
            with suppress(SchemaNotFound):
                return self.schema(subject, version)
        found = self.lookup(subject, schema, normalize=normalize)
        if found is None or found.id != new_id:
            raise self._rest.invalid(f"to a new schema in {subject} (id {new_id}) contradicts its lookup afterwards")
        return found

    def _hidden(self, subject: str, version: int) -> RegisteredSchema | None:
        """Return a version of a wholly soft-deleted subject, which Apicurio lists but shows only by its own API."""
        own_api = self.apicurio()
        return None if own_api is None else own_api.version(subject, version)

    def _parsed(self, parse: Callable[[Any], T], answer: Any) -> T:
        try:
            return parse(answer)
        except AnswerMalformed as malformed:
            raise self._rest.invalid(str(malformed)) from None

    @contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        """Turn the registry's own refusal into a named error."""
        try:
            yield
        except SchemaRegistryError as error:
            raise self._error(error, what) from None

    def _error(self, error: SchemaRegistryError, what: str) -> MigrationError:
        kind, next_step = _named(error)
        said = f": {error.error_message}" if error.error_message else ""
        code = "" if error.error_code is None else f", code {error.error_code}"
        return kind(
            f"the {self.role} registry refused to {self._rest.scrub(what)} (HTTP {error.http_status_code}{code}){said}",
            where=self._rest.where,
            next_step=next_step,
            details={"status": error.http_status_code, "error_code": error.error_code},
        )


def _named(error: SchemaRegistryError) -> tuple[type[MigrationError], str]:
    """Return the class and the next step for a refusal."""
    status, code = error.http_status_code, error.error_code
    if status == 404 and code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND):
        return SchemaNotFound, "plan the schemas again if someone deletes subjects now"
    if status == 409 and code in INCOMPATIBLE:
        return SchemaIncompatible, "set the subject's compatibility level to NONE on the target for the migration"
    if code in (INVALID_SCHEMA, INVALID_VERSION) or (status == 422 and code == 422):
        return SchemaInvalid, "check that the registry knows this type of schema, and that it has all references of it"
    if code == REFERENCE_EXISTS:
        return SchemaReferenced, "delete the schemas that refer to it first"
    if code == NOT_PERMITTED:
        return _not_permitted(error.error_message)
    if status == 404 and code is None:
        return RegistryRefused, "check the base URL of the connection, including its path"
    return RegistryRefused, "see the registry's own log for the reason"


def _not_permitted(message: str) -> tuple[type[MigrationError], str]:
    """Tell the cases of code 42205 apart; only the text of the answer does."""
    text = message.lower()
    if "overwrite" in text:
        return SchemaIdConflict, (
            "remove the foreign schema from the target; to keep it, begin again with schemas.ids: translate and "
            "another migration_id"
        )
    if "not in import mode" in text:
        return NotInImportMode, "set the mode of the subject to IMPORT first"
    if "cannot import" in text:
        return ImportModeRefused, "set IMPORT for subjects without versions, or for the whole registry with force"
    if "mode" in text:
        return RegistryReadOnly, "set the mode of the subject, its context and the registry to READWRITE"
    return RegistryRefused, "see the registry's own log for the reason"


def _flags(**flags: bool) -> dict[str, str] | None:
    """Return those query parameters that are true; None for none."""
    return {name: "true" for name, is_set in flags.items() if is_set} or None


def _level_name(subject: str | None) -> str:
    return "the registry" if subject is None else subject
