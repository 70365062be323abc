"""Lanes that replace schema ids: equal under the id map at each offset, whatever happens to copiers and schemas."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from schema_id_logs import frame_values, framed, id_map, under
from simulated.cluster import SimulatedCluster
from simulated.copying import MIGRATION, SimulatedCopy, visible
from simulated.kill import KillSwitch
from simulated.small import KEY, SMALL_FETCHES, error_code, plain, trouble_code
from simulated.topics import KINDS, fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy import recovery
from airflow_provider_kafka_migration.copy.archive import SegmentIndex
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch, read_batches, records
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key

ID_MAP_KEY = f"{MIGRATION}/schemas/id-map.json"
IDS = {1: 1001, 2: 1002, 3: 3, 4: 2**31 - 1}


def settings(*topics: str, strict: bool = False, parts: str = "value", rewrite: bool = True) -> dict[str, Any]:
    """The job's settings for these topics."""
    return {
        "schema_ids": {
            "id_map_key": ID_MAP_KEY,
            "strict": strict,
            "topics": {topic: {"parts": parts, "rewrite": rewrite} for topic in topics},
        }
    }


def framed_kinds(seed: int, kinds: tuple[str, ...] = KINDS) -> Callable[[SimulatedCluster], None]:
    """Return what fills a source with topics of each kind whose values carry known ids."""

    def fill(source: SimulatedCluster) -> None:
        fill_source(source, seed, kinds=kinds)
        for kind in kinds:
            frame_values(source, kind, IDS)

    return fill


def one_topic(count: int = 30, ids: Iterable[int] = IDS, batch: int = 5) -> Callable[[SimulatedCluster], None]:
    """Return what fills the topic ``t``."""

    def fill(source: SimulatedCluster) -> None:
        plain(source, count, batch)
        frame_values(source, "t", ids)

    return fill


def with_ids(
    worlds: Worlds, fill: Callable[[SimulatedCluster], object], *, known: dict[int, int] = IDS, **options: Any
) -> SimulatedCopy:
    """A copy whose topics all carry ids, and whose id map has the known ones."""
    fields = {**settings("t", *KINDS), **options.pop("job_fields", {})}
    copy = worlds.copy(fill, job_fields=fields, **options)
    copy.store.put(ID_MAP_KEY, id_map(MIGRATION, known))
    return copy


def produce_more(copy: SimulatedCopy, count: int, *, batch: int = 5) -> None:
    """Let the source of ``t`` get more records with ids."""
    numbers = list(IDS)
    copy.source.produce("t", [framed(numbers[place % len(IDS)]) for place in range(count)], batch=batch)


def assert_equal_under_the_map(copy: SimulatedCopy, *topics: str, ids: dict[int, int] = IDS) -> None:
    """At each offset the target has the source's record with the ids of the target."""
    for topic in topics or tuple(copy.source.topics):
        source, target = copy.source.log((topic, 0)), copy.target.log((topic, 0))
        assert visible(target) == under(ids, visible(source))
        assert target.log_end == source.last_stable_offset


def assert_in_order_under_the_map(copy: SimulatedCopy) -> None:
    """The target has the source's records, with its own ids, each once; the offset map leads to them."""
    for topic in copy.source.topics:
        source, target = visible(copy.source.log((topic, 0))), visible(copy.target.log((topic, 0)))
        offset_map = copy.offset_map(topic)
        assert {offset_map.source_of(offset): record._replace(offset=0) for offset, record in target.items()} == {
            offset: record._replace(offset=0) for offset, record in under(IDS, source).items()
        }


# -- whole copies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_topics_of_each_kind(worlds: Worlds, via: Any) -> None:
    copy = with_ids(worlds, framed_kinds(31), via=via)
    assert all(result.done for result in copy.slice().values())
    assert_equal_under_the_map(copy)
    assert visible(copy.target.log(("plain", 0))) != visible(copy.source.log(("plain", 0)))


def test_in_transactions(worlds: Worlds) -> None:
    copy = with_ids(worlds, framed_kinds(32), verdicts=dict.fromkeys(KINDS, Verdict.TRANSACTIONAL))
    assert all(result.done for result in copy.slice().values())
    copy.target.coordinators.settle()
    assert_in_order_under_the_map(copy)


