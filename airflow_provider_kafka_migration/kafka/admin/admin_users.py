"""SCRAM users (KIP-554). Secrets cannot be read from a cluster; only mechanisms and iterations can."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka.protocol.admin import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest

from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.base import ItemError, item_error
from airflow_provider_kafka_migration.kafka.admin.cluster import ClusterAdmin

API_DESCRIBE_USER_SCRAM = 50
RESOURCE_NOT_FOUND = 91
#: ``ScramMechanism`` numbers -> (name, hash).
MECHANISMS = {1: ("SCRAM-SHA-256", "sha256"), 2: ("SCRAM-SHA-512", "sha512")}
_NUMBERS = {name: number for number, (name, _) in MECHANISMS.items()}
DEFAULT_ITERATIONS = 8192
_SALT_BYTES = 24


@dataclass(frozen=True)
class ScramUser:
    """A user and its credentials: ascending (mechanism, iterations)."""

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

    def scram_users(self) -> list[ScramUser] | None:
        """All SCRAM users, ascending; ``None`` where brokers do not know the api (before 2.7, KRaft before 3.5).

        :raises PermissionMissing: without Describe on the cluster; never an empty list instead.
        """
        if self.api_version(API_DESCRIBE_USER_SCRAM) < 0:
            return None
        self._check_may_describe()
        response = self.wire.controller_request(DescribeUserScramCredentialsRequest(users=None))
        self.check(
            response.error_code,
            response.error_message,
            "SCRAM users cannot be listed",
            operation="Describe on the cluster",
        )
        users = []
        for item in response.results:
            credentials = sorted(
                (MECHANISMS.get(info.mechanism, (f"UNKNOWN_{info.mechanism}", ""))[0], info.iterations)
                for info in item.credential_infos
            )
            error = item_error(item.error_code, item.error_message)
            users.append(ScramUser(item.user, tuple(credentials), error))
        return sorted(users, key=lambda user: user.name)

    def _check_may_describe(self) -> None:
        """3.9 brokers in ZooKeeper mode never answer "all users" to somebody who may not ask; so ask what we may."""
        operations = self.cluster_operations()
        if operations is not None and not operations & {"DESCRIBE", "ALTER", "ALL"}:
            self.check(
                error_codes.CLUSTER_AUTHORIZATION_FAILED,
                None,
                "SCRAM users cannot be listed",
                operation="Describe on the cluster",
            )

    def create_scram_credentials(self, wanted: Sequence[NewScramCredential]) -> dict[str, ItemError | None]:
        """Create or replace credentials; needs Alter on the cluster. Brokers get salted passwords only (RFC 5802)."""
        by_name: dict[str, list[NewScramCredential]] = {}
        for item in wanted:
            by_name.setdefault(item.name, []).append(item)

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            upsertions = [_upsertion(item) for name in batch for item in by_name[name]]
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
            response = self.wire.controller_request(request)
            return {item.user: item_error(item.error_code, item.error_message) for item in response.results}

        return self.in_batches(sorted(by_name), send)

    def delete_scram_credentials(self, wanted: Sequence[tuple[str, str]]) -> dict[str, ItemError | None]:
        """Delete (user, mechanism) credentials; absent ones count as deleted. Needs Alter on the cluster."""
        by_name: dict[str, list[str]] = {}
        for name, mechanism in wanted:
            by_name.setdefault(name, []).append(mechanism)

        def send(batch: list[str]) -> dict[str, ItemError | None]:
            deletions = [
                AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=_NUMBERS[mechanism])
                for name in batch
                for mechanism in by_name[name]
            ]
            request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[])
            response = self.wire.controller_request(request)
            return {
                item.user: None
                if item.error_code == RESOURCE_NOT_FOUND
                else item_error(item.error_code, item.error_message)
                for item in response.results
            }

        return self.in_batches(sorted(by_name), send)


def _upsertion(item: NewScramCredential) -> object:
    number = _NUMBERS[item.mechanism]
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(MECHANISMS[number][1], item.password.encode(), salt, item.iterations)
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=item.name, mechanism=number, iterations=item.iterations, salt=salt, salted_password=salted
    )
