"""A whole migration by the command line into a topic that others go on writing to, beside topics of its own."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource
from nacl.signing import SigningKey

from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.compare import compare, read_records
from harness.load import Kind, TopicLoad, load
from tests.integration.test_cli_migration import Command
from tests.integration.transactional.transactional_support import FOREIGN_KEY, content, foreign_writers, split

pytestmark = [pytest.mark.integration, pytest.mark.soak]


def test_a_migration_into_a_topic_of_others(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('cli')}."
    shared = TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 400, 100)
    own = TopicLoad(f"{prefix}orders", Kind.PLAIN, 2, 400, 100, "lz4")
    load(source_cluster, [shared, own])
    before = {"retention.ms": "86400000", "max.message.bytes": "2000000"}
    target_cluster.create_topics({shared.name: (3, before)})
    producer = Producer(target_cluster.client_config())
    for number in range(30):
        producer.produce(shared.name, b"before-%d" % number, key=FOREIGN_KEY, partition=number % 3)
    producer.flush()
    source_config, target_config = source_cluster.client_config(), target_cluster.client_config()
    group, topics = f"{prefix}readers", [shared.name, own.name]
    half = positions(source_config, topics, 0.5)
    commit_offsets(source_config, group, half)
    spec = tmp_path / "migration.yaml"
    pattern = prefix.replace(".", r"\.") + ".*"
    document = {
        "migration_id": prefix.strip(".").lower(),
        "source": {"conn_id": "env:CLI_SOURCE"},
        "target": {"conn_id": "env:CLI_TARGET"},
        "storage": {"journal": f"file://{tmp_path}/journal", "evidence": f"file://{tmp_path}/evidence"},
        "topics": {"include": [pattern]},
        "groups": {"include": [pattern]},
        "offsets": {"on_foreign_writer": "note"},
        "tail": {"drain_stable_window": "1s", "slice_seconds": 2},
        "cutover": {"freeze": "manual", "freeze_stable_window": "1s"},
        "evidence": {"signing_key": "env:CLI_KEY"},
    }
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    environment = {
        "CLI_SOURCE": json.dumps(source_config),
        "CLI_TARGET": json.dumps(target_config),
        "CLI_KEY": SigningKey(bytes(range(32))).encode().hex(),
    }
    command = Command(environment)

    planned = {topic["name"]: topic for topic in command("plan", spec, status=0)["plan"]["topics"]}
    assert {item["verdict"] for item in planned[shared.name]["partitions"]} == {"transactional"}
    assert {item["verdict"] for item in planned[own.name]["partitions"]} == {"equal"}
    with foreign_writers(target_cluster, shared.name, 3):
        asked = command("run", spec, status=10)
        switch = command("resume", spec, "--approve", asked["waiting"]["code"], status=10)
        assert switch["waiting"]["approval"] == "client_switch"
        done = command("resume", spec, "--approve", switch["waiting"]["code"], status=0)
    assert done["state"] == "finalized"

    compare(source_config, target_config, [own.name], fenced=True).check()
    source, target = read_records(source_config, shared.name), read_records(target_config, shared.name)
    committed = committed_offsets(target_config, group, [shared.name])
    for number, records in source.items():
        ours, foreign = split(target[number])
        assert [content(item) for item in ours] == [content(item) for item in records]
        assert len(foreign) > 20
        wanted = bisect_left([item.offset for item in records], half[shared.name, number])
        assert sum(item.offset < committed[shared.name, number] for item in ours) == wanted
    assert split(target[2])[0] == []
    resource = ConfigResource(ConfigResource.Type.TOPIC, shared.name)
    admin = target_cluster.admin()
    configs = admin.describe_configs([resource])[resource].result(timeout=20)
    wanted_configs = {**before, "cleanup.policy": "delete", "retention.bytes": "-1"}
    assert {name: configs[name].value for name in wanted_configs} == wanted_configs
    evidence = next((tmp_path / "evidence").rglob("evidence.json")).read_text(encoding="utf-8")
    assert '"transactional"' in json.loads(evidence)["bundle_json"]
    assert command("offset-map", "check", spec, status=0)["partitions"] == 4
