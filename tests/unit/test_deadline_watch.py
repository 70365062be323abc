"""When a freeze or a lag is over, when it is not, and when nobody knows: only what is known to be over is over."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.deadline_watch import (
    UNKNOWN_SECONDS,
    Beginnings,
    Ending,
    Finding,
    FreezeDeadlineWatch,
    LagDeadlineWatch,
    LagLimit,
    Standing,
    open_watch,
)
from airflow_provider_kafka_migration.errors import FreezeFailed, StorageUnavailable
from airflow_provider_kafka_migration.jobs.tail_health import SILENT_SECONDS, HealthWatch
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

OVER, GOING_ON, UNKNOWN, NO_JOURNAL = Standing
SLICE_SECONDS = 20


# -- freezes ----------------------------------------------------------------------------------------------------------


class Freezes:
    """A migration in ``cutover``, and a watch on it in another process."""

    def __init__(self, folder: Path) -> None:
        self.context = make_context(folder, state=State.CUTOVER, cutover={"freeze": "manual"})
        self.watch = open_watch("freeze", self.context.spec, Resolver(), LagLimit())

    def freeze(self, number: int) -> None:
        now = self.context.now()
        details = {"method": "manual", "requested_at": iso(now), "deadline": iso(now + timedelta(seconds=60))}
        self.context.journal.step(steps.FREEZE_REQUESTED, key=str(number), details=details)

    def found(self) -> tuple[Standing, int]:
        standing, summary, number = self.watch.check()
        assert summary
        return standing, number


@pytest.fixture
def freezes(tmp_path: Path) -> Freezes:
    return Freezes(tmp_path)


def test_a_freeze_lasts_from_its_request_until_it_is_lifted(freezes: Freezes) -> None:
    assert freezes.found() == (OVER, 0)
    freezes.freeze(1)
    assert freezes.found() == (GOING_ON, 1)
    freezes.context.journal.fail(FreezeFailed("a step"))
    assert freezes.found() == (GOING_ON, 1), "a failed step frees nobody"
    freezes.context.journal.transition(State.CUTOVER, "cleared")
    freezes.context.journal.step(steps.FREEZE_LIFTED, key="1")
    assert freezes.found() == (OVER, 0)
    freezes.freeze(2)
    assert freezes.found() == (GOING_ON, 2)


def test_leaving_the_cutover_frees_nobody_without_a_lift(freezes: Freezes) -> None:
    freezes.freeze(1)
    freezes.context.journal.transition(State.TAIL, "given up", from_states=[State.CUTOVER])
    assert freezes.found() == (GOING_ON, 1)
    freezes.context.journal.step(steps.FREEZE_LIFTED, key="1")
    assert freezes.found() == (OVER, 0)


def test_a_freeze_is_over_when_clients_may_switch(freezes: Freezes) -> None:
    freezes.freeze(1)
    freezes.context.journal.step(steps.READY, key="1")
    assert freezes.found() == (OVER, 1)
    freezes.context.journal.transition(State.AWAITING_CLIENT_SWITCH, "ready")
    assert freezes.found() == (OVER, 1)


def test_a_rollback_ends_a_freeze(freezes: Freezes) -> None:
    freezes.freeze(1)
    for before, state in ((State.CUTOVER, State.TAIL), (State.TAIL, State.ROLLED_BACK)):
        assert freezes.found() == (GOING_ON, 1)
        freezes.context.journal.transition(state, "rolled back", from_states=[before])
    assert freezes.found() == (OVER, 0)


def test_a_journal_that_cannot_be_read_says_nothing(freezes: Freezes, monkeypatch: pytest.MonkeyPatch) -> None:
    freezes.freeze(1)
    assert freezes.found() == (GOING_ON, 1)
    freezes.context.journal.step(steps.FREEZE_LIFTED, key="1")

    def fails(*_: Any) -> Any:
        raise StorageUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr(LocalStore, "get", fails)
        with pytest.raises(StorageUnavailable):
            freezes.found()
    assert freezes.found() == (OVER, 0)


def test_without_a_journal_nothing_is_known(tmp_path: Path) -> None:
    spec = make_context(tmp_path / "a").spec
    other = spec.model_copy(update={"migration_id": "another"})
    for watched in ("freeze", "lag"):
        watch = open_watch(watched, other, Resolver(), LagLimit(seconds=1))
        assert watch.check().standing is NO_JOURNAL
        watch.close()


# -- lags -------------------------------------------------------------------------------------------------------------


def standing(number: int, lag: int, *, waiting_ms: int = -1, mirrored_ms: int = -1) -> dict[str, Any]:
    return {"topic": "orders", "partition": number, "lag": lag, "waiting_ms": waiting_ms, "mirrored_ms": mirrored_ms}


class Lags:
    """A migration whose tail writes when told, and a watch on its lag."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, state: State, limit: LagLimit) -> None:
        self.clock = Clock()
        self.context = make_context(folder, state=state, clock=self.clock, tail={"slice_seconds": SLICE_SECONDS})
        monkeypatch.setattr(Migration, "_now", staticmethod(self.clock.now))
        migration = Migration.open(self.context.spec, "watch", Resolver(), actor="watch")
        self.watch = LagDeadlineWatch(migration, limit, health=HealthWatch(clock=self.clock.seconds))
        self.beats = 0

    def waited(self, seconds: float) -> int:
        return int((self.clock.seconds() - seconds) * 1000)

    def writes(self, *partitions: dict[str, Any], **fields: Any) -> None:
        self.beats += 1
        claim = self.context.journal.current_claim
        assert claim is not None
        document = {"migration_id": "m1", "job": "tail", "run": "a", "seconds": self.beats, "records": 0}
        document |= {"generation": claim.generation, "partitions_failed": 0, "partitions_stuck": 0, "slices": {}}
        document |= {"partitions": list(partitions), "partitions_done": 0, "partitions_total": 2, "copied_bytes": 0}
        document |= {"total_bytes": 0, "stuck_seconds": 0.0, "records_per_second": 0.0, **fields}
        self.context.journal_store.put(self.context.key("progress/tail.json"), json.dumps(document).encode())

    def found(self) -> Standing:
        finding = self.watch.check()
        assert finding.summary
        return finding.standing

    def found_after(self, *partitions: dict[str, Any], **fields: Any) -> Standing:
        """What is found while the driver writes these partitions."""
        for _ in range(2):
            self.writes(*partitions, **fields)
            found = self.found()
            self.clock.sleep(2)
        return found


