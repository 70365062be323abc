"""What the way from task to task costs: measured in the journal, shown to who approves, refused if too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, approval, make_context

from airflow_provider_kafka_migration.approvals import answers, check, request
from airflow_provider_kafka_migration.documents.cutover import FreezeResult
from airflow_provider_kafka_migration.errors import ApprovalRefused, CopyFailed, FreezeFailed, StorageUnavailable
from airflow_provider_kafka_migration.freeze import frozen, one_task, stops
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phase_table import CUTOVER
from airflow_provider_kafka_migration.record import handover, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN
from airflow_provider_kafka_migration.record.times import iso, words
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import State


def migrated(folder: Path, seconds: list[float], **sections: Any) -> tuple[PhaseContext, Clock]:
    """A migration in drain_ready whose phases began so many seconds after the one before had ended."""
    clock = Clock()
    cutover = {"freeze": "acl", **sections.pop("cutover", {})}
    context = make_context(folder, state=State.PLANNED, clock=clock, cutover=cutover, **sections)
    journal = context.journal
    for number, state in enumerate((State.PRECHECK, State.TOPOLOGY_COPY, State.SEED, State.TAIL, State.DRAIN_READY)):
        journal.step("work_done", details={"number": number})
        clock.sleep(seconds[number] if number < len(seconds) else 0)
        journal.transition(state, f"{state} starts")
        clock.sleep(1000)  # work inside of a phase is no change of tasks
    ends = {("orders", 0): 100, ("orders", 1): 50}
    for side in (context.source, context.target):
        side.wire.offsets["latest"] = dict(ends)  # type: ignore[attr-defined]
    return context, clock


def test_changes_are_what_lies_between_two_phases(tmp_path: Path) -> None:
    context, _ = migrated(tmp_path, [3, 30, 5, 4])
    found = handover.of(context.record)
    assert found.measured == (3, 30, 5, 4)
    assert (found.typical_seconds, found.largest_seconds, found.changes) == (4.5, 30, 5)
    assert found.frozen_seconds == 22.5


def test_pauses_of_people_are_no_changes(tmp_path: Path) -> None:
    """A run that somebody held, a run that took the migration over, a phase that failed and was cleared."""
    clock = Clock()
    context = make_context(tmp_path, state=State.PLANNED, clock=clock)
    journal = context.journal
    clock.sleep(7200)
    journal.transition(State.PRECHECK, "precheck starts")
    journal.fail(RuntimeError("a blocker"))
    clock.sleep(60)
    journal.transition(State.PRECHECK, "precheck is run again")
    clock.sleep(60)
    journal.claim(Owner("dag_run", "another", "topology_copy"), takeover=True)
    clock.sleep(5)
    journal.transition(State.TOPOLOGY_COPY, "topology_copy starts")
    assert handover.of(context.record).measured == ()
    clock.sleep(8)
    journal.transition(State.SEED, "seed starts")
    assert handover.of(context.record).measured == (8,)


def test_clock_that_goes_back_measures_nothing(tmp_path: Path) -> None:
    clock = Clock()
    context = make_context(tmp_path, state=State.PLANNED, clock=clock)
    clock.sleep(-30)
    context.journal.transition(State.PRECHECK, "precheck starts")
    assert handover.of(context.record).measured == ()


def test_the_approval_shows_what_the_executor_costs(tmp_path: Path) -> None:
    context, _ = migrated(tmp_path, [4, 4, 6, 4])
    facts = request.make_facts(context, "cutover")
    assert "Of this, 20 seconds is task hand-over (5 times): each took 4 s in this migration" in facts.body
    assert "the longest of 4 took 6 s" in facts.body
    fast, _ = migrated(tmp_path / "fast", [0, 0, 0, 0])
    other = request.make_facts(fast, "cutover").facts["expected_freeze_seconds"]
    assert facts.facts["expected_freeze_seconds"] - other == pytest.approx(20, abs=0.2)


def test_where_nothing_was_measured_the_text_says_so(tmp_path: Path) -> None:
    context, _ = migrated(tmp_path, [700, 700, 700, 700])
    body = request.make_facts(context, "cutover").body
    assert "nothing was measured in this migration, so 1 s each is an estimate" in body


PODS = [25.0, 20.0, 22.0, 24.0]


def test_a_cutover_that_cannot_fit_is_said_and_refused(tmp_path: Path) -> None:
    """Five pods at 20 s are 100 s, even if all are as fast as the fastest; producers may be frozen for 60."""
    context, _ = migrated(tmp_path, PODS)
    facts = request.make_facts(context, "cutover")
    assert "an approval will be refused: producers would be frozen for at least 1 minute 42 seconds" in facts.body
    with pytest.raises(ApprovalRefused, match="cannot be done in time") as caught:
        answers.answer(context, approval(context, "cutover", facts.code))
    assert "in_one_task" in caught.value.next_step
    assert context.journal.find_step("approval_refused") is not None
    assert not check.given(context, "cutover")


@pytest.mark.parametrize(
    ("cutover", "seconds"),
    [
        ({"in_one_task": True}, PODS),
        ({"max_producer_freeze": "10m"}, PODS),
        ({"max_producer_freeze": "2s", "freeze_stable_window": "1s"}, [700, 700, 700, 700]),
        ({}, [3.0, 90.0, 120.0, 200.0]),
    ],
    ids=["in one task", "more time", "nothing measured", "waits for a slot"],
)
def test_what_may_fit_is_not_refused(tmp_path: Path, cutover: dict[str, Any], seconds: list[float]) -> None:
    context, _ = migrated(tmp_path, seconds, cutover=cutover)
    facts = request.make_facts(context, "cutover")
    assert not facts.facts["cannot_fit"]
    answers.answer(context, approval(context, "cutover", facts.code))
    assert check.given(context, "cutover")


@pytest.mark.parametrize("in_one_task", [True, False])
def test_the_way_from_the_answer_to_the_first_task_counts_where_producers_are_stopped_by_hand(
    tmp_path: Path, in_one_task: bool
) -> None:
    by_hand, by_acls = (
        request.make_facts(
            migrated(tmp_path / method, [4, 4, 4, 4], cutover={"freeze": method, "in_one_task": in_one_task})[0],
            "cutover",
        ).facts["expected_freeze_seconds"]
        for method in ("manual", "acl")
    )
    assert by_hand - by_acls == 4


def test_one_task_has_no_changes_and_says_so(tmp_path: Path) -> None:
    context, _ = migrated(tmp_path, PODS, cutover={"in_one_task": True})
    facts = request.make_facts(context, "cutover")
    assert "All steps run in one task" in facts.body
    assert facts.facts["expected_freeze_seconds"] < 10
    assert facts.binding["cutover"]["in_one_task"] is True
    plain, _ = migrated(tmp_path / "plain", PODS)
    assert "in_one_task" not in request.make_binding(plain.record, plain.source, "cutover")["cutover"], (
        "codes stay valid over an update"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (2.54, "2.5 s"), (9.96, "10 s"), (10, "10 seconds"), (95.4, "1 minute 35 seconds")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert words(seconds) == text


# ---- in one task: the tail ends in another one


def frozen_by_tasks(folder: Path, hand_over: float, work: float, **sections: Any) -> tuple[PhaseContext, Clock]:
    """A freeze whose tasks each begin so long after the one before and work so long; the fourth one has just begun."""
    context, clock = migrated(folder, [2, 2, 2, 2], **sections)

    def task(name: str) -> Journal:
        owner = Owner("cli", "tester", name)
        return Journal.create_or_open(
            context.journal_store, "m1", Fingerprint("source-id", "target-id"), owner=owner, clock=clock.now
        )

    journal = task("cutover.freeze")
    journal.transition(State.CUTOVER, "t")
    deadline = clock.now() + context.spec.cutover.max_producer_freeze
    details = {"method": "manual", "requested_at": iso(clock.now()), "deadline": iso(deadline)}
    journal.step(steps.FREEZE_REQUESTED, key="1", details=details)
    clock.sleep(work)
    result = FreezeResult(
        migration_id="m1",
        attempt=1,
        method="manual",
        requested_at=iso(clock.now()),
        deadline=iso(deadline),
        verified_at=iso(clock.now()),
        details={},
        ends={},
        bypasses=[],
    )
    journal.step(steps.FREEZE_VERIFIED, key="1", details={"result": result.model_dump(mode="json")})
    for name in (steps.SENTINELS, steps.FINAL_DRAIN):
        clock.sleep(hand_over)
        begun = iso(clock.now())
        clock.sleep(work)
        task(name).step(steps.CUTOVER_STEP, key=f"1/{name}", details={"started_at": begun, "seconds": work})
    clock.sleep(hand_over)
    return replace(context, journal=task("cutover.commit_groups")), clock


def test_a_freeze_that_was_mostly_hand_over_names_its_cure(tmp_path: Path) -> None:
    context, _ = frozen_by_tasks(tmp_path, hand_over=18, work=3)
    attempt = context.record.freeze()
    assert attempt is not None
    with pytest.raises(FreezeFailed) as caught:
        stops.check_deadline(context.record, attempt)
    assert caught.value.next_step.startswith(
        "54 seconds of 1 minute 3 seconds were hand-overs between tasks: set cutover.in_one_task: true"
    )
    assert AGAIN in caught.value.next_step


def test_a_freeze_that_was_mostly_work_does_not(tmp_path: Path) -> None:
    context, _ = frozen_by_tasks(tmp_path, hand_over=3, work=18)
    attempt = context.record.freeze()
    assert attempt is not None
    with pytest.raises(FreezeFailed, match="longer than") as caught:
        stops.check_deadline(context.record, attempt)
    assert caught.value.next_step.startswith("find the slow step")


@pytest.mark.parametrize(("hand_over", "work"), [(18, 3), (3, 18)])
def test_an_estimate_learns_from_a_freeze_that_was_lifted(tmp_path: Path, hand_over: float, work: float) -> None:
    context, _ = frozen_by_tasks(tmp_path, hand_over, work)
    before = request.make_facts(context, "cutover").facts["expected_freeze_seconds"]
    assert before < 60
    frozen.back_to_tail(context.record, "t")
    context.journal.step(steps.FREEZE_LIFTED, key="1", details={})
    facts = request.make_facts(context, "cutover")
    assert facts.facts["handover"]["typical_seconds"] == hand_over
    assert facts.facts["expected_freeze_seconds"] == 3 * work + 5 * hand_over
    assert "Freeze 1 took 1 minute 3 seconds until it was lifted" in facts.body


def frozen_now(folder: Path) -> tuple[PhaseContext, Clock]:
    """A migration in ``cutover`` whose producers have just been frozen."""
    clock = Clock()
    context = make_context(folder, state=State.CUTOVER, clock=clock)
    deadline = clock.now() + context.spec.cutover.max_producer_freeze
    details = {"method": "manual", "requested_at": iso(clock.now()), "deadline": iso(deadline)}
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)
    return context, clock


def test_it_waits_until_the_tail_has_journaled_its_end(tmp_path: Path) -> None:
    context, clock = frozen_now(tmp_path)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.sleep(seconds)
        if len(waits) == 3:
            context.journal.step(steps.TAIL_DONE, details={})

    one_task.wait_for_tail(context, sleep=sleep)
    assert len(waits) == 3


def test_end_of_the_tail_before_this_freeze_does_not_count(tmp_path: Path) -> None:
    """The freeze before this one was lifted, and took the tail's stop back."""
    clock = Clock()
    context = make_context(tmp_path, state=State.CUTOVER, clock=clock)
    context.journal.step(steps.TAIL_DONE, details={})
    assert context.record.has_tail_ended()
    context.journal.step(steps.FREEZE_REQUESTED, key="2", details={})
    assert not context.record.has_tail_ended()
    context.journal.step(steps.TAIL_DONE, details={})
    assert context.record.has_tail_ended()


