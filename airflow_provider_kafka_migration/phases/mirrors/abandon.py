"""Abandon: end a mirror that is promoted, and to whose target no client has written, and free the source's producers.

It is the way out that migrations have after READY (:mod:`~.approvals.abandon`). The copiers of a promoted mirror are
fenced, so it does not go on; another mirror, or MirrorMaker 2, does (:data:`GOES_ON`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from airflow_provider_kafka_migration.access import write_grants
from airflow_provider_kafka_migration.approvals import abandon as abandonment
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import HANDS_OFF, MigrationError
from airflow_provider_kafka_migration.evidence.publish import sign_end
from airflow_provider_kafka_migration.freeze import frozen, words
from airflow_provider_kafka_migration.mirrors import ending, requests
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import ABANDON_MIRROR_FROM, State
from airflow_provider_kafka_migration.topics import copy_settings

PHASE: Final = "abandon"
#: How records go on to the target after it.
GOES_ON: Final = (
    "to mirror on: a mirror with another migration_id, which takes over what is on the target (`adopt.from: "
    "comparison`), or copies anew once the remote topics are deleted; or MirrorMaker 2 (`kafka-migration mirror "
    "hand-over FILE`)"
)
#: The parts that are tried again once the mirror has ended.
_GRANTS, _SETTINGS = "write grants", "topic settings"


def run(context: PhaseContext, *, reason: str = "") -> PhaseResult:
    """End the mirror. The decision is journaled first, so nobody completes its promotion; then producers are freed.

    The rest is best effort: what fails is named in ``problems``. Killed anywhere, it continues when it is run again.

    :raises IllegalTransition: it is not promoted, or its promotion cannot be abandoned; the error says why.
    :raises ApprovalRefused: the people who have to decide it have not; or clients have written to the target.
    :raises StillFrozen: the producers could not be freed; the error says what a person has to do. Run it again.
    """
    record, journal = context.record, context.journal
    if not abandonment.check_possible(record):
        return _again(context)
    journal.check_holds()
    abandonment.decide(context, reason)
    attempt = abandonment.ready_attempt(record)
    freed = frozen.free_abandoned(context, attempt)
    is_complete = journal.tip_state is State.PROMOTED
    if not is_complete:
        requests.stop_where_they_are(record)
    # A promotion that is complete has put the settings back: the target need not answer for them again.
    problems = _undo(context, [_GRANTS] if is_complete else [_SETTINGS, _GRANTS])
    # Behind the grants: nobody whom the mirror has let write to the target writes there any more.
    late, written = abandonment.written_meanwhile(record, context.target)
    signed, told = sign_end(context, Outcome.ABANDONED)
    summary = f"abandoned: clients stay on the source; {words.lifted(attempt.method)}{written}{_told(problems)}{told}"
    details = {"state": "ended", "abandoned": True, "freed": freed, "problems": problems, "next": GOES_ON, **signed}
    details["written_meanwhile"] = late
    journal.transition(State.ENDED, summary, details, from_states=ABANDON_MIRROR_FROM)
    return PhaseResult(PHASE, summary, details)


def _undo(context: PhaseContext, parts: Sequence[str]) -> list[dict[str, Any]]:
    """Undo these parts; return those that could not be undone, and why."""
    record, target = context.record, context.target

    def settings() -> None:
        if not record.journal.is_closed:
            ending.restore_settings(context)
        elif (known := record.copy_settings()) is not None:
            copy_settings.restore_after_end(record, target, known.topics)

    acts: dict[str, Callable[[], object]] = {
        _GRANTS: lambda: write_grants.take_back(record, target),
        _SETTINGS: settings,
    }
    problems = []
    for part in parts:
        try:
            acts[part]()
        except HANDS_OFF:
            raise
        except MigrationError as error:
            problems.append({"part": part, **error.as_dict()})
    return problems


def _told(problems: Sequence[dict[str, Any]]) -> str:
    if not problems:
        return ""
    return f"; {len(problems)} parts could NOT be put back, the first is {problems[0]['part']}: {problems[0]['what']}"


def _again(context: PhaseContext) -> PhaseResult:
    """Try again what could not be put back, without the journal, which is closed once the mirror has ended.

    Producers come first: a late request may have stopped them after the end.
    """
    freed = frozen.free_after_end(context)
    entry = next((item for item in reversed(context.journal.steps()) if item.step == steps.ABANDONED), None)
    ended = next((item for item in reversed(context.journal.entries()) if not item.is_step), None)
    details = dict(ended.details) if ended is not None else {}
    former = [str(item["part"]) for item in details.get("problems", [])]
    problems = _undo(context, former)
    summary = f"the mirror is abandoned already, since {entry.at if entry else 'before'}"
    summary += f"; {words.lifted(freed)}" if freed else ""
    summary += f"; put back now: {', '.join(former)}" if former and not problems else _told(problems)
    return PhaseResult(PHASE, summary, {**details, "problems": problems}, already_done=not (freed or former))
