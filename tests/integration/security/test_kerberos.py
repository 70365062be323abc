"""Kerberos: a real KDC and a real broker, for the raw wire. Skipped where the library or the KDC is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    ConnectionInvalid,
    KerberosUnavailable,
    KerberosUnsupported,
    MigrationError,
)
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from harness.brokers import SMALL_JVM, KafkaCluster
from harness.kdc import REALM, Kdc, KdcMissing
from tests.conftest import USERS
from tests.integration.copy.copying import Copying
from tests.integration.security.support import grant_copying, wire_of
from tests.integration.security.tailing import tail, writing
from tests.integration.security.test_protocols import fill

pytest.importorskip("gssapi", reason="Kerberos needs the extra `kerberos`, which is compiled against libkrb5-dev")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Realm = tuple[KafkaCluster, Kdc, Path]
USER = "alice"
SESSION_MS = 2000


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A broker, its KDC, and the keytab of alice, whose tickets end after 20 seconds."""
    folder = tmp_path_factory.mktemp("kerberos")
    try:
        kdc = Kdc(folder / "kdc")
    except KdcMissing as missing:
        pytest.skip(str(missing))
    with kdc:
        broker = kdc.principal("kafka/127.0.0.1")
        listener = "listener.name.sasl_plaintext."
        config = {
            f"{listener}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,GSSAPI",
            f"{listener}gssapi.sasl.jaas.config": (
                "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
                f'keyTab="{broker}" principal="kafka/127.0.0.1@{REALM}";'
            ),
            "sasl.kerberos.service.name": "kafka",
            "connections.max.reauth.ms": SESSION_MS,
        }
        jvm = (*SMALL_JVM, f"-Djava.security.krb5.conf={kdc.config}")
        with KafkaCluster(folder / "cluster", "4.1.1", "kraft", users=USERS, config=config, jvm=jvm) as cluster:
            yield cluster, kdc, kdc.principal(USER, "-maxlife", "20seconds")


@pytest.fixture(autouse=True)
def machine(realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine belongs to the realm, and nobody has logged in on it."""
    monkeypatch.setenv("KRB5_CONFIG", str(realm[1].config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'cache'}")


def keys_of(realm: Realm, **changes: Any) -> dict[str, Any]:
    values = {
        "bootstrap.servers": realm[0].sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"{USER}@{REALM}",
        "sasl.kerberos.keytab": str(realm[2]),
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def test_a_keytab_and_a_ticket_cache(realm: Realm, tmp_path: Path) -> None:
    cluster, kdc, keytab = realm
    for changes in ({}, {"sasl.kerberos.principal": None}):
        with wire_of(keys_of(realm, **changes)) as wire:
            wire.metadata([])
            assert wire.cluster_id == cluster.cluster_id()
    kdc.login(USER, keytab, tmp_path / "cache")
    for changes in ({"sasl.kerberos.principal": None}, {}):
        with wire_of(keys_of(realm, **{"sasl.kerberos.keytab": None}, **changes)) as wire:
            wire.metadata([])


def test_a_tail_that_outlives_sessions_and_tickets(
    realm: Realm, source_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster, _, _ = realm
    topic, migration_id = unique_name("kerberos"), unique_name("m").lower()
    source_cluster.create_topic(topic, 2)
    grant_copying(cluster, USER, topic, migration_id)
    references = {
        "source": {"bootstrap.servers": source_cluster.bootstrap},
        "target": keys_of(realm),
        "storage": None,
    }
    copy = Copying(source_cluster, cluster, tmp_path / "copy", [topic], migration_id, references=references)
    copy.write_job("tail", slice_seconds=50)
    with writing(source_cluster, topic):
        tail(copy, 50.0)
    assert copy.run()["records"] >= 0
    copy.compare().check()


def test_a_copy_from_it(
    realm: Realm, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster, _, _ = realm
    topic = unique_name("kerberos")
    fill(cluster, topic)
    cluster.allow(USER, "topic", topic, ("read", "describe", "describe_configs"))
    references = {"source": keys_of(realm), "target": {"bootstrap.servers": target_cluster.bootstrap}, "storage": None}
    copy = Copying(cluster, target_cluster, tmp_path, [topic], unique_name("m").lower(), references=references)
    assert copy.run()["records"] == 300
    copy.compare().check()


def mistake(keys: dict[str, Any]) -> MigrationError:
    with pytest.raises(MigrationError) as caught, wire_of(keys, "source") as wire:
        wire.metadata([])
    assert caught.value.where.cluster == "source"
    return caught.value


def test_each_mistake_has_an_error_of_its_own(realm: Realm, tmp_path: Path) -> None:
    error = mistake(keys_of(realm, **{"sasl.kerberos.keytab": str(tmp_path / "no.keytab")}))
    assert isinstance(error, ConnectionInvalid)
    assert "sasl.kerberos.keytab" in error.next_step
    error = mistake(keys_of(realm, **{"sasl.kerberos.principal": f"nobody@{REALM}"}))
    assert isinstance(error, AuthenticationFailed)
    assert "sasl.kerberos.principal" in error.next_step
    error = mistake(keys_of(realm, **{"sasl.kerberos.service.name": "other"}))
    assert isinstance(error, AuthenticationFailed)
    assert "sasl.kerberos.service.name" in error.next_step
    error = mistake(keys_of(realm, **{"sasl.kerberos.principal": None, "sasl.kerberos.keytab": None}))
    assert isinstance(error, AuthenticationFailed)
    assert "KRB5CCNAME" in error.next_step


def test_a_kdc_that_does_not_answer_is_transient(realm: Realm, tmp_path: Path) -> None:
    _, kdc, _ = realm
    keytab = kdc.principal("bob")
    keys = keys_of(realm, **{"sasl.kerberos.principal": f"bob@{REALM}", "sasl.kerberos.keytab": str(keytab)})
    kdc.stop()
    try:
        error = mistake(keys)
    finally:
        kdc.start()
    assert isinstance(error, KerberosUnavailable)
    assert "krb5.conf" in error.next_step
    with wire_of(keys) as wire:
        wire.metadata([])


def test_the_admin_says_what_its_library_lacks(realm: Realm, topic: str) -> None:
    config = ClientConfig.from_librdkafka(keys_of(realm), "target")
    try:
        AdminClient(config.librdkafka())
    except KafkaException:
        with Admin(config) as admin, pytest.raises(KerberosUnsupported, match="has no Kerberos") as caught:
            admin.topic_configs([topic])
        assert "libsasl2" in caught.value.next_step
    else:
        pytest.skip("this build of confluent-kafka has Kerberos")
