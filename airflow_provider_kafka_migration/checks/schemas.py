"""Precheck of schemas: whether the registries can be used, and what the schema plan says about conflicts and ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from airflow_provider_kafka_migration.documents.plan import Finding, Plan
from airflow_provider_kafka_migration.documents.schemas import PlannedSubject, SchemaConflict, SchemaPlan, TopicIds
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    RegistryForbidden,
    RegistryReadOnly,
    RegistryRefused,
    RegistryUnreachable,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
)
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.glue import is_glue
from airflow_provider_kafka_migration.registry.model import Schema
from airflow_provider_kafka_migration.schemas.payloads.detect import decided_by_decoding
from airflow_provider_kafka_migration.schemas.plan_topic import own_content
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot, read_snapshot

Role = Literal["source", "target"]

#: Names of the topics in which registries keep what they hold.
_REGISTRY_TOPIC = re.compile(r"_?_schemas(?:[._-].+)?|kafkasql-journal")
#: No registry can parse it, so registering it tests the right to write and stores nothing.
_UNPARSABLE = Schema("AVRO", '{"type": "kafka-migration-probe"}')
_PROBE_SUFFIX = "-kafka-migration-probe"
_CLOSED_MODES = frozenset({"READONLY", "READONLY_OVERRIDE", "FORWARD"})
#: Subjects or conflicts in one finding, which is journaled; the schema plan has all of them.
_MAX_DETAILS = 100


# -- the registries themselves ----------------------------------------------------------------------------------------


def check_registries(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Ask both registries whether they answer, and whether this user may read and write. Leaves no trace."""
    section = context.spec.schemas
    if section.source:
        yield from _check_registry(context, plan, "source", section.source)
    if section.target:
        yield from _check_registry(context, plan, "target", section.target)


def _check_registry(context: PhaseContext, plan: Plan, role: Role, reference: str) -> Iterator[Finding]:
    if _leads_to_glue(context, reference):
        yield finding("B110", f"schemas.{role}: {reference}", subject=role)
        return
    try:
        with context.registry(role) as registry:
            yield from _checked(context, plan, role, registry)
    except RegistryUnreachable as error:
        if role == "target" and context.spec.schemas.topic:
            # This is how it should be: the registry is started on the copied topic.
            return
        yield finding("B100", f"{role}: {error.what}", subject=role)
    except RegistryForbidden as error:
        yield finding("B101", f"{role}: {error.what}", subject=role)


def _leads_to_glue(context: PhaseContext, reference: str) -> bool:
    if is_glue(reference):
        return True
    try:
        return is_glue(reference, str(context.resolver.registry(reference).get("url", "")))
    except ConnectionInvalid:
        # Opening the registry names what is wrong with the connection.
        return False


def _checked(context: PhaseContext, plan: Plan, role: Role, registry: Registry) -> Iterator[Finding]:
    # These three need different rights where a registry has rights at all.
    subjects = registry.subjects(deleted=True)
    registry.config(None)
    mode = registry.mode(None)
    if role == "source":
        return
    if context.spec.schemas.topic:
        yield from _own_topic(registry, subjects, context)
        return
    if mode in _CLOSED_MODES:
        yield finding("B102", f"the target registry has mode {mode}", subject="target")
        return
    schemas = context.record.schema_plan()
    if mode != "IMPORT":
        # In mode IMPORT a registry refuses whatever has no fixed id, so this probe would show nothing there.
        yield from _check_write(registry, schemas)
    elif schemas is not None and schemas.id_mode == "translate":
        yield finding("B102", "the target registry has mode IMPORT, and ids are to be translated", subject="target")


def _own_topic(registry: Registry, subjects: list[str], context: PhaseContext) -> Iterator[Finding]:
    """Report a target registry that already runs, although it is to be started on the copied topic."""
    own: list[str] = []
    if subjects:
        parallel = context.spec.schemas.max_parallel_requests
        own = own_content(_of_source(context), read_snapshot(registry, Selection(), parallel=parallel))
    if own:
        seen = f"{registry.url} has what the source lacks, or has differently: {some(own, 3)}"
        yield finding("B112", seen, subject="target")
    else:
        yield finding("W113", f"{registry.url} answers, and has {len(subjects)} subjects", subject="target")


def _of_source(context: PhaseContext) -> RegistrySnapshot | None:
    """Read the source registry; None if it is not configured or cannot be used, which has its own finding."""
    if not context.spec.schemas.source:
        return None
    try:
        with context.registry("source") as registry:
            return read_snapshot(registry, Selection(), parallel=context.spec.schemas.max_parallel_requests)
    except (RegistryUnreachable, RegistryForbidden):
        return None


def _check_write(registry: Registry, schemas: SchemaPlan | None) -> Iterator[Finding]:
    """Try to register a schema that no registry accepts: the refusal shows whether the user may write."""
    new = [item.target_subject for item in schemas.subjects if _is_written(item)] if schemas else []
    if schemas is not None and not new:
        # Nothing is to be registered, so no right to do it is needed.
        return
    name = new[0] if new else ""
    try:
        _try_to_register(registry, f"{name}{_PROBE_SUFFIX}".removeprefix("-"))
    except RegistryForbidden:
        # A right may be limited to the name itself. A registry with such rights parses what it is given.
        if not name:
            raise
        _try_to_register(registry, name)
    except RegistryReadOnly as error:
        yield finding("B102", error.what, subject="target")


def _is_written(subject: PlannedSubject) -> bool:
    return any(version.action == "register" for version in subject.versions)


