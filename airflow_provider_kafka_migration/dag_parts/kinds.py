"""The arguments of DAGs, and the DAGs of a folder, the same for migrations and for mirrors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_kafka_migration.dag_parts.files import ReadSpecs, load_dags
from airflow_provider_kafka_migration.dag_parts.tasks import default_args
from airflow_provider_kafka_migration.notifications.migration import RunNotifier

#: Generic DAGs: each run is another migration or mirror. The journal's claim separates two runs with the same id.
#: Deferred runs cost nothing, and a run that has to wait for another one's end would wait for a day or for ever.
GENERIC_ACTIVE_RUNS = 256

#: A cleared task runs with the spec and the package of now, also where DAG bundles have versions (git): people change
#: the spec and clear the task. Airflow 3.1 does not know it yet.
_LATEST = {name: True for name in ("rerun_with_latest_version",) if name in inspect.signature(DAG).parameters}


def dag_args(given: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """Return the arguments of a DAG.

    :param given: the caller's; they override all others. ``tags`` are added to ours, by which people and pages find the
        DAGs of this package, ``on_failure_callback`` to ours, and ``default_args`` are merged name by name.
    :param own: those of this DAG; by default it has no schedule.
    """
    tags = sorted({*own.get("tags", ()), *(given.get("tags") or ())})
    callbacks = given.get("on_failure_callback") or []
    callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    return {
        "schedule": None,
        "catchup": False,
        **_LATEST,
        **own,
        **given,
        "tags": tags,
        "on_failure_callback": [*own.get("on_failure_callback", ()), *callbacks] or None,
        "default_args": default_args(given),
    }


@dataclass(frozen=True)
class DagKind:
    """What the DAGs of migrations, or those of mirrors, have in common.

    :param generic_id: id of the generic DAG, and the beginning of the ids of all others: ``_<migration_id>`` follows.
    :param title: name of the generic DAG for people.
    :param description: for specs without one.
    :param doc: Markdown for the page of the DAG.
    :param generic_params: makes the Params of the generic DAG, which describe a spec.
    :param run_params: makes the Params of a DAG whose spec is known.
    """

    generic_id: str
    title: str
    description: str
    doc: str
    tags: tuple[str, ...]
    generic_params: Callable[[], dict[str, Param]]
    run_params: Callable[[], dict[str, Param]]

    def dag_args(self, spec: Mapping[str, Any] | None, dag_id: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the DAG of a spec.

        :param spec: the spec as data; None: the generic DAG.
        :param dag_id: None: the id follows from the spec's.
        :param given: as in :func:`dag_args`.
        """
        name = spec["migration_id"] if spec else None
        return dag_args(
            given,
            dag_id=dag_id or (f"{self.generic_id}_{name}" if name else self.generic_id),
            dag_display_name=f"{self.title}: {name}" if name else self.title,
            description=(spec or {}).get("description") or self.description,
            doc_md=self.doc,
            max_active_runs=1 if spec else GENERIC_ACTIVE_RUNS,
            params=self.run_params() if spec else self.generic_params(),
            tags=sorted({*self.tags, *([name] if name else [])}),
            on_failure_callback=[RunNotifier(spec=spec)],
        )

    def load(
        self,
        namespace: MutableMapping[str, Any],
        folder: str | Path,
        read: ReadSpecs,
        build: Callable[..., DAG],
        **build_args: Any,
    ) -> None:
        """Put the DAGs of all files of a folder into a DAG file's ``globals()``, as :func:`load_dags` does.

        :param build: called with a spec, its ``dag_id`` and ``build_args``.
        """
        load_dags(
            namespace,
            folder,
            prefix=self.generic_id,
            read=read,
            build=lambda spec, dag_id: build(spec, dag_id=dag_id, **build_args),
        )
