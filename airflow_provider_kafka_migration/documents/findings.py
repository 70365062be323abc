"""Findings of precheck and of later checks: stable code, severity, what was seen, the fix."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class Severity(StrEnum):
    """Blockers stop; warnings may be waived by code; infos are for the reader."""

    BLOCKER = "Blocker"
    WARNING = "Warning"
    INFO = "Info"


class Finding(Part):
    """One finding."""

    code: str = Field(pattern=r"^[BWI]\d{3}$", description="stable, listed in docs/precheck.md")
    severity: Severity
    title: str
    seen: str = Field(description="what was seen, with names")
    fix: str = Field(description="what to do")
    subject: str = Field("", description="topic, group, principal, bucket ... the finding is about")
    details: dict[str, Any] = Field(default_factory=dict)
    waived: bool = False


class PrecheckResult(Document):
    """``results/precheck.json``."""

    version: int = 1
    migration_id: str
    plan_digest: str = ""
    findings: list[Finding] = Field(default_factory=list)
