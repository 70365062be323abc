"""Documents of mirrors that version 1 has written stay readable, for ever: their files are never rewritten."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, Promotion

CASES = Path(__file__).parents[2] / "cases" / "mirror" / "v1"


def test_a_request() -> None:
    data = (CASES / "request.json").read_bytes()
    request = MirrorRequest.parse(data)
    assert (request.number, request.want, request.source_gone, request.refused) == (3, "promoted", True, "")
    assert request.canonical() == data


def test_a_promotion() -> None:
    data = (CASES / "promotion.json").read_bytes()
    found = Promotion.parse(data)
    assert [item.possibly_lost for item in found.partitions] == [15, 0]
    assert found.partitions[1].source_end_offset == -1
    assert found.canonical() == data
