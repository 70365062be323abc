"""Secrets in plain text: refused in a spec with the path and the form to use, and never repeated."""

from __future__ import annotations

import base64
import re
from random import Random
from typing import Any

import pytest
from journal_support import opener

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.journal.spec_guard import flatten, guard_spec
from airflow_provider_kafka_migration.plain_secrets import shown_address, why_no_plain_address
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.conflicts import CONNECTIONS, SECRETS
from airflow_provider_kafka_migration.storage.local import LocalStore

TOKEN = "aZ3k9Qw7Lm2Xc8Vb5Nd1"


def spec(**sections: Any) -> dict[str, Any]:
    return {
        "migration_id": "m1",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/m1"},
        **sections,
    }


def webhook(address: str) -> dict[str, Any]:
    return spec(cutover={"freeze": "webhook", "producer_freeze_webhook": address})


def mistakes(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(data)
    assert TOKEN not in str(caught.value)
    assert TOKEN not in str(caught.value.as_dict())
    return {item["path"]: item["reason"] for item in caught.value.details["mistakes"]}


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (f"https://bob:{TOKEN}@hooks.example/freeze", "user name or password"),
        (f"https://{TOKEN}@hooks.example/freeze", "user name or password"),
        (f"https://hooks.example/freeze?token={TOKEN}", "query"),
        ("https://hooks.example/freeze?", "query"),
        (f"https://hooks.example/freeze#{TOKEN}", "fragment"),
        (f"https://hooks.example/freeze/{TOKEN}", "looks like a token"),
        ("https://hooks.example/6f1c2a9e-3b7d-4c51-9a0e-8d2f4b6c7e10/freeze", "looks like a token"),
    ],
)
def test_a_webhook_address_with_more_than_a_place_is_refused(address: str, why: str) -> None:
    found = mistakes(webhook(address))
    assert set(found) == {"cutover.producer_freeze_webhook"}
    reason = found["cutover.producer_freeze_webhook"]
    assert why in reason
    for form in ("env:NAME", "file:PATH", "airflow:CONN_ID"):
        assert form in reason


@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.example/freeze",
        "http://hooks.example:8080/v1/clusters/orders2026/freeze/kafka-orders-eu-west-1-prod-2-2026-04",
        "http://127.0.0.1:41235/freeze",
        "https://hooks.example/freezeKafkaProducersOfOrders",
        "env:FREEZE_WEBHOOK",
        "file:/run/secrets/freeze-webhook",
        "airflow:freeze_webhook",
        "vault:secret/hooks#freeze",
        "gcp-sm:project/freeze",
        "secretsmanager:hooks/freeze?version=AWSPREVIOUS",
        "ssm:/hooks/freeze",
    ],
)
def test_plain_places_and_references_are_taken(address: str) -> None:
    assert parse_spec(webhook(address)).cutover.producer_freeze_webhook == address


@pytest.mark.parametrize("address", ["hooks.example/freeze", "freeze_webhook", "env:", "gopher:x", "env:A B"])
def test_what_is_neither_address_nor_reference_is_a_mistake(address: str) -> None:
    assert set(mistakes(webhook(address))) == {"cutover.producer_freeze_webhook"}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"https://bob:{TOKEN}@hooks.example:8443/x/{TOKEN}?a={TOKEN}#{TOKEN}", "https://hooks.example:8443"),
        (f"HTTPS://hooks.example/{TOKEN}", "https://hooks.example"),
        ("http://[::1]:80/x", "http://[::1]:80"),
        (f"https://{TOKEN}:x@[bad/", "the webhook"),
        ("env:FREEZE_WEBHOOK", "env:FREEZE_WEBHOOK"),
    ],
)
def test_of_an_address_only_its_place_is_shown(address: str, shown: str) -> None:
    assert shown_address(address) == shown


