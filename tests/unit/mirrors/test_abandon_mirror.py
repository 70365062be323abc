"""A promoted mirror whose clients cannot use the target: whoever stopped the source's producers frees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.admin import REFUSED, SimAdmin
from phase_world.outside import Killed
from phase_world.world import PRODUCER_ACL, SIGNING_KEY, World, Worlds
from test_hand_over import Sender
from test_mirror_phase import ORDERS, SECTIONS, ask
from test_promotion_freeze import _dead_copiers_are_known, frozen_world, go, nothing, promoted, timed

from airflow_provider_kafka_migration.approvals import abandon, check
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerUnreachable,
    ClaimHeld,
    ClaimLost,
    IllegalTransition,
    StillFrozen,
    Terminal,
)
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.freeze import fence, open_freeze, stops
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.mirrors import ending
from airflow_provider_kafka_migration.mirrors import hand_over as hand_over_module
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.phases.mirrors.abandon import GOES_ON
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back import fail_back
from harness.webhook import FreezeWebhook as Receiver

__all__ = ["_dead_copiers_are_known", "timed"]

FREEZE: dict[str, Any] = {**SECTIONS, "cutover": {"freeze": "acl"}}
TARGET_DOWN = BrokerUnreachable("no broker of the target answers")
TESTER = Owner("cli", "tester", "tester")


@pytest.fixture(autouse=True)
def _signing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)


@pytest.fixture
def make(worlds: Worlds, timed: Callable[[World], World]) -> Callable[..., World]:
    """Make a mirror whose planned promotion is complete; clients belong on the target."""

    def made(**sections: Any) -> World:
        world = timed(worlds.at("tail", **{**FREEZE, **sections}))
        ask(world, "promoted")
        promoted(world)
        world.restart()
        return world

    return made


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    world = make()
    assert world.denied == {"User:shop"}
    return world


def reopened(world: World) -> World:
    """Hold the mirror again, as the command does."""
    world.context().journal.claim(TESTER, reopen=True)
    return world


def answer(world: World, *, code: str = "", person: str = "ann", second: bool = False, unread: bool = False) -> None:
    context = reopened(world).context()
    check.check_approval(
        context,
        ApprovalAnswer(
            migration_id=world.migration_id,
            kind="client_switch",
            decision="back_out",
            code=code or abandon.abandon_code(context.record),
            responders=[Responder(user_id=person, user_name=person)],
            answered_at=world.clock.now().isoformat(),
            body_shown="",
            second=second,
            target_unread=unread,
        ),
    )


def run(world: World) -> Any:
    return reopened(world).run("abandon")


def check_ended(world: World) -> None:
    assert world.state is State.ENDED
    assert world.denied == set()
    assert len(world.steps(steps.FREEZE_LIFTED)) == 1
    assert open_freeze.read(world.context()) is None


# -- what it does -----------------------------------------------------------------------------------------------------


def test_producers_are_free_and_the_end_is_signed(world: World) -> None:
    answer(world)
    result = run(world)
    check_ended(world)
    assert result.details["problems"] == []
    assert "the DENY ACLs of the freeze are removed" in result.summary
    assert result.details["next"] == GOES_ON
    data = world.evidence_store.get(f"{world.migration_id}/evidence.json")
    assert data is not None
    bundle = verify_evidence(data).bundle
    assert bundle.outcome is Outcome.ABANDONED
    assert bundle.cutover["abandoned"]["by"] == ["ann"]
    assert bundle.cutover["abandoned"]["target"]["late"] == {}
    world.context().journal.verify()


def test_the_webhook_gets_unfreeze(make: Callable[..., World]) -> None:
    with Receiver() as receiver:
        world = make(cutover={"freeze": "webhook", "producer_freeze_webhook": receiver.url})
        assert receiver.calls[-1].body["deadline"] is None
        answer(world)
        run(world)
        assert receiver.calls[-1].action == "unfreeze"
        assert receiver.calls[-1].body["order"] > receiver.calls[-2].body["order"]
    assert world.state is State.ENDED


def test_producers_may_no_longer_write_to_the_target(make: Callable[..., World]) -> None:
    world = make(acls={"write_grants": "at_cutover"})
    assert PRODUCER_ACL in (world.target.acls or ())
    answer(world)
    run(world)
    assert PRODUCER_ACL not in (world.target.acls or ())
    assert [entry.details["acls"] for entry in world.steps(steps.WRITE_GRANTS_TAKEN_BACK)] == [[str(PRODUCER_ACL)]]


def test_mirrormaker_goes_on_behind_it(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mirror has copied is not copied again. A mirror that is only promoted is not handed over."""
    world = make(mirror={"source_alias": "A", "target_alias": "B"})
    monkeypatch.setattr(Sender, "world", world, raising=False)
    monkeypatch.setattr(Sender, "sent", [], raising=False)
    monkeypatch.setattr(hand_over_module, "StateSender", Sender)
    with pytest.raises(IllegalTransition, match="this one is promoted"):
        hand_over_module.hand_over(world.context())
    answer(world)
    run(world)
    found = hand_over_module.hand_over(world.context())
    assert found.refused == {}
    assert found.positions[ORDERS] == world.source.log(*ORDERS).end - 1


