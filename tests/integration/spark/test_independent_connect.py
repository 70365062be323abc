"""The independent proof through Spark Connect: it compares, and the server writes no secret anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.copy.clients import write_references
from airflow_provider_kafka_migration.documents.independent import IndependentJob
from harness.brokers import KafkaCluster
from harness.jars.spark_kafka_jars import jars
from harness.load import Record, load, tiny_topics, write
from harness.spark.spark_connect import ConnectServer
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import ConnectRun

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server with Spark's Kafka source, and with an event log that shows whatever is not redacted."""
    folder = tmp_path_factory.mktemp("connect")
    (folder / "events").mkdir()
    conf = {
        "spark.jars": ",".join(str(jar) for jar in jars()),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "4",
    }
    with ConnectServer(folder, conf=conf) as made:
        yield made


def test_it_compares_and_no_secret_is_written(
    copying: Callable[..., Copying],
    connect: Callable[..., ConnectRun],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    server: ConnectServer,
) -> None:
    topics = tiny_topics(unique_name("ic") + ".")
    load(source_cluster, topics, seed=37)
    copy = copying([topic.name for topic in topics])
    progress = copy.run()
    # What differs is read again, record by record.
    for cluster in (source_cluster, target_cluster):
        record = Record(-1, 1_700_000_000_000, b"k", cluster.bootstrap.encode())
        write({"bootstrap.servers": cluster.bootstrap}, topics[0].name, [(0, record)])
    job = IndependentJob(migration_id=copy.migration_id, journal_location=copy.journal, ranges=content_job(copy).ranges)
    store = copy.clients.store(copy.journal)
    store.put(copy.job_key("independent"), job.canonical())
    users = {
        "source": source_cluster.client_config("admin", "SCRAM-SHA-512"),
        "target": target_cluster.client_config("admin"),
        "storage": None,
    }
    write_references(str(copy.references_file), users)
    run = connect(copy, "independent", "independent", server.url)
    assert run.wait(1200) == 0, run.text()[-4000:] + server.log_tail()
    found = IndependentResults.of(job, store).read_all(job.ranges)
    assert sum(result.compared for result in found) == progress["records"] > 0
    differences = [(item.kind, result.range.topic) for result in found for item in result.differences]
    assert differences == [("changed", topics[0].name)]
    assert found[0].reader.startswith("Kafka source of Spark 4.")
    written = [path for path in server.folder.rglob("*") if path.is_file()]
    texts = {path: path.read_text(errors="replace") for path in [*written, Path(run.log)]}
    events = [text for path, text in texts.items() if "events" in path.parts]
    assert any("SparkListenerSQLExecutionStart" in text or "SparkListenerConnect" in text for text in events)
    for cluster in (source_cluster, target_cluster):
        assert [path for path, text in texts.items() if cluster.users["admin"] in text] == []
