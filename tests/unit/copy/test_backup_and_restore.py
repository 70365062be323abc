"""A source goes to segments, and from segments to another cluster: the offsets and the content stay."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.copying import MIGRATION, SimulatedCopy
from simulated.kill import KillSwitch
from simulated.small import KEY, SMALL_FETCHES, error_code, plain, trouble_code, with_hole
from simulated.topics import KINDS, fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch, records


def backed_up(worlds: Worlds, fill: Any, **options: Any) -> SimulatedCopy:
    """A copy whose source is backed up and then gone."""
    copy = worlds.copy(fill, via="s3", **options)
    results = copy.slice(copy.job("backup"))
    assert all(result.done and result.target_offset == -1 for result in results.values()), results
    assert copy.target.requests.count(apis.PRODUCE) == 0 or "holey" in copy.source.topics
    copy.references.pop("source")
    return copy


def test_topics_of_each_kind(worlds: Worlds) -> None:
    copy = backed_up(worlds, lambda source: fill_source(source, 21))
    assert all(result.done for result in copy.slice(copy.job("restore")).values())
    for topic in KINDS:
        copy.assert_equal(topic)


def test_a_second_backup_continues_where_the_archive_ends(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3")
    assert copy.slice(copy.job("backup"))["t"].source_bytes > 0
    again = copy.slice(copy.job("backup"))["t"]
    assert (again.done, again.source_bytes) == (True, 0)
    copy.source.produce("t", [b"later"])
    later = copy.slice(copy.job("backup"))["t"]
    assert (later.done, later.records, later.source_offset) == (True, 1, 31)
    assert copy.slice(copy.job("restore"))["t"].done
    copy.assert_equal("t")


def test_a_copy_through_the_archive_reads_it_first(worlds: Worlds) -> None:
    """What the archive has is not read from the source again."""
    copy = worlds.copy(with_hole, via="s3")
    assert copy.slice(copy.job("backup"))["t"].done
    result = copy.slice()["t"]
    assert (result.done, result.source_bytes) == (True, 0)
    copy.assert_equal("t")


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_kills_of_a_backup(worlds: Worlds, after: bool) -> None:
    for at in range(1, 100, 2):
        copy = worlds.copy(lambda source: fill_source(source, 22), via="s3")
        switch = KillSwitch(copy.source, copy.target, at=at, after=after)
        switch.run(copy.slice, copy.job("backup"))
        assert all(result.done for result in copy.slice(copy.job("backup")).values())
        assert all(result.done for result in copy.slice(copy.job("restore")).values())
        for topic in KINDS:
            copy.assert_equal(topic)
        worlds.close()
        if not switch.is_dead:
            assert at > 5
            return
    raise AssertionError("more steps than expected")


@pytest.mark.slow
def test_kills_of_a_restore(worlds: Worlds) -> None:
    for at in range(1, 100, 3):
        copy = backed_up(worlds, lambda source: fill_source(source, 23))
        switch = KillSwitch(copy.source, copy.target, at=at, after=True)
        switch.run(copy.slice, copy.job("restore"))
        assert all(result.done for result in copy.slice(copy.job("restore")).values())
        for topic in KINDS:
            copy.assert_equal(topic)
        worlds.close()
        if not switch.is_dead:
            assert at > 5
            return
    raise AssertionError("more steps than expected")


def test_a_restore_of_a_target_that_differs_stops(worlds: Worlds) -> None:
    """Without the source, the segments show that the end of the target is not theirs."""
    copy = backed_up(worlds, plain)
    assert copy.slice(copy.job("restore"))["t"].done
    target = copy.target.log(KEY)
    last = target.views()[-1]
    *others, changed = records(last)
    target.batches[-1] = encode_batch(
        [*others, changed._replace(value=b"changed")],
        producer_id=last.producer_id,
        producer_epoch=last.producer_epoch,
        base_sequence=last.base_sequence,
    )
    assert error_code(copy.slice(copy.job("restore"))["t"]) == "FOREIGN_DATA"


def test_a_damaged_segment_is_not_restored(worlds: Worlds) -> None:
    copy = backed_up(worlds, plain)
    [segment] = [info.key for info in copy.archive.list("") if info.key.endswith(".log")]
    data = copy.archive.get(segment) or b""
    copy.archive.put(segment, data[:-1] + bytes([data[-1] ^ 1]))
    result = copy.slice(copy.job("restore"), seconds=1.5)["t"]
    assert not result.done
    assert (result.error or result.trouble) is not None
    assert copy.target.log(KEY).content() == {}


# -- troubles of a backup ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("api", [apis.FETCH, apis.METADATA])
def test_connections_that_break(worlds: Worlds, api: int, kind: Any) -> None:
    copy = worlds.copy(with_hole, via="s3", job_fields=SMALL_FETCHES)
    copy.source.fault(kind, api, skip=1)
    result = copy.slice(copy.job("backup"))["t"]
    assert (result.done, result.error) == (True, None)
    assert copy.slice(copy.job("restore"))["t"].done
    copy.assert_equal("t")


def test_what_was_deleted_before_it_was_archived(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3", job_fields=SMALL_FETCHES)
    assert copy.slice(copy.job("backup"))["t"].done
    copy.source.produce("t", [b"lost"] * 10)
    copy.source.produce("t", [b"kept"] * 5)
    copy.source.log(KEY).delete_until(40)
    assert error_code(copy.slice(copy.job("backup"))["t"]) == "SOURCE_GAP"
    result = copy.slice(copy.job("backup", on_source_gap="note"))["t"]
    assert (result.done, result.gaps) == (True, [(30, 40)])
    restored = copy.slice(copy.job("restore"))["t"]
    assert (restored.done, restored.holes) == (True, 10)
    assert sorted(copy.target.log(KEY).content()) == [*range(30), *range(40, 45)]


def test_a_source_that_begins_later_than_planned(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3")
    copy.source.log(KEY).delete_until(10)
    result = copy.slice(copy.job("backup"))["t"]
    assert (result.done, result.gaps) == (True, [])
    assert copy.slice(copy.job("restore"))["t"].done
    copy.assert_equal("t")


def test_a_source_that_lost_what_was_archived(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3")
    assert copy.slice(copy.job("backup"))["t"].done
    copy.source.log(KEY).truncate(20)
    copy.source.produce("t", [b"others"] * 30)
    assert error_code(copy.slice(copy.job("backup"))["t"]) == "SOURCE_TRUNCATED"
    assert index(copy).until_offset(0) == 30


def index(copy: SimulatedCopy) -> SegmentIndex:
    """The segments of the topic."""
    return SegmentIndex(copy.archive, MIGRATION, *KEY, str(copy.source.topics["t"].topic_id))


def test_a_topic_that_was_created_again(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3")
    job = copy.job("backup")
    copy.source.delete("t")
    plain(copy.source)
    assert error_code(copy.slice(job)["t"]) == "TOPIC_RECREATED"


def test_a_topic_that_was_deleted(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3", job_fields={"slice_seconds": 2})
    job = copy.job("backup")
    copy.source.delete("t")
    assert error_code(copy.slice(job, seconds=6)["t"]) == "TOPIC_RECREATED"


def test_a_topic_that_may_not_be_read(worlds: Worlds) -> None:
    copy = worlds.copy(plain, via="s3")
    copy.source.fault("code", apis.FETCH, code=error_codes.TOPIC_AUTHORIZATION_FAILED, times=10**6)
    assert error_code(copy.slice(copy.job("backup"))["t"]) == "PERMISSION_MISSING"


def test_a_partition_without_a_leader_holds_up_no_other(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: fill_source(source, 24), via="s3")
    copy.source.topics["holey"].leaders[0] = -1
    results = copy.slice(copy.job("backup"), seconds=4)
    assert trouble_code(results.pop("holey")) == "BROKER_BUSY"
    assert all(result.done for result in results.values())


def test_a_backup_that_is_asked_to_stop_archives_what_it_has_read(worlds: Worlds) -> None:
    """It follows the source, gathers small chunks, and is stopped before a segment is full."""

    def fill(source: SimulatedCluster) -> None:
        plain(source)

    copy = worlds.copy(fill, via="s3", job_fields={"stop_key": "stop.json", "segment_linger_seconds": 60.0})
    job = copy.job("backup", until={"t": 1000})
    result = copy.slice(job, stop=lambda: copy.source.requests.count(apis.FETCH) > 0)["t"]
    assert (result.done, result.source_offset) == (False, 30)
    assert index(copy).until_offset(0) == 30
