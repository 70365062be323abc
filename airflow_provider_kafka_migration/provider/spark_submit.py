"""Runs ``spark-submit`` through the hook of Airflow's Spark provider, bound to its task."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.engines.bound_process import bound_command, find_binary, kill_tree
from airflow_provider_kafka_migration.provider.spark_provider import (
    HAS_TRACKING,
    OpenSparkSubmitHook,
    OpenSparkSubmitOperator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BoundSparkSubmitHook", "HookProcess", "facts_of", "find_binary", "hook_for_job", "kill_tree"]

_POLL_SECONDS = 0.05
#: How long a kill waits for a process that is just being started, and for the thread that reads its output.
_KILL_SECONDS = 30.0


class BoundSparkSubmitHook(OpenSparkSubmitHook):
    """The Spark provider's hook, with three differences.

    * The driver dies with its task, even if the task is killed without warning.
    * A kill reaches every process below ``spark-submit``: the JVM, the driver's Python, and the Python workers, which
      PySpark puts into a separate process group.
    * Secret variables go into the environment of the process alone, on YARN and Kubernetes, too.
    """

    def binary_command(self, binary: str) -> list[str]:
        """Return the command for ``spark-submit`` through the launcher that binds it to this process."""
        return bound_command(binary)

    def on_kill(self) -> None:
        """End the driver with all its processes, then anything that runs on a cluster."""
        self.kill_process()
        super().on_kill()

    def kill_process(self) -> None:
        """End ``spark-submit`` with all its processes, and leave alone what it has submitted to a cluster."""
        pid = self.running_pid
        if pid is not None:
            kill_tree(pid)


def facts_of(conn_id: str, arguments: Mapping[str, Any], deploy_mode: str | None) -> dict[str, Any]:
    """Return what a connection says about its cluster, as arguments of the engine ``submit``; none is a secret.

    :param arguments: those of a task for ``SparkSubmitOperator``.
    :param deploy_mode: used if they name none.
    """
    plain = OpenSparkSubmitOperator.made_from(arguments).plain_hook(conn_id, deploy_mode)
    facts: dict[str, Any] = BoundSparkSubmitHook.adopt(plain).facts
    return facts


def hook_for_job(
    conn_id: str, arguments: Mapping[str, Any], context: Any, *, is_cluster_mode: bool
) -> BoundSparkSubmitHook:
    """Return the hook that submits one job, bound to this process.

    :param arguments: those of ``SparkSubmitOperator``.
    :param is_cluster_mode: ``spark-submit`` must not wait for the job.
    """
    operator = OpenSparkSubmitOperator.made_from(arguments)
    plain = operator.hook_for_submission(conn_id, context, is_cluster_mode=is_cluster_mode)
    bound: BoundSparkSubmitHook = BoundSparkSubmitHook.adopt(plain)
    if is_cluster_mode and not HAS_TRACKING:
        bound.wait_for_nothing()
    return bound


class HookProcess:
    """``spark-submit``, started by a hook in a thread, which also writes its output to the task's log.

    The kernel's parent-death signal follows the thread that starts the process, so the thread stays with it.

    :param is_bound: the driver is below the process and ends with it. Else a kill leaves alone what it submitted.
    """

    def __init__(
        self, hook: BoundSparkSubmitHook, application: str, secrets: Mapping[str, str], *, is_bound: bool
    ) -> None:
        self._submitting = hook
        self._is_bound = is_bound
        self._error: BaseException | None = None
        hook.secret_environment = dict(secrets)
        self._thread = threading.Thread(target=self._run, args=(application,), name="spark-submit", daemon=True)
        self._thread.start()

    def _run(self, application: str) -> None:
        try:
            self._submitting.submit(application)
        except BaseException as error:
            self._error = error

    def poll(self) -> int | None:
        """Return 0 after a success, the exit status of ``spark-submit`` or 1 after a failure, None while it runs."""
        if self._thread.is_alive():
            return None
        return 0 if self._error is None else self._submitting.exit_status or 1

    def lines(self) -> tuple[str, ...]:
        """Return the last lines of its output; without any, the hook's own error."""
        lines = tuple(self._submitting.last_lines)
        return lines or (() if self._error is None else (str(self._error),))

    def kill(self) -> None:
        """End it with everything below it. Does nothing if it has ended."""
        deadline = time.monotonic() + _KILL_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._submitting.running_pid is not None:
                (self._submitting.on_kill if self._is_bound else self._submitting.kill_process)()
            self._thread.join(_POLL_SECONDS)
