"""Partitions of a job that are not copied at present: stuck ones are tried again, failed ones wait for a person.

Whoever follows a source for days must hear of both: in log lines, in the progress document, and from there in
``status``, in the drain and in notifications.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

log = logging.getLogger(__name__)

#: The progress document names so many of them at most; its figures count all.
MAX_NAMED = 20
#: A partition that changes its leader is stuck for a moment: no line before that.
QUIET_SECONDS = 5.0
#: A line that would say the same again waits so long; one with news waits less.
REPEAT_SECONDS = 60.0
NEWS_SECONDS = 10.0

State = Literal["failed", "stuck"]


@dataclass(frozen=True)
class Trouble:
    """A partition that is not copied.

    :param state: ``failed``: nobody tries again until a person has done something; ``stuck``: tried again.
    :param seconds: for how long.
    :param error: ``MigrationError.as_dict()``.
    """

    topic: str
    partition: int
    state: State
    seconds: float
    error: Mapping[str, Any]

    @property
    def reason(self) -> str:
        """Code and what has failed."""
        return f"[{self.error.get('code', 'UNKNOWN')}] {self.error.get('what', 'no reason is known')}"

    def as_dict(self) -> dict[str, Any]:
        """For the progress document."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "state": self.state,
            "seconds": round(self.seconds, 1),
            "code": self.error.get("code"),
            "what": self.error.get("what"),
            "next_step": self.error.get("next_step"),
        }


def in_order(troubles: Sequence[Trouble]) -> list[Trouble]:
    """Failed ones first, then those that are stuck for longest."""
    return sorted(troubles, key=lambda item: (item.state != "failed", -item.seconds, item.topic, item.partition))


def sentence(job: str, state: str, troubles: Sequence[Trouble]) -> str:
    """What a person has to know of failed, or of stuck, partitions that have one reason."""
    first, longest = troubles[0], max(item.seconds for item in troubles)
    several = len(troubles) > 1
    count = f"{len(troubles)} partitions" if several else "1 partition"
    if state == "failed":
        what = "cannot be copied, and nobody tries again until a person has done something"
    else:
        what = f"cannot be copied for {longest:.0f} s now, and {'are' if several else 'is'} tried again"
    place = f"{'the first is ' if several else ''}{first.topic}-{first.partition}"
    text = f"{job}: {count} {what} ({place}): {first.reason}"
    return f"{text}. Next: {first.error['next_step']}" if first.error.get("next_step") else text


class TroubleLines:
    """Writes log lines of a job's troubles: soon when they are new, now and then while they last, once at the end.

    Partitions with the same reason share a line: a dead broker has hundreds of them.

    :param job: name of the job, for people.
    """

    def __init__(self, job: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        self._since: float | None = None

    def tell(self, troubles: Sequence[Trouble]) -> None:
        """Take in all troubles that there are now."""
        now = self._clock()
        groups: dict[tuple[str, str], list[Trouble]] = {}
        for item in in_order(troubles):
            if item.state == "failed" or item.seconds >= QUIET_SECONDS:
                groups.setdefault((item.state, str(item.error.get("code"))), []).append(item)
        for key, group in groups.items():
            if self._is_due(key, len(group), now):
                self._told[key] = (now, len(group))
                self._since = now if self._since is None else self._since
                log.log(
                    logging.ERROR if key[0] == "failed" else logging.WARNING, "%s", sentence(self._job, key[0], group)
                )
        if self._since is not None and not troubles:
            log.warning(
                "%s: all partitions are copied again, %.0f s after the first line about them",
                self._job,
                now - self._since,
            )
            self._since = None
            self._told.clear()

    def _is_due(self, key: tuple[str, str], count: int, now: float) -> bool:
        if key not in self._told:
            return True
        at, told = self._told[key]
        return now - at >= (NEWS_SECONDS if count > told else REPEAT_SECONDS)
