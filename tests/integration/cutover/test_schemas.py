"""Schemas move with their records: translated ids, a new schema in the tail, an unknown id, the last schemas, proof."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from cutover_support import CUTOVER_STEPS, Lab

from airflow_provider_kafka_migration.errors import ValidationFailed
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch
from airflow_provider_kafka_migration.phases import evidence, groups, validate
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness import compare
from harness.fake_registry import FakeRegistry, Reply, Request
from harness.processes import wait_for

pytestmark = pytest.mark.integration

SECRET = "registry-s3cret"
FIRST, SECOND, LAST = 1, 20, 30
NOBODY = 4711


def schema(*fields: str) -> dict[str, Any]:
    rows = [{"name": name, "type": "string", "default": ""} for name in fields]
    return {"type": "record", "name": "Order", "fields": rows}


SCHEMAS = {FIRST: schema("number"), SECOND: schema("number", "note"), LAST: schema("number", "note", "more")}


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeRegistry, FakeRegistry]]:
    """The registries of both sides; the target has a schema of somebody else, so its ids differ."""
    import base64

    login = f"migration:{SECRET}"
    basic = f"Basic {base64.b64encode(login.encode()).decode()}"
    with FakeRegistry(authorization=basic) as source, FakeRegistry(authorization=basic) as target:
        for name, registry in (("REGISTRY_S", source), ("REGISTRY_T", target)):
            monkeypatch.setenv(name, json.dumps({"url": registry.url, "basic.auth.user.info": login}))
        target.seed("of-others", '"long"', id=7)
        yield source, target


def record(schema_id: int, **fields: str) -> bytes:
    """A record as a serializer writes it."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMAS[schema_id]), fields)
    return struct.pack(">bI", 0, schema_id) + body.getvalue()


def write(lab: Lab, topic: str, partition: int, *values: bytes) -> None:
    producer = Producer(lab.source_cluster.client_config())
    for value in values:
        producer.produce(topic, value, b"key", partition)
    assert producer.flush(60) == 0


def ends(context: PhaseContext, topic: str) -> dict[int, int]:
    found = context.target.wire.list_offsets([(topic, 0), (topic, 1)], "log_end")
    return {partition: end for (_, partition), end in found.items()}


def id_map(context: PhaseContext) -> dict[int, int]:
    document = context.record.schema_id_map()
    return {} if document is None else {source: target for _, source, target in document.ids}


def decoded(lab: Lab, topic: str, registry: FakeRegistry) -> list[str]:
    """What a consumer on the target reads, through the target's registry alone."""
    client = SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": f"migration:{SECRET}"})
    read = AvroDeserializer(client)
    place = SerializationContext(topic, MessageField.VALUE)
    records = compare.read_records(lab.target_cluster.client_config(), topic)
    values = [item.value for found in records.values() for item in found if item.value and item.value[:1] == b"\0"]
    known = {struct.pack(">bI", 0, NOBODY)}
    return sorted(read(value, place)["number"] for value in values if value[:5] not in known)  # type: ignore[index]


def test_records_decode_on_the_target(
    make_lab: Callable[..., Lab],
    unique_name: Callable[[str], str],
    registries: tuple[FakeRegistry, FakeRegistry],
) -> None:
    source, target = registries
    topic = unique_name("orders")
    subject = f"{topic}-value"
    source.seed(subject, json.dumps(SCHEMAS[FIRST]), id=FIRST)
    lab = make_lab(
        [topic],
        schemas={
            "source": "env:REGISTRY_S",
            "target": "env:REGISTRY_T",
            "ids": "translate",
            "interval": "1s",
            "include": [subject],
            "source_registry": "readonly",
        },
    )
    lab.source_cluster.create_topics({topic: (2, {})})
    for partition in (0, 1):
        write(lab, topic, partition, *(record(FIRST, number=f"{partition}{count}") for count in range(20)))
    context = lab.begin()
    assert ends(context, topic) == {0: 20, 1: 20}
    lab.start_tail()

    # A schema that appears while the tail runs.
    source.seed(subject, json.dumps(SCHEMAS[SECOND]), id=SECOND, version=2)
    write(lab, topic, 0, record(SECOND, number="new", note="n"))
    wait_for("the new schema's record on the target", lambda: ends(context, topic)[0] == 21, 120)

    # An id that nobody knows, while the registry gives no answer that counts: only its partition waits.
    def proxy(request: Request) -> Reply | None:
        page = Reply(404, b"<html>not found</html>", {"Content-Type": "text/html"})
        return page if str(NOBODY) in request.path else None

    source.before = proxy
    write(lab, topic, 1, struct.pack(">bI", 0, NOBODY) + b"not avro")
    write(lab, topic, 0, record(FIRST, number="goes on"))
    wait_for("the other partition", lambda: ends(context, topic)[0] == 22, 120)
    watch = HealthWatch()
    wait_for("the held partition is named", lambda: "SCHEMA_ID_UNKNOWN" in watch.check(context.record).text, 120)
    assert ends(context, topic)[1] == 20
    source.before = None
    wait_for("the record passes as it is", lambda: ends(context, topic)[1] == 21, 120)

    # The last schema comes after the freeze; the final drain takes it.
    lab.enter_cutover(context)
    for number, step in enumerate(CUTOVER_STEPS):
        if step is groups.commit_groups:
            lab.join_tail()
        step(context)
        if not number:
            assert source.state()["modes"] == {"": "READONLY"}
            source.seed(subject, json.dumps(SCHEMAS[LAST]), id=LAST, version=3)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    known = id_map(context)
    assert set(known) == {FIRST, SECOND, LAST}
    assert not set(known) & set(known.values()), "the target numbers its schemas by itself"
    numbers = [f"{partition}{count}" for partition in (0, 1) for count in range(20)]
    assert decoded(lab, topic, target) == sorted([*numbers, "new", "goes on"])
    lab.approve(context, "client_switch")
    context.journal.transition(State.VALIDATING, "lab")

    # Somebody changes a schema on the target under its id.
    right = target.state()["subjects"][subject][2]["text"]
    target.seed(subject, json.dumps(schema("number", "other")), id=known[SECOND], version=2)
    with pytest.raises(ValidationFailed, match=f"{subject} version 2") as caught:
        validate.run(context)
    assert list(caught.value.details["checks"]) == ["schemas"]
    target.seed(subject, right, id=known[SECOND], version=2)

    assert validate.run(context).details["checks"]["schemas"]["outcome"] == "WARNING"
    found = context.record.schema_check()
    assert found is not None
    assert (found.differences, found.ids_unknown_to_source, found.unread) == ([], [NOBODY], {})
    assert (found.ids_in_records, found.ids_resolved) == (3, 2)
    evidence.run(context)
    data = context.evidence_store.get(context.key("evidence.json"))
    assert data is not None
    bundle = verify_evidence(data).bundle
    assert bundle.schemas["final"]["id_map"]["ids"] == 3
    modes = [entry["step"] for entry in bundle.schemas["settings"] if entry["registry"] == "source"]
    assert modes == [steps.SCHEMA_MODE_SETTING], "READONLY stays behind READY"
    for path in lab.folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
