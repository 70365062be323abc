"""A migration on real brokers that stands in ``tail``: topics filled by the harness, copied by the real copier.

Plan and producer ids are made here, so that verdicts can be forced; everything from the seed on is the product's.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.approvals import answers, request
from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, ApprovalKind, Responder
from airflow_provider_kafka_migration.documents.plan import (
    ClusterFacts,
    GroupPlan,
    LanePlan,
    PartitionPlan,
    Plan,
    TopicPlan,
    Verdict,
)
from airflow_provider_kafka_migration.errors import MigrationError
from airflow_provider_kafka_migration.jobs.content_jobs import SubmittedVerifier
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.phase_table import CUTOVER
from airflow_provider_kafka_migration.phases import (
    drain,
    evidence,
    groups,
    schemas,
    seed,
    tail,
    validate,
)
from airflow_provider_kafka_migration.planning.schemas import make_schema_plan, put_schema_plan, summary_of
from airflow_provider_kafka_migration.record import producer_ids, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.open import open_store
from harness import compare
from harness.brokers import KafkaCluster

TopicPartition = tuple[str, int]

#: The lab does without copy-time settings that are put back: topics have and keep these.
TARGET_CONFIGS = {"retention.ms": "-1", "message.timestamp.type": "CreateTime", "max.message.bytes": "10485760"}


class _JobRunner:
    """Runs copy jobs in this process; a stop from outside stands for a killed driver."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.stopping = threading.Event()

    def submit(self, spec: object, job_location: str, job_key: str, read_progress: Callable[[], Any]) -> None:
        LocalRunner(self.clients, stop=self.stopping.is_set).run(self.clients.load_job(job_location, job_key))


