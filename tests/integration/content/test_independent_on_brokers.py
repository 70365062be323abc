"""The independent proof on real logs: equal copies are equal, and it finds what shared code hides elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy import source as source_module
from airflow_provider_kafka_migration.copy import transform
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.independent import IndependentResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentRange, TopicRules
from airflow_provider_kafka_migration.kafka import logs
from airflow_provider_kafka_migration.kafka.batches import api
from airflow_provider_kafka_migration.offset_map.runs import MapEntry, build_offset_map_document
from airflow_provider_kafka_migration.offset_map.transactional import MapPages
from harness.brokers import KafkaCluster
from harness.load import Kind, Record, TopicLoad, load, tiny_topics, wait_cleaned, write
from tests.integration.content.conftest import Prove, job_of
from tests.integration.content.test_content_on_brokers import content_job
from tests.integration.copy.copying import Copying
from tests.integration.spark.spark_runs import ROOT, MainRun
from tests.integration.transactional.transactional_support import map_of

# Spark takes seconds to start, and a minute on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def differences(found: list[IndependentResult]) -> list[tuple[str, int | None]]:
    return [(item.kind, item.source_offset) for result in found for item in result.differences]


def test_all_kinds_of_logs_are_equal(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], prove: Prove
) -> None:
    topics = tiny_topics(unique_name("i") + ".")
    load(source_cluster, topics, seed=31)
    copy = copying([topic.name for topic in topics], lanes=2)
    progress = copy.run()
    found = prove(copy)
    assert differences(found) == []
    assert sum(result.compared for result in found) == progress["records"] > 0
    assert all(result.source_digest == result.target_digest for result in found)
    assert all(not result.not_compared and not result.explained for result in found)
    assert found[0].reader.startswith("Kafka source of Spark 4.")
    assert "kafka-clients" in found[0].reader


def test_what_was_read_is_not_read_again(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], prove: Prove
) -> None:
    topics = tiny_topics(unique_name("i") + ".")[:1]
    load(source_cluster, topics, seed=32)
    copy = copying([topic.name for topic in topics])
    copy.run()
    first = prove(copy)
    nowhere = Clients({**(copy.references or {}), "source": {"bootstrap.servers": "127.0.0.1:1"}})
    assert prove(copy, None, nowhere) == first


def test_each_part_of_a_record_counts(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path: Path,
    unique_name: Callable[[str], str],
    copying: Callable[..., Copying],
    prove: Prove,
) -> None:
    now = int(time.time() * 1000)
    plain = Record(-1, now, b"k", b"v", (("h", b"1"), ("h", b"2")))
    pairs = [
        (plain, plain),
        (plain, replace(plain, timestamp=now + 1)),
        (replace(plain, key=None), replace(plain, key=b"")),
        (replace(plain, value=None), replace(plain, value=b"")),
        (plain, replace(plain, headers=(("h", b"2"), ("h", b"1")))),
        (replace(plain, headers=(("h", None),)), replace(plain, headers=(("h", b""),))),
        (replace(plain, headers=()), replace(plain, headers=(("", b""),))),
        (replace(plain, key=b"kv", value=b""), replace(plain, key=b"k", value=b"v")),
        (replace(plain, headers=(("a", b"bc"),)), replace(plain, headers=(("ab", b"c"),))),
        (replace(plain, timestamp=-1), replace(plain, timestamp=-1)),
    ]
    name = unique_name("i")
    config = {"message.timestamp.before.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    source_cluster.create_topic(name, 1, config=config)
    write({"bootstrap.servers": source_cluster.bootstrap}, name, [(0, source) for source, _ in pairs])
    copy = copying([name])
    write({"bootstrap.servers": target_cluster.bootstrap}, name, [(0, target) for _, target in pairs])
    assert differences(prove(copy)) == [("changed", offset) for offset in range(1, 9)]


@pytest.mark.parametrize("verdict", [Verdict.SHIFTED, Verdict.MAPPED, Verdict.TRANSACTIONAL])
def test_other_offsets_are_joined_through_the_map(
    verdict: Verdict,
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    prove: Prove,
) -> None:
    topics = [item for item in tiny_topics(unique_name("i") + ".") if item.kind in (Kind.COMPACTED, Kind.TRANSACTIONAL)]
    load(source_cluster, topics, seed=33)
    wait_cleaned(source_cluster, [item.name for item in topics if item.kind is Kind.COMPACTED])
    names = [item.name for item in topics]
    keys = [(item.name, number) for item in topics for number in range(item.partitions)]
    copy = copying(names, verdicts=dict.fromkeys(keys, verdict))
    progress = copy.run()
    if verdict is Verdict.TRANSACTIONAL:
        # Somebody else writes there, too: their records are not part of the comparison.
        write({"bootstrap.servers": target_cluster.bootstrap}, names[0], [(0, Record(-1, 5, b"theirs", b""))])
        _store_final_maps(copy)
    found = prove(copy, job_of(copy, ranges=_ranges(copy)))
    assert differences(found) == []
    assert sum(result.compared for result in found) == progress["records"] > 0


def _ranges(copy: Copying) -> list[ContentRange]:
    """Ranges up to both logs' ends: with holes left out, one is not the other plus a constant."""
    ends = copy.stable_ends()
    return [item.model_copy(update={"source_end_offset": ends[item.key]}) for item in content_job(copy).ranges]


