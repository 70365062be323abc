"""Tasks ``approve_cutover`` and ``approve_client_switch``: a person decides on live facts.

Airflow keeps the page of an approval's first attempt when the task is cleared, so a click alone authorises nothing:
the page shows a code, the first 8 hex digits of the digest over what will happen, and the answer must repeat it. When
something changed meanwhile, the code has changed, too, and the old one is refused. REST callers need the code as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperatorLink, Param
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.timezone import utcnow

from airflow_provider_kafka_migration.documents.approval import ApprovalAnswer, ApprovalFacts, Responder
from airflow_provider_kafka_migration.hooks.retry import migration_retry_policy
from airflow_provider_kafka_migration.hooks.task import MigrationTask, SpecSource, plain_spec
from airflow_provider_kafka_migration.links.storage import JournalLink, PlanLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.spec import MigrationSpec

APPROVE = "Approve"
NOT_YET = "Not yet"
ABORT = "Abort"

Decision = Literal["approve", "not_yet", "abort"]
_DECISIONS: dict[str, Decision] = {APPROVE: "approve", NOT_YET: "not_yet", ABORT: "abort"}

CODE = "code"


def _code_param() -> Param:
    """Empty by default: a required Param without a default would fail the task at its start."""
    return Param(
        "", type="string", source="task", title="Code", description="The 8 characters shown in the text above."
    )


class MigrationApprovalOperator(MigrationTask, ApprovalOperator):
    """Shows what will happen, waits for a person, and hands the answer to the core, which accepts or refuses it.

    "Not yet" is journaled and the same question is asked again. The task has no retries: a refused answer is asked
    again by clearing the task.

    :param spec: the migration; None takes it from the Params of the run.
    :param takeover: take the migration over from another owner.
    :param second: this task asks the second one of two people.
    :param kwargs: arguments of ``ApprovalOperator`` (``notifiers``, ...). ``assigned_users`` and ``response_timeout``
        come from the spec unless they are given here.
    """

    kind: ClassVar[Literal["cutover", "client_switch"]]
    choices: ClassVar[Sequence[str]]

    template_fields: Sequence[str] = ("spec",)
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), PlanLink())

    def __init__(self, *, spec: SpecSource = None, takeover: bool = False, second: bool = False, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", migration_retry_policy())
        kwargs["retries"] = 0
        # Airflow puts the DAG's Params into kwargs and merges them again below; the form shows the task's own only.
        kwargs["params"] = {CODE: _code_param()}
        super().__init__(subject="Kafka migration", **kwargs)
        self.options = list(self.choices)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self.second = second

    # ---- asking

    def execute(self, context: Context) -> Any:
        """Ask, unless the journal has gone on."""
        with self.open_migration(context) as migration:
            done = migration.already_done(self.phase)
            if done is not None:
                self.log.info("already done: %s", done.summary)
                decision: Decision = done.details["decision"]
                pointers = {**self.pointers(migration, done), "decision": decision}
            else:
                facts = migration.approval_facts(self.kind)
        if done is None:
            self._ask(context, facts)
        self._go_on(context, decision, pointers)
        return pointers

    def _ask(self, context: Context, facts: ApprovalFacts) -> NoReturn:
        spec = self.migration_spec(context)
        self.subject, self.body = facts.subject, facts.body
        self._set_people(spec)
        self.log.info("%s\n\n%s", facts.subject, facts.body)
        shown = self._show(context)
        if shown != facts.body:
            self.log.warning(
                "Airflow goes on showing the text of this task's first attempt. What holds is the text above; the code "
                "is %s",
                facts.code,
            )
        for notifier in self.notifiers:
            notifier(context)
        raise TaskAwaitingInput(
            method_name="execute_complete", kwargs={"body_shown": shown}, timeout=self.response_timeout
        )

    def _set_people(self, spec: MigrationSpec) -> None:
        people = spec.approvals.second_users if self.second else spec.approvals.assigned_users
        if self.assigned_users is None and people:
            self.assigned_users = [{"id": person, "name": person} for person in people]
        if self.response_timeout is None:
            self.response_timeout = spec.approvals.response_timeout

    def _show(self, context: Context) -> str:
        """Put the question up; the text that Airflow shows, which after a clear is the first attempt's."""
        from airflow.sdk.api.datamodels._generated import HITLUser
        from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        answer = SUPERVISOR_COMMS.send(
            CreateHITLDetailPayload(
                ti_id=context["ti"].id,
                options=self.options,
                subject=self.subject,
                body=self.body,
                defaults=None,
                multiple=False,
                params=self.serialized_params,
                assigned_users=[HITLUser(**user) for user in self.assigned_users or []],
            )
        )
        if isinstance(answer, HITLDetailRequestResult) and answer.body is not None:
            return answer.body
        return self.body or ""

    # ---- the answer

    def execute_complete(self, context: Context, event: dict[str, Any], body_shown: str = "") -> Any:
        """Take the answer.

        :raises ApprovalRefused: no code, an old code, the same person twice, or the facts have become worse.
        :raises HITLTimeoutError: nobody answered in time.
        """
        if "error" in event:
            self.process_trigger_event_error(event)
        self.validate_chosen_options(event["chosen_options"])
        with self.open_migration(context) as migration:
            answer = self._answer(migration, event, body_shown)
            result = migration.answer_approval(answer)
            self.log.info(result.summary)
            if answer.decision == "not_yet":
                facts = migration.approval_facts(self.kind)
            pointers = {**self.pointers(migration, result), "decision": answer.decision}
        if answer.decision == "not_yet":
            self._ask(context, facts)
        self._go_on(context, answer.decision, pointers)
        return pointers

    def _answer(self, migration: Migration, event: Mapping[str, Any], body_shown: str) -> ApprovalAnswer:
        person = event.get("responded_by_user") or {}
        answered_at = event.get("responded_at") or utcnow()
        return ApprovalAnswer(
            migration_id=migration.spec.migration_id,
            kind=self.kind,
            decision=_DECISIONS[event["chosen_options"][0]],
            code=str((event.get("params_input") or {}).get(CODE) or "").strip().lower(),
            responders=[Responder(user_id=str(person.get("id", "")), user_name=str(person.get("name", "")))],
            answered_at=answered_at.isoformat() if isinstance(answered_at, datetime) else str(answered_at),
            body_shown=body_shown,
        )

    def _go_on(self, context: Context, decision: Decision, pointers: dict[str, Any]) -> None:
        """Nothing to skip by default."""


