"""The spec names another engine or cluster than the one on which the job runs: it is cancelled there."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from engine_lab import Lab, states
from memory_engine import MemoryCluster, MemoryEngine

from airflow_provider_kafka_migration.cli.runner import WithoutAirflow
from airflow_provider_kafka_migration.engines import find
from airflow_provider_kafka_migration.engines.base import JobState
from airflow_provider_kafka_migration.errors import (
    EngineUnreachable,
)
from airflow_provider_kafka_migration.record import steps


class OtherEngine(MemoryEngine):
    """The engine that the spec names later."""

    name = "other"


@pytest.fixture
def old(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """The cluster of the room ``old``; an engine there can be made by name."""
    monkeypatch.setattr(find, "BUILT_IN", {**find.BUILT_IN, "memory": "memory_engine:MemoryEngine"})
    cluster = MemoryCluster()
    monkeypatch.setattr(MemoryEngine, "rooms", {"old": cluster, "new": lab.cluster})
    return cluster


@pytest.mark.parametrize("kind", [MemoryEngine, OtherEngine])
def test_a_job_on_another_cluster_is_cancelled_there(lab: Lab, old: MemoryCluster, kind: type[MemoryEngine]) -> None:
    lab.start(lab.runner(engine=MemoryEngine(room="old")))
    assert len(old.running) == 1
    lab.run(lab.runner(engine=kind(cluster=lab.cluster, room="new")))
    assert states(old) == [JobState.CANCELLED]
    assert "job-1 was cancelled" in str(lab.world.steps(steps.SPARK_JOB_ENDED)[0].details["how"])
    lab.check_done(jobs=1)


def test_the_command_line_cancels_a_job_on_the_former_cluster_too(lab: Lab, old: MemoryCluster) -> None:
    """There the engine is wrapped; whoever asks it must still learn what only some engines have."""
    lab.start(lab.runner(engine=WithoutAirflow(MemoryEngine(room="old"))))
    assert len(old.running) == 1
    lab.run(lab.runner(engine=WithoutAirflow(MemoryEngine(room="new"))))
    assert states(old) == [JobState.CANCELLED]
    lab.check_done(jobs=1)


def test_a_former_cluster_whose_connection_only_airflow_has(
    lab: Lab, old: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    lab.start(lab.runner(engine=WithoutAirflow(MemoryEngine(room="old"))))

    def unknown(_name: str) -> None:
        raise AirflowNotFoundException("mark-9f2c")

    old.before = unknown
    lab.run(lab.runner(engine=WithoutAirflow(MemoryEngine(room="new"))))
    assert "the seed job job-1 on memory could not be cancelled: AirflowNotFoundException. End it there" in caplog.text
    assert "mark-9f2c" not in caplog.text
    lab.check_done(jobs=1)


def test_a_task_that_waits_in_its_slot_cancels_a_job_on_the_former_cluster(lab: Lab, old: MemoryCluster) -> None:
    """The spec names client mode now: its driver is a child of the task, and the former one runs on the cluster."""
    lab.start(lab.runner(engine=MemoryEngine(room="old")))
    engine = MemoryEngine(cluster=lab.cluster, room="old")
    engine.detached = False
    lab.run(lab.runner(engine=engine))
    assert states(old) == [JobState.CANCELLED]


def test_a_former_cluster_that_is_gone_does_not_hold_the_migration_up(
    lab: Lab, old: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    lab.start(lab.runner(engine=MemoryEngine(room="old")))

    def gone(name: str) -> None:
        raise EngineUnreachable(f"{name}: nobody there")

    old.before = gone
    lab.run(lab.runner(engine=OtherEngine(cluster=lab.cluster, room="new")))
    assert "the seed job job-1 on memory could not be cancelled" in caplog.text
    assert "ENGINE_UNREACHABLE" in str(lab.world.steps(steps.SPARK_JOB_ENDED)[0].details["how"])
    lab.check_done(jobs=1)


def test_other_arguments_on_the_same_cluster_keep_the_job(lab: Lab, old: MemoryCluster) -> None:
    """As with any other change of the spec: it counts from the next job on."""
    first = MemoryEngine(room="old")
    first.arguments = {"room": "old", "memory": "1g"}
    lab.start(lab.runner(engine=first))
    old.looks = lab._drive
    second = MemoryEngine(room="old")
    second.arguments = {"room": "old", "memory": "2g"}
    lab.run(lab.runner(engine=second))
    assert len(old.jobs) == 1
