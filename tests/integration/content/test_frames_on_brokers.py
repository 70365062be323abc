"""Archives and topics as DataFrames: both have the same rows, and the scripts of the documentation run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_kafka_migration.copy import archive as archive_module
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.spark.frames.java_client import java_settings
from airflow_provider_kafka_migration.spark.frames.segments import read_segments
from airflow_provider_kafka_migration.spark.frames.topics import read_topic
from harness.brokers import KafkaCluster
from harness.load import Record, load, tiny_topics, write
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def _counted(frame: DataFrame) -> DataFrame:
    """The rows with their numbers; headers as text, because arrays of bytes cannot be compared."""
    headers = "concat_ws(',', transform(headers, h -> concat(h.key, '=', coalesce(hex(h.value), 'null')))) as headers"
    columns = [name for name in frame.columns if name != "headers"]
    return frame.selectExpr(*columns, "headers is null as bare", headers)


def test_an_archive_has_the_rows_of_its_topics(
    copying: Callable[..., Copying],
    spark: SparkSession,
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = tiny_topics(unique_name("f") + ".")
    load(source_cluster, topics, seed=36)
    names = [topic.name for topic in topics]
    copy = copying(names, via="s3")
    progress = copy.run()
    settings = java_settings(ClientConfig.from_librdkafka({"bootstrap.servers": source_cluster.bootstrap}, "source"))
    archived = read_segments(spark, copy.archive, copy.migration_id)
    read = None
    for name in names:
        found = read_topic(spark, settings, name)
        assert found.schema.simpleString() == archived.schema.simpleString()
        read = found if read is None else read.unionAll(found)
    assert read is not None
    mine, theirs = _counted(archived).cache(), _counted(read).cache()
    assert mine.count() == theirs.count() == progress["records"] > 0
    assert mine.exceptAll(theirs).take(3) == []
    assert theirs.exceptAll(mine).take(3) == []
    one = read_segments(spark, copy.archive, copy.migration_id, names[:1], splits=1)
    assert {row["topic"] for row in one.select("topic").distinct().collect()} == {names[0]}


def test_what_two_copiers_have_archived_is_there_once(
    copying: Callable[..., Copying],
    spark: SparkSession,
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    name = unique_name("f")
    source_cluster.create_topic(name, 1)
    config = {"bootstrap.servers": source_cluster.bootstrap}
    write(config, name, [(0, Record(-1, 1_700_000_000_000 + number, None, b"%d" % number)) for number in range(20)])
    copy = copying([name], via="s3")
    copy.run()
    store = copy.clients.store(copy.archive)
    index = archive_module.SegmentIndex(store, copy.migration_id, name, 0)
    entry = index.find(0)
    assert entry is not None
    chunk = index.read(entry)
    # Another copier has read on from offset 7.
    writer = archive_module.SegmentWriter(store, copy.migration_id, name, 0)
    writer.put(chunk.batches, [], 0, 7)
    writer.put(chunk.batches, [], 7, 20)
    rows = read_segments(spark, copy.archive, copy.migration_id).select("offset", "value").orderBy("offset").collect()
    assert [(row["offset"], bytes(row["value"])) for row in rows] == [(number, b"%d" % number) for number in range(20)]


def _scripts() -> list[str]:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    section = text.split("## Kafka and archives as DataFrames\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_scripts_of_the_documentation_run(
    copying: Callable[..., Copying],
    spark: SparkSession,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    name = unique_name("f")
    source_cluster.create_topic(name, 2)
    values = [json.dumps({"amount": f"{number}.25"}).encode() for number in range(10)]
    records = [(number % 2, Record(-1, 1_700_000_000_000, b"k", value)) for number, value in enumerate(values)]
    write({"bootstrap.servers": source_cluster.bootstrap}, name, records)
    copy = copying([name], via="s3")
    copy.run()
    reads, queries = _scripts()
    names: dict[str, Any] = {
        "spark": spark,
        "source": {"bootstrap.servers": source_cluster.bootstrap},
        "target": {"bootstrap.servers": target_cluster.bootstrap},
        "archive": copy.archive,
        "reference": None,
    }
    for script in (reads, queries):
        text = script.replace('"orders"', f'"{name}"').replace('"orders-backup"', f'"{copy.migration_id}"')
        exec(text, names)
    expected = Decimal("47.50")
    assert names["sums"] == {"source": expected, "target": expected}
    assert names["archived"].first()["amount"] == expected
