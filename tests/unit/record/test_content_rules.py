"""How long tombstones stay: what the source has in force decides, not Kafka's default."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import make_context, make_plan

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import topic_rules
from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.jobs.content_jobs import delete_retention_of
from airflow_provider_kafka_migration.kafka.admin.topics import Configs, ConfigSource, ConfigValue


def plan_of(kinds: list[str]) -> Plan:
    plan = make_plan({"orders": 1})
    return plan.model_copy(update={"topics": [plan.topics[0].model_copy(update={"kinds": kinds})]})


def ask(folder: Path, plan: Plan, values: dict[str, Any]) -> dict[str, int]:
    context = make_context(folder)
    configs = Configs("orders", values)
    context.source = SimpleNamespace(  # type: ignore[assignment]
        admin=SimpleNamespace(topic_configs=lambda names: dict.fromkeys(names, configs))
    )
    return delete_retention_of(context.record, context.source, plan)


def test_the_broker_s_default_counts_where_the_topic_has_no_value(tmp_path: Path) -> None:
    name = "delete.retention.ms"
    default = {name: ConfigValue(name, "60000", ConfigSource.STATIC_BROKER)}
    plan = plan_of(["compacted"])
    found = ask(tmp_path, plan, default)
    assert found == {"orders": 60_000}
    assert topic_rules(plan, found)["orders"].delete_retention_ms == 60_000


def test_a_retention_of_nothing_is_a_value(tmp_path: Path) -> None:
    name = "delete.retention.ms"
    plan = plan_of(["compacted"])
    found = ask(tmp_path, plan, {name: ConfigValue(name, "0", ConfigSource.DYNAMIC_TOPIC)})
    assert topic_rules(plan, found)["orders"].delete_retention_ms == 0


def test_nobody_guesses_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Terminal, match=r"delete\.retention\.ms of orders cannot be read"):
        ask(tmp_path, plan_of(["compacted"]), {})
    assert ask(tmp_path / "plain", plan_of([]), {}) == {}, "only compaction asks for it"
