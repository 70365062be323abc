"""When a target topic is deleted to be copied again, and when it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from phase_support import make_plan, ready

from airflow_provider_kafka_migration.documents.copy import (
    CopyJob,
    CopyLane,
    CopyPartition,
    LaneReading,
    PartitionReading,
    ProducerIds,
    ProvenanceSettings,
)
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import ForeignData, PermissionMissing, StorageUnavailable, Transient
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import PartitionFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.lanes.slices import Identity, LeaseKeeper
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import bring, recopy, topics_gone

GONE = ItemError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "UNKNOWN_TOPIC_OR_PARTITION", "")
RECOPY = {"on_overtaken_tombstones": "repair", "on_source_truncation": "repair"}


class World:
    """A tail of ``orders`` in which partition 1 has stopped."""

    def __init__(self, folder: Path, *, code: str = "TOMBSTONES_OVERTAKEN", **offsets: str) -> None:
        self.context = ready(folder, offsets=offsets or RECOPY)
        self.admin: Any = self.context.target.admin
        self.admin.topics["orders"] = "id-1"
        self.deleted: list[list[str]] = []
        self.error: ItemError | None = None
        self.admin.delete_topic_with_id = self._delete
        self.context.journal.step(steps.TOPIC_CREATED, details={"topics": {"orders": "id-1"}})
        self.fail(code)

    def _delete(self, name: str, topic_id: str) -> ItemError | None:
        if self.admin.topics.get(name) != topic_id:
            return None
        self.deleted.append([name])
        if self.error is None:
            self.admin.topics[name] = GONE
        return self.error

    def fail(self, code: str, *, run: str = "r1", failed: bool = True) -> None:
        partitions = [
            {"topic": "orders", "partition": 0, "failed": False, "error": None},
            {"topic": "orders", "partition": 1, "failed": failed, "error": {"code": code}},
        ]
        document = json.dumps({"run": run, "partitions": partitions}).encode()
        self.context.journal_store.put("m1/progress/tail.json", document)

    def run(self, *, verdict: Verdict = Verdict.EQUAL, via: str = "direct") -> list[str]:
        return recopy.recopy(self.context, "tail", self.job(verdict=verdict, via=via))

    def make_missing(self) -> list[str]:
        return recopy.make_missing(self.context, "tail", self.job())

    def job(self, *, verdict: Verdict = Verdict.EQUAL, via: str = "direct") -> CopyJob:
        partitions = [
            CopyPartition(
                topic="orders",
                target_topic="orders",
                partition=number,
                source_start_offset=0,
                target_start_offset=0,
                verdict=verdict,
            )
            for number in range(2)
        ]
        return CopyJob.model_validate(
            {
                "migration_id": "m1",
                "name": "tail",
                "generation": 1,
                "journal_location": "file:///j",
                "archive_location": "file:///a",
                "via": via,
                "producers": ProducerIds(
                    data_producer_id=1, data_producer_epoch=0, filler_producer_id=2, filler_producer_epoch=0
                ),
                "lanes": [CopyLane(lane=0, transactional_id="x", partitions=partitions)],
            }
        )

    @property
    def named(self) -> list[dict[str, Any]]:
        return [dict(entry.details) for entry in self.context.journal.steps(steps.TOPICS_RECOPIED)]


@pytest.mark.parametrize("code", ["TOMBSTONES_OVERTAKEN", "SOURCE_TRUNCATED"])
def test_by_policy_the_topic_is_deleted_once(tmp_path: Path, code: str) -> None:
    world = World(tmp_path, code=code)
    assert world.run() == ["orders"]
    assert world.deleted == [["orders"]]
    assert world.named == [
        {"run": "r1", "topics": {"orders": "id-1"}, "partitions": {"orders-1": code}, "delete_retention_ms": {}}
    ]
    # Made again, and killed before anything was copied: the failure that the document tells is an old one.
    world.admin.topics["orders"] = "id-2"
    world.context.journal.step(steps.TOPIC_CREATED, details={"topics": {"orders": "id-2"}})
    assert world.run() == []
    assert len(world.deleted) == len(world.named) == 1
    # It happens to the new one as well.
    world.fail(code, run="r2")
    assert world.run() == ["orders"]
    assert len(world.deleted) == len(world.named) == 2


def test_a_mirror_deletes_nothing_although_its_spec_asks_for_it(tmp_path: Path) -> None:
    """Earlier versions have accepted that."""
    world = World(tmp_path)
    world.context = replace(world.context, spec=world.context.spec.model_copy(update={"kind": "mirror"}))
    assert world.run() == []
    assert (world.deleted, world.named) == ([], [])


def test_killed_before_the_topic_was_deleted(tmp_path: Path) -> None:
    """The journal has the word; a retry deletes that topic, and no other of its name."""
    world = World(tmp_path)
    world.error = ItemError(error_codes.REQUEST_TIMED_OUT, "REQUEST_TIMED_OUT", "", retriable=True)
    with pytest.raises(Transient):
        world.run()
    assert len(world.named) == 1
    world.error = None
    assert world.run() == ["orders"]
    assert len(world.named) == 1


def test_the_right_that_is_missing_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.error = ItemError(29, "TOPIC_AUTHORIZATION_FAILED", "")
    with pytest.raises(PermissionMissing, match="cannot be deleted"):
        world.run()


@pytest.mark.parametrize(
    ("code", "offsets"),
    [
        ("TOMBSTONES_OVERTAKEN", {"on_source_truncation": "repair"}),
        ("TOMBSTONES_OVERTAKEN", {"on_source_truncation": "repair", "on_overtaken_tombstones": "note"}),
        ("SOURCE_TRUNCATED", {"on_overtaken_tombstones": "repair"}),
        ("FOREIGN_DATA", RECOPY),
    ],
)
def test_other_failures_and_policies_delete_nothing(tmp_path: Path, code: str, offsets: dict[str, str]) -> None:
    world = World(tmp_path, code=code, **offsets)
    assert world.run() == []
    assert (world.deleted, world.named) == ([], [])


def freeze(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MigrationRecord, "is_frozen", lambda _: True)


def another_id(world: World, _: object) -> None:
    world.admin.topics["orders"] = "id-of-somebody"


def no_id(world: World, _: object) -> None:
    world.admin.topics["orders"] = ""
    world.context.journal.step(steps.TOPIC_CREATED, details={"topics": {"orders": ""}})


def adopted(world: World, _: object) -> None:
    world.admin.topics["orders"] = "id-3"
    world.context.journal.step(steps.TOPIC_ADOPTED, details={"topics": {"orders": "id-3"}})


def shared(world: World, _: object) -> None:
    world.context.journal.step(steps.TOPIC_SHARED, details={"topics": ["orders"]})


def healed(world: World, _: object) -> None:
    world.fail("TOMBSTONES_OVERTAKEN", failed=False)


def gone(world: World, _: object) -> None:
    world.admin.topics["orders"] = GONE


def later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recopy, "STATES", frozenset())


@pytest.mark.parametrize("prepare", [freeze, another_id, no_id, adopted, shared, healed, gone, later])
def test_only_a_topic_that_this_migration_has_made_and_before_the_freeze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Any
) -> None:
    world = World(tmp_path)
    prepare(world, monkeypatch)
    assert world.run() == []
    assert (world.deleted, world.named) == ([], [])


@pytest.mark.parametrize("options", [{"verdict": Verdict.TRANSACTIONAL}, {"via": "s3"}])
def test_not_where_it_would_be_copied_from_elsewhere(tmp_path: Path, options: dict[str, Any]) -> None:
    world = World(tmp_path)
    assert world.run(**options) == []
    assert (world.deleted, world.named) == ([], [])


def test_a_topic_that_does_not_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.admin.delete_topic_with_id = lambda name, topic_id: None
    monkeypatch.setattr(recopy, "REMOVAL_SECONDS", 0.0)
    with pytest.raises(Transient, match="still exist"):
        world.run()


def test_another_topic_that_has_got_the_name_is_never_deleted(tmp_path: Path) -> None:
    """Somebody creates it between the last look and the deletion."""
    world = World(tmp_path)
    recopy._delete(world.context.record, world.context.target, "tail", {"orders": "id-0"})
    assert (world.deleted, world.admin.topics["orders"]) == ([], "id-1")


def with_stranger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that make topics for whoever asks: there is another one as soon as ours is gone."""
    described = world.admin.describe_topics
    partitions = tuple(PartitionFacts(number, 1, (1,), (1,)) for number in range(2))

    def describe(names: Any = None, **options: Any) -> dict[str, Any]:
        found = described(names, **options)
        return {name: item if item.error else replace(item, partitions=partitions) for name, item in found.items()}

    def delete(name: str, topic_id: str) -> None:
        world.deleted.append([name])
        world.admin.topics[name] = "id-of-somebody"

    monkeypatch.setattr(world.admin, "describe_topics", describe)
    monkeypatch.setattr(world.admin, "delete_topic_with_id", delete)
    monkeypatch.setattr(recopy, "REMOVAL_SECONDS", 0.0)


