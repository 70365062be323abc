"""Several flows in one file, as ``mm2.properties`` has them: clusters, what all flows share, and one entry per flow.

clusters:
  east: {conn_id: kafka_east}
  west: {conn_id: kafka_west}
storage: {journal: "s3://mirrors/journal"}
defaults:
  topics: {include: ["orders.*"]}
flows:
  east->west: {}
  west->east: {topics: {include: ["refunds"]}}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.spec.load import MigrationSpec, parse_spec, read_yaml
from airflow_provider_kafka_migration.spec.mirror_rings import endless_way
from airflow_provider_kafka_migration.spec.mistakes import describe
from airflow_provider_kafka_migration.spec.sections import ClusterSection, Section, StorageSection

_ARROW = "->"
#: What the file itself says of a flow.
_OWN = ("kind", "source", "target", "storage")


class MirrorsFile(Section):
    """``mirrors.yaml``. A flow's keys are those of a spec; they replace single keys of ``defaults``."""

    clusters: dict[str, ClusterSection] = Field(min_length=2, description="Connections by alias.")
    storage: StorageSection = Field(description="As in a spec; each flow has its own journal below it.")
    defaults: dict[str, Any] = Field(default_factory=dict, description="Sections of all flows.")
    flows: dict[str, dict[str, Any] | None] = Field(
        min_length=1, description="source->target to the sections of that flow, and enabled: false to leave it out."
    )


def flow_id(source_alias: str, target_alias: str) -> str:
    """Return the id of a flow: that of its journal, and the end of its DAG's id."""
    return re.sub(r"[^a-z0-9._-]+", "-", f"{source_alias}-to-{target_alias}".lower()).strip("-")


def load_mirrors(path: str | Path) -> dict[str, MigrationSpec]:
    """Return the specs of all enabled flows by ``source->target``, ascending.

    :raises SpecInvalid: the file cannot be read, or a flow has mistakes; one error lists those of all flows.
    """
    return parse_mirrors(read_yaml(path), path=str(path))


def is_of_mirrors(data: Any) -> bool:
    """Whether a YAML file's content is meant for mirrors: flows in one file, or the spec of one flow."""
    return isinstance(data, Mapping) and (
        data.get("kind") == "mirror" or not {"flows", "clusters", "mirror"}.isdisjoint(data)
    )


def parse_mirrors(data: Any, *, path: str | None = None) -> dict[str, MigrationSpec]:
    """Return the specs of a file that is already read; errors as those of :func:`load_mirrors`."""
    flows, error = parse_flows(data, path=path)
    if error is not None:
        raise error
    return flows


def parse_flows(data: Any, *, path: str | None = None) -> tuple[dict[str, MigrationSpec], SpecInvalid | None]:
    """Return the specs of all enabled flows without mistakes, and one error that lists those of the others.

    For whoever runs flows already: a new flow with a mistake must not take them away, nor one that does not go
    together with them. Of two such flows the one that is further down in the file is refused, because the file does
    not say which of them runs.

    :raises SpecInvalid: the file as a whole is not one of flows.
    """
    try:
        file = MirrorsFile.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        found = [{"path": place or "(whole file)", "reason": why} for place, why in describe(errors, MirrorsFile)]
        raise _invalid(found, path) from None
    flows, mistakes = {}, list[dict[str, str]]()
    for key in sorted(set(file.defaults) & set(_OWN)):
        mistakes.append({"path": f"defaults.{key}", "reason": "has no effect: the file itself says this"})
    names = [_name(name) for name in file.flows]
    if len(set(names)) < len(names):
        mistakes.append({"path": "flows", "reason": "a flow is there twice"})
    # Which one is meant, nobody knows.
    flows_by_name = {_name(name): flow or {} for name, flow in file.flows.items() if names.count(_name(name)) == 1}
    enabled = {name: flow for name, flow in flows_by_name.items() if _is_enabled(flow) is not False}
    for name in sorted(enabled):
        try:
            flows[name] = _flow(file, name, enabled[name], both_ways=False)
        except SpecInvalid as error:
            mistakes += _mistakes(name, error)
    mistakes += _both_ways(file, enabled, flows, names)
    mistakes += _rounds([name for name in enabled if name in flows], flows)
    mistakes += _rings([name for name in enabled if name in flows], flows)
    taken: dict[str, str] = {}
    for name in [name for name in enabled if name in flows]:
        migration_id = flows[name].migration_id
        if migration_id in taken:
            reason = f"its id {migration_id} is that of {taken[migration_id]}: set migration_id"
            mistakes.append({"path": f"flows.{name}.migration_id", "reason": reason})
        taken.setdefault(migration_id, name)
    unique = {name: spec for name, spec in flows.items() if taken[spec.migration_id] == name}
    return unique, _invalid(mistakes, path) if mistakes else None


