"""The harness itself: what other tests rely on has to be true."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from harness.brokers import KafkaCluster, Mechanism
from harness.compare import Record, compare, read_records
from harness.processes import HarnessError
from harness.s3 import EVIDENCE_BUCKET, S3Server

pytestmark = pytest.mark.integration

UniqueName = Callable[[str], str]
START = 1_700_000_000_000


def write(config: Mapping[str, Any], topic: str, records: Iterable[Record], partition: int = 0) -> None:
    """Write records as they are; their offsets are not looked at."""
    producer = Producer({**config, "linger.ms": 5, "log_level": 2})
    failed: list[KafkaError] = []
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
            timestamp=record.timestamp,
            headers=list(record.headers),
        )
    assert producer.flush(120) == 0
    if failed:
        raise KafkaException(failed[0])


def some_records(count: int = 20) -> list[Record]:
    return [Record(n, START + n, b"k%d" % (n % 7), b"v%d" % n, (("h", b"%d" % n),)) for n in range(count)]


@pytest.fixture(params=["source_cluster", "target_cluster"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


def test_the_two_clusters_are_different(source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> None:
    assert source_cluster.cluster_id() != target_cluster.cluster_id()
    assert (source_cluster.mode, target_cluster.mode) == ("zookeeper", "kraft")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_user_writes_and_reads_what_acls_allow(cluster: KafkaCluster, topic: str, mechanism: Mechanism) -> None:
    cluster.create_topic(topic)
    cluster.allow("alice", "topic", topic, ["write", "read", "describe"])
    config = cluster.client_config("alice", mechanism)
    records = some_records(3)
    write(config, topic, records)
    assert read_records(config, topic) == {0: records}


def test_acls_are_enforced(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    cluster.allow("alice", "topic", topic, ["describe"])
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        write(cluster.client_config("alice"), topic, some_records(1))
    assert topic not in AdminClient(cluster.client_config("bob")).list_topics(timeout=60).topics
    assert read_records(cluster.client_config("admin"), topic) == {0: []}


def test_a_deny_beats_the_allow(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    cluster.allow("alice", "topic", topic, ["write"])
    write(cluster.client_config("alice"), topic, some_records(1))
    cluster.deny("alice", "topic", topic, ["write"])
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        write(cluster.client_config("alice"), topic, some_records(1))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_wrong_password_is_refused(cluster: KafkaCluster, mechanism: Mechanism) -> None:
    config = {**cluster.client_config("alice", mechanism), "sasl.password": "wrong"}
    errors: list[KafkaError] = []
    admin = AdminClient({**config, "error_cb": errors.append, "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(1)
    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.9.1", "4.1.1"])
def test_tls_listeners(version: str, tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "c", version, tls=True, users={"alice": "secret"}) as cluster:
        cluster.create_topic("t")
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            write(cluster.client_config(certificate="alice"), "t", some_records(1))
        cluster.allow("alice", "topic", "t", ["write", "read", "describe"])
        write(cluster.client_config(certificate="alice"), "t", some_records(1))
        assert read_records(cluster.client_config("alice", "SCRAM-SHA-512", tls=True), "t") == {0: some_records(1)}
        nobody = {**cluster.client_config(certificate="alice")}
        del nobody["ssl.certificate.location"], nobody["ssl.key.location"]
        with pytest.raises(KafkaException):
            AdminClient({**nobody, "log_level": 0}).list_topics(timeout=3)


@pytest.mark.parametrize("version", [pytest.param("3.9.1", marks=pytest.mark.soak), "4.1.1"])
def test_a_killed_broker_comes_back_with_its_data(version: str, tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "c", version) as cluster:
        cluster.create_topic("t")
        write(cluster.client_config(), "t", some_records(5))
        cluster_id, pid = cluster.cluster_id(), cluster.broker_pid(0)
        cluster.kill(0)
        with pytest.raises(KafkaException):
            cluster.admin().list_topics(timeout=1)
        cluster.restart(0)
        assert cluster.broker_pid(0) != pid
        assert cluster.cluster_id() == cluster_id
        assert read_records(cluster.client_config(), "t") == {0: some_records(5)}
        cluster.pause()
        with pytest.raises(KafkaException):
            cluster.admin().list_topics(timeout=1)
        cluster.resume()
        assert "t" in cluster.admin().list_topics(timeout=20).topics


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.9.1", "4.1.1"])
def test_three_brokers_survive_the_loss_of_one(version: str, tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "c", version, brokers=3) as cluster:
        cluster.create_topic("t", 3)
        write(cluster.client_config(), "t", some_records(5), partition=1)
        cluster.kill(1)
        write({**cluster.client_config(), "acks": "all"}, "t", some_records(5), partition=1)
        cluster.restart(1)
        found = read_records(cluster.client_config(), "t")
        assert [r.value for r in found[1]] == [r.value for r in some_records(5)] * 2


def test_a_broker_that_cannot_start_is_said_with_its_log(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path / "c", "4.1.1", config={"log.segment.bytes": "none"})
    with pytest.raises(HarnessError, match=r"log\.segment\.bytes"):
        cluster.start()


def test_s3_keeps_locked_evidence_and_conditional_puts(s3_server: S3Server) -> None:
    client = s3_server.client()
    bucket = s3_server.bucket()
    with ThreadPoolExecutor(4) as pool:
        puts = [pool.submit(client.put_object, Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*") for _ in range(8)]
    assert sum(put.exception() is None for put in puts) == 1
    locked = {
        "ObjectLockMode": "COMPLIANCE",
        "ObjectLockRetainUntilDate": datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1),
    }
    version = client.put_object(Bucket=EVIDENCE_BUCKET, Key="k", Body=b"1", **locked)["VersionId"]
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_object(Bucket=EVIDENCE_BUCKET, Key="k", VersionId=version)


# -- compare ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_topics(target_cluster: KafkaCluster, unique_name: UniqueName) -> Callable[..., Any]:
    """Writes two lists of records to two topics and compares them."""

    def run(source: list[Record], target: list[Record], **options: Any) -> Any:
        names = unique_name("left"), unique_name("right")
        config = target_cluster.client_config()
        for name, records in zip(names, (source, target), strict=True):
            target_cluster.create_topic(name)
            write(config, name, records)
        for option in ("shifts", "until"):
            if option in options:
                options[option] = {(names[0], 0): options[option]}
        if options.pop("compacted", False):
            options["compacted"] = [names[0]]
        result = compare(config, config, {names[0]: names[1]}, **options)
        return result, result.topics[names[0]]

    return run


def kinds(result: Any) -> list[tuple[str, int | None, int | None]]:
    return [(d.kind, d.source_offset, d.target_offset) for d in result.differences]


def test_equal_topics_are_equal(two_topics: Callable[..., Any]) -> None:
    result, topic = two_topics(some_records(), some_records())
    result.check()
    assert (topic.source_records, topic.target_records) == (20, 20)
    assert topic.source_bytes == topic.target_bytes > 0
    assert topic.content_equal
    assert topic.offsets_equal


@pytest.mark.parametrize(
    "other",
    [
        Record(5, START + 5, b"k5", b"v5", (("h", b"x"),)),
        Record(5, START + 5, b"k5", b"v5", ()),
        Record(5, START + 5, b"k5", b"v6", (("h", b"5"),)),
        Record(5, START + 5, b"k5", None, (("h", b"5"),)),
        Record(5, START + 5, None, b"v5", (("h", b"5"),)),
        Record(5, START + 5, b"k", b"5v5", (("h", b"5"),)),
        Record(5, START + 6, b"k5", b"v5", (("h", b"5"),)),
    ],
)
def test_a_changed_record_is_found(two_topics: Callable[..., Any], other: Record) -> None:
    changed = some_records()
    assert changed[5] != other
    changed[5] = other
    result, topic = two_topics(some_records(), changed)
    assert kinds(result) == [("changed", 5, 5)]
    assert (result.differences[0].source, result.differences[0].target) == (some_records()[5], other)
    assert not topic.content_equal


def test_a_missing_last_record_is_found(two_topics: Callable[..., Any]) -> None:
    result, topic = two_topics(some_records(), some_records()[:-1])
    assert kinds(result) == [("end", 20, 19), ("missing", 19, None)]
    assert not topic.content_equal


def test_a_missing_record_moves_all_that_follow(two_topics: Callable[..., Any]) -> None:
    records = some_records()
    result, topic = two_topics(records, records[:15] + records[16:])
    expected = [("end", 20, 19), ("missing", 15, None), ("moved", 16, 15), ("moved", 17, 16)]
    assert kinds(result)[:4] == expected
    assert not topic.content_equal
    with pytest.raises(AssertionError, match="6 differences"):
        result.check()


def test_reordered_records_are_found(two_topics: Callable[..., Any]) -> None:
    records = some_records()
    records[3], records[4] = records[4], records[3]
    result, topic = two_topics(some_records(), records)
    assert kinds(result) == [("moved", 3, 4), ("moved", 4, 3)]
    assert not topic.content_equal
    assert not topic.offsets_equal


def test_an_extra_record_is_found(two_topics: Callable[..., Any]) -> None:
    records = some_records()
    result, topic = two_topics(records, [*records, records[0]])
    assert kinds(result) == [("end", 20, 21), ("extra", None, 20)]
    assert not topic.content_equal


def test_a_shift_is_taken_away(two_topics: Callable[..., Any]) -> None:
    records = some_records()
    result, topic = two_topics(records[2:], [*records[:2], *records[2:]], shifts=-2)
    assert kinds(result) == [("log_start", 0, 0), ("extra", None, 0), ("extra", None, 1)]
    result, topic = two_topics(records, records[2:], shifts=2, until=15)
    assert kinds(result) == [("log_start", 0, 0), ("missing", 0, None), ("missing", 1, None)]
    assert (topic.source_records, topic.target_records) == (15, 13)


def test_until_leaves_the_rest_alone(two_topics: Callable[..., Any]) -> None:
    records = some_records()
    result, topic = two_topics(records, records[:15], until=15)
    result.check()
    assert topic.source_records == 15


def test_on_compacted_topics_only_superseded_records_may_be_on_one_side(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, topic: str
) -> None:
    """The source was cleaned after it had been copied."""
    both = [Record(n, START + n, b"k%d" % (n % 3), b"v%d" % n) for n in range(9)]
    for cluster in (source_cluster, target_cluster):
        cluster.create_topic(topic)
        write(cluster.client_config(), topic, both)
    source, target = source_cluster.client_config(), target_cluster.client_config()
    compare(source, target, [topic], compacted=[topic]).check()
    assert not compare(source, target, {topic: topic}, shifts={(topic, 0): 1}, compacted=[topic]).equal


def test_unknown_topic_is_an_error(target_cluster: KafkaCluster) -> None:
    config = target_cluster.client_config()
    with pytest.raises(HarnessError, match="not-there"):
        compare(config, config, ["not-there"])
