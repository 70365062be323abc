"""Rules for Spark's settings: under which of them a copy is safe. The driver enforces them; the precheck shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The settings that :func:`unsafe_settings` judges.
JUDGED = ("spark.master", "spark.speculation", "spark.task.maxFailures", "spark.python.use.daemon")

_LOCAL = re.compile(r"^local(?:\[\s*(?P<slots>\d+|\*)\s*(?:,\s*(?P<failures>\d+)\s*)?\])?$")


def is_local(master: str) -> bool:
    """Return whether driver and executors are one process: ``local``, ``local[4]``, ``local[4,4]``."""
    return _LOCAL.match(master.strip()) is not None


def unsafe_settings(conf: Mapping[str, str]) -> list[str]:
    """Return the settings under which two copies of a task may run, or a lost task is not retried; empty if none.

    :param conf: Spark's settings, including ``spark.master``.
    """
    problems = []
    if conf.get("spark.speculation", "false").strip().lower() == "true":
        problems.append("spark.speculation is true, but a lane must have one owner; set spark.speculation=false")
    master = conf.get("spark.master", "").strip()
    local = _LOCAL.match(master)
    if local:
        slots = local["slots"] or "1"
        if int(local["failures"] or "1") < 2:
            problems.append(f"the master {master} never retries a task; write local[{slots},4]")
    else:
        problems += _task_failures(conf.get("spark.task.maxFailures", "4"))
    if conf.get("spark.python.use.daemon", "true").strip().lower() == "false":
        problems.append("spark.python.use.daemon is false: workers could outlive their executor; leave it at true")
    return problems


def _task_failures(text: str) -> list[str]:
    try:
        allowed = int(text)
    except ValueError:
        return [f"spark.task.maxFailures is {text!r}, which is not a number; leave it at 4"]
    return [] if allowed >= 2 else ["spark.task.maxFailures is 1: a lost worker would end the job; leave it at 4"]
