"""Task ``topology_copy``."""

from __future__ import annotations

from airflow_provider_kafka_migration.operators.base import MigrationOperator


class KafkaMigrationTopologyOperator(MigrationOperator):
    """Creates topics, configs, ACLs and quotas on the target, and takes its logs to the source's log starts.

    Copy-time settings are journaled before they are set, so that a crash loses none of them.

    .. seealso:: docs/operators.md
    """

    phase = "topology_copy"
