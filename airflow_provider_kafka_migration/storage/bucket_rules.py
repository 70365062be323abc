"""What a bucket does with its objects by itself: expiry, moves to an archive, default retention. Only reads.

A journal that has lost one entry cannot be used any more, and an entry that has to be restored from an archive first
cannot be read while producers wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.s3 import REQUEST_ERRORS, S3Store, code_of

#: Storage classes whose objects cannot be read before they are restored.
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})


def rules_for(store: ObjectStore, prefix: str) -> tuple[list[str], list[str]]:
    """Return what the bucket does to the objects below a prefix of a store, and what could not be checked."""
    if not isinstance(store, S3Store):
        return [], []
    found: list[str] = []
    unread: list[str] = []
    for name, read in (("lifecycle rules", _lifecycle), ("default retention", _retention)):
        try:
            found += read(store, prefix)
        except ClientError as error:
            unread.append(f"{name}: {code_of(error)}")
        except REQUEST_ERRORS as error:
            unread.append(f"{name}: {type(error).__name__}")
    return found, unread


def _lifecycle(store: S3Store, prefix: str) -> list[str]:
    try:
        answer = store.client.get_bucket_lifecycle_configuration(Bucket=store.bucket, **store.on_bucket)
    except ClientError as error:
        if code_of(error) == "NoSuchLifecycleConfiguration":
            return []
        raise
    full = f"{store.full_key(prefix)}/"
    rules: list[Mapping[str, Any]] = list(answer.get("Rules", []))
    return [
        f"lifecycle rule {rule.get('ID') or '(unnamed)'} {what}"
        for rule in rules
        if rule.get("Status") == "Enabled" and _concerns(rule, full)
        for what in _acts(rule)
    ]


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule may act on objects below a prefix. They have no tags, so rules for tagged ones do not."""
    given: Mapping[str, Any] = rule.get("Filter") or {}
    both: Mapping[str, Any] = given.get("And") or given
    if both.get("Tag") or both.get("Tags"):
        return False
    scope = str(both.get("Prefix") or rule.get("Prefix") or "")
    return scope.startswith(prefix) or prefix.startswith(scope)


def _acts(rule: Mapping[str, Any]) -> Iterator[str]:
    expiration = rule.get("Expiration") or {}
    if expiration.get("Days") or expiration.get("Date"):
        yield f"deletes objects {_when(expiration)}"
    for item in rule.get("Transitions") or []:
        if item.get("StorageClass") in _ARCHIVES:
            yield f"moves objects to {item['StorageClass']} {_when(item)}, where they cannot be read"


def _when(rule: Mapping[str, Any]) -> str:
    return f"after {rule['Days']} days" if rule.get("Days") is not None else f"on {rule.get('Date')}"


def _retention(store: S3Store, _prefix: str) -> list[str]:
    try:
        answer = store.client.get_object_lock_configuration(Bucket=store.bucket, **store.on_bucket)
    except ClientError as error:
        if "ObjectLockConfigurationNotFound" in code_of(error):
            return []
        raise
    retention = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention")
    if not retention:
        return []
    span = f"{retention['Days']} days" if retention.get("Days") else f"{retention.get('Years')} years"
    return [
        f"the bucket's default retention ({retention.get('Mode')}) keeps each version of each object for {span}: "
        "figures that are written every few seconds cannot be deleted before"
    ]
