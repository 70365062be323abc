"""DescribeGroups of the newer group types (KIP-848, KIP-932, KIP-1071) as kafka-python messages.

The schemas beside this module are Apache Kafka's own of release 4.2, comments taken out.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

from airflow_provider_kafka_migration.kafka import schemas

# load_json is a keyword of ApiMessage's metaclass: the package that holds <class name>.json.


class ConsumerGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Describe KIP-848 consumer groups (api 69)."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Answer of api 69."""


class ShareGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Describe share groups (api 77)."""


class ShareGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Answer of api 77."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Describe streams groups (api 89)."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Answer of api 89."""
