"""How much of the copy is proven equal before clients move, for the approvals; and the proof of the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from airflow_provider_kafka_migration.compare.proven import forget_proven, holds_tombstones, proven_prefix, still_holds
from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.copy.read_watch import all_times_overtaken
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import (
    ContentRange,
    PartitionContent,
    ProvenPartition,
    ProvenRange,
    content_job,
)
from airflow_provider_kafka_migration.documents.schemas import id_rule
from airflow_provider_kafka_migration.errors import Interrupted, MigrationError
from airflow_provider_kafka_migration.jobs.content_jobs import delete_retention_of
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: How long the approval of the client switch compares what is left, since producers are stopped meanwhile.
REST_SECONDS = 20.0
#: A partition with more left than this is left to the validation.
REST_OFFSETS = 200_000
_READERS = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProofStatus:
    """What is proven over all partitions, in source offsets (holes count).

    :param copied: offsets that are on the target.
    :param proven: of these, those that were compared and are equal or explained, without those the source had deleted.
    :param partitions: all partitions; ``complete`` counts those whose whole copy is proven.
    :param uncompared_records: records of the target that the source deleted before they were compared.
    :param differing: name of each partition that differs, with the difference.
    :param waiting: for partitions that are not complete, the reason, where it is known.
    :param unchecked: partitions whose target log could not be checked since they were proven.
    """

    copied: int
    proven: int
    partitions: int
    complete: int
    records: int
    uncompared_records: int
    differing: dict[str, str]
    waiting: dict[str, str]
    digest: str
    unchecked: int = 0

    @property
    def is_complete(self) -> bool:
        """Everything is proven, and nothing is left whose equality is unknown."""
        is_known = not self.uncompared_records and not self.unchecked
        return self.complete == self.partitions and not self.differing and is_known

    def as_dict(self) -> dict[str, Any]:
        """The status as data, for approvals and journal."""
        return {
            "copied_offsets": self.copied,
            "proven_offsets": self.proven,
            "partitions": self.partitions,
            "complete_partitions": self.complete,
            "compared_records": self.records,
            "uncompared_records": self.uncompared_records,
            "differing": dict(list(self.differing.items())[:100]),
            "differing_partitions": len(self.differing),
            "waiting": dict(list(self.waiting.items())[:100]),
            "unchecked_partitions": self.unchecked,
            "is_complete": self.is_complete,
            "digest": self.digest,
        }


def read_status(record: MigrationRecord, positions: Mapping[TopicPartition, int], *, unchecked: int = 0) -> ProofStatus:
    """Read from the stored documents what is proven. Queries no cluster.

    :param positions: exclusive source offset up to which each partition is copied.
    :param unchecked: see :class:`ProofStatus`.
    """
    partitions = record.partitions()
    documents = _documents(record)
    copied = proven = complete = records = uncompared = 0
    differing, waiting = {}, {}
    for key in sorted(positions.keys() & partitions.keys()):
        start, position = partitions[key].source_start_offset, max(positions[key], partitions[key].source_start_offset)
        document = documents.get(key)
        found = _trusted(document)
        if found is not None and found.source_start_offset != start:
            found = None
        until = start if found is None else min(found.source_end_offset, position)
        copied += position - start
        why = "" if found is None else _not_proven(found.content)
        proven += until - start - (0 if found is None else _unproven_offsets(found.content, start, until))
        complete += until == position and not why
        if found is not None:
            records += found.content.compared
            uncompared += found.content.uncompared_records
        if document is not None and document.differing is not None:
            differing[partition_name(key)] = _difference(document)
        elif until < position:
            waiting[partition_name(key)] = _why_not_yet(record.spec, partitions[key], document)
        elif why:
            waiting[partition_name(key)] = why
    digest = canonical_digest({partition_name(key): documents[key].digest() for key in sorted(documents)})
    total = len(positions.keys() & partitions.keys())
    return ProofStatus(copied, proven, total, complete, records, uncompared, differing, waiting, digest, unchecked)


def _trusted(document: ProvenPartition | None) -> ProvenRange | None:
    """Return the proven range; none if its document does not name the topic's id: then the comparison begins again."""
    found = None if document is None else document.proven
    return found if found is not None and found.target_topic_id else None


