"""Months of a mirror in fast motion: a chain of runs of a real Airflow, deferred on a detached Spark driver.

Scheduler, triggerer and all of Airflow are killed, and ``airflow db clean`` deletes old runs meanwhile.
``MONTHS_ROUNDS`` changes how often (default: 4 times each), and ``DEFERRALS`` how often each of eight tasks is deferred
on a trigger that has its event at once (default: 25).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.airflow_components import kill_component
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, lost_records
from harness.compare import bounds, compare
from harness.load import Kind, TopicLoad, load
from harness.processes import wait_for
from harness.s3 import S3Server
from harness.webhook import FreezeWebhook
from tests.e2e.engines.process_engine import ProcessCluster, ProcessEngine
from tests.e2e.migration_lab import WAIT_SECONDS, WEBHOOK_SECRET, DagRun, Lab, Person, lab_airflow

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(10_800)]

_HERE = Path(__file__).parent
_DAG, _DEFERRALS = "months", "deferrals"
_ENTRY_POINTS = """\
[airflow_provider_kafka_migration.spark_engines]
process = process_engine:ProcessEngine
"""


@dataclass
class Chain:
    """The runs of one mirror, as Airflow's database has them. Those that were cleaned away are remembered."""

    lab: Lab
    engine: ProcessEngine
    first: str
    seen: dict[str, str]

    def look(self) -> dict[str, str]:
        """Check what has to be true at each moment, and return the states of the runs that are left."""
        runs = dict(self._rows("SELECT run_id, state FROM dag_run WHERE dag_id = ?"))
        assert "failed" not in runs.values(), runs
        tasks = self._rows("SELECT task_id, state, run_id FROM task_instance WHERE dag_id = ?")
        assert [item for item in tasks if item[1] in ("failed", "upstream_failed")] == []
        # The task that watches a freeze ends a little later, and the generic DAG may have several runs at a time.
        at_work = [run for task, state, run in tasks if task == "mirror" and state not in (None, "success", "skipped")]
        assert len(at_work) <= 1, f"one run at a time mirrors: {at_work}"
        alive = [token for token in self.engine.jobs("tail") if self.engine.runs(token)]
        assert len(alive) <= 1, f"one driver at a time: {alive}"
        self.seen.update(runs)
        return runs

    def number(self) -> int:
        """How many runs there were."""
        return len(self.seen)

    def deferrals(self) -> int:
        """How often a task gave its slot away, as far as the log table still has it."""
        found = self._rows("SELECT event, count(*) FROM log WHERE dag_id = ? GROUP BY event")
        return int(dict(found).get("deferred", 0))

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        path = self.lab.airflow.home / "airflow.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as database:
            return database.execute(query, (_DAG,)).fetchall()

    def clean(self) -> int:
        """Delete what is older than the oldest run that goes on, as Airflow's housekeeping does after a month.

        :returns: how many runs were deleted.
        """
        # Read at once: runs end meanwhile.
        rows = self._rows("SELECT run_id, state, start_date FROM dag_run WHERE dag_id = ?")
        goes_on = {run: began for run, state, began in rows if state != "success"}
        oldest = min(filter(None, goes_on.values()), default=None)
        if oldest is None:
            return 0
        # With SQLite it also deletes what began at its limit: it compares texts, one of which has a time zone.
        limit = datetime.fromisoformat(oldest) - timedelta(seconds=1)
        airflow = str(Path(sys.executable).with_name("airflow"))
        command = [airflow, "db", "clean", "--clean-before-timestamp", f"{limit}+00:00", "--skip-archive", "--yes"]
        environment = self.lab.airflow.environment()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        after = self.look()
        assert goes_on.keys() <= after.keys(), "no run that goes on is deleted"
        return len({run for run, *_ in rows} - after.keys())


@pytest.fixture
def lab(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, s3_server: S3Server, tmp_path: Path
) -> Iterator[Lab]:
    """An Airflow of its own, with an engine that other packages could offer as well."""
    dags, site, jobs = (tmp_path / name for name in ("dags", "site", "jobs"))
    for folder in (dags, jobs, site / "process_engine-1.0.dist-info"):
        folder.mkdir(parents=True)
    for name in (f"{_DAG}.py", f"{_DEFERRALS}.py"):
        (dags / name).write_bytes((_HERE / "dags" / name).read_bytes())
    for name in ("process_engine.py", "immediate_trigger.py"):
        (site / name).write_bytes((_HERE / "engines" / name).read_bytes())
    info = site / "process_engine-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: process-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    folders = [str(site), str(_HERE / "notifiers"), os.environ.get("PYTHONPATH", "")]
    env = {
        "PYTHONPATH": os.pathsep.join(folders),
        "AIRFLOW__KAFKA_MIGRATION__PRELOAD": "True",
        # What drivers and executors of the engine read instead of Airflow's connections.
        "KAFKA_MIGRATION_SOURCE": json.dumps(source_cluster.client_config("admin")),
        "KAFKA_MIGRATION_TARGET": json.dumps(target_cluster.client_config("admin")),
        "KAFKA_MIGRATION_STORAGE": json.dumps(s3_server.config()),
    }
    clusters = {"kafka_source": source_cluster, "kafka_target": target_cluster}
    with ProcessCluster(jobs), lab_airflow(tmp_path, dags, clusters, s3_server, env) as airflow:
        airflow.wait_dag(_DAG)
        yield Lab(tmp_path, source_cluster, target_cluster, s3_server, airflow, itertools.count(1))


