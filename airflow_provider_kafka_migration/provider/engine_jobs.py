"""What a Spark engine is given for a job document, by operators and by the command line. Does not import Airflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kafka_migration.documents.independent import INDEPENDENT
from airflow_provider_kafka_migration.engines.base import SparkEngine, SparkJob
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.jobs.independent_jobs import connector_conf
from airflow_provider_kafka_migration.provider.job_references import SparkPlace, job_references
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.record.keys import is_independent_comparison
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spark import launch
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Without it, Spark's own lines drown out the job's in the driver's log.
DEFAULT_CONF = {"spark.log.level": "WARN"}


def place_of(engine: SparkEngine, public_key: str = "") -> SparkPlace:
    """Return where an engine's processes are."""
    if isinstance(engine, SubmitEngine) and not engine.detached:
        return SparkPlace.of_master(engine.master, public_key)
    return SparkPlace(everything_here=False, name=f"engine {engine.name}", public_key=public_key)


class JobMaker:
    """Builds the jobs of a migration for an engine.

    :param folder: a folder for one job at a time; it is made anew, and removed when the job needs it no more.
    :param conf: more Spark conf; it overrides the spec's.
    :param environment: more environment variables of the driver; no secrets.
    :param mains: folder of the Spark mains; empty: those of this package.
    :param ships_code: whether the package is shipped; False if the caller's own ``py_files`` contain it.
    :param public_key: the public sealing key of the configuration.
    """

    def __init__(
        self,
        spec: MigrationSpec,
        resolver: Resolver,
        engine: SparkEngine,
        folder: Path,
        *,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        mains: str = "",
        ships_code: bool = True,
        public_key: str = "",
    ) -> None:
        self._spec = spec
        self._resolver = resolver
        self._engine = engine
        self._folder = folder
        self._conf = dict(conf or {})
        self._environment = dict(environment or {})
        self._mains = mains
        self._ships_code = ships_code
        self._public_key = public_key

    @contextmanager
    def __call__(self, job: JobRef, token: str) -> Iterator[SparkJob]:
        """Build a job; what it needs of this machine exists until the block ends.

        A job without a key runs already: only what would expire is renewed.

        :raises ConnectionInvalid: a connection is missing, or cannot get to Spark's processes.
        """
        spec = self._spec
        references = job_references(
            spec,
            self._resolver,
            place=place_of(self._engine, self._public_key),
            job=job.name,
            token=token,
            folder=self._folder,
            renews=not job.key,
        )
        with references as given:
            yield SparkJob(
                migration_id=spec.migration_id,
                name=job.name,
                token=token,
                main=launch.main_file(launch.main_name(job.name), self._mains),
                py_files=launch.build_py_files(self._folder) if job.key and self._is_shipped() else None,
                arguments=tuple(launch.job_arguments(job.location, job.key, given, token)),
                conf=self._conf_of(job.name),
                environment={**self._python(), **self._environment},
                staging=f"{spec.storage.journal}/{spec.migration_id}/spark",
            )

    def _conf_of(self, name: str) -> dict[str, str]:
        conf = {**DEFAULT_CONF, **self._spec.spark.conf, **self._conf, **launch.FORCED_CONF}
        needs_connector = name == INDEPENDENT or is_independent_comparison(name)
        more = connector_conf(self._spec.spark.kafka_connector) if needs_connector else {}
        for key, value in more.items():
            conf[key] = f"{conf[key]},{value}" if conf.get(key) else value
        return conf

    def _is_shipped(self) -> bool:
        return self._ships_code and not (isinstance(self._engine, SubmitEngine) and self._engine.is_local)

    def _python(self) -> dict[str, str]:
        """Return the variables with which Spark runs this Python; a driver elsewhere does not have it."""
        return {} if self._engine.detached else launch.python_environment()
