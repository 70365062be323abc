"""Ids that copiers find in parts without a subject: the next pass decodes their records, and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, avro, world
from sampled_logs import Logs, framed

from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome
from airflow_provider_kafka_migration.documents.schemas import DecodedPart, SchemaIdMap, TopicIds
from airflow_provider_kafka_migration.errors import Transient, Where
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.schema_ids.id_map import LiveIdMap, parse_undecided, undecided_key
from airflow_provider_kafka_migration.schemas.check import with_decided_parts
from airflow_provider_kafka_migration.schemas.payloads.judge import undecided_ids


@pytest.fixture
def at(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, ids="translate") as found:
        found.source.seed("t.R", avro("R", "x"), id=7)
        found.source.seed("t.S", avro("S", "x", "y"), id=8)
        yield found


def ask(at: World, id_: int, offset: int = 0, topic: str = "clicks", partition: int = 0) -> None:
    """As a copier does."""
    ids = LiveIdMap(at.context.journal_store, "m1", "m1/schemas/id-map.json")
    ids.want_decided(".", "value", id_, Where(topic=topic, partition=partition, offset=offset))


def logs(at: World, **topics: Any) -> Logs:
    found = Logs(**topics)
    at.context.source.wire = found  # type: ignore[assignment]
    return found


def test_records_that_decode_decide_for_their_id(at: World) -> None:
    logs(at, clicks=[(None, framed(7))] * 3 + [(None, framed(8))] * 3)
    ask(at, 7)
    ask(at, 8, offset=3)
    assert at.synchronize("tail").failed == []
    # Id 8 has two fields, and its payloads have one.
    assert at.id_map().decided == [("clicks", "value", 7, True), ("clicks", "value", 8, False)]
    ids = LiveIdMap(at.context.journal_store, "m1", "m1/schemas/id-map.json")
    assert [ids.carries("clicks", "value", id_) for id_ in (7, 8, 9)] == [True, False, None]


def test_one_record_among_many_does_not_decide(at: World) -> None:
    logs(at, clicks=[(None, framed(7, b"no record"))] + [(None, framed(7))] * 39)
    ask(at, 7)
    at.synchronize("tail")
    assert at.id_map().decided == [("clicks", "value", 7, True)]


def test_a_decision_never_changes(at: World) -> None:
    found = logs(at, clicks=[(None, framed(7))])
    ask(at, 7)
    at.synchronize("tail")
    found.put("clicks", 0, [(None, framed(7, b"no record"))])
    at.synchronize("tail")
    assert at.id_map().decided == [("clicks", "value", 7, True)]


def test_a_settled_pair_of_registries_is_asked_all_the_same(at: World) -> None:
    """A pass that finds nothing new in the registries ends early; not if a copier waits."""
    logs(at, clicks=[(None, framed(7))])
    with at.pair() as pair:
        at.synchronize("schemas", pair)
        at.synchronize("tail", pair)
        ask(at, 7)
        at.synchronize("tail", pair)
    assert at.id_map().decided == [("clicks", "value", 7, True)]


def test_a_record_that_is_no_longer_there_holds_nobody(at: World) -> None:
    """Retention was faster than whoever had to mend a schema. Nothing waits, and the next record asks for itself."""
    found = logs(at, clicks=[(None, framed(8))])
    ask(at, 7)
    assert at.synchronize("tail").failed == []
    assert at.id_map().decided == []
    found.put("clicks", 3, [(None, framed(8))] * 5 + [(None, framed(7))])
    ask(at, 7, offset=5, partition=3)
    assert at.synchronize("final").failed == []
    assert at.id_map().decided == [("clicks", "value", 7, True)]


def test_all_records_that_were_asked_for_decide_together(at: World) -> None:
    found = logs(at, clicks=[(None, framed(7, b"no record"))])
    found.put("clicks", 1, [(None, framed(7))] * 19)
    ask(at, 7)
    ask(at, 7, partition=1)
    at.synchronize("tail")
    assert at.id_map().decided == [("clicks", "value", 7, True)]


def test_what_nothing_waits_for_yet_is_asked_for_once(at: World) -> None:
    ids = LiveIdMap(at.context.journal_store, "m1", "m1/schemas/id-map.json")
    for offset, is_ahead in [(0, False), (4, True), (9, True), (4, False)]:
        where = Where(topic="clicks", partition=0, offset=offset)
        ids.want_decided(".", "value", 7, where, is_ahead=is_ahead)
    asked = undecided_ids(at.context.record, None)
    assert [item.offset for item in asked] == [0, 4]


def test_a_partition_waits_and_says_why(at: World) -> None:
    logs(at, clicks=[(None, framed(8))]).broken_fetch = Transient("no leader")
    ask(at, 7)
    (failure,) = at.synchronize("tail").failed
    assert failure.schema_id == "id 7 of context . in values of clicks"
    assert "no leader" in failure.error["what"]
    assert at.id_map().decided == []
    assert (steps.SCHEMAS_FAILED, failure.schema_id) in at.steps()


def test_what_is_asked_survives_odd_names() -> None:
    key = undecided_key("m1", "a.b", "key", 7, 2, 30)
    assert key == "m1/schemas/undecided/a%2Eb/key/7/2-30"
    assert parse_undecided(b"no json") is None
    row = {"topic": "a", "part": "neither", "id": 1, "context": ".", "partition": 0, "offset": 0}
    assert parse_undecided(json.dumps(row).encode()) is None
    assert parse_undecided(json.dumps({**row, "part": "key"}).encode()) == ("a", "key", 1, ".", 0, 0)


def test_the_evidence_names_what_was_decided_without_a_subject() -> None:
    topic = TopicIds(topic="clicks", parts="value", by_decoding={"value": DecodedPart(carries=True, ids=[7])})
    document = SchemaIdMap(
        migration_id="m", id_mode="translate", decided=[("clicks", "value", 8, False), ("clicks", "value", 9, True)]
    )
    result = with_decided_parts(CheckResult(name="schemas", outcome=Outcome.PASSED, summary=""), [topic], document)
    assert result.outcome == Outcome.WARNING
    assert result.findings == [
        "schema ids in clicks: no subject is named clicks-value: 0 of 0 sampled values decode with the schema of their "
        "id, so they carry ids",
        "schema ids in clicks: values that begin with id 8 do not decode with its schema, and were copied as they are",
    ]


def test_an_earlier_map_keeps_its_digest() -> None:
    before = SchemaIdMap(migration_id="m", id_mode="keep")
    assert b"decided" not in before.canonical()
    assert SchemaIdMap.parse(before.canonical()) == before
