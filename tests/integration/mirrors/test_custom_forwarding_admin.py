"""MirrorMaker 2's ``CustomForwardingAdmin`` (KIP-787): only a service of the company changes topics and ACLs.

The mirror's own principal may not create or alter topics, nor any ACL, so whatever does not pass through the class
would be refused. The class is the example of docs/topology.md, with the service's own credentials.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from airflow_provider_kafka_migration.errors import PrecheckBlocked
from airflow_provider_kafka_migration.internal_topics import SCRATCH_PREFIX
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS
from tests.integration.mirrors.scenario_support import Scene, make_scene, topics_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

USER = "alice"
_PAGE = Path(__file__).parents[3] / "docs" / "topology.md"


def example() -> type[Any]:
    """Return the class on the page."""
    found = re.search(r"```python\n(from confluent_kafka.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    made: type[Any] = names["TeamAdmin"]
    return made


class Service(example()):  # type: ignore[misc]
    """The company's service: it has rights that the mirror lacks, and records what it is asked for."""

    credentials: ClassVar[dict[str, str]] = {}
    calls: ClassVar[list[tuple[str, Any]]] = []
    #: methods that claim success and do nothing, and whether they do so for the precheck's scratch topic, too
    lies: ClassVar[set[str]] = set()
    lies_to_probe: ClassVar[bool] = True
    threads: ClassVar[dict[int, set[int]]] = {}

    def __init__(self, settings: dict[str, Any]) -> None:
        assert settings["sasl.username"] == USER, "the settings are those of the mirror's connection"
        super().__init__(self.credentials)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith(("create_", "alter_", "delete_")):
            return found

        def recorded(given: Any) -> Any:
            Service.calls.append((name, given))
            Service.threads.setdefault(id(self), set()).add(threading.get_ident())
            is_lie = name in Service.lies and (Service.lies_to_probe or SCRATCH_PREFIX not in str(given))
            return None if is_lie else found(given)

        return recorded


def asked(method: str) -> list[Any]:
    """What the service was asked to do by one method."""
    return [given for name, given in Service.calls if name == method]


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """A mirror whose principal may only read, write and delete records on the target; it has not started."""
    Service.credentials, Service.calls, Service.lies = target_cluster.client_config("admin"), [], set()
    Service.lies_to_probe, Service.threads = True, {}
    folder = tmp_path_factory.mktemp("forwarding")
    made = make_scene(
        request,
        folder,
        (source_cluster, target_cluster),
        (source_cluster.client_config("admin"), target_cluster.client_config(USER)),
        acls={"policy": "merge", "quotas": "skip", "exclude_principals": [f"User:{USER}"]},
    )
    spec = made.flow.spec
    conn = f"  conn_id: file:{folder}/target.json\n"
    text = spec.read_text(encoding="utf-8")
    assert conn in text
    added = f"{conn}  admin_class: {__name__}.Service\n  admin_wait: 20s\n"
    spec.write_text(text.replace(conn, added), encoding="utf-8")
    target_cluster.forget_rights(USER)
    alias = f"{made.flow.aliases[0]}."
    # DeleteRecords needs Delete, and control markers need ClusterAction: neither changes a topic or an ACL.
    for prefix in (alias, SCRATCH_PREFIX):
        rights = ["read", "write", "describe", "describe_configs", "delete"]
        target_cluster.allow(USER, "topic", prefix, rights, prefixed=True)
    target_cluster.allow(USER, "broker", "kafka-cluster", ["describe", "describe_configs", "cluster_action"])
    target_cluster.allow(USER, "transactional_id", "kafka-migration", ["write", "describe"], prefixed=True)
    target_cluster.allow(USER, "group", made.flow.prefix, ["read", "describe"], prefixed=True)
    yield made
    made.mirror.stop()
    target_cluster.forget_rights(USER)
    for cluster in (source_cluster, target_cluster):
        for user in ("bob", "carol"):
            cluster.forget_rights(user)


def _eventually(what: str, scene: Scene, check: Callable[[], bool]) -> None:
    def holds() -> bool:
        if scene.mirror.error is not None:
            raise scene.mirror.error
        return check()

    wait_for(what, holds, SECONDS, 0.3)


def _set_config(cluster: KafkaCluster, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    admin = cluster.admin()  # must outlive the call
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def _config(cluster: KafkaCluster, topic: str, name: str) -> str:
    admin = cluster.admin()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result()[name].value)


