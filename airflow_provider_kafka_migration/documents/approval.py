"""Approvals: what a person was shown, the code that binds the answer to it, who answered and when."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part

ApprovalKind = Literal["cutover", "client_switch"]


class Responder(Part):
    """Who answered an approval."""

    user_id: str
    user_name: str = ""


class ApprovalFacts(Document):
    """What an approval is about: live facts, the text shown, and the code.

    The code is the first 8 hex digits of the digest over ``binding``: what will happen. Lag and times are facts that
    move all the time; they are shown and checked again at the cutover, but are not bound.
    """

    version: int = 1
    migration_id: str
    kind: ApprovalKind
    code: str = Field(pattern=r"^[0-9a-f]{8}$")
    binding: dict[str, Any]
    facts: dict[str, Any]
    subject: str
    body: str = Field(description="Markdown as shown")
    made_at: str


class ApprovalAnswer(Document):
    """The answer of a person to an approval, as it goes to the journal and the evidence."""

    version: int = 1
    migration_id: str
    kind: ApprovalKind
    decision: Literal["approve", "not_yet", "abort"]
    code: str
    responders: list[Responder]
    second: bool = Field(False, description="the answer of the second one of two people")
    answered_at: str
    body_shown: str
    facts_digest: str = ""
