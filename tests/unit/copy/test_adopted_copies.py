"""A copy that begins behind content of others: its first marker registers the data id, and nothing below is touched."""

from __future__ import annotations

import random
import time

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster, data_batch
from simulated.copying import SimulatedCopy, visible
from simulated.kill import KillSwitch
from simulated.partition_log import Refused
from simulated.small import KEY, error_code
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, encode_batch, records

#: The boundary of :func:`way_back`.
END = 20
FORWARD_ID = 5


def way_back(worlds: Worlds, *, fenced: bool = True, **options: object) -> SimulatedCopy:
    """Two clusters with 20 equal records, the fence of the copier that had made them equal, and what came after it."""
    source, target = worlds.clusters()
    for cluster in (source, target):
        cluster.create("t")
        cluster.produce("t", [b"%d" % number for number in range(END)])
    if fenced:
        source.log(KEY).write_marker(FORWARD_ID, 1, commit=False)
    _applications(source)
    fields: dict[str, object] = {
        "adopted": {"t": (END, END)},
        "job_fields": {"on_mismatch": "stop", "way_back": True},
        **options,
    }
    return SimulatedCopy(worlds.folder(), source, target, **fields)  # type: ignore[arg-type]


def _applications(source: SimulatedCluster) -> None:
    source.produce("t", [b"a", b"b", b"c"])
    source.transaction("t", [b"committed"] * 3, commit=True)
    source.transaction("t", [b"aborted"] * 2, commit=False)
    source.produce("t", [b"d"] * 7, batch=2)


def control_ids(copy: SimulatedCopy) -> list[tuple[int, int]]:
    """(offset, producer id) of the target's markers."""
    return [(view.base_offset, view.producer_id) for view in copy.target.log(KEY).views() if view.is_control]


def zombie(copy: SimulatedCopy, sequence: int) -> int:
    """Append as a copier with the migration's data id that has this sequence next; return the broker's code."""
    ids = copy.producers
    batch = data_batch(
        [b"zombie"], 0, producer_id=ids.data_producer_id, sequence=sequence, epoch=ids.data_producer_epoch
    )
    try:
        copy.target.log(KEY).append(_plain(batch))
    except Refused as error:
        return error.code
    return 0


def _plain(data: bytes) -> bytes:
    """The batch without the transactional bit, as copiers send it."""
    view = RawBatch(memoryview(data))
    return bytes(
        encode_batch(
            list(records(view)),
            producer_id=view.producer_id,
            producer_epoch=view.producer_epoch,
            base_sequence=view.base_sequence,
        )
    )


def test_the_first_marker_behind_the_boundary_has_the_data_id(worlds: Worlds) -> None:
    copy = way_back(worlds)
    below = list(copy.target.log(KEY).batches)
    assert copy.slice()["t"].done
    copy.assert_equal("t")
    assert copy.target.log(KEY).batches[: len(below)] == below, "what is below the boundary is never touched"
    (first, first_id), *others = control_ids(copy)
    assert (first, first_id) == (END, copy.producers.data_producer_id)
    assert others, "the transactions of applications leave holes, too"
    assert copy.producers.data_producer_id not in {number for _, number in others}


def test_without_a_hole_the_first_batch_is_sent_alone(worlds: Worlds) -> None:
    copy = way_back(worlds, fenced=False)
    assert copy.slice()["t"].done
    copy.assert_equal("t")
    assert copy.producers.data_producer_id not in {number for _, number in control_ids(copy)}


@pytest.mark.parametrize("source_offset", [END - 7, END + 30])
def test_a_shifted_boundary_is_copied_with_one_constant(worlds: Worlds, source_offset: int) -> None:
    source, target = worlds.clusters()
    source.create("t")
    source.produce("t", [b"%d" % number for number in range(source_offset)])
    target.create("t")
    target.produce("t", [b"%d" % number for number in range(END)])
    _applications(source)
    copy = SimulatedCopy(
        worlds.folder(),
        source,
        target,
        verdicts={"t": Verdict.SHIFTED},
        adopted={"t": (source_offset, END)},
        job_fields={"on_mismatch": "stop"},
    )
    assert copy.slice()["t"].done
    shift = END - source_offset
    ours = {offset: record for offset, record in visible(target.log(KEY)).items() if offset >= END}
    theirs = {
        offset + shift: record._replace(offset=offset + shift)
        for offset, record in visible(source.log(KEY)).items()
        if offset >= source_offset
    }
    assert ours == theirs
    assert target.log(KEY).log_end == source.log(KEY).log_end + shift


