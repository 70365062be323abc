"""The id map: the document as tables, reading it again, and asking for ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.errors import DocumentUnreadable, Where
from airflow_provider_kafka_migration.schema_ids import id_map
from airflow_provider_kafka_migration.schema_ids.id_map import (
    ABSENT,
    IdMap,
    LiveIdMap,
    WantedId,
    parse_wanted_key,
    wanted_key,
    wanted_prefix,
)
from airflow_provider_kafka_migration.storage.base import check_key
from airflow_provider_kafka_migration.storage.local import LocalStore

KEY = "m/schemas/id-map.json"
GUID = "89791762-2336-4186-9674-299b90a802e2"
OTHER_GUID = "00000000-0000-4000-8000-000000000001"


def document(migration_id: str = "m", **fields: object) -> SchemaIdMap:
    return SchemaIdMap(migration_id=migration_id, id_mode="translate", **fields)


class Clock:
    """A monotonic clock that tests set."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(id_map, "time", found)
    return found


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_ids_are_looked_up_in_their_context() -> None:
    ids = IdMap(document(ids=[(".", 1, 11), (".prod", 1, 21)], absent=[(".", 2)]))
    assert ids.find(".", "id32", 1) == 11
    assert ids.find(".prod", "id64", 1) == 21
    assert ids.find(".", "id32", 2) is ABSENT
    assert ids.find(".prod", "id32", 2) is None


def test_guids() -> None:
    ids = IdMap(document(guids=[(GUID.upper(), OTHER_GUID)], absent_guids=[OTHER_GUID]))
    assert ids.find(".", "guid", GUID) == OTHER_GUID
    assert ids.find(".x", "guid", OTHER_GUID) is ABSENT
    assert IdMap().find(".", "guid", GUID) is None


def test_absent_ids_stay_absent() -> None:
    assert IdMap(document(ids=[(".", 5, 6)], absent=[(".", 5)])).find(".", "id32", 5) is ABSENT


def test_id_0() -> None:
    assert IdMap(document(ids=[(".", 0, 4)])).has_zero(".")
    assert not IdMap(document(absent=[(".", 0)])).has_zero(".")
    assert not IdMap().has_zero(".")


def test_an_unknown_id_reads_the_document_again(store: LocalStore, clock: Clock) -> None:
    live = LiveIdMap(store, "m", KEY)
    assert live.find(".", "id32", 1) is None
    store.put(KEY, document(ids=[(".", 1, 11)]).canonical())
    assert live.find(".", "id32", 1) is None, "read again within a second"
    clock.now += 1.0
    assert live.find(".", "id32", 1) == 11


def test_known_ids_need_no_store(store: LocalStore, clock: Clock, tmp_path: Path) -> None:
    store.put(KEY, document(ids=[(".", 1, 11)]).canonical())
    live = LiveIdMap(store, "m", KEY)
    assert live.find(".", "id32", 1) == 11
    (tmp_path / KEY).unlink()
    clock.now += 10
    assert live.find(".", "id32", 1) == 11
    assert live.find(".", "id32", 2) is None
    assert live.find(".", "id32", 1) == 11, "a document that has disappeared takes nothing back"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", document("other").canonical()])
def test_an_object_that_is_no_id_map_of_this_migration(store: LocalStore, data: bytes) -> None:
    store.put(KEY, data)
    with pytest.raises(DocumentUnreadable, match="id-map"):
        LiveIdMap(store, "m", KEY).find(".", "id32", 1)


def test_copiers_ask_once(store: LocalStore) -> None:
    where = Where(topic="t", partition=3, offset=77)
    for live in (LiveIdMap(store, "m", KEY), LiveIdMap(store, "m", KEY)):
        live.want(".", "id32", 5, where)
        live.want(".", "id64", 5, where)
        live.want(".prod", "guid", GUID, where)
    keys = [info.key for info in store.list(wanted_prefix("m"))]
    assert [parse_wanted_key("m", key) for key in keys] == [
        WantedId(".", "id", 5),
        WantedId(".prod", "guid", GUID),
    ]
    first = store.get(keys[0])
    assert first is not None
    assert b'"offset": 77' in first


@pytest.mark.parametrize("context", [".", ".prod", "..", ".a/b", ".ä"])
def test_wanted_keys_can_be_stored(context: str) -> None:
    key = check_key(wanted_key("m", context, 5))
    assert parse_wanted_key("m", key) == WantedId(context, "id", 5)


@pytest.mark.parametrize(
    "key", ["m/schemas/id-map.json", "m/schemas/wanted/", "m/schemas/wanted/x", "n/schemas/wanted/%2E/1"]
)
def test_other_keys_ask_for_nothing(key: str) -> None:
    assert parse_wanted_key("m", key) is None
