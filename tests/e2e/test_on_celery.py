"""A migration where tasks run in Celery workers, and PostgreSQL holds Airflow's state; a worker is lost on the way."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator

import pytest

from harness.airflow_on_celery import AirflowOnCelery, find_program
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import compare
from harness.load import Kind, load, tiny_topics
from harness.processes import wait_for
from harness.s3 import S3Server
from harness.webhook import FreezeWebhook
from tests.e2e.migration_lab import ROOT, WAIT_SECONDS, WEBHOOK_SECRET, Lab, lab_airflow

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

_PROGRAMS = ("initdb", "postgres", "psql", "redis-server")


def _missing() -> list[str]:
    modules = [name for name in ("celery", "psycopg2", "asyncpg", "redis") if importlib.util.find_spec(name) is None]
    return modules + [name for name in _PROGRAMS if not find_program(name)]


@pytest.fixture(scope="module")
def celery_lab(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    s3_server: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """PostgreSQL, Redis, two Celery workers, and each component of Airflow as a process of its own."""
    if missing := _missing():
        story = f"not installed here: {', '.join(missing)}; make test-celery needs PostgreSQL and Redis of the system"
        if os.environ.get("ON_CELERY"):
            pytest.fail(story)
        pytest.skip(story)
    folder = tmp_path_factory.mktemp("celery-lab")
    (folder / "approvals").mkdir()
    clusters = {"kafka_source": source_cluster, "kafka_target": target_cluster}
    env = {"AIRFLOW__KAFKA_MIGRATION__PRELOAD": "True", "APPROVALS_FOLDER": str(folder / "approvals")}
    with lab_airflow(folder, ROOT / "dags", clusters, s3_server, env, kind=AirflowOnCelery) as airflow:
        yield Lab(folder, source_cluster, target_cluster, s3_server, airflow, itertools.count(1))


def test_a_migration_survives_the_loss_of_its_worker(celery_lab: Lab) -> None:
    """The tail's worker is killed with all its tasks; the tail goes on, and the target has every record."""
    lab, prefix = celery_lab, "celery."
    topics = tiny_topics(prefix)
    load(lab.source, topics)
    plain = next(topic for topic in topics if topic.kind is Kind.PLAIN)
    group, source = f"{prefix}readers", lab.source.client_config()
    middle = positions(source, [plain.name], 0.5)
    commit_offsets(source, group, middle)
    producer = LiveProducer(source, {plain.name: [0, 1]}, records_per_second=20)
    with producer, FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        spec = lab.spec(
            "celery",
            prefix,
            cutover={
                "freeze": "webhook",
                "producer_freeze_webhook": lab.address_file("celery", webhook.url),
                "webhook_secret": "airflow:e2e_webhook",
            },
        )
        run = lab.trigger(spec)
        run.wait("tail", "running")
        pid = int(lab.airflow.task(run.dag_id, run.run_id, "tail")["pid"])
        assert isinstance(lab.airflow, AirflowOnCelery)
        lab.airflow.kill_worker(lab.airflow.worker_of(pid))
        wait_for(
            "the next attempt of the tail",
            lambda: lab.airflow.task(run.dag_id, run.run_id, "tail")["try_number"] > 1,
            WAIT_SECONDS,
            every_seconds=1,
        )
        run.approve("approve_cutover")
        run.wait("cutover.floor_guard", "success")
        run.approve("approve_client_switch")
        run.wait(None, "success")
    compacted = [topic.name for topic in topics if topic.kind is Kind.COMPACTED]
    names = [topic.name for topic in topics]
    compare(source, lab.target.client_config(), names, compacted=compacted, fenced=True).check()
    assert lost_records(lab.target.client_config(), producer.acknowledged) == []
    assert committed_offsets(lab.target.client_config(), group, [plain.name]) == middle
