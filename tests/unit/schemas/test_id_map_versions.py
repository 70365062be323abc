"""Two processes of one owner extend the map of schema ids at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, world

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.errors import ClaimLost
from airflow_provider_kafka_migration.journal import Journal, Owner
from airflow_provider_kafka_migration.record import keys
from airflow_provider_kafka_migration.schema_ids.id_map import ABSENT, LiveIdMap
from airflow_provider_kafka_migration.schemas.id_map_document import NewIds, publish_id_map, update_id_map

A = NewIds(ids={(".", 1): [11]}, absent={(".", 9)}, absent_guids={"g"})
B = NewIds(ids={(".", 2): [22], (".", 9): [99]}, guids={"h": "k"})


def before_write(at: World, number: int, do: Callable[[], Any]) -> None:
    """Call something before a certain write, counted from 0, of this process to the journal store."""
    store: Any = at.context.journal_store
    writes = 0

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == number + 1:
                do()
            return real(*args, **options)

        return write

    store.put, store.put_new = guarded(store.put), guarded(store.put_new)


def published(at: World) -> SchemaIdMap:
    data = at.context.journal_store.get(at.context.key(keys.SCHEMA_ID_MAP))
    assert data is not None
    return SchemaIdMap.parse(data)


@pytest.mark.parametrize("number", [0, 1])
def test_neither_writer_loses_what_the_other_has_written(tmp_path: Path, number: int) -> None:
    with world(tmp_path, ids="translate") as at:
        seen: list[SchemaIdMap] = []

        def other_process() -> None:
            update_id_map(at.context.record, "translate", A)
            seen.append(at.id_map())

        before_write(at, number, other_process)
        assert update_id_map(at.context.record, "translate", B)[2]
        (before,) = seen
        for found in (at.id_map(), published(at)):
            assert found.ids == [(".", 1, 11), (".", 2, 22), (".", 9, 99)]
            assert set(before.absent) <= set(found.absent)
            assert found.absent_guids == ["g"]
            assert found.guids == [("h", "k")]


def test_an_answer_that_was_given_does_not_change(tmp_path: Path) -> None:
    """One process finds the id absent while the other registers its schema: the first to write decides."""
    with world(tmp_path, ids="translate") as at:
        before_write(at, 0, lambda: update_id_map(at.context.record, "translate", A))
        _, conflicts, _ = update_id_map(at.context.record, "translate", B)
        assert [key for key, _ in conflicts] == [(".", 9)]
        live = LiveIdMap(at.context.journal_store, "m1", at.context.key(keys.SCHEMA_ID_MAP))
        assert live.find(".", "id32", 9) is ABSENT


def test_a_stale_copy_for_copiers_is_replaced_by_the_next_pass(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        update_id_map(at.context.record, "translate", A)
        stale = published(at)
        update_id_map(at.context.record, "translate", B)
        at.context.journal_store.put(at.context.key(keys.SCHEMA_ID_MAP), stale.canonical())
        assert (".", 2, 22) in at.id_map().ids, "the map itself is complete"
        publish_id_map(at.context.record)
        assert published(at) == at.id_map()


def test_a_pass_that_adds_nothing_writes_nothing(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        update_id_map(at.context.record, "translate", A)
        count = len(list(at.context.journal_store.list("m1/schemas/")))
        assert update_id_map(at.context.record, "translate", A)[2] is False
        assert len(list(at.context.journal_store.list("m1/schemas/"))) == count == 2


def test_without_the_claim_nothing_is_written(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        update_id_map(at.context.record, "translate", A)
        Journal(at.context.journal_store, "m1").claim(Owner("cli", "other", "other"), takeover=True)
        with pytest.raises(ClaimLost):
            update_id_map(at.context.record, "translate", B)
        assert at.id_map() == published(at)
        assert len(at.id_map().ids) == 1
