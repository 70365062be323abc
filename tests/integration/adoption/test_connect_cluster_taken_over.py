"""MirrorMaker 2's connectors in a Connect cluster, whose worker is killed twice; then taken over and cut over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import read_records
from harness.copiers.connect_worker import ConnectWorker
from harness.load import load
from harness.processes import wait_for
from tests.integration.adoption.taken_support import Taken, check_taken_over, live_and_die, loads, write_spec

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

_ALIASES = "main", "branch"
_PACKAGE = "org.apache.kafka.connect.mirror"


def _connectors(source: KafkaCluster, target: KafkaCluster, pattern: str, name: str) -> dict[str, dict[str, str]]:
    """The three connectors of a flow; the name of the one that copies is free."""
    flow = {
        "source.cluster.alias": _ALIASES[0],
        "target.cluster.alias": _ALIASES[1],
        "source.cluster.bootstrap.servers": source.bootstrap,
        "target.cluster.bootstrap.servers": target.bootstrap,
    }
    return {
        f"{name}-copy": {
            **flow,
            "connector.class": f"{_PACKAGE}.MirrorSourceConnector",
            "tasks.max": "2",
            "topics": pattern,
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "sync.topic.acls.enabled": "false",
        },
        f"{name}-groups": {
            **flow,
            "connector.class": f"{_PACKAGE}.MirrorCheckpointConnector",
            "groups": pattern,
            "checkpoints.topic.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "emit.checkpoints.interval.seconds": "2",
            "refresh.groups.interval.seconds": "5",
        },
        f"{name}-heartbeats": {
            **flow,
            "connector.class": f"{_PACKAGE}.MirrorHeartbeatConnector",
            "heartbeats.topic.replication.factor": "1",
        },
    }


def _committed(target: KafkaCluster, worker: ConnectWorker, connector: str) -> dict[tuple[str, int], int]:
    """The last source offsets that a connector has committed."""
    found: dict[tuple[str, int], int] = {}
    for records in read_records(target.client_config(), worker.offsets_topic).values():
        for record in records:
            name, partition = json.loads(record.key or b"")
            if name == connector:
                found[partition["topic"], partition["partition"]] = json.loads(record.value or b"{}")["offset"]
    return found


def test_a_killed_connect_worker_is_taken_over(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('connect')}."
    pattern = prefix.replace(".", r"\.") + ".*"
    topics = loads(prefix)
    load(source_cluster, topics)
    name = prefix.strip(".").replace(".", "-")
    worker = ConnectWorker(tmp_path / "connect", target_cluster.bootstrap, name, flush_seconds=5)
    mirror = {"source_alias": _ALIASES[0], "target_alias": _ALIASES[1], "offsets_topic": worker.offsets_topic}
    adopt = {
        "from": "mirrormaker2",
        "stable_window": "3s",
        "compare": "all",
        "on_duplicates": "note",
        "mirrormaker2": mirror,
    }
    spec = write_spec(tmp_path, prefix, adopt, f"{_ALIASES[0]}.")
    taken = Taken(source_cluster, target_cluster, topics, spec, {t.name: f"{_ALIASES[0]}.{t.name}" for t in topics})
    orders, balances = f"{prefix}orders", f"{prefix}balances"
    live = {orders: [0, 1, 2], balances: [0, 1], f"{prefix}alerts": [0]}
    taken.commit_groups()
    with LiveProducer(source_cluster.client_config(), live, records_per_second=300, record_bytes=120), worker:
        worker.start()
        for connector, config in _connectors(source_cluster, target_cluster, pattern, name).items():
            worker.configure(connector, config)
        wait_for(
            "source offsets that the worker commits",
            lambda: len(_committed(target_cluster, worker, f"{name}-copy")) >= taken.filled,
            240,
            0.5,
        )
        worker.kill()
        live_and_die(taken, worker, orders, 500, 2)
        taken.commit_groups()
        committed = _committed(target_cluster, worker, f"{name}-copy")
        asked = taken.command("run", spec, status=10)
    adopted = check_taken_over(taken, asked)
    beyond = {key: start["source_offset"] - 1 - committed[key] for key, start in adopted.items()}
    print("beyond the committed position:", beyond)
    assert max(beyond.values()) > 0, "it was killed before it had committed what it had written"
    assert sum(start["earlier"]["duplicates"] for start in adopted.values()) > 0, "in its second life, too"
