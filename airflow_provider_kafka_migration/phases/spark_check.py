"""Look at Spark before anything is written: a probe on the driver and on executors. The precheck judges what it saw."""

from __future__ import annotations

import logging
import platform
import time
import uuid

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.checks import spark
from airflow_provider_kafka_migration.checks.spark_probe import SparkSide, basis_of, outdated, read_probe
from airflow_provider_kafka_migration.documents.plan import Severity
from airflow_provider_kafka_migration.documents.spark_probe import ClockSpan, MachineLook, ProbeJob, SparkProbe
from airflow_provider_kafka_migration.errors import ClaimLost, Interrupted, MigrationError, Terminal, Transient
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, JobRunner, Step, job_ref
from airflow_provider_kafka_migration.lanes.libraries import LIBRARIES
from airflow_provider_kafka_migration.lanes.reach import clock_of, text_of
from airflow_provider_kafka_migration.lanes.spark_conf import is_local, unsafe_settings
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.times import iso

log = logging.getLogger(__name__)

PHASE = "spark_check"
JOB = "probe"


def run(context: PhaseContext) -> PhaseResult:
    """Probe Spark, unless lanes do not run there, or a recent probe found nothing wrong.

    :raises Transient: the probe's job could not run for a reason that may pass. A reason that stays is part of the
        result.
    """
    return JOB_PHASE.run(context)


def prepare(context: PhaseContext) -> Step:
    """Write the probe's job; a result if nothing has to be asked."""
    runner = context.runner
    if runner is None:
        raise Terminal("there is no runner for jobs", where=context.where(PHASE), next_step="configure a runner")
    if not isinstance(runner, SparkSide):
        return PhaseResult(PHASE, "skipped: the data plane runs in this process, not on Spark", {"kind": "in_process"})
    context.journal.check_holds()
    master = runner.spark_master(context.spec)
    if is_local(master):
        return _store(context, _local(context, master))
    known = read_probe(context.record)
    if known is not None and _still_counts(context, known, master):
        return PhaseResult(PHASE, f"Spark was probed at {known.at}; nothing was wrong", {}, already_done=True)
    context.journal_store.put(context.key(keys.job(JOB)), _job(context).canonical())
    return job_ref(context.record, JOB)


def finish(context: PhaseContext, _job: JobRef) -> Step:
    """Complete what the job has stored with what only this side knows.

    :raises Transient: there is no result of this job.
    """
    data = context.journal_store.get(context.key(keys.job(JOB)))
    job = None if data is None else ProbeJob.parse(data)
    probe = read_probe(context.record)
    if job is None or probe is None or probe.token != job.token:
        raise Transient(
            "the probe of Spark ended well, but its result is not in the storage",
            where=context.where(PHASE, path=context.key(keys.result(keys.SPARK_PROBE))),
            next_step="check that the driver uses the same storage as this task; then clear spark_check",
        )
    return _store(context, _completed(context, job, probe))


def _still_counts(context: PhaseContext, known: SparkProbe, master: str) -> bool:
    """Return whether a stored probe is recent, of this Spark, and shows nothing that somebody may have mended since."""
    if known.kind != "probed" or known.master != master or outdated(known, context.spec, context.now()):
        return False
    return not any(item.severity is not Severity.INFO for item in spark.judge(known, context.now()))


def _store(context: PhaseContext, probe: SparkProbe) -> PhaseResult:
    context.record.put_result(keys.SPARK_PROBE, probe)
    findings = spark.judge(probe, context.now())
    counts = {severity.value: sum(item.severity is severity for item in findings) for severity in Severity}
    details = {
        "kind": probe.kind,
        "digest": probe.digest(),
        "master": probe.master,
        "executors": len(probe.executors),
        "not_asked": len(probe.not_asked),
        "counts": counts,
    }
    context.journal.step(steps.SPARK_CHECKED, details=details)
    for item in findings:
        log.info("%s %s: %s", item.code, item.title, item.seen)
    return PhaseResult(PHASE, _summary(probe, counts), details)


