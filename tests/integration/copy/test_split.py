"""Clusters that cannot see each other: one process knows the source and S3, another one S3 and the target."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from airflow_provider_kafka_migration.copy.archive import build_manifest, read_gaps
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import ConnectionInvalid, CopyFailed
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from harness.brokers import KafkaCluster
from harness.copiers.copying import Worker
from harness.load import load, tiny_topics
from harness.raw_writer import RawWriter, plain
from tests.integration.copy.conftest import MakeCopying, kept_topic
from tests.integration.copy.copying import Copying, results_of, wait_begun, wait_for
from tests.integration.copy.test_copy_kills import finish, writing

pytestmark = pytest.mark.integration

STOP = "control/split-stop.json"


def run_one_sided(copy: Copying, name: str, **fields: object) -> dict[str, object]:
    """Run a job in this process with the connections of one side alone."""
    with Clients(copy.one_sided("source" if name == "backup" else "target")) as clients:
        with pytest.raises(ConnectionInvalid):
            clients.wire("target" if name == "backup" else "source")
        job = copy.write_job(name, via="s3", **fields)  # type: ignore[arg-type]
        return LocalRunner(clients, threads=copy.lanes).run(job)


def test_backup_then_restore_of_all_kinds(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Plain, compacted with holes, transactions with aborted ones, a log start above 0; and an empty topic."""
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=31)
    empty = unique_name("empty")
    source_cluster.create_topic(empty, 2)
    copy = copying([*(topic.name for topic in topics), empty], lanes=2, job_fields={"segment_max_bytes": 20_000})
    ends = copy.stable_ends()
    backup = run_one_sided(copy, "backup", until=ends)
    assert backup["partitions_done"] == len(copy.partitions)
    manifest = build_manifest(copy.clients.store(copy.archive), copy.migration_id)
    assert {(item.topic, item.partition): (item.from_offset, item.until_offset) for item in manifest.partitions} == {
        key: (copy.partitions[key].source_start_offset, end)
        for key, end in ends.items()
        if end > copy.partitions[key].source_start_offset
    }
    assert any(entry.aborted for item in manifest.partitions for entry in item.segments)
    again = run_one_sided(copy, "backup", until=ends)
    assert (again["records"], again["source_bytes"]) == (0, 0), "what is archived is not read again"
    restore = run_one_sided(copy, "restore", until=ends)
    assert restore["source_bytes"] == 0
    assert int(str(restore["holes"])) > 100
    copy.compare().check()


def test_retention_overtakes_a_backup_that_is_killed_right_behind_the_gap(
    copying: MakeCopying, source_cluster: KafkaCluster, raw_writer: RawWriter, unique_name: Callable[[str], str]
) -> None:
    """Its results are lost with it, and the next backup does not see the gap any more: the archive names it."""
    topic = unique_name("overtaken")
    kept_topic(source_cluster, topic)
    copy = copying([topic], job_fields={"on_source_gap": "note"})
    for number in range(20):
        raw_writer.write(topic, 0, plain(*[b"%d" % number] * 10))
        if number == 9:
            run_one_sided(copy, "backup", until=copy.stable_ends())
    admin = source_cluster.admin()  # must outlive the call
    for future in admin.delete_records([TopicPartition(topic, 0, 155)], request_timeout=20).values():
        future.result()
    ends = copy.stable_ends()
    copy.write_job("backup", via="s3", until=ends)
    out, err = copy.worker(0, "backup", side="source").communicate(timeout=240)
    assert results_of(out)[0].gaps == [(100, 155)], err
    again = run_one_sided(copy, "backup", until=ends)
    assert [item["gaps"] for item in again["partitions"]] == [[]]  # type: ignore[attr-defined]
    assert read_gaps((copy.clients.store(copy.archive),), copy.migration_id) == {(topic, 0): [(100, 155)]}
    run_one_sided(copy, "restore", until=ends)
    copy.compare(source_may_delete=True).check()


def test_an_altered_segment_stops_its_partition_and_no_other(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = tiny_topics(unique_name("k") + ".")[:2]
    load(source_cluster, topics, seed=32)
    copy = copying([topic.name for topic in topics], lanes=2)
    ends = copy.stable_ends()
    run_one_sided(copy, "backup", until=ends)
    store = copy.clients.store(copy.archive)
    victim = build_manifest(store, copy.migration_id).partitions[0].segments[0]
    whole = store.get(victim.key)
    assert whole is not None
    store.put(victim.key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CopyFailed, match=r"1 of \d+ partitions.*SEGMENT_TAMPERED.*SHA-256") as caught:
        run_one_sided(copy, "restore", until=ends)
    (failed,) = caught.value.details["partitions"]
    assert (failed["topic"], failed["partition"]) == (victim.topic, victim.partition)
    store.put(victim.key, whole)
    run_one_sided(copy, "restore", until=ends)
    copy.compare().check()


def test_both_follow_and_are_killed_at_random(
    copying: MakeCopying, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Live writers, SIGKILLs on both sides, and an end that both reach by themselves."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=seed)
    live = unique_name("live")
    source_cluster.create_topic(live, 2)
    fields = {
        "segment_max_bytes": 30_000,
        "segment_linger_seconds": 0.2,
        "via": "s3",
        "stop_key": STOP,
        "slice_seconds": 2,
    }
    copy = copying([*(topic.name for topic in topics), live], job_fields=fields)
    sides = {"backup": "source", "restore": "target"}
    for name in sides:
        copy.write_job(name)  # type: ignore[arg-type]
    running: dict[str, Worker] = {}
    kills = dict.fromkeys(sides, 0)
    with writing(source_cluster, live, seed):
        while min(kills.values()) < 3:
            for name, side in sides.items():
                if name not in running:
                    running[name] = copy.worker(0, name, side=side)  # type: ignore[arg-type]
                    wait_begun(running[name])
            time.sleep(rng.random() * 2)
            victim = min(kills, key=lambda name: (kills[name], rng.random()))
            worker = running.pop(victim)
            assert worker.poll() is None, worker.communicate()[1][-2000:]
            worker.send_signal(signal.SIGKILL)
            _, err = worker.communicate()
            assert "Traceback" not in err, err
            kills[victim] += 1
        # The target follows while the source is being written.
        for name, side in sides.items():
            if name not in running:
                running[name] = copy.worker(0, name, side=side)  # type: ignore[arg-type]
        goal = copy.clients.wire("source").list_offsets([(live, 0)], "stable")[live, 0]
        target = copy.clients.wire("target")

        def has_followed() -> bool:
            for worker in running.values():
                assert worker.poll() is None, worker.communicate()[1][-2000:]
            return bool(target.list_offsets([(live, 0)], "log_end")[live, 0] >= goal)

        try:
            wait_for(has_followed, 180, "the target follows")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(running[name].tail() for name in sides)])) from None
    ends = copy.stable_ends()
    stop = StopAt(
        migration_id=copy.migration_id, offsets={f"{topic}-{number}": end for (topic, number), end in ends.items()}
    )
    copy.clients.store(copy.journal).put(STOP, stop.canonical())
    for name in sides:
        assert all(item.done for item in results_of(finish(running[name]))), name
    copy.compare().check()
