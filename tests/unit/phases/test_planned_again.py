"""As long as nothing was touched a migration can be planned anew, and only what was checked is carried out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from phase_support import make_context, make_plan

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.documents import plan
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.errors import IllegalTransition
from airflow_provider_kafka_migration.migration import done_before
from airflow_provider_kafka_migration.phase_table import PHASES
from airflow_provider_kafka_migration.phases import precheck, topology_copy
from airflow_provider_kafka_migration.planning import growth
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.topics import bring
from airflow_provider_kafka_migration.verbs import in_former_words


@pytest.mark.parametrize("state", [State.PLANNED, State.PRECHECK])
def test_clearing_plan_plans_anew_until_the_precheck_has_passed(tmp_path: Path, state: State) -> None:
    """After blockers a person corrects a cluster or the spec: the former plan must not stay."""
    assert done_before(PHASES["plan"], make_context(tmp_path, state=state).journal) is None


@pytest.mark.parametrize("state", FORWARD[2:], ids=str)
def test_afterwards_the_plan_is_what_it_is(tmp_path: Path, state: State) -> None:
    done = done_before(PHASES["plan"], make_context(tmp_path, state=state).journal)
    assert done is not None
    assert done.already_done


def _planner(monkeypatch: pytest.MonkeyPatch) -> list[PhaseContext]:
    made: list[PhaseContext] = []

    def run(context: PhaseContext) -> PhaseResult:
        made.append(context)
        return PhaseResult("plan", "planned", {})

    monkeypatch.setattr(precheck, "write_plan", run)
    monkeypatch.setattr(precheck, "find_all", lambda *_: [])
    return made


@pytest.mark.parametrize("changed", [False, True])
def test_a_precheck_never_looks_at_the_plan_of_another_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    made = _planner(monkeypatch)
    context = make_context(tmp_path, state=State.PRECHECK)
    digest = "0" * 64 if changed else canonical_digest(in_former_words(context.spec.model_dump(mode="json")))
    found = make_plan().model_copy(update={"spec_digest": digest})
    context.journal_store.put(context.key("plan.json"), found.canonical())
    precheck.run(context)
    assert made == ([context] if changed else [])


def test_a_plan_that_was_not_checked_is_not_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(growth, "follow", lambda _, plan: plan)
    monkeypatch.setattr(bring, "bring", lambda *_: done.append(1) or PhaseResult("t", "", {}))
    monkeypatch.setattr(apply, "run", lambda *_: PhaseResult("a", "", {}))
    context = make_context(tmp_path, state=State.TOPOLOGY_COPY)
    with pytest.raises(IllegalTransition, match="newer than its precheck"):
        topology_copy.run(context)
    checked = plan.PrecheckResult(migration_id="m1", plan_digest=context.record.plan().digest())
    context.record.put_result(keys.PRECHECK, checked)
    topology_copy.run(context)
    assert done == [1]
    context.journal_store.put(context.key("plan.json"), make_plan({"invoices": 1}).canonical())
    with pytest.raises(IllegalTransition) as caught:
        topology_copy.run(context)
    assert "clear precheck" in caught.value.next_step


def test_a_plan_that_topology_copy_itself_has_amended_is_a_checked_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after it took up new partitions: the journal leads from the present plan back to the checked one."""
    monkeypatch.setattr(growth, "follow", lambda _, plan: plan)
    monkeypatch.setattr(bring, "bring", lambda *_: PhaseResult("t", "", {}))
    monkeypatch.setattr(apply, "run", lambda *_: PhaseResult("a", "", {}))
    context = make_context(tmp_path, state=State.TOPOLOGY_COPY)
    plans = [make_plan({"orders": count}) for count in (1, 2, 3)]
    checked = plan.PrecheckResult(migration_id="m1", plan_digest=plans[0].digest())
    context.record.put_result(keys.PRECHECK, checked)
    for former, amended in itertools.pairwise(plans):
        details = {"former_digest": former.digest(), "digest": amended.digest()}
        context.journal.step(steps.PARTITIONS_FOLLOWED, details=details)
        # Killed before the amended plan was written: the former one is amended again.
        context.journal.step(steps.PARTITIONS_FOLLOWED, details=details)
    for plan_now in plans:
        context.journal_store.put(context.key("plan.json"), plan_now.canonical())
        topology_copy.run(context)
    context.journal_store.put(context.key("plan.json"), make_plan({"orders": 4}).canonical())
    with pytest.raises(IllegalTransition):
        topology_copy.run(context)
