"""The stored results of the independent proof (:mod:`~..spark.independent`)."""

from __future__ import annotations

from pydantic import ValidationError

from airflow_provider_kafka_migration.documents.independent import IndependentJob, IndependentResult
from airflow_provider_kafka_migration.documents.proof import ContentRange
from airflow_provider_kafka_migration.storage.base import ObjectStore


class IndependentResults:
    """Results of a job, one object per partition; those of an earlier attempt do not count.

    :param migration_id: of the job.
    :param digest: of the job.
    :param store: of the journal.
    :param prefix: where they are, with a slash at its end; None: those of a validation.
    """

    def __init__(self, migration_id: str, digest: str, store: ObjectStore, prefix: str | None = None) -> None:
        self.migration_id = migration_id
        self.digest = digest
        self._store = store
        self._prefix = f"{migration_id}/results/independent/" if prefix is None else prefix

    @classmethod
    def of(cls, job: IndependentJob, store: ObjectStore) -> IndependentResults:
        """Return the results of a validation's job."""
        return cls(job.migration_id, job.digest(), store)

    def read(self, compared: ContentRange) -> IndependentResult | None:
        """Return the result of a partition; None if it has none, or is not compared to its end yet."""
        found = self.read_so_far(compared)
        return found if found is not None and found.reached_offset is None else None

    def read_so_far(self, compared: ContentRange) -> IndependentResult | None:
        """Return what is known of a partition, which may end at its ``reached_offset``; None: nothing."""
        data = self._store.get(self._key(compared))
        if data is None:
            return None
        try:
            found = IndependentResult.parse(data)
        except ValidationError:
            return None
        return found if found.job_digest == self.digest and found.range == compared else None

    def read_all(self, ranges: list[ContentRange], *, whole: bool = True) -> list[IndependentResult]:
        """Return the results of these partitions that are there, in their order.

        :param whole: only of those that are compared to their ends.
        """
        found = (self.read(item) if whole else self.read_so_far(item) for item in ranges)
        return [item for item in found if item is not None]

    def write(self, result: IndependentResult) -> None:
        """Store a result."""
        self._store.put(self._key(result.range), result.canonical())

    def _key(self, compared: ContentRange) -> str:
        return f"{self._prefix}{compared.topic}-{compared.partition}.json"
