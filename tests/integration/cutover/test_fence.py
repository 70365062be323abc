"""The migration's producer is fenced on the target before clients write: a copier that wakes up later is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from cutover_support import CUTOVER_STEPS, Lab
from faults import Effects, Killed, counting

from airflow_provider_kafka_migration.copy.partition import advance_sequence
from airflow_provider_kafka_migration.errors import PermissionMissing, Where
from airflow_provider_kafka_migration.evidence import bundle
from airflow_provider_kafka_migration.freeze import fence as replication_fence
from airflow_provider_kafka_migration.freeze.fence import fence_producer
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.phases import floor_guard, groups
from airflow_provider_kafka_migration.record import producer_ids, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from harness.raw_writer import RawWriter, plain

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]

INVALID_PRODUCER_EPOCH = 47


def to_guard(lab: Lab) -> PhaseContext:
    """The cutover up to the step before floor_guard."""
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS[:5]:
        if step is groups.commit_groups:
            lab.join_tail()
        step(context)
    return context


def control_batches(context: PhaseContext, topic: str, partition: int) -> list[RawBatch]:
    """The markers of the migration's data id in a target partition."""
    wire, key = context.target.wire, (topic, partition)
    end = wire.list_offsets([key], "log_end")[key]
    own = context.record.producer_ids().data_producer_id
    return [
        batch
        for batch in read_span(wire, key, 0, end, isolation=READ_UNCOMMITTED)
        if isinstance(batch, RawBatch) and batch.is_control and batch.producer_id == own
    ]


def zombie(lab: Lab, context: PhaseContext, topic: str, partition: int) -> int:
    """A copier with the right next sequence appends one more record; the broker's error code."""
    wire, key, ids = context.target.wire, (topic, partition), context.record.producer_ids()
    end = wire.list_offsets([key], "log_end")[key]
    last = max(
        (
            batch
            for batch in read_span(wire, key, 0, end, isolation=READ_UNCOMMITTED)
            if isinstance(batch, RawBatch)
            and not batch.is_control
            and batch.producer_id == ids.data_producer_id
            and batch.record_count
        ),
        key=lambda batch: batch.base_offset,
    )
    data = encode_batch(
        plain(b"late"),
        producer_id=ids.data_producer_id,
        producer_epoch=ids.data_producer_epoch,
        base_sequence=advance_sequence(last.base_sequence, last.last_offset_delta),
    )
    with RawWriter(lab.target_cluster.bootstrap) as writer:
        return writer.try_append(topic, partition, data)[0]


def write_as_application(lab: Lab, topic: str) -> None:
    with RawWriter(lab.target_cluster.bootstrap) as writer:
        for partition in range(2):
            writer.write(topic, partition, plain(b"from an application"))


def test_a_copier_that_wakes_up_after_the_switch_is_refused(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic])
    context = to_guard(lab)
    ends = context.target.wire.list_offsets([(topic, 0), (topic, 1)], "log_end")
    ready = floor_guard.run(context)
    assert "READY_FOR_CLIENT_SWITCH" in ready.summary
    assert "fenced on 2 partitions" in ready.summary
    assert ready.details["fence"]["markers"] == {f"{topic}-0": ends[topic, 0], f"{topic}-1": ends[topic, 1]}
    assert ready.details["fence"]["unfenced"] == []
    write_as_application(lab, topic)
    assert [zombie(lab, context, topic, partition) for partition in range(2)] == [INVALID_PRODUCER_EPOCH] * 2
    # Cleared while clients write: nothing is written again.
    assert floor_guard.run(context).details["fence"] == ready.details["fence"]
    assert [len(control_batches(context, topic, partition)) for partition in range(2)] == [1, 1]
    # Everything that compares ends and counts knows of the marker.
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    lab.advance(context)
    assert context.journal.tip_state is State.FINALIZED
    assert bundle._cutover(context.record)["fence"]["markers"] == ready.details["fence"]["markers"]


def test_without_the_fence_it_is_accepted(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    """The counter-proof: the sequence check alone does not hold a copier back that has the right sequence."""
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic], cutover={"fence_copiers": False})
    context = to_guard(lab)
    assert "not fenced" in floor_guard.run(context).summary
    write_as_application(lab, topic)
    assert zombie(lab, context, topic, 0) == 0


