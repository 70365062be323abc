"""Answers of brokers that contradict themselves, or that do not come from Apache Kafka, are named and never copied."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import apis
from simulated.cluster import SimulatedCluster
from simulated.log_handlers import LogHandlers
from simulated.partition_log import PartitionLog
from simulated.small import KEY, error_code, plain
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.copy import append
from airflow_provider_kafka_migration.copy.transform import BatchTransformer
from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import BatchMalformed
from airflow_provider_kafka_migration.kafka import produce, transactions
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, Record, encode_batch, read_batches
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire


def with_transactions(source: SimulatedCluster) -> None:
    source.create("t")
    source.produce("t", [b"a"] * 5)
    source.transaction("t", [b"committed"] * 3, commit=True)
    source.transaction("t", [b"aborted"] * 3, commit=False)
    source.produce("t", [b"b"] * 5)


def test_a_list_of_aborted_transactions_that_misses_one_is_found_out(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort marker follows records that were taken for committed."""
    copy = worlds.copy(with_transactions)
    monkeypatch.setattr(PartitionLog, "aborted_from", lambda self, offset: [])
    result = copy.slice()["t"]
    assert error_code(result) == "BATCH_MALFORMED"
    assert "did not list it as aborted" in str((result.error or {})["what"])


def test_transactions_in_order_are_copied(worlds: Worlds) -> None:
    copy = worlds.copy(with_transactions, job_fields={"segment_max_bytes": 400})
    assert copy.slice()["t"].done
    copy.assert_equal("t")


def log_of(*parts: tuple[int, bool | None]) -> list[AnyBatch]:
    """Batches of one producer from the given offsets on: a record (None), or a marker (whether it commits)."""
    log = PartitionLog()
    for offset, end in parts:
        while log.log_end < offset:
            log.put(encode_batch([Record(log.log_end, 1, None, b"x", [])], base_offset=log.log_end))
        if end is None:
            data = encode_batch(
                [Record(0, 1, None, b"x", [])], producer_id=9, producer_epoch=0, base_sequence=-1, transactional=True
            )
            log.append(data, transactional=True)
        else:
            log.write_marker(9, 0, commit=end)
    return read_batches(b"".join(log.batches))[0]


def decide(transformer: BatchTransformer, batches: list[AnyBatch]) -> None:
    list(transformer.decide(batches))


def test_the_end_of_a_transaction_may_come_in_another_chunk() -> None:
    batches = log_of((0, None), (1, False))
    transformer = BatchTransformer(0)
    decide(transformer, batches[:1])
    with pytest.raises(BatchMalformed, match="marker at offset 1 aborts a transaction of producer id 9"):
        decide(transformer, batches[1:])


def test_a_marker_that_may_be_missing_proves_nothing() -> None:
    """The commit marker may have been where offsets are missing now."""
    batches = log_of((0, None), (1, True), (2, False))
    transformer = BatchTransformer(0)
    decide(transformer, [batches[0], batches[2]])


def test_a_producer_id_that_kafka_does_not_give_is_named() -> None:
    batches = read_batches(encode_batch([Record(0, 1, None, b"x", [])], producer_id=-5, transactional=True))[0]
    with pytest.raises(BatchMalformed, match="producer id -5"):
        list(BatchTransformer(0).decide(batches, [(7, 0)]))


def test_a_broker_that_returns_what_is_not_committed_is_named(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = worlds.copy(lambda source: plain(source, 10))
    log = copy.source.log(KEY)
    record = encode_batch(
        [Record(0, 1, None, b"open", [])], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append(record, transactional=True)
    read = PartitionLog.read

    def everything(self: PartitionLog, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool) -> bytes:
        return read(self, offset, max_bytes, committed=False, at_least_one=at_least_one)

    monkeypatch.setattr(PartitionLog, "read", everything)
    result = copy.slice(copy.job("tail", until={"t": 11}))["t"]
    assert error_code(result) == "UNCOMMITTED_RECORDS"
    assert all(record.value != b"open" for record in copy.target.log(KEY).content().values())


def test_a_target_that_replaces_timestamps_is_named_with_the_first_answer(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = worlds.copy(lambda source: plain(source, 30, 5), job_fields={"segment_max_bytes": 400})
    decode = produce.decode

    def replaced(frame: memoryview, version: int) -> produce.Produced:
        answer = decode(frame, version)
        changed = [item._replace(log_append_time=1_800_000_000_000) for item in answer.partitions]
        return answer._replace(partitions=changed)

    monkeypatch.setattr(append.produce, "decode", replaced)
    result = copy.slice()["t"]
    assert error_code(result) == "TIMESTAMPS_REPLACED"
    assert result.records == 0


@pytest.mark.parametrize("marks", [None, ProvenanceSettings(header="h", source_cluster_id="A", target_cluster_id="B")])
def test_replaced_timestamps_are_not_committed_in_transactions(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, marks: ProvenanceSettings | None
) -> None:
    """In topics with the records of both clusters, the target's configs are its own."""
    copy = worlds.copy(
        lambda source: plain(source, 30, 5),
        verdicts={"t": Verdict.TRANSACTIONAL},
        job_fields={"provenance": marks} if marks else {},
    )
    answered = transactions.append_answer
    monkeypatch.setattr(
        transactions,
        "append_answer",
        lambda frame, version: answered(frame, version)._replace(log_append_time=1_800_000_000_000),
    )
    result = copy.slice()["t"]
    if marks:
        assert (result.error, result.records) == (None, 30)
        return
    assert error_code(result) == "TIMESTAMPS_REPLACED"
    assert result.records == 0
    monkeypatch.setattr(transactions, "append_answer", answered)
    assert copy.slice()["t"].error is None
    assert len(copy.target.log(KEY).content()) == 30


def test_a_batch_that_the_target_already_has_is_no_replaced_timestamp(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader answers for a repeated batch with the batch's own largest timestamp as its log append time."""
    copy = worlds.copy(lambda source: plain(source, 30, 5), job_fields={"segment_max_bytes": 400})
    on_leader = LogHandlers._append
    times: list[int] = []

    def after_another(self: LogHandlers, request: Any, key: TopicPartition, data: bytes) -> tuple[int, int]:
        on_leader(self, request, key, data)
        answer = on_leader(self, request, key, data)
        times.append(answer[1])
        return answer

    monkeypatch.setattr(LogHandlers, "_append", after_another)
    result = copy.slice()["t"]
    assert times
    assert min(times) >= 0
    assert result.error is None
    assert result.records == 30


def test_a_log_end_is_not_taken_from_a_broker_that_leads_no_more() -> None:
    """Any replica answers replica id -2; a former leader has an end of its own."""
    with SimulatedCluster(name="source", brokers=2) as cluster:
        cluster.create("t")
        cluster.produce("t", [b"x"] * 10)
        with Wire(ClientConfig.from_librdkafka(cluster.settings, "source")) as wire:
            assert wire.list_offsets([KEY], "log_end") == {KEY: 10}
            log = cluster.log(KEY)
            log.leader_epoch += 1
            refused = cluster.fault("act", apis.LIST_OFFSETS, times=10)
            assert wire.list_offsets([KEY], "log_end") == {KEY: 10}
            assert refused.hits > 1, "it was asked again, with the epoch of the present leader"
