"""Migration: spec + journal + clusters. The one entry point for operators and the command line.

It opens what a phase needs, holds the claim, moves the state machine and journals failures. The code of the phases is
in ``phases/``; this module only decides whether a phase may run now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, cast

from airflow_provider_kafka_migration.approvals import answers
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import (
    UNREADABLE,
    ClaimLost,
    FingerprintChanged,
    FreezeFailed,
    IllegalTransition,
    Interrupted,
    JournalTampered,
    MigrationError,
    PhaseOver,
    SameCluster,
    SparkJobCancelled,
    StillFrozen,
    Terminal,
    Transient,
    WaitsForOperator,
    Where,
)
from airflow_provider_kafka_migration.freeze import frozen, one_task, open_freeze
from airflow_provider_kafka_migration.freeze.open_freeze import OpenFreeze
from airflow_provider_kafka_migration.freeze.watchdog import FreezePatience
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.jobs.content_jobs import SubmittedVerifier
from airflow_provider_kafka_migration.jobs.job_phase import JobPhase, JobRunner, Step, submitted_ref
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner, utc_now
from airflow_provider_kafka_migration.journal.journal import Journal, Takeover
from airflow_provider_kafka_migration.journal.owner_process import OwnerProcess
from airflow_provider_kafka_migration.journal.spec_guard import guard_spec, spec_to_record
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.lanes.figures import with_live_figures
from airflow_provider_kafka_migration.lanes.slices import publish_claim
from airflow_provider_kafka_migration.mirror_table import TABLES
from airflow_provider_kafka_migration.mirrors.failures import is_repeated
from airflow_provider_kafka_migration.phase_table import CUTOVER, Phase
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.announcements import Announcements
from airflow_provider_kafka_migration.record.context import (
    Cluster,
    CopyRunner,
    KnownCluster,
    PhaseContext,
    PhaseResult,
    Progress,
)
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN, FreezeAttempt, lifted_resume
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import ClusterSection, MigrationSpec
from airflow_provider_kafka_migration.state import Resume, State, following, position, preceding
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.storage.s3 import S3Config
from airflow_provider_kafka_migration.topics import lags

_R = TypeVar("_R")

#: Errors that leave the migration as it was: another owner holds it, it has moved on, or it waits for a person.
_NO_FAILURE = (ClaimLost, IllegalTransition, Interrupted, PhaseOver, WaitsForOperator)


def _ignore(_progress: Progress) -> None:
    return None


def _tell_nobody(_text: str) -> None:
    return None


@dataclass(frozen=True)
class Status:
    """The state of a migration according to its journal alone, without any cluster request."""

    migration_id: str
    state: State | None
    working_state: State | None
    owner: str | None
    claimed_since: str | None
    generation: int
    entries: int
    last: JournalEntry | None
    resume: Resume | None
    progress: Mapping[str, Any]
    #: a freeze of producers that has not ended
    freeze: OpenFreeze | None = None
    #: the last validation in one line, with the reasons of its warnings; empty before the first one
    validation: str = ""

    def as_dict(self, file: str = "FILE") -> dict[str, Any]:
        """Return the status as JSON-serializable data.

        :param file: path of the spec, for commands that a person can copy.
        """
        return {
            "migration_id": self.migration_id,
            "state": None if self.state is None else str(self.state),
            "working_state": None if self.working_state is None else str(self.working_state),
            "owner": self.owner,
            "claimed_since": self.claimed_since,
            "generation": self.generation,
            "entries": self.entries,
            "last": None if self.last is None else self.last.model_dump(mode="json", by_alias=True),
            "resume": None if self.resume is None else {"action": str(self.resume.action), "why": self.resume.reason},
            "progress": dict(self.progress),
            "freeze": None if self.freeze is None else self.freeze.as_dict(file),
            "validation": self.validation,
        }


class Migration:
    """One migration, opened by one owner. Close it, or use it as a context manager.

    :param owner: holder of the migration: the same for all tasks of a DAG run, and for repeated CLI calls of a user.
    :param takeover: take the migration over from another owner; "once": only if this owner has never held it.
    :param announcements: tells people about freezes.
    """

    #: How steps of the cutover wait between tries inside a freeze, and the clock.
    _sleep = staticmethod(time.sleep)
    _now = staticmethod(utc_now)

    def __init__(
        self,
        spec: MigrationSpec,
        owner: Owner,
        resolver: Resolver,
        *,
        takeover: Takeover = False,
        runner: CopyRunner | None = None,
        verifier: CopyRunner | None = None,
        progress: Callable[[Progress], None] | None = None,
        announcements: Announcements | None = None,
    ) -> None:
        self.spec = spec
        #: the phases of this kind of spec, by id
        self._rows = TABLES[spec.kind]
        self.owner = owner
        self._resolver = resolver
        self._takeover = takeover
        self._runner = runner
        self._verifier = verifier
        self._progress = progress or _ignore
        self._announcements = announcements
        self._journal: Journal | None = None
        #: The spec is guarded and the claim is published.
        self._is_guarded = False
        #: Opened without contacting the clusters, for phases that end a freeze.
        self._journal_alone: Journal | None = None
        self._known_clusters: list[KnownCluster] = []

    @classmethod
    def open(
        cls,
        spec: MigrationSpec,
        owner: str,
        resolver: Resolver,
        *,
        actor: str,
        kind: str = "dag_run",
        process: OwnerProcess | None = None,
        installation: str = "",
        **options: Any,
    ) -> Migration:
        """Open without any I/O; clusters and storage are contacted when a phase needs them.

        :param owner: identity of the owner, for instance ``dag_id/run_id``.
        :param actor: who acts, for the journal: a task id or a user.
        :param kind: ``dag_run`` or ``cli``.
        :param process: for ``cli``: the process that holds the migration, so that another one of the same user waits.
        :param installation: for ``dag_run``: which Airflow it is.
        :param options: of the class: ``takeover``; ``runner`` runs copy jobs, ``verifier`` content checks.
        """
        return cls(spec, Owner(kind, owner, actor, process, installation), resolver, **options)

    def __enter__(self) -> Migration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the journal and the clients of both clusters."""
        try:
            for journal in (self._journal, self._journal_alone):
                if journal is not None:
                    journal.close()
        finally:
            if self._announcements is not None:
                self._announcements.wait()
            for name in ("source", "target"):
                cluster = self.__dict__.pop(name, None)
                if cluster is not None:
                    cluster.close()
            while self._known_clusters:
                self._known_clusters.pop().close()

    # -- what phases use ---------------------------------------------------------------------------------------------

    @cached_property
    def _s3_config(self) -> S3Config | None:
        reference = self.spec.storage.conn_id
        return None if reference is None else S3Config.of(self._resolver, reference)

    @cached_property
    def journal_store(self) -> ObjectStore:
        """Journal, plan, jobs, results."""
        return open_store(self.spec.storage.journal, self._s3_config)

    @cached_property
    def archive_store(self) -> ObjectStore:
        """Segments."""
        return open_store(self.spec.storage.archive_location, self._s3_config)

    @cached_property
    def evidence_store(self) -> ObjectStore:
        """Evidence and offset map."""
        return open_store(self.spec.storage.evidence_location, self._s3_config)

    @cached_property
    def source(self) -> Cluster:
        """The cluster to migrate from."""
        return Cluster.of("source", self.spec.source, self._resolver)

    @cached_property
    def target(self) -> Cluster:
        """The cluster to migrate to."""
        return Cluster.of("target", self.spec.target, self._resolver)

    @property
    def journal_uri(self) -> str:
        """Location of the journal, for people."""
        return f"{self.journal_store.uri}/{self.spec.migration_id}/journal.jsonl"

    @cached_property
    def context(self) -> PhaseContext:
        """The context of the phases. Claims the migration.

        :raises ClaimHeld: another owner holds it.
        :raises FingerprintChanged: the migration was started with other clusters, buckets or prefixes.
        """
        context = PhaseContext(
            spec=self.spec,
            journal=self._claimed_journal(),
            source=self.source,
            target=self.target,
            journal_store=self.journal_store,
            archive_store=self.archive_store,
            evidence_store=self.evidence_store,
            resolver=self._resolver,
            runner=self._runner,
            progress=self._progress,
            now=self._now,
            announce=self._announcements or _tell_nobody,
        )
        if self._verifier is not None:
            context.verifier = SubmittedVerifier(context.record, context.source, self._verifier)
        return context

    @property
    def journal_context(self) -> PhaseContext:
        """The context of phases that end a freeze: it needs only the journal. Claims the migration.

        Clusters are opened at their first use, and their ids are then compared with those in the journal. The spec is
        not guarded either: neither a lost cluster nor a spec that was changed too late may keep producers frozen.

        :raises IllegalTransition: the migration does not exist.
        :raises ClaimHeld: another owner holds it.
        """
        return self._open_journal_alone()

    @property
    def abandoning_context(self) -> PhaseContext:
        """The same for whoever abandons: a promoted mirror is held again, and its journal takes entries for that."""
        return self._open_journal_alone(reopen=True)

    def _open_journal_alone(self, *, reopen: bool = False) -> PhaseContext:
        if "context" in self.__dict__:
            return self.context
        if self._journal_alone is None:
            journal = self._existing_journal()
            journal.claim(self.owner, takeover=self._takeover, reopen=reopen)
            publish_claim(self.journal_store, self.spec.migration_id, journal.generation, str(self.owner))
            self._journal_alone = journal
        return self._context_of(self._journal_alone)

    def _existing_journal(self) -> Journal:
        journal = Journal(self.journal_store, self.spec.migration_id)
        if not journal.exists:
            raise IllegalTransition(
                "the migration does not exist",
                where=Where(migration_id=self.spec.migration_id, path=self.journal_uri),
                next_step="check migration_id and storage.journal",
            )
        self._check_kind(journal)
        return journal

    def _context_of(self, journal: Journal) -> PhaseContext:
        """Return a context around a journal; its clusters are opened at their first use."""
        ids = Fingerprint.recorded(journal.entries())
        return PhaseContext(
            spec=self.spec,
            journal=journal,
            source=self._known("source", self.spec.source, ids),
            target=self._known("target", self.spec.target, ids),
            journal_store=self.journal_store,
            archive_store=self.archive_store,
            evidence_store=self.evidence_store,
            resolver=self._resolver,
            runner=self._runner,
            progress=self._progress,
            now=self._now,
            announce=self._announcements or _tell_nobody,
        )

    def _known(
        self, role: Literal["source", "target"], section: ClusterSection, ids: Mapping[str, str]
    ) -> KnownCluster:
        for cluster in self._known_clusters:
            if cluster.role == role:
                return cluster

        def config() -> ClientConfig:
            return ClientConfig.from_librdkafka(self._resolver.mapping(section.conn_id), role)

        made = KnownCluster(role, config, ids.get(f"{role}_cluster_id", ""))
        self._known_clusters.append(made)
        return made

    def _fingerprint(self) -> Fingerprint:
        self._check_two_clusters()
        return self._fingerprint_of(self.source.cluster_id, self.target.cluster_id)

    def _fingerprint_of(self, source_id: str, target_id: str) -> Fingerprint:
        storage = self.spec.storage
        return Fingerprint.of_locations(
            source_id,
            target_id,
            {
                "journal": storage.journal,
                "archive": storage.archive_location,
                "evidence": storage.evidence_location,
            },
        )

    def _check_two_clusters(self) -> None:
        """Refuse two connections to one cluster: the cluster id shows it, regardless of addresses and users."""
        if self.source.cluster_id and self.source.cluster_id == self.target.cluster_id:
            raise SameCluster(
                f"source and target are the same cluster (id {self.source.cluster_id}): {self.spec.source.conn_id} "
                f"leads to {self.source.config.bootstrap_servers}, {self.spec.target.conn_id} to "
                f"{self.target.config.bootstrap_servers}",
                where=Where(migration_id=self.spec.migration_id),
                next_step="correct bootstrap.servers of one of the two connections",
            )

    def _claimed_journal(self) -> Journal:
        if self._journal is None:
            self._check_kind(Journal(self.journal_store, self.spec.migration_id))
            self._journal = Journal.create_or_open(
                self.journal_store,
                self.spec.migration_id,
                self._fingerprint(),
                owner=self.owner,
                takeover=self._takeover,
                details=self._first_details(),
            )
        if not self._is_guarded:
            # Steps that are retried in this process must not bypass the guard, so it counts as done only after it
            # has succeeded. The journal is kept before that, so that the claim can be released.
            guard_spec(self._journal, self.spec.model_dump(mode="json"))
            publish_claim(self.journal_store, self.spec.migration_id, self._journal.generation, str(self.owner))
            self._is_guarded = True
        return self._journal

    def _first_details(self) -> dict[str, Any]:
        details: dict[str, Any] = {"spec": spec_to_record(self.spec.model_dump(mode="json"))}
        # The kind decides about the states that the journal may go through; that of a migration is not written.
        return details if self.spec.kind == "migration" else {**details, "kind": self.spec.kind}

    def _check_kind(self, journal: Journal) -> None:
        entries = journal.entries()
        kind = entries[0].details.get("kind", "migration") if entries else self.spec.kind
        if kind != self.spec.kind:
            raise FingerprintChanged(
                f"this is the journal of a {kind}, but the spec is one of a {self.spec.kind}",
                where=Where(migration_id=self.spec.migration_id, path=self.journal_uri),
                next_step=f"correct `kind` in the spec, or choose another migration_id for the {self.spec.kind}",
            )

    def release(self, reason: str) -> None:
        """Release the migration, if it is held here, so that another owner may claim it without a takeover."""
        for journal in (self._journal, self._journal_alone):
            if journal is not None and journal.generation:
                journal.release(reason)

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, phase: str, **options: Any) -> PhaseResult:
        """Run one phase, or report that it is already done. Failures go to the journal.

        :param phase: task id of the phase: ``plan``, ``seed``, ``cutover.freeze`` ...
        :raises IllegalTransition: an earlier phase has not run yet.
        :raises MigrationError: any error of the phase.
        """
        row = self._row(phase)
        return self._recorded(row, lambda: self._run(row, options))

    def _row(self, phase: str) -> Phase:
        if phase in self._rows:
            return self._rows[phase]
        raise IllegalTransition(
            f"a {self.spec.kind} has no phase {phase}",
            where=Where(migration_id=self.spec.migration_id, phase=phase),
            next_step="check `kind` in the spec; a mirror runs with kafka-migration mirror run FILE",
        )

    def _recorded(self, row: Phase, step: Callable[[], _R]) -> _R:
        """Run a step of a phase; retry steps of the cutover patiently. Failures go to the journal."""
        try:
            if row.state is not State.CUTOVER:
                return step()
            patience = FreezePatience(
                self.spec,
                lambda: self.journal_context,
                self._progress,
                sleep=self._sleep,
                now=self._now,
                may_be_ready=row.leads_to is State.AWAITING_CLIENT_SWITCH,
            )
            # The phases of the cutover have no jobs: their steps return results.
            return cast(_R, patience.run(cast(Callable[[], PhaseResult], step)))
        except MigrationError as error:
            self._record_failure(row, error)
            raise
        except Exception as error:
            # Not a MigrationError: a bug in this package or in a library. It must be journaled as well.
            self._record_failure(row, error)
            raise

    def _run(self, row: Phase, options: Mapping[str, Any]) -> PhaseResult:
        context = self._phase_context(row, options)
        done = self._already_done(row, context)
        if done is not None:
            return done
        self._finish_given_up(row, context)
        self._enter(row, context.journal)
        result: PhaseResult = row.load()(context, **options)
        self._leave(row, result, context.journal)
        return result

    # -- jobs of phases, for tasks that do not wait -------------------------------------------------------------------

    def start_job(self, phase: str, **options: Any) -> Submission | PhaseResult:
        """Prepare the job of a phase and submit it, or find the one that runs; a result if nothing is left to do.

        The runner must be a :class:`JobRunner`. Failures go to the journal, as those of :meth:`run`.

        :param options: arguments of the phase's ``prepare``.
        :raises MigrationError: any error of the phase, or of the submission.
        """
        row = self._row(phase)
        return self._recorded(row, lambda: self._start_job(row, options))

    def end_job(self, phase: str, submission: Submission) -> Submission | PhaseResult:
        """Take up the end of a job: verify what it has done, or start the next job of the phase.

        :raises MigrationError: the error of the job, or of the verification.
        """
        row = self._row(phase)
        return self._recorded(row, lambda: self._end_job(row, submission))

    def follow_job(self, phase: str, submission: Submission, memory: dict[str, Any]) -> Progress | None:
        """Run once what has to run while the job of a phase runs, and return its newest progress.

        :param memory: what this method remembers from one call to the next, JSON-serializable.
        """
        row = self._row(phase)
        job_phase: JobPhase = row.load_job_phase()
        context = self._phase_context(row)
        job_phase.follow(context, memory)
        return job_phase.read_progress(context.record, submitted_ref(context.record, submission))

    def _start_job(self, row: Phase, options: Mapping[str, Any] = MappingProxyType({})) -> Submission | PhaseResult:
        context = self._phase_context(row)
        done = self._already_done(row, context)
        if done is not None:
            return done
        self._finish_given_up(row, context)
        self._enter(row, context.journal)
        job_phase, runner = row.load_job_phase(), self._job_runner(row)
        step: Step = job_phase.take_up(context, runner) or job_phase.prepare(context, **options)
        return self._next_job(row, step)

    def _end_job(self, row: Phase, submission: Submission) -> Submission | PhaseResult:
        context = self._phase_context(row)
        runner = self._job_runner(row)
        try:
            row.load_job_phase().wait_until_ended(context, runner, submission)
        except SparkJobCancelled:
            if not submission.found:
                raise
            # Whoever has cleared the task has cancelled the job of the attempt before; this attempt wants one.
            return self._start_job(row)
        try:
            step = row.load_job_phase().finish(context, submitted_ref(context.record, submission))
        except Transient:
            # The next attempt verifies the same job again.
            raise
        except Exception:
            # The job did not do what it should: the next attempt must not find it again, but submit a new one.
            runner.taken_up(context.record, submission)
            raise
        tip = context.journal.tip_state
        # A mirror's job may have been its last one: nobody looks for jobs of what has ended, and nothing is journaled.
        if tip is None or not tip.is_terminal:
            runner.taken_up(context.record, submission)
        return self._next_job(row, step)

    def _next_job(self, row: Phase, step: Step) -> Submission | PhaseResult:
        context = self._phase_context(row)
        if isinstance(step, PhaseResult):
            self._leave(row, step, context.journal)
            return step
        return self._job_runner(row).start(context.record, step)

    def _job_runner(self, row: Phase) -> JobRunner:
        runner = self._runner or self._verifier
        if not isinstance(runner, JobRunner):
            raise Terminal(
                "no Spark engine was given",
                where=Where(migration_id=self.spec.migration_id, phase=row.id),
                next_step="pass a runner with an engine when opening the migration",
            )
        return runner

    def run_cutover(self, on_result: Callable[[PhaseResult], None] = lambda _result: None) -> PhaseResult:
        """Run all steps of the cutover in order, in this process; steps done before are only confirmed.

        :param on_result: called with the result of each step.
        :raises MigrationError: any error of a step; another call continues from there.
        """
        for row in CUTOVER:
            if row.joins == "tail":
                self.wait_for_tail()
            result = self.run(row.id)
            on_result(result)
        return result

    def wait_for_tail(self, *, sleep: Callable[[float], None] | None = None) -> PhaseResult:
        """Wait until the tail, which runs elsewhere, has ended, as patiently as a step of the cutover.

        The result has ``details["ended"]``.

        :param sleep: may raise the error of a failed tail; if it is permanent, the freeze is lifted.
        :raises FreezeFailed: the tail did not end within the freeze's limit; the freeze was lifted.
        """
        wait = sleep or self._sleep
        joining = next(row for row in CUTOVER if row.joins == "tail")
        return self._recorded(joining, lambda: one_task.wait_for_tail(self.context, sleep=wait))

    def _phase_context(self, row: Phase, options: Mapping[str, Any] = MappingProxyType({})) -> PhaseContext:
        if row.reads_only:
            return self._context_of(self._existing_journal())
        if not row.needs_journal_only:
            return self.context
        if row.id in ("rollback", "abandon"):
            # Check before claiming: a refused rollback must not take the migration from its holder.
            try:
                self._check_end(row, str(options.get("code", "")))
                return self._open_journal_alone(reopen=row.id == "abandon")
            except JournalTampered as error:
                error.add_next_step(f"if producers are stopped: {freeze_limit.by_hand_without_journal(self.spec)}")
                raise
        try:
            return self.journal_context
        except (Transient, *UNREADABLE) as error:
            raise freeze_limit.journal_unreachable(self.spec, error) from error

    def _check_end(self, row: Phase, code: str) -> None:
        # Only a rollback needs these modules.
        from airflow_provider_kafka_migration.approvals import abandon
        from airflow_provider_kafka_migration.phases import rollback

        journal = self._existing_journal()
        ids = Fingerprint.recorded(journal.entries())
        source_id, target_id = ids.get("source_cluster_id", ""), ids.get("target_cluster_id", "")
        journal.check_fingerprint(self._fingerprint_of(source_id, target_id))
        record = self._context_of(journal).record
        if row.id == "rollback":
            rollback.check_allowed(record, code)
        elif abandon.check_possible(record) and not rolling_back.is_abandoned(journal):
            abandon.check_decided(record)

    def _record_failure(self, row: Phase, error: Exception) -> None:
        # If the phase's context could not be opened, nothing has run. Only a freeze may have ended nevertheless.
        journal = self.context.journal if "context" in self.__dict__ else None
        if row.needs_journal_only or isinstance(error, FreezeFailed | StillFrozen):
            journal = journal or self._journal_alone
        if journal is None or not row.fails_migration or isinstance(error, _NO_FAILURE):
            return
        if self.spec.kind != "mirror" or not is_repeated(journal, error, self._now()):
            journal.fail(error)

    def _already_done(self, row: Phase, context: PhaseContext) -> PhaseResult | None:
        """Return the journaled result of a finished phase, after verifying what can be verified; None: run it."""
        if row.reads_only:
            return None
        journal = context.journal
        journal.refresh()
        # A rollback of an ended migration is not always a no-op: it refuses a finalized one and names the alternative,
        # and on a rolled back one it tries again what the schema registries did not take back.
        # The same with what the promotion of a mirror has left.
        tip = journal.tip_state
        tries_again = row.id in ("rollback", "abandon") or (row.id == "finish" and tip is State.PROMOTED)
        if tip is not None and tip.is_terminal and not tries_again:
            summary = f"the {self.spec.kind} is {tip}"
            details = {"decision": "abort" if tip is State.ROLLED_BACK else "approve"}
            return PhaseResult(row.id, summary, details, already_done=True)
        # What watches the freeze is needed until the end: it frees producers, as a rollback does.
        if row.id not in ("rollback", "abandon") and not row.keeps_trying:
            rolling_back.check_not_begun(journal, self.spec, row.id)
        return done_before(row, journal)

    def _finish_given_up(self, row: Phase, context: PhaseContext) -> None:
        """Free producers whom a lift that did not come to its end has left stopped; a mirror does so by itself."""
        if self.spec.kind == "migration" and not row.reads_only and not row.needs_journal_only:
            frozen.finish_given_up(context)

    def _enter(self, row: Phase, journal: Journal) -> None:
        """Move the state machine to the phase's state; a failed migration re-enters the state that failed."""
        if row.state is None:
            return
        if journal.tip_state is State.FAILED and journal.working_state is not None:
            journal.transition(journal.working_state, f"{row.id} is run again")
        working = journal.working_state
        if working is row.state or journal.is_past(row.state):
            return
        if working is not None and following(working) is row.state:
            journal.transition(row.state, f"{row.id} starts")
            return
        raise IllegalTransition(
            f"{row.id} cannot start: the migration is in state {working}",
            where=Where(migration_id=self.spec.migration_id, phase=row.id),
            next_step=AGAIN
            if row.state is State.CUTOVER and working is State.TAIL
            else f"run the earlier phases first (state {row.state} follows {preceding(row.state)})",
        )

    def _leave(self, row: Phase, result: PhaseResult, journal: Journal) -> None:
        """Move to the next state after a phase that ends its state."""
        if row.leads_to is not None and journal.tip_state is row.state:
            journal.transition(row.leads_to, result.summary)

    # -- reading -----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return the status according to the journal; make no claim and no cluster request."""
        journal = Journal(self.journal_store, self.spec.migration_id)
        journal.refresh()
        if not journal.exists:
            return Status(self.spec.migration_id, None, None, None, None, 0, 0, None, None, {})
        claim = journal.current_claim
        return Status(
            migration_id=self.spec.migration_id,
            state=journal.tip_state,
            working_state=journal.working_state,
            owner=None if claim is None else str(claim.owner),
            claimed_since=None if claim is None else claim.since,
            generation=0 if claim is None else claim.generation,
            entries=len(journal.entries()),
            last=journal.tip,
            resume=rolling_back.resume(journal, self.spec) or lifted_resume(journal) or journal.resume(),
            progress={name: self._progress_of(name) for name in ("seed", "tail")},
            freeze=open_freeze.read(self._context_of(journal)),
            validation=getattr(journal.find_step(steps.VALIDATED), "reason", ""),
        )

    def done_before(self, phase: str) -> PhaseResult | None:
        """Return the result of a phase that the migration is past; None: it has to run. As :meth:`status`, it claims
        nothing and asks no cluster.
        """
        journal = Journal(self.journal_store, self.spec.migration_id)
        journal.refresh()
        return done_before(self._row(phase), journal) if journal.exists else None

    def tail_silence(self) -> str:
        """Return one sentence if the tail shows no sign of life; empty while it runs or need not run.

        This may take some seconds: with a wrong clock the tail looks dead until it writes again.
        """
        with self.reading() as context:
            return tail_health.silence(context.record, sleep=self._sleep) if context.journal.exists else ""

    def _progress_of(self, name: str) -> dict[str, Any]:
        data = self.journal_store.get(f"{self.spec.migration_id}/{keys.progress(name)}")
        document: dict[str, Any] = with_live_figures(self.journal_store, json.loads(data) if data else {})
        for name in ("partitions", "slices"):
            document.pop(name, None)
        return document

    @contextmanager
    def reading(self) -> Iterator[PhaseContext]:
        """Yield a read-only context: it makes no claim, and refuses every attempt to journal."""
        journal = Journal(self.journal_store, self.spec.migration_id)
        journal.refresh()
        yield self._context_of(journal)


