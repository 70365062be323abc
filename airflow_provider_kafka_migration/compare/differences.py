"""Differences between two logs, with a guess at the cause: a record changed, duplicated, misplaced, or out of order."""

from __future__ import annotations

from collections import deque
from typing import Literal

from airflow_provider_kafka_migration.compare.logs import decode
from airflow_provider_kafka_migration.documents.proof import ContentDifference
from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka.batches.records import Columns

Kind = Literal["missing", "extra", "changed", "duplicate", "order", "offset", "unreadable"]

_FIELDS = ("timestamp", "key", "value", "headers")
_WINDOW_RECORDS = 2048
_WINDOW_BYTES = 4 * 1024 * 1024

#: time and body of a record, which identify it
_Content = tuple[int, bytes]


def changed_fields(source: Columns, target: Columns) -> str:
    """Return the names of the fields in which the first records differ; empty if only their encoding differs."""
    try:
        one, other = decode(source, 0), decode(target, 0)
    except BatchMalformed as error:
        return f"unreadable: {error.what}"
    return ", ".join(name for name in _FIELDS if getattr(one, name) != getattr(other, name))


class Differences:
    """Counts all differences and keeps the first ones.

    To classify differences it remembers a window of source records: a target record that is not the expected one, but
    equals one of the window, is a duplicate, out of order, or at a wrong offset. The classification is a guess for
    people; the count is exact.

    :param keep: how many differences are kept.
    """

    def __init__(self, keep: int) -> None:
        self.count = 0
        self._keep = keep
        self._kept: list[ContentDifference] = []
        #: source records that were walked over, whether they were found at their places, and their bytes
        self._recent: deque[tuple[Columns, bool, int]] = deque()
        self._recent_records = 0
        self._recent_bytes = 0
        #: target records that matched no source record when they were read -> their positions in the list
        self._unknown: dict[_Content, int] = {}
        #: highest source offset of the target records identified so far
        self._furthest = -1

    def remember(self, source: Columns, *, matched: bool) -> None:
        """Remember source records that were walked over."""
        if self._unknown:
            self._find_unknown(source, matched=matched)
        if matched:
            self._furthest = source.offsets[-1]
        size_bytes = sum(map(len, source.bodies))
        self._recent.append((source, matched, size_bytes))
        self._recent_records += len(source.offsets)
        self._recent_bytes += size_bytes
        while len(self._recent) > 1 and (self._recent_records > _WINDOW_RECORDS or self._recent_bytes > _WINDOW_BYTES):
            dropped, _, size_bytes = self._recent.popleft()
            self._recent_records -= len(dropped.offsets)
            self._recent_bytes -= size_bytes

    def _find_unknown(self, source: Columns, *, matched: bool) -> None:
        for offset, content in zip(source.offsets, zip(source.times, source.bodies, strict=True), strict=True):
            index = self._unknown.pop(content, None)
            if index is not None and not matched:
                self._relabel(index, "offset", f"holds the record of source offset {offset}")
                self._furthest = max(self._furthest, offset)

    def note(self, kind: Kind, source_offset: int | None, target_offset: int | None, detail: str = "") -> None:
        """Count one more difference."""
        self.count += 1
        if len(self._kept) < self._keep:
            self._kept.append(
                ContentDifference(kind=kind, source_offset=source_offset, target_offset=target_offset, detail=detail)
            )

    def missing(self, source: Columns, target_offset: int | None) -> None:
        """Note that the target has no record at the place of this source record."""
        self.remember(source, matched=False)
        self.note("missing", source.offsets[0], target_offset)

    def changed(self, source: Columns, target: Columns, fields: str) -> None:
        """Note that the target has a different record at the place of this source record."""
        self.remember(source, matched=False)
        source_offset, target_offset = source.offsets[0], target.offsets[0]
        content = (target.times[0], target.bodies[0])
        found = self._find(content) if len(self._kept) < self._keep else None
        if found is None:
            if len(self._kept) < self._keep:
                self._unknown[content] = len(self._kept)
            self.note("changed", source_offset, target_offset, fields)
            return
        offset, matched = found
        text = f"holds the record of source offset {offset}"
        if matched:
            self.note("duplicate", source_offset, target_offset, text)
        elif offset < self._furthest:
            self._relabel_source(offset, "order")
            self.note("order", source_offset, target_offset, text)
        else:
            self._furthest = offset
            self.note("offset", source_offset, target_offset, text)

    def _find(self, content: _Content) -> tuple[int, bool] | None:
        """(offset, matched) of the last source record in the window with this content."""
        time, body = content
        for columns, matched, _ in reversed(self._recent):
            for index in range(len(columns.offsets) - 1, -1, -1):
                if columns.times[index] == time and columns.bodies[index] == body:
                    return columns.offsets[index], matched
        return None

    def _relabel(self, index: int, kind: Kind, detail: str) -> None:
        self._kept[index] = self._kept[index].model_copy(update={"kind": kind, "detail": detail})

    def _relabel_source(self, source_offset: int, kind: Kind) -> None:
        for index, difference in enumerate(self._kept):
            if difference.source_offset == source_offset and difference.kind == "offset":
                self._relabel(index, kind, difference.detail)

    def first(self, more: list[ContentDifference]) -> list[ContentDifference]:
        """Return the first differences, including ``more``, ascending by offset."""

        def place(difference: ContentDifference) -> tuple[int, int]:
            offset = difference.target_offset if difference.source_offset is None else difference.source_offset
            return (offset or 0, difference.target_offset or 0)

        return sorted([*self._kept, *more], key=place)[: self._keep]