def test_a_tail_that_does_not_end_lifts_the_freeze(tmp_path: Path) -> None:
    context, clock = frozen_now(tmp_path)
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        one_task.wait_for_tail(context, sleep=clock.sleep)
    assert context.journal.find_step(steps.FREEZE_LIFTED, "1") is not None
    assert context.journal.tip_state is State.TAIL


def test_nothing_is_waited_for_when_nothing_is_frozen(tmp_path: Path) -> None:
    context = make_context(tmp_path, state=State.AWAITING_CLIENT_SWITCH)
    one_task.wait_for_tail(context, sleep=lambda _: pytest.fail("it waited"))


def _cutover(context: PhaseContext, clock: Clock, monkeypatch: pytest.MonkeyPatch, sleep: Any) -> list[str]:
    """A process that runs the cutover in one task, whose steps do nothing: the steps that were run."""
    migration = Migration(context.spec, Owner("cli", "tester", "tester"), Resolver())
    migration.__dict__["context"] = context
    migration._sleep, migration._now = sleep, clock.now  # type: ignore[method-assign]
    steps: list[str] = []

    def run(self: Migration, phase: str, **_: Any) -> PhaseResult:
        steps.append(phase)
        return PhaseResult("cutover", phase)

    monkeypatch.setattr(Migration, "run", run)
    migration.run_cutover()
    return steps


