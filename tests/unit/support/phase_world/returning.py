"""Whole ways back in memory, by the derived spec: taken to any phase, as :mod:`~phase_world.world` does for others."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.approvals.way_back import keep_code
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.way_back.derived_spec import derive
from phase_world.world import KEYS, ORDER, World, Worlds


class Returning(World):
    """The way back of a finalized migration. Its clusters are those of that migration, exchanged.

    :param section: the section ``way_back`` of the spec.
    """

    migration_id = f"{World.migration_id}.back"

    def __init__(self, first: World, section: dict[str, Any]) -> None:
        data = first.spec.model_dump(mode="json") | {"way_back": section}
        first.spec = parse_spec(data)
        first.restart()
        self.sections = {"spec": derive(first.context().record)}
        self.clock, self.outside, self.registries = first.clock, first.outside, first.registries
        self.source, self.target = first.target, first.source
        stores = (first.journal_store, first.archive_store, first.evidence_store)
        self._open(*(dict(store.objects) for store in stores))

    def change_spec(self, **sections: Any) -> None:
        """The spec is derived, and stays."""
        self.sections = {**self.sections, **sections}
        self.spec = self.sections["spec"]
        self._context = None


class Returns(Worlds):
    """Ways back at the beginning of a phase."""

    def __init__(self, forward: Worlds) -> None:
        super().__init__()
        self._forward = forward

    def begin(self, **sections: Any) -> World:
        """Return a way back that has not begun, after clients have written to the new cluster.

        :param sections: only ``way_back``.
        """
        first = self._forward.at(ORDER[-1])
        first.run(ORDER[-1])
        for number, key in enumerate(KEYS):
            log = first.target.log(*key)
            log.write(b"new", b"newer", producer_id=100 + number)
            log.write(b"newest")
        for acls in (first.source.acls, first.target.acls):
            assert acls is not None
            acls.add(Acl("TOPIC", "state", "LITERAL", "User:app", "*", "WRITE", "ALLOW"))
        return Returning(first, dict(sections.get("way_back", {})))


def keep(world: World, reason: str = "kept") -> Any:
    """End a way back by *keep*, with its code."""
    return world.run("rollback", reason=reason, code=keep_code(world.context().record))
