"""The watch on the lag of a real mirror: what drivers and copiers really write, from the beginning to the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.deadline_watch import Finding, LagDeadlineWatch, LagLimit, Standing
from airflow_provider_kafka_migration.jobs.tail_health import SILENT_SECONDS, HealthWatch
from airflow_provider_kafka_migration.kafka.clock import elapsed_seconds
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec.load import load_spec
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.integration.mirrors.scenario_support import SECONDS, Scene, make_scene

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

LIMIT = LagLimit(seconds=3600, records=100)
#: More bytes than a copier takes before its rate applies.
RECORDS, RECORD_BYTES = 20_000, 1000


class Watch:
    """A watch in another process, without access to the clusters, whose clock can be put forward."""

    def __init__(self, scene: Scene) -> None:
        spec = load_spec(scene.flow.spec)
        self.ahead_seconds = 0.0
        health = HealthWatch(clock=lambda: elapsed_seconds() + self.ahead_seconds)
        # The references to both clusters cannot be resolved here.
        migration = Migration.open(spec, "watch", Resolver(), actor="watch")
        self._watch = LagDeadlineWatch(migration, LIMIT, health=health)
        self.found = Finding(Standing.UNKNOWN, "")

    def check(self) -> Finding:
        self.found = self._watch.check()
        return self.found

    def sees(self, standing: Standing) -> None:
        try:
            wait_for(str(standing), lambda: self.check().standing is standing, SECONDS, 0.3)
        except Exception as error:
            raise AssertionError(f"{standing} is never found, but {self.found}") from error

    def close(self) -> None:
        self._watch.close()


@contextmanager
def watching(scene: Scene) -> Iterator[Watch]:
    watch = Watch(scene)
    try:
        yield watch
    finally:
        watch.close()


def write(cluster: KafkaCluster, topic: str) -> None:
    producer = Producer({**cluster.client_config(), "linger.ms": 50})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number * (RECORD_BYTES // len(b"%d" % number)), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_the_lag_of_a_mirror(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    clusters = (source_cluster, target_cluster)
    scene = make_scene(request, tmp_path_factory.mktemp("watched"), clusters)
    topic = scene.create("orders")
    scene.write(topic, [0, 1])
    with watching(scene) as watch:
        watch.sees(Standing.NO_JOURNAL)
        scene.mirror.start()
        watch.sees(Standing.OVER)
        assert "within" in watch.found.summary

        scene.mirror.stop()
        watch.ahead_seconds += SILENT_SECONDS + load_spec(scene.flow.spec).tail.slice_seconds
        watch.sees(Standing.UNKNOWN)
        assert "not been heard from" in watch.found.summary
        with watching(scene) as fresh:
            assert fresh.check().standing is Standing.UNKNOWN, "the last document says that all is well"
            assert fresh.check().standing is Standing.UNKNOWN

        write(source_cluster, topic)
        scene.flow.command("throttle", scene.flow.spec, "--tail", "300KB", status=0)
        scene.mirror.start()
        watch.sees(Standing.GOING_ON)
        assert f"{topic}-0 is behind by" in watch.found.summary
        scene.flow.command("throttle", scene.flow.spec, "--tail", "none", status=0)
        watch.sees(Standing.OVER)
        scene.wait_mirrored(topic)

        scene.flow("pause")
        wait_for("the pause", lambda: "paused" in watch.check().summary, SECONDS, 0.3)
        assert watch.found.standing is Standing.OVER
