"""Each security protocol on a real broker, for the raw wire, the admin and confluent-kafka, from one connection."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from airflow_provider_kafka_migration.errors import AuthenticationFailed, MigrationError
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.record import context as cluster_module
from airflow_provider_kafka_migration.record.context import Cluster
from harness.brokers import KafkaCluster
from harness.certificates import Authority
from tests.integration.copy.copying import Copying
from tests.integration.security.support import SOURCE_TOPIC, expired_pair, grant_copying

pytestmark = pytest.mark.integration

PROTOCOLS = (
    "PLAIN over SASL_PLAINTEXT",
    "SCRAM over SASL_PLAINTEXT",
    "PLAIN over SASL_SSL",
    "SCRAM over SASL_SSL",
    "mTLS",
)
USER = "alice"


def connection(cluster: KafkaCluster, protocol: str, user: str = USER) -> dict[str, str]:
    """The librdkafka keys that a user writes into one Airflow connection."""
    if protocol == "mTLS":
        return cluster.client_config(certificate=user)
    mechanism = "PLAIN" if protocol.startswith("PLAIN") else "SCRAM-SHA-512"
    return cluster.client_config(user, mechanism, tls=protocol.endswith("SSL"))


@contextmanager
def opened(keys: dict[str, Any], name: str = "source") -> Iterator[Cluster]:
    cluster = Cluster("source", ClientConfig.from_librdkafka(keys, name))
    try:
        yield cluster
    finally:
        cluster.close()


def fill(cluster: KafkaCluster, topic: str, count: int = 300) -> None:
    cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    for number in range(count):
        producer.produce(topic, b"value %d" % number * 20, b"key %d" % number, partition=number % 2)
    assert producer.flush(120) == 0


# -- each protocol works ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_wire_admin_and_confluent_kafka_from_one_connection(
    tls_cluster: KafkaCluster, topic: str, protocol: str
) -> None:
    fill(tls_cluster, topic)
    tls_cluster.allow(USER, "topic", topic, SOURCE_TOPIC)
    keys = connection(tls_cluster, protocol)
    with opened(keys) as cluster:
        assert cluster.cluster_id == tls_cluster.cluster_id()
        assert sum(cluster.wire.list_offsets([(topic, 0), (topic, 1)], "latest").values()) == 300
        assert [item.partition for item in cluster.admin.describe_topics([topic])[topic].partitions] == [0, 1]
        assert cluster.admin.topic_configs([topic])[topic].get("cleanup.policy") == "delete"
        theirs = AdminClient(cluster.config.librdkafka())
        assert topic in theirs.list_topics(timeout=60).topics


# That each of them is spoken: the test above. Here the simplest with TLS, and certificates.
@pytest.mark.parametrize(
    "protocol",
    [
        name if name in ("SCRAM over SASL_SSL", "mTLS") else pytest.param(name, marks=pytest.mark.soak)
        for name in PROTOCOLS
    ],
)
def test_a_copy_to_and_from_it(
    tls_cluster: KafkaCluster,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    protocol: str,
) -> None:
    migration_id = unique_name("m").lower()
    # From the plain source to the secured cluster, and from there to the plain target.
    topic = unique_name("secured")
    fill(source_cluster, topic)
    grant_copying(tls_cluster, USER, topic, migration_id)
    secured = connection(tls_cluster, protocol)
    plain = {"bootstrap.servers": source_cluster.bootstrap}
    first = Copying(
        source_cluster,
        tls_cluster,
        tmp_path / "to",
        [topic],
        migration_id,
        references={"source": plain, "target": secured, "storage": None},
    )
    assert first.run()["records"] == 300
    first.compare().check()
    second = Copying(
        tls_cluster,
        target_cluster,
        tmp_path / "from",
        [topic],
        migration_id,
        references={"source": secured, "target": {"bootstrap.servers": target_cluster.bootstrap}, "storage": None},
    )
    assert second.run()["records"] == 300
    second.compare().check()


def unsecured_token(user: str) -> str:
    """What a broker's built-in validator takes: a JWS without a signature."""

    def part(data: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    now = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now, 'exp': now + 600})}."


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stands for AWS' signer library; its tokens are of ``user``."""
    state = {"user": USER}

    class Provider:
        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            assert region == "eu-west-1"
            return unsecured_token(state["user"]), int(time.time() + 600) * 1000

    module = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = Provider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    return state


