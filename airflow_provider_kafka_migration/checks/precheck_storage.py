"""Precheck of object storage and of the signing key."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from airflow_provider_kafka_migration.documents.findings import Finding
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.errors import MigrationError, ObjectExists
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding
from airflow_provider_kafka_migration.record.keys import load_signing_key
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.s3_facts import StoreFacts, store_facts

CONTENT = b"kafka-migration precheck\n"
#: S3 refuses requests whose time is 15 minutes off; long before that something is wrong.
MAX_SKEW_SECONDS = 60.0


def check_storage(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Write, read back, and try to overwrite in each of the three places."""
    stores = {"archive": context.archive_store, "evidence": context.evidence_store, "journal": context.journal_store}
    for role, store in stores.items():
        yield from _one(context, role, store)
    facts = {role: store_facts(store) for role, store in stores.items()}
    yield from _object_lock(context, facts["evidence"])
    for role, store in stores.items():
        skew = facts[role].clock_skew_seconds
        if skew is not None and abs(skew) > MAX_SKEW_SECONDS:
            yield finding("W034", f"the store's clock is {skew:+.0f} s off this machine's", subject=store.uri)
            break  # the stores of one migration are one service nearly always


def _object_lock(context: PhaseContext, facts: StoreFacts) -> Iterator[Finding]:
    if facts.object_lock is not True:
        why = "it is a folder" if not facts.is_s3 else "the bucket does not tell"
        yield finding(
            "W033", "no Object Lock" if facts.object_lock is False else why, subject=context.evidence_store.uri
        )


def _one(context: PhaseContext, role: str, store: ObjectStore) -> Iterator[Finding]:
    key = context.key(f"precheck/{uuid.uuid4().hex}")
    subject = f"{role} {store.uri}"
    try:
        store.put_new(key, CONTENT)
        if store.get(key) != CONTENT:
            yield finding("B031", "other content", subject=subject)
        try:
            store.put_new(key, CONTENT + b"again")
        except ObjectExists:
            return
        yield finding("B032", "a create-only put replaced an object", subject=subject)
    except MigrationError as error:
        yield finding("B030", error.what, subject=subject, fix=error.next_step)


def check_signing(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Whether there is a key, and whether it is the expected one."""
    try:
        load_signing_key(context)
    except MigrationError as error:
        yield finding("B040", error.what, fix=error.next_step)
