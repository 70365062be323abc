"""The table of phases: its rows fit together, and a new row is enough for a new phase."""

from __future__ import annotations

import inspect
import itertools

import pytest

from airflow_provider_kafka_migration import dag, phase_table
from airflow_provider_kafka_migration.operators.migration import KafkaMigrationPhaseOperator
from airflow_provider_kafka_migration.phase_table import PHASES, ROWS, TASKS, Phase, Place, upstream
from airflow_provider_kafka_migration.state import FORWARD, State


@pytest.mark.parametrize("phase", sorted(PHASES))
def test_each_phase_names_a_function_that_takes_a_context(phase: str) -> None:
    assert next(iter(inspect.signature(PHASES[phase].load()).parameters)) == "context"


@pytest.mark.parametrize("row", [row for row in ROWS if row.watches_tail], ids=lambda row: row.id)
def test_each_phase_that_watches_the_tail_takes_its_sleep(row: Phase) -> None:
    assert "sleep" in inspect.signature(row.load()).parameters


def test_the_table_names_each_row_once_and_only_rows_above() -> None:
    ids = [row.id for row in ROWS]
    assert len(set(ids)) == len(ids)
    for number, row in enumerate(ROWS):
        assert bool(row.function) != bool(row.approves), f"{row.id} is either a phase or an approval"
        assert set(upstream(row)) <= set(ids[:number]), row.id
        assert bool(upstream(row)) == (number > 0), row.id


def test_the_line_follows_the_states() -> None:
    line = [row for row in ROWS if row.place is not Place.ASIDE and row.state is not None]
    for above, below in itertools.pairwise(line):
        assert above.state is not None
        assert below.state is not None
        before = FORWARD.index(above.leads_to or above.state)
        assert FORWARD.index(below.state) - before in (0, 1), f"{below.id} cannot start after {above.id}"


def test_the_cutover_is_what_runs_between_the_two_approvals() -> None:
    assert [row for row in ROWS if row.state is State.CUTOVER] == list(phase_table.CUTOVER)
    assert [row.leads_to for row in phase_table.CUTOVER if row.leads_to] == [State.AWAITING_CLIENT_SWITCH]
    assert phase_table.CUTOVER[-1].leads_to is State.AWAITING_CLIENT_SWITCH
    assert [row.joins for row in phase_table.CUTOVER if row.joins] == ["tail"]
    parts = (*phase_table.BEFORE_TAIL, *phase_table.DRAIN, *phase_table.CUTOVER, *phase_table.PROOF)
    assert list(parts) == [row for row in ROWS if row.place is Place.LINE and not row.approves]


def test_a_new_row_becomes_a_task_between_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Phase("example", "Shows the copy.", "plan:run", state=State.TOPOLOGY_COPY)
    below = PHASES["seed"]
    above = set(upstream(below))
    for name, rows in {"ROWS": ROWS, "TASKS": TASKS}.items():
        place = rows.index(below)
        monkeypatch.setattr(phase_table, name, (*rows[:place], row, *rows[place:]))
    monkeypatch.setitem(dag._DOCS, row.id, row.doc)
    task = dag.build_migration_dag().get_task(row.id)
    assert isinstance(task, KafkaMigrationPhaseOperator)
    assert task.phase == row.id
    assert task.upstream_task_ids == above
    assert task.downstream_task_ids == {below.id}
