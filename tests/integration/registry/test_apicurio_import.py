"""Fixed ids on a real Apicurio: what its import does with a registry that is not empty, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import (
    MigrationError,
    SchemaIdConflict,
    SchemaIdIgnored,
    SchemaIncompatible,
    SchemaNotFound,
)
from airflow_provider_kafka_migration.registry import apicurio_zip
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.apicurio import Apicurio
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.model import Reference, RegisteredSchema, Schema
from harness.registries import ApicurioRegistry

pytestmark = pytest.mark.integration

#: Ids and names of records that no other test of the module uses; each test takes its own.
_ids = count(1000, 100)
_names = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApicurioRegistry]:
    with ApicurioRegistry(tmp_path_factory.mktemp("apicurio")) as running:
        yield running


@pytest.fixture
def registry(server: ApicurioRegistry) -> Iterator[Registry]:
    access = RegistryAccess.from_dict({"url": server.url}, timeout_seconds=60, retry_seconds=60)
    with Registry(access, "target") as client:
        client.set_config(None, {"compatibilityLevel": "NONE"})
        yield client


@pytest.fixture
def own_api(registry: Registry) -> Apicurio:
    found = registry.apicurio()
    assert found is not None
    return found


def avro(**more: Any) -> Schema:
    """An Avro record that no other call returns."""
    record = {"type": "record", "name": f"R{next(_names)}", "fields": [{"name": "x", "type": "int"}], **more}
    return Schema("AVRO", json.dumps(record, separators=(",", ":")))


def row(subject: str, version: int, id_: int, schema: Schema, *, deleted: bool = False) -> RegisteredSchema:
    return RegisteredSchema(subject, version, id_, schema, deleted=deleted)


def held(registry: Registry, subject: str) -> list[RegisteredSchema]:
    """What Confluent's API shows of a subject, deleted versions included."""
    live = set(registry.versions(subject))
    found = [registry.schema(subject, version, deleted=True) for version in registry.versions(subject, deleted=True)]
    return [row(each.subject, each.version, each.id, each.schema, deleted=each.version not in live) for each in found]


def latest(server: ApicurioRegistry, subject: str) -> int:
    return int(server.request("GET", f"{server.url}/subjects/{subject}/versions/latest")["version"])


# -- what comes in ----------------------------------------------------------------------------------------------------


def test_gaps_deletions_references_and_shared_ids(
    registry: Registry, own_api: Apicurio, server: ApicurioRegistry
) -> None:
    id_, shared = next(_ids), avro()
    message = Schema("PROTOBUF", f'syntax = "proto3";\nmessage M{id_} {{ string c = 1; }}\n')
    outer = Schema(
        "PROTOBUF",
        f'syntax = "proto3";\nimport "m.proto";\nmessage N{id_} {{ M{id_} m = 1; }}\n',
        (Reference("m.proto", "m-value", 4),),
    )
    rows = [
        row("a-value", 3, id_, shared),
        row("a-value", 4, id_ + 3, avro(), deleted=True),
        row("a-value", 6, id_ + 7, avro()),
        row("b-value", 1, id_, shared),
        row("m-value", 4, id_ + 20, message),
        row("n-value", 2, id_ + 10, outer),
        row("j-value", 1, id_ + 21, Schema("JSON", json.dumps({"type": "object", "title": f"J{id_}"}))),
        row("odd/name % ä", 2, id_ + 30, avro()),
    ]
    registry.register("own-value", avro())
    for _ in range(2):  # the second time nothing is left to do
        own_api.import_schemas(rows)
        for subject in {each.subject for each in rows}:
            assert held(registry, subject) == [each for each in rows if each.subject == subject]
    assert latest(server, "a-value") == 6
    assert registry.schema_by_id(id_) == shared
    # Producers that register what is there get the ids that were imported.
    assert registry.register("a-value", shared).id == id_
    assert registry.register("another-value", outer).id == id_ + 10


def test_a_wholly_deleted_subject(registry: Registry, own_api: Apicurio) -> None:
    gone = row("gone-value", 2, next(_ids), avro(), deleted=True)
    own_api.import_schemas([gone])
    assert "gone-value" not in registry.subjects()
    assert "gone-value" in registry.subjects(deleted=True)
    assert registry.schema("gone-value", 2, deleted=True) == gone
    with pytest.raises(SchemaNotFound):
        registry.schema("gone-value", 3, deleted=True)


