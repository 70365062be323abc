"""Log starts above 0: an empty target partition gets fillers, then is cut, so that its next offset is the source's."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_provider_kafka_migration.copy.holes import delete_fillers_again, fill_log_start
from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument, ProducerIds
from airflow_provider_kafka_migration.documents.plan import Plan, Verdict
from airflow_provider_kafka_migration.errors import CopyFailed, ForeignData, MigrationError
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord

PHASE = "topology_copy"
WORKERS = 4
PROGRESS_SECONDS = 2.0

#: (target topic, partition, wanted log start)
Wanted = tuple[str, int, int]


def restore_log_starts(record: MigrationRecord, target: Cluster, document: OffsetMapDocument) -> int:
    """Delete fillers that a crashed broker has brought back, and return the number of partitions.

    :raises MigrationError: the error of the first partition that could not be restored.
    """
    partitions = record.partitions()
    adopted = {key for key, item in partitions.items() if item.adopted}
    wanted = {
        (item.target_topic, item.partition): item.target_start_offset
        for item in document.partitions
        if item.target_start_offset
        and item.verdict != Verdict.TRANSACTIONAL
        and (item.topic, item.partition) not in adopted
    }
    if not wanted:
        return 0
    wire = target.wire
    filler_producer_id = record.producer_ids().filler_producer_id
    done = delete_fillers_again(wire, wire.list_offsets(list(wanted), "earliest"), wanted, filler_producer_id)
    for found in done.values():
        if isinstance(found, MigrationError):
            raise found
    return len(done)


def set_log_starts(context: PhaseContext, plan: Plan, producers: ProducerIds) -> dict[str, int]:
    """Fill and cut all partitions that need it; returns ``{"partitions": n, "offsets": n}`` of what this call did.

    The target's log starts show what is done, so a run that was killed continues from there.

    :raises ForeignData: a partition holds other data, or starts beyond the wanted offset.
    :raises CopyFailed: several partitions failed; the error lists all.
    """
    wanted = [
        (topic.target_name, item.partition, item.filler_offsets)
        for topic in plan.topics
        for item in topic.partitions
        if item.filler_offsets > 0
    ]
    if not wanted:
        return {"partitions": 0, "offsets": 0}
    present = context.target.wire.list_offsets([item[:2] for item in wanted], "earliest")
    for topic, partition, start in wanted:
        if present[topic, partition] > start:
            raise ForeignData(
                f"the log already starts at {present[topic, partition]}, but it must start at {start}",
                where=context.where(PHASE, cluster="target", topic=topic, partition=partition),
                next_step="find out who deleted records there; delete the target topic and clear topology_copy",
            )
    todo = sorted((item for item in wanted if present[item[:2]] < item[2]), key=lambda item: -item[2])
    if todo:
        _Filling(context, producers, todo).run()
    return {"partitions": len(todo), "offsets": sum(item[2] for item in todo)}


class _Filling:
    """A few threads, each with its own connections; the main thread checks the claim while they work."""

    def __init__(self, context: PhaseContext, producers: ProducerIds, todo: Sequence[Wanted]) -> None:
        self._context = context
        self._producers = producers
        self._todo = list(todo)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._done = 0
        self._filled: dict[tuple[str, int], int] = {}
        self._errors: dict[tuple[str, int], MigrationError] = {}

    def run(self) -> None:
        """Fill all partitions.

        :raises ClaimLost: another process has taken over the migration; nothing more is written.
        """
        count, queue = len(self._todo), list(reversed(self._todo))
        with ThreadPoolExecutor(min(WORKERS, count), thread_name_prefix="log-start") as pool:
            workers = [pool.submit(self._work, queue) for _ in range(min(WORKERS, count))]
            try:
                while not all(worker.done() for worker in workers):
                    self._context.journal.check_holds()
                    self._report()
                    self._wait(workers)
            except BaseException:
                self._stop.set()
                raise
            for worker in workers:
                worker.result()
        self._report()
        self._raise()

    def _wait(self, workers: Sequence[Any]) -> None:
        deadline = time.monotonic() + PROGRESS_SECONDS
        while time.monotonic() < deadline and not all(worker.done() for worker in workers):
            self._stop.wait(0.02)

    def _work(self, queue: list[Wanted]) -> None:
        target = self._context.target.clone()
        try:
            while not self._stop.is_set():
                with self._lock:
                    if not queue:
                        return
                    item = queue.pop()
                self._one(target, item)
        finally:
            target.close()

    def _one(self, target: Cluster, item: Wanted) -> None:
        topic, partition, start = item

        def progress(filled: int, _wanted: int) -> None:
            self._filled[topic, partition] = filled
            if self._stop.is_set():
                raise InterruptedError

        try:
            fill_log_start(target.wire, topic, partition, start, self._producers, on_progress=progress)
            target.wire.delete_records({(topic, partition): start})
        except InterruptedError:
            return
        except MigrationError as error:
            with self._lock:
                self._errors[topic, partition] = error
            return
        with self._lock:
            self._done += 1

    def _report(self) -> None:
        filled, total = sum(list(self._filled.values())), sum(item[2] for item in self._todo)
        text = f"log starts: {self._done} of {len(self._todo)} partitions, {filled:,} of {total:,} offsets filled"
        self._context.progress(Progress(PHASE, text, self._done, len(self._todo), "partitions"))

    def _raise(self) -> None:
        if not self._errors:
            return
        (topic, partition), first = min(self._errors.items())
        if len(self._errors) == 1:
            raise first
        raise CopyFailed(
            f"the log starts of {len(self._errors)} partitions could not be set; {topic}-{partition}: {first.what}",
            where=self._context.where(PHASE, cluster="target", topic=topic, partition=partition),
            next_step=f"{first.next_step}; then clear topology_copy",
            details={"partitions": [error.as_dict() for _, error in sorted(self._errors.items())]},
        )
