"""Before READY the webhook's receiver is told to keep producers stopped until it hears ``unfreeze``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, equal_offset_map, make_context

from airflow_provider_kafka_migration.documents.cutover import Boundary, FreezeResult
from airflow_provider_kafka_migration.errors import FreezeFailed, FreezeUnconfirmed, PhaseOver
from airflow_provider_kafka_migration.freeze import by_hand, fence, frozen, stops, webhook_spec
from airflow_provider_kafka_migration.freeze.webhook import ATTEMPTS, FreezeWebhook
from airflow_provider_kafka_migration.phases import floor_guard
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.partition_names import by_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings, log_starts
from harness.webhook import Call
from harness.webhook import FreezeWebhook as Receiver

ENDS = {("orders", 0): 100, ("orders", 1): 50}


class SelfLifting:
    """Stopped producers whose receiver lets them go by itself at the deadline that it was given last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadline: datetime | None = None
        self.is_told = False

    def take(self, call: Call) -> None:
        self.is_told = call.action == "freeze"
        text = call.body["deadline"]
        self.deadline = None if text is None else datetime.fromisoformat(text)

    @property
    def is_frozen(self) -> bool:
        return self.is_told and (self.deadline is None or self._clock.now() < self.deadline)


def last_step(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> PhaseContext:
    """In ``cutover`` with all steps done but the last one; 40 s of 60 s are over."""
    context = make_context(
        folder,
        state=State.CUTOVER,
        clock=clock,
        cutover={"freeze": "webhook", "producer_freeze_webhook": url, "max_producer_freeze": "60s"},
    )
    now = clock.now()
    deadline = iso(now + timedelta(seconds=60))
    context.journal.step(
        steps.FREEZE_REQUESTED, "1", {"method": "webhook", "requested_at": iso(now), "deadline": deadline}
    )
    result = FreezeResult(
        migration_id="m1",
        attempt=1,
        method="webhook",
        requested_at=iso(now),
        verified_at=iso(now),
        deadline=deadline,
        ends=by_name(ENDS),
    )
    context.journal.step(steps.FREEZE_VERIFIED, "1", {"result": result.model_dump(mode="json")})
    context.journal.step(steps.CUTOVER_STEP, "1/commit_groups", {"seconds": 1.0})
    context.record.put_result(
        "boundary", Boundary(migration_id="m1", attempt=1, mode="end_offsets", ends=by_name(ENDS))
    )
    document = equal_offset_map(ENDS)
    monkeypatch.setattr(MigrationRecord, "offset_map", lambda _: document)
    monkeypatch.setattr(fence, "fence_copiers", lambda *_: {"summary": "fenced"})
    monkeypatch.setattr(log_starts, "restore_log_starts", lambda *_: None)
    monkeypatch.setattr(copy_settings, "restore_producer_visible", lambda *_: PhaseResult("topology", "restored"))
    for side in (context.source, context.target):
        side.wire.offsets["latest"] = dict(ENDS)  # type: ignore[attr-defined]
    clock.sleep(40)
    return context


def freeze_first(context: PhaseContext) -> None:
    attempt = context.record.freeze()
    assert attempt is not None
    stops.freeze(context, attempt)


def test_a_receiver_that_lifts_by_itself_does_not_do_it_after_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    producers = SelfLifting(clock)

    def answer(call: Call) -> None:
        producers.take(call)

    with Receiver(answer=answer) as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        freeze_first(context)
        floor_guard.run(context)
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.ready
    clock.sleep(30)
    assert producers.is_frozen, "they would write to the source again, behind the boundary"
    assert [call.body["deadline"] for call in receiver.calls] == [iso(attempt.deadline), None]
    names = [entry.step for entry in context.journal.steps()]
    assert names.index(steps.FREEZE_HELD) < names.index(steps.READY), "journaled before it is asked, and before READY"


def test_what_was_written_until_the_receiver_held_them_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock is fast, so it lifted just before it was asked to go on."""
    clock = Clock()
    with Receiver() as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)

        def answer(call: Call) -> None:
            if call.body["deadline"] is None:
                context.source.wire.offsets["latest"][("orders", 1)] = 53  # type: ignore[attr-defined]

        receiver.answer = answer
        with pytest.raises(FreezeFailed, match="orders-1 got offsets 50 to 52"):
            floor_guard.run(context)
    assert context.journal.find_step(steps.READY) is None
    assert [call.action for call in receiver.calls] == ["freeze", "unfreeze"]
    assert context.journal.tip_state is State.TAIL


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, {}, FreezeFailed),
        (200, {"migration_id": "m1", "action": "freeze", "deadline": "2026-04-24T10:41:00Z"}, FreezeFailed),
        (503, {}, FreezeUnconfirmed),
    ],
    ids=["refused", "keeps its deadline", "away"],
)
def test_without_a_yes_there_is_no_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, Any], error: type[Exception]
) -> None:
    clock = Clock()

    def answer(call: Call) -> tuple[int, Any] | None:
        return (status, body) if call.action == "freeze" else None

    with Receiver(answer=answer) as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        with pytest.raises(error, match="webhook"):
            floor_guard.run(context)
        asked = [call.action for call in receiver.calls]
        attempt = context.record.freeze()
        assert attempt is not None
        assert not attempt.ready
        if error is FreezeFailed:
            assert asked == ["freeze", "unfreeze"], "no for good: nobody stays stopped for it"
            return
        # Away for a moment: producers stay stopped, and the step is tried again for as long as its limit allows.
        assert asked == ["freeze"]
        assert not attempt.lifted
        receiver.answer = None
        floor_guard.run(context)
    assert context.journal.find_step(steps.READY) is not None
    assert len(context.journal.steps(steps.FREEZE_HELD)) == 1


def test_nobody_is_held_for_a_freeze_that_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch on the limit has freed the producers: a late request would stop them for nobody, and for ever."""
    clock = Clock()
    with Receiver() as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        attempt = context.record.freeze()
        assert attempt is not None
        context.journal.step(steps.FREEZE_HELD, "1", {})
        frozen.back_to_tail(context.record, "given up by the watch")
        with pytest.raises(PhaseOver):
            stops.hold(context, attempt)
    assert receiver.calls == []


def test_floor_guard_that_died_behind_ready_holds_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY may be from a release that did not ask for it."""
    clock = Clock()
    with Receiver() as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        context.journal.step(steps.READY, "1", {})
        assert floor_guard.run(context).already_done
    assert [call.body["deadline"] for call in receiver.calls] == [None]
    assert [call.action for call in receiver.calls] == ["freeze"]


def test_producers_that_were_freed_while_they_were_asked_to_stay_are_freed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch on the limit lifts between the last check and the arrival of the request."""
    clock = Clock()
    with Receiver() as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        attempt = context.record.freeze()
        assert attempt is not None

        def answer(call: Call) -> None:
            if call.action == "freeze":
                frozen.back_to_tail(context.record, "the limit was over")

        receiver.answer = answer
        with pytest.raises(PhaseOver):
            stops.hold(context, attempt)
    assert [call.action for call in receiver.calls] == ["freeze", "unfreeze"]


def test_nobody_is_held_behind_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver has freed them by itself by then; resolving its address may take as long as it likes."""
    clock = Clock()
    with Receiver() as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        attempt = context.record.freeze()
        assert attempt is not None
        resolve = webhook_spec.webhook_address

        def slowly(given: str, resolver: Any) -> str:
            clock.sleep(30)
            return resolve(given, resolver)

        monkeypatch.setattr(webhook_spec, "webhook_address", slowly)
        with pytest.raises(FreezeFailed):
            stops.hold(context, attempt)
    assert receiver.calls == []


@pytest.mark.parametrize("held", [True, False], ids=["held before READY", "READY of an older release"])
def test_behind_ready_only_who_was_never_held_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    clock = Clock()
    with Receiver(answer=lambda _: (503, {})) as receiver:
        context = last_step(tmp_path, receiver.url, monkeypatch, clock)
        quick = {**FreezeWebhook.__init__.__kwdefaults__, "sleep": lambda _: None}
        monkeypatch.setattr(FreezeWebhook.__init__, "__kwdefaults__", quick)
        details = {"seconds": 1.0, "held": {"webhook": {"status": 200}} if held else {}}
        context.journal.step(steps.CUTOVER_STEP, "1/floor_guard", details)
        context.journal.step(steps.READY, "1", {})
        clock.sleep(3600)
        if held:
            assert floor_guard.run(context).already_done
        else:
            with pytest.raises(FreezeUnconfirmed, match="is journaled") as caught:
                floor_guard.run(context)
            assert "do not free the producers" in caught.value.next_step
            assert "drain_ready" not in caught.value.next_step
    assert len(receiver.calls) == (0 if held else ATTEMPTS)


def test_by_hand_texts_do_not_promise_an_end_that_was_taken_back(tmp_path: Path) -> None:
    spec = make_context(
        tmp_path, cutover={"freeze": "webhook", "producer_freeze_webhook": "https://x.example/freeze"}
    ).spec
    deadline = datetime(2026, 4, 24, 10, 41, tzinfo=UTC)
    given = by_hand.instructions(spec, method="webhook", deadline=deadline, acls=[])
    assert "should free them by itself" in given
    held = by_hand.instructions(spec, method="webhook", deadline=deadline, acls=[], held=True)
    assert "should free them by itself" not in held
    assert "it does not free them by itself" in held
