"""One fetch of one partition, when the broker has nothing to say of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import BrokerBusy
from airflow_provider_kafka_migration.kafka.fetch import FetchedPartition
from airflow_provider_kafka_migration.replication.reading import fetch_span


def throttled_wire(answers: list[list[Any]]) -> Any:
    """Answers one after the other; tries again as long as there are some."""

    def retrying(attempt: Any) -> Any:
        while True:
            try:
                return attempt()
            except BrokerBusy:
                if not answers:
                    raise

    return SimpleNamespace(
        config=SimpleNamespace(name="source"), retrying=retrying, fetch_once=lambda *_, **__: answers.pop(0)
    )


def test_an_answer_without_partitions_is_a_quota_that_is_used_up() -> None:
    empty = SimpleNamespace(error_code=0, records=memoryview(b""))
    found: FetchedPartition = fetch_span(throttled_wire([[], [], [empty]]), ("orders", 0), 7)
    assert found is empty
    with pytest.raises(BrokerBusy, match="quota") as caught:
        fetch_span(throttled_wire([[], []]), ("orders", 0), 7)
    assert caught.value.where.offset == 7
