"""State topics of MirrorMaker 2 on simulated clusters: what a producer would write there, and what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_kafka_migration.kafka.batches.api import RawBatch, Record, encode_batch, records
from airflow_provider_kafka_migration.mirror_maker import heartbeats, state_writer
from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint, Heartbeat, OffsetSync
from airflow_provider_kafka_migration.mirror_maker.state_writer import StateMessage
from phase_world.cluster import ClusterState
from phase_world.logs import NOW_MS


class SimSender:
    """See ``StateSender``: it writes through the simulated wire, so that calls can fail and processes can die there."""

    def __init__(self, _config: Any, wire: Any, **_: Any) -> None:
        self._wire = wire

    def send(self, items: Sequence[StateMessage]) -> None:
        """See ``StateSender.send``."""
        for item in items:
            record = Record(0, NOW_MS, item.key, item.value, [])
            self._wire.produce([((item.topic, max(item.partition, 0)), encode_batch([record]))])


def use_sim_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let state topics of simulated clusters be written."""
    for module in (heartbeats, state_writer):
        monkeypatch.setattr(module, "StateSender", SimSender)


def written(state: ClusterState, topic: str) -> list[tuple[bytes, bytes | None]]:
    """Return keys and values of all records of a topic, in order; nothing if it does not exist."""
    found = state.topics.get(topic)
    batches = [] if found is None else [RawBatch(memoryview(data)) for data in found.logs[0].batches]
    return [(bytes(item.key or b""), item.value) for batch in batches for item in records(batch)]


def beats(state: ClusterState, topic: str) -> list[Heartbeat]:
    """Return all heartbeats of a topic."""
    return [Heartbeat.decode(key, value or b"") for key, value in written(state, topic)]


def checkpoints(state: ClusterState, topic: str) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Return the newest offsets (upstream, downstream) by group, target topic and partition."""
    found = [Checkpoint.decode(key, value or b"") for key, value in written(state, topic)]
    return {(item.group, item.topic, item.partition): (item.upstream_offset, item.downstream_offset) for item in found}


def syncs(state: ClusterState, topic: str) -> list[OffsetSync]:
    """Return all offset syncs of a topic."""
    return [OffsetSync.decode(key, value or b"") for key, value in written(state, topic)]
