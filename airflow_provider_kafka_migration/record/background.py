"""Passes that repeat in a thread while records are copied: the frame of all that runs beside a copy.

The passes begin with a ``with`` block and end with it. What a pass fails with is logged and kept, and the next pass
follows, whatever it is: one bad answer must not end the passes for as long as a mirror runs. Only an error that is
final ends them, such as a lost claim: another process is in charge then.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar

from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.record.context import PhaseContext

#: What a pass works with: connections that no other thread uses.
Own = TypeVar("Own")


@contextmanager
def own_connections(context: PhaseContext) -> Iterator[PhaseContext]:
    """Open a context with separate connections to both clusters, and close them at the end."""
    with closing(context.source.clone()) as source, closing(context.target.clone()) as target:
        yield replace(context, source=source, target=target)


class BackgroundPasses(ABC, Generic[Own]):
    """Runs passes in a thread with its own connections until the ``with`` block ends.

    A block that ends well waits for the pass that is under way, however long its last answer takes: what comes next,
    such as a promotion, must not meet a pass that still acts. A block that fails waits for ``patience_seconds``:
    nothing follows it that a late pass could harm.

    :param interval_seconds: time between two passes; None: there are none.
    :param first_seconds: time until the first pass; None: as long as between two.
    """

    thread_name: ClassVar[str]
    #: Begins the line that people get about a pass that failed.
    failed_text: ClassVar[str]
    #: Begins the line that people get when a final error has ended the passes.
    ended_text: ClassVar[str]
    #: Errors that end the passes.
    final: ClassVar[tuple[type[Exception], ...]] = HANDS_OFF
    patience_seconds: ClassVar[float] = 30.0

    def __init__(self, interval_seconds: float | None, *, first_seconds: float | None = None) -> None:
        self._interval_seconds = interval_seconds
        self._first_seconds = interval_seconds if first_seconds is None else first_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: What a pass failed with last, also the final error; None: no pass has failed.
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        if self._is_wanted():
            self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=None if kind is None else self.patience_seconds)

    # ---- what a kind of pass decides

    def _is_wanted(self) -> bool:
        """Return whether there is anything to do; asked at the begin of the block."""
        return self._interval_seconds is not None

    @abstractmethod
    def _open(self) -> AbstractContextManager[Own]:
        """Open what the passes of the thread work with; closed when they end."""

    @abstractmethod
    def _pass(self, own: Own) -> None:
        """Run one pass. A long one asks ``self._stop`` before each change."""

    def _tell(self, error: Exception) -> None:
        """Log why a pass failed; a kind of pass may also show or journal it."""
        if isinstance(error, MigrationError):
            self._log.warning("%s; the next pass tries again: %s", self.failed_text, error)
        else:
            self._log.error("%s; the next pass tries again", self.failed_text, exc_info=error)

    def _wait(self) -> bool:
        """Wait for the next pass; return True as soon as the block has ended."""
        return self._stop.wait(self._interval_seconds)

    # ---- what all have in common

    @property
    def _log(self) -> logging.Logger:
        return logging.getLogger(type(self).__module__)

    def _attempt(self, one_pass: Callable[[Own], object], own: Own) -> None:
        """Run a pass, and keep and tell what it fails with; only a final error is raised."""
        try:
            one_pass(own)
        except self.final:
            raise
        except Exception as error:
            self.error = error
            try:
                self._tell(error)
            except Exception:
                self._log.exception("%s, and that could not be reported; the next pass tries again", self.failed_text)

    def _wait_guarded(self, own: Own) -> bool:
        """Wait for the next pass; where a kind of pass cannot decide how long, wait for the plain interval."""
        found: list[bool] = []
        self._attempt(lambda _own: found.append(self._wait()), own)
        return found[0] if found else self._stop.wait(self._interval_seconds)

    def _run(self) -> None:
        try:
            with self._open() as own:
                is_over = self._stop.wait(self._first_seconds)
                while not is_over:
                    self._attempt(self._pass, own)
                    is_over = self._wait_guarded(own)
        except self.final as error:
            self.error = error
            self._log.warning("%s: %s", self.ended_text, error)
        except Exception as error:
            # Outside of a pass: connections could not be opened or closed.
            self.error = error
            self._log.exception(self.ended_text)
