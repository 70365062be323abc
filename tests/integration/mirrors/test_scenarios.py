"""The scenarios of MirrorMaker 2's own integration tests, under their names; docs/mirror-scenarios.md has the table.

Its base class runs under the default policy, again under the identity policy, with a source that is written in
transactions, over TLS, and exactly once. So do these; exactly once from a source with and without transactions.
"""

from __future__ import annotations

import time
import urllib.request
from dataclasses import replace

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.translate import Translator
from airflow_provider_kafka_migration.translate.publish import StatePublisher
from harness.brokers import KafkaCluster
from harness.clients import GroupReader, positions
from harness.compare import read
from harness.mirror_client import mirror_client
from harness.processes import wait_for
from tests.integration.mirrors.conftest import EARLY, EARLY_CONFIG, PARTITIONS
from tests.integration.mirrors.mirror_support import SECONDS
from tests.integration.mirrors.scenario_support import Scene, topics_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

_VARIANTS = ("identity", "transactions", "tls", "exactly_once", "exactly_once_transactions")


def _variants(*always: str) -> pytest.MarkDecorator:
    """Run a scenario under every variant, and in `make test` only under these."""
    soak = [pytest.param(name, marks=pytest.mark.soak) for name in _VARIANTS if name not in always]
    return pytest.mark.parametrize("scene", ["default", *always, *soak], indirect=True, scope="module")


default_variant = _variants()
exactly_once_variant = pytest.mark.parametrize(
    "scene", [pytest.param("exactly_once", marks=pytest.mark.soak)], indirect=True, scope="module"
)


def topic_config(cluster: KafkaCluster, topic: str, name: str) -> str:
    admin = cluster.admin()  # must outlive the call
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result()[name].value)


@_variants("identity", "exactly_once_transactions")
def test_replication(scene: Scene) -> None:
    """Topics from before and later, with their configs and contents; a group goes over, and returns."""
    early = f"{scene.flow.prefix}{EARLY}"
    scene.check(early)
    remote = scene.remote(early)
    assert topic_config(scene.target, remote, "index.interval.bytes") == EARLY_CONFIG["index.interval.bytes"]
    assert topic_config(scene.target, remote, "delete.retention.ms") != EARLY_CONFIG["delete.retention.ms"]

    group = scene.name("failover")
    left_at = positions(scene.source.client_config(), [early], 0.5)
    scene.commit(group, left_at)
    scene.wait_synced(group, left_at)
    with GroupReader(scene.target.client_config(), group, [remote]) as reader:
        wait_for("the group's end on the target", reader.caught_up, SECONDS, 0.2)
    wanted = {
        number: [
            (offset, part.digest(index))
            for index, offset in enumerate(part.offsets)
            if offset >= left_at[early, number]
        ]
        for number, part in read(scene.source.client_config(), [early])[early].items()
    }
    seen = {number: list(records) for (_, number), records in reader.seen.items()}
    if scene.exactly_once:
        wanted, seen = ({number: [item[1] for item in found[number]] for number in found} for found in (wanted, seen))
    assert seen == wanted, "it has read nothing twice, and nothing is missing"

    with scene.mirror.reading() as context, Translator(context) as translator:
        back = {(item.to_topic, item.partition): item.to_offset for item in translator.group(group, "to_source")}
    assert scene.places(back) == scene.places(scene.ends(early)), "failing back"

    later = scene.create("later", len(PARTITIONS))
    one = scene.create("one-partition", len(PARTITIONS))
    scene.write(later, PARTITIONS)
    scene.write(one, [3])
    scene.check(early, later, one)
    wanted_names = {early, later, one}
    assert wanted_names <= topics_of(scene.source, scene.flow.prefix)
    assert not {name for name in topics_of(scene.source, scene.flow.prefix) if name.startswith(scene.flow.aliases[1])}


@default_variant
def test_replication_with_empty_partition(scene: Scene) -> None:
    """A group's offset on a partition that was never written exists on the target, and is 0."""
    topic, group = scene.create("empty", 3), scene.name("group")
    scene.write(topic, [0, 1])
    scene.wait_mirrored(topic)
    ends = scene.ends(topic)
    assert ends[topic, 2] == 0
    scene.commit(group, ends)
    scene.wait_synced(group, ends)