def test_holes_left_out(worlds: Worlds) -> None:
    copy = with_ids(worlds, framed_kinds(33), job_fields={"max_markers": 3})
    assert all(result.done for result in copy.slice().values())
    assert_in_order_under_the_map(copy)


def test_the_archive_keeps_the_bytes_of_the_source(worlds: Worlds) -> None:
    copy = with_ids(worlds, one_topic(), via="s3")
    assert copy.slice()["t"].done
    spec = copy.partitions[0]
    index = SegmentIndex(copy.archive, MIGRATION, "t", 0, spec.topic_id)
    stored: list[bytes] = []
    position = 0
    while (entry := index.find(position)) is not None:
        stored += [bytes(batch.data) for batch in read_batches(index.read(entry).batches)[0]]
        position = entry.until_offset
    assert stored == copy.source.log(KEY).batches
    assert_equal_under_the_map(copy)


def test_a_restore_replaces_ids(worlds: Worlds) -> None:
    copy = with_ids(worlds, framed_kinds(34), via="s3")
    assert all(result.done for result in copy.slice(copy.job("backup")).values())
    copy.references.pop("source")
    assert all(result.done for result in copy.slice(copy.job("restore")).values())
    assert_equal_under_the_map(copy)


def test_a_restore_is_taken_over(worlds: Worlds) -> None:
    copy = with_ids(worlds, one_topic(15), via="s3")
    assert copy.slice(copy.job("backup"))["t"].done
    assert copy.slice(copy.job("restore"))["t"].records == 15
    produce_more(copy, 23)
    assert copy.slice(copy.job("backup"))["t"].done
    copy.references.pop("source")
    again = copy.slice(copy.job("restore"))["t"]
    assert (again.done, again.records, again.error) == (True, 23, None)
    assert_equal_under_the_map(copy)


def test_only_topics_that_need_it(worlds: Worlds) -> None:
    copy = with_ids(worlds, framed_kinds(35), job_fields=settings("plain"))
    assert all(result.done for result in copy.slice().values())
    assert_equal_under_the_map(copy, "plain")
    for topic in KINDS[1:]:
        copy.assert_equal(topic)


def test_topics_whose_ids_are_only_gathered(worlds: Worlds) -> None:
    copy = with_ids(worlds, one_topic(), job_fields=settings("t", rewrite=False))
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def test_batches_that_become_too_large_are_split(worlds: Worlds) -> None:
    """One id compresses well, a hundred random ones do not: the same records need more bytes on the target."""
    chance = random.Random(1)
    ids = {number: chance.randrange(1, 2**31) for number in range(1, 401)}
    found = [Record(number, 1000, None, framed(number + 1, b""), []) for number in range(400)]
    data = encode_batch(found, 1)

    def fill(source: SimulatedCluster) -> None:
        log = source.create("t")
        log.batches, log.log_end = [data], 400

    copy = with_ids(worlds, fill, known=ids, target_limits={"t": len(data) + 20})
    result = copy.slice()["t"]
    assert (result.done, result.error) == (True, None)
    assert len(copy.target.log(KEY).batches) > 1
    assert_equal_under_the_map(copy, ids=ids)


# -- take-overs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 5, 20])
@pytest.mark.parametrize("via", ["direct", "s3"])
def test_a_copy_continues_between_rewritten_batches(worlds: Worlds, batch: int, via: Any) -> None:
    copy = with_ids(worlds, one_topic(23, batch=batch), via=via)
    assert copy.slice()["t"].done
    produce_more(copy, 37, batch=batch)
    second = copy.slice()["t"]
    assert (second.done, second.error, second.records) == (True, None, 37)
    assert_equal_under_the_map(copy)


def test_a_target_with_the_ids_of_the_source_is_not_continued(worlds: Worlds) -> None:
    """The net is still there: what lies on the target must be what this copy would have written."""
    copy = with_ids(worlds, one_topic(), job_fields={"schema_ids": None})
    assert copy.slice()["t"].done
    produce_more(copy, 5)
    result = copy.slice(copy.job(**settings("t")))["t"]
    assert (error_code(result), result.records) == ("FOREIGN_DATA", 0)


