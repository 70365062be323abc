"""The approval operators in a real Airflow, over a core that keeps its code in a file. No clusters are needed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, BaseOperator

from airflow_provider_kafka_migration import approvals
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalFacts
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.operators.approval import ClientSwitchApprovalOperator, CutoverApprovalOperator
from airflow_provider_kafka_migration.record.context import PhaseResult

FOLDER = Path(os.environ["APPROVALS_FOLDER"])
SPEC = {
    "migration_id": "approvals",
    "source": {"conn_id": "a"},
    "target": {"conn_id": "b"},
    "storage": {"journal": "s3://bucket/prefix"},
}


def _code() -> str:
    return (FOLDER / "code").read_text()


def _show(_core: Any, kind: Any) -> ApprovalFacts:
    code = _code()
    return ApprovalFacts(
        migration_id="approvals",
        kind=kind,
        code=code,
        binding={},
        facts={},
        subject=f"approve {kind}",
        body=f"# {kind}\n\nthe code is {code}\n",
        made_at="2026-01-01T00:00:00Z",
    )


def _answer(_core: Any, given: ApprovalAnswer) -> PhaseResult:
    with (FOLDER / "answers.jsonl").open("a") as file:
        file.write(given.model_dump_json() + "\n")
    if given.decision == "approve" and given.code != _code():
        raise ApprovalRefused(f"the code {given.code!r} is not the present one", next_step="clear the task")
    return PhaseResult(f"approve_{given.kind}", given.decision)


# What the operators import when they run.
approvals.request = SimpleNamespace(show=_show)  # type: ignore[attr-defined]
approvals.answers = SimpleNamespace(answer=_answer, answered=lambda *_args, **_kwargs: None)  # type: ignore[attr-defined]


class _FakeCore:
    @contextmanager
    def open_migration(self, context: Any, **_options: Any) -> Iterator[Any]:
        self.storage_uris = {"journal": "s3://bucket/prefix/approvals"}
        journal = SimpleNamespace(refresh=lambda: None, tip_state=None)
        yield SimpleNamespace(context=SimpleNamespace(migration_id="approvals", journal=journal))


class Cutover(_FakeCore, CutoverApprovalOperator):
    pass


class ClientSwitch(_FakeCore, ClientSwitchApprovalOperator):
    pass


class Note(BaseOperator):
    def execute(self, context: Any) -> None:
        with (FOLDER / "ran.jsonl").open("a") as file:
            file.write(json.dumps([context["ti"].run_id, self.task_id]) + "\n")


with DAG("approvals", schedule=None, max_active_runs=10) as dag:
    approve = Cutover(task_id="approve_cutover", spec=SPEC)
    switch = ClientSwitch(task_id="approve_client_switch", spec=SPEC)
    approve >> [Note(task_id="go"), Note(task_id="rollback")]
    dag.get_task("go") >> switch >> Note(task_id="end")

with DAG("approvals_timeout", schedule=None):
    hurried = {**SPEC, "approvals": {"response_timeout": "3s"}}
    Cutover(task_id="approve_cutover", spec=hurried) >> Note(task_id="go")
