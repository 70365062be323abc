"""Documents of the transactional mode: pages of a partition's offset map that no longer fit into the commit's metadata.

What the target itself holds (the metadata of a committed group offset) names the newest page, and each page the one
before it: a page that no commit names was written by somebody who died before the commit, and does not count.
"""

from __future__ import annotations

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.offset_map import MappedPartition


class MapPage(Document):
    """Runs of one partition that were committed on the target, or are about to be."""

    version: int = 1
    migration_id: str
    topic: str
    partition: int
    number: int = Field(description="ascending from 1")
    previous: str = Field("", description="name of the page before this one; empty: this is the first")
    producer_ids: list[int] = Field(default_factory=list, description="under which the runs were written, ascending")
    runs: list[int] = Field(
        default_factory=list,
        description="flat, three numbers a run: source offsets skipped since the end of the run before (the first: "
        "since 0), target offsets skipped likewise, length",
    )


class CopyBegun(Document):
    """A position of this partition was committed on the target: if it is not there any more, it was lost."""

    version: int = 1
    migration_id: str
    topic: str
    partition: int
    group: str


class FinalMap(Document):
    """The map of one partition as the final drain has found it, for the comparison of contents."""

    version: int = 1
    migration_id: str
    producer_ids: list[int] = Field(default_factory=list, description="of all runs, ascending: whose batches are ours")
    map: MappedPartition
