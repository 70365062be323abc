"""Offsets of consumer groups on a mirror's target, up to date from the moment that a partition is mirrored (KIP-545).

Only groups that are idle on the target are written, and never backwards. A group may have read further on the source
than the mirror has copied. It is then held at the end of the copy: a consumer that fails over reads nothing again and
misses nothing of what was mirrored, and an offset beyond the target's log end would send it to ``auto.offset.reset``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import GroupSnapshot, GroupsResult, TranslatedOffset
from airflow_provider_kafka_migration.errors import ClaimHeld, ClaimLost, JournalTampered, MigrationError
from airflow_provider_kafka_migration.groups.commit import (
    GroupTranslator,
    commit,
    make_result,
    read_groups,
    summarize,
)
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.partition_names import target_key

log = logging.getLogger(__name__)

PHASE = "mirror"
_FINAL = (ClaimHeld, ClaimLost, JournalTampered)
_HELD = "the group has read further on the source than is mirrored: it is held at the end of the copy, {end}"


@dataclass(frozen=True)
class MirroredTranslator(GroupTranslator):
    """Translations that never point beyond what is mirrored.

    :param ends: high watermark of each target partition, by (target topic, partition).
    """

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def translate(self, group: GroupSnapshot) -> list[TranslatedOffset]:
        """Translate all offsets of a group, and hold those back that the copy has not reached."""
        return [self._held(item) for item in super().translate(group)]

    def _held(self, item: TranslatedOffset) -> TranslatedOffset:
        end = self.ends.get((item.target_topic, item.partition))
        if item.target_offset is None or end is None or item.target_offset <= end:
            return item
        return item.model_copy(update={"target_offset": end, "reason": _HELD.format(end=end)})


def sync_once(context: PhaseContext) -> GroupsResult:
    """Bring the groups on the target up to date, and write ``results/groups.json``. Failures are in the result.

    The target's ends are read after the groups, so that what was mirrored meanwhile counts, and before the maps: a map
    that is read afterwards covers everything below them.
    """
    record = context.record
    snapshots = read_groups(record, context.source)
    partitions = record.partitions()
    ends = context.target.wire.list_offsets([target_key(item) for item in partitions.values()], "latest")
    live = GroupTranslator.live(record, context.target)
    translator = MirroredTranslator(live.partitions, live.maps, live.below, ends)
    context.journal.check_holds()
    results = commit(context, snapshots, translator)
    result = make_result(record, results, snapshots)
    record.put_result(keys.GROUPS, result)
    return result


class GroupSync:
    """Syncs in a thread with its own connections until the ``with`` block ends; nothing if the spec says so."""

    def __init__(self, context: PhaseContext) -> None:
        self._context = context
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GroupSync:
        if self._context.spec.mirror.sync_groups:
            self._thread = threading.Thread(target=self._run, name="group-sync", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def once(self, memory: dict[str, Any]) -> None:
        """Sync once in this thread, for a task that wakes up now and then.

        :param memory: remembers the outcome from one time to the next, so that only changes are told.
        """
        if self._context.spec.mirror.sync_groups:
            memory["groups"] = self._pass(self._context, memory.get("groups", ""))

    def _run(self) -> None:
        own = replace(
            self._context,
            source=self._context.source.clone(),
            target=self._context.target.clone(),
            progress=lambda _progress: None,
        )
        told = ""
        try:
            while not self._stop.wait(own.spec.mirror.sync_interval.total_seconds()):
                told = self._pass(own, told)
        except _FINAL as error:
            log.warning("Groups are no longer brought up to date: %s", error)
        except Exception:
            log.exception("Groups are no longer brought up to date")
        finally:
            own.source.close()
            own.target.close()

    def _pass(self, context: PhaseContext, told: str) -> str:
        """Sync once and tell the outcome, if it is another one than before; return it."""
        try:
            text = f"groups: {summarize(sync_once(context).groups)}"
        except _FINAL:
            raise
        except MigrationError as error:
            text = f"groups could not be brought up to date: {error.what}"
            log.warning("%s", error)
        if text != told:
            self._context.progress(Progress(PHASE, text))
        return text
