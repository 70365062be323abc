"""Precheck of the target: what it accepts, how large messages may be, and whether the data fits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.checks.source import MARKER_BYTES, marker_count
from airflow_provider_kafka_migration.documents.plan import Finding, Plan, Verdict
from airflow_provider_kafka_migration.errors import MigrationError, ObjectExists, PermissionMissing
from airflow_provider_kafka_migration.freeze import webhook_spec
from airflow_provider_kafka_migration.kafka.admin.cluster import LogDir
from airflow_provider_kafka_migration.record import producer_ids
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.signing import load_signing_key
from airflow_provider_kafka_migration.storage import scratch
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.bucket_rules import rules_for
from airflow_provider_kafka_migration.storage.s3 import StoreFacts, store_facts
from airflow_provider_kafka_migration.topics.probe import ProbeResult, probe_target, record_outcomes

LONG_MAX = 2**63 - 1
#: What should stay free on the target's disks.
SPARE_DISK = 0.2


def check_probe(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Try the needed requests on a scratch topic, except if both clusters are one (B002): never on the source."""
    if plan.source.cluster_id == plan.target.cluster_id:
        return
    verdicts = {item.verdict for topic in plan.topics for item in topic.partitions}
    in_transactions, compares = Verdict.TRANSACTIONAL in verdicts, bool(verdicts - {Verdict.TRANSACTIONAL})
    result = probe_target(context.record, context.target, transactions=in_transactions)
    record_outcomes(context.record, result)
    details = dict(result.outcomes)
    fills = any(item.filler_offsets for topic in plan.topics for item in topic.partitions)
    marks = bool(verdicts & {Verdict.EQUAL, Verdict.SHIFTED})
    goes_on = context.spec.offsets.mode == "auto"
    if goes_on and result.outcomes.get("sequence"):
        yield finding("W027", result.outcomes["sequence"], subject="target", probe=details)
        compares, fills, marks, in_transactions = False, False, False, True
    needed = {
        "sequence": ("B020", compares),
        "fillers": ("B021", fills),
        "markers": ("B022", marks),
        "log_end": ("W023", compares),
        "transactions": ("B026", in_transactions),
    }
    for name, operation in sorted(result.missing.items()):
        if needed[name][1]:
            yield finding("B005", f"target: {operation} (probe: {name})", subject=f"target {operation}", probe=details)
    for name, (code, wanted) in needed.items():
        outcome = result.outcomes.get(name, "it was not tried")
        if outcome and wanted:
            yield finding(code, outcome, subject="target", probe=details)
    if marks and result.uses_transactions:
        seen = "neither Alter (3.8 and later) nor ClusterAction on the cluster: some thousand offsets a second"
        yield finding("W025", seen, subject="target", probe=details)
    if compares and context.spec.cutover.fence_copiers:
        yield from _check_fence(context.record, context.target, result)


def _check_fence(record: MigrationRecord, target: Cluster, result: ProbeResult) -> Iterator[Finding]:
    """Check where nothing else needs markers whether a copier that wakes up after the client switch can be refused."""
    outcome = result.outcomes.get("markers", "it was not tried")
    if not outcome and result.may_mark is not False:
        return
    if not outcome and record.has_producer_ids() and not producer_ids.transactional_id(record):
        outcome = "the producer ids were allocated without a transactional id"
    grant = f"grant: {permissions.grant_markers(target.config)}"
    if result.may_mark is False:
        grant = f"neither Alter (3.8 and later) nor ClusterAction (earlier brokers) on the target cluster; {grant}"
    if not outcome:
        yield finding("I036", grant, subject="target")
    elif result.may_mark:
        yield finding("W035", f"control markers: {outcome}", subject="target")
    else:
        yield finding("W035", f"control markers: {outcome}; {grant}", subject="target")