def test_tokens_of_msk_iam_reach_a_broker(tls_cluster: KafkaCluster, topic: str, signer: dict[str, str]) -> None:
    fill(tls_cluster, topic)
    tls_cluster.allow(USER, "topic", topic, SOURCE_TOPIC)
    keys: dict[str, Any] = {
        "bootstrap.servers": tls_cluster.sasl_ssl_bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "msk": {"region": "eu-west-1"},
        "ssl.ca.location": str(ca(tls_cluster)),
    }
    with opened(keys) as cluster:
        assert sum(cluster.wire.list_offsets([(topic, 0), (topic, 1)], "latest").values()) == 300
        # The admin's own AdminClient gets its token although nobody polls.
        assert cluster.admin.topic_configs([topic])[topic].get("cleanup.policy") == "delete"
        theirs = AdminClient(cluster.config.librdkafka())
        theirs.poll(0.5)
        assert topic in theirs.list_topics(timeout=60).topics
    signer["user"] = ""
    with pytest.raises(AuthenticationFailed, match="refused the SASL login of OAUTHBEARER"), opened(keys) as cluster:
        _ = cluster.cluster_id


# -- what can be wrong -------------------------------------------------------------------------------------------------


def ca(cluster: KafkaCluster) -> Path:
    assert cluster.authority is not None
    return cluster.authority.certificate


def expired_client(cluster: KafkaCluster, folder: Path) -> dict[str, str]:
    """A client certificate of the cluster's authority that has ended yesterday."""
    assert cluster.authority is not None
    certificate, key = expired_pair(cluster.authority, folder, USER)
    return {
        **cluster.client_config(certificate=USER),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }


def other_authority(folder: Path) -> Authority:
    made = Authority(folder / "other")
    made.create()
    return made


