"""News for people from within a phase: passed on beside the phase, in order, each text once.

They are about producers that are stopped, so nobody may wait for a mail server meanwhile. A notification that hangs
holds up only those behind it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

#: How long a process that ends waits for what is not passed on yet.
WAIT_SECONDS = 5.0


class Announcements:
    """Passes texts on in a thread of its own, which begins with the first one.

    :param send: passes one text on; its errors are only logged.
    """

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send = send
        self._told: set[str] = set()
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._is_sending = False

    def __call__(self, text: str) -> None:
        """Pass a text on, and do not wait for that. A text that this process has passed on before is left out."""
        with self._changed:
            if text in self._told:
                return
            self._told.add(text)
            self._waiting.append(text)
            if not self._is_sending:
                self._is_sending = self._start()

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._run, name="announcements", daemon=True).start()
        except RuntimeError as error:
            log.error("People cannot be told now: %s", error)
            return False
        return True

    def wait(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until everything is passed on, but no longer than that; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_sending, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_sending = False
                    self._changed.notify_all()
                    return
                text = self._waiting.popleft()
            try:
                self._send(text)
            except BaseException:
                # A thread that ended here would keep all later news back: some time-outs and exits are no Exception.
                log.exception("People could not be told: %s", text)
