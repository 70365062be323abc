"""The tasks of the group ``cutover``: its protocol, one step each, each idempotent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator, BaseOperatorLink, Context

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink, PlanLink
from airflow_provider_kafka_migration.operators.approval import MigrationApprovalOperator
from airflow_provider_kafka_migration.provider.lineage import TellsLineage
from airflow_provider_kafka_migration.provider.params import recorded_run_spec
from airflow_provider_kafka_migration.provider.spark_job import SparkMigrationOperator
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, migration_retry_policy, plain_spec
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.migration import Migration
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.spec import MigrationSpec
if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Migration


# -- base -------------------------------------------------------------------------------------------------------------
#
# The 20-line skin around one phase.


class MigrationOperator(MigrationTask, BaseOperator):
    """Runs one phase of a migration.

    The phase reads the journal first: what was done before is verified and answered at once, so every task may be
    cleared at any time. Terminal errors fail without a retry, whatever ``retries`` says.

    :param spec: the migration (a mapping as in the YAML file, or a ``MigrationSpec``). None takes it from the Params
        of the run (the generic DAG).
    :param takeover: take the migration over from another owner.
    :param options: more arguments of the phase.
    """

    template_fields: Sequence[str] = ("spec",)
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(),)

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", migration_retry_policy())
        super().__init__(**kwargs)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self.options = dict(options or {})

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase; XCom gets pointers only."""
        with self.open_migration(context) as migration:
            result = migration.run(self.phase, **self.options)
            self.log.info("%s%s", "already done: " if result.already_done else "", result.summary)
            self.announce(context, migration)
            return self.pointers(migration, result)

    def announce(self, context: Context, migration: Migration) -> None:
        """Tell others that the phase is done; by default nobody."""


# -- plan -------------------------------------------------------------------------------------------------------------
#
# Task ``plan``.


class KafkaMigrationPlanOperator(MigrationOperator):
    """Makes ``plan.json`` from the spec and the live clusters, and its digest. Writes to neither cluster.

    .. seealso:: docs/operators.md
    """

    phase = "plan"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), PlanLink())

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, unless this DAG cannot end the migration.

        :raises SpecInvalid: the spec asks two people, and the DAG has no task for the second one.
        """
        _check_second_approval(self.migration_spec(context), context)
        return super().execute(context)


def _check_second_approval(spec: MigrationSpec, context: Context) -> None:
    """Said at the start, and not when the producers are about to be frozen."""
    dag = context.get("dag")
    approvals = [task for task in getattr(dag, "tasks", ()) if isinstance(task, MigrationApprovalOperator)]
    if spec.approvals.second_users and approvals and not any(task.first_task_id for task in approvals):
        raise SpecInvalid(
            "approvals.second_users asks two people, but this DAG has no approval tasks for the second one",
            where=Where(migration_id=spec.migration_id, path="approvals.second_users"),
            next_step="use a DAG built from the spec (a YAML file, or build_migration_dag(spec)), or leave it out",
        )


# -- precheck ---------------------------------------------------------------------------------------------------------
#
# Task ``precheck``.


class KafkaMigrationPrecheckOperator(MigrationOperator):
    """Looks for what would stop the migration, and probes what the target accepts. Read-only on the source.

    All findings are in the task's log, with their codes and what to do. Blockers fail the task; clear it when they are
    gone. Warnings may be waived by their codes in the spec.

    .. seealso:: docs/operators.md
    """

    phase = "precheck"


# -- topology ---------------------------------------------------------------------------------------------------------
#
# Task ``topology_copy``.


class KafkaMigrationTopologyOperator(MigrationOperator):
    """Creates topics, configs, ACLs and quotas on the target, and takes its logs to the source's log starts.

    Copy-time settings are journaled before they are set, so that a crash loses none of them.

    .. seealso:: docs/operators.md
    """

    phase = "topology_copy"


# -- seed -------------------------------------------------------------------------------------------------------------
#
# Task ``seed``.


class KafkaMigrationSeedOperator(TellsLineage, SparkMigrationOperator):
    """Copies everything up to the source's end offsets as seen when it first started.

    Killed at any moment and cleared, it goes on from the target's end. It tells OpenLineage which topics it read and
    wrote.

    .. seealso:: docs/operators.md
    """

    phase = "seed"
    main = "seed.py"


# -- tail -------------------------------------------------------------------------------------------------------------
#
# Task ``tail``.


class KafkaMigrationTailOperator(TellsLineage, SparkMigrationOperator):
    """Follows the source from where the target ends, until the cutover says where to stop and that is reached.

    It runs beside ``drain_ready`` and the approval, so the executor needs two slots. A failed cutover leaves it
    running. It tells OpenLineage which topics it read and wrote.

    .. seealso:: docs/operators.md
    """

    phase = "tail"
    main = "tail.py"


# -- migration --------------------------------------------------------------------------------------------------------


#: Alias of the asset events that say: this migration's target is ready for its clients.
CUTOVER_ALIAS = "kafka-migration-cutover"

#: A guard that is cleared now tells nothing new: DAGs that wait for the event have had it.
_SWITCHED = frozenset({State.VALIDATING, State.FINALIZED, State.ROLLED_BACK})


def cutover_asset(migration_id: str) -> Asset:
    """The asset of one migration. Other DAGs are scheduled on it: ``schedule=[cutover_asset("orders")]``."""
    return Asset(name=f"kafka-migration/{migration_id}/cutover", uri=f"kafka-migration://{migration_id}/cutover")


class _EndsCutover(MigrationOperator):
    """A task that may run the last step of the cutover: it emits the asset event of the target that is ready."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Besides the caller's own outlets: without the alias the event cannot be emitted.
        self.outlets = [AssetAlias(CUTOVER_ALIAS), *(self.outlets or [])]

    def _say_ready(self, context: Context, migration: Migration) -> None:
        """At least once, and not any more when the clients have switched."""
        if migration.context.journal.tip_state in _SWITCHED:
            return
        events = context["outlet_events"][AssetAlias(CUTOVER_ALIAS)]
        events.add(cutover_asset(migration.spec.migration_id), extra={"journal": self.storage_uris["journal"]})


