"""What a copy job tells those who find data of others on the target."""

from __future__ import annotations

import pytest
from copy_specs import IDS, orders

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane


def job(*, is_mirror: bool) -> CopyJob:
    """``orders`` was taken over, ``state`` was not."""
    partitions = [orders(adopted=True), orders(topic="state", target_topic="state")]
    return CopyJob(
        migration_id="m1",
        name="tail",
        generation=1,
        journal_location="file:///journal",
        archive_location="file:///archive",
        via="direct",
        producers=IDS,
        lanes=[CopyLane(lane=0, transactional_id="t", partitions=partitions)],
        target_deletes=is_mirror,
    )


@pytest.mark.parametrize("is_mirror", [False, True])
def test_only_topics_that_were_taken_over_hold_what_nobody_may_delete(is_mirror: bool) -> None:
    found = job(is_mirror=is_mirror)
    assert "delete nothing there" in found.after_foreign_data("orders", "delete it")
    assert found.after_foreign_data("state", "delete it") == "delete it"


def test_a_mirror_is_ended_and_not_rolled_back() -> None:
    assert "then roll back, and start a new migration that" in job(is_mirror=False).after_foreign_data("orders", "")
    advice = job(is_mirror=True).after_foreign_data("orders", "")
    assert "end the mirror, and start a new one with another migration_id that leaves this topic out" in advice
    assert "roll back" not in advice