def test_a_target_whose_ids_the_map_has_no_more_waits(worlds: Worlds) -> None:
    """A map that lacks what was copied proves nothing against the target's records."""
    copy = with_ids(worlds, one_topic())
    assert copy.slice()["t"].done
    produce_more(copy, 5)
    copy.store.put(ID_MAP_KEY, id_map(MIGRATION, {1: 1001}))
    result = copy.slice(seconds=1.5)["t"]
    assert (trouble_code(result), result.records) == ("SCHEMA_ID_UNKNOWN", 0)
    copy.store.put(ID_MAP_KEY, id_map(MIGRATION, IDS))
    assert copy.slice()["t"].done
    assert_equal_under_the_map(copy)


def test_excess_markers_between_rewritten_batches(worlds: Worlds) -> None:
    copy = with_ids(worlds, one_topic(15))
    assert copy.slice()["t"].done
    produce_more(copy, 15)
    copy.target.log(KEY).write_marker(9, 0, commit=True)
    result = copy.slice()["t"]
    assert (result.done, result.verdict, result.records) == (True, Verdict.MAPPED, 15)
    assert_in_order_under_the_map(copy)


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"via": "s3"},
        {"job_fields": {"max_markers": 3}},
        {"verdicts": dict.fromkeys(KINDS, Verdict.TRANSACTIONAL)},
    ],
    ids=["direct", "s3", "mapped", "transactional"],
)
def test_kills_while_ids_are_replaced(worlds: Worlds, options: dict[str, Any]) -> None:
    for at in range(1, 400, 5):
        copy = with_ids(worlds, framed_kinds(36), **options)
        switch = KillSwitch(copy.source, copy.target, at=at, after=at % 2 == 0)
        switch.run(copy.slice)
        if not switch.is_dead:
            assert at > 10
            return
        results = copy.slice()
        assert all(result.done and not result.error for result in results.values()), results
        copy.target.coordinators.settle()
        assert_in_order_under_the_map(copy)
        worlds.close()
    raise AssertionError("more steps than expected")


# -- unknown ids ------------------------------------------------------------------------------------------------------


def two_topics(source: SimulatedCluster) -> None:
    """Fill ``t``, whose record 17 has the id 99, and ``plain``."""
    one_topic()(source)
    log = source.log(KEY)
    batch = log.views()[3]
    found = [record._replace(value=framed(99)) if record.offset == 17 else record for record in records(batch)]
    log.batches[3] = encode_batch(found, base_offset=15)
    framed_kinds(37, ("plain",))(source)


def test_an_unknown_id_holds_its_partition_only(worlds: Worlds) -> None:
    copy = with_ids(worlds, two_topics, job_fields=SMALL_FETCHES)
    results = copy.slice(seconds=2.5)
    held, other = results["t"], results["plain"]
    assert (other.done, other.error, other.trouble) == (True, None, None)
    assert (trouble_code(held), held.done) == ("SCHEMA_ID_UNKNOWN", False)
    assert (held.source_offset, held.records, held.lag) == (15, 15, 15), "everything before its batch is copied"
    assert held.trouble is not None
    assert "99" in str(held.trouble["what"])
    assert held.trouble["where"]["offset"] == 17  # type: ignore[index]
    assert copy.store.get(wanted_key(MIGRATION, ".", 99)) is not None
    # The next slice finds the same, and the one after the map has grown goes on.
    again = copy.slice(seconds=1.5)["t"]
    assert (trouble_code(again), again.source_offset, again.lag) == ("SCHEMA_ID_UNKNOWN", 15, 15)
    copy.store.put(ID_MAP_KEY, id_map(MIGRATION, {**IDS, 99: 77}))
    last = copy.slice()["t"]
    assert (last.done, last.records, last.trouble, last.lag) == (True, 15, None, 0)
    assert_equal_under_the_map(copy, ids={**IDS, 99: 77})


