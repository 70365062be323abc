"""What can go wrong in a transaction: asked again, taken over again, fenced for good, or refused."""

from __future__ import annotations

from airflow_provider_kafka_migration.copy.append_errors import OutOfOrder, too_large
from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Sent
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    MigrationError,
    SliceExpired,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes

#: While a coordinator is busy with the transaction before.
PAUSES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)

#: The coordinator has moved, or has ended the transaction itself: the id is taken over again, which tells the outcome.
_TAKE_OVER = error_codes.COORDINATOR_MOVED | {error_codes.UNKNOWN_PRODUCER_ID, error_codes.TRANSACTION_ABORTABLE}


def is_concurrent(code: int) -> bool:
    """The transaction before is being ended: ask again in a moment."""
    return code == error_codes.CONCURRENT_TRANSACTIONS


def fenced(where: Where) -> SliceExpired:
    """A newer incarnation of the transactional id is in force."""
    return SliceExpired(
        "a newer incarnation of this partition's transactional id has fenced this one, or the coordinator has ended "
        "a transaction that took too long",
        where=where,
        next_step="none: the newer one goes on",
    )


def coordinator_error(code: int, what: str, where: Where, needs: str) -> MigrationError:
    """A coordinator has refused."""
    if code in error_codes.FENCED:
        return fenced(where)
    if code in _TAKE_OVER:
        return BrokerBusy(
            f"{what}: {error_codes.name(code)}", where=where, next_step="none: the transactional id is taken over again"
        )
    return error_codes.error_for(code, what, where=where, needs=needs)


def append_error(copy: PartitionCopy, sent: Sent, code: int, message: str) -> MigrationError:
    """A leader has refused a batch."""
    what = "the append was refused" + (f" ({message})" if message else "")
    where = Where(
        cluster="target",
        topic=copy.spec.target_topic,
        partition=copy.spec.partition,
        offset=copy.confirmed_source_offset,
    )
    if code in (error_codes.MESSAGE_TOO_LARGE, error_codes.RECORD_LIST_TOO_LARGE):
        return too_large(sent, what, where)
    if code in (error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, error_codes.DUPLICATE_SEQUENCE_NUMBER):
        return OutOfOrder(what, where=where, next_step="none: the transactional id is taken over again")
    return coordinator_error(code, what, where, "Write")
