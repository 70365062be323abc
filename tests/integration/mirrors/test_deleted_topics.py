"""A source topic is deleted and created again on real brokers, while the mirror of the others goes on."""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.cli.frame import ExitCode
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, lost_records
from harness.compare import bounds, compare
from tests.integration.mirrors.mirror_support import Flow, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def _started(flow: Flow) -> subprocess.Popen[str]:
    """Start a mirror. One that a failed test leaves would run until the machine stops."""
    process = flow.start()
    atexit.register(process.kill)
    return process


def _names(cluster: KafkaCluster) -> set[str]:
    admin = cluster.admin()  # must outlive the call
    return set(admin.list_topics(timeout=30).topics)


def _delete(cluster: KafkaCluster, topic: str) -> None:
    admin = cluster.admin()  # must outlive the call
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in _names(cluster), f"{topic} is gone")


def _end(cluster: KafkaCluster, topic: str) -> int:
    return bounds(cluster.client_config(), [topic])[topic][0].end if topic in _names(cluster) else -1


def test_a_topic_is_deleted_by_approval_and_mirrored_afresh(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{unique_name('deleted')}."
    name = prefix.strip(".").lower().replace("_", "-")
    topology = {"refresh_interval": "1s", "on_topic_deleted": "repair"}
    flow = Flow(source_cluster, target_cluster, tmp_path, name, prefix, ("A", "B"), {"topology": topology})
    orders, kept = f"{prefix}orders", f"{prefix}kept"
    remote = flow.remote([orders, kept])
    source_cluster.create_topics({orders: (1, {}), kept: (1, {})})
    old, new = source_cluster.client_config(), target_cluster.client_config()
    with LiveProducer(old, {kept: [0]}, records_per_second=100) as producer:
        with LiveProducer(old, {orders: [0]}, records_per_second=100, seed=2) as first:
            process = _started(flow)
            eventually(lambda: first.count() > 100, "the first life has records")
        ends = _end(source_cluster, orders)
        eventually(lambda: _end(target_cluster, remote[orders]) == ends, "the first life is mirrored")
        _delete(source_cluster, orders)

        def waits() -> bool:
            status = flow.command.start("mirror", "topics", flow.spec, "--delete", "--json")
            status.communicate(timeout=240)
            return status.returncode == ExitCode.WAITS

        eventually(waits, "the mirror has noticed it")
        shown = flow("topics", "--delete", status=ExitCode.WAITS)
        assert [item["remote_topic"] for item in shown["deletable"]] == [remote[orders]]
        # It is created again before anybody has decided: its records are not taken for those of the first life.
        source_cluster.create_topics({orders: (1, {})})
        with LiveProducer(old, {orders: [0]}, records_per_second=100, seed=3) as second:
            eventually(lambda: second.count() > 50, "the second life has records")
        before = producer.count()
        eventually(lambda: producer.count() > before + 300, "passes have run")
        assert _end(target_cluster, remote[orders]) == ends, "nothing is appended to the first life"
        refused = flow("topics", "--approve", "00000000", status=ExitCode.FAILED)
        assert refused["error"]["code"] == "APPROVAL_REFUSED"
        flow("topics", "--delete", "--approve", shown["code"])
        again = _end(source_cluster, orders)
        eventually(
            lambda: _end(target_cluster, remote[orders]) == again and again != ends, "the second life is mirrored"
        )
        producer.freeze()
        flow("promote")
        assert process.wait(240) == ExitCode.OK
    compare(old, new, remote, fenced=True).check()
    acknowledged = {(remote[topic], number): found for (topic, number), found in producer.acknowledged.items()}
    assert lost_records(new, acknowledged) == []


@pytest.mark.parametrize(
    ("command", "state"),
    [pytest.param(("end",), "ended", marks=pytest.mark.soak), (("promote", "--source-gone"), "promoted")],
)
def test_a_remote_topic_that_somebody_has_deleted_holds_up_no_request(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    command: tuple[str, ...],
    state: str,
) -> None:
    """The partition has failed, and the mirror is paused and ended all the same, with the topic's name."""
    prefix = f"{unique_name('vanished')}."
    name = prefix.strip(".").lower().replace("_", "-")
    flow = Flow(source_cluster, target_cluster, tmp_path, name, prefix, ("A", "B"), {})
    orders, kept = f"{prefix}orders", f"{prefix}kept"
    remote = flow.remote([orders, kept])
    source_cluster.create_topics({orders: (1, {}), kept: (1, {})})
    with LiveProducer(source_cluster.client_config(), {orders: [0], kept: [0]}, records_per_second=50) as producer:
        process = _started(flow)
        eventually(lambda: min(_end(target_cluster, remote[topic]) for topic in (orders, kept)) > 50, "both mirrored")
        _delete(target_cluster, remote[orders])
        eventually(lambda: "TARGET_TOPIC_MISSING" in str(flow("status")), "the mirror has noticed it")
        flow("pause")
        assert process.wait(240) == ExitCode.WAITS
        producer.freeze()
    found = flow(*command)
    assert found["state"] == state
    shown = str(flow("status")) + str(found)
    assert f"{remote[orders]} does not exist on the target any more" in shown
    assert _end(target_cluster, remote[kept]) > 50
