"""The driver's view of a job: halves of a split job, partitions that come and go, and what a failure is called."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from job_documents import job, lane, partition, result

from airflow_provider_kafka_migration.copy.partition import NO_ANSWER
from airflow_provider_kafka_migration.documents.copy import (
    BACKUP_LANES,
    ProofSettings,
    halves,
)
from airflow_provider_kafka_migration.documents.proof import TopicRules
from airflow_provider_kafka_migration.errors import (
    CopyFailed,
    CopyStalled,
    StorageUnavailable,
    TopicRecreated,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka.logs import topic_missing
from airflow_provider_kafka_migration.lanes import job_progress as module
from airflow_provider_kafka_migration.lanes.job_progress import JobProgress
from airflow_provider_kafka_migration.storage.local import LocalStore


def test_halves_of_a_split_job_have_each_partition_once(local_store: LocalStore) -> None:
    lanes = halves([lane(0, partition("a", 0)), lane(1, partition("a", 1))])
    assert [(item.lane, item.half) for item in lanes] == [
        (BACKUP_LANES, "backup"),
        (BACKUP_LANES + 1, "backup"),
        (0, "restore"),
        (1, "restore"),
    ]
    assert halves(lanes) == lanes
    split = job(lanes)
    assert [item.key for item in split.partitions] == [("a", 0), ("a", 1)]
    driver = JobProgress(split, local_store)
    driver.record([result(lanes[0], "a", 0, done=True, source_bytes=70, records=3, copied_bytes=70)])
    progress = driver.progress()
    assert (progress["partitions_total"], progress["partitions_done"], progress["records"]) == (2, 0, 0)
    assert progress["source_bytes"] == 70
    assert [item.lane for item in driver.remaining_lanes()] == [BACKUP_LANES + 1, 0, 1]
    driver.record([result(lanes[2], "a", 0, done=True, records=3)])
    assert driver.progress()["partitions_done"] == 1
    assert not driver.finished
    driver.record([result(lanes[1], "a", 1, done=True), result(lanes[3], "a", 1, done=True)])
    assert driver.finished
    driver.check()


def test_a_backup_that_fails_ends_its_restore(local_store: LocalStore) -> None:
    lanes = halves([lane(0, partition("a", 0))])
    driver = JobProgress(job(lanes), local_store)
    error = TopicRecreated("created again", next_step="start anew").as_dict()
    driver.record([result(lanes[0], "a", 0, error=error)])
    assert driver.finished, "nothing would ever come for the restore"
    with pytest.raises(CopyFailed, match=r"1 of 1 partitions.*a-0: \[TOPIC_RECREATED\] created again"):
        driver.check()


def test_reasons_that_may_pass_make_a_stalled_copy(local_store: LocalStore) -> None:
    both = lane(0, partition("a", 0), partition("a", 1))
    throttled = StorageUnavailable("SlowDown", next_step="ask less of the bucket").as_dict()
    driver = JobProgress(job([both], "seed"), local_store)
    for _ in range(module.MAX_TRANSIENT_ROUNDS):
        driver.record([result(both, "a", 0, error=throttled), result(both, "a", 1, done=True)])
    with pytest.raises(CopyStalled, match="SlowDown") as caught:
        driver.check()
    assert caught.value.next_step.startswith("ask less of the bucket")
    final = TopicRecreated("created again", next_step="start anew").as_dict()
    driver = JobProgress(job([both], "seed"), local_store)
    for _ in range(module.MAX_TRANSIENT_ROUNDS):
        driver.record([result(both, "a", 0, error=throttled), result(both, "a", 1, error=final)])
    with pytest.raises(CopyFailed):
        driver.check()


def test_what_to_do_is_said_once(local_store: LocalStore) -> None:
    only = lane(0, partition("a", 0))
    driver = JobProgress(job([only], "seed"), local_store)
    error = TopicRecreated("created again", next_step="start the broker; then clear the task").as_dict()
    driver.record([result(only, "a", 0, error=error)])
    with pytest.raises(CopyFailed) as caught:
        driver.check()
    assert caught.value.next_step == "start the broker; then clear the task: it continues from the target's log ends"


def test_a_tail_takes_up_and_lets_go_of_partitions(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(module, "_REFRESH_SECONDS_PER_PARTITION", 0.0)
    first = lane(0, partition("a", 0), partition("b", 0))
    driver = JobProgress(job([first]), local_store)
    driver.record([result(first, "a", 0, records=7), result(first, "b", 0)])
    changed = lane(0, partition("a", 0), partition("a", 1))
    local_store.put("m1/jobs/tail.json", job([changed]).canonical())
    driver.refresh_job()
    assert [item.key for item in driver.job.partitions] == [("a", 0), ("a", 1)]
    progress = driver.progress()
    assert (progress["partitions_total"], progress["records"]) == (2, 7), "what was counted stays"
    driver.record([result(first, "b", 0, records=9)])
    assert driver.progress()["records"] == 7, "a slice of before the change may still speak of it"
    # Rules of the comparison in the background follow the source's configs.
    proof = ProofSettings(topics={"a": TopicRules(compacted=True, delete_retention_ms=5)})
    local_store.put("m1/jobs/tail.json", job([changed]).model_copy(update={"proof": proof}).canonical())
    driver.refresh_job()
    assert driver.job.proof == proof
    assert driver.progress()["records"] == 7
    # Another owner's job is not ours.
    other = job([first]).model_copy(update={"generation": 2})
    local_store.put("m1/jobs/tail.json", other.canonical())
    driver.refresh_job()
    assert [item.key for item in driver.job.partitions] == [("a", 0), ("a", 1)]


def test_a_seed_keeps_the_partitions_it_began_with(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(module, "_REFRESH_SECONDS_PER_PARTITION", 0.0)
    driver = JobProgress(job([lane(0, partition("a", 0))], "seed"), local_store)
    local_store.put("m1/jobs/seed.json", job([lane(0, partition("b", 0))], "seed").canonical())
    driver.refresh_job()
    assert [item.key for item in driver.job.partitions] == [("a", 0)]


def test_progress_that_cannot_be_stored_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROGRESS_SECONDS", 0.0)

    class Throttled(LocalStore):
        refusing = True

        def put(self, key: str, data: Any) -> None:
            if self.refusing:
                raise StorageUnavailable("SlowDown")
            super().put(key, data)

    store = Throttled(tmp_path)
    only = lane(0, partition("a", 0))
    driver = JobProgress(job([only], "seed"), store)
    driver.record([result(only, "a", 0, done=True, records=4)])
    with pytest.raises(StorageUnavailable):
        driver.check()
    store.refusing = False
    driver.check()
    assert json.loads(store.get("m1/progress/seed.json") or b"")["records"] == 4


@pytest.mark.parametrize(("cluster", "code"), [("target", "TARGET_TOPIC_MISSING"), ("source", "TOPIC_RECREATED")])
def test_a_topic_that_short_slices_miss_one_after_the_other_is_gone(
    cluster: str, code: str, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = lane(0, partition("a", 0))
    driver = JobProgress(job([only]), local_store)
    missing = topic_missing(cluster, "a", 0).as_dict()
    silent = Transient("nobody answers", details={NO_ANSWER: True}).as_dict()
    elsewhere = Transient("no leader", where=Where(cluster=cluster)).as_dict()
    moment = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)

    def after(seconds: float, trouble: dict[str, Any] | None) -> object:
        nonlocal moment
        moment += seconds
        driver.record([result(only, "a", 0, trouble=trouble, trouble_seconds=0.5)])
        troubles = driver.troubles()
        return troubles[0].error["code"] if troubles else None

    assert after(2, missing) == "BROKER_BUSY"
    assert after(6, missing) == "BROKER_BUSY"
    assert after(6, missing) == code
    assert after(2, None) is None, "it is there again"
    assert after(2, missing) == "BROKER_BUSY"
    after(6, elsewhere)
    assert after(6, missing) == "BROKER_BUSY", "another answer in between"
    after(6, silent)
    assert after(6, missing) == code, "a slice without any answer says nothing"
