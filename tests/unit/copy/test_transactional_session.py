"""One partition's transactions without a broker: what they hold, when they end, what their commits say."""

from __future__ import annotations

import pytest
from content_support import batch, record

from airflow_provider_kafka_migration.copy import transactions as sessions
from airflow_provider_kafka_migration.copy.append_errors import OutOfOrder, TooLarge, append_error, coordinator_error
from airflow_provider_kafka_migration.copy.layout import place_in_transactions
from airflow_provider_kafka_migration.copy.partition import (
    PartitionCopy,
    ResumePoint,
    kept_bytes,
)
from airflow_provider_kafka_migration.copy.transactions import ProducerSession, Stage
from airflow_provider_kafka_migration.copy.transform import Append, BatchTransformer, Hole
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BrokerBusy, RecordTooLarge, SliceExpired, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import encode_batch, read_batches
from airflow_provider_kafka_migration.kafka.transactions import Producer
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.transactional import Position


def _append(first: int, count: int) -> Append:
    return Append(batch([record(first + number) for number in range(count)]), first, count)


def _session(source_offset: int = 0, **fields: object) -> ProducerSession:
    spec = CopyPartition(
        topic="t",
        target_topic="t",
        partition=0,
        source_start_offset=0,
        target_start_offset=0,
        verdict=Verdict.TRANSACTIONAL,
    )
    copy = PartitionCopy(spec, 0)
    copy.resume(ResumePoint(source_offset, 100, 0, 0))
    position = Position(source_offset, 100, OffsetRange(0, 100), committed_at=1)
    return ProducerSession(copy, copy.incarnation, Producer("id", 7, 3), position, 1, **fields)  # type: ignore[arg-type]


def test_a_transaction_holds_runs_and_counts_only_when_it_has_ended() -> None:
    session = _session()
    copy = session.copy
    place_in_transactions(copy, [_append(0, 3), _append(3, 2), Hole(5, 4), _append(9, 1), Hole(10, 2)])
    session.open(0.0, is_second=False, holds_records=True)
    assert session.stage is Stage.ADDING
    assert [session.take_append()[1] for _ in range(3)] == [0, 3, 5]
    session.confirm(100)
    session.confirm(103)
    session.confirm(110)  # somebody else wrote between
    assert session.runs == [OffsetRange(0, 100, 5), OffsetRange(9, 110, 1)]
    assert (copy.figures.records, copy.write.confirmed_source_offset, copy.write.is_idle) == (0, 0, False)
    position = session.plan_commit(50)
    assert (position.source_offset, position.target_offset, position.producer_ids) == (12, 111, (7,))
    session.next_position = position
    session.committed(-1, -1, 1.0)
    assert (copy.figures.records, copy.write.confirmed_source_offset, copy.write.is_idle) == (6, 12, True)
    assert session.producer == Producer("id", 7, 3)
    place_in_transactions(copy, [_append(12, 1)])
    session.open(2.0, is_second=False, holds_records=True)
    assert session.take_append()[1] == 6  # version 1: sequences go on


def test_a_packed_batch_is_as_many_runs_as_it_has_stretches() -> None:
    session = _session()
    holey = encode_batch([record(offset) for offset in (0, 1, 5, 7)])
    place_in_transactions(session.copy, list(BatchTransformer(0, packs=True).decide(read_batches(holey)[0])))
    place_in_transactions(session.copy, [_append(8, 2)])
    session.open(0.0, is_second=False, holds_records=True)
    assert [session.take_append()[1] for _ in range(2)] == [0, 4]
    session.confirm(100)
    session.confirm(104)
    assert session.runs == [OffsetRange(0, 100, 2), OffsetRange(5, 102, 1), OffsetRange(7, 103, 3)]
    assert session.plan_commit(50).source_offset == 10


def test_the_second_version_begins_anew_after_each_end() -> None:
    session = _session()
    place_in_transactions(session.copy, [_append(0, 3), _append(3, 1)])
    session.open(0.0, is_second=True, holds_records=True)
    assert session.stage is Stage.OPEN
    assert session.may_append()
    step, sequence = session.take_append()
    assert sequence == 0
    assert not session.may_append()  # the first one adds the partition, and goes alone
    session.take_back(step)  # the transaction before is still being ended
    assert session.copy.write.pending_bytes == sum(kept_bytes(item) for item in (step, _append(3, 1)))
    assert session.take_append() == (step, 0)
    session.confirm(100)
    assert session.may_append()
    assert session.take_append()[1] == 3
    session.confirm(103)
    session.next_position = session.plan_commit(9)
    session.committed(8, 0, 1.0)
    assert (session.producer, session.sequence) == (Producer("id", 8, 0), 0)


def test_offsets_without_records_are_owed_until_they_are_committed() -> None:
    session = _session()
    place_in_transactions(session.copy, [Hole(0, 30)])
    assert session.owes_position
    assert not session.copy.write.is_idle
    session.open(0.0, is_second=False, holds_records=False)
    assert (session.stage, session.is_closing) == (Stage.OPEN, True)
    session.next_position = session.plan_commit(9)
    assert (session.next_position.source_offset, session.next_position.target_offset) == (30, 100)
    session.committed(-1, -1, 1.0)
    assert session.copy.write.is_idle


def test_the_first_commit_has_the_beginning_alone() -> None:
    session = _session(is_begun=False)
    place_in_transactions(session.copy, [Hole(0, 30), _append(30, 2)])
    session.open(0.0, is_second=True, holds_records=False)
    position = session.plan_commit(9)
    assert (position.source_offset, position.runs) == (0, ())


def test_when_a_transaction_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session()
    place_in_transactions(session.copy, [_append(0, 3), _append(3, 3)])
    session.open(0.0, is_second=False, holds_records=True)
    session.take_append()
    idle, longest = sessions.IDLE_TRANSACTION_SECONDS, sessions.MAX_TRANSACTION_SECONDS
    assert not session.wants_end(idle, hurry=True)  # something waits
    assert session.wants_end(longest, hurry=False)
    session.take_append()
    assert not session.wants_end(idle / 2, hurry=False)
    assert session.wants_end(idle / 2, hurry=True)
    assert session.wants_end(idle, hurry=False)
    monkeypatch.setattr(sessions, "MAX_TRANSACTION_BYTES", 10)
    assert session.wants_end(0.0, hurry=False)


def test_errors_say_whether_somebody_else_is_there() -> None:
    where = Where()
    for code in (error_codes.INVALID_PRODUCER_EPOCH, error_codes.PRODUCER_FENCED):
        assert isinstance(coordinator_error(code, "x", where, "y"), SliceExpired)
    for code in (error_codes.NOT_COORDINATOR, error_codes.INVALID_TXN_STATE, error_codes.TRANSACTION_ABORTABLE):
        assert isinstance(coordinator_error(code, "x", where, "y"), BrokerBusy)
    session = _session()
    place_in_transactions(session.copy, [_append(0, 3), _append(3, 1)])
    session.open(0.0, is_second=False, holds_records=True)
    session.take_append()
    assert isinstance(append_error(session.copy, session.oldest, error_codes.MESSAGE_TOO_LARGE, ""), TooLarge)
    assert isinstance(
        append_error(session.copy, session.oldest, error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, ""), OutOfOrder
    )
    session.take_append()
    session.confirm(100)
    assert isinstance(append_error(session.copy, session.oldest, error_codes.MESSAGE_TOO_LARGE, ""), RecordTooLarge)
