"""A whole migration in one process: the phases in order, the tail alongside, a stop where a person decides.

One background thread does here what Airflow's DAG does with tasks. Between two calls only the journal is kept: ``run``
and ``resume`` work the same way, because each phase determines by itself whether it is done.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_provider_kafka_migration.approvals import answers, check, request
from airflow_provider_kafka_migration.cli.frame import Stop
from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalFacts, ApprovalKind, Responder
from airflow_provider_kafka_migration.documents.proof import ContentJob
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    EngineNeedsAirflow,
    Interrupted,
    JobMissing,
    MigrationError,
    SpecInvalid,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.freeze import open_freeze
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.groups import final
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.metrics.prometheus import endpoint
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phase_table import BEFORE_TAIL, CUTOVER, DRAIN, PROOF, Phase
from airflow_provider_kafka_migration.phases import freeze, freeze_limit
from airflow_provider_kafka_migration.provider.job_references import references_of
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.engines.base import JobStatus, SparkEngine, SparkJob
    from airflow_provider_kafka_migration.engines.run import EngineRunner

log = logging.getLogger(__name__)

#: Pauses before a failed tail is restarted; after a long run the first pause applies again.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_LONG_SECONDS = 300.0
#: The longest pause while producers are frozen, and how often a pause checks for that.
_HURRIED_PAUSE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
#: A tail that has journaled its end finishes within moments.
_TAIL_END_SECONDS = 30.0

_BEFORE_CUTOVER = (*BEFORE_TAIL, *DRAIN)

#: Where ``--until`` may stop.
STOPS = tuple(row.id for row in (*_BEFORE_CUTOVER, *CUTOVER, *PROOF))

#: The last phase of the cutover for which the tail has to copy. After it the tail ends by itself.
_LAST_WITH_TAIL = [row for row in CUTOVER if row.watches_tail][-1]

OnResult = Callable[[PhaseResult], None]


class _StopHere(Exception):
    """``--until`` is reached."""


@dataclass
class Outcome:
    """The outcome of a call.

    :param waiting: the approval that a person has to give next.
    """

    results: list[PhaseResult] = field(default_factory=list)
    waiting: ApprovalFacts | None = None


class Tail:
    """The tail in a separate thread, parallel to the drain and the cutover.

    It restarts after failures that may pass, with growing pauses, as long as it is needed: the code that waits for it
    during a freeze enforces the freeze's limit.

    :param migration: a separate instance with the same owner.
    :param stop: ends it early, without a failure.
    """

    def __init__(self, migration: Migration, stop: threading.Event) -> None:
        self._migration = migration
        self._stop = stop
        self._hurried = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.result: PhaseResult | None = None
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def __enter__(self) -> Tail:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the tail after its current work, unless it has already ended by itself."""
        self._stop.set()
        self._thread.join()
        self._migration.close()

    def sleep(self, seconds: float) -> None:
        """Sleep, but wake up immediately if the tail fails: otherwise its waiters would wait forever.

        :raises MigrationError: why the tail failed.
        """
        self._ended.wait(seconds)
        self._raise()
        if self._ended.is_set():
            threading.Event().wait(seconds)

    def hurry(self) -> None:
        """Use only short pauses from now on, because producers are frozen."""
        self._hurried.set()

    def wait(self, seconds: float) -> PhaseResult | None:
        """Wait until the tail has ended by itself at its stop offsets; None: not within the time.

        :raises MigrationError: why it failed.
        """
        self._ended.wait(seconds)
        self._raise()
        return self.result

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.result = self._run_again_and_again()
        except Interrupted as error:
            if not self._stop.is_set():
                self._error = error
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _run_again_and_again(self) -> PhaseResult:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                return self._migration.run("tail")
            except Interrupted:
                raise
            except Transient as error:
                if self._stop.is_set():
                    raise
                if time.monotonic() - began >= _LONG_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                log.warning("The tail has ended and restarts in %.0f s: %s", pause, error)
            self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Wait, but only briefly in a freeze. A signal does not wake up a wait for the stop, so check often."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            if self._hurried.is_set() and waited >= _HURRIED_PAUSE_SECONDS:
                return
            if self._stop.wait(min(seconds - waited, _LOOK_SECONDS)):
                return


def _in_freeze(context: PhaseContext) -> bool:
    """Return whether, according to the journal, a cutover has begun and was not given up."""
    found = open_freeze.read(context)
    return found is not None and found.standing in (Standing.FROZEN, Standing.READY)


