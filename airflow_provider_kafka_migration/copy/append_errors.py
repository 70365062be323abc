"""Errors of an append or a fill, which the appender reports and the copier settles.

They never leave a lane: the copier reads the target's log, then continues or stops the partition with a named error.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Sent
from airflow_provider_kafka_migration.errors import (
    BrokerBusy,
    MigrationError,
    RecordTooLarge,
    SliceExpired,
    TimestampsReplaced,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes


class OutOfOrder(Transient):
    """The compare of compare-and-append failed: another writer was faster, or the log went back."""


class TooLarge(Transient):
    """The batch is larger than the target accepts and is split; ``details``: size_bytes."""

    code = "BATCH_TOO_LARGE"


class UnexpectedOffset(Transient):
    """An append landed at another offset than expected: a hole was filled twice, or there is a foreign writer.

    ``details``: expected_offset, base_offset, source_offset, record_count.
    """


class UnexpectedEnd(Transient):
    """The log end after writing markers is not the expected one; ``details``: expected_offset, log_end_offset."""


def too_large(sent: Sent, what: str, where: Where) -> TooLarge | RecordTooLarge:
    """Return the error of an append refused for its size: it can be split, or is a single record."""
    if sent.record_count > 1:
        return TooLarge(what, where=where, details={"size_bytes": sent.size_bytes})
    return RecordTooLarge(
        f"a single record, in a batch of {sent.size_bytes} bytes, is larger than the target topic accepts",
        where=where,
        next_step="clear the task: it raises max.message.bytes of the target topic for the copy. If the record is "
        "named again, no request to the target's brokers can hold it: raise their socket.request.max.bytes",
        details={"offset": sent.source_offset, "batch_bytes": sent.size_bytes},
    )


def unexpected_offset(copy: PartitionCopy, sent: Sent, base_offset: int) -> UnexpectedOffset:
    """Return the error of an append that was accepted at another offset."""
    return UnexpectedOffset(
        f"an append was expected at offset {sent.target_offset} but was written at {base_offset}",
        where=Where(cluster="target", topic=copy.spec.target_topic, partition=copy.spec.partition),
        next_step="none: the copier reads what lies between",
        details={
            "expected_offset": sent.target_offset,
            "base_offset": base_offset,
            "source_offset": sent.source_offset,
            "record_count": sent.record_count,
        },
    )


def unexpected_end(copy: PartitionCopy, log_end_offset: int) -> UnexpectedEnd:
    """Return the error of a fill that ended at another offset."""
    expected = copy.write.confirmed_offset + copy.write.filling
    return UnexpectedEnd(
        f"the log end was expected at {expected} but is {log_end_offset}",
        where=Where(cluster="target", topic=copy.spec.target_topic, partition=copy.spec.partition),
        next_step="none: the copier reads what lies between",
        details={"expected_offset": expected, "log_end_offset": log_end_offset},
    )


def marker_error(code: int, where: Where) -> MigrationError:
    """Return the error of a refused marker request."""
    if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        return Transient(
            "the migration may no longer write control markers",
            where=where,
            next_step="none: it uses empty transactions instead",
        )
    if code in (error_codes.INVALID_PRODUCER_EPOCH, error_codes.TRANSACTION_COORDINATOR_FENCED):
        return SliceExpired(
            "a newer incarnation of this lane has fenced this one",
            where=where,
            next_step="none: the newer one continues",
        )
    return error_codes.error_for(code, "control markers were refused", where=where)


def has_replaced_timestamps(sent: Sent, log_append_time_ms: int) -> bool:
    """Return whether a successful answer shows that the leader has written its own time into the records.

    For a batch that it already has (a copier that was killed, or a connection that was lost, had sent it as well), a
    leader answers with that batch's own largest timestamp in this field, whatever the topic's timestamp type is.
    """
    return log_append_time_ms >= 0 and log_append_time_ms != sent.max_timestamp_ms


def replaced_timestamps(
    copy: PartitionCopy, sent: Sent, log_append_time_ms: int, target_offset: int, *, stays: bool
) -> TimestampsReplaced:
    """Return the error of an append whose records have got the broker's time.

    :param target_offset: of the append.
    :param stays: they can be read; False: their transaction is aborted.
    """
    left = (
        "The records from that offset on keep the wrong time, so the topic has to be deleted on the target and copied "
        "again"
        if stays
        else "Their transaction is aborted, so nobody reads them with the wrong time, and the copy goes on from there"
    )
    spec = copy.spec
    return TimestampsReplaced(
        f"the target has replaced the timestamps of the records that it appended at offset {target_offset} by its own "
        f"time ({log_append_time_ms} ms)",
        where=Where(cluster="target", topic=spec.target_topic, partition=spec.partition, offset=target_offset),
        next_step=f"the target topic has message.timestamp.type=LogAppendTime: set it to CreateTime. {left}",
        details={"target_offset": target_offset, "source_offset": sent.source_offset},
    )


def dropped(where: Where) -> Transient:
    """Return the error of a fill of which nothing was written."""
    return Transient("the broker dropped all markers", where=where, next_step="none: the copier sends them again")


# -- transactional errors ---------------------------------------------------------------------------------------------
#
# Errors of a transaction: repeat the request, take the transactional id over again, stop as fenced, or stop as refused.


#: Pauses between requests while a coordinator is still ending the previous transaction.
PAUSES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)

#: The coordinator has moved, or has ended the transaction itself: taking the id over again reveals the outcome.
_TAKE_OVER = error_codes.COORDINATOR_MOVED | {error_codes.UNKNOWN_PRODUCER_ID, error_codes.TRANSACTION_ABORTABLE}


def is_concurrent(code: int) -> bool:
    """Return whether the previous transaction is still being ended, so that the request must be repeated soon."""
    return code == error_codes.CONCURRENT_TRANSACTIONS


def fenced(where: Where) -> SliceExpired:
    """Return the error of a transactional id that was fenced."""
    return SliceExpired(
        "a newer incarnation of this partition's transactional id has fenced this one, or the coordinator has ended "
        "a transaction that took too long",
        where=where,
        next_step="none: the newer one continues",
    )


def coordinator_error(code: int, what: str, where: Where, needs: str) -> MigrationError:
    """Return the error of a request that a coordinator refused."""
    if code in error_codes.FENCED:
        return fenced(where)
    if code in _TAKE_OVER:
        return BrokerBusy(
            f"{what}: {error_codes.name(code)}",
            where=where,
            next_step="none: the copier takes the transactional id over again",
        )
    return error_codes.error_for(code, what, where=where, needs=needs)


def append_error(copy: PartitionCopy, sent: Sent, code: int, message: str) -> MigrationError:
    """Return the error of a batch that a leader refused."""
    what = "the broker refused the append" + (f" ({message})" if message else "")
    where = Where(
        cluster="target",
        topic=copy.spec.target_topic,
        partition=copy.spec.partition,
        offset=copy.write.confirmed_source_offset,
    )
    if code in (error_codes.MESSAGE_TOO_LARGE, error_codes.RECORD_LIST_TOO_LARGE):
        return too_large(sent, what, where)
    if code in (error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, error_codes.DUPLICATE_SEQUENCE_NUMBER):
        return OutOfOrder(what, where=where, next_step="none: the copier takes the transactional id over again")
    return coordinator_error(code, what, where, "Write")
