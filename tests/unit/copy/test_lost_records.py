"""Records that are on neither cluster are named, also where a partition looks as if nothing had been copied of it."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from simulated import apis
from simulated.copying import MIGRATION, SimulatedCopy
from simulated.small import KEY, error_code, plain
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy.archive import read_gaps, read_losses
from airflow_provider_kafka_migration.documents.copy import LaneReading, PartitionReading, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.offset_map.transactional import group_name

READING = f"{MIGRATION}/reading/lane-000000.json"
LOGS = [Verdict.EQUAL, Verdict.SHIFTED, Verdict.MAPPED]


def outage(copy: SimulatedCopy, lost: int = 100) -> None:
    """While nobody reads, records are written and deleted; more follow."""
    log = copy.source.log(KEY)
    copy.source.produce("t", [b"lost"] * lost)
    log.delete_until(log.log_end)
    copy.source.produce("t", [b"later"] * 10)


def reading(copy: SimulatedCopy) -> PartitionReading:
    data = copy.store.get(READING)
    assert data is not None
    (item,) = LaneReading.parse(data).partitions
    return item


def forget_reading(copy: SimulatedCopy) -> None:
    """As a migration has it that earlier versions have begun."""
    copy.store.delete(READING)


@pytest.mark.parametrize("verdict", [*LOGS, Verdict.TRANSACTIONAL])
def test_records_deleted_unread_are_a_gap_where_nothing_was_copied_yet(worlds: Worlds, verdict: Verdict) -> None:
    copy = worlds.copy(lambda source: source.create("t"), target={"transaction_version": 2}, verdicts={"t": verdict})
    for _ in range(3):
        assert copy.slice()["t"].done
    outage(copy)
    result = copy.slice()["t"]
    assert (error_code(result), result.records, result.gaps) == ("SOURCE_GAP", 0, [])
    assert "records 0..99 were deleted" in str((result.error or {})["what"])


def test_the_gap_of_such_a_partition_is_recorded_by_policy(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: source.create("t"), job_fields={"on_source_gap": "note"})
    copy.slice()
    outage(copy)
    result = copy.slice()["t"]
    assert (result.done, result.gaps, result.records) == (True, [(0, 100)], 10)
    assert read_gaps([copy.store], MIGRATION) == {KEY: [(0, 100)]}


def test_what_was_there_when_a_partition_was_first_read_may_be_deleted_before_it_is_copied(worlds: Worlds) -> None:
    """The target refuses everything at first, so nothing is copied of what is read."""
    copy = worlds.copy(lambda source: plain(source, 20), job_fields={"on_source_gap": "note"})
    copy.target.fault("code", apis.PRODUCE, times=10**6, code=7, topic="t")
    assert copy.slice(seconds=1.0)["t"].records == 0
    copy.target.faults.clear()
    assert reading(copy).first_end_offset == 20
    copy.source.log(KEY).delete_until(15)
    copy.source.produce("t", [b"more"] * 20)
    assert copy.slice(copy.job(until={"t": 15}))["t"].gaps == []
    # What was written after that was to be copied.
    copy.source.log(KEY).delete_until(30)
    result = copy.slice()["t"]
    assert (result.done, result.gaps, result.records) == (True, [(20, 30)], 10)


def test_a_copier_that_is_killed_soon_has_noted_where_the_log_ended(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a slice stores at its end is missing; the partition was seen empty nevertheless."""
    copy = worlds.copy(lambda source: source.create("t"))
    monkeypatch.setattr("airflow_provider_kafka_migration.copy.read_watch._FIRST_ENDS_SECONDS", 0.0)
    monkeypatch.setattr("airflow_provider_kafka_migration.copy.read_watch.ReadWatch.save", lambda self: None)
    copy.slice(copy.job("tail", until={"t": 10**9}), seconds=1.5)
    assert reading(copy).first_end_offset == 0
    outage(copy)
    assert error_code(copy.slice()["t"]) == "SOURCE_GAP"


# -- the target loses everything --------------------------------------------------------------------------------------


def lose(copy: SimulatedCopy, to: int = 0) -> None:
    """The target's disk is replaced, and the source has deleted a part of what had been copied."""
    copy.source.log(KEY).delete_until(40)
    copy.target.log(KEY).truncate(to)


