"""The Spark provider beyond its public API, for the engine ``submit``.

Each entry explains why the public API is not enough. Only what submits a job imports this module: the provider brings
the clients of Kubernetes and OpenLineage with it, which no DAG file and no other task needs.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_kafka_migration.errors import SpecInvalid, Where

#: Key of a Spark connection's extra: the web address of YARN's resource manager.
_RESOURCE_MANAGER = "yarn_resourcemanager_webapp_address"
#: How many lines of the output of ``spark-submit`` are kept: a whole trace.
_KEPT_LINES = 500


def spark_master(conn_id: str) -> str:
    """Return Spark's master as the provider's hook reads it from a connection; without one it is ``yarn``."""
    return str(SparkSubmitHook(conn_id=conn_id)._connection["master"])


class OpenSparkSubmitHook(SparkSubmitHook):
    """The Spark provider's hook, with public names for what its subclasses need."""

    @classmethod
    def adopt(cls, hook: SparkSubmitHook) -> Any:
        """Return the same hook as an instance of this class. (Its constructor takes thirty arguments.)"""
        bound = cls.__new__(cls)
        bound.__dict__.update(hook.__dict__)
        return bound

    #: Environment variables of ``spark-submit`` alone; the provider would put its own into Spark's conf.
    secret_environment: Mapping[str, str] = {}
    _kept_lines: deque[str] | None = None

    def wait_for_nothing(self) -> None:
        """End with ``spark-submit``: what it submitted to a cluster is watched by the engine.

        Newer providers have an option for it. Older ones look for the driver's exit code in the output, and follow the
        driver of a standalone cluster.
        """
        self._spark_exit_code = 0
        self._should_track_driver_status = False

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        self._kept_lines = deque(maxlen=_KEPT_LINES)
        super()._process_spark_submit_log(self._keeping(itr, self._kept_lines))

    @staticmethod
    def _keeping(lines: Iterator[Any], kept: deque[str]) -> Iterator[Any]:
        for line in lines:
            kept.append(str(line).strip())
            yield line

    def binary_command(self, binary: str) -> list[str]:
        """Return the command that starts ``spark-submit``."""
        return [binary]

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        if self.secret_environment:
            self._env = {**(self._env or {}), **self.secret_environment}
        return command

    def _get_spark_binary_path(self) -> list[str]:
        return self.binary_command(super()._get_spark_binary_path()[0])

    @property
    def running_pid(self) -> int | None:
        """Process id of ``spark-submit`` while it runs."""
        process = self._submit_sp
        return process.pid if process is not None and process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """Exit status of ``spark-submit``; None while it runs."""
        process = self._submit_sp
        return None if process is None else process.poll()

    @property
    def last_lines(self) -> Iterable[str]:
        """The last lines of its output, oldest first."""
        return tuple(self._kept_lines or ())

    @property
    def master(self) -> str:
        """Spark's master."""
        return str(self._connection["master"])

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the connection as arguments of the engine ``submit``; none of them is a secret."""
        master, deploy_mode = self.master, str(self._connection["deploy_mode"] or "client")
        is_yarn_cluster = "yarn" in master and deploy_mode == "cluster"
        return {
            "master": master,
            "deploy_mode": deploy_mode,
            "namespace": str(self._connection["namespace"] or ""),
            "resource_manager": self._resource_manager() if is_yarn_cluster else "",
            "kerberos": bool(self._connection["keytab"] and self._connection["principal"]),
        }

    def _resource_manager(self) -> str:
        from airflow.providers.common.compat.sdk import AirflowException

        try:
            extra = self.get_connection(self._conn_id).extra_dejson
        except AirflowException:
            return ""
        return str(extra.get(_RESOURCE_MANAGER) or "").strip()

    @property
    def py_files(self) -> str | None:
        """Files for the executors' Python path."""
        return self._py_files

    @py_files.setter
    def py_files(self, value: str) -> None:
        self._py_files = value


class OpenSparkSubmitOperator(SparkSubmitOperator):
    """The Spark provider's operator, which only makes hooks here: it belongs to no DAG and is never executed."""

    @classmethod
    def made_from(cls, arguments: Mapping[str, Any]) -> OpenSparkSubmitOperator:
        """Return an operator with the arguments of a task.

        :raises SpecInvalid: the installed Spark provider has no such argument.
        """
        known = inspect.signature(SparkSubmitOperator.__init__).parameters
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise SpecInvalid(
                f"the installed Spark provider has no argument {', '.join(unknown)}",
                where=Where(path="task_args"),
                next_step="leave it out, or install a newer apache-airflow-providers-apache-spark",
            )
        return cls(task_id="spark-submit", **arguments)

    def plain_hook(self, conn_id: str, deploy_mode: str | None = None) -> SparkSubmitHook:
        """Return a hook of the provider, made from the operator's fields.

        :param deploy_mode: used if the operator was given none; None: the connection's.
        """
        self._conn_id = conn_id
        self._deploy_mode = self._deploy_mode or deploy_mode
        return self._get_hook()

    def hook_for_submission(self, conn_id: str, context: Any, *, is_cluster_mode: bool) -> SparkSubmitHook:
        """Return a new hook of the provider, made from the operator's fields as :meth:`execute` does it: with the
        settings of OpenLineage in the conf.

        :param is_cluster_mode: ``spark-submit`` must not wait for the job.
        """

        def inject(name: str) -> Any:
            return getattr(spark_submit, name)

        if self._openlineage_inject_parent_job_info:
            self.conf = inject("inject_parent_job_information_into_spark_properties")(self.conf or {}, context)
        if self._openlineage_inject_transport_info:
            self.conf = inject("inject_transport_information_into_spark_properties")(self.conf or {}, context)
        # Only with this does the hook not look for the driver's exit code in the output of spark-submit.
        self._track_driver_via_k8s_api = is_cluster_mode
        return self.plain_hook(conn_id)


#: Whether hooks have the option not to wait for a driver on Kubernetes.
HAS_TRACKING = "track_driver_via_k8s_api" in inspect.signature(SparkSubmitHook.__init__).parameters
