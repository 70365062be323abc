"""Where the copy of a partition stands, as the metadata of an offset that a group commits on the target (KIP-656).

The committed offset is the next *source* offset to copy. The metadata beside it has what only the commit makes true:
the target offsets of the records that were committed with it. Both are written by ``TxnOffsetCommit`` inside of the
transaction that has the records, so position, records and map can never differ.

The metadata is JSON of at most some thousand bytes (brokers refuse more than ``offset.metadata.max.bytes``, 4,096 by
default). Older runs go to pages in the object store, written before the commit that names them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_kafka_migration.errors import OffsetMapInvalid
from airflow_provider_kafka_migration.offset_map.runs import Run
from airflow_provider_kafka_migration.offset_map.transactional import flat_runs, runs_of

#: Below the brokers' default limit of 4,096 bytes.
MAX_METADATA_BYTES = 3_800
_VERSION = 1


def group_name(migration_id: str) -> str:
    """The group on the target whose offsets are source positions. Nobody is ever a member of it."""
    return f"kafka-migration.{migration_id}"


def transactional_id(migration_id: str, target_topic: str, partition: int) -> str:
    """Stable across restarts, lanes and runs of the DAG: whoever copies a partition fences all who did before."""
    return f"kafka-migration.{migration_id}.copy.{target_topic}-{partition}"


@dataclass(frozen=True)
class Position:
    """What a commit says.

    :param source_offset: next source offset to copy.
    :param target_offset: one past our last committed record; the target's log end at the beginning before there is one.
    :param start: first source offset that is copied, and the target's log end when the copy began.
    :param page: name of the newest page of the map; empty: there is none.
    :param runs: runs since that page, ascending.
    :param producer_ids: under which these runs were written.
    :param committed_at: seconds since 1970.
    :param source_epoch: leader epoch of the last source batch that was read by then; -1: not known.
    """

    source_offset: int
    target_offset: int
    start: Run
    page: str = ""
    runs: tuple[Run, ...] = ()
    producer_ids: tuple[int, ...] = ()
    committed_at: int = 0
    source_epoch: int = -1

    def extended(
        self, runs: Iterable[Run], source_offset: int, producer_id: int, committed_at: int, source_epoch: int = -1
    ) -> Position:
        """The position after a transaction that has appended these runs.

        An epoch that is not known (-1) replaces one that is: it would not be that of this position.
        """
        added = tuple(runs)
        last = added[-1] if added else None
        ids = {*self.producer_ids, producer_id} if added else set(self.producer_ids)
        return replace(
            self,
            source_offset=source_offset,
            target_offset=self.target_offset if last is None else last.target_start + (last.count or 0),
            runs=self.runs + added,
            producer_ids=tuple(sorted(ids)),
            committed_at=committed_at,
            source_epoch=source_epoch,
        )

    def paged(self, page: str) -> Position:
        """The same position, its runs written to a page."""
        return replace(self, page=page, runs=(), producer_ids=())

    def metadata(self) -> str:
        """The position as metadata of the committed offset; ASCII."""
        document: dict[str, object] = {
            "v": _VERSION,
            "start": [self.start.source_start, self.start.target_start],
            "target": self.target_offset,
            "at": self.committed_at,
        }
        if self.page:
            document["page"] = self.page
        if self.producer_ids:
            document["ids"] = list(self.producer_ids)
        if self.source_epoch >= 0:
            document["epoch"] = self.source_epoch
        if self.runs:
            document["runs"] = base64.b64encode(_packed(flat_runs(self.runs))).decode()
        return json.dumps(document, separators=(",", ":"), sort_keys=True)


def read_position(source_offset: int, metadata: str) -> Position:
    """The position of a committed offset.

    :raises OffsetMapInvalid: metadata that this package has not written.
    """
    try:
        document = json.loads(metadata)
        if document["v"] != _VERSION:
            raise ValueError(f"version {document['v']}")
        source_start, target_start = document["start"]
        runs = tuple(runs_of(_unpacked(base64.b64decode(document.get("runs", ""), validate=True))))
        return Position(
            source_offset=source_offset,
            target_offset=int(document["target"]),
            start=Run(int(source_start), int(target_start)),
            page=str(document.get("page", "")),
            runs=runs,
            producer_ids=tuple(int(value) for value in document.get("ids", ())),
            committed_at=int(document.get("at", 0)),
            source_epoch=int(document.get("epoch", -1)),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise OffsetMapInvalid(
            f"the metadata of a committed position cannot be read: {error}",
            next_step="find who else commits offsets to the migration's group on the target; the migration has to "
            "begin anew with another migration_id",
        ) from None


def _packed(numbers: Sequence[int]) -> bytes:
    """Unsigned varints. Gaps and lengths are never negative."""
    data = bytearray()
    for number in numbers:
        value = number
        while value > 127:
            data.append(value & 127 | 128)
            value >>= 7
        data.append(value)
    return bytes(data)


def _unpacked(data: bytes) -> list[int]:
    numbers: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    if shift:
        raise ValueError("the runs are cut")
    return numbers
