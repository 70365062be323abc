"""The three ways to stop producers, and to let them go on: webhook, manual, ACLs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_kafka_migration.errors import ConnectionInvalid, FreezeFailed, PermissionMissing, Where
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.freeze.freeze_webhook import REQUEST_SECONDS, FreezeWebhook, WebhookAnswer
from airflow_provider_kafka_migration.kafka.admin.access import Acl, acl_row
from airflow_provider_kafka_migration.kafka.admin.base import ItemError
from airflow_provider_kafka_migration.plain_secrets import is_address, is_reference
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.facts import migrated_partitions
from airflow_provider_kafka_migration.references import Resolver

PHASE = "cutover"
ACLS_PLANNED = "freeze_acls"

_WRITING = frozenset({"WRITE", "ALL"})
EVERYBODY = "User:*"


def freeze(context: PhaseContext, method: str, attempt: str, deadline: datetime) -> dict[str, Any]:
    """Stop producers. Idempotent. Details for the journal.

    :raises FreezeFailed: the webhook refused, or ACLs cannot stop everybody.
    """
    if method == "webhook":
        return _webhook(context, "freeze", deadline)
    if method == "acl":
        return _put_acls(context, attempt)
    return {"confirmed_by": "the approval of the cutover"}


def unfreeze(context: PhaseContext, method: str, attempt: str, deadline: datetime) -> dict[str, Any]:
    """Let producers go on. Idempotent. Details for the journal.

    :raises FreezeFailed: it did not work; producers may still be stopped.
    """
    if method == "webhook":
        return _webhook(context, "unfreeze", deadline)
    if method == "acl":
        return _remove_acls(context, attempt)
    return {"todo": words.lifted(method)}


def hold_by_method(context: PhaseContext, receiver: Receiver, *, within_seconds: float | None) -> dict[str, Any]:
    """Have producers kept stopped by a webhook until :func:`unfreeze`, whatever end was told before. Idempotent.

    :param within_seconds: how long the one request may take at most, since whoever calls asks again; None: as long,
        and as often, as any other.
    :raises FreezeFailed: the webhook refused.
    :raises FreezeUnconfirmed: the webhook did not answer.
    """
    if within_seconds is None:
        webhook = FreezeWebhook(receiver.address, receiver.secret)
    else:
        seconds = min(REQUEST_SECONDS, within_seconds)
        webhook = FreezeWebhook(receiver.address, receiver.secret, request_seconds=seconds, attempts=1)
    return _taken(webhook.hold(context.migration_id, now=context.now()), receiver)


def check_receiver(context: PhaseContext) -> None:
    """Find the webhook's address and secret as a freeze would, and send nothing; other ways to freeze have neither.

    A freeze that cannot find them could not be lifted either, so this is looked at before one is journaled.

    :raises ConnectionInvalid: the reference to one of them leads nowhere, or to something else.
    :raises FreezeFailed: the spec has no address.
    """
    if context.spec.cutover.freeze == "webhook":
        webhook_receiver(context)


def _webhook(context: PhaseContext, action: Any, deadline: datetime) -> dict[str, Any]:
    found = webhook_receiver(context)
    webhook = FreezeWebhook(found.address, found.secret)
    return _taken(webhook.call(context.migration_id, action, now=context.now(), deadline=deadline), found)


def _taken(answer: WebhookAnswer, receiver: Receiver) -> dict[str, Any]:
    """What the journal keeps of an answer."""
    return {"webhook": {"status": answer.status, "attempts": answer.attempts, "signed": receiver.secret is not None}}


@dataclass(frozen=True)
class Receiver:
    """Where the webhook listens. Both may be secrets; without ``secret`` requests are not signed."""

    address: str = field(repr=False)
    secret: str | None = field(repr=False)


def webhook_receiver(context: PhaseContext) -> Receiver:
    """The webhook of the spec, its references resolved.

    :raises FreezeFailed: the spec has no address any more.
    :raises ConnectionInvalid: a reference leads nowhere.
    """
    section = context.spec.cutover
    if not section.producer_freeze_webhook:
        raise FreezeFailed(
            "the freeze was by a webhook, and the spec has no address any more",
            where=context.where(PHASE),
            next_step="put cutover.producer_freeze_webhook back into the spec",
        )
    secret = context.resolver.text(section.webhook_secret).strip() if section.webhook_secret else None
    return Receiver(webhook_address(section.producer_freeze_webhook, context.resolver), secret)


def webhook_address(given: str, resolver: Resolver) -> str:
    """The address to call: the spec's own, or what its reference leads to. It may be a secret.

    :raises ConnectionInvalid: it is no address, or the reference leads nowhere, or to something else.
    """
    by_reference = is_reference(given)
    address = resolver.text(given).strip() if by_reference else given
    if is_address(address):
        return address
    # It may be a secret all the same, so it is not quoted.
    key = "cutover.producer_freeze_webhook"
    raise ConnectionInvalid(
        f"what {key} refers to is no http or https address" if by_reference else f"{key} is no http or https address",
        where=Where(path=given if by_reference else key),
        next_step="put the whole address there, for instance https://host/freeze"
        + ("?token=..." if by_reference else ""),
    )


# -- ACLs ------------------------------------------------------------------------------------------------------------


def writing_principals(acls: tuple[Acl, ...], topic: str) -> set[str]:
    """Principals that some ACL allows to write to a topic."""
    return {
        acl.principal
        for acl in acls
        if acl.resource_type == "TOPIC"
        and acl.permission == "ALLOW"
        and acl.operation in _WRITING
        and _matches(acl, topic)
    }


def _matches(acl: Acl, topic: str) -> bool:
    if acl.pattern_type == "PREFIXED":
        return topic.startswith(acl.resource_name)
    return acl.resource_name in (topic, "*")


def deny_bindings(acls: tuple[Acl, ...], topics: list[str], own_principal: str | None) -> list[Acl]:
    """DENY WRITE for each principal that may write to these topics, but for our own; those that exist are left out.

    One binding per principal and topic: a DENY for ``User:*`` would beat the migration's own ALLOW, too.

    :raises FreezeFailed: everybody may write to a topic, which no list of principals can stop.
    """
    wanted: set[Acl] = set()
    open_topics: list[str] = []
    for topic in topics:
        for principal in writing_principals(acls, topic) - {own_principal}:
            if principal == EVERYBODY:
                open_topics.append(topic)
            else:
                wanted.add(Acl("TOPIC", topic, "LITERAL", principal, "*", "WRITE", "DENY"))
    if open_topics:
        raise FreezeFailed(
            f"{EVERYBODY} may write to {len(open_topics)} topics, among them {open_topics[0]}: ACLs cannot stop "
            "everybody and still let the migration write its sentinels",
            next_step="use cutover.freeze: webhook or manual, or name the producers in the source's ACLs",
            details={"topics": open_topics},
        )
    return sorted(wanted - set(acls))


def own_principal(context: PhaseContext) -> str | None:
    """The migration's principal on the source, where the connection tells it."""
    username = context.source.config.username
    return f"User:{username}" if username else None


