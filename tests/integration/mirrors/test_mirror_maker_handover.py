"""The real MirrorMaker 2 and mirrors go on from each other's state: nothing twice, nothing lost, groups exact."""

from __future__ import annotations

import atexit
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, positions
from harness.compare import Record, bounds, read_records, record_digest
from harness.copiers.mirror_maker import SOURCE_ALIAS, TARGET_ALIAS, MirrorMaker2
from harness.load import Kind, TopicLoad, load
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_FRACTIONS = (0.05, 0.5, 0.9, 1.0)


def _flow(source: KafkaCluster, target: KafkaCluster, prefix: str, folder: Path, **sections: Any) -> Flow:
    name = prefix.strip(".").lower().replace("_", "-")
    return Flow(source, target, folder, name, prefix, (SOURCE_ALIAS, TARGET_ALIAS), sections)


def _mirror_maker(flow: Flow, flush_seconds: float, **settings: str) -> MirrorMaker2:
    pattern = flow.prefix.replace(".", r"\.") + ".*"
    return MirrorMaker2(
        flow.folder / "mm2",
        flow.source.bootstrap,
        flow.target.bootstrap,
        pattern,
        flush_seconds=flush_seconds,
        settings=settings,
    )


def _loads(prefix: str) -> list[TopicLoad]:
    return [
        TopicLoad(f"{prefix}orders", Kind.PLAIN, 3, 1_500, 120, "lz4"),
        TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 1_000, 120, "none"),
        TopicLoad(f"{prefix}balances", Kind.COMPACTED, 2, 800, 120, "zstd"),
    ]


@pytest.fixture
def started() -> Iterator[Callable[[Flow], subprocess.Popen[str]]]:
    """Start a mirror. One that a failed test leaves is killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(flow: Flow) -> subprocess.Popen[str]:
        process = flow.start()
        processes.append(process)
        atexit.register(process.kill)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def _ends(cluster: KafkaCluster, topics: list[str]) -> dict[tuple[str, int], int]:
    """Log ends of the topics that exist; one that is being created has none yet."""
    there = cluster.admin().list_topics(timeout=30).topics
    try:
        found = bounds(cluster.client_config(), [topic for topic in topics if topic in there])
    except KafkaException:
        return {}
    return {(topic, number): item.end for topic, numbers in found.items() for number, item in numbers.items()}


def _live_and_die(mirror: MirrorMaker2, target: KafkaCluster, topic: str, more: int, seconds: float) -> None:
    """One life: it is killed some seconds after it has copied some more records."""
    wanted = sum(_ends(target, [topic]).values()) + more
    mirror.start()

    def has_copied() -> bool:
        mirror.check_running()
        return sum(_ends(target, [topic]).values()) >= wanted

    wait_for(f"{more} records copied by MirrorMaker 2", has_copied, SECONDS, 0.2)
    time.sleep(seconds)
    mirror.kill()


def _plain(records: list[Record]) -> list[bytes]:
    return [record_digest(record) for record in records]


def test_a_mirror_goes_on_where_mirror_maker_was_killed(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    started: Callable[[Flow], subprocess.Popen[str]],
) -> None:
    prefix = f"{unique_name('continued')}."
    adopt = {
        "from": "mirrormaker2",
        "stable_window": "3s",
        "compare": "all",
        "on_duplicates": "note",
        "mirrormaker2": {"source_alias": SOURCE_ALIAS, "target_alias": TARGET_ALIAS},
    }
    flow = _flow(source_cluster, target_cluster, prefix, tmp_path, adopt=adopt)
    loads = _loads(prefix)
    load(source_cluster, loads)
    names = [item.name for item in loads]
    remote = flow.remote(names)
    orders, balances = f"{prefix}orders", f"{prefix}balances"
    old, new = source_cluster.client_config(), target_cluster.client_config()
    groups = {f"{prefix}readers-{int(fraction * 100)}": fraction for fraction in _FRACTIONS}
    with LiveProducer(old, {orders: [0, 1, 2], balances: [0, 1]}, records_per_second=200) as producer:
        with _mirror_maker(flow, 60) as mirror:
            _live_and_die(mirror, target_cluster, remote[orders], 2_000, 4)
            _live_and_die(mirror, target_cluster, remote[orders], 1_000, 2)
        for group, fraction in groups.items():
            commit_offsets(old, group, positions(old, names, fraction))
        process = started(flow)
        written = producer.count()
        eventually(lambda: producer.count() > written + 500, "clients write while it mirrors")
        process.kill()
        process.wait()
        process = started(flow)
        written = producer.count()
        eventually(lambda: producer.count() > written + 500, "clients write while it mirrors again")
    promoted = flow("promote")
    assert promoted["details"]["problems"] == []
    assert process.wait(SECONDS) == ExitCode.OK

    adopted = _adopted(flow)
    assert {topic for topic, _ in adopted} == set(names)
    # It was killed twice, and had written more than it had committed.
    assert sum(start["earlier"]["duplicates"] for start in adopted.values()) > 0
    assert all(start["earlier"]["missing"] == 0 for start in adopted.values())
    sources = {name: read_records(old, name) for name in names}
    targets = {name: read_records(new, remote[name]) for name in names}
    for (name, number), start in adopted.items():
        shift = start["target_offset"] - start["source_offset"]
        behind = [item for item in sources[name][number] if item.offset >= start["source_offset"]]
        ours = [item for item in targets[name][number] if item.offset >= start["target_offset"]]
        assert _plain(behind) == _plain(ours), f"{name}-{number} behind the boundary"
        assert [item.offset + shift for item in behind] == [item.offset for item in ours]
        if name != balances:
            everything = _plain(sources[name][number]), _plain(targets[name][number])
            assert not Counter(everything[0]) - Counter(everything[1]), f"{name}-{number} lacks records"
    # By content, as offsets differ: everything that was acknowledged is there.
    for (topic, number), records in producer.acknowledged.items():
        there = {(item.key, item.value) for item in targets[topic][number]}
        lost = [item for item in records if topic == orders and (item.key, item.value) not in there]
        assert lost == [], f"{topic}-{number}"
    assert producer.count() > 1_000

    checked = 0
    for group in groups:
        before = committed_offsets(old, group, names)
        after = committed_offsets(new, group, remote.values())
        for (name, number), offset in before.items():
            wanted = _plain([item for item in sources[name][number] if item.offset >= offset])
            reads = _plain([item for item in targets[name][number] if item.offset >= after[remote[name], number]])
            assert not Counter(wanted) - Counter(reads), f"{group} skips records of {name}-{number}"
            if name != balances and wanted:
                assert reads[:1] == wanted[:1], f"{group} on {name}-{number}"
            checked += 1
    assert checked == len(groups) * 7


def _adopted(flow: Flow) -> Mapping[tuple[str, int], dict[str, Any]]:
    """The adopted starts of the mirror's plan by (source topic, partition)."""
    plan = json.loads(next((flow.folder / flow.name).rglob("plan.json")).read_text(encoding="utf-8"))
    return {
        (topic["name"], item["partition"]): item["adopted"]
        for topic in plan["topics"]
        for item in topic["partitions"]
        if item.get("adopted")
    }


