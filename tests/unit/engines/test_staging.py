"""Files of a job: uploaded once per content, whoever else uploads them, and never overwritten."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.engines.staging import Staging
from airflow_provider_kafka_migration.errors import StagingRefused
from airflow_provider_kafka_migration.storage.base import ObjectStore
from airflow_provider_kafka_migration.storage.local import LocalStore


class Counting:
    """A store that counts its puts."""

    def __init__(self, store: ObjectStore) -> None:
        self.store, self.puts = store, 0
        self.uri = store.uri

    def get(self, key: str) -> bytes | None:
        return self.store.get(key)

    def put_new(self, key: str, data: bytes, *, sha256: str | None = None) -> None:
        self.puts += 1
        self.store.put_new(key, data, sha256=sha256)


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "seed.py"
    path.write_text("print()\n", encoding="utf-8")
    return path


def staging(store: Any) -> Staging:
    return Staging("s3://bucket/x", opener=lambda _: store)


def test_a_file_is_uploaded_once_per_content(store: ObjectStore, main: Path) -> None:
    counting = Counting(store)
    digest = hashlib.sha256(main.read_bytes()).hexdigest()[:16]
    uri = staging(counting).put(main)
    assert uri == f"{store.uri}/{digest}/seed.py"
    assert staging(counting).put(main) == uri
    assert counting.puts == 1
    main.write_text("print(2)\n", encoding="utf-8")
    assert staging(counting).put(main) != uri
    assert counting.puts == 2
    assert store.get(f"{digest}/seed.py") == b"print()\n"


def test_tasks_that_upload_at_the_same_time_agree(store: ObjectStore, main: Path) -> None:
    found: list[str] = []
    barrier = threading.Barrier(4)

    def put() -> None:
        barrier.wait()
        found.append(staging(store).put(main))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_another_file_under_the_digest_is_never_run(store: ObjectStore, main: Path) -> None:
    digest = hashlib.sha256(main.read_bytes()).hexdigest()[:16]
    store.put(f"{digest}/seed.py", b"import os; os.system('mine bitcoin')")
    with pytest.raises(StagingRefused, match="another file"):
        staging(store).put(main)
    assert store.get(f"{digest}/seed.py") == b"import os; os.system('mine bitcoin')"


def test_a_folder_is_a_place_for_engines_that_can_read_it(tmp_path: Path, main: Path) -> None:
    uri = Staging((tmp_path / "shared").as_uri(), schemes=("s3", "file")).put(main)
    assert Path(uri.removeprefix("file://")).read_bytes() == main.read_bytes()
    with pytest.raises(StagingRefused, match="file:// is not one of them"):
        Staging((tmp_path / "shared").as_uri())


def test_what_a_command_line_would_interpret_is_refused(tmp_path: Path) -> None:
    strange = tmp_path / "seed --conf x.py"
    strange.write_text("", encoding="utf-8")
    with pytest.raises(StagingRefused, match="name of a file"):
        Staging("s3://b/x", opener=lambda _: LocalStore("/tmp/unused")).put(strange)
    for location in ("s3://bucket/a b", "s3://bucket/a;b", "s3://bucket/$(x)", "s3://bucket/é", "bucket/x", ""):
        with pytest.raises(StagingRefused):
            Staging(location)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StagingRefused, match=r"seed\.py"):
        staging(LocalStore(tmp_path / "s")).put(tmp_path / "seed.py")
