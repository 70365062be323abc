"""Exact moments at which a copier kills or stops itself: random signals hit them once in a thousand times.

``ACTION:POINT:N``: when POINT is reached for the N-th time (from 1), ``kill`` (SIGKILL) or ``stop`` (SIGSTOP).

==================  ==============================================================================================
append, markers     before such a request is queued; the deadline is checked after that
append-gap,         between the check of the deadline and the send: the gap that no check can close
markers-gap
append-sent,        sent, not answered
markers-sent
append-answered,    answered, but the response has not been read yet
markers-answered
ends                the ends of the target's logs were read, and are trusted from now on
runs, runs-written  before and after runs of the offset map are made durable
lease               just after a lease was taken
==================  ==============================================================================================
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

from airflow_provider_kafka_migration.copy.resuming import finder
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.lanes.slices import LeaseKeeper
from airflow_provider_kafka_migration.offset_map.store import LaneMaps
from harness.faults.proxy import PRODUCE, WRITE_TXN_MARKERS

_REQUESTS = {PRODUCE: "append", WRITE_TXN_MARKERS: "markers"}
#: A copier logs this before it acts.
REACHED = "fault point reached:"
POINTS = (
    "append",
    "append-gap",
    "append-sent",
    "append-answered",
    "markers",
    "markers-gap",
    "markers-sent",
    "markers-answered",
    "ends",
    "runs",
    "runs-written",
    "lease",
)


class FaultPoint:
    """Counts how often a point is reached, and acts at the chosen time."""

    def __init__(self, text: str) -> None:
        action, self._point, number = text.split(":")
        if self._point not in POINTS:
            raise ValueError(f"no such point: {self._point}")
        self._signal = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[action]
        self._number = int(number)
        self._seen: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        """Count a reached point; if it is the chosen one, act, and return late or never."""
        self._seen[point] += 1
        if point == self._point and self._seen[point] == self._number:
            os.write(2, f"{REACHED} {point}\n".encode())
            os.kill(os.getpid(), self._signal)

    def install(self) -> None:
        """Install the points in this process."""
        self._into_requests()
        self._into_sends()
        self._around(finder, "read_ends", after="ends")
        self._around(LaneMaps, "write_ahead", before="runs", after="runs-written")
        self._around(LeaseKeeper, "acquire", after="lease")

    def _around(self, place: Any, name: str, *, before: str = "", after: str = "") -> None:
        original = getattr(place, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if before:
                self.reach(before)
            result = original(*arguments, **options)
            if after:
                self.reach(after)
            return result

        setattr(place, name, wrapped)

    def _into_requests(self) -> None:
        submit = BrokerConnection.submit

        def wrapped(
            connection: BrokerConnection,
            api_key: int,
            version: int,
            parts: Any,
            on_response: Callable[[memoryview], None],
            **options: Any,
        ) -> None:
            name = _REQUESTS.get(api_key)
            if name is None:
                submit(connection, api_key, version, parts, on_response, **options)
                return

            def answered(frame: memoryview) -> None:
                self.reach(f"{name}-answered")
                on_response(frame)

            self.reach(name)
            connection.__dict__["gap_of"] = name
            submit(connection, api_key, version, parts, answered, **options)
            self.reach(f"{name}-sent")

        BrokerConnection.submit = wrapped  # type: ignore[assignment, method-assign]

    def _into_sends(self) -> None:
        send = BrokerConnection._send_some

        def wrapped(connection: BrokerConnection) -> int:
            name = connection.__dict__.pop("gap_of", None)
            if name is not None:
                self.reach(f"{name}-gap")
            return send(connection)

        BrokerConnection._send_some = wrapped  # type: ignore[method-assign, assignment]