def test_new_versions_in_the_tail_become_the_latest(
    registry: Registry, own_api: Apicurio, server: ApicurioRegistry
) -> None:
    id_ = next(_ids)
    first = [row("tail-value", 1, id_, avro()), row("tail-value", 3, id_ + 1, avro())]
    own_api.import_schemas(first)
    more = [
        row("tail-value", 5, id_ + 5, avro()),
        row("tail-value", 7, id_ + 6, avro(), deleted=True),
        row("tail-value", 8, id_ + 4, avro()),
    ]
    own_api.import_schemas([*first, *more])
    assert held(registry, "tail-value") == first + more
    assert latest(server, "tail-value") == 8
    own_api.import_schemas([row("tail-value", 2, id_ + 9, avro())])
    assert registry.versions("tail-value") == [1, 2, 3, 5, 8]
    assert latest(server, "tail-value") == 8


def test_an_id_that_is_there_for_a_new_subject_with_a_gap(registry: Registry, own_api: Apicurio) -> None:
    id_, shared, other = next(_ids), avro(), avro()
    own_api.import_schemas([row("first-value", 1, id_, shared)])
    rows = [
        row("second-value", 4, id_, shared),
        row("second-value", 5, id_ + 1, other),
        row("second-value", 7, id_ + 2, avro()),
        row("third-value", 2, id_ + 1, other, deleted=True),
    ]
    own_api.import_schemas(rows)
    assert held(registry, "second-value") == rows[:3]
    assert held(registry, "third-value") == rows[3:]


