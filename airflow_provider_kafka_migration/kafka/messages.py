"""Finds the response class of a kafka-python request class, and defines the messages of the newer group types."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from kafka.protocol.api_message import ApiMessage

from airflow_provider_kafka_migration.kafka import schemas


@cache
def response_class(request_type: Any) -> Any:
    """Return for instance ``MetadataResponse`` for ``MetadataRequest``, from the module that defines the request."""
    name = request_type.__name__.split("_v")[0].removesuffix("Request") + "Response"
    return getattr(importlib.import_module(request_type.__module__), name)


# -- group messages ---------------------------------------------------------------------------------------------------
#
# Requests for the newer group types (KIP-848, KIP-932, KIP-1071) as kafka-python messages.
#
# The schemas next to this module are those of Apache Kafka 4.1 and 4.2, with the comments removed.


# load_json is a keyword of ApiMessage's metaclass: the package that contains <class name>.json.


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


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Describe where share groups start on each partition (api 90)."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Answer of api 90."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Set where an empty share group starts (api 91)."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """Answer of api 91."""