@pytest.fixture
def lags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lags:
    return Lags(tmp_path, monkeypatch, State.TAIL, LagLimit(seconds=30, records=1000))


def test_a_lag_is_over_when_every_partition_is_within_the_limit(lags: Lags) -> None:
    behind = standing(1, 5, waiting_ms=lags.waited(60))
    assert lags.found_after(standing(0, 0), behind) is GOING_ON
    assert "orders-1 is behind by 5 records and" in lags.watch.check().summary
    assert lags.found_after(standing(0, 0), standing(1, 5, waiting_ms=lags.waited(10))) is OVER
    assert lags.found_after(standing(0, 0), standing(1, 0)) is OVER, "idle"


@pytest.mark.parametrize(
    ("limit", "lag", "expected"),
    [
        (LagLimit(seconds=30), 10**9, OVER),
        (LagLimit(records=1000), 1001, GOING_ON),
        (LagLimit(records=1000), 1000, OVER),
        (LagLimit(seconds=30, records=1000), 1001, GOING_ON),
    ],
)
def test_each_limit_counts_where_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: LagLimit, lag: int, expected: Standing
) -> None:
    lags = Lags(tmp_path, monkeypatch, State.TAIL, limit)
    assert lags.found_after(standing(0, 0), standing(1, lag, waiting_ms=lags.waited(1))) is expected


@pytest.mark.parametrize(
    "partitions",
    [
        [],
        [standing(0, 0)],
        [standing(0, 0), standing(1, -1)],
        # Nothing was acknowledged since the driver began, so the lag in seconds is not known.
        [standing(0, 0), standing(1, 5)],
    ],
    ids=["no partition", "one is missing", "one was never read", "no time"],
)
def test_what_the_driver_does_not_say_is_unknown(lags: Lags, partitions: list[dict[str, Any]]) -> None:
    assert lags.found_after(*partitions) is UNKNOWN


def test_what_is_known_to_be_above_the_limit_is_whatever_else_is_unknown(lags: Lags) -> None:
    assert lags.found_after(standing(0, -1), standing(1, 2000)) is GOING_ON


@pytest.mark.parametrize("field", ["partitions_failed", "partitions_stuck"])
def test_partitions_that_are_not_copied_have_an_old_lag(lags: Lags, field: str) -> None:
    troubles = [{"topic": "orders", "partition": 1, "state": "stuck", "seconds": 9.0, "code": "C", "what": "w"}]
    found = lags.found_after(standing(0, 0), standing(1, 0), troubles=troubles, **{field: 1})
    assert found is GOING_ON


def test_a_driver_that_is_silent_says_nothing(lags: Lags) -> None:
    lags.writes(standing(0, 0), standing(1, 0))
    assert lags.found() is UNKNOWN, "the document may be that of a driver that has ended"
    assert lags.found() is UNKNOWN, "it has not changed"
    assert lags.found_after(standing(0, 0), standing(1, 0)) is OVER
    lags.clock.sleep(SILENT_SECONDS + SLICE_SECONDS)
    assert lags.found() is UNKNOWN
    lags.context.journal_store.delete(lags.context.key("progress/tail.json"))
    assert lags.found() is UNKNOWN


def test_the_document_of_an_earlier_owner_says_nothing(lags: Lags) -> None:
    assert lags.found_after(standing(0, 0), standing(1, 0), generation=99) is UNKNOWN


