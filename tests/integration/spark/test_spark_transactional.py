"""Copies in transactions through spark-submit, beside a foreign writer; the driver is killed once in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentJob, ContentRange, TopicRules
from airflow_provider_kafka_migration.offset_map.runs import MapEntry, build_offset_map_document
from airflow_provider_kafka_migration.offset_map.transactional import MapPages
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.load import Kind, load, tiny_topics
from tests.integration.spark.spark_runs import SparkRun
from tests.integration.transactional.transactional_support import (
    check_copy,
    foreign_writers,
    in_transactions,
    map_of,
)

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]


def test_seed_and_verify_by_spark_submit(
    copying: Callable[..., Copying],
    submit: Callable[..., SparkRun],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    topics = tiny_topics(unique_name("s") + ".")
    load(source_cluster, topics, seed=31)
    names = [topic.name for topic in topics]
    copy = copying(names, lanes=3, verdicts=in_transactions(source_cluster, names))
    with foreign_writers(target_cluster, topics[0].name, topics[0].partitions):
        copy.write_job("seed", max_bytes_per_second=150_000, slice_seconds=4)
        killed = submit(copy, "seed", "seed")
        deadline = time.monotonic() + 120
        while not _has_begun(copy):
            assert time.monotonic() < deadline, killed.text()[-4000:]
            time.sleep(0.1)
        killed.end()
        copy.write_job("seed")
        seed = submit(copy, "seed", "seed")
        assert seed.wait() == 0, seed.text()[-4000:]
        assert check_copy(copy) > 0

        job = _content_job(copy, [topic.name for topic in topics if topic.kind is Kind.COMPACTED])
        store = copy.clients.store(copy.journal)
        store.put(copy.job_key("verify"), job.canonical())
        verify = submit(copy, "verify", "verify")
        assert verify.wait() == 0, verify.text()[-4000:]
        found = ContentResults(ContentJob.parse(job.canonical()), store).read_all()
    assert len(found) == len(copy.partitions)
    assert all(content.is_equal for content in found), [item for item in found if not item.is_equal]


def _has_begun(copy: Copying) -> bool:
    store = copy.clients.store(copy.journal)
    return any(info.key.endswith("/begun.json") for info in store.list(f"{copy.migration_id}/transactional-map/"))


def _content_job(copy: Copying, compacted: list[str]) -> ContentJob:
    """As the final drain and the validation make it."""
    ends = copy.stable_ends()
    ranges = []
    for key, item in sorted(copy.partitions.items()):
        closed = map_of(copy, key).closed(ends[key], 2**62)
        document = build_offset_map_document(copy.migration_id, [MapEntry(*key, closed)])
        entry = document.partition(*key)
        MapPages(copy.clients.store(copy.journal), copy.migration_id, *key).finish(closed, entry)
        ranges.append(
            ContentRange(
                topic=key[0],
                target_topic=item.target_topic,
                partition=key[1],
                verdict=Verdict.TRANSACTIONAL,
                source_start_offset=entry.source_start_offset or 0,
                source_end_offset=entry.source_end_offset or 0,
                target_start_offset=entry.target_start_offset or 0,
                target_end_offset=entry.target_end_offset or 0,
            )
        )
    rules = {name: TopicRules(compacted=name in compacted) for name in copy.topics}
    return ContentJob(migration_id=copy.migration_id, journal_location=copy.journal, topics=rules, ranges=ranges)
