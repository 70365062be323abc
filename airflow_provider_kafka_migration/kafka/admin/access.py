"""ACL bindings: listed so that "not allowed" is never read as "none", created and deleted with errors per item.

confluent-kafka 2.16.1 answers ``describe_acls`` with an empty list when the caller may not describe; the raw
message has the error code. Source of the numbers: ``org.apache.kafka.common.acl`` and ``.resource``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from airflow_provider_kafka_migration.kafka.admin.base import (
    OPERATIONS,
    SECURITY_DISABLED,
    AdminBase,
    Codes,
    ItemError,
    item_error,
)

ANY = 1


RESOURCE_TYPES = Codes({2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"})
PATTERN_TYPES = Codes({3: "LITERAL", 4: "PREFIXED"})
PERMISSIONS = Codes({2: "DENY", 3: "ALLOW"})


#: Operations that imply others (``AclEntry`` and KAFKA-authorizer rules): having the first is having the rest.
_IMPLIES = {
    "ALL": frozenset({"READ", "WRITE", "DESCRIBE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "CREATE"}),
    "READ": frozenset({"DESCRIBE"}),
    "WRITE": frozenset({"DESCRIBE"}),
    "DELETE": frozenset({"DESCRIBE"}),
    "ALTER": frozenset({"DESCRIBE"}),
    "ALTER_CONFIGS": frozenset({"DESCRIBE_CONFIGS"}),
}


def with_implied(operations: frozenset[str]) -> frozenset[str]:
    """Operations with all that they imply."""
    return operations | {implied for name in operations for implied in _IMPLIES.get(name, frozenset())}


@dataclass(frozen=True, order=True)
class Acl:
    """One binding. All fields are Kafka's own names in capitals; host ``*`` is any host."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str

    @property
    def supported(self) -> bool:
        """Whether all of its names are known here; a newer broker may have others."""
        return (
            self.resource_type in RESOURCE_TYPES
            and self.pattern_type in PATTERN_TYPES
            and self.operation in OPERATIONS
            and self.permission in PERMISSIONS
        )

    def __str__(self) -> str:
        return (
            f"{self.permission} {self.principal} from {self.host}: {self.operation} on "
            f"{self.resource_type} {self.pattern_type} {self.resource_name}"
        )


@dataclass(frozen=True)
class AclListing:
    """What a cluster says of its ACLs: ``authorizer`` is False where no authorizer runs (SECURITY_DISABLED)."""

    authorizer: bool
    acls: tuple[Acl, ...] = ()


class AclsAdmin(AdminBase):
    """Describe, create and delete ACL bindings."""

    def describe_acls(self, *, broker_id: int | None = None) -> AclListing:
        """All bindings, ascending.

        :param broker_id: which broker is asked; ``None``: any.
        :raises PermissionMissing: without Describe on the cluster; never an empty list instead.
        """
        request = DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        response = self.wire.request(request, broker_id)
        if response.error_code == SECURITY_DISABLED:
            return AclListing(authorizer=False)
        self.check(
            response.error_code, response.error_message, "ACLs cannot be listed", operation="Describe on the cluster"
        )
        found = {
            _acl(resource.resource_type, resource.resource_name, resource.pattern_type, binding)
            for resource in response.resources
            for binding in resource.acls
        }
        return AclListing(authorizer=True, acls=tuple(sorted(found)))

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, ItemError | None]:
        """Create bindings; needs Alter on the cluster. Existing ones stay as they are (idempotent)."""

        def send(batch: list[Acl]) -> dict[Acl, ItemError | None]:
            creations = [
                CreateAclsRequest.AclCreation(
                    resource_type=RESOURCE_TYPES.number(acl.resource_type),
                    resource_name=acl.resource_name,
                    resource_pattern_type=PATTERN_TYPES.number(acl.pattern_type),
                    principal=acl.principal,
                    host=acl.host,
                    operation=OPERATIONS.number(acl.operation),
                    permission_type=PERMISSIONS.number(acl.permission),
                )
                for acl in batch
            ]
            response = self.wire.controller_request(CreateAclsRequest(creations=creations))
            errors = [item_error(result.error_code, result.error_message) for result in response.results]
            return dict(zip(batch, errors, strict=True))

        return self.in_batches(list(acls), send)

    def delete_acls(self, acls: Sequence[Acl]) -> dict[Acl, ItemError | None]:
        """Delete exactly these bindings; absent ones count as deleted. Needs Alter on the cluster."""

        def send(batch: list[Acl]) -> dict[Acl, ItemError | None]:
            filters = [
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=RESOURCE_TYPES.number(acl.resource_type),
                    resource_name_filter=acl.resource_name,
                    pattern_type_filter=PATTERN_TYPES.number(acl.pattern_type),
                    principal_filter=acl.principal,
                    host_filter=acl.host,
                    operation=OPERATIONS.number(acl.operation),
                    permission_type=PERMISSIONS.number(acl.permission),
                )
                for acl in batch
            ]
            response = self.wire.controller_request(DeleteAclsRequest(filters=filters))
            errors = [_deletion_error(result) for result in response.filter_results]
            return dict(zip(batch, errors, strict=True))

        return self.in_batches(list(acls), send)


def _acl(resource_type: int, name: str, pattern_type: int, binding: Any) -> Acl:
    return Acl(
        RESOURCE_TYPES.name(resource_type),
        name,
        PATTERN_TYPES.name(pattern_type),
        binding.principal,
        binding.host,
        OPERATIONS.name(binding.operation),
        PERMISSIONS.name(binding.permission_type),
    )


def _deletion_error(result: Any) -> ItemError | None:
    error = item_error(result.error_code, result.error_message)
    for match in result.matching_acls:
        error = error or item_error(match.error_code, match.error_message)
    return error


def acl_row(acl: Acl) -> list[str]:
    """A binding as it is journaled: the arguments of :class:`Acl`."""
    return [
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    ]