def _store_final_maps(copy: Copying) -> None:
    """Store the maps of a finished copy, as the final drain does."""
    store, sources = copy.clients.store(copy.journal), copy.stable_ends()
    targets = copy.clients.wire("target").list_offsets(list(copy.partitions), "latest")
    for key in sorted(copy.partitions):
        closed = map_of(copy, key).closed(sources[key], targets[key])
        entry = MapEntry(*key, closed, verdict=Verdict.TRANSACTIONAL)
        document = build_offset_map_document(copy.migration_id, [entry])
        MapPages(store, copy.migration_id, *key).finish(closed, document.partitions[0])


def test_what_the_source_has_compacted_since_is_explained(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], prove: Prove
) -> None:
    name = unique_name("i")
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    source_cluster.create_topic(name, 1, config=config)
    now = int(time.time() * 1000)
    records = [(0, Record(-1, now + number, b"k%d" % (number % 7), b"v%d" % number)) for number in range(200)]
    write({"bootstrap.servers": source_cluster.bootstrap}, name, records)
    copy = copying([name])
    copy.run()
    job = job_of(copy, {name: TopicRules(compacted=True)})
    more = [(0, Record(-1, now + 1_000 + number, b"k%d" % (number % 7), b"w%d" % number)) for number in range(20)]
    write({"bootstrap.servers": source_cluster.bootstrap}, name, more)
    wait_cleaned(source_cluster, [name])
    found = prove(copy, job)
    assert differences(found) == []
    assert sum(found[0].explained.values()) + found[0].compared == 200
    assert found[0].explained["compacted"] > 0
    strict = prove(copy, job_of(copy, {}, attempt=2))
    assert strict[0].difference_count == found[0].explained["compacted"]
    assert {kind for kind, _ in differences(strict)} == {"extra"}


def test_what_the_source_has_deleted_since_is_said(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], prove: Prove
) -> None:
    name = unique_name("i")
    source_cluster.create_topic(name, 1)
    now = int(time.time() * 1000)
    write({"bootstrap.servers": source_cluster.bootstrap}, name, [(0, Record(-1, now, b"k", b"v"))] * 50)
    copy = copying([name])
    copy.run()
    job = job_of(copy)
    copy.clients.wire("source").delete_records({(name, 0): 30})
    found = prove(copy, job)
    assert (found[0].compared, found[0].deleted_records, found[0].difference_count) == (20, 30, 0)


