"""Sealed references in a real ``spark-submit``: driver and Python workers decrypt them, and nobody else can."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_provider_kafka_migration.provider.job_references import SparkPlace, job_references
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE, PrivateKey
from airflow_provider_kafka_migration.spec import parse_spec
from harness.brokers import KafkaCluster
from harness.load import load, tiny_topics
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import SparkRun

PLANTED = "planted-in-the-conf-of-spark"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def exposed(run: SparkRun, secret: str) -> set[str]:
    """Where a secret can be seen from outside of Spark's processes: argument lists and environments."""
    found: set[str] = set()
    for process in run.below():
        try:
            found |= {"arguments"} if secret in " ".join(process.cmdline()) else set()
            found |= {"environment"} if secret in str(process.environ()) else set()
        except psutil.Error:
            continue
    return found


def files_with(folder: Path, text: str) -> list[Path]:
    """The files that contain a text."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def event_log(folder: Path) -> list[str]:
    """Options that make the driver write its event log there, with a setting that is no secret and is found in it."""
    folder.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.test.planted": PLANTED,
    }
    return [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]


def test_a_seed_with_sealed_references_leaves_no_secret_behind(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = tiny_topics(unique_name("sealed") + ".")
    load(source_cluster, topics, seed=32)
    copy = copying([topic.name for topic in topics], lanes=2)
    copy.write_job("seed")
    copy.references_file.unlink()
    connections = {**(copy.references or {}), "source": source_cluster.client_config("admin")}
    password = str(connections["source"]["sasl.password"])
    pair = PrivateKey.new()
    monkeypatch.setenv(KEY_VARIABLE, pair.text)
    spec = parse_spec(
        {
            "migration_id": copy.migration_id,
            "source": {"conn_id": "source"},
            "target": {"conn_id": "target"},
            "topics": {"include": [topic.name for topic in topics]},
            "storage": {"journal": copy.journal},
            "spark": {"executor_references": "sealed"},
        }
    )
    resolver = Resolver({"airflow": lambda role: json.dumps(connections[role])})
    place, seen = SparkPlace(False, "test", pair.public.text), set()
    with job_references(
        spec, resolver, place=place, job="seed", token="seed-1", folder=tmp_path / "private"
    ) as argument:
        copy.references_file = argument  # type: ignore[assignment]
        run = submit(copy, "seed", "seed", "local[2,4]", *event_log(tmp_path / "events"))
        while run.process.poll() is None:
            seen |= exposed(run, password)
            assert not exposed(run, pair.text) - {"environment"}
            time.sleep(1)
    assert run.wait() == 0, run.text()[-4000:]
    assert seen == set()
    copy.compare().check()
    (events,) = files_with(tmp_path / "events", PLANTED)
    assert copy.migration_id in events.read_text()
    for secret in (password, pair.text):
        assert secret not in run.text()
        assert files_with(tmp_path, secret) == []


@pytest.mark.soak
def test_a_driver_without_the_key_says_which_machine_lacks_it(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_provider_kafka_migration.references.local import this_machine

    name = unique_name("sealed")
    source_cluster.create_topic(name, 1)
    copy = copying([name])
    copy.write_job("seed")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    copy.references_file = "sealed:v1.0123456789ab.AAAA"  # type: ignore[assignment]
    run = submit(copy, "seed", "seed")
    assert run.wait() == 1, run.text()[-4000:]
    last = [line for line in run.text().splitlines() if line.startswith("[")][-1]
    assert last.startswith("[SEALING_KEY_MISSING]")
    assert this_machine() in last
