"""Keys of OIDC and Kerberos: what both clients get, what is refused, and that no secret is shown."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from airflow_provider_kafka_migration import plain_secrets
from airflow_provider_kafka_migration.errors import ConnectionInvalid, KerberosUnsupported
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.auth.kerberos import KerberosSettings
from airflow_provider_kafka_migration.kafka.auth.oidc import JWT_BEARER, OIDC_KEYS
from airflow_provider_kafka_migration.kafka.auth.tokens import TokenSource
from airflow_provider_kafka_migration.kafka.config import KERBEROS_KEYS, ClientConfig

KEY = "sasl.oauthbearer."
SECRETS = {f"{KEY}client.secret": "hidden-secret"}
OIDC = {
    "bootstrap.servers": "b1:9096",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    f"{KEY}method": "oidc",
    f"{KEY}token.endpoint.url": "https://identity.example/token?tenant=hidden-query",
    f"{KEY}client.id": "migrator",
    **SECRETS,
}
SIGNED = {
    f"{KEY}client.id": None,
    f"{KEY}client.secret": None,
    f"{KEY}grant.type": JWT_BEARER,
    f"{KEY}assertion.private.key.pem": "hidden-key",
    f"{KEY}assertion.private.key.passphrase": "hidden-phrase",
}
KERBEROS = {"bootstrap.servers": "b1:9096", "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}


def parse(keys: dict[str, Any], **changes: Any) -> ClientConfig:
    values = {**keys, **changes}
    return ClientConfig.from_librdkafka({key: value for key, value in values.items() if value is not None}, "source")


def problems(keys: dict[str, Any], **changes: Any) -> list[str]:
    with pytest.raises(ConnectionInvalid) as caught:
        parse(keys, **changes)
    assert "hidden" not in str(caught.value)
    found: list[str] = caught.value.details["problems"]
    return found


def test_what_a_token_needs() -> None:
    config = parse(OIDC, **{f"{KEY}scope": "kafka", f"{KEY}extensions": "logicalCluster=lkc-1, identityPoolId=pool-1"})
    assert config.oidc is not None
    assert config.oidc.extensions == (("logicalCluster", "lkc-1"), ("identityPoolId", "pool-1"))
    assert (config.oidc.scope, config.oidc.client_id, config.msk_region) == ("kafka", "migrator", None)
    assert config.oidc.shown_url == "https://identity.example/token"
    assert "hidden" not in repr(config).replace("tenant=hidden-query", "")
    longer = {f"{KEY}client.credentials.client.secret": "hidden-secret", f"{KEY}client.secret": None}
    assert parse(OIDC, **longer).oidc == parse(OIDC).oidc


def test_no_key_of_a_token_reaches_librdkafka_which_asks_our_source(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(OIDC, **{f"{KEY}extensions": "a=b"})
    theirs = config.librdkafka()
    assert not [key for key in theirs if key.startswith(KEY)]
    assert "hidden" not in str(theirs)
    asked: list[str] = []

    class Given:
        value, principal, expires_at_epoch = "token", "me", 2_000_000_000.0

    monkeypatch.setattr(TokenSource, "get", lambda _, cluster: asked.append(cluster) or Given)
    assert theirs["oauth_cb"]("") == ("token", 2_000_000_000.0, "me", {"a": "b"})
    assert asked == ["source"]
    confluent_kafka.Producer(theirs)


def test_the_authorities_of_the_token_endpoint() -> None:
    def trusted(**keys: str) -> tuple[Any, ...]:
        settings = parse(OIDC, **keys).oidc
        assert settings is not None
        return settings.ca_location, settings.ca_pem, settings.trusts_machine

    assert trusted() == (None, None, True)
    assert trusted(**{"ssl.ca.location": "/brokers"}) == ("/brokers", None, True)
    assert trusted(**{"ssl.ca.location": "/brokers", "https.ca.location": "/own"}) == ("/own", None, False)
    assert trusted(**{"ssl.ca.location": "/brokers", "https.ca.pem": "own"}) == (None, "own", False)
    assert trusted(**{"https.ca.location": "probe", "ssl.ca.pem": "brokers"}) == (None, "brokers", True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({f"{KEY}method": None}, "sasl.oauthbearer.method is missing"),
        ({f"{KEY}method": "default"}, "write oidc"),
        ({f"{KEY}client.id": None}, "sasl.oauthbearer.client.id is missing"),
        ({f"{KEY}client.secret": None}, "sasl.oauthbearer.client.secret is missing"),
        ({f"{KEY}token.endpoint.url": None}, "sasl.oauthbearer.token.endpoint.url is missing"),
        ({f"{KEY}token.endpoint.url": "identity.example/hidden"}, "must begin with https://"),
        ({f"{KEY}token.endpoint.url": "https://a:hidden@identity.example/"}, "must not contain a login"),
        ({f"{KEY}token.endpoint.url": "https://identity.example:x/"}, "must begin with https://"),
        ({f"{KEY}token.endpoint.url": "https://identity.example/#hidden"}, "must not have a fragment"),
        ({f"{KEY}extensions": "auth=hidden"}, "and not auth"),
        ({f"{KEY}extensions": "a=b,a=hidden"}, "each name once"),
        ({f"{KEY}extensions": "a=b\x01auth=Bearer hidden"}, "write name=value"),
        ({f"{KEY}grant.type": "password"}, "sasl.oauthbearer.grant.type is 'password': use one of client_credentials"),
        ({f"{KEY}assertion.claim.aud": "a"}, "sasl.oauthbearer.assertion.claim.aud: needs"),
        ({f"{KEY}client.credentials.client.secret": "hidden"}, "give either this or sasl.oauthbearer.client.secret"),
        ({"https.ca.pem": "a", "https.ca.location": "/b"}, "give either this or https.ca.location"),
        ({"msk": {"region": "eu-west-1"}}, "msk: give either this"),
        ({"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "a", "sasl.password": "b"}, "is not OAUTHBEARER"),
        ({"security.protocol": "SSL"}, "is not OAUTHBEARER"),
        ({f"{KEY}metadata.authentication.type": "azure_imds"}, "not supported"),
        ({**SIGNED, f"{KEY}assertion.private.key.pem": None}, "needs sasl.oauthbearer.assertion.file, or one of"),
        ({**SIGNED, f"{KEY}assertion.private.key.file": "/a"}, "or one of"),
        ({**SIGNED, f"{KEY}assertion.algorithm": "HS256"}, "use one of RS256, ES256"),
        ({**SIGNED, f"{KEY}assertion.claim.exp.seconds": "0"}, "at least 1"),
        ({**SIGNED, f"{KEY}assertion.claim.jti.include": "yes"}, "use one of false, true"),
    ],
)
def test_keys_of_oidc_that_do_not_go_together(changes: dict[str, Any], problem: str) -> None:
    (found,) = problems(OIDC, **changes)
    assert problem in found


def test_an_assertion_from_a_file_goes_with_no_key() -> None:
    found = problems(OIDC, **{**SIGNED, f"{KEY}assertion.file": "/a.jwt"})
    assert len(found) == 2
    assert all("does not go with sasl.oauthbearer.assertion.file" in problem for problem in found)


def test_an_assertion() -> None:
    config = parse(OIDC, **{**SIGNED, f"{KEY}assertion.algorithm": "ES256", f"{KEY}assertion.claim.exp.seconds": "60"})
    assert config.oidc is not None
    assertion = config.oidc.assertion
    assert assertion is not None
    assert (assertion.algorithm, assertion.expires_seconds, assertion.not_before_seconds) == ("ES256", 60, 60)
    assert "hidden" not in repr(config).replace("tenant=hidden-query", "")


def test_librdkafka_knows_all_these_keys() -> None:
    """Names that only we understood would be no keys of librdkafka's."""
    values = {
        f"{KEY}method": "default",
        f"{KEY}grant.type": "client_credentials",
        f"{KEY}assertion.algorithm": "RS256",
        f"{KEY}assertion.claim.exp.seconds": "60",
        f"{KEY}assertion.claim.nbf.seconds": "60",
        f"{KEY}assertion.claim.jti.include": "false",
        f"{KEY}extensions": "a=b",
    }
    for key in sorted(OIDC_KEYS | KERBEROS_KEYS):
        if key not in ("https.ca.location", "https.ca.pem"):
            AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, key: values.get(key, "sub")})


