"""The producer ids of the migration, and the transactional id that fences the data id where markers are refused.

A producer id can be fenced by its own transactional id only (``freeze.fence``), so the data id has to be allocated with
one from the start. That happens only where markers are refused: with the right to write them a fence needs no
coordinator. The name is journaled before the producer ids are, so after a crash in between the next process gets the
same id, in its next epoch. The producer ids are journaled together with the name that they were allocated with: at the
second attempt the name may be refused, and then the id in use has none.
"""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import AbstractContextManager, closing
from typing import Any

from airflow_provider_kafka_migration.copy.holes import markers_are_refused
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import MigrationError, Terminal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.background import BackgroundPasses
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord

NAME_DETAIL = "transactional_id"
#: Coordinators forget an id that was not used for transactional.id.expiration.ms (7 days by default).
RENEW_SECONDS = 6 * 3600.0

log = logging.getLogger(__name__)


def transactional_id(record: MigrationRecord) -> str:
    """Return the transactional id of the data id; empty if it was allocated without one."""
    taken = record.journal.find_step(steps.PRODUCER_IDS)
    if taken is not None and NAME_DETAIL in taken.details:
        return str(taken.details[NAME_DETAIL])
    # Journals of older releases have the name only in a separate step.
    return _begun_name(record)


def _begun_name(record: MigrationRecord) -> str:
    entry = record.journal.find_step(steps.DATA_TRANSACTIONAL_ID)
    return "" if entry is None else str(entry.details["transactional_id"])


def take_data_id(record: MigrationRecord, target: Cluster) -> tuple[str, tuple[int, int]]:
    """Allocate the producer id for all records of the migration, fenceable whatever rights its principal has.

    Returns (transactional id or "", (producer id, epoch)), to be journaled together.

    :raises Transient: no broker of the target answers, or its coordinator does not.
    """
    wire = target.wire
    name = _begun_name(record)
    if not name:
        if not (record.spec.cutover.fence_copiers and markers_are_refused(wire)):
            return "", wire.init_producer_id()
        # Never the id of an earlier migration with this name: its records would look like ours.
        name = f"kafka-migration.{record.migration_id}.data.{uuid.uuid4().hex[:12]}"
    try:
        taken = wire.init_producer_id(name)
    except Terminal as error:
        log.warning("the copiers of this migration cannot be fenced before the client switch: %s", error)
        return "", wire.init_producer_id()
    record.journal.step_once(steps.DATA_TRANSACTIONAL_ID, details={"transactional_id": name})
    return name, taken


class Renewal(BackgroundPasses[Cluster]):
    """Keeps the target from forgetting the transactional id, until the ``with`` block ends.

    InitProducerId only raises the coordinator's epoch: the partitions' leaders do not learn of it, so the copiers
    continue under theirs.
    """

    thread_name = "fence-id"
    failed_text = "The id that fences the copiers could not be renewed"
    ended_text = "The id that fences the copiers is no longer renewed"

    def __init__(self, record: MigrationRecord, target: Cluster) -> None:
        super().__init__(RENEW_SECONDS, first_seconds=0.0)
        self._target = target
        self._name = transactional_id(record)

    def _is_wanted(self) -> bool:
        return bool(self._name)

    def _open(self) -> AbstractContextManager[Cluster]:
        return closing(self._target.clone())

    def _pass(self, own: Cluster) -> None:
        own.wire.init_producer_id(self._name)


def renew_if_due(record: MigrationRecord, target: Cluster, memory: dict[str, Any]) -> None:
    """Renew once, unless that was done less than :data:`RENEW_SECONDS` ago: every renewal uses up an epoch.

    :param memory: what the caller remembers between two calls, JSON-serializable.
    """
    name = transactional_id(record)
    if not name or time.time() - float(memory.get("ids_renewed_at", 0.0)) < RENEW_SECONDS:
        return
    try:
        target.wire.init_producer_id(name)
    except MigrationError as error:
        log.warning("the id that fences the copiers was not renewed; this is retried later: %s", error)
        return
    memory["ids_renewed_at"] = time.time()


def take_producer_ids(record: MigrationRecord, target: Cluster) -> ProducerIds:
    """Allocate the two producer ids of the migration, once, on the target; their epochs are never bumped."""
    entry = record.journal.find_step(steps.PRODUCER_IDS)
    if entry is None:
        record.journal.check_holds()
        name, data = take_data_id(record, target)
        filler = target.wire.init_producer_id()
        if record.spec.adopt is not None and not name:
            # Registering markers have the epoch below (``copy.append``). With a transactional id the coordinator
            # would give the next epoch away; but then markers are refused, and nothing is registered.
            data = (data[0], data[1] + 1)
        taken = ProducerIds(
            data_producer_id=data[0],
            data_producer_epoch=data[1],
            filler_producer_id=filler[0],
            filler_producer_epoch=filler[1],
        )
        details = {**taken.model_dump(mode="json"), NAME_DETAIL: name}
        entry = record.journal.step_once(steps.PRODUCER_IDS, details=details)
    return ProducerIds.model_validate(dict(entry.details))
