"""The demo's and the tests' data are what they claim to be, and their clients count rightly."""

from __future__ import annotations

import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from harness.brokers import KafkaCluster
from harness.clients import (
    GroupReader,
    LiveProducer,
    LiveTransactions,
    commit_offsets,
    committed_offsets,
    judge_group,
    lost_records,
    positions,
)
from harness.compare import compare, read, read_records
from harness.load import Kind, TopicLoad, load, records_of, standard_topics, tiny_topics, write
from harness.processes import wait_for
from harness.webhook import FreezeWebhook

pytestmark = pytest.mark.integration

START = 1_700_000_000_000
SEED = 7


@pytest.fixture(scope="module")
def topics(source_cluster: KafkaCluster) -> dict[Kind, TopicLoad]:
    """All kinds of topics, loaded on the source."""
    loads = tiny_topics("load.")
    # Old records would be deleted by the source's retention at once.
    kept = [replace(item, config={"retention.ms": "-1"}) for item in loads]
    load(source_cluster, kept, seed=SEED, start_timestamp=START)
    return {item.kind: item for item in kept}


def test_the_demo_has_the_size_and_variety_it_promises() -> None:
    topics = standard_topics()
    assert sum(topic.records for topic in topics) == 200_000
    assert len(topics) >= 6
    assert {topic.codec for topic in topics} == {"none", "gzip", "snappy", "lz4", "zstd"}
    sample = [record for _, record in records_of(topics[0], 1, START)][:1000]
    assert 90_000_000 < sum(len(record.value or b"") for record in sample) * 200 < 110_000_000


@pytest.mark.parametrize("kind", Kind)
def test_records_are_the_same_for_the_same_seed(kind: Kind) -> None:
    topic = TopicLoad("t", kind, 3, 300)
    first = list(records_of(topic, SEED, START))
    assert first == list(records_of(topic, SEED, START))
    assert first != list(records_of(topic, SEED + 1, START))
    assert len({(partition, record) for partition, record in first}) == len(first)


def test_the_cleaned_topic_has_holes_inside_its_batches(
    source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]
) -> None:
    topic = topics[Kind.COMPACTED]
    batches = source_cluster.dump_log(topic.name)
    found = read_records(source_cluster.client_config(), topic.name)
    assert len(batches) == topic.partitions
    for partition, records in found.items():
        offsets = [record.offset for record in records]
        end = read(source_cluster.client_config(), [topic.name])[topic.name][partition].end
        assert len(offsets) < end, "nothing was cleaned"
        holed = [b for b in batches[partition] if 0 < int(b["count"]) < int(b["lastOffset"]) - int(b["baseOffset"]) + 1]
        assert holed
        cleaned = [record for record in records if record.key != b"last"]
        assert len({record.key for record in cleaned}) == len(cleaned), "one record per key is left"


def test_the_transactional_topic_has_aborted_records_and_ends_with_some(
    source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]
) -> None:
    topic = topics[Kind.TRANSACTIONAL]
    batches = source_cluster.dump_log(topic.name)
    committed = read_records(source_cluster.client_config(), topic.name)
    for partition, own in batches.items():
        data = [batch for batch in own if batch["isControl"] == "false"]
        assert {batch["isTransactional"] for batch in data} == {"true"}
        written = sum(int(batch["count"]) for batch in data)
        assert 0 < len(committed[partition]) < written
        assert own[-1]["isControl"] == "true"
        assert committed[partition][-1].offset < int(data[-1]["baseOffset"])


def test_the_other_kinds_are_what_they_say(source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]) -> None:
    config = source_cluster.client_config()
    contents = read(config, [topic.name for topic in topics.values()])
    heads = contents[topics[Kind.HEAD_DELETED].name]
    assert all(0 < part.log_start < part.end and part.log_start == part.offsets[0] for part in heads.values())
    sparse = contents[topics[Kind.EMPTY_PARTITION].name]
    assert [part.end for part in sparse.values()][-1] == 0
    assert all(part.end > 0 for part in list(sparse.values())[:-1])
    keyed = [r for records in read_records(config, topics[Kind.KEYED].name).values() for r in records]
    assert any(record.value is None for record in keyed)
    values = {value for record in keyed for _, value in record.headers}
    assert {b"", None} < values
    appended = read_records(config, topics[Kind.LOG_APPEND_TIME].name)[0]
    assert min(record.timestamp for record in appended) > START + 10**9


