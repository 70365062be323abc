"""Aliases, levels and modes of names without versions, which no list of the registry shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registry_world import World, avro, client, world
from sampled_logs import Logs

from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    FingerprintChanged,
    MigrationError,
    SchemaConflicts,
)
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.schemas.selection import Selection
from airflow_provider_kafka_migration.schemas.sync import selection_of
from airflow_provider_kafka_migration.schemas.unlisted import find_unlisted
from airflow_provider_kafka_migration.schemas.verify import FoundInRecords, compare_registries
from airflow_provider_kafka_migration.schemas.written import last_plan
from harness.fake_registry import FakeRegistry

NOTE = "names without versions"
ALIAS = {"alias": "orders-value"}


def entry(kind: str, subject: str | None, value: Any = None, **more: Any) -> tuple[bytes, bytes | None]:
    """A record of the topic in which a registry keeps what it knows."""
    key = {"keytype": kind, "subject": subject, "magic": 1, **more}
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


def topic_of(registry: FakeRegistry) -> list[tuple[bytes, bytes | None]]:
    """The topic of a registry, with what was set and removed again."""
    found = [(b"not json", b"x"), entry("NOOP", None), entry("CONFIG", "was-set", {"alias": "x"})]
    for name, versions in registry.store.subjects.items():
        found += [entry("SCHEMA", name, {"id": item.id}, version=number) for number, item in versions.items()]
    found += [entry("SCHEMA", "was-deleted", {"id": 1}, version=1), entry("SCHEMA", "was-deleted", version=1)]
    found += [entry("CONFIG", name, config) for name, config in registry.store.configs.items()]
    found += [entry("MODE", name, {"mode": mode}) for name, mode in registry.store.modes.items()]
    return [*found, entry("CONFIG", "was-set"), entry("CONFIG", None, {"compatibilityLevel": "FULL"})]


def fill(at: World) -> None:
    at.source.seed("orders-value", avro("O", "x"), id=7)
    at.source.store.configs["orders-alias"] = dict(ALIAS)
    at.source.store.configs["later-value"] = {"compatibilityLevel": "NONE"}
    at.source.store.modes["frozen-value"] = "READONLY"


def with_topic(at: World) -> None:
    at.context.source.wire = Logs(_schemas=topic_of(at.source))  # type: ignore[assignment]


def differences(at: World) -> list[str]:
    plan = last_plan(at.context.record)
    assert plan is not None
    with client(at.source, "source") as here, client(at.target, "target") as there:
        found = compare_registries(
            here, there, plan, at.id_map(), FoundInRecords(), selection=selection_of(at.context.record), at="now"
        )
    return [item.what for item in found.differences]


@pytest.mark.parametrize("ids", ["keep", "translate"])
def test_the_registrys_own_topic_shows_all_of_them(tmp_path: Path, ids: str) -> None:
    with world(tmp_path, ids=ids) as at:
        fill(at)
        with_topic(at)
        result = at.synchronize()
        assert (result.failed, result.subjects) == ([], 4)
        target = at.target.state()
        assert target["configs"]["orders-alias"] == ALIAS
        assert target["configs"]["later-value"] == {"compatibilityLevel": "NONE"}
        assert target["modes"]["frozen-value"] == "READONLY"
        assert list(target["subjects"]) == ["orders-value"]
        plan = last_plan(at.context.record)
        assert plan is not None
        assert not [note for note in plan.notes if NOTE in note]
        assert differences(at) == []
        before = len(at.target.writes)
        at.synchronize()
        at.synchronize("tail")
        assert len(at.target.writes) == before


def test_a_lost_alias_is_a_difference(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        fill(at)
        with_topic(at)
        at.synchronize()
        del at.target.store.configs["orders-alias"]
        assert differences(at) == ["alias of orders-alias is not set on the target and orders-value on the source"]


def test_an_alias_follows_a_renamed_subject(tmp_path: Path) -> None:
    with world(tmp_path, ids="translate", rename={"prefix": "x."}) as at:
        fill(at)
        with_topic(at)
        at.synchronize()
        assert at.target.state()["configs"]["x.orders-alias"] == {"alias": "x.orders-value"}


def test_what_the_target_has_set_itself_stays(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        fill(at)
        with_topic(at)
        at.target.store.configs["later-value"] = {"compatibilityLevel": "FULL"}
        with pytest.raises(SchemaConflicts, match="later-value is FULL on the target, and the source has NONE"):
            at.synchronize()


@pytest.mark.parametrize("other", ["no topic", "another registry's"])
def test_without_that_topic_likely_names_are_asked_for_and_the_rest_is_told(tmp_path: Path, other: str) -> None:
    with world(tmp_path, ids="keep", include=[".*", "orders-alias"]) as at:
        fill(at)
        if other == "another registry's":
            with_topic(at)
            at.source.seed("younger-value", avro("Y", "x"), id=9)
        at.synchronize()
        plan = last_plan(at.context.record)
        assert plan is not None
        (note,) = [note for note in plan.notes if NOTE in note]
        assert ("not those that the registry lists" if other != "no topic" else "there is none") in note
        assert at.target.state()["configs"]["orders-alias"] == ALIAS


def test_names_of_migrated_topics_are_likely(tmp_path: Path) -> None:
    with FakeRegistry() as registry, client(registry, "source") as source:
        registry.seed("a-value", avro("A", "x"), id=1)
        found = find_unlisted(None, source, Selection(topics={"a": "a", "b": "b"}, include=("o[rd]ers", "plain-name")))
        assert found.names == {"a-key", "b-key", "b-value", "plain-name"}


def test_a_source_that_does_not_answer_leaves_likely_names(tmp_path: Path) -> None:
    """The plan of the schemas needs no broker; a connection to another cluster is a mistake all the same."""

    def opens(error: MigrationError) -> Wire:
        raise error

    with FakeRegistry() as registry, client(registry, "source") as source:
        selection = Selection(topics={"a": "a"})
        found = find_unlisted(lambda: opens(BrokerUnreachable("no broker answers")), source, selection)
        assert found.names == {"a-key", "a-value"}
        assert "no broker answers" in found.note
        with pytest.raises(FingerprintChanged):
            find_unlisted(lambda: opens(FingerprintChanged("another cluster")), source, selection)


def test_what_is_excluded_is_not_asked_for(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep", exclude=["later-.*", "frozen-.*"]) as at:
        fill(at)
        with_topic(at)
        assert at.synchronize().subjects == 2
        assert "later-value" not in at.target.state()["configs"]


@pytest.mark.parametrize("others", [["orders-value"], []])
def test_a_subject_that_is_an_alias_and_has_versions_of_its_own(tmp_path: Path, others: list[str]) -> None:
    """Asked for it, the registry answers with the versions of the other one; its list shows both."""
    with world(tmp_path, ids="keep", include=["bulk-value", *others]) as at:
        at.source.seed("orders-value", avro("O", "x"), id=7)
        at.source.seed("orders-value", avro("O", "x", "y", y=0), id=8, version=2)
        at.source.seed("bulk-value", avro("B", "x"), id=9, version=3)
        at.source.store.configs["bulk-value"] = dict(ALIAS)
        with at.pair() as pair:
            result = at.synchronize("schemas", pair)
            again = at.synchronize("tail", pair)
        assert (result.failed, result.unread, again.failed, again.unread) == ([], {}, [], {})
        assert list(at.target_subjects()["bulk-value"]) == [3]
        assert ("orders-value" in at.target_subjects()) is bool(others)