@_variants("exactly_once_transactions")
def test_one_way_replication_with_auto_offset_sync(scene: Scene) -> None:
    """Groups at every position follow exactly, never past the end; a second topic later; the other way nothing."""
    topic, config = scene.create("sync"), scene.source.client_config()
    scene.write(topic, [0, 1], 100)
    scene.wait_mirrored(topic)
    groups = {
        scene.name(f"at-{fraction}-"): positions(config, [topic], fraction) for fraction in (0, 0.1, 0.5, 0.99, 1)
    }
    for group, offsets in groups.items():
        scene.commit(group, offsets)
    for group, offsets in groups.items():
        scene.wait_synced(group, offsets)

    second, group = scene.create("second"), next(iter(groups))
    scene.write(second, [0, 1], 20)
    scene.wait_mirrored(second)
    both = {**groups[group], **positions(config, [second], 0.5)}
    scene.commit(group, both)
    scene.wait_synced(group, both)
    ends = {**scene.ends(topic), **scene.ends(second)}
    ends = scene.places(ends)
    for name in groups:
        found = scene.places_of_copies(scene.on_target(name, topic, second))
        assert all(place <= ends[key] for key, place in found.items())
    names = topics_of(scene.source, scene.flow.prefix)
    assert not any(name.startswith(f"{alias}.") for name in names for alias in scene.flow.aliases)


@default_variant
def test_a_group_ahead_of_the_mirror_is_held_at_its_end(scene: Scene) -> None:
    """KAFKA-12635 and others: never an offset past the end, also while the mirror is behind."""
    topic, group = scene.create("ahead", 1), scene.name("group")
    scene.write(topic, [0], 20)
    scene.wait_mirrored(topic)
    mirrored = scene.ends(topic)
    scene.mirror.stop()
    scene.write(topic, [0], 20)
    scene.commit(group, scene.ends(topic))
    scene.mirror.start()
    seen: set[int] = set()
    ends = scene.ends(topic)

    def arrived() -> bool:
        found = scene.on_target(group, topic)
        seen.update(found.values())
        return scene.has_positions(group, ends)

    wait_for("the group at the end", arrived, SECONDS, 0.02)
    first, last = (scene.places(found)[topic, 0] for found in (mirrored, ends))
    assert all(first <= scene.places_of_copies({(topic, 0): offset})[topic, 0] <= last for offset in seen)


@default_variant
def test_replication_without_offset_sync_will_not_create_offset_syncs_topic(scene: Scene) -> None:
    """A mirror without a publisher makes no topic but the remote ones."""
    topic = scene.create("plain")
    scene.write(topic, [0])
    before = topics_of(scene.source), topics_of(scene.target)
    scene.wait_mirrored(topic)
    after = topics_of(scene.source), topics_of(scene.target)
    assert after[0] == before[0]
    assert after[1] - before[1] <= {scene.remote(topic)}
    own = scene.state_topics
    if own.checkpoints not in before[1]:
        assert not {own.checkpoints, own.offset_syncs} & after[1]


@default_variant
def test_offset_syncs_topics_on_target(scene: Scene) -> None:
    """The state topics are on the target; nothing is created or written on the source."""
    topic = scene.create("state")
    scene.write(topic, [0, 1])
    scene.wait_mirrored(topic)
    before = topics_of(scene.source)
    with scene.mirror.reading() as context:
        StatePublisher(context, scene.state_topics).publish()
    assert {scene.state_topics.checkpoints, scene.state_topics.offset_syncs} <= topics_of(scene.target)
    assert topics_of(scene.source) == before


@default_variant
def test_no_checkpoints_if_no_records_are_mirrored(scene: Scene) -> None:
    """A position that the mirror has not reached has no checkpoint; once it has, there is one."""
    topic, group = scene.create("unmirrored", 1), scene.name("group")
    scene.write(topic, [0], 10)
    scene.wait_mirrored(topic)
    scene.mirror.stop()
    scene.write(topic, [0], 10)
    ends = scene.ends(topic)
    scene.commit(group, ends)
    key, end = (group, scene.remote(topic), 0), ends[topic, 0]
    with scene.mirror.reading() as context:
        publisher = StatePublisher(context, scene.state_topics)
        publisher.publish()
        assert key not in scene.checkpoints()
        scene.mirror.start()
        scene.wait_mirrored(topic)
        publisher.publish()
        scene.check_checkpoint(group, topic, end)


