"""The only module that uses Airflow and its providers beyond their public API.

Each entry explains why the public API is not enough. The tests of this module pin the used behavior for each supported
version, so that a new release fails there and not in the middle of a migration.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

#: Release series that the tests of this module cover, by distribution.
SEEN = {
    "apache-airflow-core": ("3.3",),
    "apache-airflow-providers-apache-kafka": ("2.1",),
    "apache-airflow-providers-apache-spark": ("6.3",),
    "apache-airflow-providers-standard": ("1.21",),
}


def put_question(
    ti_id: Any,
    *,
    options: Sequence[str],
    subject: str,
    body: str | None,
    params: dict[str, Any],
    users: Sequence[Mapping[str, str]],
) -> str | None:
    """Post the question of an approval, and return the text that Airflow shows; None if Airflow does not return it.

    After a clear, this is the text of the first attempt. The public ``upsert_hitl_detail`` makes the same call but does
    not return the answer.
    """
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    payload = CreateHITLDetailPayload.model_validate(
        {
            "ti_id": ti_id,
            "options": list(options),
            "subject": subject,
            "body": body,
            "defaults": None,
            "multiple": False,
            "params": params,
            "assigned_users": [dict(user) for user in users],
        }
    )
    answer = SUPERVISOR_COMMS.send(payload)
    return answer.body if isinstance(answer, HITLDetailRequestResult) else None


def find_connections_of_the_database() -> None:
    """Let this process read connections from the metadata database, as Airflow's own commands do."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


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
        return tuple(self._last_submit_log_lines)

    @property
    def master(self) -> str:
        """Spark's master."""
        return str(self._connection["master"])

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the connection as arguments of the engine ``submit``; none of them is a secret."""
        extra_key = self._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY
        return {
            "master": self.master,
            "deploy_mode": str(self._connection["deploy_mode"] or "client"),
            "namespace": str(self._connection["namespace"] or ""),
            "resource_manager": self._rm_address(extra_key) if self._is_yarn_cluster_mode else "",
            "kerberos": bool(self._connection["keytab"] and self._connection["principal"]),
        }

    def _rm_address(self, extra_key: str) -> str:
        from airflow.sdk.exceptions import AirflowException

        try:
            extra = self.get_connection(self._conn_id).extra_dejson
        except AirflowException:
            return ""
        return str(extra.get(extra_key) or "").strip()

    @property
    def py_files(self) -> str | None:
        """Files for the executors' Python path."""
        return self._py_files

    @py_files.setter
    def py_files(self, value: str) -> None:
        self._py_files = value


class OpenSparkSubmitOperator(SparkSubmitOperator):
    """The Spark provider's operator, with public names for what its subclasses need."""

    @property
    def hook(self) -> SparkSubmitHook | None:
        """The hook of the current submission, or of the last one."""
        return self._hook

    def plain_hook(self, conn_id: str, deploy_mode: str | None = None) -> SparkSubmitHook:
        """Return a hook of the provider, made from the operator's fields.

        :param deploy_mode: used if the operator was given none; None: the connection's.
        """
        self._conn_id = conn_id
        self._deploy_mode = self._deploy_mode or deploy_mode
        return super()._get_hook()

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
        self._hook = self.make_hook(self.plain_hook(conn_id))
        return self._hook

    def make_hook(self, hook: SparkSubmitHook) -> SparkSubmitHook:
        """Return the hook to use instead of the provider's."""
        return hook

    def _get_hook(self) -> SparkSubmitHook:
        return self.make_hook(super()._get_hook())