def _mistakes(name: str, error: SpecInvalid) -> list[dict[str, str]]:
    found = error.details.get("mistakes") or [{"path": "", "reason": error.what}]
    return [{**item, "path": f"flows.{name}.{item['path']}".rstrip(".")} for item in found]


def _both_ways(
    file: MirrorsFile, enabled: Mapping[str, Mapping[str, Any]], flows: dict[str, MigrationSpec], names: Collection[str]
) -> list[dict[str, str]]:
    """Set ``two_way`` where the opposite flow is there, and take out those that cannot go both ways.

    A mirror that runs cannot change it. So it stays where the opposite flow has a mistake, is not enabled, or does not
    go together with this one; only a flow that cannot go both ways by itself is what it would be alone.

    :param enabled: flows in the order of the file.
    :param flows: those without mistakes, each as if it were alone; changed.
    :param names: all flows of the file, also those that are not enabled or have mistakes.
    :returns: the mistakes of those that were taken out.
    """
    conflicts: dict[str, SpecInvalid] = {}
    for name in [name for name in enabled if name in flows and _opposite(name) in names]:
        try:
            flows[name] = _flow(file, name, enabled[name], both_ways=True)
        except SpecInvalid as error:
            conflicts[name] = error
    mistakes: list[dict[str, str]] = []
    order = list(enabled)
    for name in order:
        other = _opposite(name)
        # An opposite flow with mistakes of its own does not run, so this one may stay as it is alone.
        is_later = other in flows and order.index(other) < order.index(name)
        if is_later and name in flows and not {name, other} & conflicts.keys():
            conflicts.update(_unequal_merge(name, flows[name], flows[other]))
        conflict = conflicts.get(name) or conflicts.get(other)
        if conflict is not None and is_later and name in flows:
            del flows[name]
            mistakes += [
                {**item, "reason": f"{item['reason']} (it does not go together with {other})"}
                for item in _mistakes(name, conflict)
            ]
    return mistakes


# -- ways round --------------------------------------------------------------------------------------------------------


def _rounds(order: Sequence[str], flows: dict[str, MigrationSpec]) -> list[dict[str, str]]:
    """Take out flows under ``identity`` on which records would go round, or reach a cluster twice.

    :param order: the names in ``flows``, in the order of the file.
    :param flows: those that go together in pairs; changed.
    :returns: the mistakes of those that were taken out.
    """
    accepted: dict[str, MigrationSpec] = {}
    mistakes: list[dict[str, str]] = []
    for name in [name for name in order if flows[name].mirror.naming == "identity"]:
        accepted[name] = flows[name]
        key, reason = _why_not(accepted)
        if reason:
            del accepted[name], flows[name]
            mistakes.append({"path": f"flows.{name}.{key}", "reason": reason})
    return mistakes


def _why_not(flows: Mapping[str, MigrationSpec]) -> tuple[str, str]:
    """Return why flows under ``identity`` do not go together, as (key, reason); empty if they do."""
    marked = {name: flow for name, flow in flows.items() if flow.mirror.merges}
    headers = sorted({flow.mirror.provenance_header for flow in marked.values()})
    if len(headers) > 1:
        return "mirror.provenance_header", f"flows with naming: identity need one header, not {' and '.join(headers)}"
    targets = _targets(flows)
    for name in sorted(flows.keys() - marked.keys()):
        source, target = name.split(_ARROW)
        if source in _reachable(targets, target):
            reason = (
                f"with naming: identity records would go round by {name} for ever: set mirror.two_way: true in "
                "defaults, so that all flows mark what they copy, or use naming: default"
            )
            return "mirror.two_way", reason
    both = _both_into_one(flows)
    if both is not None:
        reason = (
            f"with naming: identity {both[0]} and {both[1]} may write to the same topics of "
            f"{both[0].split(_ARROW)[1]}, and in one log the records of two clusters cannot keep their offsets: give "
            "them topics.include that no name matches twice, use naming: default, or offsets.mode: transactional for "
            "both"
        )
        return "topics.include", reason
    # A flow with equal offsets finds what another one has written to its topic, and stops.
    beside = {name for name, flow in flows.items() if flow.offsets.mode == "transactional"} - marked.keys()
    twice = _twice({name: flow for name, flow in flows.items() if name in marked or name in beside})
    if twice is None:
        return "", ""
    ways = " and ".join(twice.ways)
    reason = f"records of {twice.first} would reach {twice.target} by {ways}, and be there twice: "
    if beside.isdisjoint(twice.ways):
        return "mirror.max_hops", f"{reason}set max_hops: 1"
    return "mirror.two_way", f"{reason}set mirror.two_way: true and max_hops: 1 for both, or give them other topics"