def test_storage_that_is_away_for_a_moment_does_not_end_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, clock = frozen_now(tmp_path)
    refresh, failures = context.journal.refresh, [StorageUnavailable("503")]
    waits: list[float] = []

    def failing() -> None:
        if waits and failures:
            raise failures.pop()
        refresh()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.sleep(seconds)
        if len(waits) == 4:
            context.journal.step(steps.TAIL_DONE, details={})

    monkeypatch.setattr(context.journal, "refresh", failing)
    assert _cutover(context, clock, monkeypatch, sleep) == [row.id for row in CUTOVER]
    assert failures == []
    assert len(waits) == 4
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.is_open


def test_a_tail_that_failed_is_waited_for_until_it_has_been_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, clock = frozen_now(tmp_path)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.sleep(seconds)
        if len(waits) == 1:
            context.journal.fail(CopyFailed("a partition"))
        if len(waits) == 3:
            context.journal.transition(State.CUTOVER, "tail is run again")
            context.journal.step(steps.TAIL_DONE, details={})

    assert _cutover(context, clock, monkeypatch, sleep) == [row.id for row in CUTOVER]
    assert len(waits) == 3, "groups are not committed before the tail has ended"


def test_a_tail_that_failed_for_good_lifts_the_freeze_at_its_limit(tmp_path: Path) -> None:
    context, clock = frozen_now(tmp_path)
    context.journal.fail(CopyFailed("a partition"))
    with pytest.raises(FreezeFailed, match="max_producer_freeze"):
        one_task.wait_for_tail(context, sleep=clock.sleep)
    assert context.journal.find_step(steps.FREEZE_LIFTED, "1") is not None
    assert context.journal.tip_state is State.TAIL
