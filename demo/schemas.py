"""Records with schemas: what is in the source's registry, who writes with it, and who reads with the target's.

The producers and consumers are confluent-kafka's own serializers and deserializers, which know nothing of a migration.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.schema_registry import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from demo.access import GROUP_PREFIX, PREFIX
from harness.compare import bounds
from harness.registries import ApicurioRegistry, SeedVersion

INVOICES = f"{PREFIX}invoices"
SHIPMENTS = f"{PREFIX}shipments"
#: Topic -> partitions.
TOPICS = {INVOICES: 2, SHIPMENTS: 2}

_SUBJECT_OF = {"subject.name.strategy": topic_subject_name_strategy}
_NO_REGISTRATION = {**_SUBJECT_OF, "auto.register.schemas": False}
_READ_SECONDS = 60.0
#: The header of the record that marks the end of each source partition (docs/cutover.md). Consumers skip such records.
SENTINEL = "x-kbe-cutover-sentinel"
_BATCH = 500

# -- schemas ---

_ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "city", "type": "string"}],
}


def _text(schema: Any) -> str:
    """A schema as text; compact, as Apicurio's variant of Confluent's API returns those without references."""
    return json.dumps(schema, separators=(",", ":"))


_ADDRESS_SUBJECT = f"{PREFIX}Address"
_ADDRESS_REFERENCE = ("shop.Address", _ADDRESS_SUBJECT, 2)


def _invoice(*more: Mapping[str, Any]) -> str:
    fields = [
        {"name": "number", "type": "long"},
        {"name": "amount", "type": "double"},
        {"name": "to", "type": "shop.Address"},
        *more,
    ]
    return _text({"type": "record", "name": "Invoice", "namespace": "shop", "fields": fields})


INVOICE = _invoice()
_WITHDRAWN_INVOICE = _invoice({"name": "discount", "type": "double", "default": 0.0})
#: Registered while the migration follows the source.
CHANGED_INVOICE = _invoice({"name": "currency", "type": "string", "default": "EUR"})

_Field = descriptor_pb2.FieldDescriptorProto


def _file(
    name: str, imports: Sequence[str], messages: Mapping[str, Sequence[tuple[str, int, str]]]
) -> descriptor_pb2.FileDescriptorProto:
    """A Protobuf file of package ``shop``: message -> fields as (name, type, message type)."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=imports)
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, (field_name, kind, type_name) in enumerate(fields, 1):
            added = described.field.add(name=field_name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
            if type_name:
                added.type_name = type_name
    return file


_ADDRESS_FILE = _file("address.proto", [], {"Address": [("city", _Field.TYPE_STRING, "")]})
_SHIPMENT_FILE = _file(
    "shipment.proto",
    ["address.proto"],
    {
        "Parcel": [("grams", _Field.TYPE_INT64, "")],
        # Not the first message of its file, so that records carry a list of message indexes behind the id.
        "Shipment": [
            ("number", _Field.TYPE_INT64, ""),
            ("to", _Field.TYPE_MESSAGE, ".shop.Address"),
            ("parcel", _Field.TYPE_MESSAGE, ".shop.Parcel"),
        ],
    },
)


def _message_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in (_ADDRESS_FILE, _SHIPMENT_FILE):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Shipment"))


Shipment = _message_class()


def _base64(file: descriptor_pb2.FileDescriptorProto) -> str:
    """A Protobuf schema as confluent-kafka's serializer registers it."""
    return base64.b64encode(file.SerializeToString()).decode("ascii")


def seeds() -> list[SeedVersion]:
    """What the source's registry holds at the start: gaps between ids and versions, deleted versions, references."""
    address = (_ADDRESS_REFERENCE,)
    return [
        SeedVersion(_ADDRESS_SUBJECT, 2, 1003, _text(_ADDRESS)),
        SeedVersion(f"{INVOICES}-key", 1, 1001, '"long"'),
        SeedVersion(f"{INVOICES}-value", 3, 1010, INVOICE, references=address),
        SeedVersion(f"{INVOICES}-value", 5, 1013, _WITHDRAWN_INVOICE, references=address, deleted=True),
        SeedVersion("address.proto", 1, 1020, _base64(_ADDRESS_FILE), "PROTOBUF"),
        SeedVersion(
            f"{SHIPMENTS}-value",
            2,
            1017,
            _base64(_SHIPMENT_FILE),
            "PROTOBUF",
            (("address.proto", "address.proto", 1),),
        ),
        SeedVersion(f"{PREFIX}returns-value", 1, 1030, '"string"', deleted=True),
    ]


# -- serializers ---


class RegistryClient(SchemaRegistryClient):
    """confluent-kafka's client for Apicurio.

    Apicurio returns a Protobuf schema as it was registered, which is in base64 here. Asked for that format, it fails
    on schemas that are in it already, so this client does not ask.
    """

    def get_schema(
        self,
        schema_id: int,
        subject_name: str | None = None,
        fmt: str | None = None,
        reference_format: str | None = None,
    ) -> Schema:
        return super().get_schema(schema_id, subject_name, None, reference_format)

    def get_version(
        self,
        subject_name: str,
        version: int | Literal["latest"] = "latest",
        deleted: bool = False,
        fmt: str | None = None,
    ) -> RegisteredSchema:
        return super().get_version(subject_name, version, deleted, None)


def expected(topic: str, number: int, *, changed: bool) -> dict[str, Any]:
    """The content of the n-th record, as a consumer reads it."""
    city = f"city {number % 97}"
    if topic == SHIPMENTS:
        return {"number": number, "to": city, "grams": 100 + number % 900}
    invoice = {"number": number, "amount": number / 4, "to": {"city": city}}
    return {**invoice, "currency": "CHF"} if changed else invoice


class Writer:
    """Serializes records with the schemas of a registry; the schema of the invoices can change meanwhile."""

    def __init__(self, url: str) -> None:
        self._client = RegistryClient({"url": url})
        self._lock = threading.Lock()
        self._key = self._avro(1001)
        self._invoice = self._avro(1010)
        self._shipment = ProtobufSerializer(Shipment, self._client, {**_NO_REGISTRATION, "use.schema.id": 1017})
        self._changed = False
        #: The id of the changed schema; 0: it has not changed.
        self.changed_id = 0

    def _avro(self, schema_id: int) -> AvroSerializer:
        return AvroSerializer(self._client, conf={**_NO_REGISTRATION, "use.schema.id": schema_id})

    def change(self) -> int:
        """Register a new version of the invoices' schema, use it from the next record on; return its id."""
        name, subject, version = _ADDRESS_REFERENCE
        schema = Schema(CHANGED_INVOICE, "AVRO", references=[SchemaReference(name, subject, version)])
        changed_id = int(self._client.register_schema(f"{INVOICES}-value", schema))
        serializer = self._avro(changed_id)
        with self._lock:
            self._invoice, self._changed, self.changed_id = serializer, True, changed_id
        return changed_id

    def record(self, topic: str, number: int) -> tuple[bytes, bytes]:
        """Key and value of the n-th record."""
        with self._lock:
            invoice, changed = self._invoice, self._changed
        content = expected(topic, number, changed=changed)
        key = _in(topic, MessageField.KEY)
        value = _in(topic, MessageField.VALUE)
        if topic == INVOICES:
            return _bytes(self._key(number, key)), _bytes(invoice(content, value))
        message = Shipment(number=number, to={"city": content["to"]}, parcel={"grams": content["grams"]})
        return b"%d" % number, _bytes(self._shipment(message, value))


def _in(topic: str, part: str) -> SerializationContext:
    return SerializationContext(topic, part)


def _bytes(value: bytes | None) -> bytes:
    assert value is not None
    return value


def fill(config: Mapping[str, Any], writer: Writer, records: int) -> None:
    """Write this many records to each topic.

    :raises KafkaException: a record was refused.
    """
    refused: list[KafkaError] = []
    producer = Producer({"log_level": 2, "enable.idempotence": True, "linger.ms": 20, **config})
    for topic, partitions in TOPICS.items():
        for number in range(records):
            key, value = writer.record(topic, number)
            producer.produce(
                topic,
                value,
                key,
                number % partitions,
                headers=[("n", b"%d" % number)],
                on_delivery=lambda error, _: refused.append(error) if error is not None else None,
            )
            producer.poll(0)
    if producer.flush(_READ_SECONDS) or refused:
        raise KafkaException(refused[0] if refused else KafkaError(KafkaError._TIMED_OUT))


# -- reading on the target ---


@dataclass
class Decoded:
    """What consumers of the target could read.

    :param records: records whose key and value were decoded and have the content that was written.
    :param changed: those of them that were written with the changed schema.
    :param sentinels: records that mark the end of a partition, which have no schema.
    """

    records: int = 0
    changed: int = 0
    sentinels: int = 0
    problems: list[str] = field(default_factory=list)


class Reader:
    """Deserializes records with the schemas of a registry alone."""

    def __init__(self, url: str) -> None:
        client = RegistryClient({"url": url})
        self._avro = AvroDeserializer(client, conf=_SUBJECT_OF)
        self._shipment = ProtobufDeserializer(Shipment, dict(_SUBJECT_OF), client)

    def read(self, topic: str, key: bytes, value: bytes) -> tuple[int, dict[str, Any]]:
        """The number in the key, and the content of the value.

        :raises Exception: whatever the deserializers raise.
        """
        if topic == INVOICES:
            number = self._avro(key, _in(topic, MessageField.KEY))
            content = self._avro(value, _in(topic, MessageField.VALUE))
            assert isinstance(number, int)
            assert isinstance(content, dict)
            return number, content
        message: Any = self._shipment(value, _in(topic, MessageField.VALUE))
        return int(key), {"number": message.number, "to": message.to.city, "grams": message.parcel.grams}


def decode(config: Mapping[str, Any], url: str) -> Decoded:
    """Read all records of the topics from a cluster, and decode them with a registry."""
    reader, decoded = Reader(url), Decoded()
    for message in _messages(config, list(TOPICS)):
        topic = str(message.topic())
        if any(name == SENTINEL for name, _ in message.headers() or ()):
            decoded.sentinels += 1
            continue
        try:
            number, content = reader.read(topic, message.key() or b"", message.value() or b"")
        except Exception as error:
            decoded.problems.append(f"{topic}: a record cannot be decoded: {type(error).__name__}: {error}")
            continue
        changed = "currency" in content
        if content != expected(topic, number, changed=changed):
            decoded.problems.append(f"{topic}: record {number} has another content: {content}")
            continue
        decoded.records += 1
        decoded.changed += changed
    return decoded


def _messages(config: Mapping[str, Any], topics: Sequence[str]) -> Iterator[Message]:
    """All records up to the present ends.

    :raises KafkaException: the cluster refuses, or its end is not reached in time.
    """
    places = bounds(config, topics)
    ends = {
        (topic, number): content.end
        for topic, numbers in places.items()
        for number, content in numbers.items()
        if content.log_start < content.end
    }
    consumer = Consumer(
        {
            "log_level": 2,
            # It commits nothing, but librdkafka asks for the group's coordinator, so the name must be permitted.
            "group.id": f"{GROUP_PREFIX}decoder",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **config,
        }
    )
    try:
        consumer.assign(
            [TopicPartition(topic, number, places[topic][number].log_start) for topic, number in sorted(ends)]
        )
        waiting = set(ends)
        while waiting:
            messages = consumer.consume(_BATCH, _READ_SECONDS)
            if not messages:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            for message in messages:
                place = (str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(place)
                elif not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()


# -- comparison of the registries ---


@dataclass(frozen=True)
class Stored:
    """A version in a registry."""

    id: int
    deleted: bool
    text: str
    references: tuple[tuple[str, str, str], ...]


def stored(registry: ApicurioRegistry) -> dict[tuple[str, int], Stored]:
    """(subject, version) -> what the registry holds, soft-deleted ones included, by Apicurio's own API."""
    found = {}
    for subject in _names(registry):
        path = f"{registry.own_url}/groups/default/artifacts/{urllib.parse.quote(subject, safe='')}/versions"
        listed = registry.request("GET", f"{path}?limit={_BATCH}")
        assert listed["count"] == len(listed["versions"]), f"{subject} has more than {_BATCH} versions"
        for version in listed["versions"]:
            content = int(version["contentId"])
            address = f"{registry.own_url}/ids/contentIds/{content}"
            with urllib.request.urlopen(address, timeout=_READ_SECONDS) as reply:
                text = reply.read().decode()
            references = sorted(
                (each["name"], each["artifactId"], each["version"])
                for each in registry.request("GET", f"{address}/references")
            )
            key = (subject, int(version["version"]))
            found[key] = Stored(content, version["state"] == "DISABLED", text, tuple(references))
    return found


def _names(registry: ApicurioRegistry) -> list[str]:
    listed = registry.request("GET", f"{registry.own_url}/search/artifacts?limit={_BATCH}")
    assert listed["count"] == len(listed["artifacts"]), f"there are more than {_BATCH} subjects"
    return sorted(artifact["artifactId"] for artifact in listed["artifacts"])


@dataclass
class SchemasVerdict:
    """The part ``schemas`` of the summary. ``problems`` is empty when all schemas have moved."""

    subjects: int
    versions: int
    ids_kept: bool
    decoded_records: int
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The part ``schemas`` of ``summary.json``."""
        return {
            "subjects": self.subjects,
            "versions": self.versions,
            "ids_kept": self.ids_kept,
            "decoded_records": self.decoded_records,
        }


def judge_schemas(
    source: Mapping[tuple[str, int], Stored],
    target: Mapping[tuple[str, int], Stored],
    decoded: Decoded,
    records: int,
) -> SchemasVerdict:
    """Compare what both registries hold, and what could be decoded with what the source has.

    :param records: number of records in the topics of the source, with one sentinel for each partition.
    """
    problems = [
        f"{subject} version {version}: missing on the target"
        for subject, version in sorted(source.keys() - target.keys())
    ]
    problems += [
        f"{subject} version {version}: only on the target" for subject, version in sorted(target.keys() - source.keys())
    ]
    both = sorted(source.keys() & target.keys())
    for subject, version in both:
        ours, theirs = source[subject, version], target[subject, version]
        if (ours.text, ours.references, ours.deleted) != (theirs.text, theirs.references, theirs.deleted):
            problems.append(f"{subject} version {version}: differs between the registries")
    kept = all(source[key].id == target[key].id for key in both) and source.keys() == target.keys()
    if not kept:
        problems.append("the target's registry has other ids")
    problems += decoded.problems[:10]
    if decoded.sentinels != (partitions := sum(TOPICS.values())):
        problems.append(f"{decoded.sentinels} sentinels in {partitions} partitions with schemas")
    if decoded.records != records - decoded.sentinels:
        problems.append(
            f"{decoded.records} of {records - decoded.sentinels} records with schemas were decoded on the target"
        )
    if not decoded.changed:
        problems.append("no record of the changed schema has arrived")
    return SchemasVerdict(len({subject for subject, _ in target}), len(target), kept, decoded.records, problems)