def _rings(order: Sequence[str], flows: dict[str, MigrationSpec]) -> list[dict[str, str]]:
    """Take out flows that close a ring in which topics would be copied for ever under new names.

    :param order: the names in ``flows``, in the order of the file.
    :param flows: changed.
    :returns: the mistakes of those that were taken out.
    """
    accepted: dict[str, MigrationSpec] = {}
    mistakes: list[dict[str, str]] = []
    for name in order:
        accepted[name] = flows[name]
        way = endless_way(accepted)
        if way:
            del accepted[name], flows[name]
            reason = (
                f"topics would go round in a ring for ever, each time under another name ({' -> '.join(way)} ...): use "
                "naming: default with one separator in all flows of the ring, or leave out these names (topics.exclude)"
            )
            mistakes.append({"path": f"flows.{name}.mirror.naming", "reason": reason})
    return mistakes


def _both_into_one(flows: Mapping[str, MigrationSpec]) -> tuple[str, str] | None:
    """Return two flows into one topic of a cluster, of which at least one keeps offsets; None: there are none."""
    for one, other in combinations(sorted(flows), 2):
        are_apart = one.split(_ARROW)[1] != other.split(_ARROW)[1]
        if are_apart or {flows[one].offsets.mode, flows[other].offsets.mode} == {"transactional"}:
            continue
        if _share_topics(flows[one], flows[other]):
            return one, other
    return None


def _targets(flows: Iterable[str]) -> dict[str, list[str]]:
    """Return the targets of each source."""
    found: dict[str, list[str]] = {}
    for name in sorted(flows):
        source, target = name.split(_ARROW)
        found.setdefault(source, []).append(target)
    return found