def _summary(probe: SparkProbe, counts: dict[str, int]) -> str:
    if probe.kind == "local":
        text = f"Spark runs on this machine ({probe.master}): only its settings were checked"
    elif probe.kind == "failed":
        text = "the probe's job could not run; precheck has the reason"
    else:
        text = f"{len(probe.executors)} executors and the driver were asked, {len(probe.not_asked)} did not answer"
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count and name != Severity.INFO)
    return f"{text}; for precheck: {found}" if found else text


def _base(context: PhaseContext, master: str) -> dict[str, str]:
    return {
        "at": iso(context.now()),
        "basis": basis_of(context.spec),
        "engine": context.spec.spark.engine,
        "master": master,
        "airflow_package_version": __version__,
        "airflow_python": platform.python_version(),
    }


def _local(context: PhaseContext, master: str) -> SparkProbe:
    """Judge the settings alone: driver and executors are processes of this machine, with its libraries and routes."""
    # Whoever submits the job forces speculation off.
    conf = {key: value for key, value in context.spec.spark.conf.items() if key != "spark.speculation"}
    unsafe = unsafe_settings({**conf, "spark.master": master})
    return SparkProbe(migration_id=context.migration_id, kind="local", unsafe_settings=unsafe, **_base(context, master))


# -- the probe's job --------------------------------------------------------------------------------------------------


def _run_job(context: PhaseContext, job: JobRef) -> None:
    """Run the job and wait for it. An error that stays is stored as the result."""
    runner = context.runner
    assert runner is not None
    context.progress(Progress(PHASE, "a small Spark job looks at the driver and the executors"))
    try:
        if isinstance(runner, JobRunner):
            runner.run(context.record, job, lambda: None)
        else:
            runner.submit(context.spec, job.location, job.key, lambda: None)
    except (ClaimLost, Interrupted, Transient):
        raise
    except MigrationError as error:
        log.warning("The probe could not run: %s", error)
        data = context.journal_store.get(job.key)
        token = "" if data is None else ProbeJob.parse(data).token
        failed = SparkProbe(migration_id=context.migration_id, kind="failed", token=token, error=error.as_dict())
        context.record.put_result(keys.SPARK_PROBE, failed)
    except Exception as error:
        raise Transient(
            f"the probe of Spark ended with an error: {str(error)[:500]}",
            where=context.where(PHASE),
            next_step="see the task's log; then clear spark_check",
        ) from error


def _job(context: PhaseContext) -> ProbeJob:
    spec = context.spec
    clusters = {"source": context.source, "target": context.target}
    return ProbeJob(
        migration_id=context.migration_id,
        generation=context.journal.generation,
        token=uuid.uuid4().hex,
        asked_at=time.time(),
        basis=basis_of(spec),
        journal_location=spec.storage.journal,
        archive_location=None if spec.seed.via == "direct" else spec.storage.archive_location,
        brokers={
            role: [text_of((broker.host, broker.port)) for broker in cluster.wire.brokers()]
            for role, cluster in clusters.items()
        },
        packages=dict(LIBRARIES),
    )


def _completed(context: PhaseContext, job: ProbeJob, probe: SparkProbe) -> SparkProbe:
    runner = context.runner
    master = runner.spark_master(context.spec) if isinstance(runner, SparkSide) else ""
    driver = probe.driver
    if driver is not None:
        driver = driver.model_copy(update={"clock": _clock(context, driver, (job.asked_at, time.time()))})
    # The spec may have changed while the job ran.
    asked = {"basis": job.basis, "driver": driver}
    return probe.model_copy(update={**_base(context, master or probe.master), **asked})


def _clock(context: PhaseContext, driver: MachineLook, during: tuple[float, float]) -> ClockSpan | None:
    """Return by how much the driver's clock is ahead of this task's. The driver looked while the task waited."""
    spans = [ClockSpan(low=driver.ended_at - during[1], high=driver.began_at - during[0])]
    seen = next((store.clock for store in driver.stores if store.location == context.journal_store.uri), None)
    ours = clock_of(context.journal_store)
    if seen is not None and ours is not None:
        spans.append(ours.minus(seen))
    return ClockSpan.narrowest(spans)


JOB_PHASE = JobPhase(jobs=(JOB,), prepare=prepare, finish=finish, run_job=_run_job)
