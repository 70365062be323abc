"""Fetch answers without records, cut ones, and such that name another replica, at each reader.

Brokers with remote storage answer so when a read of it times out or its quota is used up. Nothing of that may become a
hole, an end, or a proof: readers ask again, and what stays so has a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy import recovery, source
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.proof import ContentJob, ContentRange, PartitionContent
from airflow_provider_kafka_migration.errors import BrokerBusy, CopyStalled, RecordsWithheld
from airflow_provider_kafka_migration.kafka import fetch
from airflow_provider_kafka_migration.kafka.logs import local_log_start
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.lanes import job_progress
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import only_holes
from harness.faults.fetch_faults import REDIRECTS_FROM, Fault, FetchFaults, cut_short, empty, redirected, torn
from harness.faults.lab import FaultLab
from harness.faults.net_scenarios import Stage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Side = Literal["source", "target"]
HALF = 600
HOLE = 50
#: an aborted transaction and its marker
AFTER_HOLE = HALF + HOLE + 1
END = AFTER_HOLE + HALF
FAULTS = [empty, cut_short, torn, redirected]


class Scene:
    """One partition: 600 records, an aborted transaction, 600 records."""

    def __init__(self, lab: FaultLab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = lab
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(source, "WITHHELD_PAUSES", (0.05, 0.05, 0.1, 0.1))
        stage = Stage(lab, []).batches(30).hole(HOLE).batches(30)
        stage.writer.wire.close()
        self.topic = stage.topic
        self.copy = lab.copying([stage.topic], job_fields={"segment_max_bytes": 20_000})
        self.key = (self.topic, 0)

    def faults(self, side: Side, fault: Fault = empty, **options: Any) -> FetchFaults:
        """Change answers of one side from now on."""
        if fault is redirected:
            # A broker names a replica only to those who speak this version.
            self.monkeypatch.setattr(fetch, "MAX_VERSION", REDIRECTS_FROM)
        made = FetchFaults(self.topic, fault, **options)
        cluster = getattr(self.lab, side)
        cluster.proxy.rewrite_answer = made
        return made

    def lift(self) -> None:
        """All answers are whole from now on."""
        self.lab.source.proxy.rewrite_answer = self.lab.target.proxy.rewrite_answer = None
        self.monkeypatch.setattr(fetch, "MAX_VERSION", 10)

    def hurry(self) -> None:
        """What stays as it is has its name soon."""
        self.monkeypatch.setattr(job_progress, "MAX_TRANSIENT_ROUNDS", 2)
        self.monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 0.5)
        self.monkeypatch.setitem(cast(Any, Wire.__init__).__kwdefaults__, "patience_seconds", 0.5)

    def target_end(self) -> int:
        return self.copy.clients.wire("target").list_offsets([self.key], "log_end")[self.key]

    def one_sided(self, name: Literal["backup", "restore"]) -> dict[str, Any]:
        ends = self.copy.stable_ends()
        with Clients(self.copy.one_sided("source" if name == "backup" else "target")) as clients:
            return LocalRunner(clients).run(self.copy.write_job(name, via="s3", until=ends))

    def wire(self, side: Side) -> Wire:
        """A wire through the proxy."""
        return Clients(self.copy.references or {}).wire(side)

    def verify(self, attempt: int) -> PartitionContent:
        spec = self.copy.partitions[self.key]
        compared = ContentRange(
            topic=self.topic, target_topic=self.topic, partition=0, verdict=spec.verdict,
            source_start_offset=0, source_end_offset=END, target_start_offset=0, target_end_offset=END,
        )  # fmt: skip
        job = ContentJob(
            migration_id=self.copy.migration_id, attempt=attempt, journal_location=self.copy.journal, ranges=[compared]
        )
        with Clients(self.copy.references or {}) as clients:
            return LocalContentRunner(clients).run(job)[0]

    def check(self) -> None:
        """Record by record, by plain consumers that do not go through the proxies."""
        self.lift()
        assert self.target_end() == END
        self.copy.compare().check()


@pytest.fixture
def scene(lab: FaultLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(lab, monkeypatch)
    yield scene
    scene.lift()


def named(caught: pytest.ExceptionInfo[CopyStalled]) -> set[str]:
    return {item["error"]["code"] for item in caught.value.details["partitions"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_copy_goes_on_when_the_records_come(scene: Scene, fault: Fault) -> None:
    faults = scene.faults("source", fault, above=300, below=900, times=12)
    progress = scene.copy.run()
    assert faults.changed > 0
    # Not "records": on a busy machine a reset may lose the count of what was in flight, and never the records.
    (figures,) = progress["partitions"]  # type: ignore[misc]
    assert (figures["total_records"], figures["total_holes"]) == (2 * HALF, HOLE + 1)
    scene.check()


@pytest.mark.parametrize(
    "fault", [empty, pytest.param(cut_short, marks=pytest.mark.soak), pytest.param(redirected, marks=pytest.mark.soak)]
)
def test_copy_stops_with_a_name_when_they_do_not(scene: Scene, fault: Fault) -> None:
    scene.hurry()
    faults = scene.faults("source", fault, above=300)
    with pytest.raises(CopyStalled) as caught:
        scene.copy.run()
    assert named(caught) == {"RECORDS_WITHHELD"}
    assert faults.changed > 0
    assert 300 <= scene.target_end() < END
    scene.lift()
    scene.copy.run()
    scene.check()


@pytest.mark.parametrize(
    ("fault", "side"),
    [
        *zip(FAULTS, ["source", "target", "source", "target"], strict=True),
        *(
            pytest.param(fault, side, marks=pytest.mark.soak)
            for fault, side in zip(FAULTS, ["target", "source", "target", "source"], strict=True)
        ),
    ],
)
def test_take_over(scene: Scene, side: Side, fault: Fault) -> None:
    """The end of the target is compared with the source, both read through the fault."""
    scene.copy.run(until={scene.key: HALF - 100})
    faults = scene.faults(side, fault, times=6)
    scene.copy.run()
    assert faults.changed > 0
    scene.check()


@pytest.mark.parametrize("side", ["source", pytest.param("target", marks=pytest.mark.soak)])
def test_take_over_stops_with_a_name(scene: Scene, side: Side) -> None:
    scene.hurry()
    scene.copy.run(until={scene.key: HALF - 100})
    half = scene.target_end()
    faults = scene.faults(side, empty)
    with pytest.raises(CopyStalled) as caught:
        scene.copy.run()
    assert named(caught) == {"RECORDS_WITHHELD"}
    assert faults.changed > 0
    assert scene.target_end() == half < END
    scene.lift()
    scene.copy.run()
    scene.check()


def test_backup_stops_with_a_name(scene: Scene) -> None:
    scene.hurry()
    scene.faults("source", empty, above=300)
    with pytest.raises(CopyStalled) as caught:
        scene.one_sided("backup")
    assert named(caught) == {"RECORDS_WITHHELD"}
    scene.lift()
    scene.one_sided("backup")
    scene.one_sided("restore")
    scene.check()


@pytest.mark.parametrize("fault", [empty, cut_short])
def test_backup(scene: Scene, fault: Fault) -> None:
    faults = scene.faults("source", fault, above=300, below=900, times=12)
    scene.one_sided("backup")
    assert faults.changed > 0
    scene.lift()
    scene.one_sided("restore")
    scene.check()


def test_restore_takes_over_what_it_cannot_read_at_first(scene: Scene) -> None:
    scene.one_sided("backup")
    ends = {scene.key: HALF - 100}
    with Clients(scene.copy.one_sided("target")) as clients:
        LocalRunner(clients).run(scene.copy.write_job("restore", via="s3", until=ends))
    faults = scene.faults("target", empty, times=6)
    assert scene.one_sided("restore")["source_bytes"] == 0
    assert faults.changed > 0
    scene.check()


@pytest.mark.parametrize("fault", FAULTS)
def test_offset_map(scene: Scene, fault: Fault) -> None:
    """Whether only holes are left decides that a mapped partition is drained."""
    context = cast(PhaseContext, SimpleNamespace(source=SimpleNamespace(wire=scene.wire("source"))))
    assert only_holes(context.source, scene.key, HALF, AFTER_HOLE)
    faults = scene.faults("source", fault, times=4)
    assert not only_holes(context.source, scene.key, 300, HALF)
    assert faults.changed > 0
    scene.lift()
    # More than there is: an end is no proof, either.
    assert not only_holes(context.source, scene.key, END, END + 1)
    if fault is torn:
        return
    scene.hurry()
    context.source.wire.patience_seconds = 0.5
    scene.faults("source", fault)
    with pytest.raises(RecordsWithheld):
        only_holes(context.source, scene.key, 300, HALF)
    context.source.wire.close()


@pytest.mark.parametrize(("fault", "side"), zip(FAULTS, ["source", "source", "target", "target"], strict=True))
def test_validation(scene: Scene, side: Side, fault: Fault) -> None:
    scene.copy.run()
    faults = scene.faults(side, fault, times=6)
    found = scene.verify(1)
    assert faults.changed > 0
    assert (found.is_equal, found.compared, found.error) == (True, 2 * HALF, None)


def test_validation_proves_nothing_when_records_stay_away(scene: Scene) -> None:
    scene.copy.run()
    scene.hurry()
    for number, side in enumerate(("source", "target")):
        scene.lift()
        scene.faults(side, empty)
        found = scene.verify(number + 1)
        assert not found.is_equal
        assert (found.error or {}).get("code") == "RECORDS_WITHHELD"


def test_only_leaders_are_asked(scene: Scene) -> None:
    """With the version that is spoken a broker can name no other replica, and a follower may not answer."""
    faults = scene.faults("source", empty, times=0)
    scene.copy.run()
    assert faults.versions
    assert max(faults.versions) < REDIRECTS_FROM


def test_a_broker_that_cannot_tell_what_is_local_proves_no_hole(scene: Scene) -> None:
    """Without records behind it: it may have them in a storage of its own."""
    scene.hurry()
    scene.faults("source", empty, above=AFTER_HOLE, tells_local=False)
    with pytest.raises(CopyStalled) as caught:
        scene.copy.run()
    assert named(caught) == {"RECORDS_WITHHELD"}
    assert AFTER_HOLE <= scene.target_end() < END
    scene.lift()
    scene.copy.run()
    scene.check()


@pytest.mark.parametrize("side", ["source", "target"])
def test_only_the_leader_of_an_epoch_tells_what_is_local(scene: Scene, side: Side) -> None:
    wire = scene.wire(side)
    try:
        wire.metadata([scene.topic])
        epoch = wire.leader_epochs([scene.key])[scene.key]
        assert epoch >= 0
        assert local_log_start(wire, scene.key, epoch) == 0
        with pytest.raises(BrokerBusy, match="UNKNOWN_LEADER_EPOCH"):
            local_log_start(wire, scene.key, epoch + 1)
    finally:
        wire.close()
