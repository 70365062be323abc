"""Task ``plan``."""

from __future__ import annotations

from collections.abc import Collection

from airflow.sdk import BaseOperatorLink

from airflow_provider_kafka_migration.links.storage import JournalLink, PlanLink
from airflow_provider_kafka_migration.operators.base import MigrationOperator


class KafkaMigrationPlanOperator(MigrationOperator):
    """Makes ``plan.json`` from the spec and the live clusters, and its digest. Writes to neither cluster.

    .. seealso:: docs/operators.md
    """

    phase = "plan"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), PlanLink())
