"""What MirrorMaker 2 is known for, and a mirror does not have; docs/mirror-scenarios.md has the table."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, TopicPartition

from airflow_provider_kafka_migration.errors import MigrationError
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, lost_records
from harness.compare import bounds, read_records
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS
from tests.integration.mirrors.scenario_support import Scene, make_scene, topics_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def groups_of(cluster: KafkaCluster) -> set[str]:
    admin = cluster.admin()  # must outlive the call
    return {group.group_id for group in admin.list_consumer_groups().result().valid}


def codecs(cluster: KafkaCluster, topic: str) -> list[tuple[str, str]]:
    batches = cluster.dump_log(topic)[0]
    return [(item["compresscodec"], item["count"]) for item in batches if item["isControl"] == "false"]


def values(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in read_records(cluster.client_config(), topic)[0]]


def test_topics_with_internal_names_are_mirrored(scene: Scene) -> None:
    """KAFKA-13397, KIP-1074: only the state topics of mirrors are left out, and they by their whole names."""
    topics = [f"{scene.name('x')}.internal", f"{scene.name('x')}-internal", f"{scene.name('my')}-heartbeats"]
    for topic in topics:
        scene.source.create_topics({topic: (1, {})})
        scene.write(topic, [0])
    scene.check(*topics)


def test_a_mirror_has_no_group_that_could_rebalance(scene: Scene) -> None:
    """KAFKA-14837: its copiers join no group, on neither side."""
    before = groups_of(scene.source), groups_of(scene.target)
    topic = scene.create("groups")
    scene.write(topic, [0, 1])
    scene.wait_mirrored(topic)
    assert (groups_of(scene.source), groups_of(scene.target)) == before


def test_batches_keep_their_codecs(scene: Scene) -> None:
    """KAFKA-10728, 12295: nothing is compressed again, not even with the same codec: batches arrive as they were."""
    topic = scene.create("codecs", 1)
    for codec in ("lz4", "zstd", "gzip", "snappy", "none"):
        scene.write(topic, [0], 30, codec)
    scene.check(topic)
    wanted = codecs(scene.source, topic)
    assert {codec.lower() for codec, _ in wanted} == {"lz4", "zstd", "gzip", "snappy", "none"}
    assert codecs(scene.target, scene.remote(topic)) == wanted


def test_records_are_there_once_after_stops(scene: Scene) -> None:
    """KAFKA-10339, 14021: a mirror is stopped again and again under load; each record is there once, in order.

    It is stopped as by a signal that it handles. ``test_mirror_flow.py`` and the soak kill it.
    """
    topic = scene.create("restarts")
    with LiveProducer(scene.source.client_config(), {topic: [0, 1]}, records_per_second=300) as producer:
        for _ in range(3):
            count = producer.count()
            wait_for("records", lambda count=count: producer.count() > count + 200, SECONDS)  # type: ignore[misc]
            scene.mirror.stop()
            scene.mirror.start()
        producer.freeze()
    scene.check(topic)
    acknowledged = {(scene.remote(name), number): found for (name, number), found in producer.acknowledged.items()}
    assert lost_records(scene.target.client_config(), acknowledged) == []


# -- mirrors of their own: they end in a trouble ----------------------------------------------------------------------


@pytest.fixture
def own(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scene:
    """Two topics, mirrored; the mirror is stopped."""
    scene = make_scene(request, tmp_path_factory.mktemp("trouble"), (source_cluster, target_cluster))
    for name in ("bad", "good"):
        topic = f"{scene.flow.prefix}{name}"
        source_cluster.create_topics({topic: (1, {})})
        scene.write(topic, [0], 20)
    scene.mirror.start()
    scene.check(f"{scene.flow.prefix}bad", f"{scene.flow.prefix}good")
    scene.mirror.stop()
    return scene


def trouble(scene: Scene) -> str:
    """What the mirror tells about itself to whoever asks: the status command, or the error that has ended it."""
    process = scene.flow.command.start("mirror", "status", scene.flow.spec, "--json")
    out, err = process.communicate(timeout=SECONDS)
    error = scene.mirror.error
    return out + err + (str(error) if isinstance(error, MigrationError) else "")


def wait_told(scene: Scene, *words: str) -> None:
    def told() -> bool:
        text = trouble(scene)
        return all(word in text for word in words)

    wait_for(f"{' and '.join(words)} in the status", told, SECONDS, 1.0)


def test_retention_that_overtakes_the_mirror_is_named(own: Scene) -> None:
    """PRs 21349 and others: MirrorMaker 2 goes on behind the gap without a word."""
    bad, good = f"{own.flow.prefix}bad", f"{own.flow.prefix}good"
    own.write(bad, [0], 20)
    admin = own.source.admin()
    for future in admin.delete_records([TopicPartition(bad, 0, 30)]).values():
        future.result()
    own.write(good, [0], 20)
    own.mirror.begin()
    own.wait_mirrored(good)
    wait_told(own, "SOURCE_GAP", bad)
    there = bounds(own.target.client_config(), [own.remote(bad)])[own.remote(bad)][0]
    assert there.end == 20, "nothing was copied behind the gap"


def test_a_topic_that_was_created_again_is_named(own: Scene) -> None:
    """PRs 22852 and others: its new records are no continuation, and are not copied as one."""
    bad = f"{own.flow.prefix}bad"
    before = values(own.target, own.remote(bad))
    own.source.delete_topics([bad])

    def created_again() -> bool:
        try:
            own.source.create_topics({bad: (1, {})})
        except KafkaException:
            return False  # it is still being deleted
        return True

    wait_for("the topic", created_again, SECONDS, 0.3)
    own.write(bad, [0], 50)
    own.mirror.begin()
    wait_told(own, bad, "created again")
    assert values(own.target, own.remote(bad)) == before


def test_a_target_that_was_emptied_is_named(own: Scene) -> None:
    """strimzi 3375: Connect's offsets said `done`, and nothing was copied ever again.

    Here the partition stops with a name while the mirror runs, and the next run copies the topic again.
    """
    bad, good = f"{own.flow.prefix}bad", f"{own.flow.prefix}good"
    own.mirror.start()
    # It mirrors only when it has looked whether all target topics are there; before that it would create it again.
    own.write(bad, [0], 20)
    own.wait_mirrored(bad)
    own.target.delete_topics([own.remote(bad)])
    wait_for("the trouble", lambda: own.troubles().get(bad) == "TARGET_TOPIC_MISSING", SECONDS, 1.0)
    own.write(good, [0], 20)
    own.wait_mirrored(good)
    assert own.troubles() == {bad: "TARGET_TOPIC_MISSING"}, "the other topic goes on"
    assert own.remote(bad) not in topics_of(own.target)
    own.mirror.stop()
    own.mirror.start()
    own.check(bad, good)
