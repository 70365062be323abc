"""The receiver of the freeze webhook: its address and secret, from the spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    FreezeFailed,
    Where,
)
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.freeze.webhook import WebhookAnswer
from airflow_provider_kafka_migration.plain_secrets import is_address, is_reference
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.references import Resolver


def check_receiver(context: PhaseContext) -> None:
    """Resolve the webhook's address and secret as a freeze would, but send nothing; other methods need neither.

    A freeze that cannot resolve them could not be lifted either, so this is checked before one is journaled.

    :raises ConnectionInvalid: the reference to one of them leads nowhere, or to something else.
    :raises FreezeFailed: the spec has no address.
    """
    if context.spec.cutover.freeze == "webhook":
        webhook_receiver(context)


def taken(answer: WebhookAnswer, receiver: Receiver) -> dict[str, Any]:
    """Return what the journal keeps of an answer."""
    return {"webhook": {"status": answer.status, "attempts": answer.attempts, "signed": receiver.secret is not None}}


@dataclass(frozen=True)
class Receiver:
    """The webhook's address and signing secret. Both may be secret; without ``secret`` requests are not signed."""

    address: str = field(repr=False)
    secret: str | None = field(repr=False)
    #: ``back`` for a way back
    direction: str = ""


def webhook_receiver(context: PhaseContext) -> Receiver:
    """Return the spec's webhook with its references resolved.

    :raises FreezeFailed: the spec no longer has an address.
    :raises ConnectionInvalid: a reference leads nowhere.
    """
    section = context.spec.cutover
    if not section.producer_freeze_webhook:
        raise FreezeFailed(
            "the producers were stopped through a webhook, but the spec no longer has its address",
            where=context.where(words.phase_of(context.spec)),
            next_step="put cutover.producer_freeze_webhook back into the spec",
        )
    secret = context.resolver.text(section.webhook_secret).strip() if section.webhook_secret else None
    adopt = context.spec.adopt
    direction = "back" if adopt is not None and adopt.from_ == "way_back" else ""
    return Receiver(webhook_address(section.producer_freeze_webhook, context.resolver), secret, direction)


def webhook_address(given: str, resolver: Resolver) -> str:
    """Return the address to call: the one in the spec, or the one its reference leads to. It may be secret.

    :raises ConnectionInvalid: it is not an address, or the reference leads nowhere, or to something else.
    """
    by_reference = is_reference(given)
    address = resolver.text(given).strip() if by_reference else given
    if is_address(address):
        return address
    # Even an invalid address may be secret, so it is not quoted.
    key = "cutover.producer_freeze_webhook"
    raise ConnectionInvalid(
        f"{key} refers to something that is not an http or https address"
        if by_reference
        else f"{key} is not an http or https address",
        where=Where(path=given if by_reference else key),
        next_step="enter the complete address there, for instance https://host/freeze"
        + ("?token=..." if by_reference else ""),
    )