@pytest.mark.soak
def test_more_versions_than_one_archive_and_one_list_take(
    registry: Registry, own_api: Apicurio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_kafka_migration.registry.apicurio._BATCH_ROWS", 500)
    id_ = next(_ids) + 1_000_000
    rows = [row("many-value", number, id_ + number, avro()) for number in range(1, 511)]
    own_api.import_schemas(rows)
    assert registry.versions("many-value") == list(range(1, 511))


def test_the_state_of_what_is_there_is_made_right(registry: Registry, own_api: Apicurio) -> None:
    id_ = next(_ids)
    rows = [row("state-value", 1, id_, avro()), row("state-value", 2, id_ + 1, avro(), deleted=True)]
    own_api.import_schemas(rows)
    turned = [row(each.subject, each.version, each.id, each.schema, deleted=not each.deleted) for each in rows]
    own_api.import_schemas(turned)
    assert held(registry, "state-value") == turned


# -- conflicts --------------------------------------------------------------------------------------------------------


def test_each_conflict_is_named_before_anything_is_written(registry: Registry, own_api: Apicurio) -> None:
    id_, here = next(_ids), avro()
    own_api.import_schemas([row("here-value", 1, id_, here)])
    twice = avro()
    wanted = [
        row("new-1", 1, id_, avro()),
        row("new-2", 1, id_ + 1, here),
        row("here-value", 1, id_ + 2, avro()),
        row("new-3", 1, id_ + 3, twice),
        row("new-3", 2, id_ + 4, twice),
        row("new-4", 1, id_ + 5, avro()),
        row("new-4", 2, id_ + 5, avro()),
        row("new-5", 1, id_ + 6, avro()),
    ]
    with pytest.raises(SchemaIdConflict) as caught:
        own_api.import_schemas(wanted)
    assert sorted(caught.value.details["conflicts"]) == sorted(
        [
            f"id {id_} is there with another schema",
            f"the schema with id {id_ + 1} is there under another id",
            f"version 1 of here-value is there with id {id_}, not {id_ + 2}",
            f"ids {id_ + 3} and {id_ + 4} are wanted for one schema; Apicurio has one id for each",
            f"id {id_ + 5} is wanted for two different schemas",
        ]
    )
    assert not [name for name in registry.subjects(deleted=True) if name.startswith("new-")]
    assert registry.schema_by_id(id_ + 6) is None


def test_a_number_below_the_highest_cannot_be_given_to_a_known_id(registry: Registry, own_api: Apicurio) -> None:
    id_, known = next(_ids), avro()
    own_api.import_schemas([row("known-value", 1, id_, known), row("low-value", 3, id_ + 1, avro())])
    with pytest.raises(SchemaIdIgnored, match="version 1 of low-value"):
        own_api.import_schemas([row("low-value", 1, id_, known)])
    assert registry.versions("low-value", deleted=True) == [3]


def test_the_ordinary_way_checks_compatibility(registry: Registry, own_api: Apicurio) -> None:
    id_, known = next(_ids), avro()
    own_api.import_schemas([row("known-2-value", 1, id_, known), row("strict-value", 1, id_ + 1, avro())])
    registry.set_config("strict-value", {"compatibilityLevel": "BACKWARD"})
    with pytest.raises(SchemaIncompatible):
        own_api.import_schemas([row("strict-value", 2, id_, known)])
    registry.set_config("strict-value", {"compatibilityLevel": "NONE"})
    own_api.import_schemas([row("strict-value", 2, id_, known)])
    assert registry.schema("strict-value", 2).id == id_


# -- attempts that are killed -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture
def kill_after(own_api: Apicurio, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kills the next import after so many writes."""
    send = own_api._rest.exchange

    def arm(writes: int) -> None:
        left = iter(range(writes))

        def exchange(method: str, addresses: list[str], **options: Any) -> Any:
            if method != "GET" and next(left, None) is None:
                raise Killed
            return send(method, addresses, **options)

        monkeypatch.setattr(own_api._rest, "exchange", exchange)

    return arm


@pytest.mark.soak
def test_an_import_that_is_killed_at_each_write_is_simply_repeated(
    registry: Registry, own_api: Apicurio, kill_after: Callable[[int], None]
) -> None:
    was_killed, writes = True, 0
    while was_killed:
        id_, shared, known = next(_ids), avro(), avro()
        base, grown, late = (f"{name}-{id_}" for name in ("base", "grown", "late"))
        kill_after(1000)
        own_api.import_schemas([row(base, 1, id_, shared), row(grown, 1, id_ + 1, known)])
        wanted = [
            row(grown, 3, id_ + 2, avro()),
            row(grown, 4, id_ + 3, avro(), deleted=True),
            row(late, 3, id_, shared),
            row(late, 5, id_ + 4, avro()),
            row(late, 6, id_ + 1, known, deleted=True),
        ]
        kill_after(writes)
        try:
            own_api.import_schemas(wanted)
            was_killed = False
        except Killed:
            writes += 1
        kill_after(1000)
        own_api.import_schemas(wanted)
        assert held(registry, grown)[1:] == wanted[:2]
        assert held(registry, late) == wanted[2:]
    assert writes >= 10


def test_entries_that_apicurio_skips_are_an_error(own_api: Apicurio, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive lacks the contents, so Apicurio skips the versions and answers 204."""
    monkeypatch.setattr(apicurio_zip, "_write_content", lambda *_: None)
    with pytest.raises(SchemaIdIgnored, match="accepted them without an error, but does not have them"):
        own_api.import_schemas([row("skipped-value", 1, next(_ids), avro())])


def test_two_imports_at_once_end_well_or_with_a_named_error(registry: Registry, own_api: Apicurio) -> None:
    id_ = next(_ids)
    wanted = [row(f"race-{number}", 2, id_ + number, avro()) for number in range(20)]

    def attempt(_: int) -> MigrationError | None:
        try:
            own_api.import_schemas(wanted)
        except MigrationError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(attempt, range(2)))
    own_api.import_schemas(wanted)
    for each in wanted:
        assert held(registry, each.subject) == [each]


# -- levels and export ------------------------------------------------------------------------------------------------


def test_a_level_of_its_own_is_told_from_a_default(registry: Registry) -> None:
    registry.register("level-value", avro())
    for level in ("FULL", "NONE"):
        assert registry.config("level-value") is None
        registry.set_config("level-value", {"compatibilityLevel": level})
        assert registry.config("level-value") == {"compatibilityLevel": level}
        registry.delete_config("level-value")
    assert registry.config("level-value") is None
    assert registry.config("nobody") is None


def test_an_export_is_an_archive(own_api: Apicurio) -> None:
    assert own_api.export().startswith(b"PK")
    assert own_api.info["version"].startswith("3.")