class MigrationRunner:
    """Drives one migration as far as possible.

    :param migration: opened in the name of the person.
    :param open_tail: opens the migration again for the tail, with the event that stops it.
    :param open_guard: opens it again for the thread that enforces the limit of a freeze.
    :param on_result: called with the result of each phase.
    :param until: phase after which to stop.
    """

    def __init__(
        self,
        migration: Migration,
        open_tail: Callable[[], Tail],
        open_guard: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        *,
        person: str,
        on_result: OnResult,
        until: str | None = None,
    ) -> None:
        self._migration = migration
        self._open_tail = open_tail
        self._open_guard = open_guard
        self._person = person
        self._on_result = on_result
        self._until = until
        self._code: str | None = None
        self._answered_at: datetime | None = None
        self.outcome = Outcome()

    def go(self, code: str | None = None) -> Outcome:
        """Run the remaining phases, up to the next approval without an answer.

        :param code: answers the first approval.
        :raises MigrationError: any error of a phase.
        """
        self._code, self._answered_at = code, datetime.now(UTC)
        with contextlib.suppress(_StopHere):
            self._go()
        return self.outcome

    def _go(self) -> None:
        # Do this first, and without a cluster: a process that died in a freeze may have left producers stopped.
        with self._migration.reading() as context:
            is_overdue = freeze_limit.is_overdue(context)
            in_freeze = not is_overdue and _in_freeze(context)
        if is_overdue:
            self._migration.run("cutover.freeze_limit")
        if in_freeze and self._until in {row.id for row in _BEFORE_CUTOVER}:
            return
        if in_freeze:
            # The steps of the cutover wait for unavailable clusters and enforce the limit; earlier phases do not.
            self._bridge(in_freeze=True)
        else:
            for row in BEFORE_TAIL:
                self._run(row)
            if not self._is_past(State.CUTOVER) and not self._bridge():
                return
        if not self._is_past(State.AWAITING_CLIENT_SWITCH) and not self._switch():
            return
        for row in PROOF:
            self._run(row)

    def _bridge(self, *, in_freeze: bool = False) -> bool:
        """Run from the tail's start to READY_FOR_CLIENT_SWITCH; False: an approval is pending.

        :param in_freeze: producers are already frozen, so the drain was small and the cutover is approved.
        """
        with self._open_guard(), self._open_tail() as tail:
            if not in_freeze:
                for row in DRAIN:
                    self._run(row, tail, **self._no_second_window())
                if not self._approved("cutover"):
                    return False
            tail.hurry()
            for row in CUTOVER:
                self._run(row, tail)
                if row is _LAST_WITH_TAIL:
                    self._join(tail)
        return True

    def _no_second_window(self) -> dict[str, Any]:
        """Return the options of a drain whose window had passed before a person typed the code.

        The lags have to be small now, all the same, and the tail has to be heard.
        """
        journal = self._migration.context.journal
        ready = journal.find_step(steps.DRAIN_READY)
        if self._code is None or ready is None or journal.working_state is not State.DRAIN_READY:
            return {}
        return {"event": {"stable_since": ready.step_key}}

    def _join(self, tail: Tail) -> None:
        """Wait until the tail has reached its stop offsets."""
        if self._migration.wait_for_tail(sleep=tail.sleep).details["ended"]:
            ended = tail.wait(_TAIL_END_SECONDS)
            if ended is not None:
                self._note(ended)

    def _switch(self) -> bool:
        """Refresh the groups' offsets, so that clients may move; False: an approval is pending."""
        final.sync_groups(self._migration.context)
        return self._approved("client_switch")

    def _run(self, row: Phase, tail: Tail | None = None, **options: Any) -> None:
        if tail is not None and row.watches_tail:
            options["sleep"] = tail.sleep
        self._note(self._migration.run(row.id, **options))
        if row.id == self._until:
            raise _StopHere

    def _note(self, result: PhaseResult) -> None:
        self.outcome.results.append(result)
        self._on_result(result)

    def _is_past(self, state: State) -> bool:
        journal = self._migration.context.journal
        journal.refresh()
        return journal.is_past(state)

    # -- approvals ----------------------------------------------------------------------------------------------------

    def _approved(self, kind: ApprovalKind) -> bool:
        """Return whether the approval is given, using the caller's code if it answers this approval."""
        context = self._migration.context
        if answers.answered(context, kind) is not None or self._holds(kind):
            return True
        code, self._code = self._code, None
        if code is None:
            self.outcome.waiting = request.show(context, kind)
            return False
        facts = request.make_facts(context, kind)
        self._note(answers.answer(context, self._answer(facts, code)))
        if self._holds(kind) or answers.answered(context, kind) is not None:
            return True
        # The second person still has to answer.
        self.outcome.waiting = request.show(context, kind)
        return False

    def _holds(self, kind: ApprovalKind) -> bool:
        """Return whether a recent approval is valid that was not acted upon because the process ended."""
        context = self._migration.context
        if not check.given(context, kind):
            return False
        try:
            given = check.require(context, kind)
        except ApprovalRefused:
            return False
        # No freeze begins with it any more, so it must not stand in the way of a new answer.
        if kind == "cutover" and freeze.is_too_old(context, given):
            return False
        if kind == "client_switch":
            self._note(self._migration.run("client_switch"))
        return True

    def _answer(self, facts: ApprovalFacts, code: str) -> ApprovalAnswer:
        context = self._migration.context
        # A person who stops producers by hand has stopped them before typing the code. Otherwise the answer is as young
        # as the facts that its code is checked against, however long the tail had to catch up before.
        is_by_hand = facts.kind == "cutover" and context.spec.cutover.freeze == "manual"
        return ApprovalAnswer(
            migration_id=facts.migration_id,
            kind=facts.kind,
            decision="approve",
            code=code,
            responders=[Responder(user_id=self._person, user_name=self._person)],
            answered_at=iso(self._answered_at if is_by_hand and self._answered_at else context.now()),
            body_shown=facts.body,
            facts_digest=facts.digest(),
            second=self._is_second(facts),
        )

    def _is_second(self, facts: ApprovalFacts) -> bool:
        """Whether the answer is that of the second person. A first one that holds no more has to be given again."""
        context = self._migration.context
        section = context.spec.approvals
        return bool(section.second_users) and any(
            item.code == facts.code and context.now() - parse_iso(item.answered_at) <= section.max_age
            for item in check.given(context, facts.kind)
            if not item.second
        )


