"""What changed between two plans, for people and machines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan

#: Figures that move all the time on a live cluster; shown only on wish.
MOVING = frozenset(
    {
        "end_offset",
        "estimate",
        "estimated_holes",
        "estimated_records",
        "high_watermark",
        "lag",
        "size_bytes",
        "state",
        "total_bytes",
    }
)
#: Lists of the plan whose items have a name: list -> fields that identify an item.
_KEYS: dict[str, tuple[str, ...]] = {
    "topics": ("name",),
    "partitions": ("partition",),
    "groups": ("group",),
    "excluded_groups": ("group",),
    "acls": (
        *("principal", "permission", "operation", "resource_type"),
        *("resource_name", "pattern_type", "host", "target_resource_name"),
    ),
    "users": ("name",),
    "quotas": ("entity",),
    "group_configs": ("group",),
    "lanes": ("lane",),
    "drift": ("config",),
    "defaults_drift": ("config",),
}


class Change(Part):
    """One difference. ``before`` is null for what is new, ``after`` for what is gone."""

    path: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {_short(self.after)}"
        if self.after is None:
            return f"- {self.path}: {_short(self.before)}"
        return f"~ {self.path}: {_short(self.before)} -> {_short(self.after)}"


class PlanDiff(Document):
    """The differences of two plans, ascending by path."""

    version: int = 1
    before: str = Field(description="digest of the earlier plan")
    after: str = Field(description="digest of the later plan")
    changes: list[Change]


def diff_plans(before: Plan, after: Plan, *, moving: bool = False) -> PlanDiff:
    """Compare two plans.

    :param moving: show also offsets, sizes, lags and states, which move all the time.
    """
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changes = sorted(_changes("", old, new, moving), key=lambda change: change.path)
    return PlanDiff(before=before.digest(), after=after.digest(), changes=changes)


def as_text(diff: PlanDiff) -> str:
    """One line per difference."""
    if not diff.changes:
        return "the plans are equal" if diff.before == diff.after else "nothing but moving figures differs"
    return "\n".join(str(change) for change in diff.changes)


def as_markdown(diff: PlanDiff) -> str:
    """The differences as a table."""
    lines = [f"# Changes of the plan {diff.before[:8]} -> {diff.after[:8]}", ""]
    if not diff.changes:
        return "\n".join([*lines, as_text(diff)]) + "\n"
    rows = [(change.path, _cell(change.before), _cell(change.after)) for change in diff.changes]
    lines += ["| what | before | after |", "|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return "-" if value is None else _short(value)


def _changes(path: str, old: Any, new: Any, moving: bool) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            if moving or name not in MOVING:
                yield from _member(f"{path}.{name}" if path else name, name, old.get(name), new.get(name), moving)
        return
    yield Change(path=path, before=old, after=new)


def _member(path: str, name: str, old: Any, new: Any, moving: bool) -> Iterator[Change]:
    keys = _KEYS.get(name)
    if keys is None or not isinstance(old, list) or not isinstance(new, list):
        yield from _changes(path, old, new, moving)
        return
    before, after = _by_key(old, keys), _by_key(new, keys)
    for key in sorted(before.keys() | after.keys()):
        yield from _changes(f"{path}[{key}]", before.get(key), after.get(key), moving)


def _by_key(items: list[Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {" ".join(_text(item[key]) for key in keys): item for item in items}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(f"{kind}={name if name is not None else '(default)'}" for kind, name in value)
    return str(value)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        named = [str(value[key]) for key in ("target_name", "action", "verdict", "state") if key in value]
        return ", ".join(named) or f"{len(value)} fields"
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
