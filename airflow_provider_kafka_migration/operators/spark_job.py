"""The common base of the Spark tasks: a phase whose data plane work runs on a Spark engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_kafka_migration.engines.base import arguments_of
from airflow_provider_kafka_migration.engines.find import DEFAULT, make_engine
from airflow_provider_kafka_migration.engines.submit import Running, SubmitEngine
from airflow_provider_kafka_migration.errors import CREDENTIALS_REFUSED, MigrationError, Transient
from airflow_provider_kafka_migration.provider.compat import conf as airflow_conf
from airflow_provider_kafka_migration.provider.compat import set_retry_policy
from airflow_provider_kafka_migration.provider.connections import (
    airflow_resolver,
    private_directory,
    public_sealing_key,
)
from airflow_provider_kafka_migration.provider.progress import (
    Callback,
    ProgressWatcher,
    TroubleNotices,
    as_callbacks,
    call_all,
    interval_seconds,
)
from airflow_provider_kafka_migration.provider.run_chain import old_run
from airflow_provider_kafka_migration.provider.task import (
    MigrationTask,
    SpecSource,
    plain_spec,
    run_owner,
)
from airflow_provider_kafka_migration.spark.launch import FORCED_CONF, application_name
from airflow_provider_kafka_migration.triggers.spark_job import WAKE, SparkJobTrigger, event_error

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.engines.base import SparkEngine, SparkJob
    from airflow_provider_kafka_migration.engines.run import EngineRunner
    from airflow_provider_kafka_migration.jobs.submissions import Submission
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.provider.spark_submit import HookProcess
    from airflow_provider_kafka_migration.record.context import PhaseResult, Progress
    from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

#: A deferred task wakes up after this long without news: each part of a task costs a process, rows and its whole log.
_WAKE_SECONDS = 900.0
#: The same where the keys of the storage expire: the task renews them for the job, a quarter of an hour before.
_RENEWING_SECONDS = 300.0
#: How long a killed task asks for its state; Airflow kills it for good after five seconds.
_ASK_SECONDS = 3.0


#: Arguments of ``SparkSubmitOperator`` that a task may be given. The class itself is not imported at parse time.
SUBMIT_ARGUMENTS = frozenset(
    {
        *("archives", "deploy_mode", "driver_class_path", "driver_memory", "exclude_packages", "executor_cores"),
        *("executor_memory", "files", "jars", "keytab", "num_executors", "openlineage_inject_parent_job_info"),
        *("openlineage_inject_transport_info", "packages", "principal", "properties_file", "proxy_user"),
        *("repositories", "spark_binary", "status_poll_interval", "total_executor_cores", "use_krb5ccache"),
        *("verbose", "yarn_queue", "yarn_rm_auth"),
    }
)


class SparkMigrationOperator(MigrationTask, BaseOperator):
    """Runs one phase whose data plane is a Spark job, on the engine that ``spark.engine`` of the spec names.

    As always, the phase itself runs in the task: it reads the journal, writes the job document, and verifies the
    journal and the clusters afterwards. In between the engine runs the job, with pointers as its only arguments.

    With ``spark-submit`` in client mode the driver is a child of the task, which holds its slot until the job ends. On
    all other engines the job is detached: its id is in the journal, so an attempt that follows a lost worker finds the
    running job; and a deferrable task gives its slot away, wakes up now and then, and cancels the job if it is cleared.

    :param spec: the migration; None takes it from the Params of the run.
    :param takeover: take the migration over from another owner.
    :param conf: additional Spark conf; overrides the spec's. No secrets: Spark's UI shows it.
    :param env_vars: additional environment variables of the driver. No secrets.
    :param py_files: Python files for the executors, in place of this package.
    :param on_trouble: called with the task's context when partitions cannot be copied, while the task keeps running.
    :param deferrable: give the slot away while a detached job runs; ``[operators] default_deferrable`` by default.
    :param kwargs: arguments of ``SparkSubmitOperator`` (:data:`SUBMIT_ARGUMENTS`), for the
        engine ``submit``, and those of ``BaseOperator``.
    """

    #: Arguments that this class or the DAG sets itself.
    fixed_arguments: ClassVar[frozenset[str]] = MigrationTask.fixed_arguments | {
        *("application", "application_args", "conn_id", "name", "java_class"),
    }

    template_fields: Sequence[str] = ("spec", "conf", "env_vars", "py_files", "submit_arguments")

    #: Whether the task may give its slot away. Then an error of the job is always an error of the task.
    may_defer: ClassVar[bool] = True

    #: What people call the copy that follows the source.
    copy_name: ClassVar[str] = "tail"

    #: Name of the core's argument that receives the Spark runner.
    runner_argument: ClassVar[str] = "runner"

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        conf: Mapping[str, str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        py_files: str | None = None,
        on_trouble: Callback | Sequence[Callback] | None = (),
        deferrable: bool = airflow_conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        forced = sorted(key for key, value in FORCED_CONF.items() if str((conf or {}).get(key, value)).lower() != value)
        if forced:
            raise ValueError(f"conf has settings that a copy cannot work with: {', '.join(forced)}")
        set_retry_policy(kwargs)
        submit = {name: kwargs.pop(name) for name in sorted(SUBMIT_ARGUMENTS & set(kwargs))}
        super().__init__(**kwargs)
        self.conf = dict(sorted((conf or {}).items()))
        self.env_vars = dict(env_vars) if env_vars else None
        self.py_files = py_files
        self.submit_arguments = submit
        self.on_trouble = as_callbacks(on_trouble)
        self.deferrable = deferrable
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self._private_directory: Path | None = None
        self._runner: EngineRunner | None = None
        self._instance: Any = None
        self._started: list[HookProcess] = []

    # -- the task ----------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase; XCom gets only pointers."""
        runner = self.make_runner(context, self.migration_spec(context))
        options = self.phase_options(context)
        with self.open_migration(context, **{self.runner_argument: runner}) as migration:
            self._starts(migration)
            if self.deferrable and self.may_defer and runner.engine.detached:
                return self._advance(context, migration, runner, migration.start_job(self.phase, **options), {})
            result = migration.run(self.phase, **options)
            while self._goes_on(context, migration):
                result = migration.run(self.phase, **options)
            return self._done(migration, result)

    def resume(
        self, context: Context, event: dict[str, Any], *, submission: dict[str, Any], memory: dict[str, Any]
    ) -> dict[str, Any]:
        """Continue after a deferral: take up the end of the job, or do what has to be done while it runs.

        :param submission: the job that was waited for.
        :param memory: what the task remembers from one part to the next.
        """
        from airflow_provider_kafka_migration.jobs.submissions import Submission

        error = event_error(event)
        if error is not None:
            # The job still runs; an attempt that follows finds it.
            raise error
        waited_for = Submission(**submission)
        memory = {**memory, "news": event.get("news", memory.get("news", ""))}
        runner = self.make_runner(context, self.migration_spec(context))
        # A task that is killed in this part cancels the job as well.
        runner.watch(waited_for)
        with self.open_migration(context, **{self.runner_argument: runner}) as migration:
            if event["status"] == WAKE and not self._wake(context, migration, runner, waited_for, memory):
                self._wait(context, runner, waited_for, memory)
            self._starts(migration)
            step = migration.end_job(self.phase, waited_for)
            return self._advance(context, migration, runner, step, memory)

    def _advance(
        self,
        context: Context,
        migration: Migration,
        runner: EngineRunner,
        step: Submission | PhaseResult,
        memory: dict[str, Any],
    ) -> dict[str, Any]:
        from airflow_provider_kafka_migration.record.context import PhaseResult

        while isinstance(step, PhaseResult):
            if not self._goes_on(context, migration):
                return self._done(migration, step)
            step = migration.start_job(self.phase, **self.phase_options(context))
        self._show_links(runner, step)
        self._wake(context, migration, runner, step, memory)
        self._wait(context, runner, step, memory)
        raise AssertionError("a deferred task does not get here")

    def _show_links(self, runner: EngineRunner, submission: Submission) -> None:
        try:
            for label, url in runner.engine.links(submission.job_id).items():
                self.log.info("%s: %s", label, url)
        except MigrationError as error:  # the job runs, with or without a page
            self.log.warning("The pages about the job are not known: %s", error)

    def _done(self, migration: Migration, result: PhaseResult) -> dict[str, Any]:
        self.log.info("%s%s", "already done: " if result.already_done else "", result.summary)
        self._finished(migration, result)
        return self.pointers(migration, result)

    def _wait(self, context: Context, runner: EngineRunner, submission: Submission, memory: dict[str, Any]) -> None:
        """Give the slot away until the job has ended or it is time to wake up."""
        spec = self.migration_spec(context)
        wake_seconds = self._wake_seconds(context, spec)
        self.defer(
            trigger=self._job_trigger(
                spec,
                engine=runner.engine.name,
                arguments=arguments_of(runner.engine, spec.spark.engine_args),
                job_id=submission.job_id,
                wake_seconds=wake_seconds,
                wake_at=time.time() + wake_seconds,
                job=submission.name,
                known_news=memory.get("news", ""),
            ),
            method_name="resume",
            kwargs={"submission": submission.as_dict(), "memory": memory},
        )

    def _wake_seconds(self, _context: Context, spec: MigrationSpec) -> float:
        """Return after how many seconds without news the task wakes up."""
        return _RENEWING_SECONDS if _renews_keys(spec) else _WAKE_SECONDS

    def _job_trigger(self, spec: MigrationSpec, **arguments: Any) -> SparkJobTrigger:
        return SparkJobTrigger(spec=plain_spec(spec), **arguments)

    def _wake(
        self,
        context: Context,
        migration: Migration,
        runner: EngineRunner,
        submission: Submission,
        memory: dict[str, Any],
    ) -> bool:
        """Do once what has to be done while the job runs; return whether the driver says that it has ended.

        A cluster or a storage that is away must not end the wait: the job has its own patience.
        """
        try:
            with self._renewed(runner, migration, submission):
                progress = migration.follow_job(self.phase, submission, memory)
            if progress is not None:
                self.progress_taker(context, migration.spec, memory)(progress)
            return runner.has_ended(migration.context.record, submission)
        except (Transient, *CREDENTIALS_REFUSED) as error:
            self.log.warning("What runs beside the job has failed this time, the next part tries again: %s", error)
            return False
        except MigrationError:
            raise
        except Exception:
            # In a task that waits itself, a thread logs such an error, and the job goes on.
            self.log.exception("What runs beside the job has failed this time, the next part tries again")
            return False

    @contextmanager
    def _renewed(self, runner: EngineRunner, migration: Migration, submission: Submission) -> Iterator[None]:
        """Renew the job's connections until the block ends; a failure must not keep the task from following."""
        with ExitStack() as stack:
            try:
                stack.enter_context(runner.renewed(migration.context.record, submission))
            except (Transient, *CREDENTIALS_REFUSED) as error:
                self.log.warning("The job's connections could not be renewed, the next part tries again: %s", error)
            yield

    def progress_taker(
        self, context: Context, spec: MigrationSpec, memory: dict[str, Any]
    ) -> Callable[[Progress], None]:
        """Return what shows progress, notifies people and writes metrics, as the parts before left it."""
        from airflow_provider_kafka_migration.jobs.copy_jobs import metrics_settings
        from airflow_provider_kafka_migration.provider.metrics import MetricsWriter

        show = self.progress_sink(context)
        metrics = MetricsWriter(metrics_settings(spec))
        metrics.recall(memory.get("metrics") or {})
        notices = TroubleNotices(
            spec.migration_id, lambda text: call_all(self.on_trouble, context, text), copy=self.copy_name
        )
        notices.recall(memory.get("notices") or {})

        def take(progress: Progress) -> None:
            if not memory.get("told_old") and (text := old_run(context)):
                self.log.warning("%s", text)
                call_all(self.on_trouble, context, text)
                memory["told_old"] = True
            show(progress)
            notices(progress)
            if progress.snapshot is not None:
                metrics(progress.snapshot)
            memory["notices"], memory["metrics"] = notices.remembered(), metrics.remembered()

        return take

    def phase_options(self, _context: Context) -> dict[str, Any]:
        """Return the arguments of the phase; none by default."""
        return {}

    def _goes_on(self, _context: Context, _migration: Migration) -> bool:
        """Return whether the phase has to run again although it has ended; it never has by default."""
        return False

    def _starts(self, migration: Migration) -> None:
        """Hook for subclasses, called before the phase runs."""

    def _finished(self, migration: Migration, result: PhaseResult) -> None:
        """Hook for subclasses, called after the phase has succeeded."""

    def on_kill(self) -> None:
        """Cancel the job, unless another attempt takes it up; end a driver of this machine with all its processes.

        The connections that were written for the job are removed.
        """
        from airflow_provider_kafka_migration.provider.job_references import remove_directory

        with ExitStack() as stack:
            # In reverse order; a failure of one keeps none of the others from running.
            if self._private_directory is not None:
                stack.callback(remove_directory, self._private_directory)
            if self._runner is not None and not (self._runner.engine.detached and self._is_tried_again()):
                stack.callback(self._runner.cancel)
            for process in self._started:
                stack.callback(process.kill)

    def _is_tried_again(self) -> bool:
        """Return whether Airflow has failed this attempt by itself and starts another one, which takes the job up.

        A person who clears, marks or stops the task leaves it in another state, and wants the job to end.
        """
        states: list[str] = []
        # In another thread, because a signal may have interrupted a question of this one.
        asking = threading.Thread(target=self._ask_state, args=(states,), daemon=True)
        asking.start()
        asking.join(_ASK_SECONDS)
        return states == ["up_for_retry"]

    def _ask_state(self, found: list[str]) -> None:
        try:
            run = self._instance
            states = run.get_task_states(dag_id=run.dag_id, task_ids=[run.task_id], run_ids=[run.run_id])
            found.append(str(states[run.run_id][run.task_id]))
        except Exception as error:
            self.log.warning("Airflow does not say whether another attempt follows: %s", type(error).__name__)

    # -- the engine --------------------------------------------------------------------------------------------------

    def make_runner(self, context: Context, spec: MigrationSpec) -> EngineRunner:
        """Return the runner of this task's jobs, on the engine of the spec.

        :raises EngineUnknown: no engine has the name in the spec.
        :raises SpecInvalid: its arguments are wrong.
        """
        from airflow_provider_kafka_migration.engines.run import EngineRunner
        from airflow_provider_kafka_migration.provider.engine_jobs import JobMaker

        self._instance = context["ti"]
        engine = self._make_engine(context, spec)
        self._private_directory = private_directory(run_owner(context), self.task_id)
        make_job = JobMaker(
            spec,
            airflow_resolver(),
            engine,
            self._private_directory,
            conf=self.conf,
            environment=self.env_vars,
            mains=mains_folder(),
            ships_code=not self.py_files,
            public_key=public_sealing_key(),
        )

        def pump(read: Callable[[], Progress | None]) -> AbstractContextManager[object]:
            return ProgressWatcher(read, self.progress_taker(context, spec, {}), every_seconds=interval_seconds())

        self._runner = EngineRunner(engine, make_job, pump=pump, stop=partial(self._pause, context))
        return self._runner

    def _pause(self, _context: Context, seconds: float) -> bool:
        """Wait between two looks at a job that this task waits for; True: it has to be cancelled."""
        time.sleep(seconds)
        return False

    def _make_engine(self, context: Context, spec: MigrationSpec) -> SparkEngine:
        if spec.spark.engine != DEFAULT:
            return make_engine(spec.spark.engine, spec.spark.engine_args)
        given = spec.spark.engine_args
        facts = self.spark_facts(spec.spark.conn_id, given.get("deploy_mode"))
        # The connection says which cluster it is; a master in the spec is for the command line.
        arguments = {**given, **{key: value for key, value in facts.items() if value}}

        def start(job: SparkJob, more_conf: Mapping[str, str]) -> Running:
            return self._start_submit(context, spec, job, more_conf)

        return make_submit_engine(arguments, start)

    def _start_submit(
        self, context: Context, spec: MigrationSpec, job: SparkJob, more_conf: Mapping[str, str]
    ) -> HookProcess:
        """Start ``spark-submit`` through the hook of the Spark provider, which has this operator's arguments."""
        from airflow_provider_kafka_migration.provider.spark_submit import HookProcess, hook_for_job

        arguments = {
            **self.submit_arguments,
            "application": str(job.main),
            "application_args": list(job.arguments),
            "conf": {**job.conf, **more_conf},
            "env_vars": dict(job.environment) or None,
            "name": application_name(job.migration_id, job.name),
            "py_files": self.py_files if job.py_files is None else str(job.py_files),
        }
        hook = hook_for_job(spec.spark.conn_id, arguments, context, is_cluster_mode=bool(more_conf))
        process = HookProcess(hook, str(job.main), job.secret_environment, is_bound=not more_conf)
        self._started.append(process)
        return process

    def spark_facts(self, conn_id: str, deploy_mode: str | None = None) -> dict[str, Any]:
        """Return what a connection of Spark says about its cluster, as arguments of the engine ``submit``.

        :param deploy_mode: used if this task was given none.
        """
        from airflow_provider_kafka_migration.provider.spark_submit import facts_of

        return facts_of(conn_id, self.submit_arguments, deploy_mode)


def _renews_keys(spec: MigrationSpec) -> bool:
    """Return whether the keys of the storage expire, so that the job gets new ones from its task."""
    try:
        return spec.storage.conn_id is not None and airflow_resolver().renewal(spec.storage.conn_id) is not None
    except MigrationError:
        return True


def make_submit_engine(arguments: Mapping[str, Any], start: Callable[..., Running]) -> SubmitEngine:
    """Create the engine ``submit`` with arguments of a spec, and another way to start ``spark-submit``.

    :raises SpecInvalid: an argument is unknown or malformed.
    """
    engine = make_engine(DEFAULT, arguments)
    assert isinstance(engine, SubmitEngine)
    return engine.started_by(start)


def mains_folder() -> str:
    """Return the configured folder of the Spark mains; empty: inside the package."""
    return str(airflow_conf.get("kafka_migration", "spark_jobs_folder", fallback="") or "")
