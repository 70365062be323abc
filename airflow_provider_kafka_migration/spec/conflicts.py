"""Conflicts between two keys of a spec, each of which is valid alone. Pure functions; paths as people write them.

They check all keys that are valid by themselves, even next to wrong keys in the same section, so that one error
reports these conflicts together with all other mistakes.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.spec import mirror
from airflow_provider_kafka_migration.spec.reference_forms import why_no_connection, why_no_reference
from airflow_provider_kafka_migration.spec.unmeant import unmeant

#: Topic names that brokers accept (``org.apache.kafka.common.internals.Topic``).
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

#: All fields that refer to a secret. A text without a scheme is no reference there: it may be the secret itself.
SECRETS = ("cutover.webhook_secret", "evidence.signing_key")
#: All fields that name a connection, where a text without a scheme is an Airflow connection id.
CONNECTIONS = (
    *("source.conn_id", "target.conn_id", "storage.conn_id", "spark.conn_id"),
    *("schemas.source", "schemas.target"),
)

#: (path in the spec, reason)
Mistake = tuple[str, str]


class KeyUnknownError(Exception):
    """A rule needs a key that is itself wrong, so it cannot be checked."""


class ValidKeys:
    """The valid keys of a section that also has wrong keys.

    :param section: the section, with its wrong keys replaced by their defaults.
    :param wrong: dotted paths of the wrong keys inside the section.
    """

    def __init__(self, section: Any, wrong: Collection[str]) -> None:
        self._section = section
        self._wrong = frozenset(wrong)

    @property
    def model(self) -> Any:
        """The section itself, with its wrong keys at their defaults."""
        return self._section

    def __getattr__(self, name: str) -> Any:
        if name in self._wrong:
            raise KeyUnknownError(name)
        value = getattr(self._section, name)
        below = {path.partition(".")[2] for path in self._wrong if path.startswith(f"{name}.")}
        # Of a list or a mapping with free keys, what is wrong is not in it any more.
        return ValidKeys(value, below) if below and isinstance(value, BaseModel) else value


def conflicts(sections: Mapping[str, Any], *, recorded: bool = False) -> list[Mistake]:
    """Return all conflicts, in the order of the spec.

    :param sections: sections (models of :mod:`~.spec`, or :class:`ValidKeys`) by name, without unreadable sections;
        and ``kind``.
    :param recorded: the spec was accepted by an earlier version and can no longer be corrected: what that version took
        is no mistake.
    """
    found: list[Mistake] = []
    rules = (
        *(
            _mirror,
            _merge,
            _deletion,
            _early_sync,
            _deleted_groups,
            _connections,
            _selection,
            _renames,
            _grants_without_acls,
            _grants_with_iam,
            _mirror_maker_acls,
            _webhook,
        ),
        *(
            _registries,
            _registry_interval,
            _registry_topic,
            _no_registries,
            _ids_without_translate,
            _translate,
            _subject_renames,
        ),
        *(_adopt_keys, _adopt_prefix, _adopt_and_copy),
    )
    for rule in (*rules, *(() if recorded else _SINCE_ACCEPTED)):
        with contextlib.suppress(KeyUnknownError):
            for mistake in rule(sections):
                found.append(mistake)  # noqa: PERF402 - keep the mistakes found before the unknown key
    return found


def _section(sections: Mapping[str, Any], name: str) -> Any:
    if name not in sections:
        raise KeyUnknownError(name)
    return sections[name]


def _mirror(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find what does not go together in a mirror."""
    names = ("kind", "mirror", "topics", "acls", "seed")
    yield from mirror.mistakes(*(_section(sections, name) for name in names))


