"""Abandoning between READY_FOR_CLIENT_SWITCH and the first client: whoever stopped producers frees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phase_support import SIGNING_SEED, approval
from phase_world.admin import REFUSED, SimAdmin
from phase_world.outside import Killed
from phase_world.registries import SECTION
from phase_world.returning import Returns
from phase_world.world import KEYS, PRODUCER_ACL, SIGNING_KEY, World, Worlds, without_probes

from airflow_provider_kafka_migration.approvals import abandon, answers, check
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerUnreachable,
    IllegalTransition,
    MigrationError,
    StillFrozen,
)
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.freeze import open_freeze, stops
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.phases import freeze_limit, rollback
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back import derived_spec
from harness.webhook import FreezeWebhook as Receiver

TARGET_DOWN = BrokerUnreachable("no broker of the target answers")


@pytest.fixture(autouse=True)
def _signing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)


@pytest.fixture
def world(worlds: Worlds) -> World:
    """Clients were told to switch; the DENY ACLs are in force."""
    world = worlds.at("approve_switch")
    assert (world.state, world.denied) == (State.AWAITING_CLIENT_SWITCH, {"User:shop"})
    return world


def answer(world: World, *, code: str = "", person: str = "ann", second: bool = False, unread: bool = False) -> None:
    context = world.context()
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


def check_ended(world: World) -> None:
    assert world.state is State.ROLLED_BACK
    assert world.denied == set()
    assert len(world.steps(steps.FREEZE_LIFTED)) == 1
    assert open_freeze.read(world.context()) is None


def test_producers_are_free_and_the_end_is_signed(world: World) -> None:
    answer(world)
    result = world.run("abandon")
    check_ended(world)
    assert result.details["problems"] == []
    assert "the DENY ACLs of the freeze are removed" in result.summary
    data = world.evidence_store.get(f"{world.migration_id}/evidence.json")
    assert data is not None
    bundle = verify_evidence(data).bundle
    assert bundle.outcome is Outcome.ABANDONED
    assert bundle.cutover["abandoned"]["by"] == ["ann"]
    assert bundle.cutover["abandoned"]["target"] == {"partitions": 3, "late": {}, "records": 0, "unchecked": {}}


def test_producers_may_no_longer_write_to_the_target(worlds: Worlds) -> None:
    world = worlds.at("approve_switch", acls={"write_grants": "at_cutover"})
    assert PRODUCER_ACL in (world.target.acls or ())
    answer(world)
    result = world.run("abandon")
    assert result.details["problems"] == []
    assert PRODUCER_ACL not in (world.target.acls or ())


def test_nobody_acknowledges_a_switch_that_was_abandoned(world: World) -> None:
    answer(world)
    world.outside.fail("source.admin.delete_acls", BrokerUnreachable("the source is away"), times=1)
    with pytest.raises(StillFrozen):
        world.run("abandon")
    with pytest.raises(IllegalTransition, match="is abandoned since") as refused:
        world.approve("client_switch")
    assert "kafka-migration abandon FILE`, without a code" in refused.value.next_step
    with pytest.raises(IllegalTransition, match="is abandoned since"):
        world.migration().run("validate")
    world.run("abandon")
    check_ended(world)


def test_the_two_decisions_exclude_each_other_in_the_journal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One person approves while another one backs out: whichever is journaled first counts."""
    real = answers._last_sync

    def meanwhile(*arguments: Any) -> Any:
        found = real(*arguments)
        answer(world)
        world.run("abandon")
        return found

    monkeypatch.setattr(answers, "_last_sync", meanwhile)
    with pytest.raises(MigrationError):
        world.approve("client_switch")
    check_ended(world)
    assert world.steps(steps.CLIENT_SWITCH_ACKNOWLEDGED) == []


def test_after_the_acknowledgement_it_is_too_late(world: World) -> None:
    answer(world)
    world.approve("client_switch")
    for act in (lambda: answer(world), lambda: world.run("abandon")):
        with pytest.raises(IllegalTransition) as refused:
            act()
        assert "way-back run FILE" in refused.value.next_step
    assert world.denied == {"User:shop"}


@pytest.mark.parametrize("phase", ["drain_ready", "cutover.final_drain"])
def test_before_ready_a_rollback_is_the_way(worlds: Worlds, phase: str) -> None:
    world = worlds.at(phase)
    with pytest.raises(IllegalTransition) as refused:
        answer(world)
    assert "kafka-migration rollback FILE" in refused.value.next_step


