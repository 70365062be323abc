"""Notifiers of the spec."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_kafka_migration.cli.migrate import MigrationOpener, make_view
from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.errors import BrokerUnreachable, SpecInvalid
from airflow_provider_kafka_migration.notifications.migration import (
    MigrationNotifier,
    RunNotifier,
    load_notifier,
    message,
)
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationFreezeOperator
from airflow_provider_kafka_migration.provider.params import params_from_spec
from airflow_provider_kafka_migration.provider.progress import TROUBLE
from airflow_provider_kafka_migration.spec import parse_spec

SENT: list[dict[str, str]] = []


class Remember(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: Any = "", fail: bool = False, token: str = "") -> None:
        super().__init__()
        self.text = text
        self.token = token
        self.fail = fail

    def notify(self, context: Any) -> None:
        if self.fail:
            raise OSError("mail server down")
        SENT.append({"text": self.text, "message": context["migration_message"]})


@pytest.fixture(autouse=True)
def _forget() -> None:
    SENT.clear()


def _spec(minimal: dict[str, Any], **notifications: Any) -> dict[str, Any]:
    return {**minimal, "notifications": {"notifier": f"{__name__}.Remember", **notifications}}


def _context(**more: Any) -> Any:
    return {"ti": SimpleNamespace(task_id="seed", run_id="r", dag_id="d"), "params": {}, "dag": None, **more}


def test_arguments_are_templates(minimal_spec: dict[str, Any]) -> None:
    spec = _spec(minimal_spec, kwargs={"text": "{{ migration_event }} of {{ migration_id }}"})
    MigrationNotifier(event="finalized", spec=spec)(_context())
    assert SENT == [
        {
            "text": "finalized of orders",
            "message": "Kafka migration orders: finalized, the evidence is signed",
        }
    ]


def test_failure_says_what_where_and_what_next(minimal_spec: dict[str, Any]) -> None:
    error = BrokerUnreachable("no broker answered", next_step="start it")
    MigrationNotifier(event="failed", spec=_spec(minimal_spec))(_context(exception=error))
    assert SENT[0]["message"].startswith("Kafka migration orders: seed failed. [BROKER_UNREACHABLE] no broker")
    assert SENT[0]["message"].endswith("Next: start it")


def test_a_run_that_ends_without_a_failed_task_is_told(minimal_spec: dict[str, Any]) -> None:
    """By the DAG; where a task has failed, that task has told it."""
    spec = _spec(minimal_spec, kwargs={"text": "{{ ti.task_id }}"})
    dag: Any = build_migration_dag(minimal_spec)
    RunNotifier(spec=spec)({"dag": dag, "run_id": "r", "reason": "task_failure"})
    assert SENT == []
    RunNotifier(spec=spec)({"dag": dag, "run_id": "r", "reason": "timed_out"})
    assert SENT[0]["text"] == "(run)"
    assert "the run r has ended (timed_out) and none of its tasks has failed" in SENT[0]["message"]


def test_callbacks_of_a_dag_are_added_to_ours(minimal_spec: dict[str, Any]) -> None:
    def own(_: Any) -> None: ...

    dag = build_migration_dag(minimal_spec, on_failure_callback=own)
    assert [type(item).__name__ for item in dag.on_failure_callback] == ["RunNotifier", "function"]  # type: ignore[union-attr]


def test_references_are_resolved_when_it_runs_and_masked_in_logs(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, connection: Callable[..., None]
) -> None:
    masked: list[str] = []
    monkeypatch.setattr("airflow_provider_kafka_migration.notifications.migration.mask_secret", masked.append)
    monkeypatch.setenv("NOTIFIER_TOKEN", "from-env\n")
    connection("notifier", conn_type="generic", password="from-airflow")
    for reference, secret in (("env:NOTIFIER_TOKEN", "from-env"), ("airflow:notifier", "from-airflow")):
        spec = _spec(minimal_spec, kwargs={"text": reference})
        assert load_notifier(parse_spec(spec)).text == secret  # type: ignore[attr-defined]
        MigrationNotifier(event="finalized", spec=spec)(_context())
        assert SENT.pop()["text"] == secret
    assert set(masked) == {"from-env", "from-airflow"}


def test_a_reference_that_leads_nowhere_harms_only_the_notification(
    minimal_spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    spec = _spec(minimal_spec, kwargs={"token": "env:NOT_SET_ANYWHERE"})
    MigrationNotifier(event="finalized", spec=spec)(_context())
    assert SENT == []
    assert "NOT_SET_ANYWHERE is not set" in caplog.text


def test_what_only_looks_like_a_reference_stays_as_it_is(
    minimal_spec: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags of monitoring systems look like references; under the name of a secret they are meant to be some."""
    monkeypatch.setattr("airflow_provider_kafka_migration.notifications.migration._warned", set())
    monkeypatch.setenv("TEAM_CHANNEL", "#orders")
    tags = ["env:prod", "airflow:no_such_connection", "file:no/such/file", "env:TEAM_CHANNEL"]
    spec = _spec(minimal_spec, kwargs={"text": tags})
    for _ in range(2):
        MigrationNotifier(event="finalized", spec=spec)(_context())
    assert [sent["text"] for sent in SENT] == [[*tags[:3], "#orders"]] * 2
    for tag in tags[:3]:
        assert caplog.text.count(f"'{tag}' unchanged") == 1
    SENT.clear()
    MigrationNotifier(event="finalized", spec=_spec(minimal_spec, kwargs={"text": {"api_key": "env:prod"}}))(_context())
    assert SENT == [], "no notifier gets a reference in place of a secret"


