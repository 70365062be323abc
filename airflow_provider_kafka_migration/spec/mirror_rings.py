"""Flows that lead round in a ring: whether a topic would come round again and again, each time under another name.

Only names under ``naming: default`` tell all the clusters that a topic has come through. A prefix, or a step that keeps
names, hides them, so the topic counts as a local one when it comes round. The flows themselves are asked what they
would do with some names: all namings, patterns and limits count as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_kafka_migration.errors import NamingPolicyUnusable
from airflow_provider_kafka_migration.spec.load import MigrationSpec

_ARROW = "->"
#: Topics on clusters that are looked at. Large meshes under ``default`` have more, and come to rest.
_MOST_STEPS = 20_000
#: Ends of names that are tried with the plain beginning of a pattern.
_ENDS = ("", "x", "orders", ".orders", "-orders", "_orders")


def come_to_rest_by_names(flows: Mapping[str, MigrationSpec]) -> bool:
    """Whether all flows put aliases in front in the same way: then each name tells where its topic has been."""
    return (
        all(flow.mirror.naming == "default" for flow in flows.values())
        and len({flow.mirror.separator for flow in flows.values()}) <= 1
    )


def endless_way(flows: Mapping[str, MigrationSpec]) -> list[str]:
    """Return the first names of a topic that would go round for ever, as ``cluster: topic``; empty if none is found.

    :param flows: by ``source->target``.
    """
    if come_to_rest_by_names(flows):
        return []
    outgoing: dict[str, list[MigrationSpec]] = {}
    for name in sorted(flows):
        outgoing.setdefault(name.split(_ARROW)[0], []).append(flows[name])
    # A topic that comes to rest is at most once on each cluster under each of its names, and has one for each hop.
    longest = len({alias for name in flows for alias in name.split(_ARROW)})
    longest = longest * longest + longest + 1
    try:
        for name in sorted(flows):
            for probe in _probes(flows[name]):
                way = _walk(outgoing, (name.split(_ARROW)[0], probe), longest)
                if way:
                    return [f"{cluster}: {topic}" for cluster, topic in way]
    except NamingPolicyUnusable:
        return []  # said elsewhere: nothing runs with such a policy
    return []


def _probes(flow: MigrationSpec) -> Iterator[str]:
    """Yield a name for each pattern that the flow would copy, where one can be made from the pattern's beginning."""
    for pattern in flow.topics.include:
        plain = re.match(r"(?:[\w-]|\\[.-])*", pattern)
        beginning = re.sub(r"\\(.)", r"\1", plain[0]) if plain else ""
        for end in _ENDS:
            name = beginning + end
            if name and re.fullmatch(pattern, name) and not flow.topics.why_left_out(name):
                yield name
                break


def _walk(
    outgoing: Mapping[str, Sequence[MigrationSpec]], start: tuple[str, str], longest: int
) -> list[tuple[str, str]]:
    """Return the beginning of a way of more than ``longest`` steps; empty if all ways are shorter."""
    seen, steps = {start}, 0
    way = [start]
    todo = [_next(outgoing, start)]
    while todo:
        place = next(todo[-1], None)
        if place is None:
            todo.pop()
            way.pop()
            continue
        steps += 1
        if steps > _MOST_STEPS:
            return []
        if place in seen:
            continue
        seen.add(place)
        way.append(place)
        if len(way) > longest:
            return way[: len(outgoing) + 2]
        todo.append(_next(outgoing, place))
    return []


def _next(outgoing: Mapping[str, Sequence[MigrationSpec]], place: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield where flows would copy a topic to."""
    cluster, topic = place
    for flow in outgoing.get(cluster, ()):
        if not flow.topics.why_left_out(topic):
            yield flow.mirror.target_alias, flow.topics.target_name(topic)
