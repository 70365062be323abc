"""``cutover.in_one_task``: the same journaled steps in one process, killed in the middle, and what other tasks find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cutover_support import Lab

from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.phase_table import CUTOVER
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import State
from harness import clients

pytestmark = pytest.mark.integration


def _migration(lab: Lab, context: PhaseContext) -> Migration:
    migration = Migration(lab.spec, Owner("cli", "lab", "cutover.freeze"), Resolver())
    migration.__dict__["context"] = context
    return migration


class _Killed(Exception):
    """The process ends between two steps."""


def test_cutover_in_one_task_goes_on_after_a_kill_and_others_find_it_done(
    make_lab: Callable[..., Lab], fill: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic], cutover={"in_one_task": True})
    source = lab.source_cluster.client_config()
    middle = {(topic, 0): 20, (topic, 1): 30}
    clients.commit_offsets(source, lab.group, middle)
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)

    def die_after_the_drain(result: PhaseResult) -> None:
        if len(done) == 2:
            raise _Killed
        done.append(result)

    done: list[Any] = []
    with pytest.raises(_Killed):
        _migration(lab, context).run_cutover(die_after_the_drain)

    again = _migration(lab, lab.context(actor="cutover.freeze"))
    results: list[PhaseResult] = []
    last = again.run_cutover(results.append)
    assert [result.already_done for result in results] == [True, True, True, False, False, False]
    assert again.context.journal.tip_state is State.AWAITING_CLIENT_SWITCH
    assert "frozen" in last.details
    lab.join_tail()

    journal = again.context.journal
    ended, ready = journal.find_step(steps.TAIL_DONE), journal.find_step(steps.READY)
    commits = [entry for entry in journal.steps(steps.CUTOVER_STEP) if "commit" in (entry.step_key or "")]
    assert ended is not None
    assert ready is not None
    assert commits, [entry.step_key for entry in journal.steps(steps.CUTOVER_STEP)]
    assert ended.seq < commits[0].seq < ready.seq, "groups are committed when the tail has verified its end"

    other = _migration(lab, lab.context(actor="another task"))
    before = len(other.context.journal.entries())
    for row in CUTOVER:
        assert other.run(row.id).already_done, row.id
    assert len(other.context.journal.entries()) == before, "a task that confirms writes nothing"
    found = lab.sentinels(lab.source_cluster)
    assert {key: len(offsets) for key, offsets in found.items()} == dict.fromkeys(found, 1)
    target = lab.target_cluster.client_config()
    assert clients.committed_offsets(target, lab.group, [topic]) == middle
    lab.check_equal()