# -- runners ----------------------------------------------------------------------------------------------------------
#
# How the command line runs data plane jobs: in this process, or on a Spark engine.


_PROGRESS_SECONDS = 1.0
_T = TypeVar("_T")

ReadProgress = Callable[[], Progress | None]
ShowProgress = Callable[[Progress], None]


def references(spec: MigrationSpec, resolver: Resolver, job: str = "") -> dict[str, Any]:
    """Return the connections of a spec for this process, with their secrets.

    :param job: name of the job document; a job that may know only one cluster gets only that one.
    :raises ConnectionInvalid: a connection cannot be resolved.
    """
    given = references_of(spec, job)
    return {role: resolver.mapping(reference) if reference else None for role, reference in given.items()}


class ProgressPump:
    """Reads and shows a job's progress periodically while the caller waits for the job."""

    def __init__(self, read: ReadProgress, show: ShowProgress) -> None:
        self._read = read
        self._show = show
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressPump:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(_PROGRESS_SECONDS):
            # Unreadable progress must not stop a copy.
            with contextlib.suppress(Exception):
                progress = self._read()
                if progress is not None:
                    self._show(progress)


class InProcessRunner:
    """Copies and compares in threads of this process.

    :param stop: when set, a copy ends early with :class:`Interrupted`; the next run continues where it stopped.
    :param threads: concurrent lanes, or concurrent partitions to compare.
    """

    def __init__(self, resolver: Resolver, show: ShowProgress, stop: Stop, *, threads: int = 4) -> None:
        self._resolver = resolver
        self._show = show
        self._stop = stop
        self._threads = threads

    def submit(self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: ReadProgress) -> None:
        """Run a job document to its end."""
        # Pass the reference itself: keys that expire are renewed in this process.
        given = {**references(spec, self._resolver, Path(job_key).stem), "storage": spec.storage.conn_id}
        with (
            self._stop.heeded(),
            Clients(given, None, self._resolver) as clients,
            ProgressPump(read_progress, self._show),
        ):
            data = clients.store(job_location).get(job_key)
            if data is None:
                raise JobMissing(
                    "the job document does not exist",
                    where=Where(migration_id=spec.migration_id, path=f"{job_location}/{job_key}"),
                    next_step="resume the migration: the phase writes it again",
                )
            if json.loads(data).get("name") == "verify":
                self._compare(clients, ContentJob.parse(data))
            else:
                self._copy(clients, CopyJob.parse(data))

    def _copy(self, clients: Clients, job: CopyJob) -> None:
        try:
            with endpoint(job, clients.store(job.journal_location)):
                LocalRunner(clients, threads=self._threads, stop=self._stop.is_set).run(job)
        finally:
            if self._stop.is_set():
                raise interrupted(job.migration_id, job.name)

    def _compare(self, clients: Clients, job: ContentJob) -> None:
        LocalContentRunner(clients, threads=self._threads, stop=self._stop.is_set).run(job)


