"""References to Airflow connections: ``airflow:CONN_ID``, or a plain connection id.

The content of a connection depends on its type:

* ``kafka`` and ``kafka_migration``: its extra JSON (librdkafka keys), with ``msk`` added for Amazon MSK with IAM;
* ``aws``: the fields of :class:`~..storage.s3.S3Config`;
* ``http``, where the reference is that of a schema registry: those of
  :class:`~..registry.access.RegistryAccess`;
* anything else: its password, for signing keys, webhook secrets and SCRAM users.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_kafka_migration.errors import ConnectionInvalid, SecretStoreUnavailable, StorageUnavailable, Where
from airflow_provider_kafka_migration.provider.compat import AirflowNotFoundException, conf
from airflow_provider_kafka_migration.references import Handler, Resolver, aws_secrets, secret_stores, split_reference
from airflow_provider_kafka_migration.spec import MigrationSpec

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_kafka_migration.provider.job_references import SparkPlace
    from airflow_provider_kafka_migration.storage.s3_credentials import S3Keys


log = logging.getLogger(__name__)
_WARNINGS_ONLY = logging.getLogger(f"{__name__}.aws")
_WARNINGS_ONLY.setLevel(logging.WARNING)

ConnectionGetter = Callable[[str], "Connection"]

SCHEME = "airflow"

#: Names of MSK brokers, as the Apache Kafka provider knows them since its version 2.
_MSK_BROKERS = re.compile(
    r"\.kafka(?:-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::\d+)?(?=$|[,\s])", re.IGNORECASE
)

#: The Apache Kafka provider's connection type, and ours, whose *Test* button queries the cluster as a migration does.
KAFKA_TYPES = ("kafka", "kafka_migration")


def airflow_resolver(connections: Mapping[str, Connection] | None = None) -> Resolver:
    """Return a resolver that knows Airflow's connections in addition to ``env:`` and ``file:``.

    :param connections: prefetched connections by id. A triggerer must not fetch connections with blocking calls, so it
        passes them in; then only these are known.
    """

    def get(conn_id: str) -> Connection:
        if connections is None:
            return _connection(conn_id)
        if conn_id not in connections:
            raise _missing(conn_id)
        return connections[conn_id]

    # Connections that were passed in stay unchanged: a triggerer reopens everything with freshly fetched connections.
    sessions = _AwsSessions(_connection if connections is None else None)
    return Resolver(
        {SCHEME: lambda conn_id: _connection_text(get(conn_id), sessions), **_aws_secrets(get)},
        {SCHEME: lambda conn_id: sessions.keys(get(conn_id))},
        {SCHEME: lambda conn_id: json.dumps(registry_settings(get(conn_id)))},
    )


def _secrets_conn_id() -> str:
    """Return the connection with which secrets of AWS are read; empty: the machine's own identity."""
    return str(conf.get("kafka_migration", "secrets_aws_conn_id", fallback="") or "")


def _aws_secrets(get: ConnectionGetter) -> dict[str, Handler]:
    """Return the handlers of ``secretsmanager:`` and ``ssm:`` that use a connection, if one is configured."""
    conn_id = _secrets_conn_id()
    if not conn_id:
        return {}

    def client(service: str, region: str | None) -> Any:
        wrapper = _aws_wrapper(get(conn_id))
        session = _now(lambda: _aws_session(wrapper), conn_id)
        return session.client(
            service,
            region_name=region or wrapper.region_name,
            endpoint_url=wrapper.get_service_endpoint_url(service),
            verify=wrapper.verify,
            config=aws_secrets.client_config(),
        )

    reader = aws_secrets.AwsSecrets(client)
    found = secret_stores.handlers({"secretsmanager": reader.secret, "ssm": reader.parameter})
    return {scheme: found[scheme] for scheme in ("secretsmanager", "ssm")}


async def prefetch(spec: MigrationSpec, *, clusters: bool = True) -> dict[str, Connection]:
    """Fetch the connections for checks of both clusters and the journal, without blocking an event loop.

    :param clusters: False if only the journal is checked.
    :raises ConnectionInvalid: a connection does not exist.
    :raises SecretStoreUnavailable: Airflow could not be asked.
    """
    of_clusters = (spec.source.conn_id, spec.target.conn_id) if clusters else ()
    references = (*of_clusters, spec.storage.conn_id, _secrets_conn_id())
    found: dict[str, Connection] = {}
    for reference in sorted({reference for reference in references if reference}):
        scheme, conn_id = split_reference(reference)
        if scheme != SCHEME:
            continue
        try:
            found[conn_id] = await BaseHook.aget_connection(conn_id)
        except AirflowNotFoundException:
            raise _missing(conn_id) from None
        except Exception as error:
            # Airflow's API server, its database or its secrets backend is away, for which a trigger must not end.
            raise SecretStoreUnavailable(
                f"Airflow does not give the connection {conn_id!r} now: {type(error).__name__}",
                where=Where(path=f"{SCHEME}:{conn_id}"),
                next_step="nothing if this passes; else check Airflow's API server and secrets backend",
            ) from error
    return found


