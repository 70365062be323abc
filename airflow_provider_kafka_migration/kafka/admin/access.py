"""ACLs, SCRAM users and client quotas. ACL listings never confuse "not allowed" with "none"; errors are per item.

Only changes of SCRAM users use the AdminClient; ``docs/internals.md`` has the reasons. Source of the numbers:
``org.apache.kafka.common.acl`` and ``.resource``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import CLIENT_WAIT, OPERATIONS, AdminBase, Codes
from airflow_provider_kafka_migration.kafka.admin.cluster import ClusterAdmin
from airflow_provider_kafka_migration.kafka.admin.wire_admin import SECURITY_DISABLED, ItemError, item_error

ANY = 1


RESOURCE_TYPES = Codes({2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"})
PATTERN_TYPES = Codes({3: "LITERAL", 4: "PREFIXED"})
PERMISSIONS = Codes({2: "DENY", 3: "ALLOW"})


#: Operations that imply others (``AclEntry`` and KAFKA-authorizer rules): a principal with the key has the values too.
_IMPLIES = {
    "ALL": frozenset({"READ", "WRITE", "DESCRIBE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "CREATE"}),
    "READ": frozenset({"DESCRIBE"}),
    "WRITE": frozenset({"DESCRIBE"}),
    "DELETE": frozenset({"DESCRIBE"}),
    "ALTER": frozenset({"DESCRIBE"}),
    "ALTER_CONFIGS": frozenset({"DESCRIBE_CONFIGS"}),
}


def with_implied(operations: frozenset[str]) -> frozenset[str]:
    """Return the operations and all that they imply."""
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
        """Whether this package knows all names of the binding; a newer broker may have others."""
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
    """The ACLs of a cluster; ``authorizer`` is False where no authorizer runs (SECURITY_DISABLED)."""

    authorizer: bool
    acls: tuple[Acl, ...] = ()


class AclsAdmin(AdminBase):
    """Describe, create and delete ACL bindings."""

    def describe_acls(self, *, broker_id: int | None = None) -> AclListing:
        """List all bindings, ascending.

        :param broker_id: the broker to ask; ``None``: any.
        :raises PermissionMissing: Describe on the cluster is missing; an empty list is never returned instead.
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
        """Create bindings; needs Alter on the cluster. Idempotent: existing bindings do not change."""

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
    """Return a binding as the journal stores it: the arguments of :class:`Acl`."""
    return [
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    ]


# -- admin users ------------------------------------------------------------------------------------------------------
#
# SCRAM users (KIP-554). A cluster reveals only mechanisms and iterations, never secrets.


API_DESCRIBE_USER_SCRAM = 50
RESOURCE_NOT_FOUND = 91
NOT_CONTROLLER = 41
#: ``ScramMechanism`` numbers -> names.
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_NUMBERS = {name: number for number, name in MECHANISMS.items()}
DEFAULT_ITERATIONS = 8192


@dataclass(frozen=True)
class ScramUser:
    """A user and its credentials as (mechanism, iterations), ascending."""

    name: str
    credentials: tuple[tuple[str, int], ...]
    error: ItemError | None = None


@dataclass(frozen=True)
class NewScramCredential:
    """A credential to create. ``repr`` hides the password."""

    name: str
    mechanism: str
    password: str = field(repr=False)
    iterations: int = DEFAULT_ITERATIONS


