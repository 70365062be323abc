"""What the present leader answers about the epoch that was read last, and what is made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from airflow_provider_kafka_migration.copy.source import ReadUpTo, check_not_truncated
from airflow_provider_kafka_migration.errors import BrokerBusy, MigrationError, SourceTruncated, Transient
from airflow_provider_kafka_migration.kafka.wire import Wire

KEY = ("orders", 0)
READ = ReadUpTo(source_offset=100, epoch=5)


class FakeWire:
    """One leader of epoch 7 that gives one answer."""

    def __init__(self, *answers: tuple[int, int, int], offered: tuple[int, int] = (0, 4)) -> None:
        self.config = SimpleNamespace(name="source")
        self.answers = answers
        self.asked: list[Any] = []
        self.forgotten: list[tuple[str, int]] = []
        self._connection = SimpleNamespace(
            api_versions={OffsetForLeaderEpochRequest.API_KEY: offered} if offered else {}, call=self._call
        )

    def metadata(self, _topics: object) -> dict[str, Any]:
        return {KEY[0]: SimpleNamespace(leaders={KEY[1]: 1}, error_code=0)}

    def connection(self, _broker_id: int) -> Any:
        return self._connection

    def leader_epochs(self, keys: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(keys, 7)

    def forget_leaders(self, keys: Any) -> None:
        self.forgotten += keys

    def _call(self, request: Any, *, version: int) -> Any:
        self.asked.append((request, version))
        partitions = [
            SimpleNamespace(partition=KEY[1], error_code=code, leader_epoch=epoch, end_offset=end)
            for code, epoch, end in self.answers
        ]
        return SimpleNamespace(topics=[SimpleNamespace(topic=KEY[0], partitions=partitions)])


def check(wire: FakeWire) -> MigrationError | None:
    return check_not_truncated(cast(Wire, wire), {KEY: READ})[KEY]


@pytest.mark.parametrize("end", [100, 101, 5000])
def test_a_leader_whose_epoch_ends_at_or_beyond_our_position_has_lost_nothing(end: int) -> None:
    wire = FakeWire((0, 5, end))
    assert check(wire) is None
    ((request, version),) = wire.asked
    (partition,) = request.topics[0].partitions
    assert (partition.current_leader_epoch, partition.leader_epoch, request.replica_id, version) == (7, 5, -1, 3)


@pytest.mark.parametrize(
    ("epoch", "end", "lost_from"),
    [
        (5, 50, 50),
        # Nothing of our epoch is left. The end lies beyond our position, but an older leader wrote what is there.
        (4, 500, -1),
        (4, 70, 70),
        # The leader does not know the epoch at all.
        (-1, -1, -1),
    ],
)
def test_a_leader_without_what_was_read_is_named(epoch: int, end: int, lost_from: int) -> None:
    error = check(FakeWire((0, epoch, end)))
    assert isinstance(error, SourceTruncated)
    assert error.details == {"truncated_offset": lost_from, "source_offset": 100, "read_epoch": 5, "leader_epoch": 7}
    assert error.where.offset == 100


def test_a_stale_leader_and_a_missing_answer_are_asked_again() -> None:
    fenced = FakeWire((74, -1, -1))
    assert isinstance(check(fenced), Transient)
    assert fenced.forgotten == [KEY]
    assert isinstance(check(FakeWire()), BrokerBusy)


def test_a_broker_that_does_not_know_the_request_is_not_asked() -> None:
    wire = FakeWire(offered=(0, 1))
    assert check(wire) is None
    assert not wire.asked
