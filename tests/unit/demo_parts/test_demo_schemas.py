"""The demo's records with schemas: written with one registry, read with another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_kafka_migration.freeze import sentinel_records
from demo import schemas
from demo.schemas import INVOICES, SHIPMENTS, Decoded, Reader, Stored, Writer, expected, judge_schemas, seeds
from harness.fake_registry import FakeRegistry


def fill(registry: FakeRegistry) -> None:
    """Seed a fake as Apicurio's import seeds the real one."""
    for each in sorted(seeds(), key=lambda seed: len(seed.references)):
        references = [
            {"name": name, "subject": subject, "version": version} for name, subject, version in each.references
        ]
        registry.seed(
            each.subject,
            each.text,
            id=each.id,
            version=each.version,
            kind=each.kind,
            references=references,
            deleted=each.deleted,
        )


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry("apicurio") as running:
        fill(running)
        yield running


class TestRecords:
    @pytest.mark.parametrize("topic", [INVOICES, SHIPMENTS])
    def test_they_are_in_wire_format_and_can_be_read(self, registry: FakeRegistry, topic: str) -> None:
        writer, reader = Writer(registry.url), Reader(registry.url)
        for number in (0, 7, 4_000_000):
            key, value = writer.record(topic, number)
            assert reader.read(topic, key, value) == (number, expected(topic, number, changed=False))
        schema_id = 1010 if topic == INVOICES else 1017
        assert value[:5] == b"\0" + schema_id.to_bytes(4, "big")
        # Shipment is the second message of its file: one index, 1, as zigzag varints.
        assert topic == INVOICES or value[5:7] == bytes([2, 2])
        assert topic == SHIPMENTS or key[:5] == b"\0" + (1001).to_bytes(4, "big")

    def test_the_schema_changes_between_two_records(self, registry: FakeRegistry) -> None:
        writer, reader = Writer(registry.url), Reader(registry.url)
        before = writer.record(INVOICES, 1)
        changed_id = writer.change()
        after = writer.record(INVOICES, 2)
        assert changed_id > 1030
        assert after[1][:5] == b"\0" + changed_id.to_bytes(4, "big")
        assert reader.read(INVOICES, *before)[1] == expected(INVOICES, 1, changed=False)
        assert reader.read(INVOICES, *after)[1] == {**expected(INVOICES, 2, changed=True), "currency": "CHF"}
        assert registry.state()["subjects"][f"{INVOICES}-value"][6]["references"] == [
            ["shop.Address", "shop.Address", 2]
        ]

    @pytest.mark.parametrize("topic", [INVOICES, SHIPMENTS])
    def test_without_the_schema_nothing_is_read(self, registry: FakeRegistry, topic: str) -> None:
        key, value = Writer(registry.url).record(topic, 1)
        with FakeRegistry("apicurio") as empty, pytest.raises(Exception, match="not found"):
            Reader(empty.url).read(topic, key, value)


def held() -> dict[tuple[str, int], Stored]:
    return {
        (each.subject, each.version): Stored(
            each.id,
            each.deleted,
            each.text,
            tuple((name, subject, str(number)) for name, subject, number in each.references),
        )
        for each in seeds()
    }


class TestVerdict:
    def test_everything_has_moved(self) -> None:
        verdict = judge_schemas(held(), held(), Decoded(100, 3, 4), 104)
        assert verdict.problems == []
        assert verdict.summary() == {"subjects": 6, "versions": 7, "ids_kept": True, "decoded_records": 100}

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"id": 9}, "other ids"),
            ({"deleted": False}, "differs"),
            ({"text": "other"}, "differs"),
            ({"references": ()}, "differs"),
        ],
    )
    def test_a_version_that_differs_is_a_problem(self, change: dict[str, object], problem: str) -> None:
        target = held()
        key = (f"{INVOICES}-value", 5)
        target[key] = replace(target[key], **change)  # type: ignore[arg-type]
        verdict = judge_schemas(held(), target, Decoded(100, 3, 4), 104)
        assert problem in verdict.problems[0]
        assert verdict.ids_kept is ("id" not in change)

    def test_missing_and_additional_versions_are_problems(self) -> None:
        less = held()
        del less["address.proto", 1]
        assert "missing on the target" in judge_schemas(held(), less, Decoded(1, 1, 4), 5).problems[0]
        assert "only on the target" in judge_schemas(less, held(), Decoded(1, 1, 4), 5).problems[0]
        assert judge_schemas(held(), less, Decoded(1, 1, 4), 5).ids_kept is False

    def test_records_that_were_not_decoded_are_problems(self) -> None:
        decoded = Decoded(99, 0, 3, ["shop.invoices: a record cannot be decoded: 404"])
        problems = judge_schemas(held(), held(), decoded, 104).problems
        assert problems == [
            "shop.invoices: a record cannot be decoded: 404",
            "3 sentinels in 4 partitions with schemas",
            "99 of 101 records with schemas were decoded on the target",
            "no record of the changed schema has arrived",
        ]


def test_sentinels_are_recognized_as_the_product_writes_them() -> None:
    assert schemas.SENTINEL.encode() == sentinel_records.HEADER


def test_the_seeds_have_gaps_deletions_references_and_two_formats() -> None:
    versions = seeds()
    assert {each.kind for each in versions} == {"AVRO", "PROTOBUF"}
    assert sum(each.deleted for each in versions) == 2
    assert sum(bool(each.references) for each in versions) == 3
    numbers = [each.version for each in versions if each.subject == f"{INVOICES}-value"]
    assert numbers == [3, 5]
    assert schemas.TOPICS.keys() == {INVOICES, SHIPMENTS}
