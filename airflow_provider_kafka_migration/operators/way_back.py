"""The way back in Airflow: the task that starts its DAG, and the approval that is different there."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalFacts
from airflow_provider_kafka_migration.operators.approval import DECISIONS, CutoverApprovalOperator
from airflow_provider_kafka_migration.provider.compat import refuses_paused_dags
from airflow_provider_kafka_migration.provider.params import way_back_conf
from airflow_provider_kafka_migration.provider.task import SpecSource, plain_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from airflow_provider_kafka_migration.record.context import PhaseContext
    from airflow_provider_kafka_migration.spec import MigrationSpec

#: The DAG of the way back.
WAY_BACK_DAG_ID = "kafka_migration_way_back"

BACK = "Back"
LATER = "Later"
KEEP = "Keep"


class StartWayBackOperator(TriggerDagRunOperator):
    """Task ``way_back``: starts the DAG of the way back, once per migration, as soon as clients have switched.

    The old cluster then receives what clients write to the new one while this migration is still validated. A cleared
    task finds the run that there is.

    :param spec: the migration.

    .. seealso:: docs/way-back.md
    """

    #: Arguments that this class or the DAG sets itself.
    fixed_arguments: ClassVar[frozenset[str]] = frozenset(
        {"dag", "spec", "task_group", "task_id", "trigger_dag_id", "trigger_run_id", "conf"}
    )

    def __init__(self, *, spec: SpecSource, **kwargs: Any) -> None:
        data = plain_spec(spec) or {}
        kwargs.setdefault("skip_when_already_exists", True)
        # A paused DAG would only queue the run, while the new cluster's retention goes on deleting.
        if refuses_paused_dags():
            kwargs.setdefault("fail_when_dag_is_paused", True)
        super().__init__(
            trigger_dag_id=WAY_BACK_DAG_ID,
            trigger_run_id=f"way_back__{data['migration_id']}",
            conf=way_back_conf(data),
            **kwargs,
        )


class KeepOrBackOperator(CutoverApprovalOperator):
    """Task ``approve_cutover`` of a way back: *Back* lets clients return, *Keep* releases the old cluster.

    Both need a code, each its own: *Back* the one at the end of the text, *Keep* the one next to it. After
    ``way_back.keep_for`` without an answer the question is asked again, with new facts; nothing decides by itself.

    .. seealso:: docs/way-back.md
    """

    APPROVE = BACK
    REJECT = KEEP
    choices = (BACK, LATER, KEEP)
    decisions = {BACK: DECISIONS["Approve"], LATER: DECISIONS["Not yet"], KEEP: DECISIONS["Abort"]}

    def _set_people(self, spec: MigrationSpec) -> None:
        super()._set_people(spec)
        limits = [limit for limit in (spec.approvals.response_timeout, self._asks_again_after(spec)) if limit]
        self.response_timeout = min(limits)

    @staticmethod
    def _asks_again_after(spec: MigrationSpec) -> timedelta:
        from airflow_provider_kafka_migration.way_back.derived_spec import section_of

        return section_of(spec).keep_for

    def execute_complete(
        self, context: Context, event: dict[str, Any], body_shown: str = "", facts_digest: str = ""
    ) -> Any:
        """Process the answer; without one, ask again.

        :raises ApprovalRefused: no code, an old code, or the code of the other decision.
        """
        if event.get("error_type") == "timeout":
            self._ask_again(context)
        return super().execute_complete(context, event, body_shown, facts_digest)

    def _ask_again(self, context: Context) -> NoReturn:
        with self.open_migration(context) as migration:
            facts = self._show_again(migration.context)
        self.log.warning("Nobody has answered within way_back.keep_for; the question is asked again")
        self._ask(context, facts)

    def _show_again(self, core: PhaseContext) -> ApprovalFacts:
        from airflow_provider_kafka_migration.approvals import request

        return request.show(core, self.kind)

    def _answer(
        self, core: PhaseContext, event: Mapping[str, Any], body_shown: str, facts_digest: str
    ) -> ApprovalAnswer:
        answer = super()._answer(core, event, body_shown, facts_digest)
        self.log.info("answered: %s", event["chosen_options"][0])
        return answer
