"""One component of a running Airflow dies without a word, and another one takes its place."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil

from harness.airflow import AirflowStandalone
from harness.processes import HarnessError, start
from harness.reaper import descendants

Component = Literal["scheduler", "triggerer", "dag-processor"]
_STOP_SECONDS = 20.0


def component_processes(airflow: AirflowStandalone, name: Component) -> list[int]:
    """Process ids of a component and everything below it; for the scheduler with a LocalExecutor its tasks, too.

    :raises HarnessError: it does not run.
    """
    for pid in descendants(airflow.pid):
        with suppress(psutil.NoSuchProcess):
            command = psutil.Process(pid).cmdline()
            if len(command) == 3 and Path(command[1]).name == "airflow" and command[2] == name:
                return [pid, *descendants(pid)]
    raise HarnessError(f"Airflow's {name} does not run")


@contextmanager
def replaced_component(airflow: AirflowStandalone, name: Component) -> Iterator[list[int]]:
    """SIGKILL for a component and all below it, as when its container dies; another one runs in the block.

    ``airflow standalone`` starts none itself, so afterwards it is started anew as a whole. Yields who was killed.
    """
    killed = component_processes(airflow, name)
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    binary = str(Path(sys.executable).with_name("airflow"))
    command = [sys.executable, str(Path(__file__).with_name("reaper.py")), binary, name]
    another = start(
        f"Airflow's {name}",
        command,
        airflow.log,
        env=airflow.environment(),
        cwd=airflow.home,
        death_signal=signal.SIGTERM,
    )
    try:
        yield killed
    finally:
        another.stop(_STOP_SECONDS)
        airflow.stop()
        airflow.start()
