"""For how long brokers' quotas have held a lane up."""

from __future__ import annotations


class Throttling:
    """Adds throttle times up: each answer says how long its connection is muted from now on, so they overlap.

    :ivar seconds: in which at least one connection was muted.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0

    def note(self, throttle_time_ms: int, now: float) -> float:
        """Take in an answer's throttle time.

        :param now: of the monotonic clock.
        :returns: when its connection may send again.
        """
        until = now + throttle_time_ms / 1000
        self.seconds += max(0.0, until - max(now, self._until))
        self._until = max(self._until, until)
        return until
