"""A copier is killed at each of its steps in turn; the next one continues from nothing but the target's log."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from simulated.cluster import SimulatedCluster
from simulated.copying import SimulatedCopy
from simulated.kill import KillSwitch
from simulated.topics import KINDS, fill_source
from simulated.worlds import Worlds

from airflow_provider_kafka_migration.documents.plan import Verdict

# These runs take the same lines hundreds of times; other tests show that the lines are taken.
pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

#: More steps than any of these copies takes.
_ENOUGH = 400


def _every_step(
    worlds: Worlds,
    fill: Callable[[SimulatedCluster], object],
    check: Callable[[SimulatedCopy], None],
    *,
    stride: int = 1,
    **options: Any,
) -> int:
    """Kill before and after every ``stride``-th step of a slice in turn, finish the copy, and check it.

    :returns: the number of steps that a whole slice takes.
    """
    for at in range(1, _ENOUGH, stride):
        for after in (False, True):
            copy = worlds.copy(fill, **options)
            switch = KillSwitch(copy.source, copy.target, at=at, after=after)
            switch.run(copy.slice)
            if not switch.is_dead:
                assert at > 10, "the copy has hardly any steps"
                return switch.steps
            print(f"killed {'after' if after else 'before'} step {at}")
            results = copy.slice()
            problems = {topic: result for topic, result in results.items() if not result.done or result.error}
            assert not problems
            check(copy)
            worlds.close()
    raise AssertionError(f"more than {_ENOUGH} steps")


def _all_equal(copy: SimulatedCopy) -> None:
    for topic in copy.source.topics:
        copy.assert_equal(topic)


def _all_mapped(copy: SimulatedCopy) -> None:
    for topic in copy.source.topics:
        copy.assert_in_order(topic)
        copy.assert_mapped(topic)


def test_kills_while_all_kinds_are_copied(worlds: Worlds) -> None:
    _every_step(worlds, lambda source: fill_source(source, 5), _all_equal)


@pytest.mark.parametrize("seed", range(3))
def test_one_copier_after_the_other_is_killed(worlds: Worlds, seed: int) -> None:
    """Each copier comes a few steps further, while the source gets more records."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    copy = worlds.copy(lambda source: fill_source(source, seed))
    for _ in range(12):
        switch = KillSwitch(copy.source, copy.target, at=chance.randint(1, 40), after=chance.random() < 0.5)
        switch.run(copy.slice)
        topic = chance.choice(KINDS)
        copy.source.transaction(topic, [b"aborted"] * chance.randint(1, 3), commit=False)
        copy.source.produce(topic, [b"%d" % number for number in range(chance.randint(1, 9))])
    assert all(result.done for result in copy.slice().values())
    _all_equal(copy)


def test_kills_while_holes_are_left_out(worlds: Worlds) -> None:
    fields = {"max_markers": 3}

    _every_step(worlds, lambda source: fill_source(source, 6), _all_mapped, stride=3, job_fields=fields)


def test_kills_while_holes_are_filled_by_empty_transactions(worlds: Worlds) -> None:
    def fill(source: SimulatedCluster) -> None:
        fill_source(source, 7, kinds=("plain", "transactional"))

    _every_step(worlds, fill, _all_equal, stride=9, target={"writes_markers": False})


@pytest.mark.parametrize("version", [1, 2])
def test_kills_while_transactions_are_written(worlds: Worlds, version: int) -> None:
    verdicts = dict.fromkeys(KINDS, Verdict.TRANSACTIONAL)
    target = {"transaction_version": version}
    _every_step(worlds, lambda source: fill_source(source, 8), _all_mapped, stride=4, verdicts=verdicts, target=target)


def test_kills_while_segments_are_archived(worlds: Worlds) -> None:
    _every_step(worlds, lambda source: fill_source(source, 9), _all_equal, stride=3, via="s3")