@_variants("identity")
def test_restart_replication(scene: Scene) -> None:
    """Translation goes on after a restart, also for groups that lag (KAFKA-15905), and checkpoints never go back."""
    topic, config = scene.create("restart", 1), scene.source.client_config()
    groups = {scene.name(f"at-{fraction}-"): fraction for fraction in (0.1, 0.6, 1.0)}
    seen: dict[str, list[int]] = {group: [] for group in groups}

    def round_of_checkpoints() -> None:
        for group, fraction in groups.items():
            scene.commit(group, positions(config, [topic], fraction))
        with scene.mirror.reading() as context:
            StatePublisher(context, scene.state_topics).publish()
        for group, fraction in groups.items():
            offset = positions(config, [topic], fraction)[topic, 0]
            seen[group].append(scene.check_checkpoint(group, topic, offset))

    for restarts in range(2):
        scene.write(topic, [0], 40)
        if restarts:
            scene.mirror.stop()
            scene.mirror.start()
        scene.wait_mirrored(topic)
        round_of_checkpoints()
    for found in seen.values():
        assert found == sorted(set(found)), "they grow"
    scene.check(topic)


@default_variant
def test_offset_translation_behind_replication_flow(scene: Scene) -> None:
    """A group far behind gets checkpoints that advance with it, and go back when it is reset (0.1, 0.9, 0.1)."""
    topic, group, config = scene.create("behind", 1), scene.name("group"), scene.source.client_config()
    scene.write(topic, [0], 1000)
    scene.wait_mirrored(topic)
    with scene.mirror.reading() as context:
        publisher = StatePublisher(context, scene.state_topics)
        for fraction in (0.1, 0.5, 0.9, 0.1):
            offsets = positions(config, [topic], fraction)
            scene.commit(group, offsets)
            publisher.publish()
            scene.check_checkpoint(group, topic, offsets[topic, 0])
    # The group itself is never set back on the target.
    wanted = positions(config, [topic], 0.9)
    scene.commit(group, wanted)
    scene.wait_synced(group, wanted)
    scene.commit(group, positions(config, [topic], 0.1))
    time.sleep(2)
    assert scene.has_positions(group, wanted)


@default_variant
def test_sync_topic_configs(scene: Scene) -> None:
    """A config that changes on the source changes on the target; one that is excluded stays as it is there."""
    topic = scene.create("configs", 1, {"index.interval.bytes": "16384"})
    scene.write(topic, [0])
    scene.wait_mirrored(topic)
    remote = scene.remote(topic)
    scene.target.alter_topic_configs({remote: {"delete.retention.ms": "2000"}})
    scene.source.alter_topic_configs({topic: {"index.interval.bytes": "32768", "delete.retention.ms": "1000"}})
    wait_for(
        "the changed config on the target",
        lambda: topic_config(scene.target, remote, "index.interval.bytes") == "32768",
        SECONDS,
        0.3,
    )
    assert topic_config(scene.target, remote, "delete.retention.ms") == "2000"


@default_variant
def test_altered_offsets_copy_nothing_again(scene: Scene) -> None:
    """Where MirrorMaker 2 copies again after its stored offsets were altered, we do not: the target's log counts."""
    topic = scene.create("altered")
    scene.write(topic, [0, 1], 30)
    scene.wait_mirrored(topic)
    scene.mirror.stop()
    journal = scene.flow.folder / scene.flow.name / scene.flow.name
    altered = [path for path in (journal / "progress").rglob("*") if path.is_file()]
    assert altered
    for path in altered:
        path.unlink()
    scene.write(topic, [0, 1], 30)
    scene.mirror.start()
    scene.check(topic)


