"""A planned promotion that stops the producers itself: in order, within its limit, and whoever dies when."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import PRODUCER_ACL, World, Worlds
from test_mirror_phase import ORDERS, SECTIONS, ask

from airflow_provider_kafka_migration.checks import access
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, Promotion
from airflow_provider_kafka_migration.drift import source_drift
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    CopyFailed,
    ForeignData,
    FreezeFailed,
    MigrationError,
    PhaseOver,
    StillFrozen,
    Where,
)
from airflow_provider_kafka_migration.freeze import frozen, open_freeze, stops
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.lanes import slices
from airflow_provider_kafka_migration.mirrors import ending, last_looks, promotion_freeze, requests
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.offset_maps import write_open_map
from airflow_provider_kafka_migration.state import State
from harness.webhook import Call
from harness.webhook import FreezeWebhook as Receiver

FREEZE = {**SECTIONS, "cutover": {"freeze": "acl"}}
LIMIT_SECONDS = 60.0
DENY = Acl("TOPIC", "orders", "LITERAL", "User:shop", "*", "WRITE", "DENY")


@pytest.fixture(autouse=True)
def _dead_copiers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a lane that was killed is this process, which is alive: nobody has to wait for a slice."""
    monkeypatch.setattr(slices.Identity, "is_known_dead", lambda _self: True)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], World]:
    """Let the pauses of a promotion pass on the clock of a world."""

    def use(world: World) -> World:
        time = SimpleNamespace(sleep=world.clock.sleep, monotonic=world.clock.seconds)
        for module in (promotion_freeze, last_looks):
            monkeypatch.setattr(module, "time", time)
        return world

    return use


@pytest.fixture
def world(worlds: Worlds, timed: Callable[[World], World]) -> World:
    return timed(worlds.at("tail", **FREEZE))


# -- the processes ----------------------------------------------------------------------------------------------------


def look(world: World) -> None:
    """What runs beside the copiers does once a second; then they go on up to their stop."""
    context = world.context()
    request = requests.stop_if_asked(context.record, context.source)
    try:
        promotion_freeze.advance(context, request)
    except MigrationError as error:
        world.told.append(error)  # type: ignore[attr-defined]
    data = world.journal_store.get(f"{MIGRATION}/jobs/tail.json")
    assert data is not None
    world.copiers.copy(CopyJob.parse(data))


def go(world: World, *acts: Callable[[], object]) -> Any:
    """Run the mirror. Each time its copiers have copied what is there, the next of these happens, and a look follows.

    After the last one somebody asks for a pause, if the mirror is still there.
    """
    left = list(acts)
    world.told = []  # type: ignore[attr-defined]

    def then() -> None:
        # Copiers of the simulation have copied what is there and would end; real ones go on until they have a stop.
        for _ in range(10):
            if left:
                left.pop(0)()
            elif world.context().record.tail_stop() is None:
                ask(world, "paused")
            look(world)
            if world.context().record.tail_stop() is not None:
                return
        raise AssertionError("nobody has stopped the copiers")

    world.copiers.then = then
    try:
        return mirror.run(world.context())
    finally:
        world.copiers.then = lambda: None


def nothing() -> None:
    return None


def promoted(world: World) -> Any:
    """Promote a world that was asked to; both copies end equal."""
    result = go(world, nothing)
    check_promoted(world)
    return result


def check_promoted(world: World) -> None:
    assert world.state is State.PROMOTED
    found = Promotion.parse(world.stored("results/promotion.json") or b"")
    for item in found.partitions:
        source = world.source.log(item.topic, item.partition)
        target = world.target.log(item.target_topic, item.partition)
        assert target.values() == source.values(), item.topic
    assert found.late_writes == {}


