"""What is true of the producers, and who has to do what, by the way they were stopped.

Every text that tells somebody about a freeze takes its sentences from here. Only a webhook's receiver and the DENY ACLs
are the migration's to undo: with ``freeze: manual`` it has stopped nobody and frees nobody, so a person has to.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_kafka_migration.record.context import iso, words

#: Behind advice to change the spec: a run keeps the Params that it was started with.
IF_PARAMS = "where the spec comes from the run's Params, start a new run with the changed ones and takeover instead"

#: What people with a stopped application have to hear.
TELL_OWNERS = "tell the producers' owners that they may write to the source again"

_LIFTED = {
    "webhook": "producers write to the source again",
    "acl": "producers may write to the source again: the DENY ACLs of the freeze are removed",
    "manual": f"the producers were stopped by hand, so they are still stopped: {TELL_OWNERS}",
}
_NOT_BEGUN = {
    "webhook": "nothing was frozen",
    "acl": "nothing was frozen",
    "manual": "the migration has stopped nobody; producers that were stopped by hand are still stopped: let their "
    "owners write until the next approval, or keep them stopped and approve soon",
}


def lifted(method: str) -> str:
    """What is true of the producers once the migration has lifted a freeze; one clause."""
    return _LIFTED[method]


def not_begun(method: str) -> str:
    """What is true of the producers when a cutover was refused before its freeze began; one clause."""
    return _NOT_BEGUN[method]


#: The same for texts that are not about one migration.
LIFTED_IN_GENERAL = (
    "producers write to the source again; with `freeze: manual` they are still stopped, and a person has to "
    f"{TELL_OWNERS}"
)


def frozen(method: str, since: datetime, deadline: datetime, now: datetime) -> str:
    """That producers are frozen: how, since when, until when; one clause."""
    left = (deadline - now).total_seconds()
    limit = f"{words(left)} are left" if left > 0 else f"over for {words(-left)}"
    return f"producers are frozen ({_HOW[method]}) since {iso(since)}; the limit is {iso(deadline)}, {limit}"


_HOW = {
    "webhook": "by the freeze webhook",
    "acl": "by DENY WRITE ACLs on the source",
    "manual": "stopped by hand",
}


def unattended(method: str, *, held: bool) -> str:
    """What becomes of the producers at the limit while no command and no task runs; one sentence without a stop."""
    if method == "manual":
        return "they were stopped by hand: nobody but their owners lets them write again"
    if method == "acl":
        return "nobody removes the DENY ACLs while neither a command nor Airflow's cutover.freeze_limit runs"
    if held:
        return (
            "the webhook's receiver was asked to keep them stopped without a deadline: it frees them only when it gets "
            "`unfreeze` from a command or from Airflow's cutover.freeze_limit"
        )
    return (
        "the webhook's receiver may free them by itself at the limit; else a command has it do so, or Airflow's "
        "cutover.freeze_limit"
    )
