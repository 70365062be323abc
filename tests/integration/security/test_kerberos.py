"""Kerberos: a real KDC and a real broker, for the raw wire and the AdminClient.

Skipped where the library or the KDC is missing; tests of the AdminClient also where confluent-kafka has no Kerberos.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
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
    TicketCacheTaken,
    Where,
)
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.auth.kerberos import KerberosSettings, fill_ticket_cache
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
NO_KINIT = {"sasl.kerberos.min.time.before.relogin": 0}


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


# -- the AdminClient ---------------------------------------------------------------------------------------------------


def has_kerberos() -> bool:
    """Whether this build of confluent-kafka has Kerberos: it refuses to make a client otherwise."""
    try:
        AdminClient(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "log_level": 0,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                **NO_KINIT,
            }
        )
    except KafkaException:
        return False
    return True


needs_kerberos = pytest.mark.skipif(
    not has_kerberos(),
    reason="this build of confluent-kafka has no Kerberos (scripts/build_kerberos_client.sh makes one)",
)


def configs(keys: dict[str, Any], topic: str) -> object:
    """Ask the AdminClient for a topic's configs."""
    with Admin(ClientConfig.from_librdkafka(keys, "target")) as admin:
        return admin.topic_configs([topic])[topic]


@pytest.fixture
def described(realm: Realm, unique_name: Callable[[str], str]) -> str:
    """A topic of the cluster that alice may describe, and nobody else."""
    name = unique_name("described")
    realm[0].create_topic(name, 1, {"retention.ms": "4200000"})
    realm[0].allow(USER, "topic", name, ("describe", "describe_configs"))
    return name


@pytest.mark.skipif(has_kerberos(), reason="this build of confluent-kafka has Kerberos")
def test_the_admin_says_what_its_library_lacks(realm: Realm, topic: str) -> None:
    with pytest.raises(KerberosUnsupported, match="has no Kerberos") as caught:
        configs(keys_of(realm), topic)
    assert "libsasl2" in caught.value.next_step


@needs_kerberos
@pytest.mark.parametrize("changes", [{}, {"sasl.kerberos.principal": None}])
def test_the_admin_logs_in_with_a_keytab(
    realm: Realm, described: str, tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # librdkafka must not start kinit, nor anything else, by itself.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not (tmp_path / "cache").exists()
    found = configs(keys_of(realm, **changes), described)
    assert "4200000" in str(found)
    assert (tmp_path / "cache").exists()


@needs_kerberos
def test_the_admin_logs_in_with_a_ticket_cache(realm: Realm, described: str, tmp_path: Path) -> None:
    _, kdc, keytab = realm
    kdc.login(USER, keytab, tmp_path / "cache")
    keys = keys_of(realm, **{"sasl.kerberos.keytab": None, "sasl.kerberos.principal": None})
    assert "4200000" in str(configs(keys, described))


@needs_kerberos
def test_the_admin_outlives_its_tickets(realm: Realm, described: str) -> None:
    """Tickets last 20 seconds and sessions 2, so librdkafka logs in again between any two of these calls."""
    with Admin(ClientConfig.from_librdkafka(keys_of(realm), "target")) as admin:
        for pause in (25.0, 3.0, 25.0, 0.0):
            assert "4200000" in str(admin.topic_configs([described])[described])
            time.sleep(pause)


@needs_kerberos
def test_the_admin_leaves_the_tickets_of_others_alone(realm: Realm, described: str, tmp_path: Path) -> None:
    _, kdc, _ = realm
    cache = tmp_path / "cache"
    kdc.login("carol", kdc.principal("carol"), cache)
    before = cache.read_bytes()
    with pytest.raises(TicketCacheTaken, match=f"another principal than {USER}@{REALM}") as caught:
        configs(keys_of(realm), described)
    assert "KRB5CCNAME" in caught.value.next_step
    assert cache.read_bytes() == before


@needs_kerberos
def test_a_cache_of_many_principals_is_used_only_with_ours(
    realm: Realm, described: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches of this kind are the default of Red Hat's systems. Of two principals of one realm, the Kerberos library
    takes any; without the check the AdminClient of one of the two would log in as the other.
    """
    _, kdc, keytab = realm
    (tmp_path / "caches").mkdir()
    monkeypatch.setenv("KRB5CCNAME", f"DIR:{tmp_path / 'caches'}")
    carol = kdc.principal("carol")
    for name, own in (("carol", carol), (USER, keytab)):
        settings = KerberosSettings("kafka", f"{name}@{REALM}", str(own))
        with contextlib.suppress(TicketCacheTaken):
            fill_ticket_cache(settings, "127.0.0.1", Where(cluster="target"))
    refused = []
    for name, own, seen in (("carol", carol, "AUTHORIZATION"), (USER, keytab, "4200000")):
        keys = keys_of(realm, **{"sasl.kerberos.principal": f"{name}@{REALM}", "sasl.kerberos.keytab": str(own)})
        try:
            assert seen in str(configs(keys, described))
        except TicketCacheTaken:
            refused.append(name)
    assert len(refused) == 1


@needs_kerberos
def test_nothing_in_a_connection_is_a_command(realm: Realm, described: str, tmp_path: Path) -> None:
    """librdkafka's own command would contain the principal without quotes."""
    trace = tmp_path / "trace"
    keys = keys_of(realm, **{"sasl.kerberos.principal": f"{USER}@{REALM}; touch {trace}"})
    client = AdminClient(ClientConfig.from_librdkafka(keys, "target").librdkafka())
    client.poll(3)
    with pytest.raises(MigrationError):
        configs(keys, described)
    assert not trace.exists()


@needs_kerberos
def test_a_plug_in_that_is_missing_is_named(realm: Realm, described: str, tmp_path: Path) -> None:
    """libsasl2 loads its plug-ins once in a process, so another one asks."""
    (tmp_path / "none").mkdir()
    script = (
        "import json, sys\nfrom tests.integration.security.test_kerberos import configs\n"
        "configs(json.loads(sys.argv[1]), sys.argv[2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(keys_of(realm)), described],
        env={**os.environ, "SASL_PATH": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "KERBEROS_UNSUPPORTED" in done.stderr
    assert "libsasl2-modules-gssapi-mit" in done.stderr


@needs_kerberos
def test_topics_are_changed_with_a_ticket(realm: Realm, unique_name: Callable[[str], str]) -> None:
    """What a migration changes on its target: configs, further partitions, and topics that it deletes."""
    cluster, _, _ = realm
    name = unique_name("changed")
    cluster.create_topic(name, 1)
    cluster.allow(USER, "topic", name, ("describe", "describe_configs", "alter_configs", "alter", "delete"))
    with Admin(ClientConfig.from_librdkafka(keys_of(realm), "target")) as admin:
        assert admin.alter_topic_configs({name: {"retention.ms": "4300000"}}) == {name: None}
        assert "4300000" in str(admin.topic_configs([name])[name])
        assert admin.create_partitions({name: 3}) == {name: None}
        assert len(admin.describe_topics([name])[name].partitions) == 3
        assert admin.delete_topics([name]) == {name: None}
