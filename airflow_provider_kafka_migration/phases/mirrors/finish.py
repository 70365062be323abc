"""Finish: end a mirror, or promote its target without the source. It contacts the target only."""

from __future__ import annotations

from airflow_provider_kafka_migration.errors import IllegalTransition, Transient
from airflow_provider_kafka_migration.mirrors import ending, promotion_freeze, requests
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult

PHASE = "finish"


def run(context: PhaseContext) -> PhaseResult:
    """Carry out the last request.

    :raises IllegalTransition: nobody has asked for an end, or nothing is mirrored yet.
    :raises Transient: the request had come too late, and is turned down.
    :raises StillFrozen: a promotion was under way, and its freeze cannot be lifted.
    """
    if (promoted := ending.complete_promotion(context)) is not None:
        return promoted
    asked = requests.read(context.journal_store, context.migration_id)
    request = requests.in_time(context, by=PHASE)
    if request.number != asked.number:
        raise Transient(
            f"the mirror does not end, and {'stays paused' if request.want == 'paused' else 'goes on'}: "
            f"{request.refused or 'somebody has asked for something else'}",
            where=context.where(PHASE),
            next_step="none: whoever runs the mirror acts on the last request",
        )
    if request.want != "ended" and (done := ending.after_promotion(context)) is not None:
        return done
    if request.want == "ended":
        # Nobody frees the producers of a mirror that has ended.
        promotion_freeze.settle(context, request)
        return ending.end(context, request)
    if request.want == "promoted" and request.source_gone:
        return ending.promote_without_source(context, request)
    raise IllegalTransition(
        f"nobody has asked to end this mirror: the last request is {request.want}",
        where=context.where(PHASE),
        next_step="kafka-migration mirror promote FILE --source-gone, or kafka-migration mirror end FILE",
    )
