"""Migrations as DAGs: one builder for the generic DAG (Params), a DAG per spec, and a DAG per YAML file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG, Param, TaskGroup, get_parsing_context
from airflow.sdk.configuration import conf

from airflow_provider_kafka_migration import phase_table
from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.notifications.migration import MigrationNotifier
from airflow_provider_kafka_migration.operators import approval, freeze_limit, migration
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationPhaseOperator
from airflow_provider_kafka_migration.operators.way_back import (
    WAY_BACK_DAG_ID,
    KeepOrBackOperator,
    StartWayBackOperator,
)
from airflow_provider_kafka_migration.phase_table import PHASES, Phase, Place
from airflow_provider_kafka_migration.provider.params import (
    journal_params,
    migration_params,
    run_params,
    way_back_params,
)
from airflow_provider_kafka_migration.provider.task import MigrationTask
from airflow_provider_kafka_migration.sensors import drain
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec, parse_spec

# -- task docs --------------------------------------------------------------------------------------------------------
#
# Markdown for the page of a DAG or a task, read by a person on call.


#: Longest line of the drawing.
_DRAWING_WIDTH = 120


def _drawing() -> str:
    """Draw the line of tasks, with the tail in parallel."""
    start = " -> ".join(row.id for row in phase_table.BEFORE_TAIL) + " -"
    lines = [f"{start}+-> tail {'-' * 36}+", f"{' ' * len(start)}+"]
    group = ""
    for row in phase_table.TASKS:
        if row.place is not Place.LINE or row in phase_table.BEFORE_TAIL:
            continue
        arrow = f"{'' if lines[-1].endswith('+') else ' '}-> {row.name if row.group == group else row.id}"
        group = row.group
        if len(lines[-1] + arrow) > _DRAWING_WIDTH:
            lines.append("  ")
        lines[-1] += arrow
    return "\n".join(lines)


DAG_DOC = f"""\
Moves a live Kafka cluster to another one: topics, records, offsets, consumer groups, ACLs, and signed evidence.

```
{_drawing()}
```

**Any task may be cleared at any time.** The task finds earlier work in the journal, verifies it on the clusters and
ends immediately. The copy continues from the target's end. Nothing on the source is changed before `cutover.freeze`,
and nothing is ever deleted there.

**Two tasks wait for a person** (tab *Required Actions*): `approve_cutover` and `approve_client_switch`. Both show what
will happen and a code of 8 characters; type the code and choose. If the page has been open for long, or the task was
cleared, use the code from the task's log.

**Two slots are needed at the same time**: `tail` runs until the cutover has set its stop offsets.

The last log line of a red task names what failed, where, and what to do next.
"""


#: What a second person confirms, by approval.
_CONFIRMED = {"cutover": "the cutover", "client_switch": "the switch"}


def _filled(doc: str) -> str:
    return doc.replace("{lifted}", words.LIFTED_IN_GENERAL)


ROLLBACK_DOC = _filled(phase_table.ROLLBACK_DOC)

#: By task id, with the second approvals, which have no row in the table.
TASK_DOCS: dict[str, str] = {row.id: _filled(row.doc) for row in phase_table.TASKS} | {
    f"{row.id}_second": f"A second, different person confirms {_CONFIRMED[row.approves]}.\n\n"
    "**Red?** Clear it and answer again."
    for row in phase_table.TASKS
    if row.approves
}


WAY_BACK_DOC = f"""\
The way back of a migration whose clients have switched: source and target are swapped. What is written to the new
cluster is copied to the old one, at the same offsets, until a person decides.

```
{_drawing()}
```

The tasks are those of a migration; *source* is the new cluster, *target* the old one. **Any task may be cleared at any
time.** `approve_cutover` asks: **Back** (clients return), **Keep** (the old cluster is released), or **Later**.

Trigger it with the first migration's id and journal. It needs two slots at the same time, for `tail`.
"""

#: Id of the task that starts the way back.
START_WAY_BACK = "way_back"
START_WAY_BACK_DOC = """\
Starts the DAG `kafka_migration_way_back` for this migration, once: the old cluster then receives what clients write to
the new one, until someone says keep or back.

