"""Change modes and compatibility levels of a registry for a while, and put them back on every exit.

The order is journal, change, restore, journal. A process that is killed between any two of these leaves the change open
in the journal, and the next run puts it back before it does anything else. Putting back reads the scope first, so it is
right at each of these points: before the change was made, after it, and after it was undone.

Two processes of one owner may synchronize at the same time (the tail, and the cutover's last pass). One may put back
what the other still needs; that one then finds its write refused, and sets the mode again: :meth:`ImportMode.again`.

A process that has lost the claim still puts back its own changes, because a slow request of its own may have reached
the registry after the next owner had put back, and journaled, everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.errors import (
    IllegalTransition,
    ImportModeRefused,
    MigrationError,
    RegistryReadOnly,
    RegistryRefused,
    SchemaSettingsNotRestored,
)
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import (
    Kind,
    OpenSetting,
    Role,
    journal_restored,
    journal_setting,
    open_settings,
    scope_name,
)
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, Subject
from airflow_provider_kafka_migration.schemas.parallel import ENDS_RUN, collect

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.registry.client import Registry

log = logging.getLogger(__name__)

PHASE = "schemas"
#: The scope of the whole registry.
REGISTRY = ""
IMPORT = "IMPORT"
READWRITE = "READWRITE"
READONLY = "READONLY"
#: In these modes a registry takes schemas without a fixed id.
_WRITABLE = (None, READWRITE)
_NO_LEVEL = {"compatibility": "NONE"}
#: From so many subjects on, a context in which nobody else has any is set to IMPORT as a whole.
VACANT_FROM = 20
#: Scopes in which IMPORT is tried, the narrowest first.
_LADDER = ("subject", "context", "registry")
#: After these, this process cannot journal anything any more: it has lost the claim, or the migration has ended.
_NOT_JOURNALED = (*ENDS_RUN, IllegalTransition)
#: How long a process without the claim goes on putting back its own values.
_UNJOURNALED_SECONDS = 60.0
_WIDER_SCOPE_MAY_WORK = (ImportModeRefused, RegistryRefused)


def scope_of_context(context: str) -> str:
    """Return the scope of a context. The default context has none of its own: its scope is the whole registry."""
    return REGISTRY if context == DEFAULT_CONTEXT else f":{context}:"


class TemporarySettings:
    """What one run changes on one registry for a while. Thread-safe where the registry client is.

    :param parallel: requests at the same time.
    """

    def __init__(self, record: MigrationRecord, registry: Registry, role: Role, *, parallel: int = 8) -> None:
        self._record = record
        self._registry = registry
        self._role: Role = role
        self._parallel = parallel
        self._mine: dict[Kind, dict[str, OpenSetting]] = {"mode": {}, "config": {}}

    # ---- put back

    def restore_open(self) -> int:
        """Put back everything that the journal has open, also from runs that were killed; return the number of scopes.

        :raises SchemaSettingsNotRestored: the registry does not return to a former value; the error lists the scopes.
        :raises ClaimLost: another owner has taken over, and puts these back itself.
        """
        self._record.journal.check_holds()
        kinds: tuple[Kind, ...] = ("mode", "config")
        return self._restore({kind: open_settings(self._record.journal, self._role, kind) for kind in kinds})

    def restore(self) -> int:
        """Put back what this object has changed; return the number of scopes. Errors as those of :meth:`restore_open`.

        What the journal has as put back counts, too: another process may have done so before the value was set.
        """
        if not any(self._mine.values()):
            return 0
        try:
            self._record.journal.check_holds()
            count = self._restore(self._mine)
        except _NOT_JOURNALED:
            self._restore_unjournaled(self._mine)
            raise
        self._mine = {"mode": {}, "config": {}}
        return count

    def restore_after(self, error: BaseException) -> None:
        """Put back what this object has changed after an error that goes on; a second error is only logged.

        What cannot be put back stays open in the journal. Without the claim nothing is journaled, but values of this
        object are put back all the same: a slow request of its own may have reached the registry after the next owner
        had put back, and journaled, everything. If the next owner uses the same scope, it sets the value again.
        """
        if isinstance(error, _NOT_JOURNALED):
            self._restore_unjournaled(self._mine)
            return
        try:
            self.restore()
        except MigrationError as second:
            log.warning("After a failure, settings of the %s registry were not put back: %s", self._role, second)

    def take_back(self) -> None:
        """Put back what this object has changed too late: nothing is journaled, and no claim is needed.

        :raises SchemaSettingsNotRestored: the registry does not return to a former value; the error lists the scopes.
        """
        _, failed = self._restore_unjournaled(self._mine)
        if failed:
            raise self._not_restored(failed)

    def restore_after_end(self) -> int:
        """Put back what the journal of an ended migration has open; return the number of scopes that were changed.

        Such a journal takes no more entries, so these stay open in it. A scope that has its former value, or one that
        somebody else has set, is left alone.

        :raises SchemaSettingsNotRestored: the registry does not return to a former value; the error lists the scopes.
        """
        journal = self._record.journal
        journal.refresh()
        changed, failed = self._restore_unjournaled(
            {kind: open_settings(journal, self._role, kind) for kind in self._mine}
        )
        if failed:
            raise self._not_restored(failed)
        return changed

    def _restore_unjournaled(
        self, settings: Mapping[Kind, Mapping[str, OpenSetting]]
    ) -> tuple[int, dict[str, MigrationError]]:
        """Put back for a limited time; return the number of scopes that were changed, and the errors, also logged."""
        end = time.monotonic() + _UNJOURNALED_SECONDS
        changed = 0
        failed: dict[str, MigrationError] = {}

        def put_back(item: OpenSetting) -> bool:
            if time.monotonic() > end:
                raise SchemaSettingsNotRestored(
                    f"the registry answers too slowly to put back the {item.kind} of {scope_name(item.scope)}",
                    where=self._record.where(PHASE, cluster=self._role),
                    next_step="set it by hand",
                )
            found = self._read(item.kind, item.scope)
            if found is None or _same(item.kind, found, item.former) or not _is_ours(item.kind, found, item.wanted):
                return False
            self._put_back(item)
            return True

        for items in settings.values():
            done, errors = collect(put_back, items, self._parallel)
            changed += sum(done.values())
            failed.update(errors)
        for scope, error in sorted(failed.items()):
            log.warning("%s of the %s registry was not put back: %s", scope_name(scope), self._role, error)
        return changed, failed

    def _restore(self, settings: Mapping[Kind, Mapping[str, OpenSetting]]) -> int:
        count = 0
        failed: dict[str, MigrationError] = {}
        for kind, items in settings.items():
            done, errors = collect(self._put_back, items, self._parallel)
            failed.update(errors)
            left = {scope: found for scope, found in done.items() if found is not None}
            if done:
                text = "modes are put back" if kind == "mode" else "compatibility levels are put back"
                journal_restored(
                    self._record.journal, self._role, kind, done, left, reason=f"{self._role} registry: {text}"
                )
            count += len(done)
        if failed:
            raise self._not_restored(failed)
        return count

    def _put_back(self, item: OpenSetting) -> Any:
        """Return None once the scope has its former value, or the value that somebody else has set, which stays."""
        found = self._read(item.kind, item.scope)
        if _same(item.kind, found, item.former):
            return None
        if found is not None and not _is_ours(item.kind, found, item.wanted):
            log.warning(
                "%s of the %s registry was changed to %s by somebody else while the migration had it at %s; it stays",
                scope_name(item.scope),
                self._role,
                found,
                item.wanted,
            )
            return found
        accepted = self._write_former(item)
        back = self._read(item.kind, item.scope)
        if not _same(item.kind, back, item.former) and not _same(item.kind, back, accepted):
            raise SchemaSettingsNotRestored(
                f"the {item.kind} of {scope_name(item.scope)} is {_shown(back)} after it was put back to "
                f"{_shown(item.former)}",
                where=self._record.where(PHASE, cluster=self._role),
                next_step="set it by hand, or clear the task",
                details={"scope": item.scope, "former": item.former, "found": back},
            )
        return None

    def _write_former(self, item: OpenSetting) -> Any:
        """Write the former value; return the value that the scope is expected to have now."""
        scope = item.scope or None
        if item.kind == "config":
            if item.former is None:
                self._registry.delete_config(scope)
            else:
                self._registry.set_config(scope, item.former)
            return item.former
        if item.former is not None:
            self._registry.set_mode(scope, item.former, force=item.former == IMPORT)
            return item.former
        if scope is None:
            self._registry.set_mode(None, READWRITE)
            return READWRITE
        try:
            self._registry.delete_mode(scope)
            return None
        except RegistryRefused:
            # Some registries cannot remove the mode of a subject; the inherited one has the same effect for now.
            inherited = self.effective(item.scope, without_own=True)
            self._registry.set_mode(scope, inherited)
            log.warning(
                "%s keeps %s as a mode of its own: the registry cannot remove it", scope_name(item.scope), inherited
            )
            return inherited

    def _not_restored(self, failed: Mapping[str, MigrationError]) -> MigrationError:
        scope, first = next(iter(sorted(failed.items())))
        return SchemaSettingsNotRestored(
            f"{len(failed)} settings of the {self._role} registry could not be put back; {scope_name(scope)}: "
            f"{first.what}",
            where=self._record.where(PHASE, cluster=self._role),
            next_step="clear the task: each run begins with what the journal has open; until then clients of these "
            "subjects may be unable to register schemas",
            details={"scopes": {name: error.as_dict() for name, error in sorted(failed.items())}},
        )

    # ---- change

    def change(
        self,
        kind: Kind,
        scopes: Iterable[str],
        wanted: Any,
        *,
        force: Callable[[str], bool] = lambda _scope: False,
        insists: bool = True,
        known: Mapping[str, Any] | None = None,
    ) -> dict[str, MigrationError]:
        """Journal and set a value; return the scopes that the registry refused, with the reason.

        A scope that has the value already is journaled with it, and so keeps it afterwards.

        :param force: whether a mode must be forced on a scope, because it has schemas already.
        :param insists: force a mode that is refused because somebody has registered a schema there meanwhile.
        :param known: values of scopes that were read a moment ago; None as a value: the scope has none of its own.
        :raises ClaimLost: another owner has taken over; nothing is set.
        """
        names = sorted(set(scopes))
        if not names:
            return {}
        journal = self._record.journal
        journal.check_holds()
        opened = open_settings(journal, self._role, kind)
        found = {name: known[name] for name in names if known is not None and name in known}
        unread = {name: name for name in names if name not in found}
        read, failed = collect(lambda scope: (self._read(kind, scope),), unread, self._parallel)
        found |= {scope: value for scope, (value,) in read.items()}
        new = {scope: value for scope, value in found.items() if scope not in opened}
        verb = f"{self._role} registry: {kind} {_shown(wanted)} for a while"
        journal_setting(journal, self._role, kind, new, wanted, reason=verb)
        for scope, value in found.items():
            self._mine[kind].setdefault(scope, opened.get(scope) or OpenSetting(kind, scope, value, wanted))
        todo = {scope: scope for scope, value in found.items() if not has_values(kind, value, wanted)}
        _, refused = collect(
            lambda scope: self._write(kind, scope, wanted, force=force(scope), insists=insists), todo, self._parallel
        )
        self._keep_open(kind, found, wanted)
        return {**failed, **refused}

    def _keep_open(self, kind: Kind, scopes: Iterable[str], wanted: Any) -> None:
        """Journal again what another process has found unchanged, and journaled as put back, before it was set."""
        journal = self._record.journal
        journal.refresh()
        opened = open_settings(journal, self._role, kind)
        closed = {scope: self._mine[kind][scope].former for scope in scopes if scope not in opened}
        journal_setting(journal, self._role, kind, closed, wanted, reason=f"{self._role} registry: set meanwhile")

    def lift_levels(self, subjects: Iterable[str]) -> dict[str, MigrationError]:
        """Set compatibility NONE on subjects, so that their old versions can be registered.

        :returns: the subjects for which the registry refused it, with the reason.
        """
        return self.change("config", subjects, _NO_LEVEL)

    def effective(self, scope: str, *, without_own: bool = False) -> str:
        """Return the mode in force for a subject: its own, else its context's, else the registry's."""
        context = scope_of_context(Subject.parse(scope).context)
        for name in dict.fromkeys([*([] if without_own else [scope]), context, REGISTRY]):
            mode = self._registry.mode(name or None)
            if mode is not None:
                return mode
        return READWRITE

    def _read(self, kind: Kind, scope: str) -> Any:
        return self._registry.mode(scope or None) if kind == "mode" else self._registry.config(scope or None)

    def _write(self, kind: Kind, scope: str, wanted: Any, *, force: bool, insists: bool) -> None:
        if kind == "config":
            self._registry.set_config(scope or None, wanted)
            return
        try:
            self._registry.set_mode(scope or None, wanted, force=force)
        except ImportModeRefused:
            if force or not insists:
                raise
            # Somebody has registered a schema there since the registry was read.
            self._registry.set_mode(scope or None, wanted, force=True)


# -- import mode on the target ----------------------------------------------------------------------------------------


class ImportMode:
    """Gives subjects mode IMPORT, in the narrowest scope that the registry accepts.

    Many subjects of a context in which nobody else has any get it at once, by their context: then no subject needs
    requests of its own, each of which would be a change of the registry's topic. The default context has no scope of
    its own, so that is possible if nobody has a subject in the whole registry.

    :param scope: the narrowest one to try: ``subject``, ``context`` or ``registry``.
    :param vacant: whether nobody else has subjects in a context or the registry.
    :param occupied: whether a scope has schemas, including soft-deleted ones. Without force, IMPORT is refused there,
        or removes the soft-deleted ones for good.
    :param read_only: subjects that may be changed although they are read-only: the migration has made them so.
    """

    def __init__(
        self,
        settings: TemporarySettings,
        registry: Registry,
        scope: str,
        *,
        occupied: Callable[[str], bool],
        vacant: Callable[[str], bool] = lambda _scope: False,
        read_only: Collection[str] = (),
        parallel: int = 8,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._first = scope
        self._occupied = occupied
        self._vacant = vacant
        self._read_only = frozenset(read_only)
        self._parallel = parallel
        self._own: dict[str, str | None] = {}
        self._scope_of: dict[str, str] = {}

    def set(self, subjects: Iterable[str]) -> dict[str, MigrationError]:
        """Set the mode for target subjects; return those that cannot get it, with the reason.

        :raises ClaimLost: another owner has taken over.
        """
        names = self._without_vacant(sorted(set(subjects)))
        if not names:
            return {}
        contexts = {scope_of_context(Subject.parse(name).context) for name in names}
        scopes = {name: name for name in (*names, *contexts, REGISTRY)}
        found, failed = collect(lambda scope: (self._registry.mode(scope or None),), scopes, self._parallel)
        outer = next((failed[scope] for scope in (REGISTRY, *sorted(contexts)) if scope in failed), None)
        if outer is not None:
            return dict.fromkeys(names, outer)
        self._own = {scope: mode for scope, (mode,) in found.items()}
        errors = {name: failed[name] for name in names if name in failed}
        todo = []
        for name in names:
            if name in errors:
                continue
            mode = self._effective(name)
            if mode == IMPORT and self._inherits(name):
                self._scope_of[name] = self._deciding(name)
            elif mode == IMPORT or mode in _WRITABLE or name in self._read_only:
                todo.append(name)
            else:
                errors[name] = _read_only_error(name, str(mode))
        already = {self._scope_of[name] for name in names if name in self._scope_of}
        self._settings.change("mode", already, IMPORT, known=self._own)
        return {**errors, **self._widen(todo)}

    def _without_vacant(self, names: list[str]) -> list[str]:
        """Set the mode of contexts in which nobody else has subjects; return the subjects that it does not cover."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(scope_of_context(Subject.parse(name).context), []).append(name)
        many = {
            scope: scope
            for scope, members in groups.items()
            if self._first == _LADDER[0] and len(members) >= VACANT_FROM and self._vacant(scope)
        }
        if not many:
            return names
        read, _ = collect(lambda scope: (self._registry.mode(scope or None),), {**many, REGISTRY: REGISTRY}, 4)
        modes = {scope: mode for scope, (mode,) in read.items()}
        open_ = [scope for scope in many if REGISTRY in modes and scope in modes and _is_writable(modes, scope)]
        refused = self._settings.change("mode", open_, IMPORT, force=self._occupied, insists=False, known=modes)
        covered = {name: scope for scope in open_ if scope not in refused for name in groups[scope]}
        self._scope_of.update(covered)
        return [name for name in names if name not in covered]

    def again(self, subjects: Iterable[str]) -> dict[str, MigrationError]:
        """Set the mode again for subjects that are not in mode IMPORT any more; return those that cannot get it.

        A subject may also have had a mode of its own before it had a version, which overrides that of its context.
        """
        subjects = list(subjects)
        wide = {name: name for name in subjects if self._scope_of.get(name, name) != name}
        own, _ = collect(lambda name: (self._registry.mode(name),), wide, self._parallel)
        self._scope_of.update({name: name for name, (mode,) in own.items() if mode not in (None, IMPORT)})
        scopes = {name: self._scope_of.get(name, name) for name in subjects}
        refused = self._settings.change("mode", scopes.values(), IMPORT, force=lambda _scope: True)
        return {name: refused[scope] for name, scope in scopes.items() if scope in refused}

    def _widen(self, todo: list[str]) -> dict[str, MigrationError]:
        """Try the narrowest scope, and the next wider one for what was refused."""
        errors: dict[str, MigrationError] = {}
        first = _LADDER.index(self._first) if self._first in _LADDER else 0
        for level in _LADDER[first:]:
            wanted = {name: self._scopes(name, level) for name in todo}
            scopes = {scope for found in wanted.values() for scope in found}
            refused = self._settings.change("mode", scopes, IMPORT, force=self._occupied, known=self._own)
            left = {name: refused[scope] for name, found in wanted.items() for scope in found if scope in refused}
            for name in wanted:
                if name in left:
                    errors[name] = left[name]
                else:
                    errors.pop(name, None)
                    self._scope_of[name] = wanted[name][-1]
            todo = [name for name, error in left.items() if isinstance(error, _WIDER_SCOPE_MAY_WORK)]
            if not todo:
                break
        return errors

    def _scopes(self, subject: str, level: str) -> list[str]:
        """The scopes that must be IMPORT for a subject to be: a narrower mode overrides a wider one."""
        context = scope_of_context(Subject.parse(subject).context)
        if level == "subject":
            return [subject]
        # A context other than the default one does not inherit the mode of the registry on every product.
        wide = [context] if level == "context" else [REGISTRY, context]
        inner = [subject] if self._own.get(subject) not in (None, IMPORT) else []
        return [*dict.fromkeys(wide), *inner]

    def _effective(self, subject: str) -> str | None:
        return self._own.get(self._deciding(subject))

    def _inherits(self, subject: str) -> bool:
        """Whether the mode found for a subject is surely in force; see :meth:`_scopes`."""
        return self._deciding(subject) != REGISTRY or Subject.parse(subject).context == DEFAULT_CONTEXT

    def _deciding(self, subject: str) -> str:
        """The scope whose mode is in force for a subject."""
        context = scope_of_context(Subject.parse(subject).context)
        return next((scope for scope in (subject, context) if self._own.get(scope) is not None), REGISTRY)


