"""A copy whose target deletes records meanwhile, as that of a mirror does: by retention, by its cleaner, by people."""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.copying import SimulatedCopy, visible
from simulated.kill import KillSwitch
from simulated.small import KEY, SMALL_FETCHES, error_code, plain
from simulated.worlds import Worlds
from test_take_over import as_copied

from airflow_provider_kafka_migration.copy.resuming import log_end
from airflow_provider_kafka_migration.documents.copy import LaneReading
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError
from airflow_provider_kafka_migration.kafka.batches.api import Record

DELETING = {"target_deletes": True}


def copied(worlds: Worlds, fill: Any = plain, **fields: Any) -> SimulatedCopy:
    """A copy that has ended its first slice."""
    copy = worlds.copy(fill, job_fields={**DELETING, **fields})
    assert copy.slice()["t"].done
    return copy


def empty(copy: SimulatedCopy) -> int:
    """Delete everything on the target; return its log end."""
    log = copy.target.log(KEY)
    log.delete_until(log.log_end)
    assert not log.batches
    return log.log_end


def assert_goes_on(copy: SimulatedCopy, until: int) -> None:
    """What the source has from an offset on is on the target after one more slice, and nothing else."""
    result = copy.slice()["t"]
    assert (result.done, result.error, result.verdict) == (True, None, Verdict.EQUAL)
    source = {offset: record for offset, record in visible(copy.source.log(KEY)).items() if offset >= until}
    assert source, "there is something to copy"
    assert visible(copy.target.log(KEY)) == source
    assert copy.target.log(KEY).log_end == copy.source.log(KEY).log_end


# -- the log was emptied ----------------------------------------------------------------------------------------------


def test_a_quiet_partition_was_emptied_and_its_producer_forgotten(worlds: Worlds) -> None:
    """The end of the last slice was noted, and the log end is the same since."""
    copy = copied(worlds)
    end = empty(copy)
    copy.target.log(KEY).forget_producers()
    copy.source.produce("t", [b"later"] * 7)
    assert_goes_on(copy, end)


def test_a_partition_that_ends_in_markers_was_emptied(worlds: Worlds) -> None:
    copy = copied(worlds, lambda source: (plain(source), source.transaction("t", [b"x"], commit=True)))
    end = empty(copy)
    assert end == 32
    copy.source.transaction("t", [b"y", b"z"], commit=True)
    assert_goes_on(copy, end)


def test_the_source_has_deleted_the_markers_at_its_end(worlds: Worlds) -> None:
    """Behind the last record there were only markers, so nothing is missing: the note says that all was copied."""
    copy = copied(worlds, lambda source: (plain(source), source.transaction("t", [b"x"], commit=True)))
    copy.source.log(KEY).delete_until(32)
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (result.done, result.error, result.records, result.gaps) == (True, None, 3, [])


def killed_behind_the_note(worlds: Worlds, values: int = 9) -> SimulatedCopy:
    """A copier was killed when it had appended more than the last slice has noted."""
    copy = copied(worlds)
    copy.source.produce("t", [b"%d" % number for number in range(values)])
    switch = KillSwitch(copy.source, copy.target)
    log = copy.target.log(KEY)

    def stop_at_the_end(*, stop: Any) -> None:
        def asked() -> bool:
            if log.log_end == 30 + values:
                switch._die()
            return bool(stop())

        copy.slice(copy.job(until={"t": 30 + values + 5}), stop=asked)

    switch.run(stop_at_the_end)
    assert switch.is_dead
    assert log.log_end == 30 + values
    note = LaneReading.parse(copy.store.get("simulated/reading/lane-000000.json") or b"").partitions[0]
    assert (note.noted_target_offset, note.noted_sequence) == (30, 30), "the kill came before the note"
    return copy


def test_a_killed_copier_and_a_broker_that_remembers(worlds: Worlds) -> None:
    """The sequence has grown by as much as the log end: what is gone were records of the copy, without a hole."""
    copy = killed_behind_the_note(worlds)
    end = empty(copy)
    copy.source.produce("t", [b"later"] * 3)
    assert_goes_on(copy, end)


def test_a_killed_copier_whose_records_the_source_has_deleted_too(worlds: Worlds) -> None:
    copy = killed_behind_the_note(worlds)
    end = empty(copy)
    copy.target.log(KEY).forget_producers()
    copy.source.log(KEY).delete_until(end)
    copy.source.produce("t", [b"later"] * 3)
    assert_goes_on(copy, end)


