"""The tasks of a DAG: defaults, callbacks and the caller's arguments, the same for migrations and mirrors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import TaskGroup

from airflow_provider_kafka_migration.notifications.migration import MigrationNotifier
from airflow_provider_kafka_migration.operators import approval, freeze_limit, migration
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationPhaseOperator
from airflow_provider_kafka_migration.phase_table import Phase
from airflow_provider_kafka_migration.provider.compat import DOUBLING, conf
from airflow_provider_kafka_migration.provider.task import MigrationTask
from airflow_provider_kafka_migration.sensors import drain

#: ``absolute``: by default Airflow adds the weights of all downstream tasks to a task, so the priority of the cutover
#: would propagate up to the plan.
DEFAULT_ARGS: Mapping[str, Any] = {
    "owner": "kafka-migration",
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "weight_rule": "absolute",
}

#: While producers are frozen, tasks of the cutover, and those that lift a freeze, get a slot before all other waiting
#: tasks. Absolute: the weights must not add up in the upstream tasks, which are not urgent.
_FIRST = {"priority_weight": 1000, "weight_rule": "absolute"}

#: Arguments that are lists of callables: the caller's are called in addition to ours.
_CALLBACKS = frozenset({"on_failure_callback", "on_freeze", "on_retry_callback", "on_success_callback", "on_trouble"})
_LISTS = _CALLBACKS | {"notifiers"}
#: Of a task that outlives its clusters' bad days, and every worker: its attempts must not run out in weeks.
_ENDLESS = {"retries": 1_000_000}
_FOR_EVER = {
    **_ENDLESS,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": DOUBLING,
    "max_retry_delay": timedelta(minutes=5),
}
#: Of a task that lifts a freeze: while it fails, producers stay stopped.
_KEEPS_TRYING = {**_ENDLESS, "retry_delay": timedelta(seconds=10)}

#: Operator classes by the phase that they name.
_OPERATORS: Mapping[str, Any] = {
    item.phase: item
    for module in (approval, drain, freeze_limit, migration)
    for item in vars(module).values()
    if isinstance(item, type) and issubclass(item, MigrationTask) and item.phase
}


def operator_class(row: Phase) -> Any:
    """Return the class of a task. A phase without an operator class of its own has the general one."""
    return _OPERATORS.get(row.id, KafkaMigrationPhaseOperator)


TaskArgs = Mapping[str, Mapping[str, Any]]


class TaskMaker:
    """Creates the tasks of one DAG from shared arguments, the caller's for all tasks, and the caller's per task id.

    :param docs: Markdown by task id.
    :param operators: classes by task id, in place of those of the table.
    :param default_args: the caller's, for all tasks. Airflow uses them only where a task sets nothing itself, so the
        caller's callbacks would be lost next to ours.
    """

    def __init__(
        self,
        spec: Mapping[str, Any] | None,
        task_args: TaskArgs,
        default_args: Mapping[str, Any],
        *,
        docs: Mapping[str, str],
        operators: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = spec
        self._docs = docs
        self._operators = dict(operators or {})
        self._task_args = task_args
        self._default_lists = {name: value for name, value in default_args.items() if name in _LISTS}
        self.made: list[str] = []

    def __call__(self, operator: Any, task_id: str, group: TaskGroup | None = None, **given: Any) -> Any:
        # Docs and ``task_args`` name a task as in a DAG of its own, also where all are in a group of the caller's DAG.
        full_id = f"{group.label}.{task_id}" if group else task_id
        arguments = {
            "spec": self._spec,
            "doc_md": self._docs[full_id],
            "on_failure_callback": [self.notifier("failed")],
            **({"on_freeze": [self.notifier("freeze")]} if issubclass(operator, MigrationTask) else {}),
            "task_group": group,
            **given,
        }
        self._add(arguments, full_id, operator.fixed_arguments)
        self.made.append(full_id)
        return operator(task_id=task_id, **arguments)

    def phase(self, row: Phase, group: TaskGroup | None = None, **more: Any) -> Any:
        """Create the task of a row of the table.

        :param more: arguments that this DAG gives the task.
        """
        given: dict[str, Any] = {**more, **(_hurry() if row.is_urgent else {})}
        if row.event:
            given["on_success_callback"] = [self.notifier(row.event)]
        if row.reports_trouble:
            given["on_trouble"] = [self.notifier("trouble")]
        if row.keeps_trying or row.for_ever:
            given |= _KEEPS_TRYING if row.keeps_trying else _FOR_EVER
            given["on_retry_callback"] = [self.notifier("failed", thins_out=True)]
        operator = self.operator_class(row)
        if operator is KafkaMigrationPhaseOperator:
            given["phase"] = row.id
        return self(operator, row.name, group, **given)

    def operator_class(self, row: Phase) -> Any:
        """Return the class of a task of this DAG."""
        return self._operators.get(row.id) or operator_class(row)

    def _add(self, arguments: dict[str, Any], full_id: str, fixed: Collection[str]) -> None:
        """Add the caller's arguments for a task; callbacks and notifiers come after ours, all others override ours.

        As everywhere in Airflow, arguments for one task replace those for all tasks.

        :raises ValueError: the operator would silently overwrite an argument.
        """
        more = self._task_args.get(full_id, {})
        shared = {name: value for name, value in self._default_lists.items() if arguments.get(name)}
        lost = sorted(set(more) & set(fixed))
        if lost:
            raise ValueError(f"task_args of {full_id} sets arguments that the task sets itself: {', '.join(lost)}")
        for name, value in {**shared, **more}.items():
            ours = arguments.get(name)
            if name in _LISTS and ours:
                value = [*ours, *_as_list(value)]
            arguments[name] = value

    def notifier(self, event: str, *, thins_out: bool = False) -> MigrationNotifier:
        return MigrationNotifier(event=event, spec=self._spec, thins_out=thins_out)

    def check_task_args(self) -> None:
        unknown = sorted(set(self._task_args) - set(self.made))
        if unknown:
            raise ValueError(f"task_args names tasks that do not exist: {', '.join(unknown)}")


def _as_list(value: Any) -> list[Any]:
    """Return an argument that may be one value, several or none as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]


def _hurry() -> dict[str, Any]:
    """Return the arguments of tasks for which producers wait: highest priority, and the configured cutover pool."""
    pool = conf.get("kafka_migration", "cutover_pool", fallback="")
    return {**_FIRST, **({"pool": pool} if pool else {})}


def default_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the caller's ``default_args`` into ours: without retries or weights a cutover is not safe."""
    return {**DEFAULT_ARGS, **(given.get("default_args") or {})}
