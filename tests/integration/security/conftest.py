"""A cluster with TLS listeners for all tests of this folder, and what they share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.brokers import KafkaCluster
from tests.conftest import USERS

#: Tokens without a signature are enough for a broker's built-in validator: it stands in for MSK's.
OAUTH = {
    "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="nobody";'
    ),
}


@pytest.fixture(scope="package")
def tls_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Kafka 4.1.1 in KRaft mode with the listeners SSL (client certificates) and SASL_SSL beside the others."""
    with KafkaCluster(tmp_path_factory.mktemp("tls"), "4.1.1", "kraft", users=USERS, tls=True, config=OAUTH) as cluster:
        yield cluster
