"""A webhook that cannot be found is told before anything counts as frozen: by the precheck, and by the freeze."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phase_support import approval, make_context

from airflow_provider_kafka_migration.approvals import check, request
from airflow_provider_kafka_migration.documents.plan import Finding, Severity
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.phases import freeze as cutover_freeze
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State

ADDRESS = "http://127.0.0.1:1/freeze?token=hunter2"
NO_ADDRESS = "hunter2 is no address"


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK", ADDRESS)
    monkeypatch.setenv("NO_ADDRESS", NO_ADDRESS)
    monkeypatch.setenv("KEY", "hunter2")
    monkeypatch.delenv("NOT_SET", raising=False)


BROKEN: list[tuple[dict[str, str], str]] = [
    ({"producer_freeze_webhook": "env:NOT_SET"}, "env:NOT_SET"),
    ({"producer_freeze_webhook": "env:NO_ADDRESS"}, "env:NO_ADDRESS"),
    ({"producer_freeze_webhook": "env:WEBHOOK", "webhook_secret": "env:NOT_SET"}, "env:NOT_SET"),
    ({"producer_freeze_webhook": "https://[hunter2/freeze"}, "cutover.producer_freeze_webhook"),
]


def _context(folder: Path, section: dict[str, str], *, freeze: str = "webhook") -> PhaseContext:
    return make_context(folder, state=State.CUTOVER, cutover={"freeze": freeze, **section})


def _findings(context: PhaseContext) -> list[Finding]:
    return list(precheck.CHECKS["freeze webhook"](context, context.record.plan()))


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize(("section", "place"), BROKEN)
def test_the_freeze_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, str], place: str
) -> None:
    context = _context(tmp_path, section)
    monkeypatch.setattr(cutover_freeze.follow, "check_all_followed", lambda *_: None)
    monkeypatch.setattr(take_over, "check_before_freeze", lambda *_: None)
    offsets: dict[Any, int] = {("orders", 0): 100, ("orders", 1): 100}
    for cluster in (context.source, context.target):
        cluster.wire.offsets["latest"] = offsets  # type: ignore[attr-defined]
    code = request.make_facts(context, "cutover").code
    check.check_approval(context, approval(context, "cutover", code))
    with pytest.raises(ConnectionInvalid, match=words.not_begun("webhook")) as caught:
        cutover_freeze.run(context)
    assert place in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert context.journal.find_step(steps.FREEZE_REQUESTED) is None, "nothing is to be lifted"
    assert context.journal.tip_state is State.TAIL


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize(("section", "place"), BROKEN)
def test_the_precheck_is_blocked(tmp_path: Path, section: dict[str, str], place: str) -> None:
    (found,) = _findings(_context(tmp_path, section))
    assert (found.code, found.severity, found.subject) == ("B041", Severity.BLOCKER, place)
    assert "hunter2" not in found.model_dump_json()


@pytest.mark.usefixtures("_environment")
def test_what_is_found_is_no_finding(tmp_path: Path) -> None:
    section = {"producer_freeze_webhook": "env:WEBHOOK", "webhook_secret": "env:KEY"}
    assert _findings(_context(tmp_path, section)) == []


@pytest.mark.usefixtures("_environment")
def test_another_way_to_freeze_needs_no_webhook(tmp_path: Path) -> None:
    assert _findings(_context(tmp_path, {"producer_freeze_webhook": "env:NOT_SET"}, freeze="manual")) == []
