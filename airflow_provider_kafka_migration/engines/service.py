"""What engines on managed services share: checked arguments, bounded calls, short texts.

A service is reached through the hook of its Airflow provider. Hooks raise what their client library raises; each engine
translates that into an error of this package, and :func:`call` decides whether to ask again. No wait is longer than
:data:`WAIT_SECONDS`, whatever a service asks for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.engines.base import SparkJob
from airflow_provider_kafka_migration.errors import (
    EngineAnswerInvalid,
    EngineForbidden,
    EngineJobUnknown,
    EngineProviderMissing,
    EngineRefused,
    EngineThrottled,
    EngineUnreachable,
    MigrationError,
    SpecInvalid,
    Where,
)

Result = TypeVar("Result")
Arguments = TypeVar("Arguments", bound="EngineArguments")

#: Seconds between two attempts of one request. A service that is still busy afterwards is asked again by the next
#: attempt of the task, or by the next look at the job.
WAIT_SECONDS = (1.0, 3.0, 6.0)
#: Seconds that one request may take.
REQUEST_SECONDS = 30
#: How much of a driver's log an engine hands on.
TAIL_LINES, TAIL_LINE_LENGTH, TAIL_BYTES = 40, 400, 64 * 1024

_MANAGED_BY = "airflow-provider-kafka-migration"
#: The service decides these, so a value for another place must not reach it.
_DECIDED_BY_SERVICE = frozenset({"spark.master", "spark.submit.deployMode", "spark.submit.pyFiles"})
#: Paths of the machine that submits.
_OF_THIS_MACHINE = frozenset({"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"})
#: A driver that was killed leaves no word of its own.
WITHOUT_AN_ERROR = "with no error in its output"
#: Lines that are never the reason of an end: log4j's of these levels, and Python's warnings.
_NO_ERROR = re.compile(r"^\S+ \S+ (?:TRACE|DEBUG|INFO|WARN)\b|\w+Warning: |^\s*warnings\.warn\(|^WARNING: ")
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class EngineArguments(BaseModel):
    """Base of all ``spark.engine_args``: unknown names are mistakes, and so are numbers where a text belongs."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


def check_arguments(
    kind: type[Arguments], engine: str, arguments: Mapping[str, Any], *, references: frozenset[str] = frozenset()
) -> Arguments:
    """Check the arguments of an engine.

    :param references: names of arguments that say where a secret is, so that they may have a secret's name inside.
    :raises SpecInvalid: with every mistake in ``details["mistakes"]``; no text repeats a value.
    """
    path = "spark.engine_args"
    plain = {name: value for name, value in arguments.items() if name not in references}
    mistakes = [{"path": where, "reason": reason} for where, reason in plain_secrets.in_arguments(path, plain)]
    checked: Arguments | None = None
    try:
        checked = kind.model_validate(dict(arguments))
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            where = ".".join([path, *(str(part) for part in item["loc"])])
            mistakes.append({"path": where, "reason": item["msg"].removeprefix("Value error, ")})
    if checked is not None and not mistakes:
        return checked
    listing = "; ".join(f"{mistake['path']}: {mistake['reason']}" for mistake in mistakes)
    raise SpecInvalid(
        f"the engine {engine} cannot use its arguments: {listing}",
        next_step="correct spark.engine_args of the spec; docs/spark-engines.md has a complete example",
        details={"mistakes": mistakes},
    )


def load(module: str, name: str, provider: str, extra: str) -> Any:
    """Import a name of an Airflow provider.

    :param provider: distribution name of the provider.
    :param extra: the extra of this package that installs it.
    :raises EngineProviderMissing: it is not installed, or a part of it is not.
    """
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise EngineProviderMissing(
            f"{module}.{name} cannot be imported: {one_line(str(error))}",
            next_step=f"install {provider} where Airflow's workers and triggerers run: "
            f"pip install 'airflow-provider-kafka-migration[{extra}]'; then clear the task",
        ) from None


def call(request: Callable[[], Result], explain: Callable[[Exception], MigrationError]) -> Result:
    """Send a request, again a few times while the service is busy or away.

    :param request: contains nothing but the call of the hook, since any exception of it is an answer of the service.
    :param explain: translates an exception of the hook.
    :raises MigrationError: what ``explain`` returned. It has no cause: a library's exception may quote a request.
    """
    for wait in (*WAIT_SECONDS, None):
        try:
            return request()
        except MigrationError:
            raise
        except Exception as error:
            failure = explain(error)
        if wait is None or not isinstance(failure, EngineUnreachable):
            break
        time.sleep(wait)
    raise failure from None


