"""The common base of all tasks: the spec, the identity of the run, access to the core, the pointers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_kafka_migration.links.storage import JournalLink, is_on_aws
from airflow_provider_kafka_migration.provider.compat import TerminalFails, warn_of_untried
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.provider.installation import installation_id
from airflow_provider_kafka_migration.provider.params import (
    TAKEOVER,
    WAY_BACK,
    Kind,
    spec_data,
    way_back_run_spec,
)
from airflow_provider_kafka_migration.provider.progress import (
    ProgressSink,
    as_callbacks,
    call_all,
    interval_seconds,
)
from airflow_provider_kafka_migration.provider.run_chain import first_run
from airflow_provider_kafka_migration.record.announcements import Announcements
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec, with_mirror_defaults

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.record.context import PhaseResult


log = logging.getLogger(__name__)

SpecSource = Mapping[str, Any] | MigrationSpec | None


def plain_spec(spec: SpecSource) -> dict[str, Any] | None:
    """Return the spec as JSON data with sorted keys, so that a DAG is serialized the same way each time."""
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


def run_spec(
    spec: Mapping[str, Any] | None, context: Context, *, recorded: bool = False, kind: Kind | None = "migration"
) -> MigrationSpec:
    """Return the task's own spec, or the one in the run's Params.

    :param kind: what the task is for; None: for both, if it has a spec of its own.
    :param recorded: as in :func:`parse_spec`, for tasks that unfreeze producers, wait or notify: they must not fail on
        a spec that an earlier version accepted.
    :raises SpecInvalid: with every mistake, or because it is a spec of the other kind.
    """
    if spec is None and context["params"].get(WAY_BACK):
        return way_back_run_spec(context["params"])
    given = with_mirror_defaults(spec if spec is not None else spec_data(context["params"], kind))
    found = parse_spec(given, recorded=recorded)
    return found if kind is None else found.check_kind(kind)


def run_owner(context: Context) -> str:
    """Return the owner of the migration: this DAG run. Cleared tasks of the same run have the same owner.

    So have all runs of one chain (:mod:`~.provider.run_chain`); it is named after the first one.

    Another Airflow may have a run of the same id: :func:`~.installation.installation_id` tells them apart.
    """
    task_instance = context["ti"]
    return f"{task_instance.dag_id}/{first_run(task_instance.run_id)}"


#: Tasks that copy: other work goes on beside the copy.
_COPIES = ("seed", "tail", "mirror")


class MigrationTask(TerminalFails):
    """Mixin for all operators and sensors of a migration. It makes no decisions: :class:`Migration` does.

    :param spec: the migration; None takes it from the run's Params (the generic DAG).
    :param takeover: take the migration over from another owner, once per run; True in the run's Params has the same
        effect.
    :param on_freeze: called with the task's context when producers are stopped, or a freeze has ended.
    """

    #: Id of the phase in the table of phases.
    phase: str = ""

    #: The kind of spec that the task is for.
    spec_kind: ClassVar[Kind] = "migration"

    #: Like ``recorded`` of :func:`run_spec`. A new migration runs the strict tasks ``plan`` and ``precheck`` first.
    takes_recorded: ClassVar[bool] = False

    #: Arguments that the class or the DAG sets itself: in ``task_args`` they would be lost, or break the DAG.
    fixed_arguments: ClassVar[frozenset[str]] = frozenset({"dag", "spec", "task_group", "task_id"})

    #: Airflow shows these fields, and creates a new version of the DAG when one changes. The spec is never rendered.
    template_fields: Collection[str] = ("spec",)

    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(),)

    spec: dict[str, Any] | None
    takeover: bool

    #: URIs of the migration's documents by location, for links and pointers. Set once the spec is known.
    storage_uris: Mapping[str, str] = {}
    #: Whether the documents are on AWS, so that its console shows them.
    stores_on_aws = False

    @property
    def group_prefix(self) -> str:
        """What stands before the ids of all tasks of this migration, for instance ``orders.``; empty outside a group.

        The task lies as deep in groups of its own migration as the id of its phase says.
        """
        task_id: str = self.task_id  # type: ignore[attr-defined]
        outer = task_id.split(".")[: -(self.phase.count(".") + 1)]
        return "".join(f"{name}." for name in outer)

    def beside(self, name: str) -> str:
        """Return the full id of another task of the same migration, for instance ``cutover.freeze_limit``."""
        return f"{self.group_prefix}{name}"

    def __init__(self, **kwargs: Any) -> None:
        # A copy or a wait may take weeks. Said here, it beats ``[core] default_task_execution_timeout`` and a site's
        # ``default_args``; whoever wants a limit for one task gives it one.
        kwargs.setdefault("execution_timeout", None)
        self.on_freeze = as_callbacks(kwargs.pop("on_freeze", None))
        super().__init__(**kwargs)

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Render all template fields except the spec.

        The spec is data, the same for the command line and for Airflow: a notifier's ``{{ migration_message }}`` exists
        only when the notifier runs, and a topic pattern may contain braces.
        """
        spec, self.spec = self.spec, None
        try:
            super().render_template_fields(context, jinja_env)  # type: ignore[misc]
        finally:
            self.spec = spec

    def migration_spec(self, context: Context) -> MigrationSpec:
        """Return the parsed spec of this run.

        :raises SpecInvalid: with every mistake.
        """
        return run_spec(self.spec, context, recorded=self.takes_recorded, kind=self.spec_kind)

    def told_spec(self, context: Context) -> MigrationSpec:
        """Return the spec for code that only reports on this run, even one that the task itself refuses.

        :raises SpecInvalid: with every mistake except secrets in plain text.
        """
        return run_spec(self.spec, context, recorded=True, kind=self.spec_kind)

    def pre_execute(self, context: Context) -> None:
        """Show the links. Airflow calls this before each part of an attempt, also after a deferral."""
        super().pre_execute(context)  # type: ignore[misc]
        warn_of_untried()
        if self.group_prefix:
            log.info("Messages name the tasks of this group without its id: tail stands for %s", self.beside("tail"))
        self.show_links(context)

    def show_links(self, context: Context) -> None:
        """Push the links to Airflow now: it asks for them only at the end of an attempt, days later for a tail."""
        try:
            spec = self.migration_spec(context)
            self._locate(spec)
            reference = spec.storage.conn_id
            self.stores_on_aws = is_on_aws(airflow_resolver().mapping(reference) if reference else {})
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
        """Open the core of the migration, with Airflow's connections and this run as its owner."""
        from airflow_provider_kafka_migration.migration import Migration

        spec = self.migration_spec(context)
        self._locate(spec)
        with Migration.open(
            spec,
            run_owner(context),
            airflow_resolver(),
            actor=context["ti"].task_id,
            # A run keeps its Params: they are one decision, about the owner that it has met at its start.
            takeover="once" if self.takeover or (context.get("params") or {}).get(TAKEOVER) else False,
            installation=installation_id(),
            progress=self.progress_sink(context),
            announcements=Announcements(lambda text: call_all(self.on_freeze, context, text)),
            **options,
        ) as migration:
            yield migration

    def progress_sink(self, context: Context) -> ProgressSink:
        """Return a sink that shows progress in the task's log and in its state store."""
        store, copies = context.get("task_state_store"), self.phase in _COPIES
        return ProgressSink(store, log.info, every_seconds=interval_seconds(), copies=copies)

    def pointers(self, migration: Migration, result: PhaseResult) -> dict[str, Any]:
        """Return what goes into XCom: the location of the facts, never the facts themselves."""
        pointers: dict[str, Any] = {
            "migration_id": migration.spec.migration_id,
            "phase": self.phase,
            "journal": self.storage_uris["journal"],
            "summary": result.summary,
            "already_done": result.already_done,
        }
        pointers.update({key: result.details[key] for key in ("digest", "uri") if key in result.details})
        return pointers
