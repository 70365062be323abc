"""The operators that run one phase each, including the steps of the group ``cutover``. Each is idempotent."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink, PlanLink
from airflow_provider_kafka_migration.operators.approval import MigrationApprovalOperator
from airflow_provider_kafka_migration.operators.spark_job import SparkMigrationOperator
from airflow_provider_kafka_migration.provider.compat import set_retry_policy
from airflow_provider_kafka_migration.provider.connections import check_references
from airflow_provider_kafka_migration.provider.lineage import TellsLineage
from airflow_provider_kafka_migration.provider.params import WAY_BACK, WITHDRAW_ACCESS, recorded_run_spec
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, plain_spec
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)


class MigrationOperator(MigrationTask, BaseOperator):
    """Runs one phase of a migration.

    The phase reads the journal first and only verifies earlier work, so every task may be cleared at any time.
    Terminal errors fail without a retry, regardless of ``retries``.

    :param spec: the migration (a mapping as in the YAML file, or a ``MigrationSpec``). None takes it from the Params
        of the run (the generic DAG).
    :param takeover: take the migration over from another owner.
    :param options: additional arguments of the phase.
    """

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        set_retry_policy(kwargs)
        super().__init__(**kwargs)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self.options = dict(options or {})

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase; XCom gets only pointers."""
        with self.open_migration(context) as migration:
            self.prepare(context, migration)
            result = migration.run(self.phase, **self.options)
            self.log.info("%s%s", "already done: " if result.already_done else "", result.summary)
            self.announce(context, migration)
            return self.pointers(migration, result)

    def prepare(self, context: Context, migration: Migration) -> None:
        """Check or wait for what the phase itself does not know of; does nothing by default."""

    def announce(self, context: Context, migration: Migration) -> None:
        """Announce that the phase is done; does nothing by default."""


class KafkaMigrationPhaseOperator(MigrationOperator):
    """Runs any phase of the table, for phases without an operator class of their own.

    :param phase: id of the phase.

    .. seealso:: docs/operators.md
    """

    fixed_arguments = MigrationOperator.fixed_arguments | {"phase"}

    def __init__(self, *, phase: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.phase = phase


class KafkaMigrationPlanOperator(MigrationOperator):
    """Builds ``plan.json`` and its digest from the spec and the live clusters. Writes to neither cluster.

    .. seealso:: docs/operators.md
    """

    phase = "plan"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), PlanLink())

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, unless this DAG cannot end the migration.

        :raises SpecInvalid: the spec asks two people, but the DAG has no task for the second one.
        :raises ReferencesUnfit: Spark's processes could not get the connections.
        """
        spec = self.migration_spec(context)
        _check_second_approval(self, spec, context)
        check_references(spec)
        return super().execute(context)


def _check_second_approval(plan: MigrationTask, spec: MigrationSpec, context: Context) -> None:
    """Check that a second approval is possible now, rather than just before the producers are frozen."""
    dag = context.get("dag")
    approvals = [
        task
        for task in getattr(dag, "tasks", ())
        if isinstance(task, MigrationApprovalOperator) and task.group_prefix == plan.group_prefix
    ]
    if spec.approvals.second_users and approvals and not any(task.first_task_id for task in approvals):
        raise SpecInvalid(
            "approvals.second_users asks two people, but this DAG has no approval tasks for the second one",
            where=Where(migration_id=spec.migration_id, path="approvals.second_users"),
            next_step="use a DAG built from the spec (a YAML file, build_migration_dag, migration_task_group), "
            "or remove this key",
        )


class KafkaMigrationSparkCheckOperator(SparkMigrationOperator):
    """Asks the Spark driver and its executors whether a copy would work there, before anything is written.

    A small Spark job looks at versions, settings, clocks, and whether every broker and the storage can be reached. The
    precheck makes findings of what it saw. Where the master is local, only the settings are checked, without a job.

    .. seealso:: docs/operators.md
    """

    phase = "spark_check"

    # The job is short, and the phase turns an error of it into a finding while it waits.
    may_defer = False


class KafkaMigrationPrecheckOperator(MigrationOperator):
    """Checks for anything that would stop the migration, and probes what the target accepts. Read-only on the source.

    The task's log lists all findings, with their codes and what to do. Blockers fail the task; clear it when they are
    resolved. Warnings may be waived by their codes in the spec.

    .. seealso:: docs/operators.md
    """

    phase = "precheck"

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase.

        :raises ReferencesUnfit: Spark's processes could not get the connections.
        """
        check_references(self.migration_spec(context))
        return super().execute(context)


