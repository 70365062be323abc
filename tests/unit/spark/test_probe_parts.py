"""Parts of the probe that need no Spark: the task without this package, names of executors, clocks, references."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.documents.spark_probe import ClockSpan, MachineLook, ProbeJob, StoreLook
from airflow_provider_kafka_migration.lanes.libraries import LIBRARIES
from airflow_provider_kafka_migration.spark import probe, probe_task
from airflow_provider_kafka_migration.spark.probe import clock_against, executors_asked, look_from_here, resolve_each
from airflow_provider_kafka_migration.spark.tasks import EXECUTOR_PACKAGES
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences
from airflow_provider_kafka_migration.storage.local import LocalStore

ROOT = Path(__file__).parents[3]


def test_the_libraries_are_those_that_drivers_check() -> None:
    assert set(EXECUTOR_PACKAGES) == set(LIBRARIES)


def stored_pointer(folder: Path, references: str, **more: Any) -> JobPointer:
    store = LocalStore(folder / "journal")
    job = ProbeJob(migration_id="m", generation=1, token="t", journal_location=store.uri, **more)
    store.put("m/jobs/probe.json", job.canonical())
    return JobPointer(store.uri, "m/jobs/probe.json", JobReferences.open(references))


def references_file(folder: Path, content: object) -> str:
    file = folder / "references.json"
    file.write_text(json.dumps(content))
    file.chmod(0o600)
    return f"file:{file}"


# -- the task ---------------------------------------------------------------------------------------------------------


def test_the_task_runs_where_nothing_of_ours_is_installed(tmp_path: Path) -> None:
    """In a Python without any package: what is missing is the answer, and not an exception."""
    venv.create(tmp_path / "bare")
    cloudpickle.register_pickle_by_value(probe_task)
    try:
        task = cloudpickle.dumps(probe_task.make_task(dict(LIBRARIES), b"unreadable", "t", frozenset(), 0.0))
    finally:
        cloudpickle.unregister_pickle_by_value(probe_task)
    (tmp_path / "task").write_bytes(task)
    # An executor has PySpark's own cloudpickle; the bare Python gets the same file.
    pickler = Path(cloudpickle.__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(pickler.parent)!r}); import types\n"
        "sys.modules['pyspark'] = types.ModuleType('pyspark')\n"
        f"sys.modules['pyspark'].__path__ = [{str(pickler.parent)!r}]\n"
        f"import pickle; print(pickle.load(open({str(tmp_path / 'task')!r}, 'rb'))(0))\n"
    )
    # Only the pickler's folder is on the path, as pyspark: neither site-packages nor the checkout.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(tmp_path / "bare" / "bin" / "python"), "-I", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = MachineLook.model_validate_json(done.stdout)
    assert seen.package_version is None
    assert "airflow_provider_kafka_migration" in seen.package_error
    assert seen.packages == dict.fromkeys(LIBRARIES.values())
    assert set(seen.not_looked_at) == {"source", "target", "storage"}
    assert seen.ended_at >= seen.began_at > 0


def test_here_all_libraries_are_found(tmp_path: Path) -> None:
    pointer = stored_pointer(tmp_path, references_file(tmp_path, {"source": None, "target": None, "storage": None}))
    seen = MachineLook.model_validate(probe_task.look_around(dict(LIBRARIES), pickle.dumps(pointer), "driver"))
    assert (seen.name, seen.package_version, seen.package_error) == ("driver", __version__, "")
    assert all(seen.packages.values())
    assert seen.free_disk_bytes > 0
    assert [store.error for store in seen.stores] == [None]


def test_a_look_that_fails_unexpectedly_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is there, so nothing else names the error: without it, somebody looks for a missing import."""

    def fails(_pointer: object) -> dict[str, Any]:
        raise RuntimeError("no /dev/shm")

    monkeypatch.setattr(probe, "look_from_here", fails)
    pointer = pickle.dumps(stored_pointer(tmp_path, references_file(tmp_path, {})))
    seen = MachineLook.model_validate(probe_task.look_around({}, pointer, "driver"))
    assert seen.package_version == __version__
    assert seen.not_looked_at == dict.fromkeys(
        ("source", "target", "storage"), "the look at it failed: RuntimeError: no /dev/shm"
    )


