"""Differences between two logs, with a guess at what happened: a record changed, twice, elsewhere, or out of order."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from airflow_provider_kafka_migration.documents.validation import ContentDifference
from airflow_provider_kafka_migration.kafka.batches import Record

Kind = Literal["missing", "extra", "changed", "duplicate", "order", "offset", "unreadable"]

_FIELDS = ("timestamp", "key", "value", "headers")
_WINDOW_RECORDS = 1024


def changed_fields(source: Record, target: Record) -> str:
    """Names of the fields that differ."""
    return ", ".join(name for name in _FIELDS if getattr(source, name) != getattr(target, name))


def _content(record: Record) -> int:
    """Equal for equal records; of this process only."""
    return hash((record.timestamp, record.key, record.value, tuple(record.headers)))


class Differences:
    """Counts all differences and keeps the first ones.

    To tell what happened it remembers a window of source records: a target record that is not what it should be, but
    equals one of them, is a duplicate, out of order, or at a wrong offset. A guess for people; the count is exact.

    :param keep: how many differences are kept.
    """

    def __init__(self, keep: int) -> None:
        self.count = 0
        self._keep = keep
        self._kept: list[ContentDifference] = []
        #: content of a source record to (offset, whether it was found at its place)
        self._recent: OrderedDict[int, tuple[int, bool]] = OrderedDict()
        #: content of a target record that was not known when it came, to its place in the list
        self._unknown: dict[int, int] = {}
        #: source offset of the furthest target record that is known
        self._furthest = -1

    def remember(self, source: Record, *, matched: bool) -> None:
        """A source record was walked over."""
        content = _content(source)
        index = self._unknown.pop(content, None)
        if index is not None and not matched:
            self._relabel(index, "offset", f"holds the record of source offset {source.offset}")
            self._furthest = max(self._furthest, source.offset)
        if matched:
            self._furthest = max(self._furthest, source.offset)
        self._recent[content] = (source.offset, matched)
        if len(self._recent) > _WINDOW_RECORDS:
            self._recent.popitem(last=False)

    def note(self, kind: Kind, source_offset: int | None, target_offset: int | None, detail: str = "") -> None:
        """One more difference."""
        self.count += 1
        if len(self._kept) < self._keep:
            self._kept.append(
                ContentDifference(kind=kind, source_offset=source_offset, target_offset=target_offset, detail=detail)
            )

    def changed(self, source: Record, target: Record) -> None:
        """Another record than the source's stands at its place."""
        self.remember(source, matched=False)
        self._stray("changed", source.offset, target, changed_fields(source, target))

    def missing(self, source: Record, target_offset: int | None) -> None:
        """The target has no record at the place of a source record."""
        self.remember(source, matched=False)
        self.note("missing", source.offset, target_offset)

    def _stray(self, kind: Kind, source_offset: int | None, target: Record, detail: str) -> None:
        content = _content(target)
        found = self._recent.get(content)
        # A record at its own place with another time has another content, so it never finds itself here.
        if found is None or found[0] == source_offset:
            if len(self._kept) < self._keep:
                self._unknown[content] = len(self._kept)
            self.note(kind, source_offset, target.offset, detail)
            return
        offset, matched = found
        text = f"holds the record of source offset {offset}"
        if matched:
            self.note("duplicate", source_offset, target.offset, text)
        elif offset < self._furthest:
            self._relabel_source(offset, "order")
            self.note("order", source_offset, target.offset, text)
        else:
            self._furthest = offset
            self.note("offset", source_offset, target.offset, text)

    def _relabel(self, index: int, kind: Kind, detail: str) -> None:
        self._kept[index] = self._kept[index].model_copy(update={"kind": kind, "detail": detail})

    def _relabel_source(self, source_offset: int, kind: Kind) -> None:
        for index, difference in enumerate(self._kept):
            if difference.source_offset == source_offset and difference.kind == "offset":
                self._relabel(index, kind, difference.detail)

    def first(self, more: list[ContentDifference]) -> list[ContentDifference]:
        """The first differences, ``more`` included, ascending by offset."""

        def place(difference: ContentDifference) -> tuple[int, int]:
            offset = difference.target_offset if difference.source_offset is None else difference.source_offset
            return (offset or 0, difference.target_offset or 0)

        return sorted([*self._kept, *more], key=place)[: self._keep]