def test_addresses_in_capitals_are_looked_at_too() -> None:
    assert "query" in why_no_plain_address(f"HTTPS://hooks.example/?t={TOKEN}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.ssl.keyStorePassword", "changeit"),
        ("spark.authenticate.secret", "env:SPARK_SECRET"),
        ("spark.hadoop.fs.s3a.secret.key", TOKEN),
        ("spark.hadoop.fs.s3a.access.key", "AK"),
        ("spark.hadoop.fs.s3a.session.token", TOKEN),
        ("spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net", TOKEN),
        ("spark.executorEnv.DB_PASSWORD", "x"),
        ("spark.executorEnv.KAFKA_MIGRATION_SOURCE", f'{{"sasl.password": "{TOKEN}"}}'),
        ("spark.driver.extraJavaOptions", f"-Dx=1 -Djavax.net.ssl.trustStorePassword={TOKEN}"),
        ("spark.hadoop.proxy", f"http://bob:{TOKEN}@proxy:3128"),
    ],
)
def test_spark_conf_holds_no_secret_and_no_reference_to_one(key: str, value: str) -> None:
    """Spark cannot resolve references, and shows its conf in its arguments."""
    found = mistakes(spec(spark={"conf": {key: value, "spark.executor.memory": "1g"}}))
    assert set(found) == {f"spark.conf.{key}"}
    assert "spark-defaults.conf" in found[f"spark.conf.{key}"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.executor.memory", "1g"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.amazonaws.auth.DefaultAWSCredentialsProviderChain"),
        ("spark.kubernetes.driver.secrets.kafka-token", "/etc/secrets"),
        ("spark.kubernetes.executor.secretKeyRef.DB_PASSWORD", "name:key"),
        ("spark.authenticate.secret.file", "/run/secrets/spark"),
        ("spark.kubernetes.authenticate.oauthTokenFile", "/run/token"),
        ("spark.redaction.regex", "(?i)secret|password|token"),
        ("spark.network.crypto.keyLength", "128"),
        ("spark.authenticate", "true"),
        ("spark.driver.extraJavaOptions", "-Djava.security.auth.login.config=/etc/jaas.conf"),
    ],
)
def test_ordinary_spark_conf_is_taken(key: str, value: str) -> None:
    assert parse_spec(spec(spark={"conf": {key: value}})).spark.conf == {key: value}


@pytest.mark.parametrize(
    ("kwargs", "path"),
    [
        ({"password": "changeit"}, "password"),
        ({"api_key": TOKEN}, "api_key"),
        ({"slack_token": TOKEN}, "slack_token"),
        ({"integrationKey": TOKEN}, "integrationKey"),
        ({"password": 123456}, "password"),
        ({"headers": {"Authorization": f"Bearer {TOKEN}"}}, "headers.Authorization"),
        ({"to": ["ops", {"token": TOKEN}]}, "to[1].token"),
        ({"url": f"https://hooks.example/services/T0/{TOKEN}"}, "url"),
        ({"url": f"https://hooks.example/?sig={TOKEN}"}, "url"),
        ({"url": "https://bob:x@hooks.example/"}, "url"),
        ({"text": "header: xoxb-" + "123456789012-abcdefghijkl"}, "text"),
    ],
)
def test_a_notifier_gets_secrets_by_reference(kwargs: dict[str, Any], path: str) -> None:
    found = mistakes(spec(notifications={"notifier": "a.B", "kwargs": kwargs}))
    assert set(found) == {f"notifications.kwargs.{path}"}
    assert "env:NAME" in found[f"notifications.kwargs.{path}"]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"slack_webhook_conn_id": "slack", "text": "{{ migration_message }}"},
        {"password": "env:SMTP_PASSWORD", "token": "airflow:notifier", "api_key": "file:/run/secrets/key"},
        {"token": "{{ conn.notifier.password }}"},
        {"password": "", "token": None, "use_token": True, "secret": False},
        {"icon_url": "https://example.org/logo.png?size=2", "to": ["ops@example.org"], "dedup_key": "orders-migration"},
        {"text": "the token of the cutover is in the runbook"},
    ],
)
def test_ordinary_arguments_are_taken(kwargs: dict[str, Any]) -> None:
    assert parse_spec(spec(notifications={"notifier": "a.B", "kwargs": kwargs})).notifications.kwargs == kwargs


