"""A mirror from beginning to end between simulated clusters: what people ask for, and processes that die meanwhile."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.admin import BUSY, SimAdmin
from phase_world.jobs import MIGRATION
from phase_world.logs import Log
from phase_world.outside import Killed
from phase_world.world import KEYS, World, Worlds, without_probes

from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, Promotion
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    CopyFailed,
    IllegalTransition,
    MigrationError,
    OffsetMapInvalid,
    PermissionMissing,
    Transient,
)
from airflow_provider_kafka_migration.freeze import fence
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.admin.producers import ProducerState, TransactionFacts
from airflow_provider_kafka_migration.lanes import slices
from airflow_provider_kafka_migration.mirrors import ending, group_sync, requests
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.offset_maps import SourcePositions, write_open_map
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import topics_gone
from airflow_provider_kafka_migration.translate import Translator

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "naming": "rename"},
}
ORDERS = ("orders", 0)
BUSY_BROKER = BrokerUnreachable("broker 1 does not answer")


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A mirror that is seeded."""
    return worlds.at("tail", **SECTIONS)


def ask(world: World, want: Any, **more: Any) -> MirrorRequest:
    return requests.write(world.journal_store, MIGRATION, want, by="ann", at="2026-04-24T10:40:00Z", **more)


def mirror_until(world: World, act: Callable[[], object]) -> Any:
    """Run the mirror; once it has copied what is there, this happens, and its copiers are told to stop."""

    def then() -> None:
        world.copiers.then = lambda: None
        act()
        requests.stop_if_asked(world.context().record, world.context().source)
        data = world.journal_store.get(f"{MIGRATION}/jobs/tail.json")
        assert data is not None
        world.copiers.copy(world.copiers.submitted[-1])

    world.copiers.then = then
    return mirror.run(world.context())


def test_it_is_paused_and_goes_on(world: World) -> None:
    result = mirror_until(world, lambda: ask(world, "paused", reason="window"))
    assert result.summary == "paused by ann (window)"
    assert world.state is State.PAUSED
    world.source.log(*ORDERS).write(b"new")
    world.restart()
    assert mirror.run(world.context()).summary.startswith("paused"), "a restart does not let it go on"
    assert world.target.log(*ORDERS).end == 5
    ask(world, "run")
    world.restart()
    mirror_until(world, lambda: ask(world, "paused"))
    assert world.target.log(*ORDERS).end == world.source.log(*ORDERS).end == 6
    assert world.context().journal.history[-4:] == (State.TAIL, State.PAUSED, State.TAIL, State.PAUSED)


def test_a_job_that_ends_unasked_is_an_error(world: World) -> None:
    with pytest.raises(CopyFailed, match="no stop was set"):
        mirror.run(world.context())


def test_it_is_promoted_when_everything_is_copied(world: World) -> None:
    world.source.log(*ORDERS).write(b"last")
    result = mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    assert result.details["possibly_lost"] == 0
    assert result.details["problems"] == []
    found = Promotion.parse(world.stored("results/promotion.json") or b"")
    assert {(item.topic, item.partition): item.mirrored_until for item in found.partitions} == {
        ("orders", 0): 6,
        ("orders", 1): 10,
        ("state", 0): 5,
    }
    assert world.target.topics["orders"].configs["retention.ms"] == "86400000", "its own settings are back"
    assert world.target.groups["billing"].offsets, "the groups were synced for the last time"
    with pytest.raises(IllegalTransition):
        world.context().journal.transition(State.TAIL, "again", from_states={State.PROMOTED})


def test_what_clients_have_written_before_the_promotion_is_not_mirrored(world: World) -> None:
    """They have switched early, after the last record was copied: a mirror back must copy their records."""

    def act() -> None:
        ask(world, "promoted")
        world.target.log(*ORDERS).write(b"a client's", b"own")

    result = mirror_until(world, act)
    assert world.state is State.PROMOTED
    found = Promotion.parse(world.stored("results/promotion.json") or b"")
    rows = {(item.topic, item.partition): item for item in found.partitions}
    first = rows[ORDERS]
    assert (first.mirrored_until, first.target_end_offset, first.source_end_offset) == (5, 5, 5)
    assert (first.log_end_offset, first.of_others) == (7, 2)
    assert rows["orders", 1].of_others == 0
    assert result.details["of_others"] == 2
    assert "2 offsets behind the copy are of others" in result.summary


