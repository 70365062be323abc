"""Errors of the product. Each one names what failed, where, and what to do next.

Two base classes decide what a scheduler may do with an error:

* :class:`Terminal` - a retry cannot help; a person has to change something.
* :class:`Transient` - the same call may succeed later; clearing the task is enough.

All errors can be pickled, because they cross process boundaries (Spark executors, Airflow workers).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

_WORD_BEGINS = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True)
class Where:
    """The place of a failure. The message leaves out empty fields."""

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
    """Base class of all errors of this package.

    :param what: what failed, as one sentence without a final full stop.
    :param where: the place: migration, phase, topic-partition, broker.
    :param next_step: what the reader should do now.
    :param details: data for machines; must be JSON-serializable and must not contain a secret.
    """

    #: Stable name of the kind of error, shown to people and used by tests: ``SpecInvalid`` has ``SPEC_INVALID``.
    code: ClassVar[str] = "MIGRATION_ERROR"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "code" not in cls.__dict__:
            cls.code = _WORD_BEGINS.sub("_", cls.__name__).upper()

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
        """Append to the next step, once, what became true after the error was created."""
        if text not in self.next_step:
            self.next_step = f"{self.next_step}; {text}" if self.next_step else text
            self.args = (self._message(),)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.next_step, self.details))

    def as_dict(self) -> dict[str, Any]:
        """Return the error as data, for journals and reports."""
        return {
            "code": self.code,
            "kind": "terminal" if isinstance(self, Terminal) else "transient",
            "what": self.what,
            "where": {key: value for key, value in asdict(self.where).items() if value is not None},
            "next_step": self.next_step,
            "details": self.details,
        }


def followed_by(next_step: str, last: str) -> str:
    """Append the last action to a piece of advice, without repeating "clear the task".

    :param last: the ending that always applies, for instance ``clear seed: it continues``.
    """
    first = next_step.rstrip()
    for ending in ("then clear the task", "and clear the task", "clear the task"):
        first = first.removesuffix(ending).rstrip(" ;,")
    return f"{first}; then {last}" if first else last


#: What to do with topics that have the records of both clusters, where the copy cannot go on.
KEEP_MERGED = (
    "delete nothing on the target: it has records that were first written there. This partition stays as it is; bring "
    "what is missing over by other means. Another migration_id is no way out: it would copy from the source's log "
    "start again, so that records that are on the target already arrive twice, and its precheck refuses that"
)


def leave_out_of_way_back(topic: str = "TOPIC") -> str:
    """Return what to do where others have written to a topic on the old cluster while its way back runs.

    :param topic: name on the new cluster; by default a placeholder.
    """
    return (
        "find out who writes to this topic on the old cluster and stop them, but delete nothing there; what they have "
        "changed cannot go back any more. Leave the topic out, so that all others go on: `kafka-migration way-back "
        f"leave-out FILE {topic}`, where FILE is the first migration's spec; or keep the new cluster: `kafka-migration "
        "way-back keep FILE`"
    )


def _rebuild(
    kind: type[MigrationError], what: str, where: Where, next_step: str, details: dict[str, Any]
) -> MigrationError:
    return kind(what, where=where, next_step=next_step, details=details)


class Terminal(MigrationError):
    """A retry cannot help: a person has to decide or change something."""


class Transient(MigrationError):
    """A later attempt can succeed: retry or clear the task."""


class SpecInvalid(Terminal):
    """The spec has mistakes; ``details["mistakes"]`` lists all of them with their paths."""


class NamingPolicyUnusable(Terminal):
    """The class that names a mirror's topics cannot be imported, or lacks a method."""


class RequestRefused(Terminal):
    """The holder of a mirror turned down what a person asked of it, or another request came after it."""


class RequestUnanswered(Transient):
    """Nobody has carried out what a person asked of a mirror within the time."""


class ConnectionInvalid(Terminal):
    """A connection is missing or has keys that cannot be used."""


class AuthenticationFailed(Terminal):
    """The broker refused the credentials, or the TLS handshake failed permanently."""


class PermissionMissing(Terminal):
    """The principal lacks a permission that the migration needs; the error names the operation and the resource."""


class BrokerUnreachable(Transient):
    """No broker of the cluster answered within the bounded wait."""


class BrokerRefused(Terminal):
    """A broker answered with an error that a retry cannot fix."""


class BrokerBusy(Transient):
    """A broker answered with a retriable error for longer than the bounded wait."""


class RecordsWithheld(Transient):
    """A broker reports more log but returns no records, or only part of a batch: we draw no conclusion from that."""