def test_a_topic_that_somebody_has_made_meanwhile_is_refused_with_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    with_stranger(world, monkeypatch)
    assert world.run() == ["orders"]
    for _ in range(2):  # a retry does not forget it
        with pytest.raises(ForeignData, match="not from this migration"):
            world.make_missing()
        assert world.run() == [], "it is not ours, so it is not deleted"
    # By policy one is deleted, and journaled once as one to be made again.
    assert len(world.deleted) == 1
    assert len(world.context.journal.steps(steps.TOPICS_MADE_AGAIN)) == 1


def test_a_topic_that_somebody_has_made_meanwhile_is_made_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    with_stranger(world, monkeypatch)
    made: list[set[tuple[str, int]]] = []
    monkeypatch.setattr(bring, "make_new_partitions", lambda _context, _plan, keys: made.append(keys))
    world.run()
    assert world.make_missing() == ["orders"]
    assert made == [{("orders", 0), ("orders", 1)}]
    assert world.make_missing() == [], "once"


def test_a_topic_that_is_made_again_has_lost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was noted of the former one is forgotten, also where brokers give no topic ids."""
    world = World(tmp_path)
    store = world.context.journal_store
    monkeypatch.setattr(bring, "make_new_partitions", lambda _context, _plan, _keys: None)
    noted = {"noted_source_offset": 60, "noted_target_offset": 60, "noted_sequence": 60, "first_end_offset": 40}
    items = [PartitionReading(topic=topic, partition=0, caught_up_at=5.0, **noted) for topic in ("orders", "others")]
    store.put("m1/reading/lane-000007.json", LaneReading(migration_id="m1", lane=7, partitions=items).canonical())
    world.run()
    assert world.make_missing() == ["orders"]
    data = store.get("m1/reading/lane-000007.json")
    assert data is not None
    orders, others = LaneReading.parse(data).partitions
    assert (orders.noted_target_offset, orders.noted_sequence, orders.first_end_offset) == (0, 0, -1)
    assert orders.caught_up_at == 5.0
    assert others == items[1]


def test_a_topic_that_one_broker_does_not_know_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started does not know all topics; another one has it, and then all of them."""
    world = World(tmp_path)
    made: list[set[tuple[str, int]]] = []
    monkeypatch.setattr(bring, "make_new_partitions", lambda _context, _plan, keys: made.append(keys))
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    world.admin.topics["orders"] = GONE
    world.admin.other_brokers = {2: {"orders": ""}}
    assert world.make_missing() == []
    assert world.context.journal.steps(steps.TOPICS_MADE_AGAIN) == []
    world.admin.other_brokers = {2: {"orders": GONE}}
    assert world.make_missing() == ["orders"]
    assert made == [{("orders", 0), ("orders", 1)}]


