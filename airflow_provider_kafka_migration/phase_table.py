"""The table of phases: one row per task of a migration, in the order in which they run.

The DAG, the command line, the runbook, the documentation and the demo read their order from here. To add a phase,
write its function in a file of ``phases/`` and insert a row: the row below then follows it.

Rows name functions instead of importing them. Airflow parses this module with every DAG, and a task imports only the
module of its own phase.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

from airflow_provider_kafka_migration.state import State

_PACKAGE = "airflow_provider_kafka_migration.phases"


class Place(Enum):
    """How a row belongs to the order."""

    #: It follows the row of the line above it, and the next row of the line follows it.
    LINE = auto()
    #: It runs in parallel with the line: it follows the row of the line above it, and no row waits for its end.
    ASIDE = auto()
    #: It is not a task: the approval above it runs it.
    INSIDE = auto()


@dataclass(frozen=True)
class Phase:
    """One row: a phase, or an approval between two phases.

    :param id: task id; the part before a dot is the task group. Stable across releases.
    :param doc: Markdown for the task's page in Airflow. The first paragraph describes the task; the documentation and
        the runbook show it as well. ``{lifted}`` is what happens to producers when a freeze is lifted.
    :param function: ``module:function`` below ``phases``, called with the context and the options. Empty for approvals.
    :param approves: the approval that the task asks for.
    :param state: state that the phase belongs to; None: it runs in any state.
    :param leads_to: state after the phase; None: the next phase continues from ``state``.
    :param done_past: the phase is over, and is not run again, once the migration is beyond this state. Phases without
        it are idempotent and check journal and clusters themselves.
    :param after: id of the row that it follows, if that is not the row of the line above it.
    :param joins: id of a row aside whose end in the journal it waits for. Its task goes on: it ends with the cutover.
    :param fails_migration: whether a failure of the phase fails the migration.
    :param needs_journal_only: the phase ends a freeze, so it must start even while clusters are unreachable; a cluster
        is opened only at its first use.
    :param reads_only: the phase needs no claim and journals nothing, so it runs beside whoever holds the migration, and
        also after its end.
    :param watches_tail: the phase waits while the tail copies. Its function takes ``sleep``, which raises the error of
        a tail that has failed.
    :param event: notification that the task sends when it has succeeded.
    :param reports_trouble: the task notifies people about partitions that cannot be copied.
    :param for_ever: Airflow retries the task without an end: it outlives the bad days of its clusters and workers.
    :param keeps_trying: the same, soon after each other, because producers are frozen until it succeeds.
    """

    id: str
    doc: str
    function: str = ""
    approves: Literal["cutover", "client_switch"] | None = None
    state: State | None = None
    leads_to: State | None = None
    done_past: State | None = None
    place: Place = Place.LINE
    after: str = ""
    joins: str = ""
    fails_migration: bool = True
    needs_journal_only: bool = False
    reads_only: bool = False
    watches_tail: bool = False
    event: str = ""
    reports_trouble: bool = False
    for_ever: bool = False
    keeps_trying: bool = False

    @property
    def group(self) -> str:
        """Id of the task group; empty outside of groups."""
        return self.id.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Id without the task group."""
        return self.id.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """What the task does: the first paragraph of its page."""
        return self.doc.partition("\n\n")[0]

    @property
    def is_urgent(self) -> bool:
        """Whether producers may be frozen while the task waits for a slot."""
        return self.state is State.CUTOVER or self.needs_journal_only

    @property
    def module(self) -> str:
        """Dotted name of the module with the phase's function."""
        return f"{_PACKAGE}.{self.function.partition(':')[0]}"

    def load(self) -> Callable[..., Any]:
        """Import the phase's function. It takes a ``PhaseContext`` and options, and returns a ``PhaseResult``."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.function.partition(":")[2])
        return function

    def load_job_phase(self) -> Any:
        """Import the two halves of a phase whose work is a job: a ``jobs.job_phase.JobPhase``."""
        return importlib.import_module(self.module).JOB_PHASE


ROLLBACK_DOC = """\
Ends a migration before its cutover: stops the tail, lifts a freeze, resets what was set for the copy. Topics, data,
ACLs, users and quotas on the target stay; `rollback-report.json` lists them, with the commands that remove them. Once
the clients may switch, a rollback is refused. A freeze is lifted first, even if the target is down: {lifted}.

