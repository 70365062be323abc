"""What all handlers of a simulated broker share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulated.faults import Fault
from simulated.partition_log import Refused

Handler = Callable[[Any, Fault | None], Any]


def attempt(fault: Fault | None, topic: str, action: Callable[[], Any]) -> tuple[int, Any]:
    """(error code, result) of what is done with one partition, or with a whole request (topic "")."""
    if fault is not None and fault.kind == "code" and fault.concerns(topic):
        return fault.code, None
    try:
        return 0, action()
    except Refused as refused:
        return refused.code, None
