"""The 20-line skin around one phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_provider_kafka_migration.links.storage import JournalLink
from airflow_provider_kafka_migration.provider.retry import migration_retry_policy
from airflow_provider_kafka_migration.provider.task import MigrationTask, SpecSource, plain_spec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_kafka_migration.migration import Migration


class MigrationOperator(MigrationTask, BaseOperator):
    """Runs one phase of a migration.

    The phase reads the journal first: what was done before is verified and answered at once, so every task may be
    cleared at any time. Terminal errors fail without a retry, whatever ``retries`` says.

    :param spec: the migration (a mapping as in the YAML file, or a ``MigrationSpec``). None takes it from the Params
        of the run (the generic DAG).
    :param takeover: take the migration over from another owner.
    :param options: more arguments of the phase.
    """

    template_fields: Sequence[str] = ("spec",)
    operator_extra_links: Collection[BaseOperatorLink] = (JournalLink(),)

    def __init__(
        self,
        *,
        spec: SpecSource = None,
        takeover: bool = False,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", migration_retry_policy())
        super().__init__(**kwargs)
        self.spec = plain_spec(spec)
        self.takeover = takeover
        self.options = dict(options or {})

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the phase; XCom gets pointers only."""
        with self.open_migration(context) as migration:
            result = migration.run(self.phase, **self.options)
            self.log.info("%s%s", "already done: " if result.already_done else "", result.summary)
            self.announce(context, migration)
            return self.pointers(migration, result)

    def announce(self, context: Context, migration: Migration) -> None:
        """Tell others that the phase is done; by default nobody."""
