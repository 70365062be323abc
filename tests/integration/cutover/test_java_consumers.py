"""Java's own consumer, from Kafka's artifacts, goes on on the target: exactly the unread records."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from cutover_support import CUTOVER_STEPS, Lab

from airflow_provider_kafka_migration.documents.plan import Verdict
from harness import clients, compare
from harness.brokers import KafkaCluster
from harness.load import Kind, TopicLoad, load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = {Kind.PLAIN: Verdict.EQUAL, Kind.TRANSACTIONAL: Verdict.MAPPED, Kind.HEAD_DELETED: Verdict.SHIFTED}

#: How long nothing comes before the consumer ends. With KIP-848 the assignment comes with a later heartbeat (5 s each).
IDLE_MS = {"classic": "6000", "consumer": "15000"}

#: (partition, offset, value)
Line = tuple[int, int, str]


def console(cluster: KafkaCluster, group: str, topic: str, protocol: str) -> list[Line]:
    """What ``kafka-console-consumer`` prints until nothing more comes; without a committed offset it would fail."""
    text = cluster.tool(
        CONSOLE_CONSUMER,
        *("--topic", topic, "--group", group, "--timeout-ms", IDLE_MS[protocol], "--isolation-level", "read_committed"),
        *("--property", "print.partition=true", "--property", "print.offset=true"),
        *("--consumer-property", "auto.offset.reset=none"),
        *("--consumer-property", f"group.protocol={protocol}"),
        *("--consumer-property", "enable.auto.commit=false"),
        timeout_seconds=90,
    )
    found = re.findall(r"^Partition:(\d+)\tOffset:(\d+)\t(.*)$", text, re.MULTILINE)
    return sorted((int(partition), int(offset), value) for partition, offset, value in found)


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.soak)])
def test_the_console_consumer_gets_exactly_the_unread_records(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str], protocol: str
) -> None:
    names = {unique_name(str(kind)): kind for kind in TOPICS}
    lab = make_lab(list(names), verdicts={name: TOPICS[kind] for name, kind in names.items()})
    load(lab.source_cluster, [TopicLoad(name, kind, 2, 200, 60) for name, kind in names.items()])
    context = lab.begin()
    lab.start_tail()
    source, target = lab.source_cluster, lab.target_cluster
    committed = clients.positions(source.client_config(), lab.topics, 0.4)
    for name, kind in names.items():
        own = {key: offset for key, offset in committed.items() if key[0] == name}
        clients.commit_offsets(source.client_config(), f"{lab.group}.{kind}", own)
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS:
        if step is CUTOVER_STEPS[4]:
            lab.join_tail()
        step(context)

    def read(topic: str) -> list[Line]:
        return console(target, f"{lab.group}.{names[topic]}", topic, protocol)

    with ThreadPoolExecutor(len(names)) as pool:
        seen = dict(zip(names, pool.map(read, names), strict=True))
    for name in names:
        wanted = sorted(
            (partition, (record.value or b"null").decode())
            for partition, records in compare.read_records(source.client_config(), name).items()
            for record in records
            if record.offset >= committed[name, partition]
        )
        assert len(wanted) > 50
        assert sorted((partition, value) for partition, _, value in seen[name]) == wanted
        assert [line[:2] for line in seen[name]] == sorted({line[:2] for line in seen[name]}), "none of them twice"