class KafkaMigrationTopologyOperator(MigrationOperator):
    """Creates topics, configs, ACLs and quotas on the target, and moves its log starts to the source's.

    Copy-time settings are journaled before they are set, so that a crash loses none of them.

    .. seealso:: docs/operators.md
    """

    phase = "topology_copy"


class KafkaMigrationSchemasOperator(MigrationOperator):
    """Copies the schemas from the source's registry to the target's; does nothing if the spec names no registries.

    Modes of the target's registry are journaled before they are set, so that a crash loses none of them.

    .. seealso:: docs/operators.md
    """

    phase = "schemas"


class KafkaMigrationSeedOperator(TellsLineage, SparkMigrationOperator):
    """Copies everything up to the source's end offsets at its first start.

    Killed at any moment and cleared, it continues from the target's end. It reports to OpenLineage which topics it read
    and wrote.

    .. seealso:: docs/operators.md
    """

    phase = "seed"


class KafkaMigrationTailOperator(TellsLineage, SparkMigrationOperator):
    """Follows the source from the target's end, until it reaches the stop offsets that the cutover sets.

    It runs alongside ``drain_ready``, the approval and the cutover, so the executor needs two slots. It waits at its
    stop for the end of the cutover, and goes on if the freeze is lifted. It reports to OpenLineage which topics it read
    and wrote.

    .. seealso:: docs/operators.md
    """

    phase = "tail"

    def _goes_on(self, context: Context, migration: Migration) -> bool:
        """Wait for the end of the cutover, unless there are tasks that wait for the end of this one."""
        from airflow_provider_kafka_migration.freeze.one_task import tail_goes_on

        if self.downstream_task_ids:
            return False
        return tail_goes_on(migration.context, is_waited_for=partial(_waits_for_tail, self, context))


def _waits_for_tail(tail: MigrationTask, context: Context) -> bool:
    """Whether the next task does not start although the one before it has ended: it may wait for the tail's task.

    A run keeps the graph with which it began where its DAG bundle has versions. The scheduler follows that one, and
    this process sees only the graph of the present release.
    """
    run, before, following = context["ti"], tail.beside(_BEFORE), tail.beside(_NEXT)
    try:
        found = run.get_task_states(dag_id=run.dag_id, task_ids=[before, following], run_ids=[run.run_id])
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say whether %s waits: %s", following, error)
        return False
    states = found.get(run.run_id, {})
    return states.get(before) == "success" and states.get(following, "unknown") is None


#: Alias of the asset events which signal that this migration's target is ready for its clients.
CUTOVER_ALIAS = "kafka-migration-cutover"

#: The task of the cutover that needs the end of the tail, and the one before it.
_BEFORE, _NEXT = "cutover.snapshot_groups", "cutover.commit_groups"
#: The task that keeps the limit of a freeze when the tasks of the cutover have died.
_WATCH = "cutover.freeze_limit"
#: States of a task that does nothing any more.
_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})

#: In these states a cleared guard has nothing new to announce: DAGs that wait for the event already got it.
_SWITCHED = frozenset({State.VALIDATING, State.FINALIZED, State.ROLLED_BACK})


def cutover_asset(migration_id: str) -> Asset:
    """Return the asset of one migration. Other DAGs can use it: ``schedule=[cutover_asset("orders")]``."""
    return Asset(name=f"kafka-migration/{migration_id}/cutover", uri=f"kafka-migration://{migration_id}/cutover")


