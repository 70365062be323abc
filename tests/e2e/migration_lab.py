"""Clusters, S3 and a whole Airflow with the project's DAG files, and one migration's run in it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.provider.params import params_from_spec
from harness.airflow_components import ReplaceableAirflow
from harness.brokers import KafkaCluster
from harness.jars import spark_kafka_jars
from harness.processes import wait_for
from harness.s3 import DATA_BUCKET, EVIDENCE_BUCKET, S3Server

ROOT = Path(__file__).parents[2]
GENERIC = "kafka_migration"

WEBHOOK_SECRET = "e2e-webhook-secret"
WEBHOOK_TOKEN = "e2e-token-of-the-webhook-s-address"
NOTIFIER_TOKEN = "e2e-notifier-token"
SIGNING_KEY = "5e" * 32

#: Tasks of the DAG that run only when a person has chosen so.
CHOSEN = {"abandon", "rollback"}

#: Long: on a busy machine Spark alone takes a minute to start.
WAIT_SECONDS = 900.0

LAUNCHER = "org.apache.spark.launcher.Main"

_CODE = re.compile(r"type this code: \*\*`([0-9a-f]{8})`\*\*")
#: Of the answers that end a migration.
_CODES = {
    "Abort": re.compile(r"type this other code instead: `([0-9a-f]{8})`"),
    "Back out": re.compile(r"\*Back out\* with this other code: `([0-9a-f]{8})`"),
}


@dataclass
class Lab:
    """What all e2e tests of the DAG share."""

    folder: Path
    source: KafkaCluster
    target: KafkaCluster
    s3: S3Server
    airflow: ReplaceableAirflow
    numbers: Iterator[int]

    def spec(self, migration_id: str, prefix: str, **sections: Any) -> dict[str, Any]:
        """A spec for the topics and groups with a prefix; sections are merged over it.

        :param migration_id: begins the id; the prefix ends it, so that a second try is another migration.
        """
        base: dict[str, Any] = {
            "migration_id": f"{migration_id}-{prefix.rstrip('.')}",
            "source": {"conn_id": "kafka_source"},
            "target": {"conn_id": "kafka_target"},
            "storage": {
                "conn_id": "aws_e2e",
                "journal": f"s3://{DATA_BUCKET}/journal",
                "archive": f"s3://{DATA_BUCKET}/segments",
                "evidence": f"s3://{EVIDENCE_BUCKET}/proof",
            },
            "topics": {"include": [re.escape(prefix) + ".*"]},
            "groups": {"include": [re.escape(prefix) + ".*"], "sync_interval": "1s"},
            "acls": {"policy": "skip", "quotas": "skip"},
            # Wide: on a busy machine the seam between two slices takes seconds.
            "tail": {"drain_stable_window": "2s", "drain_max_partition_lag": 5000},
            "cutover": {"freeze": "manual", "max_producer_freeze": "10m"},
            "evidence": {"retention": "1d", "signing_key": "airflow:e2e_signing_key"},
            "spark": {
                "conf": {"spark.driver.memory": "512m", "spark.ui.enabled": "false"},
                "kafka_connector": ",".join(str(jar) for jar in spark_kafka_jars.jars()),
            },
            "notifications": {
                "notifier": "e2e_notifier.FileNotifier",
                "kwargs": {
                    "path": str(self._told),
                    "text": "{{ migration_id }} {{ migration_event }} {{ ti.task_id }}",
                    "token": "env:E2E_NOTIFIER_TOKEN",
                },
            },
        }
        for name, section in sections.items():
            base[name] = {**base.get(name, {}), **section} if isinstance(section, Mapping) else section
        return base

    def event_logs(self, planted: str) -> dict[str, str]:
        """Spark conf that makes drivers write their event logs into a folder, and a setting that is in all of them."""
        self.events.mkdir(exist_ok=True)
        return {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.e2e.planted": planted,
        }

    @property
    def events(self) -> Path:
        """The folder of Spark's event logs."""
        return self.folder / "spark-events"

    @property
    def _told(self) -> Path:
        return self.folder / "notifications.txt"

    def told(self, migration_id: str) -> list[str]:
        """What the notifier was told about a migration: ``<event> <task id>``, in order."""
        lines = self._told.read_text(encoding="utf-8").splitlines() if self._told.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == migration_id]

    def trigger(self, spec: Mapping[str, Any], dag_id: str = GENERIC, *, takeover: bool = False) -> DagRun:
        """Start a run of the generic DAG for a spec."""
        conf = {**params_from_spec(spec), "takeover": takeover}
        return DagRun(self, dag_id, self.airflow.trigger(dag_id, conf), str(spec["migration_id"]))

    def secrets(self) -> list[str]:
        """Everything that must not be anywhere."""
        passwords = [*self.source.users.values(), *self.target.users.values()]
        others = (WEBHOOK_SECRET, WEBHOOK_TOKEN, NOTIFIER_TOKEN, SIGNING_KEY)
        return [*passwords, self.s3.config()["aws_secret_access_key"], *others]

    def address_file(self, name: str, address: str) -> str:
        """A reference to an address with a token in it."""
        path = self.folder / f"{name}.address"
        path.touch(0o600)
        path.write_text(f"{address}?token={WEBHOOK_TOKEN}\n", encoding="utf-8")
        return f"file:{path}"


