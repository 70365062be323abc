"""The state of MirrorMaker 2: byte examples that Kafka's own classes wrote and read (4.1.1)."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.adoption.alignment import OffsetSync
from airflow_provider_kafka_migration.adoption.mirror_maker import (
    last_positions,
    of_last_topic,
    offset_syncs_topics,
    offsets_topic,
    parse_sync,
    target_name,
)
from airflow_provider_kafka_migration.kafka.batches.api import Record
from airflow_provider_kafka_migration.mirror_maker.source_offsets import SourcePosition, parse_position
from airflow_provider_kafka_migration.spec import MirrorMaker2Section


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record(0, 0, key, value, [])


KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"orders"}]'


def test_a_source_position() -> None:
    got = parse_position(record(KEY, b'{"offset":4999}'), "A")
    assert got == SourcePosition("MirrorSourceConnector", ("orders", 0), 4999)
    assert got.encode("A") == (KEY, b'{"offset":4999}'), "Connect looks it up by these bytes"
    assert got._replace(offset=None).encode("A") == (KEY, None)


def test_the_order_of_json_keys_and_the_connectors_name_are_free() -> None:
    key = b'[ "my-mirror", {"topic": "orders", "cluster": "A", "partition": 3} ]'
    assert parse_position(record(key, b'{"offset": 7}'), "A") == SourcePosition("my-mirror", ("orders", 3), 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY.replace(b'"A"', b'"B"'), b'{"offset":1}'),
        (b'["MirrorCheckpointConnector",{"group":"g","partition":0,"topic":"orders"}]', b'{"offset":0}'),
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]', b'{"offset":0}'),
        (b'["file-source",{"filename":"x"}]', b'{"position":1}'),
        (b"no json", b"{}"),
        (None, b"{}"),
        (b'["a",{"cluster":"A","partition":"x","topic":"t"}]', b'{"offset":1}'),
        (KEY, b'{"position":1}'),
        (KEY, b"no json"),
    ],
)
def test_what_is_not_a_source_position(key: bytes | None, value: bytes) -> None:
    assert parse_position(record(key, value), "A") is None


def test_the_last_record_of_a_key_counts_and_a_tombstone_removes_it() -> None:
    other = KEY.replace(b'"orders"', b'"payments"')
    log = [(KEY, b'{"offset":5}'), (other, b'{"offset":9}'), (KEY, b'{"offset":8}'), (other, None)]
    found = [parse_position(record(key, value), "A") for key, value in log]
    assert last_positions(item for item in found if item) == {("orders", 0): 8}


def test_of_two_connectors_the_lower_position_counts() -> None:
    positions = [SourcePosition("one", ("t", 0), 50), SourcePosition("two", ("t", 0), 20)]
    assert last_positions(positions) == {("t", 0): 20}


def test_an_offset_sync() -> None:
    key = bytes.fromhex("00066f7264657273" + "00000000")
    value = bytes.fromhex("0000000000001387" + "000000000000138e")
    assert parse_sync(record(key, value)) == (("orders", 0), OffsetSync(4999, 5006))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("00066f7264657273" + "00000000", None),
        ("00066f7264657273" + "00000000", "0000"),
        ("00066f72", "00" * 16),
        ("", "00" * 16),
        ("0002ffff" + "00000000", "00" * 16),
        ("ffff" + "00000000", "00" * 16),
    ],
)
def test_what_is_not_an_offset_sync(key: str, value: str | None) -> None:
    assert parse_sync(record(bytes.fromhex(key), None if value is None else bytes.fromhex(value))) is None


def test_offset_syncs_of_a_deleted_topic_do_not_count() -> None:
    """The target topic was created again: its offsets began at 0 again, and the log of syncs keeps the old ones."""
    former = [OffsetSync(0, 0), OffsetSync(50, 40), OffsetSync(9_000, 8_000)]
    present = [OffsetSync(0, 0), OffsetSync(30, 20), OffsetSync(20, 60)]
    assert of_last_topic([*former, *present]) == tuple(present)
    assert of_last_topic(former) == tuple(former)
    assert of_last_topic([]) == ()


@pytest.mark.parametrize(
    ("section", "target", "offsets", "syncs"),
    [
        ({}, "A.orders", "mm2-offsets.A.internal", ["mm2-offset-syncs.B.internal"]),
        (
            {"separator": "_"},
            "A_orders",
            "mm2-offsets.A.internal",
            ["mm2-offset-syncs_B_internal", "mm2-offset-syncs.B.internal"],
        ),
        (
            {"replication_policy": "identity", "offset_syncs_location": "target"},
            "orders",
            "mm2-offsets.A.internal",
            ["mm2-offset-syncs.A.internal"],
        ),
        (
            {"replication_policy": "prefix", "prefix": "dr-", "offsets_topic": "connect-offsets"},
            "dr-orders",
            "connect-offsets",
            ["mm2-offset-syncs.B.internal"],
        ),
        ({"offset_syncs_topic": "own"}, "A.orders", "mm2-offsets.A.internal", ["own"]),
    ],
)
def test_names(section: dict[str, str], target: str, offsets: str, syncs: list[str]) -> None:
    mirror = MirrorMaker2Section.model_validate({"source_alias": "A", "target_alias": "B", **section})
    assert (target_name(mirror, "orders"), offsets_topic(mirror)) == (target, offsets)
    assert offset_syncs_topics(mirror) == syncs
