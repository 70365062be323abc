"""A migration whose topics and ACLs a class of the user changes on both clusters, by the command line.

The migration's principal may neither create nor alter anything on the target. The class is the example of
docs/topology.md, in a module of its own that every process of the command imports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nacl.signing import SigningKey

from airflow_provider_kafka_migration.internal_topics import SCRATCH_PREFIX
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets, positions
from harness.compare import compare
from harness.load import Kind, TopicLoad, load
from tests.integration.test_cli_migration import Command

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

USER = "alice"
_PAGE = Path(__file__).parents[2] / "docs" / "topology.md"
_SERVICE = '''
import json
import os
from dataclasses import asdict, is_dataclass


class Service(TeamAdmin):
    """It has credentials of its own, and writes down what it is asked for."""

    side = ""

    def __init__(self, settings):
        super().__init__(json.loads(os.environ["SERVICE_" + self.side]))

    def __getattribute__(self, name):
        if name.startswith(("create_", "alter_", "delete_")):
            with open(os.environ["SERVICE_LOG"], "a") as log:
                log.write(self.side + " " + name + "\\n")
        return super().__getattribute__(name)


class Source(Service):
    side = "SOURCE"


class Target(Service):
    side = "TARGET"
'''


@pytest.fixture
def prefix(
    target_cluster: KafkaCluster, source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> Iterator[str]:
    """The rights of the migration on the target, and those of a producer on the source."""
    found = f"{unique_name('by-class')}."
    target_cluster.forget_rights(USER)
    for name in (found, SCRATCH_PREFIX):
        rights = ["read", "write", "describe", "describe_configs", "delete"]
        target_cluster.allow(USER, "topic", name, rights, prefixed=True)
    target_cluster.allow(USER, "broker", "kafka-cluster", ["describe", "describe_configs", "cluster_action"])
    target_cluster.allow(USER, "transactional_id", "kafka-migration", ["write", "describe"], prefixed=True)
    target_cluster.allow(USER, "group", found, ["read", "describe"], prefixed=True)
    source_cluster.allow("bob", "topic", f"{found}orders", ["write", "describe"])
    yield found
    for cluster in (source_cluster, target_cluster):
        for user in (USER, "bob"):
            cluster.forget_rights(user)


def test_a_migration_by_a_class(
    prefix: str, source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path
) -> None:
    found = re.search(r"```python\n(from confluent_kafka.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (tmp_path / "team_kafka.py").write_text(found[1] + _SERVICE, encoding="utf-8")
    orders, group = f"{prefix}orders", f"{prefix}readers"
    load(source_cluster, [TopicLoad(orders, Kind.HEAD_DELETED, 2, 300, 60)])
    commit_offsets(source_cluster.client_config(), group, positions(source_cluster.client_config(), [orders], 0.5))
    pattern = prefix.replace(".", r"\.") + ".*"
    content: dict[str, Any] = {
        "migration_id": prefix.strip(".").lower().replace("_", "-"),
        "source": {"conn_id": "env:CLI_SOURCE", "admin_class": "team_kafka.Source"},
        "target": {"conn_id": "env:CLI_TARGET", "admin_class": "team_kafka.Missing"},
        "storage": {"journal": f"file://{tmp_path}/journal", "evidence": f"file://{tmp_path}/evidence"},
        "topics": {"include": [pattern]},
        "groups": {"include": [pattern]},
        "seed": {"via": "direct"},
        "tail": {"drain_stable_window": "2s", "slice_seconds": 2},
        "cutover": {"freeze": "acl", "freeze_stable_window": "1s", "max_producer_freeze": "5m"},
        "acls": {"quotas": "skip", "exclude_principals": [f"User:{USER}", "User:carol"]},
        "evidence": {"signing_key": "env:CLI_KEY"},
    }
    spec, log = tmp_path / "migration.yaml", tmp_path / "asked.txt"
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    command = Command(
        {
            "CLI_SOURCE": json.dumps(source_cluster.client_config("admin")),
            "CLI_TARGET": json.dumps(target_cluster.client_config(USER)),
            "CLI_KEY": SigningKey(bytes(range(32))).encode().hex(),
            "SERVICE_SOURCE": json.dumps(source_cluster.client_config("admin")),
            "SERVICE_TARGET": json.dumps(target_cluster.client_config("admin")),
            "SERVICE_LOG": str(log),
            "PYTHONPATH": str(tmp_path),
        }
    )
    refused = command("run", spec, status=1)
    assert refused["error"]["code"] == "ADMIN_CLASS_UNUSABLE"
    assert not (tmp_path / "journal").exists(), "nothing was touched"
    content["target"]["admin_class"] = "team_kafka.Target"
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")

    asked = command("run", spec, status=10)
    assert asked["state"] == "drain_ready"
    switch = command("resume", spec, "--approve", asked["waiting"]["code"], status=10)
    assert switch["state"] == "awaiting_client_switch"
    done = command("resume", spec, "--approve", switch["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    compare(source_cluster.client_config(), target_cluster.client_config(), [orders], fenced=True).check()
    on_source = committed_offsets(source_cluster.client_config(), group, [orders])
    assert committed_offsets(target_cluster.client_config(), group, [orders]) == on_source
    calls = set(log.read_text(encoding="utf-8").splitlines())
    assert calls >= {
        "SOURCE create_acls",  # the freeze
        "TARGET create_topics",
        "TARGET delete_topics",  # the probe's
        "TARGET alter_topic_configs",
        "TARGET create_acls",
    }
    stored = [path.read_text(encoding="utf-8", errors="replace") for path in tmp_path.rglob("*.json")]
    assert stored
    assert not [text for text in stored if "alice-secret" in text or "admin-secret" in text]
