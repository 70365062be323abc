"""Kills one component of a running Airflow with SIGKILL and replaces it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import psutil

from harness.airflow import AirflowApiError, AirflowStandalone
from harness.processes import HarnessError, Process, start, stop_all, wait_for
from harness.reaper import descendants

Component = Literal["scheduler", "triggerer", "dag-processor", "api-server"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
_STOP_SECONDS = 20.0
#: Long: on a busy machine a component takes a minute to import Airflow.
_ANSWERS_SECONDS = 300.0


def component_processes(airflow: AirflowStandalone, name: Component) -> list[int]:
    """Process ids of a component and its descendants; for the scheduler with a LocalExecutor also its tasks.

    :raises HarnessError: the component does not run.
    """
    for pid in airflow.processes_below():
        with suppress(psutil.Error):
            if _is_component(psutil.Process(pid).cmdline(), name):
                return [pid, *descendants(pid)]
    raise HarnessError(f"Airflow's {name} does not run")


def _is_component(command: list[str], name: Component) -> bool:
    if len(command) == 3 and Path(command[1]).name == "airflow":
        return command[2] == name
    # The API server gives itself another title when it has started.
    return " ".join(command).startswith(f"airflow {name.replace('-', '_')} -- ")


def kill_component(airflow: AirflowStandalone, name: Component) -> list[int]:
    """Kill a component and its descendants, as when its container dies; return the killed process ids.

    :raises HarnessError: the component does not run.
    """
    killed = component_processes(airflow, name)
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return killed


def start_component(airflow: AirflowStandalone, name: Component) -> Process:
    """Start a component beside the others, which ``airflow standalone`` does not do itself. The caller stops it."""
    binary = str(Path(sys.executable).with_name("airflow"))
    command = [sys.executable, str(Path(__file__).with_name("reaper.py")), binary, name]
    return start(
        f"Airflow's {name}",
        command,
        airflow.log,
        env=airflow.environment(),
        cwd=airflow.home,
        death_signal=signal.SIGTERM,
    )


@contextmanager
def replaced_component(airflow: AirflowStandalone, name: Component) -> Iterator[list[int]]:
    """Kill a component; a replacement runs within the block, and all of Airflow is restarted afterwards.

    Yields the killed process ids.
    """
    killed = kill_component(airflow, name)
    another = start_component(airflow, name)
    try:
        yield killed
    finally:
        another.stop(_STOP_SECONDS)
        airflow.stop()
        airflow.start()


class ReplaceableAirflow(AirflowStandalone):
    """An Airflow whose components are replaced when they have died, as by systemd or Kubernetes, again and again."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._replacements: dict[Component, Process] = {}

    def stop(self) -> None:
        """End all components, tasks and replacements."""
        stop_all(self._replacements.values(), _STOP_SECONDS)
        self._replacements = {}
        super().stop()

    def replace(self, name: Component) -> None:
        """Start a component whose predecessor is dead, and wait for the API where it is the API server.

        :raises HarnessError: the API does not answer in time.
        """
        former = self._replacements.pop(name, None)
        if former is not None:
            former.stop(_STOP_SECONDS)
        self._replacements[name] = start_component(self, name)
        if name == "api-server":
            wait_for("Airflow's API", self._answers, _ANSWERS_SECONDS, every_seconds=0.5)

    def missing(self) -> list[Component]:
        """Components that do not run."""
        return [name for name in COMPONENTS if not self._runs(name)]

    def _runs(self, name: Component) -> bool:
        replacement = self._replacements.get(name)
        # A young one is not yet seen as what it will be.
        if replacement is not None and replacement.running:
            return True
        try:
            return bool(component_processes(self, name))
        except HarnessError:
            return False

    def _answers(self) -> bool:
        try:
            return bool(self.request("GET", "/version"))
        except (OSError, AirflowApiError):
            return False

    def _processes(self) -> list[Process]:
        return [*super()._processes(), *self._replacements.values()]
