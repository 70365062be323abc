"""Copy target topics again from the source's log start when their content no longer matches the source.

By policy (``repair``) after the source has removed tombstones before they were read, and after the source has lost
records. A partition cannot be emptied below its own offsets, so the topic is deleted and recreated with all of its
partitions. That happens at the start of a seed or tail run, before anything is copied, and only if

* the copy is no mirror: its remote topics have consumers, so only people delete them;
* no freeze is requested: until then no client reads the target;
* the journal says that this migration created this very topic (by its id);
* nobody else writes to it by design, and no position is committed next to its records (transactional);
* the copy reads the source: records that passed through the archive would be read from there again;
* it was not copied again for overtaken tombstones before, or ``delete.retention.ms`` was raised since;
* no earlier copier may still be writing (:mod:`~.jobs.copy_jobs`).

The journal records the topic's id first. If the process is killed in between, the next run deletes the topic only if it
still has that id. Proofs, offset maps and reading times of the former topic are dropped (:func:`make_missing`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set
from typing import Any

from airflow_provider_kafka_migration.compare.proven import forget_proven
from airflow_provider_kafka_migration.copy.read_watch import forget_positions
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import SourceTruncated, TombstonesOvertaken, Transient
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.overtaken import tombstone_settings
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import bring, target_topics, topics_gone

# -- topology missing -------------------------------------------------------------------------------------------------
#
# Target topics that were deleted after topology_copy created them: created again before they are copied again.
#
# Whoever deleted the topic, perhaps because an error text asked for it, runs the phase again and wants the topic copied
# from the source's log start. The migration itself deletes a topic only by policy (:func:`recopy`).


log = logging.getLogger(__name__)
#: Before the seed, topology_copy creates topics; from the freeze on, a missing topic is a failure of the cutover.
STATES = frozenset({State.SEED, State.TAIL, State.DRAIN_READY})


def make_missing(context: PhaseContext, phase: str, job: CopyJob) -> list[str]:
    """Create the target topics of a job that are missing, and return their names, ascending.

    A creation that began but did not end, because the process died in between, is repeated. So is a topic that was
    deleted by policy and exists again: whoever created it (brokers auto-create topics for any client), it is treated
    like any topic that topology_copy finds. All other topics are left as they are: so are those that the source no
    longer has, because somebody may have deleted them on both clusters. A topic that may not be described is
    left to the copiers, which report it.

    :raises ForeignData: another client recreated a topic that was deleted by policy, and it has data.
    :raises MigrationError: a topic cannot be created.
    """
    if context.journal.working_state not in STATES:
        return []
    by_target = {item.target_topic: item.topic for item in job.partitions}
    described = context.target.admin.describe_topics(sorted(by_target))
    missing = {
        name
        for name, facts in described.items()
        if facts.error is not None and facts.error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    }
    begun, recopied = _begun(context.record)
    # One broker's answer is not evidence, because a broker that has just started does not know all topics; but what the
    # migration itself has deleted is gone.
    suspects = missing - begun - recopied.keys()
    missing -= suspects - topics_gone.confirm(context.target.admin, dict.fromkeys(suspects, ""), suspects).keys()
    missing -= _without_source(context, job, missing)
    replaced = {
        name
        for name, facts in described.items()
        if facts.error is None and facts.topic_id and facts.topic_id != recopied.get(name, facts.topic_id)
    }
    todo = sorted((missing | begun | replaced) & by_target.keys())
    if not todo:
        return []
    new = sorted(missing | (replaced - begun))
    reason = f"{len(todo)} target topics were deleted and are created again; the first is {todo[0]}"
    log.warning(reason)
    context.progress(Progress(phase, reason))
    context.journal.check_holds()
    if new:
        context.journal.step(steps.TOPICS_MADE_AGAIN, key=phase, details={"topics": new}, reason=reason)
    sources = {by_target[name] for name in todo}
    keys = {item.key for item in job.partitions if item.topic in sources}
    # The proofs apply to the topic that was deleted.
    for topic, partition in sorted(keys):
        forget_proven(context.journal_store, context.migration_id, topic, partition)
    items = [item for item in job.partitions if item.key in keys]
    forget_positions(context.journal_store, context.migration_id, items)
    bring.make_new_partitions(context, context.record.plan(), keys)
    context.journal.step(
        steps.TOPICS_MADE_AGAIN_DONE,
        key=phase,
        details={"topics": todo},
        reason=f"{len(todo)} target topics were created again",
    )
    return todo


def _without_source(context: PhaseContext, job: CopyJob, names: Set[str]) -> set[str]:
    """Return the target topics that are not to be created, because the source no longer has what they are a copy of.

    A topic with the records of both clusters needs the proof that it is still there: the opposite flow would find it,
    and create it on the source, too.
    """
    items = {item.target_topic: item for item in job.partitions if item.target_topic in names}
    planned = {item.topic: item.topic_id for item in items.values()}
    if not planned:
        return set()
    admin = context.source.admin
    described = admin.describe_topics(sorted(planned))
    suspects = [name for name, facts in described.items() if topics_gone.why_suspect(planned[name], facts)]
    gone = topics_gone.confirm(admin, planned, suspects)
    if job.provenance is not None:
        unproven = {name for name, facts in described.items() if facts.error is not None or name in suspects}
        gone = {**dict.fromkeys(unproven, "it is not known whether the source still has it"), **gone}
    for name, why in sorted(gone.items()):
        log.warning("%s is missing on the target, and is not created again: %s", name, why)
    return {target for target, item in items.items() if item.topic in gone}


def being_made_again(record: MigrationRecord) -> set[str]:
    """Return the target topics that the migration itself deletes or creates again, up to their journaled end."""
    begun, recopied = _begun(record)
    return begun | recopied.keys()


def _begun(record: MigrationRecord) -> tuple[set[str], dict[str, str]]:
    """Topics that the journal does not call complete: those to be created again, and those to be deleted by policy,
    the latter with their ids at that time."""
    begun: set[str] = set()
    recopied: dict[str, str] = {}
    for entry in record.journal.steps():
        if entry.step == steps.TOPICS_MADE_AGAIN:
            begun.update(str(name) for name in entry.details["topics"])
        elif entry.step == steps.TOPICS_RECOPIED:
            recopied.update({str(name): str(value) for name, value in entry.details["topics"].items()})
        elif entry.step == steps.TOPICS_MADE_AGAIN_DONE:
            begun.difference_update(str(name) for name in entry.details["topics"])
            for name in entry.details["topics"]:
                recopied.pop(str(name), None)
    return begun, recopied


#: Deletion takes a while, and the name is used again.
REMOVAL_SECONDS = 60.0
_POLL_SECONDS = 0.2


def recopy(context: PhaseContext, phase: str, job: CopyJob) -> list[str]:
    """Delete the target topics of partitions that stopped in the last run of a job and are to be copied again.

    Returns their names, ascending. The caller continues with :func:`make_missing`.

    :raises Transient: a topic still exists after a while.
    :raises PermissionMissing: a topic may not be deleted.
    """
    # Specs of mirrors that earlier versions have accepted may ask for it.
    failed = {} if context.spec.kind == "mirror" else _failed(context.record, phase, job)
    if not failed or context.journal.working_state not in STATES:
        return []
    if not any(_chosen(context, phase, job, failed)):
        return []
    with copy_jobs.lanes_kept(context, phase, job):
        # Checked again, because waiting may take a while.
        begun, new = _chosen(context, phase, job, failed)
        if new:
            _journal(context, phase, job, new, failed)
        ids = begun | new
        if ids:
            context.journal.check_holds()
            _delete(context.record, context.target, phase, ids)
        return sorted(ids)


def _chosen(
    context: PhaseContext, phase: str, job: CopyJob, failed: Mapping[TopicPartition, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Topics to be deleted, with their ids: those that the journal already names, and the others."""
    context.journal.refresh()
    if context.record.is_frozen():
        return {}, {}
    run = str(context.record.job_progress(phase).get("run", ""))
    targets = {item.key: item.target_topic for item in job.partitions}
    wanted = sorted({targets[key] for key in failed})
    present = context.target.admin.describe_topics(wanted)
    ids = {name: present[name].topic_id for name in wanted if present[name].error is None}
    named = _named(context.record, run)
    # A topic with another id was already copied again after that failure.
    begun = {name: ids[name] for name in ids if named.get(name) == ids[name]}
    codes = {name: {code for key, code in failed.items() if targets[key] == name} for name in wanted}
    new = {
        name: ids[name]
        for name in ids
        if name not in named and not _why_not(context, job, name, topic_id=ids[name], codes=codes[name])
    }
    return begun, new


