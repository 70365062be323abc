"""Check: the target has the offsets that the migration has committed, within the target's logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import GroupResult, TranslatedOffset
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    worst,
)
from airflow_provider_kafka_migration.groups import offsets
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord


@dataclass(frozen=True)
class TargetCommits:
    """The current state of a group on the target, and its committed offsets by target partition."""

    state: str
    is_empty: bool
    offsets: Mapping[TopicPartition, int]
    error: str = ""


def check_groups(
    groups: Sequence[GroupResult],
    commits: Mapping[str, TargetCommits],
    ends: Mapping[TopicPartition, int],
    active_on_source: Sequence[str] = (),
) -> CheckResult:
    """Check that every translated offset is committed on the target, or that a consumer has advanced past it.

    :param groups: result of the last sync.
    :param commits: what the target has now, by group.
    :param ends: target log ends by target partition.
    """
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    outcomes = []
    for group in sorted(groups, key=lambda item: item.group):
        outcome, problems, counted = _group(group, commits.get(group.group), ends)
        if group.not_undone:
            outcome = worst([outcome, Outcome.WARNING])
            problems = [*problems, *(f"{item.topic}-{item.partition}: {item.reason}" for item in group.not_undone)]
        outcomes.append(outcome)
        row = {"group": group.group, "type": group.type, "outcome": outcome.value, **counted, "problems": problems}
        rows.append(row)
        findings += [f"{group.group}: {problem}" for problem in problems]
    for name in sorted(active_on_source):
        outcomes.append(Outcome.WARNING)
        findings.append(f"{name}: the group had members on the source when the client switch was acknowledged")
    total = sum(row["partitions"] for row in rows)
    good = sum(row["right"] + row["advanced"] for row in rows)
    summary = f"{len(rows)} groups, {good} of {total} committed offsets correct"
    return CheckResult(name="groups", outcome=worst(outcomes), summary=summary, partitions=rows, findings=findings)


def _group(
    group: GroupResult, commits: TargetCommits | None, ends: Mapping[TopicPartition, int]
) -> tuple[Outcome, list[str], dict[str, int]]:
    counted = {"partitions": 0, "right": 0, "advanced": 0}
    if group.failures:
        return Outcome.FAILED, [f"the group was not committed: {group.failures[0].get('what', '')}"], counted
    if group.skipped_reason:
        needed = any(item.target_offset is not None for item in group.offsets)
        return (
            (Outcome.WARNING, [f"left alone: {group.skipped_reason}"], counted)
            if needed
            else (
                Outcome.PASSED,
                [],
                counted,
            )
        )
    if commits is None or commits.error:
        why = commits.error if commits else "no answer"
        return Outcome.FAILED, [f"the group cannot be read on the target: {why}"], counted
    outcomes = [Outcome.PASSED]
    problems = []
    for item in group.offsets:
        if item.target_offset is None:
            outcomes.append(Outcome.WARNING)
            problems.append(f"{item.topic}-{item.partition} was skipped: {item.reason}")
            continue
        outcome, problem = _committed(item, commits, ends, counted)
        outcomes.append(outcome)
        problems += [problem] if problem else []
    return worst(outcomes), problems, counted


def _committed(
    item: TranslatedOffset, commits: TargetCommits, ends: Mapping[TopicPartition, int], counted: dict[str, int]
) -> tuple[Outcome, str]:
    key = (item.target_topic, item.partition)
    wanted, seen = item.target_offset, commits.offsets.get(key)
    counted["partitions"] += 1
    name = f"{key[0]}-{key[1]}"
    if seen is None:
        return Outcome.FAILED, f"{name} has no committed offset, expected {wanted}"
    if seen == wanted:
        counted["right"] += 1
        return Outcome.PASSED, ""
    assert wanted is not None
    if seen < wanted:
        return Outcome.FAILED, f"{name} is at {seen}, before {wanted}: records would be read again"
    if seen > ends.get(key, seen):
        return Outcome.FAILED, f"{name} is at {seen}, beyond the log's end {ends[key]}"
    counted["advanced"] += 1
    if item.reason or not commits.is_empty:
        # The group was ahead from the start, or its consumers run on the target and have advanced.
        return Outcome.PASSED, ""
    return Outcome.WARNING, f"{name} is at {seen}, past {wanted}: a consumer has advanced, or someone moved the offset"


def check(record: MigrationRecord, target: Cluster) -> CheckResult:
    """Read the groups on the target, and compare them with what was committed; without results the check fails."""
    result = record.final_groups()
    if result is None:
        return CheckResult(
            name="groups", outcome=Outcome.FAILED, summary="no groups were committed", findings=["no group results"]
        )
    states = offsets.target_states(target, {item.group: item.type for item in result.groups})
    commits = {
        name: TargetCommits(
            state=state.state,
            is_empty=state.is_empty,
            offsets={key: value.offset for key, value in state.offsets.items()},
            error=str(state.error or ""),
        )
        for name, state in states.items()
    }
    places = sorted({(item.target_topic, item.partition) for group in result.groups for item in group.offsets})
    places = [place for place in places if place[0]]
    ends = target.wire.list_offsets(places, "latest") if places else {}
    return check_groups(result.groups, commits, ends, result.active_on_source)
