"""A machine that sleeps: the monotonic clock stands still, the deadlines of slices do not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.errors import SliceExpired, Where
from airflow_provider_kafka_migration.kafka import clock
from airflow_provider_kafka_migration.kafka import connection as broker_connection
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.lanes.slices import LeaseKeeper
from airflow_provider_kafka_migration.storage.local import LocalStore


class Machine:
    """Clocks of a machine that can be put to sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.awake = 1000.0
        self.asleep = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.awake)
        monkeypatch.setattr(time, "clock_gettime", lambda _clock: self.awake + self.asleep)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_time_asleep_counts_for_a_deadline(machine: Machine) -> None:
    machine.asleep = 5000.0  # before the slice: that is nobody's time
    deadline = clock.Deadline(machine.awake + 60)
    assert float(deadline) == 1060.0
    assert not clock.is_over(deadline)
    machine.asleep += 59
    assert not clock.is_over(deadline)
    machine.asleep += 1
    assert clock.is_over(deadline)
    # A plain number of the monotonic clock stands still with it.
    assert not clock.is_over(1060.0)
    machine.awake = 1060.0
    assert clock.is_over(1060.0)


def test_a_clock_that_goes_back_never_makes_a_deadline_later(machine: Machine) -> None:
    deadline = clock.Deadline(machine.awake + 60)
    machine.asleep = -30.0
    machine.awake = 1060.0
    assert clock.is_over(deadline)


def test_a_slice_is_over_after_a_sleep_and_its_connection_sends_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = LeaseKeeper(LocalStore(tmp_path), "m", "target", 0, 60.0).acquire()
    assert lease is not None
    connection = BrokerConnection.__new__(BrokerConnection)
    sent: list[bytes] = []
    closed: list[bool] = []
    connection.send_deadline = lease.deadline
    connection._out = broker_connection.deque([memoryview(b"an append")])
    monkeypatch.setattr(BrokerConnection, "_where", Where())
    connection._send_some = lambda: sent.append(b"") or 9  # type: ignore[method-assign, func-returns-value]
    connection.close = lambda: closed.append(True)  # type: ignore[method-assign]
    machine.asleep = 3600.0
    with pytest.raises(SliceExpired):
        connection.on_writable()
    assert (sent, closed) == ([], [True])


def test_the_clock_is_the_one_that_goes_on_during_suspend() -> None:
    assert getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) == clock._CLOCK
    assert abs(clock.suspended_seconds() - clock.suspended_seconds()) < 1.0
