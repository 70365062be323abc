"""UNKNOWN_SERVER_ERROR: brokers answer so while they start. A read is repeated; a change, or an append, is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerRefused, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire

WHERE = Where(cluster="source", topic="orders", partition=0)


def test_a_read_is_transient_and_a_change_is_not() -> None:
    fault = error_codes.UNKNOWN_SERVER_ERROR
    read = error_codes.error_of_read(fault, "records cannot be read", where=WHERE)
    assert isinstance(read, BrokerBusy)
    assert read.what == "records cannot be read: UNKNOWN_SERVER_ERROR (-1), an exception inside the broker"
    assert isinstance(error_codes.error_for(fault, "the broker refused the append", where=WHERE), BrokerRefused)


def test_newer_codes_have_their_names() -> None:
    """Those of Kafka 4.4 that kafka-python calls UNKNOWN."""
    names = [error_codes.bare_name(code) for code in range(129)] + [error_codes.bare_name(n) for n in range(128, 137)]
    assert "UNKNOWN" not in names
    assert error_codes.name(133) == "SHARE_SESSION_LIMIT_REACHED (133)"


@pytest.mark.parametrize("code", [3, 29, 42, 58])
def test_other_codes_of_a_read_are_as_ever(code: int) -> None:
    read = error_codes.error_of_read(code, "it cannot be read", where=WHERE, needs="Read")
    other = error_codes.error_for(code, "it cannot be read", where=WHERE, needs="Read")
    assert (type(read), read.as_dict()) == (type(other), other.as_dict())


def test_offsets_are_asked_again_and_records_not_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(ClientConfig.from_librdkafka({"bootstrap.servers": "127.0.0.1:1"}, "source"), patience_seconds=30.0)
    key = ("orders", 0)
    codes = [-1, -1, 0]

    def listed(broker_id: int, keys: Any, *_: Any) -> Any:
        item = SimpleNamespace(partition_index=0, error_code=codes.pop(0), offset=41)
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[item])])

    monkeypatch.setattr(wire, "leaders", lambda keys, **_: dict.fromkeys(keys, 1))
    monkeypatch.setattr(wire, "_list_offsets", listed)
    wire._has_answered = True
    assert wire.list_offsets([key], "log_end") == {key: 41}
    with pytest.raises(BrokerRefused, match="UNKNOWN_SERVER_ERROR"):
        wire._raise_for([(key, -1)], "records cannot be deleted", needs="Delete")
    # One that does not pass by itself is named before those that do.
    with pytest.raises(BrokerRefused, match="INVALID_REQUEST"):
        wire._raise_for([(key, -1), (("orders", 1), 42)], "offsets cannot be listed", needs="Describe", reads=True)
