"""What a source gets while its mirror is promoted: refused as long as that is possible, and named after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phase_support import Clock
from phase_world.outside import Killed
from phase_world.world import World, Worlds, without_probes
from test_mirror_phase import ORDERS, SECTIONS, ask, mirror_until

from airflow_provider_kafka_migration.documents.mirror import Promotion
from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.kafka.admin.producers import ProducerState
from airflow_provider_kafka_migration.lanes import slices
from airflow_provider_kafka_migration.mirrors import ending, last_looks, requests
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.at("tail", **SECTIONS)


def write(world: World, value: bytes = b"late") -> None:
    world.source.log(*ORDERS).write(value)


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Do something the first time only."""
    left = [act]

    def call() -> None:
        while left:
            left.pop()()

    return call


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> None:
    """Have something happen right before a function is called for the first time."""
    real, do = getattr(owner, name), once(act)

    def call(*arguments: Any, **options: Any) -> Any:
        do()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


def refused(world: World) -> str:
    """Run the mirror up to a promotion that is refused, and pause it; return why."""
    found: list[str] = []

    def act() -> None:
        ask(world, "promoted")
        requests.stop_if_asked(world.context().record, world.context().source)

        def later() -> None:
            found.append(requests.read(world.journal_store, world.migration_id).refused)
            ask(world, "paused")

        world.copiers.then = later

    world.copiers.then = act
    mirror.run(world.context())
    assert world.state is State.PAUSED
    assert not world.steps(steps.PROMOTED)
    return found[0]


def promotion(world: World) -> Promotion:
    return Promotion.parse(world.stored("results/promotion.json") or b"")


# -- before the promotion ---------------------------------------------------------------------------------------------


def test_a_record_that_comes_during_the_last_sync_of_groups(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, mirror, "_sync_for_the_last_time", lambda: write(world))
    assert "producers still write to 1 partitions of the source, the first is orders-0" in refused(world)
    assert world.target.log(*ORDERS).end == 6, "it went on after the refusal"


