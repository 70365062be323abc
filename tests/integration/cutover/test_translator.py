"""The public translator on real brokers: what it answers is what a consumer then reads, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from cutover_support import CUTOVER_STEPS, Lab
from test_groups import unread

from airflow_provider_kafka_migration.documents.cutover import Translation
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.phases import floor_guard, groups
from airflow_provider_kafka_migration.translate import Direction, Translator
from harness import clients, compare
from harness.brokers import KafkaCluster
from harness.load import Kind, TopicLoad, load

pytestmark = [pytest.mark.integration, pytest.mark.soak]

Values = list[tuple[bytes | None, bytes | None]]


def values(found: Iterable[compare.Record], from_offset: int) -> Values:
    """What a consumer reads from an offset on."""
    return [(record.key, record.value) for record in found if record.offset >= from_offset]


def end_of(cluster: KafkaCluster, topic: str) -> int:
    return compare.bounds(cluster.client_config(), [topic])[topic][0].end


def check_every_offset(lab: Lab, translator: Translator, topic: str, direction: Direction) -> set[Translation]:
    """Compare what is read from each offset of one side with what is read from its translation on the other side."""
    here, there = lab.source_cluster, lab.target_cluster
    if direction == "to_source":
        here, there = there, here
    asked = compare.read_records(here.client_config(), topic)[0]
    answered = compare.read_records(there.client_config(), topic)[0]
    seen = set()
    for offset in range(end_of(here, topic) + 1):
        found = translator.offset(topic, 0, offset, direction)
        assert found.to_offset is not None
        assert values(answered, found.to_offset) == values(asked, offset), found
        seen.add(found.how)
    return seen


def test_offsets_groups_and_times_of_every_kind_of_partition(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str]
) -> None:
    stem = unique_name("tr")
    kinds = {
        f"{stem}.plain": (Kind.PLAIN, Verdict.EQUAL),
        f"{stem}.tx": (Kind.TRANSACTIONAL, Verdict.MAPPED),
        f"{stem}.head": (Kind.HEAD_DELETED, Verdict.SHIFTED),
        f"{stem}.compact": (Kind.COMPACTED, Verdict.MAPPED),
    }
    lab = make_lab(list(kinds), verdicts={name: verdict for name, (_, verdict) in kinds.items()})
    load(lab.source_cluster, [TopicLoad(name, kind, 1, 80, 60) for name, (kind, _) in kinds.items()])
    config = lab.source_cluster.client_config()
    group = f"{lab.migration_id}.readers"
    clients.commit_offsets(config, group, clients.positions(config, lab.topics, 0.5))
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:4]:
        step(context)
    lab.join_tail()
    groups.commit_groups(context)
    floor_guard.run(context)

    translator = Translator(context)
    seen = {(topic, how) for topic in lab.topics for how in check_every_offset(lab, translator, topic, "to_target")}
    assert {how for _, how in seen} >= {
        Translation.EQUAL,
        Translation.EXACT,
        Translation.HOLE_FORWARD,
        Translation.RESET_TO_START,
    }
    for topic in lab.topics:
        check_every_offset(lab, translator, topic, "to_source")

    answered = {item.from_topic: item for item in translator.group(group)}
    assert sorted(answered) == sorted(lab.topics)
    assert all(item.is_copied for item in answered.values())
    committed = clients.committed_offsets(lab.target_cluster.client_config(), group, lab.topics)
    assert {topic: item.to_offset for topic, item in answered.items()} == {
        topic: committed[topic, 0] for topic in lab.topics
    }
    back = {item.from_topic: item for item in translator.group(group, "to_source")}
    left = unread(lab.source_cluster, group, lab.topics)
    for topic, item in back.items():
        assert item.to_offset is not None
        assert values(compare.read_records(config, topic)[0], item.to_offset) == left[topic, 0]

    plain = f"{stem}.plain"
    on_source = compare.read_records(config, plain)[0]
    on_target = compare.read_records(lab.target_cluster.client_config(), plain)[0]
    for record in on_source[::13]:
        there = translator.timestamp(plain, 0, record.timestamp)
        first = next(item.offset for item in on_source if item.timestamp >= record.timestamp)
        assert there.to_offset is not None
        assert values(on_target, there.to_offset) == values(on_source, first)
        assert translator.timestamp(plain, 0, record.timestamp, "to_source").to_offset == there.from_offset
    late = translator.timestamp(plain, 0, 2**42)
    assert late.from_offset == end_of(lab.source_cluster, plain)
