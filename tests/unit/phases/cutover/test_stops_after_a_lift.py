"""Requests that stop producers and take effect after the freeze has ended: nobody stays stopped for it.

The simulation runs the real phases, journal and webhook client. A request is late because its process is slow (it lives
and takes back what it did), or because it was killed after sending it (whoever ends the freeze waits, and frees again).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from phase_world.cluster import SimCluster
from phase_world.outside import Killed
from phase_world.registries import SECTION
from phase_world.returning import Returns
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.approvals.way_back import keep_code
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ClaimLost,
    FreezeFailed,
    MigrationError,
    PhaseOver,
    StillFrozen,
)
from airflow_provider_kafka_migration.freeze import deny_acls, frozen, open_freeze, stops, webhook_spec
from airflow_provider_kafka_migration.freeze import webhook as webhook_module
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.freeze.watchdog import FreezePatience
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.phases import freeze, freeze_limit, rollback, tail
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.changes import open_changes
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import lags, topics_gone
from harness.webhook import Call
from harness.webhook import FreezeWebhook as Receiver

LIMIT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "SMALL_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(topics_gone, "PAUSE_SECONDS", 0.0)
    without_probes(monkeypatch)
    quick = {**webhook_module.FreezeWebhook.__init__.__kwdefaults__, "sleep": lambda _: None}
    monkeypatch.setattr(webhook_module.FreezeWebhook.__init__, "__kwdefaults__", quick)


class Producers:
    def __init__(self) -> None:
        self.stopped = False

    def freeze(self) -> None:
        self.stopped = True

    def unfreeze(self) -> None:
        self.stopped = False


@pytest.fixture
def producers() -> Producers:
    return Producers()


@pytest.fixture
def receiver(producers: Producers) -> Iterator[Receiver]:
    """A receiver that does not know `order`: what it does last is what it was asked last."""
    with Receiver(producers, keeps_order=False) as found:
        yield found


def by_webhook(receiver: Receiver, phase: str = "cutover.freeze", **cutover: Any) -> World:
    """A migration with this receiver; each test has its own, so these worlds are not kept."""
    section = {"freeze": "webhook", "producer_freeze_webhook": receiver.url, **cutover}
    return Worlds().at(phase, cutover=section)


def other_owner(world: World) -> PhaseContext:
    """The context of another person's command that takes the migration over."""
    journal = Journal.create_or_open(
        world.journal_store,
        world.migration_id,
        Fingerprint(world.source.cluster_id, world.target.cluster_id),
        owner=Owner("cli", "somebody", "somebody"),
        takeover=True,
        clock=world.clock.now,
    )
    return PhaseContext(
        spec=world.spec,
        journal=journal,
        source=SimCluster("source", world.source, world.outside),  # type: ignore[arg-type]
        target=SimCluster("target", world.target, world.outside),  # type: ignore[arg-type]
        journal_store=world.journal_store,
        archive_store=world.archive_store,
        evidence_store=world.evidence_store,
        resolver=world.context().resolver,
        now=world.clock.now,
        sleep=world.clock.sleep,
        open_registry=world.registries.open,  # type: ignore[arg-type]
    )


def rolls_back(world: World) -> PhaseResult:
    context = other_owner(world)
    code = keep_code(context.record) if world.spec.is_way_back else ""
    return rollback.run(context, reason="the run hangs", code=code)


def lifts_at_the_limit(world: World) -> None:
    """The watch of the same owner lifts the freeze while a task still waits for an answer."""
    world.clock.sleep(2 * LIMIT_SECONDS)
    mine = world.context()
    world.use(world._new_context())
    with pytest.raises(FreezeFailed, match="was lifted"):
        world.run("cutover.freeze_limit")
    world.use(mine)


def once(act: Callable[[], object]) -> Callable[[], None]:
    left = [act]

    def run() -> None:
        if left:
            left.pop()()

    return run


