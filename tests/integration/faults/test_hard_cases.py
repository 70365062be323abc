"""Corners of compare-and-append, on real brokers: wrapped sequences, dropped markers, forgotten producers."""

from __future__ import annotations

import struct

import pytest

from airflow_provider_kafka_migration.kafka.batches.api import encode_batch
from harness.compare import read_records
from harness.faults.lab import FaultLab
from harness.faults.net_scenarios import Stage
from harness.faults.proxy import PRODUCE, WRITE_TXN_MARKERS
from harness.faults.writers import THREE_YEARS_SECONDS
from harness.load import wait_cleaned
from harness.raw_writer import RawTransactions, RawWriter, plain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

#: Records before the sequence number wraps around.
_BEFORE_WRAP = 50


def near_the_wrap(lab: FaultLab) -> Stage:
    """A copy whose first batch is on the target, with sequence numbers just below 2**31."""
    stage = Stage(lab, []).batches(30).hole(40).batches(10)
    first = read_records({"bootstrap.servers": lab.source.bootstrap}, stage.topic)[0][:20]
    ids = stage.copy.producers
    batch = encode_batch(
        plain(*(record.value for record in first), timestamp=first[0].timestamp),
        producer_id=ids.data_producer_id,
        producer_epoch=ids.data_producer_epoch,
        base_sequence=2**31 - _BEFORE_WRAP - 20,
    )
    with RawWriter(lab.target.bootstrap) as writer:
        assert writer.append(stage.topic, 0, batch) == 0
    return stage


def test_sequences_wrap_around(lab: FaultLab) -> None:
    stage = near_the_wrap(lab)
    for at in ("kill:append-sent:2", "kill:append-answered:3", "kill:append-gap:5", "kill:markers-sent:2"):
        copier = stage.copier("--at", at)
        assert copier.wait(30) is None, copier.text()
    damage = stage.copied().judge()
    assert not damage.found, damage
    batches = lab.target.dump_log(stage.topic)[0]
    sequences = [int(batch["baseSequence"]) for batch in batches if batch["isControl"] == "false"]
    assert max(sequences) > 2**31 - 30
    assert sequences[-1] < 800  # 730 records were written behind the wrap


def test_an_append_from_before_the_wrap_that_arrives_behind_it_is_refused(lab: FaultLab) -> None:
    stage = near_the_wrap(lab)
    held = stage.caught(PRODUCE, 3)
    damage = stage.copied().deliver(held).batches(10).copied().judge()
    assert not damage.found, damage


