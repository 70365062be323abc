"""Rights and features, as the super user of a test cluster grants and sets them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka.protocol.admin import UpdateFeaturesRequest

from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.wire import Wire
from harness.brokers import KafkaCluster
from harness.certificates import Authority

#: What copiers need on target topics.
TARGET_TOPIC = ("read", "write", "describe", "describe_configs", "delete")
SOURCE_TOPIC = ("read", "describe", "describe_configs")


def wire_of(keys: Mapping[str, Any], name: str = "target") -> Wire:
    """A wire with librdkafka keys."""
    return Wire(ClientConfig.from_librdkafka(keys, name), timeout_seconds=10, patience_seconds=5)


def grant_copying(target: KafkaCluster, user: str, topics: str, transactional_ids: str) -> None:
    """What a copier needs on the target but a right on the cluster; both arguments are prefixes."""
    target.allow(user, "topic", topics, TARGET_TOPIC, prefixed=True)
    target.allow(user, "transactional_id", transactional_ids, ["write", "describe"], prefixed=True)


def set_feature(cluster: KafkaCluster, name: str, level: int) -> None:
    """Finalize a feature of a KRaft cluster at a level, up or down."""
    upgrade, safe_downgrade = 1, 2
    kind = upgrade if level > feature(cluster, name) else safe_downgrade
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    with wire_of({"bootstrap.servers": cluster.bootstrap}) as wire:
        answer = wire.request(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update], validate_only=False))
        assert answer.error_code == 0, answer


def feature(cluster: KafkaCluster, name: str) -> int:
    """The finalized level of a feature, as a new connection sees it."""
    with wire_of({"bootstrap.servers": cluster.bootstrap}) as wire:
        return wire.connection().finalized_features[name]


def expired_pair(authority: Authority, folder: Path, common_name: str) -> tuple[Path, Path]:
    """Files of a certificate for 127.0.0.1 that was valid until yesterday, and of its key."""
    assert authority._own is not None
    assert authority._key is not None
    key = ec.generate_private_key(ec.SECP256R1())
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(authority._own.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(yesterday - datetime.timedelta(days=5))
        .not_valid_after(yesterday)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(authority._key, hashes.SHA256())
    )
    files = folder / f"expired-{common_name}.pem", folder / f"expired-{common_name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
