"""A migration of two topics in memory, taken to any phase by running the real phases before it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from phase_support import Clock, approval

from airflow_provider_kafka_migration.approvals import answers, request
from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.jobs.tail_health import HealthWatch
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.journal.spec_guard import spec_to_record
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirror_table import TABLES
from airflow_provider_kafka_migration.phase_table import PHASES
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State, following
from phase_world.cluster import ClusterState, SimCluster
from phase_world.jobs import MIGRATION, SimCopiers, SimVerifier
from phase_world.outside import Killed, Outside
from phase_world.registries import SimRegistries, fill_source, with_id
from phase_world.stores import Heartbeat, SimStore

#: The order in which a migration without surprises runs; ``tail`` and ``approve`` have their own methods.
ORDER = (
    "plan",
    "spark_check",
    "precheck",
    "topology_copy",
    "schemas",
    "seed",
    "tail",
    "drain_ready",
    "approve_cutover",
    "cutover.freeze",
    "cutover.sentinels",
    "cutover.final_drain",
    "cutover.snapshot_groups",
    "cutover.commit_groups",
    "cutover.floor_guard",
    "approve_switch",
    "validate",
    "evidence",
)
#: Two partitions of ``orders``, one of which begins at offset 5, and the compacted topic ``state``.
KEYS = [("orders", 0), ("orders", 1), ("state", 0)]
SIGNING_KEY = "PHASE_WORLD_SIGNING_KEY"
PRODUCER_ACL = Acl("TOPIC", "orders", "LITERAL", "User:shop", "*", "WRITE", "ALLOW")
_SPEC: dict[str, Any] = {
    "migration_id": MIGRATION,
    "source": {"conn_id": "env:S"},
    "target": {"conn_id": "env:T"},
    "storage": {"journal": "file:///simulated/journal"},
    "evidence": {"signing_key": f"env:{SIGNING_KEY}"},
    "tail": {"drain_stable_window": "10s", "drain_max_partition_lag": 50},
    "topology": {"follow_new": False, "on_source_drift": "note"},
    "validation": {"before_cutover": False},
    "cutover": {"freeze": "acl"},
}


class World:
    """One migration with its clusters; :meth:`context` is what a new process of the same owner opens."""

    migration_id = MIGRATION

    def __init__(self, **sections: Any) -> None:
        self.sections = sections
        self.clock = Clock()
        self.source, self.target = ClusterState("source-id"), ClusterState("target-id")
        self.outside = Outside()
        self.registries = SimRegistries(self.outside)
        self._open({}, {}, {})

    def _open(self, journal: dict[str, bytes], archive: dict[str, bytes], evidence: dict[str, bytes]) -> None:
        self.journal_store = SimStore("journal", self.outside, journal)
        self.archive_store = SimStore("archive", self.outside, archive)
        self.evidence_store = SimStore("evidence", self.outside, evidence)
        self.copiers = SimCopiers(self.source, self.target, self.journal_store, self.outside)
        self.verifier = SimVerifier(self.source, self.target, self.outside)
        self.verifier.store = self.journal_store
        self.verifier.settings = lambda: schema_id_settings(self.context().record)
        self._context: PhaseContext | None = None
        self.change_spec(**self.sections)

    def change_spec(self, **sections: Any) -> None:
        """Change sections of the spec."""
        data = copy.deepcopy(_SPEC)
        self.sections = {**self.sections, **sections}
        if self.sections.get("kind") == "mirror":
            # People stop the producers of a mirror, unless a test says otherwise.
            data["cutover"]["freeze"] = "manual"
        for name, value in self.sections.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
        self.spec = parse_spec(data)
        self._context = None

    def fork(self) -> World:
        """Return a copy of everything: other processes, other clusters, the same history."""
        other = type(self).__new__(type(self))
        other.sections, other.outside = dict(self.sections), Outside()
        other.clock = copy.copy(self.clock)
        other.source, other.target = copy.deepcopy(self.source), copy.deepcopy(self.target)
        other.registries = self.registries.fork(other.outside)
        stores = (self.journal_store, self.archive_store, self.evidence_store)
        other._open(*(dict(store.objects) for store in stores))
        return other

    # -- processes ----------------------------------------------------------------------------------------------------

    def context(self) -> PhaseContext:
        """Return the context of this process."""
        if self._context is None:
            self._context = self._new_context()
        return self._context

    def use(self, context: PhaseContext | None) -> None:
        """Go on as another process of the same owner that lives at the same time; None: as a new one."""
        self._context = context

    def _new_context(self) -> PhaseContext:
        fingerprint = Fingerprint(self.source.cluster_id, self.target.cluster_id)
        owner = Owner("cli", "tester", "tester")
        store = self.journal_store
        name = self.migration_id
        first: dict[str, Any] = {"spec": spec_to_record(self.spec.model_dump(mode="json"))}
        if self.spec.kind != "migration":
            first["kind"] = self.spec.kind
        journal = Journal.create_or_open(store, name, fingerprint, owner=owner, clock=self.clock.now, details=first)
        store.answers[f"{name}/progress/tail.json"] = Heartbeat(lambda: journal.generation)
        context = PhaseContext(
            spec=self.spec,
            journal=journal,
            source=SimCluster("source", self.source, self.outside),  # type: ignore[arg-type]
            target=SimCluster("target", self.target, self.outside),  # type: ignore[arg-type]
            journal_store=store,
            archive_store=self.archive_store,
            evidence_store=self.evidence_store,
            resolver=Resolver(),
            runner=self.copiers,
            verifier=self.verifier,
            now=self.clock.now,
            sleep=self.clock.sleep,
            open_registry=self.registries.open,  # type: ignore[arg-type]
        )
        for _ in range(2):
            HealthWatch().check(context.record)  # the tail has been heard from a moment ago
        return context

    def restart(self) -> None:
        """Continue in a new process of the same owner."""
        self.outside.revive()
        self._context = None

    # -- phases -------------------------------------------------------------------------------------------------------

    def run(self, phase: str, **options: Any) -> PhaseResult:
        """Run one phase in the state that it belongs to."""
        if phase == "tail" and not options.pop("to_its_stop", False):
            return self._begin_tail()
        if phase.startswith("approve_"):
            return self.approve("cutover" if phase == "approve_cutover" else "client_switch")
        entry, context = TABLES[self.spec.kind][phase], self.context()
        self.enter(entry.state)
        result = entry.load()(context, **{**self._timing(phase), **options})
        if entry.leads_to is not None and context.journal.tip_state is entry.state:
            context.journal.transition(entry.leads_to, result.summary)
        return result

    def migration(self) -> Migration:
        """Return what operators and the command line open, around the context of this process.

        :meth:`run` goes round its gates: which phases may run now, and what is done already.
        """
        made = Migration(
            self.spec, Owner("cli", "tester", "tester"), Resolver(), runner=self.copiers, verifier=self.verifier
        )
        made.__dict__["context"] = self.context()
        return made

    def enter(self, state: State | None) -> None:
        """Move the journal to a state that follows the present one, or stay."""
        journal = self.context().journal
        working = journal.working_state
        if state is not None and working is not None and working is not state and following(working) is state:
            journal.transition(state, "the phase starts")

    def _timing(self, phase: str) -> dict[str, Any]:
        sleep = self.clock.sleep
        if phase == "cutover.freeze":
            return {"sleep": sleep, "clock": self.clock.seconds}
        if phase == "cutover.final_drain":
            return {"sleep": self.while_tail_runs()}
        return {"sleep": sleep} if phase in ("cutover.sentinels", "drain_ready", "sync_groups") else {}

    def while_tail_runs(self) -> Callable[[float], None]:
        """Return a ``sleep`` during which the tail copies."""

        def sleep(seconds: float) -> None:
            self.clock.sleep(seconds)
            data = self.journal_store.get(f"{self.migration_id}/jobs/tail.json")
            assert data is not None
            self.copiers.copy(CopyJob.parse(data))

        return sleep

    def _begin_tail(self) -> PhaseResult:
        """Run the tail until it has copied what is there, then kill it: it has no stop yet."""

        def die() -> None:
            raise Killed

        self.enter(PHASES["tail"].state)
        self.copiers.then = die
        with pytest.raises(Killed):
            PHASES["tail"].load()(self.context())
        self.copiers.then = lambda: None
        self.restart()
        return PhaseResult("tail", "the tail has caught up")

    def approve(self, kind: Any) -> PhaseResult:
        """Have a person approve with the current code."""
        context = self.context()
        code = code_of(request.make_binding(context.record, context.source, kind))
        result = answers.answer(context, approval(context, kind, code))
        if kind == "client_switch":
            self.enter(State.VALIDATING)
        return result

    # -- what has become of it ----------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """The journal's state."""
        self.context().journal.refresh()
        return self.context().journal.tip_state

    def steps(self, name: str) -> list[JournalEntry]:
        """Return the journal's steps of a name."""
        self.context().journal.refresh()
        return self.context().journal.steps(name)

    def stored(self, name: str) -> bytes | None:
        """Return a document of the journal store."""
        return self.journal_store.get(f"{self.migration_id}/{name}")

    @property
    def denied(self) -> set[str]:
        """The principals that DENY bindings on the source stop."""
        return {acl.principal for acl in self.source.acls or () if acl.permission == "DENY"}


