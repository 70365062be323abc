"""The demo's schemas on real registries: confluent-kafka's serializers work with them, and both are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.schemas import INVOICES, SHIPMENTS, Decoded, Reader, Writer, expected, judge_schemas, seeds, stored
from harness.registries import RegistryPair, SeedVersion

pytestmark = pytest.mark.integration


def test_records_of_the_source_are_read_with_the_target_that_got_the_same_ids(registries: RegistryPair) -> None:
    registries.source.seed(seeds())
    writer = Writer(registries.source.url)
    records = [(topic, *writer.record(topic, number)) for topic in (INVOICES, SHIPMENTS) for number in range(3)]
    writer.change()
    records.append((INVOICES, *writer.record(INVOICES, 3)))
    source = stored(registries.source)
    assert len(source) == len(seeds()) + 1
    assert {key: each.id for key, each in source.items() if each.deleted} == {
        (f"{INVOICES}-value", 5): 1013,
        ("shop.returns-value", 1): 1030,
    }

    registries.target.seed(
        SeedVersion(
            subject,
            version,
            each.id,
            each.text,
            "PROTOBUF" if "proto" in subject or subject.startswith(SHIPMENTS) else "AVRO",
            tuple((name, other, int(number)) for name, other, number in each.references),
            each.deleted,
        )
        for (subject, version), each in source.items()
    )
    target = stored(registries.target)
    verdict = judge_schemas(source, target, Decoded(7, 1), 7)
    assert verdict.problems == []
    assert verdict.summary() == {"subjects": 6, "versions": 8, "ids_kept": True, "decoded_records": 7}
    changed = {**target, (f"{INVOICES}-key", 1): replace(target[f"{INVOICES}-key", 1], id=5)}
    assert judge_schemas(source, changed, Decoded(7, 1), 7).problems == ["the target's registry has other ids"]

    reader = Reader(registries.target.url)
    read = [reader.read(*record) for record in records]
    assert [number for number, _ in read] == [0, 1, 2, 0, 1, 2, 3]
    assert read[-1][1] == expected(INVOICES, 3, changed=True)
    assert read[3][1] == expected(SHIPMENTS, 0, changed=False)
