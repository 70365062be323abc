"""Parts of the Spark layer that need no Spark session."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from airflow_provider_kafka_migration.documents.copy import CopyJob, PartitionResult
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import ContentJob
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ConnectionInvalid,
    DocumentUnreadable,
    ExecutorUnfit,
    JobMissing,
    MigrationError,
    SparkSettingsRefused,
    Terminal,
    Where,
    error_from_dict,
)
from airflow_provider_kafka_migration.spark import IS_FOLLOWED
from airflow_provider_kafka_migration.spark import main as spark_main
from airflow_provider_kafka_migration.spark.drivers import Merger, Pauses, ProgressLines
from airflow_provider_kafka_migration.spark.launch import build_py_files
from airflow_provider_kafka_migration.spark.main import root_cause, spark_errors
from airflow_provider_kafka_migration.spark.rows import RESULT_COLUMNS, SliceOutcome, error_row, read_rows, result_rows
from airflow_provider_kafka_migration.spark.session import check_settings
from airflow_provider_kafka_migration.spark.slice_loop import group_lanes
from airflow_provider_kafka_migration.spark.tasks import Row, Task
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences, make_copy_slice
from tests.spark_support import MIGRATION_ID, make_job, references_file, store_job

SECRETS = {"source": {"sasl.password": "hunter2"}, "target": {"bootstrap.servers": "b:1"}, "storage": None}


def result(partition: int = 0, lane: int = 0, **fields: object) -> PartitionResult:
    return PartitionResult.model_validate(
        {
            "lane": lane,
            "topic": "orders",
            "partition": partition,
            "source_offset": 10,
            "target_offset": 10,
            "verdict": Verdict.EQUAL,
            **fields,
        }
    )


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.master": "local[2,4]"},
        {"spark.master": "local[*, 4]"},
        {"spark.master": "spark://host:7077"},
        {"spark.master": "yarn", "spark.speculation": "false", "spark.task.maxFailures": "4"},
        {"spark.master": "k8s://https://host:443"},
    ],
)
def test_good_settings_pass(conf: dict[str, str]) -> None:
    check_settings(conf)


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"spark.master": "local[2,4]", "spark.speculation": "true"}, "spark.speculation"),
        ({"spark.master": "yarn", "spark.speculation": " TRUE"}, "spark.speculation"),
        ({"spark.master": "local"}, r"local\[1,4\]"),
        ({"spark.master": "local[2]"}, r"local\[2,4\]"),
        ({"spark.master": "local[*]"}, r"local\[\*,4\]"),
        ({"spark.master": "local[2,1]"}, r"local\[2,4\]"),
        ({"spark.master": "spark://host:7077", "spark.task.maxFailures": "1"}, "maxFailures"),
        ({"spark.master": "yarn", "spark.python.use.daemon": "false"}, "daemon"),
    ],
)
def test_unsafe_settings_are_refused(conf: dict[str, str], says: str) -> None:
    with pytest.raises(SparkSettingsRefused, match=says):
        check_settings(conf)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(SparkSettingsRefused) as caught:
        check_settings({"spark.master": "local[2]", "spark.speculation": "true"})
    assert len(caught.value.details["problems"]) == 2


# --- references -----------------------------------------------------------------------------------------------------


def test_secrets_in_the_file_are_not_shipped(tmp_path: Path) -> None:
    path = references_file(tmp_path, SECRETS)
    references = JobReferences.open(str(path))
    assert references.inline is None
    assert "hunter2" not in repr(references)
    assert references.resolve()["source"] == {"sasl.password": "hunter2"}


def test_plain_references_are_shipped_so_that_no_file_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_CLUSTER", '{"bootstrap.servers": "a:1"}')
    monkeypatch.setenv("TARGET_CLUSTER", '{"bootstrap.servers": "b:1"}')
    path = references_file(tmp_path, {"source": "env:SOURCE_CLUSTER", "target": "env:TARGET_CLUSTER", "storage": None})
    references = JobReferences.open(str(path))
    path.unlink()
    assert references.resolve() == {
        "source": {"bootstrap.servers": "a:1"},
        "target": {"bootstrap.servers": "b:1"},
        "storage": None,
    }


def test_references_in_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFERENCES", '{"source": {"a": 1}, "target": null}')
    assert JobReferences.open("env:REFERENCES").resolve() == {"source": {"a": 1}, "target": None, "storage": None}


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = references_file(tmp_path, SECRETS)
    path.chmod(0o644)
    with pytest.raises(ConnectionInvalid, match="chmod 600"):
        JobReferences.open(str(path))


@pytest.mark.parametrize("content", [{"source": 5}, {"sources": {}}, {"source": ["hunter2"]}])
def test_a_wrong_references_document_is_named_without_its_content(tmp_path: Path, content: object) -> None:
    with pytest.raises(ConnectionInvalid, match="mistakes") as caught:
        JobReferences.open(str(references_file(tmp_path, content)))
    assert "hunter2" not in str(caught.value)


def test_job_documents_are_read_and_wrong_ones_named(tmp_path: Path) -> None:
    stored = store_job(tmp_path)
    assert stored.pointer.read(CopyJob, stored.store) == stored.job
    with pytest.raises(DocumentUnreadable):
        stored.pointer.read(ContentJob, stored.store)
    missing = JobPointer(stored.pointer.location, "x/jobs/seed.json", stored.pointer.references)
    with pytest.raises(JobMissing, match=r"x/jobs/seed\.json"):
        missing.read(CopyJob, stored.store)


# --- rows -----------------------------------------------------------------------------------------------------------


def through_arrow(rows: list[tuple[Any, ...]]) -> list[Row]:
    """Rows as Spark Connect returns them."""
    task = Task(lambda _number: rows, RESULT_COLUMNS, [7])
    batches = task.arrow(iter([pa.RecordBatch.from_pylist([{"id": 0}])]))
    return [row for batch in batches for row in batch.to_pylist()]


def through_rdd(rows: list[tuple[Any, ...]]) -> list[Row]:
    """Rows as a SparkContext returns them."""
    task = Task(lambda _number: rows, RESULT_COLUMNS, ())
    return [dict(zip(RESULT_COLUMNS, row, strict=True)) for row in task.rows([7])]


@pytest.mark.parametrize("through", [pytest.param(through_arrow, marks=pytest.mark.slow), through_rdd])
def test_results_survive_the_way_to_the_driver(through: Callable[[list[tuple[Any, ...]]], list[Row]]) -> None:
    sent = [
        result(1, lane=2, records=3, gaps=[(1, 4)], error=BrokerUnreachable("gone").as_dict()),
        result(0, lane=2, done=True, lag=-1),
    ]
    outcome = read_rows(through(result_rows(sent)))
    assert outcome.results == sorted(sent, key=lambda item: item.partition)
    assert outcome.lane_errors == {}


@pytest.mark.parametrize("through", [pytest.param(through_arrow, marks=pytest.mark.slow), through_rdd])
def test_lane_errors_survive_as_errors_of_their_kind(
    through: Callable[[list[tuple[Any, ...]]], list[Row]],
) -> None:
    error = BrokerUnreachable("no answer", where=Where(cluster="target", broker="b:1"), next_step="look")
    outcome = read_rows(through([error_row(4, error)]))
    assert isinstance(outcome.lane_errors[4], BrokerUnreachable)
    assert str(outcome.lane_errors[4]) == str(error)


def test_a_task_gets_the_number_that_its_position_stands_for() -> None:
    task = Task(lambda number: [(number, None, None)], RESULT_COLUMNS, [30, 10, 20])
    batches = task.arrow(iter([pa.RecordBatch.from_pylist([{"id": 2}]), pa.RecordBatch.from_pylist([{"id": 0}])]))
    assert [batch.to_pylist()[0]["lane"] for batch in batches] == [20, 30]


def test_an_unknown_code_is_at_least_terminal_or_transient() -> None:
    unknown = error_from_dict({"code": "FROM_THE_FUTURE", "kind": "terminal", "what": "x", "where": {"planet": "mars"}})
    assert isinstance(unknown, Terminal)


# --- lanes and pauses -----------------------------------------------------------------------------------------------


def test_lanes_are_spread_by_weight() -> None:
    assert group_lanes({0: 100, 1: 60, 2: 50, 3: 5}, 2) == [[0, 3], [1, 2]]
    assert group_lanes({0: 0, 1: 0, 2: 0, 3: 0}, 2) == [[0, 2], [1, 3]]
    assert group_lanes({7: 10}, 4) == [[7]]


def test_pauses_grow_while_a_lane_fails_and_end_when_it_works() -> None:
    pauses = Pauses()
    assert [pauses.after([1], [1]) for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert pauses.after([1], []) == 0.0
    assert pauses.after([1], [1]) == 0.5
    assert max(pauses.after([1], [1]) for _ in range(20)) == 30.0


def test_a_slice_that_failed_in_part_goes_on_at_once(tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=2, partitions=1)
    merger = Merger(stored.coordinator())
    gone = BrokerUnreachable("gone").as_dict()
    assert merger.merge(SliceOutcome([result(0, lane=0, records=1), result(1, lane=1, error=gone)])) == 0.0
    assert merger.merge(SliceOutcome([result(0, lane=0, error=gone)], {1: BrokerUnreachable("gone")})) > 0.0


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_task_that_follows_the_driver_has_each_progress_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_followed: bool
) -> None:
    """The task shows the progress by itself; what else the driver says stays."""
    monkeypatch.setenv(IS_FOLLOWED, "1" if is_followed else "")
    caplog.set_level(logging.INFO)
    merger = Merger(store_job(tmp_path, lanes=2, partitions=1).coordinator())
    merger.merge(SliceOutcome([result(0, records=1)], {1: BrokerUnreachable("gone")}))
    assert ("partitions done" in caplog.text) is not is_followed
    assert "Lane 1 could not run" in caplog.text
    assert "partitions done" in merger.line, "Spark's UI has it"


def test_a_lane_that_has_failed_for_good_pauses_as_well(tmp_path: Path) -> None:
    """A tail drives such lanes on, because somebody may mend them: not as often as Spark can start a job."""
    stored = store_job(tmp_path, "tail", lanes=2, partitions=1, until_offset=None)
    coordinator = stored.coordinator()
    merger = Merger(coordinator)
    pauses = [merger.merge(SliceOutcome([], {0: Terminal("wrong password")})) for _ in range(3)]
    assert [lane.lane for lane in coordinator.remaining_lanes()] == [1]
    assert pauses == [0.5, 1.0, 2.0]


def test_a_lane_that_fails_for_good_fails_its_open_partitions_only(tmp_path: Path) -> None:
    stored = store_job(tmp_path, lanes=1, partitions=2)
    coordinator = stored.coordinator()
    merger = Merger(coordinator)
    merger.merge(SliceOutcome([result(0, done=True)]))
    merger.merge(SliceOutcome([], {0: Terminal("wrong password")}))
    assert coordinator.finished
    progress = coordinator.progress()
    assert (progress["partitions_done"], progress["partitions_failed"]) == (1, 1)


def test_progress_lines() -> None:
    seed = ProgressLines(make_job("seed", "file:///x", 1, 2, 100), clock=iter([0.0, 10.0]).__next__)
    line = seed.add([result(0, source_offset=100, done=True, records=90, copied_bytes=2_000_000), result(1)])
    assert line == ("seed: 1 of 2 partitions done, 90 records, 2.0 MB, 9 rec/s, 55% of the offsets, 8 s to go")
    tail = ProgressLines(make_job("tail", "file:///x", 1, 2, None), clock=iter([0.0, 1.0]).__next__)
    assert tail.add([result(1, lag=7), result(0, lag=3)]).endswith("largest lag 7 records (orders-1)")


# --- errors of Spark ------------------------------------------------------------------------------------------------


def test_root_cause_is_the_python_error_not_the_stack() -> None:
    text = (
        "An error occurred while calling o91.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
        "Traceback (most recent call last):\n  File x\nValueError: no lane 7\n\n\tat org.apache.spark.Foo(Bar.scala)\n"
    )
    assert root_cause(text) == "ValueError: no lane 7"
    lost = "Job aborted due to stage failure: Task 0 failed 4 times: Python worker exited unexpectedly (crashed)\n at x"
    assert "Python worker exited unexpectedly" in root_cause(lost)


@pytest.mark.parametrize(
    "line",
    [
        "ImportError: an executor's Python lacks boto3, kafka",
        "ModuleNotFoundError: No module named 'airflow_provider_kafka_migration'",
        'java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11",
    ],
)
def test_an_unfit_executor_is_named_whatever_spark_makes_of_it(line: str) -> None:
    with pytest.raises(ExecutorUnfit) as caught, spark_errors("seed"):
        raise PySparkException(f"Job aborted due to stage failure\n  {line}\n\tat org.apache.spark.Foo")
    assert caught.value.what == line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker: 3.10", "[PYTHON_VERSION_MISMATCH] Python in worker: 3.10"),
        ("ModuleNotFoundError: No module named 'kafka'", "ModuleNotFoundError: No module named 'kafka'"),
        ("ImportError: an executor's Python lacks kafka on worker-2", "an executor's Python lacks kafka on worker-2"),
    ],
)
def test_an_unfit_executor_is_named_with_its_machine(line: str, says: str) -> None:
    with pytest.raises(ExecutorUnfit) as caught, spark_errors("seed"):
        raise PySparkException(
            "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 "
            f"in stage 0.0 (TID 3) (10.7.0.12 executor 1): org.apache.spark.api.python.PythonException\n  {line}\n"
        )
    assert caught.value.what.endswith(f"{says} (an executor on 10.7.0.12)")


def test_the_machine_of_an_unfit_executor_is_named_once() -> None:
    line = "ImportError: an executor's Python lacks kafka on worker-2"
    with pytest.raises(ExecutorUnfit) as caught, spark_errors("seed"):
        raise PySparkException(f"Lost task 0.3 in stage 0.0 (TID 3) (worker-2 executor 1): x\n{line}\n")
    assert caught.value.what == line


def test_an_executor_names_all_packages_that_it_lacks(tmp_path: Path) -> None:
    """In a process of its own that finds neither boto3 nor kafka, as on an executor; the function is not imported."""
    code = (
        "import pickle, sys\n"
        "task = pickle.loads(sys.stdin.buffer.read())\n"
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name in ('boto3', 'kafka') else find(name)\n"
        "try:\n"
        "    list(task.rows([0]))\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "assert 'airflow_provider_kafka_migration.spark.worker' not in sys.modules\n"
    )
    task = Task(make_copy_slice(store_job(tmp_path).pointer, [0]), RESULT_COLUMNS, ())
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(task), capture_output=True, check=False)
    said = f"an executor's Python lacks boto3, kafka on {socket.gethostname()}"
    assert done.stdout.decode().strip() == said, done.stderr.decode()


# --- mains ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_signal_handler() -> Iterator[None]:
    """Mains set a handler for SIGTERM; pytest keeps its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run_with(error: BaseException | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def job(_arguments: spark_main.JobArguments) -> None:
        if error is not None:
            raise error

    path = references_file(tmp_path, SECRETS)
    status = spark_main.run_main(
        job, "test", ["--job-location", "file:///x/", "--job-key", "k", "--references", str(path)]
    )
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "last_line"),
    [
        (None, 0, ""),
        (Terminal("it is\nbroken", next_step="repair it"), 1, "[TERMINAL] it is broken. Next: repair it"),
        (
            BrokerUnreachable("no answer", where=Where(cluster="source")),
            75,
            "[BROKER_UNREACHABLE] no answer (cluster source)",
        ),
        (ValueError("odd"), 75, "[DRIVER_FAILED] ValueError: odd. Next: report it with the lines above"),
    ],
)
def test_a_main_ends_with_one_clear_line(
    error: BaseException | None, status: int, last_line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, printed = run_with(error, tmp_path, capsys)
    assert found == status
    assert (printed.splitlines() or [""])[-1] == last_line


def test_arguments_show_no_secret(tmp_path: Path) -> None:
    path = references_file(tmp_path, SECRETS)
    arguments = spark_main.parse_arguments(
        ["--job-location", "file:///x/", "--job-key", "k", "--references", str(path)], "test"
    )
    assert arguments.pointer.location == "file:///x"
    assert arguments.secrets["source"] == {"sasl.password": "hunter2"}
    assert "hunter2" not in repr(arguments)


@pytest.mark.parametrize(
    "name", ["seed", pytest.param("tail", marks=pytest.mark.slow), pytest.param("verify", marks=pytest.mark.slow)]
)
def test_mains_name_a_missing_job(name: str, tmp_path: Path) -> None:
    path = references_file(tmp_path, SECRETS)
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [
            sys.executable,
            str(root / "spark_jobs" / f"{name}.py"),
            *("--job-location", tmp_path.as_uri(), "--job-key", f"{MIGRATION_ID}/jobs/{name}.json"),
            *("--references", str(path)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("[JOB_MISSING] the job document does not exist")
    assert "hunter2" not in ended.stdout + ended.stderr


# --- the zip --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_zip_is_importable_on_its_own_and_always_the_same(tmp_path: Path) -> None:
    first = build_py_files(tmp_path)
    content = first.read_bytes()
    first.unlink()
    second = build_py_files(tmp_path)
    assert (second.name, second.read_bytes()) == (first.name, content)
    code = (
        "import airflow_provider_kafka_migration as package, sys\n"
        "from airflow_provider_kafka_migration.spark import compare, seed, tail\n"
        "from airflow_provider_kafka_migration.lanes import slices\n"
        "assert '.zip' in package.__file__, package.__file__\n"
        "assert 'airflow' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(second)}, check=True
    )
    names = zipfile.ZipFile(second).namelist()
    assert not [name for name in names if "/operators/" in name or name.endswith(".pyc")]


def test_errors_of_executors_are_pickled() -> None:
    error = pickle.loads(pickle.dumps(BrokerUnreachable("x", where=Where(topic="t", partition=1))))
    assert isinstance(error, MigrationError)
    assert error.where.partition == 1