@pytest.mark.soak
def test_mirror_maker_goes_on_where_a_mirror_has_ended(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    started: Callable[[Flow], subprocess.Popen[str]],
) -> None:
    prefix = f"{unique_name('handed')}."
    flow = _flow(source_cluster, target_cluster, prefix, tmp_path)
    loads = _loads(prefix)
    load(source_cluster, loads)
    names = [item.name for item in loads]
    remote = flow.remote(names)
    orders, balances = f"{prefix}orders", f"{prefix}balances"
    old, new = source_cluster.client_config(), target_cluster.client_config()
    lagging = f"{prefix}lagging"
    with LiveProducer(old, {orders: [0, 1, 2]}, records_per_second=200) as producer:
        process = started(flow)
        eventually(lambda: producer.count() > 500, "clients write while it mirrors")
        process.kill()
        process.wait()
        process = started(flow)
        places = positions(old, names, 0.5)
        commit_offsets(old, lagging, places)
        written = producer.count()
        eventually(lambda: producer.count() > written + 500, "clients write while it mirrors again")
        early = flow("hand-over", status=ExitCode.FAILED)
        assert early["error"]["code"] == "ILLEGAL_TRANSITION"
        flow("end")
        assert process.wait(SECONDS) == ExitCode.OK
        assert flow("verify")["equal"] is True
        ends = _ends(target_cluster, list(remote.values()))
        aliases = ["--source-alias", SOURCE_ALIAS, "--target-alias", TARGET_ALIAS]
        flow.command("translate", "publish", flow.spec, *aliases, "--once", status=ExitCode.OK)
        written_offsets = flow("hand-over")
        again = flow("hand-over")
        assert again["positions"] == written_offsets["positions"]
        assert len(written_offsets["positions"]) == 7
        way = f"{SOURCE_ALIAS}->{TARGET_ALIAS}"
        settings = {
            f"{SOURCE_ALIAS}.consumer.isolation.level": "read_committed",
            f"{way}.offset-syncs.topic.location": "target",
            f"{way}.groups": prefix.replace(".", r"\.") + ".*",
            f"{way}.groups.exclude": "nothing",
            f"{way}.emit.checkpoints.enabled": "true",
            f"{way}.emit.checkpoints.interval.seconds": "1",
            f"{way}.refresh.groups.interval.seconds": "1",
            f"{way}.sync.group.offsets.enabled": "true",
            f"{way}.sync.group.offsets.interval.seconds": "1",
        }
        with _mirror_maker(flow, 3, **settings) as mirror:
            mirror.start()

            def has_gone_on() -> bool:
                mirror.check_running()
                now = _ends(target_cluster, [remote[orders]])
                return sum(now.values()) > sum(end for key, end in ends.items() if key[0] == remote[orders]) + 500

            wait_for("MirrorMaker 2 copies behind the mirror", has_gone_on, SECONDS, 0.5)
            late = flow("hand-over", status=ExitCode.FAILED)
            assert "somebody has written behind it" in late["refused"][0]["reason"]
            producer.freeze()
            sources = {name: read_records(old, name) for name in names}
            wanted = {(remote[name], number): len(items) for name in names for number, items in sources[name].items()}

            def has_everything() -> bool:
                mirror.check_running()
                return all(
                    len(items) >= wanted[remote[orders], number]
                    for number, items in read_records(new, remote[orders]).items()
                )

            wait_for("MirrorMaker 2 has copied everything", has_everything, SECONDS, 1.0)
            # Anything twice would arrive by now, and checkpoints of the new life.
            time.sleep(5)
            mirror.stop()
    targets = {name: read_records(new, remote[name]) for name in names}
    for name in names:
        for number, records in sources[name].items():
            if name == balances:
                continue
            here, there = _plain(records), _plain(targets[name][number])
            assert here == there, f"{name}-{number}: {len(here)} records, {len(there)} on the target"
    assert {key: len(items) for (key, items) in targets[balances].items()} == {
        key: len(items) for (key, items) in sources[balances].items()
    }
    # MirrorMaker 2 leaves the exact offset of a group that lags behind the hand-over as it was.
    assert committed_offsets(new, lagging, remote.values()) == {
        (remote[topic], number): offset for (topic, number), offset in places.items()
    }
