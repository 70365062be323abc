"""The offset maps of a lane's partitions, and the runs that its copier adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.offset_map.runs import PartitionMap, Run
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.offset_map.topic_key import topic_key
from airflow_provider_kafka_migration.storage.base import ObjectStore


def base_run(spec: CopyPartition) -> Run:
    """The first run of a partition, from the plan."""
    return Run(spec.source_start_offset, spec.target_start_offset)


class LaneMaps:
    """Maps of one lane. Most partitions have their base run only, and no object: one listing tells which have more.

    :param check: raises when this owner may not write any more; asked before each write.
    """

    def __init__(self, store: ObjectStore, migration_id: str, check: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._check = check
        self._migration_id = migration_id
        self._logs: dict[tuple[str, int], RunLog] = {}
        self._maps: dict[tuple[str, int], PartitionMap] = {}
        self._with_objects: set[str] | None = None

    def load(self, spec: CopyPartition, target_end_offset: int) -> PartitionMap:
        """Take the map of a partition over, before its copy resumes.

        :param target_end_offset: the target's log end: runs at or above it were written ahead by somebody who died
            before the first append of them, and are void.
        """
        if self._has_objects(spec):
            log = self._run_log(spec)
            self._maps[spec.key] = log.take_over(target_end_offset)
            self._logs[spec.key] = log
        else:
            self._logs.pop(spec.key, None)
            self._maps[spec.key] = PartitionMap([base_run(spec)])
        return self._maps[spec.key]

    def _has_objects(self, spec: CopyPartition) -> bool:
        if self._with_objects is None:
            prefix = f"{self._migration_id}/offset-map/"
            found = (info.key.removeprefix(prefix).split("/") for info in self._store.list(prefix))
            self._with_objects = {"/".join(parts[:2]) for parts in found if len(parts) > 2}
        return f"{topic_key(spec.topic)}/{spec.partition}" in self._with_objects

    def _run_log(self, spec: CopyPartition) -> RunLog:
        return RunLog(
            self._store,
            self._migration_id,
            spec.topic,
            spec.partition,
            base_run(spec),
            topic_id=spec.topic_id,
        )

    @property
    def maps(self) -> dict[tuple[str, int], PartitionMap]:
        """Maps by (source topic, partition)."""
        return self._maps

    def write_ahead(self, spec: CopyPartition, confirmed_offset: int, runs: Sequence[Run]) -> None:
        """Make runs durable, and known here, before the first of their records is appended.

        :param confirmed_offset: the target's log end, from where on earlier runs are void.
        """
        self._check()
        log = self._logs.get(spec.key)
        if log is None:
            log = self._run_log(spec)
            self._maps[spec.key] = log.take_over(confirmed_offset)
            self._logs[spec.key] = log
        log.write_ahead(runs)
        self._maps[spec.key].override(runs[0].target_start, runs)
        if self._with_objects is not None:
            self._with_objects.add(f"{topic_key(spec.topic)}/{spec.partition}")