def test_a_stop_of_an_earlier_promotion_does_not_count_for_the_next(world: World) -> None:
    """It was withdrawn before its copiers had stopped, and producers have gone on since, and stopped."""

    def act() -> None:
        ask(world, "promoted")
        requests.stop_if_asked(world.context().record, world.context().source)
        ask(world, "run")
        requests.stop_if_asked(world.context().record, world.context().source)
        world.source.log(*ORDERS).write(b"new")
        ask(world, "promoted")

    mirror_until(world, act)
    assert world.state is State.PROMOTED
    assert world.target.log(*ORDERS).values() == world.source.log(*ORDERS).values()
    assert not world.steps(steps.REQUEST_REFUSED)


def test_a_source_that_still_moves_is_not_promoted(world: World) -> None:
    """Records that come after the stop: it is refused, and the mirror goes on."""
    asked = []

    def too_early() -> None:
        asked.append(ask(world, "promoted"))
        requests.stop_if_asked(world.context().record, world.context().source)
        world.source.log(*ORDERS).write(b"late")

        def later() -> None:
            refused = requests.read(world.journal_store, MIGRATION)
            assert "producers still write to 1 partitions of the source, the first is orders-0" in refused.refused
            assert refused.want == "run"
            ask(world, "paused")

        world.copiers.then = later

    world.copiers.then = too_early
    mirror.run(world.context())
    assert world.state is State.PAUSED
    assert len(world.steps("request_refused")) == 1
    assert world.target.log(*ORDERS).end == 6, "it went on after the refusal"


def test_a_promotion_that_copied_too_little_is_not_one(world: World) -> None:
    world.source.log(*ORDERS).write(b"last")
    world.copiers.leaves[ORDERS] = 5
    with pytest.raises(CopyFailed, match="have not reached the source's end; the first is at 5 of 6"):
        mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.TAIL
    world.copiers.leaves.clear()
    world.restart()
    mirror.run(world.context())
    assert world.state is State.PROMOTED, "the next run carries the request out"


def test_the_source_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the source's wire nor its admin is asked; what is known to be missing is told."""
    mirror_until(world, lambda: ask(world, "paused"))
    world.source.log(*ORDERS).write(b"lost", b"too")
    progress = {
        "at": "2026-04-24T10:39:00Z",
        "partitions": [{"topic": "orders", "partition": 0, "source_offset": 5, "lag": 2}],
    }
    seed = {"partitions": [{"topic": "state", "partition": 0, "source_offset": 5}]}
    reports = {"seed": seed, "tail": progress}
    monkeypatch.setattr(type(world.context().record), "job_progress", lambda _self, name: reports[name])

    def gone(*_: object) -> None:
        raise BrokerUnreachable("gone")

    context = world.context()
    monkeypatch.setattr(context.source.wire, "list_offsets", gone)
    ask(world, "promoted", source_gone=True)
    result = ending.promote_without_source(context, requests.read(world.journal_store, MIGRATION))
    assert world.state is State.PROMOTED
    assert result.details["possibly_lost"] == 2
    assert "what the source got after 2026-04-24T10:39:00Z" in result.summary
    found = Promotion.parse(world.stored("results/promotion.json") or b"")
    rows = {(item.topic, item.partition): (item.mirrored_until, item.source_end_offset) for item in found.partitions}
    assert rows[ORDERS] == (5, 7)
    assert rows["state", 0] == (5, -1), "an end that no copier has seen is not a zero"
    assert context.record.tail_stop() is not None, "a copier that wakes up finds that it has to stop"