class UsersAdmin(ClusterAdmin):
    """Describe and create SCRAM users."""

    def scram_users(self, *, broker_id: int | None = None) -> list[ScramUser] | None:
        """List all SCRAM users, ascending; ``None`` where brokers lack the api (before 2.7, KRaft before 3.5).

        :param broker_id: the broker to ask; ``None``: the controller, which in KRaft is any broker. A broker with
            ZooKeeper that is not the controller does not answer: then ``None``.
        :raises PermissionMissing: Describe on the cluster is missing; an empty list is never returned instead.
        """
        if self.api_version(API_DESCRIBE_USER_SCRAM) < 0:
            return None
        self._check_may_describe()
        request = DescribeUserScramCredentialsRequest(users=None)
        if broker_id is None:
            response = self.wire.controller_request(request)
        else:
            response = self.wire.request(request, broker_id)
            if response.error_code == NOT_CONTROLLER:
                return None
        self.check(
            response.error_code,
            response.error_message,
            "SCRAM users cannot be listed",
            operation="Describe on the cluster",
        )
        users = []
        for item in response.results:
            credentials = sorted(
                (MECHANISMS.get(info.mechanism, f"UNKNOWN_{info.mechanism}"), info.iterations)
                for info in item.credential_infos
            )
            error = item_error(item.error_code, item.error_message)
            users.append(ScramUser(item.user, tuple(credentials), error))
        return sorted(users, key=lambda user: user.name)

    def _check_may_describe(self) -> None:
        """Check the permission: 3.9 ZooKeeper brokers never answer "all users" to a principal that lacks it."""
        operations = self.cluster_operations()
        if operations is not None and not operations & {"DESCRIBE", "ALTER", "ALL"}:
            self.check(
                error_codes.CLUSTER_AUTHORIZATION_FAILED,
                None,
                "SCRAM users cannot be listed",
                operation="Describe on the cluster",
            )

    def create_scram_credentials(self, wanted: Sequence[NewScramCredential]) -> dict[str, ItemError | None]:
        """Create or replace credentials; needs Alter on the cluster. Brokers get only salted passwords (RFC 5802)."""
        return self._alter_scram(
            {
                (item.name, item.mechanism): UserScramCredentialUpsertion(
                    item.name,
                    ScramCredentialInfo(ScramMechanism(_NUMBERS[item.mechanism]), item.iterations),
                    item.password.encode(),
                )
                for item in wanted
            }
        )

    def delete_scram_credentials(self, wanted: Sequence[tuple[str, str]]) -> dict[str, ItemError | None]:
        """Delete (user, mechanism) credentials; absent ones count as deleted. Needs Alter on the cluster."""
        return self._alter_scram(
            {
                (name, mechanism): UserScramCredentialDeletion(name, ScramMechanism(_NUMBERS[mechanism]))
                for name, mechanism in wanted
            },
            done=RESOURCE_NOT_FOUND,
        )

    def _alter_scram(
        self, changes: Mapping[tuple[str, str], UserScramCredentialAlteration], *, done: int | None = None
    ) -> dict[str, ItemError | None]:
        """Change credentials by (user, mechanism); the first error of a user ends its changes.

        Each mechanism has its own requests: KRaft controllers refuse two changes of one user in the same request.
        """
        found: dict[str, ItemError | None] = {}

        def send(batch: list[tuple[str, str]]) -> dict[tuple[str, str], ItemError | None]:
            wanted = [changes[key] for key in batch]
            answers = self.by_client(
                lambda client: client.alter_user_scram_credentials(wanted, **CLIENT_WAIT), done=done
            )
            return {key: answers[key[0]] for key in batch if key[0] in answers}

        for mechanism in _NUMBERS:
            keys = sorted(key for key in changes if key[1] == mechanism and found.get(key[0]) is None)
            found.update({name: error for (name, _), error in self.in_batches(keys, send).items()})
        return dict(sorted(found.items()))


# -- admin quotas -----------------------------------------------------------------------------------------------------
#
# Client quotas (KIP-546): per user, client id and ip, and their defaults.


API_DESCRIBE_CLIENT_QUOTAS = 48

#: An entity: ((type, name), ...) ascending by type; the name ``None`` means the default of that type.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Quota:
    """Quota values of one entity: key (``producer_byte_rate`` ...) -> value."""

    entity: QuotaEntity
    values: Mapping[str, float]


class QuotasAdmin(AdminBase):
    """Describe and change client quotas."""

    def quotas(self, *, broker_id: int | None = None) -> list[Quota] | None:
        """List all client quotas, ascending by entity; ``None`` before 2.6. Needs DescribeConfigs on the cluster.

        :param broker_id: the broker to ask; ``None``: any.
        :raises PermissionMissing: the permission is missing; an empty list is never returned instead.
        """
        if self.api_version(API_DESCRIBE_CLIENT_QUOTAS) < 0:
            return None
        response = self.wire.request(DescribeClientQuotasRequest(components=[], strict=False), broker_id)
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
        """Set quota values, or remove them with ``None``; needs AlterConfigs on the cluster."""
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
