"""The table of phases names functions that are there."""

from __future__ import annotations

import importlib
import inspect

import pytest

from airflow_provider_kafka_migration.phases.registry import ORDER, PHASES


@pytest.mark.parametrize("phase", sorted(PHASES))
def test_each_phase_names_a_function_that_takes_a_context(phase: str) -> None:
    module, _, name = PHASES[phase].function.partition(":")
    function = getattr(importlib.import_module(f"airflow_provider_kafka_migration.phases.{module}"), name)
    assert next(iter(inspect.signature(function).parameters)) == "context"


def test_the_order_names_phases_once_each() -> None:
    assert len(set(ORDER)) == len(ORDER)
    assert set(ORDER) <= set(PHASES)
