"""Whole slices of a lane between two simulated clusters: what consumers see afterwards is what the source has."""

from __future__ import annotations

import pytest
from simulated.topics import KINDS, fill_source
from simulated.worlds import Worlds


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
