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
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

#: The sets of tests and the demo: the source in ZooKeeper mode, the target in KRaft mode.
DEFAULT_SETS = ("3.9.1", "4.1.1")

_CHECKSUMS = Path(__file__).with_name("checksums")
_SET_NAME = re.compile(r"(?P<version>\d+\.\d+\.\d+)(?P<kind>-connect|-tiered)?")
_STAMP = "verified.json"
_FETCH_ATTEMPTS = 3
_FETCH_TIMEOUT_SECONDS = 600

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


class JarsError(Exception):
    """Jars are not available, or are not the recorded ones. The message says which, and what to do."""


def cache_folder() -> Path:
    """The parent folder of all sets."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kafka-migration" / "kafka"


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
    return _parse_checksums(path.read_text(encoding="ascii"))


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
    with _locked(name):
        if folder.is_dir() and (_is_stamped(folder, checksums) or _verify_and_stamp(folder, checksums) is None):
            return folder
        with _workspace() as work:
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
    with _locked(name), _workspace() as work:
        fetched = _fetch(name, work)
        checksums = {jar.name: _sha256(jar) for jar in sorted(fetched.glob("*.jar"))}
        path = _CHECKSUMS / f"{name}.sha256"
        path.write_text("".join(f"{digest}  {jar}\n" for jar, digest in checksums.items()), encoding="ascii")
        _verify_and_stamp(fetched, checksums)
        _replace(cache_folder() / name, fetched, work)
    return path


def classpath(name: str) -> str:
    """Class path of a set for ``java -cp``."""
    return f"{ensure(name)}/*"


def java() -> str:
    """The Java to start: from ``$JAVA_HOME``, otherwise from the path.

    :raises JarsError: there is no Java.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (candidate := Path(home) / "bin" / "java").is_file():
        return str(candidate)
    found = shutil.which("java")
    if found is None:
        raise JarsError("no java found: install Java 17 or set JAVA_HOME")
    return found


def _parse(name: str) -> re.Match[str]:
    match = _SET_NAME.fullmatch(name)
    if match is None:
        raise JarsError(f"{name!r} is no set of Kafka jars: write e.g. 4.1.1, 4.1.1-connect or 4.1.1-tiered")
    return match


def _parse_checksums(text: str) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in text.splitlines() if line)
    return {jar: digest for digest, jar in pairs}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    if changed := sorted(jar for jar, digest in checksums.items() if _sha256(folder / jar) != digest):
        return f"changed: {', '.join(changed)}"
    stamp = {"list": _list_digest(checksums), "files": _states(folder)}
    temporary = folder / f"{_STAMP}.{os.getpid()}"
    temporary.write_text(json.dumps(stamp), encoding="utf-8")
    temporary.replace(folder / _STAMP)
    return None


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """One process at a time works on a set; the lock ends with the process, however that ends."""
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _workspace() -> Iterator[Path]:
    """Folder on the cache's own file system (a rename must be possible), removed at the end."""
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache_folder()))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(folder: Path, fetched: Path, work: Path) -> None:
    if folder.exists():
        folder.rename(work / "replaced")
    fetched.rename(folder)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark is not installed: its Ivy fetches the Kafka jars (install the development extras)")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarsError("this pyspark brings no ivy jar: install the full pyspark package, not the client alone")
    return jars[-1]


def _write_ivy_files(name: str, work: Path) -> tuple[Path, Path]:
    match = _parse(name)
    repository = os.environ.get("KAFKA_MIGRATION_MAVEN_REPOSITORY")
    root = f" root={quoteattr(repository)}" if repository else ""
    settings = work / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        '<ibiblio name="central" m2compatible="true" usepoms="true" useMavenMetadata="false" checkmodified="false"'
        f"{root}/>"
        "</resolvers></ivysettings>",
        encoding="utf-8",
    )
    dependencies = "".join(_dependencies(match))
    # One SLF4J binding is enough; among several, the one in use would be random.
    excludes = "".join(
        f'<exclude org="{org}" module="{module}"/>'
        for org, module in (("org.slf4j", "slf4j-reload4j"), ("org.apache.logging.log4j", "log4j-slf4j-impl"))
    )
    ivy = work / "ivy.xml"
    ivy.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="kafka-migration" module="harness"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}{excludes}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    return settings, ivy


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
    settings, ivy = _write_ivy_files(name, work)
    target = work / "jars"
    command = [
        java(),
        "-Xmx256m",
        f"-Duser.home={work}",
        "-Divy.maven.lookup.sources=false",
        "-Divy.maven.lookup.javadoc=false",
        *("-jar", str(_ivy_jar())),
        *("-settings", str(settings)),
        *("-cache", str(work / "ivy")),
        *("-ivy", str(ivy)),
        *("-confs", "default"),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    output = ""
    for _ in range(_FETCH_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            output = f"no end after {_FETCH_TIMEOUT_SECONDS} s"
            continue
        if done.returncode == 0 and any(target.glob("*.jar")):
            return target
        output = done.stdout + done.stderr
    tail = "\n".join(output.splitlines()[-15:])
    raise JarsError(
        f"Ivy could not fetch the jars of Kafka {name} in {_FETCH_ATTEMPTS} attempts; its last lines:\n{tail}"
    )


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
