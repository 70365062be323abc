"""Broker error codes: their names, whether a retry can help, and which of our errors they become."""

from __future__ import annotations

from kafka.errors import for_code

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    BrokerBusy,
    BrokerRefused,
    MigrationError,
    PermissionMissing,
    Where,
)

#: An exception inside the broker that it has no code for. A broker that is still starting answers so, too.
UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
OFFSET_METADATA_TOO_LARGE = 12
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
RECORD_LIST_TOO_LARGE = 18
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_TIMESTAMP = 32
UNSUPPORTED_VERSION = 35
POLICY_VIOLATION = 44
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
TRANSACTION_COORDINATOR_FENCED = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
SECURITY_DISABLED = 54
OPERATION_NOT_ATTEMPTED = 55
KAFKA_STORAGE_ERROR = 56
SASL_AUTHENTICATION_FAILED = 58
UNKNOWN_PRODUCER_ID = 59
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
OFFSET_NOT_AVAILABLE = 78
PREFERRED_LEADER_NOT_AVAILABLE = 80
INVALID_RECORD = 87
UNSTABLE_OFFSET_COMMIT = 88
THROTTLING_QUOTA_EXCEEDED = 89
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120

#: The metadata is stale: ask for the leaders again.
STALE_METADATA = frozenset(
    {UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, 74, 75, 78}
)

#: A transaction coordinator has moved, is busy, has ended the transaction itself, or has forgotten the id.
COORDINATOR_MOVED = frozenset(
    {
        COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE,
        NOT_COORDINATOR,
        REQUEST_TIMED_OUT,
        NOT_ENOUGH_REPLICAS,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        INVALID_TXN_STATE,
        INVALID_PRODUCER_ID_MAPPING,
    }
)
#: A newer incarnation of the transactional id is active.
FENCED = frozenset({INVALID_PRODUCER_EPOCH, PRODUCER_FENCED})

_PERMISSION = frozenset(
    {
        TOPIC_AUTHORIZATION_FAILED,
        GROUP_AUTHORIZATION_FAILED,
        CLUSTER_AUTHORIZATION_FAILED,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_RETRIABLE_EXTRA = frozenset({OFFSET_NOT_AVAILABLE, THROTTLING_QUOTA_EXCEEDED, CONCURRENT_TRANSACTIONS})

#: Codes that kafka-python does not know, as Kafka 4.4 names them.
_NEWER = {
    128: "INVALID_REGULAR_EXPRESSION",
    129: "REBOOTSTRAP_REQUIRED",
    130: "STREAMS_INVALID_TOPOLOGY",
    131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    132: "STREAMS_TOPOLOGY_FENCED",
    133: "SHARE_SESSION_LIMIT_REACHED",
    134: "GROUP_DELETION_FAILED",
    135: "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED",
    136: "CONTROLLER_ID_NOT_REGISTERED",
}


def name(code: int) -> str:
    """Return the text for a code, in the style ``NOT_LEADER_OR_FOLLOWER (6)``."""
    return f"{bare_name(code)} ({code})"


def bare_name(code: int) -> str:
    """Return the name of a code in Kafka's protocol, for instance ``NOT_LEADER_OR_FOLLOWER``."""
    if code == UNKNOWN_SERVER_ERROR:
        return "UNKNOWN_SERVER_ERROR"
    if code in _NEWER:
        return _NEWER[code]
    kind = for_code(code)
    return str(getattr(kind, "message", None) or kind.__name__)


def retriable(code: int) -> bool:
    """Return whether the same request may succeed later."""
    return code in _RETRIABLE_EXTRA or bool(getattr(for_code(code), "retriable", False))


def error_for(code: int, what: str, *, where: Where, next_step: str = "", needs: str = "") -> MigrationError:
    """Return our error for a broker code: permission, authentication, busy (retriable) or refused.

    :param needs: the operations that the request needs, for instance ``Read``; the resource is added from the code
        and ``where``. A text with both, for instance ``ClusterAction on the cluster``, is used unchanged.
    """
    text = f"{what}: {name(code)}"
    if code in _PERMISSION:
        needed = _needed(code, where, needs)
        cluster = f" on the {where.cluster} cluster" if where.cluster else ""
        return PermissionMissing(
            f"{text}; {needed} is missing",
            where=where,
            next_step=next_step or f"grant {needed}{cluster} to the migration's principal, then try again",
            details={"operation": needed, "code": code},
        )
    if code == SASL_AUTHENTICATION_FAILED:
        return AuthenticationFailed(text, where=where, next_step="check the connection's user name and password")
    if retriable(code):
        return BrokerBusy(text, where=where, next_step=next_step or "once the broker has recovered, clear the task")
    return BrokerRefused(text, where=where, next_step=next_step or "look for the reason in the broker's log")


def error_of_read(code: int, what: str, *, where: Where, needs: str = "") -> MigrationError:
    """Return our error for a broker code in the answer to a request that changes nothing.

    It is that of :func:`error_for`, but an UNKNOWN_SERVER_ERROR is transient: brokers send it while they start, and a
    read can be repeated. A change that fails so is not repeated: a broker's plug-in (a policy, an authorizer) that
    throws would throw again.
    """
    if code != UNKNOWN_SERVER_ERROR:
        return error_for(code, what, where=where, needs=needs)
    return BrokerBusy(
        f"{what}: {name(code)}, an exception inside the broker",
        where=where,
        next_step="wait if the broker has just started; else look for the exception in its log. Then clear the task",
    )


def _needed(code: int, where: Where, needs: str) -> str:
    """Return the text of a missing permission, in the style ``Read on Topic orders``."""
    if " on " in needs:
        return needs
    resource = {
        TOPIC_AUTHORIZATION_FAILED: f"Topic {where.topic}" if where.topic else "the topic",
        GROUP_AUTHORIZATION_FAILED: f"Group {where.group}" if where.group else "the group",
        CLUSTER_AUTHORIZATION_FAILED: "the cluster",
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the TransactionalId",
    }[code]
    return f"{needs or 'the operation'} on {resource}"
