"""Reading a registry: what is read, how many requests it takes, and what counts as unread."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from schema_snapshots import avro

from airflow_provider_kafka_migration.errors import RegistryAnswerInvalid, RegistryUnreachable, Transient
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.snapshot import (
    RegistrySnapshot,
    SnapshotCache,
    ask_ids,
    read_snapshot,
)
from harness.fake_registry import FakeRegistry, Reply, Request

A, B, C = avro("A", "x"), avro("B", "x"), avro("C", "x")


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        yield running


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[Registry]:
    with Registry(RegistryAccess.from_dict({"url": fake.url}), "source") as client:
        yield client


def seen(snapshot: RegistrySnapshot) -> dict[str, list[tuple[int, int, bool]]]:
    return {
        name: [(item.version, item.id, item.deleted) for item in found.versions]
        for name, found in snapshot.subjects.items()
    }


def ref(name: str, subject: str, version: int) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def record_with(name: str, *types: str) -> str:
    fields = ",".join(f'{{"name":"f{i}","type":"{each}"}}' for i, each in enumerate(types))
    return f'{{"type":"record","name":"{name}","fields":[{fields}]}}'


def test_all_versions_with_gaps_and_deleted_ones(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a-value", A, id=100, version=3)
    fake.seed("a-value", B, id=103, version=4, deleted=True)
    fake.seed("a-value", C, id=107, version=5)
    fake.seed("gone-value", A, id=100, deleted=True)
    fake.seed(":.p:a-value", B, id=100)
    found = read_snapshot(registry, Selection())
    assert seen(found) == {
        ":.p:a-value": [(1, 100, False)],
        "a-value": [(3, 100, False), (4, 103, True), (5, 107, False)],
        "gone-value": [(1, 100, True)],
    }
    assert (found.kind, found.contexts, found.unread, found.left_out) == ("confluent", [".", ".p"], {}, {})


def test_without_deleted_ones_and_only_the_latest(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1, version=1)
    fake.seed("a", B, id=2, version=2)
    fake.seed("a", C, id=3, version=3, deleted=True)
    fake.seed("gone", A, id=1, deleted=True)
    found = read_snapshot(registry, Selection(include_deleted=False))
    assert seen(found) == {"a": [(1, 1, False), (2, 2, False)]}
    assert found.left_out == {"gone": "soft-deleted, and schemas.include_deleted is false"}
    assert seen(read_snapshot(registry, Selection(versions="latest")))["a"] == [(2, 2, False)]


def test_the_filter_names_why_subjects_are_left_out(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a-value", A, id=1)
    fake.seed("b-value", B, id=2)
    found = read_snapshot(registry, Selection(include=("a.*",)))
    assert (list(found.subjects), found.left_out) == (["a-value"], {"b-value": "not in schemas.include"})


def test_references_outside_the_filter_come_along_over_any_depth(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("d", A, id=1, version=1)
    fake.seed("d", B, id=2, version=2)
    fake.seed("c1", record_with("C1", "B"), id=3, references=[ref("B", "d", 2)])
    fake.seed("c2", record_with("C2", "B"), id=4, references=[ref("B", "d", 2)])
    fake.seed("a-value", record_with("R", "C1", "C2"), id=5, references=[ref("C1", "c1", 1), ref("C2", "c2", 1)])
    fake.seed("other", C, id=6)
    found = read_snapshot(registry, Selection(include=("a-value",)))
    assert seen(found) == {
        "a-value": [(1, 5, False)],
        "c1": [(1, 3, False)],
        "c2": [(1, 4, False)],
        "d": [(2, 2, False)],
    }
    assert {name: item.as_reference for name, item in found.subjects.items()} == {
        "a-value": False,
        "c1": True,
        "c2": True,
        "d": True,
    }


def test_a_circle_of_references_ends(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)
    fake.seed("b", B, id=2)

    def circle(request: Request, reply: Reply) -> Reply | None:
        for name, other in (("a", "b"), ("b", "a")):
            if request.path.endswith(f"/subjects/{name}/versions/1"):
                text = {"a": A, "b": B}[name]
                body = {"subject": name, "version": 1, "id": 9, "schema": text, "references": [ref("X", other, 1)]}
                return Reply.json(body)
        return None

    fake.after = circle
    found = read_snapshot(registry, Selection(include=("a",)))
    assert sorted(found.subjects) == ["a", "b"]


def test_references_without_an_end_are_a_named_error(
    fake: FakeRegistry, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_kafka_migration.schemas.snapshot.MAX_REFERENCE_DEPTH", 20)
    fake.seed("s1", A, id=1)

    def endless(request: Request, reply: Reply) -> Reply | None:
        parts = request.path.split("/")
        if len(parts) != 5 or parts[1] != "subjects":
            return None
        name = parts[2]
        body = {"subject": name, "version": 1, "id": 1, "schema": A}
        return Reply.json({**body, "references": [ref("X", f"s{int(name[1:]) + 1}", 1)]})

    fake.after = endless
    with pytest.raises(RegistryAnswerInvalid, match="without an end"):
        read_snapshot(registry, Selection())


def test_what_the_registry_does_not_have_is_absent_and_not_unread(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)

    def dangling(request: Request, reply: Reply) -> Reply | None:
        if request.path.endswith("/subjects/a/versions/1"):
            body = {"subject": "a", "version": 1, "id": 1, "schema": A, "references": [ref("X", "z", 4)]}
            return Reply.json(body)
        return None

    fake.after = dangling
    found = read_snapshot(registry, Selection())
    assert (found.absent, found.unread) == ({("z", 4)}, {})


def test_levels_and_modes_only_where_they_are_explicit(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)
    fake.seed("b", A, id=1)
    fake.seed(":.p:c", A, id=1)
    registry.set_config("a", {"compatibilityLevel": "NONE"})
    registry.set_config(":.p:", {"compatibilityLevel": "FULL"})
    registry.set_mode("b", "READONLY")
    found = read_snapshot(registry, Selection())
    assert {name: (item.config, item.mode) for name, item in found.subjects.items()} == {
        "a": ({"compatibilityLevel": "NONE"}, None),
        "b": (None, "READONLY"),
        ":.p:c": (None, None),
    }
    assert (found.global_config, found.global_mode) == ({"compatibilityLevel": "BACKWARD"}, "READWRITE")
    assert (found.context_configs, found.context_modes) == ({".p": {"compatibilityLevel": "FULL"}}, {})


def test_a_refusal_is_unread_and_never_absence(fake: FakeRegistry, registry: Registry) -> None:
    for name in ("a", "b", "c", "d"):
        fake.seed(name, A, id=1)

    def refuse(request: Request) -> Reply | None:
        for path in ("/subjects/a/versions", "/subjects/b/versions/1", "/config/c", "/mode/d"):
            if request.path == path:
                return Reply.error(403, 40301, "no right")
        return None

    fake.before = refuse
    found = read_snapshot(registry, Selection())
    assert list(found.unread) == [
        "compatibility level of c",
        "mode of d",
        "subject a",
        "subject b, version 1",
    ]
    assert "a" not in found.subjects
    assert found.subjects["b"].versions == ()
    assert seen(found)["c"] == [(1, 1, False)]


def test_a_light_pass_does_not_take_an_unread_level_for_none(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("c", A, id=1)
    registry.set_config("c", {"compatibilityLevel": "NONE"})
    fake.before = lambda request: Reply.error(403, 40301, "no") if request.path == "/config/c" else None
    cache = SnapshotCache()
    assert list(read_snapshot(registry, Selection(), cache=cache).unread) == ["compatibility level of c"]
    assert list(read_snapshot(registry, Selection(), cache=cache, light=True).unread) == ["compatibility level of c"]
    fake.before = None
    found = read_snapshot(registry, Selection(), cache=cache, light=True)
    assert (found.unread, found.subjects["c"].config) == ({}, {"compatibilityLevel": "NONE"})


def test_a_version_that_disappears_between_two_requests_is_left_out(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1, version=1)
    fake.seed("a", B, id=2, version=2)

    def delete(request: Request) -> None:
        if request.path == "/subjects/a/versions/1":
            fake.before = None
            registry.delete_version("a", 1)
            registry.delete_version("a", 1, permanent=True)

    fake.before = delete
    found = read_snapshot(registry, Selection(), parallel=1)
    assert (seen(found), found.unread) == ({"a": [(2, 2, False)]}, {})


def test_a_version_that_is_soft_deleted_between_two_requests_is_read(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)
    fake.seed("a", B, id=2, version=2)

    def delete(request: Request) -> None:
        if request.path == "/subjects/a/versions/1":
            fake.before = None
            registry.delete_version("a", 1)

    fake.before = delete
    found = read_snapshot(registry, Selection(), parallel=1)
    assert (seen(found), found.unread) == ({"a": [(1, 1, True), (2, 2, False)]}, {})


def test_an_answer_for_another_subject_is_unread(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)
    answer = Reply.json({"subject": "b", "version": 1, "id": 1, "schema": A})
    fake.before = lambda request: answer if request.path == "/subjects/a/versions/1" else None
    found = read_snapshot(registry, Selection())
    assert "returned version 1 of b" in found.unread["subject a, version 1"]


class Outage:
    """A registry that lists subjects and then stops answering."""

    def __init__(self) -> None:
        self.calls = 0

    def kind(self) -> str:
        return "confluent"

    def contexts(self) -> list[str]:
        return ["."]

    def subjects(self, *, deleted: bool = False) -> list[str]:
        return [f"s{number}" for number in range(1000)]

    def all_versions(self) -> None:
        return None

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        self.calls += 1
        raise RegistryUnreachable("no answer")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_an_outage_ends_the_pass_after_a_few_requests() -> None:
    registry = Outage()
    with pytest.raises(Transient, match="no answer"):
        read_snapshot(registry, Selection(), parallel=4)
    assert registry.calls < 20


def requests_of(fake: FakeRegistry) -> Counter[str]:
    found: Counter[str] = Counter()
    for request in fake.requests:
        parts = request.path.strip("/").split("/")
        found[parts[0] if len(parts) < 3 else f"{parts[0]}/*/{'/'.join(parts[2:3])}" + "/*" * (len(parts) > 3)] += 1
    return found


def test_the_number_of_requests_with_a_list_of_all_versions(
    fake: FakeRegistry, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_kafka_migration.registry.listing.PAGE", 100)
    for number in range(120):
        fake.seed(f"s{number:03}", A, id=1)
        fake.seed(f"s{number:03}", B, id=2, version=2, deleted=number % 2 == 0)
    cache = SnapshotCache()
    first = read_snapshot(registry, Selection(), cache=cache)
    assert (len(first.subjects), len(list(first.all_versions())), first.unread) == (120, 240, {})
    assert requests_of(fake)["subjects/*/versions"] == 0
    # Each page begins with the last entry of the one before: 100, 99, 41, and one that brings nothing new.
    assert requests_of(fake)["schemas"] == 4
    assert len(fake.requests) < 2 * 120 + 20
    fake.requests.clear()
    fake.seed("s100", C, id=3, version=3)
    registry.delete_version("s101", 1)
    fake.requests.clear()
    again = read_snapshot(registry, Selection(), cache=cache, light=True)
    assert len(fake.requests) < 20
    assert seen(again)["s100"] == [(1, 1, False), (2, 2, True), (3, 3, False)]
    assert seen(again)["s101"] == [(1, 1, True), (2, 2, False)]
    assert seen(again) == seen(read_snapshot(registry, Selection()))


@pytest.mark.parametrize("case", ["refused", "no deleted", "no subject", "moved", "repeated", "html"])
def test_a_list_of_all_versions_that_is_not_reliable_is_not_used(
    fake: FakeRegistry, registry: Registry, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("airflow_provider_kafka_migration.registry.listing.PAGE", 10)
    for number in range(25):
        fake.seed(f"s{number:02}", A, id=1)
        fake.seed(f"s{number:02}", B, id=2, version=2, deleted=True)
    pages: list[Request] = []

    def damage(request: Request, reply: Reply) -> Reply | None:
        if request.path != "/schemas":
            return None
        pages.append(request)
        rows = json.loads(reply.body)
        if case == "refused":
            return Reply.error(403, 40301, "no right")
        if case == "html":
            return Reply(200, b"<html>", {"Content-Type": "text/html"})
        if case in ("no deleted", "no subject"):
            rows[3].pop(case.removeprefix("no "))
        if case == "moved" and len(pages) == 2:
            rows = rows[1:]
        if case == "repeated" and len(pages) == 2:
            rows = [rows[0], rows[0]]
        return Reply.json(rows)

    fake.after = damage
    found = read_snapshot(registry, Selection())
    assert (len(found.subjects), len(list(found.all_versions())), found.unread) == (25, 50, {})
    assert requests_of(fake)["subjects/*/versions"] == 50
    assert pages


def test_a_subject_that_the_list_of_all_versions_lacks_is_listed_by_itself(
    fake: FakeRegistry, registry: Registry
) -> None:
    for number in range(25):
        fake.seed(f"s{number:02}", A, id=1)

    def without(request: Request, reply: Reply) -> Reply | None:
        if request.path != "/schemas":
            return None
        rows = json.loads(reply.body)
        return Reply.json(rows[-1:] if request.query["offset"] != "0" else [*rows[:7], *rows[8:]])

    fake.after = without
    found = read_snapshot(registry, Selection())
    assert len(found.subjects) == 25
    assert requests_of(fake)["subjects/*/versions"] == 2


def test_the_number_of_requests_with_lists_per_subject(
    fake: FakeRegistry, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "all_versions", lambda: None)
    for number in range(50):
        fake.seed(f"s{number:02}", A, id=1)
        fake.seed(f"s{number:02}", B, id=2, version=2)
    cache = SnapshotCache()
    first = read_snapshot(registry, Selection(), cache=cache)
    assert first.requests == 3 + 1 + 4 * 50 + 2 * 50 + 2
    fake.requests.clear()
    again = read_snapshot(registry, Selection(), cache=cache, light=True)
    assert seen(again) == seen(first)
    assert again.requests == 3 + 1 + 50 + 2
    assert requests_of(fake)["subjects/*/versions"] == 50
    assert requests_of(fake)["subjects/*/versions/*"] == 0


def test_a_light_pass_finds_what_is_new_deleted_and_restored(fake: FakeRegistry, registry: Registry) -> None:
    for name in ("a", "b", "c"):
        fake.seed(name, A, id=1)
        fake.seed(name, B, id=2, version=2)
    cache = SnapshotCache()
    read_snapshot(registry, Selection(), cache=cache)
    fake.seed("a", C, id=3, version=3)
    registry.delete_version("b", 1)
    registry.delete_subject("c")
    fake.seed("new", A, id=1)
    found = read_snapshot(registry, Selection(), cache=cache, light=True)
    assert seen(found) == seen(read_snapshot(registry, Selection()))
    assert seen(found) == {
        "a": [(1, 1, False), (2, 2, False), (3, 3, False)],
        "b": [(1, 1, True), (2, 2, False)],
        "c": [(1, 1, True), (2, 2, True)],
        "new": [(1, 1, False)],
    }
    fake.seed("c", A, id=1)
    found = read_snapshot(registry, Selection(), cache=cache, light=True)
    assert seen(found)["c"] == [(1, 1, False), (2, 2, True)]


def test_only_named_subjects_of_the_target_are_read(fake: FakeRegistry, registry: Registry) -> None:
    for name in ("a", "b"):
        fake.seed(name, A, id=1)
    found = read_snapshot(registry, Selection.exactly(["a", "z"]))
    assert (list(found.subjects), found.left_out) == (["a"], {"b": "not asked for"})


def test_ids_are_looked_up_once_and_absence_is_an_answer(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)
    fake.seed(":.p:a", B, id=2)
    refused = Reply.error(403, 40301, "no right")
    fake.before = lambda request: refused if request.path == "/schemas/ids/3" else None
    found, cache = RegistrySnapshot(), SnapshotCache()
    ask_ids(registry, found, [(".", 1), (".p", 2), (".", 2), (".", 3), (".p", 9)], cache=cache)
    assert list(found.unread) == ["schema id 3 in context ."]
    assert (".", 3) not in found.ids
    assert found.ids[(".", 1)] is not None
    assert found.ids[(".p", 2)] is not None
    assert (found.ids[(".", 2)], found.ids[(".p", 9)]) == (None, None)
    fake.requests.clear()
    ask_ids(registry, RegistrySnapshot(), [(".", 1), (".p", 2)], cache=cache)
    assert fake.requests == []


def test_progress_is_reported(fake: FakeRegistry, registry: Registry) -> None:
    fake.seed("a", A, id=1)
    lines: list[str] = []
    read_snapshot(registry, Selection(), progress=lines.append)
    assert lines[0] == "1 of 1 subjects listed"


@pytest.mark.parametrize("kind", ["karapace", "redpanda", "apicurio"])
def test_other_products(kind: str) -> None:
    base_path = "/apis/ccompat/v7" if kind == "apicurio" else ""
    with (
        FakeRegistry(kind, base_path=base_path) as fake,
        Registry(RegistryAccess.from_dict({"url": fake.url}), "source") as registry,
    ):
        fake.seed("a", A, id=1, version=2)
        fake.seed("a", B, id=2, version=3, deleted=True)
        fake.seed("b", C, id=3)
        fake.seed("gone", A, id=1, deleted=True)
        registry.set_config("a", {"compatibilityLevel": "FULL"})
        found = read_snapshot(registry, Selection())
        assert found.kind in (kind, "unknown")
        assert seen(found)["a"] == [(2, 1, False), (3, 2, True)]
        assert (found.subjects["a"].config or {})["compatibilityLevel"] == "FULL"
        assert found.subjects["b"].config is None
        assert not found.has_contexts
        # Apicurio shows versions of a wholly deleted subject by its own API only, which this fake does not have.
        hidden = {"subject gone, version 1"} if kind == "apicurio" else set()
        assert set(found.unread) == hidden
        assert seen(found)["gone"] == ([] if hidden else [(1, 1, True)])
        again = read_snapshot(registry, Selection.exactly(["a"]))
        assert seen(again) == {"a": seen(found)["a"]}
