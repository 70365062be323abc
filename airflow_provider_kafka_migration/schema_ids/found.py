"""The schema ids that occur in records: how often, and where first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from airflow_provider_kafka_migration.schema_ids.wire_format import Kind, Part

#: Different ids of one partition that are kept by default. Payloads that only look like serialized records may have as
#: many as there are records.
MAX_FOUND_IDS = 10_000


class IdKey(NamedTuple):
    """One id in one part of the records. The value is a number, or a GUID in lower case."""

    part: Part
    kind: Kind
    value: int | str


class Occurrence(NamedTuple):
    """In how many records an id occurs, and the lowest offset of the source where it was found."""

    records: int
    first_offset: int


class FoundIds:
    """Counts ids of a stretch of a partition. Bounded: ids beyond ``max_ids`` are only counted as ``left_out``.

    :param max_ids: how many different ids are kept.
    """

    def __init__(self, max_ids: int = MAX_FOUND_IDS) -> None:
        self.max_ids = max_ids
        #: occurrences of ids that are not among the kept ones
        self.left_out = 0
        self._found: dict[IdKey, Occurrence] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FoundIds):
            return NotImplemented
        return self._found == other._found and self.left_out == other.left_out

    __hash__ = None  # type: ignore[assignment]

    @property
    def ids(self) -> Mapping[IdKey, Occurrence]:
        """The ids that were found."""
        return self._found

    @property
    def is_complete(self) -> bool:
        """Whether all ids that occur are among the kept ones."""
        return not self.left_out

    def add(self, key: IdKey, offset: int, count: int = 1) -> None:
        """Count occurrences of an id, the first of them at an offset."""
        known = self._found.get(key)
        if known is not None:
            self._found[key] = Occurrence(known.records + count, min(known.first_offset, offset))
        elif len(self._found) < self.max_ids:
            self._found[key] = Occurrence(count, offset)
        else:
            self.left_out += count

    def merge(self, other: FoundIds) -> None:
        """Add what was found in another stretch of the partition."""
        for key, (count, first_offset) in other._found.items():
            self.add(key, first_offset, count)
        self.left_out += other.left_out

    def as_list(self) -> list[tuple[str, str, int | str, int, int]]:
        """Return ``(part, kind, id, records, first offset)`` for JSON, ascending by part, kind and id."""
        ordered = sorted(self._found.items(), key=lambda item: (item[0].part, item[0].kind, _order(item[0].value)))
        return [(*key, *occurrence) for key, occurrence in ordered]

    @classmethod
    def from_list(cls, data: Iterable[Any], *, left_out: int = 0, max_ids: int = MAX_FOUND_IDS) -> FoundIds:
        """Return what :meth:`as_list` describes."""
        found = cls(max_ids)
        for part, kind, value, count, first_offset in data:
            found.add(IdKey(part, kind, value), first_offset, count)
        found.left_out += left_out
        return found


def _order(value: int | str) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (-1, value)
