"""A soak of three flows between three clusters, each a DAG run of one Airflow, with Spark: everything fails at random.

A and B mirror each other, and B is mirrored to C, with what has come from A. ``MIRROR_SOAK_SEED`` repeats a run's
choices, ``MIRROR_SOAK_SECONDS`` changes its length (default: ten minutes).
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from harness.airflow import AirflowApiError
from harness.airflow_components import COMPONENTS, Component, kill_component
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, LiveTransactions
from harness.processes import HarnessError, wait_for
from harness.s3 import S3Server
from tests.e2e.migration_lab import ROOT, WAIT_SECONDS, DagRun, Lab, Person, lab_airflow
from tests.soak_support import PATIENT, Fault, Route, Site, Soak, check_settled, settle

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(21_600)]

_PREFIX = "soak."
_ORDERS, _PAYMENTS = f"{_PREFIX}orders", f"{_PREFIX}payments"
#: Airflow starts a task again half a minute after its death, and Spark needs another one on a busy machine.
_HEALED_SECONDS = 1800.0
_API_SECONDS = 300.0
_PAUSE_SECONDS = (5.0, 40.0)
_DAEMON = "pyspark.daemon"


@dataclass
class World:
    """Three clusters with their producers, an Airflow, and the DAG runs of the flows by their ids."""

    lab: Lab
    sites: dict[str, Site]
    folder: Path
    runs: dict[str, DagRun] = field(default_factory=dict)
    #: components of Airflow that have ended by themselves, again and again
    ended: list[Component] = field(default_factory=list)

    def start(self) -> None:
        """Trigger a run for each flow, and wait until all of them mirror."""
        for source, target in (("A", "B"), ("B", "A"), ("B", "C")):
            spec = self._spec(source, target)
            name = str(spec["migration_id"])
            self._file(name).write_text(yaml.safe_dump(spec), encoding="utf-8")
            self.runs[name] = self.lab.trigger(spec, "kafka_mirror")
        for run in self.runs.values():
            run.wait("mirror", "running")
            run.spark_driver("tail")

    def _spec(self, source: str, target: str) -> dict[str, Any]:
        known = "".join(self.sites)
        pattern = rf"([{known}]\.)*{_PREFIX}.*".replace(_PREFIX, r"soak\.")
        return self.lab.spec(
            f"{source}-to-{target}".lower(),
            _PREFIX,
            kind="mirror",
            source={"conn_id": f"kafka_{source.lower()}"},
            target={"conn_id": f"kafka_{target.lower()}"},
            mirror={
                "source_alias": source,
                "target_alias": target,
                "known_aliases": list(self.sites),
                "two_way": target != "C",
                "sync_interval": "1s",
            },
            topics={"include": [pattern]},
            seed={"via": "direct", "slice_seconds": 10},
            # On a busy machine a Python worker needs seconds of each slice to begin.
            tail={"slice_seconds": 20},
            topology={"refresh_interval": "1s", "replication_factor": "target_default"},
        )

    def routes(self) -> list[Route]:
        """What each flow mirrors: topics of its source, and those that have come to it from elsewhere."""
        a, b, c = self.sites.values()
        of_a, of_b = (site.topics for site in (a, b))
        return [
            Route(a, b, {topic: f"A.{topic}" for topic in of_a}, a.group),
            Route(b, a, {topic: f"B.{topic}" for topic in of_b}, b.group),
            Route(b, c, {topic: f"B.{topic}" for topic in of_b}, b.group),
            Route(b, c, {f"A.{topic}": f"B.A.{topic}" for topic in of_a}, a.group),
        ]

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    # -- faults -------------------------------------------------------------------------------------------------------

    def faults(self, soak: Soak) -> dict[str, Fault]:
        """All kinds of them, by name."""
        choose, airflow = soak.choose, self.lab.airflow

        def any_run() -> DagRun:
            return choose.choice(list(self.runs.values()))

        def driver_killed() -> bool:
            return _kill(any_run().find_spark_driver("tail"))

        def worker_killed() -> bool:
            workers, number = _workers(any_run()), choose.random()
            return _kill(workers[int(number * len(workers))] if workers else None)

        def task_killed() -> bool:
            return _kill(self._task(any_run()))

        def component_killed(name: Component) -> Fault:
            def fail() -> bool:
                try:
                    kill_component(airflow, name)
                except HarnessError:
                    return False  # it has just been started, or has ended by itself
                time.sleep(choose.uniform(0, 5))
                airflow.replace(name)
                return True

            return fail

        def airflow_killed() -> None:
            airflow.kill()
            time.sleep(choose.uniform(0, 5))
            airflow.start()

        def triggerer_killed_while_paused() -> None:
            run = any_run()
            person = Person(self.lab, self._file(run.migration_id))
            paused = person.asks("pause", "--timeout", str(WAIT_SECONDS - 60))
            assert paused["state"] == "paused", paused
            run.wait("mirror", "deferred")
            kill_component(airflow, "triggerer")
            airflow.replace("triggerer")
            time.sleep(choose.uniform(0, 10))
            resumed = person.asks("resume", "--timeout", str(WAIT_SECONDS - 60))
            assert resumed["state"] == "mirroring", resumed

        return {
            "driver killed": driver_killed,
            "worker killed": worker_killed,
            "task killed": task_killed,
            **{f"{name} killed": component_killed(name) for name in COMPONENTS},
            "Airflow killed": airflow_killed,
            "triggerer killed while paused": triggerer_killed_while_paused,
            **soak.broker_faults([site.cluster for site in self.sites.values()]),
            **soak.group_fault(self.sites.values()),
        }

    def _task(self, run: DagRun) -> psutil.Process | None:
        """The process of a task that runs."""
        task = _patiently("a task", lambda: self.lab.airflow.task(run.dag_id, run.run_id, "mirror"))
        if task["state"] != "running" or task["pid"] not in self.lab.airflow.processes_below():
            return None
        return psutil.Process(task["pid"])

    # -- what must be true --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No DAG run has ended. A component that has ended by itself is started again, as anybody's supervisor does."""
        airflow = self.lab.airflow
        for name in airflow.missing():
            self.ended.append(name)
            airflow.replace(name)
        states = _patiently(
            "the states of the runs",
            lambda: {name: airflow.run_state(run.dag_id, run.run_id) for name, run in self.runs.items()},
        )
        assert set(states.values()) == {"running"}, states

    def attempts(self) -> dict[str, int]:
        """How often Airflow has started each flow's task."""
        airflow = self.lab.airflow
        return {
            name: _patiently("a task", lambda run=run: airflow.task(run.dag_id, run.run_id, "mirror"))["try_number"]  # type: ignore[misc]
            for name, run in self.runs.items()
        }


