"""Conflicts between two keys of a spec, each of which is valid alone. Pure functions; paths as people write them.

They check all keys that are valid by themselves, even next to wrong keys in the same section, so that one error
reports these conflicts together with all other mistakes.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_provider_kafka_migration import plain_secrets

#: Topic names that brokers accept (``org.apache.kafka.common.internals.Topic``).
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

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

    def __getattr__(self, name: str) -> Any:
        if name in self._wrong:
            raise KeyUnknownError(name)
        value = getattr(self._section, name)
        below = {path.partition(".")[2] for path in self._wrong if path.startswith(f"{name}.")}
        return ValidKeys(value, below) if below else value


def conflicts(sections: Mapping[str, Any], *, recorded: bool = False) -> list[Mistake]:
    """Return all conflicts, in the order of the spec.

    :param sections: sections (models of :mod:`~.spec`, or :class:`ValidKeys`) by name, without unreadable sections.
    :param recorded: the spec was accepted by an earlier version and can no longer be corrected: plain-text secrets
        are not mistakes.
    """
    found: list[Mistake] = []
    rules = (_connections, _selection, _renames, _grants_without_acls, _grants_with_iam, _users, _webhook)
    for rule in (*rules, *(() if recorded else (_webhook_secret, _spark_secrets, _notifier_secrets))):
        with contextlib.suppress(KeyUnknownError):
            for mistake in rule(sections):
                found.append(mistake)  # noqa: PERF402 - keep the mistakes found before the unknown key
    return found


def _section(sections: Mapping[str, Any], name: str) -> Any:
    if name not in sections:
        raise KeyUnknownError(name)
    return sections[name]


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
    if acls.write_grants == "at_cutover" and acls.policy == "skip":
        yield "acls.write_grants", "at_cutover holds back copied ACLs, but acls.policy: skip copies none"


def _grants_with_iam(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a write_grants policy that only a person could enforce."""
    acls = _section(sections, "acls")
    if acls.write_grants == "at_cutover" and acls.target_auth == "iam":
        yield "acls.write_grants", "at_cutover cannot hold back what acls.target_auth: iam leaves to a person"


def _users(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find texts that are not secret references."""
    for user, reference in sorted(_section(sections, "acls").users.items()):
        scheme, separator, rest = reference.partition(":")
        if not separator or not scheme.isidentifier() or not rest:
            # The value may be the secret itself, so the message does not repeat it.
            yield f"acls.users.{user}", "not a secret reference: write env:NAME, file:PATH or airflow:CONN_ID"


def _webhook(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find a webhook freeze without an address."""
    cutover = _section(sections, "cutover")
    if cutover.freeze == "webhook" and not cutover.producer_freeze_webhook:
        yield "cutover.producer_freeze_webhook", "freeze: webhook needs the address to call"


def _webhook_secret(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    address = _section(sections, "cutover").producer_freeze_webhook
    yield from plain_secrets.in_webhook("cutover.producer_freeze_webhook", address)


def _spark_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_spark_conf("spark.conf", _section(sections, "spark").conf)


def _notifier_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_arguments("notifications.kwargs", _section(sections, "notifications").kwargs)
