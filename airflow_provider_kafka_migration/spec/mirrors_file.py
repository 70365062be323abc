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

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.spec.load import MigrationSpec, parse_spec, read_yaml
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


def parse_mirrors(data: Any, *, path: str | None = None) -> dict[str, MigrationSpec]:
    """Return the specs of a file that is already read; errors as those of :func:`load_mirrors`."""
    try:
        file = MirrorsFile.model_validate(data)
    except ValidationError as error:
        found = [
            {"path": ".".join(str(part) for part in item["loc"]) or "(whole file)", "reason": item["msg"]}
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise _invalid(found, path) from None
    flows, mistakes = {}, list[dict[str, str]]()
    if len({_name(name) for name in file.flows}) < len(file.flows):
        mistakes.append({"path": "flows", "reason": "a flow is there twice"})
    flows_by_name = {_name(name): flow or {} for name, flow in file.flows.items()}
    enabled = {name: flow for name, flow in flows_by_name.items() if flow.get("enabled", True) is not False}
    for name in sorted(enabled):
        try:
            flows[name] = _flow(file, name, enabled[name], both_ways=_opposite(name) in enabled)
        except SpecInvalid as error:
            found = error.details.get("mistakes") or [{"path": "", "reason": error.what}]
            mistakes += [{**item, "path": f"flows.{name}.{item['path']}".rstrip(".")} for item in found]
    taken: dict[str, str] = {}
    for name, spec in flows.items():
        if spec.migration_id in taken:
            reason = f"its id {spec.migration_id} is that of {taken[spec.migration_id]}: set migration_id"
            mistakes.append({"path": f"flows.{name}.migration_id", "reason": reason})
        taken.setdefault(spec.migration_id, name)
    if mistakes:
        raise _invalid(mistakes, path)
    return flows


def _flow(file: MirrorsFile, name: str, own: Mapping[str, Any], *, both_ways: bool) -> MigrationSpec:
    source, arrow, target = name.partition(_ARROW)
    unknown = sorted({source, target} - set(file.clusters))
    if not arrow or unknown:
        what = f"{', '.join(unknown)} not in clusters" if arrow else "a flow is written source->target"
        raise SpecInvalid(what, next_step="correct the name of the flow")
    wrong = sorted(set(own) & set(_OWN))
    if wrong:
        raise SpecInvalid(f"{', '.join(wrong)}: the file itself says this", next_step="remove it from the flow")
    data = _merged(file.defaults, {key: value for key, value in own.items() if key != "enabled"})
    mirror = dict(data.pop("mirror", {}))
    aliases = {"source_alias": source, "target_alias": target}
    wrong = sorted(key for key, alias in aliases.items() if mirror.get(key, alias) != alias)
    if wrong:
        # A flow under the aliases of another one would give topics names that lead round in a circle.
        raise SpecInvalid(f"mirror.{wrong[0]} differs from the name of the flow", next_step="remove it from the file")
    others = sorted(set(file.clusters) - {source, target})
    mirror = {"known_aliases": others, "two_way": both_ways, **mirror, **aliases}
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