@pytest.mark.parametrize("via", ["direct", "s3"])
@pytest.mark.parametrize("verdict", [Verdict.EQUAL, Verdict.TRANSACTIONAL])
def test_a_held_partition_goes_on_within_its_slice(worlds: Worlds, via: Any, verdict: Verdict) -> None:
    copy = with_ids(worlds, two_topics, via=via, verdicts={"t": verdict})

    def stop() -> bool:
        """Answer what is wanted, as the synchronization of the schemas does."""
        if copy.store.get(wanted_key(MIGRATION, ".", 99)) is not None:
            copy.store.put(ID_MAP_KEY, id_map(MIGRATION, {**IDS, 99: 77}))
        return False

    result = copy.slice(stop=stop)["t"]
    assert (result.done, result.error, result.trouble) == (True, None, None)
    copy.target.coordinators.settle()
    ids = {**IDS, 99: 77}
    ours = [record._replace(offset=0) for record in visible(copy.target.log(KEY)).values()]
    theirs = [record._replace(offset=0) for record in under(ids, visible(copy.source.log(KEY))).values()]
    assert ours == theirs


def test_all_unknown_ids_of_a_chunk_are_asked_for_together(worlds: Worlds) -> None:
    def fill(source: SimulatedCluster) -> None:
        one_topic(10)(source)
        for number in range(90, 95):
            source.produce("t", [framed(1), framed(number)])
        source.transaction("t", [framed(99)], commit=False)
        source.produce("t", [framed(95)])

    copy = with_ids(worlds, fill)
    assert trouble_code(copy.slice(seconds=1.5)["t"]) == "SCHEMA_ID_UNKNOWN"
    asked = {number for number in range(80, 120) if copy.store.get(wanted_key(MIGRATION, ".", number)) is not None}
    assert asked == set(range(90, 96))


def test_a_held_partition_does_not_run_out_of_patience(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 0.0)
    copy = with_ids(worlds, two_topics)
    result = copy.slice(seconds=1.5)["t"]
    assert (trouble_code(result), result.source_offset) == ("SCHEMA_ID_UNKNOWN", 15)


def test_a_partition_waits_while_there_is_no_map(worlds: Worlds) -> None:
    copy = worlds.copy(one_topic(), job_fields=settings("t"))

    def all_are_wanted() -> bool:
        return all(copy.store.get(wanted_key(MIGRATION, ".", number)) is not None for number in IDS)

    result = copy.slice(stop=all_are_wanted)["t"]
    assert (trouble_code(result), result.records) == ("SCHEMA_ID_UNKNOWN", 0)
    assert all_are_wanted()


def test_unknown_ids_in_aborted_transactions_hold_nothing(worlds: Worlds) -> None:
    def fill(source: SimulatedCluster) -> None:
        one_topic(10)(source)
        source.transaction("t", [framed(99)] * 3, commit=False)
        source.produce("t", [framed(1)] * 3)

    copy = with_ids(worlds, fill)
    assert copy.slice()["t"].done
    assert_equal_under_the_map(copy)
    assert copy.store.get(wanted_key(MIGRATION, ".", 99)) is None


@pytest.mark.parametrize("strict", [False, True])
def test_ids_that_the_source_registry_does_not_have(worlds: Worlds, strict: bool) -> None:
    copy = with_ids(worlds, two_topics, job_fields={**settings("t", "plain", strict=strict), **SMALL_FETCHES})
    copy.store.put(ID_MAP_KEY, id_map(MIGRATION, IDS, absent=[99]))
    results = copy.slice()
    assert results["plain"].done
    if not strict:
        assert results["t"].done
        assert_equal_under_the_map(copy)
        return
    held = results["t"]
    assert (error_code(held), held.records, held.source_offset) == ("SCHEMA_ID_UNRESOLVED", 15, 15)
    assert held.error is not None
    assert (held.error["where"]["partition"], held.error["where"]["offset"]) == (0, 17)  # type: ignore[index]


def test_an_id_map_of_another_migration_stops_the_copy(worlds: Worlds) -> None:
    copy = with_ids(worlds, one_topic())
    copy.store.put(ID_MAP_KEY, id_map("other", IDS))
    result = copy.slice()["t"]
    assert (error_code(result), result.records) == ("DOCUMENT_UNREADABLE", 0)
