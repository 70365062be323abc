"""Mirrors as DAGs: one builder for the generic DAG (Params), a DAG per flow, and the DAGs of a folder of YAML files.

And the DAGs that compare them: each in a run of its own, beside the mirror.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TaskGroup

from airflow_provider_kafka_migration.dag_parts.groups import default_lists, doc_in_group, open_group
from airflow_provider_kafka_migration.dag_parts.kinds import DagKind
from airflow_provider_kafka_migration.dag_parts.tasks import TaskArgs, TaskMaker
from airflow_provider_kafka_migration.mirror_table import BEFORE, FREEZE_LIMIT, MIRROR_PHASE, NEXT_RUN, VERIFY
from airflow_provider_kafka_migration.operators import mirror
from airflow_provider_kafka_migration.operators.mirror_verify import KafkaMirrorVerifyOperator
from airflow_provider_kafka_migration.operators.next_run import KafkaMirrorNextRunOperator
from airflow_provider_kafka_migration.provider.params import mirror_params, run_params, verify_params
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.load import read_yaml
from airflow_provider_kafka_migration.spec.mirrors_file import is_of_mirrors, parse_flows

GENERIC_DAG_ID = "kafka_mirror"
TAGS = ("kafka", "kafka-mirror")

#: The line of tasks. :data:`~.mirror_table.FREEZE_LIMIT` runs beside the last one.
ROWS = (*BEFORE, MIRROR_PHASE)
#: Classes by the id of their row.
OPERATORS: Mapping[str, Any] = {**mirror.OPERATORS, NEXT_RUN.id: KafkaMirrorNextRunOperator}

#: How long one run mirrors. Its log, its rows and the version of its code are never older than this.
RUN_FOR = timedelta(days=1)
#: The tasks before ``mirror`` take a minute in each run, and meanwhile a driver in client mode does not copy.
LEAST_RUN_FOR = timedelta(hours=1)

DAG_DOC = f"""\
Mirrors a Kafka cluster to another one, until somebody tells it to stop: topics, records, offsets and consumer groups.

```
{" -> ".join(row.id for row in ROWS)}
```

**A mirror is a chain of runs.** After its time (a day) a run ends well, and `next_run` starts the next one with the
same Params; to the journal they are one owner, and a detached Spark job runs on meanwhile. People ask for something
else from any machine that reaches the storage; the task `mirror` does it and journals who asked:

| `kafka-migration mirror ...` | the task `mirror` |
|---|---|
| `pause` | ends its Spark job and waits, deferred (purple) |
| `resume` | goes on by itself; nobody clears anything |
| `promote` | stops the producers if the spec says so, copies the rest and succeeds; with \
`--source-gone` it contacts the target only |
| `end` | stops copying and succeeds; topics and content stay |

Beside `mirror`, `freeze_limit` keeps the limit of a promotion's freeze, if the spec has the mirror stop producers.

