"""Task ``evidence``."""

from __future__ import annotations

from collections.abc import Collection

from airflow.sdk import BaseOperatorLink

from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink
from airflow_provider_kafka_migration.operators.base import MigrationOperator


class KafkaMigrationEvidenceOperator(MigrationOperator):
    """Signs the evidence bundle, uploads it and finalizes the migration.

    .. seealso:: docs/operators.md
    """

    phase = "evidence"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), EvidenceLink())