def test_nothing_is_promoted_before_it_is_mirrored(worlds: Worlds) -> None:
    world = worlds.at("seed", **SECTIONS)
    ask(world, "promoted", source_gone=True)
    with pytest.raises(IllegalTransition, match="cannot be promoted"):
        ending.promote_without_source(world.context(), requests.read(world.journal_store, MIGRATION))
    assert world.state is not State.PROMOTED


def test_it_ends_and_leaves_what_was_copied(world: World) -> None:
    mirror_until(world, lambda: ask(world, "ended"))
    assert world.state is State.ENDED
    assert world.target.log(*ORDERS).end == 5
    assert world.target.topics["orders"].configs["retention.ms"] == "86400000"


@pytest.mark.parametrize("want", ["paused", "promoted", "ended"])
def test_a_process_that_dies_after_any_change(worlds: Worlds, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one carries out what was asked, and copies nothing twice."""
    # The owner of a lane that was killed is this process, which is alive: nobody has to wait for a slice.
    monkeypatch.setattr(slices.Identity, "is_known_dead", lambda _self: True)
    leads_to = {"paused": State.PAUSED, "promoted": State.PROMOTED, "ended": State.ENDED}[want]
    whole = worlds.at("tail", **SECTIONS)
    whole.source.log(*ORDERS).write(b"new")
    whole.context()
    whole.outside.revive()
    mirror_until(whole, lambda: ask(whole, want))
    total = len(whole.outside.changes)
    assert total > 3
    for number in range(total):
        world = worlds.at("tail", **SECTIONS)
        world.source.log(*ORDERS).write(b"new")
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises((Killed, BaseException)):
            mirror_until(world, lambda world=world: ask(world, want))  # type: ignore[misc]
        world.copiers.then = lambda: None
        world.restart()
        ask(world, want)
        mirror.run(world.context())
        assert world.state is leads_to, f"killed after change {number}"
        for name, log in (("orders", world.target.log(*ORDERS)),):
            # A promotion has left its fence behind the records.
            end = log.end - 1 if want == "promoted" else log.end
            assert sorted(log.values()) == list(range(end)) == list(range(6 if want == "promoted" else end)), name
        found = world.context().record.offset_map()
        is_closed = want != "paused" and world.stored("jobs/tail.json") is not None
        assert (found is not None) is is_closed, f"the map of a mirror that died after change {number}"


# -- the finished offset map ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("want", ["promoted", "ended"])
def test_records_of_clients_are_not_taken_for_mirrored_ones(world: World, want: str) -> None:
    """After the end clients write to the target. A client that goes back must read its own records on the source."""
    mirror_until(world, lambda: ask(world, want))
    world.target.log(*ORDERS).write(b"a client's", b"own")
    world.restart()
    translator = Translator(world.context())
    assert translator.last_records()[ORDERS] == (4, 4), "the last record that was mirrored"
    assert translator.offset("orders", 0, 5).is_copied
    assert not translator.offset("orders", 0, 6).is_copied
    assert not translator.offset("orders", 0, 6, "to_source").is_copied


def test_records_of_clients_are_not_taken_for_mirrored_ones_while_it_mirrors(world: World) -> None:
    """Clients have failed over and nobody has promoted the mirror; what goes on at the source has not arrived."""
    mirror_until(world, lambda: ask(world, "paused"))
    world.source.log(*ORDERS).write(b"late 1", b"late 2")
    world.target.log(*ORDERS).write(b"a client's", b"own")
    world.restart()
    translator = Translator(world.context())
    assert translator.last_records()[ORDERS] == (4, 4), "the last record that was mirrored"
    assert translator.offset("orders", 0, 5).is_copied
    assert not translator.offset("orders", 0, 6).is_copied
    assert not translator.offset("orders", 0, 6, "to_source").is_copied


def test_what_copiers_have_not_confirmed_yet_counts_by_the_producer_of_its_batches(world: World) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    world.source.log(*ORDERS).write(b"late 1", b"late 2", b"late 3")
    own = world.context().record.producer_ids().data_producer_id
    world.target.log(*ORDERS).write(b"late 1", b"late 2", producer_id=own)
    world.target.log(*ORDERS).write(b"a client's")
    world.restart()
    translator = Translator(world.context())
    assert translator.offset("orders", 0, 7).is_copied
    assert not translator.offset("orders", 0, 8).is_copied


def test_a_mirror_that_ends_while_the_translator_is_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    real = Translator._target_ends

    def ends(translator: Translator, wanted: Any) -> Any:
        ask(world, "ended")
        finish.run(world.context())
        world.target.log(*ORDERS).write(b"a client's")
        return real(translator, wanted)

    monkeypatch.setattr(Translator, "_target_ends", ends)
    assert Translator(world.context()).last_records()[ORDERS] == (4, 4)


def test_the_map_of_a_promotion_without_the_source_is_finished(world: World) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=True)
    world.restart()
    finish.run(world.context())
    world.target.log(*ORDERS).write(b"a client's")
    assert not Translator(world.context()).offset("orders", 0, 6).is_copied


def test_a_map_of_a_mirror_that_goes_on_does_not_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies when the map is stored and the end is not journaled; then somebody lets the mirror go on."""
    real = ending.store_final

    def then_die(*arguments: Any) -> None:
        real(*arguments)
        raise Killed

    monkeypatch.setattr(ending, "store_final", then_die)
    with pytest.raises(Killed):
        mirror_until(world, lambda: ask(world, "ended"))
    monkeypatch.undo()
    without_probes(monkeypatch)
    world.restart()
    assert world.context().record.offset_map() is None
    ask(world, "run")
    world.source.log(*ORDERS).write(b"more")
    mirror_until(world, lambda: ask(world, "paused"))
    write_open_map(world.context().record, world.context().target)
    assert Translator(world.context()).offset("orders", 0, 6).is_copied, "the map is of the mirror as it is now"
    ask(world, "ended")
    finish.run(world.context())
    assert Translator(world.context()).last_records()[ORDERS] == (5, 5)


def test_a_late_update_does_not_replace_the_finished_map(world: World) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    write_open_map(world.context().record, world.context().target)
    late = world.evidence_store.get(f"{MIGRATION}/offset-map.json")
    assert late is not None
    ask(world, "ended")
    finish.run(world.context())
    world.evidence_store.put(f"{MIGRATION}/offset-map.json", late)
    world.restart()
    found = world.context().record.offset_map()
    assert found is not None
    assert found.complete
    assert not write_open_map(world.context().record, world.context().target)


def test_a_mirror_that_ends_takes_the_lanes_and_stops_its_copiers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is asked for before a new run begins: an earlier copier may still be there."""
    mirror_until(world, lambda: ask(world, "paused"))
    kept: list[int] = []
    real = ending.copy_jobs.lanes_kept

    def lanes_kept(context: Any, phase: str, job: Any) -> Any:
        kept.append(len(job.lanes))
        stop = context.record.tail_stop()
        assert stop is not None
        assert set(stop.offsets.values()) == {0}
        return real(context, phase, job)

    monkeypatch.setattr(ending.copy_jobs, "lanes_kept", lanes_kept)
    ask(world, "run")
    world.restart()
    requests.withdraw_stop(world.context().record)
    ask(world, "ended")
    mirror.run(world.context())
    assert world.state is State.ENDED
    assert kept


def test_a_mirror_whose_map_cannot_be_read_ends_and_is_not_translated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror_until(world, lambda: ask(world, "paused"))

    def broken(*_: object, **__: object) -> None:
        raise OffsetMapInvalid("a page is missing")

    monkeypatch.setattr(ending, "build_document", broken)
    ask(world, "ended")
    result = finish.run(world.context())
    assert result.details["problems"] == ["offset map: a page is missing"]
    assert world.state is State.ENDED
    with pytest.raises(OffsetMapInvalid, match="has no finished offset map"):
        Translator(world.context())


# -- partitions that cannot be copied, and remote topics that are gone -------------------------------------------------

FAILED = {"code": "FOREIGN_DATA", "kind": "terminal", "what": "others write there", "next_step": "stop them"}


@pytest.mark.parametrize(
    ("want", "more", "state"),
    [
        ("paused", {}, State.PAUSED),
        ("ended", {}, State.ENDED),
        ("promoted", {"source_gone": True}, State.PROMOTED),
    ],
)
def test_a_failed_partition_keeps_nobody_from_what_needs_no_copy(
    world: World, want: str, more: dict[str, Any], state: State
) -> None:
    world.copiers.fails[ORDERS] = FAILED
    mirror_until(world, lambda: ask(world, want, **more))
    assert world.state is state


def test_a_failed_partition_is_an_error_of_a_mirror_that_is_to_run(world: World) -> None:
    world.copiers.fails[ORDERS] = FAILED
    with pytest.raises(CopyFailed, match="others write there"):
        mirror_until(world, lambda: None)
    with pytest.raises(CopyFailed, match="others write there"):
        mirror_until(world, lambda: ask(world, "promoted"))


def test_a_driver_that_dies_is_no_pause(world: World) -> None:
    """It has said nothing about partitions, so nobody knows whether its copiers have ended."""
    world.copiers.reported = lambda: (_ for _ in ()).throw(Transient("the driver was killed"))  # type: ignore[assignment]
    with pytest.raises(Transient, match="the driver was killed"):
        mirror_until(world, lambda: ask(world, "paused"))
    assert world.state is State.TAIL


@pytest.mark.parametrize(
    ("want", "more", "state"),
    [("ended", {}, State.ENDED), ("promoted", {"source_gone": True}, State.PROMOTED)],
)
def test_a_remote_topic_that_was_deleted_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, want: str, more: dict[str, Any], state: State
) -> None:
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    mirror_until(world, lambda: ask(world, "paused"))
    del world.target.topics["orders"]
    ask(world, want, **more)
    result = finish.run(world.context())
    assert world.state is state
    assert result.details["problems"][0] == (
        "orders does not exist on the target any more, so nothing is left of its copy"
    )
    document = world.context().record.offset_map()
    assert document is not None
    assert {item.topic for item in document.partitions} == {topic for topic, _ in KEYS} - {"orders"}


def test_a_topic_that_one_broker_still_has_is_not_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    mirror_until(world, lambda: ask(world, "paused"))
    monkeypatch.setattr(SimAdmin, "describe_topics_by_broker", lambda self, names: {1: BUSY_BROKER})
    del world.target.topics["orders"]
    ask(world, "ended")
    with pytest.raises(MigrationError):
        finish.run(world.context())
    assert world.state is State.PAUSED


def test_a_target_without_any_remote_topic_is_not_promoted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    mirror_until(world, lambda: ask(world, "paused"))
    for topic in {topic for topic, _ in KEYS}:
        del world.target.topics[topic]
    ask(world, "promoted", source_gone=True)
    with pytest.raises(IllegalTransition, match="none of its remote topics exists"):
        finish.run(world.context())


# -- what a planned promotion waits for ------------------------------------------------------------------------------


def test_a_promotion_after_an_unanswered_pause_copies_the_rest(world: World) -> None:
    """The copiers have stopped where they were; the next request finds partitions that are behind."""

    def paused_and_promoted() -> None:
        ask(world, "paused")
        requests.stop_if_asked(world.context().record, world.context().source)
        world.source.log(*ORDERS).write(b"last")
        ask(world, "promoted")

    world.copiers.then = lambda: (setattr(world.copiers, "then", lambda: None), paused_and_promoted())  # type: ignore[assignment]
    mirror.run(world.context())
    assert world.state is State.PROMOTED
    assert sorted(world.target.log(*ORDERS).values()) == list(range(6))
    assert [entry.details["partitions"] for entry in world.steps(steps.PROMOTION_ROUND)] == [["orders-0"]]


@pytest.mark.parametrize("is_mapped", [False, True])
def test_rounds_of_a_promotion_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch, is_mapped: bool) -> None:
    """A mapped partition that lacks records is behind, like any other one."""
    monkeypatch.setattr(SourcePositions, "is_mapped", lambda _self, _key: is_mapped)
    world.source.log(*ORDERS).write(b"last")
    world.copiers.leaves[ORDERS] = 5
    with pytest.raises(CopyFailed, match="1 partitions have not reached the source's end; the first is at 5 of 6"):
        mirror_until(world, lambda: ask(world, "promoted"))
    assert len(world.steps(steps.PROMOTION_ROUND)) == 3
    assert world.state is State.TAIL


def test_a_mapped_partition_may_end_in_holes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourcePositions, "is_mapped", lambda _self, _key: True)
    asked = []

    def only_holes(_source: object, key: tuple[str, int], position: int, until: int) -> bool:
        asked.append((key, position, until))
        return True

    monkeypatch.setattr(copy_jobs, "only_holes", only_holes)
    world.source.log(*ORDERS).write(b"as if it were a marker")
    world.copiers.leaves[ORDERS] = 5
    result = mirror_until(world, lambda: ask(world, "promoted"))
    assert asked == [(ORDERS, 5, 6)]
    assert world.state is State.PROMOTED
    assert result.details["possibly_lost"] == 0, "holes are not lost"
    assert Translator(world.context()).offset("orders", 0, 6).is_copied


@pytest.mark.parametrize("gone", [False, True])
def test_a_promotion_is_refused_if_something_is_not_followed(world: World, gone: bool) -> None:
    def change() -> None:
        if gone:
            details = {"topic": "orders", "why": "it was deleted", "policy": "stop"}
            world.context().journal.step(steps.SOURCE_TOPIC_GONE, key="orders", details=details, reason="gone")
        else:
            world.source.topics["orders"].logs.append(Log(0, 0))
        ask(world, "promoted")
        requests.stop_if_asked(world.context().record, world.context().source)

        def later() -> None:
            refused = requests.read(world.journal_store, MIGRATION)
            expected = (
                "source topic orders: it was deleted" if gone else "1 partitions that migrated topics have gained"
            )
            assert expected in refused.refused
            assert refused.want == "run"
            ask(world, "paused")

        world.copiers.then = later

    world.copiers.then = change
    mirror.run(world.context())
    assert world.state is State.PAUSED
    assert len(world.steps(steps.REQUEST_REFUSED)) == 1


@pytest.mark.parametrize("is_named", [False, True])
def test_a_promotion_is_refused_for_an_open_transaction_that_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Nobody writes any more, so stopping producers would not help: the transaction has to be ended."""
    open_ones = [TransactionFacts("billing-tx", 77, "Ongoing", 1)] if is_named else []
    monkeypatch.setattr(SimAdmin, "open_transactions", lambda _self: open_ones)

    def left_open() -> None:
        log = world.source.log(*ORDERS)
        log.open_from = log.end
        log.write(b"open", producer_id=77)
        log.producers = (ProducerState(77, 0, 0, 0, 0, log.open_from), ProducerState(5, 0, 0, 0, 0, -1))
        ask(world, "promoted")
        requests.stop_if_asked(world.context().record, world.context().source)

        def later() -> None:
            refused = requests.read(world.journal_store, MIGRATION)
            who = "billing-tx (producer id 77)" if is_named else "producer ids [77]"
            assert (
                "open transactions hold back the ends of 1 partitions of the source, the first is orders-0 from "
                f"offset 5 on: {who}."
            ) in refused.refused
            assert "abort --topic orders --partition 0 --start-offset 5" in refused.refused
            ask(world, "paused")

        world.copiers.then = later

    world.copiers.then = left_open
    mirror.run(world.context())
    assert world.state is State.PAUSED


# -- failed mirrors ---------------------------------------------------------------------------------------------------


def promote_while(world: World, error: type[MigrationError], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Promote without the source; the target answers each fence with this error."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error("it cannot be fenced")

    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=True)
    world.restart()
    with monkeypatch.context() as broken:
        broken.setattr(fence, "fence_producer", functools.partial(fence.fence_producer, patience_seconds=0.0))
        broken.setattr(fence, "read_ends", fails)
        return finish.run(world.context())


def test_a_target_that_does_not_answer_the_fence_does_not_end_the_promotion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Transient, match="not fenced yet on 3 partitions of the target; the first is orders-0"):
        promote_while(world, BrokerUnreachable, monkeypatch)
    assert world.state is not State.PROMOTED
    assert world.steps(steps.COPIERS_FENCED) == []
    ask(world, "run")
    world.restart()
    result = finish.run(world.context())
    assert (world.state, result.details["problems"]) == (State.PROMOTED, [])
    found = world.context().record.fence()
    assert found is not None
    assert len(found.markers) == 3