class StorageUnavailable(Transient):
    """Object storage is slow, throttled or unreachable beyond the bounded retries."""


class StorageRefused(Terminal):
    """Object storage refused the request: no such bucket, or access denied."""


class ObjectExists(Terminal):
    """A create-only put met an existing object (HTTP 412): another writer created it first."""


#: Terminal for a caller that has just read the connections. A caller that has held them for long reads them again
#: first.
CREDENTIALS_REFUSED = (AuthenticationFailed, ConnectionInvalid, StorageRefused)


class JournalConflict(Transient):
    """Too many other writers appended to the journal at the same time."""


class JournalTampered(Terminal):
    """A journal entry was altered, is missing, or the hash chain forks."""


class FingerprintChanged(Terminal):
    """Clusters, buckets or prefixes differ from those that the migration was started with."""


class ClaimHeld(Terminal):
    """Another run holds the migration; ``details`` names it and the time of its claim."""


class ClaimLost(Terminal):
    """This run held the migration, but another run has taken it over: stop writing."""


#: After these errors another process is in charge, or nothing can be trusted: touch nothing, and try nothing again.
HANDS_OFF = (ClaimHeld, ClaimLost, JournalTampered)

#: What ends a task for good elsewhere never ends the watch on a freeze: it outlives a wrong password, and a store that
#: does not return an entry.
UNREADABLE = (*CREDENTIALS_REFUSED, JournalTampered)


class IllegalTransition(Terminal):
    """The state machine has no such transition."""


class WaitsForOperator(Terminal):
    """The migration waits for a person (CLI exit code 10)."""


class PrecheckBlocked(Terminal):
    """Precheck found blockers; ``details["findings"]`` lists all of them."""


class TopologyRefused(Terminal):
    """The target's topics, configs or ACLs differ in a way that the policy refuses."""


class ForeignData(Terminal):
    """A target partition holds data, or has a writer, that does not belong to this migration."""


class TopicRecreated(Terminal):
    """The source topic was deleted and created again: its topic id differs from the plan."""


class TargetTopicMissing(Terminal):
    """A target topic was deleted while it was being copied."""


class SourceGap(Terminal):
    """Source retention has overtaken the copy: records were deleted before the copy read them."""


class SourceTruncated(Terminal):
    """The source lost records after we read them: its log was truncated below our position and may have grown again."""


class TombstonesOvertaken(Terminal):
    """A compacted partition was read so late that tombstones may already be removed: deleted keys may live on."""


class OutsideOfLog(Terminal):
    """A check has to read an offset that is below the start of the log or above its end."""


class RecordTooLarge(Terminal):
    """A single record is larger than the target topic accepts."""


class TimestampsReplaced(Terminal):
    """The target has written its own time into copied records: somebody has set message.timestamp.type there."""


class UncommittedRecords(Terminal):
    """The source returns records of open transactions to a reader that asked for committed ones only."""


class BatchMalformed(Terminal):
    """The bytes are not a valid record batch, or their CRC is wrong."""


class SegmentTampered(Terminal):
    """An archived segment is torn, altered or missing."""


class SliceExpired(Transient):
    """The deadline of this copier's slice has passed: it sends no more data."""


class FreezeFailed(Terminal):
    """Producers could not be frozen, or one of them continues to write."""


class FreezeUnconfirmed(Transient):
    """The freeze webhook has not confirmed that producers stay stopped; we call it again while the freeze lasts."""


class StateUnusable(Terminal):
    """The file in which a freeze receiver keeps its state cannot be read or written, or another process uses it."""


class StillFrozen(Transient):
    """A freeze had to be lifted but could not be; ``next_step`` explains how a person unfreezes them."""


class DrainTimeout(Transient):
    """The target did not reach the end of the source in time."""


class GroupsIncomplete(Terminal):
    """Some consumer groups could not be committed; ``details["groups"]`` lists them."""


class FloorViolated(Terminal):
    """The target's log start or end contradicts the copied range: data was cut off."""


class PositionUnknown(Terminal):
    """The end of a target's log was deleted, and nothing proves how far the partition was copied."""


class ApprovalRefused(Terminal):
    """The approval is stale, has no code or a wrong code, or a person refused."""


class ValidationFailed(Terminal):
    """Source and target differ; ``details`` lists the checks."""


class EvidenceInvalid(Terminal):
    """An evidence bundle does not verify: it was altered, or another key signed it."""


class CopyFailed(Terminal):
    """Some partitions could not be copied; ``details["partitions"]`` lists all of them."""


class CopyStalled(Transient):
    """Some partitions could not be copied, each for a reason that may pass; ``details["partitions"]`` lists them."""