@pytest.mark.parametrize("by", ["spec", "params"])
def test_a_spec_that_only_an_earlier_version_accepts_is_notified_of(minimal_spec: dict[str, Any], by: str) -> None:
    """A task that refuses it after an upgrade fails, and that has to be told."""
    address = "https://hooks.example/freeze?token=hunter2"
    spec = _spec(minimal_spec, kwargs={}) | {"cutover": {"freeze": "webhook", "producer_freeze_webhook": address}}
    task = KafkaMigrationFreezeOperator(task_id="freeze")
    params = params_from_spec(spec)
    context = _context(task=task) if by == "spec" else _context(task=task, params=params)
    MigrationNotifier(event="failed", spec=spec if by == "spec" else None)(context)
    assert [sent["message"] for sent in SENT] == ["Kafka migration orders: seed failed"]


def test_trouble_says_which_partitions(minimal_spec: dict[str, Any]) -> None:
    line = "2 partitions stuck for up to 130 s (tried again), orders-1: [BROKER_UNREACHABLE] no broker answers"
    MigrationNotifier(event="trouble", spec=_spec(minimal_spec))(_context(migration_trouble=line))
    assert SENT[0]["message"] == f"Kafka migration orders: seed cannot copy some partitions. {line}"


def test_unforeseen_errors_are_not_quoted(minimal_spec: dict[str, Any]) -> None:
    """Their text may hold anything, also a secret."""
    MigrationNotifier(event="failed", spec=_spec(minimal_spec))(_context(exception=ValueError("password=x")))
    assert "password" not in SENT[0]["message"]
    assert "ValueError" in SENT[0]["message"]


def test_only_wanted_events(minimal_spec: dict[str, Any]) -> None:
    MigrationNotifier(event="drain_ready", spec=_spec(minimal_spec, events=["failed"]))(_context())
    MigrationNotifier(event="drain_ready", spec=minimal_spec)(_context())
    assert SENT == []