def ready_without_fence(world: World) -> World:
    """Let the target go away between READY and the fence of the copiers."""

    def away(*_: object) -> None:
        raise TARGET_DOWN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_kafka_migration.freeze.fence.fence_copiers", away)
        with pytest.raises(BrokerUnreachable):
            world.run("cutover.floor_guard")
    return world


def test_ready_whose_floor_guard_has_failed(worlds: Worlds) -> None:
    """READY is journaled, the task is red, and no client was told anything."""
    world = ready_without_fence(worlds.at("cutover.floor_guard"))
    world.context().journal.fail(TARGET_DOWN)
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.READY
    assert "kafka-migration abandon FILE" in " ".join(found.lines())
    answer(world)
    world.run("abandon")
    check_ended(world)


# -- the target -------------------------------------------------------------------------------------------------------


def test_what_a_client_has_written_to_the_target_is_not_lost(world: World) -> None:
    world.target.log(*KEYS[0]).write(b"of a client")
    with pytest.raises(ApprovalRefused, match=r"written to 1 partitions of the target; orders-0: 1 records") as refused:
        answer(world, unread=True)
    assert "complete the client switch" in refused.value.next_step
    assert not rolling_back.is_abandoned(world.context().journal)
    assert world.denied == {"User:shop"}


def test_a_record_that_comes_after_the_answer_counts_too(world: World) -> None:
    answer(world)
    world.target.log(*KEYS[0]).write(b"of a client")
    with pytest.raises(ApprovalRefused, match="clients have written"):
        world.run("abandon")
    assert (world.state, world.denied) == (State.AWAITING_CLIENT_SWITCH, {"User:shop"})


def test_what_a_client_writes_after_the_last_look_is_named(world: World) -> None:
    """Nobody can keep it out before that: producers of the source come first."""

    def writes(freed: Any) -> Any:
        world.target.log(*KEYS[0]).write(b"of a client")
        return freed

    answer(world)
    world.outside.fail("source.admin.delete_acls", writes, times=1)
    result = world.run("abandon")
    check_ended(world)
    assert list(result.details["written_meanwhile"]) == ["orders-0"]
    assert "clients have written to 1 partitions of the target meanwhile" in result.summary


def test_a_dead_target_needs_a_word_more(world: World) -> None:
    """Advice led in a circle here: rollback, resume and way back all need what is dead."""
    world.outside.fail("target.*", TARGET_DOWN)
    with pytest.raises(ApprovalRefused, match="not known whether clients have written") as refused:
        answer(world)
    assert "--target-unread" in refused.value.next_step
    answer(world, unread=True)
    result = world.run("abandon")
    check_ended(world)
    assert {item["part"] for item in result.details["problems"]} >= {"topics", "inventory"}
    [entry] = world.steps(steps.ABANDONED)
    assert entry.details["target_unread_accepted"]
    assert list(entry.details["target"]["unchecked"]) == ["target"]
    world.outside.heal()
    again = world.run("rollback")
    assert again.details["problems"] == [], "what could not be put back then is put back now"


def test_a_target_that_dies_after_an_answer_without_the_word(world: World) -> None:
    answer(world)
    world.outside.fail("target.*", TARGET_DOWN)
    with pytest.raises(ApprovalRefused, match="not known"):
        world.run("abandon")
    assert world.denied == {"User:shop"}


def test_a_log_that_was_truncated_says_nothing(world: World) -> None:
    log = world.target.log(*KEYS[0])
    del log.batches[-2:]
    log.end -= 2
    found = abandon.read_target(world.context().record, world.context().target)
    assert "orders-0" in found.unchecked


# -- codes and people -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["00000000", "approve"])
def test_it_needs_its_own_code(world: World, code: str) -> None:
    from airflow_provider_kafka_migration.approvals import request

    context = world.context()
    if code == "approve":
        code = request.make_facts(context, "client_switch").code
    with pytest.raises(ApprovalRefused):
        answer(world, code=code)
    with pytest.raises(ApprovalRefused, match="nobody has decided"):
        world.run("abandon")
    assert world.steps(steps.APPROVAL_REFUSED)
    assert world.denied == {"User:shop"}


def test_its_code_does_not_approve_the_switch(world: World) -> None:
    context = world.context()
    code = abandon.abandon_code(context.record)
    with pytest.raises(ApprovalRefused):
        answers.answer(context, approval(context, "client_switch", code))


def test_the_approval_shows_the_code(world: World) -> None:
    from airflow_provider_kafka_migration.approvals import request

    shown = request.make_facts(world.context(), "client_switch")
    assert abandon.abandon_code(world.context().record) in shown.body
    assert "*Back out*" in shown.body


