"""Migrations as DAGs: one builder for the generic DAG (Params), for a DAG per spec, and for a DAG per YAML file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TaskGroup, get_parsing_context
from airflow.sdk.configuration import conf

from airflow_provider_kafka_migration.broken_dag import BrokenMigration
from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.notifications.migration import MigrationNotifier
from airflow_provider_kafka_migration.operators.approval import ClientSwitchApprovalOperator, CutoverApprovalOperator
from airflow_provider_kafka_migration.operators.evidence import KafkaMigrationEvidenceOperator
from airflow_provider_kafka_migration.operators.freeze_limit import KafkaMigrationFreezeLimitOperator
from airflow_provider_kafka_migration.operators.migration import (
    KafkaMigrationCommitGroupsOperator,
    KafkaMigrationFinalDrainOperator,
    KafkaMigrationFloorGuardOperator,
    KafkaMigrationFreezeOperator,
    KafkaMigrationSentinelsOperator,
    KafkaMigrationSnapshotGroupsOperator,
    KafkaMigrationSyncGroupsOperator,
)
from airflow_provider_kafka_migration.operators.plan import KafkaMigrationPlanOperator
from airflow_provider_kafka_migration.operators.precheck import KafkaMigrationPrecheckOperator
from airflow_provider_kafka_migration.operators.rollback import KafkaMigrationRollbackOperator
from airflow_provider_kafka_migration.operators.seed import KafkaMigrationSeedOperator
from airflow_provider_kafka_migration.operators.tail import KafkaMigrationTailOperator
from airflow_provider_kafka_migration.operators.topology import KafkaMigrationTopologyOperator
from airflow_provider_kafka_migration.operators.validate import KafkaMigrationValidateOperator
from airflow_provider_kafka_migration.provider.params import journal_params, migration_params, run_params
from airflow_provider_kafka_migration.sensors.drain import KafkaMigrationDrainSensor
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec, parse_spec
from airflow_provider_kafka_migration.task_docs import DAG_DOC, ROLLBACK_DOC, TASK_DOCS

GENERIC_DAG_ID = "kafka_migration"
ROLLBACK_DAG_ID = "kafka_migration_rollback"
TAGS = ("kafka", "kafka-migration")

#: Generic DAG: each run is another migration. Two runs of one migration id are kept apart by the journal's claim.
GENERIC_ACTIVE_RUNS = 16

#: ``absolute``: by default Airflow gives a task the weights of all below it, so the hurry of the cutover would reach up
#: to the plan.
DEFAULT_ARGS: Mapping[str, Any] = {
    "owner": "kafka-migration",
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "weight_rule": "absolute",
}

#: While producers are frozen, a task of the cutover goes before all others that wait for a slot; so does what lifts a
#: freeze. Absolute: the weights must not add up in the tasks above, which are in no hurry.
_FIRST = {"priority_weight": 1000, "weight_rule": "absolute"}

#: Arguments that are lists of what to call: what the caller gives is called as well.
_LISTS = frozenset({"notifiers", "on_failure_callback", "on_retry_callback", "on_success_callback", "on_trouble"})
#: Tries of ``cutover.freeze_limit``, of at least a minute each: while it fails producers are frozen.
FREEZE_LIMIT_RETRIES = 60

TaskArgs = Mapping[str, Mapping[str, Any]]


class _Tasks:
    """Makes the tasks of one DAG: what they share, then what the caller gives for all, then for one task id.

    :param default_args: of the caller, for all tasks. Airflow uses them only where a task sets nothing itself, so its
        callbacks would be lost beside ours.
    """

    def __init__(self, spec: Mapping[str, Any] | None, task_args: TaskArgs, default_args: Mapping[str, Any]) -> None:
        self._spec = spec
        self._task_args = task_args
        self._default_lists = {name: value for name, value in default_args.items() if name in _LISTS}
        self.made: list[str] = []

    def __call__(self, operator: Any, task_id: str, group: TaskGroup | None = None, **given: Any) -> Any:
        full_id = f"{group.group_id}.{task_id}" if group else task_id
        arguments = {
            "spec": self._spec,
            "doc_md": TASK_DOCS[full_id],
            "on_failure_callback": [self.notifier("failed")],
            "task_group": group,
            **(_hurry() if full_id.startswith("cutover.") or full_id == "rollback" else {}),
            **given,
        }
        self._add(arguments, full_id, operator.fixed_arguments)
        self.made.append(full_id)
        return operator(task_id=task_id, **arguments)

    def _add(self, arguments: dict[str, Any], full_id: str, fixed: Collection[str]) -> None:
        """Add what the caller gives for a task; callbacks and notifiers come after ours, all else wins over it.

        As everywhere in Airflow, what is given for one task stands in the place of what is given for all.

        :raises ValueError: an argument that the operator would overwrite without a word.
        """
        more = self._task_args.get(full_id, {})
        shared = {name: value for name, value in self._default_lists.items() if arguments.get(name)}
        lost = sorted(set(more) & set(fixed))
        if lost:
            raise ValueError(f"task_args of {full_id} gives what the task sets itself: {', '.join(lost)}")
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
            raise ValueError(f"task_args names tasks that are not there: {', '.join(unknown)}")


def _as_list(value: Any) -> list[Any]:
    """What a caller gives where one, several or none may stand."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]


