"""How long to wait before a lane is tried again: the same on Spark as in one process."""

from __future__ import annotations

from airflow_provider_kafka_migration.lanes.lane_pauses import LanePauses

Pauses = LanePauses
