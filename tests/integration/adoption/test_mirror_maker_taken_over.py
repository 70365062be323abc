"""The real MirrorMaker 2, killed in the middle, more than once; then taken over and cut over, with groups exact."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.copiers.mirror_maker import SOURCE_ALIAS, TARGET_ALIAS, MirrorMaker2
from harness.load import load
from tests.integration.adoption.taken_support import (
    Taken,
    check_taken_over,
    live_and_die,
    loads,
    write_identical,
    write_spec,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

_IDENTICAL = 400


@pytest.mark.parametrize("naming", ["default", pytest.param("identity", marks=pytest.mark.soak)])
def test_a_killed_mirror_is_taken_over(
    naming: str,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    identity = naming == "identity"
    prefix = f"{unique_name('mm2')}."
    topics = loads(prefix)
    same = f"{prefix}same"
    load(source_cluster, topics)
    source_cluster.create_topics({same: (1, {})})
    timestamp_ms = int(time.time() * 1000)
    write_identical(source_cluster, same, _IDENTICAL, timestamp_ms)
    names = {name: name if identity else f"{SOURCE_ALIAS}.{name}" for name in [*(t.name for t in topics), same]}
    adopt = {
        "from": "mirrormaker2",
        "stable_window": "3s",
        "compare": "all",
        "on_duplicates": "report",
        "mirrormaker2": {
            "source_alias": SOURCE_ALIAS,
            "target_alias": TARGET_ALIAS,
            "replication_policy": naming,
            "isolation_level": "read_committed" if identity else "read_uncommitted",
        },
    }
    spec = write_spec(tmp_path, prefix, adopt, "" if identity else f"{SOURCE_ALIAS}.")
    taken = Taken(source_cluster, target_cluster, topics, spec, names)
    mirror = MirrorMaker2(
        tmp_path / "mm2",
        source_cluster.bootstrap,
        target_cluster.bootstrap,
        prefix.replace(".", r"\.") + ".*",
        identity=identity,
        flush_seconds=3 if identity else 60,
        settings={f"{SOURCE_ALIAS}.consumer.isolation.level": "read_committed"} if identity else {},
    )
    orders, balances = f"{prefix}orders", f"{prefix}balances"
    live = {orders: [0, 1, 2], balances: [0, 1], f"{prefix}alerts": [0]}
    with LiveProducer(source_cluster.client_config(), live, records_per_second=300, record_bytes=120), mirror:
        live_and_die(taken, mirror, orders, 2_000, 4)
        live_and_die(taken, mirror, orders, 1_000, 2)
        write_identical(source_cluster, same, 50, timestamp_ms)
        taken.commit_groups()
        asked = taken.command("run", spec, status=10)
    adopted = check_taken_over(taken, asked)
    # It was killed twice, and had written more than it had committed.
    assert sum(start["earlier"]["duplicates"] for start in adopted.values()) > 0
