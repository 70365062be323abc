"""Inside a freeze a transient failure is tried again until the limit, and then the freeze ends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.documents.cutover import FreezeResult
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    DrainTimeout,
    FreezeFailed,
    Interrupted,
    StillFrozen,
    StorageUnavailable,
    Transient,
)
from airflow_provider_kafka_migration.freeze import by_hand, frozen
from airflow_provider_kafka_migration.freeze.watchdog import PAUSES, FreezePatience
from airflow_provider_kafka_migration.phases import freeze
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State


class Lab:
    """A migration in ``cutover`` whose clock moves only in pauses."""

    def __init__(self, folder: Path, *, is_frozen: bool = True, method: str = "manual") -> None:
        self.clock = Clock()
        self.context = make_context(folder, state=State.CUTOVER, clock=self.clock, cutover={"freeze": "manual"})
        self.pauses: list[float] = []
        self.told: list[Progress] = []
        if is_frozen:
            now = self.context.now()
            details = {"method": method, "requested_at": iso(now), "deadline": iso(now + timedelta(seconds=60))}
            self.context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.sleep(seconds)

    def patience(self, open_context: Any = None, **more: Any) -> FreezePatience:
        return FreezePatience(
            self.context.spec,
            open_context or (lambda: self.context),
            self.told.append,
            sleep=self.sleep,
            now=self.clock.now,
            **more,
        )


def failing(*errors: Exception | None) -> Any:
    """A step that meets these, one per try, and then ends well; the last one repeats when it is no ``None``."""
    left = list(errors)

    def step() -> PhaseResult:
        error = left.pop(0) if len(left) > 1 else left[0]
        if error is not None:
            raise error
        return PhaseResult("cutover", "done")

    return step


def test_it_is_tried_again_with_pauses_and_told(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    gone = BrokerUnreachable("the target is away")
    assert lab.patience().run(failing(*[gone] * 6, None)).summary == "done"
    assert lab.pauses == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    assert all("the target is away" in item.message for item in lab.told)
    attempt = lab.context.record.freeze()
    assert attempt is not None
    assert attempt.is_open


def test_at_the_limit_the_freeze_is_lifted(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with pytest.raises(FreezeFailed, match="the target is away") as caught:
        lab.patience().run(failing(BrokerUnreachable("the target is away", next_step="start it")))
    assert sum(lab.pauses) == 60, "neither sooner nor later"
    assert "start it" in caught.value.next_step
    attempt = lab.context.record.freeze()
    assert attempt is not None
    assert attempt.lifted
    assert lab.context.journal.tip_state is State.TAIL


def test_before_the_freeze_the_scheduler_s_retries_are_enough(tmp_path: Path) -> None:
    lab = Lab(tmp_path, is_frozen=False)
    with pytest.raises(BrokerUnreachable):
        lab.patience().run(failing(BrokerUnreachable("the source is away")))
    assert lab.pauses == []


@pytest.mark.parametrize("error", [Interrupted("Ctrl-C"), DrainTimeout("too slow"), FreezeFailed("bypassed")])
def test_what_another_try_cannot_help_is_raised(tmp_path: Path, error: Exception) -> None:
    lab = Lab(tmp_path)
    with pytest.raises(type(error)):
        lab.patience().run(failing(error))
    assert lab.pauses == []


def test_a_lift_that_failed_is_tried_again_and_the_step_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path)
    answers: list[Exception | None] = [BrokerUnreachable("the source is away")] * 3 + [None]

    def unfreeze(*_: Any) -> dict[str, Any]:
        error = answers.pop(0)
        if error is not None:
            raise error
        return {}

    monkeypatch.setattr("airflow_provider_kafka_migration.freeze.stops.unfreeze", unfreeze)
    tries: list[int] = []

    def step() -> PhaseResult:
        tries.append(1)
        attempt = lab.context.record.freeze()
        assert attempt is not None
        with frozen.lifting(lab.context, attempt):
            raise FreezeFailed("somebody goes on writing")
        raise AssertionError

    with pytest.raises(FreezeFailed, match="is lifted now"):
        lab.patience().run(step)
    assert tries == [1]
    assert lab.context.journal.tip_state is State.TAIL


def test_a_lift_that_fails_to_the_end_says_what_a_person_must_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path)

    def unfreeze(*_: Any) -> dict[str, Any]:
        raise BrokerUnreachable("the source is away")

    monkeypatch.setattr("airflow_provider_kafka_migration.freeze.stops.unfreeze", unfreeze)
    with pytest.raises(StillFrozen, match="the source is away") as caught:
        lab.patience().run(failing(BrokerUnreachable("the source is away")))
    assert "tell the producers' owners" in caught.value.next_step
    attempt = lab.context.record.freeze()
    assert attempt is not None
    assert attempt.is_open, "what is still frozen stays known as frozen"


def test_a_freeze_that_the_watch_has_lifted_is_not_called_frozen(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    attempt = lab.context.record.freeze()
    assert attempt is not None
    frozen.lift(lab.context, attempt, reason="the watch")
    with pytest.raises(FreezeFailed, match="is lifted now"):
        lab.patience().run(failing(StillFrozen("it could not be lifted")))


def test_an_unreadable_journal_is_waited_for_no_longer_than_a_freeze_may_last(tmp_path: Path) -> None:
    lab = Lab(tmp_path)

    def unreadable() -> PhaseContext:
        raise Transient("the store is away")

    with pytest.raises(StillFrozen, match="the store is away"):
        lab.patience(unreadable).run(failing(Transient("the store is away")))
    assert sum(lab.pauses) == 60


def test_who_is_ready_is_never_lifted(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    attempt = lab.context.record.freeze()
    assert attempt is not None
    lab.context.journal.step(steps.READY, key="1")
    with pytest.raises(Exception, match="too late to free"):
        frozen.lift(lab.context, attempt, reason="a process that woke up late")
    with pytest.raises(BrokerUnreachable):
        lab.patience().run(failing(BrokerUnreachable("the target is away")))


@pytest.mark.parametrize("method", ["webhook", "manual", "acl"])
def test_instructions_are_complete_sentences_without_secrets(tmp_path: Path, method: str) -> None:
    cutover = {"freeze": "webhook", "producer_freeze_webhook": "https://x.example/s3cret?token=s3cret"}
    spec = parse_spec({**make_context(tmp_path).spec.model_dump(mode="json"), "cutover": cutover}, recorded=True)
    text = by_hand.instructions(spec, method=method, deadline=None, acls=[])
    assert "s3cret" not in text
    assert "Do not do it if the journal has the step ready_for_client_switch" in text
    assert "kafka-migration rollback" in text


def _loses_the_lift(lab: Lab, monkeypatch: pytest.MonkeyPatch, error: BaseException, *, times: int = 1) -> list[str]:
    """From the first unfreeze on the journal's store fails so many times to write; the actions on producers."""
    actions: list[str] = []
    left = [times]
    step = lab.context.journal.step_once

    def unfreeze(*_: Any) -> dict[str, Any]:
        actions.append("unfreeze")
        return {}

    def failing_step(name: str, *args: Any, **more: Any) -> Any:
        if actions and left[0]:
            left[0] -= 1
            raise error
        return step(name, *args, **more)

    monkeypatch.setattr("airflow_provider_kafka_migration.freeze.stops.unfreeze", unfreeze)
    monkeypatch.setattr(lab.context.journal, "step_once", failing_step)
    return actions


