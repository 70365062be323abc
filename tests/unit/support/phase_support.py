"""A phase context without brokers: a real journal in a folder, clusters that answer from dictionaries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider_kafka_migration.documents.copy import MappedPartition, OffsetMapDocument
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
from airflow_provider_kafka_migration.documents.plan import (
    ClusterFacts,
    GroupPlan,
    LanePlan,
    PartitionPlan,
    Plan,
    TopicPlan,
    Verdict,
)
from airflow_provider_kafka_migration.errors import BrokerUnreachable, Transient
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.admin.access import AclListing
from airflow_provider_kafka_migration.kafka.admin.groups import (
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupOffset,
    GroupOffsets,
)
from airflow_provider_kafka_migration.kafka.admin.topics import Configs, ConfigSource, ConfigValue, TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import FORWARD, State
from airflow_provider_kafka_migration.storage.local import LocalStore

TopicPartition = tuple[str, int]

SIGNING_SEED = "11" * 32


class Clock:
    """A clock that only moves when told; ``sleep`` moves it."""

    def __init__(self) -> None:
        self.at = datetime(2026, 4, 24, 10, 40, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def seconds(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class StoreWithTail(LocalStore):
    """A folder in which a tail that is well writes its progress before each look, unless a test writes another one."""

    def __init__(self, folder: Path, migration_id: str) -> None:
        super().__init__(folder)
        self._key = f"{migration_id}/progress/tail.json"
        self._journal = lambda: Journal(LocalStore(folder), migration_id)
        self._beats = 0

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        if key != self._key or found is not None:
            return found
        self._beats += 1
        journal = self._journal()
        journal.refresh()
        claim = journal.current_claim
        generation = 0 if claim is None else claim.generation
        figures = dict.fromkeys(("partitions_done", "partitions_total", "records", "copied_bytes", "total_bytes"), 0)
        document = {"generation": generation, "run": "tail", "seconds": self._beats, "records_per_second": 0.0}
        return json.dumps({**document, **figures, "partitions": []}).encode()


class FakeWire:
    """Offsets by kind; a kind that is missing answers as ``latest``."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[TopicPartition, int]] = {"latest": {}, "earliest": {}}
        self.looks = 0
        #: called before each answer, for things that happen meanwhile
        self.on_look: Any = None

    def list_offsets(self, partitions: Iterable[TopicPartition], which: str) -> dict[TopicPartition, int]:
        self.looks += 1
        if self.on_look is not None:
            self.on_look(self, which)
        default = {} if which == "earliest" else self.offsets["latest"]
        known = {**default, **self.offsets.get(which, {})}
        return {key: known.get(key, 0) for key in sorted(set(partitions))}

    def metadata(self, topics: Iterable[str]) -> dict[str, Any]:
        """No topic can be described."""
        return {}


@dataclass
class FakeGroup:
    """A group: type, state, members (client ids), offsets."""

    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    kind: str = "classic"
    state: str = "Empty"
    members: tuple[str, ...] = ()
    #: error of reading its offsets, or of committing
    read_error: Any = None
    commit_errors: dict[TopicPartition, Any] = field(default_factory=dict)


