"""What a person asks of a mirror: read, written, and turned into stop offsets for its copiers."""

from __future__ import annotations

import logging
import threading

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, Want
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.storage.base import ObjectStore

log = logging.getLogger(__name__)

#: How often a running mirror looks for a request.
POLL_SECONDS = 1.0


def read(store: ObjectStore, migration_id: str) -> MirrorRequest:
    """Return the last request; without one, the mirror is to run."""
    data = store.get(f"{migration_id}/{keys.MIRROR_REQUEST}")
    if data is None:
        return MirrorRequest(migration_id=migration_id, number=0, want="run")
    return MirrorRequest.parse(data)


def write(
    store: ObjectStore,
    migration_id: str,
    want: Want,
    *,
    by: str,
    at: str,
    reason: str = "",
    source_gone: bool = False,
    refused: str = "",
) -> MirrorRequest:
    """Write a request. It needs no claim: the mirror's holder acts on it."""
    request = MirrorRequest(
        migration_id=migration_id,
        number=read(store, migration_id).number + 1,
        want=want,
        source_gone=source_gone,
        reason=reason,
        requested_by=by,
        requested_at=at,
        refused=refused,
    )
    store.put(f"{migration_id}/{keys.MIRROR_REQUEST}", request.canonical())
    return request


# -- stopping copiers -------------------------------------------------------------------------------------------------


def stop_where_they_are(record: MigrationRecord) -> None:
    """Stop the copiers where they are: a stop offset that they have already passed stops them at once."""
    _put_stop(record, {partition_name(key): 0 for key in record.partitions()})


def stop_at_the_end(record: MigrationRecord, source: Cluster) -> None:
    """Stop the copiers at the source's present ends. A partition that has its stop keeps it."""
    partitions = record.partitions()
    former = record.tail_stop()
    known = dict(former.offsets) if former is not None else {}
    missing = [key for key in partitions if not known.get(partition_name(key))]
    ends = source.wire.list_offsets(missing, "stable") if missing else {}
    _put_stop(record, {**known, **{partition_name(key): end for key, end in ends.items()}})


def withdraw_stop(record: MigrationRecord) -> None:
    """Let the copiers go on."""
    if record.tail_stop() is not None:
        _put_stop(record, {})


def _put_stop(record: MigrationRecord, offsets: dict[str, int]) -> None:
    key = record.key(keys.TAIL_STOP)
    data = StopAt(migration_id=record.migration_id, offsets=offsets).canonical()
    if record.journal_store.get(key) == data:
        return
    record.journal.check_holds()
    record.journal_store.put(key, data)


def stop_if_asked(record: MigrationRecord, source: Cluster) -> MirrorRequest:
    """Give the copiers the stop offsets that the last request amounts to, and return the request.

    Partitions that appear after a stop was written get theirs in the next pass.
    """
    request = read(record.journal_store, record.migration_id)
    if request.want == "promoted" and not request.source_gone:
        stop_at_the_end(record, source)
    elif request.want != "run":
        stop_where_they_are(record)
    return request


class RequestWatch:
    """Looks for requests in a thread with its own connections, until the ``with`` block ends."""

    def __init__(self, context: PhaseContext) -> None:
        self._record = context.record
        self._source = context.source
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror-requests", daemon=True)

    def __enter__(self) -> RequestWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        source = self._source.clone()
        try:
            while not self._stop.wait(POLL_SECONDS):
                try:
                    stop_if_asked(self._record, source)
                except MigrationError as error:
                    log.warning("The last request could not be carried out yet; the next attempt follows: %s", error)
        except Exception:
            log.exception("Requests are no longer looked for")
        finally:
            source.close()
