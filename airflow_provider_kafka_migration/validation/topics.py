"""Check: topics of the source and the target have the same partitions and configs, and no partition was left behind."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    Outcome,
    worst,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics.configs import is_left_alone
from airflow_provider_kafka_migration.topics.kept_records import Keeping, defaults_of, older_offsets

#: A KRaft broker describes configs as of the metadata that it has applied, which may lag behind the controller that
#: has just restored them. So a difference counts only if it lasts this long.
CONFIGS_VISIBLE_SECONDS = 5.0
#: The summary of a parity check that was left out because of another check.
LEFT_OUT = "not checked: retention is not restored before the content is proven"


@dataclass(frozen=True)
class TargetTopic:
    """A topic as it is on the target; ``partitions`` is 0 if it does not exist."""

    partitions: int
    overrides: Mapping[str, str]


def check_topic_parity(
    topics: Sequence[TopicPlan],
    source_partitions: Mapping[str, int],
    targets: Mapping[str, TargetTopic],
    exclude: Sequence[str] = (),
) -> CheckResult:
    """Check that partition counts equal the source's, and that configs equal the plan's and no others are set.

    :param source_partitions: current partition counts by source topic.
    :param targets: by target topic.
    :param exclude: ``topology.config_exclude``: such configs belong to the target.
    """
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    for topic in sorted(topics, key=lambda item: item.name):
        target = targets.get(topic.target_name, TargetTopic(0, {}))
        problems = _parity_problems(topic, source_partitions.get(topic.name), target, exclude)
        rows.append(
            {
                "topic": topic.name,
                "target_topic": topic.target_name,
                "partitions": target.partitions,
                "configs": len(topic.target_configs),
                "outcome": (Outcome.FAILED if problems else Outcome.PASSED).value,
                "problems": problems,
            }
        )
        findings += [f"{topic.target_name}: {problem}" for problem in problems]
    outcome = Outcome.FAILED if findings else Outcome.PASSED
    summary = f"{len(rows)} topics: partitions and configs" + (" equal" if not findings else " DIFFER")
    return CheckResult(name="topic_parity", outcome=outcome, summary=summary, partitions=rows, findings=findings)


def _parity_problems(
    topic: TopicPlan, source_count: int | None, target: TargetTopic, exclude: Sequence[str]
) -> list[str]:
    if not target.partitions:
        return ["the topic is not on the target"]
    problems = []
    expected = source_count if source_count is not None else len(topic.partitions)
    if target.partitions < expected or (target.partitions != expected and not topic.shared):
        problems.append(f"the target has {target.partitions} partitions, the source has {expected}")
    for name in sorted(topic.target_configs.keys() | target.overrides.keys()):
        if is_left_alone(name, exclude):
            continue
        wanted, seen = topic.target_configs.get(name), target.overrides.get(name)
        if wanted != seen:
            problems.append(
                f"{name} is {seen if seen is not None else 'not set'}, "
                f"planned {wanted if wanted is not None else 'not set'}"
            )
    return problems


def check(record: MigrationRecord, source: Cluster, target: Cluster, *, proven: bool) -> CheckResult:
    """Check parity, but only once the content is proven: then configs that delete data are restored first."""
    if not proven:
        return CheckResult(
            name="topic_parity",
            outcome=Outcome.FAILED,
            summary=LEFT_OUT,
            findings=["the copy-time configs that keep data are still set, because the content is not proven"],
        )
    plan = record.plan()
    # Before retention is back: afterwards the target may have deleted what is to be counted.
    kept = _what_stays(record, source, target, plan)
    copy_settings.restore_deleting(record, target)
    described = source.admin.describe_topics([topic.name for topic in plan.topics])
    late = follow.born_late(record)
    counts = {
        name: sum(partition_name((name, part.partition)) not in late for part in item.partitions)
        for name, item in described.items()
        if item.error is None
    }
    deadline = time.monotonic() + CONFIGS_VISIBLE_SECONDS
    while True:
        check = check_topic_parity(
            plan.topics, counts, _target_topics(target, plan), record.spec.topology.config_exclude
        )
        if check.outcome is not Outcome.FAILED or time.monotonic() >= deadline:
            return with_late_partitions(record, source, _with_what_stays(check, kept))
        time.sleep(0.5)


@dataclass(frozen=True)
class _Stays:
    """What the target's own settings will do to the records of a topic.

    :param row: for the evidence.
    :param finding: empty unless the target deletes what the source keeps, or that is not known.
    """

    row: Mapping[str, Any]
    finding: str = ""


def _what_stays(record: MigrationRecord, source: Cluster, target: Cluster, plan: Plan) -> dict[str, _Stays]:
    """Return, by target topic, what the target deletes once its retention is back, and how much of it is due now."""
    sources = source.admin.topic_configs([topic.name for topic in plan.topics])
    defaults = defaults_of(record, target)
    now_ms = int(record.now().timestamp() * 1000)
    found = {}
    for topic in plan.topics:
        there = Keeping.of(ChainMap(topic.target_configs, defaults).get)
        here = Keeping.of(sources[topic.name].get) if topic.name in sources else None
        found[topic.target_name] = _stays(source, topic, here, there, now_ms)
    return found


def _stays(source: Cluster, topic: TopicPlan, here: Keeping | None, there: Keeping | None, now_ms: int) -> _Stays:
    if there is None:
        return _Stays({"retention": "not known"}, "how long the target keeps its records is not known")
    # Asked of the source: on the target, markers in the place of holes are younger than the records around them.
    keys = [(topic.name, item.partition) for item in topic.partitions]
    due = older_offsets(source.wire, keys, there.longest_ms, now_ms)
    row: dict[str, Any] = {"retention_ms": there.longest_ms, "retention_bytes": there.most_bytes}
    due_text = "the source refuses to look records up by their time, so what is due now is not known"
    if due is not None:
        row["records_due_now"] = due
        due_text = f"up to {due} records are due now"
    if here is None:
        return _Stays(row, "how long the source keeps its records is not known, so it cannot be compared")
    why = there.loses_more_than(here)
    if why:
        return _Stays(row, f"the target deletes records that the source keeps: {'; '.join(why)}; {due_text}")
    return _Stays(row, due_text if due is None else "")


def _with_what_stays(check: CheckResult, kept: Mapping[str, _Stays]) -> CheckResult:
    rows = [{**row, **kept[row["target_topic"]].row} for row in check.partitions]
    findings = [f"{name}: {item.finding}" for name, item in sorted(kept.items()) if item.finding]
    outcome = worst([check.outcome, *([Outcome.WARNING] if findings else [])])
    due = sum(item.row.get("records_due_now", 0) for item in kept.values())
    summary = f"{check.summary}; by their age, up to {due} of the source's records are due for deletion on the target"
    unknown = sum("records_due_now" not in item.row for item in kept.values())
    summary += f"; of {unknown} topics that is not known" if unknown else ""
    return check.model_copy(
        update={"outcome": outcome, "partitions": rows, "findings": [*check.findings, *findings], "summary": summary}
    )


def _target_topics(target: Cluster, plan: Plan) -> dict[str, TargetTopic]:
    names = [topic.target_name for topic in plan.topics]
    facts = target.admin.describe_topics(names)
    configs = target.admin.topic_configs(names)
    return {
        name: TargetTopic(
            len(facts[name].partitions) if name in facts and facts[name].error is None else 0,
            configs[name].overrides if name in configs else {},
        )
        for name in names
    }


def with_late_partitions(record: MigrationRecord, source: Cluster, check: CheckResult) -> CheckResult:
    """Add to the parity check the partitions that the freeze named as not part of the migration.

    An empty one is a warning: the source topic has more partitions than its copy, so keys map to other partitions. One
    that holds records is an unexplained difference, unless ``cutover.on_bypass: note`` accepts such writes.
    """
    late = follow.born_late(record)
    if not late:
        return check
    topics = [topic.name for topic in record.plan().topics]
    keys: list[TopicPartition] = [
        (name, part.partition)
        for name, facts in sorted(source.admin.describe_topics(topics).items())
        for part in facts.partitions
        if partition_name((name, part.partition)) in late
    ]
    ends = source.wire.list_offsets(keys, "log_end") if keys else {}
    accepted = record.spec.cutover.on_bypass == "note"
    findings = [f"{partition_name(key)} appeared in the freeze and was not copied: {_holds(ends[key])}" for key in keys]
    outcomes = [Outcome.FAILED if ends[key] and not accepted else Outcome.WARNING for key in keys]
    return check.model_copy(
        update={"outcome": worst([check.outcome, *outcomes]), "findings": [*check.findings, *findings]}
    )


def _holds(end_offset: int) -> str:
    return f"it holds {end_offset} offsets" if end_offset else "it is empty"