def wrong_connections(cluster: KafkaCluster, folder: Path) -> dict[str, tuple[dict[str, Any], str, str]]:
    """Name -> (keys, what the error says, what its next step says)."""
    scram_ssl = cluster.client_config(USER, "SCRAM-SHA-512", tls=True)
    other = other_authority(folder)
    stranger = other.client(USER)
    wrong_host = {**scram_ssl, "bootstrap.servers": scram_ssl["bootstrap.servers"].replace("127.0.0.1", "127.1")}
    mtls = cluster.client_config(certificate=USER)
    login = f"refused the SASL login of {USER}"
    return {
        "password, SCRAM": ({**scram_ssl, "sasl.password": "wrong-password"}, login, "sasl.password"),
        "password, PLAIN": (
            {**cluster.client_config(USER, "PLAIN"), "sasl.password": "wrong-password"},
            login,
            "sasl.password",
        ),
        "user": ({**scram_ssl, "sasl.username": "nobody"}, "SASL login of nobody", "sasl.username"),
        "mechanism": (
            {**cluster.client_config(USER, "PLAIN"), "sasl.mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs security.protocol SASL_SSL",
            "correct the connection's JSON",
        ),
        "unknown authority": (
            {**scram_ssl, "ssl.ca.location": str(other.certificate)},
            "does not accept the broker's certificate",
            "ssl.ca.location",
        ),
        "no authority": (
            {key: value for key, value in scram_ssl.items() if key != "ssl.ca.location"},
            "does not accept the broker's certificate",
            "ssl.ca.location",
        ),
        "host name": (wrong_host, "Hostname mismatch", "advertised.listeners"),
        "client certificate missing": (
            {key: value for key, value in mtls.items() if key not in ("ssl.certificate.location", "ssl.key.location")},
            "bad certificate",
            "ssl.certificate.location",
        ),
        "client certificate of a stranger": (
            {
                **mtls,
                "ssl.certificate.location": str(stranger.certificate),
                "ssl.key.location": str(stranger.key),
            },
            "handshake failed",
            "its authority",
        ),
        "client certificate expired": (expired_client(cluster, folder), "handshake failed", "dates"),
        "TLS port without TLS": (
            {"bootstrap.servers": cluster.ssl_bootstrap},
            "the port speaks TLS",
            "security.protocol",
        ),
        "plain port with TLS": (
            {**scram_ssl, "bootstrap.servers": cluster.sasl_bootstrap},
            "TLS handshake",
            "security.protocol",
        ),
        "SASL port without SASL": (
            {"bootstrap.servers": cluster.sasl_bootstrap},
            "closed the connection",
            "security.protocol",
        ),
    }


WRONG = (
    "password, SCRAM",
    "password, PLAIN",
    "user",
    "mechanism",
    "unknown authority",
    "no authority",
    "host name",
    "client certificate missing",
    "client certificate of a stranger",
    "client certificate expired",
    "TLS port without TLS",
    "plain port with TLS",
    "SASL port without SASL",
)


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_has_an_error_of_its_own(
    tls_cluster: KafkaCluster,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_CONTACT_SECONDS", 1.0)
    keys, what, next_step = wrong_connections(tls_cluster, tmp_path)[name]
    with caplog.at_level(logging.INFO), pytest.raises(MigrationError) as caught, opened(keys) as cluster:
        _ = cluster.cluster_id
    error = caught.value
    assert what in error.what
    assert next_step in error.next_step
    assert error.where.cluster == "source"
    assert error.code in ("AUTHENTICATION_FAILED", "CONNECTION_INVALID", "BROKER_UNREACHABLE")
    if error.code == "BROKER_UNREACHABLE":
        assert name in ("SASL port without SASL",), str(error)
    assert str(keys.get("sasl.password", "####")) not in str(error)
    assert not caplog.records


def test_an_expired_broker_certificate(tmp_path: Path) -> None:
    """A TLS port with a certificate that was valid until yesterday: brokers would not even start with it."""
    authority = other_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*expired_pair(authority, tmp_path, "broker"))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError), listener:
            connection, _ = listener.accept()
            context.wrap_socket(connection, server_side=True).close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    keys = {
        "bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.certificate),
    }
    with pytest.raises(AuthenticationFailed, match="certificate has expired") as caught, opened(keys) as cluster:
        _ = cluster.cluster_id
    assert "renew the broker's certificate" in caught.value.next_step
    thread.join(120)


def test_host_names_and_certificates_can_be_left_unchecked(tls_cluster: KafkaCluster) -> None:
    keys = tls_cluster.client_config(USER, "SCRAM-SHA-512", tls=True)
    elsewhere = {**keys, "bootstrap.servers": keys["bootstrap.servers"].replace("127.0.0.1", "127.1")}
    for changes in (
        {"ssl.endpoint.identification.algorithm": "none"},
        {"enable.ssl.certificate.verification": "false", "ssl.ca.location": None},
    ):
        with opened({key: value for key, value in {**elsewhere, **changes}.items() if value is not None}) as cluster:
            assert cluster.cluster_id == tls_cluster.cluster_id()


def test_certificates_and_keys_as_text(tls_cluster: KafkaCluster) -> None:
    files = tls_cluster.client_config(certificate=USER)
    keys = {
        "bootstrap.servers": files["bootstrap.servers"],
        "security.protocol": "SSL",
        **{f"ssl.{name}.pem": Path(files[f"ssl.{name}.location"]).read_text() for name in ("ca", "certificate", "key")},
    }
    with opened(keys) as cluster:
        assert cluster.cluster_id == tls_cluster.cluster_id()
        assert AdminClient(cluster.config.librdkafka()).list_topics(timeout=60).cluster_id == cluster.cluster_id


def test_confluent_kafka_refuses_the_same(tls_cluster: KafkaCluster) -> None:
    keys = {**tls_cluster.client_config(USER, "SCRAM-SHA-512", tls=True), "sasl.password": "wrong-password"}
    config = ClientConfig.from_librdkafka(keys, "source").librdkafka()
    with pytest.raises(KafkaException):
        AdminClient(config).list_topics(timeout=3)
