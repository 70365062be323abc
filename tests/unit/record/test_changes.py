"""How long the requests of a change may take effect: never longer than whoever ends it waits for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.errors import BrokerUnreachable, RegistryUnreachable
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclsAdmin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.record import changes as module
from airflow_provider_kafka_migration.record.changes import SENDING_SECONDS, Changes, Standing
from airflow_provider_kafka_migration.registry.access import TIMEOUT_SECONDS, RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry

ACL = Acl("TOPIC", "orders", "LITERAL", "User:shop", "*", "WRITE", "DENY")
NOT_CONTROLLER = 41


class _Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Clock]:
    found = _Clock()
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", found)
        patch.setattr("time.sleep", found.sleep)
        yield found


class _Journal:
    """Takes every step."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []

    def step(self, name: str, _key: str | None, details: dict[str, Any], **_: Any) -> Any:
        self.taken.append((name, details))
        return SimpleNamespace(seq=len(self.taken), reason=name)

    def refresh(self) -> None:
        pass


def _changes(journal: _Journal) -> Changes:
    return Changes(cast(Any, journal), "key", lambda: Standing.GOES_ON, cast(Any, None))


class _BusyController:
    """Each of its answers asks for another try; notes when the requests arrived."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self.arrived: list[float] = []
        self.closed = False

    def call(self, request: Any, **_: Any) -> Any:
        self.arrived.append(self._clock())
        self._clock.sleep(0.5)
        results = [SimpleNamespace(error_code=NOT_CONTROLLER, error_message=None) for _ in request.creations]
        return SimpleNamespace(results=results)


def _admin(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> tuple[AclsAdmin, _BusyController]:
    controller = _BusyController(clock)
    wire = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": "b1:9092"}, name="source"))
    monkeypatch.setattr(wire, "connection", lambda _broker=None: controller)
    monkeypatch.setattr(wire, "metadata", lambda _topics: {})
    admin = AclsAdmin(wire, "source")
    admin._sleep = clock.sleep
    return admin, controller


def test_acls_are_sent_for_no_longer_than_the_intent_says(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retries of one operation take a minute by themselves."""
    admin, controller = _admin(clock, monkeypatch)
    journal = _Journal()
    begun = clock()
    making = _changes(journal).making("ACLs", stops.ACL_SECONDS, lambda: None, admin)
    with pytest.raises(BrokerUnreachable, match="not asked any more"), making:
        admin.create_acls([ACL])
    last = controller.arrived[-1] + admin.wire.timeout_seconds - begun
    assert SENDING_SECONDS < last <= journal.taken[0][1]["seconds"]
    # Nobody knows what the last one does: the intent stays open. The client is free again.
    assert [name for name, _ in journal.taken] == ["change_begun"]
    assert admin.send_until == math.inf


def test_other_changes_of_acls_keep_their_retries(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, controller = _admin(clock, monkeypatch)
    (error,) = admin.create_acls([ACL]).values()
    assert error is not None
    assert controller.arrived[-1] - controller.arrived[0] > SENDING_SECONDS


def _set_modes(registry: Registry) -> None:
    for number in range(100):
        registry.set_mode(f"subject-{number}", "READONLY")


@pytest.mark.parametrize("slow", ["one that asks for another try", "one that takes long"])
def test_modes_are_sent_for_no_longer_than_the_intent_says(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """A read-only source takes one request for each scope with a mode of its own."""
    registry = Registry(RegistryAccess.from_dict({"url": "http://registry:8081"}), "source")
    arrived: list[float] = []

    def send(*_: Any, **__: Any) -> Any:
        arrived.append(clock())
        clock.sleep(4.0)
        status = 503 if slow == "one that asks for another try" else 200
        answer = SimpleNamespace(status_code=status, headers={}, close=lambda: None)
        answer.iter_raw = lambda: iter([b'{"mode": "READONLY"}'])
        return answer

    monkeypatch.setattr(registry._rest.session, "send", send)
    journal = _Journal()
    begun = clock()
    seconds = module.SENDING_SECONDS + registry.timeout_seconds
    making = _changes(journal).making("modes", seconds, lambda: None, registry)
    with pytest.raises(RegistryUnreachable), making:
        _set_modes(registry)
    assert registry.timeout_seconds == TIMEOUT_SECONDS
    assert 1 < len(arrived) < 10
    assert arrived[-1] + registry.timeout_seconds - begun <= journal.taken[0][1]["seconds"]
    assert registry.send_until == math.inf
    registry.close()