@pytest.mark.parametrize("state", [State.PLANNED, State.SEED, State.AWAITING_CLIENT_SWITCH, State.FINALIZED])
def test_before_and_after_the_tail_nobody_expects_a_small_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    assert Lags(tmp_path, monkeypatch, state, LagLimit(seconds=1)).found() is OVER


def test_a_tail_that_failed_is_still_expected_to_follow(lags: Lags) -> None:
    assert lags.found_after(standing(0, 0), standing(1, 0)) is OVER
    lags.context.journal.fail(FreezeFailed("the tail has failed"))
    lags.clock.sleep(SILENT_SECONDS + SLICE_SECONDS)
    assert lags.found() is UNKNOWN


def test_the_end_of_the_tail_counts_until_a_freeze_is_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lags = Lags(tmp_path, monkeypatch, State.CUTOVER, LagLimit(seconds=1))
    assert lags.found() is UNKNOWN
    lags.context.journal.step(steps.TAIL_DONE)
    assert lags.found() is OVER


def test_the_text_of_a_limit_names_what_is_limited() -> None:
    assert str(LagLimit(seconds=90.0, records=5)) == "90 s and 5 records"
    assert (str(LagLimit(seconds=0.5)), str(LagLimit(records=7))) == ("0.5 s", "7 records")


# -- beginnings and ends ----------------------------------------------------------------------------------------------


def found_at(beginnings: Beginnings, *findings: tuple[float, Standing, int]) -> list[float]:
    """The times at which something began."""
    return [at for at, kind, number in findings if beginnings.is_new(Finding(kind, "", number), at)]


def test_each_freeze_begins_once() -> None:
    seen = [(0.0, OVER, 0), (5.0, GOING_ON, 1), (10.0, GOING_ON, 1), (15.0, OVER, 1), (20.0, GOING_ON, 2)]
    assert found_at(Beginnings(0.0), *seen, (25.0, GOING_ON, 3)) == [5.0, 20.0, 25.0]


def test_what_is_unknown_for_long_begins_too_and_once() -> None:
    late = UNKNOWN_SECONDS
    seen = [(0.0, OVER, 0), (late - 1, UNKNOWN, 0), (late, UNKNOWN, 0), (late + 5, UNKNOWN, 0)]
    assert found_at(Beginnings(0.0), *seen) == [late]
    assert found_at(Beginnings(0.0), *seen, (late + 9, GOING_ON, 0)) == [late], "the lag: its clock runs already"
    assert found_at(Beginnings(0.0), *seen, (late + 9, GOING_ON, 1)) == [late, late + 9], "a freeze with its own clock"
    assert found_at(Beginnings(0.0), (0.0, GOING_ON, 1), (late * 9, UNKNOWN, 0)) == [0.0], "its clock runs already"


def test_an_interruption_is_no_end_but_what_comes_after_an_end_is_new() -> None:
    seen = [(0.0, GOING_ON, 0), (9.0, UNKNOWN, 0), (18.0, GOING_ON, 0), (27.0, OVER, 0), (36.0, GOING_ON, 0)]
    assert found_at(Beginnings(0.0), *seen) == [0.0, 36.0]


def test_a_journal_that_has_not_begun_is_no_reason_and_one_that_is_gone_is() -> None:
    late = UNKNOWN_SECONDS
    assert found_at(Beginnings(0.0), (0.0, NO_JOURNAL, 0), (late * 9, NO_JOURNAL, 0)) == []
    assert found_at(Beginnings(0.0), (0.0, OVER, 0), (late, NO_JOURNAL, 0)) == [late]


def ends(*findings: tuple[Standing, int]) -> bool:
    ending = Ending()
    return [ending.is_over(Finding(kind, "", number)) for kind, number in findings][-1]


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([(OVER, 0)], True),
        ([(GOING_ON, 1), (OVER, 0)], True),
        ([(GOING_ON, 1), (GOING_ON, 2)], True),
        ([(GOING_ON, 2), (GOING_ON, 2)], False),
        ([(GOING_ON, 0), (GOING_ON, 0)], False),
        ([(UNKNOWN, 0)], False),
        ([(GOING_ON, 1), (UNKNOWN, 0)], False),
        ([(GOING_ON, 1), (NO_JOURNAL, 0)], False),
        ([(NO_JOURNAL, 0)], False),
    ],
)
def test_only_what_is_known_to_be_over_ends(findings: list[tuple[Standing, int]], expected: bool) -> None:
    assert ends(*findings) is expected


def test_both_watches_hold_no_claim(freezes: Freezes) -> None:
    def claim(context: PhaseContext) -> object:
        context.journal.refresh()
        return context.journal.current_claim, len(context.journal.entries())

    before = claim(freezes.context)
    assert isinstance(freezes.watch, FreezeDeadlineWatch)
    open_watch("lag", freezes.context.spec, Resolver(), LagLimit(records=1)).check()
    freezes.watch.check()
    assert claim(freezes.context) == before