def _hurry() -> dict[str, Any]:
    """Arguments of the tasks for which producers wait: before all others, in the pool that is set up for them."""
    pool = conf.get("kafka_migration", "cutover_pool", fallback="")
    return {**_FIRST, **({"pool": pool} if pool else {})}


def build_migration_dag(
    spec: MigrationSpec | Mapping[str, Any] | None = None,
    *,
    dag_id: str | None = None,
    task_args: TaskArgs | None = None,
    **dag_args: Any,
) -> DAG:
    """The DAG of one migration, or with ``spec=None`` the generic one, which takes its migration from its Params.

    It reads no connection, variable or network, so it may be called at the top of a DAG file.

    :param dag_id: default ``kafka_migration``, or ``kafka_migration_<migration_id>``.
    :param task_args: more operator arguments by task id, for instance
        ``{"seed": {"pool": "source-cluster"}, "tail": {"executor_config": ...}}``. Arguments that the task sets
        itself are refused; callbacks and notifiers are added to ours.
    :param dag_args: arguments of ``DAG``; they win over the defaults here. ``default_args`` are merged, name by name;
        callbacks and notifiers in them are added to ours.
    :raises SpecInvalid: with every mistake of the spec. Secrets in plain text alone are a warning here: an open freeze
        needs its DAG. The tasks ``plan`` and ``precheck`` refuse them.
    :raises ValueError: ``task_args`` names a task that is not there, or an argument that the task sets itself.
    """
    plain = _plain(spec)
    with DAG(**_dag_args(plain, dag_id, dag_args)) as dag:
        tasks = _Tasks(plain, task_args or {}, dag_args.get("default_args") or {})
        _build(tasks, two_people=_wants_two_people(plain), in_one_task=_in_one_task(plain))
        tasks.check_task_args()
    return dag


