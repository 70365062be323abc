"""Decides what copiers ask for: whether an id in a part of a topic that no subject is named after is one.

The records that copiers have found are read again, with those behind them. If the payloads that begin with this id
decode with its schema, it is an id in this part of this topic from then on; if not, such payloads stay as they are.
Shares are those of ``schemas.payloads.detect``. As long as nobody can tell, the copiers' partitions wait. Where all of
these records are deleted by now, nobody waits: the next record with this id asks anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby

from airflow_provider_kafka_migration.documents.schemas import SchemaFailure, SchemaIdMap
from airflow_provider_kafka_migration.errors import BatchMalformed, MigrationError, SchemaIdUnknown, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import LegacyBatch, iter_batches, records
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, FetchRange
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.schema_ids.id_map import UndecidedId, parse_undecided, undecided_prefix
from airflow_provider_kafka_migration.schema_ids.wire_format import Part, id_in_payload, prefix_bytes
from airflow_provider_kafka_migration.schemas.payloads.decode import CannotDecode
from airflow_provider_kafka_migration.schemas.payloads.known_ids import KnownIds

#: Of the payloads with an id, so many must decode.
MIN_DECODED_SHARE = 0.95
_READ_BYTES = 1024 * 1024
#: Records with one id that are read again, each with those behind it.
_MAX_PLACES = 20

log = logging.getLogger(__name__)
#: (topic, part, id, whether payloads with it decode)
Decided = tuple[str, Part, int, bool]


def undecided_ids(record: MigrationRecord, document: SchemaIdMap | None) -> list[UndecidedId]:
    """Return what copiers have asked for, and the map does not decide, ascending."""
    decided = set() if document is None else {tuple(item[:3]) for item in document.decided}
    prefix = undecided_prefix(record.migration_id)
    found = [parse_undecided(record.journal_store.get(info.key) or b"") for info in record.journal_store.list(prefix)]
    return sorted(item for item in found if item is not None and item[:3] not in decided)


def decide_ids(
    wire: Wire, known: KnownIds, asked: Iterable[UndecidedId], where: Where
) -> tuple[set[Decided], list[SchemaFailure]]:
    """Decide what can be decided; return it, and why the other ids wait.

    :param wire: the source cluster.
    """
    decided: set[Decided] = set()
    failed = []
    for (topic, part, id_), places in groupby(sorted(asked), key=lambda item: item[:3]):
        items = list(places)
        try:
            carries = _decodes(wire, known, items)
        except (MigrationError, CannotDecode) as error:
            failed.append(_failure(items[0], error, where))
            continue
        if carries is None:
            log.info("no record with id %d in %ss of %s that was asked for is there any more", id_, part, topic)
        else:
            decided.add((topic, part, id_, carries))
    return decided, failed


def _decodes(wire: Wire, known: KnownIds, places: Sequence[UndecidedId]) -> bool | None:
    """Return whether the payloads of one id decode; None: none of them is there any more.

    :raises MigrationError: the source does not answer.
    :raises CannotDecode: nobody can tell.
    """
    tried = good = 0
    # What retention deletes comes first.
    for item in sorted(places, key=lambda item: item.offset)[-_MAX_PLACES:]:
        for payload in _payloads(wire, item, known.has_zero):
            tried += 1
            good += known.decodes(item.context, item.id, payload)
    return good >= MIN_DECODED_SHARE * tried if tried else None


def _payloads(wire: Wire, item: UndecidedId, zero_is_id: bool) -> Iterable[bytes]:
    """Yield what follows the id in records from the one on that was named.

    :raises MigrationError: the source does not answer.
    """
    key = (item.topic, item.partition)
    start = max(item.offset, wire.list_offsets([key], "earliest")[key])
    answers = wire.fetch_once([FetchRange(*key, start, _READ_BYTES)], isolation=READ_COMMITTED)
    for answer in answers:
        if answer.error_code:
            raise error_codes.error_for(
                answer.error_code,
                "records cannot be read",
                where=Where(topic=item.topic, partition=item.partition, offset=start),
                needs="Read",
            )
        for batch in iter_batches(answer.records):
            if batch.is_control:
                continue
            for record in batch.records() if isinstance(batch, LegacyBatch) else records(batch):
                payload = record.key if item.part == "key" else record.value
                if record.offset < start or payload is None:
                    continue
                found = id_in_payload(payload, 0, len(payload), zero_is_id=zero_is_id)
                if found is not None and found[1] == item.id:
                    yield payload[prefix_bytes(found[0]) :]


def _failure(item: UndecidedId, error: Exception, where: Where) -> SchemaFailure:
    why = error.what if isinstance(error, MigrationError | BatchMalformed) else str(error)
    name = f"id {item.id} of context {item.context} in {item.part}s of {item.topic}"
    found = SchemaIdUnknown(
        f"records wait for the decision whether {name} is a schema id: no subject is named after these "
        f"{item.part}s, and nobody can tell whether they decode: {why}",
        where=where,
        next_step="correct this reason; the next pass reads the record again, and the partition continues by itself",
        details={"topic": item.topic, "part": item.part, "id": item.id, "offset": item.offset},
    )
    return SchemaFailure(subject="", schema_id=name, error=found.as_dict())
