"""What the receiver of freeze requests remembers across restarts: one file beside the producers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document


class ReceiverState(Document):
    """The requests that a receiver has followed, and who keeps the producers stopped.

    Times are seconds since 1970 by the receiver's own clock.
    """

    version: int = 1
    orders: dict[str, int] = Field(default_factory=dict, description="by migration: the highest order that came")
    expired: dict[str, int] = Field(
        default_factory=dict,
        description="by migration: the order of the last freeze whose deadline has passed, or that a person ended",
    )
    holders: dict[str, float | None] = Field(
        default_factory=dict,
        description="migrations that keep the producers stopped, and when each lets go by itself; null: it does not",
    )
    producers: Literal["running", "stopped", "unknown"] = Field(
        "unknown", description="what the last command that ended well has made of the producers"
    )
    must_start: bool = Field(False, description="the producers are to be started, and no start has ended well since")
