"""Fixtures of the engines' tests."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from airflow_provider_kafka_migration.engines import service


def need(module: str, provider: str) -> None:
    """Skip where a provider is not installed. `make test-engines` has all of them, so there it is a failure."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None and os.environ.get("ALL_PROVIDERS"):
        pytest.fail(f"{provider} is not installed here: remove the environment of make test-engines and run that again")
    if found is None:
        pytest.skip(f"{provider} is not installed here; make test-engines has an environment with it")


@pytest.fixture
def needs() -> Callable[[str, str], None]:
    """Return :func:`need`."""
    return need


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Count the waits between attempts instead of waiting."""
    waits: list[float] = []
    # Only ours: a wait inside of a client library stays one, and would show as a test that takes for ever.
    monkeypatch.setattr(service, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.fixture
def all_logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Capture everything that any library logs, however detailed."""
    from airflow.sdk import BaseHook

    for name in ("", "urllib3", "kubernetes", "requests", "google", "hooks"):
        caplog.set_level(logging.DEBUG, logger=name)
    # Hooks log through structlog, which drops what is below its own level.
    monkeypatch.setattr(BaseHook, "log", logging.getLogger("hooks"))
    return caplog
