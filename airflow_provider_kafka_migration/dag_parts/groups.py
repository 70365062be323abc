"""A migration or a mirror as a task group in somebody's own DAG."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, TaskGroup

from airflow_provider_kafka_migration.dag_parts.tasks import DEFAULT_ARGS
from airflow_provider_kafka_migration.mirror_table import NEXT_RUN
from airflow_provider_kafka_migration.provider.params import TAKEOVER, Kind, run_params
from airflow_provider_kafka_migration.provider.task import MigrationTask

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class MigrationTaskGroup(TaskGroup):
    """The tasks of one migration or mirror. What follows the group follows one of its tasks, :attr:`last`.

    The other tasks without one below them are no ends: ``tail`` stops waiting for the cutover if a task follows it, and
    ``rollback`` is skipped in a migration that goes well.
    """

    #: Name of the task that ends it.
    last: str

    def get_leaves(self) -> Generator[BaseOperator, None, None]:
        """Yield the task that ends the migration or the mirror."""
        ends: Any = self.get_child_by_label(self.last)
        yield ends


def open_group(
    spec: Mapping[str, Any] | None,
    kind: Kind,
    *,
    last: str,
    group_id: str | None,
    default_args: Mapping[str, Any] | None,
    starts_runs: bool = False,
    **group_args: Any,
) -> MigrationTaskGroup:
    """Return an empty group in the DAG that is being built, ready for its tasks.

    :param spec: the spec as data.
    :param last: name of the task that ends it.
    :param group_id: None: the spec's ``migration_id``, with ``_`` for dots.
    :param default_args: the caller's. They win over ours, and ours over the DAG's, which were chosen for other tasks;
        the owner is the DAG's.
    :param starts_runs: one of its tasks starts the next run of the DAG.
    :raises ValueError: there is no spec, or the DAG does not fit.
    """
    if spec is None:
        raise ValueError("a task group needs the spec: only a DAG of its own can read it from its Params")
    ours = dict(DEFAULT_ARGS)
    group = MigrationTaskGroup(
        group_id or spec["migration_id"].replace(".", "_"),
        **{"tooltip": spec.get("description") or f"Kafka {kind} {spec['migration_id']}", **group_args},
    )
    _check(group.dag, group.group_id or "", starts_runs=starts_runs)
    if owner := group.dag.default_args.get("owner"):
        ours["owner"] = owner
    group.default_args = {**group.default_args, **ours, **(default_args or {})}
    group.last = last
    if TAKEOVER not in group.dag.params:
        group.dag.params[TAKEOVER] = run_params(kind)[TAKEOVER]
    return group


def _check(dag: DAG, group_id: str, *, starts_runs: bool) -> None:
    """Check that a run can be followed by the next one of the same DAG.

    The next run begins when all of this one has ended. So whatever else of ours runs in it for long would hold up the
    mirror, and it would find a later run, as if its own time were over.

    :raises ValueError: it cannot.
    """
    others = [task for task in dag.tasks if isinstance(task, MigrationTask)]
    chained = [task.task_id for task in others if task.phase == NEXT_RUN.id]
    if chained or (starts_runs and others):
        starter = chained[0] if chained else f"{group_id}.{NEXT_RUN.id}"
        other = group_id if chained else others[0].task_id
        raise ValueError(
            f"{starter} starts the next run of the whole DAG {dag.dag_id}, which also has the tasks of {other}: give "
            "the mirror a DAG of its own, or run_for=None"
        )
    if starts_runs and dag.max_active_runs != 1:
        raise ValueError(
            f"{group_id}.{NEXT_RUN.id} starts the next run of the DAG {dag.dag_id}, whose runs must not overlap: give "
            "the DAG max_active_runs=1, or the mirror run_for=None"
        )


def doc_in_group(docs: Mapping[str, str], group: TaskGroup) -> dict[str, str]:
    """Return the docs of tasks, which name each other without the group."""
    note = f"\n\nTasks are named without their group here: `x` is `{group.group_id}.x`."
    return {task_id: text + note for task_id, text in docs.items()}


def default_lists(dag: DAG, default_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the default arguments whose callbacks are called beside ours."""
    return {**dag.default_args, **(default_args or {})}
