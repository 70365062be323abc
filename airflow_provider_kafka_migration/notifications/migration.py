"""Tells people about the events of a migration through any Airflow notifier that the spec names."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier
from airflow.sdk.log import mask_secret

from airflow_provider_kafka_migration.errors import ConnectionInvalid, MigrationError, SpecInvalid, Where
from airflow_provider_kafka_migration.plain_secrets import is_reference, names_a_secret
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.progress import TROUBLE
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, plain_spec, run_spec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

#: What a notifier's templated arguments can use, beside the usual context.
SUBJECTS = {
    "drain_ready": "Kafka migration {migration_id}: ready for the cutover",
    "approval_wanted": "Kafka migration {migration_id}: {task_id} waits for an answer",
    "trouble": "Kafka migration {migration_id}: {task_id} does not copy some partitions",
    "failed": "Kafka migration {migration_id}: {task_id} failed",
    "finalized": "Kafka migration {migration_id}: finalized, the evidence is signed",
}
SILENT_SUBJECT = "Kafka migration {migration_id}: nothing is heard from the tail"


#: Texts that were given to a notifier as they are.
_warned: set[str] = set()


class MigrationNotifier(BaseNotifier):
    """Runs the notifier of the spec (``notifications.notifier``), if it wants this event.

    The arguments in ``notifications.kwargs`` are templates; ``{{ migration_id }}``, ``{{ migration_event }}`` and
    ``{{ migration_message }}`` are there beside Airflow's usual variables. A notifier that fails is logged and does
    no harm: a mail server that is down must not stop a migration.

    :param event: drain_ready, approval_wanted, trouble, failed or finalized.
    :param spec: the migration; None takes it from the Params of the run.
    """

    template_fields = ()

    def __init__(self, *, event: str, spec: SpecSource = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.event = event
        self.spec = plain_spec(spec)

    def __eq__(self, other: object) -> bool:
        """Equal by content, so that two parses of a DAG give equal DAGs."""
        return isinstance(other, MigrationNotifier) and (self.event, self.spec) == (other.event, other.spec)

    def __hash__(self) -> int:
        return hash(self.event)

    def notify(self, context: Context) -> None:
        """Run the spec's notifier for this event."""
        try:
            spec = self._spec_of(context)
            if spec.notifications.notifier and self.event in spec.notifications.events:
                load_notifier(spec)(_with_message(context, spec, self.event))
        except Exception:
            log.exception("The notification of %s failed; the migration goes on", self.event)

    def _spec_of(self, context: Context) -> MigrationSpec:
        task = context.get("task")
        if self.spec is None and isinstance(task, MigrationTask):
            return task.told_spec(context)
        return run_spec(self.spec, context, recorded=True)


def load_notifier(spec: MigrationSpec, resolver: Resolver | None = None) -> BaseNotifier:
    """The notifier of the spec; references in its arguments are replaced by what they lead to.

    A text that only looks like a reference, such as the tag ``env:prod``, stays as it is if it leads nowhere.

    :raises ConnectionInvalid: a reference leads nowhere, under a key that names a secret.
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
    """Arguments with secrets in place of references, and Airflow told to keep them out of its logs.

    :param named: a key above says that it is a secret.
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
    """Once per process: a notifier may run often."""
    if text not in _warned:
        _warned.add(text)
        log.warning("The notifier gets %r as it is: as a reference it leads nowhere (%s)", text, why)


def _with_message(context: Context, spec: MigrationSpec, event: str) -> Context:
    extended: dict[str, Any] = dict(context)
    task_instance = extended.get("ti") or extended.get("task_instance")
    extended["migration_id"] = spec.migration_id
    extended["migration_event"] = event
    extended["migration_message"] = message(spec.migration_id, event, extended, getattr(task_instance, "task_id", ""))
    return extended  # type: ignore[return-value]


def message(migration_id: str, event: str, context: Mapping[str, Any], task_id: str) -> str:
    """One line for people; for a failure with the error's own what, where and next step, for trouble with the first."""
    # Who waits for the tail copies nothing itself: it tells that nothing is heard from it.
    subject = SILENT_SUBJECT if event == "trouble" and task_id.endswith("drain_ready") else SUBJECTS[event]
    text = subject.format(migration_id=migration_id, task_id=task_id)
    if event == "trouble" and context.get(TROUBLE):
        text += f". {context[TROUBLE]}"
    error = context.get("exception")
    if event == "failed" and error is not None:
        text += f". {error}" if isinstance(error, MigrationError) else f". {type(error).__name__}; see the task's log"
    return text
