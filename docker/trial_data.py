"""Buckets, topics and records for a trial with docker-compose.yaml. Running it again adds nothing."""

from __future__ import annotations

import json
import sys

import boto3
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SOURCE = {"bootstrap.servers": "source:9092"}
TOPICS = {"trial-orders": 4, "trial-payments": 2}
RECORDS = 20_000
GROUP = "trial-billing"


def make_buckets() -> None:
    """One plain bucket, one with Object Lock."""
    s3 = boto3.client(
        "s3",
        endpoint_url="http://s3:5000",
        aws_access_key_id="trial",
        aws_secret_access_key="trial-secret",  # noqa: S106 - for trials, as in docker-compose.yaml
        region_name="us-east-1",
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
    wanted = [NewTopic(name, count, 1) for name, count in TOPICS.items() if name not in known]
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
        commit_group()
    print("the trial is prepared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
