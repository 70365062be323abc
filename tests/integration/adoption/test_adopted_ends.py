"""On real brokers: a copy that begins behind the end of another one, with the ends of that one exchanged.

The copy before goes from 3.9.1 (ZooKeeper) to 4.1.1 (KRaft). Applications write to its target, and the way back brings
that to its source, whose topics already have what is below the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.copy import append as appending
from airflow_provider_kafka_migration.copy.partition import advance_sequence
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.freeze.fence import fence_producer
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch
from airflow_provider_kafka_migration.kafka.fetch import READ_UNCOMMITTED
from airflow_provider_kafka_migration.kafka.logs import read_span
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from harness import compare
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.raw_writer import RawTransactions, RawWriter, plain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 2
RECORDS = 60
OUT_OF_ORDER, INVALID_EPOCH = 45, 47
Name = Callable[[str], str]


class WayBack:
    """A finished copy of one topic, and the copies that lead back.

    :param earlier: records that only the source of the first copy has, below what is copied: a shifted boundary.
    """

    def __init__(
        self, folder: Path, old: KafkaCluster, new: KafkaCluster, topic: str, *, fenced: bool = True, earlier: int = 0
    ) -> None:
        self.folder, self.old, self.new, self.topic = folder, old, new, topic
        self.keys: list[TopicPartition] = [(topic, number) for number in range(PARTITIONS)]
        old.create_topic(topic, PARTITIONS, config={"retention.ms": "-1"})
        if earlier:
            self._produce(old, earlier, "only-old")
            with RawWriter(old.bootstrap) as writer:
                writer.wire.delete_records({key: writer.wire.list_offsets([key], "latest")[key] for key in self.keys})
        self._produce(old, RECORDS, "before")
        verdicts = dict.fromkeys(self.keys, Verdict.SHIFTED) if earlier else {}
        self.forward = Copying(old, new, folder / "forward", [topic], f"f-{topic}"[:90], verdicts=verdicts)
        self._finished(self.forward, self.forward.run())
        self.old_end, self.new_end = self._ends("source"), self._ends("target")
        if fenced:
            ids = self.forward.producers
            found = fence_producer(
                self.forward.clients.wire("target"), self.new_end, ids.data_producer_id, ids.data_producer_epoch
            )
            assert found.markers == self.new_end, found.problems

    def close(self) -> None:
        """Close all connections."""
        self.forward.clients.close()

    def _ends(self, role: str) -> dict[TopicPartition, int]:
        return self.forward.clients.wire("source" if role == "source" else "target").list_offsets(self.keys, "log_end")

    def _produce(self, cluster: KafkaCluster, count: int, text: str) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 2})
        for number in range(count * PARTITIONS):
            producer.produce(self.topic, f"{text}-{number}".encode(), b"key-%d" % (number % 9), number % PARTITIONS)
        assert producer.flush(120) == 0

    def applications(self) -> None:
        """Write to the new cluster: plain records, and transactions of which one is aborted."""
        self._produce(self.new, 20, "after")
        with RawWriter(self.new.bootstrap) as writer:
            transactions = RawTransactions(writer, f"app-{self.topic}")
            for commit in (True, False, True):
                for partition in range(PARTITIONS):
                    transactions.write(self.topic, partition, plain(b"t1", b"t2", b"t3"))
                transactions.end(commit=commit)
        self._produce(self.new, 20, "later")

    def back(self, name: str = "back", **options: object) -> Copying:
        """A copy that adopts the end of the first one; it begins at the boundary, whatever was written since."""
        copy = Copying(
            self.new,
            self.old,
            self.folder / name,
            [self.topic],
            f"{name}-{self.topic}"[:90],
            adopted=True,
            job_fields={"on_mismatch": "stop", "slice_seconds": 10},
            **options,  # type: ignore[arg-type]
        )
        shifted = self.old_end != self.new_end
        copy.partitions = {
            key: item.model_copy(
                update={
                    "source_start_offset": self.new_end[key],
                    "target_start_offset": self.old_end[key],
                    "verdict": Verdict.SHIFTED if shifted else Verdict.EQUAL,
                }
            )
            for key, item in copy.partitions.items()
        }
        return copy

    @staticmethod
    def _finished(copy: Copying, progress: dict[str, object]) -> None:
        assert progress["partitions_done"] == len(copy.partitions), progress

    def run(self, copy: Copying) -> None:
        """Copy up to the present ends."""
        self._finished(copy, copy.run())

    def check_equal(self) -> None:
        """Consumers see the same on both clusters, at the same offsets or with the boundary's constant."""
        new, old = {"bootstrap.servers": self.new.bootstrap}, {"bootstrap.servers": self.old.bootstrap}
        shifts = {key: self.new_end[key] - self.old_end[key] for key in self.keys}
        compare.compare(new, old, [self.topic], shifts=shifts).check()

    def batches(self, wire: Wire, key: TopicPartition, from_offset: int = 0) -> list[RawBatch]:
        """All batches of a log from an offset on."""
        end = wire.list_offsets([key], "log_end")[key]
        found = read_span(wire, key, from_offset, end, isolation=READ_UNCOMMITTED)
        return [item for item in found if isinstance(item, RawBatch)]


