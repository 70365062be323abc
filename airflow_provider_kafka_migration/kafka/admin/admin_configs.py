"""Configs of topics, brokers and groups: where a value comes from matters more than the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import (
    REQUEST_TIMEOUT_MS,
    AdminBase,
    ItemError,
    batches,
    item_error,
)

API_LIST_CONFIG_RESOURCES = 74


class ConfigResource(IntEnum):
    """Kinds of resources that have configs (``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from (``DescribeConfigsResponse.ConfigSource``)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


#: Values set on the resource itself; all others are defaults of broker, cluster or release.
OWN_SOURCES = frozenset({ConfigSource.DYNAMIC_TOPIC, ConfigSource.CLIENT_METRICS, ConfigSource.GROUP})


@dataclass(frozen=True)
class ConfigValue:
    """One config. ``value`` is None for sensitive ones."""

    name: str
    value: str | None
    source: int
    read_only: bool = False
    sensitive: bool = False

    @property
    def is_override(self) -> bool:
        """Set on the resource itself (not a default of any kind)."""
        return self.source in OWN_SOURCES


@dataclass(frozen=True)
class Configs:
    """All configs of one resource by name, ascending; or its error."""

    name: str
    values: dict[str, ConfigValue] = field(default_factory=dict, hash=False)
    error: ItemError | None = None

    @property
    def overrides(self) -> dict[str, str]:
        """Name -> value of what is set on the resource itself; never broker defaults, never secrets."""
        return {
            name: item.value
            for name, item in self.values.items()
            if item.is_override and item.value is not None and not item.sensitive
        }

    def get(self, name: str, default: str = "") -> str:
        """The value in force, whatever its source."""
        item = self.values.get(name)
        return default if item is None or item.value is None else item.value


#: A change of configs: name -> new value, or None to delete the override (back to the default).
ConfigChange = Mapping[str, str | None]


class ConfigsAdmin(AdminBase):
    """Describe and change configs."""

    def topic_configs(self, names: Sequence[str]) -> dict[str, Configs]:
        """All configs of topics, defaults included; needs DescribeConfigs on each. Errors per topic are data."""
        return self._describe_configs(ConfigResource.TOPIC, sorted(set(names)))

    def new_topic_configs(self, name: str) -> Configs:
        """What a new topic of this name would have, defaults of broker and release included; nothing is created.

        Also tells which topic configs this cluster knows at all. Needs Create and DescribeConfigs on the topic (or
        Create on the cluster); the error is data. Brokers before 2.4 do not tell (error ``UNSUPPORTED_VERSION``).
        """
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS, validate_only=True)
        answer = self.wire.controller_request(request).topics[0]
        error = item_error(answer.error_code, answer.error_message) or item_error(answer.topic_config_error_code or 0)
        if error is None and not answer.configs:
            error = item_error(error_codes.UNSUPPORTED_VERSION, "the broker does not tell the configs of new topics")
        values = {
            item.name: ConfigValue(item.name, item.value, item.config_source, bool(item.read_only), item.is_sensitive)
            for item in sorted(answer.configs or (), key=lambda item: str(item.name))
        }
        return Configs(name, {} if error else values, error)

    def broker_configs(self, broker_id: int) -> Configs:
        """All configs of a broker; needs DescribeConfigs on the cluster. The error is data."""
        answer = self._describe_configs(ConfigResource.BROKER, [str(broker_id)], broker_id=broker_id)
        return answer[str(broker_id)]

    def group_configs(self, groups: Sequence[str]) -> dict[str, Configs]:
        """Configs of groups (KIP-848, 4.0+); needs DescribeConfigs on each group."""
        return self._describe_configs(ConfigResource.GROUP, sorted(set(groups)))

    def groups_with_configs(self) -> list[str] | None:
        """Groups that have configs of their own (KIP-1142, 4.1+); ``None`` where brokers cannot list them."""
        if self.api_version(API_LIST_CONFIG_RESOURCES) < 1:
            return None
        response = self.wire.request(ListConfigResourcesRequest(resource_types=[int(ConfigResource.GROUP)]))
        self.check(
            response.error_code, None, "config resources cannot be listed", operation="DescribeConfigs on the cluster"
        )
        return sorted(item.resource_name for item in response.config_resources)

    def _describe_configs(
        self, kind: ConfigResource, names: Sequence[str], *, broker_id: int | None = None
    ) -> dict[str, Configs]:
        found: dict[str, Configs] = {}

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            resources = [
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=int(kind), resource_name=name, configuration_keys=None
                )
                for name in batch
            ]
            response = self.wire.request(
                DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False),
                broker_id=broker_id,
            )
            for result in response.results:
                found[result.resource_name] = _configs(result)
            return {name: found[name].error if name in found else None for name in batch}

        self.in_batches(list(names), send)
        return {name: found[name] for name in names if name in found}

    def alter_topic_configs(
        self, changes: Mapping[str, ConfigChange], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """Set or delete single configs of topics (IncrementalAlterConfigs, 2.3+); needs AlterConfigs on each."""
        return self.alter_configs(ConfigResource.TOPIC, changes, validate_only=validate_only)

    def alter_configs(
        self, kind: ConfigResource, changes: Mapping[str, ConfigChange], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """Set or delete single configs of resources of one kind; all changes of a resource or none of them."""

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            resources = [_altered(kind, name, changes[name]) for name in batch]
            request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
            response = self.wire.controller_request(request)
            return {item.resource_name: item_error(item.error_code, item.error_message) for item in response.responses}

        wanted = [name for name in sorted(changes) if changes[name]]
        done: dict[str, ItemError | None] = {name: None for name in sorted(changes) if not changes[name]}
        for part in batches(wanted, 1000):
            done.update(self.in_batches(part, send))
        return done


def _configs(result: Any) -> Configs:
    error = item_error(result.error_code, result.error_message)
    values = {
        item.name: ConfigValue(item.name, item.value, item.config_source, bool(item.read_only), bool(item.is_sensitive))
        for item in sorted(result.configs, key=lambda item: str(item.name))
    }
    return Configs(result.resource_name, {} if error else values, error)


def _altered(kind: ConfigResource, name: str, change: ConfigChange) -> Any:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    return resource(
        resource_type=int(kind),
        resource_name=name,
        configs=[
            # Operation 0 sets, 1 deletes.
            resource.AlterableConfig(name=key, config_operation=1 if value is None else 0, value=value)
            for key, value in sorted(change.items())
        ],
    )
