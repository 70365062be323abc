"""One connection's librdkafka keys become settings of both clients, or an error that says what to write instead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.kafka.config import HINTS, HONOURED_KEYS, KEYS_WITHOUT_EFFECT, ClientConfig

SASL_SSL = {
    "bootstrap.servers": "b1:9096,b2:9096",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "migrator",
    "sasl.password": "kafka-secret",
}


def parse(**changes: Any) -> ClientConfig:
    return ClientConfig.from_librdkafka({**SASL_SSL, **changes}, "source")


def problems(keys: dict[str, Any]) -> list[str]:
    with pytest.raises(ConnectionInvalid) as caught:
        ClientConfig.from_librdkafka(keys, "source")
    assert "the source connection has" in caught.value.what
    assert caught.value.where.cluster == "source"
    assert caught.value.next_step
    found: list[str] = caught.value.details["problems"]
    assert all(problem in str(caught.value) for problem in found)
    return found


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("sasl.jaas.config", "sasl.username and sasl.password"),
        ("ssl.truststore.location", "ssl.ca.location"),
        ("ssl.keystore.location", "ssl.certificate.location and ssl.key.location"),
        ("sasl.kerberos.kinit.cmd", "sasl.kerberos.keytab"),
        ("sasl.kerberos.realm", "write sasl.kerberos.service.name"),
        ("sasl.oauthbearer.config", "sasl.oauthbearer.method oidc"),
        ("sasl.oauthbearer.metadata.authentication.type", "not supported"),
        ("enable.sasl.oauthbearer.unsecure.jwt", "without a signature"),
        ("oauth_cb", "code"),
        ("stats_cb", "code"),
        ("ssl.cipher.suites", "remove it"),
        ("ssl.crl.location", "not supported"),
        ("bootstrap_servers", "write bootstrap.servers"),
        ("security_protocol", "write security.protocol"),
        ("sasl_plain_username", "write sasl.username"),
        ("SASL.USERNAME", "write sasl.username"),
        ("ssl-ca-location", "write ssl.ca.location"),
        ("sasl.pasword", "did you mean sasl.password?"),
        ("no.such.thing", "remove it"),
    ],
)
def test_unknown_and_unsupported_keys_are_named_with_what_to_write_instead(key: str, instead: str) -> None:
    (found,) = problems({**SASL_SSL, key: "a-secret-value"})
    assert found.startswith(f"{key}: ")
    assert instead in found
    assert "a-secret-value" not in found


def test_all_problems_come_at_once() -> None:
    found = problems(
        {"security.protocol": "TLS", "sasl.jaas.config": "x", "ssl.endpoint.identification.algorithm": "on"}
    )
    assert [problem.split()[0] for problem in found] == [
        "sasl.jaas.config:",
        "ssl.endpoint.identification.algorithm",
        "bootstrap.servers",
        "security.protocol",
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sasl.mechanism": None}, "sasl.mechanism is missing"),
        ({"sasl.mechanism": "NTLM"}, "sasl.mechanism is 'NTLM': use one of PLAIN"),
        ({"sasl.password": None}, "sasl.password is missing"),
        ({"sasl.password": ""}, "sasl.password is missing"),
        ({"security.protocol": "PLAINTEXT"}, "sasl.username is given, but security.protocol is PLAINTEXT"),
        ({"security.protocol": None}, "sasl.username is given, but security.protocol is PLAINTEXT"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/ca"}, "write SASL_SSL"),
        ({"ssl.certificate.location": "/c"}, "ssl.key.location is missing"),
        ({"ssl.key.pem": "k"}, "ssl.certificate.pem is missing"),
        ({"sasl.mechanism": "SCRAM_SHA_512"}, "sasl.mechanism is 'SCRAM_SHA_512': write SCRAM-SHA-512"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, 'write sasl.mechanism OAUTHBEARER and "msk"'),
        ({"security.protocol": "SASL-SSL"}, "security.protocol is 'SASL-SSL': write SASL_SSL"),
        ({"security.protocol": "tls"}, "security.protocol is 'TLS': write SSL"),
        ({"ssl.endpoint.identification.algorithm": ""}, "use one of https, none; Java's empty value is none"),
        (
            {"sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
            'write sasl.mechanism OAUTHBEARER and "msk"',
        ),
        ({"bootstrap.servers": "b1:9092;b2:9092"}, "separates addresses by ';': write commas"),
        ({"bootstrap.servers": "b1:9092 ; b2:9092"}, "separates addresses by ';': write commas"),
        ({"bootstrap.servers": "b1:9092 b2:9092"}, "by spaces or line breaks: write commas"),
        ({"bootstrap.servers": "b1:9092\nb2:9092"}, "by spaces or line breaks: write commas"),
        ({"bootstrap.servers": '["b1:9092", "b2:9092"]'}, "quotation marks or brackets"),
        ({"bootstrap.servers": "'b1:9092'"}, "quotation marks or brackets"),
        ({"bootstrap.servers": "\u201cb1:9092\u201d"}, "quotation marks or brackets"),
        ({"bootstrap.servers": "[b1:9092]"}, "quotation marks or brackets"),
        ({"bootstrap.servers": "https://b1:9092"}, "a web service: write the brokers' host:port"),
        ({"bootstrap.servers": "b1:9092/kafka"}, "a path behind the port"),
        ({"bootstrap.servers": "b1,b2:9092"}, "has 'b1' without a port: write host:port, for instance b1:9092"),
        ({"bootstrap.servers": "b1:9092:9093"}, "has 'b1:9092:9093': write host:port"),
        ({"bootstrap.servers": "${BROKERS}"}, "a placeholder that nobody has replaced"),
        ({"bootstrap.servers": "b1"}, "write host:port"),
        ({"bootstrap.servers": "b1:99999"}, "write host:port"),
        ({"bootstrap.servers": "b1:9092,,"}, "write host:port"),
        ({"enable.ssl.certificate.verification": "maybe"}, "use one of true, false"),
        ({"sasl.username": {"a": 1}}, "sasl.username is not text"),
        ({"sasl.password": "hunter2\n"}, "sasl.password begins or ends with a line break or tab"),
        ({"sasl.username": "\tann"}, "sasl.username begins or ends with a line break or tab"),
        ({"sasl.password": "${KAFKA_PASSWORD}"}, "sasl.password is a placeholder that nobody has replaced"),
        ({"sasl.username": "<your user>"}, "sasl.username is a placeholder"),
        (
            {"ssl.ca.pem": "-----BEGIN CERTIFICATE-----\\nMIIB"},
            "ssl.ca.pem has line breaks written as a backslash and an n",
        ),
        ({"brokers": "b1:9092"}, "brokers: write bootstrap.servers"),
        ({"username": "ann"}, "username: write sasl.username"),
        ({"extra": {"client.id": "a"}}, "extra: write its keys directly"),
    ],
)
def test_keys_that_do_not_go_together(changes: dict[str, Any], problem: str) -> None:
    (found,) = problems({key: value for key, value in {**SASL_SSL, **changes}.items() if value is not None})
    assert problem in found


def test_a_password_in_an_address_is_never_quoted() -> None:
    (found,) = problems({**SASL_SSL, "bootstrap.servers": "SASL_SSL://ann:hunter2@b1:9092"})
    assert "before an '@': write only host:port, and sasl.username and sasl.password" in found
    assert "hunter2" not in found


def test_keys_of_ordinary_clients_have_no_effect() -> None:
    plain = dict.fromkeys(KEYS_WITHOUT_EFFECT, "1")
    assert parse(**plain) == parse()


def test_every_key_has_one_verdict() -> None:
    assert not HONOURED_KEYS & KEYS_WITHOUT_EFFECT
    assert not HINTS.keys() & (HONOURED_KEYS | KEYS_WITHOUT_EFFECT)


def test_what_both_clients_get() -> None:
    config = parse(**{"ssl.ca.location": "/ca.pem", "ssl.endpoint.identification.algorithm": "none"})
    assert config.bootstrap == (("b1", 9096), ("b2", 9096))
    assert (config.protocol, config.mechanism, config.username) == ("SASL_SSL", "SCRAM-SHA-512", "migrator")
    assert not config.check_hostname
    theirs = config.librdkafka()
    assert theirs["ssl.endpoint.identification.algorithm"] == "none"
    assert theirs["ssl.ca.location"] == "/ca.pem"
    assert theirs["sasl.password"] == "kafka-secret"


def test_confluent_kafka_takes_them() -> None:
    for changes in ({}, {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}):
        producer = confluent_kafka.Producer(parse(**changes).librdkafka(), logger=logging.getLogger("test"))
        producer.purge()


def test_secrets_are_not_shown() -> None:
    config = parse(
        **{"ssl.key.pem": "key-secret", "ssl.certificate.pem": "certificate", "ssl.key.password": "pass-secret"}
    )
    assert "secret" not in repr(config)
    assert "secret" not in str(config)


def test_addresses_of_all_kinds() -> None:
    config = parse(**{"bootstrap.servers": "PLAINTEXT://h:1, [::1]:2"})
    assert config.bootstrap == (("h", 1), ("::1", 2))
    assert config.librdkafka()["bootstrap.servers"] == "h:1,[::1]:2"
    more = parse(**{"bootstrap.servers": "kafka+ssl://h:1,EXTERNAL://x_1.example:2,[fe80::1%eth0]:3,::1:4"})
    assert more.bootstrap == (("h", 1), ("x_1.example", 2), ("fe80::1%eth0", 3), ("::1", 4))
    assert ClientConfig.from_librdkafka({"metadata.broker.list": "h:1"}, "target").bootstrap == (("h", 1),)


def test_without_an_authority_both_clients_trust_what_python_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "company.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "company.pem"))
    assert parse().librdkafka()["ssl.ca.location"] == str(tmp_path / "company.pem")
    assert "ssl.ca.location" not in parse(**{"ssl.ca.pem": "-----BEGIN"}).librdkafka()


def test_tls_files_that_cannot_be_used_are_the_connections_mistake(tmp_path: Any) -> None:
    missing = parse(**{"ssl.ca.location": str(tmp_path / "no.pem")})
    with pytest.raises(ConnectionInvalid, match=r"ssl\.ca\.location .*is no file .*no\.pem"):
        missing.ssl_context()
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ConnectionInvalid, match="cannot be loaded"):
        parse(**{"ssl.ca.location": str(tmp_path / "bad.pem")}).ssl_context()


def test_an_encrypted_key_without_its_pass_phrase_is_an_error_and_no_question(tmp_path: Any) -> None:
    from cryptography.hazmat.primitives import serialization

    from harness.certificates import Authority

    authority = Authority(tmp_path)
    authority.create()
    pair = authority.client("alice")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"phrase"),
    ).decode()
    files = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(tmp_path / "locked.key")}
    (tmp_path / "locked.key").write_text(locked)
    pems = {"ssl.certificate.pem": pair.certificate.read_text(), "ssl.key.pem": locked}
    for keys in (files, pems):
        with pytest.raises(ConnectionInvalid, match=r"ssl\.key\.password"):
            parse(**keys).ssl_context()
        with pytest.raises(ConnectionInvalid, match=r"ssl\.key\.password"):
            parse(**keys, **{"ssl.key.password": "wrong"}).ssl_context()
        assert parse(**keys, **{"ssl.key.password": "phrase"}).ssl_context() is not None


@pytest.mark.parametrize("value", ["a$b", "$ConnectionString", "p${x}q", "<", "{{", " two words "])
def test_a_password_may_be_almost_anything(value: str) -> None:
    assert ClientConfig.from_librdkafka({**SASL_SSL, "sasl.password": value}, "source").password == value


def test_keys_that_a_form_leaves_empty_are_as_if_they_were_missing() -> None:
    """Otherwise one client would trust the machine's authorities, and the other one none."""
    empty = {"ssl.ca.location": "", "ssl.ca.pem": "", "ssl.certificate.location": "", "ssl.key.location": ""}
    found = ClientConfig.from_librdkafka({**SASL_SSL, **empty}, "source")
    assert found == ClientConfig.from_librdkafka(SASL_SSL, "source")
    assert found.ssl_context() is not None


@pytest.mark.parametrize("path", ["~/ca.pem", "/no/such/ca.pem", ""])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, path: str) -> None:
    place = path or str(tmp_path)
    config = ClientConfig.from_librdkafka({**SASL_SSL, "ssl.ca.location": place}, "source")
    with pytest.raises(ConnectionInvalid) as caught:
        config.ssl_context()
    assert f"ssl.ca.location of the source connection is no file on this machine: {place}" in caught.value.what
    assert "ssl.ca.pem" in caught.value.next_step
