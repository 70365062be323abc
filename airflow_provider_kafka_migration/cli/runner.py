"""A whole migration from one process: the phases in order, the tail beside them, a stop where a person decides.

What Airflow's DAG does with tasks happens here with one background thread. Nothing is kept between two calls but the
journal: ``run`` and ``resume`` are the same, each phase says by itself whether it is done.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.approvals import answers, check, request
from airflow_provider_kafka_migration.cli.frame import Stop
from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy.clients import Clients, write_references
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalFacts, ApprovalKind, Responder
from airflow_provider_kafka_migration.documents.proof import ContentJob
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    Interrupted,
    JobMissing,
    SparkJobFailed,
    Terminal,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.freeze import open_freeze
from airflow_provider_kafka_migration.freeze.open_freeze import Standing
from airflow_provider_kafka_migration.groups import commit
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phases import freeze_limit
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult, Progress, iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.s3_credentials import keys_kept_in, with_keys_file

log = logging.getLogger(__name__)

#: Pauses before a tail that has failed is started again; the first one again when it has run for long.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_LONG_SECONDS = 300.0
#: The longest pause while producers stand still, and how often a pause looks whether they do.
_HURRIED_PAUSE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
#: A tail that has journaled its end is over in a moment.
_TAIL_END_SECONDS = 30.0

#: Phases before anything runs beside them.
COPY = ("plan", "precheck", "topology_copy", "seed")
CUTOVER_TO_DRAIN = ("cutover.freeze", "cutover.sentinels", "cutover.final_drain")
CUTOVER_REST = ("cutover.snapshot_groups", "cutover.commit_groups", "cutover.floor_guard")
PROOF = ("validate", "evidence")

#: Where ``--until`` may stop.
STOPS = (*COPY, "drain_ready", *CUTOVER_TO_DRAIN, *CUTOVER_REST, *PROOF)

#: Those that wait, and look at the tail meanwhile.
_WAITING = frozenset({"drain_ready", "cutover.freeze", "cutover.sentinels", "cutover.final_drain"})

OnResult = Callable[[PhaseResult], None]


class _StopHere(Exception):
    """``--until`` is reached."""


@dataclass
class Outcome:
    """What a call has done.

    :param waiting: the approval that a person has to give next.
    """

    results: list[PhaseResult] = field(default_factory=list)
    waiting: ApprovalFacts | None = None


class Tail:
    """The tail in a thread of its own, beside the drain and the cutover.

    It is started again after failures that may pass, with growing pauses, for as long as it is wanted: who waits for it
    in a freeze keeps the freeze's limit.

    :param migration: opened for it alone; the same owner.
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
        """It may have ended by itself; if not, it stops after what is under way."""
        self._stop.set()
        self._thread.join()
        self._migration.close()

    def sleep(self, seconds: float) -> None:
        """Sleep, but wake up at once when the tail has failed: what waits for it would wait for ever.

        :raises MigrationError: why the tail failed.
        """
        self._ended.wait(seconds)
        self._raise()
        if self._ended.is_set():
            threading.Event().wait(seconds)

    def hurry(self) -> None:
        """Producers stand still: from now on it pauses only for moments."""
        self._hurried.set()

    def wait(self, seconds: float) -> PhaseResult | None:
        """Until it has ended by itself at its stop offsets; None: not within the time.

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
                log.warning("The tail has ended and is started again in %.0f s: %s", pause, error)
            self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Wait, for a moment only in a freeze. A signal does not wake up who waits for the stop, so look often."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            if self._hurried.is_set() and waited >= _HURRIED_PAUSE_SECONDS:
                return
            if self._stop.wait(min(seconds - waited, _LOOK_SECONDS)):
                return


def _in_freeze(context: PhaseContext) -> bool:
    """Whether a cutover has begun and was not given up, per the journal."""
    found = open_freeze.read(context)
    return found is not None and found.standing is not Standing.GIVEN_UP


class MigrationRunner:
    """Drives one migration as far as it goes.

    :param migration: opened, in the name of the person.
    :param open_tail: opens the migration once more for the tail, with the event that stops it.
    :param open_guard: opens it once more for the thread that keeps the limit of a freeze.
    :param on_result: told of each phase that has ended.
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
        self.outcome = Outcome()

    def go(self, code: str | None = None) -> Outcome:
        """Run what is left, up to the next approval without an answer.

        :param code: answers the first approval that is met.
        :raises MigrationError: what a phase met.
        """
        self._code = code
        with contextlib.suppress(_StopHere):
            self._go()
        return self.outcome

    def _go(self) -> None:
        # First of all, and without a cluster: a process that died in a freeze may have left producers stopped.
        with self._migration.reading() as context:
            is_overdue = freeze_limit.is_overdue(context)
            in_freeze = not is_overdue and _in_freeze(context)
        if is_overdue:
            self._migration.run("cutover.freeze_limit")
        if in_freeze and self._until in (*COPY, "drain_ready"):
            return
        if in_freeze:
            # The steps of the cutover wait for clusters that are away, and keep the limit; the phases before do not.
            self._bridge(in_freeze=True)
        else:
            for phase in COPY:
                self._run(phase)
            if not self._is_past(State.CUTOVER) and not self._bridge():
                return
        if not self._is_past(State.AWAITING_CLIENT_SWITCH) and not self._switch():
            return
        for phase in PROOF:
            self._run(phase)

    def _bridge(self, *, in_freeze: bool = False) -> bool:
        """From the tail's start to READY_FOR_CLIENT_SWITCH; False: a person is asked.

        :param in_freeze: producers are frozen already, so the drain was small and the cutover is approved.
        """
        with self._open_guard(), self._open_tail() as tail:
            if not in_freeze:
                self._run("drain_ready", tail)
                if not self._approved("cutover"):
                    return False
            tail.hurry()
            for phase in CUTOVER_TO_DRAIN:
                self._run(phase, tail)
            if self._migration.wait_for_tail(sleep=tail.sleep).details["ended"]:
                ended = tail.wait(_TAIL_END_SECONDS)
                if ended is not None:
                    self._note(ended)
            for phase in CUTOVER_REST:
                self._run(phase)
        return True

    def _switch(self) -> bool:
        """Offsets are refreshed, so that clients may move; False: a person is asked."""
        commit.sync_groups(self._migration.context)
        return self._approved("client_switch")

    def _run(self, phase: str, tail: Tail | None = None) -> None:
        options: dict[str, Any] = {"sleep": tail.sleep} if tail is not None and phase in _WAITING else {}
        self._note(self._migration.run(phase, **options))
        if phase == self._until:
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
        """Whether people have agreed, with the code that was given where it answers this approval."""
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
        # The second person is to answer yet.
        self.outcome.waiting = request.show(context, kind)
        return False

    def _holds(self, kind: ApprovalKind) -> bool:
        """An approval that was given just now, and not acted upon because the process ended."""
        context = self._migration.context
        newer_than = check.lifted_at(context) if kind == "cutover" else None
        if not check.given(context, kind, newer_than=newer_than):
            return False
        try:
            check.require(context, kind, newer_than=newer_than)
        except ApprovalRefused:
            return False
        if kind == "client_switch":
            self._note(self._migration.run("client_switch"))
        return True

    def _answer(self, facts: ApprovalFacts, code: str) -> ApprovalAnswer:
        context = self._migration.context
        first = check.given(context, facts.kind)
        return ApprovalAnswer(
            migration_id=facts.migration_id,
            kind=facts.kind,
            decision="approve",
            code=code,
            responders=[Responder(user_id=self._person, user_name=self._person)],
            answered_at=iso(context.now()),
            body_shown=facts.body,
            facts_digest=facts.digest(),
            second=bool(context.spec.approvals.second_users and first),
        )


