"""The time that a change from one task to the next takes, as this migration's own journal shows it.

Between two steps of the cutover a scheduler has to notice the end of a task, an executor has to start the next one (a
pod, a container, a fork), and the new task has to import its code and open the journal. While producers are frozen
this happens five times. So it is measured where it costs nothing: between the phases before the cutover. A freeze that
was lifted has measured it where it counts.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.journal import CLAIMED, JournalEntry
from airflow_provider_kafka_migration.phase_table import CUTOVER
from airflow_provider_kafka_migration.record import steps
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
    """Measure the changes of this migration from its journal: in lifted freezes, else before the cutover."""
    changes = 0 if record.spec.cutover.in_one_task else CHANGES
    in_freezes = tuple(seconds for item in former_freezes(record) for seconds in item.handovers)
    return Handover(in_freezes or measure(record.journal.entries()), changes)


@dataclass(frozen=True)
class FormerFreeze:
    """What a freeze has taken so far, or until it was lifted.

    :param handovers: seconds from the end of a task to the first act of the next one, in order.
    """

    number: int
    frozen_seconds: float
    handovers: tuple[float, ...]

    @property
    def handover_seconds(self) -> float:
        """How much of it was hand-over between tasks."""
        return min(sum(self.handovers), self.frozen_seconds)

    @property
    def work_seconds(self) -> float:
        """How much of it was not."""
        return self.frozen_seconds - self.handover_seconds

    @property
    def is_mostly_handover(self) -> bool:
        """Whether the tasks have waited for each other for longer than they have worked."""
        return self.handover_seconds > self.work_seconds

    def as_dict(self) -> dict[str, Any]:
        """The figures for the facts of an approval."""
        return {
            "number": self.number,
            "frozen_seconds": round(self.frozen_seconds, 1),
            "handover_seconds": round(self.handover_seconds, 1),
        }


def former_freezes(record: MigrationRecord) -> list[FormerFreeze]:
    """Return all freezes of this migration that were lifted, in order."""
    found = [measure_freeze(record, entry.step_key or "", until=entry) for entry in record.freezes_lifted()]
    return [item for item in found if item is not None]


def measure_freeze(
    record: MigrationRecord, key: str, *, until: JournalEntry | None = None, actor: str = ""
) -> FormerFreeze | None:
    """Measure a freeze by its steps in the journal; None: it has not begun.

    :param until: its lift; None: now, in a step that has not journaled anything yet.
    :param actor: who is in that step.
    """
    journal = record.journal
    asked = journal.find_step(steps.FREEZE_REQUESTED, key)
    if asked is None:
        return None
    end = parse_iso(until.at) if until is not None else record.now()
    acts = [asked, *journal.steps(steps.FREEZE_VERIFIED, key)]
    acts += [entry for entry in journal.steps(steps.CUTOVER_STEP) if (entry.step_key or "").startswith(f"{key}/")]
    gaps = [
        _seconds(before.at, str(entry.details.get("started_at", entry.at)))
        for before, entry in itertools.pairwise(acts)
        if before.actor != entry.actor
    ]
    last = acts[-1]
    ended_by = until.actor if until is not None else actor
    if gaps and last.actor != ended_by:
        # The task that ended it had to begin, too; how much of the rest it has worked is not known.
        gaps.append(min((end - parse_iso(last.at)).total_seconds(), statistics.median(gaps)))
    stopped_at = str(asked.details.get("stopped_at", asked.details["requested_at"]))
    frozen_seconds = (end - parse_iso(stopped_at)).total_seconds()
    handovers = tuple(seconds for seconds in gaps if 0 <= seconds <= LONGEST_SECONDS)
    return FormerFreeze(int(key), max(frozen_seconds, 0.0), handovers)


def _seconds(before: str, after: str) -> float:
    return (parse_iso(after) - parse_iso(before)).total_seconds()


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
