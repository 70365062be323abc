"""The only module that uses Airflow and its providers beyond their public API.

Each entry explains why the public API is not enough. The tests of this module pin the used behavior for each supported
version, so that a new release fails there and not in the middle of a migration.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
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


class OpenSparkSubmitHook(SparkSubmitHook):
    """The Spark provider's hook, with public names for what its subclasses need."""

    @classmethod
    def adopt(cls, hook: SparkSubmitHook) -> Any:
        """Return the same hook as an instance of this class. (Its constructor takes thirty arguments.)"""
        bound = cls.__new__(cls)
        bound.__dict__.update(hook.__dict__)
        return bound

    def binary_command(self, binary: str) -> list[str]:
        """Return the command that starts ``spark-submit``."""
        return [binary]

    def _get_spark_binary_path(self) -> list[str]:
        return self.binary_command(super()._get_spark_binary_path()[0])

    @property
    def running_pid(self) -> int | None:
        """Process id of ``spark-submit`` while it runs."""
        process = self._submit_sp
        return process.pid if process is not None and process.poll() is None else None

    @property
    def last_lines(self) -> Iterable[str]:
        """The last lines of its output, oldest first."""
        return tuple(self._last_submit_log_lines)

    @property
    def master(self) -> str:
        """Spark's master."""
        return str(self._connection["master"])

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

    def new_submission(self, conn_id: str) -> None:
        """Make the next :meth:`execute` create a new hook from the operator's fields at that time."""
        self._conn_id = conn_id
        self._hook = None

    def master_of(self, conn_id: str) -> str:
        """Return the master that a submission through a connection would have. Nothing is submitted."""
        self.new_submission(conn_id)
        return str(OpenSparkSubmitHook.adopt(super()._get_hook()).master)

    def make_hook(self, hook: SparkSubmitHook) -> SparkSubmitHook:
        """Return the hook to use instead of the provider's."""
        return hook

    def _get_hook(self) -> SparkSubmitHook:
        return self.make_hook(super()._get_hook())
