"""Spark's own Kafka source, which pip's pyspark lacks: fetched once, checked, then used offline.

A set is named by Spark's version (``4.2.0``) and lives in ``$XDG_CACHE_HOME/kafka-migration/spark-kafka/VERSION``.
``python -m harness.jars.spark_kafka_jars [VERSION...]`` fetches and checks; ``--record`` writes the list of a new set.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.jars import maven
from harness.jars.jar_sets import JarSets
from harness.jars.maven import JarsError

_SETS = JarSets(
    "Spark's Kafka source",
    maven.cache_folder("spark-kafka"),
    Path(__file__).parents[1] / "checksums" / "spark_kafka",
    lambda version, work: _fetch(version, work),
    "python -m harness.jars.spark_kafka_jars --record",
)

#: Not its dependencies on Spark, Scala and Hadoop: pyspark has those.
_MODULES = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13")
#: Versions of its other dependencies, by version of Spark: (kafka-clients, commons-pool2).
_DEPENDENCIES = {"4.2.0": ("3.9.1", "2.12.1")}


def pyspark_version() -> str:
    """The version of the installed pyspark."""
    return importlib.metadata.version("pyspark")


def jars(version: str = "") -> list[Path]:
    """The jars for a version of Spark (default: the installed one), ascending by name.

    :raises JarsError: unknown version, no network, or fetched jars that differ from the committed list.
    """
    return sorted(_SETS.ensure(version or pyspark_version()).glob("*.jar"))


def _fetch(version: str, work: Path) -> Path:
    if version not in _DEPENDENCIES:
        raise JarsError(f"the dependencies of Spark's Kafka source {version} are not listed in {__file__}")
    kafka, pool = _DEPENDENCIES[version]
    wanted = [("org.apache.spark", module, version) for module in _MODULES]
    wanted += [("org.apache.kafka", "kafka-clients", kafka), ("org.apache.commons", "commons-pool2", pool)]
    dependencies = "".join(
        f'<dependency org="{org}" name="{module}" rev="{revision}" conf="default->master"/>'
        for org, module, revision in wanted
    )
    return maven.retrieve(f"Spark's Kafka source {version}", dependencies, ("jar",), work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.jars.spark_kafka_jars", description=__doc__.split("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="default: that of the installed pyspark")
    parser.add_argument("--record", action="store_true", help="fetch again and write the checksum lists")
    options = parser.parse_args(arguments)
    try:
        for version in options.versions or [pyspark_version()]:
            folder = _SETS.record(version) if options.record else _SETS.ensure(version)
            print(f"Spark's Kafka source {version}: in {folder}")
    except JarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