DENIED = ItemError(error_codes.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", "")
MARKS = ProvenanceSettings(header="h", source_cluster_id="A", target_cluster_id="B")


@pytest.mark.parametrize(
    ("source", "marks", "made_again"),
    [
        ("", None, True),
        ("", MARKS, True),
        (GONE, None, False),
        (GONE, MARKS, False),
        (DENIED, None, True),
        (DENIED, MARKS, False),
    ],
)
def test_a_topic_that_was_deleted_on_both_clusters_is_not_made_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str | ItemError,
    marks: ProvenanceSettings | None,
    made_again: bool,
) -> None:
    """With the records of both clusters in it, that the source still has it must be proven."""
    world = World(tmp_path)
    made: list[set[tuple[str, int]]] = []
    monkeypatch.setattr(bring, "make_new_partitions", lambda _context, _plan, keys: made.append(keys))
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    world.admin.topics["orders"] = GONE
    admin: Any = world.context.source.admin
    admin.topics["orders"] = source
    job = world.job().model_copy(update={"provenance": marks})
    assert recopy.make_missing(world.context, "tail", job) == (["orders"] if made_again else [])
    assert bool(made) == bool(world.context.journal.steps(steps.TOPICS_MADE_AGAIN)) == made_again


def test_a_topic_that_is_still_to_be_deleted_is_not_made_again(tmp_path: Path) -> None:
    """Killed before it was deleted, and the policy has changed since."""
    world = World(tmp_path)
    world.error = ItemError(error_codes.REQUEST_TIMED_OUT, "REQUEST_TIMED_OUT", "", retriable=True)
    with pytest.raises(Transient):
        world.run()
    assert world.make_missing() == []


class Copier:
    """A copier on another machine that has outlived its task."""

    def __init__(self, world: World, *, scope: str = "target") -> None:
        elsewhere = Identity("boot-1", "elsewhere", 7, 1)
        self._keeper = LeaseKeeper(world.context.journal_store, "m1", scope, 0, 600.0, identity=elsewhere)
        lease = self._keeper.acquire()
        assert lease is not None
        self._lease = lease

    def end(self) -> None:
        self._keeper.end(self._lease)


