"""The operators of a mirror. Those before ``mirror`` are a migration's, for specs of the other kind."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, Transient
from airflow_provider_kafka_migration.operators.freeze_limit import KafkaMigrationFreezeLimitOperator
from airflow_provider_kafka_migration.operators.migration import (
    KafkaMigrationPlanOperator,
    KafkaMigrationPrecheckOperator,
    KafkaMigrationSchemasOperator,
    KafkaMigrationSeedOperator,
    KafkaMigrationSparkCheckOperator,
    KafkaMigrationTopologyOperator,
)
from airflow_provider_kafka_migration.operators.spark_job import SparkMigrationOperator
from airflow_provider_kafka_migration.provider.lineage import TellsLineage
from airflow_provider_kafka_migration.provider.params import Kind
from airflow_provider_kafka_migration.provider.task import MigrationTask, plain_spec
from airflow_provider_kafka_migration.state import State, mirror_name
from airflow_provider_kafka_migration.triggers.drain import event_error
from airflow_provider_kafka_migration.triggers.mirror import MirrorJobTrigger, MirrorPausedTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.engines.run import EngineRunner
    from airflow_provider_kafka_migration.jobs.submissions import Submission
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.provider.progress import ProgressSink
    from airflow_provider_kafka_migration.record.context import PhaseResult
    from airflow_provider_kafka_migration.spec import MigrationSpec
    from airflow_provider_kafka_migration.triggers.spark_job import SparkJobTrigger


class MirrorTask(MigrationTask):
    """Mixin for the tasks of a mirror. A mirror that was ended needs neither its source nor any further phase."""

    spec_kind: ClassVar[Kind] = "mirror"

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, unless the mirror has ended or shall end; XCom gets only pointers."""
        ended = self._ended(context)
        if ended is not None:
            return ended
        found: dict[str, Any] = super().execute(context)  # type: ignore[misc]
        return found

    def _ended(self, context: Context) -> dict[str, Any] | None:
        with self.open_migration(context) as migration:
            state, phase = _present(migration)
            if state is State.PROMOTED:
                # A promotion may have left something that it tries again.
                phase = "finish"
            elif state is not None and state.is_terminal:
                return self.pointers(migration, _already(state))
            return self.pointers(migration, migration.run(phase)) if phase == "finish" else None

    def pointers(self, migration: Migration, result: PhaseResult) -> dict[str, Any]:
        """Return what goes into XCom, with the state of a mirror that is paused or has ended."""
        state = result.details.get("state")
        return {**super().pointers(migration, result), **({"state": state} if state else {})}


def _present(migration: Migration) -> tuple[State | None, str | None]:
    """Return the mirror's state, and the phase that carries out the last request. Contacts no cluster."""
    from airflow_provider_kafka_migration.mirrors import requests
    from airflow_provider_kafka_migration.mirrors.driving import next_phase

    state = migration.status().state
    return state, next_phase(state, requests.read(migration.journal_store, migration.spec.migration_id))


def _already(state: State) -> PhaseResult:
    from airflow_provider_kafka_migration.record.context import PhaseResult

    return PhaseResult("mirror", f"the mirror is {mirror_name(state)}", {"state": state.value}, already_done=True)


class KafkaMirrorPlanOperator(MirrorTask, KafkaMigrationPlanOperator):
    """Builds ``plan.json`` of a mirror from the spec and the live clusters. Writes to neither cluster.

    .. seealso:: docs/operators.md
    """


class KafkaMirrorSparkCheckOperator(MirrorTask, KafkaMigrationSparkCheckOperator):
    """Asks the Spark driver and its executors whether a mirror would work there, before anything is written.

    .. seealso:: docs/operators.md
    """


class KafkaMirrorPrecheckOperator(MirrorTask, KafkaMigrationPrecheckOperator):
    """Checks for anything that would stop the mirror, and probes what the target accepts. Read-only on the source.

    .. seealso:: docs/operators.md
    """


class KafkaMirrorTopologyOperator(MirrorTask, KafkaMigrationTopologyOperator):
    """Creates the remote topics with their configs and ACLs on the target.

    .. seealso:: docs/operators.md
    """


