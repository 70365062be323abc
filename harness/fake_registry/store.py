"""What the fake registry holds, and the rules by which it changes. Knows nothing of HTTP; callers hold the lock."""

from __future__ import annotations

import hashlib
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.fake_registry import texts
from harness.fake_registry.habits import CONFLUENT, Habits
from harness.fake_registry.names import DEFAULT_CONTEXT, Subject

_T = TypeVar("_T")
LEVELS = frozenset(
    ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
)
MODES = frozenset(("READWRITE", "READONLY", "IMPORT", "FORWARD"))
_INVALID_LEVEL = (
    "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
    "forward_transitive, and full_transitive"
)
#: The order in which Confluent prints a config.
_CONFIG_ORDER = (
    "alias",
    "normalize",
    "validateFields",
    "compatibilityLevel",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def _not_permitted(message: str) -> Refused:
    return Refused(422, 42205, message)


@dataclass(frozen=True)
class Content:
    """A schema in canonical form. ``key`` decides whether two are the same."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    rule_set: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.kind, self.text, self.references, texts.compact(self.metadata), texts.compact(self.rule_set)

    @property
    def guid(self) -> str:
        """As Confluent computes it: MD5 over text, references and metadata. How rule sets count is not recorded."""
        digest = hashlib.md5(self.text.encode())
        for name, subject, version in self.references:
            digest.update(name.encode() + subject.encode() + struct.pack(">i", version))
        if self.metadata:
            digest.update(b"\x01")
            for tag, values in self.metadata.get("tags", {}).items():
                digest.update("".join([tag, *values]).encode())
            for name, value in self.metadata.get("properties", {}).items():
                digest.update(f"{name}{value}".encode())
        if self.rule_set:
            digest.update(texts.compact(self.rule_set).encode())
        return str(uuid.UUID(bytes=digest.digest()))


@dataclass
class Version:
    """A version of a subject. ``ts``: milliseconds since 1970."""

    subject: str
    version: int
    id: int
    content: Content
    ts: int
    deleted: bool = False


@dataclass
class _Context:
    """The ids of one context."""

    contents: dict[int, Content] = field(default_factory=dict)
    ids: dict[tuple[Any, ...], int] = field(default_factory=dict)
    last_id: int = 0
    uses: dict[int, dict[tuple[str, int], Version]] = field(default_factory=lambda: defaultdict(dict))


def _in_effect(subject: str, levels: dict[str, _T], top: _T) -> _T:
    """Of a subject, else of its context, else ``top``."""
    return levels.get(subject, levels.get(f":{Subject.parse(subject).context}:", top))


def _java_order(subject: str) -> int:
    """Where Java's hash maps of up to 16 entries put a name; Confluent lists the users of an id in this order."""
    value = 0
    for character in subject:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return (value ^ (value >> 16)) & 15


class Store:
    """Subjects, ids, levels and modes of one registry."""

    def __init__(self, habits: Habits = CONFLUENT) -> None:
        self.habits = habits
        self.subjects: dict[str, dict[int, Version]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.modes: dict[str, str] = {}
        self.config: dict[str, Any] = {"compatibilityLevel": habits.default_level}
        self.mode = "READWRITE"
        self._contexts: dict[str, _Context] = {DEFAULT_CONTEXT: _Context()}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)

    # -- reading ---

    def contexts(self) -> list[str]:
        return sorted(self._contexts)

    def find(self, subject: str, *, deleted: bool = False) -> dict[int, Version]:
        """Versions of a subject.

        :raises Refused: 40401, there are none.
        """
        found = {
            number: version
            for number, version in sorted(self.subjects.get(subject, {}).items())
            if deleted or not version.deleted
        }
        if not found:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, text: str, *, deleted: bool = False) -> Version:
        """A version by its number, ``latest`` or -1.

        :raises Refused:
        """
        latest = text in ("latest", "-1")
        if not latest and not (text.isdigit() and 0 < int(text) < 1 << 31):
            raise Refused(
                422,
                42202,
                f"The specified version '{text}' is not a valid version id. Allowed values are between "
                '[1, 2^31-1] and the string "latest"',
            )
        found = self.find(subject, deleted=deleted)
        number = max(found) if latest else int(text)
        if number not in found:
            raise Refused(404, 40402, f"Version {number} not found.")
        return found[number]

    def by_id(self, number: int, hint: str | None = None) -> tuple[str, Content, list[Version]]:
        """Context, content and users of an id; users in the order in which Confluent lists them.

        :param hint: the parameter ``subject``: ``:.x:`` or ``:.x:name`` names a context, a plain name is tried in all.
        :raises Refused: 40403.
        """
        for context in self._candidates(number, hint):
            if content := self._contexts[context].contents.get(number):
                users = self._contexts[context].uses[number].values()
                java = self.habits.full_answers
                ordered = sorted(
                    users, key=lambda each: (_java_order(each.subject) if java else 0, each.subject, each.version)
                )
                return context, content, ordered
        raise Refused(404, 40403, f"Schema {number} not found")

    def _candidates(self, number: int, hint: str | None) -> Iterator[str]:
        if not hint or not self.habits.ids_per_context:
            yield DEFAULT_CONTEXT
            return
        place = Subject.parse(hint)
        if place.context == DEFAULT_CONTEXT:
            for context in self.contexts():
                name = Subject(context, place.name).qualified
                if any(user == name for user, _ in self._contexts[context].uses.get(number, ())):
                    yield context
            yield DEFAULT_CONTEXT
        elif place.context in self._contexts:
            users = self._contexts[place.context].uses.get(number, {})
            if not place.name or any(user == hint for user, _ in users):
                yield place.context

    def by_guid(self, guid: str) -> Content:
        """:raises Refused: 40403."""
        for context in self._contexts.values():
            for content in context.contents.values():
                if content.guid == guid:
                    return content
        raise Refused(404, 40403, f"Schema {guid} not found")

    def referenced_by(self, subject: str, number: int) -> list[int]:
        """Ids of the live schemas that refer to a version."""
        users = (self.subjects.get(user, {}).get(version) for user, version in self._referrers[(subject, number)])
        return sorted({user.id for user in users if user is not None and not user.deleted})

    # -- levels and modes ---

    def level_of(self, subject: str) -> dict[str, Any]:
        """The config that counts: of the subject, else of its context, else the global one."""
        return _in_effect(subject, self.configs, self._top(subject, self.config, self._default_config()))

    def _default_config(self) -> dict[str, Any]:
        return {"compatibilityLevel": self.habits.default_level}

    def mode_of(self, subject: str) -> str:
        """Likewise, the mode."""
        return _in_effect(subject, self.modes, self._top(subject, self.mode, "READWRITE"))

    def _top(self, subject: str, top: _T, default: _T) -> _T:
        """The global value, which does not reach into contexts other than the default one."""
        default_context = Subject.parse(subject).context == DEFAULT_CONTEXT
        return top if default_context or not self.habits.ids_per_context else default

    def set_config(self, subject: str | None, change: dict[str, Any]) -> dict[str, Any]:
        """Change the fields that are given.

        :returns: the config, with the level named ``compatibility`` as in the body of the request.
        :raises Refused: 42203 for an unknown level.
        """
        change = dict(change)
        if "compatibility" in change:
            level = str(change.pop("compatibility")).upper()
            if level not in LEVELS:
                raise Refused(422, 42203, _INVALID_LEVEL)
            change["compatibilityLevel"] = level
        if self.habits.mode_enforced and self._effective(subject) == "READONLY":
            raise _not_permitted(f"Subject {subject} is in read-only mode")
        known = self.config if subject is None else self.configs.get(subject, {})
        merged = {**known, **change}
        ordered = {name: merged[name] for name in (*_CONFIG_ORDER, *merged) if merged.get(name) is not None}
        if subject is None:
            self.config = ordered
        else:
            self.configs[subject] = ordered
        shown = {name: value for name, value in ordered.items() if name in change}
        return {("compatibility" if name == "compatibilityLevel" else name): value for name, value in shown.items()}

    def _effective(self, subject: str | None) -> str:
        return self.mode if subject is None else self.mode_of(subject)

    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> None:
        """:raises Refused: 42204 for an unknown mode, 42205 for IMPORT over live subjects without force."""
        mode = mode.upper()
        if mode not in MODES:
            message = "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD."
            raise Refused(422, self.habits.invalid_mode_code, message)
        if self.habits.mode_enforced and mode == "IMPORT" and self._effective(subject) != "IMPORT" and not force:
            concerned = self._in_scope(subject)
            if any(not version.deleted for version in concerned):
                raise _not_permitted("Cannot import since found existing subjects")
            for version in concerned:
                self._remove(version)
        if subject is None:
            self.mode = mode
        else:
            self.modes[subject] = mode

    def _in_scope(self, scope: str | None) -> list[Version]:
        def concerned(subject: str) -> bool:
            if scope is None or subject == scope:
                return True
            place = Subject.parse(scope)
            return not place.name and Subject.parse(subject).context == place.context

        return [each for name, versions in self.subjects.items() if concerned(name) for each in versions.values()]

    # -- schemas ---

    def read_content(self, subject: str, body: dict[str, Any], *, normalize: bool = False) -> Content:
        """The canonical content of a request.

        :raises Refused: 42201.
        """
        kind, text = str(body.get("schemaType") or "AVRO").upper(), body.get("schema")
        references = tuple((each["name"], each["subject"], each["version"]) for each in body.get("references") or ())
        if not isinstance(text, str) or not text.strip():
            raise Refused(422, 42201, "Empty schema")
        if kind not in ("AVRO", "JSON", "PROTOBUF"):
            raise Refused(422, 42201, f"Invalid schema type {kind}")
        if kind == "JSON" and references and not self.habits.json_references:
            raise Refused(422, 42201, "Schema references are not supported for JSON schema type")
        normalize = normalize or bool(self.level_of(subject).get("normalize"))
        context = Subject.parse(subject).context
        try:
            read = texts.canonical(kind, text, self._referenced(context, references, {}), normalize=normalize)
        except texts.InvalidSchema as error:
            raise Refused(422, 42201, self._invalid(subject, kind, text, references, str(error))) from None
        metadata = _ordered_metadata(body.get("metadata") or {}) if self.habits.metadata else {}
        rules = body.get("ruleSet") or {} if self.habits.rule_sets else {}
        return Content(kind, read if self.habits.canonical_texts else text, references, metadata, rules)

    def _referenced(
        self, context: str, references: tuple[tuple[str, str, int], ...], found: dict[str, str]
    ) -> dict[str, str]:
        for name, subject, number in references:
            if name in found:
                continue
            place = Subject.parse(subject)
            if place.context == DEFAULT_CONTEXT:
                place = Subject(context, place.name)
            versions = self.subjects.get(place.qualified, {})
            chosen = versions.get(max(versions, default=0) if number == -1 else number)
            if chosen is None:
                raise texts.InvalidSchema(
                    f'No schema reference found for subject "{place.qualified}" and version {number}'
                )
            found[name] = chosen.content.text
            self._referenced(place.context, chosen.content.references, found)
        return found

    def _invalid(
        self, subject: str, kind: str, text: str, references: tuple[tuple[str, str, int], ...], why: str
    ) -> str:
        shown = ", ".join(f"{{name='{name}', subject='{user}', version={number}}}" for name, user, number in references)
        guid = Content(kind, text, references).guid
        return (
            f"Invalid schema of type {kind}, details: Invalid schema {{subject={subject},version=null,id=null,"
            f"guid={guid},schemaType={kind},references=[{shown}],metadata=null,ruleSet=null,schema={text},"
            f"schemaTags=null,ts=null,deleted=null}} with refs [{shown}] of type {kind}, details: {why}"
        )

    def look_up(self, subject: str, content: Content, *, deleted: bool = False) -> Version | None:
        """The highest version of a subject with this content."""
        for version in sorted(self.subjects.get(subject, {}).values(), key=lambda each: -each.version):
            if (deleted or not version.deleted) and version.content.key == content.key:
                return version
        return None

    def register(self, subject: str, content: Content, number: int | None, version: int | None) -> Version:
        """Register a schema, with a fixed id and version where the mode allows it.

        :raises Refused: 42205 by mode or id, 42201 by version, 40901 by compatibility.
        """
        if not self.habits.fixed_ids:
            number = version = None
        version = version if version is not None and version > 0 else None
        known = self.look_up(subject, content)
        if known is not None and number in (None, known.id):
            return known
        importing = self._check_mode(subject, number)
        if not importing:
            self._check_compatible(subject, content)
        following = max(self.subjects.get(subject, {}), default=0) + 1
        if version is not None and version != following and not importing:
            raise Refused(422, 42201, "Version is not one more than previous version")
        context = self._context(subject)
        if number is None:
            number = context.ids.get(content.key)
            number = context.last_id + 1 if number is None else number
        elif number in context.contents and context.contents[number].key != content.key:
            where = f" in context {self._shown_context(subject)}" if self.habits.context_in_messages else ""
            raise _not_permitted(f"Overwrite new schema with id {number}{where} is not permitted.")
        return self.put(subject, version or following, number, content)

    def _context(self, subject: str) -> _Context:
        name = Subject.parse(subject).context if self.habits.ids_per_context else DEFAULT_CONTEXT
        return self._contexts.setdefault(name, _Context())

    def _shown_context(self, subject: str) -> str:
        context = Subject.parse(subject).context
        return "" if context == DEFAULT_CONTEXT else f":{context}:"

    def _check_mode(self, subject: str, number: int | None) -> bool:
        """Whether the subject is in IMPORT mode.

        :raises Refused: the mode forbids the registration.
        """
        if not self.habits.mode_enforced:
            return False
        mode = self.mode_of(subject)
        if mode == "READONLY":
            raise self._wrong_mode(subject, "is in read-only mode")
        if number is not None and mode != "IMPORT":
            raise self._wrong_mode(subject, "is not in import mode")
        if number is None and mode != "READWRITE":
            raise self._wrong_mode(subject, "is not in read-write mode")
        return mode == "IMPORT"

    def _wrong_mode(self, subject: str, what: str) -> Refused:
        where = f" in context {self._shown_context(subject)}" if self.habits.context_in_messages else ""
        return _not_permitted(f"Subject {subject}{where} {what}")

    def _check_compatible(self, subject: str, content: Content) -> None:
        live = [version for version in self.subjects.get(subject, {}).values() if not version.deleted]
        reasons = self.incompatible_with(subject, content, live)
        if reasons:
            details = ", ".join(reasons)
            raise Refused(
                409,
                self.habits.incompatible_code,
                f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
                f"details: [{details}]",
            )

    def incompatible_with(self, subject: str, content: Content, versions: list[Version]) -> list[str]:
        """Why the level in effect forbids ``content`` after these versions; empty: it does not."""
        level = str(self.level_of(subject).get("compatibilityLevel", self.habits.default_level))
        ordered = sorted(versions, key=lambda each: -each.version)
        if level == "NONE":
            return []
        for version in ordered if level.endswith("_TRANSITIVE") else ordered[:1]:
            if reasons := self._differences(subject, level.removesuffix("_TRANSITIVE"), content, version):
                return [
                    *reasons,
                    f"{{oldSchemaVersion: {version.version}}}",
                    f"{{oldSchema: '{version.content.text}'}}",
                    f"{{compatibility: '{level}'}}",
                ]
        return []

    def _differences(self, subject: str, level: str, content: Content, earlier: Version) -> list[str]:
        if content.kind != earlier.content.kind:
            return ["Incompatible because of different schema type"]
        if content.kind != "AVRO":
            return []
        context = Subject.parse(subject).context
        new, old = (
            texts.avro_names(each.text, list(self._referenced(context, each.references, {}).values()))
            for each in (content, earlier.content)
        )
        reasons = texts.incompatibilities(new, old) if level in ("BACKWARD", "FULL") else []
        if level in ("FORWARD", "FULL"):
            reasons += texts.incompatibilities(old, new, reader_is_new=False)
        return reasons

    def put(self, subject: str, number: int, schema_id: int, content: Content, *, deleted: bool = False) -> Version:
        """Write a version without any check; replaces what is there.

        As Confluent does, it removes earlier soft-deleted versions of the subject that have the same id.
        """
        versions = self.subjects.setdefault(subject, {})
        stale = [each for each in versions.values() if each.deleted and each.id == schema_id and each.version < number]
        for each in (*stale, *([versions[number]] if number in versions else [])):
            self._remove(each)
        version = Version(subject, number, schema_id, content, int(time.time() * 1000), deleted)
        self.subjects.setdefault(subject, {})[number] = version
        context = self._context(subject)
        context.contents[schema_id] = content
        context.ids.setdefault(content.key, schema_id)
        context.last_id = max(context.last_id, schema_id)
        context.uses[schema_id][(subject, number)] = version
        for target in self._targets(version):
            self._referrers[target].add((subject, number))
        return version

    def _targets(self, version: Version) -> Iterator[tuple[str, int]]:
        context = Subject.parse(version.subject).context
        for _, subject, number in version.content.references:
            place = Subject.parse(subject)
            yield Subject(context if place.context == DEFAULT_CONTEXT else place.context, place.name).qualified, number

    # -- deletion ---

    def delete_version(self, subject: str, text: str, *, permanent: bool = False) -> int:
        """:raises Refused: 40401, 40402, 40406, 40407, 42205, 42206."""
        self._check_deletion_mode(subject)
        version = self.version(subject, text, deleted=True)
        if permanent and not version.deleted:
            raise self._not_soft_deleted(40407, f"Subject '{subject}' Version {version.version}")
        if not permanent and version.deleted:
            raise self._soft_deleted(40406, f"Subject '{subject}' Version {version.version}")
        self._delete([version], permanent=permanent)
        return version.version

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """:raises Refused: 40401, 40404, 40405, 42205, 42206."""
        self._check_deletion_mode(subject)
        versions = list(self.find(subject, deleted=True).values())
        live = [version for version in versions if not version.deleted]
        if permanent and live:
            raise self._not_soft_deleted(40405, f"Subject '{subject}'")
        if not permanent and not live:
            raise self._soft_deleted(40404, f"Subject '{subject}'")
        concerned = versions if permanent else live
        self._delete(concerned, permanent=permanent)
        return [version.version for version in concerned]

    def _check_deletion_mode(self, subject: str) -> None:
        if self.habits.mode_enforced and self.mode_of(subject) == "READONLY":
            raise self._wrong_mode(subject, "is in read-only mode")

    def _not_soft_deleted(self, code: int, what: str) -> Refused:
        message = f"{what} was not deleted first before being permanently deleted"
        return Refused(self.habits.not_soft_deleted_status, code, message)

    def _soft_deleted(self, code: int, what: str) -> Refused:
        return Refused(404, code, f"{what} was soft deleted.Set permanent=true to delete permanently")

    def _delete(self, versions: list[Version], *, permanent: bool) -> None:
        for version in versions:
            if self.referenced_by(version.subject, version.version):
                raise Refused(
                    422,
                    42206,
                    "One or more references exist to the schema {magic=1,keytype=SCHEMA,"
                    f"subject={version.subject},version={version.version}}}.",
                )
        for version in versions:
            if permanent:
                self._remove(version)
            else:
                version.deleted = True
        subject = versions[0].subject
        if all(version.deleted for version in self.subjects.get(subject, {}).values()):
            self.configs.pop(subject, None)
            self.modes.pop(subject, None)

    def _remove(self, version: Version) -> None:
        versions = self.subjects[version.subject]
        del versions[version.version]
        if not versions:
            del self.subjects[version.subject]
        context = self._context(version.subject)
        context.uses[version.id].pop((version.subject, version.version), None)
        if not context.uses[version.id]:
            context.contents.pop(version.id, None)
            if context.ids.get(version.content.key) == version.id:
                del context.ids[version.content.key]
        for target in self._targets(version):
            self._referrers[target].discard((version.subject, version.version))

    def delete_context(self, context: str) -> None:
        """:raises Refused: the context has subjects."""
        if any(Subject.parse(subject).context == context for subject in self.subjects):
            raise Refused(422, 42211, f"The specified context '{context}' is not empty.")
        if context != DEFAULT_CONTEXT:
            self._contexts.pop(context, None)


def _ordered_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """As Confluent prints it: tags, properties, sensitive; each sorted."""
    ordered: dict[str, Any] = {}
    for part in ("tags", "properties"):
        if metadata.get(part):
            ordered[part] = dict(sorted(metadata[part].items()))
    if metadata.get("sensitive"):
        ordered["sensitive"] = sorted(metadata["sensitive"])
    return ordered
