"""The common base of the three Spark tasks: a phase whose data plane work runs through ``spark-submit``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowException

from airflow_provider_kafka_migration.errors import CopyFailed, CopyStalled
from airflow_provider_kafka_migration.provider.compat import OpenSparkSubmitOperator
from airflow_provider_kafka_migration.provider.connections import (
    airflow_resolver,
    private_directory,
    references_document,
    references_file,
    remove_directory,
    storage_renewal,
)
from airflow_provider_kafka_migration.provider.progress import (
    Callback,
    ProgressWatcher,
    TroubleNotices,
    as_callbacks,
    call_all,
    interval_seconds,
)
from airflow_provider_kafka_migration.provider.spark_submit import BoundSparkSubmitHook
from airflow_provider_kafka_migration.provider.task import (
    MigrationTask,
    SpecSource,
    migration_retry_policy,
    plain_spec,
    run_owner,
)
from airflow_provider_kafka_migration.spark.launch import (
    FORCED_CONF,
    application_name,
    job_arguments,
    main_file,
    python_environment,
)

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.record.context import PhaseResult, Progress
    from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

#: Without it, Spark's own lines drown out the job's in the task's log.
DEFAULT_CONF = {"spark.log.level": "WARN"}


class SparkMigrationOperator(MigrationTask, OpenSparkSubmitOperator):
    """Runs one phase whose data plane is a Spark job.

    As always, the phase itself runs in the task: it reads the journal, writes the job document, and verifies the
    journal and the clusters afterwards. In between it starts ``spark-submit`` with pointers as its only arguments.
    Spark gets the connections as a file of mode 0600, or as references that executors resolve themselves.

    :param spec: the migration; None takes it from the Params of the run.
    :param takeover: take the migration over from another owner.
    :param conf: additional Spark conf; overrides the spec's. No secrets: Spark's UI shows it.
    :param on_trouble: called with the task's context when partitions cannot be copied, while the task keeps running.
    :param kwargs: arguments of ``SparkSubmitOperator`` (``num_executors``, ``py_files``, ``deploy_mode``, ...).
    """

    #: Arguments that this class or the DAG sets itself.
    fixed_arguments: ClassVar[frozenset[str]] = MigrationTask.fixed_arguments | {
        *("application", "application_args", "conn_id", "name", "java_class"),
    }

    #: File name of the Spark main.
    main: ClassVar[str] = ""

    template_fields: Sequence[str] = ("spec", *OpenSparkSubmitOperator.template_fields)

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        conf: Mapping[str, str] | None = None,
        on_trouble: Callback | Sequence[Callback] | None = (),
        **kwargs: Any,
    ) -> None:
        forced = sorted(key for key, value in FORCED_CONF.items() if str((conf or {}).get(key, value)).lower() != value)
        if forced:
            raise ValueError(f"conf has settings that a copy cannot work with: {', '.join(forced)}")
        kwargs.setdefault("retry_policy", migration_retry_policy())
        super().__init__(conf=dict(sorted((conf or {}).items())), **kwargs)
        self.on_trouble = as_callbacks(on_trouble)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self._private_directory: Path | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the phase; XCom gets only pointers."""
        runner = SparkSubmitRunner(self, context)
        with self.open_migration(context, **{self.runner_argument: runner}) as migration:
            self._starts(migration)
            result = migration.run(self.phase)
            self.log.info("%s%s", "already done: " if result.already_done else "", result.summary)
            self._finished(migration, result)
            return self.pointers(migration, result)

    def _starts(self, migration: Migration) -> None:
        """Hook for subclasses, called before the phase runs."""

    def _finished(self, migration: Migration, result: PhaseResult) -> None:
        """Hook for subclasses, called after the phase has succeeded."""

    #: Name of the core's argument that receives the Spark runner.
    runner_argument: ClassVar[str] = "runner"

    def submit(self, context: Context, spec: MigrationSpec, job_location: str, job_key: str) -> None:
        """Run the Spark main on a job document; return when Spark has succeeded.

        :raises MigrationError: the error that the job reported.
        :raises AirflowException: Spark failed without an error from the job. The phase looks up the reason in the
            journal.
        """
        self._private_directory = private_directory(run_owner(context), self.task_id)
        resolver = airflow_resolver()
        document = references_document(spec, resolver)
        renew = storage_renewal(spec, resolver)
        with references_file(document, self._private_directory, renew=renew) as references:
            self._prepare(spec, job_location, job_key, references)
            try:
                # It creates the hook itself, from the conf to which it has added OpenLineage's settings.
                OpenSparkSubmitOperator.execute(self, context)
            except AirflowException as error:
                failure = self.hook.failure() if isinstance(self.hook, BoundSparkSubmitHook) else None
                # For failed partitions, the journal has more detail than the job's last line.
                if failure is None or isinstance(failure, CopyFailed | CopyStalled):
                    raise
                raise failure from error

    def _prepare(self, spec: MigrationSpec, job_location: str, job_key: str, references: Path) -> None:
        self.application = str(spark_main(self.main))
        self.application_args = job_arguments(job_location, job_key, references)
        self.conf = {**DEFAULT_CONF, **spec.spark.conf, **(self.conf or {}), **FORCED_CONF}
        self.env_vars = {**python_environment(), **(self.env_vars or {})}
        self.name = application_name(spec.migration_id, self.phase)
        self.new_submission(spec.spark.conn_id)

    def make_hook(self, hook: SparkSubmitHook) -> SparkSubmitHook:
        """Return the hook that binds the driver to this task, with our package for executors on other machines."""
        bound: BoundSparkSubmitHook = BoundSparkSubmitHook.adopt(hook)
        if self._private_directory is not None:
            bound.ship(self._private_directory)
        return bound

    def on_kill(self) -> None:
        """End the driver with all its processes, and remove its connections."""
        if self.hook is not None:
            super().on_kill()
        if self._private_directory is not None:
            remove_directory(self._private_directory)


class SparkSubmitRunner:
    """The core's Spark runner: runs a job document through ``spark-submit`` and shows the job's progress."""

    def __init__(self, operator: SparkMigrationOperator, context: Context) -> None:
        self._operator = operator
        self._context = context

    def submit(
        self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: Callable[[], Progress | None]
    ) -> None:
        """Submit the job and wait for it."""
        show = self._operator.progress_sink(self._context)
        notices = TroubleNotices(spec.migration_id, self._notify)

        def take(progress: Progress) -> None:
            show(progress)
            notices(progress)

        with ProgressWatcher(read_progress, take, every_seconds=interval_seconds()):
            self._operator.submit(self._context, spec, job_location, job_key)

    def spark_master(self, spec: MigrationSpec) -> str:
        """Return the master of the Spark connection."""
        return self._operator.master_of(spec.spark.conn_id)

    def _notify(self, text: str) -> None:
        call_all(self._operator.on_trouble, self._context, text)


def spark_main(name: str) -> Path:
    """Return the path of a Spark main: in the configured folder, or where the package has it.

    :raises Terminal: it is not there.
    """
    from airflow.sdk.configuration import conf

    return main_file(name, conf.get("kafka_migration", "spark_jobs_folder", fallback=""))
