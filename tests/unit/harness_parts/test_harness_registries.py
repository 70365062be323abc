"""Apicurio comes into the cache checked and whole, and its import archive has what is seeded. No network here."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import registries
from harness.jars.maven import JarsError
from harness.processes import HarnessError
from harness.registries import SeedVersion, ensure, import_archive

pytestmark = pytest.mark.slow

VERSION = "3.3.3"
NAME = "apicurio-registry-app-3.3.3-all.tar.gz"


def archive_with(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in names:
            content = f"content of {name}".encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Repository:
    """Stands for the download."""

    def __init__(self, gives: bytes) -> None:
        self.gives = gives
        self.calls = 0

    def __call__(self, version: str, name: str, work: Path) -> Path:
        self.calls += 1
        (work / name).write_bytes(self.gives)
        return work / name


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    right = archive_with("quarkus-run.jar", "lib/a.jar")
    checksums = tmp_path / "checksums"
    checksums.mkdir()
    (checksums / f"{VERSION}.sha256").write_text(f"{hashlib.sha256(right).hexdigest()}  {NAME}\n")
    fake = Repository(right)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(registries, "_CHECKSUMS", checksums)
    monkeypatch.setattr(registries, "_fetch", fake)
    return fake


class TestDistribution:
    def test_fetched_once_then_offline(self, repository: Repository, tmp_path: Path) -> None:
        folder = ensure(VERSION)
        assert folder == tmp_path / "cache" / "kafka-migration" / "apicurio" / VERSION
        assert (folder / "lib" / "a.jar").read_bytes() == b"content of lib/a.jar"
        assert ensure(VERSION) == folder
        assert repository.calls == 1
        assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [VERSION], "no work folder is left"

    @pytest.mark.parametrize("damage", ["change", "remove", "add"])
    def test_a_damaged_folder_is_replaced(self, repository: Repository, damage: str) -> None:
        jar = ensure(VERSION) / "lib" / "a.jar"
        if damage == "change":
            jar.write_bytes(b"something else")
        elif damage == "remove":
            jar.unlink()
        else:
            jar.with_name("b.jar").write_bytes(b"strange")
        assert [path.name for path in (ensure(VERSION) / "lib").iterdir()] == ["a.jar"]
        assert jar.read_bytes() == b"content of lib/a.jar"
        assert repository.calls == 2

    def test_another_archive_never_enters_the_cache(self, repository: Repository) -> None:
        repository.gives = archive_with("quarkus-run.jar", "lib/evil.jar")
        with pytest.raises(JarsError, match="is not the recorded one"):
            ensure(VERSION)
        assert not (registries.maven.cache_folder("apicurio") / VERSION).exists()

    def test_unknown_versions_are_refused(self, repository: Repository) -> None:
        with pytest.raises(JarsError, match="no checksum for Apicurio Registry"):
            ensure("9.9.9")
        assert repository.calls == 0

    def test_every_version_has_a_committed_checksum(self) -> None:
        for version in registries.VERSIONS:
            name, digest = registries._recorded(version)
            assert name == f"apicurio-registry-app-{version}-all.tar.gz"
            assert len(bytes.fromhex(digest)) == 32


class TestJava:
    @pytest.fixture
    def javas(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None, int | None], None]:
        def there_are(machine: int | None, packaged: int | None) -> None:
            monkeypatch.delenv("KAFKA_MIGRATION_APICURIO", raising=False)
            monkeypatch.setattr(registries, "_machine_java", lambda: None if machine is None else f"machine-{machine}")
            monkeypatch.setattr(registries, "_packaged_java", lambda: None if packaged is None else f"own-{packaged}")
            monkeypatch.setattr(registries, "_major_of", lambda java: int(java.rpartition("-")[2]))

        return there_are

    @pytest.mark.parametrize(
        ("machine", "packaged", "version", "java"),
        [
            (21, None, "3.3.3", "machine-21"),
            (17, 21, "3.3.3", "own-21"),
            (17, None, "3.0.9", "machine-17"),
            (None, 21, "3.3.3", "own-21"),
        ],
    )
    def test_the_newest_version_that_a_java_can_run(
        self, javas: Any, machine: int | None, packaged: int | None, version: str, java: str
    ) -> None:
        javas(machine, packaged)
        assert registries.default_version() == version
        assert registries.java_for(version) == java

    def test_without_a_java_it_says_what_to_do(self, javas: Any) -> None:
        javas(11, None)
        with pytest.raises(HarnessError, match="no Java 17"):
            registries.default_version()

    def test_the_variable_chooses(self, javas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        javas(17, 21)
        monkeypatch.setenv("KAFKA_MIGRATION_APICURIO", "3.0.9")
        assert registries.default_version() == "3.0.9"
        monkeypatch.setenv("KAFKA_MIGRATION_APICURIO", "1.0.0")
        with pytest.raises(HarnessError, match="known versions"):
            registries.default_version()


class TestImportArchive:
    def test_it_has_ids_gaps_deletions_and_references(self) -> None:
        content = import_archive(
            [
                SeedVersion("n-value", 2, 199, "n", "PROTOBUF", (("m.proto", "m-value", 1),)),
                SeedVersion("m-value", 1, 201, "m", "PROTOBUF"),
                SeedVersion("a-value", 5, 107, '"int"', deleted=True),
                SeedVersion("a-value", 3, 100, '"long"'),
                SeedVersion("b-value", 1, 100, '"long"'),
            ]
        )
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            read = {
                name.removeprefix("groups/default/artifacts/"): json.loads(archive.read(name))
                for name in archive.namelist()
                if name.endswith(".json")
            }
        versions = {
            name: (value["contentId"], value["state"])
            for name, value in read.items()
            if name.endswith(".ArtifactVersion.json")
        }
        assert versions == {
            "a-value/versions/3.ArtifactVersion.json": (100, "ENABLED"),
            "a-value/versions/5.ArtifactVersion.json": (107, "DISABLED"),
            "b-value/versions/1.ArtifactVersion.json": (100, "ENABLED"),
            "m-value/versions/1.ArtifactVersion.json": (201, "ENABLED"),
            "n-value/versions/2.ArtifactVersion.json": (199, "ENABLED"),
        }
        contents = {value["contentId"]: value for name, value in read.items() if name.startswith("content/")}
        assert sorted(contents) == [100, 107, 199, 201]
        assert json.loads(contents[199]["serializedReferences"]) == [
            {"groupId": None, "artifactId": "m-value", "version": "1", "name": "m.proto"}
        ]
        assert read["a-value/branches/latest.Branch.json"]["versions"] == ["3", "5"]

    @pytest.mark.parametrize(
        "second", [SeedVersion("b", 1, 2, '"long"'), SeedVersion("b", 1, 1, '"int"')], ids=["two ids", "two contents"]
    )
    def test_one_id_for_each_content(self, second: SeedVersion) -> None:
        with pytest.raises(ValueError, match="exactly one id per content"):
            import_archive([SeedVersion("a", 1, 1, '"long"'), second])
