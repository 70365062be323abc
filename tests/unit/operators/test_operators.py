"""Operators decide nothing: what they hand to the core, and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import airflow_releases as releases
import pytest
from airflow.sdk import AssetAlias, BaseNotifier
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow_releases import DagSerialization, Waits

from airflow_provider_kafka_migration import migration as core
from airflow_provider_kafka_migration.approvals import answers, request
from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalFacts
from airflow_provider_kafka_migration.errors import FreezeFailed, SpecInvalid
from airflow_provider_kafka_migration.freeze import one_task
from airflow_provider_kafka_migration.operators.approval import ClientSwitchApprovalOperator, CutoverApprovalOperator
from airflow_provider_kafka_migration.operators.freeze_limit import KafkaMigrationFreezeLimitOperator
from airflow_provider_kafka_migration.operators.migration import (
    CUTOVER_ALIAS,
    KafkaMigrationCommitGroupsOperator,
    KafkaMigrationFloorGuardOperator,
    KafkaMigrationFreezeOperator,
    KafkaMigrationPlanOperator,
    KafkaMigrationRollbackOperator,
    KafkaMigrationSeedOperator,
    KafkaMigrationTailOperator,
    cutover_asset,
)
from airflow_provider_kafka_migration.provider.lineage import CopyLineage
from airflow_provider_kafka_migration.provider.task import plain_spec
from airflow_provider_kafka_migration.record.context import PhaseResult
from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.triggers.freeze_limit import FreezeLimitTrigger

SECRETS = ("source-secret", "target-secret", "s3-secret")


class FakeTaskInstance:
    def __init__(self, task_id: str = "plan", xcoms: dict[str, Any] | None = None) -> None:
        self.dag_id, self.run_id, self.task_id, self.id = "kafka_migration", "manual__1", task_id, "ti"
        self.pushed: dict[str, Any] = {}
        self._xcoms = xcoms or {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, task_ids: str) -> Any:
        return self._xcoms.get(task_ids)


class FakeMigration:
    """Stands for Migration: notes how it was opened and what was run."""

    def __init__(self, state: State = State.DRAIN_READY) -> None:
        self.opened: dict[str, Any] = {}
        self.ran: list[str] = []
        journal = SimpleNamespace(tip_state=state, refresh=lambda: None)
        self.attempt: Any = None
        self.journal_context: Any = None
        record = SimpleNamespace(freeze=lambda: self.attempt, where=lambda *_args, **_fields: None)
        self.context = SimpleNamespace(
            migration_id="orders", journal=journal, record=record, where=lambda *_args, **_fields: None
        )

    def __call__(self, spec: Any, owner: str, resolver: Any, **options: Any) -> FakeMigration:
        self.spec = self.context.spec = spec
        self.opened = {"owner": owner, **options}
        self.resolver = resolver
        return self

    def __enter__(self) -> FakeMigration:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def wait_for_tail(self) -> None:
        self.ran.append("wait_for_tail")

    def run(self, phase: str, **_options: Any) -> PhaseResult:
        self.context.spec = self.spec
        self.ran.append(phase)
        details = {"digest": "d" * 64, "records": 7, "plenty": ["not", "for", "xcom"]}
        return PhaseResult(phase, f"{phase} done", details)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMigration:
    found = FakeMigration()
    monkeypatch.setattr(core.Migration, "open", found)
    return found


def _context(task_instance: FakeTaskInstance | None = None, **more: Any) -> Any:
    return {"ti": task_instance or FakeTaskInstance(), "params": {}, **more}


def test_the_run_is_the_owner_and_the_task_the_actor(fake: FakeMigration, minimal_spec: dict[str, Any]) -> None:
    """Clearing tasks of one run is the same owner; another run is another one."""
    KafkaMigrationPlanOperator(task_id="plan", spec=minimal_spec).execute(_context())
    assert fake.opened["owner"] == "kafka_migration/manual__1"
    assert fake.opened["actor"] == "plan"
    assert fake.opened["takeover"] is False
    assert fake.ran == ["plan"]


@pytest.mark.parametrize(("argument", "param"), [(True, False), (False, True)])
def test_takeover_by_argument_or_by_the_run(
    fake: FakeMigration, minimal_spec: dict[str, Any], argument: bool, param: bool
) -> None:
    operator = KafkaMigrationPlanOperator(task_id="plan", spec=minimal_spec, takeover=argument)
    operator.execute(_context(params={"takeover": param}))
    assert fake.opened["takeover"] == "once", "a run that was ousted needs a new decision"
    assert fake.opened["installation"] == "tests"


def test_xcom_gets_pointers_only(fake: FakeMigration, minimal_spec: dict[str, Any]) -> None:
    assert KafkaMigrationPlanOperator(task_id="plan", spec=minimal_spec).execute(_context()) == {
        "migration_id": "orders",
        "phase": "plan",
        "journal": "s3://bucket/migrations/orders",
        "summary": "plan done",
        "already_done": False,
        "digest": "d" * 64,
    }


def test_spec_comes_from_the_run_when_the_task_has_none(fake: FakeMigration) -> None:
    params = {"migration_id": "other", "source": "a", "target": "b", "journal": "s3://bucket/x"}
    KafkaMigrationPlanOperator(task_id="plan").execute(_context(params=params))
    assert fake.spec.migration_id == "other"


def test_bad_params_fail_before_anything_is_opened(fake: FakeMigration) -> None:
    with pytest.raises(SpecInvalid, match="source"):
        KafkaMigrationPlanOperator(task_id="plan").execute(_context(params={"migration_id": "x"}))
    assert fake.opened == {}


def test_constructor_reads_nothing(minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a spec is an error of the task, and not of the DAG file that makes it."""
    KafkaMigrationPlanOperator(task_id="plan", spec={"nonsense": True})


