"""Errors of the product: every one says what failed, where, and what to do next.

Two mixins decide what a scheduler may do with an error:

* :class:`Terminal` - trying again cannot help; a person has to change something.
* :class:`Transient` - the same call may succeed later; clearing the task is enough.

All errors can be pickled, because they cross process borders (Spark executors, Airflow workers).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Where:
    """The place of a failure. Empty fields are left out of the message."""

    migration_id: str | None = None
    phase: str | None = None
    cluster: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    broker: str | None = None
    group: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        names = {"migration_id": "migration"}
        parts = [
            f"{names.get(field.name, field.name)} {getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) is not None and field.name not in ("topic", "partition")
        ]
        if self.topic is not None:
            suffix = "" if self.partition is None else f"-{self.partition}"
            parts.append(f"topic-partition {self.topic}{suffix}" if suffix else f"topic {self.topic}")
        return ", ".join(parts)


class MigrationError(Exception):
    """Base of all errors of this package.

    :param what: what failed, one sentence without a full stop at its end.
    :param where: the place: migration, phase, topic-partition, broker.
    :param next_step: what the reader should do now.
    :param details: data for machines; must be JSON-able and never hold a secret.
    """

    #: Stable name of the kind of error, shown to people and used by tests.
    code = "MIGRATION_ERROR"

    def __init__(
        self,
        what: str,
        *,
        where: Where | None = None,
        next_step: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        self.what = what
        self.where = where or Where()
        self.next_step = next_step
        self.details = details or {}
        super().__init__(self._message())

    def _message(self) -> str:
        place = str(self.where)
        text = f"[{self.code}] {self.what}"
        if place:
            text += f" ({place})"
        if self.next_step:
            text += f". Next: {self.next_step}"
        return text

    def add_next_step(self, text: str) -> None:
        """Add what has become true since the error was made to the end of the next step, once."""
        if text not in self.next_step:
            self.next_step = f"{self.next_step}; {text}" if self.next_step else text
            self.args = (self._message(),)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.next_step, self.details))

    def as_dict(self) -> dict[str, Any]:
        """The error as data, for journals and reports."""
        return {
            "code": self.code,
            "kind": "terminal" if isinstance(self, Terminal) else "transient",
            "what": self.what,
            "where": {key: value for key, value in asdict(self.where).items() if value is not None},
            "next_step": self.next_step,
            "details": self.details,
        }


def followed_by(next_step: str, last: str) -> str:
    """An advice, and what to do after it; "clear the task" is not said twice.

    :param last: how it ends in any case, for instance ``clear seed: it goes on``.
    """
    first = next_step.rstrip()
    for ending in ("then clear the task", "and clear the task", "clear the task"):
        first = first.removesuffix(ending).rstrip(" ;,")
    return f"{first}; then {last}" if first else last


def _rebuild(
    kind: type[MigrationError], what: str, where: Where, next_step: str, details: dict[str, Any]
) -> MigrationError:
    return kind(what, where=where, next_step=next_step, details=details)


class Terminal(MigrationError):
    """Trying again cannot help: a person has to decide or change something."""

    code = "TERMINAL"


class Transient(MigrationError):
    """Trying again later can help: retry or clear the task."""

    code = "TRANSIENT"


class SpecInvalid(Terminal):
    """The spec has mistakes; ``details["mistakes"]`` lists all of them with their paths."""

    code = "SPEC_INVALID"


class ConnectionInvalid(Terminal):
    """A connection is missing or has keys that cannot be used."""

    code = "CONNECTION_INVALID"


class AuthenticationFailed(Terminal):
    """The broker refused the credentials, or the TLS hand-shake failed for good."""

    code = "AUTHENTICATION_FAILED"


class PermissionMissing(Terminal):
    """The principal may not do what the migration needs; names the operation and resource."""

    code = "PERMISSION_MISSING"


class BrokerUnreachable(Transient):
    """No broker of the cluster answered within the bounded wait."""

    code = "BROKER_UNREACHABLE"


class BrokerRefused(Terminal):
    """A broker answered with an error that a retry cannot heal."""

    code = "BROKER_REFUSED"


class BrokerBusy(Transient):
    """A broker answered with a retriable error for longer than the bounded wait."""

    code = "BROKER_BUSY"


class RecordsWithheld(Transient):
    """A broker says that a log goes on, and gives no records, or only a piece of a batch: nothing is concluded."""

    code = "RECORDS_WITHHELD"


class StorageUnavailable(Transient):
    """Object storage is slow, throttled or unreachable beyond the bounded retries."""

    code = "STORAGE_UNAVAILABLE"


class StorageRefused(Terminal):
    """Object storage refused: no such bucket, access denied."""

    code = "STORAGE_REFUSED"


class ObjectExists(Terminal):
    """A create-only put met an existing object (HTTP 412): somebody else wrote it first."""

    code = "OBJECT_EXISTS"


#: Terminal for whoever has just read the connections; who has held them for long reads them again first.
CREDENTIALS_REFUSED = (AuthenticationFailed, ConnectionInvalid, StorageRefused)


class JournalConflict(Transient):
    """Too many other writers appended to the journal at the same time."""

    code = "JOURNAL_CONFLICT"


class JournalTampered(Terminal):
    """A journal entry was altered, is missing, or the hash chain forks."""

    code = "JOURNAL_TAMPERED"


class FingerprintChanged(Terminal):
    """Clusters, buckets or prefixes differ from what the migration was started with."""

    code = "FINGERPRINT_CHANGED"


class ClaimHeld(Terminal):
    """Another run holds the migration; ``details`` says who and since when."""

    code = "CLAIM_HELD"


class ClaimLost(Terminal):
    """This run held the migration, and another one has taken it over: stop writing."""

    code = "CLAIM_LOST"


class IllegalTransition(Terminal):
    """The state machine has no such transition."""

    code = "ILLEGAL_TRANSITION"


class WaitsForOperator(Terminal):
    """The migration waits for a person (CLI exit code 10)."""

    code = "WAITS_FOR_OPERATOR"


class PrecheckBlocked(Terminal):
    """Precheck found blockers; ``details["findings"]`` lists all."""

    code = "PRECHECK_BLOCKED"


class TopologyRefused(Terminal):
    """The target's topics, configs or ACLs differ in a way that the policy refuses."""

    code = "TOPOLOGY_REFUSED"