def test_they_are_told_with_all_other_mistakes() -> None:
    data = webhook(f"https://hooks.example/?{TOKEN}") | {"colour": "red", "spark": {"conf": {"a.token": TOKEN}}}
    data["cutover"]["max_producer_freeze"] = "soon"
    assert set(mistakes(data)) == {
        "colour",
        "cutover.max_producer_freeze",
        "cutover.producer_freeze_webhook",
        "spark.conf.a.token",
    }


def test_a_spec_of_an_earlier_version_is_still_read_from_its_journal() -> None:
    """Refusing it would leave producers frozen: nobody can correct a journal."""
    data = webhook(f"https://hooks.example/freeze?token={TOKEN}")
    data |= {"spark": {"conf": {"spark.ssl.keyPassword": "x"}}, "notifications": {"kwargs": {"token": TOKEN}}}
    assert parse_spec(data, recorded=True).cutover.producer_freeze_webhook == data["cutover"]["producer_freeze_webhook"]
    data["colour"] = "red"
    with pytest.raises(SpecInvalid, match=r"1 mistake in the spec: colour"):
        parse_spec(data, recorded=True)


def test_spark_conf_may_name_the_sealing_key_but_not_hold_it() -> None:
    name = "spark.executorEnv.KAFKA_MIGRATION_SEALING_KEY"
    for reference in ("secretsmanager:kafka-migration-key", "file:/etc/kafka-migration.key", "gcp-sm:project/key"):
        assert list(plain_secrets.in_spark_conf("spark.conf", {name: reference})) == []
    found = list(plain_secrets.in_spark_conf("spark.conf", {name: "kmpriv1_" + "A" * 43}))
    assert [path for path, _ in found] == [f"spark.conf.{name}"]
    assert "AAAA" not in found[0][1]


# -- references ------------------------------------------------------------------------------------------------------

SEED = "24cd57aa" * 8
BASE64_SEED = "3q2+7wAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def with_value(path: str, value: str) -> dict[str, Any]:
    data: dict[str, Any] = spec()
    *sections, key = path.split(".")
    place = data
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    return data


@pytest.mark.parametrize("secret", [SEED, SEED.upper(), SEED * 2, BASE64_SEED, f"airflow:{SEED}", f"env:{BASE64_SEED}"])
@pytest.mark.parametrize("path", [*SECRETS, *CONNECTIONS, "acls.users.ann"])
def test_a_key_is_no_reference_in_any_field_and_is_not_repeated(path: str, secret: str) -> None:
    data = with_value(path, secret)
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(data)
    assert path in {item["path"] for item in caught.value.details["mistakes"]}
    assert SEED not in repr(caught.value.as_dict()).lower()
    assert BASE64_SEED not in repr(caught.value.as_dict())


@pytest.mark.parametrize("path", [*SECRETS, "acls.users.ann"])
def test_a_field_for_a_secret_wants_a_scheme(path: str) -> None:
    """A text without one cannot be told from the secret itself."""
    assert path in mistakes(with_value(path, "hunter2-very-secret"))
    for reference in ("env:K", "file:/run/key", "file:key", "airflow:evidence_key", "vault:kv/key#seed", "ssm:/a/b"):
        parse_spec(with_value(path, reference))


@pytest.mark.parametrize("path", CONNECTIONS)
@pytest.mark.parametrize("secret", ["https://ann:pw@registry", "AKIAABCDEFGHIJKLMNOP", '{"sasl.password": "hunter2"}'])
def test_a_connection_is_named_not_written_out(path: str, secret: str) -> None:
    assert path in mistakes(with_value(path, secret))


@pytest.mark.parametrize(
    "name", ["kafka_old", "env:SOURCE", "file:/etc/kafka.json", "team_source-cluster-in-frankfurt_production2"]
)
def test_names_of_connections_are_taken(name: str) -> None:
    parse_spec(with_value("source.conn_id", name))