**Red?** That DAG is not there, or is paused: deploy `dags/kafka_migration_way_back.py` and unpause it, then clear this
task, before the new cluster's retention deletes what clients have written. The migration itself does not depend on it.
"""

WAY_BACK_TASK_DOCS: dict[str, str] = {
    "approve_cutover": "A person decides: **Back** stops the new cluster's producers and lets clients return, **Keep** "
    "releases the old cluster, **Later** keeps both open and asks again, as does way_back.keep_for. Back and Keep each "
    "need their own code from the text.\n\n**Red?** The answer was refused (no code, an old one, that of the other "
    "decision, lag has risen): clear it and answer again. The log has the current text.",
    "rollback": "Runs only after *Keep*: stops the copy, removes the DENY ACLs of the way back, gives the old topics "
    "their own settings back, and journals `old_cluster_released`. What was copied to the old cluster stays there."
    "\n\n**Red?** An ACL could not be removed; the log names it. Clear it after correcting: the way back stays open.",
    "approve_client_switch": "Let the clients return now: ready_for_client_return. **Approve** when they read and "
    "write on the old cluster again. Needs the code from the text.\n\n**Red?** The answer was refused; clear it and "
    "answer again.",
}


# -- broken dag -------------------------------------------------------------------------------------------------------
#
# A YAML file with mistakes, as a separate import error.
#
# Airflow keeps one import error per path and blocks every DAG of a path that has one. So the DAG file that reads all
# YAML files must not fail, or one bad file would stop all migrations. Instead a bad file yields a DAG that claims the
# YAML file's path as its own and refuses to be serialized: the DAG processor records that as the import error of that
# path.


class BrokenMigration(DAG):
    """Placeholder for a YAML file that cannot become a DAG. It never runs anything.

    :param file: the YAML file.
    :param error: what is wrong with it.
    """

    def __init__(self, dag_id: str, file: Path, error: Exception) -> None:
        super().__init__(dag_id=dag_id, schedule=None)
        self.__dict__["broken_file"] = file
        self.__dict__["broken_error"] = error

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace the path of the DAG file, which the importer sets, with the YAML file's path."""
        file: Path | None = self.__dict__.get("broken_file")
        if file is not None and name == "relative_fileloc":
            value = _relative(file, Path(self.fileloc), value)
        super().__setattr__(name, value)

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]
        """Fail the serialization, which calls this method.

        :raises Exception: what is wrong with the file.
        """
        raise self.__dict__["broken_error"]


def _relative(file: Path, dag_file: Path, relative_dag_file: str | None) -> str:
    """Return the YAML file's path relative to the DAG bundle, like the DAG file's own; absolute outside the bundle."""
    if relative_dag_file is None:
        return str(file)
    depth = len(Path(relative_dag_file).parts)
    bundle = dag_file.resolve().parents[depth - 1]
    try:
        return str(file.resolve().relative_to(bundle))
    except ValueError:
        return str(file)


# -- dag --------------------------------------------------------------------------------------------------------------


GENERIC_DAG_ID = "kafka_migration"
ROLLBACK_DAG_ID = "kafka_migration_rollback"
TAGS = ("kafka", "kafka-migration")

#: Generic DAG: each run is another migration. The journal's claim separates two runs with the same migration id.
GENERIC_ACTIVE_RUNS = 16

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
_LISTS = frozenset({"notifiers", "on_failure_callback", "on_retry_callback", "on_success_callback", "on_trouble"})
#: Retries of ``cutover.freeze_limit``, at least a minute each: while it fails, producers stay frozen.
FREEZE_LIMIT_RETRIES = 60
#: Airflow retries for ten minutes or more, and sends a notification each time.
_KEEPS_TRYING = {"retries": FREEZE_LIMIT_RETRIES, "retry_delay": timedelta(seconds=10)}

_GROUP_TOOLTIPS = {"cutover": "Freeze, sentinels, final drain, consumer groups, floor guard"}

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