def test_a_partition_that_cannot_be_fenced_is_named_for_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    result = promote_while(world, PermissionMissing, monkeypatch)
    assert world.state is State.PROMOTED
    problems = [f"fence: {key[0]}-{key[1]}: it cannot be fenced" for key in world.context().record.partitions()]
    assert result.details["problems"] == problems
    assert Promotion.parse(world.stored("results/promotion.json") or b"").problems == problems


@pytest.mark.parametrize("passes", [True, False])
def test_the_last_sync_of_groups_is_tried_again_and_what_is_left_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    real = SimAdmin.alter_group_offsets
    pauses: list[float] = []

    def alter(admin: SimAdmin, group: str, offsets: Any) -> Any:
        if len(pauses) >= (2 if passes else 99):
            return real(admin, group, offsets)
        return dict.fromkeys(offsets, BUSY)

    world.source.group("late", orders_0=4)
    monkeypatch.setattr(SimAdmin, "alter_group_offsets", alter)
    monkeypatch.setattr(mirror, "time", SimpleNamespace(sleep=pauses.append))
    result = mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    assert pauses == ([1.0, 3.0] if passes else [1.0, 3.0, 10.0])
    named = [item.split(":")[0] for item in result.details["problems"]]
    assert ("group late" in named) is not passes
    if not passes:
        assert "are NOT done, the first is group" in result.summary


