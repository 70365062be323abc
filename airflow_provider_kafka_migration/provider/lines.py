"""Which lines of a task that may run for months go into its log: all at first, later those that say something new."""

from __future__ import annotations

import re

#: A line with no more news than other figures is written only this often.
UNCHANGED_SECONDS = 60.0
#: Until then each other figure is news: people look on while a task begins.
_WATCHED_SECONDS = 600.0
_FIGURES = re.compile(r"[0-9][0-9.,]*")


class Lines:
    """Remembers what the last line has said, and when it was written."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._last: tuple[str | None, object] | None = None
        self._written_at = 0.0

    def is_news(self, text: str, now: float, gist: object = None) -> bool:
        """Return whether a line is to be written now.

        :param now: seconds that only grow.
        :param gist: what is news whenever it changes; None: the words of the line.
        """
        if self._first_at is None:
            self._first_at = now
        is_watched = now - self._first_at < _WATCHED_SECONDS
        said = (text if is_watched else None, _FIGURES.sub("#", text) if gist is None else gist)
        if said == self._last and now - self._written_at < UNCHANGED_SECONDS:
            return False
        self._last, self._written_at = said, now
        return True
