"""What differs between the supported releases of Airflow, and what is used beyond its public API.

Everything else in this package imports these names from here. Each part explains what an older Airflow does instead, or
why the public API is not enough; its tests pin the used behavior, so that a new release fails there and not in the
middle of a migration. :mod:`~.provider.spark_provider` does the same for the Spark provider.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowNotFoundException, conf
from airflow.sdk import BaseOperator, Variable

from airflow_provider_kafka_migration.errors import Terminal

if TYPE_CHECKING:
    from airflow.sdk import ExceptionRetryPolicy
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert

__all__ = ["AirflowNotFoundException", "conf"]

log = logging.getLogger(__name__)

#: Release series with which the tests of this package ran, by distribution.
TRIED = {
    "apache-airflow-core": ("3.1", "3.2", "3.3"),
    "apache-airflow-providers-apache-spark": ("5.5", "6.0", "6.3"),
    "apache-airflow-providers-standard": ("1.12", "1.13", "1.19", "1.21"),
}


# -- versions ---------------------------------------------------------------------------------------------------------


def untried() -> list[str]:
    """Return a sentence for each installed distribution whose series is newer than all that was tried."""
    found = []
    for name, series in TRIED.items():
        installed = metadata.version(name)
        if _series(installed) > max(map(_series, series)):
            found.append(f"{name} {installed} is newer than what this package was tried with ({', '.join(series)})")
    return found


def _series(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@functools.cache
def warn_of_untried() -> None:
    """Log once in this process what was never tried.

    It is no error: a mirror runs for years, and an upgrade of Airflow must not keep a task from freeing producers. What
    is really missing is an error where it is used.
    """
    for sentence in untried():
        log.warning("%s: if a task behaves unexpectedly, install a tried series", sentence)


# -- retries ----------------------------------------------------------------------------------------------------------
#
# Airflow 3.3 has retry policies. Before, only an exception of Airflow's own keeps a task from being tried again.

try:
    from airflow.sdk import ExceptionRetryPolicy as _Policy  # noqa: F401

    HAS_RETRY_POLICIES = True
except ImportError:
    HAS_RETRY_POLICIES = False


#: ``retry_exponential_backoff`` that doubles the pause each time: a factor since Airflow 3.2, a switch before.
DOUBLING: Any = True if BaseOperator.retry_exponential_backoff is False else 2


def migration_retry_policy() -> ExceptionRetryPolicy:
    """Return a policy: terminal errors fail immediately despite ``retries``; others follow the task's settings."""
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=f"{Terminal.__module__}.{Terminal.__qualname__}",
                action=RetryAction.FAIL,
                reason="a person has to change something first; see the error",
            )
        ]
    )


def set_retry_policy(arguments: dict[str, Any]) -> None:
    """Add the policy to an operator's arguments; without policies :class:`TerminalFails` does the same."""
    if HAS_RETRY_POLICIES:
        arguments.setdefault("retry_policy", migration_retry_policy())


class TerminalFails:
    """Base of all tasks: terminal errors fail immediately, also on an Airflow without retry policies."""

    if not HAS_RETRY_POLICIES:

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            own = cls.__dict__.get("execute")
            if own is not None:
                cls.execute = failing_at_once(own)  # type: ignore[attr-defined]

        def resume_execution(self, *given: Any, **named: Any) -> Any:
            """Continue after a deferral."""
            with _at_once():
                return super().resume_execution(*given, **named)  # type: ignore[misc]