def test_every_field_for_a_reference_is_checked() -> None:
    """A new field whose name or description speaks of secrets or connections belongs into one of the two tables."""
    # Addresses, public keys and arguments, which have checks of their own.
    others = {"cutover.producer_freeze_webhook", "evidence.public_key", "spark.sealing_key", "notifications.kwargs"}
    others |= {"acls.users", "spark.conf", "spark.engine_args", "notifications.notifier", "spark.executor_references"}
    others |= {"source.name", "target.name", "source.principal", "target.principal", "schemas.exclude"}
    wanted = set()
    for section, field in MigrationSpec.model_fields.items():
        kind = field.annotation
        for name, item in getattr(kind, "model_fields", {}).items():
            text = f"{name} {item.description or ''}"
            takes_text = "str" in str(item.annotation) and "Literal" not in str(item.annotation)
            if takes_text and re.search(r"conn_id|_key\b|secret|reference|connection|Registry of", text):
                wanted.add(f"{section}.{name}")
    assert wanted - others <= {*SECRETS, *CONNECTIONS}
    assert {*SECRETS, *CONNECTIONS} <= wanted


def test_a_seed_that_an_earlier_version_journaled_is_not_repeated(local_store: LocalStore) -> None:
    old = parse_spec(with_value("evidence.signing_key", SEED), recorded=True).model_dump(mode="json")
    journal = opener(local_store)()
    assert SEED not in repr(flatten(old))
    guard_spec(journal, old)
    guard_spec(journal, parse_spec(with_value("evidence.signing_key", "airflow:key")).model_dump(mode="json"))
    assert SEED not in repr([entry.details for entry in journal.entries()])


# -- keys, and what only looks like one --------------------------------------------------------------------------------


def test_keys_are_told_from_paths_of_the_same_length() -> None:
    random = Random(25)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for size in (32, 64):
            keys = [encode(random.randbytes(size)).decode() for _ in range(2_000)]
            assert all(plain_secrets.is_key(key) for key in keys)
            bare = [key.rstrip("=") for key in keys]
            # One in a thousand has as few changes as a name.
            assert sum(map(plain_secrets.is_key, bare)) >= len(bare) - 10
    assert plain_secrets.is_key(random.randbytes(32).hex())


@pytest.mark.parametrize("length", [43, 86])
@pytest.mark.parametrize(
    "place",
    [
        "file:/run/secrets/Kafka-Migration/evidence2/",
        "file:/data/Alice/KafkaMigration/Secrets2026/",
        "ssm:/Prod1/EU-West-1/KafkaMigration/Signing/",
        "env:KAFKA_MIGRATION_EVIDENCE_SIGNING_KEY_2026_a",
        "airflow:KafkaMigrationEvidenceOfProduction2026",
    ],
)
def test_a_path_or_a_name_of_a_keys_length_is_a_reference(place: str, length: int) -> None:
    scheme, _, start = place.partition(":")
    reference = f"{scheme}:{(start + '/signing-key' * 8)[:length]}"
    assert len(reference) == len(scheme) + 1 + length
    found = parse_spec(spec(evidence={"signing_key": reference}, source={"conn_id": reference}))
    assert (found.evidence.signing_key, found.source.conn_id) == (reference, reference)


@pytest.mark.parametrize(
    "reference",
    [
        "file:/run/secrets/a@b/x.json",
        "secretsmanager:prod/kafka@eu-west-1#connection",
        "vault:kv/team@corp/kafka",
        "ssm:/users/a@b/kafka",
    ],
)
def test_an_at_sign_in_a_path_is_no_login(reference: str) -> None:
    assert parse_spec(spec(source={"conn_id": reference})).source.conn_id == reference


@pytest.mark.parametrize(
    "value",
    [
        f"alice@{TOKEN}",
        f"alice:{TOKEN}@broker:9092",
        f"file:alice:{TOKEN}@broker",
        f"airflow:a@{TOKEN}",
        f"env:a@{TOKEN}",
    ],
)
def test_a_login_is_no_connection(value: str) -> None:
    assert set(mistakes(spec(source={"conn_id": value}))) == {"source.conn_id"}
