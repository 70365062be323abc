"""References between schemas: the order of registration, and how references are written on the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_kafka_migration.errors import SchemaReferenceLoop
from airflow_provider_kafka_migration.registry.model import Reference, RegisteredSchema, Schema, Subject
from airflow_provider_kafka_migration.schemas.content import qualified_reference, reference_subject
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot

#: (qualified subject, version)
VersionKey = tuple[str, int]


def registration_order(source: RegistrySnapshot) -> list[VersionKey]:
    """Return all versions so that each comes after those it refers to, and subjects keep the order of their versions.

    Where a registry was filled by imports, both may contradict each other: then references decide. References to
    versions that the snapshot does not have are ignored here.

    :raises SchemaReferenceLoop: there is no such order.
    """
    references = {
        (item.subject, item.version): [key for key in reference_keys(item, source) if source.version(*key) is not None]
        for item in source.all_versions()
    }
    both = {key: list(needed) for key, needed in references.items()}
    for subject in source.subjects.values():
        for before, after in zip(subject.versions, subject.versions[1:], strict=False):
            both[(after.subject, after.version)].append((before.subject, before.version))
    found, _ = _sorted_by_need(both)
    if found is None:
        found, loop = _sorted_by_need(references)
        if found is None:
            raise _loop_error(loop)
    return found


def reference_keys(item: RegisteredSchema, source: RegistrySnapshot) -> list[VersionKey]:
    """Return what a schema refers to; a reference to "the latest version" becomes the latest live one that was read."""
    context = Subject.parse(item.subject).context
    found: list[VersionKey] = []
    for reference in item.schema.references:
        subject, version = qualified_reference(reference, context), reference.version
        if version <= 0 and subject in source.subjects:
            live = [other.version for other in source.subjects[subject].versions if not other.deleted]
            version = max(live, default=version)
        found.append((subject, version))
    return found


def schema_for_target(
    item: RegisteredSchema,
    source: RegistrySnapshot,
    target_subject: str,
    placed: Mapping[VersionKey, VersionKey],
    *,
    contexts: bool = True,
) -> Schema | None:
    """Return a schema with its references rewritten to the target's subjects and versions.

    :param target_subject: the qualified subject on the target.
    :param placed: source (subject, version) to target (subject, version), of all versions that are on the target or
        whose place is decided.
    :param contexts: whether the target has contexts. If it has none, a context is a part of a subject's name there, and
        references have to name it.
    :returns: None if a reference has no place yet.
    """
    return _with_places(item.schema, reference_keys(item, source), target_subject, placed, contexts)


def places_references(
    schema: Schema,
    context: str,
    target_subject: str,
    placed: Mapping[VersionKey, VersionKey],
    *,
    contexts: bool = True,
) -> Schema | None:
    """Like :func:`schema_for_target`, for the schema of an id, whose own subject is not known.

    :param context: of the source, in which references without a context are looked up.
    """
    keys = [(qualified_reference(item, context), item.version) for item in schema.references]
    return _with_places(schema, keys, target_subject, placed, contexts)


def _with_places(
    schema: Schema,
    keys: Sequence[VersionKey],
    target_subject: str,
    placed: Mapping[VersionKey, VersionKey],
    contexts: bool,
) -> Schema | None:
    references: list[Reference] = []
    for reference, key in zip(schema.references, keys, strict=True):
        place = placed.get(key)
        if place is None or place[1] <= 0:
            return None
        # A reference keeps its form: GUIDs are hashes over the schema as it is written.
        qualified = not contexts or reference.subject.startswith(":.")
        subject = reference_subject(place[0], target_subject, qualified=qualified)
        references.append(Reference(reference.name, subject, place[1]))
    return replace(schema, references=tuple(references))


def _sorted_by_need(
    needs: Mapping[VersionKey, Sequence[VersionKey]],
) -> tuple[list[VersionKey] | None, list[VersionKey]]:
    """Return the keys, each after what it needs; or None, and the keys of a circle. Iterative: chains may be long."""
    done: set[VersionKey] = set()
    order: list[VersionKey] = []
    for first in sorted(needs):
        if first in done:
            continue
        path = [first]
        on_path = {first}
        todo = [iter(sorted(set(needs[first])))]
        while path:
            below = next((key for key in todo[-1] if key not in done), None)
            if below is None:
                todo.pop()
                key = path.pop()
                on_path.remove(key)
                done.add(key)
                order.append(key)
            elif below in on_path:
                return None, path[path.index(below) :]
            else:
                path.append(below)
                on_path.add(below)
                todo.append(iter(sorted(set(needs[below]))))
    return order, []


def _loop_error(loop: Sequence[VersionKey]) -> SchemaReferenceLoop:
    chain = " -> ".join(f"{subject} version {version}" for subject, version in [*loop, loop[0]][:12])
    return SchemaReferenceLoop(
        f"schemas of the source registry refer to each other in a circle: {chain}",
        next_step="no registry accepts such schemas; check that the registry's answers are its own; to leave these "
        "subjects out, begin again with schemas.exclude and another migration_id",
        details={"versions": [f"{subject}:{version}" for subject, version in loop]},
    )
