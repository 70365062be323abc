"""The journal of a migration: entries, claims, fingerprint."""

from __future__ import annotations

from airflow_provider_kafka_migration.journal.entries import Claim, Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.view import VerifyReport, verify_journal

__all__ = ["Claim", "Fingerprint", "Journal", "Owner", "VerifyReport", "verify_journal"]
