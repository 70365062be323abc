"""The journal of a migration: entries, claims, fingerprint."""

from __future__ import annotations

from airflow_provider_kafka_migration.journal.claim import Claim, Owner
from airflow_provider_kafka_migration.journal.fingerprint import Fingerprint
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.verify import VerifyReport, verify_journal

__all__ = ["Claim", "Fingerprint", "Journal", "Owner", "VerifyReport", "verify_journal"]
