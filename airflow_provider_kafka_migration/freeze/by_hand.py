"""What a person must do to let producers write again when the migration cannot do it itself.

The text is part of errors that are read at night, so it is complete in itself: whom to call, which commands to run, and
when not to do it.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_kafka_migration.errors import MigrationError, StillFrozen, Where
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.plain_secrets import shown_address
from airflow_provider_kafka_migration.record import rolling_back
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.spec import MigrationSpec

#: A longer list of commands is truncated; the journal has all bindings.
_MAX_COMMANDS = 20


def still_frozen(
    spec: MigrationSpec,
    what: str,
    cause: MigrationError,
    *,
    method: str,
    deadline: datetime | None,
    acls: list[Acl],
    held: bool = False,
    abandoned: bool = False,
) -> StillFrozen:
    """Return the error of a freeze that could not be lifted.

    :param what: what has failed, one clause.
    :param method: how producers were stopped: ``webhook``, ``manual`` or ``acl``.
    :param deadline: when the freeze was to end; None: unknown, because the journal cannot be read.
    :param acls: the DENY bindings that stop producers, as far as they are known.
    :param held: the webhook's receiver was asked to forget the deadline.
    :param abandoned: it was abandoned after READY, so a person may free producers, whatever else the journal has.
    """
    return StillFrozen(
        f"{what}: {cause.what}",
        where=Where(
            migration_id=spec.migration_id,
            phase=words.phase_of(spec),
            path=cause.where.path,
            broker=cause.where.broker,
        ),
        next_step=instructions(spec, method=method, deadline=deadline, acls=acls, held=held, abandoned=abandoned),
        details={"cause": cause.as_dict(), "method": method, "deadline": iso(deadline) if deadline else None},
    )


def maybe_ready(spec: MigrationSpec, cause: MigrationError, *, method: str, deadline: datetime | None) -> StillFrozen:
    """Return the error of the cutover's last step without a journal: READY may be in it, so producers stay stopped."""
    return StillFrozen(
        "the journal cannot be read or written, and it may already contain ready_for_client_switch, so producers stay "
        f"stopped: {cause.what}",
        where=Where(migration_id=spec.migration_id, phase="cutover", path=cause.where.path, broker=cause.where.broker),
        next_step="do not free the producers by hand: make the journal's storage reachable, then clear "
        "cutover.floor_guard. It continues if ready_for_client_switch is journaled; otherwise the freeze is lifted",
        details={"cause": cause.as_dict(), "method": method, "deadline": iso(deadline) if deadline else None},
    )


def instructions(
    spec: MigrationSpec,
    *,
    method: str,
    deadline: datetime | None,
    acls: list[Acl],
    held: bool = False,
    abandoned: bool = False,
) -> str:
    """Return sentences for the person who has to free the producers."""
    if method == "webhook":
        how = _webhook(spec, deadline, held=held)
    else:
        how = _acl(acls) if method == "acl" else _MANUAL
    if abandoned:
        task = "" if spec.kind == "mirror" else ", or the task abandon in Airflow,"
        return (
            f"{how} The {spec.kind} is abandoned, so nobody writes to the target. Run "
            f"`{rolling_back.abandon_command(spec)}`{task} again: it tries once more"
        )
    if spec.kind == "mirror":
        return (
            f"{how} Do not do it if the journal has the step promoted, because clients may be on the target already; "
            "nor if the journal cannot be read. The mirror keeps trying while it runs, and so does Airflow's "
            "freeze_limit; `kafka-migration mirror resume FILE` also lifts the freeze as soon as it can. Once it is "
            f"promoted, {words.MIRROR_WAY_OUT}"
        )
    return (
        f"{how} Do not do it if the journal has the step ready_for_client_switch, whether cutover.floor_guard is green "
        "or red, because clients may be on the target already; nor if floor_guard has begun and the journal cannot be "
        f"read; {words.WAY_OUT}. The migration keeps trying while cutover.freeze_limit or the command line runs; "
        "`kafka-migration rollback FILE` also lifts the freeze as soon as it can"
    )


def _webhook(spec: MigrationSpec, deadline: datetime | None, *, held: bool) -> str:
    address = spec.cutover.producer_freeze_webhook
    url = shown_address(address) if address else "the freeze webhook"
    if held:
        until = "it was asked to keep them stopped without a deadline, so it does not free them by itself"
    elif deadline:
        until = f"it was given the deadline {iso(deadline)} at which it should free them by itself"
    else:
        until = "it was given a deadline at which it should free them by itself" + (
            "" if spec.kind == "mirror" else ", unless cutover.floor_guard has begun"
        )
    return (
        f"ask the owners of {url} whether producers are free ({until}); "
        f'if not, have the owners free them, or POST {{"migration_id": "{spec.migration_id}", "action": '
        '"unfreeze"} there, signed if it requires a signature.'
    )


_MANUAL = f"the producers were stopped by hand: {words.TELL_OWNERS}."


def _acl(acls: list[Acl]) -> str:
    if not acls:
        return (
            "once the source answers, run the commands that the log of cutover.freeze (of a mirror: of mirror) has "
            "under 'Producers are stopped'. Without that log: kafka-acls.sh --bootstrap-server SOURCE --list shows the "
            "DENY WRITE ACLs of the migrated topics; those of the migration have the host * and the topic's whole name "
            "(--remove --force --deny-principal ... --operation Write --topic ...)."
        )
    return f"once the source answers, run: {remove_commands(acls)}."


def remove_commands(acls: list[Acl], *, cluster: str = "SOURCE") -> str:
    """Return the commands that remove DENY bindings; of many, the first, and where the others are."""
    commands = [
        f"kafka-acls.sh --bootstrap-server {cluster} --remove --force --deny-principal '{acl.principal}' "
        f"--operation Write --topic '{acl.resource_name}'"
        for acl in acls[:_MAX_COMMANDS]
    ]
    more = len(acls) - len(commands)
    rest = f" and {more} more, listed in the journal's last step freeze_acls" if more else ""
    return "; ".join(commands) + rest