def thinned(api_key: int, frame: bytes) -> bytes:
    """A third of the markers of a request: the broker drops the others, and answers as if nothing were missing."""
    if api_key != WRITE_TXN_MARKERS:
        return frame
    (client_length,) = struct.unpack_from(">h", frame, 8)
    begin = 10 + max(client_length, 0) + 1
    count, size = 0, 0
    while True:
        byte = frame[begin + size]
        count |= (byte & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            break
    count -= 1
    entries = frame[begin + size : -1]
    one = len(entries) // count
    kept = max(1, count // 3)
    number = kept + 1
    head = bytes([number & 0x7F | 0x80, number >> 7]) if number > 0x7F else bytes([number])
    return frame[:begin] + head + entries[: one * kept] + frame[-1:]


def test_markers_that_are_partly_dropped_are_written_again(lab: FaultLab) -> None:
    stage = Stage(lab, []).batches(3).hole(700).batches(3).hole(50).batches(3)
    before = lab.target.proxy.requests.get(WRITE_TXN_MARKERS, 0)
    lab.target.proxy.rewrite = thinned
    try:
        damage = stage.copied().judge()
    finally:
        lab.target.proxy.rewrite = None
    assert not damage.found, damage
    # Each hole took many requests, since each of them wrote a third of what was left.
    assert lab.target.proxy.requests[WRITE_TXN_MARKERS] - before > 15


@pytest.mark.soak
def test_a_zombie_in_the_gap_behind_the_check_is_compared(lab: FaultLab) -> None:
    """Stopped exactly between the check of the deadline and the send: what no slice prevents. Brokers compare."""
    stage = Stage(lab, []).batches(30).hole(60).batches(5)
    zombie = stage.stopped("append-gap:6")
    damage = stage.copied().wake(zombie).batches(5).copied().judge()
    assert not damage.found, damage


@pytest.mark.soak
def test_a_zombie_in_the_gap_behind_the_check_is_fenced(lab: FaultLab) -> None:
    stage = Stage(lab, []).batches(3).hole(60).batches(5)
    zombie = stage.stopped("markers-gap:2")
    damage = stage.copied().wake(zombie).batches(5).copied().judge()
    assert not damage.found, damage


def test_a_zombie_in_the_gap_after_a_sweep_is_found(lab: FaultLab) -> None:
    """The brokers have forgotten the producer of three years old records, so they take the append: it is named."""
    stage = Stage(lab, [], age_seconds=THREE_YEARS_SECONDS).batches(40)
    zombie = stage.stopped("append-gap:6")
    damage = stage.copied().sweep().wake(zombie).batches(10).copied().judge()
    assert damage.duplicated
    assert len(damage.named) == 1
    assert "differs from the source's records" in damage.named[0]


def test_a_log_start_that_a_crash_has_moved_back(lab: FaultLab) -> None:
    """Brokers write log starts to disk once a minute: after a crash before that, deleted fillers are back."""
    stage = Stage(lab, []).batches(20)
    stage.writer.wire.delete_records({(stage.topic, 0): 37})
    wire, key = stage.copy.clients.wire("target"), (stage.topic, 0)
    assert wire.list_offsets([key], "earliest")[key] == 37
    lab.target.restart(0)
    assert wire.list_offsets([key], "earliest")[key] == 0
    damage = stage.copied().judge()
    assert wire.list_offsets([key], "earliest")[key] == 37
    assert not damage.found, damage


@pytest.mark.soak
def test_exhausted_epochs_of_a_lane(lab: FaultLab) -> None:
    """At epoch 32766 the coordinator gives the lane another producer id: older markers are not fenced, but found."""
    stage = Stage(lab, []).batches(2).hole().batches(2).hole().batches(2)
    wire = stage.copy.clients.wire("target")
    transactional_id = f"{stage.copy.migration_id}.lane-0"
    first = wire.init_producer_id(transactional_id)
    epoch = first[1]
    while epoch < 32_765:
        producer_id, epoch = wire.init_producer_id(transactional_id)
        assert producer_id == first[0]
    held = stage.caught(WRITE_TXN_MARKERS, 1)  # the last epoch of the old id
    stage.copied()
    assert wire.init_producer_id(transactional_id)[0] != first[0]
    damage = stage.deliver(held).batches(10).copied().judge()
    print(damage)
    assert not damage.silent, damage
    assert not damage.named, damage
    # With lanes killed all the time around it, nothing happens at all.
    again = Stage(lab, []).batches(2).hole().batches(10)
    for at in ("kill:markers-sent:1", "kill:markers-answered:2", "kill:append-sent:3"):
        again.copier("--at", at).wait(30)
    damage = again.copied().judge()
    assert not damage.found, damage


@pytest.mark.soak
def test_markers_that_the_target_cleans(lab: FaultLab) -> None:
    """The target's own log cleaner empties our markers; whoever takes over finds his way, and all offsets stay."""
    topic = lab.name("cleaned")
    lab.source.create_topic(topic, 1, config={"retention.ms": "-1"})
    number = 0
    with RawWriter(lab.source.bootstrap) as writer:
        transactions = RawTransactions(writer, f"t-{topic}")
        stage = Stage(lab, [])
        stage.topic = topic
        for turn in range(4):
            for _ in range(5):
                for _ in range(4):
                    writer.write(topic, 0, plain(b"%d" % number, key=b"key-%d" % number))
                    number += 1
                transactions.write(topic, 0, plain(*[b"aborted"] * 50, key=b"a"))
                transactions.end(commit=False)
            stage.copied()
            lab.target.alter_topic_configs(
                {
                    topic: {
                        "cleanup.policy": "compact",
                        "segment.ms": "100",
                        "min.cleanable.dirty.ratio": "0.001",
                        "delete.retention.ms": "10",
                    }
                }
            )
            if turn:
                wait_cleaned(lab.target, [topic])
            copier = stage.copier("--at", "kill:markers-sent:1")
            copier.wait(30)
    damage = stage.copied().judge()
    assert not damage.found, damage
    batches = lab.target.dump_log(topic)[0]
    whole = sum(batch["isControl"] == "true" and batch["count"] == "1" for batch in batches)
    written = 4 * 5 * 51
    print(f"{written} markers written, {whole} whole, {sum(batch['count'] == '0' for batch in batches)} empty batches")
    assert whole < written - 100, "the cleaner has not been through"
