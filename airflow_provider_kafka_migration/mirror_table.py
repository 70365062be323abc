"""The table of phases of a mirror, in order. What it shares with a migration are the rows of :mod:`~.phase_table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_kafka_migration.phase_table import PHASES, Phase
from airflow_provider_kafka_migration.state import State

#: What has to be done once, before anything can be mirrored.
BEFORE: tuple[Phase, ...] = (
    *(PHASES[name] for name in ("plan", "spark_check", "precheck", "topology_copy")),
    # A mirror has no cutover: schemas are brought over before the first record, and followed while it runs.
    replace(PHASES["schemas"], done_past=State.SEED),
    replace(PHASES["seed"], done_past=State.SEED),
)

MIRROR_PHASE = Phase(
    "mirror",
    "Mirrors the source until somebody pauses, promotes or ends it. It is *supposed* to run for long.\n\n"
    "**Red?** Clear it; mirroring continues where it stopped.",
    # It moves the states of the mirror itself, as the requests of people say.
    "mirrors.mirror:run",
    reports_trouble=True,
)

FINISH = Phase(
    "finish",
    "Ends a mirror, or promotes its target although the source is gone: needs the journal and the target only.",
    "mirrors.finish:run",
    fails_migration=False,
    needs_journal_only=True,
)

#: Rows by id, of each kind of spec.
TABLES: Mapping[str, Mapping[str, Phase]] = {
    "migration": PHASES,
    "mirror": {row.id: row for row in (*BEFORE, MIRROR_PHASE, FINISH)},
}
