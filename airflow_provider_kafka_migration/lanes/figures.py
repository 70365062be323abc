"""What copiers have moved in slices that are still under way. Results come at a slice's end, up to a minute later.

``<migration_id>/progress/<job>/lane-000003.json`` holds the last slices of a lane with their figures so far. Readers
add those that the driver has not merged yet. For people only: nothing is decided by it, and a write that fails is left
out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field, ValidationError

from airflow_provider_kafka_migration.copy.partition import PartitionCopy
from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.storage.base import ObjectStore

WRITE_SECONDS = 2.0
#: The driver may not have merged these yet.
_KEPT_SLICES = 3
SUMS = ("records", "copied_bytes", "source_bytes", "holes")

log = logging.getLogger(__name__)


class SliceFigures(Part):
    """One slice of a lane so far."""

    slice_number: int = Field(description="number of the lane's lease, ascending over all jobs")
    records: int = 0
    copied_bytes: int = 0
    source_bytes: int = 0
    holes: int = 0
    seconds: float = 0.0


class LaneFigures(Document):
    """The last slices of a lane, ascending."""

    version: int = 1
    lane: int
    slices: list[SliceFigures]


def _prefix(migration_id: str, job_name: str) -> str:
    return f"{migration_id}/progress/{job_name}/"


class FiguresWriter:
    """Writes the figures of a slice every few seconds, in a thread: the copier never waits for it.

    :param names: which figures: the backup half of a split job only reads, its restore half counts the rest.
    """

    def __init__(
        self,
        store: ObjectStore,
        migration_id: str,
        job_name: str,
        lane: int,
        slice_number: int,
        *,
        names: Sequence[str] = SUMS,
    ) -> None:
        self._store = store
        self._names = names
        self._key = f"{_prefix(migration_id, job_name)}lane-{lane:06d}.json"
        self._lane = lane
        self._number = slice_number
        self._began = time.monotonic()
        self._stop = threading.Event()

    @contextmanager
    def watching(self, copies: Sequence[PartitionCopy]) -> Iterator[None]:
        """Write for as long as the block runs, and once more behind it; the block's end does not wait for that."""
        threading.Thread(target=self._run, args=(copies,), name=f"figures-{self._lane}", daemon=True).start()
        try:
            yield
        finally:
            self._stop.set()

    def _run(self, copies: Sequence[PartitionCopy]) -> None:
        former: list[SliceFigures] | None = None
        written: dict[str, int] | None = None
        while True:
            ended = self._stop.wait(WRITE_SECONDS)
            sums = {name: sum(getattr(copy, name) for copy in copies) for name in self._names}
            try:
                if former is None:
                    former = self._former()
                if sums != written:
                    self._write(former, sums)
                    written = sums
            except MigrationError as error:
                log.debug("figures of lane %s could not be written: %s", self._lane, error)
            if ended:
                return

    def _former(self) -> list[SliceFigures]:
        found = _read(self._store, self._key)
        slices = [] if found is None else found.slices
        return [item for item in slices if item.slice_number < self._number][-(_KEPT_SLICES - 1) :]

    def _write(self, former: list[SliceFigures], sums: Mapping[str, int]) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        now = SliceFigures(slice_number=self._number, seconds=seconds, **sums)
        self._store.put(self._key, LaneFigures(lane=self._lane, slices=[*former, now]).canonical())


def _read(store: ObjectStore, key: str) -> LaneFigures | None:
    data = store.get(key)
    try:
        return None if data is None else LaneFigures.parse(data)
    except ValidationError:
        return None


def live_lanes(store: ObjectStore, migration_id: str, job_name: str) -> list[LaneFigures]:
    """The figures of all lanes of a job, ascending."""
    infos = store.list(_prefix(migration_id, job_name))
    found = (_read(store, key) for key in sorted(info.key for info in infos))
    return [item for item in found if item is not None]


def not_merged(lanes: Sequence[LaneFigures], merged: Mapping[str, int]) -> list[SliceFigures]:
    """Slices that are not in the sums of a progress document.

    :param merged: number of the last slice that is, by lane; as text, since it comes from JSON.
    """
    return [item for lane in lanes for item in lane.slices if item.slice_number > merged.get(str(lane.lane), 0)]


def with_live_figures(store: ObjectStore, document: Mapping[str, Any]) -> dict[str, Any]:
    """A progress document with what the slices under way have moved so far added to its sums."""
    shown = dict(document)
    if not document or document.get("finished") or "slices" not in document:
        return shown
    lanes = live_lanes(store, str(document["migration_id"]), str(document["job"]))
    slices = not_merged(lanes, document["slices"])
    if not slices:
        return shown
    everything = dict(document.get("all_runs") or {})
    for name in SUMS:
        more = sum(getattr(item, name) for item in slices)
        shown[name] = document.get(name, 0) + more
        everything[name] = everything.get(name, 0) + more
    shown["all_runs"] = everything
    latest = not_merged([lane.model_copy(update={"slices": lane.slices[-1:]}) for lane in lanes], document["slices"])
    rates = [item.records / item.seconds for item in latest if item.seconds > 0]
    if rates:
        shown["records_per_second"] = round(sum(rates), 1)
    return shown