class ForeignData(Terminal):
    """A target partition holds data, or has a writer, that is not of this migration."""

    code = "FOREIGN_DATA"


class TopicRecreated(Terminal):
    """The source topic was deleted and created again: its topic id differs from the plan."""

    code = "TOPIC_RECREATED"


class TargetTopicMissing(Terminal):
    """A target topic was deleted while it was being copied."""

    code = "TARGET_TOPIC_MISSING"


class SourceGap(Terminal):
    """Source retention has overtaken the copy: records are gone before they were read."""

    code = "SOURCE_GAP"


class SourceTruncated(Terminal):
    """The source lost records after they were read: its log was cut below our position, and may have grown again."""

    code = "SOURCE_TRUNCATED"


class TombstonesOvertaken(Terminal):
    """A compacted partition was read so late that tombstones may have gone before: deleted keys may live on."""

    code = "TOMBSTONES_OVERTAKEN"


class OutsideOfLog(Terminal):
    """An offset that a check was to read is below the start of the log, or above its end."""

    code = "OUTSIDE_OF_LOG"


class RecordTooLarge(Terminal):
    """A single record is larger than what the target topic accepts."""

    code = "RECORD_TOO_LARGE"


class BatchMalformed(Terminal):
    """Bytes that are not a valid record batch, or whose CRC is wrong."""

    code = "BATCH_MALFORMED"


class SegmentTampered(Terminal):
    """An archived segment is torn, altered or missing."""

    code = "SEGMENT_TAMPERED"


class SliceExpired(Transient):
    """The deadline of this copier's slice has passed: it sends nothing any more."""

    code = "SLICE_EXPIRED"


class FreezeFailed(Terminal):
    """Producers could not be frozen, or one of them goes on writing."""

    code = "FREEZE_FAILED"


