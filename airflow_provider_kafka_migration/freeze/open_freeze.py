"""A description of the open freeze for people: since when, until when, and which commands continue or lift it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.state import REOPENED, TERMINAL, State


class Standing(StrEnum):
    """The state of a freeze that is not over, per the journal."""

    #: Producers are stopped, or were asked to stop.
    FROZEN = "frozen"
    #: The migration has left the cutover, or the mirror has given its promotion up, and the journal does not say that
    #: producers are free.
    GIVEN_UP = "given_up"
    #: READY is journaled, but the last step of the cutover has not ended, or a promotion is not complete: the producers
    #: are not freed any more, unless people abandon it.
    READY = "ready"
    #: Clients were told to switch, and nobody has acknowledged that yet. A promoted mirror stays so: nothing tells it
    #: that they have.
    SWITCHING = "switching"
    #: It is abandoned, and the journal does not say that producers are free.
    ABANDONED = "abandoned"

    @property
    def is_behind_ready(self) -> bool:
        """Whether no limit is in force any more: clients may be on the target, or none goes there."""
        return self in (Standing.READY, Standing.SWITCHING, Standing.ABANDONED)


@dataclass(frozen=True)
class OpenFreeze:
    """A freeze that is not over.

    :param read_at: when the journal was read.
    :param without_source: a mirror was promoted without its source, which nothing can take back.
    """

    attempt: FreezeAttempt
    standing: Standing
    read_at: datetime
    without_source: bool = False

    @property
    def is_mirror(self) -> bool:
        """Whether it is for the promotion of a mirror."""
        return self.attempt.request is not None

    @property
    def is_overdue(self) -> bool:
        """Whether ``max_producer_freeze`` has passed."""
        return not self.standing.is_behind_ready and self.read_at > self.attempt.deadline

    def as_dict(self, file: str = "FILE") -> dict[str, Any]:
        """Return the freeze as JSON-able data."""
        attempt = self.attempt
        go_on, lift = (_run_mirror, _resume_mirror) if self.is_mirror else (_resume, _rollback)
        return {
            "standing": str(self.standing),
            "attempt": attempt.number,
            "method": attempt.method,
            "since": iso(attempt.stopped_at),
            "requested_at": iso(attempt.requested_at),
            "deadline": iso(attempt.deadline),
            "overdue": self.is_overdue,
            "without_deadline": attempt.held,
            "go_on": None if self.is_mirror and self.standing is Standing.SWITCHING else go_on(file),
            "lift": self._abandon(file) if self.standing.is_behind_ready else lift(file),
            "text": self.lines(file),
        }

    def lines(self, file: str = "FILE") -> list[str]:
        """Return sentences for people; the first one describes the situation.

        :param file: path of the spec, for commands that can be copied.
        """
        attempt = self.attempt
        if self.standing.is_behind_ready:
            return self._lines_behind_ready(file)
        if self.is_mirror:
            return self._mirror_lines(file)
        if self.standing is Standing.GIVEN_UP:
            return [
                f"freeze {attempt.number} was given up, and the journal does not say that producers are free again "
                f"(stopped since {iso(attempt.stopped_at)}, limit {iso(attempt.deadline)})",
                f"to free them: `{_resume(file)}` does it a few seconds after the limit; `{_rollback(file)}` does it "
                f"immediately and ends the migration{_then(attempt.method)}",
            ]
        if self.is_overdue:
            go_on = (
                f"to lift it: `{_resume(file)}`; the cutover then begins again with a new approval"
                f"{_then(attempt.method)}"
            )
        else:
            go_on = (
                f"to continue the cutover within the limit: `{_resume(file)}`; after the limit the same command lifts "
                "the freeze"
            )
        lift = f"to lift it and end the migration: `{_rollback(file)}`{_then(attempt.method)}"
        return [
            words.frozen(attempt.method, attempt.stopped_at, attempt.deadline, self.read_at),
            words.unattended(attempt.method, held=attempt.held),
            go_on,
            lift,
        ]

    def _abandon(self, file: str) -> str | None:
        """Return the command that frees the producers from READY on; None: there is none any more."""
        if self.without_source:
            return None
        return f"kafka-migration {'mirror ' if self.is_mirror else ''}abandon {file}"

    def _lines_behind_ready(self, file: str) -> list[str]:
        """Return the sentences from READY on, or from the promotion on: what goes on, and the only way out."""
        stopped = words.stopped(self.attempt.method, self.attempt.stopped_at)
        abandon = self._abandon(file)
        if self.standing is Standing.ABANDONED:
            return [
                f"{stopped}; it is abandoned, and the journal does not say that they are free again",
                f"to free them: `{abandon}`{_then(self.attempt.method)}",
            ]
        way_out = f"to stay on the source, as long as no client has written to the target: `{abandon}` frees them"
        if self.is_mirror:
            return [*self._promoted_lines(file, stopped), *([] if abandon is None else [way_out])]
        if self.standing is Standing.READY:
            return [
                f"{stopped}; {steps.READY} is journaled, and cutover.floor_guard has not ended",
                f"to continue: `{_resume(file)}`; no limit lifts the freeze any more",
                way_out,
            ]
        return [
            f"{stopped}, until they are started on the target: clients may switch, and nobody has acknowledged "
            "that yet",
            f"once they use the target: `{_resume(file)} --approve CODE`; `{_resume(file)}` shows the code",
            way_out,
        ]

    def _promoted_lines(self, file: str, stopped: str) -> list[str]:
        if self.standing is Standing.SWITCHING:
            return [
                f"{stopped}, until they are started on the target: the mirror is promoted, and only its end by people, "
                "or the promotion of a mirror that fails back, frees them"
            ]
        return [
            f"{stopped}; {steps.PROMOTED} is journaled, and the promotion is not complete",
            f"to complete it: `{_run_mirror(file)}`, if nobody runs the mirror; no limit lifts the freeze any more",
        ]

    def _mirror_lines(self, file: str) -> list[str]:
        """Return the sentences for a mirror: whoever runs it carries on by itself."""
        attempt, run = self.attempt, _run_mirror(file)
        if self.standing is Standing.GIVEN_UP:
            return [
                f"freeze {attempt.number} was given up, and the journal does not say that producers are free again "
                f"(stopped since {iso(attempt.stopped_at)}, limit {iso(attempt.deadline)})",
                f"whoever runs the mirror keeps trying to free them; if nobody does: `{run}`",
            ]
        go_on = (
            f"whoever runs the mirror lifts it now; if nobody does: `{run}`"
            if self.is_overdue
            else f"whoever runs the mirror goes on with the promotion, and lifts the freeze at its limit; if nobody "
            f"does: `{run}`"
        )
        return [
            words.frozen(attempt.method, attempt.stopped_at, attempt.deadline, self.read_at),
            words.unattended(attempt.method, held=attempt.held, is_mirror=True),
            go_on,
            f"to lift it, and to mirror on: `{_resume_mirror(file)}`",
        ]


def _then(method: str) -> str:
    return f"; then {words.TELL_OWNERS}" if method == "manual" else ""


def _resume(file: str) -> str:
    return f"kafka-migration resume {file}"


def _rollback(file: str) -> str:
    return f"kafka-migration rollback {file}"


def _run_mirror(file: str) -> str:
    return f"kafka-migration mirror run {file}"


def _resume_mirror(file: str) -> str:
    return f"kafka-migration mirror resume {file}"


def read(context: PhaseContext) -> OpenFreeze | None:
    """Return the freeze that is not over, per the journal as last read; None: there is none.

    :param context: only its journal and clock are used.
    """
    attempt = context.record.freeze()
    state = context.journal.tip_state
    if attempt is None or attempt.lifted or state is None or state in TERMINAL - REOPENED:
        return None
    if attempt.ready:
        behind = _behind_ready(context.record, attempt)
        promoted = context.journal.find_step(steps.PROMOTED)
        without_source = promoted is not None and bool(promoted.details.get("source_gone"))
        return None if behind is None else OpenFreeze(attempt, behind, context.now(), without_source)
    standing = Standing.GIVEN_UP if attempt.given_up else Standing.FROZEN
    return OpenFreeze(attempt, standing, context.now())


def _behind_ready(record: MigrationRecord, attempt: FreezeAttempt) -> Standing | None:
    """Return how a freeze stands that no limit lifts any more; None: clients have switched."""
    journal = record.journal
    if rolling_back.is_abandoned(journal):
        return Standing.ABANDONED
    if attempt.request is not None:
        return Standing.SWITCHING if journal.tip_state is State.PROMOTED else Standing.READY
    if record.client_switch() is not None or journal.is_past(State.AWAITING_CLIENT_SWITCH):
        return None
    return Standing.SWITCHING if journal.is_past(State.CUTOVER) else Standing.READY


def lifted_since(record: MigrationRecord, at: datetime) -> str:
    """Describe the producers if their freeze was lifted since ``at``; empty if it was not."""
    attempt = record.freeze()
    entry = (
        record.journal.find_step(steps.FREEZE_LIFTED, attempt.key) if attempt is not None and attempt.lifted else None
    )
    if attempt is None or entry is None or parse_iso(entry.at) < at:
        return ""
    return f"freeze {attempt.number} was lifted at {entry.at}: {words.lifted(attempt.method)}"