def test_a_registered_id_takes_only_its_first_sequence(worlds: Worlds) -> None:
    """Killed between the registering marker and the first batch: whoever wakes up with another sequence is refused."""
    copy = way_back(worlds)
    copy.source.log(KEY).truncate(END + 1)
    assert copy.slice()["t"].done
    assert control_ids(copy) == [(END, copy.producers.data_producer_id)]
    assert zombie(copy, 5) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    _applications(copy.source)
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_a_registering_marker_that_arrives_late_is_refused(worlds: Worlds) -> None:
    """It was on its way when its copier died; the next one has registered the id again and has copied."""
    copy = way_back(worlds)
    assert copy.slice()["t"].done
    ids = copy.producers
    with pytest.raises(Refused) as caught:
        copy.target.log(KEY).write_marker(ids.data_producer_id, ids.data_producer_epoch - 1, commit=False)
    assert caught.value.code == error_codes.INVALID_PRODUCER_EPOCH


def test_an_unregistered_id_takes_any_sequence(worlds: Worlds) -> None:
    """What the registering marker is for."""
    copy = way_back(worlds)
    assert zombie(copy, 5) == 0


def test_a_zombie_of_the_copy_before_is_accepted_without_its_fence_and_refused_with_it(worlds: Worlds) -> None:
    """On the source of a way back: the log end means nothing to the broker, only the producer's own sequence does."""
    source, _ = worlds.clusters()
    source.create("t")
    log = source.log(KEY)
    log.append(_plain(data_batch([b"copied"] * 3, 0, producer_id=FORWARD_ID, sequence=0)))
    source.produce("t", [b"application"])
    log.append(_plain(data_batch([b"zombie"], 0, producer_id=FORWARD_ID, sequence=3)))
    log.write_marker(FORWARD_ID, 1, commit=False)
    with pytest.raises(Refused) as caught:
        log.append(_plain(data_batch([b"zombie"], 0, producer_id=FORWARD_ID, sequence=4)))
    assert caught.value.code == error_codes.INVALID_PRODUCER_EPOCH


def test_a_foreign_record_behind_the_boundary_stops_the_copy_and_stays(worlds: Worlds) -> None:
    copy = way_back(worlds)
    copy.target.log(KEY).append(data_batch([b"foreign"], END))
    before = list(copy.target.log(KEY).batches)
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)
    assert copy.target.log(KEY).batches == before
    assert result.error is not None
    assert "way-back leave-out FILE t" in str(result.error["next_step"])


def test_a_foreign_record_in_the_middle_stops_the_copy_and_stays(worlds: Worlds) -> None:
    copy = way_back(worlds)
    assert copy.slice()["t"].done
    copy.target.log(KEY).append(data_batch([b"foreign"], 0))
    before = list(copy.target.log(KEY).batches)
    copy.source.produce("t", [b"later"])
    result = copy.slice()["t"]
    assert error_code(result) == "FOREIGN_DATA"
    assert copy.target.log(KEY).batches == before
    assert result.error is not None
    assert "way-back leave-out FILE t" in str(result.error["next_step"])


def test_nobody_is_told_to_delete_a_topic_that_holds_records_of_others(worlds: Worlds) -> None:
    """Below the boundary is what another tool has copied, or what clients had written before the switch."""
    for is_way_back in (True, False):
        copy = way_back(worlds, job_fields={"on_mismatch": "stop", "way_back": is_way_back})
        copy.target.fault("act", apis.PRODUCE, action=lambda there=copy: _write_beside(there))
        between = copy.slice()["t"]
        behind = copy.slice()["t"]
        for result in (between, behind):
            assert result.error is not None
            assert result.error["code"] == "FOREIGN_DATA"
            advice = str(result.error["next_step"])
            assert "delete nothing" in advice
            assert ("way-back leave-out" in advice) is is_way_back


def _write_beside(copy: SimulatedCopy) -> None:
    copy.target.log(KEY).append(data_batch([b"foreign"], 0))


def test_a_target_that_ends_below_the_boundary_has_lost_records(worlds: Worlds) -> None:
    copy = way_back(worlds)
    copy.target.log(KEY).truncate(END - 5)
    before = list(copy.target.log(KEY).batches)
    result = copy.slice()["t"]
    assert error_code(result) == "FOREIGN_DATA"
    assert result.error is not None
    assert "lost" in str(result.error["what"])
    assert copy.target.log(KEY).batches == before


def test_a_target_that_is_emptied_up_to_the_boundary_is_copied_to(worlds: Worlds) -> None:
    """Retention on the old side may have removed everything below the boundary."""
    copy = way_back(worlds)
    copy.target.log(KEY).delete_until(END)
    assert copy.slice()["t"].done
    copied = {offset: record for offset, record in visible(copy.source.log(KEY)).items() if offset >= END}
    assert visible(copy.target.log(KEY)) == copied
    assert copy.target.log(KEY).log_end == copy.source.log(KEY).log_end


