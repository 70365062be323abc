"""Source gaps are named before anybody goes on behind them, once for all readers, whoever is killed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.copy.archive import joined, read_gaps, write_gap
from airflow_provider_kafka_migration.documents.copy import CopyPartition, SourceGapRecord
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.storage.local import LocalStore

CASES = Path(__file__).parents[2] / "cases"


def partition(topic: str, number: int) -> CopyPartition:
    return CopyPartition(
        topic=topic,
        target_topic=f"new.{topic}",
        partition=number,
        topic_id="8f3d5c1be0a94c6f9a8d5f0b6c1f2a3d",
        source_start_offset=0,
        target_start_offset=0,
        verdict=Verdict.EQUAL,
    )


def test_gaps_of_all_copiers_are_joined(tmp_path: Path) -> None:
    journal, archive = LocalStore(str(tmp_path / "journal")), LocalStore(str(tmp_path / "archive"))
    assert read_gaps((journal, archive), "m-1") == {}
    orders = partition("orders", 0)
    write_gap(journal, "m-1", orders, (100, 155))
    write_gap(journal, "m-1", orders, (100, 155))
    write_gap(journal, "m-1", orders, (100, 180))  # killed before it went on: met again, and longer
    write_gap(journal, "m-1", orders, (7, 9))
    write_gap(archive, "m-1", partition(".hidden", 11), (0, 3))
    write_gap(journal, "m-10", orders, (1, 2))
    assert read_gaps((journal, archive, journal), "m-1") == {
        (".hidden", 11): [(0, 3)],
        ("orders", 0): [(7, 9), (100, 180)],
    }


def test_a_gap_of_version_1(tmp_path: Path) -> None:
    data = (CASES / "source_gap" / "v1" / "gap.json").read_bytes()
    document = SourceGapRecord.parse(data)
    assert document.canonical() == data.rstrip(b"\n")
    store = LocalStore(str(tmp_path))
    write_gap(store, document.migration_id, partition("orders", 0), (document.from_offset, document.until_offset))
    (info,) = store.list()
    assert store.get(info.key) == data.rstrip(b"\n")
    assert info.key == f"orders-2026/source-gaps/orders/0/{100:020d}-{155:020d}.json"


def test_a_gap_that_cannot_be_named_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(store, "put_new", refuse)
    with pytest.raises(OSError, match="full"):
        write_gap(store, "m-1", partition("orders", 0), (1, 2))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))))
def test_joined_ranges_hold_the_same_offsets(gaps: list[tuple[int, int]]) -> None:
    found = joined(gaps)
    assert {offset for gap in found for offset in range(*gap)} == {offset for gap in gaps for offset in range(*gap)}
    assert all(one[1] < two[0] for one, two in pairwise(found))
