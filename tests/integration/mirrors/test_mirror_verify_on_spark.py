"""The task that compares a mirror on Spark, beside the mirror: its driver is killed, and a record is altered."""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.errors import ContentsDiffer, Transient
from airflow_provider_kafka_migration.mirrors import comparison_job
from airflow_provider_kafka_migration.mirrors.comparison_job import job_name
from airflow_provider_kafka_migration.operators.mirror_verify import KafkaMirrorVerifyOperator
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec.load import load_spec
from harness.brokers import KafkaCluster
from harness.compare import Record, read_records
from harness.jars.spark_kafka_jars import jars
from harness.load import Kind, load, tiny_topics
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually, flow_name
from tests.integration.spark.spark_runs import command_of

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1500)]

_BIG_PARTITIONS, _BIG_RECORDS = 4, 25_000


class Task:
    """Attempts of one task in one DAG run after another, in this process, as a worker calls them."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.spec = load_spec(flow.spec)
        self.journal = flow.folder / flow.name / flow.name

    def __call__(self, run_id: str, **params: Any) -> Any:
        operator = KafkaMirrorVerifyOperator(
            task_id="verify", spec=self.spec, conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
        )
        instance = SimpleNamespace(
            dag_id="kafka_mirror_verify", run_id=run_id, task_id="verify", id=run_id, xcom_push=lambda **_: None
        )
        context: Any = {"ti": instance, "params": params}
        return operator.execute(context)

    def results(self, run_id: str) -> dict[str, tuple[int, bytes]]:
        """What was found in a run so far: when each result was written, and its content."""
        folder = self.journal / "comparisons" / job_name(f"kafka_mirror_verify/{run_id}/verify")
        found = sorted(folder.glob("*.json")) if folder.exists() else []
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    def job(self, run_id: str) -> dict[str, Any]:
        """The job document of a run."""
        path = self.journal / "jobs" / f"{job_name(f'kafka_mirror_verify/{run_id}/verify')}.json"
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.journal / "results" / "verification.json").read_bytes())
        return found


@pytest.fixture
def flow(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Flow:
    prefix = f"{unique_name('sparkverify')}."
    made = Flow(source_cluster, target_cluster, tmp_path, flow_name(prefix), prefix, ("A", "B"))
    for name, value in made.command.environment.items():
        if name.startswith("MIRROR_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2,4]"}))
    return made


def _write(cluster: KafkaCluster, topic: str, partition: int, records: list[Record]) -> None:
    producer = Producer({**cluster.client_config(), "linger.ms": 5})
    for item in records:
        producer.produce(topic, item.value, item.key, partition, timestamp=item.timestamp, headers=list(item.headers))
    assert producer.flush(60) == 0


def _fill(cluster: KafkaCluster, topic: str) -> None:
    """Enough that a driver can be killed while some partitions are compared, and others are not."""
    cluster.create_topics({topic: (_BIG_PARTITIONS, {})})
    producer = Producer({**cluster.client_config(), "linger.ms": 50, "batch.num.messages": 100})
    for number in range(_BIG_PARTITIONS * _BIG_RECORDS):
        producer.produce(topic, b"%0600d" % number, partition=number % _BIG_PARTITIONS)
        producer.poll(0)
    assert producer.flush(120) == 0


class KillsDriver:
    """Kills the driver, with SIGKILL, as soon as the first results of a run are there."""

    def __init__(self, task: Task, run_id: str) -> None:
        self._task, self._run_id = task, run_id
        self.before: dict[str, tuple[int, bytes]] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> KillsDriver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)

    def _drivers(self) -> list[psutil.Process]:
        """The JVM of the job; brokers are children of this process, too."""
        job = comparison_job.job_name(f"kafka_mirror_verify/{self._run_id}/verify")
        below = psutil.Process().children(recursive=True)
        return [item for item in below if f"-{job}" in (text := command_of(item)) and "java" in text.split(" ")[0]]

    def _watch(self) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if self._task.results(self._run_id):
                for process in self._drivers():
                    process.kill()
                time.sleep(2)  # workers end with their driver
                self.before = self._task.results(self._run_id)
                return
            time.sleep(0.002)


def _outcomes(found: Mapping[str, Any]) -> dict[tuple[str, int], tuple[str, int]]:
    return {(item["topic"], item["partition"]): (item["outcome"], item["compared"]) for item in found["partitions"]}


def test_a_mirror_is_compared_on_spark(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = tiny_topics(flow.prefix)
    load(flow.source, loads)
    big, orders = f"{flow.prefix}big", f"{flow.prefix}orders"
    _fill(flow.source, big)
    remote, task = flow.remote([big, orders]), Task(flow)
    process = flow.start()
    atexit.register(process.kill)

    def all_confirmed() -> bool:
        found = flow("verify", "--last", "1")
        sizes = {key[1]: item["source_end_offset"] for key, item in _places(found).items() if key[0] == big}
        return found["equal"] is True and list(sizes.values()) == [_BIG_RECORDS] * _BIG_PARTITIONS

    eventually(all_confirmed, "everything is copied and confirmed")

    # The driver dies in the middle: the attempt fails, and the next one goes on.
    with KillsDriver(task, "killed") as kills, pytest.raises(Transient):
        task("killed")
    journaled = task.job("killed")
    assert 0 < len(kills.before) < len(journaled["ranges"]), "it was not killed in the middle"
    kept: dict[str, tuple[int, bytes]] = {}
    remove = comparison_job.remove

    def removing(record: MigrationRecord, name: str) -> None:
        # Results are removed at the end, so they are looked at before that.
        kept.update(task.results("killed"))
        remove(record, name)

    monkeypatch.setattr(comparison_job, "remove", removing)
    pointers = task("killed")
    assert "partitions are equal" in pointers["summary"]
    assert len(kept) == len(journaled["ranges"])
    assert {name: kept[name] for name in kills.before} == kills.before, "what was equal was compared again"
    assert task.results("killed") == {}, "what is stored elsewhere is removed"
    found = task.last()
    outcomes = [outcome for outcome, _ in _outcomes(found).values()]
    assert (set(outcomes), outcomes.count("nothing")) == ({"equal", "nothing"}, 1), "one partition is empty"
    assert [found["state"], found["last"], found["topics"]] == ["mirroring", None, []]
    assert _outcomes(flow("verify")) == _outcomes(found), "one process finds the same"
    assert process.poll() is None, "the mirror has not noticed"
    for text in (json.dumps(journaled), json.dumps(pointers)):
        assert "bootstrap" not in text

    # One altered record, in a topic that was created again on the target.
    flow("promote")
    assert process.wait(SECONDS) == ExitCode.OK
    admin = flow.target.admin()
    for future in admin.delete_topics([remote[orders]]).values():
        future.result(30)
    eventually(lambda: remote[orders] not in admin.list_topics(timeout=30).topics, "it is deleted")
    sources = read_records(flow.source.client_config(), orders)
    flow.target.create_topics({remote[orders]: (len(sources), {"retention.ms": "-1"})})
    for partition, records in sources.items():
        changed = replace(records[3], value=b"altered") if partition == 0 else records[3]
        _write(flow.target, remote[orders], partition, [*records[:3], changed, *records[4:]])
    with pytest.raises(ContentsDiffer) as error:
        task("altered", compared_topics=[rf".*{flow.prefix}orders"], compared_last=100_000)
    assert f"{orders}-0: 1 differences: changed at source offset 3, target offset 3 (value)" in str(error.value)
    assert "altered" not in str(error.value)
    found = task.last()
    assert {item["topic"] for item in found["partitions"]} == {orders}
    assert [item["outcome"] for item in found["partitions"]] == ["different", *["equal"] * (len(sources) - 1)]
    shown = flow("status")["verification"]
    assert (shown["equal"], shown["partitions"]["different"]) == (False, 1)


def _places(found: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(item["topic"], item["partition"]): item for item in found["partitions"]}


def test_the_command_compares_with_sparks_own_reader(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('sparkreader')}."
    sections: dict[str, Any] = {"spark": {"kafka_connector": ",".join(str(jar) for jar in jars())}}
    flow = Flow(source_cluster, target_cluster, tmp_path, flow_name(prefix), prefix, ("A", "B"), sections)
    loads = tiny_topics(flow.prefix)
    load(flow.source, loads)
    process = flow.start()
    atexit.register(process.kill)
    eventually(lambda: flow("verify")["equal"] is True, "everything is copied and confirmed")
    known, found = flow("verify"), flow("verify", "--independent")
    assert found["reader"].startswith("Kafka source of Spark 4.")
    assert _outcomes(found) == _outcomes(known), "the other reader finds the same"
    assert process.poll() is None, "the mirror has not noticed"

    # Without the connector nothing is compared, and the last result stays.
    spec = flow.spec.read_text(encoding="utf-8")
    flow.spec.write_text(spec.replace(sections["spark"]["kafka_connector"], "provided"), encoding="utf-8")
    refused = flow.command.start("mirror", "verify", flow.spec, "--independent", "--json")
    out, err = refused.communicate(timeout=SECONDS)
    assert refused.returncode == ExitCode.UNCHECKED, out + err
    assert "the independent comparison was NOT RUN: Spark has no Kafka source here" in out + err
    stored = json.loads((tmp_path / flow.name / flow.name / "results" / "verification.json").read_bytes())
    assert stored["reader"] == found["reader"]

    flow.spec.write_text(spec, encoding="utf-8")
    flow("promote")
    assert process.wait(SECONDS) == ExitCode.OK
    topic = next(item.name for item in loads if item.kind is Kind.PLAIN)
    _write(flow.target, flow.remote([topic])[topic], 0, [Record(-1, 1_700_000_000_000, b"k", b"theirs")])
    assert _outcomes(flow("verify", "--independent")) == _outcomes(found), "what clients write since is not compared"
