"""What every task of a migration shares: the spec, the identity of its run, the way to the core, its pointers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_provider_kafka_migration.errors import Terminal
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.params import TAKEOVER, spec_data
from airflow_provider_kafka_migration.provider.progress import ProgressSink, interval_seconds
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.record.context import PhaseResult


log = logging.getLogger(__name__)

SpecSource = Mapping[str, Any] | MigrationSpec | None


def plain_spec(spec: SpecSource) -> dict[str, Any] | None:
    """The spec as JSON-able data with sorted keys, so that a DAG serialises the same each time."""
    if spec is None:
        return None
    if isinstance(spec, MigrationSpec):
        return _sorted(spec.model_dump(mode="json", exclude_unset=True))
    return _sorted(dict(spec))


def _sorted(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _sorted_value(value[key]) for key in sorted(value)}


def _sorted_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _sorted(value)
    return [_sorted_value(item) for item in value] if isinstance(value, list | tuple) else value


def run_spec(spec: Mapping[str, Any] | None, context: Context, *, recorded: bool = False) -> MigrationSpec:
    """The task's own spec, or the one in the run's Params.

    :param recorded: as in :func:`parse_spec`, for what frees producers, waits or notifies: it must not fail on a run's
        spec that an earlier version has accepted.
    :raises SpecInvalid: with every mistake.
    """
    return parse_spec(spec if spec is not None else spec_data(context["params"]), recorded=recorded)


def run_owner(context: Context) -> str:
    """Who holds the migration: this DAG run. Clearing tasks of the same run is the same owner."""
    task_instance = context["ti"]
    return f"{task_instance.dag_id}/{task_instance.run_id}"


class MigrationTask:
    """Mixin of all operators and sensors of a migration. It decides nothing: :class:`Migration` does.

    :param spec: the migration; None takes it from the run's Params (the generic DAG).
    :param takeover: take the migration over from another owner; True in the run's Params has the same effect.
    """

    #: Name of the phase in :meth:`Migration.run`.
    phase: ClassVar[str] = ""

    #: As ``recorded`` of :func:`run_spec`. A new migration meets the strict tasks ``plan`` and ``precheck`` first.
    takes_recorded: ClassVar[bool] = False

    #: Arguments that the class or the DAG sets itself: given in ``task_args`` they would be lost, or break the DAG.
    fixed_arguments: ClassVar[frozenset[str]] = frozenset({"dag", "spec", "task_group", "task_id"})

    #: Airflow shows these fields, and makes a new version of the DAG when one changes. The spec is never rendered.
    template_fields: Sequence[str] = ("spec",)

    operator_extra_links: Collection[BaseOperatorLink]

    spec: dict[str, Any] | None
    takeover: bool

    #: Where the migration's documents lie, by location; for links and pointers. Set when the spec is known.
    storage_uris: Mapping[str, str] = {}

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Render all template fields but the spec.

        The spec is data, the same for the command line and for Airflow: a notifier's ``{{ migration_message }}`` is
        there only when the notifier runs, and a topic pattern may hold braces.
        """
        spec, self.spec = self.spec, None
        try:
            super().render_template_fields(context, jinja_env)  # type: ignore[misc]
        finally:
            self.spec = spec

    def migration_spec(self, context: Context) -> MigrationSpec:
        """The spec of this run, parsed.

        :raises SpecInvalid: with every mistake.
        """
        return run_spec(self.spec, context, recorded=self.takes_recorded)

    def told_spec(self, context: Context) -> MigrationSpec:
        """The spec for those who only tell of this run, so also one that the task itself refuses.

        :raises SpecInvalid: with every mistake but secrets in plain text.
        """
        return run_spec(self.spec, context, recorded=True)

    def pre_execute(self, context: Context) -> None:
        """Called by Airflow before each part of an attempt, also after a deferral."""
        super().pre_execute(context)  # type: ignore[misc]
        self.show_links(context)

    def show_links(self, context: Context) -> None:
        """Give Airflow the links now. It asks for them itself only when an attempt has ended, days later for a tail."""
        try:
            self._locate(self.migration_spec(context))
            for link in self.operator_extra_links:
                url = link.get_link(self, ti_key=None)  # type: ignore[arg-type]
                if url:
                    context["ti"].xcom_push(key=link.xcom_key, value=url)
        except Exception as error:  # the task itself reports mistakes in the spec; a link must not fail it
            log.info("The links cannot be shown yet: %s", type(error).__name__)

    def _locate(self, spec: MigrationSpec) -> None:
        self.storage_uris = {
            "journal": f"{spec.storage.journal}/{spec.migration_id}",
            "evidence": f"{spec.storage.evidence_location}/{spec.migration_id}",
        }

    @contextmanager
    def open_migration(self, context: Context, **options: Any) -> Iterator[Migration]:
        """The core of the migration, with Airflow's connections and this run as its owner."""
        from airflow_provider_kafka_migration.migration import Migration

        spec = self.migration_spec(context)
        self._locate(spec)
        with Migration.open(
            spec,
            run_owner(context),
            airflow_resolver(),
            actor=context["ti"].task_id,
            takeover=bool(self.takeover or (context.get("params") or {}).get(TAKEOVER)),
            progress=self.progress_sink(context),
            **options,
        ) as migration:
            yield migration

    def progress_sink(self, context: Context) -> ProgressSink:
        """Shows progress in the task's log and in its state store."""
        return ProgressSink(context.get("task_state_store"), log.info, every_seconds=interval_seconds())

    def pointers(self, migration: Migration, result: PhaseResult) -> dict[str, Any]:
        """What goes into XCom: where the facts are, and never the facts themselves."""
        pointers: dict[str, Any] = {
            "migration_id": migration.spec.migration_id,
            "phase": self.phase,
            "journal": self.storage_uris["journal"],
            "summary": result.summary,
            "already_done": result.already_done,
        }
        pointers.update({key: result.details[key] for key in ("digest", "uri") if key in result.details})
        return pointers


# -- retry ------------------------------------------------------------------------------------------------------------
#
# Which failures are worth another attempt.


def migration_retry_policy() -> ExceptionRetryPolicy:
    """Terminal errors fail at once, whatever ``retries`` says; all others follow the task's own settings."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=f"{Terminal.__module__}.{Terminal.__qualname__}",
                action=RetryAction.FAIL,
                reason="a person has to change something first; the error says what",
            )
        ]
    )