@dataclass
class DagRun:
    """One run of a migration's DAG."""

    lab: Lab
    dag_id: str
    run_id: str
    migration_id: str
    answered: list[str] = field(default_factory=list)

    def wait(self, task_id: str | None, *states: str, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Wait for a task, or with None for the run."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            try:
                return self.lab.airflow.wait_for(self.dag_id, self.run_id, task_id, states, left)
            except OSError:  # on a busy machine the API server may need longer than a client waits
                if left <= 0:
                    raise

    def states(self) -> dict[str, str | None]:
        """Task id -> state."""
        return self.lab.airflow.task_states(self.dag_id, self.run_id)

    def approve(self, task_id: str, option: str = "Approve") -> str:
        """Read the present code from the task's log, which holds also after a clear, and answer."""
        self.wait(task_id, "awaiting_input")
        codes = _CODES.get(option, _CODE).findall(self.log(task_id))
        assert codes, self.log(task_id)
        self.lab.airflow.answer(self.dag_id, self.run_id, task_id, [option], {"code": codes[-1]}, WAIT_SECONDS)
        return str(codes[-1])

    def log(self, task_id: str) -> str:
        """The last attempt's log."""
        return self.lab.airflow.task_log(self.dag_id, self.run_id, task_id)

    def links(self, task_id: str) -> dict[str, str]:
        """The links on a task's page, by their text."""
        path = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{task_id}/links"
        found: dict[str, str] = self.lab.airflow.request("GET", path)["extra_links"]
        return found

    def clear(self, *task_ids: str, downstream: bool = False) -> None:
        """As on-call does it."""
        self.lab.airflow.clear(self.dag_id, self.run_id, list(task_ids), downstream=downstream)

    def finish(self) -> None:
        """Both approvals, to the end."""
        self.approve("approve_cutover")
        self.approve("approve_client_switch")
        self.wait(None, "success")

    def objects(self, bucket: str = DATA_BUCKET) -> dict[str, bytes]:
        """All objects of the migration in a bucket."""
        client = self.lab.s3.client()
        found = {}
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for item in page.get("Contents", []):
                if self.migration_id in item["Key"].split("/"):
                    found[item["Key"]] = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        return found

    def spark_driver(self, phase: str, timeout_seconds: float = WAIT_SECONDS) -> psutil.Process:
        """The JVM of a phase's spark-submit."""
        return wait_for(
            f"Spark driver of {phase} of {self.migration_id}",
            lambda: self.find_spark_driver(phase),
            timeout_seconds,
            every_seconds=0.1,
        )

    def find_spark_driver(self, phase: str) -> psutil.Process | None:
        """The same, if it runs now."""
        name = f"kafka-migration-{self.migration_id}-{phase}"
        for pid in self.lab.airflow.processes_below():
            try:
                process = psutil.Process(pid)
                command = process.cmdline()
            except psutil.Error:
                continue
            # A first, short-lived JVM only makes the command line of the driver's.
            if name in command and "java" in Path(command[0]).name and LAUNCHER not in command:
                return process
        return None

    def everything_airflow_keeps(self, planted: str = "") -> dict[str, bytes]:
        """Logs of all tasks and components (``logs``), and all tables of the metadata database, by name.

        :param planted: put into results and rendered fields first, of a copy of the database: whoever searches must
            find it there.
        """
        kept = {"logs": b"\n".join(path.read_bytes() for path in sorted(self.lab.airflow.home.rglob("*.log")))}
        path = self.lab.airflow.home / "airflow.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as live, closing(_copy_of(live)) as database:
            if planted:
                value = json.dumps({"careless": planted})
                database.execute("UPDATE xcom SET value = ? WHERE run_id = ?", (value, self.run_id))
                database.execute(
                    "UPDATE rendered_task_instance_fields SET rendered_fields = ? WHERE run_id = ?",
                    (value, self.run_id),
                )
            tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
            for table in tables:
                rows = database.execute(f'SELECT * FROM "{table}"')
                kept[table] = b"\n".join(repr(row).encode() for row in rows)
        return kept


@dataclass
class Person:
    """Somebody at a machine that reaches the storage, and has Airflow's connections."""

    lab: Lab
    file: Path

    def asks(self, action: str, *arguments: str) -> dict[str, Any]:
        """Run ``kafka-migration mirror <action>``, and return what it prints."""
        program = str(Path(sys.executable).with_name("kafka-migration"))
        done = subprocess.run(
            [program, "mirror", action, str(self.file), "--json", *arguments],
            env=self.lab.airflow.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
        )
        # Airflow's own lines about its connection come first.
        _, separator, answer = f"\n{done.stdout}".partition("\n{\n")
        assert separator, done.stdout + done.stderr[-3000:]
        found: dict[str, Any] = json.loads("{" + answer)
        return found


def _copy_of(database: sqlite3.Connection) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:")
    database.backup(copy)
    return copy


def lab_airflow(
    folder: Path,
    dags: Path,
    clusters: Mapping[str, KafkaCluster],
    s3_server: S3Server,
    env: Mapping[str, str] | None = None,
    kind: type[ReplaceableAirflow] = ReplaceableAirflow,
) -> ReplaceableAirflow:
    """An Airflow, not started, with connections to everything.

    :param clusters: by the ids of their connections.
    :param kind: how it runs.
    """
    s3 = s3_server.config()
    connections = {
        **{
            conn_id: {"conn_type": "kafka", "extra": cluster.client_config("admin")}
            for conn_id, cluster in clusters.items()
        },
        "aws_e2e": {
            "conn_type": "aws",
            "login": s3["aws_access_key_id"],
            "password": s3["aws_secret_access_key"],
            "extra": {"endpoint_url": s3["endpoint_url"], "region_name": s3["region_name"]},
        },
        "spark_default": {"conn_type": "spark", "host": "local[2,4]"},
        "e2e_webhook": {"conn_type": "generic", "password": WEBHOOK_SECRET},
        "e2e_signing_key": {"conn_type": "generic", "password": SIGNING_KEY},
    }
    settings = {
        "AIRFLOW__KAFKA_MIGRATION__PROGRESS_INTERVAL": "1",
        "AIRFLOW__KAFKA_MIGRATION__OBJECT_URL_TEMPLATE": f"{s3['endpoint_url']}/{{bucket}}/{{key}}",
        # On a busy machine Airflow's 30 s run out while a task parses its DAG; it is tried again a minute later then.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "240",
        "AIRFLOW__KAFKA_MIGRATION__SECRETS_DIRECTORY": str(folder / "secrets"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "E2E_NOTIFIER_TOKEN": NOTIFIER_TOKEN,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "notifiers"), os.environ.get("PYTHONPATH", "")]),
        **(env or {}),
    }
    return kind(folder / "airflow", dags, connections, settings)


def may_be_cleared(task_id: str, states: Mapping[str, str | None]) -> bool:
    """Red, and the scheduler has told everything below.

    Airflow 3.3.2's scheduler ends with a ``StaleDataError`` when a task is cleared at the moment in which those below
    it become ``upstream_failed``. Nobody on call is that quick; a loop is.
    """
    if states[task_id] == "failed":
        below = build_migration_dag().get_task(task_id).get_flat_relative_ids(upstream=False)
        return all(states[name] not in (None, "scheduled") for name in below)
    return states[task_id] == "up_for_retry"


def kill_all(process: psutil.Process) -> list[int]:
    """SIGKILL for a task's process group and every process of Spark below it, Python workers included."""
    task = process.parent()
    assert task is not None
    doomed = [task, process, *process.children(recursive=True)]
    pids = [item.pid for item in doomed]
    for item in doomed:
        try:
            item.kill()
        except psutil.NoSuchProcess:
            continue
    deadline = time.monotonic() + 120
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids[1:]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return pids
