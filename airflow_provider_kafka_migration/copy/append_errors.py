"""What can go wrong with an append or a fill: errors between the appender and the copier, which settles them.

They never leave a lane: the copier looks at the target's log, and goes on or stops the partition with a named error.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Sent
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    MigrationError,
    RecordTooLarge,
    SliceExpired,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes


class OutOfOrder(Transient):
    """The compare of compare-and-append failed: somebody else was faster, or the log went back."""

    code = "OUT_OF_ORDER"


class TooLarge(Transient):
    """The batch is larger than the target takes: it is split. ``details["size_bytes"]``."""

    code = "BATCH_TOO_LARGE"


class UnexpectedOffset(Transient):
    """An append was accepted at another offset than expected: a hole was filled twice, or a foreign writer.

    ``details``: expected_offset, base_offset, source_offset, record_count.
    """

    code = "UNEXPECTED_OFFSET"


class UnexpectedEnd(Transient):
    """After markers were written the log end is not what was expected; ``details``: expected_offset, log_end_offset."""

    code = "UNEXPECTED_END"


def too_large(sent: Sent, what: str, where: Where) -> TooLarge | RecordTooLarge:
    """An append was refused for its size: it can be split, or is a single record."""
    if sent.record_count > 1:
        return TooLarge(what, where=where, details={"size_bytes": sent.size_bytes})
    return RecordTooLarge(
        f"a single record, in a batch of {sent.size_bytes} bytes, is larger than what the target topic takes",
        where=where,
        next_step="raise max.message.bytes of the target topic (and message.max.bytes of its brokers)",
        details={"offset": sent.source_offset, "batch_bytes": sent.size_bytes},
    )


def unexpected_offset(copy: PartitionCopy, sent: Sent, base_offset: int) -> UnexpectedOffset:
    """An append was accepted elsewhere."""
    return UnexpectedOffset(
        f"an append was expected at offset {sent.target_offset} and was written at {base_offset}",
        where=Where(cluster="target", topic=copy.spec.target_topic, partition=copy.spec.partition),
        next_step="none: the copier looks at what lies between",
        details={
            "expected_offset": sent.target_offset,
            "base_offset": base_offset,
            "source_offset": sent.source_offset,
            "record_count": sent.record_count,
        },
    )


def unexpected_end(copy: PartitionCopy, log_end_offset: int) -> UnexpectedEnd:
    """A fill has ended elsewhere."""
    expected = copy.confirmed_offset + copy.filling
    return UnexpectedEnd(
        f"the log end was expected at {expected} and is {log_end_offset}",
        where=Where(cluster="target", topic=copy.spec.target_topic, partition=copy.spec.partition),
        next_step="none: the copier looks at what lies between",
        details={"expected_offset": expected, "log_end_offset": log_end_offset},
    )


def marker_error(code: int, where: Where) -> MigrationError:
    """A marker request was refused."""
    if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        return Transient(
            "control markers may not be written any more",
            where=where,
            next_step="none: empty transactions are used instead",
        )
    if code in (error_codes.INVALID_PRODUCER_EPOCH, error_codes.TRANSACTION_COORDINATOR_FENCED):
        return SliceExpired(
            "a newer incarnation of this lane has fenced this one",
            where=where,
            next_step="none: the newer one goes on",
        )
    return error_codes.error_for(code, "control markers were refused", where=where)


def dropped(where: Where) -> Transient:
    """Nothing of a fill was written."""
    return Transient("the broker dropped all markers", where=where, next_step="none: they are sent again")


# -- transactional errors ---------------------------------------------------------------------------------------------
#
# What can go wrong in a transaction: asked again, taken over again, fenced for good, or refused.


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
