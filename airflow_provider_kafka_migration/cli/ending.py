"""How a command ends that is told to: by Ctrl-C (SIGINT), or by SIGTERM from a supervisor.

The first signal asks for an end in order: copiers finish what is on the wire, connections are closed, the claim and all
checkpoints stay as they are, and the same command goes on later. A second signal ends the process at once, which costs
nothing but the time to look where the logs end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: A shell's convention: a process that a signal has ended has this status plus the signal's number.
SIGNALED = 128


class Ending:
    """What signals have asked for so far.

    :ivar number: the first signal's number; None while nobody has asked for an end.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        #: Written to stderr when a second signal ends the process, which has no time to look at anything.
        self.parting = ""
        self._heeding = 0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handler of the signals. Takes no lock: the main thread may hold any when it is interrupted."""
        if self.number is not None:
            os.write(2, self.parting.encode())
            os._exit(SIGNALED + number)
        self.number = number
        if not self._heeding:
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While a job runs that looks at its :class:`Stop`, nothing is thrown into it: it ends by itself, and soon.

        :raises KeyboardInterrupt: the job is over, and did not notice that it was asked to end.
        """
        self._heeding += 1
        try:
            yield
        finally:
            self._heeding -= 1
        if self.number is not None:
            raise KeyboardInterrupt


class Stop(threading.Event):
    """Tells a job to stop: set by the one who has made it, or by a signal."""

    def __init__(self, ending: Ending | None = None) -> None:
        super().__init__()
        self._ending = ending if ending is not None else _current

    def is_set(self) -> bool:
        """Whether the job has to stop."""
        return super().is_set() or self._ending.number is not None

    def wait(self, timeout: float | None = None) -> bool:
        """As of an event; but a signal alone is noticed only when the time is over, so wait for short times."""
        super().wait(timeout)
        return self.is_set()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Around a job that looks at this. Signals reach the main thread, so nothing changes in others."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._ending.heeded():
            yield


#: Of the command that runs in this process; signals belong to the process, too.
_current = Ending()


@contextmanager
def listening() -> Iterator[Ending]:
    """Handle signals for a command. In another thread than the main one nothing is handled.

    SIGINT stays ignored where the caller has it ignored (a shell's background jobs). SIGTERM is always for us: there is
    no other way to end process 1 of a container.
    """
    global _current
    former_ending, ending = _current, Ending()
    _current = ending
    former: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                    former[number] = signal.signal(number, ending.handle)
        yield ending
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _current = former_ending
