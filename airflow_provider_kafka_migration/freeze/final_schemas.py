"""The schemas of a cutover: one pass before producers are stopped, and the last one before the groups are committed.

The pass before the freeze costs no frozen time. It shows whether both registries answer and whether everything is on
the target, so that a freeze does not fail for that. While the tail copies the last records, ids that it asks for are
answered here as well: the tail may wait for them, and its own process may be the one that has died. The last pass comes
when the target has all records, so nothing that was registered until then is left behind.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from airflow_provider_kafka_migration.errors import FreezeFailed
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.freeze.frozen import StepTimer
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.freeze_attempt import FreezeAttempt
from airflow_provider_kafka_migration.schemas.complete import synchronize_completely
from airflow_provider_kafka_migration.schemas.id_map_document import publish_id_map, unanswered, wanted_ids
from airflow_provider_kafka_migration.schemas.open import RegistryPair, open_pair
from airflow_provider_kafka_migration.schemas.settings_left import try_to_put_back_target

if TYPE_CHECKING:
    from types import TracebackType

PHASE = "cutover"
#: Ids that copiers ask for are listed at most this often.
ASK_SECONDS = 1.0


def before_freeze(context: PhaseContext) -> None:
    """Run one complete pass, if schemas are copied between registries. No producer is stopped yet.

    :raises FreezeFailed: the schemas were never copied.
    :raises MigrationError: a registry does not answer, or not everything can be copied: a freeze could only fail.
    """
    if not context.spec.schemas.copies:
        return
    _check_copied(context)
    with open_pair(context) as pair:
        synchronize_completely(context, pair, reason="final")


def _check_copied(context: PhaseContext) -> None:
    if context.record.schemas_result() is None:
        raise FreezeFailed(
            "the spec names schema registries, but no schemas were copied",
            where=context.where(PHASE),
            next_step="clear the task schemas, or take the section schemas out of the spec again; then "
            f"{words.again(context.spec)}",
        )


class FinalSchemas:
    """Answers for the tail until it has copied everything, then the last pass. Without registries it does nothing.

    Use it as a context manager.
    """

    def __init__(self, context: PhaseContext, attempt: FreezeAttempt) -> None:
        self._context = context
        self._attempt = attempt
        self._stack = ExitStack()
        self._pair: RegistryPair | None = None
        self._asked_at = context.now()

    def __enter__(self) -> FinalSchemas:
        if self._context.spec.schemas.copies:
            _check_copied(self._context)
            self._pair = self._stack.enter_context(open_pair(self._context))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def answer(self) -> None:
        """Run another pass if copiers ask for ids that the id map does not have."""
        now = self._context.now()
        if self._pair is None or (now - self._asked_at).total_seconds() < ASK_SECONDS:
            return
        self._asked_at = now
        record = self._context.record
        publish_id_map(record)
        if unanswered(wanted_ids(record), record.schema_id_map()):
            synchronize_completely(self._context, self._pair, reason="final")

    def finish(self) -> None:
        """Run the last pass, keep the id map next to the offset map, and journal the step."""
        if self._pair is None:
            return
        record = self._context.record
        timer = StepTimer.start(record, self._attempt, steps.FINAL_SCHEMAS)
        result = synchronize_completely(self._context, self._pair, reason="final")
        # A pass of the tail that was running when producers stopped may have changed modes since this one began.
        try_to_put_back_target(self._context)
        document = record.schema_id_map()
        assert document is not None, "the pass has written it"
        record.journal.check_holds()
        record.evidence_store.put(record.key(keys.FINAL_SCHEMA_IDS), document.canonical())
        timer.done(
            {
                "summary": f"{result.subjects} subjects with {result.versions} versions are on the target",
                "id_mode": result.id_mode,
                "subjects": result.subjects,
                "versions": result.versions,
                "registered": result.registered,
                "failed": len(result.failed),
                "conflicts": len(result.conflicts),
                "id_map": {
                    "uri": f"{record.evidence_store.uri}/{record.key(keys.FINAL_SCHEMA_IDS)}",
                    "sha256": document.digest(),
                    "ids": len(document.ids),
                },
            }
        )
