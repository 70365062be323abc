"""Changes outside of the journal that somebody may have to undo: intent -> apply -> outcome -> put back.

The intent is journaled before a request is sent, and its outcome after the answer. A request may be slow, or its
process may be killed, while another process ends what the change belongs to. So there are two nets:

* Whoever ends it undoes the change, waits for intents without an outcome for as long as their requests may last, and
  undoes it again (:func:`wait_for_open`). This needs nothing of the process that has sent the request.
* The process that has sent the request reads the journal after the answer and undoes what came too late, with or
  without the claim: it undoes only what it has just done itself.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import IllegalTransition, MigrationError, PhaseOver, Transient
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.clock import Deadline
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.times import parse_iso

log = logging.getLogger(__name__)

#: In the details of an error: no answer came, so the request may still take effect.
UNANSWERED = "unanswered"
#: An intent this old is not waited for: its request has ended, whatever the clocks of two machines say.
OLD_SECONDS = 300.0
#: For so long a client may send the requests of one change, with their retries.
SENDING_SECONDS = 30.0
_POLL_SECONDS = 1.0


class Standing(Enum):
    """What has become of that to which a change belongs."""

    #: It goes on, perhaps in another process.
    GOES_ON = "goes on"
    #: It has ended, and the change must not stay.
    OVER = "over"
    #: It has ended, and something newer answers for the change, which undoes it when it ends itself.
    SUPERSEDED = "superseded"


class Client(Protocol):
    """What sends the requests of a change: nothing after ``send_until``, a moment of the monotonic clock."""

    send_until: float


@dataclass
class Change:
    """A change that is being made.

    :param order: number of the journal entry that authorizes it: whatever undoes it is authorized by a later one.
    :param is_settled: no request of it is under way any more. Set it to False where one was not answered.
    """

    order: int
    is_settled: bool = True


@dataclass(frozen=True)
class Changes:
    """Makes the changes of one thing, an attempt to freeze for example.

    :param key: key of the journal's steps.
    :param standing: what has become of it, by the journal as last read.
    :param allowed: conditions for the journal's steps, as :meth:`Journal.step` takes them: refused once it has ended.
    :param over: returns the error for a change that came too late and is undone.
    """

    journal: Journal
    key: str
    standing: Callable[[], Standing]
    over: Callable[[], MigrationError]
    allowed: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def making(
        self, what: str, seconds: float, undo: Callable[[], Any], client: Client | None = None
    ) -> Iterator[Change]:
        """Journal the intent, let the block make the change, journal the outcome; undo the change if it came too late.

        :param seconds: how long after this call, or after the block's last look at the journal, a request of the block
            may take effect; of a ``client`` :data:`SENDING_SECONDS` and the time of one request.
        :param undo: needs no claim.
        :param client: sends the block's requests, and none later than :data:`SENDING_SECONDS` after this call.
        :raises PhaseOver: it was too late, before the block or after it; then the change is undone.
        :raises ClaimLost: another owner has taken over; if the change came too late, it is undone.
        """
        details = {"what": what, "seconds": seconds}
        entry = self.journal.step(steps.CHANGE_BEGUN, self.key, details, reason=f"{what}: asked", **self.allowed)
        change = Change(entry.seq)
        try:
            with _sending(client):
                yield change
        except MigrationError as error:
            change.is_settled = not (isinstance(error, Transient) or error.details.get(UNANSWERED))
            self._end(entry, change, undo, failed=True)
            raise
        except BaseException:
            change.is_settled = False
            self._end(entry, change, undo, failed=True)
            raise
        self._end(entry, change, undo, failed=False)

    def _end(self, entry: JournalEntry, change: Change, undo: Callable[[], Any], *, failed: bool) -> None:
        outcome = {"begun": entry.seq, "failed": failed}
        try:
            self.journal.refresh()
            if self.standing() is Standing.GOES_ON:
                if change.is_settled:
                    self.journal.step(steps.CHANGE_ENDED, self.key, outcome, **self.allowed)
                elif not failed:
                    self.journal.check_holds()
                return
        except (PhaseOver, IllegalTransition):
            # It was ended in this very moment.
            self.journal.refresh()
        except Transient as error:
            # The intent stays open: whoever ends it waits for this request, and undoes it again.
            log.warning(
                "The journal cannot be read or written, so the outcome of %s is not in it: %s", entry.reason, error
            )
            return
        is_over = self.standing() is Standing.OVER
        if is_over:
            log.warning("%s came too late: it is undone", entry.reason)
            undo()
        self._close({**outcome, "undone": is_over})
        raise self._too_late()

    def _close(self, outcome: dict[str, Any]) -> None:
        """Journal the outcome of a change that came too late, if this process still may: nobody has to wait for it."""
        try:
            self.journal.step(steps.CHANGE_ENDED, self.key, outcome)
        except MigrationError as error:
            log.info("The outcome is not journaled: %s", error)

    def _too_late(self) -> MigrationError:
        try:
            self.journal.check_holds()
        except MigrationError as error:
            error.add_next_step("what this run had changed too late is undone")
            return error
        return self.over()


@contextmanager
def _sending(client: Client | None) -> Iterator[None]:
    if client is None:
        yield
        return
    client.send_until = Deadline(time.monotonic() + SENDING_SECONDS)
    try:
        yield
    finally:
        client.send_until = math.inf


def open_changes(journal: Journal, key: str) -> list[JournalEntry]:
    """Return the intents without an outcome, from the journal as last read."""
    ended = {entry.details.get("begun") for entry in journal.steps(steps.CHANGE_ENDED, key)}
    return [entry for entry in journal.steps(steps.CHANGE_BEGUN, key) if entry.seq not in ended]


def wait_for_open(
    journal: Journal, key: str, *, now: Callable[[], datetime], sleep: Callable[[float], None], behind: int = -1
) -> float:
    """Wait until no request of another process can be under way; return how many seconds that took.

    Call it once the journal accepts no further intent. The wait is counted here, not by the clocks of two machines.

    :param behind: number of a journal entry: only intents behind it count.
    """
    waited = 0.0
    while True:
        found = [entry for entry in open_changes(journal, key) if entry.seq > behind]
        left = max((_left(entry, waited, now) for entry in found), default=0.0)
        if left <= 0:
            return waited
        pause = min(left, _POLL_SECONDS)
        sleep(pause)
        waited += pause
        journal.refresh()


def _left(entry: JournalEntry, waited: float, now: Callable[[], datetime]) -> float:
    is_old = (now() - parse_iso(entry.at)).total_seconds() - waited > OLD_SECONDS
    return 0.0 if is_old else float(entry.details["seconds"]) - waited
