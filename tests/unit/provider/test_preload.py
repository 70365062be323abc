"""Imports ahead of the tasks: only when asked for, all that a task needs, and never in the way."""

from __future__ import annotations

import pytest
from airflow.configuration import conf

from airflow_provider_kafka_migration.plugins.kafka_migration import KafkaMigrationPlugin
from airflow_provider_kafka_migration.provider import preload


def test_default_is_off() -> None:
    assert conf.get("kafka_migration", "preload", fallback="False") == "False"
    assert not preload.wanted()


@pytest.mark.parametrize(("value", "calls"), [("True", 1), ("False", 0)])
def test_plugin_preloads_when_it_is_configured(monkeypatch: pytest.MonkeyPatch, value: str, calls: int) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__PRELOAD", value)
    done: list[bool] = []
    monkeypatch.setattr(preload, "preload", lambda: done.append(True))
    KafkaMigrationPlugin.on_load()
    assert len(done) == calls


def test_broken_module_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert preload.preload(["no_such_module_of_anyone", "json"]) == ["json"]
    assert "no_such_module_of_anyone" in caplog.text
