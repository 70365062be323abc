"""Deadline alerts in a real Airflow: a freeze that lasts too long calls the notifier, one that ends in time does not.

The freezes are those of real journals in S3. No cluster takes part, because the watch contacts none.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config
from harness.processes import wait_for
from tests.e2e.migration_lab import WAIT_SECONDS, DagRun, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

#: Shorter than any start of a task on a worker, longer than two polls.
SHORT_SECONDS = 5.0
#: Long enough that a busy machine sees the end of the freeze before it.
LONG_SECONDS = 300.0


@dataclass
class Watched:
    """A migration in ``cutover``, whose freezes a DAG watches."""

    lab: Lab
    spec: dict[str, Any]
    within_seconds: float
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        store = open_store(self.spec["storage"]["journal"], S3Config.from_dict(self.lab.s3.config()))
        owner = Owner("cli", "tester", "tester")
        self.journal = Journal.create_or_open(store, self.id, Fingerprint("s", "t"), owner=owner)
        for state in FORWARD[1 : FORWARD.index(State.CUTOVER) + 1]:
            self.journal.transition(state, "test")

    @property
    def id(self) -> str:
        """The id of the migration."""
        return str(self.spec["migration_id"])

    @property
    def dag_id(self) -> str:
        """The DAG that watches it."""
        return f"kafka_watch_freeze_{self.id}"

    def freeze(self) -> None:
        """Begin a freeze."""
        now = datetime.now(UTC)
        details = {"method": "manual", "requested_at": iso(now), "deadline": iso(now + timedelta(minutes=10))}
        self.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)

    def lift(self) -> None:
        """End it."""
        self.journal.step(steps.FREEZE_LIFTED, key="1")

    def begins_again(self) -> None:
        """Fire once more, as a restarted triggerer does for a freeze that goes on."""
        (asset,) = self.lab.airflow.request("GET", "/assets", dag_ids=self.dag_id)["assets"]
        self.lab.airflow.request("POST", "/assets/events", {"asset_id": asset["id"]})

    def runs(self) -> list[DagRun]:
        """All runs of the watch."""
        found = self.lab.airflow.request("GET", f"/dags/{self.dag_id}/dagRuns")["dag_runs"]
        return [DagRun(self.lab, self.dag_id, str(item["dag_run_id"]), self.id) for item in found]

    def run(self) -> DagRun:
        """Wait for the only run."""
        wait_for(f"a run of {self.dag_id}", self.runs, WAIT_SECONDS, every_seconds=0.2)
        (run,) = self.runs()
        return run

    def told(self) -> list[str]:
        """What the notifier was told."""
        return self.lab.told(self.id)

    def deadlines(self) -> list[bool]:
        """Airflow's deadlines of the runs of the watch that are not withdrawn: whether they were missed."""
        query = "SELECT d.missed FROM deadline d JOIN dag_run r ON r.id = d.dagrun_id WHERE r.dag_id = ?"
        database = self.lab.airflow.home / "airflow.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as live:
            return [bool(row[0]) for row in live.execute(query, (self.dag_id,))]


@pytest.fixture
def watched(lab: Lab, prefix: str) -> Iterator[tuple[Watched, Watched]]:
    """One whose freezes may last a moment only, and one whose freezes may last long."""
    found = (
        Watched(lab, lab.spec("late", prefix), SHORT_SECONDS),
        Watched(lab, lab.spec("in-time", prefix), LONG_SECONDS),
    )
    file = lab.airflow.dags_folder / f"watched_{prefix.rstrip('.')}.py"
    items = [{"spec": item.spec, "within_seconds": item.within_seconds} for item in found]
    file.with_suffix(".json").write_text(json.dumps(items), encoding="utf-8")
    file.write_bytes((Path(__file__).parent / "dags" / "watched_freezes.py").read_bytes())
    yield found
    file.unlink()


def test_a_freeze_that_lasts_too_long_is_told_and_one_that_ends_in_time_is_not(
    lab: Lab, watched: tuple[Watched, Watched]
) -> None:
    late, in_time = watched
    for item in watched:
        lab.airflow.wait_dag(item.dag_id)
    for item in watched:
        item.freeze()
    runs = {item.id: item.run() for item in watched}
    runs[in_time.id].wait("watch", "deferred")
    in_time.begins_again()

    wait_for("the notifier", late.told, WAIT_SECONDS, every_seconds=0.2)
    assert late.told() == ["freeze_deadline watch"]
    assert runs[late.id].states() == {"watch": "deferred"}, "its run goes on: the producers are still frozen"
    assert "freeze 1: producers" in runs[late.id].log("watch")
    assert len(in_time.runs()) == 1, "one clock at a time"
    for item in watched:
        item.lift()
        runs[item.id].wait(None, "success")
    wait_for("the run of the second event", lambda: len(in_time.runs()) == 2, WAIT_SECONDS, every_seconds=0.2)
    for run in in_time.runs():
        run.wait(None, "success")
    assert len(late.runs()) == 1
    assert late.deadlines() == [True]
    assert in_time.deadlines() == [], "withdrawn, so it can never be called"
    assert (len(late.told()), in_time.told()) == (1, [])
    for item in watched:
        task = lab.airflow.task(item.dag_id, runs[item.id].run_id, "watch")
        assert not task["pid"], "no worker has taken part"