def test_topics_have_their_codecs(source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]) -> None:
    for topic in topics.values():
        batches = [batch for own in source_cluster.dump_log(topic.name).values() for batch in own]
        assert topic.codec in {batch["compresscodec"].lower() for batch in batches}


def test_comparison_allows_what_compaction_does_and_nothing_else(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]
) -> None:
    """The source was cleaned after a (here: complete) copy was made."""
    topic = topics[Kind.COMPACTED]
    records = list(records_of(topic, SEED, START))
    target_cluster.create_topic(topic.name, topic.partitions, {"retention.ms": "-1"})
    write(target_cluster.client_config(), topic.name, records)
    configs = source_cluster.client_config(), target_cluster.client_config()
    result = compare(*configs, [topic.name], compacted=[topic.name])
    result.check()
    assert result.topics[topic.name].tolerated > 50
    assert result.topics[topic.name].content_equal
    assert not compare(*configs, [topic.name]).equal

    # The last value of a key is gone from the copy: no later record excuses that.
    last = max(n for n, (partition, record) in enumerate(records) if partition == 0 and record.key != b"last")
    spoiled = [*records[:last], (0, replace(records[last][1], key=b"other")), *records[last + 1 :]]
    target_cluster.create_topic("spoiled", topic.partitions, {"retention.ms": "-1"})
    write(target_cluster.client_config(), "spoiled", spoiled)
    result = compare(*configs, {topic.name: "spoiled"}, compacted=[topic.name])
    assert [difference.kind for difference in result.differences] == ["changed"]
    assert result.differences[0].target is not None
    assert result.differences[0].target.key == b"other"


def test_a_head_deleted_on_the_source_is_allowed_only_if_said(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]
) -> None:
    topic = topics[Kind.HEAD_DELETED]
    target_cluster.create_topic(topic.name, topic.partitions, {"retention.ms": "-1"})
    write(target_cluster.client_config(), topic.name, records_of(topic, SEED, START))
    configs = source_cluster.client_config(), target_cluster.client_config()
    compare(*configs, [topic.name], source_may_delete=True).check()
    result = compare(*configs, [topic.name])
    assert {difference.kind for difference in result.differences} == {"log_start", "extra"}


# -- clients ----------------------------------------------------------------------------------------------------------


