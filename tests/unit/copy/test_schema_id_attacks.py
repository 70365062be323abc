"""Attempts to break lanes that replace schema ids."""

from __future__ import annotations

import pytest
from schema_id_logs import id_map
from simulated.copying import MIGRATION, JobName
from simulated.small import trouble_code
from simulated.worlds import Worlds
from test_schema_id_lanes import ID_MAP_KEY, IDS, assert_equal_under_the_map, one_topic, settings, two_topics, with_ids

from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key


@pytest.mark.parametrize("name", ["seed", "tail"])
def test_an_unknown_id_behind_the_stop_offset_holds_nothing(worlds: Worlds, name: JobName) -> None:
    """What somebody writes after the boundary is not part of the migration."""
    copy = with_ids(worlds, two_topics)
    result = copy.slice(copy.job(name, until={"t": 15}), seconds=3.0)["t"]
    assert (result.done, result.source_offset >= 15, result.error) == (True, True, None)


@pytest.mark.parametrize("name", ["seed", "tail"])
def test_an_unresolved_id_behind_the_stop_offset_does_not_stop_the_partition(worlds: Worlds, name: JobName) -> None:
    copy = with_ids(worlds, two_topics, job_fields=settings("t", "plain", strict=True))
    copy.store.put(ID_MAP_KEY, id_map(MIGRATION, IDS, absent=[99]))
    job = copy.job(name, until={"t": 15})
    for _ in range(2):
        result = copy.slice(job, seconds=3.0)["t"]
        assert (result.done, result.source_offset >= 15, result.error) == (True, True, None)


def test_a_held_partition_is_done_once_its_stop_offset_lies_before_the_record(worlds: Worlds) -> None:
    """The boundary is set while the partition waits: everything below it is copied."""
    copy = with_ids(worlds, two_topics)
    held = copy.slice(copy.job("tail"), seconds=2.0)["t"]
    assert (trouble_code(held), held.source_offset, held.done) == ("SCHEMA_ID_UNKNOWN", 15, False)
    result = copy.slice(copy.job("tail", until={"t": 15}), seconds=3.0)["t"]
    assert (result.done, result.trouble, result.error) == (True, None, None)


def test_a_stop_that_comes_within_the_slice_ends_a_held_partition(worlds: Worlds) -> None:
    """A freeze does not wait for the end of the slice."""
    copy = with_ids(worlds, two_topics)
    stop_key = f"{MIGRATION}/control/tail-stop.json"
    job = copy.job("tail", stop_key=stop_key)
    lanes = [
        lane.model_copy(
            update={"partitions": [item.model_copy(update={"until_offset": None}) for item in lane.partitions]}
        )
        for lane in job.lanes
    ]
    ends = {"t-0": 15, "plain-0": copy.source.log(("plain", 0)).log_end}

    def stop() -> bool:
        """Set the stop once the partition is held."""
        if copy.store.get(wanted_key(MIGRATION, ".", 99)) is not None and copy.store.get(stop_key) is None:
            copy.store.put(stop_key, StopAt(migration_id=MIGRATION, offsets=ends).canonical())
        return False

    results = copy.slice(job.model_copy(update={"lanes": lanes}), stop=stop)
    assert {topic: (result.done, result.trouble, result.error) for topic, result in results.items()} == {
        "t": (True, None, None),
        "plain": (True, None, None),
    }


def test_kept_and_changed_ids_in_one_chunk_of_small_batches(worlds: Worlds) -> None:
    """Batches of one record, some of which change: they are joined in order."""
    copy = with_ids(worlds, one_topic(200, batch=1), job_fields=settings("t", parts="both"))
    assert copy.slice()["t"].done
    assert_equal_under_the_map(copy)


def test_a_stop_in_the_middle_of_a_batch_whose_later_record_is_unknown(worlds: Worlds) -> None:
    """Boundaries come from last stable offsets, which never lie inside a batch; nothing must be lost if one does."""
    copy = with_ids(worlds, two_topics)
    result = copy.slice(copy.job("tail", until={"t": 16}), seconds=2.0)["t"]
    assert not result.done
    assert trouble_code(result) == "SCHEMA_ID_UNKNOWN"
