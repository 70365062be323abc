"""Certificates, keys and authorities that are replaced while a tail runs: read again, and no record is lost."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from airflow_provider_kafka_migration.errors import AuthenticationFailed, PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.auth import tls_files
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from harness.brokers import KafkaCluster
from harness.certificates import Authority, Pair
from tests.conftest import USERS
from tests.integration.copy.copying import Copying, wait_for
from tests.integration.security.support import grant_copying, wire_of
from tests.integration.security.tailing import tail, writing

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

MOST_SECONDS = 200.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster of its own, because its certificates change."""
    with KafkaCluster(tmp_path_factory.mktemp("renewed"), "4.1.1", "kraft", users=USERS, tls=True) as running:
        yield running


def put(target: Path, content: bytes) -> None:
    """Replace a file at once, as programs do that renew certificates."""
    target.with_suffix(".new").write_bytes(content)
    target.with_suffix(".new").replace(target)


def use(folder: Path, pair: Pair) -> None:
    put(folder / "own.pem", pair.certificate.read_bytes())
    put(folder / "own.key", pair.key.read_bytes())


def change_key_store(cluster: KafkaCluster, key_store: Path) -> None:
    """Let the running broker present another certificate to new connections."""
    entries = [
        ConfigEntry(f"listener.name.ssl.ssl.keystore.{key}", value, incremental_operation=AlterConfigOpType.SET)
        for key, value in (("type", "PEM"), ("location", str(key_store)))
    ]
    resource = ConfigResource(ResourceType.BROKER, str(cluster.node_id(0)), incremental_configs=entries)
    admin = cluster.admin()
    for future in admin.incremental_alter_configs([resource], request_timeout=20).values():
        future.result()


def test_a_tail_and_an_admin_take_new_certificates_and_a_new_authority(
    cluster: KafkaCluster,
    source_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tls_files, "CHECK_SECONDS", 0.2)
    authority = cluster.authority
    assert authority is not None
    topic, migration_id = unique_name("renewed"), unique_name("m").lower()
    source_cluster.create_topic(topic, 2)
    # The name in the certificate is Kafka's user: the broker's rights show which certificate is in use.
    for user in ("alice", "bob"):
        grant_copying(cluster, user, topic, migration_id)
    use(tmp_path, authority.client("alice"))
    shutil.copy(authority.certificate, tmp_path / "ca.pem")
    keys = {
        "bootstrap.servers": cluster.ssl_bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "own.pem"),
        "ssl.key.location": str(tmp_path / "own.key"),
    }
    references = {"source": {"bootstrap.servers": source_cluster.bootstrap}, "target": keys, "storage": None}
    copy = Copying(source_cluster, cluster, tmp_path / "copy", [topic], migration_id, references=references)
    copy.write_job("tail", slice_seconds=int(MOST_SECONDS))
    stop = threading.Event()
    watcher = wire_of({"bootstrap.servers": cluster.bootstrap}, "target")
    admin = Admin(ClientConfig.from_librdkafka(keys, "target"))

    def copied() -> int:
        return sum(watcher.list_offsets([(topic, 0), (topic, 1)], "latest").values())

    def goes_on() -> None:
        before = copied()
        wait_for(lambda: copied() > before + 100, 200, "the tail copies on")

    with (
        caplog.at_level(logging.INFO),
        watcher,
        admin,
        writing(source_cluster, topic),
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(tail, copy, MOST_SECONDS, stop.is_set)
        try:
            goes_on()
            assert admin.topic_configs([topic])[topic].get("cleanup.policy") == "delete"
            # Another certificate: nothing is lost, and then nothing depends on the old one.
            use(tmp_path, authority.client("bob"))
            wait_for(lambda: "connected again" in caplog.text, 200, "the tail takes the new certificate")
            cluster.forget_rights("alice")
            goes_on()
            wait_for(lambda: _may_describe(admin, topic), 200, "the admin takes the new certificate")
            # Another authority signs the broker's certificate; the file has both while brokers change.
            other = Authority(tmp_path / "other", "another authority")
            other.create()
            put(tmp_path / "ca.pem", authority.certificate.read_bytes() + other.certificate.read_bytes())
            change_key_store(cluster, other.server().both)
            only_the_former = {**keys, "ssl.ca.location": str(authority.certificate)}
            wait_for(lambda: _is_refused(only_the_former), 200, "the broker presents its new certificate")
            use(tmp_path, authority.client("bob"))  # a new time is enough to connect again
            before = caplog.text.count("connected again")
            wait_for(lambda: caplog.text.count("connected again") > before, 200, "the tail accepts the new authority")
            goes_on()
            assert not running.done()
        finally:
            stop.set()
        running.result()
    assert copy.run()["records"] >= 0
    copy.compare().check()


def _is_refused(keys: dict[str, str]) -> bool:
    try:
        with wire_of(keys) as wire:
            wire.metadata([])
    except AuthenticationFailed:
        return True
    return False


def _may_describe(admin: Admin, topic: str) -> bool:
    """Whether librdkafka's own connections show the new certificate: the old one's user has no rights any more."""
    try:
        return admin.topic_configs([topic])[topic].get("cleanup.policy") == "delete"
    except PermissionMissing:
        return False