def _not_proven(content: PartitionContent) -> str:
    """Why a comparison without differences does not prove the whole range, for people; empty if it does."""
    if content.is_proven:
        return ""
    if content.uncompared:
        first, until = content.uncompared[0]
        more = f" and {len(content.uncompared) - 1} more ranges" if len(content.uncompared) > 1 else ""
        return f"source offsets {first}..{until - 1}{more} were deleted on the source before they were compared"
    return f"none of its {content.target_records} records could be compared: all are explained"


def _unproven_offsets(content: PartitionContent, start: int, until: int) -> int:
    """Number of source offsets in a range that were not compared."""
    if not content.uncompared and not content.is_proven:
        return until - start
    return sum(max(0, min(last, until) - max(first, start)) for first, last in content.uncompared)


def _why_not_yet(spec: MigrationSpec, partition: CopyPartition, document: ProvenPartition | None) -> str:
    """Why a partition is not fully proven, for people."""
    if spec.seed.via == "split":
        return "the copiers of a split migration can reach only one cluster each: validate compares it"
    if partition.verdict is Verdict.TRANSACTIONAL:
        return "copied in transactions: validate compares it"
    return (document.postponed if document is not None else "") or "not compared yet"


def _difference(document: ProvenPartition) -> str:
    content = document.differing
    assert content is not None
    text = (
        f"{content.difference_count} differences, seen {document.differed_times} times, last at {document.differed_at}"
    )
    if content.differences:
        first = content.differences[0]
        text += f"; the first: {first.kind} at source offset {first.source_offset}, target offset {first.target_offset}"
    return text


def _documents(record: MigrationRecord) -> dict[TopicPartition, ProvenPartition]:
    store = record.journal_store
    keys = [info.key for info in store.list(proven_prefix(record.migration_id))]
    with ThreadPoolExecutor(_READERS, "proven") as pool:
        found = [item for item in pool.map(lambda key: _document(store, key), keys) if item is not None]
    times = all_times_overtaken(store, record.migration_id)
    settings = schema_id_settings(record)

    def holds(item: ProvenPartition) -> bool:
        same_rule = item.proven is None or item.proven.content.schema_id_rule == id_rule(settings, item.topic)
        return same_rule and holds_tombstones(item, times[item.key])

    return {
        item.key: item if holds(item) else item.model_copy(update={"proven": None})
        for item in found
        if item.migration_id == record.migration_id
    }


def _document(store: ObjectStore, key: str) -> ProvenPartition | None:
    data = store.get(key)
    try:
        return None if data is None else ProvenPartition.parse(data)
    except ValidationError as error:
        log.warning("%s cannot be read and therefore proves nothing: %s", key, error)
        return None


def journal_status(record: MigrationRecord, when: str, status: ProofStatus) -> None:
    """Journal what is proven at a moment."""
    details = status.as_dict()
    reason = f"{status.proven} of {status.copied} copied offsets are proven equal"
    record.journal.step(steps.CONTENT_PROVEN, key=when, details=details, reason=reason)


# -- what is left, before clients move -------------------------------------------------------------------------------


class _ReadingClients(Clients):
    """The clusters and stores of a migration, opened for reading only."""

    def __init__(self, record: MigrationRecord, source: Cluster, target: Cluster) -> None:
        super().__init__({})
        self._record = record
        self._source = source
        self._target = target

    def wire(self, name: str, *, timeout_seconds: float = 10.0, read_only: bool = True) -> Wire:
        """Open a new wire client that cannot write, whatever the caller requests."""
        cluster = self._source if name == "source" else self._target
        wire = Wire(replace(cluster.config, read_only=True), timeout_seconds=timeout_seconds)
        self._opened.append(wire)
        return wire

    def store(self, location: str) -> ObjectStore:
        """Return the store of a location of this migration."""
        is_journal = location == self._record.spec.storage.journal
        return self._record.journal_store if is_journal else self._record.archive_store


