"""Planned promotions that stop the producers themselves, on real brokers and with producers that write meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, lost_records
from harness.webhook import FreezeWebhook
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually, flow_name, log_ends

pytestmark = pytest.mark.integration

PARTITIONS = [0, 1]


@pytest.fixture
def make_flow(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Callable[..., Flow]:
    """A flow of one topic, ``orders`` behind the prefix, to which alice may write; the mirror is a super user."""

    def make(**cutover: Any) -> Flow:
        prefix = f"{unique_name('freeze')}."
        topic = f"{prefix}orders"
        source_cluster.create_topics({topic: (len(PARTITIONS), {})})
        bindings = [_acl(topic, operation) for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)]
        admin = source_cluster.admin()
        for future in admin.create_acls(bindings).values():
            future.result()
        sections = {
            "source": {"conn_id": "env:MIRROR_SOURCE", "principal": "User:ANONYMOUS"},
            "cutover": {"max_producer_freeze": "120s", **cutover},
        }
        return Flow(source_cluster, target_cluster, tmp_path, flow_name(prefix), prefix, ("A", "B"), sections)

    return make


class Refusable(LiveProducer):
    """Goes on after it was refused: librdkafka then refuses records itself, until it has asked for the topic again."""

    def _sends(self, producer: Producer) -> bool:
        try:
            return super()._sends(producer)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            self.failed.append(("", -1, error.args[0]))
            with contextlib.suppress(KafkaException):
                producer.list_topics(timeout=1)
            return False


def _acl(topic: str, operation: AclOperation, permission: AclPermissionType = AclPermissionType.ALLOW) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*", operation, permission)


def orders(flow: Flow) -> str:
    return f"{flow.prefix}orders"


def denied(cluster: KafkaCluster, topic: str) -> list[str]:
    """The principals that are denied on a topic."""
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.DENY,
    )
    admin = cluster.admin()
    return [str(item.principal) for item in admin.describe_acls(wanted).result()]


def journaled(flow: Flow, step: str) -> bool:
    journal = Journal(LocalStore(flow.folder / flow.name), flow.name)
    journal.refresh()
    return journal.find_step(step) is not None


@contextmanager
def alice_writes(flow: Flow) -> Iterator[LiveProducer]:
    config = flow.source.client_config("alice")
    with Refusable(config, {orders(flow): PARTITIONS}, records_per_second=300) as producer:
        eventually(lambda: producer.count() > 100, "alice writes")
        yield producer


def check_nothing_lost(flow: Flow, producer: LiveProducer) -> None:
    """Every acknowledged record is on the target, which has nothing but them and the fence."""
    remote = flow.remote([orders(flow)])[orders(flow)]
    acknowledged = {(remote, number): found for (_, number), found in producer.acknowledged.items()}
    assert lost_records(flow.target.client_config(), acknowledged) == []
    ends = log_ends(flow.source, [orders(flow)])
    assert log_ends(flow.target, [remote]) == {(remote, number): end + 1 for (_, number), end in ends.items()}


def is_refused(producer: LiveProducer) -> bool:
    return any(error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED for _, _, error in producer.failed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.soak), True])
def test_producers_are_denied_and_every_record_that_was_acknowledged_arrives(
    make_flow: Callable[..., Flow], is_killed: bool
) -> None:
    """Also if the mirror is killed once producers are denied, and runs again."""
    flow = make_flow(freeze="acl")
    process = flow.start()
    with alice_writes(flow) as producer:
        asking = flow.command.start("mirror", "promote", flow.spec, "--timeout", str(SECONDS), "--json")
        if is_killed:
            eventually(lambda: journaled(flow, steps.FREEZE_ACLS), "producers are about to be denied")
            process.kill()
            process.wait()
            process = flow.begin()[0]
        out, err = asking.communicate(timeout=SECONDS)
        assert asking.returncode == ExitCode.OK, out + err
        assert process.wait(SECONDS) == ExitCode.OK
        eventually(lambda: is_refused(producer), "alice is refused")
        count = producer.count()
        time.sleep(1)
        assert producer.count() == count, "nothing gets in behind the promotion"
    promoted = flow("promote")
    assert promoted["state"] == "promoted"
    details = promoted["details"]
    assert (details["freeze"]["method"], details["freeze"]["attempt"]) == ("acl", 1)
    assert details["problems"] == []
    assert details["late_writes"] == details["not_checked"] == {}
    assert denied(flow.source, orders(flow)) == ["User:alice"]
    assert not journaled(flow, steps.FREEZE_LIFTED)
    check_nothing_lost(flow, producer)
    assert producer.count() > 100
    check_abandoned(flow)


def check_abandoned(flow: Flow) -> None:
    """No client has written to the target: producers write to the source again, and the mirror has ended."""
    shown = flow("abandon", status=ExitCode.WAITS)["waiting"]
    assert (shown["target"]["late"], shown["target"]["unchecked"]) == ({}, {}), "the fence's marker is no record"
    done = flow("abandon", "--approve", shown["code"])
    assert done["details"]["problems"] == []
    assert denied(flow.source, orders(flow)) == []
    assert flow.journal_state() is State.ENDED
    with alice_writes(flow):
        pass
    journal = Journal(LocalStore(flow.folder / flow.name), flow.name)
    assert journal.verify().is_good


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_webhook_stops_the_producers_and_keeps_them_stopped(make_flow: Callable[..., Flow]) -> None:
    flow = make_flow()
    with alice_writes(flow) as producer, FreezeWebhook(producer) as webhook:
        text = flow.spec.read_text(encoding="utf-8")
        address = f"freeze: webhook\n  producer_freeze_webhook: {webhook.url}"
        flow.spec.write_text(text.replace("cutover:\n", f"cutover:\n  {address}\n"), encoding="utf-8")
        process = flow.start()
        promoted = flow("promote")
        assert process.wait(SECONDS) == ExitCode.OK
        assert [(call.action, call.body["deadline"] is None) for call in webhook.calls] == [
            ("freeze", False),
            ("freeze", True),
        ]
        assert producer.frozen
    assert promoted["details"]["freeze"]["method"] == "webhook"
    assert promoted["details"]["problems"] == []
    check_nothing_lost(flow, producer)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_producer_that_cannot_be_denied_is_named_and_all_go_on(make_flow: Callable[..., Flow]) -> None:
    """A super user writes on, whom no ACL stops."""
    flow = make_flow(freeze="acl")
    process = flow.start()
    topic = orders(flow)
    with (
        alice_writes(flow) as producer,
        LiveProducer(flow.source.client_config(), {topic: PARTITIONS}, records_per_second=20) as bypassing,
    ):
        refused = flow("promote", status=ExitCode.FAILED)
        assert refused["error"]["code"] == "REQUEST_REFUSED"
        assert "were written to after the freeze" in refused["error"]["what"]
        assert "the DENY ACLs of the freeze are removed" in refused["error"]["what"]
        assert is_refused(producer), "she was stopped"
        assert denied(flow.source, topic) == []
        count = producer.count()
        eventually(lambda: producer.count() > count + 100, "alice writes on")
        assert flow.state() == "mirroring"
        remote = flow.remote([topic])[topic]
        before = log_ends(flow.target, [remote])
        eventually(
            lambda: all(end > before[key] for key, end in log_ends(flow.target, [remote]).items()), "the mirror goes on"
        )
    assert process.poll() is None
    promoted = flow("promote")
    assert promoted["details"]["freeze"]["attempt"] == 2
    assert process.wait(SECONDS) == ExitCode.OK
    check_nothing_lost(flow, producer)
    check_nothing_lost(flow, bypassing)