class Lab:
    """One migration between two clusters.

    :param verdicts: verdict by topic; ``equal`` if not given. ``shifted`` starts the target at 0.
    :param sections: more of the spec.
    """

    def __init__(
        self,
        folder: Path,
        source: KafkaCluster,
        target: KafkaCluster,
        topics: Sequence[str],
        *,
        verdicts: Mapping[str, Verdict] | None = None,
        user: str | None = None,
        locations: Mapping[str, str] | None = None,
        s3: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> None:
        self.folder = folder
        self.source_cluster, self.target_cluster = source, target
        self.topics = sorted(topics)
        self.verdicts = dict(verdicts or {})
        self.references = {
            "source": source.client_config(user),
            "target": target.client_config(user),
            "storage": dict(s3) if s3 else None,
        }
        self.migration_id = f"lab-{secrets.token_hex(4)}"
        #: a group that the spec selects
        self.group = f"{self.migration_id}.readers"
        self.s3 = s3
        self.key_file = folder / "signing.key"
        self.key_file.write_text(secrets.token_hex(32))
        self.key_file.chmod(0o600)
        self.spec = parse_spec(self._spec(locations or {}, sections))
        self.clients = Clients(self.references)
        self.runner = _JobRunner(self.clients)
        self._opened: list[PhaseContext] = []
        self._tail: threading.Thread | None = None
        self.tail_error: BaseException | None = None

    def _spec(self, locations: Mapping[str, str], sections: Mapping[str, Any]) -> dict[str, Any]:
        defaults: dict[str, Any] = {
            "migration_id": self.migration_id,
            "source": {"conn_id": "env:SOURCE"},
            "target": {"conn_id": "env:TARGET"},
            "storage": {
                "journal": locations.get("journal", (self.folder / "journal").as_uri()),
                "archive": locations.get("archive", (self.folder / "archive").as_uri()),
                "evidence": locations.get("evidence", (self.folder / "evidence").as_uri()),
            },
            "evidence": {"signing_key": f"file:{self.key_file}"},
            "groups": {"include": [f"{self.migration_id}.*"], "sync_interval": "200ms"},
            "seed": {"via": "direct", "slice_seconds": 5, "lanes": 2},
            # Access is copied by topology_copy, which the lab does without.
            "acls": {"policy": "skip", "quotas": "skip"},
            # The plan is made here, of a few topics among many others on the same cluster.
            "topology": {"follow_new": False},
            "tail": {"drain_stable_window": "300ms", "slice_seconds": 5},
            "cutover": {"freeze": "manual", "freeze_stable_window": "300ms", "max_producer_freeze": "10m"},
        }
        for name, value in sections.items():
            defaults[name] = {**defaults.get(name, {}), **value} if isinstance(value, dict) else value
        return defaults

    # -- contexts ----------------------------------------------------------------------------------------------------

    def store(self, location: str) -> ObjectStore:
        return self.clients.store(location) if self.s3 else open_store(location)

    def context(self, *, actor: str = "test") -> PhaseContext:
        """A context as another process of the same owner has it: its own journal and connections."""
        source = Cluster("source", ClientConfig.from_librdkafka(self.references["source"], "source"))
        target = Cluster("target", ClientConfig.from_librdkafka(self.references["target"], "target"))
        storage = self.spec.storage
        journal = Journal.create_or_open(
            self.store(storage.journal),
            self.migration_id,
            Fingerprint.of_locations(
                self.source_cluster.cluster_id(),
                self.target_cluster.cluster_id(),
                {
                    "journal": storage.journal,
                    "archive": storage.archive_location,
                    "evidence": storage.evidence_location,
                },
            ),
            owner=Owner("cli", "lab", actor),
        )
        context = PhaseContext(
            spec=self.spec,
            journal=journal,
            source=source,
            target=target,
            journal_store=self.store(storage.journal),
            archive_store=self.store(storage.archive_location),
            evidence_store=self.store(storage.evidence_location),
            resolver=Resolver(),
            runner=self.runner,
        )
        context.verifier = SubmittedVerifier(context.record, context.source, LocalContentRunner(self.clients))
        self._opened.append(context)
        return context

    def close(self) -> None:
        """Stop the tail and close all connections."""
        self.runner.stopping.set()
        if self._tail is not None:
            self._tail.join(30)
        for context in self._opened:
            context.source.close()
            context.target.close()
        self.clients.close()

    # -- until the tail ----------------------------------------------------------------------------------------------

    def plan(self, context: PhaseContext) -> Plan:
        """The plan of the topics as they stand on the source."""
        source = context.source
        facts = source.admin.describe_topics(self.topics)
        keys = [(name, item.partition) for name in self.topics for item in facts[name].partitions]
        starts = source.wire.list_offsets(keys, "earliest")
        ends = source.wire.list_offsets(keys, "latest")
        configs = source.admin.topic_configs(self.topics)
        topics = []
        for name in self.topics:
            verdict = self.verdicts.get(name, Verdict.EQUAL)
            partitions = []
            for item in facts[name].partitions:
                start, end = starts[name, item.partition], ends[name, item.partition]
                partitions.append(
                    PartitionPlan(
                        partition=item.partition,
                        log_start_offset=start,
                        end_offset=end,
                        high_watermark=end,
                        verdict=verdict,
                        source_start_offset=start,
                        target_start_offset=start if verdict is Verdict.EQUAL else 0,
                    )
                )
            own = {key: value for key, value in configs[name].overrides.items() if key == "cleanup.policy"}
            topics.append(
                TopicPlan(
                    name=name,
                    target_name=name,
                    topic_id=facts[name].topic_id,
                    partitions=sorted(partitions, key=lambda item: item.partition),
                    replication_factor=1,
                    source_replication_factor=1,
                    source_configs=dict(configs[name].overrides),
                    target_configs=dict(TARGET_CONFIGS),
                    kinds=["compacted"] if "compact" in own.get("cleanup.policy", "") else [],
                )
            )
        lanes: list[list[TopicPartition]] = [[], []]
        for number, key in enumerate(sorted(keys)):
            lanes[number % 2].append(key)
        return Plan(
            migration_id=self.migration_id,
            source=_facts(source.cluster_id, "zookeeper"),
            target=_facts(context.target.cluster_id, "kraft"),
            topics=topics,
            groups=[GroupPlan(group="g", type="classic", state="Empty", topics_in_scope=self.topics)],
            lanes=[LanePlan(lane=n, partitions=sorted(lane)) for n, lane in enumerate(lanes) if lane],
        )

    def begin(self) -> PhaseContext:
        """Plan, create the topics on the target, seed; the migration stands in ``tail``."""
        context = self.context()
        plan = self._with_schemas(context, self.plan(context))
        context.journal_store.put(context.key("plan.json"), plan.canonical())
        self.target_cluster.create_topics(
            {topic.target_name: (len(topic.partitions), TARGET_CONFIGS) for topic in plan.topics}
        )
        for state in (State.PRECHECK, State.TOPOLOGY_COPY):
            context.journal.transition(state, "lab")
        producer_ids.take_producer_ids(context.record, context.target)
        schemas.run(context)
        context.journal.transition(State.SEED, "lab")
        seed.run(context)
        context.journal.transition(State.TAIL, "lab")
        return context

    @staticmethod
    def _with_schemas(context: PhaseContext, plan: Plan) -> Plan:
        """The plan with the registries of the spec, if it names any."""
        unknown: dict[str, str] = {}
        found = make_schema_plan(context, {topic.name: topic.target_name for topic in plan.topics}, unknown)
        assert unknown == {}
        if found is None:
            return plan
        put_schema_plan(context.record, found)
        return plan.model_copy(update={"schemas": summary_of(found)})

    def start_tail(self) -> None:
        """Run the tail in a thread, as the DAG runs it beside the rest."""

        def follow() -> None:
            try:
                tail.run(self.context(actor="tail"))
            except BaseException as error:
                self.tail_error = error

        self.tail_error = None
        self.runner.stopping.clear()
        self._tail = threading.Thread(target=follow, name="tail", daemon=True)
        self._tail.start()

    def kill_tail(self) -> None:
        """End the tail's driver in the middle."""
        self.runner.stopping.set()
        assert self._tail is not None
        self._tail.join(30)

    def join_tail(self, timeout_seconds: float = 30) -> None:
        """The tail has ended by itself, well."""
        assert self._tail is not None
        self._tail.join(timeout_seconds)
        assert not self._tail.is_alive(), "the tail did not end"
        if self.tail_error is not None:
            raise self.tail_error

    # -- people ------------------------------------------------------------------------------------------------------

    def drain_ready(self, context: PhaseContext) -> None:
        """Wait for the drain and move on as the migration does."""
        drain.run_or_confirm(context, poll_seconds=0.1)
        if context.journal.tip_state is State.TAIL:
            context.journal.transition(State.DRAIN_READY, "lab")

    def approve(self, context: PhaseContext, kind: ApprovalKind = "cutover", *, user: str = "ann") -> PhaseResult:
        """A person reads, types the code, approves."""
        facts = request.make_facts(context, kind)
        answer = ApprovalAnswer(
            migration_id=self.migration_id,
            kind=kind,
            decision="approve",
            code=facts.code,
            responders=[Responder(user_id=user)],
            answered_at=iso(context.now()),
            body_shown=facts.body,
        )
        return answers.answer(context, answer)

    def enter_cutover(self, context: PhaseContext) -> None:
        """Drain, approval, and the state ``cutover``."""
        self.drain_ready(context)
        self.approve(context)
        context.journal.transition(State.CUTOVER, "lab")

    def advance(self, context: PhaseContext) -> None:
        """Everything from the state ``cutover`` to the end, as the tasks run one after the other."""
        journal = context.journal
        if journal.tip_state is State.CUTOVER:
            for step in CUTOVER_STEPS:
                if step is groups.commit_groups:
                    self.join_tail()
                step(context)
            journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
        if journal.tip_state is State.AWAITING_CLIENT_SWITCH:
            if answers.answered(context, "client_switch") is None:
                self.approve(context, "client_switch")
            journal.transition(State.VALIDATING, "lab")
        if journal.tip_state is State.VALIDATING:
            validate.run(context)
            evidence.run(context)
            journal.transition(State.FINALIZED, "lab")

    # -- looking -----------------------------------------------------------------------------------------------------

    def sentinels(self, cluster: KafkaCluster) -> dict[TopicPartition, list[int]]:
        """Offsets of the sentinels of this migration in each partition of a cluster."""
        mark = ("x-kbe-cutover-sentinel", self.migration_id.encode())
        return {
            (topic, partition): [record.offset for record in found if mark in record.headers]
            for topic in self.topics
            for partition, found in compare.read_records(cluster.client_config(), topic).items()
        }

    def check_equal(self, *, shifts: Mapping[TopicPartition, int] | None = None) -> None:
        """Both clusters hold the same records, told by a reader that knows nothing of the product."""
        record = self.context().record
        attempt = record.freeze()
        fenced = attempt is not None and record.cutover_step(attempt, steps.FENCE) is not None
        compare.compare(
            self.source_cluster.client_config(),
            self.target_cluster.client_config(),
            self.topics,
            shifts=shifts or {},
            fenced=fenced,
        ).check()


#: The tasks of the group ``cutover``, in order.
CUTOVER_STEPS: tuple[Callable[[PhaseContext], PhaseResult], ...] = tuple(row.load() for row in CUTOVER)


def _facts(cluster_id: str, mode: Any) -> ClusterFacts:
    return ClusterFacts(cluster_id=cluster_id, kafka_version="?", mode=mode, brokers=[1])


@contextmanager
def closing(lab: Lab) -> Iterator[Lab]:
    """Close a lab whatever happens."""
    try:
        yield lab
    finally:
        with suppress(MigrationError):
            lab.close()
