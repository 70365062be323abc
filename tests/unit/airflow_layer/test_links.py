"""Links to what a task left in object storage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.links.storage import EvidenceLink, JournalLink, PlanLink, browser_url

TASK = SimpleNamespace(storage_uris={"journal": "s3://bucket/some prefix/orders", "evidence": "s3://proof/orders"})
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


def test_folders_and_unknown_places_give_no_link() -> None:
    assert browser_url("file:///secret/folder/x", "https://x/{key}") == ""
    assert JournalLink().get_link(SimpleNamespace(), ti_key=KEY) == ""
