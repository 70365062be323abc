"""What people write where a connection or a secret is named, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.spec import parse_spec

TOKEN = "aZ3k9Qw7Lm2Xc8Vb5Nd1"


def minimal(**sections: Any) -> dict[str, Any]:
    return {
        "migration_id": "m",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/m"},
        **sections,
    }


def mistakes(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(data)
    assert TOKEN not in str(caught.value.as_dict())
    return {item["path"]: item["reason"] for item in caught.value.details["mistakes"]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("broker-1:9092", "the addresses of brokers"),
        ("b1:9092,b2:9092", "the addresses of brokers"),
        ('{"bootstrap.servers": "b1:9092"}', "the content of a connection"),
        ("$KAFKA", "a placeholder"),
        ("${KAFKA}", "a placeholder"),
        ("kafka source", "has spaces"),
        ("env:", "names nothing behind the colon"),
        ("env: KAFKA", "needs a name without spaces"),
        ("ENV:KAFKA", "did you mean env:?"),
        ("valt:secret/kafka", "did you mean vault:?"),
        ("vault:secret/kafka?versio=1", "malformed: versio"),
        ("file:ann:hunter2@broker", "the address and the login"),
        ("secretsmanager:ann:hunter2@broker", "the address and the login"),
    ],
)
def test_what_names_no_connection_is_a_mistake(value: str, reason: str) -> None:
    data = minimal(source={"conn_id": value})
    assert reason in mistakes(data)["source.conn_id"]
    assert parse_spec(data, recorded=True).source.conn_id == value


@pytest.mark.parametrize(
    "value",
    [
        *("kafka_source", "kafka.source-1", "team/kafka", "my-team:kafka", "airflow:kafka", "env:KAFKA"),
        *("file:/run/secrets/kafka", "file:kafka.json", "file:/my folder/kafka.json", "{{ var.value.kafka }}"),
        "secretsmanager:arn:aws:secretsmanager:eu-west-1:123456789012:secret:team@prod/kafka-AbCdEf",
        *("file:C:\\Users\\ann@example\\kafka.json", "vault:kv/team@prod/kafka"),
        *("vault:secret/kafka?version=1#json", "ssm:/kafka", "gcp-sm:project/kafka", "secretsmanager:prod/kafka"),
    ],
)
def test_what_may_name_a_connection_is_taken(value: str) -> None:
    assert parse_spec(minimal(source={"conn_id": value})).source.conn_id == value


def test_a_registry_of_glue_is_left_to_the_precheck() -> None:
    found = parse_spec(minimal(schemas={"source": "registry", "target": "glue:my-registry"}))
    assert found.schemas.target == "glue:my-registry"


def test_a_malformed_reference_to_a_secret_is_named() -> None:
    found = mistakes(
        minimal(
            evidence={"signing_key": "vault:secret/key?versio=1"},
            acls={"users": {"ann": "ssm:/ann?nonsense=1"}},
        )
    )
    assert set(found) == {"evidence.signing_key", "acls.users.ann"}


def test_a_location_has_no_query() -> None:
    found = mistakes(minimal(storage={"journal": f"s3://bucket/m?X-Amz-Signature={TOKEN}"}))
    assert set(found) == {"storage.journal"}


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"token": f"dapi{TOKEN}"}, "token"),
        ({"env": {"AWS_SECRET_ACCESS_KEY": TOKEN}}, "env.AWS_SECRET_ACCESS_KEY"),
        ({"spark_env_vars": {"DB_PASSWORD": "{{secrets/a/b}}" + TOKEN}}, "spark_env_vars.DB_PASSWORD"),
        ({"hosts": [{"url": f"https://ann:{TOKEN}@host/"}]}, "hosts[0].url"),
        ({"secrets": {"KEY": f"https://ann:{TOKEN}@host/"}}, "secrets.KEY"),
    ],
)
def test_arguments_of_an_engine_hold_no_secret(arguments: dict[str, Any], path: str) -> None:
    """They are journaled as they are."""
    data = minimal(spark={"engine": "databricks", "engine_args": arguments})
    assert set(mistakes(data)) == {f"spark.engine_args.{path}"}
    assert parse_spec(data, recorded=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {
            "conn_id": "databricks_default",
            "secret_scope": "migrations",
            "secret_variables": {"DB_PASSWORD": "scope/key"},
        },
        {"secrets": {"KAFKA_TOKEN": "projects/p/secrets/kafka", "API_KEY": "arn:aws:secretsmanager:x:1:secret:y"}},
        {"kubernetes_secrets": {"KAFKA_PASSWORD": {"name": "kafka", "key": "password"}}},
        {"log_key_arn": "arn:aws:kms:eu-west-1:1:key/6f1c2a9e-3b7d-4c51-9a0e-8d2f4b6c7e10", "kms_key": "a/b"},
        {"new_cluster": {"spark_env_vars": {"DB_PASSWORD": "{{secrets/migrations/db}}"}}},
        {"aws_conn_id": "aws", "region": "eu-west-1", "token": None, "conf": {"spark.executor.cores": 4}},
    ],
)
def test_names_of_secrets_in_the_service_s_own_store_are_taken(arguments: dict[str, Any]) -> None:
    assert parse_spec(minimal(spark={"engine": "x", "engine_args": arguments})).spark.engine_args == arguments