def call(url: str, body: bytes, secret: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    if secret is not None:
        headers["X-Kafka-Migration-Signature"] = "sha256=" + hmac.new(secret.encode(), body, "sha256").hexdigest()
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_webhook_freezes_a_live_producer(source_cluster: KafkaCluster, topic: str) -> None:
    source_cluster.create_topic(topic, 2)
    config = source_cluster.client_config()
    freeze, unfreeze = (json.dumps({"migration_id": "m", "action": a}).encode() for a in ("freeze", "unfreeze"))
    with (
        LiveProducer(config, {topic: [0, 1]}, records_per_second=2000) as producer,
        FreezeWebhook(producer, secret="s") as webhook,
    ):
        wait_for("records", lambda: producer.count() > 100, 120)
        assert call(webhook.url, freeze)[0] == 401
        assert call(webhook.url, freeze, "other")[0] == 401
        assert call(webhook.url, b"[]", "s")[0] == 400
        assert not producer.frozen
        expected = {"migration_id": "m", "action": "freeze", "status": "done", "frozen": True}
        assert call(webhook.url, freeze, "s") == (200, expected)
        frozen_at = producer.count()
        content = read(config, [topic])[topic]
        assert sum(len(part.offsets) for part in content.values()) == frozen_at
        assert call(webhook.url, unfreeze, "s")[1]["frozen"] is False
        wait_for("more records", lambda: producer.count() > frozen_at + 100, 120)
        assert [c.action for c in webhook.calls] == ["freeze", "unfreeze"]
    assert producer.failed == []
    assert lost_records(config, producer.acknowledged) == []
    assert producer.count() == sum(len(part.offsets) for part in read(config, [topic])[topic].values())


def test_a_lost_acknowledged_record_is_found(source_cluster: KafkaCluster, topic: str) -> None:
    source_cluster.create_topic(topic)
    config = source_cluster.client_config()
    with LiveProducer(config, {topic: [0]}, records_per_second=1000) as producer:
        wait_for("records", lambda: producer.count() > 20, 120)
    records = producer.acknowledged[topic, 0]
    records[3] = replace(records[3], value=b"other")
    records[7] = replace(records[7], offset=records[7].offset + 1)
    records.append(replace(records[-1], offset=records[-1].offset + 1))
    assert lost_records(config, producer.acknowledged) == [(topic, 0, records[n]) for n in (3, 7, len(records) - 1)]


def test_live_transactions_know_what_is_committed(source_cluster: KafkaCluster, topic: str) -> None:
    """And a transaction that its producer's successor has aborted is not among them."""
    source_cluster.create_topic(topic, partitions=2)
    config = source_cluster.client_config()
    with LiveTransactions(config, {topic: [0, 1]}, f"{topic}.writer", records_per_second=1000) as producer:
        wait_for("transactions", lambda: producer.committed > 5 and producer.aborted > 1, 120)
        fence = Producer({**config, "transactional.id": f"{topic}.writer"})
        fence.init_transactions(30)
        before = producer.committed
        wait_for("transactions of its successor", lambda: producer.committed > before + 3, 120)
        producer.freeze()
        frozen_at = producer.count()
        content = read(config, [topic])[topic]
        # Without a broker's death nothing is left undecided but what the fence has aborted.
        assert producer.undecided == 1
        assert sum(len(part.offsets) for part in content.values()) == frozen_at == producer.committed * 20
    assert lost_records(config, producer.acknowledged) == []


def test_groups_stand_where_they_are_put(source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]) -> None:
    config = source_cluster.client_config()
    name = topics[Kind.PLAIN].name
    middle = positions(config, [name], 0.5)
    del middle[name, 3]
    commit_offsets(config, "load.middle", middle)
    assert committed_offsets(config, "load.middle", [name]) == middle
    assert all(offset > 50 for offset in middle.values())


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.TRANSACTIONAL, Kind.COMPACTED, Kind.HEAD_DELETED])
def test_a_group_that_stops_and_goes_on_reads_all_once(
    source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad], kind: Kind, unique_name: Callable[[str], str]
) -> None:
    config = source_cluster.client_config()
    topic, group = topics[kind], unique_name("group")
    before = GroupReader(config, group, [topic.name], records_per_second=400)
    with before:
        wait_for("some records", lambda: before.count() > 40, 120)
    after = GroupReader(config, group, [topic.name])
    with after:
        wait_for("the end", after.caught_up, 120)
    content = read(config, [topic.name])
    everything = sum(len(part.offsets) for part in content[topic.name].values())
    assert 0 < before.count() < everything
    result = judge_group([before, after], {}, content)
    assert (result.seen, result.reread, result.skipped) == (everything, 0, 0)

    place = next(iter(after.seen))
    _, digest = after.seen[place].pop()
    assert judge_group([before, after], {}, content).skipped == 1
    after.seen[place] += [(0, digest)] * 3
    assert judge_group([before, after], {}, content).reread == 2
    started = {place: content[place[0]][place[1]].end for place in after.seen}
    assert judge_group([GroupReader(config, group, [topic.name])], started, content).skipped == everything - sum(
        len(content[name][number].offsets) for name, number in started
    )


def test_the_log_ends_beyond_the_last_committed_record(
    source_cluster: KafkaCluster, topics: dict[Kind, TopicLoad]
) -> None:
    """Trailing aborted records and markers: both ends of the partition are past the last visible record."""
    topic = topics[Kind.TRANSACTIONAL]
    admin = source_cluster.admin()
    place = TopicPartition(topic.name, 0)
    stable, latest = (
        admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result().offset
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    last = read_records(source_cluster.client_config(), topic.name)[0][-1].offset
    assert last + 1 < stable == latest