def _patiently(what: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An answer of Airflow's API, whose server may have just been killed."""

    def answer() -> dict[str, Any] | None:
        try:
            return ask()
        except AirflowApiError as error:
            if error.status < 500:
                raise
        except OSError:
            pass
        return None

    return wait_for(what, answer, _API_SECONDS, 1.0)


def _workers(run: DagRun) -> list[psutil.Process]:
    """The Python workers of a flow's driver, which copy: children of PySpark's daemon."""
    driver = run.find_spark_driver("tail")
    found = []
    with suppress(psutil.Error):
        for process in driver.children(recursive=True) if driver is not None else []:
            parent = process.parent()
            if parent is not None and _DAEMON in process.cmdline() and _DAEMON in parent.cmdline():
                found.append(process)
    return found


def _kill(process: psutil.Process | None) -> bool:
    """SIGKILL for a process, if there is one."""
    if process is None:
        return False
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def soak() -> Soak:
    """The run's faults."""
    return Soak.from_environment(600)


@pytest.fixture
def world(soak: Soak, s3_server: S3Server, tmp_path: Path) -> Iterator[World]:
    """Three clusters that are written to, and an Airflow with connections to them and no run yet."""
    dags, versions = tmp_path / "dags", {"A": ("3.9.1", 1), "B": ("4.1.1", 1), "C": ("4.1.1", 3)}
    dags.mkdir()
    (dags / "kafka_mirror.py").write_bytes((ROOT / "dags" / "kafka_mirror.py").read_bytes())
    with ExitStack() as opened:
        sites = {}
        for alias, (version, brokers) in versions.items():
            cluster = opened.enter_context(KafkaCluster(tmp_path / alias, version, brokers=brokers))
            topics = [_ORDERS, _PAYMENTS] if alias == "A" else [_ORDERS]
            cluster.create_topics({topic: (2, {}) for topic in topics})
            sites[alias] = site = Site(alias, cluster, topics, f"{_PREFIX}readers.{alias}")
            config = {**cluster.client_config(), **PATIENT}
            numbers = range(2)
            seed = soak.choose.randrange(1 << 16)
            site.producers.append(LiveProducer(config, {_ORDERS: numbers}, records_per_second=40, seed=seed))
            if alias == "A":
                writer = LiveTransactions(config, {_PAYMENTS: numbers}, "soak", records_per_second=20, seed=seed)
                site.producers.append(writer)
            for producer in site.producers:
                opened.enter_context(producer)
        clusters = {f"kafka_{alias.lower()}": site.cluster for alias, site in sites.items()}
        env = {"AIRFLOW__KAFKA_MIGRATION__PRELOAD": "True"}
        airflow = opened.enter_context(lab_airflow(tmp_path, dags, clusters, s3_server, env))
        lab = Lab(tmp_path, sites["A"].cluster, sites["B"].cluster, s3_server, airflow, itertools.count(1))
        yield World(lab, sites, tmp_path)


def test_three_flows_under_random_faults(soak: Soak, world: World) -> None:
    """Nobody clears anything, and no DAG run ends."""
    world.start()
    soak.run(world.faults(soak), world.check, _PAUSE_SECONDS)
    sites, routes = list(world.sites.values()), world.routes()
    settle(soak, sites, routes, _HEALED_SECONDS, world.check)
    for run in world.runs.values():
        run.wait("mirror", "running")
    damage = check_settled(sites, routes, "soak")
    attempts = world.attempts()
    assert sum(attempts.values()) > len(attempts), "nothing has killed a task"
    records = {site.alias: site.count() for site in sites}
    print(f"{soak}, records {records}, {damage}, attempts {attempts}, ended {world.ended}", flush=True)
