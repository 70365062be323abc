"""What a DAG file imports: Airflow parses it every minute, and each task starts with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Clients that only tasks use. They were two thirds of the time and half of the memory of a parse.
TASKS_ONLY = ("boto3", "botocore", "confluent_kafka", "kafka", "kubernetes", "openlineage", "pyarrow", "pyspark")
#: Of this package and below it; 500 more than Airflow's own when this was written.
MOST_MODULES = 700

_PARSE = """
import json, runpy, sys
import airflow.sdk
before = set(sys.modules)
for path in sys.argv[1:]:
    assert "dag" in "".join(runpy.run_path(path)), path
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.slow
def test_dag_files_import_no_clients() -> None:
    """In a process of its own: here other tests have imported everything already."""
    files = sorted(map(str, (ROOT / "dags").glob("*.py")))
    command = [sys.executable, "-c", _PARSE, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    imported = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in imported if name.split(".")[0] in TASKS_ONLY] == []
    assert len(imported) <= MOST_MODULES, len(imported)
