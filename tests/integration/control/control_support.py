"""A migration's control plane on real brokers: spec, journal, contexts as separate processes of one owner have them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Producer

from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.phases import plan as plan_phase
from airflow_provider_kafka_migration.planning import growth
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult, Progress
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from airflow_provider_kafka_migration.topics import bring
from harness.brokers import KafkaCluster

T = TypeVar("T")


def copy_topics(context: PhaseContext) -> PhaseResult:
    """Run the part of ``topology_copy`` that creates topics."""
    context.journal.check_holds()
    return bring.bring(context, growth.follow(context, context.record.plan()))


class Control:
    """One migration between two clusters, up to the topology.

    :param prefix: topics and groups of this migration start with it.
    :param user: SASL user on both sides; ``None``: the super user.
    """

    def __init__(
        self,
        folder: Path,
        source: KafkaCluster,
        target: KafkaCluster,
        prefix: str,
        *,
        user: str | None = None,
        **sections: Any,
    ) -> None:
        self.folder = folder
        self.source_cluster, self.target_cluster = source, target
        self.prefix = prefix
        self.user = user
        self.migration_id = f"control-{secrets.token_hex(4)}"
        self.progress: list[Progress] = []
        self.spec = self.make_spec(**sections)
        self._opened: list[PhaseContext] = []

    def make_spec(self, **sections: Any) -> MigrationSpec:
        """The spec with these sections laid over the defaults."""
        key = self.folder / "signing.key"
        if not key.exists():
            key.write_text(secrets.token_hex(32))
            key.chmod(0o600)
        data: dict[str, Any] = {
            "migration_id": self.migration_id,
            "source": {"conn_id": "env:SOURCE"},
            "target": {"conn_id": "env:TARGET"},
            "storage": {name: (self.folder / name).as_uri() for name in ("journal", "archive", "evidence")},
            "topics": {"include": [f"{self.prefix}.*"]},
            "groups": {"include": [f"{self.prefix}.*"]},
            "evidence": {"signing_key": f"file:{key}"},
        }
        for name, value in sections.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, Mapping) else value
        return parse_spec(data)

    def store(self, location: str) -> ObjectStore:
        return open_store(location)

    def context(self, *, user: str | None = None, actor: str = "test", **sections: Any) -> PhaseContext:
        """A context as another process of the same owner has it: its own journal and connections."""
        keys = {
            "source": self.source_cluster.client_config(user or self.user),
            "target": self.target_cluster.client_config(user or self.user),
        }
        spec = self.make_spec(**sections) if sections else self.spec
        journal = Journal.create_or_open(
            self.store(spec.storage.journal),
            self.migration_id,
            Fingerprint(self.source_cluster.cluster_id(), self.target_cluster.cluster_id()),
            owner=Owner("cli", "control", actor),
        )
        context = PhaseContext(
            spec=spec,
            journal=journal,
            source=Cluster("source", ClientConfig.from_librdkafka(keys["source"], "source")),
            target=Cluster("target", ClientConfig.from_librdkafka(keys["target"], "target")),
            journal_store=self.store(spec.storage.journal),
            archive_store=self.store(spec.storage.archive_location),
            evidence_store=self.store(spec.storage.evidence_location),
            resolver=Resolver(),
            progress=self.progress.append,
        )
        self._opened.append(context)
        return context

    def on_target(self, function: Callable[[MigrationRecord, Cluster], T]) -> T:
        """Call a function with the record and the target of a new context."""
        context = self.context()
        return function(context.record, context.target)

    def planned(self, **sections: Any) -> tuple[PhaseContext, Plan]:
        """A context whose plan is made, standing in ``topology_copy``."""
        context = self.context(**sections)
        plan_phase.run(context)
        for state in (State.PRECHECK, State.TOPOLOGY_COPY):
            context.journal.transition(state, "test")
        return context, context.record.plan()

    def close(self) -> None:
        for context in self._opened:
            context.source.close()
            context.target.close()

    def produce(
        self, topic: str, records: int = 10, partition: int = 0, *, cluster: KafkaCluster | None = None
    ) -> None:
        """Keyed records of a topic, on the source if not said otherwise."""
        producer = Producer({**(cluster or self.source_cluster).client_config(), "linger.ms": 5})
        for number in range(records):
            producer.produce(topic, b"value-%d" % number, b"key-%d" % number, partition)
        assert producer.flush(120) == 0

    def overrides(self, topic: str) -> dict[str, str]:
        """What is set on a target topic itself, by an admin of its own."""
        context = self.context(user=None)
        return dict(context.target.admin.topic_configs([topic])[topic].overrides)