def test_two_people_have_to_decide_it_where_two_approve(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    world.change_spec(approvals={"assigned_users": ["ann"], "second_users": ["bob"]})
    with pytest.raises(ApprovalRefused, match="mallory is not among"):
        answer(world, person="mallory")
    answer(world, person="ann")
    with pytest.raises(ApprovalRefused, match="two people"):
        world.run("abandon")
    with pytest.raises(ApprovalRefused):
        answer(world, person="ann", second=True)
    assert world.denied == {"User:shop"}
    answer(world, person="bob", second=True)
    world.run("abandon")
    check_ended(world)
    assert world.steps(steps.ABANDONED)[-1].details["by"] == ["ann", "bob"]


def test_both_of_two_people_have_to_accept_that_the_target_is_unread(worlds: Worlds) -> None:
    world = worlds.at("approve_switch")
    world.change_spec(approvals={"second_users": ["bob"]})
    answer(world, person="ann")
    world.outside.fail("target.*", TARGET_DOWN)
    answer(world, person="bob", second=True, unread=True)
    with pytest.raises(ApprovalRefused, match="not known"):
        world.run("abandon")


def test_a_later_answer_replaces_it(world: World) -> None:
    context = world.context()
    answer(world)
    given = approval(context, "client_switch", "").model_copy(update={"decision": "not_yet"})
    answers.answer(context, given)
    with pytest.raises(ApprovalRefused, match="nobody has decided"):
        world.run("abandon")


def test_what_a_person_types_in_airflow() -> None:
    assert abandon.parse_code("12345678") == ("12345678", False)
    assert abandon.parse_code(" 12345678 target-unread ") == ("12345678", True)
    assert abandon.parse_code("12345678 Target-Unread") == ("12345678", True)
    assert abandon.parse_code("") == ("", False)


# -- ways back --------------------------------------------------------------------------------------------------------


def test_a_return_is_abandoned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers of the new cluster are stopped for clients that cannot return to the old one."""
    without_probes(monkeypatch)
    world = Returns(Worlds()).at("approve_switch", way_back={"freeze_old": "acl"})
    assert world.state is State.AWAITING_CLIENT_SWITCH
    denied = world.denied
    world.outside.fail("target.*", TARGET_DOWN)
    answer(world, unread=True)
    result = world.run("abandon")
    assert world.state is State.ROLLED_BACK
    assert (denied, world.denied) == ({"User:app", "User:shop"}, set())
    assert "the new cluster is kept" in result.summary
    data = world.evidence_store.get(f"{world.migration_id}/evidence.json")
    assert data is not None
    assert verify_evidence(data).bundle.outcome is Outcome.KEPT


def test_what_a_client_writes_to_the_old_cluster_after_the_last_look_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)
    world = Returns(Worlds()).at("approve_switch")

    def writes(freed: Any) -> Any:
        world.target.log(*KEYS[0]).write(b"of a client")
        return freed

    answer(world)
    world.outside.fail("source.admin.delete_acls", writes, times=1)
    result = world.run("abandon")
    assert list(result.details["written_meanwhile"]) == ["orders-0"]
    assert "clients have written to 1 partitions of the target meanwhile" in result.summary


# -- what is freed ----------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Any:
    with Receiver() as running:
        yield running


def test_the_webhook_gets_unfreeze_after_the_hold(worlds: Worlds, receiver: Receiver) -> None:
    world = worlds.at("approve_switch", cutover={"freeze": "webhook", "producer_freeze_webhook": receiver.url})
    assert receiver.calls[-1].body["deadline"] is None
    answer(world)
    world.run("abandon")
    assert receiver.calls[-1].action == "unfreeze"
    assert world.state is State.ROLLED_BACK


def test_a_request_to_keep_them_stopped_that_comes_late_is_taken_back(worlds: Worlds, receiver: Receiver) -> None:
    """A cleared floor_guard asks the receiver behind READY, and is slow; meanwhile people abandon the migration."""
    cutover = {"freeze": "webhook", "producer_freeze_webhook": receiver.url}
    world = ready_without_fence(worlds.at("cutover.floor_guard", cutover=cutover))

    def slow(call: Any) -> None:
        receiver.answer = None
        late = world.context()
        world.use(None)
        answer(world)
        world.run("abandon")
        world.use(late)

    receiver.answer = slow
    with pytest.raises(MigrationError):
        stops.hold(world.context(), abandon.ready_attempt(world.context().record))
    assert world.state is State.ROLLED_BACK
    assert receiver.calls[-1].action == "unfreeze"


def test_producers_that_people_have_stopped_are_for_people_to_start(worlds: Worlds) -> None:
    world = worlds.at("approve_switch", cutover={"freeze": "manual"})
    answer(world)
    result = world.run("abandon")
    assert "they are still stopped: tell the producers' owners" in result.summary
    assert world.state is State.ROLLED_BACK


def test_the_source_registry_takes_schemas_again(worlds: Worlds) -> None:
    world = worlds.at("approve_switch", schemas={**SECTION, "source_registry": "readonly"})
    assert "READONLY" in str(world.registries.state("source"))
    answer(world)
    world.run("abandon")
    assert "READONLY" not in str(world.registries.state("source"))


def test_a_source_that_refuses_says_what_a_person_has_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(world)
    with monkeypatch.context() as patch:
        patch.setattr(SimAdmin, "delete_acls", lambda _admin, acls: dict.fromkeys(acls, REFUSED))
        with pytest.raises(StillFrozen) as stuck:
            world.run("abandon")
    assert "--remove --force --deny-principal 'User:shop'" in stuck.value.next_step
    assert "Do not do it" not in stuck.value.next_step
    assert "kafka-migration abandon FILE" in stuck.value.next_step
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.ABANDONED
    assert found.as_dict()["lift"] == "kafka-migration abandon FILE"
    resume = rolling_back.resume(world.context().journal, world.spec)
    assert resume is not None
    assert "kafka-migration abandon FILE" in resume.reason
    world.restart()
    world.run("abandon")
    check_ended(world)


# -- whoever dies when ------------------------------------------------------------------------------------------------


def outcome(world: World) -> dict[str, Any]:
    journal = world.context().journal
    return {
        "acls": world.source.acls,
        "configs": {name: topic.configs for name, topic in world.target.topics.items()},
        "ends": {key: world.target.log(*key).end for key in KEYS},
        "state": journal.tip_state,
        "once": [len(journal.steps(name)) for name in (steps.ABANDONED, steps.FREEZE_LIFTED)],
        "registries": world.registries.state("source"),
        "signed": world.evidence_store.get(f"{world.migration_id}/evidence.json") is not None,
    }


@pytest.mark.slow
def test_a_process_that_dies_after_any_change(worlds: Worlds) -> None:
    sections = {"schemas": {**SECTION, "source_registry": "readonly"}}

    def begin() -> World:
        world = worlds.at("approve_switch", **sections)
        answer(world)
        world.outside.revive()
        return world

    world = begin()
    world.run("abandon")
    expected, count = outcome(world), len(world.outside.changes)
    assert expected["state"] is State.ROLLED_BACK
    assert count > 5
    for number in range(count):
        world = begin()
        world.outside.dies_after = number
        with pytest.raises(Killed):
            world.run("abandon")
        world.restart()
        world.run("abandon")
        assert outcome(world) == expected, f"killed after change {number}"


# -- what people are told ---------------------------------------------------------------------------------------------


def test_the_line_about_producers_stays_until_the_switch_is_acknowledged(world: World) -> None:
    found = open_freeze.read(world.context())
    assert found is not None
    assert found.standing is Standing.SWITCHING
    assert found.lines()[0].startswith(
        "producers are stopped on the source (by DENY WRITE ACLs on the source) since 20"
    )
    data = found.as_dict("orders.yaml")
    assert (data["lift"], data["overdue"]) == ("kafka-migration abandon orders.yaml", False)
    world.approve("client_switch")
    assert open_freeze.read(world.context()) is None


def _advice(world: World) -> dict[str, str]:
    """Return what each way that people try in this state tells them."""
    record: MigrationRecord = world.context().record
    acts: dict[str, Callable[[], object]] = {
        "rollback": lambda: rollback.run(world.context()),
        "way back": lambda: derived_spec.derive(record),
        "approve": lambda: world.approve("client_switch"),
    }
    told = {}
    for name, act in acts.items():
        with pytest.raises(MigrationError) as refused:
            act()
        told[name] = refused.value.next_step
    told["freeze_limit"] = world.run("cutover.freeze_limit").summary
    told["freeze_limit check"] = freeze_limit.check_limit(record)["summary"]
    return told


def test_everything_that_people_try_with_a_dead_target_leads_to_the_way_out(world: World) -> None:
    world.outside.fail("target.*", TARGET_DOWN)
    told = _advice(world)
    assert {name for name, text in told.items() if "kafka-migration abandon FILE" not in text} == set()
    assert "nothing is frozen" not in told["freeze_limit"]