@pytest.mark.parametrize("target_deletes", [False, True], ids=["migration", "mirror"])
@pytest.mark.parametrize("via", ["direct", "s3"])
@pytest.mark.parametrize("verdict", [*LOGS, Verdict.TRANSACTIONAL])
def test_a_target_that_lost_everything_is_not_a_new_one(
    worlds: Worlds, verdict: Verdict, via: str, target_deletes: bool
) -> None:
    fields = {"target_deletes": target_deletes}
    copy = worlds.copy(lambda source: plain(source, 60, 20), verdicts={"t": verdict}, via=via, job_fields=fields)
    assert copy.slice()["t"].done
    lose(copy)
    result = copy.slice()["t"]
    if verdict is Verdict.TRANSACTIONAL:
        assert error_code(result) == "POSITION_LOST"
        return
    assert result.went_back == [(60, 0)]
    (told,) = read_losses(copy.store, MIGRATION)
    assert (told.from_target_offset, told.to_target_offset, told.source_offset) == (60, 0, 60)
    if via == "s3":
        # The archive has what the source has deleted.
        assert (result.done, result.records, result.error) == (True, 60, None)
        return
    assert (error_code(result), result.records) == ("SOURCE_GAP", 0)
    assert "records 0..39 are on neither cluster" in str((result.error or {})["what"])
    # It stays so, however often the task is cleared.
    assert error_code(copy.slice()["t"]) == "SOURCE_GAP"
    recorded = copy.slice(copy.job(on_source_gap="note"))["t"]
    assert (recorded.done, recorded.gaps, recorded.records) == (True, [(0, 40)], 20)