# -- when -------------------------------------------------------------------------------------------------------------


def test_before_the_promotion_resume_is_the_way(worlds: Worlds) -> None:
    world = worlds.at("tail", **FREEZE)
    go(world, nothing)
    with pytest.raises(IllegalTransition, match="in state paused cannot be abandoned") as refused:
        answer(world)
    assert "kafka-migration mirror resume FILE" in refused.value.next_step


def test_a_promotion_without_the_source_is_not_taken_back(worlds: Worlds, timed: Callable[[World], World]) -> None:
    world = timed(worlds.at("tail", **FREEZE))
    go(world, lambda: ask(world, "promoted", source_gone=True))
    assert world.state is State.PROMOTED
    world.restart()
    with pytest.raises(IllegalTransition, match="promoted without its source") as refused:
        answer(world)
    assert "mirror fail-back FILE" in refused.value.next_step


def test_a_mirror_that_stopped_nobody_has_nobody_to_free(make: Callable[..., World]) -> None:
    world = make(cutover={"freeze": "manual"})
    with pytest.raises(IllegalTransition, match="it has stopped no producers itself") as refused:
        answer(world)
    assert "tell the producers' owners" in refused.value.next_step


def unfenced(worlds: Worlds, timed: Callable[[World], World], monkeypatch: pytest.MonkeyPatch) -> World:
    """A mirror whose target goes away between the step `promoted` and the fence."""
    world = timed(worlds.at("tail", **FREEZE))
    ask(world, "promoted")

    def away(*_: object, **__: object) -> None:
        raise TARGET_DOWN

    with monkeypatch.context() as patch:
        patch.setattr(fence, "write_fence", away)
        with pytest.raises(BrokerUnreachable):
            go(world, nothing)
    world.restart()
    assert (world.state, world.denied) == (State.TAIL, {"User:shop"})
    return world


