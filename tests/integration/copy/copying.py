"""Where tests of other folders take the helper from."""

from __future__ import annotations

from harness.copiers.copying import COPY_TIME_CONFIG, Copying, results_of, wait_begun, wait_for

__all__ = ["COPY_TIME_CONFIG", "Copying", "results_of", "wait_begun", "wait_for"]