def spark_runner(
    spec: MigrationSpec, resolver: Resolver, show: ShowProgress, stop: Stop, *, master: str | None
) -> EngineRunner:
    """Return the runner of a spec's jobs on its Spark engine. It is the one that Airflow's tasks use.

    :param master: Spark's master, for the engine ``submit``; None: as the spec says, else this machine.
    :raises EngineUnknown: no engine has the name in the spec.
    :raises SpecInvalid: its arguments are wrong, or it takes no master.
    """
    from airflow_provider_kafka_migration.engines.run import EngineRunner
    from airflow_provider_kafka_migration.provider.engine_jobs import JobMaker
    from airflow_provider_kafka_migration.references.sealing import PUBLIC_KEY_VARIABLE

    engine = make_engine_of(spec, master)
    folder = Path(tempfile.gettempdir()) / f"kafka-migration-{os.getuid()}-{uuid.uuid4().hex[:24]}"
    make_job = JobMaker(spec, resolver, engine, folder, public_key=os.environ.get(PUBLIC_KEY_VARIABLE, ""))

    @contextlib.contextmanager
    def pump(read: ReadProgress) -> Iterator[None]:
        with stop.heeded(), ProgressPump(read, show):
            yield

    def wait(seconds: float) -> bool:
        # A signal does not wake up a wait, so wait in short pieces.
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            if stop.wait(min(left, 0.2)):
                return True
        return stop.is_set()

    return EngineRunner(engine, make_job, pump=pump, stop=wait)


def make_engine_of(spec: MigrationSpec, master: str | None) -> SparkEngine:
    """Return the Spark engine of a spec for the command line.

    :raises EngineUnknown: no engine has the name in the spec.
    :raises SpecInvalid: its arguments are wrong, or it takes no master.
    """
    from airflow_provider_kafka_migration.engines.find import DEFAULT, make_engine

    name, arguments = spec.spark.engine, dict(spec.spark.engine_args)
    if name == DEFAULT and master is not None:
        arguments["master"] = master
    elif master is not None:
        raise SpecInvalid(
            f"--master belongs to spark-submit, but the spec's engine is {name}",
            where=Where(migration_id=spec.migration_id, path="spark.engine"),
            next_step="leave --master out, or remove spark.engine from the spec",
        )
    engine = make_engine(name, arguments)
    return engine if name == DEFAULT else WithoutAirflow(engine)


class WithoutAirflow:
    """An engine on the command line: where it needs Airflow, its error says so instead of what Airflow says."""

    name: ClassVar[str]

    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine
        self.name = engine.name  # type: ignore[misc]
        self.detached = engine.detached

    def submit(self, job: SparkJob) -> str:
        """See ``SparkEngine``."""
        return self._ask(lambda: self._engine.submit(job))

    def status(self, job_id: str) -> JobStatus:
        """See ``SparkEngine``."""
        return self._ask(lambda: self._engine.status(job_id))

    def cancel(self, job_id: str) -> None:
        """See ``SparkEngine``."""
        self._ask(lambda: self._engine.cancel(job_id))

    def trigger(self, _job_id: str) -> None:
        """The command line has no triggers."""

    def links(self, job_id: str) -> dict[str, str]:
        """See ``SparkEngine``."""
        return self._ask(lambda: self._engine.links(job_id))

    def __getattr__(self, name: str) -> Any:
        """Return what only some engines have: ``located_by``, ``arguments``, ``find``, ``cancel_doubles``."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._engine, name)
        return (lambda *given: self._ask(lambda: found(*given))) if callable(found) else found

    def _ask(self, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except MigrationError:
            raise
        except Exception as error:
            if not type(error).__module__.startswith("airflow.") and not isinstance(error, ImportError):
                raise
            raise EngineNeedsAirflow(
                f"the engine {self.name} cannot be used here: {type(error).__name__}",
                where=Where(path="spark.engine"),
                next_step="give its connection as AIRFLOW_CONN_<ID> in the environment and install its provider, run "
                "the migration in Airflow, or use --runner local or the engine submit",
            ) from error


def interrupted(migration_id: str, name: str) -> Interrupted:
    """Return the error of a job that was asked to stop."""
    return Interrupted(
        f"{name} was asked to stop",
        where=Where(migration_id=migration_id, phase=name),
        next_step="run the same command again, or resume the migration: it continues where it stopped",
    )
