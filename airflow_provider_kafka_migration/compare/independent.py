"""The stored results of the independent proof (:mod:`~..spark.independent`)."""

from __future__ import annotations

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.independent import IndependentJob, IndependentResult, result_key
from airflow_provider_kafka_migration.documents.proof import ContentRange
from airflow_provider_kafka_migration.storage.base import ObjectStore


class IndependentResults:
    """Results of a job, one object per partition; those of an earlier attempt do not count."""

    def __init__(self, job: IndependentJob, store: ObjectStore) -> None:
        self._job = job
        self._digest = job.digest()
        self._store = store

    def read(self, compared: ContentRange) -> IndependentResult | None:
        """Return the result of a partition; None if it has none."""
        data = self._store.get(result_key(self._job.migration_id, *compared.key))
        if data is None:
            return None
        try:
            found = IndependentResult.parse(data)
        except ValidationError:
            return None
        return found if found.job_digest == self._digest and found.range == compared else None

    def read_all(self) -> list[IndependentResult]:
        """Return the results that are there, ascending."""
        found = (self.read(item) for item in self._job.ranges)
        return [item for item in found if item is not None]

    def write(self, result: IndependentResult) -> None:
        """Store a result."""
        self._store.put(result_key(self._job.migration_id, *result.key), result.canonical())
