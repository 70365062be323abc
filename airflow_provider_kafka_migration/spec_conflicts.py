"""Mistakes that two keys of a spec make together: each key alone is fine. Pure; paths as people write them.

Looked for in all keys that are valid by themselves, also beside wrong ones in the same section, so that they are told
together with all other mistakes.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_provider_kafka_migration import plain_secrets

#: What brokers take as a topic's name (``org.apache.kafka.common.internals.Topic``).
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

#: (path in the spec, reason)
Mistake = tuple[str, str]


class KeyUnknownError(Exception):
    """A rule asks for a key that is a mistake itself, so it can say nothing."""


class ValidKeys:
    """The valid keys of a section that has wrong ones, too.

    :param section: a section in which the wrong keys have their defaults.
    :param wrong: paths of the wrong keys inside of the section, dots between their parts.
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
    """All of them, in the order of the spec.

    :param sections: sections (models of :mod:`~.spec`, or :class:`ValidKeys`) by name; those of which nothing is
        known are left out.
    :param recorded: the spec is one that an earlier version has accepted, and nobody can correct it: plain secrets
        are no mistakes.
    """
    found: list[Mistake] = []
    rules = (_connections, _selection, _renames, _grants_without_acls, _grants_with_iam, _users, _webhook)
    for rule in (*rules, *(() if recorded else (_webhook_secret, _spark_secrets, _notifier_secrets))):
        with contextlib.suppress(KeyUnknownError):
            for mistake in rule(sections):
                found.append(mistake)  # noqa: PERF402 - what was found before the unknown key counts
    return found


def _section(sections: Mapping[str, Any], name: str) -> Any:
    if name not in sections:
        raise KeyUnknownError(name)
    return sections[name]


def _connections(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """One cluster for both roles."""
    if _section(sections, "source").conn_id == _section(sections, "target").conn_id:
        yield "target.conn_id", "source and target use the same connection"


def _selection(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """An exclude list that takes everything away again."""
    topics = _section(sections, "topics")
    if ".*" in topics.exclude:
        yield f"topics.exclude[{topics.exclude.index('.*')}]", "'.*' excludes every topic: nothing is left to migrate"
    elif set(topics.include) <= set(topics.exclude):
        yield "topics.exclude", "it has all that topics.include has: nothing is left to migrate"


def _renames(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Names that brokers refuse, names for two topics, renames of topics that are not selected."""
    topics = _section(sections, "topics")
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in sorted(topics.rename.topics.items()):
        path = f"topics.rename.topics.{source}"
        sources[target].append(source)
        if not TOPIC_NAME.fullmatch(target) or target in (".", ".."):
            yield path, f"{target!r} is no name of a topic: at most 249 letters, digits and . _ -"
        if not topics.selects(source):
            yield path, "this topic is not selected by topics.include and topics.exclude"
    for target, names in sorted(sources.items()):
        if len(names) > 1:
            yield "topics.rename.topics", f"{' and '.join(names)} would both become {target}"


def _grants_without_acls(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """A policy that leaves the other one nothing to do."""
    acls = _section(sections, "acls")
    if acls.write_grants == "at_cutover" and acls.policy == "skip":
        yield "acls.write_grants", "at_cutover holds back copied ACLs, and acls.policy: skip copies none"


def _grants_with_iam(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """A policy that a person would have to keep."""
    acls = _section(sections, "acls")
    if acls.write_grants == "at_cutover" and acls.target_auth == "iam":
        yield "acls.write_grants", "at_cutover cannot hold back what acls.target_auth: iam leaves to a person"


def _users(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Secrets in place of references."""
    for user, reference in sorted(_section(sections, "acls").users.items()):
        scheme, separator, rest = reference.partition(":")
        if not separator or not scheme.isidentifier() or not rest:
            # Whoever wrote it may have written the secret itself: it is not repeated.
            yield f"acls.users.{user}", "not a secret reference: write env:NAME, file:PATH or airflow:CONN_ID"


def _webhook(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """A freeze by a webhook that has no address."""
    cutover = _section(sections, "cutover")
    if cutover.freeze == "webhook" and not cutover.producer_freeze_webhook:
        yield "cutover.producer_freeze_webhook", "freeze: webhook needs the address that is called"


def _webhook_secret(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    address = _section(sections, "cutover").producer_freeze_webhook
    yield from plain_secrets.in_webhook("cutover.producer_freeze_webhook", address)


def _spark_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_spark_conf("spark.conf", _section(sections, "spark").conf)


def _notifier_secrets(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from plain_secrets.in_arguments("notifications.kwargs", _section(sections, "notifications").kwargs)
