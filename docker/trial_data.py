"""Buckets, a schema, topics and records for a trial with docker-compose.yaml. Running it again adds nothing.

Addresses come from the same variables as those of the migration.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import urllib.error
import urllib.request

import boto3
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SOURCE = json.loads(os.environ["KAFKA_SOURCE"])
OBJECT_STORE = json.loads(os.environ["OBJECT_STORE"])
REGISTRY = json.loads(os.environ["REGISTRY_SOURCE"])["url"]
TOPICS = {"trial-orders": 4, "trial-payments": 2}
#: A topic whose values are Avro, with the id of their schema in front.
EVENTS = "trial-events"
SCHEMA = {"type": "record", "name": "Event", "fields": [{"name": "number", "type": "long"}]}
RECORDS = 20_000
GROUP = "trial-billing"


def make_buckets() -> None:
    """One plain bucket, one with Object Lock."""
    s3 = boto3.client(
        "s3",
        **OBJECT_STORE,
    )
    for bucket, lock in (("migrations", False), ("evidence", True)):
        try:
            s3.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=lock)
        except ClientError as error:
            if "AlreadyOwnedByYou" not in str(error):
                raise


def make_topics() -> bool:
    """Whether the topics are new."""
    admin = AdminClient(SOURCE)
    known = admin.list_topics(timeout=30).topics
    wanted = [NewTopic(name, count, 1) for name, count in {**TOPICS, EVENTS: 1}.items() if name not in known]
    for future in (admin.create_topics(wanted) if wanted else {}).values():
        future.result()
    return bool(wanted)


def write_records() -> None:
    """Keyed JSON records, the same number to each topic."""
    producer = Producer({**SOURCE, "compression.type": "lz4", "enable.idempotence": True, "linger.ms": 20})
    for number in range(RECORDS):
        for topic in TOPICS:
            value = json.dumps({"number": number, "text": "x" * (number % 400)})
            while True:
                try:
                    producer.produce(topic, key=f"key-{number % 997}", value=value)
                    break
                except BufferError:
                    producer.poll(0.5)
    if producer.flush(60):
        raise KafkaException("some records were not acknowledged")


def register_schema() -> int:
    """Register the schema of the events, and return its id. The registry may still be starting."""
    body = json.dumps({"schema": json.dumps(SCHEMA)}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    address = f"{REGISTRY}/subjects/{EVENTS}-value/versions"
    request = urllib.request.Request(address, body, headers)  # noqa: S310 - that of the Compose file
    for attempt in range(60):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return int(json.load(answer)["id"])
        except urllib.error.HTTPError:
            raise
        except OSError:
            if attempt == 59:
                raise
            time.sleep(2)
    raise AssertionError


def write_events(schema_id: int) -> None:
    """Records with the registry's five bytes in front: zero, and the id of the schema."""
    producer = Producer({**SOURCE, "enable.idempotence": True})
    for number in range(1_000):
        # Avro's long: zigzag, then seven bits a byte.
        left, text = number << 1, bytearray()
        while left > 0x7F:
            text.append(left & 0x7F | 0x80)
            left >>= 7
        producer.produce(
            EVENTS, key=f"key-{number % 97}", value=struct.pack(">bi", 0, schema_id) + bytes([*text, left])
        )
    if producer.flush(60):
        raise KafkaException("some records were not acknowledged")


def commit_group() -> None:
    """A group in the middle of each partition."""
    consumer = Consumer({**SOURCE, "group.id": GROUP})
    offsets = []
    for topic, count in TOPICS.items():
        for partition in range(count):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            offsets.append(TopicPartition(topic, partition, end // 2))
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def main() -> int:
    """Make what is missing."""
    make_buckets()
    if make_topics():
        write_records()
        write_events(register_schema())
        commit_group()
    print("the trial is prepared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
