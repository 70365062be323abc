"""The process of :mod:`benchmarks.peers.confluent_loop`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.peers.base import note_idle_size

_MANY = 10_000


def _consumer(options: dict[str, Any]) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": options["source"],
            "group.id": f"{options['target_topic']}-loop",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": options["isolation"],
            "enable.partition.eof": True,
            # Larger queues than the default, as its own performance notes say.
            "queued.max.messages.kbytes": 131072,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(options["topic"], number, 0) for number in range(options["partitions"])])
    return consumer


def _producer(options: dict[str, Any]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": options["target"],
            "enable.idempotence": True,
            "compression.codec": "lz4",
            "batch.size": 65536,
            "linger.ms": options["linger_ms"],
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262144,
        }
    )


def copy(options: dict[str, Any]) -> None:
    """Copy until each partition's end was reached; a tail goes on."""
    consumer, producer = _consumer(options), _producer(options)
    note_idle_size(Path(options["folder"]))
    target, tail = options["target_topic"], options["tail"]
    left = set() if tail else {int(number) for number, end in options["until"].items() if end > 0}
    while tail or left:
        messages = consumer.consume(1, 0.1) if tail else consumer.consume(_MANY, 0.05)
        for message in messages:
            error = message.error()
            if error is None:
                _send(producer, target, message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif not error.retriable():
                raise KafkaException(error)
        producer.poll(0)
    producer.flush()
    consumer.close()


def _send(producer: Producer, topic: str, message: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                message.value(),
                message.key(),
                message.partition(),
                timestamp=message.timestamp()[1],
                headers=message.headers(),
            )
        except BufferError:
            producer.poll(0.05)
        else:
            return


if __name__ == "__main__":
    copy(json.loads(sys.argv[1]))
