"""Kafka's own jars, fetched once with the Ivy that pyspark contains, then used offline.

A *set* is named ``VERSION`` (broker and command line tools, e.g. ``3.9.1``), ``VERSION-connect`` (Connect runtime and
MirrorMaker 2, e.g. ``4.1.1-connect``) or ``VERSION-tiered`` (the jars with which a broker of that version keeps
segments in Kafka's own ``LocalTieredStorage``, e.g. ``3.9.1-tiered``). It lives in
``$XDG_CACHE_HOME/kafka-migration/kafka/SET`` (``~/.cache`` without that variable) and holds exactly the jars of
``harness/checksums/SET.sha256``, a committed file of ``sha256sum`` format.

Sets enter the cache as a whole: they are fetched and checked in a separate folder, then renamed, under a file lock. A
set with a missing, unknown or changed file is deleted and fetched again.

``python -m harness.kafka_jars [SET...]`` fetches and checks; ``--record`` writes the checksum list of a new set.
Environment: ``KAFKA_MIGRATION_MAVEN_REPOSITORY`` names a Maven repository to use instead of Maven Central; Java gets a
proxy from ``JAVA_TOOL_OPTIONS`` as usual.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness import maven
from harness.maven import JarsError, java, locked, parse_checksums, sha256_of, workspace

__all__ = ["DEFAULT_SETS", "JarsError", "cache_folder", "classpath", "ensure", "java", "record", "recorded_checksums"]

#: The sets of tests and the demo: the source in ZooKeeper mode, the target in KRaft mode.
DEFAULT_SETS = ("3.9.1", "4.1.1")

_CHECKSUMS = Path(__file__).with_name("checksums")
_SET_NAME = re.compile(r"(?P<version>\d+\.\d+\.\d+)(?P<kind>-connect|-tiered)?")
_STAMP = "verified.json"

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
#: The artifacts with the classifier `test`: the storage manager itself, and its dependencies from the clients' tests.
_TIERED_MODULES = (
    ("org.apache.kafka", "kafka-storage", "master"),
    ("org.apache.kafka", "kafka-clients", "master"),
)
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
    _parse(name)
    path = _CHECKSUMS / f"{name}.sha256"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in _CHECKSUMS.glob("*.sha256")))
        raise JarsError(
            f"there is no checksum list for Kafka {name} (known: {known}); "
            f"record one with `python -m harness.kafka_jars --record {name}` and commit it"
        )
    return parse_checksums(path.read_text(encoding="ascii"))


def ensure(name: str) -> Path:
    """Folder of a set, complete and checked; fetches a missing set.

    The content is hashed once; later calls compare names, sizes and modification times with the stamp of that time.

    :param name: ``VERSION``, ``VERSION-connect`` or ``VERSION-tiered``.
    :raises JarsError: unknown set, no network, or fetched jars that differ from the committed list.
    """
    checksums = recorded_checksums(name)
    folder = cache_folder() / name
    if _is_stamped(folder, checksums):
        return folder
    with locked(cache_folder(), name):
        if folder.is_dir() and (_is_stamped(folder, checksums) or _verify_and_stamp(folder, checksums) is None):
            return folder
        with workspace(cache_folder()) as work:
            fetched = _fetch(name, work)
            wrong = _verify_and_stamp(fetched, checksums)
            if wrong is not None:
                raise JarsError(
                    f"the jars fetched for Kafka {name} are not the recorded ones: {wrong}; "
                    "check the repository they came from before you record a new list"
                )
            _replace(folder, fetched, work)
    return folder


def record(name: str) -> Path:
    """Fetch a set and write its checksum list next to the others. For maintainers who add a version."""
    _parse(name)
    with locked(cache_folder(), name), workspace(cache_folder()) as work:
        fetched = _fetch(name, work)
        checksums = {jar.name: sha256_of(jar) for jar in sorted(fetched.glob("*.jar"))}
        path = _CHECKSUMS / f"{name}.sha256"
        path.write_text("".join(f"{digest}  {jar}\n" for jar, digest in checksums.items()), encoding="ascii")
        _verify_and_stamp(fetched, checksums)
        _replace(cache_folder() / name, fetched, work)
    return path


def classpath(name: str) -> str:
    """Class path of a set for ``java -cp``."""
    return f"{ensure(name)}/*"


def _parse(name: str) -> re.Match[str]:
    match = _SET_NAME.fullmatch(name)
    if match is None:
        raise JarsError(f"{name!r} is no set of Kafka jars: write e.g. 4.1.1, 4.1.1-connect or 4.1.1-tiered")
    return match


def _list_digest(checksums: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(checksums.items())).encode()).hexdigest()


def _states(folder: Path) -> dict[str, list[int]]:
    """Jar name -> [size, modification time in ns]."""
    stats = {path.name: path.stat() for path in sorted(folder.glob("*.jar"))}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _is_stamped(folder: Path, checksums: Mapping[str, str]) -> bool:
    """Whether the folder was hashed before and has not changed since."""
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(stamp == {"list": _list_digest(checksums), "files": _states(folder)})


def _verify_and_stamp(folder: Path, checksums: Mapping[str, str]) -> str | None:
    """Hash all jars; write the stamp and return None if they are the recorded ones, otherwise return what differs."""
    present = {path.name for path in folder.glob("*.jar")}
    if missing := sorted(checksums.keys() - present):
        return f"missing: {', '.join(missing)}"
    if strange := sorted(present - checksums.keys()):
        return f"not on the list: {', '.join(strange)}"
    if changed := sorted(jar for jar, digest in checksums.items() if sha256_of(folder / jar) != digest):
        return f"changed: {', '.join(changed)}"
    stamp = {"list": _list_digest(checksums), "files": _states(folder)}
    temporary = folder / f"{_STAMP}.{os.getpid()}"
    temporary.write_text(json.dumps(stamp), encoding="utf-8")
    temporary.replace(folder / _STAMP)
    return None


def _replace(folder: Path, fetched: Path, work: Path) -> None:
    if folder.exists():
        folder.rename(work / "replaced")
    fetched.rename(folder)


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
    kafka = _CONNECT_MODULES if match["kind"] else _BROKER_MODULES
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
    parser = argparse.ArgumentParser(prog="python -m harness.kafka_jars", description="Fetch and check Kafka's jars.")
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