class _Tasks:
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
        docs: Mapping[str, str] = TASK_DOCS,
        operators: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = spec
        self._docs = docs
        self._operators = dict(operators or {})
        self._task_args = task_args
        self._default_lists = {name: value for name, value in default_args.items() if name in _LISTS}
        self.made: list[str] = []

    def __call__(self, operator: Any, task_id: str, group: TaskGroup | None = None, **given: Any) -> Any:
        full_id = f"{group.group_id}.{task_id}" if group else task_id
        arguments = {
            "spec": self._spec,
            "doc_md": self._docs[full_id],
            "on_failure_callback": [self.notifier("failed")],
            "task_group": group,
            **given,
        }
        self._add(arguments, full_id, operator.fixed_arguments)
        self.made.append(full_id)
        return operator(task_id=task_id, **arguments)

    def phase(self, row: Phase, group: TaskGroup | None = None) -> Any:
        """Create the task of a row of the table."""
        given: dict[str, Any] = _hurry() if row.is_urgent else {}
        if row.event:
            given["on_success_callback"] = [self.notifier(row.event)]
        if row.reports_trouble:
            given["on_trouble"] = [self.notifier("trouble")]
        if row.keeps_trying:
            given |= {**_KEEPS_TRYING, "on_retry_callback": [self.notifier("failed")]}
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

    def notifier(self, event: str) -> MigrationNotifier:
        return MigrationNotifier(event=event, spec=self._spec)

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


def build_migration_dag(
    spec: MigrationSpec | Mapping[str, Any] | None = None,
    *,
    dag_id: str | None = None,
    task_args: TaskArgs | None = None,
    **dag_args: Any,
) -> DAG:
    """Build the DAG of one migration, or with ``spec=None`` the generic one, which reads its migration from its Params.

    It uses no connection, variable or network, so it may be called at the top level of a DAG file.

    :param dag_id: default ``kafka_migration``, or ``kafka_migration_<migration_id>``.
    :param task_args: additional operator arguments by task id, for instance
        ``{"seed": {"pool": "source-cluster"}, "tail": {"executor_config": ...}}``. Arguments that the task sets
        itself are refused; callbacks and notifiers are added to ours.
    :param dag_args: arguments of ``DAG``; they override the defaults here. ``default_args`` are merged name by name;
        callbacks and notifiers in them are added to ours.
    :raises SpecInvalid: with every mistake of the spec. Plain-text secrets alone are only a warning here: an open
        freeze needs its DAG. The tasks ``plan`` and ``precheck`` refuse them.
    :raises ValueError: ``task_args`` names a task that does not exist, or an argument that the task sets itself.
    """
    plain = _plain(spec)
    with DAG(**_dag_args(plain, dag_id, dag_args)) as dag:
        docs = {**TASK_DOCS, START_WAY_BACK: START_WAY_BACK_DOC}
        tasks = _Tasks(plain, task_args or {}, dag_args.get("default_args") or {}, docs=docs)
        made = _build(tasks, two_people=_wants_two_people(plain), in_one_task=_in_one_task(plain))
        if _offers_way_back(plain):
            # Next to validate: what clients write from now on goes back while the migration is still validated.
            made["approve_client_switch"] >> tasks(StartWayBackOperator, START_WAY_BACK)
        tasks.check_task_args()
    return dag


