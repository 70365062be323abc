"""Reads a registry: subjects, versions with their content, levels and modes, as plain values.

What could not be read is named in ``unread`` and never counts as absent. Subjects and versions are immutable once
registered, so a :class:`SnapshotCache` keeps them between passes.

Requests of a full pass over N subjects with V versions: 2 lists of all subjects, 2 lists of versions per subject (with
and without deleted ones), its level and its mode, and V versions: 4 N + V. Where the registry can list all versions at
once (Confluent), that list replaces the lists per subject and the versions: 2 N + V / 500.

A light pass with a cache does not read levels and modes of known subjects. It asks for one list per subject and for
what is new: N; or for V / 500 pages. It finds each new, deleted or restored version; with lists per subject, all but
one that was both registered and deleted between two passes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from airflow_provider_kafka_migration.errors import (
    MigrationError,
    RegistryAnswerInvalid,
    SchemaNotFound,
    Terminal,
    Transient,
)
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.schemas.content import qualified_reference
from airflow_provider_kafka_migration.schemas.selection import Selection

#: More references than this to schemas outside the filter are no registry's content, but an endless answer.
MAX_PULLED_IN = 100_000
#: Schemas that refer to schemas, and so on: no registry's content is nested more deeply.
MAX_REFERENCE_DEPTH = 500
#: After this many requests in a row without an answer, the registry counts as unreachable.
MAX_FAILURES_IN_ROW = 10
_PROGRESS_SECONDS = 1.0
#: From so many subjects on, and if they are at least this share of the registry, all versions are listed at once.
LIST_ALL_FROM = 20
_LIST_ALL_SHARE = 0.25

#: Kinds that refuse another schema under a used id by themselves, and list every subject.
LISTS_IDS = ("confluent", "redpanda")

Report = Callable[[str], None]
#: Asks a registry which version of a subject holds a schema, as it is or normalized, deleted or not; None: none does.
LookUp = Callable[[str, Schema], RegisteredSchema | None]
_Item = TypeVar("_Item")


class ReadsRegistry(Protocol):
    """The reading half of ``registry.client.Registry``."""

    def kind(self) -> str: ...
    def contexts(self) -> list[str]: ...
    def subjects(self, *, deleted: bool = False) -> list[str]: ...
    def versions(self, subject: str, *, deleted: bool = False) -> list[int]: ...
    def all_versions(self) -> list[RegisteredSchema] | None: ...
    def schema(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema: ...
    def schema_by_id(self, id: int, *, context: str = DEFAULT_CONTEXT) -> Schema | None: ...
    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema | None: ...
    def config(self, subject: str | None) -> dict[str, Any] | None: ...
    def mode(self, subject: str | None) -> str | None: ...


@dataclass(frozen=True)
class SubjectSnapshot:
    """One subject.

    :param versions: ascending, with soft-deleted ones if the selection includes them.
    :param config: the explicit level; None: it has none. Without meaning where ``unread`` names it.
    :param mode: likewise.
    :param as_reference: outside the filter; only versions that other schemas refer to were read.
    """

    subject: str
    versions: tuple[RegisteredSchema, ...] = ()
    config: dict[str, Any] | None = None
    mode: str | None = None
    as_reference: bool = False

    def version(self, number: int) -> RegisteredSchema | None:
        """Return a version; None if it was not read."""
        return next((item for item in self.versions if item.version == number), None)


@dataclass
class RegistrySnapshot:
    """A registry as it was read.

    :param kind: confluent, karapace, redpanda, apicurio, unknown.
    :param subjects: by qualified name, ascending.
    :param left_out: subjects of the registry that were not read because of the selection, and why.
    :param absent: (subject, version) that schemas refer to and the registry answered not to have.
    :param ids: schemas that were looked up by (context, id); None: the registry answered not to have the id.
    :param listed_ids: the schemas of all ids, by (context, id), where the registry has listed all versions at once.
    :param unread: what could not be read, and why; see the functions ``unread_*`` for the keys.
    :param requests: calls of the registry for this snapshot.
    :param look_up: the registry's own comparison of schemas, for texts that it may have printed in another form than
        this package knows; None for plain values.
    """

    kind: str = "unknown"
    contexts: list[str] = field(default_factory=lambda: [DEFAULT_CONTEXT])
    subjects: dict[str, SubjectSnapshot] = field(default_factory=dict)
    global_config: dict[str, Any] | None = None
    global_mode: str | None = None
    context_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    context_modes: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    absent: set[tuple[str, int]] = field(default_factory=set)
    ids: dict[tuple[str, int], Schema | None] = field(default_factory=dict)
    listed_ids: dict[tuple[str, int], Schema] | None = field(default=None, compare=False, repr=False)
    unread: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    look_up: LookUp | None = field(default=None, compare=False, repr=False)

    def version(self, subject: str, number: int) -> RegisteredSchema | None:
        """Return a version; None if it was not read (see ``unread`` and ``absent`` for why)."""
        found = self.subjects.get(subject)
        return None if found is None else found.version(number)

    def all_versions(self) -> Iterable[RegisteredSchema]:
        """Yield all versions, ascending by subject and version."""
        for name in sorted(self.subjects):
            yield from self.subjects[name].versions

    def find(self, subject: str, schema: Schema) -> int | None:
        """Ask the registry which version of a subject holds a schema, whatever its text looks like.

        A registry compares a schema in the form in which it is given, so it is asked for the normalized form as well:
        that is what it has if it was told to normalize what it registers. A refusal means that no version does: the
        registry cannot even read the schema.

        :raises Transient: the registry does not answer.
        """
        if self.look_up is None or subject not in self.subjects:
            return None
        try:
            found = self.look_up(subject, schema)
        except Terminal:
            return None
        return None if found is None else found.version

    @property
    def has_contexts(self) -> bool:
        """Whether the registry has contexts, each with ids of its own. Elsewhere a context is a part of the name."""
        return self.kind == "confluent" or len(self.contexts) > 1

    def names_in(self, context: str | None = None) -> frozenset[str]:
        """Return all subjects that the registry listed, soft-deleted ones, too, of a context or of all."""
        with_versions = (name for name, item in self.subjects.items() if item.versions)
        names = {*with_versions, *self.left_out, *self.unread_subjects()}
        return frozenset(name for name in names if context is None or Subject.parse(name).context == context)

    def answer_by_listing(self, wanted: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        """Take up in ``ids`` what the lists of the registry say about ids; return those that they say nothing about.

        A list of all versions shows all ids. Where it is missing, a context without any subject has no id. What is
        registered after the list was made, these registries find by themselves: they refuse an id that is taken.
        """
        if self.kind not in LISTS_IDS:
            return set(wanted)
        rest = set()
        used = {Subject.parse(name).context if self.has_contexts else DEFAULT_CONTEXT for name in self.names_in()}
        for pair in wanted:
            if pair in self.ids:
                continue
            if self.listed_ids is not None:
                self.ids[pair] = self.listed_ids.get(pair)
            elif pair[0] in used:
                rest.add(pair)
            else:
                self.ids[pair] = None
        return rest

    def unread_subjects(self) -> frozenset[str]:
        """Return the subjects whose versions, or the content of some of them, could not be read."""
        names = set()
        for key in self.unread:
            text = key.removeprefix("subject ")
            if text != key:
                name, mark, number = text.rpartition(", version ")
                names.add(name if mark and number.isdigit() else text)
        return frozenset(names)

    def by_id(self) -> dict[tuple[str, int], list[RegisteredSchema]]:
        """Return the versions that were read, by (context, id)."""
        found: dict[tuple[str, int], list[RegisteredSchema]] = {}
        for item in self.all_versions():
            found.setdefault((Subject.parse(item.subject).context, item.id), []).append(item)
        return found

    def with_modes(self, former: Mapping[str, str | None]) -> RegistrySnapshot:
        """Return the snapshot with modes from before the migration changed them.

        :param former: by scope: empty for the registry, ``:.ctx:`` for a context, or a qualified subject. None: the
            scope had no mode of its own.
        """
        subjects = {
            name: replace(item, mode=former[name]) if name in former else item for name, item in self.subjects.items()
        }
        contexts = dict(self.context_modes)
        for scope, mode in former.items():
            context, name = Subject.parse(scope)
            if scope and not name:
                contexts.pop(context, None)
                if mode is not None:
                    contexts[context] = mode
        global_mode = former.get("", self.global_mode)
        return replace(self, subjects=subjects, context_modes=contexts, global_mode=global_mode)


def unread_subject(subject: str) -> str:
    """The key in ``unread`` of a subject whose versions could not be listed."""
    return f"subject {subject}"


def unread_version(subject: str, version: int) -> str:
    """The key of a version whose content could not be read."""
    return f"subject {subject}, version {version}"


def unread_config(scope: str) -> str:
    """The key of a level that could not be read; an empty scope is the whole registry."""
    return f"compatibility level of {scope or 'the registry'}"


def unread_mode(scope: str) -> str:
    """The key of a mode that could not be read; an empty scope is the whole registry."""
    return f"mode of {scope or 'the registry'}"


def unread_id(context: str, id_: int) -> str:
    """The key of an id that could not be looked up."""
    return f"schema id {id_} in context {context}"


@dataclass
class SnapshotCache:
    """What passes over one registry keep: immutable content, and what a light pass does not read again.

    A registry can give the number of a permanently deleted version to another schema. Whoever needs proof, as the
    validation does, reads without a cache.
    """

    versions: dict[tuple[str, int], RegisteredSchema] = field(default_factory=dict)
    #: subject to (live versions, all versions)
    listings: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    levels: dict[str, tuple[dict[str, Any] | None, str | None]] = field(default_factory=dict)
    #: ids that the registry has; ids that it lacked are asked for again
    ids: dict[tuple[str, int], Schema] = field(default_factory=dict)


def read_snapshot(
    registry: ReadsRegistry,
    selection: Selection,
    *,
    parallel: int = 10,
    progress: Report | None = None,
    cache: SnapshotCache | None = None,
    light: bool = False,
) -> RegistrySnapshot:
    """Read the subjects that a selection names, and the schemas outside of it that they refer to, over any depth.

    :param parallel: requests at the same time.
    :param progress: called about once a second with a line for people.
    :param cache: content that an earlier pass read; this pass adds to it.
    :param light: see the module's text; only with a cache that a full pass has filled.
    :raises MigrationError: subjects cannot be listed, or the registry stopped answering.
    """
    return _Reader(registry, selection, parallel, progress, cache or SnapshotCache(), light).run()


def ask_ids(
    registry: ReadsRegistry,
    snapshot: RegistrySnapshot,
    ids: Iterable[tuple[str, int]],
    *,
    parallel: int = 10,
    progress: Report | None = None,
    cache: SnapshotCache | None = None,
) -> None:
    """Look up (context, id) pairs and add the answers to ``snapshot.ids``, or the reasons to ``snapshot.unread``.

    :raises MigrationError: the registry stopped answering.
    """
    known = cache or SnapshotCache()
    wanted = sorted(set(ids) - snapshot.ids.keys())
    calls = _Calls(parallel, progress)

    def ask(pair: tuple[str, int]) -> None:
        context, id_ = pair
        found = known.ids.get(pair)
        if found is None:
            calls.count()
            found = registry.schema_by_id(id_, context=context)
            if found is not None:
                known.ids[pair] = found
        snapshot.ids[pair] = found

    failed = calls.each(wanted, ask, "schema ids")
    snapshot.unread |= {unread_id(*pair): error.what for pair, error in failed.items()}
    snapshot.requests += calls.requests


class _Calls:
    """Runs calls in parallel, keeps their errors apart, and gives up when the registry no longer answers."""

    def __init__(self, parallel: int, progress: Report | None) -> None:
        self.requests = 0
        self._parallel = max(1, parallel)
        self._progress = progress
        self._lock = threading.Lock()
        self._failed_in_row = 0
        self._outage: Transient | None = None
        self._next_report = 0.0

    def count(self) -> None:
        """Count one request."""
        with self._lock:
            self.requests += 1

    def each(self, items: Iterable[_Item], call: Callable[[_Item], None], what: str) -> dict[_Item, MigrationError]:
        """Call for each item and return the errors by item.

        :raises Transient: several calls in a row got no answer.
        """
        todo = list(items)
        failed: dict[_Item, MigrationError] = {}
        done = 0

        def attempt(item: _Item) -> None:
            nonlocal done
            if self._outage is not None:
                return
            try:
                call(item)
            except MigrationError as error:
                with self._lock:
                    failed[item] = error
                    self._failed(error)
            else:
                with self._lock:
                    self._failed_in_row = 0
            with self._lock:
                done += 1
                self._report(f"{done} of {len(todo)} {what}")

        if todo:
            with ThreadPoolExecutor(min(self._parallel, len(todo)), thread_name_prefix="registry") as pool:
                for future in [pool.submit(attempt, item) for item in todo]:
                    future.result()
        if self._outage is not None:
            raise self._outage
        return failed

    def _failed(self, error: MigrationError) -> None:
        if not isinstance(error, Transient):
            self._failed_in_row = 0
            return
        self._failed_in_row += 1
        if self._failed_in_row >= MAX_FAILURES_IN_ROW:
            self._outage = error

    def _report(self, text: str) -> None:
        now = time.monotonic()
        if self._progress is not None and now >= self._next_report:
            self._next_report = now + _PROGRESS_SECONDS
            self._progress(text)


class _Reader:
    """One pass over one registry."""

    def __init__(
        self,
        registry: ReadsRegistry,
        selection: Selection,
        parallel: int,
        progress: Report | None,
        cache: SnapshotCache,
        light: bool,
    ) -> None:
        self._registry = registry
        self._selection = selection
        self._cache = cache
        self._light = light
        self._calls = _Calls(parallel, progress)
        self._found = RegistrySnapshot(
            kind=registry.kind(),
            look_up=lambda subject, schema: (
                registry.lookup(subject, schema, deleted=True)
                or registry.lookup(subject, schema, normalize=True, deleted=True)
            ),
        )
        #: versions to read by subject, with whether each is soft-deleted
        self._wanted: dict[str, dict[int, bool]] = {}
        self._levels: dict[str, tuple[dict[str, Any] | None, str | None]] = {}
        #: what the registry returned for a version that is another one
        self._answered_by: dict[tuple[str, int], str] = {}
        #: versions by subject, where the registry listed all at once
        self._listed: dict[str, list[RegisteredSchema]] = {}
        self._lock = threading.Lock()

    def run(self) -> RegistrySnapshot:
        found = self._found
        self._calls.requests += 3
        found.contexts = self._registry.contexts()
        listed = set(self._registry.subjects(deleted=True))
        # Listed second: a subject that is deleted in between is in the first list, and counts as deleted.
        live = set(self._registry.subjects())
        listed |= live
        found.left_out = {name: why for name in sorted(listed) if (why := self._selection.why_left_out(name))}
        chosen = sorted(listed - found.left_out.keys())
        if not self._selection.include_deleted:
            gone = [name for name in chosen if name not in live]
            found.left_out |= dict.fromkeys(gone, "soft-deleted, and schemas.include_deleted is false")
            chosen = [name for name in chosen if name in live]
        # Of the target, names are asked for that it may not have yet; whose ids are free shows in the list, too.
        asked = len(chosen) if self._selection.names is None else len(self._selection.names)
        if listed and asked >= max(LIST_ALL_FROM, _LIST_ALL_SHARE * len(listed)):
            self._list_all(listed)
        failed = self._calls.each(chosen, lambda name: self._list(name, name in live), "subjects listed")
        found.unread |= {unread_subject(name): error.what for name, error in failed.items()}
        self._read_versions()
        if self._selection.names is None:
            self._pull_in_references(live)
        unlisted = sorted(name for name in self._selection.asked - listed if not self._selection.why_left_out(name))
        self._read_levels(sorted({*self._wanted, *unlisted}))
        self._read_behind_aliases(chosen, listed, live)
        self._finish(chosen)
        self._add_unlisted(unlisted)
        return found

    # -- versions

    def _list_all(self, subjects: set[str]) -> None:
        """List all versions at once, if the registry can."""
        self._calls.count()
        for item in self._registry.all_versions() or ():
            self._listed.setdefault(item.subject, []).append(item)
        if subjects <= self._listed.keys():
            self._found.listed_ids = {
                (Subject.parse(item.subject).context, item.id): item.schema
                for items in self._listed.values()
                for item in items
            }

    def _list(self, subject: str, live: bool) -> None:
        """List the versions of a selected subject."""
        former = self._cache.listings.get(subject) if self._light else None
        listed = self._listed.get(subject, [])
        # The lists of subjects and of all versions are two answers: where they differ, the subject has just changed.
        if listed and live == any(not item.deleted for item in listed):
            current, all_ = self._from_list(subject, listed)
        elif former is not None and not live and not former[0]:
            current, all_ = former
        elif former is not None and live and (now := self._versions(subject, deleted=False)) == former[0]:
            current, all_ = now, former[1]
        else:
            # All versions first: one that is deleted in between counts as deleted.
            all_ = self._versions(subject, deleted=True) if self._selection.include_deleted else ()
            current = self._versions(subject, deleted=False) if live else ()
            all_ = tuple(sorted({*all_, *current}))
            self._cache.listings[subject] = (current, all_)
        wanted = {number: number not in current for number in all_}
        if self._selection.versions == "latest":
            # Only the latest live version; of a subject that is deleted as a whole, the latest that it had.
            numbers = current or all_
            wanted = {max(numbers): wanted[max(numbers)]} if numbers else {}
        with self._lock:
            self._wanted[subject] = wanted

    def _from_list(self, subject: str, listed: list[RegisteredSchema]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take over the content of versions that were listed, and return (live, all) version numbers."""
        current = tuple(sorted(item.version for item in listed if not item.deleted))
        all_ = tuple(sorted(item.version for item in listed))
        for item in listed:
            self._cache.versions[(subject, item.version)] = item
        self._cache.listings[subject] = (current, all_)
        return (current, all_) if self._selection.include_deleted else (current, current)

    def _versions(self, subject: str, *, deleted: bool) -> tuple[int, ...]:
        self._calls.count()
        return tuple(sorted(self._registry.versions(subject, deleted=deleted)))

    def _read_versions(self) -> None:
        missing = [
            (subject, number)
            for subject, numbers in self._wanted.items()
            for number in numbers
            if (subject, number) not in self._cache.versions
        ]
        failed = self._calls.each(missing, lambda pair: self._read(*pair), "versions read")
        self._found.unread |= {unread_version(*pair): error.what for pair, error in failed.items()}

    def _read(self, subject: str, number: int) -> None:
        self._calls.count()
        try:
            item = self._registry.schema(subject, number, deleted=self._wanted[subject][number])
        except SchemaNotFound:
            # It was listed. Either it has been deleted since, for which the registry has to answer, or it is unread.
            if number in self._versions(subject, deleted=True):
                self._calls.count()
                item = self._registry.schema(subject, number, deleted=True)
                with self._lock:
                    self._wanted[subject][number] = True
            else:
                with self._lock:
                    del self._wanted[subject][number]
                return
        if item.subject != subject or item.version != number:
            with self._lock:
                self._answered_by[(subject, number)] = f"version {item.version} of {item.subject}"
            return
        self._cache.versions[(subject, number)] = item

    def _read_behind_aliases(self, chosen: list[str], listed: set[str], live: set[str]) -> None:
        """Read subjects that are aliases of others, and have versions of their own.

        Asked for such a name, the registry answers for the other subject. Only the list of all schemas shows them.
        """
        aliases = [name for name in chosen if (self._levels.get(name, (None, None))[0] or {}).get("alias")]
        if aliases and not self._listed:
            self._list_all(listed)
            for name in aliases:
                if name in self._listed:
                    self._list(name, name in live)
                    self._answered_by = {key: what for key, what in self._answered_by.items() if key[0] != name}
            self._read_versions()
        for (subject, number), what in sorted(self._answered_by.items()):
            self._found.unread[unread_version(subject, number)] = (
                f"the registry was asked for version {number} of subject {subject} and returned {what}"
            )

    # -- references

    def _pull_in_references(self, live: set[str]) -> None:
        """Read what selected schemas refer to, wave by wave; what was read once is not read again, so loops end."""
        asked: set[tuple[str, int]] = set()
        depth = 0
        while wave := self._unread_references() - asked:
            asked |= wave
            depth += 1
            if len(asked) > MAX_PULLED_IN or depth > MAX_REFERENCE_DEPTH:
                subject, number = min(wave)
                raise RegistryAnswerInvalid(
                    f"schemas refer to others without an end: {len(asked)} schemas outside the selection, {depth} "
                    f"deep, the last is version {number} of {subject}",
                    next_step="check that the registry's answers are its own; no registry holds such schemas",
                )
            failed = self._calls.each(sorted(wave), lambda pair: self._read_reference(*pair, live), "references read")
            for (subject, number), error in failed.items():
                if isinstance(error, SchemaNotFound):
                    self._found.absent.add((subject, number))
                else:
                    self._found.unread[unread_version(subject, number)] = error.what

    def _unread_references(self) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for subject, numbers in self._wanted.items():
            context = Subject.parse(subject).context
            for number in numbers:
                item = self._cache.versions.get((subject, number))
                for reference in item.schema.references if item is not None else ():
                    target = (qualified_reference(reference, context), reference.version)
                    if target[1] not in self._wanted.get(target[0], {}):
                        found.add(target)
        return found

    def _read_reference(self, subject: str, number: int, live: set[str]) -> None:
        current = self._versions(subject, deleted=False) if subject in live else ()
        if number <= 0 and current:
            # "the latest version", as some servers permit
            number = max(current)
        key = (subject, number)
        if key not in self._cache.versions:
            self._calls.count()
            item = self._registry.schema(subject, number, deleted=number not in current)
            self._cache.versions[key] = item
        with self._lock:
            self._wanted.setdefault(subject, {})[number] = number not in current

    # -- levels and modes

    def _read_levels(self, subjects: list[str]) -> None:
        found = self._found
        scopes: list[str | None] = [None]
        # A context may have a level before it has a subject, and is not listed then.
        contexts = {*found.contexts, *(self._selection.named_contexts if found.has_contexts else ())}
        scopes += [f":{context}:" for context in sorted(contexts) if self._reads_context(context)]
        levels: dict[str, tuple[dict[str, Any] | None, str | None]] = {}
        unread = self._found.unread

        def read(scope: str | None) -> None:
            name = scope or ""
            config = self._guard(unread_config(name), lambda: self._registry.config(scope))
            mode = self._guard(unread_mode(name), lambda: self._registry.mode(scope))
            levels[name] = (config, mode)
            if unread_config(name) not in unread and unread_mode(name) not in unread:
                self._cache.levels[name] = (config, mode)

        todo = [name for name in subjects if not (self._light and name in self._cache.levels)]
        self._calls.each([*scopes, *todo], read, "levels and modes read")
        found.global_config, found.global_mode = levels.pop("", (None, None))
        for scope in scopes[1:]:
            config, mode = levels.pop(str(scope), (None, None))
            context = Subject.parse(str(scope)).context
            if config is not None:
                found.context_configs[context] = config
            if mode is not None:
                found.context_modes[context] = mode
        self._levels = {name: self._cache.levels.get(name, (None, None)) for name in subjects} | levels

    def _reads_context(self, context: str) -> bool:
        return context != DEFAULT_CONTEXT and self._selection.selects_context(context)

    def _guard(self, key: str, read: Callable[[], Any]) -> Any:
        """Read one level or mode; note a refusal under its key, because the other one may be readable."""
        self._calls.count()
        try:
            return read()
        except Transient as error:
            with self._lock:
                self._found.unread[key] = error.what
            raise
        except MigrationError as error:
            with self._lock:
                self._found.unread[key] = error.what
            return None

    # -- result

    def _finish(self, chosen: list[str]) -> None:
        selected = set(chosen)
        for subject in sorted(self._wanted):
            numbers = self._wanted[subject]
            versions = tuple(
                replace(item, deleted=numbers[number])
                for number in sorted(numbers)
                if (item := self._cache.versions.get((subject, number))) is not None
            )
            if not numbers:
                self._found.left_out[subject] = "permanently deleted while it was read"
                continue
            config, mode = self._levels[subject]
            self._found.subjects[subject] = SubjectSnapshot(
                subject, versions, config, mode, as_reference=subject not in selected
            )
        self._found.requests = self._calls.requests

    def _add_unlisted(self, names: list[str]) -> None:
        """Add names without versions that have a level or a mode."""
        for name in names:
            config, mode = self._levels[name]
            if name not in self._found.subjects and (config is not None or mode is not None):
                self._found.subjects[name] = SubjectSnapshot(name, (), config, mode)
        self._found.subjects = dict(sorted(self._found.subjects.items()))
        self._found.unread = dict(sorted(self._found.unread.items()))
