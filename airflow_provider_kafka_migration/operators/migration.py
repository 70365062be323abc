"""The tasks of the group ``cutover``: its protocol, one step each, each idempotent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, Context

from airflow_provider_kafka_migration.operators.base import MigrationOperator
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.migration import Migration

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
