"""Abandoning between READY_FOR_CLIENT_SWITCH and the first client: what people are shown, and what it needs.

From READY on the freeze is never lifted, since clients may write to the target; the same is true of a mirror from the
step ``promoted`` on. As long as no client has written there, the source still has every record, so clients can stay
with it. That takes a code over what is given up, the people who may approve the client switch, and the target's own
logs: they must end where the copy has ended. If they cannot be read, for instance because the target is dead, it is not
known whether a client has written there; people then accept that with a word more.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import Any

from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer
from airflow_provider_kafka_migration.documents.mirror import Promotion
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.errors import HANDS_OFF, ApprovalRefused, IllegalTransition, MigrationError
from airflow_provider_kafka_migration.freeze import late_writes, words
from airflow_provider_kafka_migration.freeze.late_writes import BehindBoundary
from airflow_provider_kafka_migration.freeze.words import TELL_OWNERS
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import ABANDON_FROM, ABANDON_MIRROR_FROM, State, mirror_name

PHASE = "abandon"
#: Typed behind the code, or given as an option: also if the target's logs cannot be read.
ACCEPT_UNREAD = "target-unread"
#: Keys of the answers of the first and of the second person.
ANSWERS = ("client_switch", "client_switch/second")
#: What is left once clients have written to the target, by kind of spec.
_FORWARD = {
    "migration": "complete the client switch (`kafka-migration resume FILE --approve CODE`); clients can then return, "
    "with what they have written, by `kafka-migration way-back run FILE`",
    "mirror": "let clients stay on the target; they can return, with what they have written, by `kafka-migration "
    "mirror fail-back FILE`",
}


def command(spec: MigrationSpec, file: str = "FILE") -> str:
    """Return the command that shows the code, and with it abandons."""
    return rolling_back.abandon_command(spec, file)


def check_possible(record: MigrationRecord) -> bool:
    """Check that the migration may be abandoned now, or goes on being abandoned; False: it has ended so already.

    :raises IllegalTransition: clients were not told to switch yet, or one may have; the error names the other way.
    """
    journal = record.journal
    journal.refresh()
    if rolling_back.is_abandoned(journal):
        return journal.tip_state not in (State.ROLLED_BACK, State.ENDED)
    if record.spec.kind == "mirror":
        _check_promoted(record)
        return True
    state, attempt = journal.working_state, record.freeze()
    if state in ABANDON_FROM and attempt is not None and attempt.ready and record.client_switch() is None:
        return True
    raise _impossible(record, _instead(record, state))


def _impossible(record: MigrationRecord, next_step: str, why: str = "") -> IllegalTransition:
    state = record.journal.working_state
    name = "not started" if state is None else mirror_name(state) if record.spec.kind == "mirror" else str(state)
    return IllegalTransition(
        f"a {record.spec.kind} in state {name} cannot be abandoned{why and f': {why}'}",
        where=record.where(PHASE),
        next_step=next_step,
        details={"state": "" if state is None else state.value},
    )


def _check_promoted(record: MigrationRecord) -> None:
    """Check that a planned promotion of a mirror keeps producers stopped."""
    journal, attempt = record.journal, record.freeze()
    promoted = journal.find_step(steps.PROMOTED)
    if promoted is None:
        raise _impossible(
            record,
            "nothing is to be done: no producers are stopped for it any more"
            if journal.tip_state is State.ENDED
            else "it is not promoted: `kafka-migration mirror resume FILE` frees the producers that a promotion under "
            "way has stopped, and lets it mirror on",
        )
    if promoted.details.get("source_gone"):
        raise _impossible(
            record,
            "what clients write to the target comes back by `kafka-migration mirror fail-back FILE`, once the source "
            "is there again; producers that are still stopped there are then freed",
            "it was promoted without its source, which may have records that the target lacks, and the other way round",
        )
    if attempt is None or attempt.lifted:
        raise _impossible(
            record,
            f"if no client has written to the target, {TELL_OWNERS}; nothing of the mirror is in their way",
            "it has stopped no producers itself",
        )


def _instead(record: MigrationRecord, state: State | None) -> str:
    if state is None or state in (State.FINALIZED, State.ROLLED_BACK):
        return "nothing is to be done: no producers are stopped for it any more"
    if state is State.VALIDATING or record.client_switch() is not None:
        return (
            "clients have switched, so the source may lack their records; they can return with what they have "
            "written: `kafka-migration way-back run FILE` (docs/way-back.md)"
        )
    return "clients were not told to switch yet: `kafka-migration rollback FILE` frees producers and ends the migration"


def ready_attempt(record: MigrationRecord) -> FreezeAttempt:
    """Return the attempt that keeps producers stopped. Call :func:`check_possible` before."""
    attempt = record.freeze()
    assert attempt is not None
    return attempt


def abandon_code(record: MigrationRecord) -> str:
    """Return the code that abandoning needs. It depends on the cutover alone, so it needs no cluster."""
    attempt = record.freeze()
    return code_of(
        {
            "kind": "abandon",
            "migration_id": record.migration_id,
            "attempt": 0 if attempt is None else attempt.number,
            "plan": record.plan().digest() if record.has_plan() else "",
        }
    )


def facts(record: MigrationRecord, target: Cluster) -> dict[str, Any]:
    """Return what a person is shown: who is stopped, what the target's logs show, and the code."""
    attempt = ready_attempt(record)
    return {
        "method": attempt.method,
        "since": iso(attempt.stopped_at),
        "target": read_target(record, target).as_dict(),
        "lifted": words.lifted(attempt.method),
        "code": abandon_code(record),
    }


