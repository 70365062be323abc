"""Migrations as DAGs: one builder for the generic DAG (Params), a DAG per spec, and a DAG per YAML file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TaskGroup

from airflow_provider_kafka_migration import phase_table
from airflow_provider_kafka_migration.dag_parts import kinds
from airflow_provider_kafka_migration.dag_parts.groups import default_lists, doc_in_group, open_group
from airflow_provider_kafka_migration.dag_parts.kinds import GENERIC_ACTIVE_RUNS, DagKind
from airflow_provider_kafka_migration.dag_parts.tasks import TaskArgs, TaskMaker
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.operators.way_back import (
    WAY_BACK_DAG_ID,
    KeepOrBackOperator,
    StartWayBackOperator,
)
from airflow_provider_kafka_migration.phase_table import PHASES, Phase, Place
from airflow_provider_kafka_migration.provider.params import (
    WITHDRAW_ACCESS,
    journal_params,
    migration_params,
    run_params,
    way_back_params,
)
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.load import read_yaml
from airflow_provider_kafka_migration.spec.mirrors_file import is_of_mirrors

# -- task docs --------------------------------------------------------------------------------------------------------
#
# Markdown for the page of a DAG or a task, read by a person on call.


#: Longest line of the drawing.
_DRAWING_WIDTH = 120


def _drawing() -> str:
    """Draw the line of tasks, with the tail in parallel."""
    start = " -> ".join(row.id for row in phase_table.BEFORE_TAIL) + " -"
    lines = [f"{start}+-> tail {'-' * 35}>", f"{' ' * len(start)}+"]
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
ends immediately. The runbook lists the few that are cleared together (*The one rule*). The copy continues from the
target's end. Nothing on the source is changed before `cutover.freeze`, and nothing is ever deleted there.

**Two tasks wait for a person** (tab *Required Actions*): `approve_cutover` and `approve_client_switch`. Both show what
will happen and a code of 8 characters; type the code and choose. If the page has been open for long, or the task was
cleared, use the code from the task's log.

**Two slots are needed at the same time**: `tail` runs until the cutover is over.

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

A topic to which somebody writes on the old cluster cannot go back any more: its task turns red with `FOREIGN_DATA`, and
`kafka-migration way-back leave-out FILE TOPIC --takeover` takes it out, so that all others go on.

Trigger it with the first migration's id and journal. It needs two slots at the same time, for `tail`.
"""

#: Id of the task that starts the way back.
START_WAY_BACK = "way_back"
START_WAY_BACK_DOC = """\
Starts the DAG `kafka_migration_way_back` for this migration, once: the old cluster then receives what clients write to
the new one, until someone says keep or back.

**Red?** That DAG is not there, or is paused: deploy its file (`kafka-migration dags DIR --only
kafka_migration_way_back`) and unpause it, then clear this task, before the new cluster's retention deletes what clients
have written. The migration itself does not depend on it.
"""

_DOCS = {**TASK_DOCS, START_WAY_BACK: START_WAY_BACK_DOC}
#: The task that ends a migration which goes well.
_LAST = phase_table.TASKS[-1].id

#: What no clearing helps against: a person has to decide.
_LEAVE_OUT = (
    "`FOREIGN_DATA`: somebody has written to a topic on the old cluster. Stop them, but delete nothing. Clearing does "
    "not help until the topic is left out: `kafka-migration way-back leave-out FILE TOPIC --takeover`, where FILE is "
    "the first migration's spec."
)
WAY_BACK_TASK_DOCS: dict[str, str] = {
    "approve_cutover": "A person decides: **Back** stops the new cluster's producers and lets clients return, **Keep** "
    "releases the old cluster, **Later** keeps both open and asks again, as does way_back.keep_for. Back and Keep each "
    "need their own code from the text.\n\n**Red?** The answer was refused (no code, an old one, that of the other "
    "decision, lag has risen): clear it and answer again. The log has the current text.",
    "rollback": "Runs only after *Keep*: stops the copy, removes the DENY ACLs of the way back, gives the old topics "
    "their own settings back, and journals `old_cluster_released`. What was copied to the old cluster stays there."
    "\n\n**Red?** An ACL could not be removed; the log names it. Clear it after correcting: the way back stays open.",
    "topology_copy": "Keeps producers out of the old topics (way_back.freeze_old), gives them copy-time settings, and "
    "creates on the old cluster what is new.\n\n**Red?** All refused items are in the log. "
    f"{_LEAVE_OUT} Clear it after deciding; it recognizes what it already did.",
    "seed": "Copies to the old cluster what was written to the new one up to its first start, on Spark.\n\n**Red?** "
    f"Clear it: it continues from the old cluster's end and copies nothing twice. {_LEAVE_OUT}",
    "tail": "Follows the new cluster until clients return, on Spark. It is *supposed* to run for long.\n\n**Red?** "
    f"Clear it; it continues where it stopped. {_LEAVE_OUT}",
    "drain_ready": "Waits until all partitions keep up for the whole window. Purple (deferred) is normal.\n\n**Red?** "
    f"It waited too long, or the tail does not copy everything. {_LEAVE_OUT} Then clear `tail` and this task.",
    "approve_client_switch": "Let the clients return now: ready_for_client_return. **Approve** when they read and "
    "write on the old cluster again. Needs the code from the text.\n\n**Red?** The answer was refused; clear it and "
    "answer again.",
}


