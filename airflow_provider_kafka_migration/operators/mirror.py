"""The operators of a mirror. Those before ``mirror`` are a migration's, for specs of the other kind."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.utils.skipmixin import SkipMixin

from airflow_provider_kafka_migration.errors import (
    CREDENTIALS_REFUSED,
    UNREADABLE,
    Interrupted,
    MigrationError,
    Transient,
)
from airflow_provider_kafka_migration.mirror_table import MIRROR_PHASE, NEXT_RUN
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
from airflow_provider_kafka_migration.provider.run_chain import (
    RUN_IS_OVER,
    ends_at,
    follows_another,
    is_followed,
    is_over,
)
from airflow_provider_kafka_migration.provider.task import MigrationTask, plain_spec, run_spec
from airflow_provider_kafka_migration.state import State, mirror_name
from airflow_provider_kafka_migration.triggers.drain import event_error
from airflow_provider_kafka_migration.triggers.mirror import MirrorJobTrigger, MirrorPausedTrigger
from airflow_provider_kafka_migration.triggers.spark_job import WAKE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.engines.run import EngineRunner
    from airflow_provider_kafka_migration.jobs.submissions import Submission
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.provider.progress import ProgressSink
    from airflow_provider_kafka_migration.record.context import PhaseResult
    from airflow_provider_kafka_migration.spec import MigrationSpec
    from airflow_provider_kafka_migration.triggers.spark_job import SparkJobTrigger


#: A deferred task wakes up after this long while a request is carried out.
_BUSY_SECONDS = 20.0
#: Seconds between two looks whether a run whose time is over may be left.
_LOOK_SECONDS = 5.0
#: ``freeze_limit`` looks so long after the end of the run's time whether ``mirror`` has ended, and again while it runs.
_AFTER_SECONDS, _AGAIN_SECONDS = 20.0, 60.0
#: The same while ``mirror`` waits for a person.
_SELDOM_SECONDS = 900.0
_AT_WORK = frozenset({"scheduled", "queued", "running", "deferred", "up_for_retry"})


class MirrorTask(MigrationTask):
    """Mixin for the tasks of a mirror. A mirror that was ended needs neither its source nor any further phase."""

    spec_kind: ClassVar[Kind] = "mirror"

    def migration_spec(self, context: Context) -> MigrationSpec:
        """Return the parsed spec of this run. One that follows another begins no mirror: it takes a recorded spec.

        :raises SpecInvalid: with every mistake.
        """
        recorded = self.takes_recorded or follows_another(_run_id(context))
        return run_spec(self.spec, context, recorded=recorded, kind=self.spec_kind)

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase, unless the mirror has ended or shall end; XCom gets only pointers."""
        done = self._without_clusters(context)
        if done is not None:
            return done
        found: dict[str, Any] = super().execute(context)  # type: ignore[misc]
        return found

    def _without_clusters(self, context: Context) -> dict[str, Any] | None:
        """Return the pointers if the journal, or for an end the target as well, is all that is needed."""
        with self.open_migration(context) as migration:
            state, phase = _present(migration)
            if state is State.PROMOTED:
                # A promotion may have left something that it tries again.
                phase = "finish"
            elif state is not None and state.is_terminal:
                return self.pointers(migration, _already(state))
            if phase == "finish":
                return self.pointers(migration, migration.run(phase))
            # A cluster that is away just when runs change must not keep the next run from its task ``mirror``, which
            # outlives such an outage.
            done = migration.done_before(self.phase) if follows_another(_run_id(context)) else None
            return None if done is None else self.pointers(migration, done)

    def pointers(self, migration: Migration, result: PhaseResult) -> dict[str, Any]:
        """Return what goes into XCom, with the state of a mirror that is paused or has ended."""
        state = result.details.get("state")
        return {**super().pointers(migration, result), **({"state": state} if state else {})}


def _run_id(context: Context) -> str:
    return str(getattr(context.get("ti"), "run_id", ""))


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