def _journal(
    context: PhaseContext, phase: str, job: CopyJob, new: Mapping[str, str], failed: Mapping[TopicPartition, str]
) -> None:
    """Journal the topics before they are deleted: a run after a kill in between deletes these very topics."""
    run = str(context.record.job_progress(phase).get("run", ""))
    targets = {item.key: item.target_topic for item in job.partitions}
    partitions = {partition_name(key): code for key, code in sorted(failed.items()) if targets[key] in new}
    reason = f"{len(new)} target topics are deleted to be copied again; the first is {min(new)}"
    log.warning(reason)
    context.progress(Progress(phase, reason))
    retention_ms = {
        name: value for name, value in _retention_ms(context.record, context.source, job).items() if name in new
    }
    details = {"run": run, "topics": dict(new), "partitions": partitions, "delete_retention_ms": retention_ms}
    context.journal.check_holds()
    context.journal.step(steps.TOPICS_RECOPIED, key=f"{phase}/{run}", details=details, reason=reason)


def _failed(record: MigrationRecord, phase: str, job: CopyJob) -> dict[TopicPartition, str]:
    """Partitions that stopped for a reason that copying again heals, with the error code."""
    offsets = record.spec.offsets
    codes = set()
    if offsets.on_overtaken_tombstones == "repair":
        codes.add(TombstonesOvertaken.code)
    if offsets.on_source_truncation == "repair":
        codes.add(SourceTruncated.code)
    known = {item.key for item in job.partitions}
    found = {}
    for item in record.job_progress(phase).get("partitions", []) if codes else ():
        key, error = (str(item["topic"]), int(item["partition"])), item.get("error") or {}
        if key in known and item.get("failed") and error.get("code") in codes:
            found[key] = str(error["code"])
    return found


