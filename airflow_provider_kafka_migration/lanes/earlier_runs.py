"""What earlier drivers of a copy job have counted, so that figures speak of the job and not of its last driver.

These sums are for people while a job runs. A driver that is killed has not counted its last slices; the exact number of
records at the end comes from the target's log (``PartitionResult.total_records``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.lanes.figures import SUMS as LIVE_SUMS
from airflow_provider_kafka_migration.lanes.figures import live_lanes, not_merged
from airflow_provider_kafka_migration.storage.base import ObjectStore

_SUMS = ("records", "copied_bytes", "source_bytes", "holes", "transaction_holes", "seconds")


@dataclass(frozen=True)
class EarlierRuns:
    """Sums over the drivers before this one.

    :param runs: how many there were.
    :param sums: by the names that progress documents have.
    :param slices: number of the last slice that is in them, by lane.
    """

    runs: int
    sums: Mapping[str, float]
    slices: Mapping[str, int]

    @classmethod
    def read(cls, store: ObjectStore, migration_id: str, job: str) -> EarlierRuns:
        """From the progress document that the last driver has left; nothing if there was none."""
        data = store.get(f"{migration_id}/progress/{job}.json")
        document = json.loads(data) if data else {}
        # Documents of earlier releases speak of one driver only.
        found = document.get("all_runs") or document
        runs = int(found.get("runs", 1)) if document else 0
        sums = {name: found.get(name, 0) for name in _SUMS}
        slices = dict(document.get("slices") or {})
        # What a killed driver has not merged, its copiers have told.
        lanes = live_lanes(store, migration_id, job)
        for item in not_merged(lanes, slices):
            for name in LIVE_SUMS:
                sums[name] += getattr(item, name)
        for lane in lanes:
            last = max((item.slice_number for item in lane.slices), default=0)
            slices[str(lane.lane)] = max(slices.get(str(lane.lane), 0), last)
        return cls(runs, sums, slices)

    def with_run(self, progress: Mapping[str, Any]) -> dict[str, float]:
        """The sums with those of the present driver."""
        sums = {name: self.sums[name] + progress[name] for name in _SUMS}
        return {"runs": self.runs + 1, **sums, "seconds": round(sums["seconds"], 3)}
