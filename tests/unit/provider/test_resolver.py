"""Airflow connections as references."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import airflow_releases as releases
import boto3
import pytest
from airflow.sdk import Connection

from airflow_provider_kafka_migration.errors import ConnectionInvalid, SecretNotFound, SecretStoreUnavailable
from airflow_provider_kafka_migration.hooks import kafka_cluster, offset_translation
from airflow_provider_kafka_migration.hooks.kafka_cluster import KafkaClusterHook
from airflow_provider_kafka_migration.hooks.offset_translation import OffsetTranslationHook
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.provider.connections import airflow_resolver, prefetch
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage.s3 import S3Config

pytestmark = pytest.mark.slow

Define = Callable[..., None]
KEYS = {
    "bootstrap.servers": "broker:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "kafka-secret",
}


def test_the_translation_hook_resolves_airflow_s_connections(
    connection: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection("kafka_src", conn_type="kafka", extra=KEYS)
    opened: list[tuple[str, dict[str, Any]]] = []

    def record(spec: Any, resolver: Any) -> Any:
        opened.append((spec.migration_id, resolver.mapping(spec.source.conn_id)))

    monkeypatch.setattr(offset_translation.Translator, "open", record)
    spec = {
        "migration_id": "orders",
        "source": {"conn_id": "kafka_src"},
        "target": {"conn_id": "kafka_dst"},
        "storage": {"journal": "file:///journal"},
    }
    OffsetTranslationHook(spec).get_conn()
    OffsetTranslationHook(parse_spec(spec)).get_conn()
    assert opened == [("orders", KEYS)] * 2


@pytest.mark.parametrize("reference", ["kafka_src", "airflow:kafka_src"])
def test_kafka_connection_is_its_extra(connection: Define, reference: str) -> None:
    connection("kafka_src", conn_type="kafka", extra=KEYS)
    found = airflow_resolver().mapping(reference)
    assert found == KEYS
    assert ClientConfig.from_librdkafka(found, "source").password == "kafka-secret"


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("boot-x.c2.kafka-serverless.eu-west-2.amazonaws.com:9098", "eu-west-2"),
        ("b-1.x.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
    ],
)
def test_msk_iam_needs_nothing_but_the_provider_s_own_connection(connection: Define, servers: str, region: str) -> None:
    extra = {"bootstrap.servers": servers, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    connection("msk", conn_type="kafka", extra={**extra, "oauth_cb": "some.module.callback"})
    config = ClientConfig.from_librdkafka(airflow_resolver().mapping("msk"), "target")
    assert config.msk_region == region


def test_msk_behind_private_names_takes_the_region_from_the_connection(connection: Define) -> None:
    extra = {
        "bootstrap.servers": "kafka.internal:9098",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    connection("msk", conn_type="kafka", extra={**extra, "msk": {"region": "eu-central-1"}})
    assert ClientConfig.from_librdkafka(airflow_resolver().mapping("msk"), "target").msk_region == "eu-central-1"


def test_nothing_is_logged_about_where_credentials_were_found(
    connection: Define, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    connection("aws_s3", conn_type="aws", login="key", password="secret")
    with caplog.at_level("INFO"):
        airflow_resolver().mapping("aws_s3")
    out, err = capfd.readouterr()
    assert "credentials retrieved" not in out + err + caplog.text


def test_aws_connection_is_s3_settings(connection: Define) -> None:
    connection(
        "aws_s3",
        conn_type="aws",
        login="AKIA",
        password="s3-secret",
        extra={"region_name": "eu-west-1", "endpoint_url": "http://s3.example:9000", "verify": False},
    )
    config = S3Config.from_dict(airflow_resolver().mapping("aws_s3"))
    assert config == S3Config("http://s3.example:9000", "AKIA", "s3-secret", None, "eu-west-1", False)


def test_endpoint_of_the_s3_service_wins(connection: Define) -> None:
    extra = {"endpoint_url": "http://all:1", "service_config": {"s3": {"endpoint_url": "http://s3:2"}}}
    connection("aws_s3", conn_type="aws", login="a", password="b", extra=extra)
    assert airflow_resolver().mapping("aws_s3")["endpoint_url"] == "http://s3:2"


def test_extra_arguments_of_the_s3_service(connection: Define) -> None:
    args = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/migrations"}
    connection("aws_s3", conn_type="aws", extra={"service_config": {"s3": {"extra_args": args}}})
    config = S3Config.from_dict(airflow_resolver().mapping("aws_s3"))
    assert dict(config.extra_args) == args


def test_aws_connection_without_keys_means_the_machine_s_identity(connection: Define) -> None:
    connection("aws_s3", conn_type="aws", extra={"region_name": "eu-west-1"})
    assert airflow_resolver().mapping("aws_s3") == {"region_name": "eu-west-1"}


def test_other_connections_give_their_password(connection: Define) -> None:
    connection("signing", conn_type="generic", password="ab" * 32)
    assert airflow_resolver().text("signing") == "ab" * 32


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (None, "has no connection"),
        ({"conn_type": "generic"}, "has no password"),
        ({"conn_type": "kafka", "extra": {}}, "no bootstrap.servers"),
        ({"conn_type": "kafka", "extra": '["kafka-secret"]'}, "not a JSON object"),
        ({"conn_type": "kafka", "extra": "{kafka-secret"}, "not a JSON object"),
    ],
)
def test_mistakes_are_named_and_never_quoted(connection: Define, fields: dict[str, Any] | None, told: str) -> None:
    if fields is not None:
        connection("wrong", **fields)
    if told == "not a JSON object" and not releases.HAS_SERDE:
        told = "has no connection"  # Airflow 3.1 finds none that it cannot read
    with pytest.raises(ConnectionInvalid, match=told) as caught:
        airflow_resolver().text("wrong")
    assert caught.value.next_step
    assert "kafka-secret" not in str(caught.value)


def test_cluster_hook_refuses_other_types(connection: Define) -> None:
    connection("aws_s3", conn_type="aws")
    with pytest.raises(ConnectionInvalid, match="not kafka"):
        KafkaClusterHook("aws_s3").client_config()


def test_our_connection_type_is_what_kafka_s_is(connection: Define) -> None:
    connection("cluster", conn_type="kafka_migration", extra=KEYS)
    assert airflow_resolver().mapping("cluster") == KEYS
    assert KafkaClusterHook("cluster").client_config().password == "kafka-secret"


def test_button_of_the_form_reaches_our_test(connection: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the API server does it: from a connection's type to its hook, and to the hook's test."""
    from airflow.models.connection import Connection

    monkeypatch.setattr(kafka_cluster, "FIRST_CONTACT_SECONDS", 0.5)
    connection("form", conn_type="kafka_migration", extra={"bootstrap.servers": "127.0.0.1:1"})
    good, message = Connection(conn_id="form", conn_type="kafka_migration").test_connection()
    assert not good
    assert "BROKER_UNREACHABLE" in message
    assert "127.0.0.1:1" in message
    assert "no broker of the Kafka cluster answers" in message, "a form does not know which side it will be"
    assert "task" not in message, "there is none yet"


