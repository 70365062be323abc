"""Plan: derive what will happen from the spec and the live clusters. Read-only; plans of the same clusters are equal.

Read-only credentials suffice. Whatever they are not permitted to read is named in ``plan.unknown``, never assumed to be
empty; precheck turns it into findings.
"""

from __future__ import annotations

from airflow_provider_kafka_migration.planning.make import write_plan
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult


def run(context: PhaseContext) -> PhaseResult:
    """Run task ``plan``. The plan may be made again until the migration has changed anything.

    :raises Terminal: nothing is selected, or names on the target collide; the error lists all problems.
    :raises PermissionMissing: the principal may not read the configs of some source topics.
    """
    return write_plan(context)
