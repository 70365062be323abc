"""Three brokers, replication factor 3, two in sync: brokers are killed and stopped while copies in transactions run."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from harness.brokers import KafkaCluster
from harness.copiers.copying import results_of, wait_for
from tests.integration.copy.test_copy_kills import writing
from tests.integration.transactional.conftest import MakeCopying
from tests.integration.transactional.test_transactional_kills import finish
from tests.integration.transactional.transactional_support import (
    check_copy,
    committed_positions,
    foreign_writers,
    have_moved,
)

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

FAULTS = 16


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A target that survives the loss of one broker."""
    config = {"min.insync.replicas": 2, "default.replication.factor": 3}
    folder = tmp_path_factory.mktemp("three")
    with KafkaCluster(folder, "4.1.1", brokers=3, config=config, sasl=False, authorizer=False) as cluster:
        yield cluster


def test_brokers_and_copiers_die(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    three_brokers: KafkaCluster,
    unique_name: Callable[[str], str],
) -> None:
    """Leaders and both coordinators are among the dead; a broker at a time, and copiers in between."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topic = unique_name("live")
    source_cluster.create_topic(topic, 2)
    # Short ones: whoever comes after a killed copier waits for the end of its slice.
    fields = {"slice_seconds": 3}
    copy = copying([topic], target=three_brokers, replication_factor=3, job_fields=fields)
    with writing(source_cluster, topic, seed), foreign_writers(three_brokers, topic, 2):
        copy.write_job("tail")
        committed: dict[TopicPartition, int] = {}
        for _ in range(FAULTS):
            worker = copy.worker(0, "tail")
            wait_for(partial(have_moved, copy, committed), 60, "the copier commits")
            committed.update(committed_positions(copy))
            time.sleep(rng.random())
            broker = rng.randrange(3)
            if rng.random() < 0.5:
                three_brokers.kill(broker)
                time.sleep(rng.random())
                three_brokers.restart(broker)
            else:
                three_brokers.pause(broker)
                time.sleep(0.5 + rng.random())
                three_brokers.resume(broker)
            time.sleep(rng.random())
            worker.send_signal(signal.SIGKILL)
            _, err = worker.communicate()
            assert "Traceback" not in err, err
    copy.write_job("seed")
    assert all(item.done for item in results_of(finish(copy.worker(), 120)))
    foreign = check_copy(copy)
    assert foreign > 0
    ends = sum(copy.stable_ends().values())
    print(f"seed {seed}: {2 * FAULTS} faults; {ends} source offsets, {foreign} foreign records")