It takes the migration over from the run that holds it, so use it when that run is dead or hangs. In a live run,
answer `approve_cutover` with *Abort* instead.
"""

ABANDON_DOC = """\
Ends a migration whose clients were told to switch and have not: they stay on the source. The freeze is lifted first:
{lifted}. The rest is undone as in a rollback, and the end is signed. Refused once a client has written to the target,
or the switch is acknowledged.

**Up for retry?** Producers are still stopped, and it cannot free them: the last line of its error names what a person
has to do.

**Red?** The log says why. Clear it after correcting; it continues where it stopped.
"""

#: Said of each step that is cleared alone only as long as producers are frozen.
_LIFTED = (
    "\n\n**Was the freeze lifted?** (The log says so.) Then clear `drain_ready` and everything below it (`tail`, too, "
    "if it has ended): the cutover begins again with a new approval."
)

ROWS: tuple[Phase, ...] = (
    Phase(
        "plan",
        "Reads both clusters and writes `plan.json`: topics, partitions, offsets, groups, ACLs, and how each "
        "partition's offsets will be kept. Changes nothing.\n\n**Red?** A connection or the spec is wrong; the log "
        "names it. Correct it, then clear this task. **Clear** it (with everything below) to plan again.",
        "plan:run",
        state=State.PLANNED,
        # Until it has changed anything, a migration may be planned again: after blockers, or with a changed spec.
        done_past=State.PRECHECK,
    ),
    Phase(
        "spark_check",
        "Asks the Spark driver and its executors whether a copy would work there: versions, settings, clocks, and "
        "whether they reach every broker and the storage. Skips itself where Spark is not used, or runs on the "
        "worker's own machine.\n\n**Red?** Spark could not run a small job; the log has its reason. Clear it. What it "
        "found out about machines does not make it red: `precheck` lists that. Clear this task after correcting it.",
        "spark_check:run",
        state=State.PRECHECK,
        done_past=State.PRECHECK,
    ),
    Phase(
        "precheck",
        "Checks in one pass for everything that would stop the migration, and tests on a scratch topic what "
        "the target accepts. Read-only on the source.\n\n**Red?** The log lists the blockers and what to do. "
        "Clear it when they are resolved. Warnings can be waived by code in the spec (`waive`).",
        "precheck:run",
        state=State.PRECHECK,
        done_past=State.PRECHECK,
    ),
    Phase(
        "topology_copy",
        "Creates topics, configs, ACLs and quotas on the target.\n\n**Red?** All refused items are in the "
        "log. Clear it after deciding; it recognizes what it already created.",
        "topology_copy:run",
        state=State.TOPOLOGY_COPY,
        # Running it after its state would set copy-time settings again on topics whose own settings were restored.
        done_past=State.TOPOLOGY_COPY,
    ),
    Phase(
        "schemas",
        "Copies the schemas from the source's registry to the target's, if the spec names both; else it does nothing."
        "\n\n**Red?** The log lists conflicts by name: a schema, id or version on the target that differs. Nothing of "
        "them was written. Correct the target, or set `schemas.on_conflict: note`, then clear it.",
        "schemas:run",
        state=State.TOPOLOGY_COPY,
        # It may run again while the tail copies. After the cutover, the target's registry belongs to its clients.
        done_past=State.CUTOVER,
    ),
    Phase(
        "seed",
        "Copies everything up to the end offsets seen at its first start, on Spark.\n\n**Red?** Clear it: it "
        "continues from the target's end and copies nothing twice. Partitions that cannot be copied are listed with "
        "the reason.",
        "seed:run",
        state=State.SEED,
        reports_trouble=True,
        for_ever=True,
    ),
    Phase(
        "tail",
        "Follows the source until the cutover sets its stop offsets, on Spark. It is *supposed* to run for long: it "
        "waits at its stop for the end of the cutover, and goes on when a freeze is lifted.\n\n**Red?** Clear it; "
        "mirroring continues where it stopped.",
        "tail:run",
        state=State.TAIL,
        place=Place.ASIDE,
        reports_trouble=True,
        for_ever=True,
    ),
    Phase(
        "drain_ready",
        "Waits until all partitions keep up for the whole window. Purple (deferred) is normal.\n\n"
        "**Red?** It waited too long, or the tail does not run. Check `tail`, then clear this task.",
        "drain:run_or_confirm",
        state=State.TAIL,
        leads_to=State.DRAIN_READY,
        watches_tail=True,
        event="drain_ready",
        reports_trouble=True,
    ),
    Phase(
        "approve_cutover",
        "A person decides: **Approve** starts the cutover and freezes the producers, **Not yet** keeps "
        "mirroring and asks again, **Abort** rolls back. Needs the code from the text.\n\n**Red?** The answer was "
        "refused (no code, an old one, lag has risen, answered within a second): clear it and answer again. The page "
        "then still shows its first text; the log has the current one.",
        approves="cutover",
    ),
    Phase(
        "cutover.freeze_limit",
        "Runs alongside the cutover and lifts a freeze that lasts longer than "
        "`max_producer_freeze` when no other task does it. Purple (deferred) is normal.\n\n**Red?** It had to lift a "
        "freeze: {lifted}. Check the red task of the cutover, then clear `drain_ready` and "
        "everything below it (`tail`, too, if it has ended).\n\n**Up for retry?** Producers are still frozen, and it "
        "cannot unfreeze them: the last line of its error names what a person has to do.",
        "freeze_limit:run",
        place=Place.ASIDE,
        # Directly after drain_ready, so that it is already deferred when the freeze begins: its start costs no frozen
        # time.
        after="drain_ready",
        fails_migration=False,
        needs_journal_only=True,
        keeps_trying=True,
    ),
    Phase(
        "cutover.freeze",
        "Stops the producers and verifies that they no longer write. With `cutover.in_one_task` it runs "
        "the whole cutover, and the tasks below confirm.\n\n**Red?** The freeze is lifted, or did not begin: "
        "{lifted}. "
        "The log names a producer that continued to write. Correct it, then clear `drain_ready` and everything below "
        "it (`tail`, too, if it has ended). Only with `cutover.in_one_task` and `GROUPS_INCOMPLETE` they stay frozen "
        "until `max_producer_freeze`: stop the named consumer, and clear this task alone.",
        "freeze:run",
        state=State.CUTOVER,
        watches_tail=True,
    ),
    Phase(
        "cutover.sentinels",
        "Marks the end of each source partition.\n\n**Red?** Clear it: each sentinel is written once." + _LIFTED,
        "sentinels:run",
        state=State.CUTOVER,
        watches_tail=True,
    ),
    Phase(
        "cutover.final_drain",
        "Sets the tail's stop offsets and waits for it.\n\n**Red?** Check `tail`; if it is red, "
        "clear it, then this one." + _LIFTED,
        "final_drain:run",
        state=State.CUTOVER,
        watches_tail=True,
    ),
    Phase(
        "cutover.snapshot_groups",
        "Reads and translates the consumer groups' offsets.\n\n**Red?** Clear it." + _LIFTED,
        "groups:snapshot_groups",
        state=State.CUTOVER,
    ),
    Phase(
        "cutover.commit_groups",
        "Commits the offsets on the target, never backwards.\n\n**Red?** The log lists the groups "
        "that could not be committed; usually a consumer already runs on the target. Stop it, then clear this task."
        + _LIFTED,
        "groups:commit_groups",
        state=State.CUTOVER,
        joins="tail",
    ),
    Phase(
        "cutover.floor_guard",
        "Checks that nothing was cut off on the target. After it: READY_FOR_CLIENT_SWITCH.\n\n"
        "**Red?** If the journal has the step `ready_for_client_switch`, clear this task, or go on at "
        "`approve_client_switch`. Otherwise do not switch: data is missing on the target, and the error lists the "
        "partitions. Remove the cause, delete these topics on the target, and clear `tail`, and `drain_ready` with "
        "downstream.",
        "floor_guard:run",
        state=State.CUTOVER,
        leads_to=State.AWAITING_CLIENT_SWITCH,
    ),
    Phase(
        "rollback",
        "Runs only after *Abort*.\n\n" + ROLLBACK_DOC,
        "rollback:run",
        place=Place.ASIDE,
        after="approve_cutover",
        fails_migration=False,
        needs_journal_only=True,
    ),
    Phase(
        "sync_groups",
        "Keeps the groups' offsets fresh while the clients are switched: stop a consumer, wait for one "
        "interval, start it on the target. Ends by itself after the acknowledgement.\n\n**Red?** Clear it. "
        "`approve_client_switch` itself makes the last sync.",
        "groups:sync_until_switch",
        place=Place.ASIDE,
        for_ever=True,
        fails_migration=False,
    ),
    Phase(
        "approve_client_switch",
        "Switch the clients now: READY_FOR_CLIENT_SWITCH. **Approve** when they read and write "
        "on the target, **Back out** if they cannot and none has written there: it frees the producers of the source "
        "and ends the migration. Each needs its own code from the text.\n\n**Red?** The answer was refused; clear it "
        "and answer again.",
        approves="client_switch",
    ),
    Phase(
        "abandon",
        "Runs only after *Back out*.\n\n" + ABANDON_DOC,
        "rollback:abandon",
        place=Place.ASIDE,
        after="approve_client_switch",
        fails_migration=False,
        needs_journal_only=True,
        keeps_trying=True,
    ),
    Phase(
        "client_switch",
        "Acknowledges the switch, and refreshes the groups' offsets for the last time.",
        "client_switch:run",
        state=State.AWAITING_CLIENT_SWITCH,
        place=Place.INSIDE,
    ),
    Phase(
        "validate",
        "Runs the eight checks, including the content of all records (twice, by different code), on Spark."
        "\n\n**Red?** The log lists every "
        "difference. Clear it after correcting; nothing on the target is deleted before it has passed.",
        "validate:run",
        state=State.VALIDATING,
    ),
    Phase(
        "evidence",
        "Signs and uploads the evidence, and finalizes.\n\n**Red?** The cause is usually the signing key or "
        "the bucket. Clear it after correcting.",
        "evidence:run",
        state=State.VALIDATING,
        leads_to=State.FINALIZED,
        event="finalized",
    ),
)

#: Rows with a function, by id.
PHASES: dict[str, Phase] = {row.id: row for row in ROWS if row.function}

#: Rows that are tasks of the DAG.
TASKS = tuple(row for row in ROWS if row.place is not Place.INSIDE)


def upstream(row: Phase) -> tuple[str, ...]:
    """Return the ids of the rows that a task follows directly; none for the first task."""
    above = [other.id for other in ROWS[: ROWS.index(row)] if other.place is Place.LINE]
    follows = row.after or (above[-1] if above else "")
    return (follows,) if follows else ()


def _between(above: str | None, below: str | None) -> tuple[Phase, ...]:
    """Return the phases of the line between two rows; None: from the first row, or to the last one."""
    ids = [row.id for row in ROWS]
    first = 0 if above is None else ids.index(above) + 1
    last = len(ids) if below is None else ids.index(below)
    return tuple(row for row in ROWS[first:last] if row.place is Place.LINE)


#: The parts of the line, between which the tail starts or a person decides.
BEFORE_TAIL = _between(None, "tail")
DRAIN = _between("tail", "approve_cutover")
CUTOVER = _between("approve_cutover", "approve_client_switch")
PROOF = _between("approve_client_switch", None)
