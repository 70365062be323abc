"""OAuth tokens of a real provider at a real broker, for the raw wire, the admin and copies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import AuthenticationFailed, MigrationError, TokenUnavailable
from airflow_provider_kafka_migration.kafka.auth import tokens
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.record import context as cluster_module
from harness.brokers import KafkaCluster
from harness.identity_provider import IdentityProvider
from tests.integration.copy.copying import Copying
from tests.integration.security.oauth_cluster import CLIENTS, oauth_cluster, oauth_keys
from tests.integration.security.support import SOURCE_TOPIC, grant_copying
from tests.integration.security.test_protocols import fill, opened

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Pair = tuple[KafkaCluster, IdentityProvider]
USER = "alice"


@pytest.fixture(scope="module", params=["4.1.1", "3.9.1"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with oauth_cluster(tmp_path_factory.mktemp("oauth"), request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def no_token_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_sources", {})


def test_wire_admin_and_confluent_kafka_share_one_token(
    pair: Pair, topic: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster, provider = pair
    fill(cluster, topic)
    cluster.allow(USER, "topic", topic, SOURCE_TOPIC)
    before = provider.requests
    with caplog.at_level(logging.DEBUG), opened(oauth_keys(cluster, provider)) as found:
        assert found.cluster_id == cluster.cluster_id()
        assert sum(found.wire.list_offsets([(topic, 0), (topic, 1)], "latest").values()) == 300
        assert [item.partition for item in found.admin.describe_topics([topic])[topic].partitions] == [0, 1]
        assert found.admin.topic_configs([topic])[topic].get("cleanup.policy") == "delete"
        token = found.config.oauth_token()[0]
    assert provider.requests == before + 1
    # The provider's own logs are in this process, too.
    logged = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("authlib"))
    for secret in (CLIENTS[USER], token, token.split(".")[2]):
        assert secret not in logged
        assert secret not in "".join(capfd.readouterr())


def test_a_copy_to_and_from_it(
    pair: Pair,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    cluster, provider = pair
    migration_id = unique_name("m").lower()
    topic = unique_name("oauth")
    fill(source_cluster, topic)
    grant_copying(cluster, USER, topic, migration_id)
    secured = oauth_keys(cluster, provider)
    for source, target, source_keys, target_keys in (
        (source_cluster, cluster, {"bootstrap.servers": source_cluster.bootstrap}, secured),
        (cluster, target_cluster, secured, {"bootstrap.servers": target_cluster.bootstrap}),
    ):
        copy = Copying(
            source,
            target,
            tmp_path / target.version / target.bootstrap.rpartition(":")[2],
            [topic],
            migration_id,
            references={"source": source_keys, "target": target_keys, "storage": None},
        )
        assert copy.run()["records"] == 300
        copy.compare().check()


def test_a_token_with_the_providers_former_key_is_replaced_by_a_new_one(pair: Pair, topic: str) -> None:
    cluster, provider = pair
    fill(cluster, topic)
    cluster.allow(USER, "topic", topic, SOURCE_TOPIC)
    with opened(oauth_keys(cluster, provider)) as found:
        assert found.cluster_id == cluster.cluster_id()
    source = tokens.source_of(ClientConfig.from_librdkafka(oauth_keys(cluster, provider), "source").oidc)  # type: ignore[arg-type]
    good = source.get()
    # The same moments, but a signature that nobody can verify: what a cached token is after a change of keys.
    head, _, _ = good.value.rpartition(".")
    object.__setattr__(source._token, "value", f"{head}.{'A' * 342}")
    before = provider.requests
    with opened(oauth_keys(cluster, provider)) as found:
        assert found.cluster_id == cluster.cluster_id()
    assert provider.requests == before + 1


def mistakes(pair: Pair) -> dict[str, tuple[dict[str, Any], type[MigrationError], str, str]]:
    """Name -> (keys, error, what it says, what its next step says)."""
    cluster, provider = pair
    keys = oauth_keys(cluster, provider)
    key = "sasl.oauthbearer."
    return {
        "secret": (
            {**keys, f"{key}client.secret": "another-secret-1234567"},
            AuthenticationFailed,
            "refused the client: HTTP 401 (invalid_client",
            ".client.secret",
        ),
        "scope": ({**keys, f"{key}scope": "admin"}, AuthenticationFailed, "invalid_scope", "scope"),
        "authority": (
            {**keys, "https.ca.location": keys["ssl.ca.location"]},
            AuthenticationFailed,
            "does not accept the token endpoint's certificate",
            "https.ca.location",
        ),
        "endpoint down": (
            {**keys, f"{key}token.endpoint.url": "https://127.0.0.1:9/token"},
            TokenUnavailable,
            "does not answer: Connection refused",
            "HTTPS_PROXY",
        ),
        "mechanism": (
            {
                "bootstrap.servers": cluster.sasl_bootstrap,
                **{name: value for name, value in keys.items() if name.startswith(("sasl.", "https"))},
                "security.protocol": "SASL_PLAINTEXT",
            },
            AuthenticationFailed,
            "does not offer OAUTHBEARER; it offers PLAIN",
            "sasl.mechanism",
        ),
    }


@pytest.mark.parametrize("name", ["secret", "scope", "authority", "endpoint down", "mechanism"])
def test_each_mistake_has_an_error_of_its_own(pair: Pair, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_CONTACT_SECONDS", 1.0)
    keys, kind, what, next_step = mistakes(pair)[name]
    with pytest.raises(kind) as caught, opened(keys) as cluster:
        _ = cluster.cluster_id
    assert what in caught.value.what
    assert next_step in caught.value.next_step
    assert caught.value.where.cluster == "source"
    assert str(keys["sasl.oauthbearer.client.secret"]) not in str(caught.value)


def test_a_token_that_the_broker_does_not_accept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, provider = pair
    monkeypatch.setattr(provider, "audience", "somebody-else")
    before = provider.requests
    with (
        pytest.raises(AuthenticationFailed, match="refused the SASL login of alice") as caught,
        opened(oauth_keys(cluster, provider)) as found,
    ):
        _ = found.cluster_id
    assert "issuer, audience" in caught.value.next_step
    assert provider.requests == before + 2  # a second token was worth a try
