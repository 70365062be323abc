"""How the tail is, as it says itself: which partitions it does not copy, and whether it says anything at all.

The lags of the brokers tell how far the copy is, not why it stands still: that is in ``progress/tail.json``, which the
tail's driver writes. A document may be of a driver that has ended, so what it says of failed partitions counts when it
was written again while somebody looked, or when nobody has written it for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_kafka_migration.errors import CopyFailed
from airflow_provider_kafka_migration.phases import copy_jobs
from airflow_provider_kafka_migration.phases.context import PhaseContext

PHASE: Final = "tail"
#: A driver that has ended does not write any more; a new one may need so long until it writes for the first time.
STALE_SECONDS = 180.0


@dataclass(frozen=True)
class TailHealth:
    """One look at the tail.

    :param text: for people; empty if all is well.
    :param failed: partitions that wait for a person.
    :param stuck: partitions that are tried again.
    :param is_certain: the failed partitions are those of a running tail, or of the last tail that ran.
    """

    text: str = ""
    failed: int = 0
    stuck: int = 0
    is_certain: bool = False
    troubles: tuple[dict[str, Any], ...] = ()

    @property
    def is_well(self) -> bool:
        """As far as the tail says, every partition is copied."""
        return not self.failed and not self.stuck


class HealthWatch:
    """Looks again and again; what it remembers is only how long the document has been the same.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mark: tuple[object, ...] | None = None
        self._marked_at = clock()
        self._was_rewritten = False

    def look(self, context: PhaseContext) -> TailHealth:
        """How the tail is now. A document of an earlier owner of the migration says nothing of the present tail."""
        document = copy_jobs.progress_document(context, PHASE)
        claim = context.journal.current_claim
        if not document or (claim is not None and document.get("generation") != claim.generation):
            return TailHealth()
        now = self._clock()
        mark = (document.get("run"), document.get("seconds"))
        if mark != self._mark:
            self._was_rewritten = self._mark is not None
            self._mark, self._marked_at = mark, now
        silent = now - self._marked_at
        text = copy_jobs.describe_troubles(document)
        if silent >= STALE_SECONDS:
            text = f"{text}; " if text else ""
            text += f"the tail has not reported for {silent:.0f} s: check that it runs"
        return TailHealth(
            text=text,
            failed=int(document.get("partitions_failed", 0)),
            stuck=int(document.get("partitions_stuck", 0)),
            is_certain=self._was_rewritten or silent >= STALE_SECONDS,
            troubles=tuple(document.get("troubles") or ()),
        )


def check_none_failed(context: PhaseContext, health: TailHealth) -> None:
    """Raise for partitions that nobody copies until a person has done something.

    :raises CopyFailed: with those of them that the tail has named.
    """
    if not health.failed or not health.is_certain:
        return
    failed = [item for item in health.troubles if item["state"] == "failed"]
    first = failed[0] if failed else {}
    raise CopyFailed(
        f"the tail does not copy all partitions any more: {health.text}",
        where=context.where("drain_ready", topic=first.get("topic"), partition=first.get("partition")),
        next_step=f"{first.get('next_step') or 'see progress/tail.json for the reasons'}; then clear tail and "
        "drain_ready (or kafka-migration resume FILE): the tail tries these partitions again",
        details={"partitions": failed},
    )
