"""The task that starts the next run: once, with the same Params, and only when the time of this one is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow_releases import DagRunTriggerException

from airflow_provider_kafka_migration.operators.next_run import KafkaMirrorNextRunOperator
from airflow_provider_kafka_migration.provider.run_chain import RUN_IS_OVER

_CONF = {"migration_id": "orders", "mirror": {"source_alias": "{{ not.a.template }}"}}


def _context(pointers: dict[str, Any] | None, conf: dict[str, Any] | None = None) -> Any:
    instance = SimpleNamespace(
        dag_id="kafka_mirror", run_id="manual__1", xcom_pull=lambda *, task_ids: {"mirror": pointers}[task_ids]
    )
    return {"ti": instance, "dag_run": SimpleNamespace(conf=conf)}


def _started(context: Any) -> DagRunTriggerException:
    with pytest.raises(DagRunTriggerException) as started:
        KafkaMirrorNextRunOperator(task_id="next_run").execute(context)
    return started.value


def test_the_next_run_has_the_same_params_and_a_name_that_follows() -> None:
    started = _started(_context({RUN_IS_OVER: True}, _CONF))
    assert (started.trigger_dag_id, started.dag_run_id, started.conf) == ("kafka_mirror", "next-2__manual__1", _CONF)
    assert started.logical_date is None, "two runs of one DAG may not have the same"


def test_a_second_attempt_finds_the_run_of_the_first_one() -> None:
    first, second = (_started(_context({RUN_IS_OVER: True})) for _ in range(2))
    assert first.dag_run_id == second.dag_run_id
    assert second.skip_when_already_exists
    assert not second.reset_dag_run


@pytest.mark.parametrize("pointers", [None, {"state": "promoted"}, {"state": "ended"}])
def test_nothing_follows_a_mirror_that_has_ended_or_was_marked(pointers: dict[str, Any] | None) -> None:
    KafkaMirrorNextRunOperator(task_id="next_run").execute(_context(pointers))