def test_months_of_a_mirror_are_one_job_and_nothing_red(lab: Lab, tmp_path: Path) -> None:
    prefix, rounds = f"months{os.getpid()}.", int(os.environ.get("MONTHS_ROUNDS", "4"))
    orders, remote = f"{prefix}orders", f"A.{prefix}orders"
    load(lab.source, [TopicLoad(orders, Kind.KEYED, 2, 1_000, 200, "lz4")])
    source, target = lab.source.client_config(), lab.target.client_config()
    producer = LiveProducer(source, {orders: [0, 1]}, records_per_second=50)
    with producer, FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        spec = lab.spec(
            "months",
            prefix,
            kind="mirror",
            mirror={"source_alias": "A", "target_alias": "B", "sync_interval": "1s"},
            seed={"via": "direct", "slice_seconds": 5},
            tail={"slice_seconds": 10},
            spark={
                "engine": "process",
                "engine_args": {"folder": str(tmp_path / "jobs")},
                "executor_references": "env",
            },
            cutover={
                "freeze": "webhook",
                "producer_freeze_webhook": lab.address_file("months", webhook.url),
                "webhook_secret": "airflow:e2e_webhook",
                "max_producer_freeze": "10m",
            },
        )
        file = tmp_path / "mirror.yaml"
        file.write_text(yaml.safe_dump(spec), encoding="utf-8")
        person = Person(lab, file)
        run = lab.trigger(spec, _DAG)
        chain = Chain(lab, ProcessEngine(folder=str(tmp_path / "jobs")), run.run_id, {})
        run.wait("mirror", "deferred")
        _follows(lab, remote, producer)

        cleaned = 0
        for fault in list(_faults(chain)) * rounds:
            fault()
            _until_the_next_run(chain)
            _follows(lab, remote, producer)
            cleaned += chain.clean()
        deferrals, runs = chain.deferrals(), chain.number()
        assert cleaned, "housekeeping had something to do"
        assert len(chain.engine.jobs("tail")) == 1, "all runs have found the driver of the first one"
        numbers = sorted(int(found[1]) for name in chain.seen if (found := re.match(r"next-(\d+)__", name)))
        assert numbers == list(range(2, runs + 1)), "no run is left out, and none is started twice"

        promoted = person.asks("promote", "--timeout", str(WAIT_SECONDS - 60))
        assert promoted["state"] == "promoted", promoted
        assert producer.frozen
        wait_for("the end of the last run", lambda: set(chain.look().values()) == {"success"}, WAIT_SECONDS, 1.0)
        last = chain.number()
        time.sleep(20)
        chain.look()
        assert chain.number() == last, "no run follows a promotion"

    compare(source, target, {orders: remote}, fenced=True).check()
    acknowledged = {(f"A.{topic}", number): found for (topic, number), found in producer.acknowledged.items()}
    assert lost_records(target, acknowledged) == []
    print(f"{last} runs, {deferrals} deferrals, {cleaned} cleaned, {_log_bytes(lab)}")


def test_no_late_report_fails_a_deferred_task(lab: Lab) -> None:
    """Airflow 3.3.2 fails tasks whose trigger fires before the scheduler has seen their deferral (3 of 38)."""
    run = DagRun(lab, _DEFERRALS, lab.airflow.trigger(_DEFERRALS), _DEFERRALS)
    run.wait(None, "success", timeout_seconds=7200)
    assert set(run.states().values()) == {"success"}
    done = {name: lab.airflow.xcom(_DEFERRALS, run.run_id, name) for name in run.states()}
    assert set(done.values()) == {int(os.environ.get("DEFERRALS", "25"))}
    assert {lab.airflow.task(_DEFERRALS, run.run_id, name)["try_number"] for name in run.states()} == {1}


def _faults(chain: Chain) -> Iterator[Callable[[], None]]:
    airflow = chain.lab.airflow

    def killed(name: Any) -> Callable[[], None]:
        def kill() -> None:
            kill_component(airflow, name)
            time.sleep(2)
            airflow.replace(name)

        return kill

    def everything_killed() -> None:
        airflow.kill()
        time.sleep(2)
        airflow.start()

    yield killed("triggerer")
    yield killed("scheduler")
    yield everything_killed


def _until_the_next_run(chain: Chain) -> None:
    before = chain.number() if chain.look() else 0
    wait_for("the next run", lambda: chain.look() and chain.number() > before, WAIT_SECONDS, 1.0)


def _follows(lab: Lab, remote: str, producer: LiveProducer) -> None:
    before = producer.count()
    wait_for("the mirror follows", lambda: _count(lab, remote) > 1_000 + before, WAIT_SECONDS, 0.5)


def _count(lab: Lab, topic: str) -> int:
    found = bounds(lab.target.client_config(), [topic])
    return sum(item.end for numbers in found.values() for item in numbers.values())


def _log_bytes(lab: Lab) -> str:
    """How long the logs of the tasks are, for docs/airflow.md."""
    sizes: Counter[str] = Counter()
    for path in lab.airflow.home.rglob("attempt=*.log"):
        task = next((part for part in path.parts if part.startswith("task_id=")), "")
        sizes[task] += path.stat().st_size
    return ", ".join(f"{task} {size} bytes" for task, size in sorted(sizes.items()))