def test_without_a_proof_the_copy_stops(worlds: Worlds) -> None:
    """The broker has forgotten the producer, and the source still has records that may lack on the target."""
    copy = killed_behind_the_note(worlds)
    empty(copy)
    copy.target.log(KEY).forget_producers()
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("POSITION_UNKNOWN", 0)
    assert result.error is not None
    assert "until the source's log starts at or above 39" in str(result.error["next_step"])
    assert not copy.target.log(KEY).batches
    copy.source.log(KEY).delete_until(39)
    assert_goes_on(copy, 39)


def test_a_hole_that_was_filled_twice_is_no_proof(worlds: Worlds) -> None:
    """A dead copier's markers came late: the log end is one too far, and a guess would lose a record."""
    copy = killed_behind_the_note(worlds)
    copy.target.log(KEY).write_marker(copy.producers.data_producer_id + 9, 0, commit=False)
    empty(copy)
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("POSITION_UNKNOWN", 0)


@pytest.mark.parametrize("grows", [True, False])
def test_a_late_append_arrives_while_the_end_is_proven(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    """The leader's sequence is newer than the log end: with it, the copy would begin behind the wrong record.

    Whatever the log end says when it is read again, a sequence that contradicts the note is no proof.
    """
    copy = copied(worlds)
    end = empty(copy)
    copy.source.produce("t", [b"p%d" % number for number in range(3)], batch=3)
    copy.source.produce("t", [b"q%d" % number for number in range(4)], batch=4)
    log, late = copy.target.log(KEY), copy.source.log(KEY).views()[-2]
    real, asked = log_end.known_sequences, []

    def known(*args: Any) -> Any:
        if not asked and grows:
            log.append(as_copied(late, copy.producers.data_producer_id, 30))
        asked.append(real(*args) if grows or asked else {KEY: 33})
        return asked[-1]

    real_prove, proven = log_end.prove, []

    def prove(*args: Any, **options: Any) -> Any:
        try:
            proven.append(real_prove(*args, **options))
        except MigrationError as error:
            proven.append(type(error))
            raise
        return proven[-1]

    monkeypatch.setattr(log_end, "known_sequences", known)
    monkeypatch.setattr(log_end, "prove", prove)
    result = copy.slice()["t"]
    assert asked[0] == {KEY: 33}
    assert proven == ([] if grows else [BrokerBusy, log_end.EndProof(end, 30)])
    assert (result.done, result.error, result.verdict) == (True, None, Verdict.EQUAL)
    source = {at: record for at, record in visible(copy.source.log(KEY)).items() if at >= end}
    assert visible(log) == source, "nothing is left out, and nothing comes twice"


def test_a_migration_does_not_go_on_with_an_emptied_target(worlds: Worlds) -> None:
    copy = worlds.copy(plain)
    assert copy.slice()["t"].done
    empty(copy)
    copy.source.produce("t", [b"later"])
    assert error_code(copy.slice()["t"]) == "FLOOR_VIOLATED"


def test_a_log_that_ends_beyond_the_source(worlds: Worlds) -> None:
    copy = copied(worlds)
    copy.target.log(KEY).forget_producers()
    copy.target.log(KEY).log_end = 50
    empty(copy)
    copy.source.log(KEY).delete_until(30)
    copy.source.produce("t", [b"later"] * 3)
    assert error_code(copy.slice()["t"]) == "POSITION_UNKNOWN"
    copy.source.produce("t", [b"later"] * 10)
    assert error_code(copy.slice()["t"]) == "POSITION_UNKNOWN"


def test_a_topic_that_is_made_again_forgets_the_note(worlds: Worlds) -> None:
    """The target topic was deleted to be copied again. A note of the former one must not prove anything."""
    copy = copied(worlds)
    copy.target.delete("t")
    copy.target.create("t", max_batch_bytes=20_000_000)
    job = copy.job(until={"t": 10}, **SMALL_FETCHES)
    assert copy.slice(job)["t"].done
    note = LaneReading.parse(copy.store.get("simulated/reading/lane-000000.json") or b"").partitions[0]
    assert note.noted_source_offset == note.noted_target_offset == copy.target.log(KEY).log_end < 30
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_the_target_deletes_while_its_end_is_read(worlds: Worlds) -> None:
    """Between the look at the log's ends and the read of its last records."""
    copy = copied(worlds)
    copy.source.produce("t", [b"later"] * 3)
    copy.target.fault("act", apis.LIST_OFFSETS, times=1, skip=2, action=lambda: empty(copy))
    assert_goes_on(copy, 30)


# -- the target's cleaner ---------------------------------------------------------------------------------------------

COMPACTING = {**DELETING, "target_compacts": ["t"]}


def test_the_target_has_compacted_more_than_the_source(worlds: Worlds) -> None:
    copy = copied(worlds, **COMPACTING)
    log = copy.target.log(KEY)
    assert log.compact_keys(30)
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (result.done, result.error, result.verdict) == (True, None, Verdict.EQUAL)
    assert log.log_end == 33


def test_a_copy_that_must_not_be_compacted_stops(worlds: Worlds) -> None:
    copy = copied(worlds)
    copy.target.log(KEY).compact_keys(30)
    copy.source.produce("t", [b"later"] * 3)
    assert error_code(copy.slice()["t"]) == "FOREIGN_DATA"


def test_a_record_that_nothing_supersedes_must_be_there(worlds: Worlds) -> None:
    copy = copied(worlds, **COMPACTING)
    copy.target.log(KEY).compact({28})
    copy.source.produce("t", [b"later"] * 3)
    assert error_code(copy.slice()["t"]) == "FOREIGN_DATA"


@pytest.mark.parametrize("policy", ["note", "stop"])
def test_a_displaced_record_does_not_supersede_itself(worlds: Worlds, policy: str) -> None:
    """A dead copier's marker came first. What the source had at the record's new place is compacted by now."""

    def fill(source: SimulatedCluster) -> None:
        plain(source)
        for _ in range(4):
            source.log(KEY).write_marker(5, 0, commit=True)

    copy = copied(worlds, fill, **{**COMPACTING, "on_mismatch": policy})
    source, target, producer = copy.source.log(KEY), copy.target.log(KEY), copy.producers.data_producer_id
    copy.source.produce("t", [b"payment"], batch=1)
    target.write_marker(copy.target.coordinators.init("zombie")[0], 0, commit=False)
    target.append(as_copied(source.views()[-1], producer, target.producers[producer].last_sequence + 1))
    copy.source.produce("t", [b"%d" % number for number in range(6)], batch=1)
    source.compact({35, 36, 37})
    result = copy.slice()["t"]
    if policy == "stop":
        assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)
        return
    assert (result.done, result.error, result.verdict) == (True, None, Verdict.MAPPED)
    ours, theirs = (
        [(record.key, record.value) for _, record in sorted(visible(log).items())] for log in (target, source)
    )
    assert ours == theirs, "each record once, in order"


