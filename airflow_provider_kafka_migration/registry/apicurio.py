"""Apicurio 3.x's own API, which does what its variant of Confluent's API does not: fixed ids, rules, hidden versions.

What a Confluent client calls schema id is Apicurio's ``contentId``, and what it calls version is ``versionOrder``.

How the import door behaves (seen on 3.3.3 and 3.0.9 with the SQL storage), and what :meth:`Apicurio.import_schemas`
makes of it:

* It refuses a registry that is not empty (409) unless ``requireEmptyRegistry=false``.
* It answers 204 even if it has skipped entries; it only logs them. So every import is read back.
* It runs in one transaction: an import that is cut off leaves nothing behind.
* 3.3.3 limits an archive to 10,000 entries.
* It skips a version whose ``globalId`` exists. So global ids are not preserved: nobody outside Apicurio uses them.
* It skips a content whose id exists (whatever it holds) or whose bytes exist under another id, and then every version
  that refers to this content *in the same archive*. A version whose content is not in the archive is skipped, too. So
  an id that exists already cannot be imported for another version. Such a version is created by the ordinary way,
  which recognizes the content by its hash and takes its id.
* The ordinary way numbers versions without gaps, whatever name they are given. A gap is made by placeholders with the
  same content that are deleted at once; they carry a label, so that the next attempt removes those of a killed one.
* A version that is added to an artifact with versions does not become the latest one, and the "latest" branch cannot be
  written. A draft that is enabled becomes the latest one, so versions above the highest one are imported as drafts.
  Confluent's API does not list drafts. The next attempt enables those of a killed one.
* Neither the import nor enabling a draft checks compatibility; the ordinary way does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from airflow_provider_kafka_migration.errors import (
    RegistryRefused,
    SchemaIdConflict,
    SchemaIdIgnored,
    SchemaIncompatible,
)
from airflow_provider_kafka_migration.registry import answers, apicurio_zip, detection
from airflow_provider_kafka_migration.registry.answers import AnswerMalformed
from airflow_provider_kafka_migration.registry.apicurio_zip import DISABLED, DRAFT, ENABLED
from airflow_provider_kafka_migration.registry.model import RegisteredSchema, Schema
from airflow_provider_kafka_migration.registry.rest import Answer, BoundedRestClient

#: Subjects are artifacts of this group.
GROUP = "default"
#: Imports of thousands of versions take longer than other requests.
IMPORT_SECONDS = 600.0
EXPORT_BYTES = 1024 * 1024 * 1024
_PAGE = 500
#: The compatible API shows no more than this many subjects (3.0) or versions of a subject (3.3), whatever limit is
#: given, and no sign of more.
SHOWN_SUBJECTS = 1000
SHOWN_VERSIONS = 500
#: Apicurio takes at most 10,000 entries in an archive, and a version needs up to five.
_BATCH_ROWS = 1500
#: Versions that may be created and deleted for one gap.
MOST_PLACEHOLDERS = 200
_MARK = {"kafka-migration": "placeholder"}

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Present = dict[int, "_Version"]


@dataclass(frozen=True)
class _Version:
    """A version as Apicurio lists it."""

    id: int
    state: str
    is_placeholder: bool


class Apicurio:
    """Apicurio's own API next to the one that is compatible with Confluent's.

    :param info: what the server reports about itself: name, version.
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

    # -- rules --------------------------------------------------------------------------------------------------------

    def has_compatibility_rule(self, subject: str) -> bool:
        """Return whether a subject has a compatibility level of its own."""
        answer = self._send("GET", f"{_artifact(subject)}/rules")
        if answer.status == 404:
            return False
        with self._parsing():
            return "COMPATIBILITY" in answers.texts(self._json(answer), "the rules")

    def set_compatibility_rule(self, subject: str | None, level: str) -> None:
        """Set the compatibility level of a subject, or of the registry; ``NONE`` is a level like any other."""
        rules = "admin/rules" if subject is None else f"{_artifact(subject)}/rules"
        rule = json.dumps({"ruleType": "COMPATIBILITY", "config": level}).encode()
        answer = self._send("PUT", f"{rules}/COMPATIBILITY", content=rule, headers=_JSON)
        if answer.status == 404:
            answer = self._send("POST", rules, content=rule, headers=_JSON)
        self._right(answer)

    def delete_compatibility_rule(self, subject: str) -> None:
        """Remove the compatibility level of a subject; do nothing if it has none."""
        answer = self._send("DELETE", f"{_artifact(subject)}/rules/COMPATIBILITY")
        if answer.status != 404:
            self._right(answer)

    # -- read ---------------------------------------------------------------------------------------------------------

    def subjects(self) -> set[str]:
        """Return all subjects, soft-deleted ones included."""
        found: set[str] = set()
        while True:
            path = f"search/artifacts?groupId={GROUP}&orderby=artifactId&order=asc&limit={_PAGE}&offset={len(found)}"
            with self._parsing():
                page = answers.mapping(self._json(self._send("GET", path)))
                artifacts = answers.sequence(page.get("artifacts"), "the artifacts")
                names = {answers.text(answers.mapping(each).get("artifactId"), "artifactId") for each in artifacts}
                count = answers.number(page.get("count"), "count")
            if len(found | names) == len(found):
                break
            found |= names
        if len(found) < count:
            raise self._rest.invalid(f"is wrong: it has {count} artifacts and lists {len(found)}")
        return found

    def versions(self, subject: str, *, deleted: bool) -> list[int]:
        """Return the versions of a subject.

        :param deleted: also soft-deleted ones.
        """
        hidden = (DRAFT,) if deleted else (DRAFT, DISABLED)
        return sorted(version for version, found in self._versions(subject).items() if found.state not in hidden)

    def version(self, subject: str, version: int) -> RegisteredSchema | None:
        """Return a version in any state; None if there is none.

        The compatible API hides a subject of which all versions are soft-deleted, although it lists its versions.
        """
        found = self._versions(subject).get(version)
        if found is None:
            return None
        content = self._content(found.id, self._type(subject))
        if content is None:
            raise self._rest.invalid(
                f"is wrong: version {version} of {subject} has the id {found.id}, which is missing"
            )
        return RegisteredSchema(subject, version, found.id, content, deleted=_hides(found.state))

    def export(self) -> bytes:
        """Return everything that the registry holds, as a zip archive."""
        answer = self._send("GET", "admin/export", max_answer_bytes=EXPORT_BYTES, timeout_seconds=IMPORT_SECONDS)
        content = self._right(answer).content
        if not content.startswith(b"PK"):
            raise self._rest.invalid("to an export is not a zip archive")
        return content

    # -- import -------------------------------------------------------------------------------------------------------

    def import_schemas(self, rows: Sequence[RegisteredSchema]) -> None:
        """Bring versions into the registry under exactly their subjects, versions, ids and deleted states.

        Of versions that are there already under the same id, only the state is set, so an attempt that was killed is
        simply repeated. Nothing else is written if there is a conflict. The result is read back. See the module for the
        way.

        :raises SchemaIdConflict: an id or a version is taken by another schema, or a schema is there under another id:
            Apicurio keeps one id for each content. ``details["conflicts"]`` lists all of them.
        :raises SchemaIdIgnored: a version cannot get its number, or Apicurio skipped it without an error.
        :raises SchemaIncompatible: a version that only the ordinary way can create breaks the compatibility level.
        """
        wanted = {(row.subject, row.version): row for row in rows}
        missing, there = self._missing(wanted)
        known = self._known_ids(wanted, there)
        while missing:
            batch = self._next_batch(missing, known)
            if batch:
                self._import(batch, {subject: max(versions, default=0) for subject, versions in there.items()})
            else:
                batch = [min(missing.values(), key=lambda row: row.version)]
                self._create(batch[0], there[batch[0].subject])
            left, read_again = self._missing({(row.subject, row.version): row for row in batch})
            if len(left) == len(batch):
                raise self._ignored(batch, "Apicurio accepted them without an error, but does not have them")
            there |= read_again
            known |= {row.id for row in batch}
            for row in batch:
                if (row.subject, row.version) not in left:
                    del missing[row.subject, row.version]

    def _missing(
        self, wanted: Mapping[tuple[str, int], RegisteredSchema]
    ) -> tuple[dict[tuple[str, int], RegisteredSchema], dict[str, _Present]]:
        """Return the rows that are not there yet, and what is there for each subject. On the way, finish what a killed
        attempt has left: drafts, wrong states, placeholders."""
        subjects = sorted({subject for subject, _ in wanted})
        listed = self.subjects()
        there: dict[str, _Present] = {subject: {} for subject in subjects}
        found_subjects = [subject for subject in subjects if subject in listed]
        there |= zip(found_subjects, self._each(self._cleaned, found_subjects), strict=True)
        for key in sorted(wanted):
            row, found = wanted[key], there[key[0]].get(key[1])
            state = DISABLED if row.deleted else ENABLED
            if (
                found is not None
                and found.id == row.id
                and (found.state == DRAFT or _hides(found.state) != row.deleted)
            ):
                self._set_state(row)
                there[key[0]][key[1]] = replace(found, state=state)
        missing = {key: row for key, row in wanted.items() if key[1] not in there[key[0]]}
        return missing, there

    def _cleaned(self, subject: str) -> _Present:
        versions = self._versions(subject)
        for version, found in versions.items():
            if found.is_placeholder:
                self._delete_version(subject, version)
        return {version: found for version, found in versions.items() if not found.is_placeholder}

    def _known_ids(self, rows: Mapping[tuple[str, int], RegisteredSchema], there: Mapping[str, _Present]) -> set[int]:
        """Return the ids that are there already, with the wanted schemas.

        :raises SchemaIdConflict: for all conflicts at once.
        """
        conflicts = [
            f"version {row.version} of {row.subject} is there with id {found.id}, not {row.id}"
            for row in rows.values()
            if (found := there[row.subject].get(row.version)) is not None and found.id != row.id
        ]
        contents: dict[int, Schema] = {}
        ids: dict[str, int] = {}
        for row in rows.values():
            if _content_of(contents.setdefault(row.id, row.schema)) != _content_of(row.schema):
                conflicts.append(f"id {row.id} is wanted for two different schemas")
            other = ids.setdefault(apicurio_zip.content_hash(row.schema), row.id)
            if other != row.id:
                conflicts.append(f"ids {other} and {row.id} are wanted for one schema; Apicurio has one id for each")
        found_ids = self._each(lambda item: self._content(item[0], item[1].type), list(contents.items()))
        known = {id_: found for id_, found in zip(contents, found_ids, strict=True) if found is not None}
        conflicts += [
            f"id {id_} is there with another schema"
            for id_, found in known.items()
            if _content_of(found) != _content_of(contents[id_])
        ]
        fresh = [id_ for id_ in contents if id_ not in known]
        conflicts += filter(None, self._each(lambda id_: self._under_another_id(id_, contents[id_]), fresh))
        if conflicts:
            raise SchemaIdConflict(
                f"{len(conflicts)} schemas cannot keep their ids: {'; '.join(conflicts[:5])}",
                where=self._rest.where,
                next_step="remove the foreign schemas; nothing was written. To keep them, "
                "begin again with schemas.ids: translate and another migration_id",
                details={"conflicts": conflicts},
            )
        return set(known)

    def _under_another_id(self, id_: int, schema: Schema) -> str | None:
        answer = self._send("GET", f"ids/contentHashes/{apicurio_zip.content_hash(schema)}")
        if answer.status == 404:
            return None
        self._right(answer)
        return f"the schema with id {id_} is there under another id"

    def _next_batch(
        self, missing: Mapping[tuple[str, int], RegisteredSchema], known: set[int]
    ) -> list[RegisteredSchema]:
        """Return what can be imported next: all versions with one id together, and no version before a lower one of its
        subject, as far as that is possible. Nothing if only versions with known ids come next."""
        blocked: set[str] = set()
        by_id: dict[int, list[RegisteredSchema]] = {}
        for key in sorted(missing):
            row = missing[key]
            if row.id in known:
                blocked.add(row.subject)
            if row.subject not in blocked:
                by_id.setdefault(row.id, []).append(row)
        batch: list[RegisteredSchema] = []
        for rows in by_id.values():
            if batch and len(batch) + len(rows) > _BATCH_ROWS:
                break
            batch += rows
        return batch

    def _import(self, rows: list[RegisteredSchema], highest: Mapping[str, int]) -> None:
        answer = self._send(
            "POST",
            "admin/import?requireEmptyRegistry=false",
            content=apicurio_zip.archive(rows, highest=highest),
            headers={
                "Content-Type": "application/zip",
                "X-Registry-Preserve-ContentId": "true",
                "X-Registry-Preserve-GlobalId": "false",
            },
            timeout_seconds=IMPORT_SECONDS,
        )
        self._right(answer)

    # -- the ordinary way ---------------------------------------------------------------------------------------------

    def _create(self, row: RegisteredSchema, there: _Present) -> None:
        """Create a version with a content that is there already."""
        highest = max(there, default=0)
        gap = range(highest + 1, row.version)
        if row.version <= highest or len(gap) > MOST_PLACEHOLDERS:
            reason = (
                f"the registry has version {highest} already, and its id exists" if not gap else "the gap is too wide"
            )
            raise self._ignored([row], reason)
        for version in gap:
            self._create_version(row, version, labels=_MARK)
        self._create_version(row, row.version, labels={})
        for version in gap:
            self._delete_version(row.subject, version)
        if row.deleted:
            self._set_state(row)

    def _create_version(self, row: RegisteredSchema, version: int, *, labels: Mapping[str, str]) -> None:
        new = {
            "version": str(version),
            "labels": labels,
            "content": {
                "content": row.schema.text,
                "contentType": apicurio_zip.media_type(row.schema),
                "references": [
                    {"groupId": GROUP, "artifactId": each.subject, "version": str(each.version), "name": each.name}
                    for each in row.schema.references
                ],
            },
        }
        body = {"artifactId": row.subject, "artifactType": row.schema.type, "firstVersion": new}
        path = f"groups/{GROUP}/artifacts?ifExists=CREATE_VERSION"
        answer = self._send("POST", path, content=json.dumps(body).encode(), headers=_JSON)
        if b"RuleViolation" in answer.content and not answer.succeeded:
            raise SchemaIncompatible(
                f"version {row.version} of {row.subject} breaks the compatibility level of the target",
                where=self._rest.where,
                next_step="set the subject's compatibility level to NONE on the target for the migration",
            )
        if not (answer.status == 409 and b"AlreadyExists" in answer.content):  # by a request whose answer was lost
            self._right(answer)

    def _set_state(self, row: RegisteredSchema) -> None:
        state = DISABLED if row.deleted else ENABLED
        path = f"{_artifact(row.subject)}/versions/{row.version}/state"
        self._right(self._send("PUT", path, content=json.dumps({"state": state}).encode(), headers=_JSON))

    def _delete_version(self, subject: str, version: int) -> None:
        """Delete a placeholder. Apicurio's own API refuses deletions by default; the compatible one does not."""
        path = f"subjects/{quote(subject, safe='')}/versions/{version}"
        for query in ("", "?permanent=true"):
            answer = self._rest.exchange("DELETE", [f"{base}/{path}{query}" for base in self._rest.base_urls])
            if answer.status not in (404, 409):  # soft-deleted already
                self._right(answer)

    def _ignored(self, rows: Iterable[RegisteredSchema], reason: str) -> SchemaIdIgnored:
        names = [f"version {row.version} of {row.subject} with id {row.id}" for row in rows]
        return SchemaIdIgnored(
            f"{len(names)} schemas cannot get their ids and versions: {'; '.join(names[:5])}: {reason}",
            where=self._rest.where,
            next_step="see Apicurio's own log for the reason; if it cannot be mended, "
            "begin again with schemas.ids: translate and another migration_id",
            details={"schemas": names},
        )

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _versions(self, subject: str) -> _Present:
        """Return all versions of a subject by their number, drafts included."""
        found: _Present = {}
        names: set[str] = set()
        while True:
            path = f"{_artifact(subject)}/versions?orderby=globalId&order=asc&limit={_PAGE}&offset={len(names)}"
            answer = self._send("GET", path)
            if answer.status == 404:
                return {}
            with self._parsing():
                page = answers.sequence(answers.mapping(self._json(answer)).get("versions"), "the versions")
                read = [_read_version(each) for each in page]
            before = len(names)
            names.update(name for name, _ in read)
            found.update({int(name): version for name, version in read if name.isascii() and name.isdigit()})
            if len(names) == before or len(page) < _PAGE:
                break
        return self._with_right_numbers(subject, found, names)

    def _with_right_numbers(self, subject: str, found: _Present, names: set[str]) -> _Present:
        """Check that names are numbers as Confluent's API shows them. Other clients may name versions as they like."""
        path = f"subjects/{quote(subject, safe='')}/versions?deleted=true"
        answer = self._rest.exchange("GET", [f"{base}/{path}" for base in self._rest.base_urls])
        with self._parsing():
            shown = [] if answer.status == 404 else answers.numbers(self._json(answer), "the versions")
        listed = {version for version, each in found.items() if each.state != DRAFT}
        agrees = listed == set(shown) if len(shown) < SHOWN_VERSIONS else listed >= set(shown)
        if len(found) != len(names) or not agrees:
            raise RegistryRefused(
                f"the versions of {subject} in Apicurio have other names than Confluent's API gives them",
                where=self._rest.where,
                next_step="begin again with schemas.ids: translate, or without the subject (schemas.exclude), and "
                "another migration_id",
            )
        return found

    def _type(self, subject: str) -> str:
        with self._parsing():
            found = answers.mapping(self._json(self._send("GET", _artifact(subject))))
            return answers.text(found.get("artifactType"), "artifactType")

    def _content(self, id_: int, type_: str) -> Schema | None:
        """Return the schema of an id, whether or not a version has it."""
        content = self._send("GET", f"ids/contentIds/{id_}")
        if content.status == 404:
            return None
        references = self._json(self._send("GET", f"ids/contentIds/{id_}/references"))
        with self._parsing():
            return answers.schema(
                {
                    "schema": answers.utf8(self._right(content).content, "the content"),
                    "schemaType": type_,
                    "references": [_reference(each) for each in answers.sequence(references, "references")],
                }
            )

    def _each(self, work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        """Return the result for each item; the client bounds the requests in flight."""
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(self._rest.max_parallel_requests) as pool:
            return list(pool.map(work, items))

    def _json(self, answer: Answer) -> Any:
        return self._rest.json_of(self._right(answer))

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except AnswerMalformed as malformed:
            raise self._rest.invalid(str(malformed)) from None

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        max_answer_bytes: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Answer:
        addresses = [f"{base}/{path}" for base in self._bases]
        return self._rest.exchange(
            method,
            addresses,
            content=content,
            headers=headers,
            max_answer_bytes=max_answer_bytes,
            timeout_seconds=timeout_seconds,
        )

    def _right(self, answer: Answer) -> Answer:
        if not answer.succeeded:
            raise RegistryRefused(
                f"Apicurio's own API answered HTTP {answer.status}{self._reason(answer)}",
                where=self._rest.where,
                next_step="check the rights of the user in the connection, and Apicurio's own log",
                details={"status": answer.status},
            )
        return answer

    def _reason(self, answer: Answer) -> str:
        """Return the server's own words for a refusal, if it gave any."""
        try:
            title = answers.mapping(json.loads(answer.content)).get("title")
        except (ValueError, RecursionError, AnswerMalformed):
            return ""
        return f": {self._rest.scrub(title)}" if isinstance(title, str) else ""


_JSON = {"Content-Type": "application/json"}


def _read_version(value: Any) -> tuple[str, _Version]:
    version = answers.mapping(value, "a version")
    return answers.text(version.get("version"), "version"), _Version(
        id=answers.number(version.get("contentId"), "contentId"),
        state=answers.text(version.get("state"), "state"),
        is_placeholder=version.get("labels") == _MARK,
    )


def _reference(value: Any) -> dict[str, Any]:
    """Return a reference as Confluent's API writes it; versions are texts here."""
    reference = answers.mapping(value, "a reference")
    version = answers.text(reference.get("version"), "the version of a reference")
    if not (version.isascii() and version.isdigit()):
        raise AnswerMalformed("is wrong: the version of a reference is not a number")
    return {"name": reference.get("name"), "subject": reference.get("artifactId"), "version": int(version[:12])}


def _content_of(schema: Schema) -> tuple[str, tuple[Any, ...]]:
    """Return what makes up a content in Apicurio; it has no metadata and no rule sets."""
    return schema.text, tuple(sorted(schema.references))


def _hides(state: str) -> bool:
    """Return whether Confluent's API shows a version in this state as soft-deleted."""
    return state == DISABLED


def _artifact(subject: str) -> str:
    return f"groups/{GROUP}/artifacts/{quote(subject, safe='')}"