def read_target(record: MigrationRecord, target: Cluster) -> BehindBoundary:
    """Read what the target's logs have behind the copy. What cannot be read, or tells nothing, is named as unchecked.

    The marker that fences the copiers is behind it by right; records are not.
    """
    document = record.offset_map()
    if document is None:
        return BehindBoundary(
            0, unchecked={"target": "offset-map.json is missing: it is not known where the copy ends"}
        )
    boundary: dict[tuple[str, int], int | None] = {}
    shared, fence = {}, record.fence()
    with_others = _shared_at_promotion(record)
    for item in document.partitions:
        key = (item.target_topic, item.partition)
        if item.verdict == Verdict.TRANSACTIONAL or key in with_others:
            shared[partition_name(key)] = "others write to it by right, so its log does not tell whether clients did"
        else:
            # Retention of a promoted mirror may have deleted the marker by now, which is no record of a client.
            marker = None if fence is None else fence.markers.get(key)
            is_fenced = marker is not None and marker == item.target_end_offset
            boundary[key] = marker + 1 if is_fenced and marker is not None else item.target_end_offset
    if not boundary:
        return BehindBoundary(len(shared), unchecked=shared)
    found = late_writes.read_behind(target, boundary, after="the copy")
    return replace(found, partitions=len(document.partitions), unchecked={**found.unchecked, **shared})


def written_meanwhile(record: MigrationRecord, target: Cluster) -> tuple[dict[str, str], str]:
    """Look once more, when nobody is told to write to the target any more: a client may have written since the answer.

    :returns: what it has written, by partition, and words for a summary. What cannot be read now was no reason to keep
        producers stopped, and is none to keep the end waiting.
    """
    try:
        late = read_target(record, target).late
    except HANDS_OFF:
        raise
    except MigrationError:
        return {}, ""
    if not late:
        return {}, ""
    name, what = next(iter(late.items()))
    return late, (
        f"; clients have written to {len(late)} partitions of the target meanwhile, which the source lacks: have these "
        f"records sent to the source again; {name}: {what}"
    )


def _shared_at_promotion(record: MigrationRecord) -> set[tuple[str, int]]:
    """Return the target partitions to which others had written before a mirror was promoted."""
    data = record.result(keys.PROMOTION) if record.spec.kind == "mirror" else None
    found = [] if data is None else Promotion.parse(data).partitions
    return {(item.target_topic, item.partition) for item in found if item.of_others}


def check_code(record: MigrationRecord, code: str) -> None:
    """Check the code of a person who abandons it.

    :raises ApprovalRefused: it is not the code of now.
    """
    if hmac.compare_digest(abandon_code(record).encode(), code.encode()):
        return
    raise ApprovalRefused(
        f"the code {code[:20]!r} does not abandon the {record.spec.kind}" if code else "abandoning needs its code",
        where=record.where(PHASE),
        next_step=f"`{command(record.spec)}` shows what will happen, and the code for it",
        details={"given": code[:20]},
    )