def test_a_copier_that_has_outlived_its_task_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    copier = Copier(world)
    Copier(world, scope="backup")  # writes nothing to the target
    before: list[list[str]] = []

    def progress(item: Progress) -> None:
        if "earlier copiers" in item.message:
            before.extend(world.deleted)
            before.extend([list(entry["topics"]) for entry in world.named])
            copier.end()

    waiting = replace(world.context, progress=progress)
    deleted = world.admin.delete_topic_with_id

    def delete(name: str, topic_id: str) -> Any:
        leases = sorted(info.key for info in world.context.journal_store.list("m1/leases/target/"))
        assert [key.rpartition(".")[2] for key in leases] == ["json", "ended", "json"], "ours is not ended yet"
        return deleted(name, topic_id)

    world.admin.delete_topic_with_id = delete
    assert recopy.recopy(waiting, "tail", world.job()) == ["orders"]
    assert (before, world.deleted) == ([], [["orders"]])
    # It gives the lane back: the copiers that come next do not wait.
    lease = LeaseKeeper(world.context.journal_store, "m1", "target", 0, 600.0).acquire(lambda: False)
    assert lease is not None
    assert lease.generation == 3


def test_a_freeze_that_is_asked_for_meanwhile_keeps_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    waiting = replace(world.context, progress=lambda _: freeze(world, monkeypatch))
    assert recopy.recopy(waiting, "tail", world.job()) == []
    assert (world.deleted, world.named) == ([], [])


def test_owners_that_cannot_be_asked_for_keep_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)

    def away(*_: object) -> None:
        raise StorageUnavailable("503 SlowDown")

    monkeypatch.setattr(LeaseKeeper, "acquire", away)
    with pytest.raises(StorageUnavailable):
        world.run()
    assert (world.deleted, world.named) == ([], [])


class Compacted(World):
    """Of which the source keeps tombstones for an hour; it has been copied again once already."""

    def __init__(self, folder: Path, *, code: str = "TOMBSTONES_OVERTAKEN") -> None:
        super().__init__(folder, code=code)
        plan = make_plan()
        for topic in plan.topics:
            topic.source_configs["cleanup.policy"] = "compact"
        self.context.journal_store.put("m1/plan.json", plan.canonical())
        self.keep_tombstones(3_600_000)
        assert self.run() == ["orders"]
        self.admin.topics["orders"] = "id-2"
        self.context.journal.step(steps.TOPIC_CREATED, details={"topics": {"orders": "id-2"}})

    def keep_tombstones(self, milliseconds: int) -> None:
        self.context.source.admin.configs["delete.retention.ms"] = str(milliseconds)  # type: ignore[attr-defined]


def test_what_stops_again_for_tombstones_is_not_deleted_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The pass itself takes longer than they stay."""
    world = Compacted(tmp_path)
    assert world.named[0]["delete_retention_ms"] == {"orders": 3_600_000}
    world.fail("TOMBSTONES_OVERTAKEN", run="r2")
    assert world.run() == []
    assert "raise delete.retention.ms, or choose offsets.on_overtaken_tombstones: note" in caplog.text
    world.keep_tombstones(1_800_000)
    assert world.run() == []
    # A person has done something about it.
    world.keep_tombstones(7_200_000)
    assert world.run() == ["orders"]
    assert [item["delete_retention_ms"]["orders"] for item in world.named] == [3_600_000, 7_200_000]


def test_what_the_source_has_lost_is_copied_again_each_time(tmp_path: Path) -> None:
    world = Compacted(tmp_path)
    world.fail("SOURCE_TRUNCATED", run="r2")
    assert world.run() == ["orders"]


def test_a_first_time_for_tombstones_behind_another_reason(tmp_path: Path) -> None:
    world = Compacted(tmp_path, code="SOURCE_TRUNCATED")
    world.fail("TOMBSTONES_OVERTAKEN", run="r2")
    assert world.run() == ["orders"]


def test_journals_that_do_not_tell_the_setting_forbid_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    details = {"run": "r0", "topics": {"orders": "id-0"}, "partitions": {"orders-1": "TOMBSTONES_OVERTAKEN"}}
    world.context.journal.step(steps.TOPICS_RECOPIED, details=details)
    assert world.run() == ["orders"]


def test_contexts_of_these_tests_are_before_the_freeze(tmp_path: Path) -> None:
    context: PhaseContext = ready(tmp_path)
    assert context.journal.working_state in recopy.STATES
