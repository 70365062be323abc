"""ACLs, users, quotas on brokers that enforce them: principals are refused before and accepted after."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from airflow_provider_kafka_migration.access import apply, write_grants
from airflow_provider_kafka_migration.documents.target import AccessMap
from airflow_provider_kafka_migration.errors import AuthenticationFailed, PermissionMissing, TopologyRefused, Where
from airflow_provider_kafka_migration.kafka.admin.access import Acl, NewScramCredential, QuotaEntity
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.groups import GroupOffset
from airflow_provider_kafka_migration.kafka.admin.topics import ConfigResource
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration

PASSWORD = "secret-of-this-test"


def _user(cluster: KafkaCluster, name: str, password: str = PASSWORD) -> ClientConfig:
    keys = {**cluster.client_config("alice", "SCRAM-SHA-512"), "sasl.username": name, "sasl.password": password}
    return ClientConfig.from_librdkafka(keys, "target")


def _create_user(context: PhaseContext, name: str) -> None:
    credential = NewScramCredential(name, "SCRAM-SHA-512", PASSWORD, 4096)
    for cluster in (context.source, context.target):
        assert cluster.admin.create_scram_credentials([credential]) == {name: None}


def _only(prefix: str) -> dict[str, object]:
    """Copy the ACLs of principals of this test, not those of other tests on the same brokers."""
    return {"exclude_principals": [f"User:(?!{prefix}).*"]}


def _may(config: ClientConfig, topic: str) -> frozenset[str]:
    with Admin(config) as admin:
        facts = admin.describe_topics([topic], operations=True)[topic]
        return facts.operations or frozenset()


def _quotas(admin: Admin) -> Mapping[QuotaEntity, Mapping[str, float]]:
    return {quota.entity: quota.values for quota in admin.quotas() or []}


@pytest.fixture
def stem(unique_name: Callable[[str], str]) -> str:
    """Names of topics, users and groups of one test."""
    return unique_name("acl").replace(".", "-")[-40:]


def test_acls_of_all_kinds_are_copied_and_enforced(make_control: Callable[..., Control], stem: str) -> None:
    control = make_control(f"{stem}.", acls=_only(stem))
    topic, user = f"{stem}.orders", f"{stem}-app"
    principal = f"User:{user}"
    control.source_cluster.create_topic(topic)
    context = control.context()
    _create_user(context, user)
    bindings = [
        Acl("TOPIC", topic, "LITERAL", principal, "*", "WRITE", "ALLOW"),
        Acl("TOPIC", f"{stem}.", "PREFIXED", principal, "*", "READ", "ALLOW"),
        Acl("TOPIC", topic, "LITERAL", principal, "*", "ALTER_CONFIGS", "DENY"),
        Acl("GROUP", f"{stem}-", "PREFIXED", principal, "*", "READ", "ALLOW"),
        Acl("TRANSACTIONAL_ID", f"{stem}-tx", "LITERAL", principal, "*", "WRITE", "ALLOW"),
        Acl("CLUSTER", "kafka-cluster", "LITERAL", principal, "*", "DESCRIBE", "ALLOW"),
        Acl("DELEGATION_TOKEN", f"{stem}-token", "LITERAL", principal, "*", "DESCRIBE", "ALLOW"),
    ]
    filtered = [
        Acl("CLUSTER", "kafka-cluster", "LITERAL", principal, "*", "CLUSTER_ACTION", "ALLOW"),
        Acl("TOPIC", "__consumer_offsets", "LITERAL", principal, "*", "READ", "ALLOW"),
        Acl("TOPIC", f"{stem}-elsewhere", "LITERAL", principal, "*", "READ", "ALLOW"),
    ]
    assert set(context.source.admin.create_acls([*bindings, *filtered]).values()) == {None}
    context, _ = control.planned()
    copy_topics(context)
    target = _user(control.target_cluster, user)
    assert _may(target, topic) == frozenset()
    result = apply.run(context)
    mine = {acl for acl in context.target.admin.describe_acls().acls if acl.principal == principal}
    assert mine == set(bindings)
    assert _may(target, topic) == {"READ", "WRITE", "DESCRIBE"}
    assert result.details["created"] == len(bindings)
    left = {item["name"] for item in context.record.stored_result("acls")["left"]}
    assert {str(acl) for acl in filtered} <= left
    assert apply.run(control.context()).already_done


def _grant_in_cutover(context: PhaseContext) -> None:
    for state in (State.SEED, State.TAIL, State.DRAIN_READY, State.CUTOVER):
        context.journal.transition(state, "test")
    write_grants.grant(context.record, context.source, context.target)


def test_writing_is_held_back_until_the_cutover(make_control: Callable[..., Control], stem: str) -> None:
    control = make_control(f"{stem}.", acls={**_only(stem), "write_grants": "at_cutover"})
    topic, writer, owner = f"{stem}.orders", f"{stem}-writer", f"{stem}-owner"
    control.source_cluster.create_topic(topic)
    context = control.context()
    for user in (writer, owner):
        _create_user(context, user)
    bindings = [
        Acl("TOPIC", topic, "LITERAL", f"User:{writer}", "*", "WRITE", "ALLOW"),
        Acl("TOPIC", topic, "LITERAL", f"User:{writer}", "*", "DESCRIBE", "ALLOW"),
        Acl("TOPIC", topic, "LITERAL", f"User:{owner}", "*", "ALL", "ALLOW"),
    ]
    assert set(context.source.admin.create_acls(bindings).values()) == {None}
    context, _ = control.planned()
    copy_topics(context)
    assert apply.run(context).details["deferred"] == 2
    assert _may(_user(control.target_cluster, writer), topic) == {"DESCRIBE"}
    assert _may(_user(control.target_cluster, owner), topic) == {"READ", "DESCRIBE"}
    _grant_in_cutover(context)
    assert "WRITE" in _may(_user(control.target_cluster, writer), topic)
    assert {"WRITE", "DELETE"} <= _may(_user(control.target_cluster, owner), topic)


def test_refuse_stops_before_anything_is_changed(make_control: Callable[..., Control], stem: str) -> None:
    control = make_control(f"{stem}.", acls={**_only(stem), "policy": "refuse"})
    topic = f"{stem}.orders"
    control.source_cluster.create_topic(topic)
    context = control.context()
    binding = Acl("TOPIC", topic, "LITERAL", f"User:{stem}-a", "*", "READ", "ALLOW")
    assert context.source.admin.create_acls([binding]) == {binding: None}
    context, _ = control.planned()
    with pytest.raises(TopologyRefused) as caught:
        apply.run(context)
    assert caught.value.details == {"source_only": [str(binding)], "target_only": []}
    assert binding not in context.target.admin.describe_acls().acls


def test_not_allowed_to_list_is_never_read_as_none(
    make_control: Callable[..., Control], stem: str, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    control = make_control(f"{stem}.")
    source_cluster.create_topic(f"{stem}.orders")
    control.planned()
    user = f"{stem}-migrator"
    context = control.context()
    _create_user(context, user)
    weak = control.context()
    weak.source.config = _user(source_cluster, user)
    with pytest.raises(PermissionMissing, match="ACLs cannot be listed"):
        apply.run(weak)


@pytest.mark.parametrize("side", ["source", "target"])
def test_credentials_of_both_mechanisms_and_errors_of_single_users(control: Control, stem: str, side: str) -> None:
    """In ZooKeeper and in KRaft mode, whose controllers refuse two changes of a user in one request."""
    admin = getattr(control.context(), side).admin
    both, weak = f"{stem}-both", f"{stem}-weak"
    wanted = [NewScramCredential(both, mechanism, PASSWORD, 4096) for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256")]
    found = admin.create_scram_credentials([*wanted, NewScramCredential(weak, "SCRAM-SHA-256", PASSWORD, 10)])
    assert found == {both: None, weak: ItemError(93, "UNACCEPTABLE_CREDENTIAL", "Too few iterations")}
    users = {user.name: user.credentials for user in admin.scram_users()}
    assert users[both] == (("SCRAM-SHA-256", 4096), ("SCRAM-SHA-512", 4096))
    assert weak not in users
    gone = [(both, "SCRAM-SHA-256"), (both, "SCRAM-SHA-512"), (weak, "SCRAM-SHA-256")]
    assert admin.delete_scram_credentials(gone) == {both: None, weak: None}
    assert both not in {user.name for user in admin.scram_users()}


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_only_a_missing_right_refuses_is_named_for_each_item(
    control: Control, stem: str, side: str, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    cluster = {"source": source_cluster, "target": target_cluster}[side]
    topic = f"{stem}.mine"
    cluster.create_topic(topic)
    with Admin(ClientConfig.from_librdkafka(cluster.client_config("bob"), side)) as admin:
        refused = [
            admin.create_partitions({topic: 3})[topic],
            admin.delete_topics([topic])[topic],
            admin.topic_configs([topic])[topic].error,
            admin.alter_topic_configs({topic: {"retention.ms": "1"}})[topic],
            admin.create_scram_credentials([NewScramCredential("zoe", "SCRAM-SHA-256", PASSWORD)])["zoe"],
        ]
    assert [error.name for error in refused if error is not None] == [
        *["TOPIC_AUTHORIZATION_FAILED"] * 4,
        "CLUSTER_AUTHORIZATION_FAILED",
    ]
    for error in refused:
        assert error is not None
        assert isinstance(error.exception("it", Where(cluster=side)), PermissionMissing)
        # A broker's dump of the request, and librdkafka's stand-ins for a text, are no messages.
        assert not error.message.startswith(("Request Request(", "Broker:", "(null)"))


def test_users_with_a_secret_are_created_once(
    make_control: Callable[..., Control], stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_APP", PASSWORD)
    app, other = f"{stem}-app", f"{stem}-other"
    control = make_control(f"{stem}.", acls={**_only(stem), "users": {app: "env:SECRET_OF_APP"}})
    control.source_cluster.create_topic(f"{stem}.orders")
    context = control.context()
    for name in (app, other):
        credential = NewScramCredential(name, "SCRAM-SHA-512", "another secret", 4096)
        assert context.source.admin.create_scram_credentials([credential]) == {name: None}
    context, plan = control.planned()
    actions = {user.name: user.action for user in plan.users}
    assert (actions[app], actions[other]) == ("create", "report")
    assert apply.run(context).details["users_created"] == [app]
    with Admin(_user(control.target_cluster, app)) as admin:
        assert admin.brokers()
    with pytest.raises(AuthenticationFailed), Admin(_user(control.target_cluster, app, "wrong")) as admin:
        admin.brokers()
    assert other in {item["name"] for item in context.record.stored_result("acls")["users_left"]}
    everything = b"".join(entry.model_dump_json().encode() for entry in context.journal.entries())
    assert PASSWORD.encode() not in everything
    assert apply.run(control.context()).already_done


def test_quota_policies(make_control: Callable[..., Control], stem: str) -> None:
    control = make_control(f"{stem}.", acls=_only(stem))
    control.source_cluster.create_topic(f"{stem}.orders")
    context = control.context()
    fresh: QuotaEntity = (("client-id", f"{stem}-fresh"),)
    both: QuotaEntity = (("client-id", f"{stem}-both"), ("user", None))
    address: QuotaEntity = (("ip", f"10.{secrets.randbelow(256)}.{secrets.randbelow(256)}.7"),)
    source = {
        fresh: {"producer_byte_rate": 1000.0},
        both: {"consumer_byte_rate": 2000.0},
        address: {"connection_creation_rate": 50.0},
    }
    assert set(context.source.admin.alter_quotas(source).values()) == {None}
    target = {both: {"consumer_byte_rate": 5.0, "producer_byte_rate": 7.0}}
    assert set(context.target.admin.alter_quotas(target).values()) == {None}
    control.planned()
    with pytest.raises(TopologyRefused, match="quotas"):
        apply.run(control.context(acls={**_only(stem), "quotas": "refuse"}))
    apply.run(control.context(acls={**_only(stem), "quotas": "keep_target"}))
    kept = _quotas(control.context().target.admin)
    assert kept[fresh] == {"producer_byte_rate": 1000.0}
    assert kept[address] == {"connection_creation_rate": 50.0}
    assert kept[both] == {"consumer_byte_rate": 5.0, "producer_byte_rate": 7.0}
    apply.run(control.context())
    copied = _quotas(control.context().target.admin)
    assert copied[both] == {"consumer_byte_rate": 2000.0, "producer_byte_rate": 7.0}
    assert apply.run(control.context()).already_done


def test_an_iam_target_gets_a_map_and_no_acls(make_control: Callable[..., Control], stem: str) -> None:
    arn = "arn:aws:kafka:eu-west-1:123456789012:cluster/new/abc-1"
    control = make_control(f"{stem}.", acls={**_only(stem), "target_auth": "iam", "target_cluster_arn": arn})
    topic, principal = f"{stem}.orders", f"User:{stem}-app"
    control.source_cluster.create_topic(topic)
    context = control.context()
    bindings = [
        Acl("TOPIC", topic, "LITERAL", principal, "*", "READ", "ALLOW"),
        Acl("TOPIC", topic, "LITERAL", principal, "10.0.0.1", "WRITE", "ALLOW"),
    ]
    assert set(context.source.admin.create_acls(bindings).values()) == {None}
    context, _ = control.planned()
    apply.run(context)
    assert not {acl for acl in context.target.admin.describe_acls().acls if acl.principal == principal}
    data = context.evidence_store.get(context.key("access-map.json"))
    assert data is not None
    found = AccessMap.parse(data)
    connect, read = found.principals[principal]
    assert connect.actions == ["kafka-cluster:Connect"]
    assert read.resources == [f"arn:aws:kafka:eu-west-1:123456789012:topic/new/abc-1/{topic}"]
    assert read.actions == ["kafka-cluster:DescribeTopic", "kafka-cluster:ReadData"]
    assert [item.name for item in found.without_equivalent] == [str(bindings[1])]
    assert json.loads(data)["version"] == 1


def test_rights_follow_renamed_topics(make_control: Callable[..., Control], stem: str) -> None:
    """Literal bindings follow their topic, a prefix gets the new prefix, a topic with a name of its own its own one."""
    orders, special, own = f"{stem}.orders", f"{stem}.special", f"own-{stem}"
    rename = {"prefix": "new.", "topics": {special: own}}
    control = make_control(f"{stem}.", topics={"rename": rename}, acls=_only(stem))
    control.source_cluster.create_topics({orders: (1, {}), special: (1, {})})
    context, user = control.context(), f"{stem}-app"
    _create_user(context, user)
    read = Acl("TOPIC", orders, "LITERAL", f"User:{user}", "*", "READ", "ALLOW")
    write = Acl("TOPIC", f"{stem}.", "PREFIXED", f"User:{user}", "*", "WRITE", "ALLOW")
    assert set(context.source.admin.create_acls([read, write]).values()) == {None}
    context, _ = control.planned()
    copy_topics(context)
    apply.run(context)
    mine = {acl for acl in context.target.admin.describe_acls().acls if acl.principal == f"User:{user}"}
    assert mine == {
        replace(read, resource_name=f"new.{orders}"),
        replace(write, resource_name=f"new.{stem}."),
        replace(write, resource_name=own, pattern_type="LITERAL"),
    }
    app = _user(control.target_cluster, user)
    assert _may(app, f"new.{orders}") == {"READ", "WRITE", "DESCRIBE"}
    assert _may(app, own) == {"WRITE", "DESCRIBE"}
    assert {item["name"] for item in context.record.stored_result("acls")["renamed"]} == {str(acl) for acl in mine}
    assert apply.run(control.context()).already_done


# -- clients, not only what brokers say of rights ----------------------------------------------------------------------


def _write(cluster: KafkaCluster, user: str, topic: str, transactional_id: str) -> str:
    """Write one record in a transaction as a user: "" or the name of the broker's error."""
    keys = {**cluster.client_config("alice", "SCRAM-SHA-512"), "sasl.username": user, "sasl.password": PASSWORD}
    producer = Producer({**keys, "transactional.id": transactional_id, "message.timeout.ms": 8000})
    failed: list[str] = []
    try:
        producer.init_transactions(15)
        producer.begin_transaction()
        producer.produce(topic, b"value", on_delivery=lambda error, _: failed.append(error.name()) if error else None)
        producer.flush(15)
        if failed:
            producer.abort_transaction(15)
            return failed[0]
        producer.commit_transaction(15)
    except KafkaException as error:
        return str(error.args[0].name())
    return ""