def test_failing_notifier_does_no_harm(minimal_spec: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        MigrationNotifier(event="failed", spec=_spec(minimal_spec, kwargs={"fail": True}))(_context())
    assert "mail server down" in caplog.text


@pytest.mark.parametrize(
    ("notifications", "told"),
    [
        ({"notifier": "no.such.module.Notifier"}, "cannot be imported"),
        ({"notifier": "logging.Nothing"}, "cannot be imported"),
        ({"notifier": "nodots"}, "cannot be imported"),
        ({"notifier": "logging.Logger"}, "is not a notifier"),
        ({"kwargs": {"colour": "red"}}, "refuses its arguments"),
    ],
)
def test_mistakes_are_named(minimal_spec: dict[str, Any], notifications: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecInvalid, match=told):
        load_notifier(parse_spec(_spec(minimal_spec, **notifications)))


def test_equal_by_content(minimal_spec: dict[str, Any]) -> None:
    """Two parses of a DAG file must give equal DAGs."""
    one = MigrationNotifier(event="failed", spec=minimal_spec)
    assert one == MigrationNotifier(event="failed", spec=dict(reversed(list(minimal_spec.items()))))
    assert one != MigrationNotifier(event="finalized", spec=minimal_spec)


def test_documented_notifier_leaves_every_task_of_a_spec_built_dag_alone(minimal_spec: dict[str, Any]) -> None:
    """What Airflow does before each task: it renders all template fields, and an unknown name is an error there."""
    spec = _spec(minimal_spec, kwargs={"text": "{{ migration_message }}"})
    spec["approvals"] = {"assigned_users": ["anna"], "second_users": ["bert"]}
    dag = build_migration_dag(spec)
    for task in dag.tasks:
        task.render_template_fields(_context(dag=dag), dag.get_template_env())
        assert task.spec["notifications"]["kwargs"] == {"text": "{{ migration_message }}"}, task.task_id
        assert "spec" in task.template_fields, "Airflow shows it"


def test_other_fields_are_rendered_as_ever(minimal_spec: dict[str, Any]) -> None:
    dag = build_migration_dag(minimal_spec, task_args={"seed": {"files": "{{ params.team }}.conf"}})
    seed = dag.get_task("seed")
    seed.render_template_fields(_context(dag=dag, params={"team": "orders"}), dag.get_template_env())
    assert seed.submit_arguments == {"files": "orders.conf"}


def test_a_mirror_is_called_one(minimal_spec: dict[str, Any]) -> None:
    mirror = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
    spec = _spec({**minimal_spec, **mirror}, events=["failed"], kwargs={"text": "x"})
    MigrationNotifier(event="failed", spec=spec)(_context(exception=BrokerUnreachable("no broker answers")))
    assert SENT[0]["message"].startswith("Kafka mirror orders: seed failed. [BROKER_UNREACHABLE] no broker answers")
    assert message("orders", "failed", {}, "seed") == "Kafka migration orders: seed failed"


@pytest.mark.parametrize("had_before", [0, 7], ids=["first run", "cleared"])
def test_of_a_task_that_is_retried_without_an_end_few_attempts_are_told(
    minimal_spec: dict[str, Any], had_before: int
) -> None:
    retries = 1_000_000
    notifier = MigrationNotifier(event="failed", spec=_spec(minimal_spec), thins_out=True)
    told = []
    for attempt in range(1, 201):
        instance = SimpleNamespace(
            task_id="cutover.freeze_limit",
            run_id="r",
            dag_id="d",
            try_number=had_before + attempt,
            max_tries=had_before + retries,
        )
        notifier(_context(ti=instance, task=SimpleNamespace(retries=retries)))
        if SENT:
            told.append(attempt)
        SENT.clear()
    assert told == [1, 5, 20, 100, 200]


@pytest.mark.parametrize(("minutes", "is_told"), [(1, False), (29, False), (31, True), (60 * 24 * 20, True)])
def test_an_attempt_that_had_worked_for_long_is_told_whatever_its_number(
    minimal_spec: dict[str, Any], minutes: int, is_told: bool
) -> None:
    """In the weeks of a tail, workers die: its 21st attempt may be the first one of an outage."""
    notifier = MigrationNotifier(event="failed", spec=_spec(minimal_spec), thins_out=True)
    began = datetime.now(UTC) - timedelta(minutes=minutes)
    instance = SimpleNamespace(
        task_id="tail", run_id="r", dag_id="d", try_number=21, max_tries=1_000_000, start_date=began
    )
    notifier(_context(ti=instance, task=SimpleNamespace(retries=1_000_000)))
    assert bool(SENT) == is_told


def test_an_old_run_is_no_trouble_with_partitions() -> None:
    text = message("orders", "trouble", {TROUBLE: "RUN_IS_OLD: this DAG run began long ago"}, "tail")
    assert text == (
        "Kafka migration orders: its DAG run may be deleted while it runs. RUN_IS_OLD: this DAG run began long ago"
    )


# -- freezes ----------------------------------------------------------------------------------------------------------


def test_a_freeze_is_told_with_its_text(minimal_spec: dict[str, Any]) -> None:
    MigrationNotifier(event="freeze", spec=_spec(minimal_spec))(_context(**{TROUBLE: "Producers are stopped: ..."}))
    assert [item["message"] for item in SENT] == ["Kafka migration orders: producers. Producers are stopped: ..."]


def test_whoever_wants_no_freezes_gets_none(minimal_spec: dict[str, Any]) -> None:
    spec = _spec(minimal_spec, events=["failed"])
    MigrationNotifier(event="freeze", spec=spec)(_context(**{TROUBLE: "Producers are stopped"}))
    assert SENT == []


def test_a_task_tells_of_freezes_beside_its_work(minimal_spec: dict[str, Any], tmp_path: Path) -> None:
    spec = _spec(minimal_spec, kwargs={"text": "{{ ti.task_id }}"})
    spec["storage"] = {"journal": f"file://{tmp_path}/journal"}
    dag = build_migration_dag(spec)
    task = dag.get_task("cutover.freeze")
    with task.open_migration(_context(task=task)) as migration:
        announce = migration._announcements
        announce("Producers are stopped")
        announce("Producers are stopped")
    assert SENT == [{"text": "seed", "message": "Kafka migration orders: producers. Producers are stopped"}]


def test_the_command_line_tells_of_freezes_without_a_task(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFIER_TOKEN", "secret")
    spec = parse_spec(_spec(minimal_spec, kwargs={"text": "{{ ti.task_id }} {{ migration_event }}"}))
    opener = MigrationOpener(spec, make_view(quiet=True))
    with opener.open() as migration:
        context = migration._announcements
        assert context is not None
        context("Freeze 1 is lifted")
    assert SENT == [
        {"text": "kafka-migration freeze", "message": "Kafka migration orders: producers. Freeze 1 is lifted"}
    ]


@pytest.mark.parametrize("notifications", [{"notifier": None}, {"events": ["failed"]}])
def test_a_spec_without_such_a_notifier_imports_none(
    minimal_spec: dict[str, Any], notifications: dict[str, Any]
) -> None:
    opener = MigrationOpener(parse_spec(_spec(minimal_spec, **notifications)), make_view(quiet=True))
    assert opener.open()._announcements is None
