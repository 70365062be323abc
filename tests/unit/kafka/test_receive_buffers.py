"""Receive buffers are used again, and never while somebody looks at them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.kafka.connection import SMALL_BYTES, ReceiveBuffers

MIB = 1024 * 1024


def address(view: memoryview) -> int:
    """The buffer behind a view, as a number."""
    return id(view.obj)


def test_a_buffer_comes_back_when_its_views_are_gone() -> None:
    pool = ReceiveBuffers()
    first = pool.take(3 * MIB)
    where = address(first)
    del first
    second = pool.take(2 * MIB + 5)
    assert address(second) == where
    assert len(second) == 2 * MIB + 5


def test_a_slice_keeps_the_buffer_from_being_used_again() -> None:
    pool = ReceiveBuffers()
    first = pool.take(MIB)
    where, part = address(first), first[10:20]
    part[:] = b"0123456789"
    del first
    second = pool.take(MIB)
    second[:] = bytes(MIB)
    assert address(second) != where
    assert bytes(part) == b"0123456789"


def test_small_answers_do_not_use_the_pool() -> None:
    pool = ReceiveBuffers()
    views = [pool.take(SMALL_BYTES) for _ in range(100)]
    assert pool.kept_bytes == 0
    assert {len(view) for view in views} == {SMALL_BYTES}


def test_free_buffers_make_room_for_a_larger_one() -> None:
    pool = ReceiveBuffers(pool_bytes=4 * MIB)
    del (small := [pool.take(MIB) for _ in range(4)])[:]
    assert small == []
    assert pool.kept_bytes == 4 * MIB
    large = pool.take(3 * MIB)
    assert pool.kept_bytes == 4 * MIB
    where = address(large)
    del large
    assert address(pool.take(3 * MIB)) == where


def test_what_does_not_fit_is_given_and_forgotten() -> None:
    pool = ReceiveBuffers(pool_bytes=2 * MIB)
    held = [pool.take(MIB + 1) for _ in range(5)]
    assert len({address(view) for view in held}) == 5
    assert pool.kept_bytes <= 2 * MIB


@given(st.lists(st.tuples(st.integers(1, 5 * MIB), st.booleans()), max_size=30))
def test_views_in_use_never_share_memory(steps: list[tuple[int, bool]]) -> None:
    pool = ReceiveBuffers(pool_bytes=8 * MIB)
    held: list[memoryview] = []
    for size, drop in steps:
        if drop and held:
            held.pop(0)
        view = pool.take(size)
        assert len(view) == size
        assert address(view) not in {address(other) for other in held}
        held.append(view)
        assert pool.kept_bytes <= 8 * MIB
