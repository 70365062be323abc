"""Schemas registered afresh, and the map of their ids, against fake registries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, avro, reference, world

from airflow_provider_kafka_migration.errors import RegistryUnreachable
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.schema_ids.id_map import wanted_key
from harness.fake_registry import Reply, Request

pytestmark = pytest.mark.slow

ORDER = avro("Order", "id")
CART = '{"type":"record","name":"Cart","fields":[{"name":"o","type":"Order"}]}'


def shape(at: World) -> dict[str, list[tuple[int, str, bool]]]:
    """Versions, texts and deleted states of the target, without ids."""
    return {
        name: [(number, item["text"], item["deleted"]) for number, item in versions.items()]
        for name, versions in at.target_subjects().items()
    }


def codes(result: Any) -> list[tuple[str, int, str]]:
    return [(item.subject, item.version, item.error["code"]) for item in result.failed]


def test_ids_are_translated_and_gaps_close(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.target.seed("foreign", avro("F", "x"), id=41)
        at.source.seed("a-value", avro("A", "x"), id=100, version=3)
        at.source.seed("a-value", avro("A", "x", "y", y=0), id=107, version=5)
        result = at.synchronize()
        assert (result.id_mode, result.registered, result.failed) == ("translate", 2, [])
        assert at.ids() == {100: 42, 107: 43}
        assert list(at.target_subjects()["a-value"]) == [1, 2]
        assert not [item for item in at.target.writes if item.path.startswith("/mode")]


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=7)
        at.source.seed("a-value", avro("Order", "id", "n", n=0), id=8, version=2, deleted=True)
        at.source.seed("b-value", CART, id=9, references=[reference("Order", "a-value")])
        first = at.synchronize()
        assert (first.registered, first.deleted, first.failed) == (3, 1, [])
        before, ids, journal = at.target.state(), at.ids(), len(at.steps())
        at.target.requests.clear()
        second = at.synchronize()
        assert (second.registered, second.deleted, second.configs) == (0, 0, 0)
        assert at.target.writes == []
        assert (at.target.state(), at.ids(), len(at.steps())) == (before, ids, journal)


def test_identical_schemas_with_different_ids_share_one(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.source.seed("b-value", ORDER, id=9)
        assert at.synchronize().failed == []
        assert at.ids() == {5: 1, 9: 1}


def test_one_id_under_several_subjects(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.target.seed("foreign", avro("F", "x"), id=10)
        at.source.seed("a-value", ORDER, id=5)
        at.source.seed("b-value", ORDER, id=5)
        at.source.seed(":.x:c-value", avro("C", "x"), id=5)
        assert at.synchronize().failed == []
        assert (at.ids("."), at.ids(".x")) == ({5: 11}, {5: 1})


def test_references_name_subjects_and_versions_of_the_target(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", rename={"prefix": "eu-"}) as at:
        at.source.seed("a-order", avro("Old", "x"), id=1, version=2)
        at.source.seed("a-order", ORDER, id=2, version=6)
        at.source.store.configs["a-order"] = {"compatibilityLevel": "NONE"}
        at.source.seed("b-cart", CART, id=3, references=[reference("Order", "a-order", 6)])
        assert at.synchronize().failed == []
        assert at.target.store.subjects["eu-b-cart"][1].content.references == (("Order", "eu-a-order", 2),)
        assert at.synchronize().registered == 0


def test_soft_deleted_subjects_and_versions(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("gone-value", ORDER, id=5, deleted=True)
        at.source.seed("part-value", avro("P", "a"), id=6, deleted=True)
        at.source.seed("part-value", avro("P", "a", "b", b=1), id=8, version=2)
        result = at.synchronize()
        assert (result.registered, result.deleted, result.failed) == (3, 2, [])
        assert [item[2] for item in shape(at)["part-value"]] == [True, False]
        assert [item[2] for item in shape(at)["gone-value"]] == [True]
        assert sorted(at.ids()) == [5, 6, 8]


def test_a_schema_that_was_deleted_and_registered_again(tmp_path: Path) -> None:
    """Version 3 has the schema of the deleted version 1, which has to be deleted before version 3 is registered."""
    with world(tmp_path, ids="translate") as at:
        at.source.store.configs["a-value"] = {"compatibilityLevel": "NONE"}
        at.source.seed("a-value", ORDER, id=5)
        at.source.seed("a-value", avro("Other", "x"), id=6, version=2)
        at.source.seed("a-value", ORDER, id=5, version=3)
        at.source.store.subjects["a-value"][1].deleted = True
        assert at.synchronize().failed == []
        live = [text for _, text, deleted in shape(at)["a-value"] if not deleted]
        assert [json.loads(text)["name"] for text in live] == ["Other", "Order"]
        before = at.target.state()
        assert at.synchronize().failed == []
        assert at.target.state() == before


def test_the_level_of_the_target_does_not_stop_old_versions(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", avro("A", "x"), id=1)
        at.source.seed("a-value", avro("A", "x", "must"), id=2, version=2)
        at.source.seed("a-value", avro("A", "x", "must", "more"), id=3, version=3)
        at.target.store.configs["a-value"] = {"compatibilityLevel": "FULL", "normalize": False}
        result = at.synchronize()
        assert (result.registered, result.failed) == (3, [])
        assert len(shape(at)["a-value"]) == 3
        # The target's own level is back; the source has none of its own for this subject.
        assert at.target.store.configs["a-value"] == {"compatibilityLevel": "FULL", "normalize": False}
        names = [name for name, _ in at.steps()]
        assert names.index(steps.SCHEMA_LEVEL_SETTING) < names.index(steps.SCHEMA_LEVEL_RESTORED)


def test_only_the_level_that_is_in_the_way_is_lifted(tmp_path: Path) -> None:
    """What refers to a refused version waits for it, and keeps its own level."""
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-order", ORDER, id=1)
        at.source.seed("a-order", avro("Order", "id", "must"), id=2, version=2)
        at.source.seed("b-cart", CART, id=3, references=[reference("Order", "a-order", 2)])
        result = at.synchronize()
        assert (result.registered, result.failed) == (3, [])
        entries = at.context.journal.steps(steps.SCHEMA_LEVEL_SETTING)
        assert [entry.details["former"] for entry in entries] == [{"a-order": None}]
        assert at.target.store.configs == {}


def test_a_level_that_the_subject_did_not_have_is_removed_again(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", avro("A", "x"), id=1)
        at.source.seed("a-value", avro("A", "x", "must"), id=2, version=2)
        assert at.synchronize().failed == []
        assert at.target.store.configs == {}


def test_normalize_is_asked_for(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", normalize=True) as at:
        text = 'syntax = "proto3";\nimport "google/protobuf/timestamp.proto";\nmessage M { string c = 1; }\n'
        at.source.seed("a-value", text, id=1, kind="PROTOBUF")
        assert at.synchronize().failed == []
        posts = [item for item in at.target.writes if item.method == "POST"]
        assert [item.query for item in posts] == [{"normalize": "true"}]
        at.target.requests.clear()
        assert at.synchronize().registered == 0


@pytest.mark.parametrize("kind", ["karapace", "apicurio", "redpanda"])
def test_other_products(tmp_path: Path, kind: str) -> None:
    with world(tmp_path, kind=kind, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.source.seed("a-value", avro("Order", "id", "n", n=0), id=6, version=2, deleted=True)
        at.source.seed("b-value", CART, id=7, references=[reference("Order", "a-value")])
        result = at.synchronize()
        assert (result.registered, result.deleted, result.failed) == (3, 1, [])
        assert sorted(at.ids()) == [5, 6, 7]
        before = at.target.state()
        second = at.synchronize()
        assert (second.registered, second.deleted, second.failed) == (0, 0, [])
        assert at.target.state() == before


def test_a_read_only_target_writes_nothing(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", on_conflict="note") as at:
        at.source.seed("a-value", ORDER, id=1)
        at.target.store.mode = "READONLY"
        result = at.synchronize()
        assert [item.kind for item in result.conflicts] == ["mode"]
        assert at.target.writes == []
        assert at.ids() == {}


def test_later_versions_wait_for_one_without_an_answer(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        for number in (1, 2, 3):
            at.source.seed(
                "a-value",
                avro("A", "x", *[f"f{n}" for n in range(number)], **{f"f{n}": 0 for n in range(number)}),
                id=number,
                version=number,
            )
        at.source.seed("b-value", ORDER, id=9)
        posts: list[str] = []

        def no_answer(request: Request) -> Reply | None:
            if request.method == "POST" and request.path == "/subjects/a-value/versions":
                posts.append(request.path)
                if len(posts) > 1 and not at.target.store.subjects.get("open"):
                    return Reply.error(503, 503, "busy")
            return None

        at.target.before = no_answer
        result = at.synchronize()
        assert codes(result) == [("a-value", 2, "REGISTRY_UNREACHABLE"), ("a-value", 3, "REGISTRY_UNREACHABLE")]
        assert at.ids() == {1: at.ids()[1], 9: at.ids()[9]}
        at.target.before = None
        assert at.synchronize().failed == []
        assert [number for number, _, _ in shape(at)["a-value"]] == [1, 2, 3]
        texts = [text for _, text, _ in shape(at)["a-value"]]
        assert [len(json.loads(text)["fields"]) for text in texts] == [2, 3, 4]


def test_a_registry_that_stops_answering_ends_the_pass(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", max_parallel_requests=20) as at:
        for number in range(40):
            at.source.seed(f"s-{number:02d}", avro(f"S{number}", "x"), id=number + 1)

        def busy(request: Request) -> Reply | None:
            return Reply.error(503, 503, "busy") if request.method == "POST" else None

        at.target.before = busy
        with pytest.raises(RegistryUnreachable):
            at.synchronize()
        at.target.before = None
        assert at.synchronize().failed == []
        assert len(at.ids()) == 40


# -- the map of ids ---------------------------------------------------------------------------------------------------


def test_the_map_only_grows(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.synchronize()
        at.source.seed("b-value", avro("B", "x"), id=6)
        at.source.store._remove(at.source.store.subjects["a-value"][1])
        at.synchronize("tail")
        assert at.ids() == {5: 1, 6: 2}


def test_an_id_that_changed_on_the_target_is_a_failure_and_stays_as_recorded(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.synchronize()
        at.target.store._remove(at.target.store.subjects["a-value"][1])
        result = at.synchronize()
        assert codes(result) == [("schema id 5", 0, "SCHEMA_ID_MAP_CONFLICT")]
        assert at.ids() == {5: 1}


def test_what_was_translated_once_is_never_kept_later(tmp_path: Path) -> None:
    """With ids: auto, the mode of the first pass counts: records have been rewritten by it."""
    with world(tmp_path, ids="auto") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.target.seed("foreign", avro("F", "x"), id=5)
        first = at.synchronize()
        assert first.id_mode == "translate"
        at.target.store._remove(at.target.store.subjects["foreign"][1])
        at.source.seed("b-value", avro("B", "x"), id=77)
        assert at.synchronize().id_mode == "translate"
        assert at.ids()[77] != 77


def test_result_plan_and_journal(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=5)
        result = at.synchronize()
        record = at.context.record
        assert record.schemas_result() == result
        entry = at.context.journal.find_step(steps.SCHEMAS_COPIED)
        assert entry is not None
        assert entry.details["registered"] == 1
        assert entry.details["id_map"] == {"document": keys.SCHEMA_ID_MAP, "digest": at.id_map().digest()}
        assert record.journal_store.get(record.key(entry.details["plan"]["document"])) is not None


# -- ids that copiers ask for -----------------------------------------------------------------------------------------


def want(at: World, context: str, value: int | str) -> None:
    at.context.journal_store.put_new(wanted_key("m1", context, value), b"{}")


def test_wanted_ids_are_copied_or_absent(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", exclude=["outside.*"]) as at:
        at.source.seed("a-value", ORDER, id=5)
        at.source.seed("outside-dep", avro("Dep", "x"), id=6)
        text = '{"type":"record","name":"User","fields":[{"name":"d","type":"Dep"}]}'
        at.source.seed("outside-value", text, id=7, references=[reference("Dep", "outside-dep")])
        at.source.seed("outside-other", avro("N", "x"), id=8)
        at.synchronize()
        assert sorted(at.ids()) == [5]
        want(at, ".", 7)
        want(at, ".", 999)
        want(at, ".", 5)
        result = at.synchronize("tail")
        assert result.failed == []
        assert sorted(at.ids()) == [5, 6, 7]
        assert at.id_map().absent == [(".", 999)]
        assert sorted(at.target_subjects()) == ["a-value", "outside-dep", "outside-value"]


def test_an_id_that_could_not_be_asked_for_is_not_absent(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at:
        at.source.seed("a-value", ORDER, id=5)
        at.synchronize()
        want(at, ".", 999)

        def refuse(request: Request) -> Reply | None:
            return Reply.error(500, 50001, "broken") if request.path == "/schemas/ids/999" else None

        at.source.before = refuse
        at.synchronize("tail")
        assert at.id_map().absent == []
        at.source.before = None
        at.synchronize("tail")
        assert at.id_map().absent == [(".", 999)]


def test_wanted_guids(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", exclude=["outside"]) as at:
        at.source.seed("a-value", ORDER, id=5)
        guid = at.source.seed("outside", avro("Dep", "x"), id=6).content.guid
        unknown = "00000000-0000-0000-0000-0000000000ff"
        at.synchronize()
        want(at, ".", guid)
        want(at, ".", unknown)
        at.synchronize("tail")
        assert guid in dict(at.id_map().guids)
        assert at.id_map().absent_guids == [unknown]


# -- passes while records are copied ----------------------------------------------------------------------------------


def test_a_pass_that_finds_nothing_new_asks_only_the_source(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate") as at, at.pair() as pair:
        for number in range(30):
            at.source.seed(f"s-{number}", avro(f"S{number}", "x"), id=number + 1)
        first = at.synchronize("tail", pair)
        at.source.requests.clear()
        at.target.requests.clear()
        assert at.synchronize("tail", pair) == first
        assert at.target.requests == []
        # A full pass asks five times per subject.
        assert len(at.source.requests) < 30 + 15
        at.source.seed("s-3", avro("S3", "x", "y", y=0), id=90, version=2)
        assert at.synchronize("tail", pair).registered == 1
        assert 90 in at.ids()