def _named(record: MigrationRecord, run: str) -> dict[str, str]:
    """Topics that the journal names as deleted after a run of the job, with their ids."""
    return {
        str(name): str(topic_id)
        for entry in record.journal.steps(steps.TOPICS_RECOPIED)
        if entry.details["run"] == run
        for name, topic_id in entry.details["topics"].items()
    }


def _retention_ms(record: MigrationRecord, source: Cluster, job: CopyJob) -> dict[str, int]:
    """``delete.retention.ms`` in force on the source, by target topic, for compacted topics."""
    targets = {item.topic: item.target_topic for item in job.partitions}
    settings = tombstone_settings(record.spec, source, record.plan(), job.tombstones)
    return {targets[topic]: value for topic, value in sorted(settings.retention_ms.items()) if topic in targets}


def _why_not_again(record: MigrationRecord, source: Cluster, job: CopyJob, name: str) -> str:
    """Why not again: a copy that takes longer than tombstones are kept stops at the same place each time.

    Entries of older releases do not record the setting of their time, and forbid nothing.
    """
    names = {partition_name(item.key) for item in job.partitions if item.target_topic == name}
    before = [
        int(entry.details.get("delete_retention_ms", {}).get(name, -1))
        for entry in record.journal.steps(steps.TOPICS_RECOPIED)
        if any(entry.details["partitions"].get(key) == TombstonesOvertaken.code for key in names)
    ]
    now = _retention_ms(record, source, job).get(name, -1) if before else -1
    if not before or before[-1] < 0 or now > before[-1]:
        return ""
    return (
        "it was copied again for the same reason before, and delete.retention.ms on the source was not raised since "
        f"({now / 1000:g} s now, {before[-1] / 1000:g} s then); raise delete.retention.ms, or choose "
        "offsets.on_overtaken_tombstones: note"
    )


def _why_not(context: PhaseContext, job: CopyJob, name: str, *, topic_id: str, codes: Set[str]) -> str:
    """Why a topic may not be deleted, also logged as a warning; empty if it may.

    :param codes: the error codes of its partitions.
    """
    made: Mapping[str, Any] = {
        made_name: made_id
        for entry in context.journal.steps(steps.TOPIC_CREATED)
        for made_name, made_id in entry.details["topics"].items()
    }
    why = ""
    if job.via == "s3":
        why = "its records are in the archive and would be read from there again; only the tail can copy it again"
    elif not topic_id or made.get(name) != topic_id:
        why = "the journal does not say that this migration created this very topic"
    elif name in target_topics.journaled_shared(context.record):
        why = "others write to it as well"
    elif any(item.verdict is Verdict.TRANSACTIONAL for item in job.partitions if item.target_topic == name):
        why = "it is copied in transactions, with positions next to the records"
    elif codes == {TombstonesOvertaken.code}:
        why = _why_not_again(context.record, context.source, job, name)
    if why:
        log.warning("The target topic %s is not deleted and copied again: %s", name, why)
        context.progress(Progress(job.name, f"{name} is not copied again: {why}"))
    return why


def _delete(record: MigrationRecord, target: Cluster, phase: str, ids: Mapping[str, str]) -> None:
    """Delete topics and wait until those with these ids are gone.

    Another client may have created topics with these names by then; the code that creates topics decides about them.
    """
    names = sorted(ids)
    for name in names:
        error = target.admin.delete_topic_with_id(name, ids[name])
        if error is not None:
            raise error.exception(
                "the target topic cannot be deleted in order to copy it again",
                record.where(phase, cluster="target", topic=name),
                operation="Delete on Topic",
            )
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        facts = target.admin.describe_topics(names)
        left = [name for name in names if not _is_gone(facts[name], ids[name])]
        if not left:
            break
        if time.monotonic() >= deadline:
            raise Transient(
                f"{len(left)} target topics still exist {REMOVAL_SECONDS:.0f} s after they were deleted",
                where=record.where(phase, cluster="target", topic=left[0]),
                next_step=f"check that all brokers of the target run; then clear {phase}: it continues the deletion",
            )
        time.sleep(_POLL_SECONDS)


def _is_gone(facts: TopicFacts, topic_id: str) -> bool:
    if facts.error is not None:
        return facts.error.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    return bool(facts.topic_id) and facts.topic_id != topic_id