def test_a_slice_that_finds_the_loss_and_reads_nothing_keeps_it_in_mind(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    assert copy.slice()["t"].done
    copy.target.log(KEY).truncate(0)
    copy.source.fault("code", apis.FETCH, times=10**6, code=9, topic="t")
    copy.slice(seconds=1.0)
    copy.source.faults.clear()
    copy.source.log(KEY).delete_until(40)
    assert error_code(copy.slice()["t"]) == "SOURCE_GAP"


def test_a_loss_that_the_source_heals_is_named(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    assert copy.slice()["t"].done
    copy.target.log(KEY).truncate(20)
    result = copy.slice()["t"]
    assert (result.done, result.records, result.went_back) == (True, 40, [(60, 20)])
    copy.assert_equal("t")
    assert [item.to_target_offset for item in read_losses(copy.store, MIGRATION)] == [20]


def test_a_source_that_has_lost_the_same_records_is_found_out(worlds: Worlds) -> None:
    """Both clusters were on one machine: the copy does not begin anew with what is left of the source."""
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    assert copy.slice()["t"].done
    copy.target.log(KEY).truncate(0)
    copy.source.log(KEY).truncate(20)
    copy.source.produce("t", [b"other"] * 50)
    assert error_code(copy.slice()["t"]) == "SOURCE_TRUNCATED"


def test_a_target_topic_that_was_created_again_has_lost_nothing(worlds: Worlds) -> None:
    """A person has deleted it to have it copied from the source's log start, whatever that is by now."""
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    assert copy.slice()["t"].done
    copy.source.log(KEY).delete_until(40)
    copy.source.produce("t", [b"more"] * 5)
    copy.source.log(KEY).delete_until(62)
    copy.target.delete("t")
    copy.target.create("t", 1)
    result = copy.slice()["t"]
    assert (result.done, result.records, result.gaps, result.went_back) == (True, 3, [], [])
    assert read_losses(copy.store, MIGRATION) == []
    # From then on it is as any other.
    copy.target.log(KEY).truncate(0)
    copy.source.produce("t", [b"more"] * 5)
    copy.source.log(KEY).delete_until(66)
    assert error_code(copy.slice()["t"]) == "SOURCE_GAP"


def test_progress_shows_the_position_of_a_copy_that_an_earlier_version_has_begun(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    with copy.clients() as clients:
        LocalRunner(clients).run(copy.job())
    forget_reading(copy)
    lose(copy)
    assert error_code(copy.slice()["t"]) == "SOURCE_GAP"


def test_progress_of_a_former_topic_of_the_same_name_shows_nothing(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    with copy.clients() as clients:
        LocalRunner(clients).run(copy.job())
    forget_reading(copy)
    key = f"{MIGRATION}/progress/seed.json"
    document = json.loads(copy.store.get(key) or b"{}")
    document["partitions"][0]["topic_id"] = "another"
    copy.store.put(key, json.dumps(document).encode())
    lose(copy)
    assert copy.slice()["t"].error is None


def test_the_progress_of_a_job_names_a_loss_once_and_keeps_it(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: plain(source, 60, 20))
    with copy.clients() as clients:
        LocalRunner(clients).run(copy.job())
        copy.target.log(KEY).truncate(20)
        for _ in range(2):
            document = LocalRunner(clients).run(copy.job())
            (row,) = document["partitions"]  # type: ignore[misc]
            assert row["went_back"] == [[60, 20]]
            assert document["partitions_went_back"] == 1


# -- the position went back -------------------------------------------------------------------------------------------


def went_back(worlds: Worlds, *, forgets: bool = False) -> tuple[SimulatedCopy, PartitionResult]:
    """Copy 70 records; then __consumer_offsets has the position of 30 again, as after an unclean election."""
    copy = worlds.copy(
        lambda source: plain(source, 30, 20), target={"transaction_version": 2}, verdicts={"t": Verdict.TRANSACTIONAL}
    )
    copy.slice()
    key = (group_name(MIGRATION), KEY)
    old = deepcopy(copy.target.coordinators.offsets[key])
    copy.source.produce("t", [b"new%d" % number for number in range(40)], batch=20)
    assert copy.slice()["t"].done
    if forgets:
        copy.store.delete(f"{MIGRATION}/reading/lane-000000.json")
    copy.target.coordinators.offsets[key] = old
    return copy, copy.slice()["t"]


@pytest.mark.parametrize("forgets", [False, True], ids=["noted", "killed before it was noted"])
def test_an_older_position_never_copies_a_second_time(worlds: Worlds, forgets: bool) -> None:
    copy, result = went_back(worlds, forgets=forgets)
    assert (error_code(result), result.records) == ("POSITION_LOST", 0)
    assert "would be copied twice" in str((result.error or {})["what"])
    assert len(copy.target.log(KEY).content()) == 70


def test_progress_knows_the_position_where_others_have_written_much_behind_it(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slice has noted it, and more than is searched lies between the old position and the records."""
    monkeypatch.setattr("airflow_provider_kafka_migration.copy.resuming.in_transactions._LAST_BATCH_BYTES", 1)
    monkeypatch.setattr("airflow_provider_kafka_migration.copy.resuming.in_transactions._BEHIND_BYTES", 1)
    copy = worlds.copy(
        lambda source: plain(source, 30, 20), target={"transaction_version": 2}, verdicts={"t": Verdict.TRANSACTIONAL}
    )
    key = (group_name(MIGRATION), KEY)
    with copy.clients() as clients:
        LocalRunner(clients).run(copy.job())
        old = deepcopy(copy.target.coordinators.offsets[key])
        copy.target.produce("t", [b"of others"] * 100)
        copy.source.produce("t", [b"new"] * 40)
        LocalRunner(clients).run(copy.job())
    copy.store.delete(f"{MIGRATION}/reading/lane-000000.json")
    copy.target.coordinators.offsets[key] = old
    assert error_code(copy.slice()["t"]) == "POSITION_LOST"


def test_what_an_own_transaction_left_aborted_behind_the_position_is_no_copy(worlds: Worlds) -> None:
    """A killed copier leaves records without a commit; the next one goes on, beside those of others."""
    copy = worlds.copy(
        lambda source: plain(source, 30, 20), target={"transaction_version": 2}, verdicts={"t": Verdict.TRANSACTIONAL}
    )
    copy.slice()
    copy.source.produce("t", [b"more"] * 10)
    copy.target.fault("drop_before", apis.END_TXN, times=10**6)
    copy.slice(seconds=1.0)
    copy.target.faults.clear()
    copy.target.produce("t", [b"of others"] * 10)
    result = copy.slice()["t"]
    assert (result.done, result.error) == (True, None)
    values = [record.value for record in copy.target.log(KEY).content().values()]
    assert (values.count(b"more"), values.count(b"of others")) == (10, 10)
