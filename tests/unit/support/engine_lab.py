"""A migration whose jobs run on a simulated engine and outlive their task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memory_engine import MemoryCluster, MemoryEngine, MemoryJob
from phase_world.jobs import MIGRATION
from phase_world.outside import Killed
from phase_world.world import World

from airflow_provider_kafka_migration.documents.job_end import JobEnd
from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import JobRef, PhaseResult
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver


class Lab:
    """A migration, and a cluster on which its jobs run.

    ``end`` is what a driver raises at its end (None: it has copied everything), ``tells`` whether drivers write how
    they have ended, and ``works`` whether a look at a job finds that it has ended.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = MemoryCluster(looks=self._drive)
        self.end: BaseException | None = None
        self.tells = True
        self.works = True
        self.waits = 0

    def _drive(self, job: MemoryJob) -> None:
        """A look at a job finds that it has ended."""
        if not self.works or job.state.is_over:
            return
        arguments = job.job.arguments
        if self.end is None:
            self.world.copiers.submit(None, "", arguments[1], None)
        job.state = JobState.SUCCEEDED if self.end is None else JobState.FAILED
        if self.tells:
            self.tell(job.job.token, self.end)

    def tell(self, token: str, error: BaseException | None, application_id: str = "") -> None:
        """Write what a driver writes at its end."""
        end = JobEnd.of(token, error, application_id=application_id)
        self.world.journal_store.put(f"{MIGRATION}/jobs/ends/{token}.json", end.canonical())

    def runner(
        self, stop: Callable[[float], bool] = lambda _seconds: False, *, engine: SparkEngine | None = None
    ) -> EngineRunner:
        """The runner of another process.

        :param stop: the wait between two looks at the job; True asks the task to stop.
        """
        return EngineRunner(engine or MemoryEngine(cluster=self.cluster), self._make_job, stop=stop)

    def works_from_wait(self, number: int) -> Callable[[float], bool]:
        """A wait during which jobs end only from this time on; ``waits`` counts them."""
        self.works, self.waits = False, 0

        def wait(_seconds: float) -> bool:
            self.waits += 1
            self.works = self.waits >= number
            return False

        return wait

    @contextmanager
    def _make_job(self, job: JobRef, token: str) -> Iterator[SparkJob]:
        yield SparkJob(
            migration_id=MIGRATION,
            name=job.name,
            token=token,
            main=None,  # type: ignore[arg-type]
            py_files=None,
            arguments=("--job-key", job.key, "--token", token),
        )

    def migration(self, runner: EngineRunner | None = None) -> Migration:
        """The migration as another process opens it."""
        self.world.restart()
        made = Migration.open(self.world.spec, "tester", Resolver(), actor="seed", runner=runner or self.runner())
        context = self.world.context()
        context.runner = made._runner
        made.__dict__["context"] = context
        return made

    def run(self, runner: EngineRunner | None = None) -> PhaseResult:
        """One attempt of a task that waits for the job."""
        return self.migration(runner).run("seed")

    def start(self, runner: EngineRunner | None = None) -> Submission:
        """One attempt of a task that does not wait: the job that it has submitted or found."""
        started = self.migration(runner).start_job("seed")
        assert isinstance(started, Submission)
        return started

    def record(self, journal: Journal) -> MigrationRecord:
        """The migration's record by another journal."""
        world = self.world
        stores = (world.journal_store, world.archive_store, world.evidence_store)
        return MigrationRecord(world.spec, journal, *stores, now=world.clock.now)

    @property
    def states(self) -> list[JobState]:
        """The states of all jobs, in the order of their submission."""
        return states(self.cluster)

    @property
    def tokens(self) -> list[str]:
        """The journaled tokens."""
        return [str(entry.details["token"]) for entry in self.world.steps(steps.SPARK_JOB_SUBMITTING)]

    @property
    def ids(self) -> list[str]:
        """The journaled ids."""
        return [str(entry.details["job_id"]) for entry in self.world.steps(steps.SPARK_JOB_SUBMITTED)]

    def check_done(self, jobs: int) -> None:
        """The seed is done, and so many jobs were submitted for it."""
        assert self.world.steps("seed_done")
        assert len(self.cluster.jobs) == jobs
        assert not self.cluster.running


def states(cluster: MemoryCluster) -> list[JobState]:
    """The states of all jobs of a cluster, in the order of their submission."""
    return [job.state for job in cluster.jobs.values()]


def dies(at: str) -> Callable[[str], None]:
    """The process dies at the first call of this name."""
    left = [at]

    def die(name: str) -> None:
        if name in left:
            left.remove(name)
            raise Killed

    return die
