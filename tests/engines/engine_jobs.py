"""Jobs for tests of engines, and what every engine must guarantee about them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.engines.base import SparkJob

TOKEN = "km-orders-seed-0123456789abcdef"
#: Must not be in any document, log or error.
SECRET = "hunter2-0c7e4f1b9d"
SECRET_VARIABLE = "KAFKA_MIGRATION_KEY"


def make_job(folder: Path, **changes: Any) -> SparkJob:
    """Return a job with a main and a zip in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    main = folder / "seed.py"
    main.write_text("print('main')\n")
    archive = folder / "airflow_provider_kafka_migration-0011223344556677.zip"
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("airflow_provider_kafka_migration/__init__.py", "")
        target.writestr("airflow_provider_kafka_migration/errors.py", "WORD = 'shipped'\n")
    given: dict[str, Any] = {
        "migration_id": "Orders.eu",
        "name": "seed",
        "token": TOKEN,
        "main": main,
        "py_files": archive,
        "arguments": ("--job-location", "s3://migration/prefix", "--job-key", "orders/jobs/seed.json"),
        "conf": {"spark.speculation": "false", "spark.task.maxFailures": "4", "spark.master": "spark://elsewhere:7077"},
        "environment": {"KAFKA_MIGRATION_SLICE": "15", "PYSPARK_PYTHON": "/opt/airflow/bin/python"},
        "secret_environment": {SECRET_VARIABLE: SECRET},
        "staging": "",
    }
    return SparkJob(**{**given, **changes})


def assert_hidden(*places: Any, secret: str = SECRET) -> None:
    """Assert that a secret is in none of these, in no form in which it could be read."""
    import base64

    forms = {secret, base64.b64encode(secret.encode()).decode().rstrip("="), secret.encode().hex()}
    for place in places:
        text = place if isinstance(place, str) else json.dumps(place, default=repr)
        for form in forms:
            assert form not in text