def _try_to_register(registry: Registry, subject: str) -> None:
    """Return if the user may register schemas in a subject.

    :raises RegistryForbidden: the user may not.
    :raises RegistryReadOnly: nobody may.
    """
    try:
        registered = registry.register(subject, _UNPARSABLE)
    except (SchemaInvalid, SchemaIncompatible):
        return
    except RegistryRefused as error:
        if error.details.get("status") != 422:
            raise
        return
    # This registry takes anything. Remove what it took.
    registry.delete_version(subject, registered.version)
    try:
        registry.delete_version(subject, registered.version, permanent=True)
    except SchemaNotFound:
        return


# -- what the plan says -----------------------------------------------------------------------------------------------


def check_schemas(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report conflicts, subjects without topics, and ids without schemas, from the schema plan."""
    yield from _registry_topics(context, plan)
    if not context.spec.schemas.configured:
        return
    schemas = context.record.schema_plan()
    if schemas is None:
        why = plan.unknown.get("schemas", "the plan was made before the spec named a registry")
        yield finding("B114", f"the registries: {why}", subject="schemas")
        return
    if schemas.id_mode == "translate" and context.spec.seed.via == "split":
        yield finding("B115", schemas.reason, subject="schemas")
    yield from _conflicts(context, schemas)
    # A registry that moves with its topic is not read to be copied.
    code = "W114" if schemas.id_mode == "topic" else "B114"
    for what, why in sorted(schemas.unread.items())[:_MAX_DETAILS]:
        yield finding(code, f"{what}: {why}", subject=what)
    unused = [item.subject for item in schemas.subjects if not item.topics and not item.as_reference]
    if unused:
        yield finding("I108", some(unused), subjects=unused[:_MAX_DETAILS])
    if schemas.left_out:
        listing = [f"{name} ({why})" for name, why in sorted(schemas.left_out.items())]
        yield finding("I118", some(listing), subjects=dict(sorted(schemas.left_out.items())[:_MAX_DETAILS]))
    yield from _ids_in_topics(schemas)


#: The code of a conflict by its kind, where schemas.on_conflict is stop. B104 for all others.
_CONFLICT_CODES = {"mode": "B102", "unsupported": "B103"}


def _conflicts(context: PhaseContext, schemas: SchemaPlan) -> Iterator[Finding]:
    if schemas.id_mode == "topic":
        # The check of the registries reports what stands in the way of that.
        return
    by_code: dict[str, list[SchemaConflict]] = {}
    fails = context.spec.schemas.on_conflict == "stop"
    for item in schemas.conflicts:
        code = _CONFLICT_CODES.get(item.kind, "B104") if fails else "W105"
        if item.kind == "compatibility":
            # Such versions are registered nevertheless: the level is lifted for that time.
            code = "W106"
        by_code.setdefault(code, []).append(item)
    for code, items in sorted(by_code.items()):
        seen = some([item.what for item in items], 5)
        conflicts = [item.model_dump(mode="json") for item in items[:_MAX_DETAILS]]
        yield finding(code, f"{len(items)}: {seen}", subject=items[0].subject, conflicts=conflicts)


def _ids_in_topics(schemas: SchemaPlan) -> Iterator[Finding]:
    unknown = {item.topic: item.unknown_ids for item in schemas.topics if item.unknown_ids}
    if unknown:
        listing = [f"{topic}: {some([str(number) for number in ids], 5)}" for topic, ids in sorted(unknown.items())]
        yield finding("W109", some(listing), topics=unknown)
    unclear = {item.topic: item.note for item in schemas.topics if item.note}
    if unclear:
        yield finding("W119", some([f"{topic}: {note}" for topic, note in sorted(unclear.items())]), topics=unclear)
    if schemas.id_mode == "translate":
        yield from _rewritten_in_topics(schemas)
    for code, is_blind in (("B117", True), ("W117", False)):
        unread = {item.topic: item.unread for item in schemas.topics if _is_unread(item, schemas, is_blind=is_blind)}
        if unread:
            yield finding(code, some([f"{topic}: {why}" for topic, why in sorted(unread.items())]), topics=unread)


def _rewritten_in_topics(schemas: SchemaPlan) -> Iterator[Finding]:
    unclear = {item.topic: item.unclear for item in schemas.topics if item.unclear}
    if unclear:
        yield finding("B107", some([f"{topic}: {why}" for topic, why in sorted(unclear.items())]), topics=unclear)
    decoded = [line for item in schemas.topics for line in decided_by_decoding(item)]
    if decoded:
        yield finding("W120", some(decoded), parts=decoded[:_MAX_DETAILS])
    empty = [item.topic for item in schemas.topics if _is_open(item)]
    if empty:
        yield finding("W121", some(empty), topics=empty[:_MAX_DETAILS])


def _is_open(item: TopicIds) -> bool:
    """Whether nothing has decided about a topic: it has no records, and no subject is named after it."""
    return item.parts == "none" and item.decided_by == "sample" and not (item.sampled_records or item.unread)


def _is_unread(item: TopicIds, schemas: SchemaPlan, *, is_blind: bool) -> bool:
    """Whether the sample of a topic could not be read; blind: its ids would be wrong on the target if it has any."""
    if not item.unread or item.decided_by == "spec":
        return False
    return (schemas.id_mode == "translate" and item.parts == "none") is is_blind


def _registry_topics(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report topics that look like those of a registry."""
    section = context.spec.schemas
    found = [topic.name for topic in plan.topics if _REGISTRY_TOPIC.fullmatch(topic.name)]
    others = [name for name in found if name != section.topic]
    if not others:
        return
    if section.copies:
        yield finding("W116", some(others), subject=others[0], topics=others)
    elif not section.configured:
        yield finding("I111", some(others), subject=others[0], topics=others)