# -- dag --------------------------------------------------------------------------------------------------------------


GENERIC_DAG_ID = "kafka_migration"
ROLLBACK_DAG_ID = "kafka_migration_rollback"
TAGS = ("kafka", "kafka-migration")

_KIND = DagKind(
    generic_id=GENERIC_DAG_ID,
    title="Kafka migration",
    description="Moves a live Kafka cluster to another one, keeping offsets",
    doc=DAG_DOC,
    tags=TAGS,
    generic_params=migration_params,
    run_params=run_params,
)

_GROUP_TOOLTIPS = {"cutover": "Freeze, sentinels, final drain, consumer groups, floor guard"}


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
    with DAG(**_KIND.dag_args(plain, dag_id, dag_args)) as dag:
        _add_tasks(TaskMaker(plain, task_args or {}, dag_args.get("default_args") or {}, docs=_DOCS), plain)
    return dag


def migration_task_group(
    spec: MigrationSpec | Mapping[str, Any],
    *,
    group_id: str | None = None,
    task_args: TaskArgs | None = None,
    default_args: Mapping[str, Any] | None = None,
    **group_args: Any,
) -> TaskGroup:
    """Add the tasks of one migration to the DAG that is being built, as a task group.

    ``before >> group`` starts the migration after another task. ``group >> after`` runs a task once the migration is
    finalized (after ``evidence``); after *Abort* or *Back out* it is skipped. Single tasks of the group are
    ``group.get_child_by_label("approve_cutover")``; put nothing below ``tail``. A DAG may have several migrations.

    The DAG gets the Param ``takeover``, if it has none.

    :param spec: the migration; as in :func:`build_migration_dag`, but not None.
    :param group_id: default: the ``migration_id``, with ``_`` for dots. It begins the ids of all tasks.
    :param task_args: additional operator arguments by task id without the group, as in :func:`build_migration_dag`.
    :param default_args: for all tasks of the group. The DAG's own count where neither this nor this package says
        anything (it sets retries, their delay, and weights); callbacks and notifiers of both are added to ours.
    :param group_args: arguments of ``TaskGroup``.
    :raises SpecInvalid: with every mistake of the spec.
    :raises ValueError: as :func:`build_migration_dag`; or the DAG has a mirror that starts its next run, or there is no
        spec.
    :raises RuntimeError: no DAG is being built.
    """
    plain = _plain(spec)
    with open_group(
        plain, "migration", last=_LAST, group_id=group_id, default_args=default_args, **group_args
    ) as group:
        callbacks = default_lists(group.dag, default_args)
        _add_tasks(TaskMaker(plain, task_args or {}, callbacks, docs=doc_in_group(_DOCS, group)), plain)
    return group


def _add_tasks(tasks: TaskMaker, plain: Mapping[str, Any] | None) -> None:
    made = _build(tasks, two_people=_wants_two_people(plain), in_one_task=_in_one_task(plain))
    if _offers_way_back(plain):
        # Next to validate: what clients write from now on goes back while the migration is still validated.
        made["approve_client_switch"] >> tasks(StartWayBackOperator, START_WAY_BACK)
    tasks.check_task_args()


