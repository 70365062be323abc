"""The class that changes topics and ACLs of a cluster: loaded before anything is touched, and what it spares."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from phase_world.world import Worlds, without_probes

from airflow_provider_kafka_migration.access import permissions
from airflow_provider_kafka_migration.errors import AdminClassUnusable, PermissionMissing, SpecInvalid
from airflow_provider_kafka_migration.journal.spec_guard import differences, flatten
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.forwarding import Forwarding, ForwardingAdmin
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.record.context import Cluster, KnownCluster, forwarding_of
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import ClusterSection, MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.advice import may_change
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import target_topics


class Service:
    """It has the methods, and nobody calls them here."""

    def __init__(self, settings: dict[str, Any]) -> None: ...

    def create_topics(self, topics: Any) -> None: ...

    def create_partitions(self, counts: Any) -> None: ...

    def alter_topic_configs(self, changes: Any) -> None: ...

    def delete_topics(self, topic_ids: Any) -> None: ...

    def create_acls(self, acls: Any) -> None: ...

    def delete_acls(self, acls: Any) -> None: ...


SERVICE = f"{__name__}.{Service.__name__}"
ABSENT = "no.such.module.Service"


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


def spec_of(folder: Any, **target: str) -> MigrationSpec:
    return parse_spec(
        {
            "migration_id": "m",
            "source": {"conn_id": "env:NO_SOURCE"},
            "target": {"conn_id": "env:NO_TARGET", **target},
            "storage": {"journal": f"file://{folder}"},
        }
    )


@pytest.fixture
def _connection(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_SOURCE", "NO_TARGET"):
        monkeypatch.setenv(name, json.dumps({"bootstrap.servers": "127.0.0.1:1"}))


@pytest.mark.parametrize("phase", ["plan", "precheck"])
@pytest.mark.usefixtures("_connection")
def test_a_class_that_cannot_be_used_stops_each_phase_before_it_begins(tmp_path: Any, phase: str) -> None:
    with Migration.open(spec_of(tmp_path, admin_class=ABSENT), "test", Resolver(), actor="test") as migration:
        migration.__dict__["source"] = Cluster("source", ClientConfig("source", (("127.0.0.1", 1),)))
        migration.source.__dict__["cluster_id"] = "source-id"
        with pytest.raises(AdminClassUnusable, match="cannot be imported"):
            migration.run(phase)
    assert list(tmp_path.iterdir()) == [], "not even a journal"


@pytest.mark.usefixtures("_connection")
def test_clusters_have_the_admin_that_the_spec_names(tmp_path: Any) -> None:
    spec = spec_of(tmp_path, admin_class=SERVICE, admin_wait="5m")
    target = Cluster.of("target", spec.target, Resolver())
    for cluster in (target, target.clone()):
        assert isinstance(cluster.admin, ForwardingAdmin)
        assert cluster.admin.forwarding == Forwarding(SERVICE, 300)
        cluster.close()
    assert type(Cluster.of("source", spec.source, Resolver()).admin) is Admin


def test_a_freeze_ends_also_if_the_class_of_a_cluster_is_gone() -> None:
    """The phases that free producers open clusters without it; only a change of topics or ACLs needs it."""
    config = ClientConfig("source", (("127.0.0.1", 1),))
    section = ClusterSection(conn_id="a", admin_class=ABSENT)
    known = KnownCluster("source", lambda: config, "", forwarding_of(section))
    for cluster in (known, known.clone()):
        assert isinstance(cluster.admin, ForwardingAdmin)
        cluster.close()


@pytest.mark.parametrize("path", ["TeamAdmin", "team.", ".team", "team admin.A", "team.1A", ""])
def test_what_is_no_dotted_path_is_a_mistake_in_the_spec(tmp_path: Any, path: str) -> None:
    with pytest.raises(SpecInvalid):
        spec_of(tmp_path, admin_class=path)


def test_the_class_may_change_and_its_keys_may_be_new(tmp_path: Any) -> None:
    """A spec that was journaled before the keys existed is the same spec."""
    now = flatten(spec_of(tmp_path, admin_class=SERVICE).model_dump(mode="json"))
    before = {key: value for key, value in now.items() if ".admin_" not in key}
    assert differences(before, now) == {}
    assert may_change("target.admin_class", State.VALIDATING)


def test_the_principal_needs_no_rights_that_only_the_class_needs(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_probes(monkeypatch)

    def needed(**target: str) -> dict[str, set[str]]:
        world = worlds.at("precheck", target=target)
        found: dict[str, set[str]] = {}
        for item in permissions.needed(world.spec, world.context().record.plan()):
            if item.side == "target" and item.resource_type == "TOPIC":
                found.setdefault(item.pattern_type, set()).update(item.operations)
        return found

    own, by_class = needed(), needed(admin_class=SERVICE)
    for kind, operations in own.items():
        assert operations - by_class[kind] == operations & {"ALTER", "ALTER_CONFIGS", "CREATE"}
        assert {"READ", "WRITE", "DELETE", "DESCRIBE"} <= by_class[kind]


def test_topics_that_this_principal_may_not_alter(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)
    for target, is_missing in (({}, True), ({"admin_class": SERVICE}, False)):
        world = worlds.at("seed", target=target)
        context = world.context()
        describe = context.target.admin.describe_topics

        def weak(names: Any, describe: Any = describe, **options: Any) -> Any:
            rights = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE"})
            return {name: replace(item, operations=rights) for name, item in describe(names, **options).items()}

        monkeypatch.setattr(context.target.admin, "describe_topics", weak)
        if is_missing:
            with pytest.raises(PermissionMissing, match="ALTER_CONFIGS"):
                target_topics.check_permissions(context.record, context.target, context.record.plan())
        else:
            target_topics.check_permissions(context.record, context.target, context.record.plan())