@exactly_once_variant
def test_altered_and_reset_positions_copy_nothing_again(scene: Scene) -> None:
    """In transactions the position is an offset of a group on the target, which an operator can alter and delete.

    MirrorMaker 2 copies n - 1 records again after its offset was altered, and all n after a reset. Here the partition
    stops with a name, other topics go on, and with its position put back the copy continues.
    """
    topic, good = scene.create("reset", 1), scene.create("good", 1)
    for name in (topic, good):
        scene.write(name, [0], 10)
        scene.wait_mirrored(name)
    scene.mirror.stop()
    group, place = scene.position_group, (scene.remote(topic), 0)
    altered = GroupOffset(1)
    with scene.mirror.reading() as context:
        admin = context.target.admin
        position = admin.group_offsets(group).offsets[place]
        assert position.offset == scene.ends(topic)[topic, 0]
        changes = [
            (altered, "OFFSET_MAP_INVALID"),
            (replace(altered, metadata=position.metadata), "OFFSET_MAP_INVALID"),
            (None, "POSITION_LOST"),
        ]
        for change, code in changes:
            if change is None:
                assert admin.delete_group_offsets(group, [place]) == {place: None}
            else:
                assert admin.alter_group_offsets(group, {place: change}) == {place: None}
            for name in (topic, good):
                scene.write(name, [0], 10)
            scene.mirror.begin()
            scene.wait_mirrored(good)
            wait_for(code, lambda code=code: scene.troubles().get(topic) == code, SECONDS, 1.0)  # type: ignore[misc]
            readers = scene.name("readers")
            scene.commit(readers, {**scene.ends(good), (topic, 0): 3})
            scene.wait_synced(readers, scene.ends(good), but=[topic])
            scene.mirror.stop()
            assert admin.alter_group_offsets(group, {place: position}) == {place: None}
    scene.mirror.start()
    scene.check(topic, good)
    scene.wait_synced(readers, {**scene.ends(good), (topic, 0): 3})


@default_variant
def test_connector_metrics(scene: Scene) -> None:
    """What MirrorMaker 2 has no metric for, too: the lag, and the groups; and the status command has the same."""
    topic, group = scene.create("metrics"), scene.name("group")
    scene.write(topic, [0, 1], 50)
    scene.wait_mirrored(topic)
    scene.commit(group, scene.ends(topic))
    scene.wait_synced(group, scene.ends(topic))
    port = load_spec(scene.flow.spec).metrics.prometheus.port
    flow = "->".join(scene.flow.aliases)

    def scraped() -> dict[str, float] | None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            families = list(text_string_to_metric_families(answer.read().decode("utf-8")))
        found = {item.name: item for family in families for item in family.samples if "topic" not in item.labels}
        assert {item.labels["flow"] for item in found.values()} == {flow}
        values = {name.removeprefix("kafka_migration_"): item.value for name, item in found.items()}
        is_settled = values.get("groups", 0) >= 1 and values["groups_behind"] == 0 and values["lag_records"] == 0
        return values if is_settled else None

    values = wait_for("a scrape without lag", scraped, SECONDS, 0.5)
    assert values["records_total"] >= 100
    assert values["replication_latency_seconds_count"] >= 100
    assert values["lag_seconds"] == 0
    assert values["groups_sync_age_seconds"] < SECONDS
    assert values["heartbeat_age_seconds"] < SECONDS
    status = scene.flow("status")
    assert status["lag"]["total"] >= 0
    assert status["groups"]["groups"] >= 1
    assert sum(status["verdicts"].values()) >= len(PARTITIONS) + 2


@default_variant
def test_remote_cluster_utils(scene: Scene) -> None:
    """Kafka's own client of MirrorMaker 2 answers from what is published beside the mirror."""
    if scene.transactional or scene.source.authority is not None:
        pytest.skip("transactions on the source and TLS do not concern the client")
    topic, group = scene.create("java"), scene.name("group")
    scene.write(topic, [0, 1], 50)
    scene.wait_mirrored(topic)
    offsets = positions(scene.source.client_config(), [topic], 0.3)
    scene.commit(group, offsets)
    with scene.mirror.reading() as context:
        StatePublisher(context, scene.state_topics).publish()
    properties = {"bootstrap.servers": scene.target.bootstrap}
    if scene.remote(topic) == topic:
        properties["replication.policy.class"] = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
    source_alias = scene.flow.aliases[0]
    with mirror_client(properties) as java:
        found = java.translate(source_alias, group)
        assert {name for name, _ in found} == {scene.remote(topic)}
        there = {(topic, number): offset for (_, number), offset in found.items()}
        assert scene.places_of_copies(there) == scene.places(offsets)
        assert source_alias in java.upstream_clusters()
        assert java.replication_hops(source_alias) == 1
