"""A rollback that has begun to undo things: only the rollback itself may run from there on. So it is if people abandon
a migration whose clients were told to switch.

It may die halfway, with some settings put back and the producers of a way back let in again. A copy that went on from
there would copy to topics that delete again, and clients would be told to use a cluster to which others write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer
from airflow_provider_kafka_migration.errors import IllegalTransition, Where
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import REOPENED, Resume, ResumeAction

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.journal.journal import Journal


def has_begun(journal: Journal) -> bool:
    """Whether a rollback has freed the producers and begun to undo the rest; it may have ended, too."""
    return journal.find_step(steps.ROLLBACK_BEGUN) is not None


def is_abandoned(journal: Journal) -> bool:
    """Whether people have decided that no client switches any more; producers may still be stopped."""
    return journal.find_step(steps.ABANDONED) is not None


def abandon_command(spec: MigrationSpec, file: str = "FILE") -> str:
    """Return the command with which people abandon a migration or a mirror."""
    return f"kafka-migration {'mirror ' if spec.kind == 'mirror' else ''}abandon {file}"


def next_step(spec: MigrationSpec, *, abandoned: bool = False) -> str:
    """Return how to end a rollback that has begun."""
    if abandoned:
        task = "" if spec.kind == "mirror" else " (in Airflow: clear the task abandon)"
        return f"end it: `{abandon_command(spec)}`, without a code{task}"
    if spec.is_way_back:
        return "end it: `kafka-migration way-back keep FILE`, without a code (in Airflow: clear the task rollback)"
    return "end it: `kafka-migration rollback FILE` (in Airflow: clear the task rollback)"


def resume(journal: Journal, spec: MigrationSpec) -> Resume | None:
    """Return what to do with a rollback that has begun and not ended; None: there is none."""
    journal.refresh()
    tip, abandoned = journal.tip_state, is_abandoned(journal)
    # A promoted mirror is at an end, unless it is being abandoned.
    if tip is None or (tip.is_terminal and not (abandoned and tip in REOPENED)):
        return None
    if abandoned:
        return Resume(ResumeAction.REENTER, tip, f"it is abandoned: {next_step(spec, abandoned=True)}")
    if not has_begun(journal):
        return None
    return Resume(ResumeAction.REENTER, tip, f"a rollback has begun: {next_step(spec)}")


def check_not_begun(journal: Journal, spec: MigrationSpec, phase: str) -> None:
    """Check that nothing was undone yet.

    :raises IllegalTransition: a rollback has begun; the error says how to end it.
    """
    abandoned = journal.find_step(steps.ABANDONED)
    entry = abandoned or journal.find_step(steps.ROLLBACK_BEGUN)
    if entry is None:
        return
    what = "the way back is ended by *keep*" if spec.is_way_back else "the migration is rolled back"
    if abandoned is not None:
        what = "the way back is abandoned" if spec.is_way_back else f"the {spec.kind} is abandoned"
    raise IllegalTransition(
        f"{phase} cannot run: {what} since {entry.at}, and that has not come to its end",
        where=Where(migration_id=spec.migration_id, phase=phase),
        next_step=next_step(spec, abandoned=abandoned is not None),
    )


def is_kept(
    journal: Journal, answers: tuple[str, str], *, is_by_two: bool, decision: Literal["abort", "back_out"] = "abort"
) -> bool:
    """Whether the last answer to these approvals is to end the way back; its code was checked.

    :param answers: keys of the answers of the first and of the second person in the journal.
    :param is_by_two: two different people have to end it, both with the same code.
    :param decision: the answer that ends it; "back_out" abandons a migration.
    """
    if is_by_two:
        entries = [journal.find_step(steps.APPROVAL, key) for key in answers]
        both = [ApprovalAnswer.model_validate(entry.details) for entry in entries if entry is not None]
        people = {person.user_id for answer in both for person in answer.responders}
        codes = {answer.code for answer in both}
        return len(people) == 2 and len(codes) == 1 and all(answer.decision == decision for answer in both)
    given = [entry for entry in journal.steps(steps.APPROVAL) if entry.step_key in answers]
    return bool(given) and ApprovalAnswer.model_validate(given[-1].details).decision == decision
