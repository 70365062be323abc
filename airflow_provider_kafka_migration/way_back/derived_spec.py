"""The spec of a way back, derived from the migration that it reverses. Pure, but for reading the record.

The way back of ``orders`` is the migration ``orders.back``: source and target are swapped, and so are the topics'
names. Its journal, plan and evidence are its own. Everything that decides how records are copied is derived, so the
same record always gives the same spec, and a way back continues with nothing but the first migration's spec and
journal.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import SpecInvalid, Terminal, Where
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.way_back import WayBackSection
from airflow_provider_kafka_migration.state import State

#: Appended to the name of a migration.
SUFFIX = ".back"
_LONGEST_ID = 100

#: States in which the boundary stands still: the copiers are fenced, and a person has acknowledged the switch.
SWITCHED = (State.VALIDATING, State.FINALIZED)


def way_back_id(migration_id: str) -> str:
    """Return the name of the way back of a migration.

    :raises SpecInvalid: the name would be too long.
    """
    name = f"{migration_id}{SUFFIX}"
    if len(name) > _LONGEST_ID:
        raise SpecInvalid(
            f"the name of the way back, {name}, is longer than {_LONGEST_ID} characters",
            where=Where(migration_id=migration_id, path="migration_id"),
            next_step="a migration whose name is that long has no way back",
        )
    return name


def section_of(spec: MigrationSpec) -> WayBackSection:
    """Return the section ``way_back`` of a spec, with all defaults if the spec has none."""
    return spec.way_back or WayBackSection()


def check_switched(record: MigrationRecord) -> None:
    """Check that clients have switched.

    :raises Terminal: before that, old clients may still write, and a rollback is the way back.
    """
    record.journal.refresh()
    state = record.journal.working_state
    if state in SWITCHED or record.client_switch() is not None:
        return
    is_early = state is not None and state is not State.ROLLED_BACK
    is_told = state is State.AWAITING_CLIENT_SWITCH
    early = (
        f"acknowledge the client switch first (`kafka-migration resume FILE --approve CODE`); {words.WAY_OUT}"
        if is_told
        else "before the client switch, `kafka-migration rollback FILE` abandons the migration, and clients stay"
    )
    raise Terminal(
        f"there is no way back yet: the migration is in state {state or 'not started'}",
        where=record.where("way_back"),
        next_step=early if is_early else "check migration_id and storage.journal in the spec",
    )


def derive(record: MigrationRecord) -> MigrationSpec:
    """Return the spec of the way back of a migration.

    :param record: of the migration whose clients have switched.
    :raises Terminal: they have not, or nobody has acknowledged it.
    :raises SpecInvalid: this migration cannot go back, with the reason.
    """
    check_switched(record)
    forward = record.spec
    check_can_return(record)
    data = forward.model_dump(mode="json", by_alias=True)
    section = section_of(forward)
    data |= {
        "migration_id": way_back_id(forward.migration_id),
        "description": f"way back of {forward.migration_id}",
        "source": data["target"],
        "target": data["source"],
        "topics": _topics(record, section),
        # The old topics keep their own settings, and the old cluster its own access: it is as clients left it.
        "topology": {**data["topology"], "on_config_drift": "note", "on_source_drift": "note"},
        "acls": {"policy": "skip", "quotas": "skip"},
        # The section way_back decides whether groups follow.
        "groups": {**data["groups"], "early_sync": False},
        "offsets": offsets_of_return(data["offsets"]),
        "schemas": schemas_of_return(forward, data["schemas"]),
        "seed": {**data["seed"], "via": "direct"},
        "cutover": {**data["cutover"], "freeze": section.freeze or forward.cutover.freeze, "on_bypass": "stop"},
        "waive": [],
        "adopt": {"from": "way_back", "migration_id": forward.migration_id},
        "way_back": section.model_dump(mode="json"),
    }
    return parse_spec(data, recorded=True)


def check_can_return(record: MigrationRecord) -> None:
    """Check that the records of a migration can go back.

    :raises SpecInvalid: they cannot, with the reason.
    """
    spec = record.spec
    where = record.where("way_back", path="schemas")
    if spec.seed.via == "split":
        raise SpecInvalid(
            "there is no way back with seed.via: split: its copiers cannot compare the two clusters",
            where=record.where("way_back", path="seed.via"),
            next_step="keep the new cluster; or connect the two clusters and set seed.via: direct in a spec of its own",
        )
    if spec.schemas.copies and spec.schemas.ids == "translate":
        raise SpecInvalid(
            "there is no way back with schemas.ids: translate: records carry ids of the new registry",
            where=where,
            next_step="keep the new cluster, or move the clients back by a migration in the other direction into "
            "other topics",
        )
    if spec.schemas.copies and spec.schemas.rename != type(spec.schemas.rename)():
        raise SpecInvalid(
            "there is no way back with schemas.rename: subjects have other names on the new registry",
            where=where,
            next_step="keep the new cluster, or go back without registries: remove the section schemas",
        )


def transactional_topics(record: MigrationRecord) -> list[str]:
    """Return the source topics of a migration that were copied in transactions: they cannot go back.

    Other producers write to such a topic on the target, so its log has no position that both sides agree on.
    """
    return sorted({item.topic for item in record.partitions().values() if item.verdict is Verdict.TRANSACTIONAL})


def _topics(record: MigrationRecord, section: WayBackSection) -> dict[str, Any]:
    """Select the migrated topics by their names on the new cluster, and those that match the selection there."""
    forward = record.spec.topics
    names = {item.target_topic: item.topic for item in record.partitions().values()}
    refused = set(transactional_topics(record))
    migrated = {target: source for target, source in sorted(names.items()) if source not in refused}
    prefix = re.escape(forward.rename.prefix)
    new = [f"{prefix}(?:{pattern})" if prefix else pattern for pattern in forward.include]
    # What the first migration left out stays out, also where it had another name there.
    left_out = [_not(f"{prefix}(?:{pattern})" if prefix else pattern, list(migrated)) for pattern in forward.exclude]
    lost = [re.escape(target) for target, source in sorted(names.items()) if source in refused]
    return {
        "include": [*(re.escape(name) for name in migrated), *new],
        "exclude": [*left_out, *lost, *section.exclude],
        "rename": {
            "prefix": "",
            "topics": {
                target: source
                for target, source in migrated.items()
                if target != source and not any(re.fullmatch(pattern, target) for pattern in section.exclude)
            },
        },
    }


def _not(pattern: str, names: list[str]) -> str:
    """Return a pattern without the names that it must not match; the pattern itself if it matches none of them."""
    matched = [name for name in names if re.fullmatch(pattern, name)]
    return f"(?!(?:{'|'.join(map(re.escape, matched))})$)(?:{pattern})" if matched else pattern


def offsets_of_return(forward: dict[str, Any]) -> dict[str, Any]:
    """Every partition goes back with one constant, whatever it was: so nothing may become ``mapped`` on the way."""
    return {
        **forward,
        "mode": "auto",
        "by_topic": [],
        "on_mismatch": "stop",
        "on_foreign_writer": "stop",
        "on_source_truncation": "stop",
        "on_overtaken_tombstones": "note" if forward["on_overtaken_tombstones"] == "note" else "stop",
    }


def schemas_of_return(forward: MigrationSpec, data: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``schemas`` with both registries exchanged."""
    if not forward.schemas.copies:
        return {}
    return {**data, "source": data["target"], "target": data["source"], "ids": "keep", "source_registry": "leave"}
