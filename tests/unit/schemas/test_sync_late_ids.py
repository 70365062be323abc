"""Ids whose schema the source registry shows only after a record with it was read."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World, avro, world

from airflow_provider_kafka_migration.documents.schemas import SchemaPlan
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries
from harness.fake_registry import Reply, Request


def wanted_too_early(at: World) -> None:
    """A copier asks for the id 7, and the registry does not have it yet: a follower of its cluster lags behind."""
    at.source.seed("a-value", avro("A", "x"), id=5)
    at.context.journal_store.put_new(wanted_key("m1", ".", 7), b"{}")
    at.synchronize()


def test_one_answer_does_not_make_an_id_absent_for_good(tmp_path: Path) -> None:
    """A node that has not read the newest schemas yet answers 40403 for a schema that is registered."""
    with world(tmp_path, ids="translate") as at:
        asked: list[str] = []

        def catch_up(request: Request, _: Reply) -> None:
            if request.path.endswith("/schemas/ids/7"):
                asked.append(request.path)
                if len(asked) == 1:
                    at.source.seed("late-value", avro("Late", "x"), id=7)

        at.source.after = catch_up
        wanted_too_early(at)
        assert len(asked) == 2
        assert at.id_map().absent == []
        assert 7 in at.ids()


@pytest.mark.parametrize(("id_", "answers"), [(7, 4), (5000, 2), (3, 2)])
def test_the_next_ids_are_asked_for_longer_than_a_node_lags(tmp_path: Path, id_: int, answers: int) -> None:
    """The highest id that the registry shows is 5: the 7 may be new, the 5000 and the 3 are not."""
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", avro("A", "x"), id=5)
        at.context.journal_store.put_new(wanted_key("m1", ".", id_), b"{}")
        asked: list[str] = []

        def catch_up(request: Request, _: Reply) -> None:
            if request.path.endswith(f"/schemas/ids/{id_}"):
                asked.append(request.path)
                if len(asked) == 3:
                    at.source.seed("late-value", avro("Late", "x"), id=id_)

        at.source.after = catch_up
        at.synchronize()
        assert len(asked) == answers
        assert (id_ in at.ids()) is (answers == 4)
        assert at.id_map().absent == ([] if answers == 4 else [(".", id_)])


def test_an_id_that_was_absent_and_is_registered_now_is_named(tmp_path: Path) -> None:
    """Copiers go on leaving the id as it is: on the target, it may be another schema's."""
    with world(tmp_path, ids="translate") as at:
        wanted_too_early(at)
        assert at.id_map().absent == [(".", 7)]
        at.source.seed("late-value", avro("Late", "x"), id=7)
        result = at.synchronize("tail")
        assert [(item.subject, item.error["code"]) for item in result.failed] == [
            ("schema id 7", "SCHEMA_ID_MAP_CONFLICT")
        ]


def test_an_id_that_was_absent_and_is_copied_now_does_not_resolve(tmp_path: Path) -> None:
    """What was compared before its schema appeared is proven, and not compared again; only this check can tell."""
    with world(tmp_path, ids="translate") as at:
        wanted_too_early(at)
        at.source.seed("late-value", avro("Late", "x"), id=7)
        at.synchronize("tail")
        plan = SchemaPlan(migration_id="m1", id_mode="translate", reason="for a test")
        found = FoundInRecords(ids={(".", 7): "orders-0 at offset 3"})
        with at.pair() as pair:
            check = compare_registries(
                pair.source, pair.target, plan, at.id_map(), found, selection=Selection(), at="2026-01-01T00:00:00Z"
            )
        assert check.ids_resolved == 0
