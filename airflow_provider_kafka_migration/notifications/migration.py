"""Notifies people about the events of a migration through any Airflow notifier that the spec names."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier
from airflow.sdk.log import mask_secret

from airflow_provider_kafka_migration.errors import ConnectionInvalid, MigrationError, SpecInvalid, Where
from airflow_provider_kafka_migration.plain_secrets import is_reference, names_a_secret
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.progress import TROUBLE
from airflow_provider_kafka_migration.provider.run_chain import RUN_IS_OLD
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, plain_spec, run_spec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

#: The first part of ``migration_message``, by event.
SUBJECTS = {
    "drain_ready": "Kafka {kind} {migration_id}: ready for the cutover",
    "approval_wanted": "Kafka {kind} {migration_id}: {task_id} waits for an answer",
    "trouble": "Kafka {kind} {migration_id}: {task_id} cannot copy some partitions",
    "freeze": "Kafka {kind} {migration_id}: producers",
    "failed": "Kafka {kind} {migration_id}: {task_id} failed",
    "finalized": "Kafka {kind} {migration_id}: finalized, the evidence is signed",
}
SILENT_SUBJECT = "Kafka {kind} {migration_id}: nothing has been heard from the tail"
OLD_SUBJECT = "Kafka {kind} {migration_id}: its DAG run may be deleted while it runs"


#: The attempts of an endless task that people are told about, and those that had lasted for so long: they had worked,
#: so the failure is a new one, whatever their number is after weeks.
_TOLD = (1, 5, 20)
_TOLD_EACH = 100
_TOLD_AFTER = timedelta(minutes=30)

#: Texts that were passed to a notifier unchanged.
_warned: set[str] = set()


class MigrationNotifier(BaseNotifier):
    """Runs the notifier of the spec (``notifications.notifier``), if the spec selects this event.

    The arguments in ``notifications.kwargs`` are templates; ``{{ migration_id }}``, ``{{ migration_event }}`` and
    ``{{ migration_message }}`` are available in addition to Airflow's usual variables. If the notifier fails, the error
    is only logged: a mail server that is down must not stop a migration.

    :param event: drain_ready, approval_wanted, trouble, freeze, failed or finalized.
    :param spec: the migration; None takes it from the Params of the run.
    :param thins_out: of a task that is retried without an end, tell the attempts 1, 5, 20, each hundredth, and each
        that has lasted for half an hour.
    """

    template_fields = ()

    def __init__(self, *, event: str, spec: SpecSource = None, thins_out: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.event = event
        self.thins_out = thins_out
        self.spec = plain_spec(spec)

    def __eq__(self, other: object) -> bool:
        """Compare by content, so that two parses of a DAG yield equal DAGs."""
        return isinstance(other, MigrationNotifier) and self._content() == other._content()

    def _content(self) -> tuple[Any, ...]:
        return self.event, self.spec, self.thins_out

    def __hash__(self) -> int:
        return hash(self.event)

    def notify(self, context: Context) -> None:
        """Run the spec's notifier for this event."""
        if self.thins_out and not (_is_told(_attempt(context)) or _lasted(context) >= _TOLD_AFTER):
            return
        try:
            spec = self._spec_of(context)
            if spec.notifications.notifier and self.event in spec.notifications.events:
                load_notifier(spec)(_with_message(context, spec, self.event))
        except Exception:
            log.exception("The notification of %s failed; the task continues", self.event)

    def _spec_of(self, context: Context) -> MigrationSpec:
        task = context.get("task")
        if self.spec is None and isinstance(task, MigrationTask):
            return task.told_spec(context)
        return run_spec(self.spec, context, recorded=True, kind=None)


class RunNotifier(MigrationNotifier):
    """Runs the notifier of the spec, as for ``failed``, for a run that ends although none of its tasks has failed.

    That is a run that its ``dagrun_timeout`` has ended, or whose tasks nothing can start any more. No task tells of it.
    A run with a failed task is told by that task.
    """

    #: Why a run has failed, in Airflow's words.
    _TOLD_BY_ITS_TASK = "task_failure"

    def __init__(self, *, spec: SpecSource = None, **kwargs: Any) -> None:
        super().__init__(event="failed", spec=spec, **kwargs)

    def notify(self, context: Context) -> None:
        """Run the spec's notifier, unless a task has failed."""
        reason = str(context.get("reason") or "")
        if reason == self._TOLD_BY_ITS_TASK:
            return
        try:
            spec = self._spec_of(context)
            if spec.notifications.notifier and self.event in spec.notifications.events:
                run_id, why = str(context.get("run_id") or ""), reason or "no reason was given"
                text = (
                    f"Kafka {spec.kind} {spec.migration_id}: the run {run_id} has ended ({why}) "
                    "and none of its tasks has failed. If it was in a cutover, producers may stand still: run "
                    "kafka-migration status"
                )
                dag_id = str(getattr(context.get("dag"), "dag_id", ""))
                given = context_without_task(spec, self.event, text, task_id="(run)", dag_id=dag_id, run_id=run_id)
                load_notifier(spec)({**context, **given})
        except Exception:
            log.exception("The notification of the run's end failed")