def _connection_text(connection: Connection, sessions: _AwsSessions) -> str:
    """Return the content of a connection as the text of a reference. It is a secret.

    :raises ConnectionInvalid: it lacks what its type needs.
    """
    if connection.conn_type in KAFKA_TYPES:
        return json.dumps(_kafka_keys(connection))
    if connection.conn_type == "aws":
        return json.dumps(_s3_settings(connection, sessions))
    if not connection.password:
        raise ConnectionInvalid(
            f"the connection has no password (its type is {connection.conn_type!r})",
            where=Where(path=f"{SCHEME}:{connection.conn_id}"),
            next_step="put the secret into the password of a connection of type generic, or use env:NAME or file:PATH",
        )
    return str(connection.password)


def kafka_keys(conn_id: str) -> dict[str, Any]:
    """Return the librdkafka keys of a connection to a cluster.

    :raises ConnectionInvalid: no such connection, another type, or no JSON object in ``extra``.
    """
    connection = _connection(conn_id)
    if connection.conn_type not in KAFKA_TYPES:
        raise ConnectionInvalid(
            f"the connection is of type {connection.conn_type!r}, not kafka",
            where=Where(path=f"{SCHEME}:{conn_id}"),
            next_step="create a connection of type kafka with librdkafka keys as its extra",
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
        next_step=f"use `airflow connections add {conn_id} ...`, AIRFLOW_CONN_{conn_id.upper()} or a secrets backend",
    )


def _extra(connection: Connection) -> dict[str, Any]:
    try:
        value = json.loads(connection.extra) if connection.extra else {}
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        # The text may hold a secret, so the error never quotes it.
        raise ConnectionInvalid(
            "the extra of the connection is not a JSON object",
            where=Where(path=f"{SCHEME}:{connection.conn_id}"),
            next_step='write one JSON object, for instance {"bootstrap.servers": "broker:9092"}',
        )
    return value


def _kafka_keys(connection: Connection) -> dict[str, Any]:
    """Return librdkafka keys. The Kafka provider needs ``oauth_cb`` for MSK IAM; here the region is enough."""
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


#: Keys of an HTTP connection's extra that Airflow's own hook reads and that mean nothing to a registry.
_HOOK_KEYS = frozenset({"allow_redirects", "cert", "check_response", "max_redirects", "proxies", "stream", "verify"})
_TOKEN_URL = "bearer.auth.issuer.endpoint.url"  # noqa: S105 - the name of a key


def registry_settings(connection: Connection) -> dict[str, Any]:
    """Return the settings of a schema registry in a connection of type ``http``.

    The host is a host name, with or without a path, or a complete URL; several URLs are separated by commas. Login and
    password are sent as HTTP Basic authentication. If the extra has the token endpoint of an identity provider, they
    are the client id and secret; a password without a login is a bearer token. All other settings are keys of the
    extra, as in an ``env:`` or ``file:`` reference.

    :raises ConnectionInvalid: the connection has another type, or no host.
    """
    where = Where(path=f"{SCHEME}:{connection.conn_id}")
    if connection.conn_type not in ("http", "https"):
        raise ConnectionInvalid(
            f"the connection is of type {connection.conn_type!r}, not http",
            where=where,
            next_step="create a connection of type http for the schema registry, or use env:NAME or file:PATH",
        )
    extra = {key: value for key, value in _extra(connection).items() if key not in _HOOK_KEYS}
    if not connection.host and not extra.get("url"):
        raise ConnectionInvalid(
            "the connection has no host",
            where=where,
            next_step="write the registry's address into the host, for instance https://registry.example:8081",
        )
    return {"url": _registry_urls(connection), **_registry_login(connection, extra), **extra}


def _registry_urls(connection: Connection) -> str:
    host = str(connection.host or "")
    if "," in host and "://" in host:
        return host
    scheme, separator, rest = host.partition("://")
    if not separator:
        scheme, rest = connection.schema or ("https" if connection.conn_type == "https" else "http"), host
    name, slash, path = rest.partition("/")
    # As Airflow's own hook does, add the port also to a complete URL; one that has a port keeps it.
    has_port = name.rpartition("]")[2].count(":") == 1
    port = f":{connection.port}" if connection.port and not has_port else ""
    return f"{scheme}://{name}{port}{slash}{path}"