class KafkaMirrorSchemasOperator(MirrorTask, KafkaMigrationSchemasOperator):
    """Copies the schemas from the source's registry to the target's, before the first record.

    .. seealso:: docs/operators.md
    """


class KafkaMirrorSeedOperator(MirrorTask, KafkaMigrationSeedOperator):
    """Copies everything up to the source's end offsets at its first start.

    .. seealso:: docs/operators.md
    """


class KafkaMirrorOperator(MirrorTask, TellsLineage, SparkMigrationOperator):
    """Mirrors until a person promotes or ends the mirror; then the task succeeds. Paused, it waits deferred.

    Requests of people (``kafka-migration mirror pause | resume | promote | end``) reach the task through the storage,
    within seconds in any of its states. A failure that may pass is tried again: for ``patience_seconds`` in the task
    itself, and then by Airflow. Killed at any moment, the next attempt carries out the last request.

    :param deferrable: give the slot away while a detached job runs. With ``spark-submit`` in client mode the driver is
        a child of the task, which holds its slot.
    :param waits_deferred: False waits in the worker while the mirror is paused, for an Airflow without a triggerer.
    :param poll_seconds: how often a paused mirror's request is looked at.
    :param patience_seconds: how long one attempt of the task tries again after failures that may pass.
    :param kwargs: arguments of :class:`~.spark_job.SparkMigrationOperator`.

    .. seealso:: docs/operators.md
    """

    phase = "mirror"
    copy_name = "mirror"
    #: Because it runs for years, across upgrades. A new mirror runs the strict tasks ``plan`` and ``precheck`` first.
    takes_recorded = True

    def __init__(
        self,
        *,
        deferrable: bool = True,
        waits_deferred: bool = True,
        poll_seconds: float = 2.0,
        patience_seconds: float = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, **kwargs)
        self.waits_deferred = waits_deferred
        self.poll_seconds = poll_seconds
        self.patience_seconds = patience_seconds
        self._known_request: int | None = None

    # -- attempts ----------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Mirror, or carry out what was asked for while no task ran.

        :raises MigrationError: a person has to change something, or it has failed for too long.
        """
        return self._settled(context, self._attempts(context))

    def resume(
        self, context: Context, event: dict[str, Any], *, submission: dict[str, Any], memory: dict[str, Any]
    ) -> dict[str, Any]:
        """Continue after a deferral, as any Spark task; a pause is no end."""
        return self._settled(context, super().resume(context, event, submission=submission, memory=memory))

    def go_on(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after a pause."""
        error = event_error(event)
        if error is not None:
            self.log.warning("The triggerer could not look for requests any more, so this task looks: %s", error)
        return self.execute(context)

    def _settled(self, context: Context, pointers: dict[str, Any]) -> dict[str, Any]:
        """Return the pointers of a mirror that has ended; wait for the next request of a paused one."""
        while pointers.get("state") == State.PAUSED.value:
            self.log.info("The mirror is paused. It goes on after: kafka-migration mirror resume")
            self._wait_for_resume(context)
            pointers = self._attempts(context)
        return pointers

    def _wait_for_resume(self, context: Context) -> None:
        spec = self.migration_spec(context)
        if self.waits_deferred:
            trigger = MirrorPausedTrigger(spec=plain_spec(spec) or {}, poll_seconds=self.poll_seconds)
            self.defer(trigger=trigger, method_name="go_on")
        while not self._is_asked(context):
            time.sleep(self.poll_seconds)

    def _is_asked(self, context: Context) -> bool:
        """Return whether there is something to do but to wait."""
        try:
            with self.open_migration(context) as migration:
                state, phase = _present(migration)
        except Transient as error:
            self.log.warning("Requests cannot be looked for: %s", error)
            return False
        return phase is not None or (state is not None and state.is_terminal)

    def _attempts(self, context: Context) -> dict[str, Any]:
        """Try until an attempt succeeds, each time with freshly read connections.

        Airflow keeps a log and a row for each of its own attempts, so a short outage does not make hundreds of them.
        """
        from airflow_provider_kafka_migration.mirrors.driving import LONG_SECONDS, Pauses

        pauses, failing_since = Pauses(), None
        while True:
            began = time.monotonic()
            try:
                return self._attempt(context)
            except Interrupted:
                raise
            except Transient as error:
                now = time.monotonic()
                if failing_since is None or now - began >= LONG_SECONDS:
                    failing_since = now
                pause = pauses.after(now - began)
                if now + pause - failing_since >= self.patience_seconds:
                    raise
                self.log.warning("The mirror has stopped copying and goes on in %.0f s: %s", pause, error)
                time.sleep(pause)

    def _attempt(self, context: Context) -> dict[str, Any]:
        runner = self.make_runner(context, self.migration_spec(context))
        with self.open_migration(context, runner=runner) as migration:
            state, phase = _present(migration)
            if phase is None:
                assert state is not None
                return self.pointers(migration, _already(state))
            if phase == "finish":
                return self._done(migration, migration.run(phase))
            if self.deferrable and runner.engine.detached:
                step = migration.start_job(self.phase)
                self._starts(migration)
                return self._advance(context, migration, runner, step, {})
            self._starts(migration)
            return self._done(migration, migration.run(self.phase))

    # -- while the job runs ------------------------------------------------------------------------------------------

    def _wake(
        self,
        context: Context,
        migration: Migration,
        runner: EngineRunner,
        submission: Submission,
        memory: dict[str, Any],
    ) -> bool:
        from airflow_provider_kafka_migration.mirrors import requests

        try:
            # Before it is acted upon: a request that comes later is a new one for the trigger.
            found = requests.read(migration.journal_store, migration.spec.migration_id)
            self._known_request = found.number
        except MigrationError as error:
            self.log.warning("The last request could not be read, the next part tries again: %s", error)
        return super()._wake(context, migration, runner, submission, memory)

    def _beat(self, spec: MigrationSpec) -> timedelta:
        state = spec.mirror.state_topics
        beats = [
            spec.topology.refresh_interval,
            *([spec.mirror.sync_interval] if spec.mirror.sync_groups else []),
            # To keep the limit of a freeze, and to look whether the copiers are close enough to begin one.
            *([spec.cutover.max_producer_freeze] if spec.freezes_promotion else []),
            *([state.checkpoints_interval] if state.checkpoints else []),
            *([state.heartbeats_interval] if state.heartbeats else []),
        ]
        return min(beats)

    def _job_trigger(self, spec: MigrationSpec, **arguments: Any) -> SparkJobTrigger:
        return MirrorJobTrigger(spec=plain_spec(spec) or {}, known_request=self._known_request, **arguments)

    def progress_sink(self, context: Context) -> ProgressSink:
        """Return the sink of all tasks; people know the copy, and the sync of groups, by the name of this task."""
        return super().progress_sink(context).named({"tail": self.phase, "cutover": self.phase})


class KafkaMirrorFreezeLimitOperator(KafkaMigrationFreezeLimitOperator):
    """Calls off a promotion whose freeze lasts longer than ``max_producer_freeze`` when the task ``mirror`` does not.

    It runs for as long as the mirror does, deferred: the triggerer reads the journal, and the task takes no slot. Then
    the mirror goes on, and so does this task. It succeeds once the mirror is promoted or has ended, and immediately
    for a mirror that stops no producers.

    .. seealso:: docs/operators.md
    """

    phase = "freeze_limit"
    spec_kind: ClassVar[Kind] = "mirror"


#: Classes by the id of their row in the table of a mirror.
OPERATORS: Mapping[str, Any] = {
    item.phase: item
    for item in (
        KafkaMirrorPlanOperator,
        KafkaMirrorSparkCheckOperator,
        KafkaMirrorPrecheckOperator,
        KafkaMirrorTopologyOperator,
        KafkaMirrorSchemasOperator,
        KafkaMirrorSeedOperator,
        KafkaMirrorOperator,
        KafkaMirrorFreezeLimitOperator,
    )
}
