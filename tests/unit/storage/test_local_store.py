"""What only the local store does."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import StorageRefused, StorageUnavailable
from airflow_provider_kafka_migration.storage.local import LocalStore


def test_nothing_is_left_beside_the_objects(local_store: LocalStore) -> None:
    local_store.put_new("folder/a", b"1")
    local_store.put("folder/a", b"2")
    with pytest.raises(Exception, match="already exists"):
        local_store.put_new("folder/a", b"3")
    assert os.listdir(local_store.folder / "folder") == ["a"]


def test_a_killed_writer_leaves_no_object(local_store: LocalStore) -> None:
    """SIGKILL between write and link leaves a temporary file: it is no object, and the key is free."""
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        os.link = lambda *_: os.kill(os.getpid(), 9)  # type: ignore[assignment]
        local_store.put_new("journal/0", b"half")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == 9
    assert len(os.listdir(local_store.folder / "journal")) == 1
    assert list(local_store.list()) == []
    local_store.put_new("journal/0", b"whole")
    assert local_store.get("journal/0") == b"whole"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOTSUP, StorageRefused), (errno.EACCES, StorageRefused), (errno.ENOSPC, StorageUnavailable)],
)
def test_errors_of_the_file_system_are_ours(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(kind, match="some/key"):
        local_store.put_new("some/key", b"")
    assert list(local_store.list()) == []


def test_an_unreadable_folder_is_not_taken_for_an_empty_one(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_store.put("journal/0", b"")

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageRefused, match="owner and the mode"):
        list(local_store.list("journal/"))


def test_objects_are_flushed_before_they_get_their_name(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, link, replace = os.fsync, os.link, os.replace

    def traced_sync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", traced_sync)
    monkeypatch.setattr(os, "link", lambda *paths: done.append("link") or link(*paths))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("replace") or replace(*paths))
    local_store.put_new("a", b"1")
    local_store.put("a", b"2")
    assert done == ["file", "link", "folder", "file", "replace", "folder"]


def test_an_object_cannot_be_a_folder(local_store: LocalStore) -> None:
    local_store.put("a", b"")
    with pytest.raises(StorageRefused):
        local_store.put("a/b", b"")
    assert local_store.get("a/b") is None


def test_two_stores_on_one_folder_see_each_other(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("a/b", b"1")
    assert LocalStore(tmp_path / "a").get("b") == b"1"
    assert LocalStore(tmp_path).uri == tmp_path.as_uri()
