"""References to Airflow connections: ``airflow:CONN_ID``, or a plain connection id.

What a connection becomes depends on its type:

* ``kafka``: its extra JSON (librdkafka keys), with ``msk`` added for Amazon MSK with IAM;
* ``aws``: the fields of :class:`~..storage.s3_config.S3Config`;
* anything else: its password, for signing keys, webhook secrets and SCRAM users.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.references import Resolver, split_reference
from airflow_provider_kafka_migration.storage.s3_config import S3Config

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_kafka_migration.spec import MigrationSpec

log = logging.getLogger(__name__)

ConnectionGetter = Callable[[str], "Connection"]

SCHEME = "airflow"


def airflow_resolver(connections: Mapping[str, Connection] | None = None) -> Resolver:
    """A resolver that knows Airflow's connections beside ``env:`` and ``file:``.

    :param connections: connections that were fetched before, by id. A triggerer must not fetch them in a blocking
        way, so it hands them in; only these are known then.
    """

    def get(conn_id: str) -> Connection:
        if connections is None:
            return _connection(conn_id)
        if conn_id not in connections:
            raise _missing(conn_id)
        return connections[conn_id]

    return Resolver({SCHEME: lambda conn_id: connection_text(conn_id, get)})


async def prefetch(spec: MigrationSpec, *, clusters: bool = True) -> dict[str, Connection]:
    """The connections that a look at both clusters and the journal needs, fetched without blocking an event loop.

    :param clusters: False for a look at the journal alone.
    :raises ConnectionInvalid: a connection does not exist.
    """
    of_clusters = (spec.source.conn_id, spec.target.conn_id) if clusters else ()
    references = (*of_clusters, spec.storage.conn_id)
    found: dict[str, Connection] = {}
    for reference in sorted({reference for reference in references if reference}):
        scheme, conn_id = split_reference(reference)
        if scheme != SCHEME:
            continue
        try:
            found[conn_id] = await BaseHook.aget_connection(conn_id)
        except AirflowNotFoundException:
            raise _missing(conn_id) from None
    return found


def connection_text(conn_id: str, get: ConnectionGetter | None = None) -> str:
    """The content of a connection as a reference's text. It is a secret.

    :raises ConnectionInvalid: no such connection, or one that has not what its type needs.
    """
    connection = (get or _connection)(conn_id)
    if connection.conn_type == "kafka":
        return json.dumps(_kafka_keys(connection))
    if connection.conn_type == "aws":
        return json.dumps(s3_settings(connection))
    if not connection.password:
        raise ConnectionInvalid(
            f"the connection has no password (its type is {connection.conn_type!r})",
            where=Where(path=f"{SCHEME}:{conn_id}"),
            next_step="put the secret into the password of a connection of type generic, or use env:NAME or file:PATH",
        )
    return str(connection.password)


def kafka_keys(conn_id: str) -> dict[str, Any]:
    """The librdkafka keys of a connection of type ``kafka``.

    :raises ConnectionInvalid: no such connection, another type, or no JSON object in ``extra``.
    """
    connection = _connection(conn_id)
    if connection.conn_type != "kafka":
        raise ConnectionInvalid(
            f"the connection is of type {connection.conn_type!r}, not kafka",
            where=Where(path=f"{SCHEME}:{conn_id}"),
            next_step="make a connection of type kafka with librdkafka keys as its extra",
        )
    return _kafka_keys(connection)


def _connection(conn_id: str) -> Connection:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise _missing(conn_id) from None


def _missing(conn_id: str) -> ConnectionInvalid:
    return ConnectionInvalid(
        f"Airflow has no connection {conn_id!r}",
        where=Where(path=f"{SCHEME}:{conn_id}"),
        next_step=f"`airflow connections add {conn_id} ...`, AIRFLOW_CONN_{conn_id.upper()}, or a secrets backend",
    )


def _extra(connection: Connection) -> dict[str, Any]:
    try:
        value = json.loads(connection.extra) if connection.extra else {}
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        # The text may hold a secret, so it is never quoted.
        raise ConnectionInvalid(
            "the extra of the connection is not a JSON object",
            where=Where(path=f"{SCHEME}:{connection.conn_id}"),
            next_step='write one JSON object, for instance {"bootstrap.servers": "broker:9092"}',
        )
    return value


def _kafka_keys(connection: Connection) -> dict[str, Any]:
    """librdkafka keys. ``oauth_cb`` is what the Kafka provider needs for MSK IAM; here the region is enough."""
    keys = _extra(connection)
    if not keys.get("bootstrap.servers") and not keys.get("metadata.broker.list"):
        raise ConnectionInvalid(
            "the extra of the connection has no bootstrap.servers",
            where=Where(path=f"{SCHEME}:{connection.conn_id}"),
            next_step='write {"bootstrap.servers": "broker:9092"} into the connection\'s extra',
        )
    mechanism = str(keys.get("sasl.mechanism") or keys.get("sasl.mechanisms") or "").upper()
    if mechanism == "OAUTHBEARER":
        if "oauth_cb" in keys:
            keys.pop("oauth_cb")
        region = msk_region(str(keys.get("bootstrap.servers", "")))
        if region and not keys.get("msk"):
            keys["msk"] = {"region": region}
    return keys


def msk_region(bootstrap_servers: str) -> str | None:
    """The AWS region in the names of MSK brokers, or None for other names (private DNS: write ``msk`` yourself)."""
    from airflow.providers.apache.kafka.hooks.base import MSK_BOOTSTRAP_SERVERS_REGEX

    match = MSK_BOOTSTRAP_SERVERS_REGEX.search(bootstrap_servers)
    return match.group("region").lower() if match else None


def s3_settings(connection: Connection) -> dict[str, Any]:
    """The fields of :class:`S3Config` in a connection of type ``aws``; without keys the machine's identity is used.

    A role of the connection is assumed here: its credentials end after an hour or so, and the next attempt of a task
    gets new ones.
    """
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

    _extra(connection)
    wrapper = AwsConnectionWrapper(connection)
    settings = {
        "endpoint_url": wrapper.get_service_endpoint_url("s3"),
        "aws_access_key_id": wrapper.aws_access_key_id,
        "aws_secret_access_key": wrapper.aws_secret_access_key,
        "aws_session_token": wrapper.aws_session_token,
        "region_name": wrapper.region_name,
        "verify": wrapper.verify,
    }
    if wrapper.role_arn or wrapper.profile_name:
        settings.update(_session_credentials(str(connection.conn_id)))
    return S3Config.from_dict(settings).to_dict()


def _session_credentials(conn_id: str) -> dict[str, Any]:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

    credentials = AwsBaseHook(aws_conn_id=conn_id, client_type="s3").get_credentials()
    if credentials.token:
        log.warning(
            "The connection %s gives temporary credentials. A task that runs longer than they live ends with an error "
            "and goes on where it stopped when it is retried; for a long tail use the machine's own role.",
            conn_id,
        )
    return {
        "aws_access_key_id": credentials.access_key,
        "aws_secret_access_key": credentials.secret_key,
        "aws_session_token": credentials.token,
    }