def _registry_login(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    login, password = connection.login or "", connection.password or ""
    if _TOKEN_URL in extra:
        given = {"bearer.auth.client.id": login, "bearer.auth.client.secret": password}
        return {key: value for key, value in given.items() if value}
    if login:
        return {"basic.auth.user.info": f"{login}:{password}"}
    return {"bearer.auth.token": password} if password else {}


def msk_region(bootstrap_servers: str) -> str | None:
    """Return the AWS region in the names of MSK brokers; None for other names (private DNS: set ``msk`` yourself)."""
    match = _MSK_BROKERS.search(bootstrap_servers)
    return match.group("region").lower() if match else None


class _AwsSessions:
    """The AWS sessions of connections with temporary credentials, created once. The first use assumes the role, and
    the Amazon provider's session assumes it again a quarter of an hour before the keys expire.

    :param fetch: reads a connection again, in case its session token was replaced; None: it cannot be read again.
    """

    def __init__(self, fetch: ConnectionGetter | None) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._keys: dict[str, Callable[[], Any]] = {}

    def keys(self, connection: Connection) -> Callable[[], Any] | None:
        """Return a function that returns the current keys; None for a connection whose keys never change.

        :raises ConnectionInvalid: the profile does not exist.
        :raises StorageUnavailable: the role cannot be assumed now.
        """
        if connection.conn_type != "aws":
            return None
        wrapper = _aws_wrapper(connection)
        of_session = bool(wrapper.role_arn or wrapper.profile_name)
        if not of_session and (self._fetch is None or not wrapper.aws_session_token):
            return None
        conn_id = str(connection.conn_id)
        with self._lock:
            if conn_id not in self._keys:
                if of_session:
                    self._keys[conn_id] = _session_keys(conn_id, wrapper)
                elif self._fetch is not None:
                    self._keys[conn_id] = _TokenOfConnection(conn_id, _keys_of(wrapper), self._fetch)
            return self._keys[conn_id]


class _TokenOfConnection:
    """Keys with a session token in a connection, where new ones replace them before they expire.

    One thread reads the connection again, at most every half minute; the others use the last keys.
    """

    def __init__(self, conn_id: str, keys: S3Keys, fetch: ConnectionGetter) -> None:
        self._conn_id, self._keys, self._fetch = conn_id, keys, fetch
        self._lock = threading.Lock()
        self._read_at = time.monotonic()

    def __call__(self) -> S3Keys:
        from airflow_provider_kafka_migration.storage import s3_credentials

        if time.monotonic() - self._read_at < s3_credentials.RENEW_SECONDS / 2 or not self._lock.acquire(
            blocking=False
        ):
            return self._keys
        try:
            self._keys = _keys_of(_aws_wrapper(self._fetch(self._conn_id)))
        except Exception as error:  # its text may quote a secret; the last keys may still be valid
            log.warning("The connection %s could not be read again: %s", self._conn_id, type(error).__name__)
        finally:
            self._read_at = time.monotonic()
            self._lock.release()
        return self._keys


def _keys_of(wrapper: Any) -> S3Keys:
    """Return the keys in a connection.

    :raises ValueError: it has none (any more).
    """
    if not (wrapper.aws_access_key_id and wrapper.aws_secret_access_key):
        raise ValueError("the connection has no keys")
    from airflow_provider_kafka_migration.storage.s3_credentials import S3Keys

    return S3Keys(wrapper.aws_access_key_id, wrapper.aws_secret_access_key, wrapper.aws_session_token or None)


def _aws_wrapper(connection: Connection) -> Any:
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

    class Quiet(AwsConnectionWrapper):
        """Says nothing of where it found credentials: it would several times a task, before anything that matters."""

        @property
        def log(self) -> Any:
            return _WARNINGS_ONLY

    _extra(connection)
    return Quiet(connection)


def _s3_settings(connection: Connection, sessions: _AwsSessions) -> dict[str, Any]:
    """Return the fields of :class:`S3Config` in an ``aws`` connection; without keys the machine's identity applies.

    For a role, a profile or a session token these are the current keys. Callers that keep the settings for longer
    renew them (:meth:`Resolver.renewal`).
    """
    wrapper = _aws_wrapper(connection)
    settings = {
        "endpoint_url": wrapper.get_service_endpoint_url("s3"),
        "aws_access_key_id": wrapper.aws_access_key_id,
        "aws_secret_access_key": wrapper.aws_secret_access_key,
        "aws_session_token": wrapper.aws_session_token,
        "region_name": wrapper.region_name,
        "verify": wrapper.verify,
        "extra_args": wrapper.get_service_config("s3").get("extra_args"),
    }
    read_keys = sessions.keys(connection)
    if read_keys is not None:
        keys = _now(read_keys, str(connection.conn_id))
        settings.update(
            aws_access_key_id=keys.access_key, aws_secret_access_key=keys.secret_key, aws_session_token=keys.token
        )
    from airflow_provider_kafka_migration.storage.s3 import S3Config

    return S3Config.from_dict(settings).to_dict()


def _aws_session(wrapper: Any) -> Any:
    from airflow.providers.amazon.aws.hooks.base_aws import resolve_session_factory

    # Pass the connection, not its id: a triggerer must not fetch connections with blocking calls.
    factory = resolve_session_factory()
    return factory(conn=wrapper, region_name=wrapper.region_name, config=wrapper.botocore_config).create_session()


def _session_keys(conn_id: str, wrapper: Any) -> Callable[[], Any]:
    credentials = _now(lambda: _aws_session(wrapper), conn_id).get_credentials()
    if credentials is None:
        raise ConnectionInvalid(
            "the connection's profile has no AWS credentials",
            where=Where(path=f"{SCHEME}:{conn_id}"),
            next_step="check profile_name and the AWS configuration files on this machine",
        )
    get: Callable[[], Any] = credentials.get_frozen_credentials
    return get


#: Error codes of STS and profiles for which a retry cannot help.
_REFUSED_BY_STS = frozenset({"AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "ValidationError"})


def _now(ask: Callable[[], Any], conn_id: str) -> Any:
    """Call AWS; its errors are never quoted, because they may contain secrets."""
    from botocore.exceptions import ClientError, ProfileNotFound

    where = Where(path=f"{SCHEME}:{conn_id}")
    try:
        return ask()
    except ProfileNotFound:
        raise ConnectionInvalid(
            "the AWS configuration files on this machine lack the profile of the connection",
            where=where,
            next_step="correct profile_name in the connection's extra, or add the profile on every worker",
        ) from None
    except Exception as error:
        code = str(error.response.get("Error", {}).get("Code")) if isinstance(error, ClientError) else ""
        if code in _REFUSED_BY_STS:
            raise ConnectionInvalid(
                f"AWS refused the role of the connection: {code}",
                where=where,
                next_step="check role_arn, its trust policy and the connection's own keys",
            ) from error
        raise StorageUnavailable(
            f"the credentials of the connection could not be obtained: {code or type(error).__name__}",
            where=where,
            next_step="check that STS, or the source of the credentials, can be reached from here; then clear the task",
        ) from error


# -- jobs -------------------------------------------------------------------------------------------------------------


def private_directory(owner: str, task_id: str) -> Path:
    """Return the folder for one task of one run. It is always the same: a new attempt removes a killed one's files."""
    base = conf.get("kafka_migration", "secrets_directory", fallback="") or tempfile.gettempdir()
    name = hashlib.sha256(f"{owner}\n{task_id}".encode()).hexdigest()[:24]
    return Path(base) / f"kafka-migration-{os.getuid()}-{name}"


def public_sealing_key() -> str:
    """Return the public key for sealed references in Airflow's configuration; empty: there is none."""
    return str(conf.get("kafka_migration", "sealing_key", fallback="") or "")


def spark_place(spec: MigrationSpec) -> SparkPlace:
    """Return where the spec's Spark jobs run, as far as it matters for connections."""
    from airflow_provider_kafka_migration.provider.job_references import SparkPlace
    from airflow_provider_kafka_migration.provider.spark_provider import spark_master

    public_key = public_sealing_key()
    if spec.spark.engine != "submit":
        return SparkPlace(False, f"engine {spec.spark.engine}", public_key)
    return SparkPlace.of_master(spark_master(spec.spark.conn_id), public_key)


def check_references(spec: MigrationSpec) -> None:
    """Check that Spark's jobs can get their connections, before anything is written. Reads no connection but Spark's.

    :raises ReferencesUnfit: they cannot. :raises SealingKeyMissing: the public sealing key is missing or malformed.
    """
    from airflow_provider_kafka_migration.provider.job_references import travel

    if spec.spark.engine == "submit":
        try:
            BaseHook.get_connection(spec.spark.conn_id)
        except AirflowNotFoundException:
            return  # nothing is known about Spark; the first Spark task says so
    travel(spec, spark_place(spec))
