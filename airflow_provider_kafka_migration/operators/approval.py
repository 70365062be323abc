"""Tasks ``approve_cutover`` and ``approve_client_switch``: a person decides on live facts.

Airflow keeps the page of an approval's first attempt when the task is cleared, so a click alone authorizes nothing:
the page shows a code, the first 8 hex digits of the digest over what will happen, and the answer must repeat it. If
something has changed in the meantime, the code has changed as well, and the old one is refused. REST callers also need
the code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperatorLink, Param

from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalFacts, ApprovalKind, Responder
from airflow_provider_kafka_migration.links.storage import JournalLink, PlanLink
from airflow_provider_kafka_migration.provider.compat import await_answer, put_question, set_retry_policy
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, plain_spec
from airflow_provider_kafka_migration.record.times import iso

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.record.context import PhaseContext
    from airflow_provider_kafka_migration.spec import MigrationSpec

APPROVE = "Approve"
NOT_YET = "Not yet"
ABORT = "Abort"
BACK_OUT = "Back out"

Decision = Literal["approve", "not_yet", "abort", "back_out"]
DECISIONS: dict[str, Decision] = {APPROVE: "approve", NOT_YET: "not_yet", ABORT: "abort", BACK_OUT: "back_out"}
#: Decisions that end a migration.
_ENDS = ("abort", "back_out")

#: Name of the field into which the person types the code.
CODE = "code"


def _code_param() -> Param:
    """Return the code field. It is empty by default: a required Param without a default fails the task at its start."""
    return Param("", type="string", source="task", title="Code", description="The 8 characters in the text above.")


class MigrationApprovalOperator(MigrationTask, ApprovalOperator):
    """Shows what will happen, waits for a person, and passes the answer to the core, which accepts or refuses it.

    "Not yet" is journaled, and the task asks the same question again. The task has no retries: after a refused answer,
    clear the task to ask again.

    :param spec: the migration; None takes it from the Params of the run.
    :param takeover: take the migration over from another owner.
    :param first_task_id: this task asks the second of two people; the first one answered that task.
    :param awaits_second: this task asks the first of two people; the second one decides what follows.
    :param abort_task_ids: full ids of direct downstream tasks that run only after a decision that ends the migration;
        by default the task :attr:`ends_with` of the same group.
    :param kwargs: arguments of ``ApprovalOperator`` (``notifiers``, ...). ``assigned_users`` and ``response_timeout``
        come from the spec unless they are given here.
    """

    #: Arguments that this class or the DAG sets itself.
    fixed_arguments: ClassVar[frozenset[str]] = MigrationTask.fixed_arguments | {
        *("retries", "subject", "body", "options", "multiple", "defaults", "params"),
        *("first_task_id", "awaits_second", "fail_on_reject", "ignore_downstream_trigger_rules"),
    }

    kind: ClassVar[ApprovalKind]
    choices: ClassVar[Sequence[str]]
    decisions: ClassVar[Mapping[str, Decision]] = DECISIONS
    #: The task that carries out a decision that ends the migration.
    ends_with: ClassVar[str]

    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(), PlanLink())

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        first_task_id: str | None = None,
        awaits_second: bool = False,
        abort_task_ids: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        set_retry_policy(kwargs)
        kwargs["retries"] = 0
        # The standard provider has this argument since 1.14, and the answer has a limit with any.
        response_timeout = kwargs.pop("response_timeout", None)
        # Airflow puts the DAG's Params into kwargs and merges them again below; the form shows only the task's own.
        kwargs["params"] = {CODE: _code_param()}
        super().__init__(subject="Kafka migration", **kwargs)
        self.response_timeout = response_timeout or getattr(self, "response_timeout", None)
        self.options = list(self.choices)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self.first_task_id = first_task_id
        self.awaits_second = awaits_second
        self.abort_task_ids = sorted([self.beside(self.ends_with)] if abort_task_ids is None else abort_task_ids)

    def validate_params(self) -> None:
        """Keep the fields of the form, and check them. Airflow 3.1 would show and check the DAG's Params as well."""
        self.params = type(self.params)({CODE: self.params.get_param(CODE)})
        super().validate_params()

    # ---- asking

    def execute(self, context: Context) -> Any:
        """Ask, unless the migration has moved on according to the journal."""
        from airflow_provider_kafka_migration.approvals import request

        with self.open_migration(context) as migration:
            decision = self._earlier_decision(migration.context) or self._first_aborted(context)
            facts = None if decision else request.show(migration.context, self.kind)
        if facts is not None:
            self._ask(context, facts)
        self.log.info("already answered: %s", decision)
        return self._go_on(context, str(decision), self._pointers(context, str(decision)))

    def _ask(self, context: Context, facts: ApprovalFacts) -> NoReturn:
        self.subject, self.body = facts.subject, facts.body
        self._set_people(self.migration_spec(context))
        self.log.info("%s\n\n%s", facts.subject, facts.body)
        shown = self._show(context)
        if shown != facts.body:
            self.log.warning(
                "Airflow still shows the text of this task's first attempt. The text above is the valid one; the code "
                "is %s",
                facts.code,
            )
        for notifier in self.notifiers:
            notifier(context)
        await_answer(
            self,
            context["ti"].id,
            method_name="execute_complete",
            kwargs={"body_shown": shown, "facts_digest": facts.digest()},
        )

    def _set_people(self, spec: MigrationSpec) -> None:
        people = spec.approvals.second_users if self.first_task_id else spec.approvals.assigned_users
        if self.assigned_users is None and people:
            self.assigned_users = [{"id": person, "name": person} for person in people]
        if self.response_timeout is None:
            self.response_timeout = spec.approvals.response_timeout

    def _show(self, context: Context) -> str:
        """Post the question; return the text that Airflow shows, which after a clear is the first attempt's."""
        shown = put_question(
            context["ti"].id,
            options=self.options,
            subject=self.subject,
            body=self.body,
            params=self.serialized_params,
            users=[{"id": user["id"], "name": user["name"]} for user in self.assigned_users or []],
        )
        return (self.body or "") if shown is None else shown

    # ---- the answer

    def execute_complete(
        self, context: Context, event: dict[str, Any], body_shown: str = "", facts_digest: str = ""
    ) -> Any:
        """Process the answer.

        :raises ApprovalRefused: no code, an old code, the same person twice, or the facts have become worse.
        :raises HITLTimeoutError: no answer came in time.
        """
        if "error" in event:
            self.process_trigger_event_error(event)
        self.validate_chosen_options(event["chosen_options"])
        with self.open_migration(context) as migration:
            # Whoever backs out may do so because a cluster does not answer any more.
            is_end = self.decisions[event["chosen_options"][0]] == "back_out"
            core = migration.journal_context if is_end else migration.context
            answer = self._answer(core, event, body_shown, facts_digest)
            facts = self._take(core, answer)
        if facts is not None:
            self._ask(context, facts)
        return self._go_on(context, answer.decision, self._pointers(context, answer.decision))

    def _take(self, core: PhaseContext, answer: ApprovalAnswer) -> ApprovalFacts | None:
        """Pass the answer to the core. Return the facts if the question must be asked again."""
        from airflow_provider_kafka_migration.approvals import answers, request

        self.log.info(answers.answer(core, answer).summary)
        return request.show(core, self.kind) if answer.decision == "not_yet" else None

    def _answer(
        self, core: PhaseContext, event: Mapping[str, Any], body_shown: str, facts_digest: str
    ) -> ApprovalAnswer:
        from airflow_provider_kafka_migration.approvals.abandon import parse_code

        person = event.get("responded_by_user") or {}
        code, target_unread = parse_code(str((event.get("params_input") or {}).get(CODE) or ""))
        return ApprovalAnswer(
            migration_id=core.migration_id,
            kind=self.kind,
            decision=self.decisions[event["chosen_options"][0]],
            code=code,
            target_unread=target_unread,
            responders=[Responder(user_id=str(person.get("id") or ""), user_name=str(person.get("name") or ""))],
            answered_at=_answered_at(event),
            body_shown=body_shown,
            facts_digest=facts_digest,
            second=self.first_task_id is not None,
        )

    # ---- what follows

    def _first_aborted(self, context: Context) -> str | None:
        """Return "abort" if the first person has aborted: then the second one is not asked."""
        if self.first_task_id is None:
            return None
        first = context["ti"].xcom_pull(task_ids=self.first_task_id)
        return "abort" if isinstance(first, Mapping) and first.get("decision") == "abort" else None

    def _earlier_decision(self, core: PhaseContext) -> str | None:
        """Return an earlier decision that the migration has already acted on."""
        from airflow_provider_kafka_migration.approvals import answers
        from airflow_provider_kafka_migration.state import State

        core.journal.refresh()
        ended = {State.FINALIZED: "approve", State.ROLLED_BACK: "abort"}.get(core.journal.tip_state or State.PLANNED)
        done = answers.answered(core, self.kind, second=self.first_task_id is not None)
        return ended or (str(done.details["decision"]) if done else None)

    def _go_on(self, context: Context, decision: str, pointers: dict[str, Any]) -> dict[str, Any]:
        """End the task, skipping what must not follow."""
        if self.awaits_second:
            return pointers
        ends = decision in _ENDS
        below = context["task"].get_direct_relatives(upstream=False)
        skipped = [task for task in below if (task.task_id in self.abort_task_ids) != ends]
        if skipped:
            # skip() ends the task, so its result would not reach XCom.
            context["ti"].xcom_push(key="return_value", value=pointers)
            self.skip(ti=context["ti"], tasks=skipped)
        return pointers

    def _pointers(self, context: Context, decision: str) -> dict[str, Any]:
        spec = self.migration_spec(context)
        return {
            "migration_id": spec.migration_id,
            "phase": self.phase,
            "journal": self.storage_uris["journal"],
            "decision": decision,
        }


