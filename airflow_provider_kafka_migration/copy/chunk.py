"""A chunk: what one fetch, or one archived segment, says of a stretch of one partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch
from airflow_provider_kafka_migration.kafka.fetch import Aborted


@dataclass(slots=True)
class Chunk:
    """Raw batches of one partition in offset order, and what is known of their surroundings.

    ``[from_offset, until_offset)`` is covered: the source has no committed record in it that isn't in ``batches``.
    The first batch may begin below ``from_offset``, and there may be no batch at all.
    """

    topic: str
    partition: int
    #: first offset that is covered
    from_offset: int
    #: everything below it, down to ``from_offset``, is covered
    until_offset: int
    #: batches as the broker stores them; a truncated last one lies at or above ``until_offset``
    batches: memoryview
    #: aborted transactions that overlap the batches, in any order
    aborted: list[Aborted] = field(default_factory=list)
    #: as told with the fetch; -1 if not known
    last_stable_offset: int = -1
    log_start_offset: int = -1
    origin: Literal["kafka", "segment"] = "kafka"
    #: bytes that were read from the source cluster for it: 0 from segments
    source_bytes: int = 0
    #: ``batches``, whole ones, if somebody has looked at them already
    parsed: list[AnyBatch] | None = field(default=None, compare=False, repr=False)
