"""What errors say of the producers depends on who stopped them: with ``freeze: manual`` the migration frees nobody."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, approval, make_context

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.approvals import answers, check
from airflow_provider_kafka_migration.dag import ROLLBACK_DOC, TASK_DOCS
from airflow_provider_kafka_migration.documents.cutover import FreezeResult
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerUnreachable,
    DrainTimeout,
    FloorViolated,
    FreezeFailed,
    MigrationError,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.freeze import frozen, stops, words
from airflow_provider_kafka_migration.freeze.watchdog import FreezePatience
from airflow_provider_kafka_migration.phases import freeze, freeze_limit, rollback
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics.lags import DrainStatus, PartitionLag

METHODS = ["webhook", "manual", "acl"]
STILL_STOPPED = "still stopped"


def in_freeze(folder: Path, clock: Clock, method: str, monkeypatch: pytest.MonkeyPatch) -> PhaseContext:
    """In ``cutover`` with a verified freeze that began just now."""
    section = {"freeze": method, "producer_freeze_webhook": "http://127.0.0.1:1/freeze"}
    context = make_context(folder, state=State.CUTOVER, clock=clock, cutover=section)
    now = iso(context.now())
    deadline = iso(context.now() + timedelta(seconds=60))
    context.journal.step(steps.FREEZE_REQUESTED, "1", {"method": method, "requested_at": now, "deadline": deadline})
    result = FreezeResult.model_validate(
        {
            "migration_id": "m1",
            "attempt": 1,
            "method": method,
            "requested_at": now,
            "verified_at": now,
            "deadline": deadline,
            "ends": {},
        }
    )
    context.journal.step(steps.FREEZE_VERIFIED, "1", {"result": result.model_dump(mode="json")})
    if method != "manual":
        monkeypatch.setattr(stops, "unfreeze", lambda *_: {})
    return context


def overdue(context: PhaseContext, clock: Clock) -> None:
    clock.sleep(70)
    freeze_limit.run(context)


def at_the_limit(context: PhaseContext, clock: Clock) -> None:
    def step() -> PhaseResult:
        raise BrokerUnreachable("the target is away", next_step="start it")

    FreezePatience(context.spec, lambda: context, lambda _: None, sleep=clock.sleep, now=clock.now).run(step)


def failed_step(kind: type[MigrationError]) -> Callable[[PhaseContext, Clock], None]:
    def fail(context: PhaseContext, _: Clock) -> None:
        with frozen.frozen_step(context, "floor_guard"):
            raise kind("it failed for good", next_step="find out why")

    return fail


def lift_in_two_tries(context: PhaseContext, clock: Clock) -> None:
    """The step failed for good, its lift could not be journaled at first."""
    step, left = context.journal.step, [1]

    def journal(name: str, *args: Any, **more: Any) -> Any:
        if name == steps.FREEZE_LIFTED and left:
            left.pop()
            raise StorageUnavailable("503")
        return step(name, *args, **more)

    context.journal.step = journal  # type: ignore[method-assign]
    FreezePatience(context.spec, lambda: context, lambda _: None, sleep=clock.sleep, now=clock.now).run(
        lambda: failed_step(FloorViolated)(context, clock)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "end",
    [
        overdue,
        at_the_limit,
        failed_step(FloorViolated),
        failed_step(DrainTimeout),
        lift_in_two_tries,
    ],
    ids=["watch", "limit", "terminal", "drain", "two tries"],
)
def test_an_error_behind_a_lifted_freeze_says_what_is_true_of_the_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, end: Callable[[PhaseContext, Clock], None]
) -> None:
    clock = Clock()
    context = in_freeze(tmp_path, clock, method, monkeypatch)
    with pytest.raises(MigrationError) as caught:
        end(context, clock)
    attempt = context.record.freeze()
    assert attempt is not None
    assert attempt.lifted
    told = str(caught.value)
    assert told.count(words.lifted(method)) == 1, told
    assert (STILL_STOPPED in told) is (method == "manual")
    assert (words.TELL_OWNERS in told) is (method == "manual")


def test_a_step_behind_a_lifted_freeze_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = in_freeze(tmp_path, Clock(), "manual", monkeypatch)
    attempt = context.record.freeze()
    assert attempt is not None
    frozen.lift(context, attempt, reason="test")
    with pytest.raises(FreezeFailed, match=words.TELL_OWNERS):
        frozen.verified_attempt(context.record, "cutover.sentinels")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("why", ["approval", "new partitions", "drift", "broker"])
def test_a_cutover_that_did_not_begin_says_who_is_still_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, why: str
) -> None:
    section = {"freeze": method, "producer_freeze_webhook": "http://127.0.0.1:1/freeze"}
    context = make_context(tmp_path, state=State.CUTOVER, cutover=section)
    error: MigrationError = FreezeFailed("changed", next_step="approve again")
    if why == "broker":
        error = BrokerUnreachable("the source is away", next_step="start it")

    def refuse(*_: Any) -> None:
        raise error

    if why != "approval":
        monkeypatch.setattr(check, "require", lambda *_, **__: [])
        monkeypatch.setattr(follow, "check_all_followed", refuse if why == "new partitions" else lambda *_: None)
        monkeypatch.setattr(freeze.lags, "small_again", lambda _: DrainStatus(context.now(), (), 0, None, ready=True))
        monkeypatch.setattr(take_over, "check_before_freeze", refuse)
    with pytest.raises(MigrationError) as caught:
        freeze.run(context)
    told = str(caught.value)
    assert told.count(words.not_begun(method)) == 1, told
    assert ("nothing was frozen" in told) is (method != "manual")
    assert (STILL_STOPPED in told) is (method == "manual")


def test_a_cutover_that_is_refused_changes_no_access_on_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path, state=State.CUTOVER, cutover={"freeze": "manual"})
    changed: list[str] = []
    lag = PartitionLag("orders", 0, 1000, 10, 10)
    monkeypatch.setattr(check, "require", lambda *_, **__: [])
    monkeypatch.setattr(follow, "check_all_followed", lambda *_: None)
    monkeypatch.setattr(freeze.lags, "small_again", lambda _: DrainStatus(context.now(), (lag,), 5, None, ready=False))
    monkeypatch.setattr(take_over, "check_before_freeze", lambda _: changed.append("access"))
    with pytest.raises(FreezeFailed, match="990"):
        freeze.run(context)
    assert changed == []
    assert context.record.freeze() is None


@pytest.mark.parametrize("method", METHODS)
def test_a_refused_approval_says_it_to_whoever_has_stopped_the_producers(tmp_path: Path, method: str) -> None:
    section = {"freeze": method, "producer_freeze_webhook": "http://127.0.0.1:1/freeze"}
    context = make_context(tmp_path, state=State.DRAIN_READY, cutover=section)
    with pytest.raises(ApprovalRefused) as caught:
        answers.answer(context, approval(context, "cutover", "00000000"))
    assert (STILL_STOPPED in str(caught.value)) is (method == "manual")


@pytest.mark.parametrize("method", METHODS)
def test_a_rollback_in_a_freeze_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    context = in_freeze(tmp_path, Clock(), method, monkeypatch)
    monkeypatch.setattr(copy_settings, "restore_for_rollback", lambda *_: PhaseResult("rollback", "put back"))
    assert words.lifted(method) in rollback.run(context).summary


def test_texts_that_are_not_about_one_migration_speak_of_freeze_manual() -> None:
    for text in (TASK_DOCS["cutover.freeze"], TASK_DOCS["cutover.freeze_limit"], ROLLBACK_DOC):
        assert words.TELL_OWNERS in text
        assert "freeze: manual" in text


def test_these_sentences_have_one_place() -> None:
    package = Path(airflow_provider_kafka_migration.__file__).parent
    sentences = (
        "producers write to the source again",
        "producers may write to the source again",
        "nothing was frozen",
        "let go again",
        words.TELL_OWNERS,
    )
    owners = []
    between = r"""[ \n"'frb]+"""
    for file in sorted(package.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        # Parsing is slow: only what has the words of a sentence one after the other, on any lines, can have it.
        if not any(re.search(between.join(map(re.escape, sentence.split())), source) for sentence in sentences):
            continue
        texts = [
            node.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found = [sentence for sentence in sentences if any(sentence in text for text in texts)]
        if file.name == "words.py":
            assert found
            owners.append(file)
        else:
            assert found == [], f"{file.name} has a sentence of its own, which is wrong for some way to stop producers"
    assert len(owners) == 1