def test_where_markers_are_refused_empty_transactions_fill_the_first_hole(worlds: Worlds) -> None:
    copy = way_back(worlds)
    copy.target.api_keys -= {apis.WRITE_TXN_MARKERS}
    assert copy.slice()["t"].done
    copy.assert_equal("t")
    assert copy.producers.data_producer_id not in {number for _, number in control_ids(copy)}


# -- what the source has deleted since the boundary -------------------------------------------------------------------


def test_a_source_that_has_deleted_only_the_fence_has_lost_nothing(worlds: Worlds) -> None:
    copy = way_back(worlds, adopted_fields={"source_hole_end_offset": END + 1})
    copy.source.log(KEY).delete_until(END + 1)
    result = copy.slice()["t"]
    assert (result.done, result.gaps) == (True, [])
    assert copy.target.log(KEY).log_end == copy.source.log(KEY).log_end
    assert control_ids(copy)[0] == (END, copy.producers.data_producer_id)


@pytest.mark.parametrize("hole_end", [-1, END + 1])
def test_records_that_the_source_has_deleted_since_are_a_gap(worlds: Worlds, hole_end: int) -> None:
    """A copy that begins on an empty partition just starts later; here clients would miss what they had written."""
    copy = way_back(worlds, adopted_fields={"source_hole_end_offset": hole_end})
    copy.source.log(KEY).delete_until(END + 3)
    before = list(copy.target.log(KEY).batches)
    assert error_code(copy.slice()["t"]) == "SOURCE_GAP"
    assert copy.target.log(KEY).batches == before


def test_a_gap_is_recorded_where_the_policy_says_so(worlds: Worlds) -> None:
    copy = way_back(worlds, job_fields={"on_mismatch": "stop", "on_source_gap": "note"})
    copy.source.log(KEY).delete_until(END + 3)
    result = copy.slice()["t"]
    assert (result.done, result.gaps) == (True, [(END, END + 3)])


def tombstones(worlds: Worlds, caught_up_at: float, on_overtaken: str) -> SimulatedCopy:
    """A way back of a compacted topic that has lost a record behind the boundary; it keeps tombstones for an hour."""
    settings = {"retention_ms": {"t": 3_600_000}, "on_overtaken": on_overtaken}
    copy = way_back(
        worlds,
        adopted_fields={"caught_up_at": caught_up_at},
        job_fields={"on_mismatch": "stop", "tombstones": settings},
    )
    copy.source.log(KEY).compact([END + 2])
    return copy


@pytest.mark.parametrize(("hours", "codes"), [(2.0, "TOMBSTONES_OVERTAKEN"), (0.5, None)])
def test_a_way_back_that_begins_late_may_miss_tombstones(worlds: Worlds, hours: float, codes: str | None) -> None:
    """Its copy has begun at the switch, not when its first slice ran."""
    copy = tombstones(worlds, time.time() - hours * 3600, "fail")
    result = copy.slice()["t"]
    assert (None if result.error is None else result.error["code"]) == codes
    assert result.done == (codes is None)


def test_an_unknown_time_of_the_boundary_is_named(worlds: Worlds) -> None:
    copy = tombstones(worlds, -1.0, "fail")
    result = copy.slice()["t"]
    assert (result.done, result.overtaken) == (True, [END])


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("fenced", [True, False])
def test_kills_at_each_step_of_the_first_slice(worlds: Worlds, fenced: bool) -> None:
    """Between the registering marker and the first batch, too: the next copier finds a hole that is filled."""
    for at in range(1, 400):
        for after in (False, True):
            copy = way_back(worlds, fenced=fenced)
            switch = KillSwitch(copy.source, copy.target, at=at, after=after)
            switch.run(copy.slice)
            if not switch.is_dead:
                assert at > 10
                return
            print(f"killed {'after' if after else 'before'} step {at}")
            result = copy.slice()["t"]
            assert (result.done, result.error) == (True, None)
            copy.assert_equal("t")
            worlds.close()
    raise AssertionError("more steps than expected")


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_copier_after_the_other_is_killed(worlds: Worlds, seed: int) -> None:
    """Zombies of killed copiers knock in between; the source gets more records all the time."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    copy = way_back(worlds)
    for _ in range(12):
        switch = KillSwitch(copy.source, copy.target, at=chance.randint(1, 40), after=chance.random() < 0.5)
        switch.run(copy.slice)
        if control_ids(copy):
            state = copy.target.log(KEY).producers[copy.producers.data_producer_id]
            assert zombie(copy, state.last_sequence + 2) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        copy.source.transaction("t", [b"aborted"] * chance.randint(1, 3), commit=False)
        copy.source.produce("t", [b"%d" % number for number in range(chance.randint(1, 9))])
    assert copy.slice()["t"].done
    copy.assert_equal("t")