class Quiet(BaseNotifier):
    given: ClassVar[list[str]] = []

    def __init__(self, token: str) -> None:
        super().__init__()
        self.given.append(token)

    def notify(self, context: Any) -> None:
        pass


@pytest.mark.parametrize("given", ["spec", "params"])
def test_an_upgrade_in_a_freeze_leaves_nobody_frozen(
    fake: FakeMigration, minimal_spec: dict[str, Any], given: str
) -> None:
    """A run's spec that only an earlier version would accept: who frees producers takes it, all others refuse it."""
    cutover = {"freeze": "webhook", "producer_freeze_webhook": "https://hooks.example/?token=old"}
    data = {**minimal_spec, "cutover": cutover}
    spec, params = (data, {}) if given == "spec" else (None, {"more": data})
    for operator in (KafkaMigrationFreezeLimitOperator, KafkaMigrationRollbackOperator):
        if operator is KafkaMigrationRollbackOperator and spec is None:
            continue  # reads the journal's
        found = operator(task_id="x", spec=spec).migration_spec(_context(params=params))
        assert found.cutover.producer_freeze_webhook == cutover["producer_freeze_webhook"]
    with pytest.raises(SpecInvalid, match="query"):
        KafkaMigrationPlanOperator(task_id="plan", spec=spec).execute(_context(params=params))