def check_message_sizes(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report sizes by which clients that write large messages today could not after the switch."""
    defaults = {item["config"]: item for item in plan.defaults_drift}
    size = "max.message.bytes"
    smaller = []
    largest = 0
    for topic in plan.topics:
        source = topic.source_configs.get(size)
        target = topic.target_configs.get(size)
        if source is None and size in defaults:
            source = defaults[size]["source"]
            target = target or defaults[size]["target"]
        largest = max(largest, int(source or 0))
        if source is not None and target is not None and int(target) < int(source):
            smaller.append(f"{topic.target_name}: {source} -> {target}")
    if smaller:
        yield finding("W060", some(smaller), topics=smaller)
    broker = context.target.admin.broker_configs(plan.target.brokers[0])
    request = int(broker.get("socket.request.max.bytes", "0") or 0)
    if request and largest > request:
        yield finding("B061", f"messages of {largest} bytes, socket.request.max.bytes is {request} on the target")


def check_timestamps(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report timestamp limits that the source does not have (4.0 and later refuse times more than an hour ahead)."""
    for item in plan.defaults_drift:
        limit = item["config"].startswith("message.timestamp.") and item["config"].endswith("max.ms")
        if limit and int(item["target"]) < int(item["source"]):
            yield finding(
                "W062",
                f"{item['config']} is {item['target']} by default on the target, {item['source']} on the source; "
                "copying is not affected, but producers may be after the switch",
                subject=item["config"],
            )


def check_transaction_timeouts(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report transactional timeouts that the target would refuse."""
    name = "transaction.max.timeout.ms"
    source = context.source.admin.broker_configs(plan.source.brokers[0]).get(name)
    target = context.target.admin.broker_configs(plan.target.brokers[0]).get(name)
    if source and target and int(target) < int(source):
        yield finding("W053", f"{name} is {target} on the target, {source} on the source")


def check_offsets_retention(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Report offsets of idle groups that the target would forget earlier than the source.

    What the migration commits is of groups that nobody has joined there: it expires so long after the commit.
    """
    name = "offsets.retention.minutes"
    source = context.source.admin.broker_configs(plan.source.brokers[0]).get(name)
    target = context.target.admin.broker_configs(plan.target.brokers[0]).get(name)
    if source and target and int(target) < int(source):
        yield finding("W076", f"{name} is {target} on the target, {source} on the source", subject=name)


def check_disk(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Check whether all replicas fit on the target's log dirs."""
    if plan.estimate is None or plan.estimate.copy_bytes < 0:
        return
    try:
        dirs = context.target.admin.log_dirs()
    except PermissionMissing:
        return  # B005 already reports it
    told = [item for item in dirs if item.usable_bytes >= 0]
    if not told:
        return
    replicas = {topic.name: _replicas(plan, topic.replication_factor) for topic in plan.topics}
    records = sum(max(item.size_bytes, 0) * replicas[topic.name] for topic in plan.topics for item in topic.partitions)
    markers = sum(marker_count(topic) * MARKER_BYTES * replicas[topic.name] for topic in plan.topics)
    needed = records + markers
    present = sum(size for item in told for key, size in item.sizes.items() if key[0] in _names(plan))
    usable, total = _disks(told)
    left = usable - max(needed - present, 0)
    of_markers = f" ({markers:,} of them control markers)" if markers else ""
    seen = f"{needed:,} bytes with all replicas{of_markers}, {usable:,} of {total:,} bytes free in {len(told)} log dirs"
    if left < 0:
        yield finding("B064", seen)
    elif left < SPARE_DISK * total:
        yield finding("W065", f"{seen}; {left:,} would be left")


def _disks(told: list[LogDir]) -> tuple[int, int]:
    """(usable, total) bytes; log dirs of one disk on one broker are counted once."""
    disks = {(item.broker_id, item.total_bytes, item.usable_bytes) for item in told}
    return sum(item[2] for item in disks), sum(item[1] for item in disks)


def _replicas(plan: Plan, factor: int) -> int:
    return factor if factor > 0 else min(3, len(plan.target.brokers))


def _names(plan: Plan) -> set[str]:
    """Return the target topics whose present bytes are a part of what is to be copied: not content of others."""
    return {topic.target_name for topic in plan.topics if not any(item.adopted for item in topic.partitions)}


# -- precheck storage -------------------------------------------------------------------------------------------------
#
# Precheck of object storage and of the signing key.


CONTENT = b"kafka-migration precheck\n"
#: S3 refuses requests whose time is 15 minutes off; something is wrong long before that.
MAX_SKEW_SECONDS = 60.0


def check_storage(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Write, read back, and try to overwrite in each of the three stores."""
    stores = {"archive": context.archive_store, "evidence": context.evidence_store, "journal": context.journal_store}
    for role, store in stores.items():
        yield from _one_store(context.record, role, store)
    facts = {role: store_facts(store) for role, store in stores.items()}
    yield from _object_lock(context.record, facts["evidence"])
    yield from _bucket_rules(context.record)
    for role, store in stores.items():
        skew = facts[role].clock_skew_seconds
        if skew is not None and abs(skew) > MAX_SKEW_SECONDS:
            yield finding("W034", f"the store's clock differs by {skew:+.0f} s from this machine's", subject=store.uri)
            break  # the stores of one migration are nearly always one service


def _object_lock(record: MigrationRecord, facts: StoreFacts) -> Iterator[Finding]:
    if facts.object_lock is not True:
        why = "it is a folder" if not facts.is_s3 else "the bucket does not report it"
        yield finding(
            "W033", "no Object Lock" if facts.object_lock is False else why, subject=record.evidence_store.uri
        )


def _bucket_rules(record: MigrationRecord) -> Iterator[Finding]:
    acts, unread = rules_for(record.journal_store, record.migration_id)
    subject = f"journal {record.journal_store.uri}"
    if acts:
        yield finding("W047", "; ".join(acts), subject=subject)
    if unread:
        yield finding("I048", "; ".join(unread), subject=subject)


def _one_store(record: MigrationRecord, role: str, store: ObjectStore) -> Iterator[Finding]:
    key = record.key(f"precheck/{uuid.uuid4().hex}")
    subject = f"{role} {store.uri}"
    try:
        store.put_new(key, CONTENT)
        if store.get(key) != CONTENT:
            yield finding("B031", "other content", subject=subject)
        try:
            store.put_new(key, CONTENT + b"again")
        except ObjectExists:
            wrong = scratch.race(store, record.key("precheck"))
        else:
            wrong = "a create-only put replaced an object"
        if wrong:
            yield finding("B032", wrong, subject=subject)
    except MigrationError as error:
        yield finding("B030", error.what, subject=subject, fix=error.next_step)


def check_signing(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Check whether there is a signing key, and whether it is the expected one."""
    if context.spec.kind == "mirror":
        # A mirror has no evidence.
        return
    try:
        load_signing_key(context)
    except MigrationError as error:
        yield finding("B040", error.what, fix=error.next_step)


# -- precheck webhook -------------------------------------------------------------------------------------------------
#
# Precheck of the freeze webhook: whether its address and its secret can be resolved. It is not called.


def check_receiver(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Resolve the references in this process; the resolved values may be secrets and are never shown."""
    try:
        webhook_spec.check_receiver(context)
    except MigrationError as error:
        yield finding("B041", error.what, subject=error.where.path or "", fix=error.next_step)