# -- runners ----------------------------------------------------------------------------------------------------------
#
# How the command line runs jobs of the data plane: in this process, or by ``spark-submit``.


_PROGRESS_SECONDS = 1.0
_KILL_SECONDS = 10.0
#: Spark mains of jobs that have none of their own. The tail's ends by itself, too, and follows when it has to.
_MAINS = {"backup": "tail", "restore": "tail", "verify-archive": "verify"}

ReadProgress = Callable[[], Progress | None]
ShowProgress = Callable[[Progress], None]


#: Jobs that are given only one of the clusters; all others get both.
_ONE_SIDED = {"backup": ("source",), "restore": ("target",), "verify-archive": ("target",)}


def references(spec: MigrationSpec, resolver: Resolver, job: str = "") -> dict[str, Any]:
    """The connections of a spec, with their secrets: for this process, or for a file of mode 0600.

    :param job: name of the job document; one that may know only one cluster is given only that.

    :raises ConnectionInvalid: one cannot be resolved.
    """
    storage = spec.storage.conn_id
    known = {"source": spec.source.conn_id, "target": spec.target.conn_id}
    sides = _ONE_SIDED.get(job, tuple(known))
    return {
        **{side: resolver.mapping(known[side]) for side in sides},
        "storage": resolver.mapping(storage) if storage else None,
    }


class ProgressPump:
    """Reads a job's progress now and then while the caller waits for the job, and shows it."""

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
            # A figure that cannot be read must not stop a copy.
            with contextlib.suppress(Exception):
                progress = self._read()
                if progress is not None:
                    self._show(progress)


