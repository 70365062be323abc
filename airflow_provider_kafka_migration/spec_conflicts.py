"""Mistakes that two keys of a spec make together: each key alone is fine. Pure; paths as people write them.

Looked for in every section that is valid by itself, so that they are told together with all other mistakes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

#: What brokers take as a topic's name (``org.apache.kafka.common.internals.Topic``).
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

#: (path in the spec, reason)
Mistake = tuple[str, str]


def conflicts(sections: Mapping[str, Any]) -> list[Mistake]:
    """All of them, in the order of the spec.

    :param sections: valid sections (models of :mod:`~.spec`) by name; the others are left out.
    """
    found: list[Mistake] = []
    if "topics" in sections:
        found += [*_selection(sections["topics"]), *_renames(sections["topics"])]
    if "acls" in sections:
        found += _acls(sections["acls"])
    return found


def _selection(topics: Any) -> Iterator[Mistake]:
    """An exclude list that takes everything away again."""
    if ".*" in topics.exclude:
        yield f"topics.exclude[{topics.exclude.index('.*')}]", "'.*' excludes every topic: nothing is left to migrate"
    elif set(topics.include) <= set(topics.exclude):
        yield "topics.exclude", "it has all that topics.include has: nothing is left to migrate"


def _renames(topics: Any) -> Iterator[Mistake]:
    """Names that brokers refuse, names for two topics, renames of topics that are not selected."""
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


def _acls(acls: Any) -> Iterator[Mistake]:
    """Policies that leave nothing for each other to do, and secrets in place of references."""
    if acls.write_grants == "at_cutover" and acls.policy == "skip":
        yield "acls.write_grants", "at_cutover holds back copied ACLs, and acls.policy: skip copies none"
    if acls.write_grants == "at_cutover" and acls.target_auth == "iam":
        yield "acls.write_grants", "at_cutover cannot hold back what acls.target_auth: iam leaves to a person"
    for user, reference in sorted(acls.users.items()):
        scheme, separator, rest = reference.partition(":")
        if not separator or not scheme.isidentifier() or not rest:
            # Whoever wrote it may have written the secret itself: it is not repeated.
            yield f"acls.users.{user}", "not a secret reference: write env:NAME, file:PATH or airflow:CONN_ID"