class FreezeUnconfirmed(Transient):
    """The freeze webhook has not confirmed that producers stay stopped; it is asked again while the freeze lasts."""

    code = "FREEZE_UNCONFIRMED"


class StillFrozen(Transient):
    """A freeze should have been lifted and could not be; ``next_step`` says how a person frees the producers."""

    code = "STILL_FROZEN"


class DrainTimeout(Transient):
    """The target did not reach the source's end in time."""

    code = "DRAIN_TIMEOUT"


class GroupsIncomplete(Terminal):
    """Some consumer groups could not be committed; ``details["groups"]`` lists them."""

    code = "GROUPS_INCOMPLETE"


class FloorViolated(Terminal):
    """The target's log start or end contradicts the copied range: data was cut."""

    code = "FLOOR_VIOLATED"


class ApprovalRefused(Terminal):
    """The approval is stale, has no code or the wrong one, or a person said no."""

    code = "APPROVAL_REFUSED"


class ValidationFailed(Terminal):
    """Source and target differ; ``details`` has the checks."""

    code = "VALIDATION_FAILED"


class EvidenceInvalid(Terminal):
    """An evidence bundle does not verify: altered, or signed by another key."""

    code = "EVIDENCE_INVALID"


class CopyFailed(Terminal):
    """Some partitions could not be copied; ``details["partitions"]`` lists all of them."""

    code = "COPY_FAILED"


class CopyStalled(Transient):
    """Some partitions could not be copied, each for a reason that may pass; ``details["partitions"]`` lists them."""

    code = "COPY_STALLED"


class PhaseOver(Terminal):
    """The migration has moved on; what this step may do is over: stop writing."""

    code = "PHASE_OVER"


class DocumentUnreadable(Terminal):
    """A stored document has a version or a shape that this release cannot read."""

    code = "DOCUMENT_UNREADABLE"


class JobMissing(Terminal):
    """A data plane process was started for a job document that is not there."""

    code = "JOB_MISSING"


class SparkSettingsRefused(Terminal):
    """Spark settings under which a copy would not be safe, or would not survive a lost task."""

    code = "SPARK_SETTINGS_REFUSED"


class ExecutorUnfit(Terminal):
    """A Spark executor lacks the package, or the Python packages, that a copier needs."""

    code = "EXECUTOR_UNFIT"


class SparkJobFailed(Transient):
    """Spark gave a task up after all its attempts, or the cluster went away."""

    code = "SPARK_JOB_FAILED"


def error_from_dict(data: dict[str, Any]) -> MigrationError:
    """The error that :meth:`MigrationError.as_dict` describes; of an unknown code at least Terminal or Transient."""
    kinds = {kind.code: kind for kind in _all_kinds(MigrationError)}
    fallback = Transient if data.get("kind") == "transient" else Terminal
    kind = kinds.get(str(data.get("code")), fallback)
    names = {field.name for field in fields(Where)}
    where = Where(**{key: value for key, value in (data.get("where") or {}).items() if key in names})
    return kind(
        str(data.get("what", "unknown error")),
        where=where,
        next_step=str(data.get("next_step", "")),
        details=dict(data.get("details") or {}),
    )


def _all_kinds(kind: type[MigrationError]) -> list[type[MigrationError]]:
    return [kind] + [below for child in kind.__subclasses__() for below in _all_kinds(child)]


class OffsetMapInvalid(Terminal):
    """An offset map is damaged: runs that go backwards, objects that are gone or of another partition."""

    code = "OFFSET_MAP_INVALID"


class PositionLost(Terminal):
    """A source position that was committed on the target is gone, or the target's log ends below it (transactional)."""

    code = "POSITION_LOST"


class OffsetMapConflict(Transient):
    """Two copiers write runs for the same target offsets."""

    code = "OFFSET_MAP_CONFLICT"


class Interrupted(Transient):
    """The process was told to stop before it had finished; nothing is lost."""

    code = "INTERRUPTED"


class HolesExceedBudget(Terminal):
    """A partition has more holes than may be filled with markers, and its offsets must stay equal by policy."""

    code = "HOLES_EXCEED_BUDGET"


class SameCluster(Terminal):
    """Source and target are one cluster."""

    code = "SAME_CLUSTER"