def _plain(spec: MigrationSpec | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    parsed = spec if isinstance(spec, MigrationSpec) else _with_secrets_told(partial(parse_spec, spec))
    return parsed.model_dump(mode="json", exclude_unset=True)


def _with_secrets_told(read: Callable[..., MigrationSpec]) -> MigrationSpec:
    """A spec, also one with secrets in plain text, which an earlier version has accepted.

    Its DAG may have a run with frozen producers, and without a DAG nothing would watch their limit and roll back. New
    runs are refused by ``plan`` and ``precheck``.

    :raises SpecInvalid: with every mistake, if there is any other one.
    """
    try:
        return read()
    except SpecInvalid as error:
        try:
            spec = read(recorded=True)
        except SpecInvalid:
            raise error from None
        warnings.warn(f"{error}. The DAG is built for runs under way only: its `plan` refuses this spec", stacklevel=4)
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
    """One argument of the caller must not take the others away: without retries or weights a cutover is not safe."""
    return {**DEFAULT_ARGS, **(given.get("default_args") or {})}


def _build(tasks: _Tasks, *, two_people: bool, in_one_task: bool) -> None:
    plan = tasks(KafkaMigrationPlanOperator, "plan")
    precheck = tasks(KafkaMigrationPrecheckOperator, "precheck")
    topology = tasks(KafkaMigrationTopologyOperator, "topology_copy")
    seed = tasks(KafkaMigrationSeedOperator, "seed", on_trouble=[tasks.notifier("trouble")])
    tail = tasks(KafkaMigrationTailOperator, "tail", on_trouble=[tasks.notifier("trouble")])
    ready = tasks(
        KafkaMigrationDrainSensor,
        "drain_ready",
        on_success_callback=[tasks.notifier("drain_ready")],
        on_trouble=[tasks.notifier("trouble")],
    )
    plan >> precheck >> topology >> seed >> [tail, ready]

    approved = _approval(tasks, CutoverApprovalOperator, "approve_cutover", ready, two_people=two_people)
    freeze, commit_groups, guard = _cutover(tasks, ready)
    rollback = tasks(KafkaMigrationRollbackOperator, "rollback")
    # A failed cutover leaves the tail running: it is above commit_groups only, and nothing is above it but the seed.
    tail >> commit_groups
    approved >> [freeze, rollback]

    sync = tasks(KafkaMigrationSyncGroupsOperator, "sync_groups")
    # In one task the target is ready when the freeze's task ends: clients must not wait while five others start only
    # to confirm. The generic DAG has one shape for all runs, so there they wait.
    last = freeze if in_one_task else guard
    last >> sync
    switched = _approval(tasks, ClientSwitchApprovalOperator, "approve_client_switch", last, two_people=two_people)
    validate = tasks(KafkaMigrationValidateOperator, "validate")
    evidence = tasks(KafkaMigrationEvidenceOperator, "evidence", on_success_callback=[tasks.notifier("finalized")])
    switched >> validate >> evidence


def _approval(tasks: _Tasks, operator: Any, task_id: str, above: Any, *, two_people: bool) -> Any:
    """One approval, or two in a row for two different people. Returns the last one."""
    notifiers = [tasks.notifier("approval_wanted")]
    first = tasks(operator, task_id, notifiers=notifiers, awaits_second=two_people)
    above >> first
    if not two_people:
        return first
    second = tasks(operator, f"{task_id}_second", notifiers=notifiers, first_task_id=task_id)
    first >> second
    return second


def _cutover(tasks: _Tasks, ready: Any) -> tuple[Any, Any, Any]:
    """The group ``cutover``; its first task, the one that waits for the tail's end, and its last one."""
    group = TaskGroup("cutover", tooltip="Freeze, sentinels, final drain, consumer groups, floor guard")
    # Below drain_ready, so that it stands there, deferred, when the freeze begins: its start costs no frozen time.
    # While it cannot lift a freeze, Airflow retries it for ten minutes or more and notifies somebody each time.
    ready >> tasks(
        KafkaMigrationFreezeLimitOperator,
        "freeze_limit",
        group,
        retries=FREEZE_LIMIT_RETRIES,
        retry_delay=timedelta(seconds=10),
        on_retry_callback=[tasks.notifier("failed")],
    )
    freeze = tasks(KafkaMigrationFreezeOperator, "freeze", group)
    sentinels = tasks(KafkaMigrationSentinelsOperator, "sentinels", group)
    drain = tasks(KafkaMigrationFinalDrainOperator, "final_drain", group)
    snapshot = tasks(KafkaMigrationSnapshotGroupsOperator, "snapshot_groups", group)
    commit = tasks(KafkaMigrationCommitGroupsOperator, "commit_groups", group)
    guard = tasks(KafkaMigrationFloorGuardOperator, "floor_guard", group)
    freeze >> sentinels >> drain >> snapshot >> commit >> guard
    return freeze, commit, guard


def build_rollback_dag(*, dag_id: str = ROLLBACK_DAG_ID, **dag_args: Any) -> DAG:
    """A DAG of one task that rolls a migration back, for one whose own DAG run is gone or hangs.

    It reads the spec from the journal, so its Params only say where that is; it also takes the ``conf`` of the generic
    DAG. ``takeover`` is on, since it is another run than the migration's own.
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
        _Tasks(None, {}, dag_args.get("default_args") or {})(KafkaMigrationRollbackOperator, "rollback")
    return dag


def load_migration_dags(
    namespace: MutableMapping[str, Any], folder: str | Path, *, task_args: TaskArgs | None = None, **dag_args: Any
) -> None:
    """Put a DAG per YAML file of a folder into a DAG file's ``globals()``.

    Each file stands for itself: one with mistakes becomes an import error under its own path (see
    :mod:`~.broken_dag`) and a warning, and hides no other.
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
            f"the migration_id {migration_id!r} is also that of {seen[migration_id]}",
            where=Where(path=str(file)),
            next_step="give each migration its own id",
        )
    seen[migration_id] = file.name


def spec_files(folder: str | Path) -> list[Path]:
    """The YAML files of a folder, ascending; hidden ones are left out. Empty if there is no such folder."""
    found = [path for suffix in ("*.yaml", "*.yml") for path in Path(folder).glob(suffix)]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))
