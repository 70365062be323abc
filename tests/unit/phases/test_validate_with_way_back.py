"""A way back that runs while the first migration is validated: what it does to the old cluster is no difference."""

from __future__ import annotations

import pytest
from phase_world.world import MIGRATION, World, Worlds

from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import ValidationFailed
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps

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
        world = worlds.at("validate", topology={"on_source_drift": "follow"})
        if with_way_back:
            _begin_way_back(world)
        world.source.topics["state"].configs.update(changed)
        if with_way_back:
            assert "source_drift warning" in world.run("validate").summary.lower()
        else:
            with pytest.raises(ValidationFailed, match="source_drift"):
                world.run("validate")