class _EndsCutover(MigrationOperator):
    """A task that may run the last step of the cutover. It emits the asset event that the target is ready."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # In addition to the caller's outlets: without the alias the event cannot be emitted.
        self.outlets = [AssetAlias(CUTOVER_ALIAS), *(self.outlets or [])]

    def _say_ready(self, context: Context, migration: Migration) -> None:
        """Emit the event at least once, but no longer after the clients have switched."""
        if migration.context.journal.tip_state in _SWITCHED:
            return
        events = context["outlet_events"][AssetAlias(CUTOVER_ALIAS)]
        events.add(cutover_asset(migration.spec.migration_id), extra={"journal": self.storage_uris["journal"]})


class KafkaMigrationFreezeOperator(_EndsCutover):
    """Stops the producers of the source (webhook, ACLs or a person's word) and verifies that they no longer write.

    With ``cutover.in_one_task`` it runs all other steps of the cutover as well, in its own process, so that producers
    do not wait for an executor, and emits the asset event. The downstream tasks then find their steps done.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.freeze"

    def prepare(self, context: Context, migration: Migration) -> None:
        """Check that the task which watches the freeze's limit runs, before a freeze begins.

        :raises FreezeFailed: it has ended, for instance because it had to lift the freeze before.
        """
        migration.context.journal.refresh()
        attempt = migration.context.record.freeze()
        if attempt is not None and not attempt.lifted:
            return
        watch = self.beside(_WATCH)
        if watch not in getattr(context.get("dag"), "task_ids", ()):
            return
        run = context["ti"]
        states = run.get_task_states(dag_id=run.dag_id, task_ids=[watch], run_ids=[run.run_id])
        state = states.get(run.run_id, {}).get(watch)
        if state in _ENDED:
            from airflow_provider_kafka_migration.phases.freeze import unwatched

            raise unwatched(migration.context, watch, state)

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, or all steps of the cutover."""
        if not self.migration_spec(context).cutover.in_one_task:
            return super().execute(context)
        with self.open_migration(context) as migration:
            self.prepare(context, migration)
            result = migration.run_cutover(lambda step: self.log.info("%s", step.summary))
            self._say_ready(context, migration)
            return self.pointers(migration, result)


class KafkaMigrationSentinelsOperator(MigrationOperator):
    """Writes one sentinel record to the end of each source partition, once, or records the end offsets.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.sentinels"


class KafkaMigrationFinalDrainOperator(MigrationOperator):
    """Sets the tail's stop offsets, and waits until the target has everything up to there.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.final_drain"


class KafkaMigrationSnapshotGroupsOperator(MigrationOperator):
    """Reads the committed offsets of all selected consumer groups and translates them.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.snapshot_groups"


class KafkaMigrationCommitGroupsOperator(MigrationOperator):
    """Commits the translated offsets: only where the group is empty on the target, never backwards.

    It waits until the tail has journaled that it has reached its stop.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.commit_groups"

    def prepare(self, context: Context, migration: Migration) -> None:
        """Wait for the tail.

        :raises FreezeFailed: the tail did not end within the freeze's limit; the freeze is lifted.
        """
        migration.wait_for_tail()


class KafkaMigrationFloorGuardOperator(_EndsCutover):
    """Checks log start and end of every target partition; after this the clients may switch.

    It emits an asset event through the alias ``kafka-migration-cutover`` (see :func:`cutover_asset`). With
    ``cutover.in_one_task`` the freeze task runs this step and emits the event instead.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.floor_guard"

    def announce(self, context: Context, migration: Migration) -> None:
        """Announce that the target is ready."""
        if not self.migration_spec(context).cutover.in_one_task:
            self._say_ready(context, migration)


class KafkaMigrationSyncGroupsOperator(MigrationOperator):
    """Keeps the groups' translations fresh until the client switch is acknowledged, alongside the approval.

    Consumers may continue to read the source until they switch. Only groups that are idle on the target are moved, and
    only forward. The acknowledgement itself makes the last sync, so a failure here loses nothing.

    .. seealso:: docs/operators.md
    """

    phase = "sync_groups"


class KafkaMigrationValidateOperator(SparkMigrationOperator):
    """Runs the eight checks; two of them compare the content of all records, on Spark.

    .. seealso:: docs/operators.md
    """

    phase = "validate"
    runner_argument = "verifier"


class KafkaMigrationRollbackOperator(MigrationOperator):
    """Ends a migration before its cutover: stops the tail, lifts a freeze, resets what was changed for the copy.

    If the task has no spec, it reads the spec from the journal that the run's Params name. Topics and data on the
    target stay and are listed in ``rollback-report.json``. Once clients may switch, a rollback is refused without
    claiming the migration.

    .. seealso:: docs/operators.md
    """

    phase = "rollback"
    takes_recorded = True

    def migration_spec(self, context: Context) -> MigrationSpec:
        """The task's own spec, or the one in the journal.

        :raises IllegalTransition: the migration does not exist.
        """
        if self.spec is None and not context["params"].get(WAY_BACK):
            return recorded_run_spec(context["params"])
        return super().migration_spec(context)

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase; the run's Params say whether access on the target is withdrawn."""
        self.options.setdefault(WITHDRAW_ACCESS, bool(context["params"].get(WITHDRAW_ACCESS)))
        return super().execute(context)

    def told_spec(self, context: Context) -> MigrationSpec:
        """Return the same spec: the run's Params alone are not a spec."""
        return self.migration_spec(context)


class KafkaMigrationAbandonOperator(MigrationOperator):
    """Ends a migration whose clients were told to switch and have not, after *Back out*; they stay on the source.

    It frees the producers of the source first, which needs neither the target nor the person again.

    .. seealso:: docs/operators.md
    """

    phase = "abandon"
    takes_recorded = True


class KafkaMigrationEvidenceOperator(MigrationOperator):
    """Signs the evidence bundle, uploads it and finalizes the migration.

    .. seealso:: docs/operators.md
    """

    phase = "evidence"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), EvidenceLink())