def _is_writable(modes: Mapping[str, str | None], scope: str) -> bool:
    """Whether the mode in force for a context or the registry lets schemas be written."""
    mode = modes[scope] if modes[scope] is not None else modes[REGISTRY]
    return mode in (*_WRITABLE, IMPORT) and modes[REGISTRY] in (*_WRITABLE, IMPORT)


def _read_only_error(subject: str, mode: str) -> RegistryReadOnly:
    return RegistryReadOnly(
        f"the target registry is in mode {mode} for subject {subject}, so its schemas are not written",
        next_step="set mode READWRITE there, or copy all others with schemas.on_conflict: note",
        details={"subject": subject, "mode": mode},
    )


# -- read-only source -------------------------------------------------------------------------------------------------


def make_source_readonly(settings: TemporarySettings, own_modes: Mapping[str, str | None]) -> list[str]:
    """Make the source registry refuse new schemas; return the scopes that were changed.

    :param settings: of the source registry.

    :param own_modes: contexts and subjects with an explicit mode, by scope: those that still take schemas must be
        changed one by one, because a narrower mode overrides a wider one.
    :raises MigrationError: the registry refused it. What was set before stays open in the journal, for
        :func:`restore_source`.
    """
    writable = [
        scope for scope, mode in own_modes.items() if scope != REGISTRY and mode in (READWRITE, IMPORT, "FORWARD")
    ]
    scopes = [REGISTRY, *sorted(writable)]
    for error in settings.change("mode", scopes, READONLY).values():
        raise error
    return scopes


