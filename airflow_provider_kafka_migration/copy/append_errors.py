"""What can go wrong with an append or a fill: errors between the appender and the copier, which settles them.

They never leave a lane: the copier looks at the target's log, and goes on or stops the partition with a named error.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.copy.partition import PartitionCopy, Sent
from airflow_provider_kafka_migration.errors import MigrationError, RecordTooLarge, SliceExpired, Transient, Where
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
