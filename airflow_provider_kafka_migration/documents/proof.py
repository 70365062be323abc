"""What validation asks and what it answers: six checks with per-partition detail.

The third check, the content of all records, is done by a runner that the context carries (Spark or local). The phase
gives it a list of :class:`ContentRange` and gets one :class:`PartitionContent` for each of them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Verdict


class Outcome(StrEnum):
    """Result of a check, a validation or an evidence bundle; ordered by :func:`worst`."""

    PASSED = "PASSED"
    WARNING = "WARNING"
    FAILED = "FAILED"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of some outcomes; PASSED for none."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.PASSED)


class ContentRange(Part):
    """What is to be compared of one partition. Offsets are inclusive at the start, exclusive at the end."""

    topic: str
    target_topic: str
    partition: int
    verdict: Verdict
    source_start_offset: int
    source_end_offset: int
    target_start_offset: int
    target_end_offset: int

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)


class ContentDifference(Part):
    """One difference between the two logs that nothing explains."""

    kind: Literal["missing", "extra", "changed", "duplicate", "order", "offset", "unreadable"]
    source_offset: int | None = None
    target_offset: int | None = None
    detail: str = Field("", description="which part differs; never a key's or value's content")


class PartitionContent(Part):
    """What the comparison of one partition found. Partial failure is data."""

    topic: str
    partition: int
    source_records: int = Field(description="visible records read in the source's range")
    target_records: int = Field(description="visible records read in the target's range")
    compared: int = Field(description="records found equal on both sides")
    source_digest: str = Field("", description="digest of the compared content, hex")
    target_digest: str = ""
    method: Literal["payload", "decoded", "archive"] = "payload"
    explained: dict[str, int] = Field(
        default_factory=dict,
        description="records that only the target has and why that is right: compacted, expired, unkeyed",
    )
    uncompared: list[tuple[int, int]] = Field(
        default_factory=list,
        description="source ranges, end exclusive, that the source had deleted before anybody compared them",
    )
    uncompared_records: int = Field(0, description="records of the target in these ranges")
    archive_records: int = Field(0, description="of the compared records: those that only the archive still had")
    uncompared_reason: str = Field("", description="why the archive did not help")
    difference_count: int = 0
    differences: list[ContentDifference] = Field(default_factory=list, description="the first ones, ascending")
    error: dict[str, Any] | None = Field(None, description="MigrationError.as_dict(): the partition was not compared")

    @property
    def key(self) -> tuple[str, int]:
        """(source topic, partition)."""
        return (self.topic, self.partition)

    @property
    def is_equal(self) -> bool:
        """Nothing differs. Ranges that could not be compared may be left: see :attr:`is_proven`."""
        return self.error is None and self.difference_count == 0

    @property
    def is_proven(self) -> bool:
        """Everything was compared, and is equal or explained. Records of which none was compared prove nothing."""
        return self.is_equal and not self.uncompared and (self.compared > 0 or self.target_records == 0)


class ContentVerifier(Protocol):
    """Compares the content of all records: implemented on Spark and in one process."""

    def verify(self, ranges: Sequence[ContentRange]) -> Iterable[PartitionContent]:
        """One result per range, in any order.

        A partition that cannot be compared is a result with ``error``, not an exception; an exception means that
        the run as a whole did not work and can be tried again.
        """


class CheckResult(Part):
    """One of the checks."""

    name: Literal["topic_parity", "counts_and_offsets", "content", "sentinels", "groups", "source_drift"]
    outcome: Outcome
    summary: str
    partitions: list[dict[str, Any]] = Field(default_factory=list, description="per-partition detail")
    findings: list[str] = Field(default_factory=list, description="what is not as it should be, for people")


class ValidationResult(Document):
    """``results/validation.json``."""

    version: int = 1
    migration_id: str
    outcome: Outcome
    checks: list[CheckResult]
    started_at: str
    finished_at: str

    def check(self, name: str) -> CheckResult:
        """A check by its name; raises ``KeyError``."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)
