"""The Java client's settings for connections that are written for librdkafka."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.spark.frames import java_client
from airflow_provider_kafka_migration.spark.frames.java_client import java_settings

ONE, TWO, THREE = (
    f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----" for text in ("b25l", "dHdv", "dGhyZWU=")
)
KEY = "-----BEGIN PRIVATE KEY-----\na2V5\n-----END PRIVATE KEY-----"
TLS = {"security.protocol": "SSL"}


def settings(**keys: Any) -> dict[str, str]:
    given = {name.replace("__", "."): value for name, value in keys.items()}
    return java_settings(ClientConfig.from_librdkafka({"bootstrap.servers": "b-1.example:9098", **given}, "source"))


def of(keys: dict[str, Any]) -> dict[str, str]:
    return settings(**keys)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What this machine trusts."""
    paths = SimpleNamespace(cafile=None, capath=None, folder=tmp_path / "certs")
    paths.folder.mkdir()
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    return paths


def test_the_authorities_of_the_machine_are_those_that_the_other_clients_trust(machine: SimpleNamespace) -> None:
    bundle = machine.folder / "bundle.pem"
    bundle.write_text(f"# Some authority\n{ONE}\n\n# Another\n{TWO}\n")
    machine.cafile = str(bundle)
    found = of(TLS)
    assert found["ssl.truststore.type"] == "PEM"
    assert found["ssl.truststore.certificates"] == f"{ONE}\n{TWO}"


def test_a_folder_of_authorities_has_each_once(machine: SimpleNamespace) -> None:
    for name, text in (("a.pem", ONE), ("12345678.0", ONE), ("b.crt", TWO)):
        (machine.folder / name).write_text(text)
    (machine.folder / "java").mkdir()
    machine.capath = str(machine.folder)
    assert of(TLS)["ssl.truststore.certificates"].count("BEGIN") == 2


def test_without_a_list_java_uses_its_own(machine: SimpleNamespace) -> None:
    assert not any(name.startswith("ssl.truststore") for name in of(TLS))


def test_an_authority_of_the_connection_is_the_only_one(machine: SimpleNamespace, tmp_path: Path) -> None:
    (machine.folder / "a.pem").write_text(ONE)
    machine.capath = str(machine.folder)
    own = tmp_path / "own.pem"
    own.write_text(THREE)
    assert of({**TLS, "ssl.ca.location": str(own)})["ssl.truststore.certificates"] == THREE
    assert of({**TLS, "ssl.ca.pem": THREE})["ssl.truststore.certificates"] == THREE
    own.write_text("nothing")
    with pytest.raises(ConnectionInvalid, match="no certificate in PEM"):
        of({**TLS, "ssl.ca.location": str(own)})


def test_a_file_that_is_not_there_is_named(machine: SimpleNamespace) -> None:
    with pytest.raises(ConnectionInvalid, match=r"/nowhere/ca\.pem cannot be read: No such file") as failed:
        of({**TLS, "ssl.ca.location": "/nowhere/ca.pem"})
    assert "--independent" in failed.value.next_step


def test_client_certificates_are_passed_as_text(machine: SimpleNamespace) -> None:
    found = of({**TLS, "ssl.certificate.pem": ONE, "ssl.key.pem": KEY, "ssl.key.password": "secret"})
    assert (found["ssl.keystore.certificate.chain"], found["ssl.keystore.key"]) == (ONE, KEY)
    assert found["ssl.key.password"] == "secret"
    with pytest.raises(ConnectionInvalid, match="PKCS #8") as failed:
        of({**TLS, "ssl.certificate.pem": ONE, "ssl.key.pem": KEY.replace("PRIVATE", "RSA PRIVATE")})
    assert failed.value.next_step.startswith("convert the key: openssl pkcs8 -topk8")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_passwords_are_quoted(mechanism: str) -> None:
    found = of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "me",
            "sasl.password": 'a"b\\c d;',
        }
    )
    assert found["sasl.mechanism"] == mechanism
    assert found["sasl.jaas.config"].endswith('LoginModule required username="me" password="a\\"b\\\\c d;";')


KERBEROS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"}


def test_kerberos_takes_the_keytab_or_the_ticket_of_the_machine() -> None:
    found = of({**KERBEROS, "sasl.kerberos.keytab": "/k/me.keytab", "sasl.kerberos.principal": "me@R"})
    assert found["sasl.kerberos.service.name"] == "kafka"
    assert found["sasl.jaas.config"] == (
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true" storeKey="true" '
        'keyTab="/k/me.keytab" doNotPrompt="true" principal="me@R";'
    )
    cached = of(KERBEROS)["sasl.jaas.config"]
    assert 'useTicketCache="true"' in cached
    assert "principal" not in cached
    with pytest.raises(ConnectionInvalid, match="first principal") as failed:
        of({**KERBEROS, "sasl.kerberos.keytab": "/k/me.keytab"})
    assert failed.value.next_step.startswith("write sasl.kerberos.principal")


def test_msk_iam_is_amazons_own_mechanism(machine: SimpleNamespace) -> None:
    found = of({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "msk": {"region": "eu-west-1"}})
    assert found["sasl.mechanism"] == "AWS_MSK_IAM"
    assert found["sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert found["sasl.client.callback.handler.class"].endswith("IAMClientCallbackHandler")


OAUTH = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://identity.example/token",
}


def test_oauth_tokens_come_from_the_same_endpoint(machine: SimpleNamespace) -> None:
    found = of(
        {
            **OAUTH,
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
            "https.ca.pem": ONE,
        }
    )
    assert found["sasl.oauthbearer.token.endpoint.url"] == "https://identity.example/token"
    assert found["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    jaas = found["sasl.jaas.config"]
    assert 'clientId="me" clientSecret="s" scope="kafka" extension_logicalCluster="lkc-1"' in jaas
    # JAAS reads a line; Java makes lines of it again.
    assert "\n" not in jaas
    assert ONE.replace("\n", "\\n") in jaas


def test_signed_assertions_are_refused_with_a_way_on(machine: SimpleNamespace) -> None:
    keys = {
        **OAUTH,
        "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "sasl.oauthbearer.assertion.file": "/a.jwt",
    }
    with pytest.raises(ConnectionInvalid, match="signed assertion") as failed:
        of(keys)
    assert "sasl.oauthbearer.client.id" in failed.value.next_step


def test_no_secret_is_in_an_error(machine: SimpleNamespace) -> None:
    with pytest.raises(ConnectionInvalid) as failed:
        of({**TLS, "enable.ssl.certificate.verification": "false", "ssl.key.password": "hidden"})
    assert "hidden" not in str(failed.value)
    assert java_client._quoted('x"') == '"x\\""'
