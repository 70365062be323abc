"""An exactly-once MirrorMaker 2 that is killed inside a transaction: it is waited for, then taken over and cut over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.compare import read_records
from harness.copiers.mirror_maker import MirrorMaker2
from harness.load import load
from harness.processes import LOOPBACK, free_port, release_ports, wait_for
from tests.integration.adoption.taken_support import Taken, check_taken_over, copied, loads, write_spec

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

_ALIASES = "exact", "copy"
#: Of its tasks: the group of its node, the connector, the task.
_TRANSACTIONAL_ID = f"{_ALIASES[0]}-mm2-MirrorSourceConnector-"
#: Of its producers; the default is a minute.
_TRANSACTION_SECONDS = 20


def _open(taken: Taken) -> dict[tuple[str, int], tuple[int, int]]:
    """Target partitions with an open transaction: (last stable offset, log end)."""
    found = {}
    levels = ("read_committed", "read_uncommitted")
    config = {**taken.target.client_config(), "group.id": "no-group"}
    consumers = [Consumer({**config, "isolation.level": level}) for level in levels]
    try:
        known = consumers[0].list_topics(timeout=60).topics
        for name in set(taken.names.values()) & known.keys():
            for number in known[name].partitions:
                at = TopicPartition(name, number)
                stable, end = (item.get_watermark_offsets(at, timeout=10, cached=False)[1] for item in consumers)
                if stable < end:
                    found[name, number] = stable, end
    finally:
        for item in consumers:
            item.close()
    return found


def _die_in_a_transaction(taken: Taken, mirror: MirrorMaker2) -> dict[tuple[str, int], tuple[int, int]]:
    """Stop it again and again until it stands inside a transaction, then kill it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        mirror.pause()
        time.sleep(0.2)  # what is on its way arrives
        if found := _open(taken):
            mirror.kill()
            return found
        mirror.resume()
        time.sleep(0.05)
    raise AssertionError("it was never stopped inside a transaction")


def _offsets(taken: Taken) -> dict[tuple[str, int], int]:
    """The source offsets that it has committed, in the transactions of its records."""
    found = {}
    topic = f"mm2-offsets.{_ALIASES[0]}.internal"
    for records in read_records(taken.target.client_config(), topic).values():
        for record in records:
            name, partition = json.loads(record.key or b"")
            if name == "MirrorSourceConnector" and partition["topic"] in taken.names:
                found[partition["topic"], partition["partition"]] = json.loads(record.value or b"{}")["offset"]
    return found


def _refused(taken: Taken) -> dict[tuple[str, int], str]:
    """The target partitions that the precheck refuses, with the reasons."""
    taken.command("precheck", taken.spec, status=1)
    documents = sorted((taken.spec.parent / "journal").rglob("starts-*.json"), key=lambda path: path.stat().st_mtime)
    refused = json.loads(documents[-1].read_text(encoding="utf-8"))["refused"]
    return {(taken.names[item["topic"]], item["partition"]): item["reason"] for item in refused}


def test_a_transaction_of_a_killed_mirror_is_waited_for(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('exact')}."
    topics = loads(prefix)
    load(source_cluster, topics)
    adopt = {
        "from": "mirrormaker2",
        "stable_window": "2s",
        "compare": "all",
        "on_duplicates": "note",
        "mirrormaker2": {
            "source_alias": _ALIASES[0],
            "target_alias": _ALIASES[1],
            "isolation_level": "read_committed",
        },
    }
    spec = write_spec(tmp_path, prefix, adopt, f"{_ALIASES[0]}.")
    taken = Taken(source_cluster, target_cluster, topics, spec, {t.name: f"{_ALIASES[0]}.{t.name}" for t in topics})
    port = free_port()
    mirror = MirrorMaker2(
        tmp_path / "mm2",
        source_cluster.bootstrap,
        target_cluster.bootstrap,
        prefix.replace(".", r"\.") + ".*",
        aliases=_ALIASES,
        settings={
            f"{_ALIASES[1]}.exactly.once.source.support": "enabled",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://{LOOPBACK}:{port}",
            f"{_ALIASES[0]}.consumer.isolation.level": "read_committed",
            f"{_ALIASES[1]}.producer.transaction.timeout.ms": str(_TRANSACTION_SECONDS * 1000),
        },
    )
    orders, balances = f"{prefix}orders", f"{prefix}balances"
    live = {orders: [0, 1, 2], balances: [0, 1], f"{prefix}alerts": [0]}
    with LiveProducer(source_cluster.client_config(), live, records_per_second=300, record_bytes=120), mirror:
        mirror.start()

        def has_copied() -> bool:
            mirror.check_running()
            return copied(taken, orders) >= 2_000 and len(_offsets(taken)) >= taken.filled

        wait_for("records copied by MirrorMaker 2", has_copied, 240, 0.2)
        stuck = _die_in_a_transaction(taken, mirror)
        print("open:", stuck)
        refused = _refused(taken)
        print("refused:", refused)
        assert refused.keys() >= stuck.keys(), refused
        for key in stuck:
            assert "a transaction is open on the target" in refused[key]
            assert f"transactional id {_TRANSACTIONAL_ID}" in refused[key]
        wait_for("the end of the transaction by its timeout", lambda: not _open(taken), 120, 0.5)
        committed = _offsets(taken)
        taken.commit_groups()
        asked = taken.command("run", spec, status=10)
    release_ports([port])
    adopted = check_taken_over(taken, asked)
    assert {key: start["source_offset"] for key, start in adopted.items()} == {
        key: committed.get(key, -1) + 1 for key in adopted
    }, "its committed position is exact"
    assert all(start["earlier"]["duplicates"] == 0 for start in adopted.values())
