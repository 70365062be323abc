"""What whoever drives a mirror does next, and how long it waits after a failure: on the command line and in Airflow."""

from __future__ import annotations

from typing import Literal

from airflow_provider_kafka_migration.documents.mirror import MirrorRequest
from airflow_provider_kafka_migration.state import State

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0
#: After an attempt that has lasted this long, the next failure is a first one again.
LONG_SECONDS = 300.0


def next_phase(state: State | None, request: MirrorRequest) -> Literal["mirror", "finish"] | None:
    """Return the phase that carries out the last request; None: the mirror has ended, or is paused and stays so.

    ``finish`` needs the target only, so a mirror whose source is gone can be promoted and ended. Without a state there
    is nothing to end.
    """
    if state is not None and state.is_terminal:
        return None
    if state is State.PAUSED and request.want == "paused":
        return None
    is_end = request.want == "ended" or (request.want == "promoted" and request.source_gone)
    return "finish" if state is not None and is_end else "mirror"


class Pauses:
    """Pauses between attempts that fail: each twice as long as the one before, up to half a minute."""

    def __init__(self) -> None:
        self._seconds = _FIRST_SECONDS

    def after(self, lasted_seconds: float) -> float:
        """Return the pause in seconds after an attempt that has failed after so long."""
        if lasted_seconds >= LONG_SECONDS:
            self._seconds = _FIRST_SECONDS
        pause = self._seconds
        self._seconds = min(pause * 2, _LONGEST_SECONDS)
        return pause