def _answered_at(event: Mapping[str, Any]) -> str:
    """Return the time of the answer: UTC, ISO 8601."""
    value = event.get("responded_at") or datetime.now(UTC)
    return iso(value if isinstance(value, datetime) else datetime.fromisoformat(str(value)))


class CutoverApprovalOperator(MigrationApprovalOperator):
    """Task ``approve_cutover``: Approve, Not yet, or Abort, which rolls the migration back.

    .. seealso:: docs/operators.md
    """

    APPROVE = APPROVE
    REJECT = ABORT
    phase = "approve_cutover"
    kind = "cutover"
    choices = (APPROVE, NOT_YET, ABORT)
    ends_with = "rollback"


class ClientSwitchApprovalOperator(MigrationApprovalOperator):
    """Task ``approve_client_switch``: the clients are being switched; Approve, Not yet, or Back out.

    Approving syncs the groups' offsets for the last time. "Back out" abandons the migration, as long as no client has
    written to the target: the producers of the source are freed, and clients stay there. It needs its own code from the
    text; if the target's logs cannot be read, also the word ``target-unread`` behind it.

    .. seealso:: docs/operators.md
    """

    APPROVE = APPROVE
    REJECT = NOT_YET
    phase = "approve_client_switch"
    kind = "client_switch"
    choices = (APPROVE, NOT_YET, BACK_OUT)
    ends_with = "abandon"
