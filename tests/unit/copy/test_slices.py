"""Whole slices of a lane between two simulated clusters: what consumers see afterwards is what the source has."""

from __future__ import annotations

from typing import Any

import pytest
from simulated.topics import KINDS, fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.kafka.poller import SocketPoller


@pytest.mark.parametrize("seed", range(4))
def test_topics_of_each_kind_are_equal(worlds: Worlds, seed: int) -> None:
    print(f"seed {seed}")
    copy = worlds.copy(lambda source: fill_source(source, seed))
    results = copy.slice()
    assert set(results) == set(KINDS)
    for topic, result in results.items():
        assert (result.done, result.error, result.trouble, result.verdict) == (True, None, None, "equal"), topic
        assert result.total_records == result.records == len(copy.source.log((topic, 0)).content())
        copy.assert_equal(topic)


def test_a_second_slice_has_nothing_to_do(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: fill_source(source, 1))
    copy.slice()
    before = {topic: list(copy.target.log((topic, 0)).batches) for topic in KINDS}
    again = copy.slice()
    assert all(result.done and not result.records and not result.holes for result in again.values())
    assert before == {topic: copy.target.log((topic, 0)).batches for topic in KINDS}


@pytest.mark.parametrize("ends", ["done", "failed"])
def test_a_lane_waits_for_nothing_once_its_last_partition_has_ended(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    copy = worlds.copy(lambda source: source.create("t"))
    copy.source.produce("t", [b"one", b"two"])
    copy.slice()
    if ends == "failed":
        copy.source.log(("t", 0)).truncate(1)
        copy.source.produce("t", [b"another", b"more"])
    waits: list[float] = []
    wait = SocketPoller.wait

    def recorded(poller: SocketPoller, connections: Any, seconds: float, *others: Any) -> None:
        waits.append(seconds)
        wait(poller, connections, seconds, *others)

    monkeypatch.setattr(SocketPoller, "wait", recorded)
    result = copy.slice()["t"]
    assert (result.done, result.error is None) == (ends == "done", ends == "done")
    assert waits[-1] == 0.0


def test_the_second_slice_copies_what_came_meanwhile(worlds: Worlds) -> None:
    copy = worlds.copy(lambda source: fill_source(source, 2))
    copy.slice()
    for topic in KINDS:
        copy.source.transaction(topic, [b"aborted"], commit=False)
        copy.source.produce(topic, [b"later", None, b"latest"])
    results = copy.slice()
    assert {topic: (result.done, result.records) for topic, result in results.items()} == dict.fromkeys(
        KINDS, (True, 3)
    )
    for topic in KINDS:
        copy.assert_equal(topic)
