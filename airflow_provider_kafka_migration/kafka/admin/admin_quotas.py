"""Client quotas (KIP-546): per user, client id and ip, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from airflow_provider_kafka_migration.kafka.admin.base import AdminBase, ItemError, item_error

API_DESCRIBE_CLIENT_QUOTAS = 48

#: An entity: ((type, name), ...) ascending by type; the name ``None`` is the default of that type.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Quota:
    """Quota values of one entity: key (``producer_byte_rate`` ...) -> value."""

    entity: QuotaEntity
    values: Mapping[str, float]


class QuotasAdmin(AdminBase):
    """Describe and change client quotas."""

    def quotas(self) -> list[Quota] | None:
        """All client quotas, ascending by entity; ``None`` before 2.6. Needs DescribeConfigs on the cluster.

        :raises PermissionMissing: never an empty list instead.
        """
        if self.api_version(API_DESCRIBE_CLIENT_QUOTAS) < 0:
            return None
        response = self.wire.request(DescribeClientQuotasRequest(components=[], strict=False))
        self.check(
            response.error_code,
            response.error_message,
            "client quotas cannot be listed",
            operation="DescribeConfigs on the cluster",
        )
        found = [
            Quota(
                tuple(sorted(((item.entity_type, item.entity_name) for item in entry.entity), key=_entity_order)),
                {item.key: item.value for item in sorted(entry.values, key=lambda item: str(item.key))},
            )
            for entry in response.entries or ()
        ]
        return sorted(found, key=lambda quota: [_entity_order(item) for item in quota.entity])

    def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]
    ) -> dict[QuotaEntity, ItemError | None]:
        """Set (or with ``None`` remove) quota values; needs AlterConfigs on the cluster."""
        entry_type = AlterClientQuotasRequest.EntryData

        def send(batch: list[QuotaEntity]) -> dict[QuotaEntity, ItemError | None]:
            entries = [
                entry_type(
                    entity=[entry_type.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    ops=[
                        entry_type.OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in sorted(changes[entity].items())
                    ],
                )
                for entity in batch
            ]
            response = self.wire.controller_request(AlterClientQuotasRequest(entries=entries, validate_only=False))
            return {_entity(entry): item_error(entry.error_code, entry.error_message) for entry in response.entries}

        return self.in_batches(sorted(changes, key=lambda entity: [_entity_order(item) for item in entity]), send)


def _entity_order(item: tuple[str, str | None]) -> tuple[str, bool, str]:
    return (item[0], item[1] is not None, item[1] or "")


def _entity(entry: Any) -> QuotaEntity:
    return tuple(sorted(((item.entity_type, item.entity_name) for item in entry.entity), key=_entity_order))
