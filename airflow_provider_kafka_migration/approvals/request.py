"""Approval requests: live facts for a person, and a code that binds the answer to what will happen.

A click alone never authorises, because Airflow shows the first text again after a clear. So the text contains a code,
the first 8 hex digits of a digest over what will happen. The person types it, and it is compared with a fresh digest
when the answer arrives. Without a code there is no cutover, not even through the REST API.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_kafka_migration.approvals import abandon, proof, way_back
from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.documents.base import Document, canonical_digest
from airflow_provider_kafka_migration.documents.cutover import ApprovalFacts, ApprovalKind, GroupResult
from airflow_provider_kafka_migration.documents.plan import Severity
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.freeze import deny_acls, fence, late_writes
from airflow_provider_kafka_migration.groups import commit, left_out
from airflow_provider_kafka_migration.groups.offsets import count_translations, read_offsets
from airflow_provider_kafka_migration.jobs import tail_health, target_losses
from airflow_provider_kafka_migration.kafka.admin.groups import GroupListing, GroupOffsets, is_unsupported
from airflow_provider_kafka_migration.pages import approval, schemas
from airflow_provider_kafka_migration.record import handover, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.handover import Handover
from airflow_provider_kafka_migration.record.passed_content import content_ranges
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, words
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics import lags
from airflow_provider_kafka_migration.verbs import former_word, verb_of

log = logging.getLogger(__name__)


# -- facts -----------------------------------------------------------------------------------------------------------


def make_facts(context: PhaseContext, kind: ApprovalKind) -> ApprovalFacts:
    """Collect the live facts, the code and the text of an approval. Read-only."""
    record = context.record
    binding = make_binding(record, context.source, kind)
    code = code_of(binding)
    facts = (
        _cutover_facts(record, context.source, context.target)
        if kind == "cutover"
        else _client_switch_facts(record, context.source)
    )
    others = left_out.read_left_out(record, context.source, record.plan())
    facts = {**facts, "schemas": _schema_facts(record)}
    facts = {**facts, "overtaken_tombstones": record.overtaken(), "target_losses": target_losses.found(record)}
    if record.spec.is_way_back:
        facts = {**facts, "way_back": way_back.facts(record)}
    elif kind == "cutover":
        facts = {**facts, "abort_code": abort_code(record)}
    if kind == "client_switch":
        facts = {**facts, "abandon_code": abandon.abandon_code(record)}
    facts = {**facts, "signing_key": _signing_key(context), "left_out": [list(row) for row in left_out.rows(others)]}
    subject, body = approval.render(context.spec, kind, code, facts)
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
    """Call :func:`make_facts` and journal what was shown (digest and code; the answer's entry holds the text)."""
    if kind == "client_switch":
        _prove_rest(context.record, context.source, context.target)
    facts = make_facts(context, kind)
    context.journal.step(
        steps.APPROVAL_SHOWN,
        key=kind,
        details={
            "code": facts.code,
            "facts_digest": facts.digest(),
            "made_at": facts.made_at,
            # A refusal names what has changed since.
            "binding": facts.binding,
        },
    )
    return facts


def _prove_rest(record: MigrationRecord, source: Cluster, target: Cluster) -> None:
    """Compare the rest up to the boundary and journal what is proven, while no client has moved yet."""
    document = record.offset_map()
    if document is None or not record.spec.validation.before_cutover:
        return
    rest = proof.prove_rest(record, source, target, content_ranges(document))
    status = proof_to_boundary(record, rest.unchecked)
    if status is not None:
        proof.journal_status(record, "client_switch", status)
    if rest.why:
        log.warning("Not all content up to the boundary is proven: %s", rest.why)


def proof_to_boundary(record: MigrationRecord, unchecked: int | None = None) -> proof.ProofStatus | None:
    """Return what is proven up to the cutover's boundary; None before there is one, or if nothing is compared.

    :param unchecked: number of partitions whose target log could not be checked; None: the number journaled last.
    """
    document = record.offset_map()
    if document is None or not record.spec.validation.before_cutover:
        return None
    ends = {(item.topic, item.partition): item.source_end_offset or 0 for item in document.partitions}
    if unchecked is None:
        looked = record.journal.find_step(steps.CONTENT_PROVEN, "client_switch")
        # Without an entry, none of them has been checked yet.
        unchecked = len(ends) if looked is None else int(looked.details.get("unchecked_partitions", len(ends)))
    return proof.read_status(record, ends, unchecked=unchecked)


def make_binding(record: MigrationRecord, source: Cluster, kind: ApprovalKind) -> dict[str, Any]:
    """Return what will happen, as data, without values that change all the time (lag, offsets, times).

    Verbs are in former words, so that codes that people have been shown stay valid after an update.
    """
    section = record.spec.cutover
    binding: dict[str, Any] = {
        "kind": kind,
        "migration_id": record.migration_id,
        "plan": record.plan().digest(),
        "topology": _topology_digest(record),
        "partitions": canonical_digest([list(key) for key in record.partitions()]),
        "groups": _group_binding(record, source),
    }
    if kind == "cutover":
        binding["cutover"] = {
            "freeze": section.freeze,
            "sentinel": section.sentinel,
            "on_bypass": former_word("cutover.on_bypass", section.on_bypass),
            "max_producer_freeze_seconds": section.max_producer_freeze.total_seconds(),
            "lifted_before": len(record.freezes_lifted()),
            # Only if set, so that codes that people have been shown stay valid after an update.
            **({"in_one_task": True} if section.in_one_task else {}),
        }
    else:
        binding["boundary"] = canonical_digest(_data(record.find_boundary()))
        policy = record.spec.groups.on_active_source
        binding["on_active_source"] = former_word("groups.on_active_source", policy)
    return binding


def abort_code(record: MigrationRecord) -> str:
    """Return the code that ending the migration needs. It differs from the approval's: one must not serve the other.

    It depends only on the journal and the plan, so that a migration can be ended while its clusters are down.
    """
    binding = {
        "kind": "abort",
        "migration_id": record.migration_id,
        "plan": record.plan().digest() if record.has_plan() else "",
        "lifted_before": len(record.freezes_lifted()),
    }
    return code_of(binding)


def _topology_digest(record: MigrationRecord) -> str:
    entry = record.journal.find_step(steps.TOPOLOGY_COPIED)
    return canonical_digest(entry.details) if entry is not None else ""


def _group_binding(record: MigrationRecord, source: Cluster) -> list[str]:
    """Return the ids of the groups whose offsets will be migrated: those with offsets in migrated topics.

    Any other group of the cluster may come and go without a new approval. A group that cannot be read counts as
    migrated.
    """
    admin, topics = source.admin, {topic for topic, _ in record.partitions()}
    listings = {name: item for name, item in admin.list_groups().items() if record.spec.groups.selects(name)}
    offsets = read_offsets(admin, listings, require_stable=False) if listings else {}
    return [name for name in sorted(listings) if _is_migrated(listings[name], offsets.get(name), topics)]


def _is_migrated(listing: GroupListing, offsets: GroupOffsets | None, topics: Collection[str]) -> bool:
    if offsets is None:
        return True
    if offsets.error is not None:
        return not (listing.type == "share" and is_unsupported(offsets.error))
    return any(topic in topics for topic, _ in (*offsets.offsets, *offsets.errors))


def changes_since(shown: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """Return what has changed between two bindings, for people; empty if nothing has."""
    found = [_change(name, shown.get(name), fresh.get(name)) for name in sorted(shown.keys() | fresh.keys())]
    return [text for text in found if text]


def _change(name: str, shown: Any, fresh: Any) -> str:
    if shown == fresh:
        return ""
    if isinstance(shown, list) and isinstance(fresh, list):
        more, fewer = [item for item in fresh if item not in shown], [item for item in shown if item not in fresh]
        parts = [f"{verb} {_listed(items)}" for verb, items in (("new:", more), ("gone:", fewer)) if items]
        return f"{name} ({'; '.join(parts)})"
    if isinstance(shown, dict) and isinstance(fresh, dict):
        return "; ".join(f"{name}.{text}" for text in changes_since(shown, fresh))
    is_digest = name in _DIGESTS
    return name if is_digest else f"{name}: {verb_of(name, shown)} -> {verb_of(name, fresh)}"


#: Parts of a binding that are digests, which tell people nothing.
_DIGESTS = ("plan", "topology", "partitions", "boundary")


def _listed(items: Sequence[object]) -> str:
    more = f" and {len(items) - 10} more" if len(items) > 10 else ""
    return ", ".join(str(item) for item in items[:10]) + more


def _cutover_facts(record: MigrationRecord, source: Cluster, target: Cluster) -> dict[str, Any]:
    status = lags.check(record, source, target)
    previews = commit.preview(record, source, target)
    changes, former = handover.of(record), handover.former_freezes(record)
    denials = deny_acls.count_denials(record, source)
    return {
        "proof": _proof_so_far(record, status),
        "lag": lags.lag_by_topic(list(status.lags)),
        "total_lag": status.total,
        "partitions": len(status.lags),
        "max_lag": status.max_lag,
        # One look cannot hear the tail, and after a lifted freeze it may have ended long ago.
        "tail": status.tail.text or tail_health.silence(record),
        "tail_copies_all": status.tail.copies_all,
        "groups": [_group_line(item) for item in previews],
        "findings": waived_findings(record),
        "source_drift": take_over.facts(record, source, target),
        "expected_freeze_seconds": estimate_freeze_seconds(
            partitions=len(status.lags),
            group_count=len(previews),
            lag=status.total,
            window_seconds=record.spec.cutover.freeze_stable_window.total_seconds(),
            handover_seconds=changes.frozen_seconds + _is_by_hand(record.spec) * changes.typical_seconds,
            least_work_seconds=max((item.work_seconds for item in former), default=0.0),
            denials=denials,
        ),
        "denials": denials,
        "former_freezes": [item.as_dict() for item in former],
        "handover": changes.as_dict(),
        "cannot_fit": cannot_fit(record.spec, changes) or "",
    }


def cannot_fit(spec: MigrationSpec, changes: Handover) -> str | None:
    """Return why the cutover cannot fit into ``max_producer_freeze`` even if nothing is left to copy; else None.

    Only the shortest measured hand-over counts: neither an estimate nor a wait for a slot may cause a refusal.
    """
    section = spec.cutover
    count = changes.changes + _is_by_hand(spec)
    if not changes.measured or not count:
        return None
    least = section.freeze_stable_window.total_seconds() + count * changes.least_seconds
    limit = section.max_producer_freeze.total_seconds()
    if least <= limit:
        return None
    return (
        f"producers would be frozen for at least {words(least)}, but max_producer_freeze is {words(limit)}: "
        f"{count} hand-overs between tasks at {words(changes.least_seconds)} each, the shortest measured "
        f"in this migration, and the window of {words(section.freeze_stable_window.total_seconds())}"
    )


def _is_by_hand(spec: MigrationSpec) -> bool:
    """Whether producers are stopped before the answer, so that the way to the first task of the cutover counts, too."""
    return spec.cutover.freeze == "manual"


def _proof_so_far(record: MigrationRecord, status: lags.DrainStatus) -> dict[str, Any] | None:
    if not record.spec.validation.before_cutover:
        return None
    positions = {(item.topic, item.partition): item.position for item in status.lags}
    return proof.read_status(record, positions).as_dict()


def _client_switch_facts(record: MigrationRecord, source: Cluster) -> dict[str, Any]:
    result = record.groups()
    proven = proof_to_boundary(record)
    return {
        "proof": None if proven is None else proven.as_dict(),
        "frozen": _data(record.frozen_time()),
        "boundary": _data(record.find_boundary()),
        "groups": [_group_line(item) for item in result.groups] if result else [],
        "active_on_source": [item.group for item in commit.read_groups(record, source) if item.members],
        "behind_boundary": late_writes.read(record, source).as_dict(),
        "findings": waived_findings(record),
        **_fence_facts(record),
    }


def _data(document: Document | None) -> dict[str, Any]:
    """Return a document as data; empty if there is none. A missing boundary is named by ``behind_boundary``."""
    return {} if document is None else document.model_dump(mode="json")


def _fence_facts(record: MigrationRecord) -> dict[str, Any]:
    """Return why nothing is fenced ("": there was a fence), and the target partitions where an old copier can write."""
    attempt = record.freeze()
    step = record.cutover_step(attempt, steps.FENCE) if attempt else None
    if step is None:
        return {"not_fenced": "the journal has no entry of a fence in this cutover", "unfenced": []}
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
        "failures": [failure["what"] for failure in group.failures]
        + [f"{item.topic}-{item.partition} stays at {item.offset}: {item.reason}" for item in group.not_undone],
        "uncommitted": [f"{item.topic}-{item.partition}" for item in group.uncommitted],
    }


def waived_findings(record: MigrationRecord) -> list[dict[str, Any]]:
    """Return the findings of the precheck that were waived, and the other warnings; none before the first precheck."""
    checked = record.precheck()
    if checked is None:
        return []
    shown = [item for item in checked.findings if item.waived or item.severity is Severity.WARNING]
    return [item.model_dump(mode="json") for item in shown]


def _schema_facts(record: MigrationRecord) -> dict[str, Any] | None:
    """Return what moves between the schema registries; None if no schemas move."""
    plan = record.schema_plan()
    return None if plan is None else schemas.approval_facts(plan, record.schemas_result())


def _signing_key(context: PhaseContext) -> str:
    from airflow_provider_kafka_migration.record.signing import fingerprint_for_people

    return fingerprint_for_people(context)


#: From the request to stop until none of the producers' records are in flight, without the window.
STOP_SECONDS = 3.0
#: DENY bindings that a single broker creates, measured on a busy machine: 1,100 (3.9) to 1,800 a second (4.1).
DENIALS_PER_SECOND = 1000.0


def estimate_freeze_seconds(
    *,
    partitions: int,
    group_count: int,
    lag: int,
    window_seconds: float,
    handover_seconds: float,
    least_work_seconds: float = 0.0,
    denials: int = 0,
) -> float:
    """Estimate how long producers will be frozen, in seconds, from measured rates (docs/cutover.md).

    The time counts from the moment they are asked to stop. It includes: stopping the producers; the window; sentinels
    and checks, by number of partitions; copying the rest; the tail's next poll of its stop; group commits; and the
    hand-overs between tasks (:mod:`~.record.handover`).

    :param least_work_seconds: what a freeze of this migration that was lifted has taken, without its hand-overs.
    :param denials: DENY bindings that stop the producers (``freeze: acl``).
    """
    work = STOP_SECONDS + window_seconds + 2.0 + partitions / 150 + lag / 20_000 + group_count / 20
    work += denials / DENIALS_PER_SECOND
    return round(max(work, least_work_seconds) + handover_seconds, 1)