class CutoverApprovalOperator(MigrationApprovalOperator):
    """Task ``approve_cutover``: Approve, Not yet, or Abort, which rolls the migration back.

    :param abort_task_ids: tasks directly below that run after "Abort" only; all others run after "Approve" only.

    .. seealso:: docs/operators.md
    """

    APPROVE = APPROVE
    REJECT = ABORT
    phase = "approve_cutover"
    kind = "cutover"
    choices = (APPROVE, NOT_YET, ABORT)

    def __init__(self, *, abort_task_ids: Sequence[str] = ("rollback",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.abort_task_ids = sorted(abort_task_ids)

    def _go_on(self, context: Context, decision: Decision, pointers: dict[str, Any]) -> None:
        aborted = decision == "abort"
        below = context["task"].get_direct_relatives(upstream=False)
        skipped = [task for task in below if (task.task_id in self.abort_task_ids) != aborted]
        if skipped:
            # skip() ends the task, so its result would not reach XCom.
            context["ti"].xcom_push(key="return_value", value=pointers)
            self.skip(ti=context["ti"], tasks=skipped)


class ClientSwitchApprovalOperator(MigrationApprovalOperator):
    """Task ``approve_client_switch``: the clients read and write on the target; Approve, or Not yet.

    Rolling back is not possible any more; before the answer is accepted, the groups are synced once more.

    .. seealso:: docs/operators.md
    """

    APPROVE = APPROVE
    REJECT = NOT_YET
    phase = "approve_client_switch"
    kind = "client_switch"
    choices = (APPROVE, NOT_YET)
