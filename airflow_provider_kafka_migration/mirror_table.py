"""The table of phases of a mirror, in order. What it shares with a migration are the rows of :mod:`~.phase_table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_kafka_migration.phase_table import PHASES, Phase, Place
from airflow_provider_kafka_migration.state import State

#: What has to be done once, before anything can be mirrored. The tasks are in each run of a chain, so their attempts
#: may not run out either: nobody looks when a storage is away for minutes just when runs change.
BEFORE: tuple[Phase, ...] = tuple(
    replace(row, for_ever=True)
    for row in (
        PHASES["plan"],
        PHASES["spark_check"],
        replace(PHASES["precheck"], doc=PHASES["precheck"].doc.replace("the migration", "the mirror")),
        PHASES["topology_copy"],
        # A mirror has no cutover: schemas are brought over before the first record, and followed while it runs.
        replace(PHASES["schemas"], done_past=State.SEED),
        replace(PHASES["seed"], done_past=State.SEED),
    )
)

MIRROR_PHASE = Phase(
    "mirror",
    "Mirrors the source until somebody promotes or ends it (`kafka-migration mirror promote | end`). It is *supposed* "
    "to run for long, and keeps consumer groups, new topics and partitions up to date meanwhile. Purple (deferred) is "
    "normal: its Spark job runs elsewhere, or the mirror is paused and goes on by itself after `kafka-migration mirror "
    "resume`.\n\n**Up for retry?** A cluster, the storage or Spark has been away for long. It tries again "
    "by itself, without an end.\n\n**Red?** A person has to change what the last log line names. Then clear it; "
    "mirroring continues where it stopped.",
    # It moves the states of the mirror itself, as the requests of people say.
    "mirrors.mirror:run",
    reports_trouble=True,
    for_ever=True,
)

FREEZE_LIMIT = Phase(
    "freeze_limit",
    "Runs alongside `mirror`. If the mirror stops producers itself before it is promoted (`freeze: webhook` or `acl`), "
    "it lifts a freeze that lasts longer than `max_producer_freeze` when `mirror` does not, and goes on. Purple "
    "(deferred) is normal. It is green once the mirror is promoted or has ended, or if it stops no producers.\n\n"
    "**Up for retry?** Producers are still frozen, and it cannot free them: the last line of its error names what a "
    "person has to do.\n\n**Red?** A person has to change what the last log line names. Then clear it.",
    "freeze_limit:run",
    place=Place.ASIDE,
    after="seed",
    fails_migration=False,
    needs_journal_only=True,
    keeps_trying=True,
)

NEXT_RUN = Phase(
    "next_run",
    "Starts the next run of this DAG when the time of this one is over, with the same Params; the mirror goes on "
    "there. After a promotion or an end it does nothing.\n\n**Red?** Airflow could not start a run of this DAG; the "
    "last log line says why. Clear it after correcting. Meanwhile a detached Spark job copies on, and nothing is lost.",
    for_ever=True,
    fails_migration=False,
)

FINISH = Phase(
    "finish",
    "Ends a mirror, or promotes its target although the source is gone: needs the journal and the target only.",
    "mirrors.finish:run",
    fails_migration=False,
    needs_journal_only=True,
)

ABANDON = Phase(
    "abandon",
    "Frees the producers of the source after a planned promotion, as long as no client has written to the target, and "
    "ends the mirror: `kafka-migration mirror abandon`.",
    "mirrors.abandon:run",
    fails_migration=False,
    needs_journal_only=True,
)

VERIFY = Phase(
    "verify",
    "Compares the records of both sides on Spark, up to where copiers have confirmed that they are copied. Reads only, "
    "needs no claim, and runs beside the mirror. `kafka-migration mirror status` shows the result.\n\n**Red?** "
    "Something differs (`CONTENTS_DIFFER`), or not everything could be compared (`CONTENTS_UNCHECKED`); the last log "
    "lines name the partitions, and the runbook says what to do. Cleared, it compares again. After any other error it "
    "continues, and does not compare again what it has found equal.",
    "mirrors.verify:run",
    fails_migration=False,
    reads_only=True,
)

#: Rows by id, of each kind of spec.
TABLES: Mapping[str, Mapping[str, Phase]] = {
    "migration": PHASES,
    "mirror": {row.id: row for row in (*BEFORE, MIRROR_PHASE, FREEZE_LIMIT, FINISH, ABANDON, VERIFY)},
}
