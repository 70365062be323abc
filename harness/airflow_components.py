"""Kills one component of a running Airflow with SIGKILL and replaces it."""

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
    """Process ids of a component and its descendants; for the scheduler with a LocalExecutor also its tasks.

    :raises HarnessError: the component does not run.
    """
    for pid in descendants(airflow.pid):
        with suppress(psutil.NoSuchProcess):
            command = psutil.Process(pid).cmdline()
            if len(command) == 3 and Path(command[1]).name == "airflow" and command[2] == name:
                return [pid, *descendants(pid)]
    raise HarnessError(f"Airflow's {name} does not run")


@contextmanager
def replaced_component(airflow: AirflowStandalone, name: Component) -> Iterator[list[int]]:
    """Kill a component and its descendants, as when its container dies; a replacement runs within the block.

    ``airflow standalone`` starts no replacement itself, so afterwards all of Airflow is restarted. Yields the killed
    process ids.
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
