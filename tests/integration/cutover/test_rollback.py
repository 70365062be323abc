"""Rollback: from each state before the cutover, undone once and for all, and refused afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cutover_support import Lab
from faults import Effects, Killed, counting

from airflow_provider_kafka_migration.errors import BrokerUnreachable, IllegalTransition
from airflow_provider_kafka_migration.freeze import frozen
from airflow_provider_kafka_migration.phases import freeze, rollback
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import FORWARD, ROLLBACK_FROM, State
from airflow_provider_kafka_migration.topics import copy_settings
from harness import compare
from harness.webhook import FreezeWebhook

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


def report(context: PhaseContext) -> dict[str, Any]:
    data = context.evidence_store.get(context.key("rollback-report.json"))
    assert data is not None
    found: dict[str, Any] = json.loads(data)
    return found


def begun(lab: Lab, state: State) -> PhaseContext:
    """A migration in a state; the topics are on the target from the seed on."""
    if FORWARD.index(state) >= FORWARD.index(State.TAIL):
        context = lab.begin()
        for step in FORWARD[FORWARD.index(State.TAIL) + 1 : FORWARD.index(state) + 1]:
            context.journal.transition(step, "lab")
        return context
    context = lab.context()
    context.journal_store.put(context.key("plan.json"), lab.plan(context).canonical())
    for step in FORWARD[1 : FORWARD.index(state) + 1]:
        context.journal.transition(step, "lab")
    return context


# Each state in unit tests (phases/cutover/test_roll_back.py); here those with a copy under way and before any.
@pytest.mark.parametrize(
    "state",
    [
        state
        if state in (State.PLANNED, State.SEED, State.DRAIN_READY)
        else pytest.param(state, marks=pytest.mark.soak)
        for state in ROLLBACK_FROM
    ],
    ids=str,
)
def test_from_each_of_the_six_states(make_lab: MakeLab, fill: Fill, unique_name: Name, state: State) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic])
    context = begun(lab, state)
    result = rollback.run(context, reason="not today")
    assert not result.already_done
    assert context.journal.tip_state is State.ROLLED_BACK
    found = report(context)
    assert (found["rolled_back_from"], found["reason"], found["problems"]) == (str(state), "not today", [])
    copied = FORWARD.index(state) >= FORWARD.index(State.TAIL)
    assert [item["topic"] for item in found["left_on_target"]] == ([topic] if copied else [])
    if copied:
        assert found["left_on_target"][0]["end_offsets"] == {f"{topic}-0": 20}
        assert len(compare.read_records(lab.target_cluster.client_config(), topic)[0]) == 20, "data stays"
    again = rollback.run(lab.context())
    assert again.already_done
    assert report(context) == found


@pytest.mark.parametrize("state", [State.AWAITING_CLIENT_SWITCH, State.VALIDATING], ids=str)
def test_later_it_is_refused_with_why(make_lab: MakeLab, fill: Fill, unique_name: Name, state: State) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic])
    context = begun(lab, state)
    with pytest.raises(IllegalTransition) as caught:
        rollback.run(context)
    assert caught.value.next_step
    assert context.journal.tip_state is state
    assert context.evidence_store.get(context.key("rollback-report.json")) is None


def test_a_running_tail_is_stopped(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 2})
    lab = make_lab([topic])
    context = lab.begin()
    lab.start_tail()
    lab.drain_ready(context)
    rollback.run(context)
    assert lab._tail is not None
    lab._tail.join(30)
    assert not lab._tail.is_alive()


def test_after_a_lifted_freeze_nothing_of_it_is_left(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    with FreezeWebhook() as webhook:
        lab = make_lab([topic], cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url})
        context = lab.begin()
        lab.start_tail()
        lab.enter_cutover(context)
        freeze.run(context)
        attempt = context.record.freeze()
        assert attempt is not None
        frozen.lift(context, attempt, reason="test")
        rollback.run(context)
        assert [call.action for call in webhook.calls] == ["freeze", "unfreeze"]
        assert context.journal.tip_state is State.ROLLED_BACK


def test_a_part_that_cannot_be_undone_is_reported_and_stops_nothing(
    make_lab: MakeLab, fill: Fill, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic])
    context = lab.begin()

    def unreachable(*_: object) -> None:
        raise BrokerUnreachable("the target is gone", next_step="look for it")

    monkeypatch.setattr(copy_settings, "restore_for_rollback", unreachable)
    result = rollback.run(context)
    assert [item["part"] for item in report(context)["problems"]] == ["topics"]
    assert "could NOT be restored" in result.summary
    assert context.journal.tip_state is State.ROLLED_BACK


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_side_effect(make_lab: MakeLab, fill: Fill, unique_name: Name, when: Any) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    lab = make_lab([topic])
    context = lab.begin()
    for at in range(1, 30):
        with counting(Effects(at=at, when=when)):
            try:
                rollback.run(lab.context())
                break
            except Killed:
                continue
    else:
        pytest.fail("it never ended")
    context.journal.refresh()
    assert context.journal.tip_state is State.ROLLED_BACK
    assert context.journal.verify().is_good
    assert report(context)["problems"] == []