def test_a_promotion_that_cannot_be_completed(
    worlds: Worlds, timed: Callable[[World], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = unfenced(worlds, timed, monkeypatch)
    world.context().journal.fail(TARGET_DOWN)
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.READY
    assert "kafka-migration mirror abandon FILE" in " ".join(found.lines())
    world.outside.fail("target.*", TARGET_DOWN)
    answer(world, unread=True)
    result = run(world)
    check_ended(world)
    assert [item["part"] for item in result.details["problems"]] == ["topic settings"]
    world.outside.heal()
    world.restart()
    again = run(world)
    assert again.details["problems"] == []
    assert world.target.topics["orders"].configs["retention.ms"] == "86400000"


def test_nobody_completes_a_promotion_that_is_abandoned(
    worlds: Worlds, timed: Callable[[World], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = unfenced(worlds, timed, monkeypatch)
    answer(world)
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("the source is away"), times=1)
    with pytest.raises(StillFrozen) as stuck:
        run(world)
    assert "kafka-migration mirror abandon FILE" in stuck.value.next_step
    assert "Do not do it" not in stuck.value.next_step
    for phase in ("mirror", "finish"):
        with pytest.raises(IllegalTransition, match="the mirror is abandoned since") as refused:
            world.migration().run(phase)
        assert "kafka-migration mirror abandon FILE`, without a code" in refused.value.next_step
    watched = world.migration().run("freeze_limit")
    assert "the mirror is abandoned" in watched.summary
    with pytest.raises(IllegalTransition, match="the mirror is abandoned since"):
        ending.complete_promotion(world.context())  # a task whose job ends just now does not ask the gate
    assert not world.steps(steps.COPIERS_FENCED)
    run(world)
    check_ended(world)


def test_what_did_not_come_to_its_end_is_said_by_status(world: World) -> None:
    answer(world)
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("the source is away"), times=1)
    with pytest.raises(StillFrozen):
        run(world)
    assert world.state is State.PROMOTED
    found = open_freeze.read(world.context())
    assert found is not None
    assert (found.standing, found.as_dict()["lift"]) == (Standing.ABANDONED, "kafka-migration mirror abandon FILE")
    resume = rolling_back.resume(world.context().journal, world.spec)
    assert resume is not None
    assert "kafka-migration mirror abandon FILE" in resume.reason
    with pytest.raises(IllegalTransition, match="is abandoned since"):
        world.migration().run("finish")
    with pytest.raises(IllegalTransition, match="is abandoned since"):
        fail_back.derive(world.context().record)
    run(world)
    check_ended(world)
    with pytest.raises(Terminal, match="nothing to fail back from") as refused:
        fail_back.derive(world.context().record)
    assert "no client was told" in refused.value.next_step


# -- the target -------------------------------------------------------------------------------------------------------


def test_what_a_client_has_written_to_the_target_is_not_lost(world: World) -> None:
    world.target.log(*ORDERS).write(b"of a client")
    with pytest.raises(ApprovalRefused, match=r"written to 1 partitions of the target; orders-0: 1 records") as refused:
        answer(world, unread=True)
    assert "mirror fail-back FILE" in refused.value.next_step
    assert world.denied == {"User:shop"}


def test_a_record_that_comes_after_the_answer_counts_too(world: World) -> None:
    answer(world)
    world.target.log(*ORDERS).write(b"of a client")
    with pytest.raises(ApprovalRefused, match="clients have written"):
        run(world)
    assert (world.state, world.denied) == (State.PROMOTED, {"User:shop"})


def test_what_a_client_writes_after_the_last_look_is_named(world: World) -> None:
    """Nobody can keep it out before that: producers of the source come first."""

    def writes(freed: Any) -> Any:
        world.target.log(*ORDERS).write(b"of a client")
        return freed

    answer(world)
    world.outside.fail("source.admin.delete_acls", writes, times=1)
    result = run(world)
    check_ended(world)
    assert list(result.details["written_meanwhile"]) == ["orders-0"]
    assert "clients have written to 1 partitions of the target meanwhile" in result.summary
    assert world.context().journal.entries()[-1].details["written_meanwhile"] == result.details["written_meanwhile"]


def test_a_dead_target_needs_a_word_more(world: World) -> None:
    world.outside.fail("target.*", TARGET_DOWN)
    with pytest.raises(ApprovalRefused, match="not known whether clients have written") as refused:
        answer(world)
    assert "kafka-migration mirror abandon FILE --approve CODE --target-unread" in refused.value.next_step
    assert "Airflow" not in refused.value.next_step
    answer(world, unread=True)
    run(world)
    check_ended(world)


def test_a_marker_that_retention_has_deleted_is_no_record_of_a_client(world: World) -> None:
    """A mirror may have been promoted for weeks when somebody abandons it."""
    for key in (ORDERS, ("orders", 1), ("state", 0)):
        log = world.target.log(*key)
        log.batches.clear()
        log.start = log.end
    found = abandon.read_target(world.context().record, world.context().target)
    assert (found.late, found.unchecked) == ({}, {})


# -- codes and people -------------------------------------------------------------------------------------------------


def test_it_needs_its_own_code(world: World) -> None:
    with pytest.raises(ApprovalRefused, match="does not abandon the mirror") as refused:
        answer(world, code="00000000")
    assert "kafka-migration mirror abandon FILE" in refused.value.next_step
    with pytest.raises(ApprovalRefused, match="nobody has decided to abandon the mirror"):
        run(world)
    assert world.denied == {"User:shop"}


def test_two_people_have_to_decide_it_where_two_approve(make: Callable[..., World]) -> None:
    world = make()
    world.change_spec(approvals={"assigned_users": ["ann"], "second_users": ["bob"]})
    with pytest.raises(ApprovalRefused, match="mallory is not among"):
        answer(world, person="mallory")
    answer(world, person="ann")
    with pytest.raises(ApprovalRefused, match="two people"):
        run(world)
    assert world.denied == {"User:shop"}
    answer(world, person="bob", second=True)
    run(world)
    check_ended(world)
    assert world.steps(steps.ABANDONED)[-1].details["by"] == ["ann", "bob"]


# -- the journal ------------------------------------------------------------------------------------------------------


def test_only_who_opens_a_promoted_journal_again_may_write_to_it(world: World) -> None:
    journal = world.context().journal
    count = len(journal.entries())
    journal.claim(TESTER)
    with pytest.raises(IllegalTransition, match="promoted is final"):
        journal.step("anything")
    assert len(journal.entries()) == count, "a claim of whoever ran the mirror changes nothing"
    journal.claim(Owner("cli", "bob", "bob"), reopen=True)
    journal.step("anything")
    other = Journal(world.journal_store, world.migration_id)
    with pytest.raises(ClaimHeld):
        other.claim(TESTER, reopen=True)
    other.claim(TESTER)
    with pytest.raises(ClaimLost):
        other.step("not by a claim that did not open it")
    journal.release()
    with pytest.raises((ClaimLost, IllegalTransition)):
        journal.step("after the release")
    other.claim(TESTER, reopen=True)
    other.step("anything")
    assert other.fail(TARGET_DOWN) is None, "a promoted mirror does not fail"
    world.context().journal.verify()


def test_an_ended_mirror_is_not_opened_again(worlds: Worlds) -> None:
    world = worlds.at("tail", **FREEZE)
    ask(world, "ended")
    world.run("finish")
    journal = world.context().journal
    journal.claim(TESTER, reopen=True)
    with pytest.raises(IllegalTransition):
        journal.step("anything")


# -- whoever dies when, and what comes late ---------------------------------------------------------------------------


def test_a_source_that_refuses_says_what_a_person_has_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(world)
    with monkeypatch.context() as patch:
        patch.setattr(SimAdmin, "delete_acls", lambda _admin, acls: dict.fromkeys(acls, REFUSED))
        with pytest.raises(StillFrozen) as stuck:
            run(world)
    assert "--remove --force --deny-principal 'User:shop'" in stuck.value.next_step
    world.restart()
    run(world)
    check_ended(world)


def test_a_request_to_keep_them_stopped_that_comes_late_is_taken_back(
    worlds: Worlds, timed: Callable[[World], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever completes the promotion asks the receiver, which is slow; meanwhile people abandon the mirror."""
    with Receiver() as receiver:
        world = timed(
            worlds.at("tail", **{**FREEZE, "cutover": {"freeze": "webhook", "producer_freeze_webhook": receiver.url}})
        )
        ask(world, "promoted")
        monkeypatch.setattr(fence, "write_fence", lambda *_, **__: (_ for _ in ()).throw(TARGET_DOWN))
        with pytest.raises(BrokerUnreachable):
            go(world, nothing)
        world.restart()

        def slow(_call: Any) -> None:
            receiver.answer = None
            late = world.context()
            world.use(None)
            answer(world)
            run(world)
            world.use(late)

        receiver.answer = slow
        with pytest.raises((ClaimLost, IllegalTransition, Terminal)):
            stops.hold(world.context(), abandon.ready_attempt(world.context().record))
        assert world.state is State.ENDED
        assert receiver.calls[-1].action == "unfreeze"


def test_grants_that_are_given_late_are_taken_back(
    worlds: Worlds, timed: Callable[[World], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever completes the promotion is slow at the target's ACLs; meanwhile people abandon the mirror."""
    world = timed(worlds.at("tail", **FREEZE, acls={"write_grants": "at_cutover"}))
    ask(world, "promoted")
    create, left = SimAdmin.create_acls, [True]

    def slow(self: SimAdmin, bindings: Any) -> Any:
        if PRODUCER_ACL in list(bindings) and left:
            left.pop()
            late = world.context()
            world.use(None)
            answer(world)
            run(world)
            world.use(late)
        return create(self, bindings)

    monkeypatch.setattr(SimAdmin, "create_acls", slow)
    with pytest.raises((ClaimLost, IllegalTransition, Terminal)):
        go(world, nothing)
    assert not left
    assert PRODUCER_ACL not in (world.target.acls or ())
    assert (world.state, world.denied) == (State.ENDED, set())


def outcome(world: World) -> dict[str, Any]:
    journal = world.context().journal
    return {
        "source": world.source.acls,
        "target": world.target.acls,
        "configs": {name: topic.configs for name, topic in world.target.topics.items()},
        "state": journal.tip_state,
        "once": [len(journal.steps(name)) for name in (steps.ABANDONED, steps.FREEZE_LIFTED)],
        "signed": world.evidence_store.get(f"{world.migration_id}/evidence.json") is not None,
    }


@pytest.mark.slow
@pytest.mark.parametrize("is_complete", [True, False], ids=["promoted", "promotion not complete"])
def test_a_process_that_dies_after_any_change(
    worlds: Worlds, timed: Callable[[World], World], monkeypatch: pytest.MonkeyPatch, is_complete: bool
) -> None:
    sections = {**FREEZE, "acls": {"write_grants": "at_cutover"}}

    def begin() -> World:
        if is_complete:
            world = timed(worlds.at("tail", **sections))
            ask(world, "promoted")
            promoted(world)
        else:
            world = unfenced(worlds, timed, monkeypatch)
        world.restart()
        answer(world)
        world.outside.revive()
        return world

    world = begin()
    run(world)
    expected, count = outcome(world), len(world.outside.changes)
    assert expected["state"] is State.ENDED
    assert count > 5
    for number in range(count):
        world = begin()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            run(world)
        world.restart()
        run(world)
        assert outcome(world) == expected, f"killed after change {number}"


# -- what people are told ---------------------------------------------------------------------------------------------


def test_the_line_about_producers_stays(world: World) -> None:
    found = open_freeze.read(world.context())
    assert found is not None
    text = " ".join(found.lines("a-to-b.yaml"))
    assert "producers are stopped on the source (by DENY WRITE ACLs on the source) since 20" in text
    assert "`kafka-migration mirror abandon a-to-b.yaml` frees them" in text
    data = found.as_dict("a-to-b.yaml")
    assert (data["lift"], data["go_on"], data["overdue"]) == (
        "kafka-migration mirror abandon a-to-b.yaml",
        None,
        False,
    )
    summary = freeze_limit.check_limit(world.context().record)["summary"]
    assert "kafka-migration mirror abandon FILE" in summary


def test_people_are_told_of_each_turn(worlds: Worlds, timed: Callable[[World], World]) -> None:
    world = timed(worlds.at("tail", **FREEZE))
    told: list[str] = []
    world.context().announce = told.append
    ask(world, "promoted")
    go(world, nothing)
    world.restart()
    answer(world)
    world.context().announce = told.append
    run(world)
    assert [text.partition(" (")[0] for text in told[:1]] == ["Producers are stopped"]
    assert "freeze 1, by DENY WRITE ACLs on the source" in told[0]
    assert told[1].startswith("Freeze 1 has ended with promoted: producers stay stopped")
    assert "kafka-migration mirror abandon FILE" in told[1]
    assert told[2].startswith("Freeze 1 is lifted after ")
    assert len(told) == 3


def test_without_the_source_there_is_no_way_out_to_name(worlds: Worlds, timed: Callable[[World], World]) -> None:
    world = frozen_world(timed(worlds.at("tail", **FREEZE)))
    ask(world, "promoted", source_gone=True)
    world.run("finish")
    assert (world.state, world.denied) == (State.PROMOTED, {"User:shop"})
    found = open_freeze.read(world.context())
    assert found is not None
    assert (found.as_dict()["lift"], len(found.lines())) == (None, 1)
