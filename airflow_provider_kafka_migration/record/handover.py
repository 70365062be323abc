"""The time that a change from one task to the next takes, as this migration's own journal shows it.

Between two steps of the cutover a scheduler has to notice the end of a task, an executor has to start the next one (a
pod, a container, a fork), and the new task has to import its code and open the journal. While producers are frozen
this happens five times. So it is measured where it costs nothing: between the phases before the cutover.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.journal import CLAIMED, JournalEntry
from airflow_provider_kafka_migration.phase_table import CUTOVER
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import parse_iso
from airflow_provider_kafka_migration.state import FORWARD, State

#: Changes of tasks between the first and the last step of the cutover.
CHANGES = len(CUTOVER) - 1
#: Assumed duration of a change of tasks if none was measured yet.
UNMEASURED_SECONDS = 1.0
#: A longer pause was not just a change of tasks: a person held the run, or there was no free slot.
LONGEST_SECONDS = 600.0

#: Phases that begin right after the one before, without a person in between, and whose beginning is journaled.
_BEGINNINGS = (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED, State.TAIL)


@dataclass(frozen=True)
class Handover:
    """The changes from task to task in one migration.

    :param measured: seconds of each measured change, in order; may be empty.
    :param changes: how many changes there are while producers are frozen.
    """

    measured: tuple[float, ...]
    changes: int

    @property
    def typical_seconds(self) -> float:
        """The median; :data:`UNMEASURED_SECONDS` if nothing was measured."""
        return statistics.median(self.measured) if self.measured else UNMEASURED_SECONDS

    @property
    def largest_seconds(self) -> float:
        """The longest measured change."""
        return max(self.measured, default=self.typical_seconds)

    @property
    def least_seconds(self) -> float:
        """The shortest measured change.

        A longer one may have been a wait for a slot, and the tasks of the cutover get slots before all others: it does
        not prove that they cannot be faster.
        """
        return min(self.measured, default=self.typical_seconds)

    @property
    def frozen_seconds(self) -> float:
        """How long the changes will keep the producers frozen."""
        return self.changes * self.typical_seconds

    def as_dict(self) -> dict[str, Any]:
        """The figures for the facts of an approval."""
        return {
            "changes": self.changes,
            "measured": len(self.measured),
            "typical_seconds": round(self.typical_seconds, 1),
            "largest_seconds": round(self.largest_seconds, 1),
            "frozen_seconds": round(self.frozen_seconds, 1),
        }


def of(record: MigrationRecord) -> Handover:
    """Measure the changes of this migration from its journal."""
    changes = 0 if record.spec.cutover.in_one_task else CHANGES
    return Handover(measure(record.journal.entries()), changes)


def measure(entries: Sequence[JournalEntry]) -> tuple[float, ...]:
    """Seconds from the last entry of a phase to the first of the next, where the run did not wait for a person.

    Clocks of two workers may differ; a change that seems to go back in time is not counted.
    """
    found: dict[State, float] = {}
    for before, entry in itertools.pairwise(entries):
        state = entry.to_state
        if state not in _BEGINNINGS or entry.from_state is not FORWARD[FORWARD.index(state) - 1]:
            continue
        # After a claim it is a new run, which a person started.
        if before.step == CLAIMED:
            continue
        seconds = (parse_iso(entry.at) - parse_iso(before.at)).total_seconds()
        if 0 <= seconds <= LONGEST_SECONDS:
            found.setdefault(state, seconds)
    return tuple(found[state] for state in _BEGINNINGS if state in found)