**Any task may be cleared at any time.** It continues from the target's end, with nothing twice and nothing lost. A
failure that may pass is tried again without an end: *up for retry* means that a cluster, the storage or Spark has been
away for ten minutes or more. The last log line of a red task names what failed, where, and what to do next.
"""

TASK_DOCS: dict[str, str] = {row.id: row.doc for row in (*ROWS, NEXT_RUN, FREEZE_LIMIT)}

_KIND = DagKind(
    generic_id=GENERIC_DAG_ID,
    title="Kafka mirror",
    description="Mirrors a Kafka cluster to another one, keeping offsets",
    doc=DAG_DOC,
    tags=TAGS,
    generic_params=mirror_params,
    run_params=partial(run_params, "mirror"),
)


def build_mirror_dag(
    spec: MigrationSpec | Mapping[str, Any] | None = None,
    *,
    dag_id: str | None = None,
    run_for: timedelta | None = RUN_FOR,
    task_args: TaskArgs | None = None,
    **dag_args: Any,
) -> DAG:
    """Build the DAG of one mirror, or with ``spec=None`` the generic one, which reads its mirror from its Params.

    It uses no connection, variable or network, so it may be called at the top level of a DAG file.

    :param spec: a spec with ``kind: mirror``.
    :param dag_id: default ``kafka_mirror``, or ``kafka_mirror_<migration_id>``.
    :param run_for: how long one run mirrors before the next one goes on; at least an hour. None: one run mirrors for
        ever, and ``airflow db clean`` has to spare it.
    :param task_args: additional operator arguments by task id, as in :func:`~.dag.build_migration_dag`.
    :param dag_args: arguments of ``DAG``; they override the defaults here. ``schedule="@once"`` starts the mirror as
        soon as its DAG is unpaused.
    :raises SpecInvalid: with every mistake of the spec, or because it is one of a migration.
    :raises ValueError: ``task_args`` names a task that does not exist, or an argument that the task sets itself; or
        ``run_for`` is too short.
    """
    _check_run_for(run_for)
    parsed = _parsed(spec)
    plain = _plain(parsed)
    with DAG(**_KIND.dag_args(plain, dag_id, dag_args)) as dag:
        defaults = dag_args.get("default_args") or {}
        tasks = TaskMaker(plain, task_args or {}, defaults, docs=TASK_DOCS, operators=OPERATORS)
        _add_tasks(tasks, parsed, run_for)
    return dag


def mirror_task_group(
    spec: MigrationSpec | Mapping[str, Any],
    *,
    group_id: str | None = None,
    run_for: timedelta | None = RUN_FOR,
    task_args: TaskArgs | None = None,
    default_args: Mapping[str, Any] | None = None,
    **group_args: Any,
) -> TaskGroup:
    """Add the tasks of one mirror to the DAG that is being built, as a task group.

    ``group >> after`` runs a task once the mirror is promoted or has ended. With ``run_for`` the next run is one of the
    whole DAG: the tasks before the group run in each of them, and those after it are skipped in all but the last.

    The DAG gets the Param ``takeover``, if it has none.

    :param spec: a spec with ``kind: mirror``; not None.
    :param group_id: default: the ``migration_id``, with ``_`` for dots. It begins the ids of all tasks.
    :param run_for: as in :func:`build_mirror_dag`. Unless it is None, the DAG needs ``max_active_runs=1``, and may have
        no other migration or mirror.
    :param task_args: additional operator arguments by task id without the group, as in :func:`build_mirror_dag`.
    :param default_args: as in :func:`~.dag.migration_task_group`.
    :param group_args: arguments of ``TaskGroup``.
    :raises SpecInvalid: with every mistake of the spec, or because it is one of a migration.
    :raises ValueError: as :func:`build_mirror_dag`; or the DAG does not fit ``run_for``, or there is no spec.
    :raises RuntimeError: no DAG is being built.
    """
    _check_run_for(run_for)
    parsed = _parsed(spec)
    plain = _plain(parsed)
    with open_group(
        plain,
        "mirror",
        last=MIRROR_PHASE.id,
        group_id=group_id,
        default_args=default_args,
        starts_runs=run_for is not None,
        **group_args,
    ) as group:
        defaults, docs = default_lists(group.dag, default_args), doc_in_group(TASK_DOCS, group)
        tasks = TaskMaker(plain, task_args or {}, defaults, docs=docs, operators=OPERATORS)
        _add_tasks(tasks, parsed, run_for)
    return group


def _check_run_for(run_for: timedelta | None) -> None:
    if run_for is not None and run_for < LEAST_RUN_FOR:
        raise ValueError(f"run_for is {run_for}, but a run has to mirror for at least {LEAST_RUN_FOR}")


def _add_tasks(tasks: TaskMaker, spec: MigrationSpec | None, run_for: timedelta | None) -> None:
    made: dict[str, Any] = {}
    above = None
    for row in ROWS:
        # The generic DAG has one structure for all its mirrors.
        if row.id == "schemas" and spec is not None and not spec.schemas.configured:
            continue
        own = {"run_for": run_for} if row is MIRROR_PHASE else {}
        made[row.id] = tasks.phase(row, None, **own)
        if above is not None:
            above >> made[row.id]
        above = made[row.id]
    if spec is None or spec.freezes_promotion:
        made[FREEZE_LIMIT.after] >> tasks.phase(FREEZE_LIMIT, run_for=run_for)
    if run_for is not None:
        made[MIRROR_PHASE.id] >> tasks.phase(NEXT_RUN)
    tasks.check_task_args()


VERIFY_DAG_ID = "kafka_mirror_verify"

VERIFY_DAG_DOC = f"""\
Compares the records of both sides of a mirror, on Spark. It only reads, and needs no claim: the mirror runs on beside
it, and may be paused, promoted or ended.