# -- Kerberos ----------------------------------------------------------------------------------------------------------


def test_what_a_ticket_needs() -> None:
    assert parse(KERBEROS).kerberos == KerberosSettings("kafka", "", "")
    keys = {"service.name": "broker", "principal": "me@EXAMPLE.COM", "keytab": "FILE:/etc/me.keytab"}
    config = parse(KERBEROS, **{f"sasl.kerberos.{key}": value for key, value in keys.items()})
    assert config.kerberos == KerberosSettings("broker", "me@EXAMPLE.COM", "/etc/me.keytab")
    theirs = config.librdkafka()
    assert theirs["sasl.mechanism"] == "GSSAPI"
    assert theirs["sasl.kerberos.service.name"] == "broker"
    # librdkafka would put principal and keytab into a shell command; 0 means that it starts none.
    assert theirs["sasl.kerberos.min.time.before.relogin"] == 0
    assert not {"sasl.kerberos.principal", "sasl.kerberos.keytab"} & set(theirs)


def test_keys_of_kerberos_that_do_not_go_together() -> None:
    (found,) = problems({**OIDC, "sasl.kerberos.keytab": "/etc/hidden"})
    assert found == "sasl.kerberos.keytab is given, but sasl.mechanism is not GSSAPI"
    (found,) = problems({"bootstrap.servers": "b:1", "sasl.kerberos.keytab": "/etc/hidden"})
    assert "but security.protocol is PLAINTEXT" in found


def test_an_admin_client_without_kerberos_has_an_error_of_its_own() -> None:
    config = parse(KERBEROS)
    try:
        AdminClient(config.librdkafka())
    except confluent_kafka.KafkaException:
        pass
    else:
        pytest.skip("this build of confluent-kafka has Kerberos")
    with Admin(config) as admin, pytest.raises(KerberosUnsupported, match="has no Kerberos") as caught:
        admin._open_client()
    assert "libsasl2" in caught.value.next_step


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [f"{KEY}client.secret", f"{KEY}client.credentials.client.secret"])
def test_secrets_of_a_connection_are_found_in_a_spec(key: str) -> None:
    assert plain_secrets.names_a_secret(key)
    assert list(plain_secrets.in_spark_conf("conf", {"spark.executorEnv.X": f'{{"{key}": "abcdefgh"}}'}))


@pytest.mark.parametrize("name", ["private.key.passphrase", "private.key.pem"])
def test_keys_of_an_assertion_are_found_in_a_spec(name: str) -> None:
    assert plain_secrets.names_a_secret(f"{KEY}assertion.{name}")
    assert plain_secrets.names_a_secret("ssl.key.pem")
    assert list(plain_secrets.in_arguments("kwargs", {f"{KEY}assertion.{name}": "abcdefgh"}))
