"""Deadline alerts of Airflow: DAGs whose runs last as long as a freeze, or as long as a lag is above its limit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, AssetWatcher, get_parsing_context
from airflow.sdk.definitions.deadline import DeadlineReference

from airflow_provider_kafka_migration.dag import migrations_in
from airflow_provider_kafka_migration.dag_parts import kinds
from airflow_provider_kafka_migration.dag_parts.files import spec_files
from airflow_provider_kafka_migration.deadline_watch import LagLimit, Watched
from airflow_provider_kafka_migration.mirror_dag import mirrors_in
from airflow_provider_kafka_migration.notifications.deadline import TASK_ID, notify_missed
from airflow_provider_kafka_migration.provider.compat import async_callback, deadline_alert
from airflow_provider_kafka_migration.provider.task import plain_spec
from airflow_provider_kafka_migration.sensors.deadline import KafkaMigrationDeadlineSensor
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.triggers.deadline import DeadlineStartTrigger

if TYPE_CHECKING:
    from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback

    #: Given to ``DeadlineAlert``: ``AsyncCallback`` runs in the triggerer, ``SyncCallback`` in an executor.
    Callback = AsyncCallback | SyncCallback

TAGS = ("kafka", "kafka-watch")

_FREEZE_POLL_SECONDS = 5.0
_LAG_POLL_SECONDS = 10.0

_NO_LIMIT = "the watch on a lag needs lag_limit or lag_limit_records"

_DOC = """\
One run lasts {lasts}. Airflow starts it within seconds of the beginning, and calls the callback of
the deadline if the run has not succeeded by then. **Nothing to do here**: no run changes anything, and none needs a
slot. A run that lasts is not an error of its own: look at {look_at}.