def _merge(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find what does not go together with equal names in both directions of a mirror."""
    others = {name: _section(sections, name) for name in ("offsets", "acls", "topology", "schemas")}
    yield from mirror.merge_mistakes(_section(sections, "kind"), _section(sections, "mirror"), others)


def _promotion_freeze(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find what does not go together with a mirror that stops producers before its promotion."""
    names = ("kind", "mirror", "cutover")
    yield from mirror.freeze_mistakes(*(_section(sections, name) for name in names))


def _deletion(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a policy that only a mirror can carry out."""
    if _section(sections, "topology").on_topic_deleted == "repair" and _section(sections, "kind") != "mirror":
        yield (
            "topology.on_topic_deleted",
            "repair is for mirrors (kind: mirror): a migration never deletes what it copied",
        )


def _early_sync(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find an early sync of groups where another key decides about it, or where it cannot read the source."""
    if not _section(sections, "groups").early_sync:
        return
    if _section(sections, "kind") != "migration":
        yield "groups.early_sync", "has no effect in a mirror, whose groups follow by mirror.sync_groups"
    elif _section(sections, "seed").via == "split":
        yield "groups.early_sync", "is not possible with seed.via: split: nobody reads groups and writes them at once"


def _deleted_groups(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a policy for deleted groups that nothing carries out, or that would not wait between two looks."""
    section = _section(sections, "groups")
    if section.on_deleted != "repair":
        return
    if _section(sections, "kind") != "mirror":
        yield "groups.on_deleted", "repair is for mirrors (kind: mirror): a migration never deletes a group"
    elif not _section(sections, "mirror").sync_groups:
        yield "groups.on_deleted", "repair has no effect with mirror.sync_groups: false, which writes no groups"
    if section.deleted_after < timedelta(seconds=1):
        yield "groups.deleted_after", "at least 1s: two looks at the same moment are one"


def _connections(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find one connection used for both roles."""
    if _section(sections, "source").conn_id == _section(sections, "target").conn_id:
        yield "target.conn_id", "source and target use the same connection"


def _selection(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find an exclude list that removes everything that is included."""
    topics = _section(sections, "topics")
    if ".*" in topics.exclude:
        yield f"topics.exclude[{topics.exclude.index('.*')}]", "'.*' excludes every topic: nothing is left to migrate"
    elif set(topics.include) <= set(topics.exclude):
        yield "topics.exclude", "it contains everything in topics.include: nothing is left to migrate"


def _renames(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find names that brokers refuse, one name for two topics, and renames of topics that are not selected."""
    topics = _section(sections, "topics")
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in sorted(topics.rename.topics.items()):
        path = f"topics.rename.topics.{source}"
        sources[target].append(source)
        if not TOPIC_NAME.fullmatch(target) or target in (".", ".."):
            yield path, f"{target!r} is not a valid topic name: at most 249 letters, digits and . _ -"
        if not topics.selects(source):
            yield path, "this topic is not selected by topics.include and topics.exclude"
    for target, names in sorted(sources.items()):
        if len(names) > 1:
            yield "topics.rename.topics", f"{' and '.join(names)} would both become {target}"


def _grants_without_acls(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a write_grants policy that has no ACLs to hold back."""
    acls = _section(sections, "acls")
    if acls.write_grants != "at_once" and acls.policy == "skip":
        yield "acls.write_grants", f"{acls.write_grants} holds back copied ACLs, but acls.policy: skip copies none"


def _mirror_maker_acls(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find MirrorMaker 2's rules for ACLs where they cannot be kept."""
    acls = _section(sections, "acls")
    if acls.policy != "mirror_maker":
        return
    if _section(sections, "kind") != "mirror":
        yield "acls.policy", "mirror_maker is for mirrors (kind: mirror): use merge"
    elif acls.write_grants != "never":
        yield "acls.write_grants", f"acls.policy: mirror_maker never grants WRITE; for {acls.write_grants} use merge"


def _grants_with_iam(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a write_grants policy that only a person could enforce."""
    acls = _section(sections, "acls")
    if acls.write_grants != "at_once" and acls.target_auth == "iam":
        yield "acls.write_grants", f"{acls.write_grants} cannot hold back what acls.target_auth: iam leaves to a person"


def _refuse_with_iam(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a policy that compares ACLs with a target that has none."""
    acls = _section(sections, "acls")
    if acls.policy == "refuse" and acls.target_auth == "iam":
        yield (
            "acls.policy",
            "refuse compares the ACLs of both clusters, and acls.target_auth: iam has none on the target, so every one "
            "would differ: use merge, which writes access-map.json",
        )


def _users(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find texts that are not secret references."""
    for user, reference in sorted(_section(sections, "acls").users.items()):
        yield from plain_secrets.in_secret(f"acls.users.{user}", reference)


def _webhook(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a webhook freeze without an address."""
    cutover = _section(sections, "cutover")
    if cutover.freeze == "webhook" and not cutover.producer_freeze_webhook:
        yield "cutover.producer_freeze_webhook", "freeze: webhook needs the address to call"


def _registries(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find registries that are missing, twice the same, or not references."""
    schemas = _section(sections, "schemas")
    if schemas.source and schemas.source == schemas.target:
        yield "schemas.target", "source and target use the same registry connection"
    if schemas.source and not schemas.target and not schemas.topic:
        yield "schemas.target", "schemas.source needs the registry of the target, or schemas.topic"
    if schemas.target and not schemas.source and not schemas.topic:
        yield "schemas.source", "schemas.target needs the registry of the source"


def _registry_interval(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find an interval that would keep both registries busy for nothing."""
    if _section(sections, "schemas").interval < timedelta(seconds=1):
        yield "schemas.interval", "at least 1s: an id that a copier asks for does not wait for the interval"


def _registry_topic(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find what cannot be done to a registry that moves with its own topic."""
    schemas = _section(sections, "schemas")
    if not schemas.topic:
        return
    if why := _section(sections, "topics").why_left_out(schemas.topic):
        yield "schemas.topic", f"the topic is not migrated, so the registry cannot move with it: {why}"
    if schemas.ids == "translate":
        yield "schemas.ids", "translate contradicts schemas.topic: a registry that moves with its topic keeps its ids"
    for key in ("include", "exclude", "rename", "versions", "contexts", "normalize", "global_config"):
        if _differs(schemas, key):
            yield f"schemas.{key}", "has no effect with schemas.topic: the whole registry moves with its topic"
    if schemas.source_registry == "readonly":
        yield (
            "schemas.source_registry",
            "readonly contradicts schemas.topic: the registry keeps its mode in the topic, so the target registry "
            "would start read-only; the freeze stops writes to the topic anyway",
        )


def _no_registries(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find keys for schemas in a spec that names no registry."""
    schemas = _section(sections, "schemas")
    if isinstance(schemas, ValidKeys) or schemas.configured or schemas.target:
        return
    for key in type(schemas).model_fields:
        if _differs(schemas, key):
            yield f"schemas.{key}", "no schemas move without schemas.source and schemas.target (or schemas.topic)"


def _ids_without_translate(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find keys about rewritten ids where ids are kept."""
    schemas = _section(sections, "schemas")
    if schemas.ids != "keep" and not schemas.topic:
        return
    why = "schemas.topic keeps them" if schemas.topic else "schemas.ids: keep leaves records as they are"
    if schemas.strict:
        yield "schemas.strict", f"only applies where ids are rewritten: {why}"
    if schemas.rewrite != "detect":
        yield "schemas.rewrite", f"only applies where ids are rewritten: {why}"
    if schemas.normalize and not schemas.topic:
        yield "schemas.normalize", "a normalized schema is another one: it cannot keep its id (schemas.ids: keep)"
    for index, item in enumerate(schemas.by_topic):
        if item.rewrite is not None:
            yield f"schemas.by_topic[{index}].rewrite", f"only applies where ids are rewritten: {why}"


def _translate(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find copiers that cannot rewrite ids."""
    if _section(sections, "schemas").ids == "translate" and _section(sections, "seed").via == "split":
        yield "schemas.ids", "translate is not possible with seed.via: split, whose copiers share nothing but segments"


def _subject_renames(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find one name for two subjects, and renames of subjects that are not selected."""
    schemas = _section(sections, "schemas")
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in sorted(schemas.rename.subjects.items()):
        sources[target].append(source)
        if not target:
            yield f"schemas.rename.subjects.{source}", "the new name is empty"
        if why := schemas.why_left_out(source):
            yield f"schemas.rename.subjects.{source}", f"this subject is not selected: {why}"
    for target, names in sorted(sources.items()):
        if len(names) > 1:
            yield "schemas.rename.subjects", f"{' and '.join(names)} would both become {target}"


def _adopt_keys(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find keys of ``adopt`` that are missing for, or have no effect with, what is taken over."""
    adopt = _section(sections, "adopt")
    if adopt.from_ in ("way_back", "mirror"):
        if not adopt.migration_id:
            yield "adopt.migration_id", f"from: {adopt.from_} needs the migration whose end is the boundary"
    elif adopt.migration_id:
        yield "adopt.migration_id", f"has no effect with from: {adopt.from_}"
    if adopt.from_ != "mirror" and adopt.on_diverged != "stop":
        yield "adopt.on_diverged", f"has no effect with from: {adopt.from_}"
    for key in ("mirrormaker2", "redpanda_migrator"):
        if adopt.from_ != key and _differs(adopt, key, from_=adopt.from_):
            yield f"adopt.{key}", f"has no effect with from: {adopt.from_}"
    if adopt.from_ == "redpanda_migrator" and not adopt.redpanda_migrator.group:
        yield "adopt.redpanda_migrator.group", "needed: where it stopped is what this group has committed"
    if adopt.from_ != "mirrormaker2" and adopt.map_below == "offset_syncs":
        yield "adopt.map_below", "offset_syncs needs from: mirrormaker2, which writes them"


def _adopt_prefix(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a custom policy of MirrorMaker 2 without its prefix, and a prefix without such a policy."""
    adopt = _section(sections, "adopt")
    if adopt.from_ != "mirrormaker2":
        return
    mirror = adopt.mirrormaker2
    if mirror.replication_policy == "prefix" and not mirror.prefix:
        yield "adopt.mirrormaker2.prefix", "replication_policy: prefix needs it"
    if mirror.replication_policy != "prefix" and mirror.prefix:
        yield "adopt.mirrormaker2.prefix", f"has no effect with replication_policy: {mirror.replication_policy}"


def _mirror_and_copy(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find ways of copying that would delete a mirror's remote topics, which consumers read, without an approval."""
    if _section(sections, "kind") != "mirror":
        return
    offsets = _section(sections, "offsets")
    for key in ("on_overtaken_tombstones", "on_source_truncation"):
        if getattr(offsets, key) == "repair":
            yield (
                f"offsets.{key}",
                "repair deletes target topics: a mirror never does that by itself. Delete the remote topic once its "
                "consumers agree, then pause and resume the mirror: it copies the topic again",
            )


def _adopt_and_copy(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find ways of copying that would overwrite, delete or ignore the content that is taken over."""
    _section(sections, "adopt")
    if _section(sections, "mirror").start == "latest":
        yield "mirror.start", "latest contradicts adopt: a partition that is taken over goes on where its copy ended"
    offsets = _section(sections, "offsets")
    for key in ("on_overtaken_tombstones", "on_source_truncation"):
        if getattr(offsets, key) == "repair":
            yield f"offsets.{key}", "repair deletes target topics: not with adopt, whose topics have content of others"
    if offsets.on_foreign_writer == "note":
        yield "offsets.on_foreign_writer", "note contradicts adopt: nobody else may write to adopted topics"
    if offsets.mode == "transactional":
        yield "offsets.mode", "transactional contradicts adopt: positions of adopted partitions are log ends"
    for index, item in enumerate(offsets.by_topic):
        if item.mode == "transactional":
            yield f"offsets.by_topic[{index}].mode", "transactional contradicts adopt"
    if _section(sections, "seed").via == "split":
        yield "seed.via", "split is not possible with adopt: its copiers cannot compare the two clusters"


def _differs(section: Any, key: str, **required: Any) -> bool:
    """Return whether a key of a section is not at its default; wrong keys below it count as their defaults.

    :param required: keys of the section that have no default.
    """
    value = getattr(section, key)
    kind = type(section.model if isinstance(section, ValidKeys) else section)
    return bool((value.model if isinstance(value, ValidKeys) else value) != getattr(kind(**required), key))


def _references(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find secrets, addresses and logins in fields that want a reference to them."""
    for paths, check in ((SECRETS, plain_secrets.in_secret), (CONNECTIONS, plain_secrets.in_connection)):
        for path in paths:
            section, _, key = path.partition(".")
            with contextlib.suppress(KeyUnknownError):
                yield from check(path, getattr(_section(sections, section), key))


def _reference_forms(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find references of no known form, where no secret has been found in their place."""
    secrets = {path for path, _ in (*_references(sections), *_users(sections))}
    for path in CONNECTIONS:
        section, _, key = path.partition(".")
        with contextlib.suppress(KeyUnknownError):
            value = getattr(_section(sections, section), key)
            if value and path not in secrets and (why := why_no_connection(value)):
                yield path, why
    given = {"cutover.webhook_secret": _section(sections, "cutover").webhook_secret}
    given["evidence.signing_key"] = _section(sections, "evidence").signing_key
    given |= {f"acls.users.{name}": value for name, value in _section(sections, "acls").users.items()}
    for path, value in given.items():
        if value and path not in secrets and (why := why_no_reference(value)):
            yield path, why


def _locations(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find addresses with a query, which may be a signature, in place of a folder."""
    storage = _section(sections, "storage")
    for key in ("journal", "archive", "evidence"):
        with contextlib.suppress(KeyUnknownError):
            if re.search(r"[?#]", getattr(storage, key) or ""):
                yield (
                    f"storage.{key}",
                    "a location is a folder, without ? and #; logins are in storage.conn_id",
                )


def _engine_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_engine_arguments("spark.engine_args", _section(sections, "spark").engine_args)


def _public_key(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    key = _section(sections, "evidence").public_key
    if key is not None and not re.fullmatch("[0-9a-fA-F]{64}", key):
        yield "evidence.public_key", "an Ed25519 public key has 64 hex digits"


def _webhook_secret(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    address = _section(sections, "cutover").producer_freeze_webhook
    yield from plain_secrets.in_webhook("cutover.producer_freeze_webhook", address)


def _spark_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_spark_conf("spark.conf", _section(sections, "spark").conf)


def _notifier_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_arguments("notifications.kwargs", _section(sections, "notifications").kwargs)


def _freeze_times(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a freeze that its limit ends before it can be verified."""
    cutover = _section(sections, "cutover")
    if cutover.freeze_stable_window >= cutover.max_producer_freeze > timedelta(0):
        yield (
            "cutover.freeze_stable_window",
            "shorter than cutover.max_producer_freeze: every freeze would be lifted before the source has stood still "
            "for so long",
        )


def _unmeant(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find values that are valid, and that nobody means."""
    for name, section in sections.items():
        yield from unmeant(name, section.model if isinstance(section, ValidKeys) else section)


#: Rules for what earlier versions took. Whatever reads a spec that is in a journal must still be able to.
_SINCE_ACCEPTED = (
    *(_mirror_and_copy, _promotion_freeze, _refuse_with_iam),
    *(_users, _references, _public_key, _webhook_secret, _spark_secrets, _notifier_secrets, _freeze_times, _unmeant),
    *(_reference_forms, _locations, _engine_secrets),
)
