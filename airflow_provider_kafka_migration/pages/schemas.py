"""The facts about schemas that plan, approvals and runbook show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from airflow_provider_kafka_migration.documents.schemas import (
    IdMode,
    PlannedSubject,
    SchemaConflict,
    SchemaPlan,
    SchemasResult,
    TopicIds,
)

#: What an id mode means for the target registry and for the records.
MODES: dict[IdMode, str] = {
    "keep": "the target registry gets the same ids and versions, and records are copied as they are",
    "translate": "the target registry assigns ids, and the copiers write these into the records, at equal offsets",
    "topic": "the registry moves with its own topic, whose records keep their offsets; nothing else writes schemas",
}
_SCOPES = {
    "": "",
    "subject": "mode IMPORT of each subject",
    "context": "mode IMPORT of the context",
    "registry": "mode IMPORT of the whole registry",
    "apicurio": "Apicurio's import",
}

_DECIDED = {"sample": "sample of {} records", "name": "names of subjects, sample of {} records", "spec": "the spec"}

#: How many subjects an approval lists; the plan lists all of them.
_SUBJECTS_IN_APPROVALS = 50


def plan_facts(plan: SchemaPlan) -> dict[str, Any]:
    """Return what the plan's page shows."""
    return {
        **_head(plan),
        "rows": [_subject_row(item) for item in plan.subjects],
        "levels": [
            *((f"context {name}", pairs(config)) for name, config in sorted(plan.context_configs.items())),
            *((f"context {name}", f"mode={mode}") for name, mode in sorted(plan.context_modes.items())),
            *((("whole registry", pairs(plan.global_config)),) if plan.global_config else ()),
            *((("whole registry", f"mode={plan.global_mode}"),) if plan.global_mode else ()),
        ],
        "left_out": sorted(plan.left_out.items()),
        "notes": list(plan.notes),
    }


def approval_facts(plan: SchemaPlan, result: SchemasResult | None) -> dict[str, Any]:
    """Return what an approval shows, as JSON data.

    :param result: the last synchronization; None before the first one.
    """
    rows = [list(_subject_row(item)) for item in plan.subjects[:_SUBJECTS_IN_APPROVALS]]
    return {
        **_head(plan),
        "rows": rows,
        "more_subjects": len(plan.subjects) - len(rows),
        "result": None if result is None else _result(result),
    }


def _result(result: SchemasResult) -> dict[str, Any]:
    return {
        "at": result.at,
        "reason": result.reason,
        "subjects": result.subjects,
        "versions": result.versions,
        "ids": result.ids,
        "conflicts": [list(conflict_row(item)) for item in result.conflicts],
        "failed": [
            [
                item.subject or item.name,
                item.version or "",
                f"{item.error.get('code', '')}: {item.error.get('what', '')}",
            ]
            for item in result.failed
        ],
        "unread": [list(item) for item in sorted(result.unread.items())],
    }


def _head(plan: SchemaPlan) -> dict[str, Any]:
    versions = [version for subject in plan.subjects for version in subject.versions]
    actions = Counter(version.action for version in versions)
    return {
        "id_mode": plan.id_mode,
        "meaning": MODES[plan.id_mode],
        "reason": plan.reason,
        "source_kind": plan.source_kind or "not read",
        "target_kind": plan.target_kind or "not read",
        "door": _SCOPES[plan.import_scope],
        "subjects": len(plan.subjects),
        "references": sum(subject.as_reference for subject in plan.subjects),
        "versions": len(versions),
        "deleted_versions": sum(version.deleted for version in versions),
        "to_register": actions["register"],
        "present": actions["exists"],
        "conflicts": [list(conflict_row(item)) for item in plan.conflicts],
        "topics": [list(topic_row(item)) for item in plan.topics if _is_shown(item)],
        "topics_without_ids": sum(not _is_shown(item) for item in plan.topics),
        "unread": [list(item) for item in sorted(plan.unread.items())],
    }


def _is_shown(item: TopicIds) -> bool:
    return item.parts != "none" or bool(item.unread or item.note or item.unclear)


def _subject_row(subject: PlannedSubject) -> tuple[str, ...]:
    return (
        subject.subject,
        subject.target_subject if subject.target_subject != subject.subject else "",
        subject.type,
        _versions(subject),
        pairs({**subject.config, **({"mode": subject.mode} if subject.mode else {})}),
        ", ".join(subject.topics) or ("(only a reference)" if subject.as_reference else ""),
    )


def conflict_row(conflict: SchemaConflict) -> tuple[str, ...]:
    """Return kind, subject with version, and what is in the way."""
    version = f" version {conflict.version}" if conflict.version else ""
    return conflict.kind, f"{conflict.subject}{version}", conflict.what


def topic_row(item: TopicIds) -> tuple[str, ...]:
    """Return topic, parts, who decided, context, known ids in keys and in values, unknown ids, and what to check."""
    unknown = ", ".join(str(number) for number in item.unknown_ids[:10])
    more = len(item.unknown_ids) - 10
    return (
        item.topic,
        item.parts,
        _DECIDED[item.decided_by].format(item.sampled_records),
        item.context,
        share(item.key_known_ids, item.key_ids),
        share(item.value_known_ids, item.value_ids),
        unknown + (f" and {more} more" if more > 0 else ""),
        "; ".join(filter(None, (item.unclear, item.note, f"not read: {item.unread}" if item.unread else ""))),
    )


def share(known: int, found: int) -> str:
    """Return how many of the ids that were found are known. Truncated, not rounded: only all of them are 100 %.

    >>> share(999, 1000), share(0, 0)
    ('999 of 1000 (99 %)', 'none found')
    """
    return f"{known} of {found} ({100 * known // found} %)" if found else "none found"


def pairs(values: dict[str, Any]) -> str:
    """Return settings by name: ``compatibilityLevel=FULL, mode=READONLY``."""
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _versions(subject: PlannedSubject) -> str:
    """Return versions as ranges, so that gaps are visible: ``1-3, 5 (1 deleted)``."""
    deleted = sum(version.deleted for version in subject.versions)
    return ranges(version.version for version in subject.versions) + (f" ({deleted} deleted)" if deleted else "")


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as ranges.

    >>> ranges([1, 2, 3, 5])
    '1-3, 5'
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
