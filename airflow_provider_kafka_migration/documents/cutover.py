"""Documents of the cutover: the freeze, the end of the source, and how long the freeze took."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, GrownPart, Part
from airflow_provider_kafka_migration.documents.plan import Verdict


class Bypass(Part):
    """A partition to which a producer continued to write after the freeze."""

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
    ends: dict[str, int] = Field(description='"topic-partition" to the source\'s log end once it no longer moved')
    bypasses: list[Bypass] = Field(default_factory=list)
    details: dict[str, Any] = Field(default_factory=dict)


class Sentinel(Part):
    """The position of a partition's sentinel on the source."""

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
    """How many seconds producers were stopped, from the stop request to READY_FOR_CLIENT_SWITCH, total and per step."""

    version: int = 1
    migration_id: str
    attempt: int
    requested_at: str
    verified_at: str
    ready_at: str
    stopped_at: str = Field("", description="start of frozen_seconds; empty: verified_at (older releases)")
    frozen_seconds: float = Field(
        description="from stopped_at: the request, or with freeze: manual the approval that confirmed the stop"
    )
    steps: dict[str, float] = Field(
        description="seconds per step; freeze: from request to verification; the rest is waiting between steps"
    )


# -- approval ---------------------------------------------------------------------------------------------------------
#
# Approvals: what a person was shown, the code that binds the answer to it, and who answered when.


ApprovalKind = Literal["cutover", "client_switch"]


class Responder(Part):
    """Who answered an approval."""

    user_id: str
    user_name: str = ""


class ApprovalFacts(Document):
    """The subject of an approval: live facts, the text shown, and the code.

    The code is the first 8 hex digits of the digest over ``binding``: what will happen. Lag and times change all the
    time; they are shown and checked again at the cutover, but the code does not bind them.
    """

    version: int = 1
    migration_id: str
    kind: ApprovalKind
    code: str = Field(pattern=r"^[0-9a-f]{8}$")
    binding: dict[str, Any]
    facts: dict[str, Any]
    subject: str
    body: str = Field(description="Markdown as shown")
    made_at: str


class ApprovalAnswer(Document):
    """A person's answer to an approval, as stored in the journal and the evidence."""

    LATER_FIELDS = ("target_unread",)

    version: int = 1
    migration_id: str
    kind: ApprovalKind
    decision: Literal["approve", "not_yet", "abort", "back_out"]
    code: str
    responders: list[Responder]
    second: bool = Field(False, description="this is the second of two people")
    answered_at: str
    body_shown: str
    facts_digest: str = ""
    target_unread: bool = Field(
        False, description="back_out: also if the target's logs cannot be read, so that clients may have written there"
    )


# -- groups -----------------------------------------------------------------------------------------------------------
#
# Consumer groups: what was read on the source, its translation for the target, and what was committed.


class Translation(StrEnum):
    """How a committed offset was translated."""

    #: the same number
    EQUAL = "equal"
    #: a different number, the same record
    EXACT = "exact"
    #: it pointed into a hole of the source log: the next record after the hole
    HOLE_FORWARD = "hole_forward"
    #: it was before the first copied record: the first copied record
    RESET_TO_START = "reset_to_start"
    #: it was beyond the last copied record: the end of the copied range
    CLAMPED = "clamped"
    #: it was below the boundary of an adopted partition, where only some positions are known: an earlier one
    EARLIER = "earlier"
    #: nothing was committed; ``reason`` gives the cause
    SKIPPED = "skipped"


class CommittedOffset(Part):
    """One offset that a group has committed on the source. ``metadata`` is kept unchanged."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""


class Uncommitted(Part):
    """A partition of the source that a group reads and in which it has committed nothing."""

    topic: str
    partition: int


class GroupSnapshot(GrownPart):
    """One group as it was on the source."""

    LATER_FIELDS = ("uncommitted",)

    group: str
    type: str = Field(description="classic, consumer, simple, share, streams, unknown")
    state: str
    members: list[str] = Field(default_factory=list, description="client id and host of the members")
    offsets: list[CommittedOffset] = Field(default_factory=list, description="topics of the migration only")
    other_topics: list[str] = Field(default_factory=list, description="committed topics outside the migration")
    uncommitted: list[Uncommitted] = Field(
        default_factory=list,
        description="partitions of topics that members read, without a committed offset: on the target they begin "
        "by auto.offset.reset",
    )
    error: dict[str, Any] | None = None


class GroupsSnapshot(Document):
    """``results/groups-snapshot.json``."""

    version: int = 1
    migration_id: str
    taken_at: str
    groups: list[GroupSnapshot]


class TranslatedOffset(Part):
    """One translated offset. ``target_offset`` is None if nothing may be committed."""

    topic: str
    target_topic: str
    partition: int
    source_offset: int
    target_offset: int | None
    translation: Translation
    verdict: Verdict | None = None
    metadata: str = ""
    reason: str = ""


class NotUndone(Part):
    """An offset on the target that would not be there if groups had not followed before the cutover."""

    topic: str = Field(description="on the target")
    partition: int
    offset: int
    reason: str = Field(description="why it is still there")


class GroupResult(GrownPart):
    """The result for one group on the target. Partial failure is data."""

    LATER_FIELDS = ("not_undone", "uncommitted")

    group: str
    type: str
    source_state: str
    target_state: str = Field("", description="state on the target when it was checked; NotFound if it did not exist")
    offsets: list[TranslatedOffset] = Field(default_factory=list)
    committed: int = Field(0, description="partitions committed by this call")
    unchanged: int = Field(0, description="partitions already correct, or ahead, on the target")
    skipped_reason: str = Field("", description="why the whole group was left alone")
    failures: list[dict[str, Any]] = Field(default_factory=list, description="MigrationError.as_dict() each")
    not_undone: list[NotUndone] = Field(
        default_factory=list,
        description="offsets that were written before the cutover, that the source has no longer, and that stay",
    )
    uncommitted: list[Uncommitted] = Field(
        default_factory=list, description="partitions in which members read, and nothing is committed on either side"
    )

    @property
    def is_complete(self) -> bool:
        """Whether everything that can be committed is committed."""
        return not self.failures and not self.skipped_reason


#: Begins the reason of a translated offset of a group that has read further on the source than a mirror has copied.
AHEAD_OF_COPY = "the group has read further on the source than is copied"
#: Begin the reasons of offsets that are not written now, and may be later.
COPY_HAS_AN_ERROR = "the copy of the partition has an error"
NOTHING_COPIED = "nothing of the partition is mirrored yet"
LAGS_BEHIND_BOUNDARY = "it lags behind the boundary of an adopted partition"
#: The group is not on the target where it is on the source.
IS_BEHIND = (AHEAD_OF_COPY, COPY_HAS_AN_ERROR, NOTHING_COPIED, LAGS_BEHIND_BOUNDARY)


class GroupsResult(Document):
    """``results/groups.json``: the latest state of all groups; rewritten by each refresh."""

    version: int = 1
    migration_id: str
    at: str
    groups: list[GroupResult]
    active_on_source: list[str] = Field(default_factory=list, description="groups with members on the source")