def check_target(record: MigrationRecord, target: Cluster, *, accepts_unread: bool) -> BehindBoundary:
    """Check that nobody has written to the target.

    :param accepts_unread: people accept that it cannot be read.
    :raises ApprovalRefused: somebody has; or it cannot be read, and nobody accepts that.
    """
    found = read_target(record, target)
    if found.late:
        name, what = next(iter(found.late.items()))
        raise ApprovalRefused(
            f"the {record.spec.kind} cannot be abandoned: clients have written to {len(found.late)} partitions of the "
            f"target; {name}: {what}",
            where=record.where(PHASE, cluster="target"),
            next_step=f"the source lacks these records: {_FORWARD[record.spec.kind]}",
            details=found.as_dict(),
        )
    if found.unchecked and not accepts_unread:
        name, why = next(iter(found.unchecked.items()))
        raise ApprovalRefused(
            f"it is not known whether clients have written to the target: {len(found.unchecked)} of its partitions "
            f"cannot be checked; {name}: {why}",
            where=record.where(PHASE, cluster="target"),
            next_step="ask the clients' owners. If none has written there, or what they wrote may be lost: "
            f"`{command(record.spec)} --approve CODE --{ACCEPT_UNREAD}`"
            + ("" if record.spec.kind == "mirror" else f"; in Airflow type the code, a space and {ACCEPT_UNREAD}"),
            details=found.as_dict(),
        )
    return found


def is_decided(record: MigrationRecord) -> bool:
    """Whether the people who have to decide it have abandoned the migration, by their last answers."""
    is_by_two = bool(record.spec.approvals.second_users)
    return rolling_back.is_kept(record.journal, ANSWERS, is_by_two=is_by_two, decision="back_out")


def deciding_answers(record: MigrationRecord) -> list[ApprovalAnswer]:
    """Return the answers that abandon the migration: one, or those of two people."""
    entries = [record.journal.find_step(steps.APPROVAL, key) for key in ANSWERS]
    given = [ApprovalAnswer.model_validate(entry.details) for entry in entries if entry is not None]
    return [answer for answer in given if answer.decision == "back_out"]


def check_decided(record: MigrationRecord) -> list[ApprovalAnswer]:
    """Return the answers that abandon the migration.

    :raises ApprovalRefused: not all who have to decide it have.
    """
    if is_decided(record):
        return deciding_answers(record)
    raise ApprovalRefused(
        f"nobody has decided to abandon the {record.spec.kind}"
        if not record.spec.approvals.second_users
        else f"two people have to abandon the {record.spec.kind}, with the same code, and they have not",
        where=record.where(PHASE),
        next_step=f"`{command(record.spec)}` shows the code; then `{command(record.spec)} --approve CODE`",
    )


def decide(context: PhaseContext, reason: str) -> None:
    """Journal that no client switches any more, after a last look at the target; nothing if that is journaled.

    :raises ApprovalRefused: the people who have to decide it have not; or clients have written to the target.
    :raises PhaseOver: the client switch was acknowledged meanwhile.
    """
    record, journal = context.record, context.journal
    if rolling_back.is_abandoned(journal):
        return
    given = check_decided(record)
    accepts_unread = all(answer.target_unread for answer in given)
    found = check_target(record, context.target, accepts_unread=accepts_unread)
    if journal.tip_state is State.FAILED and journal.working_state is not None:
        journal.transition(journal.working_state, f"the {record.spec.kind} is abandoned")
    people = sorted({person.user_id for answer in given for person in answer.responders})
    details = {
        "by": people,
        "code": given[-1].code,
        "reason": reason,
        "target": found.as_dict(),
        "target_unread_accepted": accepts_unread,
    }
    journal.step(
        steps.ABANDONED,
        details=details,
        reason=f"abandoned by {' and '.join(people)}: clients stay on the source",
        only_in=ABANDON_MIRROR_FROM if record.spec.kind == "mirror" else ABANDON_FROM,
        unless_step=(steps.CLIENT_SWITCH_ACKNOWLEDGED, None),
    )


def parse_code(text: str) -> tuple[str, bool]:
    """Return the code that a person has typed, and whether the word for an unread target followed."""
    given = text.strip()
    is_accepted = given.lower().endswith(ACCEPT_UNREAD)
    return (given[: -len(ACCEPT_UNREAD)].strip(), True) if is_accepted else (given, False)