def _plain(spec: MigrationSpec | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    parsed = spec if isinstance(spec, MigrationSpec) else _with_secrets_told(partial(parse_spec, spec))
    return parsed.check_kind("migration").model_dump(mode="json", exclude_unset=True)


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


def _offers_way_back(spec: Mapping[str, Any] | None) -> bool:
    """Whether the migration starts its way back by itself; the generic DAG has one structure for all, so never."""
    section = (spec or {}).get("way_back")
    return section is not None and bool(section.get("enabled", True))


def _build(tasks: TaskMaker, *, two_people: bool, in_one_task: bool) -> dict[str, Any]:
    """Create the tasks of the table, and return them by the id of their row.

    No task waits for the end of the tail's: ``commit_groups`` waits for its end in the journal. The task itself goes on
    until the cutover is over, so that a lifted freeze finds a tail that runs.
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


def _approval(tasks: TaskMaker, row: Phase, above: Sequence[Any], *, two_people: bool) -> Any:
    """Create one approval, or two in a row for two different people. Return the last one."""
    notifiers = [tasks.notifier("approval_wanted")]
    operator = tasks.operator_class(row)
    first = tasks(operator, row.id, notifiers=notifiers, awaits_second=two_people)
    above >> first
    if not two_people:
        return first
    second = tasks(operator, f"{row.id}_second", notifiers=notifiers, first_task_id=first.task_id)
    first >> second
    return second


def build_rollback_dag(*, dag_id: str = ROLLBACK_DAG_ID, **dag_args: Any) -> DAG:
    """Build a DAG of one task that rolls back a migration whose own DAG run is dead or hangs.

    It reads the spec from the journal, so its Params only give the journal's location; it also accepts the ``conf`` of
    the generic DAG. ``takeover`` is on, because this is not the migration's own run.
    """
    params = journal_params()
    params["takeover"] = Param(True, type="boolean", title="Take over", description=ROLLBACK_DOC, section="More")
    params[WITHDRAW_ACCESS] = Param(
        False,
        type="boolean",
        title="Withdraw access",
        description="Also remove the ACLs, SCRAM users and client quotas that the migration has created on the target. "
        "Without it, `rollback-report.json` lists them, with the commands that do so.",
        section="More",
    )
    arguments = kinds.dag_args(
        dag_args,
        dag_id=dag_id,
        dag_display_name="Kafka migration: roll back",
        description="Ends a migration before its cutover",
        doc_md=ROLLBACK_DOC,
        params=params,
        tags=sorted(TAGS),
    )
    with DAG(**arguments) as dag:
        TaskMaker(None, {}, dag_args.get("default_args") or {}, docs=TASK_DOCS).phase(PHASES["rollback"])
    return dag


def build_way_back_dag(
    *, dag_id: str = WAY_BACK_DAG_ID, two_people: bool = False, task_args: TaskArgs | None = None, **dag_args: Any
) -> DAG:
    """Build the DAG of the way back: the tasks of a migration, from the new cluster to the old one.

    Its Params name the first migration, whose journal has everything else, so that migration's own DAG may be gone.

    :param two_people: ask two people, for migrations with ``approvals.second_users``.
    :param task_args: as in :func:`build_migration_dag`.
    """
    arguments = kinds.dag_args(
        dag_args,
        dag_id=dag_id,
        dag_display_name="Kafka migration: way back",
        description="The old cluster goes on receiving what is written to the new one, until keep or back",
        doc_md=WAY_BACK_DOC,
        max_active_runs=GENERIC_ACTIVE_RUNS,
        params=way_back_params(),
        tags=sorted(TAGS),
    )
    with DAG(**arguments) as dag:
        tasks = TaskMaker(
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
    :mod:`~.dag_parts.files`) and a warning, and does not hide the others. Files of mirrors are left to
    :func:`~.mirror_dag.load_mirror_dags`.
    """
    _KIND.load(namespace, folder, migrations_in, build_migration_dag, task_args=task_args, **dag_args)


def migrations_in(file: Path) -> Iterator[MigrationSpec]:
    """Yield the spec in a YAML file; none if the file is one of mirrors.

    :raises SpecInvalid: with every mistake.
    """
    data = read_yaml(file)
    if not is_of_mirrors(data):
        yield _with_secrets_told(partial(parse_spec, data, path=str(file)))