def before_acls(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen once between the sending of a request for ACLs and its effect."""
    admin = type(world.context().source.admin)
    create, first = admin.create_acls, once(act)

    def late(self: Any, bindings: Any) -> Any:
        first()
        return create(self, bindings)

    monkeypatch.setattr(admin, "create_acls", late)


def before_answer(receiver: Receiver, act: Callable[[], object], *, hold: bool = False) -> None:
    """Let something happen once while the receiver works on a request to stop producers."""
    first = once(act)

    def answer(call: Call) -> None:
        if call.action == "freeze" and (call.body["deadline"] is None) == hold:
            first()

    receiver.answer = answer


def seen(world: World) -> Journal:
    journal = Journal(world.journal_store, world.migration_id)
    journal.refresh()
    return journal


# -- the process lives, and its request was slow ----------------------------------------------------------------------


@pytest.mark.parametrize("is_way_back", [False, True], ids=["migration", "way back"])
def test_acls_that_are_created_after_a_rollback_by_another_owner_are_removed(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, is_way_back: bool
) -> None:
    world = (Returns(worlds) if is_way_back else worlds).at("cutover.freeze")
    before_acls(world, monkeypatch, lambda: rolls_back(world))
    with pytest.raises(ClaimLost) as caught:
        world.run("cutover.freeze")
    assert world.denied == set()
    assert seen(world).tip_state is State.ROLLED_BACK
    assert "nothing was written" not in caught.value.next_step
    assert "is undone" in caught.value.next_step


@pytest.mark.parametrize("hold", [False, True], ids=["freeze", "hold"])
def test_a_webhook_that_follows_after_a_rollback_by_another_owner_is_asked_again(
    receiver: Receiver, producers: Producers, hold: bool
) -> None:
    phase = "cutover.floor_guard" if hold else "cutover.freeze"
    world = by_webhook(receiver, phase)
    before_answer(receiver, lambda: rolls_back(world), hold=hold)
    with pytest.raises(ClaimLost):
        world.run(phase)
    assert not producers.stopped
    assert seen(world).tip_state is State.ROLLED_BACK
    orders = [call.body["order"] for call in receiver.calls if call.action == "freeze"]
    assert receiver.calls[-1].action == "unfreeze"
    assert receiver.calls[-1].body["order"] > max(orders)


def test_a_receiver_that_keeps_the_order_refuses_a_request_that_was_overtaken(producers: Producers) -> None:
    with Receiver(producers) as receiver:
        world = by_webhook(receiver)
        before_answer(receiver, lambda: rolls_back(world))
        receiver._orders.clear()
        with pytest.raises(ClaimLost):
            world.run("cutover.freeze")
        assert not producers.stopped


def test_between_two_attempts_it_is_seen_that_the_freeze_has_ended(receiver: Receiver, producers: Producers) -> None:
    world = by_webhook(receiver)
    act = once(lambda: rolls_back(world))

    def answer(call: Call) -> tuple[int, Any] | None:
        if call.action != "freeze":
            return None
        act()
        return 503, {}

    receiver.answer = answer
    with pytest.raises(ClaimLost):
        world.run("cutover.freeze")
    assert [call.action for call in receiver.calls].count("freeze") == 1
    assert not producers.stopped


@pytest.mark.parametrize("window", ["0s", "2s"])
def test_a_freeze_that_is_answered_after_its_lift_is_never_verified(
    receiver: Receiver, producers: Producers, window: str
) -> None:
    world = by_webhook(receiver, freeze_stable_window=window)
    before_answer(receiver, lambda: lifts_at_the_limit(world))
    with pytest.raises(PhaseOver):
        world.run("cutover.freeze")
    assert not producers.stopped
    assert world.steps(steps.FREEZE_VERIFIED) == []


def test_a_freeze_that_is_lifted_while_it_is_verified_is_not_verified(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.freeze")
    verify = freeze.verify

    def slowly(*given: Any) -> Any:
        result = verify(*given)
        lifts_at_the_limit(world)
        return result

    monkeypatch.setattr(freeze, "verify", slowly)
    with pytest.raises(PhaseOver):
        world.run("cutover.freeze")
    assert world.denied == set()
    assert world.steps(steps.FREEZE_VERIFIED) == []


def test_producers_that_cannot_be_freed_again_are_never_called_free(receiver: Receiver, producers: Producers) -> None:
    world = by_webhook(receiver)
    before_answer(receiver, lambda: lifts_at_the_limit(world))
    stops = receiver.answer
    refusing: list[int] = []

    def answer(call: Call) -> tuple[int, Any] | None:
        assert stops is not None
        stops(call)
        if call.action == "freeze":
            refusing.append(1)
        return (503, {}) if call.action == "unfreeze" and refusing else None

    receiver.answer = answer
    patience = FreezePatience(world.spec, world.context, lambda _: None, sleep=world.clock.sleep, now=world.clock.now)
    with pytest.raises(StillFrozen) as caught:
        patience.run(lambda: world.run("cutover.freeze"))
    assert producers.stopped
    assert '"action": "unfreeze"' in caught.value.next_step
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.GIVEN_UP, "status shows it"
    with pytest.raises(StillFrozen):
        world.run("cutover.freeze_limit")
    receiver.answer = None
    with pytest.raises(FreezeFailed, match="was lifted"):
        world.run("cutover.freeze_limit")
    assert not producers.stopped
    assert open_freeze.read(world.context()) is None


def test_a_registry_that_becomes_read_only_after_a_rollback_gets_its_mode_back(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.freeze", schemas={**SECTION, "source_registry": "readonly"})
    before = dict(world.registries.state("source")["modes"])
    from airflow_provider_kafka_migration.schemas import modes

    journal_setting, act = modes.journal_setting, once(lambda: rolls_back(world))

    def late(*given: Any, **more: Any) -> None:
        journal_setting(*given, **more)
        act()

    monkeypatch.setattr(modes, "journal_setting", late)
    with pytest.raises(MigrationError):
        world.run("cutover.freeze")
    assert dict(world.registries.state("source")["modes"]) == before
    assert seen(world).tip_state is State.ROLLED_BACK


def test_nothing_is_sent_later_than_whoever_lifts_waits(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients stop sending in time: those of ACLs, and those of the registry's modes."""
    from airflow_provider_kafka_migration.schemas.modes import TemporarySettings

    world = worlds.at("cutover.freeze", schemas={**SECTION, "source_registry": "readonly"})
    until: list[float] = []
    admin, write = type(world.context().source.admin), TemporarySettings._write
    create = admin.create_acls

    def creates(self: Any, bindings: Any) -> Any:
        until.append(self.send_until)
        return create(self, bindings)

    def writes(self: Any, *given: Any, **more: Any) -> None:
        until.append(self._registry.send_until)
        write(self, *given, **more)

    monkeypatch.setattr(admin, "create_acls", creates)
    monkeypatch.setattr(TemporarySettings, "_write", writes)
    world.run("cutover.freeze")
    assert len(until) == 2
    assert all(math.isfinite(moment) for moment in until)


def test_who_has_taken_over_and_goes_on_keeps_producers_stopped(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is in force under its new owner: what this run did belongs to it."""
    world = worlds.at("cutover.freeze")
    before_acls(world, monkeypatch, lambda: other_owner(world))
    with pytest.raises(ClaimLost):
        world.run("cutover.freeze")
    assert world.denied == {"User:shop"}


def test_after_the_end_another_rollback_frees_whom_the_sender_could_not_free(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of an ended migration takes no entries: its open intent says that something is left to do."""
    world = worlds.at("cutover.freeze")

    def act() -> None:
        rolls_back(world)
        world.outside.fail("source.admin.delete_acls", BrokerUnreachable("the source is away"))

    before_acls(world, monkeypatch, act)
    with pytest.raises(StillFrozen) as caught:
        FreezePatience(world.spec, world.context, lambda _: None, sleep=world.clock.sleep, now=world.clock.now).run(
            lambda: world.run("cutover.freeze")
        )
    assert "--deny-principal 'User:shop'" in caught.value.next_step
    assert world.denied == {"User:shop"}
    world.outside.heal()
    again = rollback.run(other_owner(world))
    assert "the DENY ACLs of the freeze are removed" in again.summary
    assert world.denied == set()


# -- the process was killed, and its request takes effect later -------------------------------------------------------


def killed_in_acls(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Kill the process when it has sent its request for ACLs; returns what brings the request to its effect."""
    admin = world.context().source.admin
    create = type(admin).create_acls
    sent: list[Any] = []

    def dies(self: Any, bindings: Any) -> Any:
        sent.extend(bindings)
        world.outside.dies_after = 0
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(admin), "create_acls", dies)
        with pytest.raises(Killed):
            world.run("cutover.freeze")
    world.restart()

    def arrives() -> None:
        create(SimCluster("source", world.source, world.outside).admin, sent)
        assert "User:shop" in world.denied

    return arrives


def killed_in_webhook(world: World, receiver: Receiver, producers: Producers, phase: str) -> Callable[[], None]:
    """The same for a request to a receiver that is slow."""

    def answer(call: Call) -> tuple[int, Any] | None:
        if call.action == "freeze":
            world.outside.dies_after = 0
            return 503, {}
        return None

    receiver.answer = answer
    with pytest.raises((Killed, MigrationError)):
        world.run(phase)
    receiver.answer = None
    world.restart()
    return producers.freeze


def while_it_waits(world: World, context: PhaseContext, arrives: Callable[[], None]) -> PhaseContext:
    """Let the late request take effect while this process waits for it."""

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        arrives()

    context.sleep = sleep
    return context


ENDS: dict[str, Callable[[World, PhaseContext], object]] = {
    "rollback": lambda world, context: rollback.run(
        context, code=keep_code(context.record) if world.spec.is_way_back else ""
    ),
    "limit": lambda world, _context: lifts_here(world),
}


def lifts_here(world: World) -> None:
    world.clock.sleep(LIMIT_SECONDS + 10)
    with pytest.raises(FreezeFailed, match="was lifted"):
        world.run("cutover.freeze_limit")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("arrival", ["before the lift", "while it waits"])
@pytest.mark.parametrize("method", ["acl", "acl of a way back", "freeze", "hold"])
def test_a_request_of_a_dead_process_stops_nobody(
    worlds: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    receiver: Receiver,
    producers: Producers,
    method: str,
    arrival: str,
    end: str,
) -> None:
    """Killed between intent and outcome; the request arrives before the lift, or between its first act and its last."""
    if method.startswith("acl"):
        world = (worlds if method == "acl" else Returns(worlds)).at("cutover.freeze")
        arrives = killed_in_acls(world, monkeypatch)
    else:
        phase = "cutover.floor_guard" if method == "hold" else "cutover.freeze"
        world = by_webhook(receiver, phase)
        arrives = killed_in_webhook(world, receiver, producers, phase)
    assert len(open_changes(seen(world), "1")) == 1
    arrives_once = once(arrives)
    if arrival == "before the lift":
        arrives_once()
    context = while_it_waits(world, world.context(), arrives_once)
    ENDS[end](world, context)
    arrives_once()  # unless it has: whoever did not wait meets it now
    assert world.denied == set()
    assert not producers.stopped
    attempt = world.context().record.freeze()
    assert attempt is not None
    assert attempt.lifted


def test_a_registry_that_a_dead_process_makes_read_only_gets_its_mode_back(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.freeze", schemas={**SECTION, "source_registry": "readonly"})
    before = dict(world.registries.state("source")["modes"])
    from airflow_provider_kafka_migration.schemas.modes import TemporarySettings

    def dies(*_: Any, **__: Any) -> None:
        world.outside.dies_after = 0
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TemporarySettings, "_write", dies)
        with pytest.raises(Killed):
            world.run("cutover.freeze")
    world.restart()

    arrives = once(lambda: world.registries.open("source").set_mode(None, "READONLY"))
    rollback.run(while_it_waits(world, world.context(), arrives))
    arrives()
    assert dict(world.registries.state("source")["modes"]) == before


def test_an_old_intent_is_not_waited_for(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.at("cutover.freeze")
    killed_in_acls(world, monkeypatch)
    world.clock.sleep(3600)
    context = world.context()
    slept: list[float] = []
    context.sleep = slept.append
    with pytest.raises(FreezeFailed, match="was lifted"):
        world.run("cutover.freeze_limit")
    assert slept == []


# -- the next attempt --------------------------------------------------------------------------------------------------


def test_what_an_earlier_attempt_has_added_is_removed_with_the_next_one(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of a dead process arrives long after the lift: the next freeze finds the DENY there, and owns it."""
    world = worlds.at("cutover.freeze")
    arrives = killed_in_acls(world, monkeypatch)
    lifts_here(world)
    arrives()
    world.run("tail")
    world.run("drain_ready")
    world.approve("cutover")
    world.run("cutover.freeze")
    assert world.denied == {"User:shop"}
    assert [acl.principal for acl in deny_acls.planned_acls(world.context().record, "2")] == ["User:shop"]
    rollback.run(world.context())
    assert world.denied == set()


def test_too_little_of_the_limit_is_left_to_ask_producers_to_stop(
    receiver: Receiver, producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = by_webhook(receiver)
    resolve = webhook_spec.webhook_receiver

    def slowly(context: PhaseContext) -> Any:
        world.clock.sleep(LIMIT_SECONDS - 1)
        return resolve(context)

    with monkeypatch.context() as patch:
        patch.setattr(webhook_spec, "check_receiver", lambda _: None)
        patch.setattr(webhook_spec, "webhook_receiver", slowly)
        with pytest.raises(FreezeFailed, match="of max_producer_freeze are left"):
            world.run("cutover.freeze")
    assert "freeze" not in [call.action for call in receiver.calls]
    assert not producers.stopped


def test_a_source_that_cannot_take_the_acls_back_stays_open_for_the_watch(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.at("cutover.freeze")

    def act() -> None:
        lifts_at_the_limit(world)
        world.outside.fail("source.admin.delete_acls", BrokerUnreachable("the source is away"))

    before_acls(world, monkeypatch, act)
    with pytest.raises(StillFrozen) as caught:
        world.run("cutover.freeze")
    assert "--deny-principal 'User:shop'" in caught.value.next_step
    assert world.denied == {"User:shop"}
    assert open_freeze.read(world.context()) is not None
    world.outside.heal()
    with pytest.raises(FreezeFailed, match="was lifted"):
        world.run("cutover.freeze_limit")
    assert world.denied == set()


@pytest.mark.parametrize("method", ["acl", "webhook"])
def test_once_clients_may_be_on_the_target_nobody_is_freed(
    worlds: Worlds, receiver: Receiver, producers: Producers, method: str
) -> None:
    """The last step could not lift because the journal was away; READY was in it, and only the answer was lost."""
    phase = "cutover.floor_guard"
    world = worlds.at(phase) if method == "acl" else by_webhook(receiver, phase)
    tried: list[int] = []

    def step() -> PhaseResult:
        if not tried:
            tried.append(1)
            world.run(phase)
        raise StillFrozen("the journal cannot be read")

    patience = FreezePatience(world.spec, world.context, lambda _: None, sleep=world.clock.sleep, now=world.clock.now)
    with pytest.raises(PhaseOver, match="producers stay stopped"):
        patience.run(step)
    attempt = world.context().record.freeze()
    assert attempt is not None
    stops.take_back(world.context(), attempt)
    assert world.denied == ({"User:shop"} if method == "acl" else set())
    assert producers.stopped == (method == "webhook")


# -- a freeze that was given up and not lifted ------------------------------------------------------------------------


def given_up(worlds: Worlds) -> World:
    """The source was away while the limit passed, and nobody tries any more; it is back."""
    world = worlds.at("cutover.sentinels")
    world.clock.sleep(2 * LIMIT_SECONDS)
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
    with pytest.raises(StillFrozen):
        world.run("cutover.freeze_limit")
    world.clock.sleep(2 * 3600)
    world.outside.heal()
    world.restart()
    assert world.denied == {"User:shop"}
    return world


def test_the_tail_lifts_what_was_given_up(worlds: Worlds) -> None:
    world = given_up(worlds)
    tail.JOB_PHASE.follow(world.context(), {})
    assert world.denied == set()
    assert open_freeze.read(world.context()) is None


def test_each_phase_that_starts_lifts_what_was_given_up(worlds: Worlds) -> None:
    world = given_up(worlds)
    world.copiers.then = world.restart
    with pytest.raises(MigrationError):
        world.migration().run("cutover.sentinels")
    assert world.denied == set()


def test_a_source_that_is_still_away_keeps_no_phase_from_starting(worlds: Worlds) -> None:
    world = given_up(worlds)
    fault = world.outside.fail("source.admin.delete_acls", BrokerUnreachable("away"))
    frozen.finish_given_up(world.context())
    assert world.denied == {"User:shop"}
    world.outside.faults.remove(fault)
    frozen.finish_given_up(world.context())
    assert world.denied == set()


def test_who_has_just_given_up_is_left_to_lift(worlds: Worlds) -> None:
    world = worlds.at("cutover.sentinels")
    frozen.back_to_tail(world.context().record, "a step has failed")
    frozen.finish_given_up(world.context())
    assert world.denied == {"User:shop"}
    assert not freeze_limit.check_limit(world.context().record)["ready"]
    world.clock.sleep(frozen.GIVEN_UP_SECONDS + 1)
    assert freeze_limit.check_limit(world.context().record)["ready"]
    with pytest.raises(FreezeFailed, match="was lifted"):
        world.run("cutover.freeze_limit")
    assert world.denied == set()