def test_the_fence_of_a_principal_that_may_not_write_markers(
    make_lab: MakeLab, fill: Fill, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the producer id on: the lab's own principal may do everything, so the refusal is made here."""

    def refused(wire: Wire, _broker_id: int, keys: list[tuple[str, int]], *_: object) -> None:
        raise PermissionMissing("no markers", where=Where(topic=keys[0][0]), next_step="grant Alter")

    monkeypatch.setattr(producer_ids, "markers_are_refused", lambda _: True)
    monkeypatch.setattr(replication_fence, "_send_to", refused)
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic])
    context = to_guard(lab)
    name = producer_ids.transactional_id(context.record)
    assert name.startswith(f"kafka-migration.{context.migration_id}.data.")
    # Seed and tail have renewed the id meanwhile, and have copied under the epoch that was taken.
    assert context.record.producer_ids().data_producer_epoch == 0
    ready = floor_guard.run(context)
    assert ready.details["fence"]["unfenced"] == []
    assert len(ready.details["fence"]["markers"]) == 2
    lab.check_equal()
    write_as_application(lab, topic)
    assert [zombie(lab, context, topic, partition) for partition in range(2)] == [INVALID_PRODUCER_EPOCH] * 2


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("markers", "after"),
        ("fence", "before"),
        pytest.param("markers", "before", marks=pytest.mark.soak),
        pytest.param("fence", "after", marks=pytest.mark.soak),
    ],
)
def test_killed_around_the_fence(
    make_lab: MakeLab, fill: Fill, unique_name: Name, name: str, when: Literal["before", "after"]
) -> None:
    """Before and after the request, and before and after the journal entry: one marker, and READY in the end."""
    topic = unique_name("t")
    fill({topic: 1}, 20)
    lab = make_lab([topic])
    context = to_guard(lab)
    (end,) = context.target.wire.list_offsets([(topic, 0)], "log_end").values()
    effects = Effects(name="markers", when=when)
    if name == "fence":
        effects = Effects(at=_effects_until_the_entry(make_lab, fill, unique_name), when=when)
    with counting(effects), pytest.raises(Killed):
        floor_guard.run(lab.context())
    again = lab.context()
    attempt = again.record.freeze()
    assert attempt is not None
    assert attempt.ready
    assert (again.record.cutover_step(attempt, steps.FENCE) is not None) == (name == "fence" and when == "after")
    ready = floor_guard.run(again)
    assert ready.already_done
    assert ready.details["fence"]["markers"] == {f"{topic}-0": end}
    assert [batch.base_offset for batch in control_batches(again, topic, 0)] == [end]
    assert zombie(lab, again, topic, 0) == INVALID_PRODUCER_EPOCH
    lab.check_equal()


def _effects_until_the_entry(make_lab: MakeLab, fill: Fill, unique_name: Name) -> int:
    """Number of the side effect that journals the fence, counted in a migration that nobody kills."""
    topic = unique_name("counted")
    fill({topic: 1}, 20)
    context = to_guard(make_lab([topic]))
    with counting(Effects()) as effects:
        floor_guard.run(context)
    marker = next(number for number, seen in enumerate(effects.seen) if seen.startswith("markers"))
    return next(
        number + 1 for number, seen in enumerate(effects.seen) if number > marker and seen.startswith("put_new")
    )


def test_without_the_right_for_markers_every_partition_is_named(
    target_cluster: KafkaCluster, unique_name: Name
) -> None:
    topic = unique_name("t")
    target_cluster.create_topic(topic, 2)
    target_cluster.allow("alice", "topic", topic, ["read", "describe"])
    config = ClientConfig.from_librdkafka(target_cluster.client_config("alice"), "target")
    with Wire(config) as wire:
        found = fence_producer(wire, {(topic, 0): 0, (topic, 1): 0}, 4711, 0)
        assert found.markers == {}
        assert {key: error.code for key, error in found.problems.items()} == {
            (topic, 0): "PERMISSION_MISSING",
            (topic, 1): "PERMISSION_MISSING",
        }
        assert wire.list_offsets([(topic, 0), (topic, 1)], "latest") == {(topic, 0): 0, (topic, 1): 0}


def test_a_partition_that_is_not_there_does_not_keep_the_others_from_being_fenced(
    target_cluster: KafkaCluster, unique_name: Name
) -> None:
    topic, gone = unique_name("t"), unique_name("gone")
    target_cluster.create_topic(topic, 1)
    config = ClientConfig.from_librdkafka(target_cluster.client_config(), "target")
    with Wire(config) as wire:
        found = fence_producer(wire, {(gone, 0): 0, (topic, 0): 0}, 4711, 0, patience_seconds=1.0)
        assert found.markers == {(topic, 0): 0}
        assert list(found.problems) == [(gone, 0)]
        # Again, as after a kill: the marker is found, and no other one is written.
        assert fence_producer(wire, {(topic, 0): 0}, 4711, 0).markers == {(topic, 0): 0}
        assert wire.list_offsets([(topic, 0)], "latest") == {(topic, 0): 1}