def test_no_secret_reaches_the_serialised_dag_or_xcom(
    fake: FakeMigration,
    minimal_spec: dict[str, Any],
    connection: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Connections are resolved while a task runs, and nothing of them is kept where Airflow shows it."""

    for role in ("source", "target"):
        connection(f"kafka_{role}", conn_type="kafka", extra={"bootstrap.servers": "a:1", "p": f"{role}-secret"})
    connection("aws_s3", conn_type="aws", login="k", password="s3-secret")
    monkeypatch.setenv("FREEZE_WEBHOOK", "https://bob:webhook-secret@hooks.example/?webhook-secret")
    monkeypatch.setenv("NOTIFIER_TOKEN", "notifier-secret")
    minimal_spec["cutover"] = {"freeze": "webhook", "producer_freeze_webhook": "env:FREEZE_WEBHOOK"}
    minimal_spec["notifications"] = {
        "notifier": f"{__name__}.Quiet",
        "kwargs": {"token": "env:NOTIFIER_TOKEN"},
        "events": ["finalized"],
    }
    dag = build_migration_dag(minimal_spec)
    plan = dag.get_task("plan")
    pointers = plan.execute(_context())
    for reference in ("kafka_source", "kafka_target", "aws_s3"):
        fake.resolver.mapping(reference)
    evidence = dag.get_task("evidence")
    for callback in evidence.on_success_callback:
        callback(_context(task=evidence, dag=dag))
    assert Quiet.given == ["notifier-secret"]
    trigger = FreezeLimitTrigger(spec=plain_spec(minimal_spec) or {}).serialize()
    shown = json.dumps([DagSerialization.to_dict(dag), pointers, trigger]) + repr(vars(plan)) + caplog.text
    for secret in (*SECRETS, "webhook-secret", "notifier-secret"):
        assert secret not in shown


# ---- cutover


@pytest.mark.parametrize("in_one_task", [True, False])
def test_freeze_runs_the_whole_cutover_where_the_spec_says_so(
    fake: FakeMigration, minimal_spec: dict[str, Any], in_one_task: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def run_cutover(on_result: Callable[[PhaseResult], None]) -> PhaseResult:
        for step in ("freeze", "guard"):
            on_result(PhaseResult(step, f"{step} done"))
            told.append(step)
        return PhaseResult("guard", "READY", {})

    monkeypatch.setattr(fake, "run_cutover", run_cutover, raising=False)
    minimal_spec["cutover"] = {"in_one_task": in_one_task}
    added: list[Any] = []
    events = OutletEvents(lambda asset, extra: added.append(asset))
    freeze = KafkaMigrationFreezeOperator(task_id="freeze", spec=minimal_spec)
    pointers = freeze.execute(_context(outlet_events=events))
    assert freeze.outlets == [AssetAlias(CUTOVER_ALIAS)]
    assert len(added) == (1 if in_one_task else 0), "the target is ready only after all steps"
    KafkaMigrationFloorGuardOperator(task_id="floor_guard", spec=minimal_spec).execute(_context(outlet_events=events))
    assert added == [cutover_asset("orders")], "one event for each cutover, whoever runs its last step"
    fake.ran.remove("cutover.floor_guard")
    assert (fake.ran, told) == (([], ["freeze", "guard"]) if in_one_task else (["cutover.freeze"], []))
    assert pointers["summary"] == ("READY" if in_one_task else "cutover.freeze done")


def test_groups_are_committed_once_the_tail_has_reached_its_stop(
    fake: FakeMigration, minimal_spec: dict[str, Any]
) -> None:
    KafkaMigrationCommitGroupsOperator(task_id="commit_groups", spec=minimal_spec).execute(_context())
    assert fake.ran == ["wait_for_tail", "cutover.commit_groups"]


WATCH = "cutover.freeze_limit"


class WatchedTask(FakeTaskInstance):
    """A task whose run has the watch on the limit in a state."""

    def __init__(self, state: str | None) -> None:
        super().__init__("cutover.freeze")
        self.state = state

    def get_task_states(self, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        assert (dag_id, task_ids, run_ids) == (self.dag_id, [WATCH], [self.run_id])
        return {self.run_id: {WATCH: self.state}}


@pytest.mark.parametrize("in_one_task", [True, False])
@pytest.mark.parametrize(("state", "begins"), [("deferred", True), (None, True), ("failed", False), ("success", False)])
def test_no_freeze_begins_while_nobody_watches_its_limit(
    fake: FakeMigration,
    minimal_spec: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    state: str | None,
    begins: bool,
    in_one_task: bool,
) -> None:
    """The watch is red after it had to lift a freeze, and clearing the approval alone does not start it again."""
    monkeypatch.setattr(fake, "run_cutover", lambda _told: fake.run("all"), raising=False)
    minimal_spec["cutover"] = {"in_one_task": in_one_task}
    operator = KafkaMigrationFreezeOperator(task_id="freeze", spec=minimal_spec)
    events = OutletEvents(lambda *_args, **_more: None)
    context = _context(WatchedTask(state), dag=SimpleNamespace(task_ids=[WATCH]), outlet_events=events)
    if begins:
        operator.execute(context)
        assert fake.ran
        return
    with pytest.raises(FreezeFailed, match=WATCH) as caught:
        operator.execute(context)
    assert AGAIN in caught.value.next_step
    assert fake.ran == []
    fake.attempt = SimpleNamespace(lifted=False)
    operator.execute(context)
    assert fake.ran, "a freeze that has begun goes on: its steps keep the limit, too"


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_tail_goes_on_after_a_lifted_freeze(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """It has reached its stop twice: the first freeze was lifted, the second one has led to READY."""
    done, lifted, ran = PhaseResult("tail", "done", {}), [True, False], []

    class Tail:
        context = SimpleNamespace()

        def run(self, phase: str) -> PhaseResult:
            ran.append(phase)
            return done

        start_job = run

    @contextmanager
    def open_migration(self: Any, *_: Any, **__: Any) -> Iterator[Any]:
        self.storage_uris = {"journal": "s3://bucket/orders"}
        yield Tail()

    operator = KafkaMigrationTailOperator(task_id="tail", spec=minimal_spec, deferrable=deferrable)
    bound = SimpleNamespace(engine=SimpleNamespace(detached=deferrable))
    monkeypatch.setattr(type(operator), "open_migration", open_migration)
    monkeypatch.setattr(type(operator), "make_runner", lambda *_: bound)
    monkeypatch.setattr(type(operator), "_finished", lambda *_: None)
    monkeypatch.setattr(type(operator), "pointers", lambda *_: {})
    monkeypatch.setattr(type(operator), "_starts", lambda *_: None)
    monkeypatch.setattr(one_task, "tail_goes_on", lambda _context, **_: lifted.pop(0))
    operator.execute(_context())
    assert ran == ["tail", "tail"]
    assert lifted == []


@pytest.mark.parametrize(
    ("before", "after", "is_waited_for"),
    [
        # The run began with a graph in which commit_groups is below tail: its scheduler does not start it.
        ("success", None, True),
        ("running", None, False),
        # All steps run in the task of the freeze: the others have not begun.
        (None, None, False),
        ("success", "scheduled", False),
        ("success", "queued", False),
        ("success", "running", False),
        ("success", "success", False),
    ],
)
def test_a_tail_sees_that_the_cutover_waits_for_its_end(
    minimal_spec: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    before: str | None,
    after: str | None,
    is_waited_for: bool,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(one_task, "tail_goes_on", lambda _context, is_waited_for: asked.append(is_waited_for))
    operator = KafkaMigrationTailOperator(task_id="tail", spec=minimal_spec)
    run = FakeTaskInstance("tail")
    states = {"cutover.snapshot_groups": before, "cutover.commit_groups": after}
    monkeypatch.setattr(run, "get_task_states", lambda **_: {run.run_id: states}, raising=False)
    operator._goes_on(_context(run), cast(Any, SimpleNamespace(context=None)))
    assert asked[0]() is is_waited_for
    monkeypatch.setattr(run, "get_task_states", lambda **_: {})
    assert not asked[0](), "a DAG of one's own may have no such tasks"
    error = AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR))

    def fails(**_: Any) -> Any:
        raise error

    monkeypatch.setattr(run, "get_task_states", fails)
    assert not asked[0](), "what is not known ends no tail"


def test_ready_target_is_an_asset_event(fake: FakeMigration, minimal_spec: dict[str, Any]) -> None:
    added: list[Any] = []
    events = OutletEvents(lambda asset, extra: added.append((asset, extra)))
    guard = KafkaMigrationFloorGuardOperator(task_id="floor_guard", spec=minimal_spec)
    guard.execute(_context(outlet_events=events))
    assert added == [(cutover_asset("orders"), {"journal": "s3://bucket/migrations/orders"})]
    assert guard.outlets == [AssetAlias(CUTOVER_ALIAS)]


@pytest.mark.parametrize("state", [State.VALIDATING, State.FINALIZED])
def test_a_guard_cleared_after_the_switch_starts_no_other_dag_again(
    fake: FakeMigration, minimal_spec: dict[str, Any], state: State
) -> None:
    added: list[Any] = []
    events = OutletEvents(lambda asset, extra: added.append((asset, extra)))
    fake.context.journal.tip_state = state
    KafkaMigrationFloorGuardOperator(task_id="floor_guard", spec=minimal_spec).execute(_context(outlet_events=events))
    assert added == []


# ---- approvals


FACTS = ApprovalFacts(
    migration_id="orders",
    kind="cutover",
    code="0123abcd",
    binding={},
    facts={},
    subject="approve",
    body="the code is 0123abcd",
    made_at="2026-01-01T00:00:00Z",
)


class OutletEvents:
    """Of a context, with the alias of the cutover; aliases are no keys of dictionaries before Airflow 3.2."""

    def __init__(self, add: Callable[..., Any]) -> None:
        self._events = SimpleNamespace(add=add)

    def __getitem__(self, alias: AssetAlias) -> SimpleNamespace:
        assert alias == AssetAlias(CUTOVER_ALIAS)
        return self._events


class Asked(list[dict[str, Any]]):
    """What was put up, instead of Airflow's page."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, fake: FakeMigration) -> Asked:
    found = Asked()

    def show(self: Any, _context: Any) -> str:
        found.append({"body": self.body, "users": self.assigned_users, "options": self.options})
        return str(self.body)

    monkeypatch.setattr(CutoverApprovalOperator, "_show", show)
    monkeypatch.setattr(ClientSwitchApprovalOperator, "_show", show)
    monkeypatch.setattr(request, "show", lambda _core, _kind: FACTS)
    monkeypatch.setattr(answers, "answered", lambda *_args, **_options: None)
    return found


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[ApprovalAnswer]:
    found: list[ApprovalAnswer] = []

    def answer(_core: Any, answer: ApprovalAnswer) -> PhaseResult:
        found.append(answer)
        return PhaseResult("approve", "answered")

    monkeypatch.setattr(answers, "answer", answer)
    return found


def _event(option: str, code: str = "0123abcd") -> dict[str, Any]:
    return {
        "chosen_options": [option],
        "params_input": {"code": code},
        "responded_at": "2026-01-01T10:00:00+02:00",
        "responded_by_user": {"id": "7", "name": "anna"},
    }


class Skipping:
    """A task in a DAG whose skips are noted instead of sent."""

    def __init__(self, spec: dict[str, Any], task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dag = build_migration_dag(spec)
        self.task = self.dag.get_task(task_id)
        self.skipped: list[str] = []
        monkeypatch.setattr(
            type(self.task), "skip", lambda _self, ti, tasks: self.skipped.extend(task.task_id for task in tasks)
        )


def test_page_shows_the_facts_to_the_people_of_the_spec(asked: Asked, minimal_spec: dict[str, Any]) -> None:
    minimal_spec["approvals"] = {"assigned_users": ["anna", "bert"], "response_timeout": "1h"}
    with pytest.raises(Waits) as caught:
        CutoverApprovalOperator(task_id="approve_cutover", spec=minimal_spec).execute(_context())
    assert asked == [
        {
            "body": FACTS.body,
            "users": [{"id": "anna", "name": "anna"}, {"id": "bert", "name": "bert"}],
            "options": ["Approve", "Not yet", "Abort"],
        }
    ]
    assert releases.allowed_seconds(caught.value) == pytest.approx(3600, abs=600)
    assert caught.value.kwargs == {"body_shown": FACTS.body, "facts_digest": FACTS.digest()}


def test_answer_goes_to_the_core_with_who_when_and_what_was_shown(
    asked: Asked, given: list[ApprovalAnswer], minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Skipping(minimal_spec, "approve_cutover", monkeypatch)
    context = _context(FakeTaskInstance("approve_cutover"), task=tasks.task)
    pointers = tasks.task.execute_complete(context, _event("Approve"), body_shown="old text", facts_digest="f")
    assert given == [
        ApprovalAnswer(
            migration_id="orders",
            kind="cutover",
            decision="approve",
            code="0123abcd",
            responders=[{"user_id": "7", "user_name": "anna"}],
            answered_at=given[0].answered_at,
            body_shown="old text",
            facts_digest="f",
        )
    ]
    assert given[0].answered_at.startswith("2026-01-01T08:00:00")
    assert tasks.skipped == ["rollback"]
    assert pointers["decision"] == "approve"
    assert context["ti"].pushed["return_value"] == pointers
    assert "0123abcd" not in json.dumps(pointers)


def test_abort_skips_the_cutover(
    asked: Asked, given: list[ApprovalAnswer], minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Skipping(minimal_spec, "approve_cutover", monkeypatch)
    tasks.task.execute_complete(_context(task=tasks.task), _event("Abort", code=""))
    assert tasks.skipped == ["cutover.freeze"]
    assert given[0].decision == "abort"


def test_not_yet_asks_again_with_fresh_facts(
    asked: Asked, given: list[ApprovalAnswer], minimal_spec: dict[str, Any]
) -> None:
    with pytest.raises(Waits):
        CutoverApprovalOperator(task_id="a", spec=minimal_spec).execute_complete(_context(), _event("Not yet"))
    assert given[0].decision == "not_yet"
    assert len(asked) == 1


def test_timeout_is_an_error(asked: Asked, minimal_spec: dict[str, Any]) -> None:
    from airflow.providers.standard.exceptions import HITLTimeoutError

    event = {"error": "no answer", "error_type": "timeout"}
    with pytest.raises(HITLTimeoutError):
        CutoverApprovalOperator(task_id="a", spec=minimal_spec).execute_complete(_context(), event)


@pytest.mark.parametrize(("via", "archived"), [("s3", False), ("direct", False), ("split", True)])
def test_tail_names_the_archive_only_when_it_writes_it(via: str, archived: bool) -> None:
    """The tail copies from broker to broker; only a split migration takes its records through the bucket."""
    assert (CopyLineage.of(_migration(seed={"via": via}), "tail").archive is not None) is archived


@pytest.mark.parametrize(
    ("state", "skipped"), [(State.FINALIZED, ["rollback"]), (State.ROLLED_BACK, ["cutover.freeze"])]
)
def test_ended_migration_is_not_asked_again(
    asked: Asked,
    fake: FakeMigration,
    minimal_spec: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    skipped: list[str],
) -> None:
    fake.context.journal.tip_state = state
    tasks = Skipping(minimal_spec, "approve_cutover", monkeypatch)
    tasks.task.execute(_context(task=tasks.task))
    assert asked == []
    assert tasks.skipped == skipped


def test_cutover_under_way_is_not_asked_again(
    asked: Asked, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = PhaseResult("approve_cutover", "approved", {"decision": "approve"}, already_done=True)
    monkeypatch.setattr(answers, "answered", lambda _core, kind, second: done if not second else None)
    tasks = Skipping(minimal_spec, "approve_cutover", monkeypatch)
    assert tasks.task.execute(_context(task=tasks.task))["decision"] == "approve"
    assert asked == []


def test_back_out_needs_no_cluster_and_runs_only_what_ends_the_migration(
    asked: Asked,
    given: list[ApprovalAnswer],
    fake: FakeMigration,
    minimal_spec: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is for a target that is dead: the whole context would have to open it."""
    tasks = Skipping(minimal_spec, "approve_client_switch", monkeypatch)
    fake.journal_context, fake.context = fake.context, SimpleNamespace()
    context = _context(FakeTaskInstance("approve_client_switch"), task=tasks.task)
    tasks.task.execute_complete(context, _event("Back out", code="0123abcd target-unread"))
    assert (given[0].decision, given[0].code, given[0].target_unread) == ("back_out", "0123abcd", True)
    assert tasks.skipped == ["validate"]


def test_an_approved_switch_abandons_nothing(
    asked: Asked, given: list[ApprovalAnswer], minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Skipping(minimal_spec, "approve_client_switch", monkeypatch)
    context = _context(FakeTaskInstance("approve_client_switch"), task=tasks.task)
    tasks.task.execute_complete(context, _event("Approve"))
    assert (given[0].target_unread, tasks.skipped) == (False, ["abandon"])


@pytest.mark.parametrize("decision", ["back_out", "abort"])
def test_an_approval_of_what_is_abandoned_is_not_asked_again(
    asked: Asked, minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    done = PhaseResult("approve_client_switch", "backed out", {"decision": decision}, already_done=True)
    monkeypatch.setattr(answers, "answered", lambda _core, _kind, second: done if not second else None)
    tasks = Skipping(minimal_spec, "approve_client_switch", monkeypatch)
    tasks.task.execute(_context(task=tasks.task))
    assert (asked, tasks.skipped) == ([], ["validate"])


# ---- two people


@pytest.fixture
def two_people(minimal_spec: dict[str, Any]) -> dict[str, Any]:
    minimal_spec["approvals"] = {"assigned_users": ["anna"], "second_users": ["bert"]}
    return minimal_spec


def test_first_of_two_people_lets_only_the_second_one_be_asked(
    asked: Asked, given: list[ApprovalAnswer], two_people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Skipping(two_people, "approve_cutover", monkeypatch)
    for option in ("Approve", "Abort"):
        tasks.task.execute_complete(_context(task=tasks.task), _event(option))
    assert tasks.skipped == []
    assert [item.second for item in given] == [False, False]


def test_second_of_two_people_is_asked_and_named(
    asked: Asked, given: list[ApprovalAnswer], two_people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Skipping(two_people, "approve_cutover_second", monkeypatch)
    ti = FakeTaskInstance("approve_cutover_second", {"approve_cutover": {"decision": "approve"}})
    with pytest.raises(Waits):
        tasks.task.execute(_context(ti, task=tasks.task))
    assert asked[0]["users"] == [{"id": "bert", "name": "bert"}]
    tasks.task.execute_complete(_context(ti, task=tasks.task), _event("Approve"))
    assert given[0].second is True
    assert tasks.skipped == ["rollback"]


def test_second_person_is_not_asked_after_an_abort(
    asked: Asked, two_people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Skipping(two_people, "approve_cutover_second", monkeypatch)
    ti = FakeTaskInstance("approve_cutover_second", {"approve_cutover": {"decision": "abort"}})
    tasks.task.execute(_context(ti, task=tasks.task))
    assert asked == []
    assert tasks.skipped == ["cutover.freeze"]


def test_two_people_need_a_dag_with_two_approvals(fake: FakeMigration, two_people: dict[str, Any]) -> None:
    """The generic DAG has one; it must say so before anything is done, and not when producers are to be frozen."""
    plan = KafkaMigrationPlanOperator(task_id="plan", spec=two_people)
    with pytest.raises(SpecInvalid, match="second_users"):
        plan.execute(_context(dag=build_migration_dag()))
    assert fake.ran == []
    plan.execute(_context(dag=build_migration_dag(two_people)))
    plan.execute(_context())
    assert fake.ran == ["plan", "plan"]


# ---- lineage


def _migration(**spec: Any) -> Any:
    topics = [SimpleNamespace(name=name, target_name=f"new.{name}") for name in ("b", "a")]
    base = {
        "migration_id": "orders",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/x"},
    }
    from airflow_provider_kafka_migration.spec import parse_spec

    return SimpleNamespace(
        spec=parse_spec({**base, **spec}),
        context=SimpleNamespace(record=SimpleNamespace(plan=lambda: SimpleNamespace(topics=topics))),
        source=SimpleNamespace(config=SimpleNamespace(bootstrap_servers="s2:9092,s1:9092")),
        target=SimpleNamespace(config=SimpleNamespace(bootstrap_servers="t1:9093")),
    )


def test_seed_tells_openlineage_what_it_read_and_wrote() -> None:
    result = PhaseResult("seed", "done", {"records": 7, "copied_bytes": 99})
    facets = CopyLineage.of(_migration(), "seed", result).facets()
    assert facets is not None
    assert [(item.namespace, item.name) for item in facets.inputs] == [
        ("kafka://s1:9092", "a"),
        ("kafka://s1:9092", "b"),
    ]
    assert [(item.namespace, item.name) for item in facets.outputs] == [
        ("kafka://t1:9093", "new.a"),
        ("kafka://t1:9093", "new.b"),
        ("s3://bucket", "x/archive/orders"),
    ]
    statistics = facets.outputs[-1].outputFacets["outputStatistics"]
    assert (statistics.rowCount, statistics.size) == (7, 99)


def test_direct_seed_has_no_archive() -> None:
    facets = CopyLineage.of(_migration(seed={"via": "direct"}), "seed", PhaseResult("seed", "done")).facets()
    assert facets is not None
    assert {item.namespace for item in facets.outputs} == {"kafka://t1:9093"}


COPIERS = pytest.mark.parametrize("operator_class", [KafkaMigrationSeedOperator, KafkaMigrationTailOperator])


class _Copying(SimpleNamespace):
    """Stands for a migration whose phase ends as it is told."""

    def run(self, phase: str) -> PhaseResult:
        if self.error:
            raise self.error
        return PhaseResult(phase, "done", {"records": 7, "copied_bytes": 99})


def _execute(operator: Any, error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_migration(self: Any, *_: Any, **__: Any) -> Iterator[Any]:
        self.storage_uris = {"journal": "s3://bucket/orders"}
        # Split: both write the archive.
        yield _Copying(**vars(_migration(seed={"via": "split"})), error=error)

    monkeypatch.setattr(type(operator), "open_migration", open_migration)
    bound = SimpleNamespace(engine=SimpleNamespace(detached=False))
    monkeypatch.setattr(type(operator), "make_runner", lambda *_: bound)
    monkeypatch.setattr(type(operator), "migration_spec", lambda *_: None)
    monkeypatch.setattr(one_task, "tail_goes_on", lambda _context, **_: False)
    operator.execute(_context())


@COPIERS
def test_lineage_that_cannot_be_given_does_not_fail_the_copy(operator_class: Any) -> None:
    operator = operator_class(task_id="copy")
    operator._starts(SimpleNamespace())
    operator._finished(SimpleNamespace(), PhaseResult("seed", "done"))
    assert operator.get_openlineage_facets_on_complete(None) is None
    assert operator.get_openlineage_facets_on_failure(None) is None


@COPIERS
def test_lineage_of_a_copy_that_ended_well(operator_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenLineage's own extractor finds the methods by their names."""
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    operator = operator_class(task_id="copy")
    assert DefaultExtractor(operator).extract_on_complete(None) is None
    _execute(operator, None, monkeypatch)
    found = DefaultExtractor(operator).extract_on_complete(None)
    assert found is not None
    assert len(found.inputs) == 2
    assert found.outputs[-1].outputFacets["outputStatistics"].rowCount == 7


@COPIERS
def test_lineage_of_a_copy_that_failed(operator_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    operator = operator_class(task_id="copy")
    with pytest.raises(SpecInvalid):
        _execute(operator, SpecInvalid("it broke"), monkeypatch)
    found = DefaultExtractor(operator).extract_on_failure(None)
    assert found is not None
    assert [item.name for item in found.inputs] == ["a", "b"]
    assert {item.namespace for item in found.outputs} == {"kafka://t1:9093", "s3://bucket"}
    assert not getattr(found.outputs[-1], "outputFacets", None), "nobody knows how much it was"