def test_what_an_application_has_deleted_on_the_target_since_is_said(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], prove: Prove
) -> None:
    """Kafka Streams does so with its repartition topics, once it has read them there."""
    name = unique_name("i")
    source_cluster.create_topic(name, 1)
    now = int(time.time() * 1000)
    write({"bootstrap.servers": source_cluster.bootstrap}, name, [(0, Record(-1, now, b"k", b"v"))] * 50)
    copy = copying([name])
    copy.run()
    job = job_of(copy)
    copy.clients.wire("target").delete_records({(name, 0): 30})
    found = prove(copy, job)
    assert (found[0].compared, found[0].target_deleted_records, found[0].difference_count) == (20, 30, 0)


def _aborted_records_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform.AbortedTransactions, "drops", lambda _self, _batch: False)
    # Markers show this mistake while it is copied; the proof must not depend on that.
    monkeypatch.setattr(transform.BatchTransformer, "_check_end", lambda _self, _batch: None)


def _transactional_records_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    is_lost = lambda _self, batch: batch.is_transactional and not batch.is_control  # noqa: E731
    monkeypatch.setattr(transform.AbortedTransactions, "drops", is_lost)
    monkeypatch.setattr(transform.AbortedTransactions, "__bool__", lambda _self: True)


def _a_batch_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(data: Any) -> Any:
        found, used_bytes = api.read_batches(data)
        return [batch for batch in found if getattr(batch, "base_offset", -1) != 5] or found, used_bytes

    for module in (logs, source_module, transform):
        monkeypatch.setattr(module, "read_batches", lossy, raising=False)


Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: list[Bug] = [_aborted_records_stay, _transactional_records_are_lost, _a_batch_is_lost]


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_in_code_that_the_other_proof_shares_are_found(
    bug: Bug,
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    prove: Prove,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = unique_name("i")
    source_cluster.create_topic(name, 1)
    config = {"bootstrap.servers": source_cluster.bootstrap}
    write_batches(config, name)
    copy = copying([name])
    with monkeypatch.context() as patched:
        bug(patched)
        copy.run()
        blind = LocalContentRunner(copy.clients, threads=1).run(content_job(copy))
    assert [content.difference_count for content in blind] == [0]
    found = prove(copy)
    assert found[0].difference_count > 0


def write_batches(config: dict[str, str], topic: str) -> None:
    """Write batches of five records each: plain, aborted, plain, committed."""
    transactional = Producer({**config, "transactional.id": topic})
    transactional.init_transactions()
    for name, commits in (("plain", None), ("plain", None), ("aborted", False), ("plain", None), ("committed", True)):
        producer = Producer(config) if commits is None else transactional
        if commits is not None:
            producer.begin_transaction()
        for number in range(5):
            producer.produce(topic, key=b"%d" % number, value=name.encode(), partition=0)
        producer.flush()
        if commits is not None:
            (producer.commit_transaction if commits else producer.abort_transaction)()


def test_secrets_reach_neither_plans_nor_the_event_log(
    copying: Callable[..., Copying],
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    prove: Prove,
    events: Path,
) -> None:
    topics: list[TopicLoad] = tiny_topics(unique_name("i") + ".")[:1]
    load(source_cluster, topics, seed=35)
    copy = copying([item.name for item in topics])
    copy.run()
    admin = {
        "source": source_cluster.client_config("admin", "SCRAM-SHA-512"),
        "target": target_cluster.client_config("admin"),
        "storage": None,
    }
    found = prove(copy, None, Clients(admin))
    assert differences(found) == []
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "kafka" in logged.lower()
    for cluster in (source_cluster, target_cluster):
        assert cluster.users["admin"] not in logged


def test_without_the_connector_the_job_says_what_is_missing(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("i")
    source_cluster.create_topic(name, 1)
    write({"bootstrap.servers": source_cluster.bootstrap}, name, [(0, Record(-1, 5, b"k", b"v"))])
    copy = copying([name])
    copy.run()
    copy.clients.store(copy.journal).put(copy.job_key("independent"), job_of(copy).canonical())
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2,4]"]
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    run = MainRun(copy, "independent", "independent", submit, environment)
    assert run.wait(800) == 1, run.text()[-4000:]
    last = run.text().strip().splitlines()[-1]
    assert last.startswith("[SPARK_CONNECTOR_MISSING] Spark has no Kafka source here")
    assert "spark.kafka_connector" in last