def _acls(cluster: KafkaCluster, topic: str) -> set[Acl]:
    with Admin(ClientConfig.from_librdkafka(cluster.client_config("admin"), "target")) as admin:
        return {acl for acl in admin.describe_acls().acls if acl.resource_name == topic}


def test_custom_forwarding_admin(scene: Scene) -> None:
    """Topics are created, partitions added, configs synced and ACLs synced, all by the class."""
    source, target = scene.source, scene.target
    early = scene.create("early", 2, {"index.interval.bytes": "8192"})
    source.allow("bob", "topic", early, ["read"])
    # It stays: an empty list of ACLs is never taken as proof that all were withdrawn.
    source.allow("carol", "topic", early, ["read"])
    scene.write(early, [0, 1], 50)
    own = AdminClient(target.client_config(USER))
    refused = own.create_topics([NewTopic(scene.remote(early), 1)])[scene.remote(early)]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        refused.result()
    scene.mirror.start()
    scene.check(early)

    created = {topic.name: topic for given in asked("create_topics") for topic in given}
    assert created[scene.remote(early)].partitions == 2
    assert created[scene.remote(early)].configs["index.interval.bytes"] == "8192"
    others = {name for name in created if not name.startswith(SCRATCH_PREFIX)}
    assert others == {scene.remote(early)}

    grown = scene.create("later", 1)
    scene.write(grown, [0], 10)
    scene.check(grown)
    admin = source.admin()
    admin.create_partitions([NewPartitions(grown, 3)])[grown].result()
    wait_for("the source's new partitions", lambda: len(admin.list_topics(grown).topics[grown].partitions) == 3, 120)
    scene.write(grown, [1, 2], 10)
    scene.check(grown)
    assert {scene.remote(grown): 3} in asked("create_partitions")

    remote = scene.remote(early)
    _set_config(source, early, "index.interval.bytes", "16384")
    _eventually("the config", scene, lambda: _config(target, remote, "index.interval.bytes") == "16384")
    assert any(given.get(remote, {}).get("index.interval.bytes") == "16384" for given in asked("alter_topic_configs"))

    read = Acl("TOPIC", remote, "LITERAL", "User:bob", "*", "READ", "ALLOW")
    describe = Acl("TOPIC", remote, "LITERAL", "User:bob", "*", "DESCRIBE", "ALLOW")
    assert read in _acls(target, remote)
    source.allow("bob", "topic", early, ["describe"])
    _eventually("the new ACL", scene, lambda: describe in _acls(target, remote))
    source.forget_rights("bob")
    _eventually("the withdrawal", scene, lambda: not {read, describe} & _acls(target, remote))
    assert {acl for given in asked("create_acls") for acl in given} >= {read, describe}
    assert {acl for given in asked("delete_acls") for acl in given} >= {read, describe}
    assert all(len(threads) == 1 for threads in Service.threads.values()), "no object is used by two threads"
    assert "alice-secret" not in "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in (scene.flow.folder / scene.flow.name).rglob("*")
        if path.is_file()
    ), "the journal has no password"


@pytest.mark.soak
def test_a_class_that_only_claims_success_is_found_out(scene: Scene) -> None:
    """It says that it has created topics which the cluster does not have: first the precheck's, then the mirror's."""
    topic = scene.create("claimed", 1)
    scene.write(topic, [0], 10)
    early = scene.create("early", 1)
    scene.write(early, [0], 10)
    Service.lies = {"create_topics"}
    text = scene.flow.spec.read_text(encoding="utf-8")
    scene.flow.spec.write_text(text.replace("admin_wait: 20s", "admin_wait: 2s"), encoding="utf-8")
    with pytest.raises(PrecheckBlocked, match=f"Service has accepted create_topics for {SCRATCH_PREFIX}"):
        scene.mirror.start()

    Service.lies_to_probe = False
    scene.mirror.begin()
    folder = scene.flow.folder / scene.flow.name / scene.flow.name / "journal"

    def named() -> str:
        if scene.mirror.error is not None:
            raise scene.mirror.error
        texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json")))
        return next((text for text in texts if "CHANGE_NOT_SEEN" in text), "")

    wait_for("the error is named", named, SECONDS, 0.5)
    assert "Service has accepted create_topics for" in named()
    assert "there is no such topic" in named()
    assert not topics_of(scene.target, scene.flow.prefix)
    # The service works again: the mirror goes on by itself.
    Service.lies = set()
    scene.mirror.wait_mirrors()
    scene.check(topic, early)
