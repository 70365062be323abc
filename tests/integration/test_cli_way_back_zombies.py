"""Copiers that sleep (SIGSTOP) until clients write elsewhere, and wake up: not one byte of theirs gets in.

The forward migration's whole process stops while its tail copies, before the cutover; another one takes over, and
clients switch. It wakes up while the way back runs. Then the same with a process of the way back, which wakes up after
the return. Sleeping processes find their slices over; so a perfect zombie tries as well: a batch with the right id,
epoch and next sequence, sent to each partition, which only the fence can refuse.
"""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
import yaml
from confluent_kafka import Producer

from airflow_provider_kafka_migration.copy.partition import advance_sequence
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, lost_records
from harness.processes import wait_for
from harness.raw_writer import RawWriter, plain
from tests.integration.test_cli_way_back import Trip, trip

__all__ = ["trip"]

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(2400)]

INVALID_PRODUCER_EPOCH = 47
PATIENCE_SECONDS = 300.0


def _migration_id(trip: Trip) -> str:
    return str(yaml.safe_load(trip.spec.read_text(encoding="utf-8"))["migration_id"])


def _sleepy(trip: Trip, *command: str) -> subprocess.Popen[str]:
    """Start a command that copies and never asks, and stop its process (SIGSTOP) in the middle of its tail."""
    content = yaml.safe_load(trip.spec.read_text(encoding="utf-8"))
    content["tail"] |= {"drain_stable_window": "1h"}
    slow = trip.folder / f"slow-{len(command)}.yaml"
    slow.write_text(yaml.safe_dump(content), encoding="utf-8")
    name = _migration_id(trip) + (".back" if "way-back" in command else "")
    claims = trip.folder / "journal" / name / "progress" / "tail.json"
    process = trip.command.start(*command, slow)
    wait_for("a tail that copies", lambda: process.poll() is None and claims.exists(), PATIENCE_SECONDS, 0.1)
    time.sleep(trip.random.uniform(3.0, 6.0))
    assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    return process


def _wake(process: subprocess.Popen[str]) -> str:
    """Let it go on, for as long as it wants to; what it said at its end."""
    process.send_signal(signal.SIGCONT)
    try:
        out, err = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate(timeout=240)
        return "killed after 60 s: " + err[-500:]
    return (out + err)[-500:]


def _ids(trip: Trip, name: str) -> ProducerIds:
    entry = Journal(LocalStore(str(trip.folder / "journal")), name).find_step(steps.PRODUCER_IDS)
    assert entry is not None
    return ProducerIds.model_validate(dict(entry.details))


def _batches(writer: RawWriter, topic: str, number: int) -> list[RawBatch]:
    key = (topic, number)
    start, end = (writer.wire.list_offsets([key], which)[key] for which in ("earliest", "log_end"))
    found = read_span(writer.wire, key, start, end, isolation=READ_UNCOMMITTED)
    return [item for item in found if isinstance(item, RawBatch)]


def _check_nothing_got_in(cluster: KafkaCluster, ids: ProducerIds, names: list[str]) -> tuple[int, int]:
    """A perfect zombie is refused on each partition, and no batch of the id lies behind the fence.

    :returns: partitions that were tried, and batches of the id below their fences.
    """
    tried = below = 0
    with RawWriter(cluster.bootstrap) as writer:
        for name in names:
            for number in _numbers(cluster, name):
                found = _batches(writer, name, number)
                own = [item for item in found if item.producer_id == ids.data_producer_id]
                data = [item for item in own if not item.is_control]
                fences = [item for item in own if item.is_control and item.producer_epoch > ids.data_producer_epoch]
                if not data:
                    continue
                assert len(fences) == 1, f"{name}-{number}"
                assert max(item.base_offset for item in own) == fences[0].base_offset, f"{name}-{number}: it got in"
                batch = encode_batch(
                    plain(b"zombie", key=b"zombie", timestamp=int(time.time() * 1000)),
                    producer_id=ids.data_producer_id,
                    producer_epoch=ids.data_producer_epoch,
                    base_sequence=advance_sequence(data[-1].base_sequence, data[-1].last_offset_delta),
                )
                assert writer.try_append(name, number, batch)[0] == INVALID_PRODUCER_EPOCH, f"{name}-{number}"
                tried, below = tried + 1, below + len(data)
    return tried, below


def _numbers(cluster: KafkaCluster, name: str) -> list[int]:
    return sorted(cluster.admin().list_topics(name, timeout=10).topics[name].partitions)


def _live_places(trip: Trip) -> dict[str, list[int]]:
    return {trip.topic("orders"): [0, 1, 2, 3], trip.topic("customers"): [0, 1, 2]}


def test_copiers_that_wake_up_after_clients_have_gone_write_nothing(trip: Trip) -> None:
    name = _migration_id(trip)
    with LiveProducer(trip.old.client_config(), _live_places(trip), records_per_second=200) as first:
        forward = _sleepy(trip, "run")
        asked = trip.command("run", trip.spec, "--takeover", status=10)
        first.freeze()
    switch = trip.command("resume", trip.spec, "--approve", asked["waiting"]["code"], status=10)
    done = trip.command("resume", trip.spec, "--approve", switch["waiting"]["code"], status=0)
    assert done["state"] == "finalized"

    with LiveProducer(trip.new.client_config(), _live_places(trip), records_per_second=200, seed=2) as second:
        trip.live(trip.new, "second")
        back = _sleepy(trip, "way-back", "run")
        running = trip.command.start("way-back", "run", trip.spec, "--takeover")
        time.sleep(5)
        told = _wake(forward)
        print(f"the forward migration, woken while the way back runs: {told}")
        running.communicate(timeout=600)
        assert running.returncode == 10
        second.freeze()
    assert lost_records(trip.new.client_config(), second.acknowledged) == []
    on_new = _check_nothing_got_in(trip.new, _ids(trip, name), trip.names)

    asked = trip.back("run", status=10)
    ready = trip.back("return", "--approve", asked["waiting"]["code"], status=10)
    done = trip.back("return", "--approve", ready["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    trip.check_equal(trip.new, trip.old)
    returned = Producer(trip.old.client_config())
    for number in range(400):
        returned.produce(trip.topic("orders"), b"returned-%d" % number, partition=number % 4)
    assert returned.flush(60) == 0
    told = _wake(back)
    print(f"the way back, woken after the return: {told}")
    on_old = _check_nothing_got_in(trip.old, _ids(trip, f"{name}.back"), trip.names)
    assert lost_records(trip.old.client_config(), second.acknowledged) == []
    print(f"refused (partitions, batches below the fences): new {on_new}, old {on_old}")
    assert min(*on_new, *on_old) > 0
