"""Links to what a task left in object storage."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import airflow_releases as releases
import pytest

from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink, PlanLink, browser_url, is_on_aws

URIS = {"journal": "s3://bucket/some prefix/orders", "evidence": "s3://proof/orders"}
TASK = SimpleNamespace(storage_uris=URIS, stores_on_aws=True)
KEY: Any = None


@pytest.mark.parametrize(
    ("link", "name", "url"),
    [
        (JournalLink(), "Journal", "bucket?prefix=some%20prefix/orders/journal.jsonl"),
        (PlanLink(), "Plan", "bucket?prefix=some%20prefix/orders/plan.json"),
        (EvidenceLink(), "Evidence", "proof?prefix=orders/evidence.json"),
    ],
)
def test_link_leads_to_the_object(link: Any, name: str, url: str) -> None:
    assert link.name == name
    assert link.get_link(TASK, ti_key=KEY) == f"https://s3.console.aws.amazon.com/s3/object/{url}"


def test_address_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__OBJECT_URL_TEMPLATE", "https://minio.example/browse/{bucket}/{key}")
    assert EvidenceLink().get_link(TASK, ti_key=KEY) == "https://minio.example/browse/proof/orders/evidence.json"


def test_a_store_that_no_browser_is_known_for_has_no_links() -> None:
    assert EvidenceLink().get_link(SimpleNamespace(storage_uris=URIS, stores_on_aws=False), ti_key=KEY) == ""


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_another_endpoint_is_not_aws(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_on_aws({})
    assert is_on_aws({"aws_access_key_id": "x", "endpoint_url": ""})
    assert not is_on_aws({"endpoint_url": "http://minio:9000"})
    monkeypatch.setenv(variable, "http://minio:9000")
    assert not is_on_aws({})


def test_folders_and_unknown_places_give_no_link() -> None:
    assert browser_url("file:///secret/folder/x", "https://x/{key}") == ""
    assert JournalLink().get_link(SimpleNamespace(), ti_key=KEY) == ""


class _Pushed(dict[str, str]):
    """A task instance that notes what is pushed."""

    task_id = run_id = dag_id = "x"

    def xcom_push(self, key: str, value: str) -> None:
        self[key] = value


def _run_until_execute(task: Any, context: Any, resume: str | None = None) -> None:
    """Airflow's own way to the operator's code; there it stops."""
    from airflow.sdk.execution_time.task_runner import _execute_task

    class Reached(Exception):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Reached

    for name in ("execute", resume or "execute"):
        object.__setattr__(task, name, stop)
    server = SimpleNamespace(next_method=resume, next_kwargs={})
    ti: Any = SimpleNamespace(task=task, _ti_context_from_server=server)
    with pytest.raises(Reached):
        _execute_task(context, ti, logging.getLogger("test"))


@pytest.mark.parametrize("task_id", ["plan", "tail", "drain_ready", "approve_cutover", "cutover.freeze_limit"])
@pytest.mark.parametrize("resume", [None, "execute_complete"])
def test_links_are_there_while_a_task_runs(
    minimal_spec: dict[str, Any],
    connection: Any,
    task_id: str,
    resume: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before its first line, and again when it comes back from a deferral or an approval."""
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.context_to_airflow_vars", lambda *_, **__: {})
    connection(minimal_spec["storage"]["conn_id"], conn_type="aws")
    task = build_migration_dag(minimal_spec).get_task(task_id)
    if resume and not hasattr(task, resume):
        return
    if resume and not releases.HAS_SERDE:
        pytest.skip("Airflow 3.1 encodes what a task continues with in another way")
    ti = _Pushed()
    context = {"ti": ti, "params": {}, "outlet_events": {}}
    _run_until_execute(task, context, resume)
    assert ti["_link_JournalLink"].endswith("bucket?prefix=migrations/orders/journal.jsonl")
    assert set(ti) == {link.xcom_key for link in task.operator_extra_links}


def test_links_of_the_generic_dag_come_from_the_run(caplog: pytest.LogCaptureFixture) -> None:
    task: Any = build_migration_dag().get_task("plan")
    params = {"migration_id": "other", "source": "a", "target": "b", "journal": "s3://elsewhere/x"}
    ti = _Pushed()
    task.show_links({"ti": ti, "params": params})
    assert ti["_link_PlanLink"].endswith("elsewhere?prefix=x/other/plan.json")
    broken = _Pushed()
    task.show_links({"ti": broken, "params": {"migration_id": "other"}})
    assert broken == {}, "what is wrong with the spec is told by the task itself"


def test_link_that_cannot_be_pushed_harms_nothing(minimal_spec: dict[str, Any]) -> None:
    task: Any = build_migration_dag(minimal_spec).get_task("plan")

    def refuse(**_: Any) -> None:
        raise OSError("no API server")

    task.show_links({"ti": SimpleNamespace(xcom_push=refuse), "params": {}})
