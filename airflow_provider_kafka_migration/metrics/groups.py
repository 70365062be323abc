"""How the consumer groups and heartbeats of a mirror stand, from what its last rounds have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import IS_BEHIND
from airflow_provider_kafka_migration.storage.base import ObjectStore


@dataclass(frozen=True)
class GroupFigures:
    """The groups of one round.

    :param at: when the round ended, in seconds since 1970.
    :param behind: groups that are not on the target where they are on the source: they have read further than is
        mirrored, the copy of a partition has an error, or they could not be read or written.
    :param failed: those of them that could not be read or written.
    :param left_alone: groups that are not written for a reason, for instance because they have members on the target.
    """

    at: float
    groups: int
    behind: int
    failed: int
    left_alone: int

    @classmethod
    def read(cls, store: ObjectStore, migration_id: str) -> GroupFigures | None:
        """Read the last round; None if there was none yet. That of the cutover counts more than an early one.

        The document is only counted and not checked: it has an entry for each group and partition.

        :raises StorageUnavailable: the storage does not answer.
        """
        for name in ("groups", "groups-early"):
            data = store.get(f"{migration_id}/results/{name}.json")
            if data is not None:
                return cls.of(json.loads(data))
        return None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> GroupFigures:
        """Count the groups of a round."""
        groups = document["groups"]
        failed = sum(bool(group["failures"]) for group in groups)
        return cls(
            at=datetime.fromisoformat(str(document["at"])).timestamp(),
            groups=len(groups),
            behind=sum(bool(group["failures"]) or _is_behind(group) for group in groups),
            failed=failed,
            left_alone=sum(bool(group["skipped_reason"]) and not group["failures"] for group in groups),
        )


def read_failing_since(store: ObjectStore, migration_id: str) -> float | None:
    """Return since when no round of a mirror has succeeded, in seconds since 1970; None: the last one has, or none ran.

    :raises StorageUnavailable: the storage does not answer.
    """
    data = store.get(f"{migration_id}/results/group-sync.json")
    at = "" if data is None else str(json.loads(data).get("failing_since", ""))
    return datetime.fromisoformat(at).timestamp() if at else None


def read_heartbeat(store: ObjectStore, migration_id: str) -> float | None:
    """Return the time of the newest heartbeat of the source on a mirror's target, in seconds since 1970.

    If none has ever arrived, it is the time of the first pass that looked for one: silence has an age, too. None: there
    are no heartbeats.

    :raises StorageUnavailable: the storage does not answer.
    """
    data = store.get(f"{migration_id}/results/mirror-maker-heartbeats.json")
    found = {} if data is None else json.loads(data)
    at = str(found.get("written_at") or found.get("never_since") or "")
    return datetime.fromisoformat(at).timestamp() if at else None


def _is_behind(group: Mapping[str, Any]) -> bool:
    return not group["skipped_reason"] and any(str(item["reason"]).startswith(IS_BEHIND) for item in group["offsets"])