class KafkaMirrorOperator(MirrorTask, TellsLineage, SparkMigrationOperator, SkipMixin):
    """Mirrors until a person promotes or ends the mirror; then the task succeeds. Paused, it waits deferred.

    It also succeeds when the time of its DAG run is over, and the next run goes on: a detached Spark job runs on
    meanwhile. While producers are stopped for a promotion, it does not hand over. Tasks below it other than
    ``next_run`` are skipped then: they follow the end of the mirror.

    Requests of people (``kafka-migration mirror pause | resume | promote | end``) reach the task through the storage,
    within seconds in any of its states. A failure that may pass is tried again: for ``patience_seconds`` in the task
    itself, and then by Airflow. Killed at any moment, the next attempt carries out the last request.

    :param deferrable: give the slot away while a detached job runs; ``[operators] default_deferrable`` by default. A
        task that stays does every few seconds what the spec says: groups, heartbeats, checkpoints. A deferred one does
        so when it is woken up, by news or after a quarter of an hour. With ``spark-submit`` in client mode the driver
        is a child of the task, which stays.
    :param waits_deferred: False waits in the worker while the mirror is paused, for an Airflow without a triggerer.
    :param poll_seconds: how often a paused mirror's request is looked at.
    :param patience_seconds: how long one attempt of the task tries again after failures that may pass.
    :param run_for: how long one DAG run mirrors before the next one goes on, which the task ``next_run`` starts; None:
        one run mirrors for ever.
    :param kwargs: arguments of :class:`~.spark_job.SparkMigrationOperator`.

    .. seealso:: docs/operators.md
    """

    phase = "mirror"
    copy_name = "mirror"
    #: Because it runs for years, across upgrades. A new mirror runs the strict tasks ``plan`` and ``precheck`` first.
    takes_recorded = True
    fixed_arguments = SparkMigrationOperator.fixed_arguments | {"do_xcom_push", "run_for"}

    def __init__(
        self,
        *,
        waits_deferred: bool = True,
        poll_seconds: float = 2.0,
        patience_seconds: float = 600.0,
        run_for: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        # ``next_run`` reads it. Said here, it beats the ``default_args`` of a site.
        kwargs["do_xcom_push"] = True
        super().__init__(**kwargs)
        self.waits_deferred = waits_deferred
        self.poll_seconds = poll_seconds
        self.patience_seconds = patience_seconds
        self.run_for = run_for
        self._known_request: int | None = None
        self._is_asked_for = False
        self._looked_at = -math.inf
        self._hands_over = False

    # -- attempts ----------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Mirror, or carry out what was asked for while no task ran.

        :raises MigrationError: a person has to change something, or it has failed for too long.
        """
        if self.run_for is not None and is_followed(context):
            from airflow_provider_kafka_migration.record.context import PhaseResult

            result = PhaseResult(self.phase, "a later run of this DAG mirrors", already_done=True)
            with self.open_migration(context) as migration:
                pointers = self._done(migration, result)
            return self._passed_on(context, pointers)
        return self._settled(context, self._attempts(context))

    def resume(
        self, context: Context, event: dict[str, Any], *, submission: dict[str, Any], memory: dict[str, Any]
    ) -> dict[str, Any]:
        """Continue after a deferral, as any Spark task; a pause is no end."""
        if event.get("status") == WAKE and self._may_hand_over(context):
            with self.open_migration(context) as migration:
                pointers = self._handed_over(migration)
            return self._passed_on(context, pointers)
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
            if is_over(context, self.run_for):
                self.log.info("The time of this run is over; the next one waits for the end of the pause")
                return self._passed_on(context, {**pointers, RUN_IS_OVER: True})
            self.log.info("The mirror is paused. It goes on after: kafka-migration mirror resume")
            self._wait_for_resume(context)
            pointers = self._attempts(context)
        return self._passed_on(context, pointers) if pointers.get(RUN_IS_OVER) else pointers

    def _passed_on(self, context: Context, pointers: dict[str, Any]) -> dict[str, Any]:
        """End the task, but not the mirror: skip what follows the mirror's end."""
        others = self.downstream_task_ids - {self.beside(NEXT_RUN.id)}
        if others:
            # skip() ends the task, so its result would not reach XCom.
            context["ti"].xcom_push(key="return_value", value=pointers)
            self.skip(ti=context["ti"], tasks=[task for task in self.downstream_list if task.task_id in others])
        return pointers

    def _wait_for_resume(self, context: Context) -> None:
        spec = self.migration_spec(context)
        if self.waits_deferred:
            ends = ends_at(context, self.run_for)
            trigger = MirrorPausedTrigger(
                spec=plain_spec(spec) or {},
                poll_seconds=self.poll_seconds,
                look_at=None if ends is None else ends.isoformat(),
            )
            self.defer(trigger=trigger, method_name="go_on")
        while not self._is_asked(context) and not is_over(context, self.run_for):
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
                pointers = self._attempt(context)
                if pointers is not None:
                    return pointers
                continue
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

    def _attempt(self, context: Context) -> dict[str, Any] | None:
        """Return the pointers; None: a promotion has stopped producers while the run was being left, so it goes on."""
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
            try:
                return self._done(migration, migration.run(self.phase))
            except Interrupted:
                if not self._hands_over:
                    raise
            self._hands_over = False
            # Only now nothing of this task acts on requests any more.
            return None if migration.status().freeze is not None else self._handed_over(migration)

    # -- the end of the run's time -----------------------------------------------------------------------------------

    def _pause(self, context: Context, seconds: float) -> bool:
        """Wait between two looks at the job.

        :raises Interrupted: the run's time is over. A driver of this task ends with it, a detached job runs on.
        """
        if self._may_hand_over(context):
            self._hands_over = True
            raise Interrupted("the time of this DAG run is over", next_step="nothing: the next run goes on")
        return super()._pause(context, seconds)

    def _may_hand_over(self, context: Context) -> bool:
        """Return whether the run's time is over and producers are not stopped: then the next run may go on."""
        now = time.monotonic()
        if not is_over(context, self.run_for) or now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        try:
            with self.open_migration(context) as migration:
                return migration.status().freeze is None
        except (Transient, *CREDENTIALS_REFUSED) as error:
            # The mirror goes on meanwhile, as it does at all other times.
            self.log.warning("The time of this run is over, but the journal cannot be read: %s", error)
            return False

    def _handed_over(self, migration: Migration) -> dict[str, Any]:
        from airflow_provider_kafka_migration.record.context import PhaseResult

        summary = "the time of this run is over; the next one goes on"
        result = PhaseResult(self.phase, summary, {"state": State.TAIL.value})
        return {**self._done(migration, result), RUN_IS_OVER: True}

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
            self._known_request, self._is_asked_for = found.number, found.want != "run"
        except MigrationError as error:
            # Somebody may have asked for a promotion, which has to be looked after.
            self._is_asked_for = True
            self.log.warning("The last request could not be read, the next part tries again: %s", error)
        return super()._wake(context, migration, runner, submission, memory)

    def _wake_seconds(self, context: Context, spec: MigrationSpec) -> float:
        if self._is_asked_for:
            # The limit of a freeze is kept, and copiers are waited for that come to their stop.
            return _BUSY_SECONDS
        seconds, ends = super()._wake_seconds(context, spec), ends_at(context, self.run_for)
        left = math.inf if ends is None else (ends - datetime.now(UTC)).total_seconds()
        # Once it is over, the task waits for the end of a freeze as it does for all else.
        return min(seconds, left) if left > 0 else seconds

    def _job_trigger(self, spec: MigrationSpec, **arguments: Any) -> SparkJobTrigger:
        return MirrorJobTrigger(spec=plain_spec(spec) or {}, known_request=self._known_request, **arguments)

    def progress_sink(self, context: Context) -> ProgressSink:
        """Return the sink of all tasks; people know the copy, and the sync of groups, by the name of this task."""
        return super().progress_sink(context).named({"tail": self.phase, "cutover": self.phase})


class KafkaMirrorFreezeLimitOperator(KafkaMigrationFreezeLimitOperator):
    """Calls off a promotion whose freeze lasts longer than ``max_producer_freeze`` when the task ``mirror`` does not.

    It runs for as long as ``mirror`` does, deferred: the triggerer reads the journal, and the task takes no slot. Then
    the mirror goes on, and so does this task. It succeeds once the mirror is promoted or has ended, and immediately
    for a mirror that stops no producers.

    .. seealso:: docs/operators.md
    """

    phase = "freeze_limit"
    spec_kind: ClassVar[Kind] = "mirror"
    fixed_arguments = KafkaMigrationFreezeLimitOperator.fixed_arguments | {"run_for"}

    def __init__(self, *, run_for: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_for = run_for

    def relieved(self, context: Context) -> str:
        """Return why the next run of the DAG watches from now on: ``mirror`` has handed over, and nothing is frozen."""
        if self.run_for is None:
            return ""
        has_left = is_over(context, self.run_for) and self._mirror_state(context) == "success"
        if not (has_left or is_followed(context)) or self._may_be_frozen(context):
            return ""
        return "the time of this run is over; the next one watches"

    def _may_be_frozen(self, context: Context) -> bool:
        try:
            with self.open_migration(context) as migration:
                return migration.status().freeze is not None
        except (Transient, *UNREADABLE) as error:
            self.log.warning("The journal cannot be read, so this task watches on: %s", error)
            return True

    def look_at(self, context: Context) -> datetime | None:
        """Return when the task looks whether ``mirror`` has handed over."""
        ends, now = ends_at(context, self.run_for), datetime.now(UTC)
        if ends is None or now < ends:
            return None if ends is None else ends + timedelta(seconds=_AFTER_SECONDS)
        is_at_work = self._mirror_state(context) in _AT_WORK
        return now + timedelta(seconds=_AGAIN_SECONDS if is_at_work else _SELDOM_SECONDS)

    def _mirror_state(self, context: Context) -> str:
        run, mirror = context["ti"], self.beside(MIRROR_PHASE.id)
        states: Any = run.get_task_states(dag_id=run.dag_id, task_ids=[mirror], run_ids=[run.run_id])
        return str(states.get(run.run_id, {}).get(mirror, ""))


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