class FakeAdmin:
    """Groups in memory."""

    def __init__(self) -> None:
        self.groups: dict[str, FakeGroup] = {}
        self.commits: list[tuple[str, dict[TopicPartition, GroupOffset]]] = []
        #: overrides of each topic, as make_plan has them
        self.configs = {"retention.ms": "1000"}
        self.producer_states: dict[TopicPartition, Any] = {}
        self.transactions: list[Any] = []
        #: all topics of the cluster by id; others have none. An error in place of an id: why it cannot be described
        self.topics: dict[str, str | ItemError] = {"orders": "", "__consumer_offsets": ""}
        #: brokers that know other topics than the rest, or do not answer
        self.other_brokers: dict[int, dict[str, str | ItemError] | BrokerUnreachable] = {}

    def describe_acls(self, *, broker_id: int | None = None) -> AclListing:
        return AclListing(authorizer=True)

    def describe_topics(self, names: Iterable[str] | None = None, **_: Any) -> dict[str, TopicFacts]:
        return self._described(self.topics, names)

    def describe_topics_by_broker(self, names: Iterable[str]) -> dict[int, dict[str, TopicFacts] | Transient]:
        found: dict[int, dict[str, TopicFacts] | Transient] = {1: self.describe_topics(names)}
        for broker_id, topics in self.other_brokers.items():
            if isinstance(topics, BrokerUnreachable):
                found[broker_id] = topics
            else:
                found[broker_id] = self._described({**self.topics, **topics}, names)
        return found

    @staticmethod
    def _described(topics: Mapping[str, str | ItemError], names: Iterable[str] | None) -> dict[str, TopicFacts]:
        found = {}
        for name in sorted(topics) if names is None else names:
            known = topics.get(name, "")
            is_error = isinstance(known, ItemError)
            found[name] = TopicFacts(
                name=name,
                topic_id="" if is_error else str(known),
                error=known if isinstance(known, ItemError) else None,
            )
        return found

    def topic_configs(self, names: Iterable[str]) -> dict[str, Configs]:
        return {
            name: Configs(
                name, {key: ConfigValue(key, value, ConfigSource.DYNAMIC_TOPIC) for key, value in self.configs.items()}
            )
            for name in names
        }

    def list_groups(self) -> dict[str, GroupListing]:
        return {name: GroupListing(name, g.kind, g.state, "consumer", 0) for name, g in sorted(self.groups.items())}

    def describe_groups(self, names: Iterable[str], *, listings: Any = None) -> dict[str, GroupDescription]:
        found = {}
        for name in names:
            group = self.groups[name]
            members = tuple(GroupMember(client, client, "/10.0.0.1") for client in group.members)
            found[name] = GroupDescription(name, group.kind, group.state, members)
        return found

    def groups_offsets(self, names: Iterable[str], *, require_stable: bool = True) -> dict[str, GroupOffsets]:
        found = {}
        for name in names:
            group = self.groups.get(name, FakeGroup())
            offsets = {key: GroupOffset(offset, 3, text) for key, (offset, text) in group.offsets.items()}
            found[name] = GroupOffsets(name, {} if group.read_error else offsets, error=group.read_error)
        return found

    def alter_group_offsets(self, name: str, offsets: Mapping[TopicPartition, GroupOffset]) -> dict[Any, Any]:
        self.commits.append((name, dict(offsets)))
        group = self.groups.setdefault(name, FakeGroup(kind="simple"))
        answers = {}
        for key, value in offsets.items():
            answers[key] = group.commit_errors.get(key)
            if answers[key] is None:
                group.offsets[key] = (value.offset, value.metadata)
        return answers

    def producers(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return {key: self.producer_states[key] for key in keys if key in self.producer_states}

    def list_transactions(self) -> list[Any]:
        return self.transactions

    def open_transactions(self) -> list[Any]:
        return self.transactions


class FakeCluster:
    """One side."""

    absent = False

    def __init__(self, role: str) -> None:
        self.role = role
        self.config = SimpleNamespace(username="migration")
        self.wire = FakeWire()
        self.admin = FakeAdmin()


def facts(cluster_id: str) -> ClusterFacts:
    return ClusterFacts(cluster_id=cluster_id, kafka_version="4.1", mode="kraft", brokers=[1])


def make_plan(topics: Mapping[str, int] | None = None, *, verdict: Verdict = Verdict.EQUAL, shift: int = 0) -> Plan:
    """A plan of topics with so many partitions, all starting at 0 (target: minus the shift)."""
    topics = {"orders": 2} if topics is None else topics
    plans = [
        TopicPlan(
            name=name,
            target_name=name,
            partitions=[
                PartitionPlan(
                    partition=number,
                    log_start_offset=shift,
                    end_offset=100,
                    high_watermark=100,
                    verdict=verdict,
                    source_start_offset=shift,
                    target_start_offset=0,
                )
                for number in range(count)
            ],
            replication_factor=1,
            source_replication_factor=1,
            source_configs={"retention.ms": "1000"},
            target_configs={"retention.ms": "1000"},
        )
        for name, count in sorted(topics.items())
    ]
    lanes = [LanePlan(lane=0, partitions=[(p.name, item.partition) for p in plans for item in p.partitions])]
    return Plan(
        migration_id="m1",
        source=facts("source-id"),
        target=facts("target-id"),
        topics=plans,
        groups=[GroupPlan(group="billing", type="classic", state="Empty", topics_in_scope=sorted(topics))],
        lanes=lanes,
        excluded_topics={"__consumer_offsets": "internal"},
        notes=["SCRAM passwords cannot be read"],
    )


def make_context(
    folder: Path, *, state: State = State.TAIL, clock: Clock | None = None, plan: Plan | None = None, **sections: Any
) -> PhaseContext:
    """A context whose migration is in a state; sections of the spec by name."""
    clock = clock or Clock()
    seed_file = folder / "signing.key"
    folder.mkdir(parents=True, exist_ok=True)
    seed_file.write_text(SIGNING_SEED)
    seed_file.chmod(0o600)
    data: dict[str, Any] = {
        "migration_id": "m1",
        "source": {"conn_id": "env:S"},
        "target": {"conn_id": "env:T"},
        "storage": {"journal": (folder / "store").as_uri()},
        "evidence": {"signing_key": f"file:{seed_file}"},
        "tail": {"drain_stable_window": "10s", "drain_max_partition_lag": 5},
    }
    for name, value in sections.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    spec = parse_spec(data)
    stores = [StoreWithTail(folder / "store", "m1"), LocalStore(folder / "archive"), LocalStore(folder / "evidence")]
    owner = Owner("cli", "tester", "tester")
    journal = Journal.create_or_open(
        stores[0], "m1", Fingerprint("source-id", "target-id"), owner=owner, clock=clock.now
    )
    for step in FORWARD[1 : FORWARD.index(state) + 1]:
        journal.transition(step, "test")
    plan = plan or make_plan()
    stores[0].put("m1/plan.json", plan.canonical())
    context = PhaseContext(
        spec=spec,
        journal=journal,
        source=FakeCluster("source"),  # type: ignore[arg-type]
        target=FakeCluster("target"),  # type: ignore[arg-type]
        journal_store=stores[0],
        archive_store=stores[1],
        evidence_store=stores[2],
        resolver=Resolver(),
        now=clock.now,
        sleep=clock.sleep,
    )
    for _ in range(2):
        tail_health.HealthWatch().check(context.record)  # the tail has been heard from a moment ago
    return context


def attempt_at(context: PhaseContext, method: str, number: int = 1) -> FreezeAttempt:
    """An attempt to freeze that begins now and may last a minute; nothing of it is journaled."""
    now = context.now()
    return FreezeAttempt(number, method, now, now + timedelta(seconds=60), now)


def approval(context: PhaseContext, kind: str, code: str, *, user: str = "ann", **changes: Any) -> ApprovalAnswer:
    """An answer given now."""
    return ApprovalAnswer.model_validate(
        {
            "migration_id": context.migration_id,
            "kind": kind,
            "decision": "approve",
            "code": code,
            "responders": [Responder(user_id=user, user_name=user.title())],
            "answered_at": iso(context.now()),
            "body_shown": "what was shown",
            **changes,
        }
    )


def equal_offset_map(ends: Mapping[tuple[str, int], int]) -> OffsetMapDocument:
    """All partitions copied from offset 0 to their ends, at equal offsets."""
    return OffsetMapDocument(
        migration_id="m1",
        partitions=[
            MappedPartition(
                topic=topic,
                target_topic=topic,
                partition=partition,
                verdict="equal",
                target_start_offset=0,
                target_end_offset=end,
            )
            for (topic, partition), end in ends.items()
        ],
    )


def ready(folder: Path, **options: Any) -> PhaseContext:
    """A migration in drain_ready with equal ends and one group."""
    context = make_context(folder, state=State.DRAIN_READY, **options)
    ends = {("orders", 0): 100, ("orders", 1): 50}
    context.source.wire.offsets["latest"] = dict(ends)  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"] = dict(ends)  # type: ignore[attr-defined]
    context.source.admin.groups["billing"] = FakeGroup({("orders", 0): (40, ""), ("orders", 1): (60, "")})  # type: ignore[attr-defined]
    return context
