"""Which ids occur: counted, merged, bounded, stored."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.schema_ids.found import FoundIds, IdKey, Occurrence

KEYS = st.builds(
    IdKey,
    st.sampled_from(["key", "value"]),
    st.sampled_from(["id32", "id64"]),
    st.integers(0, 5),
) | st.builds(IdKey, st.just("value"), st.just("guid"), st.sampled_from(["a", "b"]))
SEEN = st.lists(st.tuples(KEYS, st.integers(0, 1000), st.integers(1, 5)))


def gathered(seen: list[tuple[IdKey, int, int]], max_ids: int = 100) -> FoundIds:
    found = FoundIds(max_ids)
    for key, offset, count in seen:
        found.add(key, offset, count)
    return found


@given(SEEN, SEEN)
def test_merged_stretches_equal_one(first: list[tuple[IdKey, int, int]], second: list[tuple[IdKey, int, int]]) -> None:
    merged = gathered(first)
    merged.merge(gathered(second))
    assert merged == gathered(first + second)
    assert sum(item.records for item in merged.ids.values()) == sum(count for _, _, count in first + second)


@given(SEEN)
def test_survives_json(seen: list[tuple[IdKey, int, int]]) -> None:
    found = gathered(seen)
    data = json.loads(json.dumps(found.as_list()))
    assert FoundIds.from_list(data) == found
    assert [tuple(item) for item in data] == FoundIds.from_list(data).as_list()


def test_first_offset_is_the_lowest() -> None:
    key = IdKey("value", "id32", 1)
    assert gathered([(key, 50, 1), (key, 20, 2), (key, 30, 1)]).ids[key] == Occurrence(4, 20)


def test_bounded() -> None:
    found = gathered([(IdKey("value", "id32", number), number, 2) for number in range(5)], max_ids=3)
    assert len(found) == 3
    assert found.left_out == 4
    assert not found.is_complete
    found.add(IdKey("value", "id32", 0), 9)
    assert found.left_out == 4
    other = FoundIds.from_list(found.as_list(), left_out=found.left_out)
    other.merge(found)
    assert other.left_out == 8
