"""Environments with other versions of Spark, below the user's cache: made once, each from a package index.

They hold PySpark and what executors need (``EXECUTOR_PACKAGES``), and not this project: tests ship it as users do.
For Spark Connect, one environment serves as client and as server.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.jars.maven import cache_folder, locked
from harness.processes import HarnessError

#: Series -> the version that is installed for it.
SERIES = {"3.5": "3.5.9", "4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}
#: Those whose Spark Connect has what the driver needs.
CONNECT_SERIES = tuple(series for series in sorted(SERIES) if series != "3.5")
_EXECUTOR = (
    "boto3>=1.40",
    "cramjam>=2.14",
    "crc32c>=2.7",
    "kafka-python>=3.0.12,<3.1",
    "pydantic>=2.11,<3",
    "pynacl>=1.5",
    "rfc8785>=0.1.4",
    "urllib3>=2",
)
_SECONDS = 1_200


class Offline(HarnessError):
    """The packages of an environment cannot be had here."""


def python_of(series: str, *, connect: bool = False) -> Path:
    """Return the interpreter of the environment of a series; make the environment if it is not there.

    :param connect: with what clients of Spark Connect need.
    :raises Offline: its packages could not be installed.
    """
    extra = "[connect]" if connect else ""
    wanted = (f"pyspark{extra}=={SERIES[series]}", *_EXECUTOR)
    name = f"pyspark-{SERIES[series]}-{'connect-' if connect else ''}py{sys.version_info[0]}{sys.version_info[1]}"
    folder = cache_folder("spark") / name
    python = folder / "bin" / "python"
    marker = folder / "complete"
    with locked(cache_folder("spark"), folder.name):
        if marker.exists() and marker.read_text() == "\n".join(wanted):
            return python
        uv = Path(sys.executable).with_name("uv")
        commands = [
            [str(uv), "venv", "--clear", "--python", sys.executable, str(folder)],
            [str(uv), "pip", "install", "--python", str(python), *wanted],
        ]
        for command in commands:
            _run(command)
        marker.write_text("\n".join(wanted))
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Offline(f"{command[0]} {command[1]}: {error}") from None
    if done.returncode != 0:
        raise Offline(f"{' '.join(command[:3])} ended with {done.returncode}: {done.stderr[-1000:]}")
