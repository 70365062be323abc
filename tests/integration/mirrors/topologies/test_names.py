"""Names of one's own choice, every way of keeping offsets, and the end of a mirror, on real clusters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.translate import Translator
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.compare import bounds, read, read_records
from harness.load import Kind, TopicLoad, load
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS
from tests.integration.mirrors.scenario_support import Scene, make_scene, topics_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class Suffix:
    """A policy of KIP-382 that somebody else has written: the alias is behind the name."""

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        return f"{topic}-of-{source_cluster_alias}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition("-of-")[2] if "-of-" in topic else None


def scene_of(
    request: pytest.FixtureRequest,
    clusters: tuple[KafkaCluster, KafkaCluster],
    factory: pytest.TempPathFactory,
    name: str,
    **sections: Any,
) -> Scene:
    return make_scene(request, factory.mktemp(name), clusters, **sections)


def test_a_mirror_with_renamed_topics_ends(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """naming: rename; then `mirror end`: topics, contents, groups and translation stay as they were."""
    folder = tmp_path_factory.mktemp("rename")
    prefix = f"{folder.name.replace('_', '-')}."
    exact = {f"{prefix}orders1": f"{prefix}bestellungen"}
    scene = make_scene(
        request,
        folder,
        (source_cluster, target_cluster),
        mirror={"naming": "rename"},
        topics={"include": [f"{prefix}.*"], "rename": {"prefix": "copied.", "topics": exact}},
    )
    orders, other = f"{prefix}orders1", f"{prefix}other"
    source_cluster.create_topics({orders: (2, {}), other: (1, {})})
    scene.write(orders, [0, 1], 50)
    scene.write(other, [0], 50)
    group, half = f"{prefix}group", positions(source_cluster.client_config(), [orders], 0.5)
    commit_offsets(source_cluster.client_config(), group, half)
    scene.mirror.start()
    scene.check(orders, other)
    assert {exact[orders], f"copied.{other}"} <= topics_of(target_cluster)
    scene.wait_synced(group, half)

    ended = scene.flow("end", "--reason", "no longer needed")
    assert ended["state"] == "ended"
    assert ended["details"]["problems"] == []
    scene.mirror.wait_end()
    assert scene.mirror.error is None
    assert scene.mirror.state() is State.ENDED
    ends = scene.ends(orders)
    scene.write(orders, [0, 1], 10)
    assert scene.flow("run")["state"] == "ended", "nothing is copied any more"
    there = bounds(target_cluster.client_config(), [exact[orders]])[exact[orders]]
    assert {(orders, number): item.end for number, item in there.items()} == ends
    with scene.mirror.reading() as context, Translator(context) as translator:
        found = translator.group(group)
        assert [(item.to_topic, item.to_offset, item.is_copied) for item in found] == [
            (exact[orders], half[orders, number], True) for number in (0, 1)
        ]
        behind = translator.offset(orders, 0, ends[orders, 0] + 10)
        assert not behind.is_copied, "what came after the end was not mirrored"


def test_a_mirror_with_a_policy_of_ones_own(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """naming: custom; the class is all that the spec names."""
    scene = scene_of(
        request,
        (source_cluster, target_cluster),
        tmp_path_factory,
        "custom",
        mirror={"naming": "custom", "policy": f"{__name__}.{Suffix.__name__}"},
    )
    orders = f"{scene.flow.prefix}orders"
    source_cluster.create_topics({orders: (2, {})})
    scene.write(orders, [0, 1], 50)
    scene.mirror.start()
    scene.check(orders)
    wanted = f"{orders}-of-{scene.flow.aliases[0]}"
    assert topics_of(target_cluster, scene.flow.prefix) == {wanted}
    late = scene.create("late", 1)
    scene.write(late, [0], 10)
    scene.check(late)


def test_shifted_and_mapped_partitions(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Offsets that are not equal: groups are translated exactly, while the mirror runs and after a restart."""
    folder = tmp_path_factory.mktemp("offsets")
    prefix = f"{folder.name.replace('_', '-')}."
    loads = [
        TopicLoad(f"{prefix}head", Kind.HEAD_DELETED, 1, 400, 60),
        TopicLoad(f"{prefix}transactions", Kind.TRANSACTIONAL, 1, 400, 60),
    ]
    head, transactions = (item.name for item in loads)
    modes = [{"topics": [head], "mode": "shifted"}, {"topics": [transactions], "mode": "mapped"}]
    scene = make_scene(request, folder, (source_cluster, target_cluster), offsets={"by_topic": modes})
    load(source_cluster, loads)
    scene.mirror.start()
    config = source_cluster.client_config()
    groups = {f"{prefix}at-{fraction}": fraction for fraction in (0.0, 0.3, 0.8, 1.0)}
    for restarted in (False, True):
        if restarted:
            scene.mirror.stop()
            scene.transactional = True
            scene.write(transactions, [0], 40)
            scene.transactional = False
            scene.write(head, [0], 40)
            scene.mirror.start()
        for group, fraction in groups.items():
            commit_offsets(config, group, positions(config, [head, transactions], fraction))
        for group in groups:
            wait_for(f"{group} on the target", partial(unread_is_equal, scene, group, loads), SECONDS, 0.5)
    with scene.mirror.reading() as context:
        verdicts = {topic: item.verdict for (topic, _), item in context.record.partitions().items()}
    assert verdicts == {head: Verdict.SHIFTED, transactions: Verdict.MAPPED}
    for topic in (head, transactions):
        there = read(target_cluster.client_config(), [scene.remote(topic)])[scene.remote(topic)][0]
        here = read(config, [topic])[topic][0]
        assert there.digests == here.digests
        assert there.offsets != here.offsets


def unread_is_equal(scene: Scene, group: str, loads: list[TopicLoad]) -> bool:
    """Whether a group has exactly the same records before it on both sides."""
    source, target = scene.source.client_config(), scene.target.client_config()
    for item in loads:
        remote = scene.remote(item.name)
        there = committed_offsets(target, group, [remote]).get((remote, 0))
        here = committed_offsets(source, group, [item.name])[item.name, 0]
        if there is None:
            return False
        wanted = [record.value for record in read_records(source, item.name)[0] if record.offset >= here]
        if [record.value for record in read_records(target, remote)[0] if record.offset >= there] != wanted:
            return False
    return True
