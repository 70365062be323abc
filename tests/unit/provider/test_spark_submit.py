"""spark-submit: bound to its task, killed with all its processes, and without secrets in its arguments."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_kafka_migration.engines.cluster_modes import Yarn
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.errors import SparkJobFailed, Terminal
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationSeedOperator
from airflow_provider_kafka_migration.operators.spark_job import mains_folder
from airflow_provider_kafka_migration.provider.spark_submit import (
    BoundSparkSubmitHook,
    find_binary,
    hook_for_job,
    kill_tree,
)
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spark import IS_FOLLOWED
from airflow_provider_kafka_migration.spark.launch import main_file, main_name
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore

SECRETS = ("source-secret", "target-secret", "s3-secret")

#: Stands for spark-submit: notes its arguments, environment and references, and then does what it is told.
FAKE = """\
#!{python}
import json, os, sys, pathlib
folder = pathlib.Path({folder!r})
references = sys.argv[sys.argv.index("--references") + 1]
(folder / "seen.json").write_text(json.dumps({{
    "pid": os.getpid(), "argv": sys.argv, "references": json.load(open(references)),
    "mode": oct(os.stat(references).st_mode & 0o777),
    "environment": {{key: value for key, value in os.environ.items() if "PYSPARK" in key or "DRIVER_IS" in key}},
}}))
{rest}
"""


@pytest.fixture
def fake_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program named spark-submit first on PATH; returns the folder where it notes things."""

    def install(rest: str = "") -> Path:
        binary = tmp_path / "bin" / "spark-submit"
        binary.parent.mkdir(exist_ok=True)
        binary.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path), rest=textwrap.dedent(rest)))
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
        return tmp_path

    return install


