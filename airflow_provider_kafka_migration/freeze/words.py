"""Sentences on the state of the producers, and on who has to act, depending on how they were stopped.

Every text about a freeze takes its sentences from here. The migration can undo only what a webhook's receiver or DENY
ACLs did: with ``freeze: manual`` it has stopped no producers and frees none, so a person has to.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_kafka_migration.record.freeze_attempt import AGAIN
from airflow_provider_kafka_migration.record.times import iso, words
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Appended to advice to change the spec: a run keeps the Params that it was started with.
IF_PARAMS = "where the spec comes from the run's Params, start a new run with the changed ones and takeover instead"

#: The advice when people have stopped an application by hand.
TELL_OWNERS = "tell the producers' owners that they may write to the source again"

#: The advice where clients were told to switch, and cannot.
WAY_OUT = (
    "if clients cannot use the target, and none has written to it, `kafka-migration abandon FILE` frees the producers "
    "of the source and ends the migration (in Airflow: *Back out* of approve_client_switch)"
)

#: The same for a mirror that is promoted.
MIRROR_WAY_OUT = (
    "if clients cannot use the target, and none has written to it, `kafka-migration mirror abandon FILE` frees the "
    "producers of the source and ends the mirror"
)

_LIFTED = {
    "webhook": "producers write to the source again",
    "acl": "producers may write to the source again: the DENY ACLs of the freeze are removed",
    "manual": f"the producers were stopped by hand, so they are still stopped: {TELL_OWNERS}",
}
_NOT_BEGUN = {
    "webhook": "nothing was frozen",
    "acl": "nothing was frozen",
    "manual": "the migration has stopped no producers; those that were stopped by hand are still stopped: let their "
    "owners write until the next approval, or keep them stopped and approve soon",
}


def phase_of(spec: MigrationSpec) -> str:
    """Return the phase that a freeze belongs to, for errors: of a migration the cutover, of a mirror its only one."""
    return "mirror" if spec.kind == "mirror" else "cutover"


def way_out(*, is_mirror: bool) -> str:
    """Say how producers are freed once clients may be on the target, as long as none has written there; one clause."""
    return MIRROR_WAY_OUT if is_mirror else WAY_OUT


def made(number: int, method: str, deadline: datetime, how: str) -> str:
    """Tell people that producers are stopped, and how they are freed by hand; sentences."""
    return (
        f"Producers are stopped (freeze {number}, {_HOW[method]}) until clients may switch, or until {iso(deadline)} "
        f"at the latest. If they cannot be freed then: {how}"
    )


def over(number: int, seconds: float, reason: str, method: str) -> str:
    """Tell people that a freeze was lifted; a sentence."""
    return f"Freeze {number} is lifted after {seconds:.0f} s ({reason}): {lifted(method)}"


def ready(number: int, *, is_mirror: bool) -> str:
    """Tell people that clients may switch; sentences."""
    step = "promoted" if is_mirror else "ready_for_client_switch"
    way = way_out(is_mirror=is_mirror)
    return f"Freeze {number} has ended with {step}: producers stay stopped until they are started on the target. {way}"


def again(spec: MigrationSpec) -> str:
    """Say how a person begins another freeze, once what has ended this one is corrected; one clause."""
    return "promote again" if spec.kind == "mirror" else AGAIN


def lifted(method: str) -> str:
    """Describe the producers once the migration has lifted a freeze; one clause."""
    return _LIFTED[method]


def not_begun(method: str) -> str:
    """Describe the producers when a cutover was refused before its freeze began; one clause."""
    return _NOT_BEGUN[method]


#: The same as :func:`lifted`, for texts that are not about a single migration.
LIFTED_IN_GENERAL = (
    "producers write to the source again; with `freeze: manual` they are still stopped, and a person has to "
    f"{TELL_OWNERS}"
)


def frozen(method: str, since: datetime, deadline: datetime, now: datetime) -> str:
    """State that producers are frozen: how, since when, until when; one clause."""
    left = (deadline - now).total_seconds()
    limit = f"{words(left)} are left" if left > 0 else f"which passed {words(-left)} ago"
    return f"producers are frozen ({_HOW[method]}) since {iso(since)}; the limit is {iso(deadline)}, {limit}"


def stopped(method: str, since: datetime) -> str:
    """State that producers are stopped and that no limit frees them: how, and since when; one clause."""
    return f"producers are stopped on the source ({_HOW[method]}) since {iso(since)}"


_HOW = {
    "webhook": "by the freeze webhook",
    "acl": "by DENY WRITE ACLs on the source",
    "manual": "stopped by hand",
}


def unattended(method: str, *, held: bool, is_mirror: bool = False) -> str:
    """Say what happens to the producers at the limit while no command and no task runs; a sentence without a period."""
    task = "freeze_limit" if is_mirror else "cutover.freeze_limit"
    if method == "manual":
        return "they were stopped by hand: only their owners can let them write again"
    if method == "acl":
        return f"the DENY ACLs stay in place while neither a command nor Airflow's {task} runs"
    if held:
        return (
            "the webhook's receiver was asked to keep them stopped without a deadline: it frees them only when it gets "
            f"`unfreeze` from a command or from Airflow's {task}"
        )
    return (
        "the webhook's receiver may free them by itself at the limit; otherwise it takes a command or Airflow's "
        f"{task} to free them"
    )