class KafkaMigrationFreezeOperator(_EndsCutover):
    """Stops the producers of the source (webhook, ACLs or a person's word) and verifies that they stand still.

    With ``cutover.in_one_task`` it runs all other steps of the cutover as well, in its own process, so that producers
    do not wait for an executor, and emits the asset event. The tasks below it then find their steps done.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.freeze"

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, or all steps of the cutover."""
        if not self.migration_spec(context).cutover.in_one_task:
            return super().execute(context)
        with self.open_migration(context) as migration:
            result = migration.run_cutover(lambda step: self.log.info("%s", step.summary))
            self._say_ready(context, migration)
            return self.pointers(migration, result)


class KafkaMigrationSentinelsOperator(MigrationOperator):
    """Writes one sentinel record to the end of each source partition, once, or notes the end offsets.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.sentinels"


class KafkaMigrationFinalDrainOperator(MigrationOperator):
    """Tells the tail where to stop, and waits until the target has everything up to there.

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

    .. seealso:: docs/operators.md
    """

    phase = "cutover.commit_groups"


class KafkaMigrationFloorGuardOperator(_EndsCutover):
    """Checks log start and end of every target partition; after it the clients may switch.

    It emits an asset event through the alias ``kafka-migration-cutover`` (see :func:`cutover_asset`), except where
    ``cutover.in_one_task`` had the freeze's task run this step and emit it.

    .. seealso:: docs/operators.md
    """

    phase = "cutover.floor_guard"

    def announce(self, context: Context, migration: Migration) -> None:
        """Say that the target is ready."""
        if not self.migration_spec(context).cutover.in_one_task:
            self._say_ready(context, migration)


class KafkaMigrationSyncGroupsOperator(MigrationOperator):
    """Keeps the groups' translations fresh until the client switch is acknowledged, beside the approval.

    Consumers may go on reading the source until they switch. Only groups that are idle on the target are moved, and
    only forward. The last sync is made by the acknowledgement itself, so a failure here loses nothing.

    .. seealso:: docs/operators.md
    """

    phase = "sync_groups"


# -- validate ---------------------------------------------------------------------------------------------------------
#
# Task ``validate``.


class KafkaMigrationValidateOperator(SparkMigrationOperator):
    """The six checks; the third compares the content of all records, on Spark.

    .. seealso:: docs/operators.md
    """

    phase = "validate"
    main = "verify.py"
    runner_argument = "verifier"


# -- rollback ---------------------------------------------------------------------------------------------------------
#
# Task ``rollback``, also a DAG of its own.


class KafkaMigrationRollbackOperator(MigrationOperator):
    """Ends a migration before its cutover: stops the tail, lifts a freeze, puts back what was changed for the copy.

    Without a spec of its own it reads the migration's spec from the journal, which the run's Params name. Topics and
    data on the target stay and are listed in ``rollback-report.json``. Once clients may switch it is refused, and
    nothing is claimed.

    .. seealso:: docs/operators.md
    """

    phase = "rollback"
    takes_recorded = True

    def migration_spec(self, context: Context) -> MigrationSpec:
        """The task's own spec, or the one in the journal.

        :raises IllegalTransition: there is no such migration.
        """
        if self.spec is None:
            return recorded_run_spec(context["params"])
        return super().migration_spec(context)

    def told_spec(self, context: Context) -> MigrationSpec:
        """The same: the run's Params alone are no spec."""
        return self.migration_spec(context)


# -- evidence ---------------------------------------------------------------------------------------------------------
#
# Task ``evidence``.


class KafkaMigrationEvidenceOperator(MigrationOperator):
    """Signs the evidence bundle, uploads it and finalizes the migration.

    .. seealso:: docs/operators.md
    """

    phase = "evidence"
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), EvidenceLink())