@pytest.fixture
def connections(connection: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection("spark_default", conn_type="spark", host="local[2,4]")
    for role in ("source", "target"):
        extra = {"bootstrap.servers": "a:1", "sasl.password": f"{role}-secret"}
        connection(f"kafka_{role}", conn_type="kafka", extra=extra)
    connection("aws_s3", conn_type="aws", login="key", password="s3-secret")
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SECRETS_DIRECTORY", str(tmp_path / "secrets"))
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name in ("seed.py", "tail.py", "verify.py"):
        (jobs / name).write_text("")
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SPARK_JOBS_FOLDER", str(jobs))


class _TaskInstance:
    dag_id, run_id, task_id = "kafka_migration", "manual__1", "seed"


def _submit(spec: dict[str, Any], operator: Any) -> None:
    """What a phase does: run the job document, without a claim."""
    context: Any = {"ti": _TaskInstance(), "params": {}}
    parsed = parse_spec(spec)
    runner = operator.make_runner(context, parsed)
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        record = MigrationRecord(parsed, Journal(store, "orders"), store, store, store, now=lambda: datetime.now(UTC))
        runner.run(record, JobRef("seed", "s3://bucket/migrations", "orders/jobs/seed.json"), lambda: None)


@pytest.mark.usefixtures("connections")
def test_spark_gets_pointers_as_arguments_and_secrets_as_a_private_file(
    fake_spark: Callable[[str], Path], minimal_spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = fake_spark("")
    operator = KafkaMigrationSeedOperator(task_id="seed", conf={"spark.executor.memory": "1g"})
    _submit({**minimal_spec, "spark": {"conf": {"spark.speculation": "true", "a": "b"}}}, operator)

    seen = json.loads((folder / "seen.json").read_text())
    argv = seen["argv"]
    assert argv[-3].endswith("/references.json")
    assert argv[-2] == "--token"
    assert re.fullmatch(r"seed-[0-9a-f]{20}", argv[-1])
    assert argv[-9:-3] == [
        str(folder / "jobs" / "seed.py"),
        "--job-location",
        "s3://bucket/migrations",
        "--job-key",
        "orders/jobs/seed.json",
        "--references",
    ]
    assert argv[argv.index("--master") + 1] == "local[2,4]"
    assert argv[argv.index("--name") + 1] == "kafka-migration-orders-seed"
    for setting in ("spark.log.level=WARN", "spark.speculation=false", "spark.executor.memory=1g", "a=b"):
        assert setting in argv
    assert seen["mode"] == "0o600"
    assert seen["references"]["source"]["sasl.password"] == "source-secret"
    assert seen["references"]["storage"]["aws_secret_access_key"] == "s3-secret"
    assert seen["environment"] == {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        IS_FOLLOWED: "1",
    }
    assert not Path(argv[-3]).exists()
    for secret in SECRETS:
        assert secret not in " ".join(argv)
        assert secret not in caplog.text
        assert secret not in repr([getattr(operator, field) for field in operator.template_fields])


@pytest.mark.usefixtures("connections")
def test_openlineage_reaches_the_driver(
    fake_spark: Callable[[str], Path], minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider puts its settings into the conf right before it makes its hook."""
    from airflow.providers.apache.spark.operators import spark_submit

    for kind in ("parent_job", "transport"):
        key = f"spark.openlineage.{kind}"
        monkeypatch.setattr(
            spark_submit,
            f"inject_{kind}_information_into_spark_properties",
            lambda conf, _context, key=key: {**conf, key: "here"},
        )
    folder = fake_spark("")
    operator = KafkaMigrationSeedOperator(
        task_id="seed", openlineage_inject_parent_job_info=True, openlineage_inject_transport_info=True
    )
    for _ in range(2):
        _submit(minimal_spec, operator)
        argv = json.loads((folder / "seen.json").read_text())["argv"]
        assert "spark.openlineage.parent_job=here" in argv
        assert "spark.openlineage.transport=here" in argv
        assert "spark.speculation=false" in argv


@pytest.mark.usefixtures("connections")
def test_failed_spark_leaves_no_secrets(fake_spark: Callable[[str], Path], minimal_spec: dict[str, Any]) -> None:
    folder = fake_spark("sys.exit('it broke')")
    with pytest.raises(SparkJobFailed, match="it broke"):
        _submit(minimal_spec, KafkaMigrationSeedOperator(task_id="seed"))
    assert list((folder / "secrets").iterdir()) == []


@pytest.mark.usefixtures("connections")
def test_a_driver_that_was_killed_is_not_explained_by_its_last_warning(
    fake_spark: Callable[[str], Path], minimal_spec: dict[str, Any]
) -> None:
    fake_spark("print('26/11/27 00:03:45 WARN Utils: Set SPARK_LOCAL_IP', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(SparkJobFailed, match=r"was killed by SIGKILL \(") as caught:
        _submit(minimal_spec, KafkaMigrationSeedOperator(task_id="seed"))
    assert caught.value.next_step.startswith("look for a lack of memory first")


def test_main_of_the_package_is_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SPARK_JOBS_FOLDER", str(tmp_path))
    with pytest.raises(Terminal, match=r"verify\.py"):
        main_file(main_name("verify-archive"), mains_folder())
    (tmp_path / "verify.py").write_text("")
    assert main_file("verify.py", mains_folder()) == tmp_path / "verify.py"


def test_binary_beside_this_python_is_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(sys.executable).with_name("spark-submit").exists():
        pytest.skip("pyspark is not installed, only its client")
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_binary("spark-submit") == str(Path(sys.executable).with_name("spark-submit"))
    assert find_binary("no-such-binary") == "no-such-binary"


# ---- ending


def _wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


#: A driver with a worker in a process group of its own, as PySpark's daemon makes one; both ignore SIGTERM.
STUBBORN = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = os.fork()
if worker == 0:
    os.setpgid(0, 0)
    open(sys.argv[1] + "/worker", "w").write(str(os.getpid()))
    time.sleep(600)
open(sys.argv[1] + "/driver.tmp", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + "/driver.tmp", sys.argv[1] + "/driver")
time.sleep(600)
"""


def _pid(path: Path) -> int:
    _wait_until(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


def test_killing_reaches_workers_in_their_own_process_group(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN, str(tmp_path)]) as driver:
        worker = _pid(tmp_path / "worker")
        _pid(tmp_path / "driver")
        kill_tree(driver.pid, grace_seconds=0.3)
        assert not _alive(worker)
        assert driver.wait(120) == -signal.SIGKILL


def test_killing_what_has_ended_is_no_error() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    kill_tree(done.pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux'")
def test_driver_dies_with_a_task_that_is_killed_without_warning(tmp_path: Path) -> None:
    """The task is SIGKILLed; its driver, which ignores SIGTERM, must not go on."""
    task = f"""
import os, subprocess, sys
launcher = [sys.executable, "-m", "airflow_provider_kafka_migration.engines.bound_process", str(os.getpid())]
subprocess.Popen([*launcher, sys.executable, "-c", {STUBBORN!r}, {str(tmp_path)!r}]).wait()
"""
    with subprocess.Popen([sys.executable, "-c", task]) as process:
        driver, worker = _pid(tmp_path / "driver"), _pid(tmp_path / "worker")
        try:
            assert _alive(driver)
            process.kill()
            process.wait()
            _wait_until(lambda: not _alive(driver))
        finally:
            os.kill(worker, signal.SIGKILL)


def test_launcher_refuses_to_start_for_a_dead_task() -> None:
    argv = [sys.executable, "-m", "airflow_provider_kafka_migration.engines.bound_process", "1", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "has ended before Spark was started" in done.stderr


def test_launcher_keeps_the_process_id_and_exit_status() -> None:
    """The hook kills by process id, so it has to be the driver's."""
    code = "import os; print(os.getpid()); raise SystemExit(7)"
    argv = [sys.executable, "-m", "airflow_provider_kafka_migration.engines.bound_process", str(os.getpid())]
    with subprocess.Popen([*argv, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 7
    assert int(output) == process.pid


@pytest.mark.usefixtures("connections")
def test_killed_task_ends_its_driver_and_removes_the_secrets(
    fake_spark: Callable[[str], Path], minimal_spec: dict[str, Any], tmp_path: Path
) -> None:
    """on_kill runs in a signal handler while the operator reads the driver's output."""
    runs = tmp_path / "runs"
    folder = fake_spark(f"import pathlib, time; pathlib.Path({str(runs)!r}).touch(); time.sleep(600)")
    operator = KafkaMigrationSeedOperator(task_id="seed")

    def killed(*_: object) -> None:
        if runs.exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            operator.on_kill()

    before = signal.signal(signal.SIGALRM, killed)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        with pytest.raises(SparkJobFailed):
            _submit(minimal_spec, operator)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not _alive(json.loads((folder / "seen.json").read_text())["pid"])
    assert list((folder / "secrets").iterdir()) == []


def test_hook_keeps_everything_of_the_provider_s_hook(connection: Callable[..., None]) -> None:
    connection("spark_default", conn_type="spark", host="spark://master:7077", extra={"queue": "q"})
    operator = KafkaMigrationSeedOperator(task_id="seed", num_executors=3)
    hook: Any = hook_for_job("spark_default", operator.submit_arguments, {}, is_cluster_mode=False)
    assert isinstance(hook, BoundSparkSubmitHook)
    assert hook._num_executors == 3
    assert hook.master == "spark://master:7077"


YARN_EXTRA = {"deploy-mode": "client", "yarn_resourcemanager_webapp_address": "rm:8088"}


@pytest.mark.parametrize(
    ("extra", "arguments", "of_operator", "expected"),
    [
        ({**YARN_EXTRA, "deploy-mode": "cluster"}, {}, {}, ("cluster", "rm:8088")),
        (YARN_EXTRA, {"deploy_mode": "cluster"}, {}, ("cluster", "rm:8088")),
        (YARN_EXTRA, {"deploy_mode": "cluster"}, {"deploy_mode": "client"}, ("client", None)),
        ({}, {"deploy_mode": "cluster", "resource_manager": "other:8088"}, {}, ("cluster", "other:8088")),
        ({}, {"master": "local[2,4]"}, {}, ("client", None)),
    ],
)
@pytest.mark.usefixtures("connections")
def test_the_engine_of_a_task_runs_where_its_connection_says(
    connection: Callable[..., None],
    minimal_spec: dict[str, Any],
    extra: dict[str, str],
    arguments: dict[str, str],
    of_operator: dict[str, str],
    expected: tuple[str, str | None],
) -> None:
    connection("spark_default", conn_type="spark", host="yarn", extra=extra)
    operator = KafkaMigrationSeedOperator(task_id="seed", **of_operator)
    context: Any = {"ti": _TaskInstance(), "params": {}}
    runner = operator.make_runner(context, parse_spec({**minimal_spec, "spark": {"engine_args": arguments}}))
    assert isinstance(runner.engine, SubmitEngine)
    assert runner.engine.detached == (expected[0] == "cluster")
    assert runner.engine.master == "yarn"
    assert runner.engine.arguments.get("resource_manager") == expected[1]


@pytest.mark.usefixtures("connections")
def test_a_task_submits_to_yarn_through_the_provider_s_hook(
    connection: Callable[..., None],
    fake_spark: Callable[[str], Path],
    minimal_spec: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spark-submit ends at once; the application that it named is what the task waits for."""
    extra = {"deploy-mode": "cluster", "queue": "q", "yarn_resourcemanager_webapp_address": "127.0.0.1:1"}
    connection("spark_default", conn_type="spark", host="yarn", extra=extra)
    folder = fake_spark("print('Submitted application application_1700000000000_0007')")
    script = folder / "bin" / "spark-submit"
    script.write_text(
        script.read_text()
        .replace("json.load(open(references))", "references")
        .replace("oct(os.stat(references).st_mode & 0o777)", "None")
    )
    operator = KafkaMigrationSeedOperator(task_id="seed", num_executors=3)
    spec = parse_spec({**minimal_spec, "spark": {"executor_references": "env"}})
    context: Any = {"ti": _TaskInstance(), "params": {}}
    runner = operator.make_runner(context, spec)
    monkeypatch.setattr(Yarn, "find", lambda _self, _token: None)
    with runner.make_job(JobRef("seed", "s3://bucket/migrations", "orders/jobs/seed.json"), "seed-1") as job:
        assert runner.engine.submit(job) == "application_1700000000000_0007"
    argv = json.loads((folder / "seen.json").read_text())["argv"]
    for part in ("cluster", "q", "3", "spark.yarn.tags=seed-1", "spark.yarn.submit.waitAppCompletion=false"):
        assert part in argv
    assert any(part.endswith(".zip") for part in argv)
    assert not [part for part in argv if "PYSPARK_PYTHON" in part], "a driver elsewhere has another Python"
    for secret in SECRETS:
        assert secret not in " ".join(argv)
