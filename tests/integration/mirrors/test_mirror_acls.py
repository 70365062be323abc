"""Who may do what with remote topics, on brokers that enforce ACLs: rights follow, nobody writes there too early."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.record import steps
from harness.brokers import KafkaCluster
from harness.processes import wait_for
from tests.conftest import USERS
from tests.integration.mirrors.mirror_support import SECONDS, Flow, eventually, flow_name
from tests.integration.mirrors.scenario_support import Scene, make_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

#: Clients of both clusters (they have passwords), and principals that exist in ACLs only.
READER, WRITER = "alice", "bob"
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank")
#: The group of real consumers; their right to it is not what these tests look at.
CLIENTS = "clients-of-mirror-acls"
#: Other tests leave rights on the clusters that many share.
ONLY_OURS = [f"User:(?!({'|'.join(NAMES)})$).*"]


@pytest.fixture(autouse=True)
def _no_rights_are_left(source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> Iterator[None]:
    forget(source_cluster, target_cluster)
    yield
    forget(source_cluster, target_cluster)


@pytest.fixture
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster whose authorizer a test may switch off."""
    with KafkaCluster(tmp_path_factory.mktemp("own"), "4.1.1", "kraft", users=USERS) as cluster:
        yield cluster


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Scene]:
    """Makes a scene whose mirror has not started yet."""

    def make(source: KafkaCluster, target: KafkaCluster, user: str | None = None, **sections: Any) -> Scene:
        acls = {"quotas": "skip", "exclude_principals": ONLY_OURS, **sections.pop("acls", {})}
        configs = (source.client_config(user), target.client_config())
        folder = tmp_path_factory.mktemp("acls")
        return make_scene(request, folder, (source, target), configs, acls=acls, **sections)

    return make


def forget(*clusters: KafkaCluster) -> None:
    for cluster in clusters:
        for name in NAMES:
            cluster.forget_rights(name)


def acls(cluster: KafkaCluster) -> set[Acl]:
    """All bindings of this file's principals, without those of the clients' group."""
    with Admin(ClientConfig.from_librdkafka(cluster.client_config(), "target")) as admin:
        listing = admin.describe_acls()
    assert listing.authorizer
    principals = {f"User:{name}" for name in NAMES}
    return {acl for acl in listing.acls if acl.principal in principals and acl.resource_name != CLIENTS}


def right(name: str, operation: str, who: str, *, pattern: str = "LITERAL", allow: str = "ALLOW") -> Acl:
    return Acl("TOPIC", name, pattern, f"User:{who}", "*", operation, allow)


def change(cluster: KafkaCluster, *, add: tuple[Acl, ...] = (), remove: tuple[Acl, ...] = ()) -> None:
    """Add and remove bindings, as people do; wait until the brokers know."""
    with Admin(ClientConfig.from_librdkafka(cluster.client_config(), "source")) as admin:
        assert {*admin.create_acls(add).values(), *admin.delete_acls(remove).values()} <= {None}
    wait_for("the brokers know", lambda: set(add) <= acls(cluster) and not set(remove) & acls(cluster), SECONDS)


def become(cluster: KafkaCluster, wanted: set[Acl], scene: Scene | None = None) -> None:
    """Wait until a cluster has exactly these bindings."""

    def are() -> bool:
        if scene is not None and scene.mirror.error is not None:
            raise scene.mirror.error
        return acls(cluster) == wanted

    try:
        wait_for("the ACLs", are, SECONDS, 0.3)
    except Exception:
        found = acls(cluster)
        print("missing:", *sorted(wanted - found), "not wanted:", *sorted(found - wanted), sep="\n  ")
        raise


def may_write(cluster: KafkaCluster, user: str, topic: str) -> bool:
    """Whether a real producer of a user can write; it writes a record if so."""
    answers: list[KafkaError | None] = []
    config = {**cluster.client_config(user), "message.timeout.ms": 60000, "allow.auto.create.topics": False}
    producer = Producer(config)
    producer.produce(topic, b"of a client", partition=0, on_delivery=lambda error, _: answers.append(error))
    assert producer.flush(90) == 0
    (error,) = answers
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return error is None