def failing_at_once(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose terminal errors Airflow does not try again."""

    @functools.wraps(execute)
    def run(*given: Any, **named: Any) -> Any:
        with _at_once():
            return execute(*given, **named)

    return run


_is_inside: ContextVar[bool] = ContextVar("kafka_migration_task_runs", default=False)


@contextmanager
def _at_once() -> Iterator[None]:
    """Let a terminal error leave the outermost function as what it is, and as the exception that Airflow looks for."""
    if _is_inside.get():
        yield
        return
    token = _is_inside.set(True)
    try:
        yield
    except Terminal as error:
        error.__class__ = _FINAL.get(type(error)) or _final(type(error))
        raise
    finally:
        _is_inside.reset(token)


#: By class of ours.
_FINAL: dict[type[Terminal], type[Terminal]] = {}


def _final(kind: type[Terminal]) -> type[Terminal]:
    if issubclass(kind, AirflowFailException):
        return kind
    made: Any = type(kind.__name__, (kind, AirflowFailException), {"__module__": kind.__module__})
    return _FINAL.setdefault(kind, made)


# -- approvals --------------------------------------------------------------------------------------------------------


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


def await_answer(task: Any, ti_id: Any, *, method_name: str, kwargs: dict[str, Any]) -> NoReturn:
    """Give the slot away until a person has answered, and continue with a method of the task.

    Airflow 3.3 parks the task. Before, the trigger of the standard provider looks for the answer, as it does for the
    provider's own operators, so a triggerer has to run.

    :param task: an ``HITLOperator``, with ``options`` and ``response_timeout``.
    """
    timeout: timedelta | None = task.response_timeout
    try:
        from airflow.sdk.exceptions import TaskAwaitingInput
    except ImportError:
        from airflow.providers.standard.triggers.hitl import HITLTrigger

        trigger = HITLTrigger(
            ti_id=ti_id,
            options=task.options,
            defaults=None,
            params=task.serialized_params,
            multiple=False,
            timeout_datetime=None if timeout is None else datetime.now(UTC) + timeout,
        )
        task.defer(trigger=trigger, method_name=method_name, kwargs=kwargs)
        raise AssertionError("defer never returns") from None
    raise TaskAwaitingInput(method_name=method_name, kwargs=kwargs, timeout=timeout)


# -- deadline alerts --------------------------------------------------------------------------------------------------


def async_callback(function: Callable[..., Any], kwargs: dict[str, Any]) -> AsyncCallback:
    """Return a callback of a deadline that runs in the triggerer. Its class has moved in Airflow 3.2."""
    try:
        from airflow.sdk.definitions.callback import AsyncCallback
    except ImportError:
        from airflow.sdk.definitions.deadline import AsyncCallback  # type: ignore[attr-defined]
    return AsyncCallback(function, kwargs=kwargs)


def deadline_alert(name: str, **arguments: Any) -> DeadlineAlert:
    """Return a deadline alert; it has a name since Airflow 3.3."""
    from airflow.sdk.definitions.deadline import DeadlineAlert

    if "name" in inspect.signature(DeadlineAlert.__init__).parameters:
        arguments["name"] = name
    return DeadlineAlert(**arguments)


# -- runs of other DAGs -----------------------------------------------------------------------------------------------


def refuses_paused_dags() -> bool:
    """Return whether ``TriggerDagRunOperator`` can fail for a paused DAG: since Airflow 3.2 and provider 1.14.

    Elsewhere the argument itself is an error, and the run of a paused DAG waits until somebody unpauses it.
    """
    from airflow.providers.standard.operators import trigger_dagrun

    known = getattr(trigger_dagrun, "AIRFLOW_V_3_2_PLUS", None)
    return _series(metadata.version("apache-airflow-providers-standard")) >= (1, 19) if known is None else bool(known)


# -- Variables, metrics and commands -----------------------------------------------------------------------------------


def variables(prefix: str) -> list[str] | None:
    """Return the names of Variables; None where Airflow cannot list them, which it can since 3.3."""
    keys = getattr(Variable, "keys", None)
    return None if keys is None else list(keys(prefix=prefix))


def write_airflow_gauge(name: str, value: float, tags: Mapping[str, str]) -> None:
    """Write a metric to Airflow's backend. The function belongs to the SDK since Airflow 3.3."""
    try:
        from airflow.sdk.observability.stats import gauge
    except ImportError:
        from airflow.providers.common.compat.sdk import Stats

        gauge = Stats.gauge
    gauge(name, value, tags=dict(tags))


def find_connections_of_the_database() -> None:
    """Let this process read connections from the metadata database, as Airflow's own commands do."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
