"""The way back of a migration in memory: the same clusters with their roles exchanged, and a journal of its own."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.spec import parse_spec
from phase_world.jobs import SimCopiers, SimVerifier
from phase_world.world import World


class WayBack(World):
    """A migration that adopts the end of a world's migration.

    :param adopt: laid over the section ``adopt`` of its spec.
    :param sections: laid over the spec.
    """

    def __init__(self, world: World, adopt: dict[str, Any] | None = None, **sections: Any) -> None:
        self.world = world
        self.sections = {}
        self.clock, self.outside, self.registries = world.clock, world.outside, world.registries
        self.source, self.target = world.target, world.source
        self.journal_store, self.archive_store = world.journal_store, world.archive_store
        self.evidence_store = world.evidence_store
        data = world.spec.model_dump(mode="json")
        data.update(
            migration_id=f"{world.spec.migration_id}.back",
            source=data["target"],
            target=data["source"],
            adopt={"from": "way_back", "migration_id": world.spec.migration_id, "stable_window": 0, **(adopt or {})},
        )
        data["offsets"]["on_mismatch"] = "stop"
        data["topology"]["on_config_drift"] = "note"
        for name, value in sections.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
        self.spec = parse_spec(data)
        self.migration_id = self.spec.migration_id
        self.copiers = SimCopiers(self.source, self.target, self.journal_store, self.outside)
        self.verifier = SimVerifier(self.source, self.target, self.outside)
        self._context: PhaseContext | None = None
