"""Documents of the cutover: what froze, where the source ends, and how long it took."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class Bypass(Part):
    """A partition that somebody went on writing to after the freeze."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    producers: list[dict[str, Any]] = Field(
        default_factory=list, description="producer_id, producer_epoch, last_timestamp, transactional_id if known"
    )


class FreezeResult(Document):
    """The freeze of one attempt, verified on the source's brokers."""

    version: int = 1
    migration_id: str
    attempt: int
    method: Literal["webhook", "manual", "acl"]
    requested_at: str
    verified_at: str
    deadline: str
    ends: dict[str, int] = Field(description='"topic-partition" to the source\'s log end when it stood still')
    bypasses: list[Bypass] = Field(default_factory=list)
    details: dict[str, Any] = Field(default_factory=dict)


class Sentinel(Part):
    """Where the sentinel of a partition is on the source."""

    topic: str
    partition: int
    offset: int


class Boundary(Document):
    """``results/boundary.json``: the end of the source. Exclusive offsets after the sentinels."""

    version: int = 1
    migration_id: str
    attempt: int
    mode: Literal["record", "end_offsets"]
    sentinels: list[Sentinel] = Field(default_factory=list)
    ends: dict[str, int] = Field(description='"topic-partition" to the source\'s exclusive end offset')


class FrozenTime(Document):
    """Seconds that producers felt, from the request to stop to READY_FOR_CLIENT_SWITCH, in all and per step."""

    version: int = 1
    migration_id: str
    attempt: int
    requested_at: str
    verified_at: str
    ready_at: str
    stopped_at: str = Field("", description="from when frozen_seconds counts; empty: verified_at, by older releases")
    frozen_seconds: float = Field(
        description="from stopped_at, which is the request, or with freeze: manual the approval that confirmed the stop"
    )
    steps: dict[str, float] = Field(
        description="step to its seconds, freeze being request to verification; the rest is waiting between the steps"
    )