def ends_in_tombstones(worlds: Worlds, *, transactional: bool = False) -> SimulatedCopy:
    """Ten records, and then, in batches of their own, nothing but tombstones."""
    copy = copied(worlds, lambda source: plain(source, 10), **COMPACTING)
    if transactional:
        copy.source.transaction("t", [None, None], commit=True)
        copy.source.transaction("t", [], commit=True)
    else:
        copy.source.produce("t", [None, None, None], batch=3)
    assert copy.slice()["t"].done
    return copy


@pytest.mark.parametrize("source_compacts", [False, True])
def test_the_last_batch_were_tombstones_that_are_gone(worlds: Worlds, source_compacts: bool) -> None:
    """Its empty header has the sequence, and says where it ended."""
    copy = ends_in_tombstones(worlds)
    log = copy.target.log(KEY)
    assert {10, 11, 12} <= log.compact_keys(13, tombstones=True)
    assert log.views()[-1].record_count == 0
    if source_compacts:
        copy.source.log(KEY).compact_keys(13, tombstones=True)
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (result.done, result.error, result.records, result.verdict) == (True, None, 3, Verdict.EQUAL)
    assert log.log_end == 16


@pytest.mark.parametrize("forgotten", [False, True])
def test_tombstones_and_markers_at_the_end_are_gone(worlds: Worlds, forgotten: bool) -> None:
    """Also their header, if the broker has forgotten the producer: then the note of the last slice proves the end."""
    copy = ends_in_tombstones(worlds, transactional=True)
    log = copy.target.log(KEY)
    if forgotten:
        log.forget_producers()
    log.compact_keys(14, tombstones=True)
    log.remove_markers()
    assert (log.views()[-1].record_count == 0) is not forgotten
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (result.done, result.error, result.records, result.verdict) == (True, None, 3, Verdict.EQUAL)
    assert log.log_end == 17


def test_the_end_is_gone_and_nothing_proves_it(worlds: Worlds) -> None:
    copy = ends_in_tombstones(worlds, transactional=True)
    nothing = LaneReading(migration_id="simulated", lane=0)
    copy.store.put("simulated/reading/lane-000000.json", nothing.canonical())
    log = copy.target.log(KEY)
    log.forget_producers()
    log.compact_keys(14, tombstones=True)
    log.remove_markers()
    copy.source.produce("t", [b"later"] * 3)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("POSITION_UNKNOWN", 0)


