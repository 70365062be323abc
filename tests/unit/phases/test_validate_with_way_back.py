"""A way back that runs while the first migration is validated: what it does to the old cluster is no difference."""

from __future__ import annotations

from typing import Any

import pytest
from phase_world.returning import Returning, Returns
from phase_world.world import KEYS, MIGRATION, World, Worlds

from airflow_provider_kafka_migration.approvals import way_back
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import DocumentUnreadable, ValidationFailed
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back import seen_from_first

OURS = 4711


def _begin_way_back(world: World) -> None:
    fingerprint = Fingerprint(world.target.cluster_id, world.source.cluster_id)
    owner = Owner("cli", "tester", "tester")
    journal = Journal.create_or_open(world.journal_store, f"{MIGRATION}.back", fingerprint, owner=owner)
    ids = ProducerIds(data_producer_id=OURS, data_producer_epoch=0, filler_producer_id=1, filler_producer_epoch=0)
    journal.step(steps.PRODUCER_IDS, details=ids.model_dump(mode="json"))
    journal.step(steps.COPY_SETTINGS, details={"document": "x", "digest": "y", "topics": 1})


def test_records_that_come_back_are_not_late_writes(worlds: Worlds) -> None:
    world = worlds.at("validate")
    _begin_way_back(world)
    world.source.log("orders").write(b"came back", producer_id=OURS)
    assert "passed" in world.run("validate").summary.lower()


@pytest.mark.parametrize("producer_id", [-1, OURS + 1])
def test_records_of_others_still_are(worlds: Worlds, producer_id: int) -> None:
    world = worlds.at("validate")
    _begin_way_back(world)
    world.source.log("orders").write(b"came back", producer_id=OURS)
    world.source.log("orders").write(b"a stranger's", producer_id=producer_id)
    with pytest.raises(ValidationFailed, match="1 records were written to the source after the cutover"):
        world.run("validate")


def test_without_a_way_back_its_producer_id_means_nothing(worlds: Worlds) -> None:
    world = worlds.at("validate")
    world.source.log("orders").write(b"a stranger's", producer_id=OURS)
    with pytest.raises(ValidationFailed):
        world.run("validate")


def test_settings_of_the_way_back_are_no_drift_of_the_source(worlds: Worlds) -> None:
    changed = {"cleanup.policy": "delete", "retention.ms": "-1"}
    for with_way_back in (False, True):
        world = worlds.at("validate", topology={"on_source_drift": "repair"})
        if with_way_back:
            _begin_way_back(world)
        world.source.topics["state"].configs.update(changed)
        if with_way_back:
            assert "source_drift warning" in world.run("validate").summary.lower()
        else:
            with pytest.raises(ValidationFailed, match="source_drift"):
                world.run("validate")


class _EarlyReturns(Returns):
    """Ways back of a migration that is not validated yet."""

    def begin(self, **_: Any) -> World:
        first = self._forward.at("validate")
        first.enter(State.VALIDATING)
        first.target.log("orders").write(b"newest")
        return Returning(first, {})


@pytest.fixture
def returned(worlds: Worlds) -> World:
    """A first migration at its validation, whose clients may return by now: the way back is ready for that."""
    back = _EarlyReturns(worlds).at("approve_switch")
    assert back.steps(steps.READY_FOR_CLIENT_RETURN)
    assert way_back.facts(back.context().record)["first_state"] == "validating"
    first = worlds.at("validate")
    first.source, first.target = back.target, back.source
    stores = (back.journal_store, back.archive_store, back.evidence_store)
    first._open(*(dict(store.objects) for store in stores))
    return first


@pytest.fixture
def brought(returned: World, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Simulated copiers keep the producer ids of what they copy; real ones write with that of the way back."""
    logs = [returned.source.log(*key) for key in KEYS]
    ids = {RawBatch(memoryview(data)).producer_id for log in logs for data in log.batches}
    monkeypatch.setattr(seen_from_first, "producer_ids", lambda _record: frozenset(ids))
    return ids


def test_what_clients_write_after_their_return_is_no_late_write(returned: World, brought: set[int]) -> None:
    assert OURS not in brought
    returned.source.log("orders").write(b"they are back", b"and write", producer_id=OURS)
    assert "counts_and_offsets warning" in returned.run("validate").summary.lower()
    found = returned.context().record.validation()
    assert found is not None
    told = [text for check in found.checks for text in check.findings if "may have returned" in text]
    assert [text.split(": ")[1] for text in told] == [
        "1 of its 3 partitions have records from there on, which are theirs and no late writes"
    ]


def test_the_same_records_would_be_late_writes_without_a_return(
    returned: World, brought: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OURS not in brought
    monkeypatch.setattr(seen_from_first, "returned_at", lambda _record: {})
    returned.source.log("orders").write(b"they are back", b"and write", producer_id=OURS)
    with pytest.raises(ValidationFailed, match="2 records were written to the source after the cutover"):
        returned.run("validate")


def test_a_strangers_record_before_the_return_still_is_one(worlds: Worlds) -> None:
    """It lies below the end of what came back."""
    early = worlds.at("validate")
    early.source.log("orders").write(b"a stranger's", producer_id=OURS + 1)
    returned_at = dict.fromkeys(KEYS, 10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen_from_first, "returned_at", lambda _record: returned_at)
        with pytest.raises(ValidationFailed, match="1 records were written to the source after the cutover"):
            early.run("validate")


def test_without_the_map_of_the_way_back_nobody_knows_whose_records_they_are(returned: World) -> None:
    del returned.evidence_store.objects[f"{MIGRATION}.back/offset-map.json"]
    for key in [key for key in returned.journal_store.objects if key == f"{MIGRATION}.back/results/offset-map.json"]:
        del returned.journal_store.objects[key]
    with pytest.raises(DocumentUnreadable, match="cannot be told from theirs"):
        returned.run("validate")