While this DAG is paused, nothing is watched. A journal that cannot be read, or a copy that nobody hears from, is
unknown; unknown counts as not over. If a run must end all the same, mark it as failed: its deadline is still called.
"""
_FREEZE_DOC = _DOC.format(
    lasts="as long as the producers of this migration are frozen",
    look_at="the red or running task of the cutover, and at `kafka-migration status`",
)
_LAG_DOC = _DOC.format(
    lasts="as long as a partition lags by more than the limit",
    look_at="the task `tail` or `mirror`, and at its metrics",
)


def build_freeze_watch_dag(
    spec: MigrationSpec | Mapping[str, Any],
    freeze_within: timedelta,
    *,
    callback: Callback | None = None,
    dag_id: str | None = None,
    poll_seconds: float = _FREEZE_POLL_SECONDS,
    **dag_args: Any,
) -> DAG:
    """Build the DAG that watches the freezes of a migration.

    Its deadline is missed if ``freeze_within`` passes from the beginning of ``cutover.freeze`` to
    READY_FOR_CLIENT_SWITCH, to the lift, or to the rollback. It uses no connection, variable or network.

    :param spec: a spec of a migration.
    :param callback: called when the deadline is missed; default: the notifier of the spec.
    :param dag_id: default ``kafka_watch_freeze_<migration_id>``.
    :param poll_seconds: time between two reads of the journal.
    :param dag_args: arguments of ``DAG``; they override the defaults here.
    :raises SpecInvalid: with every mistake of the spec, or because it is one of a mirror.
    :raises ValueError: the interval is not positive, or neither a callback nor the spec's notifier is given.
    """
    parsed = _parsed(spec).check_kind("migration")
    return _build("freeze", parsed, freeze_within, LagLimit(), callback, dag_id, poll_seconds, dag_args)


def build_lag_watch_dag(
    spec: MigrationSpec | Mapping[str, Any],
    lag_within: timedelta,
    *,
    lag_limit: timedelta | None = None,
    lag_limit_records: int | None = None,
    callback: Callback | None = None,
    dag_id: str | None = None,
    poll_seconds: float = _LAG_POLL_SECONDS,
    **dag_args: Any,
) -> DAG:
    """Build the DAG that watches the lag of a mirror, or of a migration's tail.

    Its deadline is missed if a partition lags by more than a limit for longer than ``lag_within``, or if that is not
    known for as long. It uses no connection, variable or network.

    :param spec: a spec of a mirror or of a migration.
    :param lag_limit: largest lag of a partition in time.
    :param lag_limit_records: largest lag of a partition in records. At least one of both limits is needed.
    :param callback: called when the deadline is missed; default: the notifier of the spec.
    :param dag_id: default ``kafka_watch_lag_<migration_id>``.
    :param poll_seconds: time between two reads of journal and progress.
    :param dag_args: arguments of ``DAG``; they override the defaults here.
    :raises SpecInvalid: with every mistake of the spec.
    :raises ValueError: no limit, an interval that is not positive, or neither a callback nor the spec's notifier.
    """
    limit = LagLimit(None if lag_limit is None else lag_limit.total_seconds(), lag_limit_records)
    if limit == LagLimit():
        raise ValueError(_NO_LIMIT)
    return _build("lag", _parsed(spec), lag_within, limit, callback, dag_id, poll_seconds, dag_args)


def _parsed(spec: MigrationSpec | Mapping[str, Any]) -> MigrationSpec:
    return spec if isinstance(spec, MigrationSpec) else parse_spec(spec)


def _build(
    watched: Watched,
    spec: MigrationSpec,
    within: timedelta,
    limit: LagLimit,
    callback: Callback | None,
    dag_id: str | None,
    poll_seconds: float,
    given: Mapping[str, Any],
) -> DAG:
    if within <= timedelta(0):
        raise ValueError(f"{watched}_within has to be positive, not {within}")
    dag_id = dag_id or _dag_id(watched, spec)
    arguments: dict[str, Any] = {
        "spec": plain_spec(spec) or {},
        "watched": watched,
        "lag_limit_seconds": limit.seconds,
        "lag_limit_records": limit.records,
        "poll_seconds": poll_seconds,
    }
    # The asset's only purpose is its trigger, which runs while the DAG is not paused, and creates runs of it.
    start = Asset(name=dag_id, watchers=[AssetWatcher(name="begins", trigger=DeadlineStartTrigger(**arguments))])
    alert = deadline_alert(
        f"{watched}_within",
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=within,
        callback=callback or _own_callback(watched, spec, within, limit),
    )
    dag_arguments = kinds.dag_args(
        given,
        dag_id=dag_id,
        dag_display_name=f"Kafka {spec.kind}: {watched} watch: {spec.migration_id}",
        description=f"Alerts when the {watched} of {spec.migration_id} lasts longer than {within}",
        doc_md=_FREEZE_DOC if watched == "freeze" else _LAG_DOC,
        schedule=[start],
        deadline=[alert],
        # A restarted triggerer fires again for what still goes on: that must not start a second clock.
        max_active_runs=1,
        tags=sorted({*TAGS, spec.migration_id}),
    )
    with DAG(**dag_arguments) as dag:
        KafkaMigrationDeadlineSensor(task_id=TASK_ID, doc_md=dag_arguments["doc_md"], **arguments)
    return dag


def _dag_id(watched: Watched, spec: MigrationSpec) -> str:
    return f"kafka_watch_{watched}_{spec.migration_id}"


def _own_callback(watched: Watched, spec: MigrationSpec, within: timedelta, limit: LagLimit) -> AsyncCallback:
    if spec.notifications.notifier is None:
        raise ValueError(
            f"{spec.migration_id}: nobody would hear of a missed deadline: give a callback, or notifications.notifier "
            "in the spec"
        )
    return async_callback(
        notify_missed,
        {
            "spec": plain_spec(spec) or {},
            "watched": watched,
            "within_seconds": within.total_seconds(),
            "limit": str(limit),
        },
    )


def load_watch_dags(
    namespace: MutableMapping[str, Any],
    *folders: str | Path,
    freeze_within: timedelta | None = None,
    lag_within: timedelta | None = None,
    lag_limit: timedelta | None = None,
    lag_limit_records: int | None = None,
    callback: Callback | None = None,
    **dag_args: Any,
) -> None:
    """Put the watch DAGs of all migrations and flows in folders of YAML files into a DAG file's ``globals()``.

    Without ``freeze_within`` no freeze is watched, without ``lag_within`` no lag; mirrors freeze nobody. A file with
    mistakes is a warning here, and an import error where its own DAG is made. A spec without a notifier is a warning,
    too, if no callback is given.

    :raises ValueError: ``lag_within`` without a limit of the lag.
    """
    if lag_within is not None and lag_limit is None and lag_limit_records is None:
        raise ValueError(_NO_LIMIT)
    builders: dict[Watched, partial[DAG]] = {}
    if freeze_within is not None:
        builders["freeze"] = partial(build_freeze_watch_dag, freeze_within=freeze_within)
    if lag_within is not None:
        limits = {"lag_limit": lag_limit, "lag_limit_records": lag_limit_records}
        builders["lag"] = partial(build_lag_watch_dag, lag_within=lag_within, **limits)  # type: ignore[arg-type]
    wanted = get_parsing_context().dag_id
    for file, spec in _specs(folders):
        for watched, build in builders.items():
            dag_id = _dag_id(watched, spec)
            if wanted not in (None, dag_id) or (watched == "freeze" and spec.kind != "migration"):
                continue
            try:
                namespace[dag_id] = build(spec, callback=callback, **dag_args)
            except ValueError as error:
                warnings.warn(f"{file}: its {watched} is not watched: {error}", stacklevel=2)


def _specs(folders: tuple[str | Path, ...]) -> Iterator[tuple[Path, MigrationSpec]]:
    """Yield the specs without mistakes, with their files."""
    for file in (file for folder in folders for file in spec_files(folder)):
        for read in (migrations_in, mirrors_in):
            try:
                for found in read(file):
                    if isinstance(found, Exception):
                        raise found
                    yield file, found
            except Exception as error:
                warnings.warn(f"{file}: {error}", stacklevel=3)
