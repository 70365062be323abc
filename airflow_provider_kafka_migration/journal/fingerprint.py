"""What a migration must not change under way: its clusters, buckets and prefixes (seed 001, "Resume logic")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.journal import JournalEntry
from airflow_provider_kafka_migration.errors import FingerprintChanged, Where


@dataclass(frozen=True)
class Fingerprint:
    """Source and target cluster id, buckets and prefixes by their role (``journal``, ``archive``, ``evidence``)."""

    source_cluster_id: str
    target_cluster_id: str
    buckets: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_locations(cls, source_cluster_id: str, target_cluster_id: str, locations: Mapping[str, str]) -> Fingerprint:
        """From locations by role: ``s3://bucket/prefix`` or ``file:///folder`` (which has no bucket)."""
        split = {role: _split(location) for role, location in locations.items()}
        return cls(
            source_cluster_id,
            target_cluster_id,
            {role: bucket for role, (bucket, _) in split.items()},
            {role: prefix for role, (_, prefix) in split.items()},
        )

    @staticmethod
    def recorded(entries: Sequence[JournalEntry]) -> dict[str, str]:
        """The parts that a journal's first entry keeps, as :meth:`fields` gives them; empty without a journal."""
        stored = entries[0].details.get("fingerprint") if entries else None
        return dict((stored or {}).get("fields") or {})

    def fields(self) -> dict[str, str]:
        """All parts, flat, in a fixed order: ``source_cluster_id``, ``buckets.journal``, ..."""
        flat = {"source_cluster_id": self.source_cluster_id, "target_cluster_id": self.target_cluster_id}
        flat |= {f"buckets.{role}": self.buckets[role] for role in sorted(self.buckets)}
        flat |= {f"prefixes.{role}": self.prefixes[role] for role in sorted(self.prefixes)}
        return flat

    @property
    def sha256(self) -> str:
        """SHA-256 over the canonical JSON of :meth:`fields`, 64 hex digits."""
        return canonical_digest(self.fields())

    def as_details(self) -> dict[str, Any]:
        """What the journal's first entry keeps: the parts, so that a change can be named, and their SHA-256."""
        return {"sha256": self.sha256, "fields": self.fields()}

    def check(self, stored: Mapping[str, Any], *, migration_id: str | None = None) -> None:
        """Compare with what the journal's first entry keeps.

        :raises FingerprintChanged: naming each part that differs, with its old and new value.
        """
        if stored.get("sha256") == self.sha256:
            return
        old, new = dict(stored.get("fields") or {}), self.fields()
        changes = {
            name: {"old": old.get(name), "new": new.get(name)}
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        }
        listing = "; ".join(f"{name}: {change['old']!r} -> {change['new']!r}" for name, change in changes.items())
        raise FingerprintChanged(
            f"the migration was started with something else: {listing or 'its fingerprint differs'}",
            where=Where(migration_id=migration_id),
            next_step="put the old values back, or start a new migration with another migration_id",
            details={"changes": changes},
        )


def _split(location: str) -> tuple[str, str]:
    scheme, _, rest = location.partition("://")
    bucket, _, prefix = rest.partition("/")
    return (f"{scheme}://{bucket}", prefix.strip("/"))
