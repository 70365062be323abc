"""The real registries of the tests: seeded ids, gaps and deletions are what Confluent's API shows."""

from __future__ import annotations

from typing import Any

import pytest

from harness.processes import HarnessError
from harness.registries import ApicurioRegistry, RegistryPair, SeedVersion

pytestmark = [pytest.mark.integration, pytest.mark.soak]

RECORD = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}'
MESSAGE = 'syntax = "proto3";\nmessage M { string c = 1; }\n'
OUTER = 'syntax = "proto3";\nimport "m.proto";\nmessage N { M m = 1; }\n'


@pytest.fixture(scope="module")
def source(registries: RegistryPair) -> ApicurioRegistry:
    registries.source.seed(
        [
            SeedVersion("a-value", 3, 100, RECORD),
            SeedVersion("a-value", 4, 103, '"string"', deleted=True),
            SeedVersion("a-value", 6, 107, '"int"'),
            SeedVersion("b-value", 1, 100, RECORD),
            SeedVersion("m-value", 1, 201, MESSAGE, "PROTOBUF"),
            SeedVersion("n-value", 2, 199, OUTER, "PROTOBUF", (("m.proto", "m-value", 1),)),
            SeedVersion("gone-value", 1, 301, '"long"', deleted=True),
        ]
    )
    return registries.source


def get(registry: ApicurioRegistry, path: str) -> Any:
    return registry.request("GET", registry.url + path)


def test_subjects_versions_and_ids_are_those_that_were_seeded(source: ApicurioRegistry) -> None:
    assert get(source, "/subjects") == ["a-value", "b-value", "m-value", "n-value"]
    assert get(source, "/subjects?deleted=true") == ["a-value", "b-value", "gone-value", "m-value", "n-value"]
    assert get(source, "/subjects/a-value/versions") == [3, 6]
    assert get(source, "/subjects/a-value/versions?deleted=true") == [3, 4, 6]
    assert get(source, "/schemas/ids/100/versions") == [
        {"subject": "a-value", "version": 3},
        {"subject": "b-value", "version": 1},
    ]
    found = get(source, "/subjects/n-value/versions/2")
    assert (found["id"], found["schema"]) == (199, OUTER)
    assert found["references"] == [{"name": "m.proto", "subject": "m-value", "version": 1}]


def test_the_next_id_is_above_the_seeded_ones(source: ApicurioRegistry) -> None:
    assert source.register("new-value", '"bytes"') > 301


def test_the_level_is_that_of_confluent(source: ApicurioRegistry) -> None:
    assert get(source, "/config")["compatibilityLevel"] == "BACKWARD"


def test_the_target_is_empty_and_another_server(registries: RegistryPair, source: ApicurioRegistry) -> None:
    assert get(registries.target, "/subjects?deleted=true") == []
    assert registries.target.url != source.url


def test_a_refusal_is_an_error(source: ApicurioRegistry) -> None:
    with pytest.raises(HarnessError, match="HTTP 404"):
        get(source, "/subjects/nobody/versions")
