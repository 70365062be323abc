"""Whether a proven range still says something of the target's log: another epoch, a lower end, an emptied log."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from content_support import compare, content_range, copy_of, log_of

from airflow_provider_kafka_migration.documents.proven import ProvenRange
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches import RawBatch, encode_batch, records
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.replication.proven import Anchor, grown, still_holds

KEY = ("orders", 0)


class FakeTarget:
    """One partition of a target: batches of one record, each with the epoch of the leader that took it."""

    def __init__(self, epochs: list[int], *, start_offset: int = 0, topic_id: str = "id 1") -> None:
        self.config = SimpleNamespace(name="target")
        self.start_offset = start_offset
        self.epochs = epochs
        self.topic_id = topic_id

    def metadata(self, topics: list[str]) -> dict[str, Any]:
        return {topic: SimpleNamespace(topic_id=self.topic_id, error_code=0) for topic in topics}

    def retrying(self, attempt: Callable[[], Any]) -> Any:
        return attempt()

    def list_offsets(self, keys: list[TopicPartition], which: str) -> dict[TopicPartition, int]:
        return {key: self.start_offset if which == "earliest" else len(self.epochs) for key in keys}

    def fetch_once(self, ranges: list[FetchRange], **_: Any) -> list[FetchedPartition]:
        offset, end = ranges[0].offset, len(self.epochs)
        if not self.start_offset <= offset <= end:
            code = error_codes.OFFSET_OUT_OF_RANGE
            return [FetchedPartition(*KEY, code, end, end, self.start_offset, [], memoryview(b""), -1)]
        data = self._batch(offset) if offset < end else b""
        return [FetchedPartition(*KEY, 0, end, end, self.start_offset, [], memoryview(data), -1)]

    def _batch(self, offset: int) -> bytes:
        source = log_of(1, 1, first=offset).stored[0]
        assert isinstance(source, RawBatch)
        data = bytearray(encode_batch(list(records(source)), 0))
        data[12:16] = self.epochs[offset].to_bytes(4, "big")
        return bytes(data)


def proven(wire: FakeTarget, until: int) -> ProvenRange:
    log = log_of(until)
    piece = content_range(0, until)
    anchor = Anchor.below(cast(Wire, wire), KEY, until)
    return grown(None, piece, compare(log, copy_of(log), piece), anchor, (0, 0))


def holds(wire: FakeTarget, found: ProvenRange) -> bool:
    return still_holds(cast(Wire, wire), found, *KEY)


def test_a_range_holds_as_long_as_the_log_is_the_same() -> None:
    wire = FakeTarget([3] * 60)
    found = proven(wire, 25)
    assert (found.anchor_offset, found.anchor_epoch) == (24, 3)
    assert holds(wire, found)
    assert holds(FakeTarget([3] * 25 + [4] * 60), found), "another leader has gone on behind it"
    assert holds(FakeTarget([3] * 60, start_offset=40), found), "what was deleted there was proven before"


@pytest.mark.parametrize(
    "now",
    [
        FakeTarget([3] * 20 + [4] * 40),  # an unclean election: what was lost is written again under a newer epoch
        FakeTarget([3] * 24),  # the log ends below the anchor
        FakeTarget([3] * 10),  # far below it: the broker answers OFFSET_OUT_OF_RANGE
        FakeTarget([]),  # emptied
        FakeTarget([3] * 60, topic_id="id 2"),  # deleted and made again: its epochs begin at 0 again
        FakeTarget([3] * 60, start_offset=40, topic_id="id 2"),
        FakeTarget([3] * 60, topic_id=""),  # the topic is gone, or the broker does not tell
    ],
    ids=[
        "another epoch",
        "ends at the anchor",
        "ends below the anchor",
        "emptied",
        "new topic",
        "new topic, cut",
        "no id",
    ],
)
def test_a_range_does_not_hold_for_a_log_that_was_cut_or_written_again(now: FakeTarget) -> None:
    assert not holds(now, proven(FakeTarget([3] * 60), 25))


def test_a_range_without_an_anchor_holds_only_if_it_is_empty() -> None:
    wire = FakeTarget([3] * 60)
    empty = grown(
        None, content_range(0, 0), compare(log_of(1), log_of(1), content_range(0, 0)), Anchor(topic_id="id 1"), (0, 0)
    )
    assert holds(wire, empty.model_copy(update={"target_end_offset": 0})) is True
    assert holds(wire, proven(wire, 25).model_copy(update={"anchor_offset": -1})) is False


def test_a_range_of_an_older_release_names_no_topic_and_is_not_trusted() -> None:
    wire = FakeTarget([3] * 60)
    assert holds(wire, proven(wire, 25).model_copy(update={"target_topic_id": ""})) is False
    nameless = FakeTarget([3] * 60, topic_id="")
    assert holds(nameless, proven(nameless, 25)) is False, "no id is not the same id"
