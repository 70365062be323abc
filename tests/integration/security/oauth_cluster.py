"""A broker that checks OAuth tokens against an identity provider's keys, as Kafka documents it for OIDC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.brokers import SMALL_JVM, KafkaCluster
from harness.certificates import Authority
from harness.identity_provider import AUDIENCE, IdentityProvider
from tests.conftest import USERS

#: Clients of the identity provider, by name; they are Kafka's users, too.
CLIENTS = {"alice": "alice-client-secret-123456", "nobody": "nobody-client-secret-123456"}
_KEY = "sasl.oauthbearer."


def validator(provider: IdentityProvider, authority: Authority) -> dict[str, str]:
    """Properties of a broker whose listener SASL_SSL takes the provider's tokens."""
    listener = "listener.name.sasl_ssl."
    module = "org.apache.kafka.common.security.oauthbearer."
    return {
        f"{listener}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        # The broker itself logs in to nobody, but its login module wants a name beside the trust store.
        f"{listener}oauthbearer.sasl.jaas.config": (
            f'{module}OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="nobody"'
            f' ssl.truststore.type="PEM" ssl.truststore.location="{authority.certificate}";'
        ),
        f"{listener}oauthbearer.sasl.server.callback.handler.class": f"{module}OAuthBearerValidatorCallbackHandler",
        # Kafka 4.1.1 takes any token otherwise, whoever signed it; 3.9 does not know this property.
        "sasl.oauthbearer.jwt.validator.class": f"{module}BrokerJwtValidator",
        "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_url,
        # How soon a key that the provider has changed is noticed.
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "2000",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": provider.issuer,
    }


@contextmanager
def oauth_cluster(
    folder: Path, version: str, config: Mapping[str, str | int | bool] | None = None
) -> Iterator[tuple[KafkaCluster, IdentityProvider]]:
    """A cluster in KRaft mode and its identity provider, which has an authority of its own."""
    authority = Authority(folder / "provider")
    authority.create()
    with IdentityProvider(authority, CLIENTS) as provider:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.jwks_url}"
        cluster = KafkaCluster(
            folder / "cluster",
            version,
            "kraft",
            users=USERS,
            tls=True,
            config={**validator(provider, authority), **(config or {})},
            jvm=(*SMALL_JVM, allowed),
        )
        with cluster:
            yield cluster, provider


def oauth_keys(cluster: KafkaCluster, provider: IdentityProvider, client: str = "alice") -> dict[str, Any]:
    """What a user writes into a connection."""
    assert cluster.authority is not None
    return {
        "bootstrap.servers": cluster.sasl_ssl_bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        f"{_KEY}method": "oidc",
        f"{_KEY}token.endpoint.url": provider.token_url,
        f"{_KEY}client.id": client,
        f"{_KEY}client.secret": CLIENTS[client],
        f"{_KEY}scope": "produce consume",
        "ssl.ca.location": str(cluster.authority.certificate),
        "https.ca.location": str(cluster.authority.folder.parents[1] / "provider" / "ca.pem"),
    }