def frozen_world(world: World, *, verified: bool = True, denies: bool = True) -> World:
    """Take a mirror to where producers are stopped and its process has died."""
    ask(world, "promoted")

    def die(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        if verified:
            patch.setattr(world.copiers, "reported", die)
        else:
            patch.setattr(promotion_freeze, "verify", die)
        with pytest.raises(Killed):
            go(world, nothing)
    world.restart()
    assert world.denied == ({"User:shop"} if denies else set())
    return world


def check_lifted(world: World, why: str) -> None:
    """Producers are free, the request is turned down once, and the mirror is not promoted."""
    assert world.denied == set()
    check_refused(world, why)
    assert not world.steps(steps.PROMOTED)
    attempt = world.context().record.freeze()
    assert attempt is not None
    assert attempt.lifted


def check_refused(world: World, why: str) -> None:
    [step] = world.steps(steps.REQUEST_REFUSED)
    assert why in step.reason
    answer = MirrorRequest.parse(world.stored(keys.mirror_request(int(step.step_key or 0) + 1)) or b"")
    assert (answer.want, answer.refused) == ("run", step.reason)


def goes_on(world: World) -> None:
    """The mirror goes on after a lift: what producers write then arrives."""
    ask(world, "run")
    world.restart()
    world.source.log(*ORDERS).write(b"after the lift")
    go(world, nothing)
    assert world.state is State.PAUSED
    assert world.target.log(*ORDERS).values() == world.source.log(*ORDERS).values()


# -- in order ---------------------------------------------------------------------------------------------------------


def test_producers_are_stopped_before_the_end_is_read_and_stay_so(world: World) -> None:
    world.source.log(*ORDERS).write(b"last")
    ask(world, "promoted")
    result = promoted(world)
    assert world.denied == {"User:shop"}
    journal = world.context().journal
    names = (steps.FREEZE_REQUESTED, steps.FREEZE_ACLS, steps.FREEZE_VERIFIED, steps.PROMOTED, steps.COPIERS_FENCED)
    found = [entry.step for entry in journal.steps() if entry.step in {*names, steps.FREEZE_LIFTED}]
    assert found == list(names)
    assert result.details["freeze"]["deny_acls"] == 1
    assert "producers are stopped by 1 DENY ACLs on the source and stay so" in result.summary
    assert result.details["problems"] == []
    attempt = world.context().record.freeze()
    assert attempt is not None
    assert (attempt.ready, attempt.is_open, attempt.request) == (True, False, 1)
    open_now = open_freeze.read(world.context())
    assert open_now is not None
    assert open_now.standing is Standing.SWITCHING, "producers are still stopped, and the line stays"
    assert world.target.topics["orders"].configs["retention.ms"] == "86400000", "its own settings are back"


def test_what_is_written_until_the_freeze_arrives(world: World) -> None:
    """A producer writes until it is refused: its last record came while it was asked to stop."""
    real = stops.freeze

    def freeze(*given: Any) -> Any:
        world.source.log(*ORDERS).write(b"acknowledged just now")
        return real(*given)

    ask(world, "promoted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stops, "freeze", freeze)
        promoted(world)
    assert b"acknowledged just now" in world.target.log(*ORDERS).values().values()


def test_nobody_is_stopped_while_the_copiers_are_far_behind(world: World) -> None:
    world.change_spec(tail={"drain_max_partition_lag": 3})
    ask(world, "promoted")

    def behind() -> None:
        world.source.log(*ORDERS).write(*[b"more"] * 4)

    def caught_up() -> None:
        looked.append(len(world.steps(steps.FREEZE_REQUESTED)))
        assert world.context().record.tail_stop() is None

    looked: list[int] = []
    go(world, behind, caught_up)
    assert looked == [0]
    check_promoted(world)
    assert len(world.steps(steps.FREEZE_REQUESTED)) == 1


def test_a_paused_mirror_catches_up_before_producers_are_stopped(world: World) -> None:
    go(world, lambda: ask(world, "paused"))
    world.source.log(*ORDERS).write(*[b"more"] * 100)
    ask(world, "promoted")
    world.restart()
    world.copiers.submitted.clear()
    promoted(world)
    assert len(world.copiers.submitted) == 1, "the stop of the pause does not end its job"
    [begun] = world.steps(steps.FREEZE_REQUESTED)
    assert begun.details["lag"] == 0


def test_people_stop_the_producers_unless_the_spec_says_otherwise(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    ask(world, "promoted")
    result = go(world, nothing)
    assert world.state is State.PROMOTED
    assert world.denied == set()
    assert not world.steps(steps.FREEZE_REQUESTED)
    assert "producers" not in result.summary


# -- what cannot be stopped -------------------------------------------------------------------------------------------


def test_a_freeze_that_cannot_stop_everybody_is_refused_before_it_begins(world: World) -> None:
    assert world.source.acls is not None
    world.source.acls.add(Acl("TOPIC", "orders", "LITERAL", "User:*", "*", "WRITE", "ALLOW"))
    ask(world, "promoted")
    go(world, nothing)
    check_lifted(world, "User:* may write to 1 topics")
    goes_on(world)


def test_a_partition_that_is_not_followed_keeps_producers_writing(world: World) -> None:
    world.source.topics["orders"].logs.append(type(world.source.log(*ORDERS))(0, 0))
    ask(world, "promoted")
    go(world, nothing)
    check_refused(world, "have gained since the plan")
    check_refused(world, "nothing was frozen")
    assert not world.steps(steps.FREEZE_REQUESTED)


def test_a_producer_that_goes_on_is_named_and_the_freeze_is_lifted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.clock.sleep

    def writing(seconds: float) -> None:
        world.source.log(*ORDERS).write(b"past the ACLs")
        real(seconds)

    ask(world, "promoted")
    monkeypatch.setattr(promotion_freeze.time, "sleep", writing)
    go(world, nothing)
    check_lifted(world, "1 partitions were written to after the freeze; orders-0 got offsets")
    assert isinstance(world.told[0], FreezeFailed)  # type: ignore[attr-defined]
    goes_on(world)


def test_a_record_behind_the_frozen_end_is_seen_by_the_last_look(world: World) -> None:
    ask(world, "promoted")
    go(world, lambda: (look(world), world.source.log(*ORDERS).write(b"late")))
    check_lifted(world, "producers still write to 1 partitions of the source, the first is orders-0")
    goes_on(world)


def test_a_freeze_that_was_given_up_is_lifted_as_soon_as_that_is_possible(world: World) -> None:
    ask(world, "promoted")
    fault = world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
    with pytest.raises(StillFrozen):
        go(world, lambda: (look(world), world.source.log(*ORDERS).write(b"late")))
    assert fault
    assert world.denied
    world.outside.heal()
    world.restart()
    go(world, nothing)
    check_lifted(world, "producers still write to 1 partitions of the source")
    goes_on(world)


def test_an_attempt_that_is_given_up_before_its_acls_are_journaled_denies_nobody(world: World) -> None:
    """Another process gave it up while the source told which ACLs it has: what follows would deny for nothing."""
    ask(world, "promoted")

    def given_up(listing: Any) -> Any:
        context = world.context()
        attempt = context.record.freeze()
        if attempt is not None and not attempt.given_up:
            context.journal.step(steps.FREEZE_GIVEN_UP, attempt.key, {"reason": "given up elsewhere"})
        return listing

    world.outside.fail("source.admin.describe_acls", given_up)
    go(world, nothing)
    assert len(world.steps(steps.FREEZE_REQUESTED)) == len(world.steps(steps.FREEZE_GIVEN_UP)) == 1
    assert not world.steps(steps.FREEZE_ACLS)
    assert "source.admin.create_acls" not in world.outside.calls
    assert world.denied == set()


def test_a_freeze_is_not_lifted_in_the_very_moment_of_the_promotion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen_world(world)
    real = frozen._check_not_ready

    def then_promoted(record: Any, attempt: Any) -> None:
        real(record, attempt)
        record.journal.step(steps.PROMOTED, details={}, reason="promoted by another thread")

    monkeypatch.setattr(frozen, "_check_not_ready", then_promoted)
    context = world.context()
    attempt = context.record.freeze()
    assert attempt is not None
    with pytest.raises(PhaseOver, match="promoted is journaled: it is too late"):
        frozen.lift(context, attempt, reason="late")
    assert world.denied == {"User:shop"}
    assert not world.steps(steps.FREEZE_GIVEN_UP)


def test_copiers_that_fail_for_good_free_the_producers(world: World) -> None:
    ask(world, "promoted")

    def fail() -> None:
        look(world)
        assert world.denied
        world.copiers.fails[ORDERS] = ForeignData("others write there").as_dict()

    with pytest.raises(CopyFailed):
        go(world, fail)
    check_lifted(world, "others write there")
    assert world.state is not State.PROMOTED


@pytest.mark.parametrize("passes", [False, True])
def test_copiers_of_a_job_that_outlives_its_task_free_the_producers_too(world: World, passes: bool) -> None:
    """The task was deferred while they copied; what may pass is tried again within the limit."""
    frozen_world(world)
    failure = (
        CopyFailed("others write there", where=Where()) if not passes else BrokerUnreachable("away", where=Where())
    )

    def end(*_: object) -> None:
        raise failure

    with pytest.raises(type(failure)):
        mirror.JOB_PHASE.wait_until_ended(world.context(), SimpleNamespace(end=end), None)  # type: ignore[arg-type]
    if passes:
        assert world.denied
        assert not world.steps(steps.FREEZE_GIVEN_UP)
    else:
        check_lifted(world, "others write there")


# -- the limit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("who", ["mirror", "guard", "finish"])
def test_an_overdue_freeze_is_lifted_by_whoever_comes_next(world: World, who: str, verified: bool) -> None:
    frozen_world(world, verified=verified)
    world.clock.sleep(LIMIT_SECONDS + 6)
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.is_overdue
    assert "kafka-migration mirror run FILE" in " ".join(found.lines())
    assert found.as_dict()["lift"] == "kafka-migration mirror resume FILE"
    if who == "guard":
        result = world.run("freeze_limit")
        assert result.details == {"watch": True, "nothing_to_lift": True}
        assert "the mirror goes on" in result.summary
    elif who == "finish":
        ask(world, "ended")
        finish.run(world.context())
        assert world.state is State.ENDED
        assert world.denied == set()
        return
    else:
        go(world)
    check_lifted(world, "max_producer_freeze has passed")
    world.restart()
    goes_on(world)


def test_the_limit_passes_while_the_mirror_is_about_to_be_promoted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look is long. The step is not journaled, and what the target needs for copying is still set."""
    real = ending.store_final

    def slow(*given: Any) -> Any:
        world.clock.sleep(LIMIT_SECONDS)
        return real(*given)

    before = dict(world.target.topics["orders"].configs)
    monkeypatch.setattr(ending, "store_final", slow)
    ask(world, "promoted")
    go(world, nothing)
    check_lifted(world, "producers have been frozen for longer than max_producer_freeze (60 s)")
    assert world.target.topics["orders"].configs == before
    monkeypatch.undo()
    assert world.state is State.PAUSED


def test_the_guard_lifts_it_in_the_very_moment_of_the_promotion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = promotion_freeze.described

    def guarded(context: Any) -> Any:
        world.clock.sleep(LIMIT_SECONDS + 6)
        world.run("freeze_limit")
        world.clock.at = began
        return real(context)

    ask(world, "promoted")
    began = world.clock.at
    monkeypatch.setattr(promotion_freeze, "described", guarded)
    go(world, nothing)
    check_lifted(world, "max_producer_freeze has passed")
    goes_on(world)


def test_the_guard_does_nothing_once_the_mirror_is_promoted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed behind the step: producers stay stopped for as long as it takes, and the next process completes it."""

    def die(*_: Any) -> None:
        raise Killed

    ask(world, "promoted")
    with monkeypatch.context() as patch:
        patch.setattr(ending, "_fence", die)
        with pytest.raises(Killed):
            go(world, nothing)
    world.restart()
    assert world.steps(steps.PROMOTED)
    world.clock.sleep(3600)
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.READY
    assert "promoted is journaled" in found.lines()[0]
    look(world)
    result = world.run("freeze_limit")
    assert "producers stay stopped" in result.summary
    for want in ("run", "paused", "ended"):
        ask(world, want)
        world.restart()
    mirror.run(world.context())
    check_promoted(world)
    assert world.denied == {"User:shop"}
    assert not world.steps(steps.FREEZE_LIFTED)
    assert len(world.steps(steps.FREEZE_REQUESTED)) == 1
    assert world.run("freeze_limit").already_done


def test_the_guard_of_a_mirror_that_stops_nobody_ends(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    assert world.run("freeze_limit").details["watch"] is False


# -- people -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("want", ["run", "paused", "ended"])
@pytest.mark.parametrize("verified", [True, False])
def test_another_request_lifts_it(world: World, want: str, verified: bool) -> None:
    frozen_world(world, verified=verified)
    ask(world, want)
    go(world)
    assert world.denied == set()
    assert world.state is {"run": State.PAUSED, "paused": State.PAUSED, "ended": State.ENDED}[want]
    assert len(world.steps(steps.FREEZE_LIFTED)) == 1
    assert not world.steps(steps.REQUEST_REFUSED)


def test_another_request_lifts_it_while_the_source_is_watched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = world.clock.sleep, []

    def pause(seconds: float) -> None:
        real(seconds)
        if not asked:
            asked.append(ask(world, "run"))

    ask(world, "promoted")
    monkeypatch.setattr(promotion_freeze.time, "sleep", pause)
    go(world, nothing, lambda: look(world))
    assert asked
    assert world.denied == set()
    assert world.state is State.PAUSED


def test_a_second_request_to_promote_goes_on_with_the_same_freeze(world: World) -> None:
    frozen_world(world)
    ask(world, "promoted")
    promoted(world)
    assert len(world.steps(steps.FREEZE_REQUESTED)) == 1


def test_a_request_after_a_lift_begins_a_new_freeze(world: World) -> None:
    frozen_world(world)
    world.clock.sleep(LIMIT_SECONDS + 1)
    go(world)
    assert world.denied == set()
    world.source.log(*ORDERS).write(b"in between")
    ask(world, "promoted")
    world.restart()
    promoted(world)
    assert [entry.step_key for entry in world.steps(steps.FREEZE_REQUESTED)] == ["1", "2"]
    assert world.denied == {"User:shop"}


def test_a_source_that_is_gone_is_promoted_with_the_freeze_as_it_is(world: World) -> None:
    frozen_world(world)
    world.outside.fail("source.*", BrokerUnreachable("away"))
    world.clock.sleep(LIMIT_SECONDS + 6)
    with pytest.raises(StillFrozen, match="cannot be lifted") as caught:
        world.run("freeze_limit")
    assert "kafka-acls.sh" in caught.value.next_step
    assert "mirror resume FILE" in caught.value.next_step
    ask(world, "promoted", source_gone=True)
    world.restart()
    assert world.run("freeze_limit").details["watch"], "it is left as it is"
    result = finish.run(world.context())
    assert world.state is State.PROMOTED
    assert "producers are stopped by 1 DENY ACLs" in result.summary
    assert world.denied == {"User:shop"}


def test_a_promotion_without_the_source_says_that_it_stops_nobody(world: World) -> None:
    go(world, lambda: ask(world, "paused"))
    ask(world, "promoted", source_gone=True)
    world.restart()
    result = finish.run(world.context())
    assert "nobody has stopped the producers" in result.summary
    assert not world.steps(steps.FREEZE_REQUESTED)


def test_a_mirror_whose_freeze_cannot_be_lifted_does_not_end_but_mirrors(world: World) -> None:
    frozen_world(world)
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
    ask(world, "ended")
    with pytest.raises(StillFrozen):
        finish.run(world.context())
    with pytest.raises(StillFrozen):
        mirror.run(world.context())
    assert world.state is State.TAIL
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.GIVEN_UP
    ask(world, "run")
    world.restart()
    world.source.log("state", 0).write(b"of somebody else")
    go(world, nothing, world.outside.heal)
    assert world.target.log("state", 0).values() == world.source.log("state", 0).values()
    assert world.denied == set()


# -- kills ------------------------------------------------------------------------------------------------------------


def killed_anywhere(
    worlds: Worlds, timed: Callable[[World], World], make: Callable[[World], World], act: Callable[[World], object]
) -> Any:
    """Yield worlds in which a process that acts was killed after each of its changes."""
    whole = make(timed(worlds.at("tail", **FREEZE)))
    whole.context()
    whole.outside.revive()
    act(whole)
    total = len(whole.outside.changes)
    assert total > 3
    for number in range(total):
        world = make(timed(worlds.at("tail", **FREEZE)))
        world.context()
        world.outside.revive()
        world.outside.dies_after = number
        with pytest.raises(BaseException):  # noqa: B017 - also what a killed process hides behind
            act(world)
        world.copiers.then = lambda: None
        world.restart()
        yield number, world


def asked(world: World) -> World:
    world.source.log(*ORDERS).write(b"last")
    ask(world, "promoted")
    return world


def test_a_process_that_dies_anywhere_is_followed_by_one_that_promotes(
    worlds: Worlds, timed: Callable[[World], World]
) -> None:
    frozen_when_killed = set()
    for number, world in killed_anywhere(worlds, timed, asked, lambda world: go(world, nothing)):
        timed(world)
        frozen_when_killed.add(bool(world.denied))
        world.restart()
        if world.state is not State.PROMOTED:
            go(world, nothing)
        check_promoted(world)
        assert world.denied == {"User:shop"}, f"killed after change {number}"
        assert len(world.steps(steps.FREEZE_REQUESTED)) == 1
        assert not world.steps(steps.FREEZE_LIFTED)
    assert frozen_when_killed == {True, False}


@pytest.mark.parametrize("who", ["mirror", "guard"])
def test_a_process_that_dies_anywhere_is_followed_by_one_that_lifts_after_the_limit(
    worlds: Worlds, timed: Callable[[World], World], who: str
) -> None:
    """Unless the mirror is promoted: then producers stay stopped."""
    ends = set()
    for number, world in killed_anywhere(worlds, timed, asked, lambda world: go(world, nothing)):
        timed(world)
        world.clock.sleep(LIMIT_SECONDS + 6)
        is_promoted = bool(world.steps(steps.PROMOTED))
        was_frozen = bool(world.steps(steps.FREEZE_REQUESTED))
        world.restart()
        if who == "guard":
            world.run("freeze_limit")
        else:
            go(world, nothing)
        ends.add((was_frozen, is_promoted))
        if is_promoted:
            assert world.denied == {"User:shop"}, f"killed after change {number}"
            assert not world.steps(steps.FREEZE_LIFTED)
        elif was_frozen:
            check_lifted(world, "max_producer_freeze has passed")
            world.restart()
            goes_on(world)
    assert ends == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("who", ["mirror", "guard"])
def test_a_process_that_dies_anywhere_in_the_lift_is_followed_by_one_that_completes_it(
    worlds: Worlds, timed: Callable[[World], World], who: str
) -> None:
    def overdue(world: World) -> World:
        frozen_world(world)
        world.clock.sleep(LIMIT_SECONDS + 6)
        return world

    for number, world in killed_anywhere(worlds, timed, overdue, lambda world: world.run("freeze_limit")):
        timed(world)
        world.restart()
        if who == "guard":
            world.run("freeze_limit")
            assert world.denied == set(), f"killed after change {number}"
        world.restart()
        go(world, nothing)
        # The request is turned down before that is journaled.
        answer = MirrorRequest.parse(world.stored(keys.mirror_request(2)) or b"")
        assert (answer.want, "max_producer_freeze has passed" in answer.refused) == ("run", True)
        assert len(world.steps(steps.REQUEST_REFUSED)) <= 1
        assert world.denied == set()
        assert world.state is State.PAUSED
        assert len(world.steps(steps.FREEZE_REQUESTED)) == 1, "no second freeze for the same request"
        world.restart()
        goes_on(world)


# -- what reads of it -------------------------------------------------------------------------------------------------


def test_its_deny_acls_do_not_follow_to_the_target(worlds: Worlds, timed: Callable[[World], World]) -> None:
    sections = {**FREEZE, "topology": {"follow_new": False, "on_source_drift": "repair"}}
    world = frozen_world(timed(worlds.at("tail", **sections)))
    context = world.context()
    assert world.source.acls is not None
    assert DENY in world.source.acls
    drift = source_drift.read_drift(context.record, context.source, context.target, context.record.plan())
    assert not any("DENY" in line for line in drift.lines), drift.lines
    promoted(world)
    assert world.target.acls is not None
    assert not [acl for acl in world.target.acls if acl.permission == "DENY"]
    assert any(acl.principal == PRODUCER_ACL.principal for acl in world.target.acls)


def test_the_open_map_is_not_written_over_a_finished_one_after_a_lifted_freeze(world: World) -> None:
    frozen_world(world)
    assert not write_open_map(world.context().record, world.context().target), "nobody writes it while frozen"
    world.clock.sleep(LIMIT_SECONDS + 1)
    go(world)
    write_open_map(world.context().record, world.context().target)
    late = world.evidence_store.get(f"{MIGRATION}/offset-map.json")
    assert late is not None
    ask(world, "ended")
    finish.run(world.context())
    assert not write_open_map(world.context().record, world.context().target)
    found = world.context().record.offset_map()
    assert found is not None
    assert found.complete


@pytest.mark.parametrize("freeze", ["acl", "manual"])
def test_the_precheck_tells_that_acls_cannot_stop_everybody(world: World, freeze: str) -> None:
    assert world.source.acls is not None
    world.source.acls.add(Acl("TOPIC", "orders", "LITERAL", "User:*", "*", "WRITE", "ALLOW"))
    world.change_spec(cutover={"freeze": freeze})
    context = world.context()
    found = [item.code for item in access.check_denials(context, context.record.plan())]
    assert found == (["B042"] if freeze == "acl" else [])


# -- webhooks ---------------------------------------------------------------------------------------------------------


def with_webhook(worlds: Worlds, url: str) -> World:
    cutover = {"freeze": "webhook", "producer_freeze_webhook": url}
    world = worlds.at("tail", **SECTIONS)
    world.change_spec(cutover=cutover)
    return world


def test_a_webhook_is_asked_to_keep_producers_stopped_before_the_promotion(
    worlds: Worlds, timed: Callable[[World], World]
) -> None:
    with Receiver() as receiver:
        world = timed(with_webhook(worlds, receiver.url))
        ask(world, "promoted")
        result = promoted(world)
    assert [(call.action, call.body["deadline"] is None) for call in receiver.calls] == [
        ("freeze", False),
        ("freeze", True),
    ]
    held, done = world.steps(steps.FREEZE_HELD)[0], world.steps(steps.PROMOTED)[0]
    assert held.seq < done.seq
    assert "by the freeze webhook" in result.summary


def test_a_webhook_that_does_not_hold_is_told_to_free_the_producers(
    worlds: Worlds, timed: Callable[[World], World]
) -> None:
    def refuses_to_hold(call: Call) -> tuple[int, Any] | None:
        return (403, {}) if call.action == "freeze" and call.body["deadline"] is None else None

    with Receiver(answer=refuses_to_hold) as receiver:
        world = timed(with_webhook(worlds, receiver.url))
        ask(world, "promoted")
        go(world, nothing)
    assert [call.action for call in receiver.calls] == ["freeze", "freeze", "unfreeze"]
    check_lifted(world, "refused to keep producers stopped without a deadline")
    goes_on(world)


def test_a_request_to_freeze_that_outlasts_the_limit_is_taken_back(
    worlds: Worlds, timed: Callable[[World], World]
) -> None:
    """The mirror hangs in the middle of it; the guard lifts meanwhile, and the receiver stops producers after that."""

    def hang(_: Call) -> None:
        if len(receiver.calls) == 1:
            world.clock.sleep(LIMIT_SECONDS + 6)
            assert world.run("freeze_limit").details["nothing_to_lift"]

    with Receiver(answer=hang) as receiver:
        world = timed(with_webhook(worlds, receiver.url))
        ask(world, "promoted")
        go(world, nothing)
        # The guard frees them, waits for the request that has no outcome, and frees again; the sender takes it back.
        assert [call.action for call in receiver.calls] == ["freeze", "unfreeze", "unfreeze", "unfreeze"]
    assert world.told == []  # type: ignore[attr-defined]
    check_lifted(world, "max_producer_freeze has passed")
    goes_on(world)


@pytest.mark.parametrize("died", [False, True])
def test_a_promotion_without_the_source_holds_a_webhook_that_has_a_deadline(
    worlds: Worlds, timed: Callable[[World], World], died: bool
) -> None:
    """Also where a process has died between the journal's step and the request."""
    with Receiver() as receiver:
        world = timed(with_webhook(worlds, receiver.url))
        frozen_world(world, denies=False)
        if died:
            world.context().journal.step(steps.FREEZE_HELD, key="1", details={"method": "webhook"})
        ask(world, "promoted", source_gone=True)
        result = finish.run(world.context())
    assert [call.body["deadline"] is None for call in receiver.calls] == [False, True]
    assert result.details["problems"] == []
