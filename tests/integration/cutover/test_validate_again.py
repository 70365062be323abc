"""A validation that did not pass at first can pass later, though logs move on: what is proven stays proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cutover_support import Lab
from test_proof_before_switch import proven
from test_uncompared import check, delete_records, switched

from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import MigrationError, Transient, ValidationFailed
from airflow_provider_kafka_migration.phases import validate
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.topics import copy_settings
from harness import clients

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


@pytest.fixture
def lab(make_lab: MakeLab, fill: Fill, unique_name: Name) -> Lab:
    """One topic, two partitions, one group in the middle; nothing is compared before the cutover."""
    topic = unique_name("t")
    fill({topic: 2}, 50)
    made = make_lab([topic], validation={"before_cutover": False})
    clients.commit_offsets(made.source_cluster.client_config(), made.group, {(topic, 0): 20, (topic, 1): 30})
    return made


class _NobodyCompares:
    """A verifier that must not be asked."""

    def verify(self, ranges: Any) -> Any:
        raise AssertionError("what is proven is compared again")


def retention_goes_by(lab: Lab) -> None:
    """Both sides delete, as retention and Kafka Streams' DeleteRecords do: the sentinels, too."""
    for cluster in (lab.source_cluster, lab.target_cluster):
        for partition in (0, 1):
            delete_records(cluster, lab.topics[0], partition, 51)


def test_a_group_that_failed_does_not_make_the_content_fail_later(lab: Lab) -> None:
    context = switched(lab)
    target = lab.target_cluster.client_config()
    clients.commit_offsets(target, lab.group, {(lab.topics[0], 0): 3})
    with pytest.raises(ValidationFailed, match="groups"):
        validate.run(context)
    assert context.journal.find_step("deleting_restored") is not None
    passed = context.journal.find_step("content_passed")
    assert passed is not None
    assert (passed.details["partitions"], passed.details["compared"]) == (2, 102)

    retention_goes_by(lab)
    clients.commit_offsets(target, lab.group, {(lab.topics[0], 0): 20})
    again = lab.context()
    again.verifier = _NobodyCompares()
    assert validate.run(again).details["outcome"] == "PASSED"
    assert [row["compared"] for row in check(again, "content").partitions] == [51, 51]


def test_a_run_that_dies_while_retention_is_put_back_is_completed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    context = switched(lab)
    put_back = copy_settings.restore_deleting

    def die(record: MigrationRecord, target: Cluster) -> Any:
        put_back(record, target)
        raise Transient("the worker is gone", next_step="-")

    monkeypatch.setattr(copy_settings, "restore_deleting", die)
    with pytest.raises(MigrationError, match="the worker is gone"):
        validate.run(context)
    monkeypatch.undo()
    retention_goes_by(lab)
    assert validate.run(lab.context()).details["outcome"] == "PASSED"


def test_what_was_lost_before_it_was_compared_still_fails(lab: Lab) -> None:
    context = switched(lab)
    delete_records(lab.target_cluster, lab.topics[0], 0, 10)
    for attempt in (context, lab.context()):
        with pytest.raises(ValidationFailed, match="counts_and_offsets, content"):
            validate.run(attempt)
        assert check(attempt, "content").outcome is Outcome.FAILED
        assert attempt.journal.find_step("content_passed") is None
        assert attempt.journal.find_step("deleting_restored") is None
    documents = proven(context)
    assert documents[0].proven is None
    assert documents[0].differed_times == 2
    # The partition that is whole was not compared again.
    assert documents[1].proven is not None
    assert documents[1].proven.pieces == 1
