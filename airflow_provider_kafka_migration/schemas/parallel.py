"""Requests to a registry in parallel, under a limit: each item's error is data."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError, PhaseOver

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
_R = TypeVar("_R")

#: These end a run: they concern the migration and not one item.
ENDS_RUN = (*HANDS_OFF, PhaseOver)


def collect(
    call: Callable[[_V], _R], items: Mapping[_K, _V], parallel: int
) -> tuple[dict[_K, _R], dict[_K, MigrationError]]:
    """Call a function for each item; return the results and the errors by key.

    :raises ClaimLost: or another error that ends the run; calls that have begun are finished first.
    """
    done: dict[_K, _R] = {}
    failed: dict[_K, MigrationError] = {}
    if not items:
        return done, failed
    with ThreadPoolExecutor(max_workers=max(1, min(parallel, len(items))), thread_name_prefix="schemas") as pool:
        futures = {key: pool.submit(call, value) for key, value in items.items()}
        try:
            for key, future in futures.items():
                try:
                    done[key] = future.result()
                except ENDS_RUN:
                    raise
                except MigrationError as error:
                    failed[key] = error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done, failed


def in_order(
    items: Sequence[_K],
    waits: Mapping[_K, Collection[_K]],
    call: Callable[[_K], _R],
    *,
    parallel: int,
    may_start: Callable[[_K], bool],
    ended: Callable[[_K, _R | MigrationError], None],
) -> None:
    """Call a function for each item, each after those that it waits for have ended, well or not.

    :param items: in an order in which one thread could do them.
    :param waits: what is not among the items does not count.
    :param may_start: called in this thread when nothing is left to wait for; False skips the item.
    :param ended: called in this thread with the result or the error.
    :raises ClaimLost: or another error that ends the run; calls that have begun are finished first.
    """
    queue = _Queue(items, waits)
    running: dict[Future[_R], _K] = {}
    with ThreadPoolExecutor(max(1, parallel), thread_name_prefix="schemas") as pool:
        try:
            while queue.ready or running:
                # No more than can run: a queue would go on after the claim is lost, and would not keep the order.
                while queue.ready and len(running) < max(1, parallel):
                    item = queue.next()
                    if may_start(item):
                        running[pool.submit(call, item)] = item
                    else:
                        queue.release(item)
                finished, _ = wait(running, return_when=FIRST_COMPLETED) if running else (set(), set())
                for future in finished:
                    item = running.pop(future)
                    outcome: _R | MigrationError = _outcome(future)
                    ended(item, outcome)
                    queue.release(item)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Queue(Generic[_K]):
    """The items that wait for nothing; the next one is the earliest of the given order."""

    def __init__(self, items: Sequence[_K], waits: Mapping[_K, Collection[_K]]) -> None:
        chosen = set(items)
        self._left = {item: chosen.intersection(waits.get(item, ())) for item in items}
        self._users: dict[_K, list[_K]] = {}
        for item in items:
            for other in self._left[item]:
                self._users.setdefault(other, []).append(item)
        self._items = items
        self._place = {item: place for place, item in enumerate(items)}
        #: places of items; a heap
        self.ready = [place for place, item in enumerate(items) if not self._left[item]]

    def next(self) -> _K:
        """Take the next item."""
        return self._items[heapq.heappop(self.ready)]

    def release(self, item: _K) -> None:
        """Note that an item has ended."""
        for user in self._users.get(item, ()):
            self._left[user].discard(item)
            if not self._left[user]:
                heapq.heappush(self.ready, self._place[user])


def _outcome(future: Future[_R]) -> _R | MigrationError:
    try:
        return future.result()
    except ENDS_RUN:
        raise
    except MigrationError as error:
        return error