def http_failure(status: int, service: str, doing: str, text: str, *, rights: str) -> MigrationError:
    """Return the error for an HTTP status of a service.

    :param doing: what was asked, for instance ``submit the job``.
    :param text: the service's own words; must not contain what was sent if that was secret.
    :param rights: the rights that the login needs.
    """
    words = f": {one_line(text)}" if text else ""
    if status in (401, 403):
        return EngineForbidden(
            f"{service} does not allow to {doing} (HTTP {status}){words}",
            next_step=f"check the login of the connection, and that it has {rights}; then clear the task",
        )
    if status in (408, 425, 429) or status >= 500:
        return (EngineThrottled if status == 429 else EngineUnreachable)(
            f"{service} could not {doing} now (HTTP {status}){words}",
            next_step="clear the task once the service answers again; a job that already runs is found, not repeated",
        )
    return EngineRefused(
        f"{service} refuses to {doing} (HTTP {status}){words}",
        next_step="correct what the message names, in spark.engine_args or in the service; then clear the task",
    )


def unreachable(service: str, doing: str, error: Exception) -> EngineUnreachable:
    """Return the error for a service that did not answer."""
    return EngineUnreachable(
        f"{service} did not answer the request to {doing} ({type(error).__name__}): {one_line(str(error))}",
        next_step="check the address in the connection and the network; then clear the task: a job that already runs "
        "is found, not started twice",
    )


def invalid_answer(service: str, doing: str, why: str) -> EngineAnswerInvalid:
    """Return the error for an answer that nobody documented, for instance that of a proxy."""
    return EngineAnswerInvalid(
        f"{service} answered the request to {doing} with something unexpected: {one_line(why)}",
        next_step="check that no proxy answers in place of the service; then clear the task: a job that already runs "
        "is found, not started twice",
    )


def not_an_id(job_id: str, engine: str, form: str) -> EngineJobUnknown:
    """Return the error for an id that is not one of an engine.

    :param form: what an id of the engine looks like.
    """
    return EngineJobUnknown(
        f"{one_line(job_id, 80)!r} is not the id of a job of the engine {engine} ({form})",
        next_step="the job was submitted with another engine: set spark.engine back to it until the job ends",
    )


def one_line(text: str, length: int = 300) -> str:
    """Shorten a foreign text to one line without control characters."""
    clean = " ".join(_CONTROL.sub(" ", text).split())
    return clean if len(clean) <= length else clean[: length - 3] + "..."


def last_words(lines: Sequence[str]) -> str:
    """Return the last line of a driver's output that can be the reason of its end; empty if it has only said others."""
    told = [line for line in lines if line.strip() and not _NO_ERROR.search(line)]
    return told[-1][:500] if told else ""


def log_tail(text: str) -> tuple[str, ...]:
    """Return the last lines of a log, each of a bounded length and without control characters."""
    lines = [_CONTROL.sub("", line.rstrip())[:TAIL_LINE_LENGTH] for line in text[-TAIL_BYTES:].splitlines()]
    return tuple(line for line in lines if line)[-TAIL_LINES:]


def service_conf(job: SparkJob) -> dict[str, str]:
    """Return a job's Spark conf without what the service decides, sorted."""
    return {key: job.conf[key] for key in sorted(job.conf) if key not in _DECIDED_BY_SERVICE}


def service_environment(job: SparkJob) -> dict[str, str]:
    """Return a job's environment without paths of this machine, sorted."""
    return {key: job.environment[key] for key in sorted(job.environment) if key not in _OF_THIS_MACHINE}


def labels(job: SparkJob, *, prefix: str, managed_by: str = "managed-by") -> dict[str, str]:
    """Return labels that say what a job is; values have lower case letters, digits and ``-``, at most 63 characters.

    :param managed_by: key of the label that names this package.
    """
    return {
        managed_by: _MANAGED_BY,
        f"{prefix}migration": label_value(job.migration_id),
        f"{prefix}job": label_value(job.name),
        f"{prefix}token": job.token,
    }


def label_value(text: str) -> str:
    """Return a text as a value of a label, on every service. Different texts may become equal."""
    value = re.sub(r"[^a-z0-9-]", "-", text.lower())
    if not value[:1].isalpha():
        value = f"m-{value}"
    return value[:63].rstrip("-")


def place(job: SparkJob) -> Where:
    """Return where an error about a job happened."""
    return Where(migration_id=job.migration_id, phase=job.name)