class InProcessRunner:
    """Copies and compares with threads of this process.

    :param stop: when set, a copy ends early with :class:`Interrupted`; run again, it goes on where it was.
    :param threads: lanes, or partitions to compare, at the same time.
    """

    def __init__(self, resolver: Resolver, show: ShowProgress, stop: Stop, *, threads: int = 4) -> None:
        self._resolver = resolver
        self._show = show
        self._stop = stop
        self._threads = threads

    def submit(self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: ReadProgress) -> None:
        """Run a job document to its end."""
        # The reference itself: keys that end are renewed in this process.
        given = {**references(spec, self._resolver, Path(job_key).stem), "storage": spec.storage.conn_id}
        with (
            self._stop.heeded(),
            Clients(given, None, self._resolver) as clients,
            ProgressPump(read_progress, self._show),
        ):
            data = clients.store(job_location).get(job_key)
            if data is None:
                raise JobMissing(
                    "there is no job document",
                    where=Where(migration_id=spec.migration_id, path=f"{job_location}/{job_key}"),
                    next_step="resume the migration: the phase writes it again",
                )
            if json.loads(data).get("name") == "verify":
                self._compare(clients, ContentJob.parse(data))
            else:
                self._copy(clients, CopyJob.parse(data))

    def _copy(self, clients: Clients, job: CopyJob) -> None:
        try:
            LocalRunner(clients, threads=self._threads, stop=self._stop.is_set).run(job)
        finally:
            if self._stop.is_set():
                raise interrupted(job.migration_id, job.name)

    def _compare(self, clients: Clients, job: ContentJob) -> None:
        LocalContentRunner(clients, threads=self._threads, stop=self._stop.is_set).run(job)


class SparkRunner:
    """Runs jobs by ``spark-submit`` on a master, with connections in a file of mode 0600 for as long as the job runs.

    :param master: for instance ``local[4,4]`` or ``spark://host:7077``.
    """

    def __init__(self, resolver: Resolver, show: ShowProgress, stop: Stop, *, master: str) -> None:
        self._resolver = resolver
        self._show = show
        self._stop = stop
        self._master = master

    def submit(self, spec: MigrationSpec, job_location: str, job_key: str, read_progress: ReadProgress) -> None:
        """Run a job document to its end.

        :raises SparkJobFailed: Spark ended with an error; the job's own errors are in its progress document.
        """
        name = Path(job_key).stem
        folder = Path(tempfile.mkdtemp(prefix="kafka-migration-"))
        try:
            file = folder / "references.json"
            given = references(spec, self._resolver, name)
            renew = self._resolver.renewal(spec.storage.conn_id) if spec.storage.conn_id else None
            keys: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if renew is not None:
                path = folder / "storage-keys.json"
                given["storage"] = with_keys_file(given["storage"], path)
                keys = keys_kept_in(path, renew)
            write_references(str(file), given)
            command = self._command(spec, name, job_location, job_key, file)
            with self._stop.heeded(), keys, ProgressPump(read_progress, self._show):
                self._run(spec, name, command, folder / "spark.log")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _command(self, spec: MigrationSpec, name: str, job_location: str, job_key: str, file: Path) -> list[str]:
        conf = {**spec.spark.conf, "spark.speculation": "false"}
        return [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", self._master, "--name", f"kafka-migration-{spec.migration_id}-{name}"),
            *(part for key in sorted(conf) for part in ("--conf", f"{key}={conf[key]}")),
            str(_spark_main(f"{_MAINS.get(name, name)}.py")),
            *("--job-location", job_location, "--job-key", job_key, "--references", str(file)),
        ]

    def _run(self, spec: MigrationSpec, name: str, command: list[str], log: Path) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            while process.poll() is None:
                if self._stop.wait(0.2):
                    raise interrupted(spec.migration_id, name)
        finally:
            _end(process)
        if process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise SparkJobFailed(
                f"spark-submit ended with status {process.returncode}: {_last_words(lines)}",
                where=Where(migration_id=spec.migration_id, phase=name),
                next_step="resume: it goes on from the target's log ends",
                details={"log": lines[-40:]},
            )


def interrupted(migration_id: str, name: str) -> Interrupted:
    """The error of a job that was told to stop."""
    return Interrupted(
        f"{name} was told to stop",
        where=Where(migration_id=migration_id, phase=name),
        next_step="run the same command again, or resume the migration: it goes on where it was",
    )


def _last_words(lines: list[str]) -> str:
    told = [line for line in lines if line.strip()]
    return told[-1][:500] if told else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the driver with all that it started."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
            return


def _spark_main(name: str) -> Path:
    """Where a Spark main lies: inside of the package (installed), or beside it (in the repository)."""
    package = Path(airflow_provider_kafka_migration.__file__).parent
    for folder in (package / "spark_jobs", package.parent / "spark_jobs"):
        if (folder / name).is_file():
            return folder / name
    raise Terminal(
        f"the Spark main {name} is not there", where=Where(path=str(package)), next_step="install the package again"
    )