def test_a_promotion_that_is_asked_for_again_is_done_already(world: World) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=True)
    world.restart()
    first = finish.run(world.context())
    world.restart()
    again = finish.run(world.context())
    assert again.already_done
    assert (again.summary, again.details) == (f"the mirror is promoted already: {first.summary}", first.details)
    with pytest.raises(IllegalTransition, match="promoted already"):
        ending.check_mirrored(world.context().record)


@pytest.mark.parametrize("phase", ["topology_copy", "tail"])
def test_a_failed_mirror_can_be_ended(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase, **SECTIONS)
    if phase == "tail":
        mirror_until(world, lambda: ask(world, "paused"))
    working = world.state
    world.context().journal.transition(State.FAILED, "it failed")
    world.restart()
    ask(world, "ended")
    finish.run(world.context())
    assert world.context().journal.history[-3:] == (State.FAILED, working, State.ENDED)
    assert finish.run(world.context()).summary == "the mirror has ended already"


def test_groups_follow_and_are_held_at_the_end_of_the_copy(world: World) -> None:
    """A group that has read more than is mirrored waits at the end; it is never set back."""
    results: list[Any] = []

    def sync() -> int:
        results.append(group_sync.sync_once(world.context()))
        return world.target.groups["billing"].offsets["orders", 0].offset

    def act() -> None:
        world.source.log(*ORDERS).write(b"not", b"yet")
        world.source.group("billing", orders_0=7, orders_1=10)
        assert sync() == 5
        assert world.target.groups["billing"].offsets["orders", 1].offset == 10
        ask(world, "paused")

    mirror_until(world, act)
    held = [item for group in results[0].groups for item in group.offsets if "held at the end" in item.reason]
    assert [(item.topic, item.source_offset, item.target_offset) for item in held] == [("orders", 7, 5)]
    ask(world, "run")

    def later() -> None:
        assert sync() == 7
        world.source.group("billing", orders_0=1)
        assert sync() == 7, "forward only"
        ask(world, "paused")

    mirror_until(world, later)


def test_the_thread_of_the_groups_ends_with_its_block(world: World) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    before = threading.active_count()
    with group_sync.GroupSync(world.context()), requests.RequestWatch(world.context()):
        assert threading.active_count() > before
    assert threading.active_count() == before