def without_data(copy: SimulatedCopy) -> None:
    """The cleaner has removed all records of the target, and its brokers have forgotten the producer."""
    log = copy.target.log(KEY)
    log.forget_producers()
    log.compact([at for view in log.views() if not view.is_control for at in range(view.base_offset, view.next_offset)])
    assert log.views()
    assert all(view.is_control for view in log.views())
    assert log.log_start == 0, "a cleaner does not move it"


@pytest.mark.parametrize("policy", ["note", "stop"])
def test_a_compacted_log_has_only_markers_left(worlds: Worlds, policy: str) -> None:
    """The copy goes on where it was noted: copied again from its start, deleted keys would live on, further on."""

    def fill(source: SimulatedCluster) -> None:
        source.create("t")
        source.produce("t", [b"a", b"b", b"c"], batch=1)

    copy = copied(worlds, fill, on_mismatch=policy, target_compacts=["t"])
    for _ in range(3):
        copy.source.transaction("t", [None], commit=True)
    copy.source.transaction("t", [], commit=True)
    assert copy.slice()["t"].done
    without_data(copy)
    end = copy.source.log(KEY).log_end
    copy.source.produce("t", [b"later"])
    result = copy.slice()["t"]
    assert (result.done, result.error, result.verdict, result.records) == (True, None, Verdict.EQUAL, 1)
    assert {at: record.value for at, record in visible(copy.target.log(KEY)).items()} == {end: b"later"}


def test_a_log_that_lost_its_records_is_not_filled_again(worlds: Worlds) -> None:
    """A migration's target deletes nothing: somebody has compacted it."""

    def fill(source: SimulatedCluster) -> None:
        source.create("t")
        source.produce("t", [b"a"], batch=1)
        source.transaction("t", [], commit=True)

    copy = worlds.copy(fill, job_fields={})
    assert copy.slice()["t"].done
    without_data(copy)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("FLOOR_VIOLATED", 0)


# -- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_copiers_are_killed_while_both_sides_delete(worlds: Worlds, seed: int) -> None:
    """Retention and cleaners run on both sides between copiers that are killed anywhere.

    Whatever a record's fate is, the target never has another one at its offset, and has each that both sides keep.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)

    def fill(source: SimulatedCluster) -> None:
        for topic in ("t", "u"):
            source.create(topic)
            source.produce(topic, [b"%d" % number for number in range(20)])

    copy = worlds.copy(fill, job_fields={**DELETING, "target_compacts": ["u"]})
    ever: dict[str, dict[int, Record]] = {"t": {}, "u": {}}
    unknown = 0
    for _ in range(25):
        switch = KillSwitch(copy.source, copy.target, at=chance.randint(1, 60), after=chance.random() < 0.5)
        switch.run(copy.slice)
        for topic in ("t", "u"):
            source, target = copy.source.log((topic, 0)), copy.target.log((topic, 0))
            copy.source.produce(
                topic, [None if chance.random() < 0.2 else chance.randbytes(9) for _ in range(chance.randint(1, 9))]
            )
            if topic == "t" and chance.random() < 0.5:
                copy.source.transaction(topic, [b"committed"], commit=chance.random() < 0.7)
            ever[topic].update(visible(source))
            if topic == "t" and chance.random() < 0.4:
                target.delete_until(chance.randint(target.log_start, target.log_end))
            if topic == "t" and chance.random() < 0.4:
                source.delete_until(min(target.log_end, chance.randint(source.log_start, source.log_end)))
            if topic == "u" and chance.random() < 0.5:
                target.compact_keys(chance.randint(0, target.log_end), tombstones=chance.random() < 0.5)
            if topic == "u" and chance.random() < 0.5:
                source.compact_keys(min(target.log_end, chance.randint(0, source.log_end)))
            if chance.random() < 0.2:
                target.forget_producers()
    for result in copy.slice().values():
        if result.error is not None:
            # The source may have deleted what no note says to be copied: markers at the end do not tell.
            assert error_code(result) in ("POSITION_UNKNOWN", "SOURCE_GAP")
            unknown += 1
            continue
        assert result.verdict is Verdict.EQUAL
        source, target = copy.source.log((result.topic, 0)), copy.target.log((result.topic, 0))
        assert target.log_end == source.log_end
        there = visible(target)
        assert all(ever[result.topic][offset] == record for offset, record in there.items())
        latest = {record.key: offset for offset, record in sorted(ever[result.topic].items())}
        for offset, record in visible(source).items():
            if result.topic == "t":
                assert offset < target.log_start or offset in there, f"{offset} is missing"
            elif record.value is not None and latest[record.key] == offset:
                assert offset in there, f"{offset} is missing"
    print(f"{unknown} partitions without a proof")
    assert copy.target.requests.count(apis.PRODUCE) > 10
