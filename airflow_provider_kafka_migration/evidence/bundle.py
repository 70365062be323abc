"""Collect the evidence's contents: journal, plan, results. Read-only; the same state gives the same sections."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import DocumentUnreadable
from airflow_provider_kafka_migration.groups import left_out
from airflow_provider_kafka_migration.jobs import target_losses
from airflow_provider_kafka_migration.journal.spec_guard import flatten, last_spec
from airflow_provider_kafka_migration.kafka.admin.access import acl_row
from airflow_provider_kafka_migration.planning import follow, leave_out
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.registry_settings import changed_for_a_while
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.way_back import guard

PACKAGE = "airflow-provider-kafka-migration"
_VERSIONS_OF = (PACKAGE, "apache-airflow", "pyspark", "kafka-python", "confluent-kafka", "pynacl", "rfc8785")


def build(
    record: MigrationRecord,
    outcome: Outcome,
    *,
    signed_at: datetime,
    object_lock: dict[str, Any],
    warnings: list[str],
) -> EvidenceBundle:
    """Build the bundle of the current state."""
    entries = record.journal.entries()
    plan = record.plan()
    cutover = _cutover(record)
    config = _config(record)
    return EvidenceBundle(
        migration_id=record.migration_id,
        tool_version=_version(PACKAGE),
        signed_at=iso(signed_at),
        outcome=outcome,
        config_fingerprint=canonical_digest(config),
        config=config,
        resume_fingerprint=str(entries[0].details.get("fingerprint", {}).get("sha256", "")) if entries else "",
        journal=[entry.model_dump(mode="json", by_alias=True) for entry in entries],
        source=plan.source.model_dump(mode="json"),
        target=plan.target.model_dump(mode="json"),
        plan=json.loads(plan.canonical()),
        plan_digest=plan.digest(),
        topology=record.stored_result(keys.TOPOLOGY) or _step(record, steps.TOPOLOGY_COPIED),
        acls=record.stored_result(keys.ACCESS) or _step(record, steps.ACLS_COPIED),
        seed={**_job(record, "seed"), **_step(record, steps.SEED_DONE)},
        tail={**_job(record, "tail"), **_step(record, steps.TAIL_DONE)},
        drain_final=_last_attempt_step(record, steps.FINAL_DRAIN),
        cutover=cutover,
        validation=record.stored_result(keys.VALIDATION),
        groups=record.stored_result(keys.FINAL_GROUPS) or record.stored_result(keys.GROUPS),
        approvals=[
            {"seq": entry.seq, "at": entry.at, "step": entry.step, **entry.details}
            for entry in entries
            if entry.step in (steps.APPROVAL, steps.APPROVAL_REFUSED)
        ],
        findings=record.stored_result(keys.PRECHECK).get("findings", []),
        waivers=sorted(record.spec.waive),
        not_copied=not_copied(record, plan),
        versions={name: _version(name) for name in _VERSIONS_OF} | {"python": platform.python_version()},
        artifacts=_artifacts(record),
        source_drift=[
            {"seq": entry.seq, "at": entry.at, "step": entry.step, **entry.details}
            for entry in entries
            if entry.step in take_over.STEPS
        ],
        schemas=_schemas(record),
        way_back=_way_back(record),
        object_lock=object_lock,
        warnings=[*warnings, *_missing_results(record)],
    )


def _config(record: MigrationRecord) -> dict[str, Any]:
    """Return the spec in force, flat: the one recorded in the journal, or the current one if none was recorded."""
    recorded = last_spec(record.journal)
    return dict(recorded.details["fields"]) if recorded else flatten(record.spec.model_dump(mode="json"))


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _step(record: MigrationRecord, name: str) -> dict[str, Any]:
    """Return the details of the last journal step of this name; empty if there is none."""
    entry = record.journal.find_step(name)
    return dict(entry.details) if entry is not None else {}


#: Results that the evidence contains, and the journal step that follows the writing of each.
_RESULTS = {
    keys.PRECHECK: steps.PRECHECKED,
    keys.TOPOLOGY: steps.TOPOLOGY_COPIED,
    keys.ACCESS: steps.ACLS_COPIED,
    keys.FROZEN_TIME: steps.READY,
    keys.FINAL_GROUPS: steps.CLIENT_SWITCH_ACKNOWLEDGED,
    keys.VALIDATION: steps.VALIDATED,
    keys.SCHEMAS: steps.SCHEMAS_COPIED,
    keys.SCHEMAS_CHECK: steps.SCHEMAS_CHECKED,
}


def _missing_results(record: MigrationRecord) -> list[str]:
    """Name the results that the journal says were written and that are not in the store any more."""
    return [
        f"results/{name}.json is missing, although the journal has {step}: what it contained is not in this evidence"
        for name, step in _RESULTS.items()
        if record.journal.find_step(step) is not None and record.result(name) is None
    ]


def _job(record: MigrationRecord, name: str) -> dict[str, Any]:
    """Return the settings of a copy job, without the origin of its connections."""
    job = record.job(name)
    if job is None:
        return {}
    return {
        "job": {
            "via": job.via,
            "lanes": len(job.lanes),
            "partitions": len(job.partitions),
            "max_concurrent_partitions": job.max_concurrent_partitions,
            "timestamps": job.timestamps,
            "producers": job.producers.model_dump(mode="json"),
        }
    }


def _last_attempt_step(record: MigrationRecord, name: str) -> dict[str, Any]:
    attempt = record.freeze()
    return (record.cutover_step(attempt, name) or {}) if attempt else {}


def _cutover(record: MigrationRecord) -> dict[str, Any]:
    attempt = record.freeze()
    freeze = attempt.verified.model_dump(mode="json") if attempt and attempt.verified else {}
    return {
        "attempts": attempt.number if attempt else 0,
        "freeze": freeze,
        "boundary": record.stored_result(keys.BOUNDARY),
        "frozen_time": record.stored_result(keys.FROZEN_TIME),
        "floor_guard": _last_attempt_step(record, steps.FLOOR_GUARD),
        "fence": _last_attempt_step(record, steps.FENCE),
        "groups_snapshot": _last_attempt_step(record, steps.SNAPSHOT_GROUPS),
        "offset_translations": _last_attempt_step(record, steps.COMMIT_GROUPS),
        "lifted": [{"at": entry.at, **entry.details} for entry in record.freezes_lifted()],
        **_abandoned(record),
    }


def _abandoned(record: MigrationRecord) -> dict[str, Any]:
    entry = record.journal.find_step(steps.ABANDONED)
    return {} if entry is None else {"abandoned": {"at": entry.at, **entry.details}}


# -- way back --------------------------------------------------------------------------------------------------------


def _way_back(record: MigrationRecord) -> dict[str, Any]:
    """Return which migration this one reverses, with the digests of its evidence and journal; empty: none."""
    if not record.spec.is_way_back:
        return {}
    first = guard.first_migration(record)
    entries = first.journal.entries()
    uploaded = _step(first, steps.EVIDENCE_UPLOADED)
    return {
        "reverses": first.migration_id,
        # Empty if the way back ended before the first migration had been validated.
        "evidence": {name: uploaded[name] for name in ("uri", "sha256") if name in uploaded},
        "journal_entries": len(entries),
        "journal_hash": canonical_digest(entries[-1].model_dump(mode="json", by_alias=True)) if entries else "",
        "guarded": sorted(acl_row(acl) for acl in guard.bindings(record.journal)),
        "ready_for_client_return": _step(record, steps.READY_FOR_CLIENT_RETURN),
        "left_out": leave_out.left_out(record),
        **_released(record),
    }


def _released(record: MigrationRecord) -> dict[str, Any]:
    """Return how *Keep* has released the old cluster, with the report that its journal step names; empty: it has not.

    :raises DocumentUnreadable: the report is not the one that was journaled.
    """
    released = _step(record, steps.OLD_CLUSTER_RELEASED)
    if not released:
        return {}
    key = record.key(keys.ROLLBACK_REPORT)
    data = record.evidence_store.get(key)
    report = None if data is None else json.loads(data)
    if report is None or canonical_digest(report) != released["digest"]:
        raise DocumentUnreadable(
            f"{key} is {'missing' if report is None else 'not the one that was journaled'}",
            where=record.where("rollback", path=f"{record.evidence_store.uri}/{key}"),
            next_step="run `kafka-migration way-back keep FILE --approve CODE` again: it writes a new report",
        )
    return {"old_cluster_released": released, "report": report}


# -- schemas ---------------------------------------------------------------------------------------------------------


def _schemas(record: MigrationRecord) -> dict[str, Any]:
    """Return how the schemas moved: plan in figures, last synchronization, comparison, modes that were set for a while.

    Empty if the spec names no schema registry.
    """
    if not record.spec.schemas.configured:
        return {}
    summary = record.plan().schemas
    return {
        "plan": {} if summary is None else summary.model_dump(mode="json"),
        "final": _last_attempt_step(record, steps.FINAL_SCHEMAS),
        "result": record.stored_result(keys.SCHEMAS),
        "check": record.stored_result(keys.SCHEMAS_CHECK),
        "settings": [
            {"seq": entry.seq, "at": entry.at, "step": entry.step, **entry.details}
            for role in ("source", "target")
            for entry in changed_for_a_while(record.journal, role)
        ],
        "still_readonly": [
            {"seq": entry.seq, "at": entry.at, **entry.details}
            for entry in record.journal.steps(steps.SOURCE_REGISTRY_READONLY)
        ],
    }


def _schemas_left(record: MigrationRecord) -> list[dict[str, Any]]:
    """List subjects that did not move, conflicts, and what could not be read."""
    try:
        plan = record.schema_plan()
    except DocumentUnreadable as error:
        return [_left("not_looked_at", "schemas", error.what)]
    if plan is None:
        return []
    found = [_left("schema", subject, why) for subject, why in sorted(plan.left_out.items())]
    found += [
        _left("schema", f"{item.subject} version {item.version}" if item.version else item.subject, item.what)
        for item in plan.conflicts
    ]
    found += [_left("not_looked_at", what, why) for what, why in sorted(plan.unread.items())]
    return found + [_left("note", "", note) for note in plan.notes]


# -- what was left out -----------------------------------------------------------------------------------------------


def not_copied(record: MigrationRecord, plan: Plan) -> list[dict[str, Any]]:
    """List everything that is on the source but not on the target, with the reason."""
    found: list[dict[str, Any]] = []
    found += _not_taken(record, plan)
    for topic in plan.topics:
        found += [_left("config", f"{topic.name}: {name}", why) for name, why in sorted(topic.dropped_configs.items())]
    found += [
        _left("acl", f"{acl.permission} {acl.principal} {acl.operation} {acl.resource_type} {acl.resource_name}", why)
        for acl in plan.acls
        if (why := acl.reason or acl.action) and acl.action in ("filtered", "unsupported")
    ]
    found += [_left("user", user.name, user.reason) for user in plan.users if user.action == "report"]
    found += [
        _left("quota", ", ".join(f"{kind} {name or '(default)'}" for kind, name in quota.entity), "kept on the target")
        for quota in plan.quotas
        if quota.action == "kept_on_target"
    ]
    found += [_left("group_config", item.group, item.reason) for item in plan.group_configs if item.reason]
    found += [_left("not_looked_at", what, why) for what, why in sorted(plan.unknown.items())]
    found += [_left("note", "", note) for note in plan.notes]
    found += _schemas_left(record)
    found += _groups_left(record)
    found += _gaps(record)
    found += [
        _left(
            "overtaken_tombstones", f"{item['topic']}-{item['partition']}", item["what"],
            offsets=[item["from_offset"], item["until_offset"]],
        )
        for item in record.overtaken()
    ]  # fmt: skip
    found += [
        _left(
            "target_loss", f"{item['topic']}-{item['partition']}", item["what"],
            offsets=[item["to_target_offset"], item["from_target_offset"]],
        )
        for item in target_losses.found(record)
    ]  # fmt: skip
    found += _bypassed(record)
    found += [
        _left("source_drift", str(entry.details["what"]), str(entry.details["why"]))
        for entry in record.journal.steps(steps.DRIFT_NAMED)
    ]
    found += [
        _left("partition", name, "it did not exist, or was not followed yet, when the cutover's boundary was set")
        for name in sorted(follow.born_late(record))
    ]
    return found


def _left(kind: str, name: str, reason: str, **details: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "reason": reason, **details}


def _not_taken(record: MigrationRecord, plan: Plan) -> list[dict[str, Any]]:
    """List topics and groups outside the migration: as the client switch found them, or else as the plan did."""
    known = record.left_out()
    topics = {**(known.topics if known else {}), **plan.excluded_topics}
    groups = known.groups if known else plan.excluded_groups
    found = [_left("topic", name, reason) for name, reason in sorted(topics.items())]
    found += [_left("group", item.group, left_out.group_reason(item)) for item in groups]
    return found + [_left("not_looked_at", what, why) for what, why in sorted((known.unread if known else {}).items())]


def _groups_left(record: MigrationRecord) -> list[dict[str, Any]]:
    result = record.final_groups()
    found = []
    for group in result.groups if result is not None else []:
        if group.skipped_reason:
            found.append(_left("group", group.group, group.skipped_reason))
        found += [
            _left("group_offset", f"{group.group}: {item.topic}-{item.partition}", item.reason, offset=item.offset)
            for item in group.not_undone
        ]
        found += [
            _left("group_offset", f"{group.group}: {item.topic}-{item.partition}", item.reason)
            for item in group.offsets
            if item.target_offset is None
        ]
        why = "the group read there on the source and had committed nothing: it begins by auto.offset.reset"
        found += [
            _left("group_offset", f"{group.group}: {item.topic}-{item.partition}", why) for item in group.uncommitted
        ]
    return found


def _gaps(record: MigrationRecord) -> list[dict[str, Any]]:
    """List source ranges that were lost to retention before they were read (``on_source_gap: note``)."""
    why = "source retention overtook the copy"
    return [
        _left("source_gap", f"{item['topic']}-{item['partition']}", why, ranges=item["ranges"])
        for item in record.gaps()
    ]


def _bypassed(record: MigrationRecord) -> list[dict[str, Any]]:
    """List partitions that were written to on the source after the freeze."""
    found = []
    for entry in record.journal.steps(steps.CUTOVER_STEP):
        for item in entry.details.get("bypasses", []) or []:
            place = f"{item['topic']}-{item['partition']}"
            offsets = [item["from_offset"], item["to_offset"]]
            found.append(_left("bypass", place, "written to the source after the freeze", offsets=offsets))
    return found


# -- artifacts -------------------------------------------------------------------------------------------------------


def _artifacts(record: MigrationRecord) -> dict[str, dict[str, Any]]:
    """Return the documents that belong to the evidence, with their digests, so that they can be checked, too."""
    wanted: list[tuple[str, ObjectStore, str]] = [
        ("offset_map", record.evidence_store, keys.OFFSET_MAP),
        ("plan", record.journal_store, keys.PLAN),
        ("archive_manifest", record.archive_store, keys.MANIFEST),
        ("validation", record.journal_store, keys.result(keys.VALIDATION)),
        ("groups_snapshot", record.journal_store, keys.result(keys.GROUPS_SNAPSHOT)),
        ("schema_ids", record.evidence_store, keys.FINAL_SCHEMA_IDS),
        ("schemas_check", record.journal_store, keys.result(keys.SCHEMAS_CHECK)),
    ]
    summary = record.plan().schemas
    if summary is not None:
        wanted.append(("schema_plan", record.journal_store, summary.document))
    adoption = record.plan().adoption
    if adoption is not None:
        wanted.append(("adoption", record.journal_store, adoption.document))
    found = {}
    for name, store, path in wanted:
        key = record.key(path)
        data = store.get(key)
        if data is not None:
            found[name] = {
                "uri": f"{store.uri}/{key}",
                "sha256": hashlib.sha256(data).hexdigest(),
                "size_bytes": len(data),
            }
    return found
