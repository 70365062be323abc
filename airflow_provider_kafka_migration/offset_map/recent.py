"""Translations by the map of a copy in transactions that goes on for years, without reading all of it each time.

The newest pages of a map are read first, and only as far back as an offset lies. Committed runs never change, so pages
and answers are kept from one look to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange, TranslatedPosition
from airflow_provider_kafka_migration.offset_map.transactional import MapPages, Position, TransactionalMap, runs_of

#: An offset in one incarnation of a partition: its prefix, topic id, first source and target offset, and the offset.
_Question = tuple[str, str, int, int, int]


class KeptMaps:
    """Pages and answers of an earlier look, for one thread. Both are limited, and the oldest ones are dropped.

    :param max_bytes: of pages as they are stored.
    :param max_answers: about 300 bytes each.
    """

    def __init__(self, *, max_bytes: int = 32 * 1024 * 1024, max_answers: int = 100_000) -> None:
        self._max_bytes, self._max_answers = max_bytes, max_answers
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0
        self._answers: OrderedDict[_Question, TranslatedPosition] = OrderedDict()

    def page(self, key: str, fetch: Callable[[str], bytes | None]) -> bytes | None:
        """Return the object of a page, which ``fetch`` reads if it is not known. What is missing is not kept."""
        if key in self._pages:
            self._pages.move_to_end(key)
            return self._pages[key]
        data = fetch(key)
        if data is not None:
            self._pages[key] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._max_bytes:
                self._size_bytes -= len(self._pages.popitem(last=False)[1])
        return data

    def answer(self, question: _Question) -> TranslatedPosition | None:
        """Return an answer that was kept."""
        found = self._answers.get(question)
        if found is not None:
            self._answers.move_to_end(question)
        return found

    def keep(self, question: _Question, answer: TranslatedPosition) -> None:
        """Keep an answer that will never change."""
        self._answers[question] = answer
        while len(self._answers) > self._max_answers:
            self._answers.popitem(last=False)


class RecentMap:
    """Answers as the whole :class:`TransactionalMap` of a committed position does, from as few pages as possible.

    :param topic_id: of the source topic: one that was created again has other answers.
    """

    def __init__(self, pages: MapPages, position: Position, kept: KeptMaps, topic_id: str) -> None:
        self._pages, self._position, self._kept = pages, position, kept
        self._incarnation = (pages.prefix, topic_id, position.start.source_start, position.start.target_start)
        #: runs from the newest page that was read to the oldest one, which are in order within a page
        self._read: list[list[OffsetRange]] = [list(position.runs)]
        self._older = position.page
        self._map: TransactionalMap | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict, which is always ``transactional``."""
        return Verdict.TRANSACTIONAL

    @property
    def target_start_offset(self) -> int:
        """The target's log end when the copy began."""
        return self._position.start.target_start

    def source_of(self, target_offset: int) -> int:
        """See :meth:`TransactionalMap.source_of`.

        :raises OffsetMapInvalid: a page is missing, or was changed.
        """
        self._read_back(lambda run: run.target_start <= target_offset)
        return self._so_far().source_of(target_offset)

    def translate(self, source_offset: int) -> TranslatedPosition:
        """See :meth:`TransactionalMap.translate`.

        :raises OffsetMapInvalid: a page is missing, or was changed.
        """
        question = (*self._incarnation, source_offset)
        known = self._kept.answer(question)
        if known is not None:
            return known
        # Below the first copied one, all pages are needed.
        self._read_back(lambda run: run.source_start <= source_offset)
        found = self._so_far()
        answer = found.translate(source_offset)
        last = next(reversed(self._newest()), None)
        if last is not None and source_offset < last.source_start + (last.count or 0):
            # What follows the last run may still change the answer for offsets behind it.
            self._kept.keep(question, answer)
        return answer

    def _newest(self) -> list[OffsetRange]:
        return next((runs for runs in self._read if runs), [])

    def _oldest_run(self) -> OffsetRange | None:
        return next((runs[0] for runs in reversed(self._read) if runs), None)

    def _read_back(self, is_enough: Callable[[OffsetRange], bool]) -> None:
        """Read older pages until the first run of one is early enough, or there are no more."""
        oldest = self._oldest_run()
        while self._older and (oldest is None or not is_enough(oldest)):
            page = self._pages.read(self._older)
            self._read.append(list(runs_of(page.runs)))
            self._older, self._map = page.previous, None
            oldest = self._oldest_run()

    def _so_far(self) -> TransactionalMap:
        if self._map is None:
            runs = (run for page in reversed(self._read) for run in page)
            self._map = TransactionalMap(self._position.start, runs, copied_until_offset=self._position.source_offset)
        return self._map