def _reachable(targets: Mapping[str, Sequence[str]], start: str) -> set[str]:
    found, todo = {start}, [start]
    while todo:
        new = set(targets.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


class _Twice(NamedTuple):
    """Two ways of the same records.

    :param first: the cluster to which they were first written.
    :param target: the cluster that they reach twice.
    :param ways: the last flows of both ways.
    """

    first: str
    target: str
    ways: tuple[str, str]


def _twice(flows: Mapping[str, MigrationSpec]) -> _Twice | None:
    """Return how records reach a cluster on two ways; None if they do not.

    No record comes to a cluster that it has come through, nor by a flow that marks records over more hops than that one
    allows. Two flows that certainly copy different topics bring no record twice.
    """
    targets = _targets(flows)
    for first in sorted(targets):
        reached: dict[str, list[str]] = {}
        todo: list[tuple[str, ...]] = [(first,)]
        while todo:
            way = todo.pop()
            for target in targets.get(way[-1], ()):
                name = f"{way[-1]}{_ARROW}{target}"
                mirror = flows[name].mirror
                limit = mirror.max_hops if mirror.merges else None
                if target in way or (limit is not None and len(way) > limit):
                    continue
                for other in reached.get(target, ()):
                    if _share_topics(flows[name], flows[other]):
                        return _Twice(first, target, (other, name))
                reached.setdefault(target, []).append(name)
                todo.append((*way, target))
    return None


def _share_topics(one: MigrationSpec, other: MigrationSpec) -> bool:
    """Whether both flows may copy one topic: False only if no name can match a pattern of each."""
    beginnings = [[_beginning(pattern) for pattern in flow.topics.include] for flow in (one, other)]
    return any(mine.startswith(theirs) or theirs.startswith(mine) for mine in beginnings[0] for theirs in beginnings[1])


def _beginning(pattern: str) -> str:
    """Return what all names that match a pattern begin with, as far as its text shows."""
    if "|" in pattern:
        return ""
    plain = re.match(r"(?:[\w-]|\\[.-])*", pattern)
    assert plain is not None
    found = re.sub(r"\\(.)", r"\1", plain[0])
    is_last_optional = pattern[plain.end() :][:1] in ("*", "?", "{")
    return found[:-1] if is_last_optional else found


def _unequal_merge(name: str, flow: MigrationSpec, other: MigrationSpec) -> dict[str, SpecInvalid]:
    """Return the mistake of a flow that puts records in topics of both clusters which the opposite flow cannot tell."""
    mine, theirs = flow.mirror, other.mirror
    if not (mine.merges or theirs.merges):
        return {}
    for key in ("naming", "provenance_header", "max_hops"):
        values = getattr(mine, key), getattr(theirs, key)
        if values[0] != values[1]:
            reason = f"with naming: identity both directions need the same value, not {values[0]!r} and {values[1]!r}"
            found = {"path": f"mirror.{key}", "reason": reason}
            return {name: SpecInvalid(reason, details={"mistakes": [found]})}
    return {}


def _flow(file: MirrorsFile, name: str, own: Mapping[str, Any], *, both_ways: bool) -> MigrationSpec:
    source, arrow, target = name.partition(_ARROW)
    unknown = sorted({source, target} - set(file.clusters))
    if not arrow or unknown:
        what = f"{', '.join(unknown)} not in clusters" if arrow else "a flow is written source->target"
        raise SpecInvalid(what, next_step="correct the name of the flow")
    wrong = sorted(set(own) & set(_OWN))
    if wrong:
        raise SpecInvalid(f"{', '.join(wrong)}: the file itself says this", next_step="remove it from the flow")
    _check_enabled(own)
    data = _merged(file.defaults, {key: value for key, value in own.items() if key != "enabled"})
    mirror = data.pop("mirror", {})
    if not isinstance(mirror, Mapping):
        raise _mistake(
            "mirror", "a section with keys is needed: write them below it, further to the right, or remove it"
        )
    mirror = dict(mirror)
    aliases = {"source_alias": source, "target_alias": target}
    wrong = sorted(key for key, alias in aliases.items() if mirror.get(key, alias) != alias)
    if wrong:
        # A flow under the aliases of another one would give topics names that lead round in a circle.
        raise SpecInvalid(f"mirror.{wrong[0]} differs from the name of the flow", next_step="remove it from the file")
    # A topic that comes round through a cluster whose alias is not known would pass for a local one.
    given = mirror.get("known_aliases", [])
    if isinstance(given, list) and all(isinstance(alias, str) for alias in given):
        mirror["known_aliases"] = sorted({*file.clusters, *given} - {source, target})
    mirror = {"two_way": both_ways, **mirror, **aliases}
    if both_ways and not mirror["two_way"]:
        raise SpecInvalid(
            "mirror.two_way is false, but the opposite flow is there, too", next_step="remove mirror.two_way"
        )
    return parse_spec(
        {
            "migration_id": flow_id(source, target),
            **data,
            "kind": "mirror",
            "source": {"name": source, **file.clusters[source].model_dump(exclude_none=True)},
            "target": {"name": target, **file.clusters[target].model_dump(exclude_none=True)},
            "storage": file.storage.model_dump(mode="json", exclude_none=True),
            "mirror": mirror,
        }
    )


def _is_enabled(own: Mapping[str, Any]) -> bool | None:
    """Return whether a flow is enabled, by what a person may write for yes and no; None: that is not clear."""
    value = own.get("enabled")
    try:
        return value is None or TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return None


def _check_enabled(own: Mapping[str, Any]) -> None:
    if _is_enabled(own) is None:
        raise _mistake("enabled", "true or false")
    for key in sorted(own.keys() - MigrationSpec.model_fields.keys() - {"enabled"}):
        if difflib.get_close_matches(key, ["enabled"], cutoff=0.6):
            raise _mistake(key, "there is no such key here; did you mean enabled?")


def _mistake(key: str, reason: str) -> SpecInvalid:
    return SpecInvalid(reason, details={"mistakes": [{"path": key, "reason": reason}]})


def _name(text: str) -> str:
    """Return the name of a flow without spaces around the aliases."""
    return _ARROW.join(part.strip() for part in text.split(_ARROW))


def _opposite(name: str) -> str:
    source, _, target = name.partition(_ARROW)
    return f"{target}{_ARROW}{source}"


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings in one; where both have a mapping, key by key. Lists are replaced as a whole."""
    merged = dict(below)
    for key, value in above.items():
        former = merged.get(key)
        merged[key] = _merged(former, value) if isinstance(former, Mapping) and isinstance(value, Mapping) else value
    return merged


def _invalid(mistakes: list[dict[str, str]], path: str | None) -> SpecInvalid:
    listing = "; ".join(f"{item['path']}: {item['reason']}" for item in mistakes)
    return SpecInvalid(
        f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''} in the flows: {listing}",
        where=Where(path=path),
        next_step="correct all of them; docs/mirrors.md has an example of the file",
        details={"mistakes": mistakes},
    )