def test_cluster_hook_names_unusable_keys_to_the_form(connection: Define) -> None:
    connection("kafka_src", conn_type="kafka", extra={"bootstrap.servers": "b:1", "sasl.jaas.config": "kafka-secret"})
    good, message = KafkaClusterHook("kafka_src").test_connection()
    assert not good
    assert "sasl.jaas.config" in message
    assert "kafka-secret" not in message


def test_the_form_says_that_the_admin_client_lacks_kerberos(
    connection: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raw wire reaches the cluster, but a migration would fail at its first topic."""
    extra = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    connection("form", conn_type="kafka_migration", extra=extra)
    monkeypatch.setattr(kafka_cluster.Wire, "metadata", lambda *_: {})
    good, message = KafkaClusterHook("form").test_connection()
    assert not good
    assert "KERBEROS_UNSUPPORTED" in message
    assert "libsasl2" in message


def test_triggers_get_connections_before_they_block(connection: Define, minimal_spec: dict[str, Any]) -> None:
    connection("kafka_source", conn_type="kafka", extra=KEYS)
    connection("aws_s3", conn_type="aws", login="a", password="b")
    spec = parse_spec({**minimal_spec, "target": {"conn_id": "env:TARGET"}})
    found = asyncio.run(prefetch(spec))
    assert sorted(found) == ["aws_s3", "kafka_source"]
    resolver = airflow_resolver(found)
    assert json.loads(resolver.text("kafka_source")) == KEYS
    with pytest.raises(ConnectionInvalid):
        resolver.text("signing")


def test_trigger_s_missing_connection_is_named(minimal_spec: dict[str, Any]) -> None:
    with pytest.raises(ConnectionInvalid, match="aws_s3"):
        asyncio.run(prefetch(parse_spec(minimal_spec)))


def test_an_airflow_that_does_not_answer_a_trigger_may_be_asked_again(
    minimal_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger that dies of it fails its task; and the text of the error may quote a connection."""

    async def away(_conn_id: str) -> Any:
        raise RuntimeError("kafka-secret")

    monkeypatch.setattr("airflow.sdk.BaseHook.aget_connection", away)
    with pytest.raises(SecretStoreUnavailable, match="RuntimeError") as found:
        asyncio.run(prefetch(parse_spec(minimal_spec)))
    assert "kafka-secret" not in str(found.value)


# -- schema registries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"host": "registry", "port": 8081}, {"url": "http://registry:8081"}),
        ({"host": "registry", "schema": "https"}, {"url": "https://registry"}),
        ({"host": "registry/apis/ccompat/v7", "port": 8080}, {"url": "http://registry:8080/apis/ccompat/v7"}),
        ({"host": "https://one:1,https://two:2"}, {"url": "https://one:1,https://two:2"}),
        ({"host": "https://registry/path", "port": 8081}, {"url": "https://registry:8081/path"}),
        ({"host": "https://registry:1/path", "port": 8081}, {"url": "https://registry:1/path"}),
        ({"host": "https://[::1]", "port": 8081}, {"url": "https://[::1]:8081"}),
        (
            {"host": "r", "login": "alice", "password": "s3cret"},
            {"url": "http://r", "basic.auth.user.info": "alice:s3cret"},
        ),
        ({"host": "r", "password": "token"}, {"url": "http://r", "bearer.auth.token": "token"}),
        (
            {
                "host": "r",
                "login": "me",
                "password": "s3cret",
                "extra": {"bearer.auth.issuer.endpoint.url": "https://idp/token", "bearer.auth.scope": "all"},
            },
            {
                "url": "http://r",
                "bearer.auth.client.id": "me",
                "bearer.auth.client.secret": "s3cret",
                "bearer.auth.issuer.endpoint.url": "https://idp/token",
                "bearer.auth.scope": "all",
            },
        ),
        (
            {"host": "https://r", "extra": {"ssl.ca.location": "/ca.pem", "timeout": 5, "verify": False}},
            {"url": "https://r", "ssl.ca.location": "/ca.pem", "timeout": 5},
        ),
    ],
)
def test_http_connection_is_a_schema_registry(
    connection: Define, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    connection("registry", conn_type="http", **given)
    assert airflow_resolver().registry("registry") == expected
    assert RegistryAccess.from_dict(expected).urls


def test_http_connection_elsewhere_is_its_password(connection: Define) -> None:
    """A webhook's secret may be in a connection of any type, also of one that could be a registry."""
    connection("hook", conn_type="http", host="hook.example", password="s3cret")
    assert airflow_resolver().text("hook") == "s3cret"


def test_connection_of_another_type_is_no_schema_registry(connection: Define) -> None:
    connection("kafka_src", conn_type="kafka", extra=KEYS)
    with pytest.raises(ConnectionInvalid, match="of type 'kafka', not http"):
        airflow_resolver().registry("kafka_src")
    connection("empty", conn_type="http", password="s3cret")
    with pytest.raises(ConnectionInvalid, match="no host") as caught:
        airflow_resolver().registry("empty")
    assert "s3cret" not in str(caught.value)


def test_triggerers_fetch_no_registry_connection(connection: Define) -> None:
    """They only read journal and clusters, so a registry's connection may even be missing."""
    connection("kafka_src", conn_type="kafka", extra=KEYS)
    connection("kafka_dst", conn_type="kafka", extra=KEYS)
    spec = parse_spec(
        {
            "migration_id": "m",
            "source": {"conn_id": "kafka_src"},
            "target": {"conn_id": "kafka_dst"},
            "storage": {"journal": "file:///x"},
            "schemas": {"source": "missing_source", "target": "missing_target"},
        }
    )
    assert set(asyncio.run(prefetch(spec))) == {"kafka_src", "kafka_dst"}


def test_secrets_of_aws_are_read_with_the_configured_connection(
    connection: Callable[..., None], s3_in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without an identity of its own; a triggerer passes the connection in."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config, name = s3_in_process.config, uuid.uuid4().hex
    keys = {"aws_access_key_id": config.aws_access_key_id, "aws_secret_access_key": config.aws_secret_access_key}
    options: dict[str, Any] = {"endpoint_url": config.endpoint_url, "region_name": "eu-west-1", **keys}
    boto3.client("secretsmanager", **options).create_secret(Name=name, SecretString="the secret")
    boto3.client("ssm", **options).put_parameter(Name=f"/{name}", Value="the parameter", Type="SecureString")
    fields = {"conn_type": "aws", "login": config.aws_access_key_id, "password": config.aws_secret_access_key}
    extra = {"region_name": "eu-west-1", "endpoint_url": config.endpoint_url}
    connection("aws_secrets", **fields, extra=extra)
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SECRETS_AWS_CONN_ID", "aws_secrets")
    assert airflow_resolver().text(f"secretsmanager:{name}") == "the secret"
    assert airflow_resolver().text(f"ssm:/{name}") == "the parameter"
    with pytest.raises(SecretNotFound):
        airflow_resolver().text(f"secretsmanager:{name}?region=us-east-1")

    monkeypatch.delenv("AIRFLOW_CONN_AWS_SECRETS")
    with pytest.raises(ConnectionInvalid, match="no connection 'aws_secrets'"):
        airflow_resolver().text(f"secretsmanager:{name}")
    found = Connection(conn_id="aws_secrets", **fields, extra=json.dumps(extra))
    assert airflow_resolver({"aws_secrets": found}).text(f"secretsmanager:{name}") == "the secret"