def _read(cluster: KafkaCluster, user: str, topic: str, group: str) -> str:
    """Read one record in a group and commit, as a user: "" or the name of the error."""
    keys = {**cluster.client_config("alice", "SCRAM-SHA-512"), "sasl.username": user, "sasl.password": PASSWORD}
    consumer = Consumer({**keys, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                return str(message.error().name())
            consumer.commit(message=message, asynchronous=False)
            return ""
        return "NOTHING"
    finally:
        consumer.close()


def test_clients_are_refused_before_and_work_after(make_control: Callable[..., Control], stem: str) -> None:
    """Principals of the ZooKeeper source's AclAuthorizer, on the target's StandardAuthorizer."""
    control = make_control(f"{stem}.", acls={**_only(stem), "write_grants": "at_cutover"})
    topic, writer, reader = f"{stem}.orders", f"{stem}-writer", f"{stem}-reader"
    control.source_cluster.create_topic(topic)
    context = control.context()
    for user in (writer, reader):
        _create_user(context, user)
    bindings = [
        Acl("TOPIC", f"{stem}.", "PREFIXED", f"User:{writer}", "*", "WRITE", "ALLOW"),
        Acl("TRANSACTIONAL_ID", f"{stem}-", "PREFIXED", f"User:{writer}", "*", "WRITE", "ALLOW"),
        Acl("TOPIC", topic, "LITERAL", f"User:{reader}", "*", "READ", "ALLOW"),
        Acl("GROUP", f"{stem}-group", "LITERAL", f"User:{reader}", "*", "READ", "ALLOW"),
    ]
    assert set(context.source.admin.create_acls(bindings).values()) == {None}
    source, target, tx, group = control.source_cluster, control.target_cluster, f"{stem}-tx", f"{stem}-group"
    assert _write(source, writer, topic, tx) == ""
    context, _ = control.planned()
    copy_topics(context)
    control.produce(topic, 3, cluster=target)
    assert _write(target, writer, topic, tx) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert _read(target, reader, topic, group) in ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED")
    apply.run(context)
    assert _read(target, reader, topic, group) == ""
    assert _write(target, writer, topic, tx) == "TOPIC_AUTHORIZATION_FAILED"
    _grant_in_cutover(context)
    assert _write(target, writer, topic, tx) == ""
    assert _write(target, reader, topic, tx) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


# -- group configs -----------------------------------------------------------------------------------------------------

GROUP_CONFIGS = {"consumer.heartbeat.interval.ms": "6000", "consumer.session.timeout.ms": "50000"}


def _configured_group(cluster: KafkaCluster, control: Control, group: str) -> PhaseContext:
    """A context whose source is this cluster, with a topic, and a group of its own configs."""
    topic = f"{control.prefix}orders"
    cluster.create_topic(topic)
    admin = control.context().source.admin
    assert set(admin.alter_group_offsets(group, {(topic, 0): GroupOffset(0)}).values()) == {None}
    assert admin.alter_configs(ConfigResource.GROUP, {group: GROUP_CONFIGS}) == {group: None}
    context, _ = control.planned()
    copy_topics(context)
    return context


def test_group_configs_are_copied_and_drift_is_put_right(
    tmp_path: Path, target_cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory, stem: str
) -> None:
    with KafkaCluster(tmp_path_factory.mktemp("third"), "4.1.1", "kraft", users={"admin": "admin-secret"}) as third:
        control = Control(tmp_path, target_cluster, third, f"{stem}.", acls=_only(stem))
        try:
            group = f"{stem}.readers"
            context = _configured_group(target_cluster, control, group)
            (planned,) = context.record.plan().group_configs
            assert (planned.group, planned.configs, planned.action) == (group, GROUP_CONFIGS, "create")
            assert apply.run(context).details["group_configs_set"] == [group]
            assert context.target.admin.group_configs([group])[group].overrides == GROUP_CONFIGS
            assert apply.run(control.context()).already_done
            drifted = {group: {"consumer.session.timeout.ms": "55000"}}
            assert context.target.admin.alter_configs(ConfigResource.GROUP, drifted) == {group: None}
            assert apply.run(control.context()).details["group_configs_set"] == [group]
            assert context.target.admin.group_configs([group])[group].overrides == GROUP_CONFIGS
        finally:
            control.close()


def test_group_configs_that_the_target_cannot_have_are_named(
    tmp_path: Path, source_cluster: KafkaCluster, target_cluster: KafkaCluster, stem: str
) -> None:
    """From Kafka 4.1 to 3.9: there are no group configs."""
    control = Control(tmp_path, target_cluster, source_cluster, f"{stem}.", acls=_only(stem))
    try:
        group = f"{stem}.readers"
        context = _configured_group(target_cluster, control, group)
        assert [item.action for item in context.record.plan().group_configs] == ["unsupported"]
        assert apply.run(context).details["group_configs_set"] == []
        (left,) = context.record.stored_result("acls")["group_configs_left"]
        assert left["name"] == group
    finally:
        control.close()