def test_a_lift_that_cannot_be_journaled_never_lets_the_step_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers are free by then: a step that ran again could end READY for a source that is written to."""
    lab = Lab(tmp_path)
    actions = _loses_the_lift(lab, monkeypatch, StorageUnavailable("503"))
    tries: list[int] = []

    def step() -> PhaseResult:
        tries.append(1)
        if len(tries) > 1:
            return PhaseResult("cutover", "done")
        attempt = lab.context.record.freeze()
        assert attempt is not None
        with frozen.lifting(lab.context, attempt):
            raise DrainTimeout("the target is not there yet")
        raise AssertionError

    with pytest.raises(FreezeFailed, match="is lifted now"):
        lab.patience().run(step)
    assert tries == [1]
    assert actions == ["unfreeze", "unfreeze"], "asked again: nobody knows what became of the first one"
    assert lab.context.journal.tip_state is State.TAIL


def test_killed_between_unfreeze_and_journal_the_migration_is_out_of_the_cutover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path)
    journal = lab.context.journal
    attempt = lab.context.record.freeze()
    assert attempt is not None
    result = FreezeResult(
        migration_id="m1",
        attempt=1,
        method="manual",
        requested_at=iso(lab.clock.now()),
        verified_at=iso(lab.clock.now()),
        deadline=iso(attempt.deadline),
        ends={},
    )
    journal.step(steps.FREEZE_VERIFIED, key="1", details={"result": result.model_dump(mode="json")})
    _loses_the_lift(lab, monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        frozen.lift(lab.context, attempt, reason="too slow")
    assert journal.tip_state is State.TAIL
    # Approved again while the old limit is not over yet: the old freeze must not pass for a freeze in force.
    journal.transition(State.DRAIN_READY, "test")
    journal.transition(State.CUTOVER, "test")
    with pytest.raises(FreezeFailed, match="was lifted"):
        frozen.verified_attempt(lab.context.record, "cutover.sentinels")
    with pytest.raises(FreezeFailed, match="is lifted now"):
        freeze.run(lab.context)
    ended = lab.context.record.freeze()
    assert ended is not None
    assert ended.lifted
    assert journal.tip_state is State.TAIL


@pytest.mark.parametrize("known", [False, True], ids=["unread", "read-before"])
def test_the_last_step_never_tells_anybody_to_free_producers_while_the_journal_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """READY may be journaled, and its answer lost."""
    lab = Lab(tmp_path)
    away = StorageUnavailable("503")

    def unreadable(*_: Any, **__: Any) -> Any:
        raise away

    if known:
        monkeypatch.setattr(lab.context.journal, "check_holds", unreadable)
    patience = lab.patience(None if known else unreadable, may_be_ready=True)
    with pytest.raises(StillFrozen) as caught:
        patience.run(failing(away))
    assert caught.value.next_step.startswith("do not free the producers")
    assert "clear cutover.floor_guard" in caught.value.next_step
