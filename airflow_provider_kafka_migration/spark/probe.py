"""The probe: a small Spark job that says whether copies would work here, before anything is written to the target.

The driver looks at itself and asks as many executors as it can get. What fails on a machine is part of the result. The
job ends with an error only if there is nothing to report to: its own document or the storage cannot be used from the
driver.

It builds its own session: the one for copies refuses what the probe is to report. It works on Spark Connect as well,
where neither a SparkContext nor the list of executors exists.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from pyspark import cloudpickle
from pyspark.sql import SparkSession, functions

from airflow_provider_kafka_migration.documents.spark_probe import ClockSpan, MachineLook, ProbeJob, SparkProbe
from airflow_provider_kafka_migration.errors import MigrationError, SparkJobFailed
from airflow_provider_kafka_migration.lanes.libraries import CONNECT_LIBRARIES
from airflow_provider_kafka_migration.lanes.reach import Reach
from airflow_provider_kafka_migration.lanes.spark_conf import JUDGED, unsafe_settings
from airflow_provider_kafka_migration.references.argument import ROLES
from airflow_provider_kafka_migration.spark import probe_task
from airflow_provider_kafka_migration.spark.launch import build_py_files
from airflow_provider_kafka_migration.spark.main import JobArguments, root_cause, run_main, spark_errors
from airflow_provider_kafka_migration.spark.probe_task import look_around, make_task
from airflow_provider_kafka_migration.spark.worker import JobPointer, JobReferences

log = logging.getLogger(__name__)

#: Settings that the result shows. None of them can hold a secret.
SHOWN = (
    *JUDGED,
    "spark.submit.deployMode",
    "spark.executor.instances",
    "spark.executor.cores",
    "spark.executor.memory",
    "spark.dynamicAllocation.enabled",
    "spark.dynamicAllocation.minExecutors",
    "spark.dynamicAllocation.maxExecutors",
    "spark.network.timeout",
    "spark.authenticate",
    "spark.network.crypto.enabled",
    "spark.io.encryption.enabled",
)
#: Executors may come late: the first round waits this long for any task to end.
FIRST_ROUND_SECONDS = 240.0
ROUND_SECONDS = 120.0
ROUNDS = 3
#: A task takes at least this long, so that every free executor gets one.
HOLD_SECONDS = 2.0
_MOST_TASKS = 2_000
_T = TypeVar("_T")


# -- on every machine -------------------------------------------------------------------------------------------------


def look_from_here(pointer: JobPointer) -> dict[str, Any]:
    """Return what this machine can resolve and reach, as fields of :class:`MachineLook`. Executors call it, too."""
    resolved, unresolved = resolve_each(pointer.references)
    errors = {role: error.as_dict() for role, error in unresolved.items()}
    if "storage" in unresolved:
        parts = ("source", "target", "storage")
        return {
            "unresolved": errors,
            "not_looked_at": dict.fromkeys(parts, "the storage's reference cannot be resolved here"),
        }
    stores: list[dict[str, Any]] | None = None
    try:
        job = pointer.read(ProbeJob, pointer.store(resolved))
    except MigrationError as error:
        # The storage is the first thing that a copier needs; brokers are tried all the same.
        stores = [{"location": pointer.location, "error": error.as_dict()}]
        job = ProbeJob(migration_id="", generation=0, journal_location=pointer.location)
    seen = Reach(job, resolved).look([*unresolved, *([] if stores is None else ["storage"])])
    if stores is not None:
        seen["stores"] = stores
        del seen["not_looked_at"]["storage"]
    return {**seen, "unresolved": {**seen["unresolved"], **errors}}


def resolve_each(references: JobReferences) -> tuple[dict[str, Any], dict[str, MigrationError]]:
    """Resolve the references of a job: what could be resolved, and the errors of the others, by role."""
    try:
        return references.resolve(), {}
    except MigrationError as error:
        whole = error
    if not references.inline:
        return {}, dict.fromkeys(ROLES, whole)
    values = json.loads(references.inline)
    resolved: dict[str, Any] = {}
    unresolved: dict[str, MigrationError] = {}
    for role in ROLES:
        try:
            resolved[role] = replace(references, inline=json.dumps({role: values.get(role)})).resolve()[role]
        except MigrationError as error:
            unresolved[role] = error
    return resolved, unresolved or dict.fromkeys(ROLES, whole)


# -- executors --------------------------------------------------------------------------------------------------------


@dataclass
class _Asked:
    """What executors answered."""

    looks: dict[str, MachineLook] = field(default_factory=dict)
    #: when the round of an answer began and ended, by the driver's clock
    rounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    listed: list[str] | None = None
    reason: str = ""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.listed or () if name not in self.looks]


def ask_executors(session: SparkSession, packages: dict[str, str], pointer: JobPointer, asked: int) -> _Asked:
    """Let a task look around on each executor, in several rounds. Never raises for what Spark cannot do.

    :param asked: how many executors the settings ask for; -1 if they do not tell.
    """
    # By value: the task must run where this package is missing, and say so.
    cloudpickle.register_pickle_by_value(probe_task)
    shipped = pickle.dumps(pointer.refreshed())
    found = _Asked()
    for number in range(ROUNDS):
        found.listed = listed_executors(session)
        if number and not _others_may_come(found, asked):
            break
        began = time.time()
        tasks = min(max(_slots(session), len(found.listed or ()), asked, 1), _MOST_TASKS)
        task = make_task(packages, shipped, f"{secrets.token_hex(6)}-{number}", frozenset(found.looks), HOLD_SECONDS)
        patience = FIRST_ROUND_SECONDS if number == 0 else ROUND_SECONDS
        try:
            answers = _bounded(session, partial(_run, session, task, tasks), patience)
        except Exception as error:
            found.reason = _why(error)
            log.warning("The executors could not be asked: %s", found.reason)
            break
        _take(found, answers, began)
    found.listed = listed_executors(session)
    return found


def _others_may_come(found: _Asked, asked: int) -> bool:
    return bool(found.missing) or len(found.looks) < asked


def _take(found: _Asked, answers: list[str], began: float) -> None:
    for text in answers:
        seen = json.loads(text)
        if "python" in seen and seen["name"] not in found.looks:
            found.looks[seen["name"]] = MachineLook.model_validate(seen)
            found.rounds[seen["name"]] = (began, time.time())


def _run(session: SparkSession, task: Callable[[int], str], tasks: int) -> list[str]:
    # A plain Python function, not an Arrow one: pyarrow may be what an executor lacks.
    look = functions.udf(task, "string", useArrow=False)
    return [str(row[0]) for row in session.range(0, tasks, 1, tasks).select(look("id")).collect()]


def _bounded(session: SparkSession, call: Callable[[], _T], seconds: float) -> _T:
    """Run a call for so long; then cancel Spark's jobs. Spark waits for executors without any limit of its own."""
    pool = ThreadPoolExecutor(1, "probe")
    try:
        future = pool.submit(call)
        try:
            return future.result(timeout=seconds)
        except StillRunning:
            _cancel(session)
            raise SparkJobFailed(
                f"no executor has answered within {seconds:.0f} s",
                next_step="check in Spark's UI whether the application gets executors, and that each can connect to "
                "the driver (spark.driver.host); then clear spark_check",
            ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _cancel(session: SparkSession) -> None:
    with contextlib.suppress(Exception):
        if _is_connect(session):
            session.interruptAll()
        else:
            session.sparkContext.cancelAllJobs()


def _why(error: Exception) -> str:
    return error.what if isinstance(error, MigrationError) else root_cause(str(error))


def _is_connect(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def listed_executors(session: SparkSession) -> list[str] | None:
    """Return the ids of the executors that Spark has now; None where it does not tell (Spark Connect)."""
    if _is_connect(session):
        return None
    try:
        text = session.sparkContext._jsc.sc().getExecutorIds().mkString(",")
    except Exception as error:
        log.info("Spark does not list its executors: %s", _why(error))
        return None
    return sorted(filter(None, str(text).split(",")), key=lambda name: (len(name), name))


def _slots(session: SparkSession) -> int:
    if _is_connect(session):
        return int(_setting(session, "spark.default.parallelism") or 16)
    return max(1, int(session.sparkContext.defaultParallelism))


def _setting(session: SparkSession, name: str) -> str | None:
    try:
        value = session.conf.get(name, None)
    except Exception:
        return None
    return None if value is None else str(value)


def executors_asked(settings: dict[str, str]) -> int:
    """Return how many executors the settings ask for; -1 if they leave it to the cluster."""
    dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    name = "spark.dynamicAllocation.minExecutors" if dynamic else "spark.executor.instances"
    text = settings.get(name, "")
    return int(text) if text.isdigit() else -1


# -- driver -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """Open a session as it was submitted, whatever its settings are."""
    if not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    remote = master if (master or "").startswith("sc://") else os.environ.get("SPARK_REMOTE", "")
    builder = SparkSession.builder.appName(name)
    if remote:
        with spark_errors("connecting to Spark"):
            session: SparkSession = builder.remote(remote).create()
    else:
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        session = (builder.master(master) if master else builder).getOrCreate()
    try:
        if remote:
            # As the drivers of copies do: the server has only the code that clients send.
            with tempfile.TemporaryDirectory() as folder, spark_errors("sending this package to Spark"):
                session.addArtifacts(str(build_py_files(folder)), pyfile=True)
        yield session
    finally:
        session.stop()


def probe(session: SparkSession, job: ProbeJob, pointer: JobPointer) -> SparkProbe:
    """Look at Spark, at the driver and at the executors."""
    settings = {name: value for name in SHOWN if (value := _setting(session, name)) is not None}
    asked = executors_asked(settings)
    driver = MachineLook.model_validate(look_around(dict(job.packages), pickle.dumps(pointer), "driver"))
    packages = {**job.packages, **(CONNECT_LIBRARIES if _is_connect(session) else {})}
    found = ask_executors(session, packages, pointer, asked)
    executors = [
        look.model_copy(update={"clock": clock_against(driver, look, found.rounds[name])})
        for name, look in sorted(found.looks.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    return SparkProbe(
        migration_id=job.migration_id,
        token=job.token,
        kind="probed",
        master=settings.get("spark.master", ""),
        application_id=_setting(session, "spark.app.id") or "",
        spark_version=str(session.version),
        java_version=_java_version(session),
        settings=settings,
        unsafe_settings=unsafe_settings(settings),
        driver=driver,
        executors=executors,
        executors_asked=asked,
        not_asked=found.missing,
        not_asked_reason=found.reason,
    )


def clock_against(driver: MachineLook, other: MachineLook, during: tuple[float, float]) -> ClockSpan | None:
    """Return by how much the other machine's clock is ahead of the driver's.

    The other machine looked while the driver waited, which bounds the difference; where both have seen the clock of the
    same store, that bounds it to about a second.

    :param during: when the driver began and ended to wait, by its own clock.
    """
    began, ended = during
    spans = [ClockSpan(low=other.ended_at - ended, high=other.began_at - began)]
    theirs = {store.location: store.clock for store in other.stores}
    for store in driver.stores:
        seen = theirs.get(store.location)
        if store.clock is not None and seen is not None:
            spans.append(store.clock.minus(seen))
    return ClockSpan.narrowest(spans)


def _java_version(session: SparkSession) -> str:
    if _is_connect(session):
        return ""
    try:
        return str(session.sparkContext._jvm.java.lang.System.getProperty("java.version"))
    except Exception as error:
        log.info("Java's version is not known: %s", _why(error))
        return ""


def result_key(migration_id: str) -> str:
    """Key of the result. The phase that asked for the probe reads it."""
    return f"{migration_id}/results/spark-probe.json"


def run_job(arguments: JobArguments) -> None:
    """Run the probe and store what it saw: the function of its Spark main.

    :raises ConnectionInvalid: the driver cannot resolve the storage's reference, so it cannot report anything.
    :raises MigrationError: the storage cannot be used from the driver.
    """
    store = arguments.pointer.store(arguments.secrets)
    job = arguments.pointer.read(ProbeJob, store)
    with _session(f"kafka-migration {job.migration_id} probe", arguments.master) as session:
        seen = probe(session, job, arguments.pointer)
    store.put(result_key(job.migration_id), seen.canonical())
    log.info(
        "The probe has asked %d executors, %d did not answer; Spark %s, Java %s",
        len(seen.executors),
        len(seen.not_asked),
        seen.spark_version,
        seen.java_version or "unknown",
    )


def main() -> int:
    """Run ``spark_jobs/probe.py``."""
    return run_main(run_job, "Says whether copies would work on this Spark: versions, settings, and what is reachable.")
