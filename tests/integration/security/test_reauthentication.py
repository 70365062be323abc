"""Sessions of two seconds (KIP-368): tails to and from such a broker live through dozens and lose nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.kafka.auth import tokens
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.kafka.wire import Wire
from harness.brokers import KafkaCluster
from harness.identity_provider import IdentityProvider
from tests.integration.copy.copying import Copying
from tests.integration.security.oauth_cluster import oauth_cluster, oauth_keys
from tests.integration.security.support import grant_copying
from tests.integration.security.tailing import tail, writing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Pair = tuple[KafkaCluster, IdentityProvider]
USER = "alice"
SESSION_MS = 2000
#: A session is renewed after 1.3 to 1.6 seconds.
TAIL_SECONDS = 45.0
ENOUGH_SESSIONS = 24
MECHANISMS = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    config = {"connections.max.reauth.ms": SESSION_MS}
    with oauth_cluster(tmp_path_factory.mktemp("sessions"), "4.1.1", config) as running:
        yield running


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Counter[BrokerConnection]:
    """Connection -> how many logins it has had."""
    counted: Counter[BrokerConnection] = Counter()
    plan = BrokerConnection._plan_renewal

    def planned(connection: BrokerConnection, sent_at: float, lifetime_seconds: float) -> None:
        plan(connection, sent_at, lifetime_seconds)
        if lifetime_seconds > 0:
            counted[connection] += 1

    monkeypatch.setattr(BrokerConnection, "_plan_renewal", planned)
    return counted


def keys_of(pair: Pair, mechanism: str) -> dict[str, Any]:
    cluster, provider = pair
    if mechanism == "OAUTHBEARER":
        return oauth_keys(cluster, provider)
    return cluster.client_config(USER, mechanism, tls=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "mechanism", [name if name == "OAUTHBEARER" else pytest.param(name, marks=pytest.mark.soak) for name in MECHANISMS]
)
def test_a_tail_lives_through_dozens_of_sessions(
    pair: Pair,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    renewals: Counter[BrokerConnection],
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
) -> None:
    """A chain of two tails: to the broker with short sessions, and from it."""
    monkeypatch.setattr(tokens, "_sources", {})
    cluster, _ = pair
    topic, migration_id = unique_name("sessions"), unique_name("m").lower()
    source_cluster.create_topic(topic, 2)
    grant_copying(cluster, USER, topic, migration_id)
    secured = keys_of(pair, mechanism)

    def chained(folder: str, source: KafkaCluster, target: KafkaCluster, references: dict[str, Any]) -> Copying:
        made = Copying(
            source, target, tmp_path / folder, [topic], migration_id, references={**references, "storage": None}
        )
        made.write_job("tail", slice_seconds=int(TAIL_SECONDS))
        return made

    first = chained(
        "first",
        source_cluster,
        cluster,
        {"source": {"bootstrap.servers": source_cluster.bootstrap}, "target": secured},
    )
    second = chained(
        "second",
        cluster,
        target_cluster,
        {"source": secured, "target": {"bootstrap.servers": target_cluster.bootstrap}},
    )

    with writing(source_cluster, topic), ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(tail, copy, TAIL_SECONDS) for copy in (first, second)]:
            future.result()
    tailed = renewals.most_common(2)
    print(mechanism, [count for _, count in renewals.most_common(12)], len(renewals))
    assert tailed[1][1] >= ENOUGH_SESSIONS, "the reader's and the writer's connection both lived on"
    for copy in (first, second):
        assert copy.run()["records"] >= 0
        copy.compare().check()


def test_an_idle_connection_and_a_token_that_expires(
    pair: Pair, renewals: Counter[BrokerConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent for longer than a session; and tokens live only a little longer than sessions."""
    monkeypatch.setattr(tokens, "_sources", {})
    cluster, provider = pair
    monkeypatch.setattr(provider, "lifetime_seconds", 8)
    before = provider.requests
    with Wire(ClientConfig.from_librdkafka(oauth_keys(cluster, provider), "source"), timeout_seconds=20) as wire:
        connection = wire.connection()
        for pause in (0.0, 3.0, 5.0, 0.5, 10.0):
            time.sleep(pause)
            connection.call_raw(3, 1, [b"\0\0\0\0"])
    assert renewals == {connection: 4}
    assert provider.requests >= before + 2
