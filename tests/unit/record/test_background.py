"""Passes that repeat in a thread beside a copy: what ends them, what does not, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.errors import (
    HANDS_OFF,
    BrokerUnreachable,
    ClaimHeld,
    ClaimLost,
    JournalTampered,
    PermissionMissing,
)
from airflow_provider_kafka_migration.record.background import BackgroundPasses, own_connections
from airflow_provider_kafka_migration.record.context import PhaseContext

#: Nobody waits that long: a thread that hangs fails its test.
LONG = 60.0


class Passes(BackgroundPasses[list[str]]):
    """Does in each pass what the test wants, and ends with ``ClaimLost`` when nothing is left."""

    thread_name = "passes"
    failed_text = "The pass failed"
    ended_text = "There are no more passes"

    def __init__(
        self, *script: Callable[[], object] | Exception, interval: float | None = 0.0, first: float | None = None
    ) -> None:
        super().__init__(interval, first_seconds=first)
        self._script: Iterator[Callable[[], object] | Exception] = iter(script)
        self.events: list[str] = []

    def _open(self) -> AbstractContextManager[list[str]]:
        @contextmanager
        def opened() -> Iterator[list[str]]:
            self.events.append("opened")
            try:
                yield self.events
            finally:
                self.events.append("closed")

        return opened()

    def _pass(self, own: list[str]) -> None:
        own.append("pass")
        step = next(self._script, ClaimLost("there is another owner"))
        if isinstance(step, Exception):
            raise step
        step()


def run_to_the_end(passes: BackgroundPasses[Any]) -> None:
    """Run the passes until they end by themselves."""
    with passes:
        assert passes._thread is not None
        passes._thread.join(LONG)
        assert not passes._thread.is_alive()


@pytest.mark.parametrize(
    "error",
    [KeyError("orders"), BrokerUnreachable("away"), PermissionMissing("no right")],
    ids=["surprise", "transient", "terminal"],
)
def test_a_failed_pass_is_kept_and_told_and_the_next_one_follows(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Exception | None] = []
    passes = Passes(error, lambda: kept.append(passes.error))
    run_to_the_end(passes)
    assert kept == [error]
    assert passes.events == ["opened", "pass", "pass", "pass", "closed"]
    (told,) = [entry for entry in caplog.records if "The pass failed; the next pass tries again" in entry.message]
    assert str(error) in caplog.text
    assert (told.exc_info is not None) == isinstance(error, KeyError), "only a surprise needs its place in the code"


@pytest.mark.parametrize("error", [ClaimHeld("held"), ClaimLost("lost"), JournalTampered("altered")])
def test_a_final_error_ends_the_passes(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(error, HANDS_OFF)
    passes = Passes(error, lambda: None)
    run_to_the_end(passes)
    assert passes.error is error
    assert passes.events == ["opened", "pass", "closed"]
    assert [entry.message for entry in caplog.records] == [f"There are no more passes: {error}"]


def test_a_kind_of_pass_has_its_own_final_errors() -> None:
    class Sensitive(Passes):
        final = (BrokerUnreachable,)

    passes = Sensitive(ClaimLost("lost"), BrokerUnreachable("away"), lambda: None)
    run_to_the_end(passes)
    assert passes.events.count("pass") == 2
    assert isinstance(passes.error, BrokerUnreachable)


def test_an_error_that_cannot_be_told_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Passes):
        def _tell(self, _error: Exception) -> None:
            raise OSError("the task is gone")

    passes = Mute(KeyError("orders"), lambda: None)
    run_to_the_end(passes)
    assert passes.events.count("pass") == 3
    assert "could not be reported" in caplog.text
    assert "OSError: the task is gone" in caplog.text


def test_connections_that_cannot_be_opened_are_told(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError("no file descriptors left")

    class Closed(Passes):
        def _open(self) -> AbstractContextManager[list[str]]:
            raise error

    passes = Closed()
    run_to_the_end(passes)
    assert passes.error is error
    assert "There are no more passes" in caplog.text
    assert passes.events == []


# -- the end of the block ---------------------------------------------------------------------------------------------


class Joins:
    """Notes how long the block waits for its thread, and lets the pass end at that moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits: list[float | None] = []
        self.begun, self.may_end = threading.Event(), threading.Event()
        joins = self

        class Noting(threading.Thread):
            def join(self, timeout: float | None = None) -> None:
                joins.limits.append(timeout)
                joins.may_end.set()
                super().join(timeout)

        monkeypatch.setattr(threading, "Thread", Noting)

    def long_pass(self) -> None:
        """A pass that lasts until somebody waits for it."""
        self.begun.set()
        assert self.may_end.wait(LONG)


def test_a_block_that_ends_well_waits_for_the_pass_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = Joins(monkeypatch)
    with Passes(joins.long_pass, lambda: None) as passes:
        assert joins.begun.wait(LONG)
    assert joins.limits == [None]
    assert passes.events == ["opened", "pass", "closed"], "no pass begins behind the end of the block"
    assert passes.error is None


def test_a_block_that_fails_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = Joins(monkeypatch)
    passes = Passes(joins.long_pass)

    def fails() -> None:
        with passes:
            assert joins.begun.wait(LONG)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert joins.limits == [passes.patience_seconds] == [30.0]


def test_a_pass_sees_that_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    joins, seen = Joins(monkeypatch), list[bool]()

    def asks() -> None:
        seen.append(passes._stop.is_set())
        joins.long_pass()
        seen.append(passes._stop.is_set())

    passes = Passes(asks)
    with passes:
        assert joins.begun.wait(LONG)
    assert seen == [False, True]


def test_the_end_of_the_block_does_not_wait_for_the_next_pass() -> None:
    begun = threading.Event()
    with Passes(begun.set, interval=1e6, first=0.0) as passes:
        assert begun.wait(LONG)
    with Passes(interval=1e6) as early:
        pass
    assert passes.events == ["opened", "pass", "closed"]
    assert early.events == ["opened", "closed"], "the first pass comes after an interval, too"


def test_without_an_interval_nothing_runs() -> None:
    with Passes(interval=None) as passes:
        assert passes._thread is None
    assert passes.events == []


# -- connections ------------------------------------------------------------------------------------------------------


class Connections:
    """Stands for a cluster: counts its clones and those that were closed."""

    def __init__(self) -> None:
        self.clones: list[Connections] = []
        self.closed = 0

    def clone(self) -> Connections:
        self.clones.append(Connections())
        return self.clones[-1]

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("fails", [False, True])
def test_connections_of_the_thread_are_its_own_and_closed(fails: bool) -> None:
    source, target, other = Connections(), Connections(), cast(Any, None)
    context = PhaseContext(other, other, cast(Any, source), cast(Any, target), other, other, other, other)
    try:
        with own_connections(context) as own:
            assert [own.source, own.target] == [*source.clones, *target.clones]
            assert [item.closed for item in (*source.clones, *target.clones)] == [0, 0]
            if fails:
                raise ClaimLost("lost")
    except ClaimLost:
        assert fails
    assert [item.closed for item in (*source.clones, *target.clones)] == [1, 1]
    assert (source.closed, target.closed) == (0, 0), "those of the task stay open"


def test_a_wait_that_fails_does_not_end_the_passes() -> None:
    """Some kinds of pass ask somebody how long to wait."""

    class Waits(Passes):
        def _wait(self) -> bool:
            raise ValueError("one bad answer")

    waits = Waits(lambda: None, lambda: None)
    run_to_the_end(waits)
    assert waits.events == ["opened", "pass", "pass", "pass", "closed"]
    assert isinstance(waits.error, ClaimLost)