def may_read(cluster: KafkaCluster, user: str, topic: str) -> bool:
    """Whether a real consumer of a user gets the first record of a topic."""
    cluster.allow(user, "group", CLIENTS, ["read"])
    consumer = Consumer({**cluster.client_config(user), "group.id": CLIENTS, "enable.auto.commit": False})
    # A consumer without any right to the topic only waits.
    refused = consumer.list_topics(topic, timeout=60).topics[topic].error
    if refused is not None:
        consumer.close()
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, refused
        return False
    found: list[KafkaError | None] = []

    def answered() -> bool:
        message = consumer.poll(1)
        found[:] = [] if message is None else [message.error()]
        # Brokers may not know yet that the group is allowed.
        return bool(found) and (found[0] is None or found[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED)

    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        wait_for(f"{topic} gives a record or an error", answered, SECONDS, 0)
    finally:
        consumer.close()
    assert found[0] is None or found[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, found
    return found[0] is None


def journaled(scene: Scene, step: str) -> list[str]:
    """Reasons of all entries with this step."""
    with scene.mirror.reading() as context:
        return [entry.reason for entry in context.journal.steps(step)]


def codes(scene: Scene) -> dict[str, str]:
    """What the precheck has found: code -> what was seen."""
    with scene.mirror.reading() as context:
        found = context.record.precheck()
    assert found is not None
    return {item.code: item.seen for item in found.findings}


def promote(scene: Scene) -> dict[str, Any]:
    details: dict[str, Any] = scene.flow("promote")["details"]
    scene.mirror.wait_end()
    return details


# -- a life of rights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("naming", ["default", pytest.param("identity", marks=pytest.mark.soak)])
def test_rights_follow_and_writing_waits_for_the_promotion(
    make: Callable[..., Scene], source_cluster: KafkaCluster, target_cluster: KafkaCluster, naming: str
) -> None:
    """Without a word about WRITE in the spec. What people have put on the target stays."""
    scene = make(source_cluster, target_cluster, mirror={"naming": naming})
    orders, prefix = scene.create("orders", 1), scene.flow.prefix
    scene.write(orders, [0], 10)
    remote = scene.remote(orders)
    remote_prefix = remote.removesuffix(orders) + prefix
    assert (remote == orders) == (naming == "identity")
    reading, writing = right(orders, "READ", READER), right(orders, "WRITE", WRITER)
    shared = right(orders, "DESCRIBE", "erin")
    everything = right(prefix, "ALL", "carol", pattern="PREFIXED")
    change(source_cluster, add=(reading, writing, shared, everything))
    # The one is on the source, too, the other one is not.
    of_people = {right(remote, "DESCRIBE", "erin"), right(remote, "READ", "dave")}
    change(target_cluster, add=tuple(of_people))

    scene.mirror.start()
    scene.wait_mirrored(orders)
    of_carol = right(remote_prefix, "READ", "carol", pattern="PREFIXED")
    become(target_cluster, of_people | {right(remote, "READ", READER), of_carol}, scene)
    assert may_read(target_cluster, READER, remote)
    assert not may_write(target_cluster, WRITER, remote)
    assert may_write(source_cluster, WRITER, orders), "its right is to write to the source"

    denied, late = right(orders, "READ", "frank", allow="DENY"), right(orders, "DESCRIBE", "carol")
    change(source_cluster, add=(denied, late), remove=(reading, shared))
    of_late = {right(remote, "READ", "frank", allow="DENY"), right(remote, "DESCRIBE", "carol")}
    become(target_cluster, of_people | of_late | {of_carol}, scene)
    assert not may_read(target_cluster, READER, remote)
    assert not may_write(target_cluster, WRITER, remote)
    change(source_cluster, remove=(denied,))
    become(target_cluster, of_people | {of_carol, right(remote, "DESCRIBE", "carol")}, scene)

    scene.check(orders)
    details = promote(scene)
    assert details["problems"] == []
    assert details["write_grants"] == 2
    granted = {right(remote, "WRITE", WRITER), right(remote_prefix, "ALL", "carol", pattern="PREFIXED")}
    become(target_cluster, of_people | granted | {of_carol, right(remote, "DESCRIBE", "carol")})
    assert may_write(target_cluster, WRITER, remote), "the client goes on there"


@pytest.mark.soak
@pytest.mark.parametrize("section", [{"write_grants": "never"}, {"policy": "mirror_maker"}])
def test_never_is_never(
    make: Callable[..., Scene], source_cluster: KafkaCluster, target_cluster: KafkaCluster, section: dict[str, str]
) -> None:
    """MirrorMaker 2's rules: no WRITE, also not at the end, and with ``mirror_maker`` ACLs of single topics only."""
    scene = make(source_cluster, target_cluster, acls=section)
    orders, prefix = scene.create("orders", 1), scene.flow.prefix
    scene.write(orders, [0], 10)
    remote = scene.remote(orders)
    of_group = Acl("GROUP", f"{prefix}g", "LITERAL", f"User:{READER}", "*", "READ", "ALLOW")
    by_prefix = right(prefix, "READ", "dave", pattern="PREFIXED")
    change(
        source_cluster,
        add=(right(orders, "WRITE", WRITER), right(orders, "ALL", READER), of_group, by_prefix),
    )
    scene.mirror.start()
    scene.wait_mirrored(orders)
    wanted = {right(remote, "READ", READER)}
    if "policy" not in section:
        wanted |= {of_group, right(f"{scene.flow.aliases[0]}.{prefix}", "READ", "dave", pattern="PREFIXED")}
    become(target_cluster, wanted, scene)
    assert may_read(target_cluster, READER, remote)
    assert not may_write(target_cluster, WRITER, remote)
    scene.check(orders)
    assert promote(scene)["write_grants"] == 0
    assert acls(target_cluster) == wanted
    assert not may_write(target_cluster, WRITER, remote)
    assert not may_write(target_cluster, READER, remote)


@pytest.mark.soak
def test_a_right_to_all_topics_of_the_source_opens_no_topic_of_the_target_s_own(
    make: Callable[..., Scene], source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    scene = make(source_cluster, target_cluster)
    orders, own = scene.create("orders", 1), scene.name("of-the-target")
    scene.write(orders, [0], 10)
    target_cluster.create_topics({own: (1, {})})
    change(source_cluster, add=(right("*", "READ", READER), right("*", "WRITE", WRITER)))
    # It is the target's own, and stays; the precheck names it, because it opens the remote topics.
    of_people = right("*", "WRITE", "erin")
    change(target_cluster, add=(of_people,))
    scene.mirror.start()
    assert codes(scene)["W079"].startswith("User:erin by ACLs of the target")
    scene.wait_mirrored(orders)
    alias = f"{scene.flow.aliases[0]}."
    become(target_cluster, {of_people, right(alias, "READ", READER, pattern="PREFIXED")}, scene)
    assert may_read(target_cluster, READER, scene.remote(orders))
    assert not may_read(target_cluster, READER, own)
    assert promote(scene)["write_grants"] == 1
    both = {right(alias, "READ", READER, pattern="PREFIXED"), right(alias, "WRITE", WRITER, pattern="PREFIXED")}
    become(target_cluster, both | {of_people})
    assert may_write(target_cluster, WRITER, scene.remote(orders))
    assert not may_write(target_cluster, WRITER, own)


# -- absence is not evidence ------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_what_the_source_does_not_show_is_not_withdrawn(
    own_cluster: KafkaCluster, make: Callable[..., Scene], target_cluster: KafkaCluster
) -> None:
    """The mirror loses its right to list ACLs; then the source's authorizer is off for a while."""
    source = own_cluster
    scene = make(source, target_cluster, user="alice", acls={"exclude_principals": [*ONLY_OURS, "User:alice"]})
    prefix = scene.flow.prefix
    orders = scene.create("orders", 1)
    scene.write(orders, [0], 10)
    remote = scene.remote(orders)
    source.allow("alice", "broker", "kafka-cluster", ["describe", "describe_configs"])
    source.allow("alice", "topic", prefix, ["read", "describe", "describe_configs"], prefixed=True)
    source.allow("alice", "group", prefix, ["describe"], prefixed=True)
    kept, gone = right(orders, "READ", "carol"), right(orders, "READ", "dave")
    change(source, add=(kept, gone, right(orders, "WRITE", WRITER)))
    scene.mirror.start()
    scene.wait_mirrored(orders)
    both = {right(remote, "READ", "carol"), right(remote, "READ", "dave")}
    become(target_cluster, both, scene)

    describe = Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "DESCRIBE", "ALLOW")
    configs = Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "DESCRIBE_CONFIGS", "ALLOW")
    change(source, remove=(describe, gone))
    eventually(lambda: bool(journaled(scene, steps.FOLLOW_FAILED)), "what cannot be read is named")
    assert "ACLs cannot be listed" in journaled(scene, steps.FOLLOW_FAILED)[0]
    scene.write(orders, [0], 5)
    scene.wait_mirrored(orders)
    assert acls(target_cluster) == both, "what may not be listed may be there"
    change(source, add=(describe,))
    become(target_cluster, {right(remote, "READ", "carol")}, scene)

    source.restart(0, {"authorizer.class.name": ""})
    eventually(lambda: len(journaled(scene, steps.FOLLOW_FAILED)) > 1, "a source without an authorizer is named")
    assert "no longer lists any ACLs" in journaled(scene, steps.FOLLOW_FAILED)[-1]
    scene.write(orders, [0], 5)
    scene.wait_mirrored(orders)
    assert acls(target_cluster) == {right(remote, "READ", "carol")}
    source.restart(0, {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"})
    wait_for("the source enforces ACLs again", lambda: {kept, describe, configs} <= acls(source), SECONDS)
    late = right(orders, "READ", "frank")
    change(source, add=(late,))
    become(target_cluster, {right(remote, "READ", "carol"), right(remote, "READ", "frank")}, scene)
    scene.check(orders)
    details = promote(scene)
    assert (details["problems"], details["write_grants"]) == ([], 1)
    assert may_write(target_cluster, WRITER, remote)


@pytest.mark.soak
def test_a_target_without_an_authorizer_is_named_and_gets_its_acls_later(
    own_cluster: KafkaCluster, make: Callable[..., Scene], source_cluster: KafkaCluster
) -> None:
    target = own_cluster
    target.restart(0, {"authorizer.class.name": ""})
    scene = make(source_cluster, target)
    orders = scene.create("orders", 1)
    scene.write(orders, [0], 10)
    remote = scene.remote(orders)
    change(source_cluster, add=(right(orders, "READ", READER), right(orders, "WRITE", WRITER)))
    scene.mirror.start()
    assert codes(scene)["W080"].startswith("SECURITY_DISABLED")
    scene.wait_mirrored(orders)
    target.restart(0, {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"})
    become(target, {right(remote, "READ", READER)}, scene)
    assert not may_write(target, WRITER, remote)
    target.restart(0, {"authorizer.class.name": ""})
    # Somebody has to have a look at it while records are copied.
    eventually(lambda: bool(journaled(scene, steps.DRIFT_NAMED)), "the target that has lost its authorizer is named")


# -- kills ------------------------------------------------------------------------------------------------------------

#: Runs the command, and kills its process in the moment in which the journal is to get a step.
_KILLER = """
import os, signal, sys
from airflow_provider_kafka_migration.journal.journal import Journal
step, fatal = Journal.step, sys.argv.pop(1)
def dies(self, name, *args, **options):
    if name == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, name, *args, **options)
Journal.step = dies
from airflow_provider_kafka_migration.cli import main
main()
"""


def run_until(flow: Flow, fatal: str) -> subprocess.Popen[str]:
    """Run the mirror until the journal is to get this step."""
    with (flow.folder / f"{fatal}.log").open("w", encoding="utf-8") as log:
        return flow.spawn([sys.executable, "-c", _KILLER, fatal, "mirror", "run", str(flow.spec)], log)


def test_a_pass_that_is_killed_between_an_effect_and_the_journal(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Once before ACLs are created, after they were created, and after they were removed; each by SIGKILL."""
    prefix = f"{unique_name('killed')}."
    section = {"policy": "merge", "quotas": "skip", "exclude_principals": ONLY_OURS}
    clusters = (source_cluster, target_cluster)
    flow = Flow(*clusters, tmp_path, flow_name(prefix), prefix, ("A", "B"), {"acls": section})
    orders = f"{prefix}orders"
    remote = flow.remote([orders])[orders]
    source_cluster.create_topics({orders: (1, {})})
    change(source_cluster, add=(right(orders, "READ", "carol"),))
    there = {right(remote, "READ", "carol")}
    with flow.running():
        become(target_cluster, there)
    moving, copy = right(orders, "READ", "dave"), right(remote, "READ", "dave")

    def dies(fatal: str, *, add: tuple[Acl, ...] = (), remove: tuple[Acl, ...] = ()) -> None:
        process = run_until(flow, fatal)
        change(source_cluster, add=add, remove=remove)
        eventually(lambda: process.poll() is not None, f"it dies at {fatal}")
        assert process.returncode == -9, (flow.folder / f"{fatal}.log").read_text()

    dies(steps.ACLS_CREATING, add=(moving,))
    assert acls(target_cluster) == there, "nothing is created that the journal does not know"
    dies(steps.DRIFT_FOLLOWED)
    become(target_cluster, there | {copy})
    dies(steps.ACLS_REMOVED, remove=(moving,))
    become(target_cluster, there)

    with flow.running():
        entries = tmp_path / flow.name / flow.name / "journal"

        def completed() -> bool:
            texts = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(entries.glob("*.json")))
            return any(item.get("step") == steps.ACLS_REMOVED for item in texts)

        eventually(completed, "the next life journals the removal")
        # From now on it is a person's, and stays whatever the source does.
        change(target_cluster, add=(copy,))
        late, copy_of_late = right(orders, "READ", "erin"), right(remote, "READ", "erin")
        change(source_cluster, add=(late,))
        become(target_cluster, there | {copy, copy_of_late})
        change(source_cluster, remove=(late,))
        become(target_cluster, there | {copy})