def test_a_record_that_comes_within_the_window(world: World, window: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that writes once a second has not stopped, although two looks in a row see the same."""
    sleep = window.sleep

    def pause(seconds: float) -> None:
        began.append(window.seconds())
        sleep(seconds)
        if window.seconds() - began[0] > 1:
            at_the_end()

    began: list[float] = []
    at_the_end = once(lambda: write(world))
    monkeypatch.setattr(last_looks.time, "sleep", pause)
    assert "producers still write to 1 partitions" in refused(world)
    assert world.target.log(*ORDERS).end == 6


def test_the_ends_stand_still_for_the_whole_window(world: World, window: Clock) -> None:
    world.change_spec(cutover={"freeze_stable_window": "45s"})
    began = window.seconds()
    result = mirror_until(world, lambda: ask(world, "promoted"))
    assert window.seconds() - began >= 45
    assert (result.details["problems"], result.details["late_writes"]) == ([], {})
    found = promotion(world)
    assert (found.late_writes, found.not_checked, bool(found.source_checked_at)) == ({}, {}, True)


def test_records_that_are_not_replicated_yet(world: World) -> None:
    """They lie above the high watermark, so no copier sees them; they come to light when the replicas are back."""
    for key in (ORDERS, ("state", 0)):
        world.source.log(*key).write(b"acknowledged by the leader")
        world.source.log(*key).lagging = 1
    why = refused(world)
    assert (
        "the last records of 2 partitions of the source are not on all in-sync replicas yet, so they cannot be copied: "
        "orders-0, state-0; the first has offsets 5 to 5"
    ) in why
    for key in (ORDERS, ("state", 0)):
        world.source.log(*key).lagging = 0
    ask(world, "run")
    world.restart()
    mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    assert world.target.log(*ORDERS).values() == world.source.log(*ORDERS).values()


def test_a_partition_that_appears_within_the_window(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = last_looks.SourceWatch._until_still

    def grown(watch: last_looks.SourceWatch) -> Any:
        found = real(watch)
        grow()
        return found

    grow = once(lambda: world.source.topics["orders"].logs.append(type(world.source.log(*ORDERS))(0, 0)))
    monkeypatch.setattr(last_looks.SourceWatch, "_until_still", grown)
    assert "1 partitions that migrated topics have gained" in refused(world)


@pytest.mark.parametrize("want", ["run", "paused", "promoted"])
def test_a_promotion_that_is_called_off_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch, want: str) -> None:
    """Somebody asks for something else while the groups are synced or the window passes."""
    went_on: list[int] = []

    def act() -> None:
        ask(world, "promoted")
        requests.stop_if_asked(world.context().record, world.context().source)
        world.copiers.then = later

    def later() -> None:
        went_on.append(world.target.log(*ORDERS).end)
        if want == "run":
            assert world.context().record.tail_stop() is None
            ask(world, "paused")

    def change() -> None:
        ask(world, want)

    before(monkeypatch, last_looks.SourceWatch, "wait", change)
    world.copiers.then = act
    mirror.run(world.context())
    assert world.state is (State.PROMOTED if want == "promoted" else State.PAUSED)
    assert len(world.steps(steps.PROMOTED)) == (want == "promoted")
    assert went_on == [5], "the copiers ran once more, and did what was asked for last"


# -- after the fence --------------------------------------------------------------------------------------------------


def promoted_late(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Any:
    """Promote; something happens between the last look and the promotion."""
    before(monkeypatch, ending, "store_final", act)
    result = mirror_until(world, lambda: ask(world, "promoted"))
    assert world.state is State.PROMOTED
    return result


def test_records_that_come_behind_the_last_look_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        world.source.log(*ORDERS).write(b"late", b"too", producer_id=81)
        world.source.log("state", 0).write(b"late")

    result = promoted_late(world, monkeypatch, act)
    late = result.details["late_writes"]
    assert set(late) == {"orders-0", "state-0"}
    assert late["orders-0"].startswith("2 records were written to the source after the promotion's copy had ended")
    assert late["orders-0"].endswith("by producer ids 81")
    assert result.details["problems"] == [
        f"source: {name}: {late[name]}; stop the producer, and have them sent to the target" for name in sorted(late)
    ]
    assert "2 partitions of the source got records meanwhile that are NOT on the target" in result.summary
    found = promotion(world)
    assert (found.late_writes, found.not_checked, found.problems) == (late, {}, result.details["problems"])
    again = ending.promoted_already(world.context().record)
    assert again is not None
    assert again.details["late_writes"] == late


def test_an_open_transaction_that_begins_behind_the_last_look_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        log = world.source.log(*ORDERS)
        log.open_from = log.end
        log.write(b"open", producer_id=77)
        log.producers = (ProducerState(77, 0, 0, 0, 0, log.open_from),)

    late = promoted_late(world, monkeypatch, act).details["late_writes"]
    assert "an open transaction may hold more" in late["orders-0"]


def test_what_cannot_be_read_then_is_not_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        write(world)
        world.outside.fail("source.*", BrokerUnreachable("the source does not answer"))

    result = promoted_late(world, monkeypatch, act)
    assert result.details["not_checked"] == {"source": "the source does not answer"}
    assert result.details["late_writes"] == {}
    assert result.details["problems"] == [
        "source: not checked for records that came meanwhile: the source does not answer"
    ]
    assert "the source could NOT be checked for records that came meanwhile" in result.summary
    assert promotion(world).not_checked == result.details["not_checked"]


def test_what_is_not_replicated_then_is_not_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        write(world)
        world.source.log(*ORDERS).lagging = 1

    result = promoted_late(world, monkeypatch, act)
    assert list(result.details["not_checked"]) == ["orders-0"]
    assert "offsets 5 to 5 are not on all in-sync replicas" in result.details["not_checked"]["orders-0"]
    assert "1 partitions of the source could NOT be checked" in result.summary


def test_a_log_that_was_cut_is_not_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        log = world.source.log(*ORDERS)
        log.batches.clear()
        log.end = 2

    result = promoted_late(world, monkeypatch, act)
    assert "ends at offset 2, before the boundary 5" in result.details["not_checked"]["orders-0"]


@pytest.mark.parametrize("phase", ["mirror", "finish"])
def test_the_last_look_follows_a_kill_between_any_two_steps(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """The process dies somewhere behind the step ``promoted``; a producer writes; the next process names it."""
    monkeypatch.setattr(slices.Identity, "is_known_dead", lambda _self: True)
    whole = worlds.at("tail", **SECTIONS)
    whole.context()
    whole.outside.revive()
    mirror_until(whole, lambda: ask(whole, "promoted"))
    killed = 0
    for number in range(len(whole.outside.changes)):
        world = worlds.at("tail", **SECTIONS)
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises((Killed, BaseException)):
            mirror_until(world, lambda world=world: ask(world, "promoted"))  # type: ignore[misc]
        world.copiers.then = lambda: None
        world.restart()
        if not world.steps(steps.PROMOTED) or world.state is State.PROMOTED:
            continue
        killed += 1
        write(world)
        world.restart()
        result = (mirror if phase == "mirror" else finish).run(world.context())
        assert world.state is State.PROMOTED
        assert list(result.details["late_writes"]) == ["orders-0"], f"killed after change {number}"
        assert list(promotion(world).late_writes) == ["orders-0"]
    assert killed >= 3, "behind the step, the fence and the document"


def test_what_a_killed_process_has_found_stays_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is gone when the next process looks."""
    real = ending._write_promotion

    def then_die(*arguments: Any, **fields: Any) -> None:
        real(*arguments, **fields)
        raise Killed

    monkeypatch.setattr(ending, "_write_promotion", then_die)
    monkeypatch.setattr(slices.Identity, "is_known_dead", lambda _self: True)
    with pytest.raises(Killed):
        promoted_late(world, monkeypatch, lambda: write(world))
    monkeypatch.undo()
    without_probes(monkeypatch)
    monkeypatch.setattr(slices.Identity, "is_known_dead", lambda _self: True)
    world.restart()
    world.outside.fail("source.*", BrokerUnreachable("the source does not answer"))
    result = finish.run(world.context())
    assert list(result.details["late_writes"]) == ["orders-0"]
    assert list(result.details["not_checked"]) == ["source"]
    assert len(result.details["problems"]) == len(promotion(world).problems) == 2


def test_a_promotion_that_is_missing_is_not_nothing(world: World) -> None:
    found = last_looks.read_meanwhile(world.context().record, world.context().source, None)
    assert list(found.unchecked) == ["source"]
    assert found.problems


def test_a_source_that_is_gone_is_not_asked(world: World) -> None:
    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=True)
    world.restart()
    world.outside.fail("source.*", AssertionError("nobody may ask it"))
    result = finish.run(world.context())
    assert world.state is State.PROMOTED
    assert "late_writes" not in result.details
    assert promotion(world).source_checked_at == ""
