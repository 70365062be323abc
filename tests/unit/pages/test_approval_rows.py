"""The rows of an approval that a person reads: some of each kind, however many there are of one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.pages.approval import with_each_kind


def test_many_groups_do_not_hide_a_topic() -> None:
    rows = [["group", f"g{number:03d}", ""] for number in range(200)] + [["topic", "orders", "excluded"]]
    found = with_each_kind(rows, 50)
    assert found[:49] == rows[:49]
    assert found[49] == ["topic", "orders", "excluded"]
    assert sorted(found) == sorted(rows)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=2))), st.integers(1, 8))
def test_the_first_rows_have_a_share_of_each_kind(rows: list[tuple[str, str]], limit: int) -> None:
    found = with_each_kind(rows, limit)
    assert sorted(found) == sorted(rows)
    first, kinds = found[:limit], {kind for kind, _ in rows}
    assert first == sorted(first, key=lambda row: row[0])
    counts = {kind: sum(row[0] == kind for row in first) for kind in kinds}
    for kind in kinds:
        has_all = counts[kind] == sum(row[0] == kind for row in rows)
        assert has_all or counts[kind] >= max(counts.values()) - 1
