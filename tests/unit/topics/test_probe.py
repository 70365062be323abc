"""The scratch topic of the precheck, where a killed probe has left one that brokers are still deleting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.kafka.admin.topics import TOPIC_ALREADY_EXISTS
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.topics import probe

DELETING = ItemError(TOPIC_ALREADY_EXISTS, "TOPIC_ALREADY_EXISTS", "the topic is marked for deletion")
REFUSED = ItemError(29, "TOPIC_AUTHORIZATION_FAILED")


def _target(*answers: ItemError | None) -> tuple[Cluster, list[str]]:
    left, asked = list(answers), []

    def create_topics(new: Any) -> Any:
        asked.append(new[0].name)
        return {new[0].name: SimpleNamespace(error=left.pop(0) if len(left) > 1 else left[0])}

    return cast(Cluster, SimpleNamespace(admin=SimpleNamespace(create_topics=create_topics))), asked


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PAUSE_SECONDS", 0.0)


def test_a_topic_that_is_still_being_deleted_is_waited_for() -> None:
    target, asked = _target(DELETING, DELETING, None)
    assert probe._create(target, "scratch") is None
    assert asked == ["scratch"] * 3


def test_waiting_for_a_deletion_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_REMOVAL_SECONDS", 0.05)
    target, _ = _target(DELETING)
    assert probe._create(target, "scratch") == DELETING


def test_other_errors_are_not_waited_for() -> None:
    target, asked = _target(REFUSED, None)
    assert probe._create(target, "scratch") == REFUSED
    assert asked == ["scratch"]
