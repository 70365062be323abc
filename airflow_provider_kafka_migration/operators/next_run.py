"""The task that lets the next run of a mirror's DAG follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from airflow_provider_kafka_migration.links.storage import JournalLink
from airflow_provider_kafka_migration.mirror_table import MIRROR_PHASE, NEXT_RUN
from airflow_provider_kafka_migration.operators.mirror import MirrorTask
from airflow_provider_kafka_migration.provider.compat import set_retry_policy
from airflow_provider_kafka_migration.provider.run_chain import RUN_IS_OVER, next_run
from airflow_provider_kafka_migration.provider.task import SpecSource, plain_spec

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context


class KafkaMirrorNextRunOperator(MirrorTask, TriggerDagRunOperator):
    """Starts the next run of this DAG with the Params of this one, if ``mirror`` has ended because its time was over.

    The next run's id follows from that of this run, so it is started once, however often this task is killed.

    .. seealso:: docs/operators.md
    """

    phase = NEXT_RUN.id
    template_fields: Sequence[str] = ("spec",)
    operator_extra_links: list[BaseOperatorLink] = [JournalLink()]
    fixed_arguments: ClassVar[frozenset[str]] = MirrorTask.fixed_arguments | {
        *("trigger_dag_id", "trigger_run_id", "conf", "logical_date", "run_after", "reset_dag_run"),
        *("skip_when_already_exists", "wait_for_completion"),
    }

    def __init__(self, *, spec: SpecSource = None, takeover: bool = False, **kwargs: Any) -> None:
        set_retry_policy(kwargs)
        super().__init__(
            # Both are known when the task runs.
            trigger_dag_id="",
            logical_date=None,
            # A former attempt of this task has started it.
            skip_when_already_exists=True,
            # It would be added to the Params of each run of the chain.
            openlineage_inject_parent_info=False,
            **kwargs,
        )
        self.spec = plain_spec(spec)
        self.takeover = takeover

    def execute(self, context: Context) -> None:  # type: ignore[override]
        """Start the run, or do nothing after a promotion or an end.

        :raises DagRunTriggerException: as all tasks that start a run do; Airflow then starts it.
        """
        instance = context["ti"]
        pointers = instance.xcom_pull(task_ids=self.beside(MIRROR_PHASE.id)) or {}
        if not pointers.get(RUN_IS_OVER):
            self.log.info("No run follows: the mirror is %s", pointers.get("state", "not handed over"))
            return
        self.trigger_dag_id, self.trigger_run_id = instance.dag_id, next_run(instance.run_id)
        self.conf = dict(getattr(context["dag_run"], "conf", None) or {})
        self.log.info("The mirror goes on in the run %s", self.trigger_run_id)
        TriggerDagRunOperator.execute(self, context)