class PhaseOver(Terminal):
    """The migration is past the phase in which this step may act: stop writing."""


class DocumentUnreadable(Terminal):
    """A stored document has a version or a structure that this release cannot read."""


class ContentsDiffer(Terminal):
    """The comparison of a mirror has found differences; ``details`` lists the partitions."""


class ContentsUnchecked(Terminal):
    """A mirror's comparison has found no difference, but not everything was compared, or nothing at all."""


class ResultMissing(Transient):
    """A partition was to be compared on Spark, and no result has come back: nothing is known about it."""


class NotInMigration(Terminal):
    """The migration has no such topic or partition, or its cluster has no such consumer group."""


class JobMissing(Terminal):
    """A data plane process was started for a job document that does not exist."""


class SparkSettingsRefused(Terminal):
    """With these Spark settings a copy would be unsafe, or would not survive a lost task."""


class ExecutorUnfit(Terminal):
    """A Spark executor lacks this package, or Python packages that a copier needs."""


class SparkJobFailed(Transient):
    """Spark gave up on a task after all its attempts, or the Spark cluster disappeared."""


class SparkConnectorMissing(Terminal):
    """Spark has no Kafka source, so that it can read no topic."""


class SparkReaderUnfit(Terminal):
    """Spark's Kafka source cannot read a cluster: Java's client has no way to it, or refuses its settings."""


def error_from_dict(data: dict[str, Any]) -> MigrationError:
    """Return the error that :meth:`MigrationError.as_dict` describes; for an unknown code, Terminal or Transient."""
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
    """An offset map is damaged: its runs go backwards, or objects are missing or belong to another partition."""


class PositionLost(Terminal):
    """A source position committed on the target is missing, or the target's log ends below it (transactional)."""


class OffsetMapConflict(Transient):
    """Two copiers wrote runs for the same target offsets."""


class Interrupted(Transient):
    """The process was asked to stop before it finished; nothing is lost."""


class HolesExceedBudget(Terminal):
    """A partition has more holes than markers may fill, and the policy requires its offsets to stay equal."""


class SameCluster(Terminal):
    """Source and target are the same cluster."""


# -- schemas ----------------------------------------------------------------------------------------------------------


class RegistryUnreachable(Transient):
    """A schema registry did not answer within the bounded retries, or kept answering 429 or 5xx."""


class RegistryForbidden(Terminal):
    """A schema registry refused the credentials (HTTP 401 or 403), or the TLS handshake failed permanently."""


class RegistryRefused(Terminal):
    """A schema registry refused a request for a reason that a retry cannot fix."""


class RegistryAnswerInvalid(Terminal):
    """An answer is not what a schema registry sends: HTML, a redirect, a wrong type, a missing field, too large."""


class RegistryReadOnly(Terminal):
    """The mode of the subject, of its context or of the registry does not permit this write."""


class NotInImportMode(Terminal):
    """A schema was to be registered under a fixed id, but its subject is not in mode IMPORT."""


class ImportModeRefused(Terminal):
    """The registry does not set mode IMPORT here, because subjects exist there already."""


class SchemaNotFound(Terminal):
    """The registry has no such subject or version."""


class SchemaIdConflict(Terminal):
    """Another schema is already registered under this id."""


class SchemaIdIgnored(Terminal):
    """The registry registered a schema under another id or version than the requested one: it cannot keep ids."""


class SchemaIncompatible(Terminal):
    """The schema breaks the compatibility level of its subject."""


class SchemaInvalid(Terminal):
    """The registry cannot parse the schema, or cannot resolve its references."""


class SchemaReferenced(Terminal):
    """A version cannot be deleted, because other schemas refer to it."""


class SchemaReferenceLoop(Terminal):
    """Schemas of a registry refer to each other in a circle, which no registry accepts."""


class SchemaTopicRefused(Terminal):
    """The registry cannot move with its topic: the target registry already runs with content of its own."""


class TransactionHolds(Transient):
    """A transaction that a producer has left open holds the source's records back: the copy waits at a lag of 0."""


class PartitionStarved(Transient):
    """Records wait, and several slices have ended without copying any of them, although nothing failed."""


class SchemaIdUnknown(Transient):
    """A record has a schema id that is not on the target yet: this partition waits until its schema is copied."""


class SchemaIdsAppeared(Terminal):
    """Topics were copied with the source's schema ids, because no sample showed ids; their records have some now."""


class SchemaIdsUnsampled(Transient):
    """Ids are translated, and records of topics could not be sampled for schema ids, or do not show them surely."""


class SchemaIdUnresolved(Terminal):
    """A record begins like a serialized one, but the source registry has no such schema id (``schemas.strict``)."""


