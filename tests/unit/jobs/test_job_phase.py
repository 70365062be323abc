"""What runs beside a job, when the job of the attempt before was cancelled and a new one is prepared."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.errors import SparkJobCancelled
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase
from airflow_provider_kafka_migration.record.background import BackgroundPasses
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext, PhaseResult

OLD, NEW = (JobRef("tail", "", "job.json", since) for since in (0, 1))
CONTEXT = cast(PhaseContext, SimpleNamespace())
#: Nobody waits that long: a thread that hangs fails its test.
LONG = 60.0


class Slow(BackgroundPasses[None]):
    """A pass of the first block goes on until the second block has begun, or until the first one waits for it."""

    thread_name, failed_text, ended_text = "slow", "failed", "ended"
    patience_seconds = 0.0

    def __init__(self, log: list[str], began: threading.Event) -> None:
        super().__init__(LONG, first_seconds=0.0)
        self.log, self.began = log, began

    def _open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _pass(self, own: None) -> None:
        self.log.append("begins")
        self.began.set()
        self._stop.wait(LONG)
        # Wakes up with the end of its block; a block that does not wait goes on now.
        threading.Event().wait(0.2)
        self.log.append("ends")


def test_the_passes_of_a_cancelled_job_end_before_the_next_ones_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    events: list[threading.Event] = []

    def beside(_context: PhaseContext) -> AbstractContextManager[object]:
        events.append(threading.Event())
        return Slow(log, events[-1])

    def run_job(_context: PhaseContext, job: JobRef) -> None:
        assert events[-1].wait(LONG)
        if job is OLD:
            raise SparkJobCancelled("cancelled")

    monkeypatch.setattr(JobPhase, "_found", lambda _phase, _context: OLD)
    phase = JobPhase(
        jobs=("tail",),
        prepare=lambda _context: NEW,
        finish=lambda _context, job: PhaseResult("tail", f"since {job.since}"),
        run_job=run_job,
        beside=beside,
    )
    assert phase.run(CONTEXT).summary == "since 1"
    assert log == ["begins", "ends", "begins", "ends"]


def test_a_job_of_this_attempt_must_not_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_job(*_: Any) -> None:
        raise SparkJobCancelled("cancelled")

    monkeypatch.setattr(JobPhase, "_found", lambda _phase, _context: None)
    phase = JobPhase(jobs=("tail",), prepare=lambda _context: NEW, finish=lambda _c, job: job, run_job=run_job)
    with pytest.raises(SparkJobCancelled):
        phase.run(CONTEXT)
