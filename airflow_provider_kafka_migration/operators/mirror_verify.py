"""The operator that compares the contents of both sides of a mirror on Spark, beside the mirror."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperatorLink

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.links.storage import JournalLink, VerificationLink
from airflow_provider_kafka_migration.operators.spark_job import SparkMigrationOperator
from airflow_provider_kafka_migration.provider.params import COMPARED_LAST, COMPARED_TOPICS, Kind
from airflow_provider_kafka_migration.provider.task import run_owner

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaMirrorVerifyOperator(SparkMigrationOperator):
    """Compares the records of both sides of a mirror on Spark, and is red if something differs or was not compared.

    It only reads, makes no claim, and runs beside a mirror that runs, is paused, promoted or ended. The result is
    ``results/verification.json``, which ``kafka-migration mirror status`` shows. Killed at any moment, the next attempt
    of the same run does not compare again what was found equal.

    :param topics: regular expressions for whole topic names, on either side; empty: all. The Param of the run wins.
    :param last: compare only so many last offsets of each partition; None: all. The Param of the run wins.
    :param independent: read both sides with Spark's own Kafka source instead of the code that copies.
    :param kwargs: arguments of :class:`~.spark_job.SparkMigrationOperator`.

    .. seealso:: docs/operators.md
    """

    phase = "verify"
    spec_kind: ClassVar[Kind] = "mirror"
    #: A mirror that runs for years, across upgrades, must be comparable.
    takes_recorded = True
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), VerificationLink())

    def __init__(
        self, *, topics: Sequence[str] = (), last: int | None = None, independent: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.independent = independent
        self.topics = list(topics)
        self.last = last

    def phase_options(self, context: Context) -> dict[str, Any]:
        """Return who compares what.

        :raises SpecInvalid: a pattern or the number of offsets cannot be used.
        """
        params = context.get("params") or {}
        topics = list(params.get(COMPARED_TOPICS, self.topics) or ())
        last = params.get(COMPARED_LAST, self.last)
        for pattern in topics:
            try:
                re.compile(pattern)
            except re.error as error:
                raise _invalid(COMPARED_TOPICS, f"{pattern!r} is no regular expression: {error}") from None
        if last is not None and last < 1:
            raise _invalid(COMPARED_LAST, f"{last} is no number of offsets")
        instance = context["ti"]
        # Instances of a mapped task compare side by side, each with a job of its own.
        mapped = f"/{instance.map_index}" if getattr(instance, "map_index", -1) >= 0 else ""
        run = f"{run_owner(context)}/{instance.task_id}{mapped}"
        return {"run": run, "topics": topics, "last": last, "independent": self.independent}


def _invalid(name: str, what: str) -> SpecInvalid:
    return SpecInvalid(what, where=Where(path=name), next_step=f"correct the Param {name} of the run")
