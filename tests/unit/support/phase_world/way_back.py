"""The way back of a migration in memory: the same clusters with their roles exchanged, and a journal of its own."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.phase_table import PHASES
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import following
from phase_world.cluster import SimCluster
from phase_world.jobs import MIGRATION, SimCopiers, SimVerifier
from phase_world.world import World

BACK = f"{MIGRATION}.back"


class WayBack:
    """A migration that adopts the end of a world's migration.

    :param adopt: laid over the section ``adopt`` of its spec.
    :param sections: laid over the spec.
    """

    def __init__(self, world: World, adopt: dict[str, Any] | None = None, **sections: Any) -> None:
        self.world = world
        data = world.spec.model_dump(mode="json")
        data.update(
            migration_id=BACK,
            source=data["target"],
            target=data["source"],
            adopt={"from": "way_back", "migration_id": MIGRATION, "stable_window": 0, **(adopt or {})},
        )
        data["offsets"]["on_mismatch"] = "fail"
        data["topology"]["on_config_drift"] = "keep_target"
        for name, value in sections.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
        self.spec = parse_spec(data)
        self.copiers = SimCopiers(world.target, world.source, world.journal_store, world.outside)
        self._context: PhaseContext | None = None

    def context(self) -> PhaseContext:
        """Return the context of this process."""
        if self._context is None:
            world = self.world
            fingerprint = Fingerprint(world.target.cluster_id, world.source.cluster_id)
            owner = Owner("cli", "tester", "tester")
            journal = Journal.create_or_open(world.journal_store, BACK, fingerprint, owner=owner, clock=world.clock.now)
            self._context = PhaseContext(
                spec=self.spec,
                journal=journal,
                source=SimCluster("source", world.target, world.outside),  # type: ignore[arg-type]
                target=SimCluster("target", world.source, world.outside),  # type: ignore[arg-type]
                journal_store=world.journal_store,
                archive_store=world.archive_store,
                evidence_store=world.evidence_store,
                resolver=Resolver(),
                runner=self.copiers,
                verifier=SimVerifier(world.target, world.source, world.outside),
                now=world.clock.now,
                open_registry=world.registries.open,  # type: ignore[arg-type]
            )
        return self._context

    def restart(self) -> None:
        """Continue in a new process of the same owner."""
        self.world.outside.revive()
        self._context = None

    def run(self, phase: str, **options: Any) -> PhaseResult:
        """Run one phase in the state that it belongs to."""
        entry, context = PHASES[phase], self.context()
        journal = context.journal
        working = journal.working_state
        if entry.state is not None and working is not None and working is not entry.state:
            assert following(working) is entry.state
            journal.transition(entry.state, "the phase starts")
        return entry.load()(context, **options)
