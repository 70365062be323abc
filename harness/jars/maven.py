"""Files from a Maven repository, by the Ivy that pyspark brings; and the Java that runs it.

Environment: ``KAFKA_MIGRATION_MAVEN_REPOSITORY`` names a Maven repository to use instead of Maven Central; Java gets a
proxy from ``JAVA_TOOL_OPTIONS`` as usual.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

_FETCH_ATTEMPTS = 3
_FETCH_TIMEOUT_SECONDS = 600


class JarsError(Exception):
    """Files are not available, or are not the recorded ones. The message says which, and what to do."""


def cache_folder(name: str) -> Path:
    """The folder of the user's cache for one kind of files."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kafka-migration" / name


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


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_checksums(text: str) -> dict[str, str]:
    """A list of ``sha256sum`` format: file name -> SHA-256 in hex."""
    pairs = (line.split("  ", 1) for line in text.splitlines() if line)
    return {name: digest for digest, name in pairs}


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """One process at a time works on an entry of a cache; the lock ends with the process, however that ends."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def workspace(root: Path) -> Iterator[Path]:
    """Folder on the cache's own file system (a rename must be possible), removed at the end."""
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=root))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def retrieve(what: str, dependencies: str, types: Sequence[str], work: Path, *, poms: bool = True) -> Path:
    """Let Ivy resolve and fetch.

    :param what: for the message.
    :param dependencies: the content of Ivy's element ``dependencies``.
    :param types: the types of artifacts that are wanted.
    :param work: an empty folder; Ivy keeps its own files there, too.
    :param poms: read the modules' descriptions, which name their dependencies and their parents.
    :returns: the folder below ``work`` with the files: ``[artifact]-[revision](-[classifier]).[ext]``.
    :raises JarsError: Ivy is missing, or the repository does not give the files.
    """
    settings, ivy = _write_ivy_files(dependencies, work, poms)
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
        *("-types", *types),
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
        if done.returncode == 0 and any(target.glob("*")):
            return target
        output = done.stdout + done.stderr
    tail = "\n".join(output.splitlines()[-15:])
    raise JarsError(f"Ivy could not fetch {what} in {_FETCH_ATTEMPTS} attempts; its last lines:\n{tail}")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark is not installed: its Ivy fetches the jars (install the development extras)")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarsError("this pyspark brings no ivy jar: install the full pyspark package, not the client alone")
    return jars[-1]


def _write_ivy_files(dependencies: str, work: Path, poms: bool) -> tuple[Path, Path]:
    repository = os.environ.get("KAFKA_MIGRATION_MAVEN_REPOSITORY")
    root = f" root={quoteattr(repository)}" if repository else ""
    settings = work / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        '<ibiblio name="central" m2compatible="true" useMavenMetadata="false" checkmodified="false"'
        f' usepoms="{str(poms).lower()}"{root}/>'
        "</resolvers></ivysettings>",
        encoding="utf-8",
    )
    ivy = work / "ivy.xml"
    ivy.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="kafka-migration" module="harness"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    return settings, ivy
