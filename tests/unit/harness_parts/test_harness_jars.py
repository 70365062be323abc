"""Jars come into the cache whole and checked, and nothing else is ever used. No network here."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pyspark
import pytest

from harness.jars import kafka_jars
from harness.jars.kafka_jars import JarsError, ensure, main, record
from harness.spark import yarn

pytestmark = pytest.mark.slow

NAME = "9.9.9"
JARS = {"a-1.jar": b"content of a", "b-2.jar": b"content of b"}


class FakeIvy:
    """Stands for the download: writes what a repository would give."""

    def __init__(self) -> None:
        self.gives = dict(JARS)
        self.calls = 0

    def __call__(self, name: str, work: Path) -> Path:
        self.calls += 1
        folder = work / "jars"
        folder.mkdir()
        for jar, content in self.gives.items():
            (folder / jar).write_bytes(content)
        return folder


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIvy:
    checksums = tmp_path / "checksums"
    checksums.mkdir()
    lines = [f"{hashlib.sha256(content).hexdigest()}  {jar}\n" for jar, content in JARS.items()]
    (checksums / f"{NAME}.sha256").write_text("".join(lines))
    fake = FakeIvy()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kafka_jars, "_CHECKSUMS", checksums)
    monkeypatch.setattr(kafka_jars, "_fetch", fake)
    return fake


def jars_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jar")}


def test_fetched_once_then_offline(ivy: FakeIvy, tmp_path: Path) -> None:
    folder = ensure(NAME)
    assert folder == tmp_path / "cache" / "kafka-migration" / "kafka" / NAME
    assert jars_of(folder) == JARS
    assert ensure(NAME) == folder
    assert ivy.calls == 1
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [NAME], "no work folder is left"


@pytest.mark.parametrize("damage", ["change", "same size", "remove", "add"])
def test_a_damaged_set_is_fetched_again(ivy: FakeIvy, damage: str) -> None:
    folder = ensure(NAME)
    jar = folder / "a-1.jar"
    if damage == "change":
        jar.write_bytes(b"longer content of a")
    elif damage == "same size":
        jar.write_bytes(b"CONTENT OF A")
    elif damage == "remove":
        jar.unlink()
    else:
        (folder / "strange.jar").write_bytes(b"x")
    assert jars_of(ensure(NAME)) == JARS
    assert ivy.calls == 2


def test_touched_but_equal_files_are_hashed_not_fetched(ivy: FakeIvy) -> None:
    folder = ensure(NAME)
    (folder / "a-1.jar").write_bytes(JARS["a-1.jar"])
    (folder / "verified.json").write_text("{broken")
    assert ensure(NAME) == folder
    assert ivy.calls == 1


@pytest.mark.parametrize(
    ("jar", "content", "message"),
    [
        ("a-1.jar", b"evil", "changed: a-1.jar"),
        ("c.jar", b"more", "not on the list: c.jar"),
        ("b-2.jar", None, "missing"),
    ],
)
def test_other_jars_than_recorded_are_refused(ivy: FakeIvy, jar: str, content: bytes | None, message: str) -> None:
    if content is None:
        del ivy.gives[jar]
    else:
        ivy.gives[jar] = content
    with pytest.raises(JarsError, match=message):
        ensure(NAME)
    assert not (kafka_jars.cache_folder() / NAME).exists()


def test_two_at_once_fetch_once(ivy: FakeIvy) -> None:
    threads = [threading.Thread(target=ensure, args=(NAME,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ivy.calls == 1


def test_record_writes_the_list_that_ensure_takes(ivy: FakeIvy) -> None:
    ivy.gives["a-1.jar"] = b"a new build"
    path = record("9.9.10")
    assert "a-1.jar" in path.read_text()
    assert jars_of(ensure("9.9.10")) == ivy.gives
    assert ivy.calls == 1


@pytest.mark.parametrize("name", ["../x", "4.1", "4.1.1-tools", ""])
def test_strange_names_are_refused(ivy: FakeIvy, name: str) -> None:
    with pytest.raises(JarsError, match="no set of Kafka jars"):
        ensure(name)


def test_a_version_without_a_list_says_what_to_do(ivy: FakeIvy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["8.8.8"]) == 1
    assert f"known: {NAME}" in capsys.readouterr().err
    assert ivy.calls == 0


def test_committed_lists_are_well_formed() -> None:
    folder = Path(kafka_jars.__file__).parents[1] / "checksums"
    names = sorted(path.stem for path in folder.glob("*.sha256"))
    assert set(kafka_jars.DEFAULT_SETS) < set(names)
    for name in names:
        checksums = kafka_jars.recorded_checksums(name)
        assert all(jar.endswith(".jar") and len(bytes.fromhex(digest)) == 32 for jar, digest in checksums.items())
        version, _, kind = name.partition("-")
        assert f"kafka-clients-{version}{'-test' if kind == 'tiered' else ''}.jar" in checksums


def test_the_committed_list_of_hadoop_has_its_servers_and_fits_the_clients_of_pyspark() -> None:
    checksums = yarn.sets().recorded_checksums(yarn.VERSION)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in checksums.values())
    for server in ("yarn-server-resourcemanager", "yarn-server-nodemanager", "hdfs"):
        assert f"hadoop-{server}-{yarn.VERSION}.jar" in checksums
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{yarn.VERSION}.jar").is_file()


def test_a_version_of_hadoop_without_a_list_says_what_to_do() -> None:
    with pytest.raises(JarsError, match=r"python -m harness\.spark\.yarn --record"):
        yarn.sets().ensure("0.0.1")