def test_an_executor_is_named_as_spark_names_it(tmp_path: Path) -> None:
    """A process with the arguments of an executor, and below it Python processes as PySpark has them."""
    code = (
        "import subprocess, sys\n"
        "inner = 'import subprocess, sys; subprocess.run([sys.executable, \"-c\", sys.argv[1]])'\n"
        "subprocess.run([sys.executable, '-c', inner, sys.argv[1]])\n"
    )
    ask = (
        "from airflow_provider_kafka_migration.spark import probe_task\n"
        "print(probe_task.executor_name(), probe_task.is_first('t', '7'), probe_task.is_first('t', '7'))\n"
    )
    command = [sys.executable, "-c", code, ask, "--driver-url", "spark://SECRET@h:1", "--executor-id", "7"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False
    )
    assert done.stdout.split() == ["7", "True", "False"], done.stderr
    assert probe_task.executor_name().count("/") == 1, "this process is below no executor"


def test_a_second_task_of_an_executor_leaves_the_looking_to_the_first() -> None:
    name = probe_task.executor_name()
    assert json.loads(probe_task.make_task({}, b"", "t", frozenset({name}), 0.0)(0)) == {"name": name}


# -- references -------------------------------------------------------------------------------------------------------


def test_references_are_resolved_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_S", '{"bootstrap.servers": "h:1"}')
    monkeypatch.delenv("PROBE_T", raising=False)
    file = references_file(tmp_path, {"source": "env:PROBE_S", "target": "env:PROBE_T", "storage": None})
    resolved, unresolved = resolve_each(JobReferences.open(file))
    assert resolved == {"source": {"bootstrap.servers": "h:1"}, "storage": None}
    assert set(unresolved) == {"target"}
    assert "PROBE_T is not set" in unresolved["target"].what


def test_a_document_that_is_not_on_this_machine(tmp_path: Path) -> None:
    file = references_file(tmp_path, {"source": {"k": "hidden"}, "target": {}, "storage": None})
    pointer = stored_pointer(tmp_path, file)
    (tmp_path / "references.json").unlink()
    seen = MachineLook.model_validate({"name": "0", "host": "h", **look_from_here(pointer)})
    assert set(seen.unresolved) == {"source", "target", "storage"}
    assert set(seen.not_looked_at) == {"source", "target", "storage"}
    assert seen.stores == []


def test_a_storage_that_does_not_have_the_job(tmp_path: Path) -> None:
    pointer = stored_pointer(tmp_path, references_file(tmp_path, {"source": None, "target": None, "storage": None}))
    (tmp_path / "journal" / "m" / "jobs" / "probe.json").unlink()
    seen = MachineLook.model_validate({"name": "0", "host": "h", **look_from_here(pointer)})
    assert [store.error and store.error["code"] for store in seen.stores] == ["JOB_MISSING"]
    assert "storage" not in seen.not_looked_at
    assert "source" in seen.not_looked_at, "there is no connection in the references"


# -- clocks and executors ---------------------------------------------------------------------------------------------


def look(name: str, began: float, ended: float, clock: ClockSpan | None = None) -> MachineLook:
    stores = [StoreLook(location="s3://b/p", clock=clock)]
    return MachineLook(name=name, host="h", began_at=began, ended_at=ended, stores=stores)


def test_a_clock_is_compared_by_the_time_of_the_round() -> None:
    driver = look("driver", 0.0, 1.0)
    assert clock_against(driver, look("0", 103.0, 104.0), (100.0, 110.0)) == ClockSpan(low=-6.0, high=3.0)
    ahead = clock_against(driver, look("0", 150.0, 151.0), (100.0, 110.0))
    assert ahead is not None
    assert ahead.least == 41.0


def test_a_clock_is_compared_more_exactly_by_the_store_s() -> None:
    driver = look("driver", 0.0, 1.0, ClockSpan(low=-0.2, high=0.3))
    behind = look("0", 100.0, 101.0, ClockSpan(low=4.0, high=4.5))
    span = clock_against(driver, behind, (100.0, 110.0))
    assert span is not None
    assert (span.low, span.high) == pytest.approx((-4.7, -3.7))
    assert span.least == pytest.approx(-3.7)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, -1),
        ({"spark.executor.instances": "5"}, 5),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "5"}, -1),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "2"}, 2),
    ],
)
def test_how_many_executors_are_asked_for(settings: dict[str, str], asked: int) -> None:
    assert executors_asked(settings) == asked


def test_the_result_is_where_the_phase_reads_it() -> None:
    from airflow_provider_kafka_migration.record import keys

    assert probe.result_key("m") == f"m/{keys.result(keys.SPARK_PROBE)}"
