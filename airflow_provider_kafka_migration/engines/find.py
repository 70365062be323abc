"""Finds Spark engines by name: those of this package, and those that other packages offer as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from airflow_provider_kafka_migration.engines.base import ENTRY_POINT_GROUP, SparkEngine
from airflow_provider_kafka_migration.errors import EngineUnknown, MigrationError, SpecInvalid, Where

_PACKAGE = "airflow_provider_kafka_migration.engines"

#: The engines of this package: ``module:class`` by name. They are imported only when somebody asks for them.
BUILT_IN: Mapping[str, str] = {
    "submit": f"{_PACKAGE}.submit:SubmitEngine",
    "emr_serverless": f"{_PACKAGE}.emr_serverless:EmrServerlessEngine",
    "emr_containers": f"{_PACKAGE}.emr_containers:EmrContainersEngine",
    "dataproc": f"{_PACKAGE}.dataproc:DataprocEngine",
    "databricks": f"{_PACKAGE}.databricks:DatabricksEngine",
    "kubernetes": f"{_PACKAGE}.kubernetes:KubernetesEngine",
}

#: The engine of a spec that names none.
DEFAULT = "submit"


def engine_names() -> list[str]:
    """Return the names of all engines that are installed, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in _entry_points())})


def engine_class(name: str) -> type[SparkEngine]:
    """Return the class of an engine. An engine of this package cannot be replaced by another package's.

    :raises EngineUnknown: no engine has this name, or its package cannot be imported.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[SparkEngine] = getattr(import_module(module), attribute)
        return found
    for point in _entry_points():
        if point.name == name:
            return _load(point)
    raise EngineUnknown(
        f"there is no Spark engine {name!r}; installed are {', '.join(engine_names())}",
        where=Where(path="spark.engine"),
        next_step=f"correct spark.engine, or install the package that offers it (entry points {ENTRY_POINT_GROUP})",
    )


def make_engine(name: str, arguments: Mapping[str, Any]) -> SparkEngine:
    """Create an engine with ``spark.engine_args``.

    :raises EngineUnknown: no engine has this name.
    :raises SpecInvalid: an argument is unknown, missing or malformed.
    """
    kind = engine_class(name)
    try:
        return kind(**dict(arguments))
    except MigrationError:
        raise
    except (TypeError, ValueError) as error:
        # An engine of this package checks its arguments itself; the text of another one's error may quote a value.
        raise SpecInvalid(
            f"the engine {name} does not take these arguments: {', '.join(sorted(arguments)) or 'none'}"
            f" ({type(error).__name__})",
            where=Where(path="spark.engine_args"),
            next_step="correct spark.engine_args; docs/spark.md says where the arguments of each engine are described",
        ) from error


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)


def _load(point: EntryPoint) -> type[SparkEngine]:
    try:
        found: type[SparkEngine] = point.load()
    except (ImportError, AttributeError) as error:
        raise EngineUnknown(
            f"the Spark engine {point.name!r} cannot be imported from {point.value}: {error}",
            where=Where(path="spark.engine"),
            next_step="install the package that offers it with all that it needs; then clear the task",
        ) from error
    return found
