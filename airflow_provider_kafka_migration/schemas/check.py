"""The validation's check of the schemas: both registries compared, and each id of copied records resolved.

Versions that only the target has are no failure: its clients have switched and register schemas there. A registry that
does not answer is no result at all: the error says so, and the validation is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, PartitionContent, worst
from airflow_provider_kafka_migration.documents.schemas import (
    SchemaCheck,
    SchemaConflict,
    SchemaDifference,
    SchemaIdMap,
    SchemaIdSettings,
    TopicIds,
)
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.registry_settings import scope_name
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.schema_ids.id_map import Absent, IdMap
from airflow_provider_kafka_migration.schemas.id_map_document import publish_id_map
from airflow_provider_kafka_migration.schemas.modes import former_modes
from airflow_provider_kafka_migration.schemas.open import open_pair
from airflow_provider_kafka_migration.schemas.payloads.detect import decided_by_decoding
from airflow_provider_kafka_migration.schemas.settings_left import find_settings_left, try_to_put_back_target
from airflow_provider_kafka_migration.schemas.sync import selection_of
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries
from airflow_provider_kafka_migration.schemas.written import last_plan

PHASE = "validating"
NAME = "schemas"
#: Unread things that are schemas; levels, modes and metadata that could not be read are warnings.
_SCHEMAS = ("source: subject ", "target: subject ", "source: schema ", "target: schema ", "schema id ", "subject ")
_MAX_UNKNOWN = 20
_MISSED = (
    "consumers cannot decode these records on the target. Copy the topic by a migration of its own: another "
    "migration_id, topics.include, topics.rename to a name that is free, and schemas.by_topic"
)


def prepare(context: PhaseContext) -> None:
    """Put back what killed passes have left, before contents are compared for hours, and renew the map of ids.

    :raises ClaimLost: another owner has taken over.
    """
    if context.spec.schemas.copies:
        try_to_put_back_target(context)
        publish_id_map(context.record)


def check_schemas(
    context: PhaseContext,
    contents: Sequence[PartitionContent],
    missed: Mapping[str, str],
    unsampled: Mapping[str, str],
) -> CheckResult:
    """Compare both registries and resolve each id that occurs in copied records; journal what was found.

    Modes and levels of the target that the journal still has open are put back first.

    :param contents: the comparison of all partitions, with the ids that it has gathered.
    :param missed: topics that were copied with the source's ids although ids are translated, with what shows it.
    :param unsampled: topics with a part without ids whose records could not be sampled again, with the reason.
    :raises MigrationError: a registry does not answer.
    """
    section, record = context.spec.schemas, context.record
    if not section.configured:
        return CheckResult(name=NAME, outcome=Outcome.PASSED, summary="no schema registry is configured")
    plan = last_plan(record)
    if plan is None:
        finding = "the spec names schema registries, but no schemas were planned, so nothing is known about them"
        return CheckResult(name=NAME, outcome=Outcome.FAILED, summary="not checked", findings=[finding])
    if not (section.source and section.target):
        finding = "the registries were not compared: the spec does not name both (schemas.source, schemas.target)"
        return CheckResult(name=NAME, outcome=Outcome.WARNING, summary="not compared", findings=[finding])
    context.progress(Progress(PHASE, "comparing the schema registries"))
    settings = schema_id_settings(record)
    document = record.schema_id_map() if plan.id_mode != "topic" else None
    with open_pair(context) as pair:
        left = find_settings_left(context, pair.target, plan) if section.copies else []
        found = compare_registries(
            pair.source,
            pair.target,
            plan,
            document,
            found_in_records(contents, settings),
            selection=selection_of(record),
            at=iso(context.now()),
            former_source_modes=former_modes(record, "source"),
            parallel=section.max_parallel_requests,
            progress=lambda line: context.progress(Progress(PHASE, line)),
        )
    found = found.model_copy(update={"settings_left": left})
    accepted = plan.conflicts if section.on_conflict == "note" else ()
    result = with_late_ids(judge(found, accepted), missed, unsampled, translated=plan.id_mode == "translate")
    result = with_merged_keys(result, merged_keys(contents, settings, document))
    if plan.id_mode == "translate":
        result = with_decided_parts(result, record.schema_topics(), document)
    record.put_result(keys.SCHEMAS_CHECK, found)
    details = {"digest": found.digest(), "outcome": result.outcome.value, "summary": result.summary}
    record.journal.step(steps.SCHEMAS_CHECKED, details=details, reason=f"schemas {result.outcome}: {result.summary}")
    return result


def found_in_records(contents: Sequence[PartitionContent], settings: SchemaIdSettings | None) -> FoundInRecords:
    """Return the ids of all partitions whose records carry ids, and why some are missing."""
    ids: dict[tuple[str, int], str] = {}
    guids: dict[str, str] = {}
    incomplete: dict[str, str] = {}
    for content in contents:
        topic = None if settings is None else settings.topics.get(content.topic)
        if settings is None or topic is None:
            continue
        name = f"{content.topic}-{content.partition}"
        if why := _why_incomplete(content, settings.rule(content.topic)):
            incomplete[name] = why
        for use in content.schema_ids:
            where = f"{name} at offset {use.first_offset}"
            if isinstance(use.id, int):
                ids.setdefault((topic.context, use.id), where)
            else:
                guids.setdefault(use.id.lower(), where)
    return FoundInRecords(ids=ids, guids=guids, incomplete=incomplete)


def merged_keys(
    contents: Sequence[PartitionContent], settings: SchemaIdSettings | None, document: SchemaIdMap | None
) -> dict[str, str]:
    """Return the partitions in which different ids of keys have become one, with these ids.

    Keys that differ only by such an id are different ones on the source and equal on the target, where compaction keeps
    the newest of their records only.
    """
    found: dict[str, str] = {}
    ids = IdMap(document)
    for content in contents:
        topic = None if settings is None else settings.topics.get(content.topic)
        if topic is None or not topic.rewrite:
            continue
        sources: dict[tuple[str, int | str], set[int | str]] = {}
        for use in content.schema_ids:
            answer = ids.find(topic.context, use.kind, use.id)
            if use.part == "key" and answer is not None:
                target = use.id if isinstance(answer, Absent) else answer
                sources.setdefault((use.kind, target), set()).add(use.id)
        lines = [
            f"{', '.join(sorted(map(str, several)))} became {target}"
            for (_, target), several in sorted(sources.items(), key=str)
            if len(several) > 1
        ]
        if lines:
            found[f"{content.topic}-{content.partition}"] = "; ".join(lines)
    return found


def with_merged_keys(result: CheckResult, merged: Mapping[str, str]) -> CheckResult:
    """Return the check with what :func:`merged_keys` has found. Pure."""
    why = "keys that differ only by these ids are equal on the target; if the topic is compacted, only the newest stays"
    rows = [_row(f"ids in keys of {name}", f"{ids}: {why}", Outcome.WARNING) for name, ids in sorted(merged.items())]
    return _with_rows(result, [], rows)


def with_decided_parts(result: CheckResult, topics: Iterable[TopicIds], document: SchemaIdMap | None) -> CheckResult:
    """Return the check with each part that was decided without a subject, and ids that were left alone there. Pure."""
    lines = [(item.topic, line) for item in topics for line in decided_by_decoding(item)]
    lines += [
        (topic, f"{part}s that begin with id {id_} do not decode with its schema, and were copied as they are")
        for topic, part, id_, carries in (() if document is None else document.decided)
        if not carries
    ]
    return _with_rows(result, [], [_row(f"schema ids in {topic}", line, Outcome.WARNING) for topic, line in lines])


def _with_rows(result: CheckResult, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> CheckResult:
    rows = [*before, *result.partitions, *after]
    rows.sort(key=lambda row: row["outcome"] != Outcome.FAILED)
    return result.model_copy(
        update={
            "outcome": worst([result.outcome, *(Outcome(row["outcome"]) for row in before + after)]),
            "partitions": rows,
            "findings": [f"{row['what']}: {row['why']}" for row in rows],
        }
    )


def _why_incomplete(content: PartitionContent, rule: str) -> str:
    if content.schema_id_rule != rule:
        return "they were not gathered while its content was compared"
    if content.schema_ids_left_out:
        return f"{content.schema_ids_left_out} occurrences of further ids were only counted"
    return "some of its records could not be compared" if content.uncompared else ""


def judge(found: SchemaCheck, accepted: Iterable[SchemaConflict] = ()) -> CheckResult:
    """Turn the comparison into a check. Pure.

    :param accepted: conflicts of the plan that the spec accepts (``on_conflict: note``). Differences of the versions
        that they name are warnings. Ids in records that do not resolve never are.
    """
    named = frozenset((item.subject, item.version) for item in accepted if item.subject)
    # A schema that differs explains the ids in records that do not resolve, which have no subject.
    differences = sorted(found.differences, key=lambda item: not item.subject)
    rows = [_difference(item, named) for item in differences]
    rows += [
        _row(scope_name(item.scope), item.what, Outcome.FAILED if item.by_migration else Outcome.WARNING)
        for item in found.settings_left
    ]
    rows += [
        _row(key, why, Outcome.FAILED if key.startswith(_SCHEMAS) else Outcome.WARNING)
        for key, why in sorted(found.unread.items())
    ]
    if found.ids_unknown_to_source:
        shown = ", ".join(map(str, found.ids_unknown_to_source[:_MAX_UNKNOWN]))
        why = "neither registry has them; these bytes are probably no schema ids"
        if found.ids_not_asked:
            why = (
                "the source registry does not have them; the target registry was not asked for "
                f"{found.ids_not_asked} of them, and does not have the others"
            )
        rows.append(_row(f"ids in records: {shown}", why, Outcome.WARNING))
    rows.sort(key=lambda row: row["outcome"] != Outcome.FAILED)
    outcome = worst(Outcome(row["outcome"]) for row in rows)
    summary = (
        f"{found.subjects} subjects, {found.versions} versions ({found.deleted_versions} deleted), ids "
        f"{'kept' if found.id_mode != 'translate' else 'translated'}; {found.ids_resolved} of {found.ids_in_records} "
        "ids in records resolve to the same schema"
    )
    findings = [f"{row['what']}: {row['why']}" for row in rows]
    return CheckResult(name=NAME, outcome=outcome, summary=summary, partitions=rows, findings=findings)


def with_late_ids(
    result: CheckResult, missed: Mapping[str, str], unsampled: Mapping[str, str], *, translated: bool
) -> CheckResult:
    """Return the check with topics that :func:`check_schemas` was given. Pure.

    :param translated: the target's ids differ, so records whose ids nobody has looked for may be undecodable there.
    """
    unknown = Outcome.FAILED if translated else Outcome.WARNING
    failed = [_row(f"topic {name}", f"{why}: {_MISSED}", Outcome.FAILED) for name, why in sorted(missed.items())]
    unread = [
        _row(f"topic {name}", f"its records could not be sampled again for schema ids: {why}", unknown)
        for name, why in sorted(unsampled.items())
    ]
    return _with_rows(result, failed, unread)


def _difference(item: SchemaDifference, accepted: frozenset[tuple[str, int]]) -> dict[str, Any]:
    name = f"{item.subject or 'schema ids'}{f' version {item.version}' if item.version else ''}"
    # A conflict of a whole subject has the version 0, and so have differences of its level and mode.
    is_accepted = {(item.subject, item.version), (item.subject, 0)} & accepted
    of_subject = not item.version and any(subject == item.subject for subject, _ in accepted)
    harmless = item.only_on_target or is_accepted or of_subject
    return _row(name, item.what, Outcome.WARNING if harmless else Outcome.FAILED)


def _row(what: str, why: str, outcome: Outcome) -> dict[str, Any]:
    return {"what": what, "why": why, "outcome": outcome.value}
