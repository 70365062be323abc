"""Approvals: live facts for a person, a code that binds the answer to what will happen, and the check of the answer.

A click alone never authorises: Airflow shows the first text again after a clear. So the text holds a code, the first
8 hex digits of a digest over what will happen; the person types it, and it is compared with a fresh digest when the
answer comes in. No code, no cutover, REST included.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.cutover import ApprovalFacts, ApprovalKind, GroupResult
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.freeze import fence, late_writes
from airflow_provider_kafka_migration.groups import commit, left_out
from airflow_provider_kafka_migration.groups.offsets import count_translations
from airflow_provider_kafka_migration.pages import approval_text
from airflow_provider_kafka_migration.record import freeze_attempt, handover, proof
from airflow_provider_kafka_migration.record.context import PhaseContext, iso, words
from airflow_provider_kafka_migration.record.facts import migrated_partitions, result_data
from airflow_provider_kafka_migration.record.handover import Handover
from airflow_provider_kafka_migration.record.offset_maps import load_document
from airflow_provider_kafka_migration.record.overtaken import overtaken_tombstones
from airflow_provider_kafka_migration.record.passed_content import content_ranges
from airflow_provider_kafka_migration.topics import lags

log = logging.getLogger(__name__)

SHOWN = "approval_shown"
CODE_DIGITS = 8


# -- facts -----------------------------------------------------------------------------------------------------------


def make_facts(context: PhaseContext, kind: ApprovalKind) -> ApprovalFacts:
    """Live facts, the code and the text of an approval. Reads only."""
    binding = make_binding(context, kind)
    code = code_of(binding)
    facts = _cutover_facts(context) if kind == "cutover" else _client_switch_facts(context)
    others = left_out.read_left_out(context, context.load_plan())
    facts = {**facts, "overtaken_tombstones": overtaken_tombstones(context)}
    facts = {**facts, "signing_key": _signing_key(context), "left_out": [list(row) for row in left_out.rows(others)]}
    subject, body = approval_text.render(context.spec, kind, code, facts)
    return ApprovalFacts(
        migration_id=context.migration_id,
        kind=kind,
        code=code,
        binding=binding,
        facts=facts,
        subject=subject,
        body=body,
        made_at=iso(context.now()),
    )


def show(context: PhaseContext, kind: ApprovalKind) -> ApprovalFacts:
    """:func:`make_facts`, and what was shown goes to the journal (digest and code; the text goes there as answered)."""
    if kind == "client_switch":
        _prove_rest(context)
    facts = make_facts(context, kind)
    context.journal.step(
        SHOWN, key=kind, details={"code": facts.code, "facts_digest": facts.digest(), "made_at": facts.made_at}
    )
    return facts


def _prove_rest(context: PhaseContext) -> None:
    """Compare what is left up to the boundary, and journal what is proven: no client has moved yet."""
    document = load_document(context)
    if document is None or not context.spec.validation.before_cutover:
        return
    rest = proof.prove_rest(context, content_ranges(document))
    status = proof_to_boundary(context, rest.unchecked)
    if status is not None:
        proof.journal_status(context, "client_switch", status)
    if rest.why:
        log.warning("Not all content up to the boundary is proven: %s", rest.why)


def proof_to_boundary(context: PhaseContext, unchecked: int | None = None) -> proof.ProofStatus | None:
    """What is proven up to the boundary of the cutover; None before there is one, or if nothing is compared.

    :param unchecked: partitions whose target log could not be looked at; None: as it was journaled last.
    """
    document = load_document(context)
    if document is None or not context.spec.validation.before_cutover:
        return None
    ends = {(item.topic, item.partition): item.source_end_offset or 0 for item in document.partitions}
    if unchecked is None:
        looked = context.journal.find_step(proof.STEP, "client_switch")
        # Nobody has looked at any of them yet.
        unchecked = len(ends) if looked is None else int(looked.details.get("unchecked_partitions", len(ends)))
    return proof.read_status(context, ends, unchecked=unchecked)


def code_of(binding: dict[str, Any]) -> str:
    """The code of a binding: 8 hex digits."""
    return canonical_digest(binding)[:CODE_DIGITS]


def make_binding(context: PhaseContext, kind: ApprovalKind) -> dict[str, Any]:
    """What will happen, as data. Things that move all the time (lag, offsets, times) are not in it."""
    section = context.spec.cutover
    binding: dict[str, Any] = {
        "kind": kind,
        "migration_id": context.migration_id,
        "plan": context.load_plan().digest(),
        "topology": _topology_digest(context),
        "partitions": canonical_digest([list(key) for key in migrated_partitions(context)]),
        "groups": _group_binding(context),
    }
    if kind == "cutover":
        binding["cutover"] = {
            "freeze": section.freeze,
            "sentinel": section.sentinel,
            "on_bypass": section.on_bypass,
            "max_producer_freeze_seconds": section.max_producer_freeze.total_seconds(),
            "lifted_before": len(context.journal.steps("freeze_lifted")),
            # Only where it is set: codes that people hold stay valid over an update.
            **({"in_one_task": True} if section.in_one_task else {}),
        }
    else:
        binding["boundary"] = canonical_digest(result_data(context, "boundary"))
        binding["on_active_source"] = context.spec.groups.on_active_source
    return binding


def _topology_digest(context: PhaseContext) -> str:
    entry = context.journal.find_step("topology_copied") or context.journal.find_step("topology_copy")
    return canonical_digest(entry.details) if entry is not None else ""


def _group_binding(context: PhaseContext) -> list[list[str]]:
    """Ids and kinds of the groups that will be moved."""
    listings = context.source.admin.list_groups()
    return [[name, listings[name].type] for name in sorted(listings) if context.spec.groups.selects(name)]


def _cutover_facts(context: PhaseContext) -> dict[str, Any]:
    status = lags.check(context)
    previews = commit.preview(context)
    changes = handover.of(context)
    return {
        "proof": _proof_so_far(context, status),
        "lag": lags.lag_by_topic(list(status.lags)),
        "total_lag": status.total,
        "partitions": len(status.lags),
        "max_lag": status.max_lag,
        "tail": status.tail.text,
        "tail_copies_all": status.tail.copies_all,
        "groups": [_group_line(item) for item in previews],
        "findings": waived_findings(context),
        "source_drift": take_over.facts(context),
        "expected_freeze_seconds": estimate_freeze_seconds(
            partitions=len(status.lags),
            group_count=len(previews),
            lag=status.total,
            window_seconds=context.spec.cutover.freeze_stable_window.total_seconds(),
            handover_seconds=changes.frozen_seconds,
        ),
        "handover": changes.as_dict(),
        "cannot_fit": cannot_fit(context, changes) or "",
    }


def cannot_fit(context: PhaseContext, changes: Handover) -> str | None:
    """Why the cutover cannot be done within ``max_producer_freeze`` even if nothing is left to copy; else None.

    Only what was measured counts, and of that the shortest: neither a guess nor a wait for a slot may refuse.
    """
    section = context.spec.cutover
    if not changes.measured or not changes.changes:
        return None
    least = section.freeze_stable_window.total_seconds() + changes.changes * changes.least_seconds
    limit = section.max_producer_freeze.total_seconds()
    if least <= limit:
        return None
    return (
        f"producers would be frozen for {words(least)} at least, and max_producer_freeze is {words(limit)}: "
        f"{changes.changes} changes from task to task at {words(changes.least_seconds)} each, the shortest measured "
        f"in this migration, and the window of {words(section.freeze_stable_window.total_seconds())}"
    )


def _proof_so_far(context: PhaseContext, status: lags.DrainStatus) -> dict[str, Any] | None:
    if not context.spec.validation.before_cutover:
        return None
    positions = {(item.topic, item.partition): item.position for item in status.lags}
    return proof.read_status(context, positions).as_dict()


def _client_switch_facts(context: PhaseContext) -> dict[str, Any]:
    result = commit.load_result(context)
    proven = proof_to_boundary(context)
    return {
        "proof": None if proven is None else proven.as_dict(),
        "frozen": result_data(context, "frozen-time"),
        "boundary": result_data(context, "boundary"),
        "groups": [_group_line(item) for item in result.groups] if result else [],
        "active_on_source": [item.group for item in commit.read_groups(context) if item.members],
        "behind_boundary": late_writes.read(context).as_dict(),
        "findings": waived_findings(context),
        **_fence_facts(context),
    }


def _fence_facts(context: PhaseContext) -> dict[str, Any]:
    """Why nothing is fenced ("": there was a fence), and on which target partitions an old copier can still write."""
    attempt = freeze_attempt.current_attempt(context)
    step = freeze_attempt.step_done(context, attempt, fence.FENCE_STEP) if attempt else None
    if step is None:
        return {"not_fenced": "the journal names no fence of this cutover", "unfenced": []}
    if not fence.was_fenced(step):
        return {"not_fenced": "cutover.fence_copiers is false", "unfenced": []}
    rows = [f"{item['topic']}-{item['partition']}: {item['reason']}" for item in step.get("unfenced", [])]
    return {"not_fenced": "", "unfenced": rows}


def _group_line(group: GroupResult) -> dict[str, Any]:
    return {
        "group": group.group,
        "type": group.type,
        "source_state": group.source_state,
        "target_state": group.target_state,
        "partitions": len(group.offsets),
        "translations": count_translations(list(group.offsets)),
        "left_alone": group.skipped_reason,
        "failures": [failure["what"] for failure in group.failures],
    }


def waived_findings(context: PhaseContext) -> list[dict[str, Any]]:
    """Findings of the precheck that somebody accepted, and the other warnings."""
    findings = result_data(context, "precheck").get("findings", [])
    return [item for item in findings if item.get("waived") or item.get("severity") == "Warning"]


def _signing_key(context: PhaseContext) -> str:
    from airflow_provider_kafka_migration.record.keys import fingerprint_for_people

    return fingerprint_for_people(context)


#: From the request to stop until nothing of the producers is on its way any more, without the window.
STOP_SECONDS = 3.0


def estimate_freeze_seconds(
    *, partitions: int, group_count: int, lag: int, window_seconds: float, handover_seconds: float
) -> float:
    """How long producers will probably be frozen, in seconds, from measured rates (docs/cutover.md).

    Counted from the moment they are asked to stop. The way to the producers; the window; sentinels and checks by
    partitions; what is still to be copied; the tail's next look at its stop; group commits; and the way from task to
    task (:mod:`~.record.handover`).
    """
    copy = lag / 20_000
    return round(STOP_SECONDS + window_seconds + 2.0 + partitions / 150 + copy + group_count / 20 + handover_seconds, 1)


# -- answers ---------------------------------------------------------------------------------------------------------


# -- later: was it approved? -----------------------------------------------------------------------------------------