def restore_source(record: MigrationRecord, source: Registry) -> int:
    """Give the source registry its former modes; return the number of scopes. Without an open change, do nothing.

    :raises SchemaSettingsNotRestored: the registry does not take a former mode; the error lists the scopes.
    """
    record.journal.refresh()
    if not open_settings(record.journal, "source", "mode"):
        return 0
    return TemporarySettings(record, source, "source").restore_open()


def former_modes(record: MigrationRecord, role: Role) -> dict[str, str | None]:
    """Return, by scope, the modes that a registry had before the migration changed them and that are not back yet."""
    return {scope: item.former for scope, item in open_settings(record.journal, role, "mode").items()}


# -- values -----------------------------------------------------------------------------------------------------------


def _same(kind: Kind, one: Any, other: Any) -> bool:
    if kind == "mode" or one is None or other is None:
        return bool(one == other)
    return _config(one) == _config(other)


def has_values(kind: Kind, found: Any, wanted: Any) -> bool:
    """Whether a scope has a value of its own that includes the wanted one."""
    return found is not None and _is_ours(kind, found, wanted)


def _is_ours(kind: Kind, found: Any, wanted: Any) -> bool:
    """Whether a value is what the migration has set; other fields of a config than those that it sets do not count."""
    if kind == "mode":
        return bool(found == wanted)
    config = _config(found)
    return all(config.get(name) == value for name, value in _config(wanted).items())


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config in one form: GET names the level ``compatibilityLevel``, PUT names it ``compatibility``."""
    return {"compatibility" if key == "compatibilityLevel" else key: value for key, value in config.items()}


def _shown(value: Any) -> str:
    if value is None:
        return "none of its own"
    return str(_config(value).get("compatibility", value)) if isinstance(value, Mapping) else str(value)
