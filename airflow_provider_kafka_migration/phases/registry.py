"""All phases by task id: the state each belongs to, what runs, and when it counts as done.

Modules are imported when a phase runs, because a task needs only the module of its phase.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.record.context import PhaseContext, PhaseResult
from airflow_provider_kafka_migration.state import State

_PACKAGE = "airflow_provider_kafka_migration.phases"


@dataclass(frozen=True)
class PhaseEntry:
    """One phase.

    :param function: ``module:function`` below ``phases``, called with the context and the options.
    :param state: state that the phase belongs to; None: it runs in any state.
    :param leads_to: state after the phase; None: the next phase continues from ``state``.
    :param done_past: the phase is over, and is not run again, once the migration is beyond this state. Phases
        without it are idempotent and check journal and clusters themselves.
    :param fails_migration: whether a failure of the phase fails the migration.
    :param needs_journal_only: the phase ends a freeze, so it must start even while clusters are unreachable; a cluster
        is opened only at its first use.
    """

    function: str
    state: State | None
    leads_to: State | None = None
    done_past: State | None = None
    fails_migration: bool = True
    needs_journal_only: bool = False

    def call(self, context: PhaseContext, options: Mapping[str, Any]) -> PhaseResult:
        """Run the phase."""
        module, _, name = self.function.partition(":")
        function: Callable[..., PhaseResult] = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
        return function(context, **options)

    def done(self, phase: str, context: PhaseContext) -> PhaseResult | None:
        """Return a result if the phase is over; None: run it."""
        if self.done_past is None or not context.journal.is_past(self.done_past):
            return None
        summary = f"done before: the migration is in state {context.journal.working_state}"
        return PhaseResult(phase, summary, {}, already_done=True)


PHASES: dict[str, PhaseEntry] = {
    # Until it has changed anything, a migration may be planned again: after blockers, or with a changed spec.
    "plan": PhaseEntry("plan:run", State.PLANNED, done_past=State.PRECHECK),
    "precheck": PhaseEntry("precheck:run", State.PRECHECK, done_past=State.PRECHECK),
    # Running it after its state would set copy-time settings again on topics whose own settings were restored.
    "topology_copy": PhaseEntry("topology_copy:run", State.TOPOLOGY_COPY, done_past=State.TOPOLOGY_COPY),
    "seed": PhaseEntry("seed:run", State.SEED),
    "tail": PhaseEntry("tail:run", State.TAIL),
    "drain_ready": PhaseEntry("drain:run_or_confirm", State.TAIL, leads_to=State.DRAIN_READY),
    "cutover.freeze": PhaseEntry("freeze:run", State.CUTOVER),
    "cutover.sentinels": PhaseEntry("sentinels:run", State.CUTOVER),
    "cutover.final_drain": PhaseEntry("final_drain:run", State.CUTOVER),
    "cutover.snapshot_groups": PhaseEntry("groups:snapshot_groups", State.CUTOVER),
    "cutover.commit_groups": PhaseEntry("groups:commit_groups", State.CUTOVER),
    "cutover.floor_guard": PhaseEntry("floor_guard:run", State.CUTOVER, leads_to=State.AWAITING_CLIENT_SWITCH),
    "cutover.freeze_limit": PhaseEntry("freeze_limit:run", None, fails_migration=False, needs_journal_only=True),
    "sync_groups": PhaseEntry("groups:sync_until_switch", None, fails_migration=False),
    "client_switch": PhaseEntry("client_switch:run", State.AWAITING_CLIENT_SWITCH),
    "validate": PhaseEntry("validate:run", State.VALIDATING),
    "evidence": PhaseEntry("evidence:run", State.VALIDATING, leads_to=State.FINALIZED),
    "rollback": PhaseEntry("rollback:run", None, fails_migration=False, needs_journal_only=True),
}

#: Order of the phases of a migration in which no person intervenes; the command line runs them one after the other.
ORDER = (
    "plan",
    "precheck",
    "topology_copy",
    "seed",
    "tail",
    "drain_ready",
    "cutover.freeze",
    "cutover.sentinels",
    "cutover.final_drain",
    "cutover.snapshot_groups",
    "cutover.commit_groups",
    "cutover.floor_guard",
    "client_switch",
    "validate",
    "evidence",
)
