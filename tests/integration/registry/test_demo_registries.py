"""The demo's schemas on real registries: confluent-kafka's serializers work with them, and both are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.schemas import INVOICES, SHIPMENTS, Decoded, Reader, Stored, Writer, expected, judge_schemas, seeds, stored
from harness.registries import RegistryPair, SeedVersion

pytestmark = [pytest.mark.integration, pytest.mark.soak]


def as_seed(subject: str, version: int, held: Stored) -> SeedVersion:
    kind = "PROTOBUF" if "proto" in subject or subject.startswith(SHIPMENTS) else "AVRO"
    references = tuple((name, other, int(number)) for name, other, number in held.references)
    return SeedVersion(subject, version, held.id, held.text, kind, references, held.deleted)


Record = tuple[str, bytes, bytes]


@pytest.fixture(scope="module")
def records(registries: RegistryPair) -> list[Record]:
    """Records written with the source, the last one with a changed schema; the target then gets the same schemas."""
    registries.source.seed(seeds())
    writer = Writer(registries.source.url)
    written = [(topic, *writer.record(topic, number)) for topic in (INVOICES, SHIPMENTS) for number in range(3)]
    writer.change()
    written.append((INVOICES, *writer.record(INVOICES, 3)))
    source = stored(registries.source)
    registries.target.seed(as_seed(*key, held) for key, held in source.items())
    return written


def test_both_registries_are_compared(registries: RegistryPair, records: list[Record]) -> None:
    source, target = stored(registries.source), stored(registries.target)
    assert len(source) == len(seeds()) + 1
    assert {key: each.id for key, each in source.items() if each.deleted} == {
        (f"{INVOICES}-value", 5): 1013,
        ("shop.returns-value", 1): 1030,
    }
    verdict = judge_schemas(source, target, Decoded(7, 1, 4), 11)
    assert verdict.problems == []
    assert verdict.summary() == {"subjects": 6, "versions": 8, "ids_kept": True, "decoded_records": 7}
    changed = {**target, (f"{INVOICES}-key", 1): replace(target[f"{INVOICES}-key", 1], id=5)}
    assert judge_schemas(source, changed, Decoded(7, 1, 4), 11).problems == ["the target's registry has other ids"]


def test_records_of_the_source_are_read_with_the_target(registries: RegistryPair, records: list[Record]) -> None:
    reader = Reader(registries.target.url)
    read = [reader.read(*record) for record in records]
    assert [number for number, _ in read] == [0, 1, 2, 0, 1, 2, 3]
    assert read[-1][1] == expected(INVOICES, 3, changed=True)
    assert read[3][1] == expected(SHIPMENTS, 0, changed=False)