def _put_acls(context: PhaseContext, attempt: str) -> dict[str, Any]:
    entry = context.journal.find_step(ACLS_PLANNED, attempt)
    if entry is None:
        listing = context.source.admin.describe_acls()
        if not listing.authorizer:
            raise FreezeFailed(
                "the source has no authorizer, so ACLs stop nobody",
                where=context.where(PHASE, cluster="source"),
                next_step="use cutover.freeze: webhook or manual",
            )
        topics = sorted({topic for topic, _ in migrated_partitions(context)})
        bindings = deny_bindings(listing.acls, topics, own_principal(context))
        # Journaled before they are put: after a crash the journal alone knows which ones are ours.
        entry = context.journal.step(ACLS_PLANNED, key=attempt, details={"acls": [acl_row(acl) for acl in bindings]})
    bindings = [Acl(*fields) for fields in entry.details["acls"]]
    _raise_failures(context, context.source.admin.create_acls(bindings), "put")
    return {"deny_acls": len(bindings), "principals": sorted({acl.principal for acl in bindings})}


def planned_acls(context: PhaseContext, attempt: str) -> list[Acl]:
    """The DENY bindings of an attempt, from the journal as it is known; the source is not asked."""
    entry = context.journal.find_step(ACLS_PLANNED, attempt)
    return [Acl(*fields) for fields in entry.details["acls"]] if entry else []


def all_planned_acls(context: PhaseContext) -> set[Acl]:
    """The DENY bindings of all attempts, from the journal as it is known."""
    return {Acl(*fields) for entry in context.journal.steps(ACLS_PLANNED) for fields in entry.details["acls"]}


def _remove_acls(context: PhaseContext, attempt: str) -> dict[str, Any]:
    bindings = planned_acls(context, attempt)
    if bindings:
        _raise_failures(context, context.source.admin.delete_acls(bindings), "removed")
    return {"deny_acls_removed": len(bindings)}


def _raise_failures(context: PhaseContext, results: dict[Acl, ItemError | None], verb: str) -> None:
    failed = {acl: error for acl, error in results.items() if error is not None}
    if not failed:
        return
    acl, error = next(iter(sorted(failed.items())))
    if error.unauthorized:
        raise PermissionMissing(
            f"ACLs cannot be {verb} on the source",
            where=context.where(PHASE, cluster="source"),
            next_step="grant the migration's principal Alter on the source cluster, or freeze by webhook or manual",
        )
    raise FreezeFailed(
        f"{len(failed)} of {len(results)} ACLs could not be {verb}; the first: {acl}: {error}",
        where=context.where(PHASE, cluster="source"),
        next_step="see the broker's message; clear the task: ACLs that are there stay, the others are tried again",
        details={"failed": [{"acl": str(item), "error": str(problem)} for item, problem in sorted(failed.items())]},
    )