**One run is one comparison**, by hand or on a schedule. `{VERIFY.id}` is green if something was compared and all of it
is equal; else it is red and names the partitions. `kafka-migration mirror status` shows the last comparison.
"""


def build_mirror_verify_dag(
    spec: MigrationSpec | Mapping[str, Any] | None = None,
    *,
    dag_id: str | None = None,
    topics: Sequence[str] = (),
    last: int | None = None,
    task_args: TaskArgs | None = None,
    **dag_args: Any,
) -> DAG:
    """Build the DAG that compares one mirror, or with ``spec=None`` the generic one, which reads it from its Params.

    It uses no connection, variable or network, so it may be called at the top level of a DAG file.

    :param spec: the spec of the mirror, the same as for :func:`build_mirror_dag`.
    :param dag_id: default ``kafka_mirror_verify``, or ``kafka_mirror_verify_<migration_id>``.
    :param topics: regular expressions for whole topic names, on either side; empty: all. A run's Params may say
        otherwise.
    :param last: compare only so many last offsets of each partition; None: all that both sides still have.
    :param task_args: additional operator arguments by task id, as in :func:`~.dag.build_migration_dag`.
    :param dag_args: arguments of ``DAG``, for instance ``schedule="@daily"``; they override the defaults here.
    :raises SpecInvalid: with every mistake of the spec, or because it is one of a migration.
    :raises ValueError: ``task_args`` names a task that does not exist, or an argument that the task sets itself.
    """
    plain = _plain(_parsed(spec))
    kind = _verify_kind(topics, last)
    with DAG(**kind.dag_args(plain, dag_id, dag_args)) as dag:
        tasks = TaskMaker(
            plain,
            task_args or {},
            dag_args.get("default_args") or {},
            docs={VERIFY.id: VERIFY.doc},
            operators={VERIFY.id: KafkaMirrorVerifyOperator},
        )
        tasks.phase(VERIFY)
        tasks.check_task_args()
    return dag


def _verify_kind(topics: Sequence[str] = (), last: int | None = None) -> DagKind:
    return DagKind(
        generic_id=VERIFY_DAG_ID,
        title="Compare a Kafka mirror",
        description="Compares the records of both sides of a Kafka mirror",
        doc=VERIFY_DAG_DOC,
        tags=TAGS,
        generic_params=partial(verify_params, topics, last, generic=True),
        run_params=partial(verify_params, topics, last),
    )


def _parsed(spec: MigrationSpec | Mapping[str, Any] | None) -> MigrationSpec | None:
    if spec is None:
        return None
    return (spec if isinstance(spec, MigrationSpec) else parse_spec(spec)).check_kind("mirror")


def _plain(spec: MigrationSpec | None) -> dict[str, Any] | None:
    return None if spec is None else spec.model_dump(mode="json", exclude_unset=True)


def load_mirror_dags(
    namespace: MutableMapping[str, Any], folder: str | Path, *, task_args: TaskArgs | None = None, **dag_args: Any
) -> None:
    """Put one DAG per flow into a DAG file's ``globals()``: flows of each ``mirrors.yaml``, and specs of single flows.

    Files are independent, and so are the flows of a file: what has mistakes becomes an import error under the file's
    own path and a warning, and does not hide the others. Specs of migrations are left to
    :func:`~.dag.load_migration_dags`.
    """
    _KIND.load(namespace, folder, mirrors_in, build_mirror_dag, task_args=task_args, **dag_args)


def load_mirror_verify_dags(
    namespace: MutableMapping[str, Any], folder: str | Path, *, task_args: TaskArgs | None = None, **dag_args: Any
) -> None:
    """Put the DAG that compares each flow of a folder into a DAG file's ``globals()``.

    The files are those of :func:`load_mirror_dags`. ``topics``, ``last`` and ``schedule`` are the same for all flows.
    """
    _verify_kind().load(namespace, folder, mirrors_in, build_mirror_verify_dag, task_args=task_args, **dag_args)


def mirrors_in(file: Path) -> Iterator[MigrationSpec | Exception]:
    """Yield the specs of the flows in a YAML file, and the error of flows with mistakes; none if it is of migrations.

    :raises SpecInvalid: with every mistake of a spec of one flow.
    """
    data = read_yaml(file)
    if not is_of_mirrors(data):
        return
    if "flows" not in data and "clusters" not in data:
        yield parse_spec(data, path=str(file)).check_kind("mirror", path=str(file))
        return
    flows, error = parse_flows(data, path=str(file))
    yield from flows.values()
    if error is not None:
        yield error