class SchemaSettingsNotRestored(Transient):
    """Modes or compatibility levels that the migration changed for a while could not be put back yet."""


class SchemaConflicts(Terminal):
    """The target registry has schemas, ids or modes that contradict the plan (``on_conflict: stop``)."""


class SchemaReferenceMissing(Terminal):
    """A schema refers to a version that is not on the target."""


class SchemaIdMapConflict(Terminal):
    """Records were copied with another id than their schema has now: it changed, or the source lacked it then."""


class SchemasIncomplete(Terminal):
    """Some schemas, levels or modes are not on the target registry: it refused them, or they could not be read."""


# -- references -------------------------------------------------------------------------------------------------------


class SecretNotFound(ConnectionInvalid):
    """The secret store has no such secret, or no such version of it."""


class SecretAccessDenied(ConnectionInvalid):
    """The secret store does not let this machine read the secret."""


class SecretUnusable(ConnectionInvalid):
    """The secret exists, but is binary, is not the JSON that the reference needs, or lacks the key it names."""


class SecretLibraryMissing(ConnectionInvalid):
    """This Python lacks the client library of a secret store."""


class SecretStoreUnavailable(Transient):
    """The secret store did not answer within the bounded wait, or asked to be called less often."""


class ReferencesUnfit(ConnectionInvalid):
    """With these references, Spark's driver or executors could not get the connections of a job."""


class SealingKeyMissing(ConnectionInvalid):
    """This machine has no private sealing key, or a text that is none."""


class SealingKeyWrong(ConnectionInvalid):
    """This machine's private sealing keys do not belong to the public key that the references were sealed for."""


class SealedReferencesAltered(ConnectionInvalid):
    """The sealed references were altered or cut off on their way."""


class SealedReferencesForeign(ConnectionInvalid):
    """The sealed references belong to another migration, job or submission."""


class SealedReferencesExpired(ConnectionInvalid):
    """The sealed references are older than they may be."""


# -- spark engines ----------------------------------------------------------------------------------------------------


class EngineProviderMissing(Terminal):
    """The Airflow provider package that an engine of Spark jobs needs is not installed."""


class EngineUnreachable(Transient):
    """The service that runs Spark jobs did not answer, was busy, or limited the number of requests."""


class EngineAnswerInvalid(Transient):
    """The service that runs Spark jobs answered something that its documentation does not describe."""


class EngineForbidden(Terminal):
    """The service that runs Spark jobs rejected the login, or the login may not do what was asked."""


class EngineRefused(Terminal):
    """The service that runs Spark jobs refused a job or a request: a wrong setting, or a quota is used up."""


class EngineJobConflict(Terminal):
    """The name of a Spark job is taken by something else, or the job belongs to another account or workspace."""


class EngineSecretsUnsafe(Terminal):
    """The engine has no way of passing secrets to a Spark job that does not show them to others."""


class EngineThrottled(EngineUnreachable):
    """The service that runs Spark jobs kept refusing requests, also when they were repeated more slowly."""


class EngineCredentialsExpired(EngineUnreachable):
    """The credentials for the service that runs Spark jobs have expired; their renewal may be a moment away."""


class EngineNotFound(EngineRefused):
    """The place where the job was to run (an application, a virtual cluster) does not exist."""


class EngineQuotaExceeded(EngineRefused):
    """A quota of the account is used up; only its owner can raise it or end other jobs."""


class EngineJobUnknown(Terminal):
    """A journaled job id is not one that this engine has written."""


class StagingRefused(Terminal):
    """A file of a job cannot be put where the machines that run it could read it."""


class EngineUnknown(Terminal):
    """No installed package has an engine of Spark jobs with this name."""


class EngineNeedsAirflow(Terminal):
    """The engine of Spark jobs needs an Airflow connection, and this process runs without Airflow."""


class SparkJobCancelled(Transient):
    """Somebody has cancelled the Spark job."""


# -- logins to brokers ------------------------------------------------------------------------------------------------


class TokenUnavailable(BrokerUnreachable):
    """There is no OAuth token for a login to the brokers, for a reason that may pass: its endpoint does not answer."""


class KerberosUnavailable(BrokerUnreachable):
    """There is no Kerberos ticket for a login to the brokers, for a reason that may pass: no KDC answers."""


class KerberosUnsupported(Terminal):
    """A Python package on this machine was built without Kerberos (GSSAPI), or it or libsasl2's plug-in is missing."""


class TicketCacheTaken(Terminal):
    """The process's Kerberos ticket cache has another principal's ticket, so librdkafka would log in as that one."""