def new_world(**sections: Any) -> World:
    """Return a migration that has not begun, of a source with records, groups and ACLs."""
    world = World(**sections)
    orders = world.source.create("orders", 2, retention_ms="86400000")
    orders.logs[1].cut(5)
    state = world.source.create("state", cleanup_policy="compact")
    for log in (*orders.logs, *state.logs):
        log.write(b"a", b"b", b"c")
        log.write(b"d", b"e", producer_id=7)
    if world.spec.schemas.configured:
        fill_source(world.registries)
        for log in orders.logs:
            log.write(with_id(1), with_id(3), with_id(3))
    own_topic = world.spec.schemas.topic
    if own_topic is not None and own_topic not in world.source.topics:
        registry_log = world.source.create(own_topic, cleanup_policy="compact").logs[0]
        world.registries.write_topic("source", registry_log)
    world.source.group("billing", orders_0=2, orders_1=10)
    world.source.group("audit", state_0=5)
    for cluster in (world.source, world.target):
        cluster.acls = {Acl("TOPIC", "*", "LITERAL", "User:migration", "*", "ALL", "ALLOW")}
    assert world.source.acls is not None
    world.source.acls.add(PRODUCER_ACL)
    return world


class Worlds:
    """Worlds at the beginning of a phase. The phases before it run once per spec; each test gets a copy."""

    def __init__(self) -> None:
        self._made: dict[str, World] = {}

    def begin(self, **sections: Any) -> World:
        """Return a world in which nothing has run."""
        return new_world(**sections)

    def at(self, phase: str, **sections: Any) -> World:
        """Return a migration in which everything before a phase has run."""
        key = f"{phase} {sections}"
        if key not in self._made:
            index = ORDER.index(phase)
            if index:
                world = self.at(ORDER[index - 1], **sections)
                world.clock.sleep(1)
                world.run(ORDER[index - 1])
            else:
                world = self.begin(**sections)
            self._made[key] = world
        return self._made[key].fork()


def without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave precheck the checks that need no more than two clusters; the others have tests of their own."""
    monkeypatch.setattr(precheck, "CHECKS", {"clusters": precheck.CHECKS["clusters"]})