def _attempt(context: Context) -> int:
    """Return which attempt of the task this is since it was started or cleared; the first is 1."""
    instance: Any = context.get("ti")
    retries = getattr(context.get("task"), "retries", 0)
    # Clearing a task adds its retries to the tries that it has had.
    return int(getattr(instance, "try_number", 1)) - max(int(getattr(instance, "max_tries", retries)) - retries, 0)


def _lasted(context: Context) -> timedelta:
    """Return how long the attempt has lasted; no time at all where Airflow does not say it."""
    instance: Any = context.get("ti")
    began = getattr(instance, "start_date", None)
    ended = getattr(instance, "end_date", None) or datetime.now(UTC)
    return ended - began if began is not None else timedelta(0)


def _is_told(attempt: int) -> bool:
    return attempt in _TOLD or attempt % _TOLD_EACH == 0


def load_notifier(spec: MigrationSpec, resolver: Resolver | None = None) -> BaseNotifier:
    """Return the notifier of the spec, with the references in its arguments resolved.

    A text that only looks like a reference, such as the tag ``env:prod``, stays unchanged if it cannot be resolved.

    :raises ConnectionInvalid: a reference under a key that names a secret cannot be resolved.
    :raises SpecInvalid: the path does not name a notifier, or its arguments do not fit.
    """
    path = spec.notifications.notifier
    assert path is not None
    where = Where(migration_id=spec.migration_id, path="notifications.notifier")
    next_step = "give the dotted path of a BaseNotifier class and its arguments in notifications.kwargs"
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecInvalid(f"the notifier cannot be imported: {error}", where=where, next_step=next_step) from None
    if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
        raise SpecInvalid(f"{path} is not a notifier", where=where, next_step=next_step)
    arguments = _resolved(spec.notifications.kwargs, resolver or airflow_resolver())
    try:
        return kind(**arguments)
    except TypeError as error:
        raise SpecInvalid(f"the notifier refuses its arguments: {error}", where=where, next_step=next_step) from None


def _resolved(value: Any, resolver: Resolver, *, named: bool = False) -> Any:
    """Return the arguments with references replaced by secrets, which Airflow masks in its logs.

    :param named: the name of a key above marks the value as a secret.
    """
    if isinstance(value, Mapping):
        return {key: _resolved(item, resolver, named=named or names_a_secret(str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, resolver, named=named) for item in value]
    if not isinstance(value, str) or not is_reference(value):
        return value
    try:
        secret = resolver.text(value).strip()
    except ConnectionInvalid as error:
        if named:
            raise
        _warn_once(value, error.what)
        return value
    mask_secret(secret)
    return secret


def _warn_once(text: str, why: str) -> None:
    """Warn once per process, because a notifier may run often."""
    if text not in _warned:
        _warned.add(text)
        log.warning("The notifier gets %r unchanged: it cannot be resolved as a reference (%s)", text, why)


def _with_message(context: Context, spec: MigrationSpec, event: str) -> Context:
    extended: dict[str, Any] = dict(context)
    task_instance = extended.get("ti") or extended.get("task_instance")
    extended["migration_id"] = spec.migration_id
    extended["migration_event"] = event
    extended["migration_message"] = message(
        spec.migration_id, event, extended, getattr(task_instance, "task_id", ""), spec.kind
    )
    return extended  # type: ignore[return-value]


def context_without_task(
    spec: MigrationSpec, event: str, text: str, *, task_id: str, dag_id: str = "", run_id: str = ""
) -> dict[str, Any]:
    """Return the context of a notifier that no task runs.

    The same notifier runs at all events, and a template with ``ti.task_id`` must not fail at any.

    :param task_id: what people see in place of a task.
    """
    task_instance = SimpleNamespace(dag_id=dag_id, run_id=str(run_id), task_id=task_id, map_index=-1)
    return {
        "dag_run": {"dag_id": dag_id, "run_id": str(run_id)},
        "run_id": str(run_id),
        "ti": task_instance,
        "task_instance": task_instance,
        "migration_id": spec.migration_id,
        "migration_event": event,
        "migration_message": text,
    }


def notify_of_freeze(spec: MigrationSpec, resolver: Resolver, text: str) -> None:
    """Run the spec's notifier for a freeze of a command.

    :raises MigrationError: it cannot be loaded. Its own errors are raised, too.
    """
    line = message(spec.migration_id, "freeze", {TROUBLE: text}, "", spec.kind)
    load_notifier(spec, resolver)(context_without_task(spec, "freeze", line, task_id="kafka-migration"))


def message(migration_id: str, event: str, context: Mapping[str, Any], task_id: str, kind: str = "migration") -> str:
    """Return one line for people: for a failure with the error's text, for trouble and a freeze with theirs."""
    # The task that waits for the tail copies nothing itself: its trouble is that the tail is silent.
    subject = SILENT_SUBJECT if event == "trouble" and task_id.endswith("drain_ready") else SUBJECTS[event]
    if event == "trouble" and str(context.get(TROUBLE, "")).startswith(RUN_IS_OLD):
        subject = OLD_SUBJECT
    text = subject.format(kind=kind, migration_id=migration_id, task_id=task_id)
    if event in ("trouble", "freeze") and context.get(TROUBLE):
        text += f". {context[TROUBLE]}"
    error = context.get("exception")
    if event == "failed" and error is not None:
        text += f". {error}" if isinstance(error, MigrationError) else f". {type(error).__name__}; see the task's log"
    return text
