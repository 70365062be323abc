"""The spec of a mirror that fails back, derived from the promoted mirror that it reverses. Pure, but for the record.

The mirror back of ``a-to-b`` is the mirror ``a-to-b.back``: source and target are exchanged, and so are the topics'
names, so that ``A.orders`` on B is ``orders`` on A again. It begins where the promoted mirror ended. Once it is
promoted itself, the same derivation leads forth again, under the names of the first mirror.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_kafka_migration.errors import SpecInvalid, Terminal
from airflow_provider_kafka_migration.record import rolling_back
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.state import State, mirror_name
from airflow_provider_kafka_migration.verbs import Choice
from airflow_provider_kafka_migration.way_back.derived_spec import (
    check_can_return,
    offsets_of_return,
    schemas_of_return,
    transactional_topics,
    way_back_id,
)


def derive(
    record: MigrationRecord,
    *,
    on_diverged: Choice = "stop",
    first: MigrationSpec | None = None,
) -> MigrationSpec:
    """Return the spec of the mirror back.

    :param record: of the promoted mirror.
    :param on_diverged: ``adopt.on_diverged`` of the new spec.
    :param first: spec of the mirror that the promoted one reversed itself: the new mirror leads forth again, and gets
        its names and its selection.
    :raises Terminal: the mirror is not promoted.
    :raises SpecInvalid: this mirror cannot fail back, with the reason.
    """
    forward = record.spec
    _check_promoted(record)
    check_can_return(record)
    data = forward.model_dump(mode="json", by_alias=True)
    mirror = {
        **data["mirror"],
        "source_alias": forward.mirror.target_alias,
        "target_alias": forward.mirror.source_alias,
        "two_way": False,
        "policy": "",
        "max_hops": None,
    }
    if forward.mirror.naming != "identity":
        mirror["naming"] = "rename"
    data |= {
        "migration_id": way_back_id(forward.migration_id),
        "description": f"fails back from {forward.migration_id}",
        "source": data["target"],
        "target": data["source"],
        "mirror": mirror,
        "topics": _topics(record),
        # The old topics keep their own settings, and the old cluster its own access: it is as clients left it.
        "topology": {**data["topology"], "on_config_drift": "note", "on_source_drift": "note"},
        "acls": {"policy": "skip", "quotas": "skip"},
        # The groups of the old side are its clients' own.
        "groups": {**data["groups"], "on_deleted": "note"},
        "offsets": offsets_of_return(data["offsets"]),
        "schemas": schemas_of_return(forward, data["schemas"]),
        "seed": {**data["seed"], "via": "direct"},
        "waive": [],
        "adopt": {"from": "mirror", "migration_id": forward.migration_id, "on_diverged": on_diverged},
    }
    data.pop("way_back", None)
    if first is not None:
        there = first.model_dump(mode="json", by_alias=True)
        data |= {name: there[name] for name in ("mirror", "topics", "topology", "acls")}
        data["groups"] = {**data["groups"], "on_deleted": there["groups"]["on_deleted"]}
    # The boundary says where mirrored topics begin; of new ones everything goes back.
    ends = {"target_retention": _retention(data["mirror"]["target_retention"]), "start": "earliest"}
    data["mirror"] = {**data["mirror"], **ends}
    return parse_spec(data, recorded=True)


def _retention(policy: str) -> str:
    """Return what the target of the mirror back deletes: it has a history of its own, which the source never had.

    Log starts that follow those of the source would delete records that exist nowhere else.
    """
    return "own" if policy == "source" else policy


def _check_promoted(record: MigrationRecord) -> None:
    record.journal.refresh()
    state = record.journal.tip_state
    if state is State.PROMOTED:
        rolling_back.check_not_begun(record.journal, record.spec, "fail_back")
        return
    raise Terminal(
        f"there is nothing to fail back from: the mirror is {'not started' if state is None else mirror_name(state)}",
        where=record.where("fail_back"),
        next_step="nothing is to be brought back: no client was told to use its target"
        if state is State.ENDED
        else "promote it first (kafka-migration mirror promote FILE; with --source-gone if its source is gone)",
    )


def _topics(record: MigrationRecord) -> dict[str, Any]:
    """Select the mirrored topics by their names on the promoted side; under equal names also new ones there."""
    forward = record.spec
    refused = set(transactional_topics(record))
    names = {item.target_topic: item.topic for item in record.partitions().values() if item.topic not in refused}
    if not names:
        raise SpecInvalid(
            "no topic can fail back: all were copied in transactions next to other producers",
            where=record.where("fail_back"),
            next_step="mirror them back under other names, with a spec of its own",
        )
    keeps_names = forward.mirror.naming == "identity"
    lost = {item.target_topic for item in record.partitions().values()} - set(names)
    return {
        "include": [*(re.escape(name) for name in sorted(names)), *(forward.topics.include if keeps_names else [])],
        "exclude": [*(forward.topics.exclude if keeps_names else []), *(re.escape(name) for name in sorted(lost))],
        "rename": {"prefix": "", "topics": {} if keeps_names else dict(sorted(names.items()))},
    }