class Rest(NamedTuple):
    """The outcome of the attempt to prove what is left.

    :param why: why something is left, for people; empty if nothing prevented the proof.
    :param unchecked: partitions whose target log could not be checked.
    """

    why: str = ""
    unchecked: int = 0


def prove_rest(record: MigrationRecord, source: Cluster, target: Cluster, ranges: list[ContentRange]) -> Rest:
    """Check again what is proven, and compare the rest up to the boundary, for a limited time.

    A range whose log was written again on the target is withdrawn. What is not compared in time, or cannot be read now,
    is left to the validation.
    """
    until = time.monotonic() + REST_SECONDS
    documents = _documents(record)
    with _ReadingClients(record, source, target) as clients:
        proven = [(item, found) for item in ranges if (found := _trusted(documents.get(item.key))) is not None]
        unchecked = _look_again(record, clients, proven, until)
        documents = _documents(record)
        small = [item for item in ranges if 0 < _left(documents.get(item.key), item) <= REST_OFFSETS]
        return Rest(_compare(record, source, clients, small, until) if small else "", unchecked)


def _look_again(
    record: MigrationRecord, clients: Clients, proven: list[tuple[ContentRange, ProvenRange]], until: float
) -> int:
    """Withdraw proofs that no longer hold, and return the number of partitions that could not be checked."""

    def look(part: list[tuple[ContentRange, ProvenRange]]) -> int:
        done = 0
        try:
            wire = clients.wire("target", read_only=True)
            for item, found in part:
                if time.monotonic() >= until:
                    break
                if not still_holds(wire, found, item.target_topic, item.partition):
                    log.warning("%s-%d: the target's log was written again; nothing of it is proven", *item.key)
                    forget_proven(record.journal_store, record.migration_id, *item.key)
                done += 1
        except MigrationError as error:
            log.warning("The proofs could not be checked again before the client switch: %s", error)
        return len(part) - done

    if not proven:
        return 0
    with ThreadPoolExecutor(_READERS, "proven") as pool:
        return sum(pool.map(look, [proven[first::_READERS] for first in range(min(_READERS, len(proven)))]))


def _compare(
    record: MigrationRecord, source: Cluster, clients: Clients, ranges: list[ContentRange], until: float
) -> str:
    """Compare ranges until a deadline; returns why something is left."""
    spec, plan = record.spec, record.plan()
    try:
        job = content_job(
            plan,
            ranges,
            delete_retention_ms=delete_retention_of(record, source, plan),
            journal_location=spec.storage.journal,
            timestamps=spec.offsets.timestamps,
            # Attempt 0 is none of the validation's attempts: its results are not the validation's.
            attempt=0,
            archive_of_deleted=None if spec.seed.via == "direct" else spec.storage.archive_location,
            schema_ids=schema_id_settings(record),
        )
        found = LocalContentRunner(clients, stop=lambda: time.monotonic() >= until).run(job)
    except Interrupted:
        return f"it was not compared within {REST_SECONDS:.0f} s"
    except MigrationError as error:
        log.warning("The rest could not be compared before the client switch: %s", error)
        return error.what
    bad = [item for item in found if not item.is_equal]
    if not bad:
        return ""
    first = bad[0]
    why = first.error.get("what", "") if first.error else f"{first.difference_count} differences"
    return f"{len(bad)} partitions differ or cannot be read; the first is {partition_name(first.key)}: {why}"


def _left(document: ProvenPartition | None, compared: ContentRange) -> int:
    found = _trusted(document)
    return compared.source_end_offset - (compared.source_start_offset if found is None else found.source_end_offset)