class DrainWatch:
    """Checks the lags of a migration repeatedly, for triggers. It holds connections but no claim."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._stable_since: datetime | None = None
        self._health = HealthWatch()

    @classmethod
    def open(cls, spec: MigrationSpec, resolver: Resolver) -> DrainWatch:
        """Open without I/O."""
        return cls(Migration.open(spec, "drain-watch", resolver, actor="drain_ready"))

    def check(self) -> dict[str, Any]:
        """Check once and return ``{"ready", "summary", "stable_since", ...}``."""
        with self._migration.reading() as context:
            working = context.journal.working_state
            tail = position(State.TAIL)
            here = None if working is None else position(working)
            if here is None or tail is None or here < tail:
                self._stable_since = None
                return {"ready": False, "summary": "the tail has not started yet", "stable_since": None}
            status = lags.check(context.record, context.source, context.target, self._stable_since, health=self._health)
            self._stable_since = status.stable_since
            return status.as_event()

    def close(self) -> None:
        """Close the connections."""
        self._migration.close()


class FreezeWatch:
    """Checks a migration's freeze in its journal repeatedly, for triggers. It holds no claim."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._reading = ExitStack()
        self._context: PhaseContext | None = None
        #: The last freeze seen by this watch or by its predecessor.
        self.known: FreezeAttempt | None = None
        self._has_seen = False

    @classmethod
    def open(cls, spec: MigrationSpec, resolver: Resolver) -> FreezeWatch:
        """Open without I/O."""
        return cls(Migration.open(spec, "freeze-watch", resolver, actor="cutover.freeze_limit"))

    def check(self) -> dict[str, Any]:
        """Check once and return ``{"ready", "summary"}``. Only entries written since the last check are read."""
        if self._context is None:
            try:
                self._context = self._reading.enter_context(self._migration.reading())
            except (Transient, *UNREADABLE) as error:
                return freeze_limit.without_journal(self.known, self._migration._now(), error)
        try:
            return freeze_limit.check_limit(self._context.record)
        finally:
            # Keep also what was read before the journal failed.
            self.see(self._context.record.freeze())

    def see(self, attempt: FreezeAttempt | None) -> None:
        """Remember the last freeze in the journal; None: there was none."""
        self.known, self._has_seen = attempt, True

    def follow(self, former: FreezeWatch) -> None:
        """Take over what the previous watch has seen."""
        self.known, self._has_seen = former.known, former._has_seen

    @property
    def may_be_frozen(self) -> bool:
        """Whether producers may be frozen, by the last successful read of the journal; True if there was none."""
        return not self._has_seen or (self.known is not None and self.known.is_open)

    def close(self) -> None:
        """Close the connections."""
        self._reading.close()
        self._migration.close()


class Watch(Protocol):
    """The interface through which a trigger checks a migration."""

    def check(self) -> dict[str, Any]:
        """Check once and return ``{"ready", "summary", ...}``."""

    def close(self) -> None:
        """Close the connections."""


def done_before(row: Phase, journal: Journal) -> PhaseResult | None:
    """Return a result if the migration is past the phase; None: run it."""
    if row.done_past is None or not journal.is_past(row.done_past):
        return None
    return PhaseResult(row.id, f"done before: the migration is in state {journal.working_state}", {}, already_done=True)


__all__ = ["DrainWatch", "FreezeWatch", "Migration", "Status", "Watch", "answers"]
