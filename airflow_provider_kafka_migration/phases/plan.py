"""Plan: what will happen, from the spec and the live clusters. Reads only; two plans of the same clusters are equal.

It works with read-only credentials. What they may not look at is named in ``plan.unknown``, never taken for empty;
precheck makes findings of it.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.planning.make import write_plan
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult


def run(context: PhaseContext) -> PhaseResult:
    """Task ``plan``. A plan may be made again as long as nothing was touched.

    :raises Terminal: nothing is selected, or names on the target collide; all problems at once.
    :raises PermissionMissing: topics of the source whose configs may not be read.
    """
    return write_plan(context)
