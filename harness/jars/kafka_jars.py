"""Kafka's own jars, fetched once with the Ivy that pyspark contains, then used offline.

A *set* is named ``VERSION`` (broker and command line tools, e.g. ``3.9.1``), ``VERSION-connect`` (Connect runtime and
MirrorMaker 2, e.g. ``4.1.1-connect``), ``VERSION-mirror-client`` (what applications use to read MirrorMaker 2's state,
e.g. ``4.3.1-mirror-client``) or ``VERSION-tiered`` (the jars with which a broker of that version keeps
segments in Kafka's own ``LocalTieredStorage``, e.g. ``3.9.1-tiered``). It lives in
``$XDG_CACHE_HOME/kafka-migration/kafka/SET`` (``~/.cache`` without that variable) and holds exactly the jars of
``harness/checksums/SET.sha256``, a committed file of ``sha256sum`` format.

Sets enter the cache as a whole: they are fetched and checked in a separate folder, then renamed, under a file lock. A
set with a missing, unknown or changed file is deleted and fetched again.

``python -m harness.jars.kafka_jars [SET...]`` fetches and checks; ``--record`` writes the checksum list of a new set.
Environment: ``KAFKA_MIGRATION_MAVEN_REPOSITORY`` names a Maven repository to use instead of Maven Central; Java gets a
proxy from ``JAVA_TOOL_OPTIONS`` as usual.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.jars import maven
from harness.jars.jar_sets import JarSets
from harness.jars.maven import JarsError, java

__all__ = [
    "DEFAULT_SETS",
    "NEWEST",
    "JarsError",
    "cache_folder",
    "classpath",
    "dump_log_class",
    "ensure",
    "has_class",
    "java",
    "record",
    "recorded_checksums",
]

#: The newest version with which the tests run.
NEWEST = "4.4.0"
#: The sets of tests and the demo: the source in ZooKeeper mode, the target in KRaft mode, and the newest for both.
DEFAULT_SETS = ("3.9.1", "4.1.1", NEWEST)

_CHECKSUMS = Path(__file__).parents[1] / "checksums"
_SET_NAME = re.compile(r"(?P<version>\d+\.\d+\.\d+)(?P<kind>-connect|-mirror-client|-tiered)?")

# (organisation, name, configuration): `master,runtime` is the artifact with its dependencies, `master` without them.
_BROKER_MODULES = (
    ("org.apache.kafka", "kafka_2.13", "master,runtime"),
    # The tools' other dependencies are Connect's web server and a second SLF4J binding: the tools work without them.
    ("org.apache.kafka", "kafka-tools", "master"),
)
_CONNECT_MODULES = (
    ("org.apache.kafka", "connect-mirror", "master,runtime"),
    ("org.apache.kafka", "connect-runtime", "master,runtime"),
)
_MIRROR_CLIENT_MODULES = (("org.apache.kafka", "connect-mirror-client", "master,runtime"),)
#: The artifacts with the classifier `test`: the storage manager itself, and its dependencies from the clients' tests.
_TIERED_MODULES = (
    ("org.apache.kafka", "kafka-storage", "master"),
    ("org.apache.kafka", "kafka-clients", "master"),
)
_MODULES = {None: _BROKER_MODULES, "-connect": _CONNECT_MODULES, "-mirror-client": _MIRROR_CLIENT_MODULES}
_FIXED_MODULES = (
    ("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)


def cache_folder() -> Path:
    """The parent folder of all sets."""
    return maven.cache_folder("kafka")


def recorded_checksums(name: str) -> dict[str, str]:
    """The committed list of a set: jar name -> SHA-256 in hex.

    :raises JarsError: there is no list for this set, or the name is not that of a set.
    """
    return _sets(name).recorded_checksums(name)


def ensure(name: str) -> Path:
    """Folder of a set, complete and checked; fetches a missing set. See :meth:`harness.jars.jar_sets.JarSets.ensure`.

    :param name: ``VERSION``, ``VERSION-connect``, ``VERSION-mirror-client`` or ``VERSION-tiered``.
    :raises JarsError: unknown set, no network, or fetched jars that differ from the committed list.
    """
    return _sets(name).ensure(name)


def record(name: str) -> Path:
    """Fetch a set and write its checksum list next to the others. For maintainers who add a version."""
    return _sets(name).record(name)


def classpath(name: str) -> str:
    """Class path of a set for ``java -cp``."""
    return f"{ensure(name)}/*"


def has_class(name: str, jar: str, wanted: str) -> bool:
    """Return whether a jar of a set, for instance ``kafka-clients``, has a class. Kafka 4.4 has moved some."""
    with zipfile.ZipFile(ensure(name) / f"{jar}-{name}.jar") as file:
        return f"{wanted.replace('.', '/')}.class" in file.namelist()


def dump_log_class(name: str) -> str:
    """The main class of DumpLogSegments, which Kafka 4.4 has in another package and another jar than 4.2."""
    moved = "org.apache.kafka.tools.DumpLogSegments"
    return moved if has_class(name, "kafka-tools", moved) else "kafka.tools.DumpLogSegments"


def _sets(name: str) -> JarSets:
    _parse(name)
    return JarSets("Kafka", cache_folder(), _CHECKSUMS, _fetch, "python -m harness.jars.kafka_jars --record")


def _parse(name: str) -> re.Match[str]:
    match = _SET_NAME.fullmatch(name)
    if match is None:
        raise JarsError(
            f"{name!r} is no set of Kafka jars: write e.g. 4.1.1, 4.1.1-connect, 4.1.1-mirror-client or 4.1.1-tiered"
        )
    return match


def _dependencies(match: re.Match[str]) -> Iterator[str]:
    """The dependency elements of a set."""
    version = match["version"]
    if match["kind"] == "-tiered":
        for org, module, conf in _TIERED_MODULES:
            yield (
                f'<dependency org="{org}" name="{module}" rev="{version}" conf="default->{conf}">'
                f'<artifact name="{module}" type="jar" ext="jar" m:classifier="test"/></dependency>'
            )
        return
    kafka = _MODULES[match["kind"]]
    wanted = [(org, module, version, conf) for org, module, conf in kafka]
    wanted += [(org, module, revision, "master") for org, module, revision in _FIXED_MODULES]
    for org, module, revision, conf in wanted:
        yield f'<dependency org="{org}" name="{module}" rev="{revision}" conf="default->{conf}"/>'


def _fetch(name: str, work: Path) -> Path:
    """Let Ivy resolve and retrieve a set below ``work``; returns the folder with the jars."""
    # One SLF4J binding is enough; among several, the one in use would be random.
    excludes = "".join(
        f'<exclude org="{org}" module="{module}"/>'
        for org, module in (("org.slf4j", "slf4j-reload4j"), ("org.apache.logging.log4j", "log4j-slf4j-impl"))
    )
    dependencies = "".join(_dependencies(_parse(name)))
    return maven.retrieve(f"the jars of Kafka {name}", dependencies + excludes, ("jar", "bundle"), work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.jars.kafka_jars", description="Fetch and check Kafka's jars."
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"e.g. 4.1.1 or 4.1.1-connect; default: {DEFAULT_SETS}")
    parser.add_argument("--record", action="store_true", help="fetch again and write the checksum lists")
    options = parser.parse_args(arguments)
    try:
        for name in options.sets or DEFAULT_SETS:
            if options.record:
                print(f"Kafka {name}: recorded in {record(name)}")
            else:
                folder = ensure(name)
                print(f"Kafka {name}: {len(recorded_checksums(name))} jars in {folder}")
    except JarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