def _plain(spec: MigrationSpec | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    parsed = spec if isinstance(spec, MigrationSpec) else _with_secrets_told(partial(parse_spec, spec))
    return parsed.model_dump(mode="json", exclude_unset=True)


def _with_secrets_told(read: Callable[..., MigrationSpec]) -> MigrationSpec:
    """Read a spec, even one with plain-text secrets, which an earlier version accepted.

    Its DAG may have a run with frozen producers, and without a DAG nothing would watch their limit and roll back.
    ``plan`` and ``precheck`` refuse new runs.

    :raises SpecInvalid: with every mistake, if there is any other mistake.
    """
    try:
        return read()
    except SpecInvalid as error:
        try:
            spec = read(recorded=True)
        except SpecInvalid:
            raise error from None
        warnings.warn(f"{error}. The DAG serves only runs in progress: its `plan` refuses this spec", stacklevel=4)
        return spec


def _wants_two_people(spec: Mapping[str, Any] | None) -> bool:
    return bool(spec and spec.get("approvals", {}).get("second_users"))


def _in_one_task(spec: Mapping[str, Any] | None) -> bool:
    return bool(spec and spec.get("cutover", {}).get("in_one_task"))


def _dag_args(spec: Mapping[str, Any] | None, dag_id: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    migration_id = spec["migration_id"] if spec else None
    defaults: dict[str, Any] = {
        "dag_id": dag_id or (f"{GENERIC_DAG_ID}_{migration_id}" if migration_id else GENERIC_DAG_ID),
        "dag_display_name": f"Kafka migration: {migration_id}" if migration_id else "Kafka migration",
        "description": (spec or {}).get("description") or "Moves a live Kafka cluster to another one, keeping offsets",
        "doc_md": DAG_DOC,
        "schedule": None,
        "catchup": False,
        "max_active_runs": 1 if spec else GENERIC_ACTIVE_RUNS,
        "params": run_params() if spec else migration_params(),
        "tags": sorted({*TAGS, *([migration_id] if migration_id else [])}),
    }
    return {**defaults, **given, "default_args": _default_args(given)}


def _default_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the caller's ``default_args`` into ours: without retries or weights a cutover is not safe."""
    return {**DEFAULT_ARGS, **(given.get("default_args") or {})}


def _offers_way_back(spec: Mapping[str, Any] | None) -> bool:
    """Whether the migration starts its way back by itself; the generic DAG has one structure for all, so never."""
    section = (spec or {}).get("way_back")
    return section is not None and bool(section.get("enabled", True))


def _build(tasks: _Tasks, *, two_people: bool, in_one_task: bool) -> dict[str, Any]:
    """Create the tasks of the table, and return them by the id of their row.

    A failed cutover leaves the tail running: only ``commit_groups`` joins it.
    """
    groups = {name: TaskGroup(name, tooltip=tooltip) for name, tooltip in _GROUP_TOOLTIPS.items()}
    made: dict[str, Any] = {}
    for row in phase_table.TASKS:
        above = [made[name] for name in _above(row, in_one_task=in_one_task)]
        if row.approves:
            made[row.id] = _approval(tasks, row, above, two_people=two_people)
        else:
            made[row.id] = tasks.phase(row, groups.get(row.group))
            above >> made[row.id]
    return made


def _above(row: Phase, *, in_one_task: bool) -> tuple[str, ...]:
    """Return the ids of the rows that a task follows.

    With ``in_one_task`` the target is ready when the first task of the cutover ends: clients must not wait while the
    other five tasks start only to confirm. The generic DAG has one structure for all runs, so there clients wait.
    """
    first, last = phase_table.CUTOVER[0], phase_table.CUTOVER[-1]
    above = phase_table.upstream(row)
    if in_one_task and row not in phase_table.CUTOVER:
        return tuple(first.id if name == last.id else name for name in above)
    return above


def _approval(tasks: _Tasks, row: Phase, above: Sequence[Any], *, two_people: bool) -> Any:
    """Create one approval, or two in a row for two different people. Return the last one."""
    notifiers = [tasks.notifier("approval_wanted")]
    operator = tasks.operator_class(row)
    first = tasks(operator, row.id, notifiers=notifiers, awaits_second=two_people)
    above >> first
    if not two_people:
        return first
    second = tasks(operator, f"{row.id}_second", notifiers=notifiers, first_task_id=row.id)
    first >> second
    return second


def build_rollback_dag(*, dag_id: str = ROLLBACK_DAG_ID, **dag_args: Any) -> DAG:
    """Build a DAG of one task that rolls back a migration whose own DAG run is dead or hangs.

    It reads the spec from the journal, so its Params only give the journal's location; it also accepts the ``conf`` of
    the generic DAG. ``takeover`` is on, because this is not the migration's own run.
    """
    params = journal_params()
    params["takeover"] = Param(True, type="boolean", title="Take over", description=ROLLBACK_DOC, section="More")
    defaults: dict[str, Any] = {
        "dag_id": dag_id,
        "dag_display_name": "Kafka migration: roll back",
        "description": "Ends a migration before its cutover",
        "doc_md": ROLLBACK_DOC,
        "schedule": None,
        "catchup": False,
        "params": params,
        "tags": sorted(TAGS),
    }
    with DAG(**{**defaults, **dag_args, "default_args": _default_args(dag_args)}) as dag:
        _Tasks(None, {}, dag_args.get("default_args") or {}).phase(PHASES["rollback"])
    return dag


def build_way_back_dag(
    *, dag_id: str = WAY_BACK_DAG_ID, two_people: bool = False, task_args: TaskArgs | None = None, **dag_args: Any
) -> DAG:
    """Build the DAG of the way back: the tasks of a migration, from the new cluster to the old one.

    Its Params name the first migration, whose journal has everything else, so that migration's own DAG may be gone.

    :param two_people: ask two people, for migrations with ``approvals.second_users``.
    :param task_args: as in :func:`build_migration_dag`.
    """
    defaults: dict[str, Any] = {
        "dag_id": dag_id,
        "dag_display_name": "Kafka migration: way back",
        "description": "The old cluster goes on receiving what is written to the new one, until keep or back",
        "doc_md": WAY_BACK_DOC,
        "schedule": None,
        "catchup": False,
        "max_active_runs": GENERIC_ACTIVE_RUNS,
        "params": way_back_params(),
        "tags": sorted(TAGS),
    }
    with DAG(**{**defaults, **dag_args, "default_args": _default_args(dag_args)}) as dag:
        tasks = _Tasks(
            None,
            task_args or {},
            dag_args.get("default_args") or {},
            docs={**TASK_DOCS, **WAY_BACK_TASK_DOCS},
            operators={"approve_cutover": KeepOrBackOperator},
        )
        _build(tasks, two_people=two_people, in_one_task=False)
        tasks.check_task_args()
    return dag


def load_migration_dags(
    namespace: MutableMapping[str, Any], folder: str | Path, *, task_args: TaskArgs | None = None, **dag_args: Any
) -> None:
    """Put one DAG per YAML file of a folder into a DAG file's ``globals()``.

    Files are independent: one with mistakes becomes an import error under its own path (see
    :mod:`~.dag`) and a warning, and does not hide the others.
    """
    wanted = get_parsing_context().dag_id
    seen: dict[str, str] = {}
    for file in spec_files(folder):
        try:
            spec = _with_secrets_told(partial(load_spec, file))
            _check_unique(spec.migration_id, file, seen)
            dag_id = f"{GENERIC_DAG_ID}_{spec.migration_id}"
            if wanted in (None, dag_id):
                namespace[dag_id] = build_migration_dag(spec, dag_id=dag_id, task_args=task_args, **dag_args)
        except Exception as error:
            warnings.warn(f"{file}: {error}", stacklevel=2)
            if wanted is None:
                broken_id = re.sub(r"[^A-Za-z0-9._-]", "_", f"broken.{file.name}")
                namespace[broken_id] = BrokenMigration(broken_id, file, error)


def _check_unique(migration_id: str, file: Path, seen: dict[str, str]) -> None:
    if migration_id in seen:
        raise SpecInvalid(
            f"the migration_id {migration_id!r} is also used in {seen[migration_id]}",
            where=Where(path=str(file)),
            next_step="give each migration its own id",
        )
    seen[migration_id] = file.name


def spec_files(folder: str | Path) -> list[Path]:
    """Return the YAML files of a folder in ascending order, without hidden ones. Empty if the folder does not exist."""
    found = [path for suffix in ("*.yaml", "*.yml") for path in Path(folder).glob(suffix)]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))