def append_as(cluster: KafkaCluster, key: TopicPartition, ids: ProducerIds, sequence: int) -> int:
    """Append a record as a copier that has this sequence next; return the broker's code."""
    data = encode_batch(
        plain(b"zombie"),
        producer_id=ids.data_producer_id,
        producer_epoch=ids.data_producer_epoch,
        base_sequence=sequence,
    )
    with RawWriter(cluster.bootstrap) as writer:
        return writer.try_append(*key, data)[0]


def next_sequence(batches: list[RawBatch], ids: ProducerIds) -> int:
    """The sequence that follows the last batch of a data id."""
    last = [item for item in batches if item.producer_id == ids.data_producer_id and not item.is_control][-1]
    return advance_sequence(last.base_sequence, last.last_offset_delta)


@pytest.fixture
def make(
    tmp_path: Path, source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Name
) -> Iterator[Callable[..., WayBack]]:
    """Makes ways back."""
    made: list[WayBack] = []

    def one(**options: object) -> WayBack:
        topic = unique_name("t")
        made.append(WayBack(tmp_path, source_cluster, target_cluster, topic, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for item in made:
        item.close()


def test_what_applications_wrote_comes_back_at_equal_offsets(make: Callable[..., WayBack]) -> None:
    way = make()
    old = way.forward.clients.wire("source")
    below = {key: [bytes(item.payload) for item in way.batches(old, key)] for key in way.keys}
    way.applications()
    back = way.back()
    way.run(back)
    way.check_equal()
    for key in way.keys:
        found = way.batches(old, key)
        assert [bytes(item.payload) for item in found][: len(below[key])] == below[key]
        first = next(item for item in found if item.base_offset == way.old_end[key])
        ids = back.producers
        assert first.is_control
        assert (first.producer_id, first.producer_epoch) == (ids.data_producer_id, ids.data_producer_epoch - 1)
    # It goes on where it stopped, as the tail of a way back does.
    way.applications()
    way.run(back)
    way.check_equal()


@pytest.mark.parametrize(("fenced", "code"), [(False, 0), (True, INVALID_EPOCH)])
def test_a_zombie_of_the_copy_before_is_refused_by_its_fence_alone(
    make: Callable[..., WayBack], fenced: bool, code: int
) -> None:
    """On the new cluster, after applications have written there, with the right next sequence."""
    way = make(fenced=fenced)
    new = way.forward.clients.wire("target")
    sequences = {key: next_sequence(way.batches(new, key), way.forward.producers) for key in way.keys}
    way.applications()
    assert {append_as(way.new, key, way.forward.producers, sequences[key]) for key in way.keys} == {code}
    way.run(way.back())
    if fenced:
        assert {append_as(way.new, key, way.forward.producers, sequences[key]) for key in way.keys} == {code}
        way.check_equal()


def test_the_producer_of_the_way_back_is_registered_before_its_first_record(make: Callable[..., WayBack]) -> None:
    """Nothing but the fence is behind the boundary yet: the hole is filled, and only sequence 0 gets in."""
    way = make()
    back = way.back()
    way.run(back)
    assert way._ends("source") == {key: end + 1 for key, end in way.old_end.items()}
    assert {append_as(way.old, key, back.producers, 5) for key in way.keys} == {OUT_OF_ORDER}
    way.applications()
    way.run(back)
    way.check_equal()


def test_the_way_back_is_fenced_like_any_copy(make: Callable[..., WayBack]) -> None:
    """Before clients return to the old cluster; its epoch is one above that of a copy that adopts nothing."""
    way = make()
    way.applications()
    back = way.back()
    way.run(back)
    old = way.forward.clients.wire("source")
    ends = old.list_offsets(way.keys, "log_end")
    sequences = {key: next_sequence(way.batches(old, key), back.producers) for key in way.keys}
    found = fence_producer(old, ends, back.producers.data_producer_id, back.producers.data_producer_epoch)
    assert found.markers == ends, found.problems
    assert {append_as(way.old, key, back.producers, sequences[key]) for key in way.keys} == {INVALID_EPOCH}


@pytest.mark.parametrize("after", ["plan", "copy"])
def test_a_foreign_record_on_the_old_side_stops_its_partition_and_stays(
    make: Callable[..., WayBack], after: str
) -> None:
    way = make()
    way.applications()
    back = way.back()
    if after == "copy":
        way.run(back)
    key = way.keys[0]
    with RawWriter(way.old.bootstrap) as writer:
        place = writer.append(*key, encode_batch(plain(b"foreign"), 0))
    old = way.forward.clients.wire("source")
    before = [bytes(item.payload) for item in way.batches(old, key)]
    way.applications()
    job = back.write_job("seed")
    with pytest.raises(Exception, match="did not write") as caught:
        LocalRunner(back.clients, threads=1).run(job)
    assert way.topic in str(caught.value)
    assert [bytes(item.payload) for item in way.batches(old, key)] == before
    assert place == way.old_end[key] if after == "plan" else place > way.old_end[key]
    other = way.keys[1]
    ends = (old.list_offsets([other], "latest")[other], back.clients.wire("source").list_offsets([other], "latest"))
    assert ends[0] == ends[1][other], "the other partition goes on"


def test_a_shifted_boundary_leads_back_with_one_constant(make: Callable[..., WayBack]) -> None:
    way = make(earlier=37)
    assert {way.old_end[key] - way.new_end[key] for key in way.keys} == {37}
    way.applications()
    back = way.back()
    way.run(back)
    way.check_equal()


def test_where_markers_are_refused_empty_transactions_fill_the_boundary(
    make: Callable[..., WayBack], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = make()
    way.applications()
    monkeypatch.setattr(appending, "markers_are_refused", lambda _: True)
    back = way.back()
    way.run(back)
    way.check_equal()
    old = way.forward.clients.wire("source")
    for key in way.keys:
        markers = [item for item in way.batches(old, key, way.old_end[key]) if item.is_control]
        assert markers
        assert back.producers.data_producer_id not in {item.producer_id for item in markers}


@pytest.mark.parametrize(
    "at",
    [
        *("markers-sent:1", "append:1", "append-sent:1"),
        *(
            pytest.param(at, marks=pytest.mark.soak)
            for at in (
                *("markers:1", "markers-answered:1", "markers:2", "markers-sent:2", "markers-answered:2"),
                *("append-answered:1", "append-sent:2", "ends:1"),
            )
        ),
    ],
)
def test_a_copier_that_is_killed_around_the_first_append_leaves_no_trace(make: Callable[..., WayBack], at: str) -> None:
    """Between the registering marker and the first record above all: the next one continues from the log alone."""
    way = make()
    way.applications()
    back = way.back()
    back.write_job("seed")
    assert back.worker(0, "seed", "--at", f"kill:{at}").wait(240) == -9
    way.run(back)
    way.check_equal()
