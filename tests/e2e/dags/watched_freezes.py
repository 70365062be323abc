"""The watch of freezes of each spec in the JSON file beside this one: ``[{"spec", "within_seconds"}, ...]``."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

# Airflow looks for the words "airflow" and "dag" before it reads a file.
from airflow_provider_kafka_migration.watch_dag import build_freeze_watch_dag

for item in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")):
    dag = build_freeze_watch_dag(item["spec"], timedelta(seconds=item["within_seconds"]), poll_seconds=1.0)
    globals()[dag.dag_id] = dag
