"""How admin requests are cut: by number of items and by what they weigh for a controller; retries item by item."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import BrokerBusy, BrokerRefused
from airflow_provider_kafka_migration.kafka.admin import wire_admin
from airflow_provider_kafka_migration.kafka.admin.base import AdminBase
from airflow_provider_kafka_migration.kafka.admin.topics import (
    API_DESCRIBE_QUORUM,
    MAX_RECORDS_PER_REQUEST,
    MAX_RECORDS_ZOOKEEPER,
    NewTopic,
    TopicsAdmin,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError, batches, item_error


@given(st.lists(st.integers(0, 50)), st.integers(1, 7), st.integers(1, 60))
def test_batches_keep_order_and_bounds(weights: list[int], size: int, limit: int) -> None:
    items = list(range(len(weights)))
    cut = list(batches(items, size, weights.__getitem__, limit))
    assert [item for batch in cut for item in batch] == items
    for batch in cut:
        assert 0 < len(batch) <= size
        assert len(batch) == 1 or sum(weights[item] for item in batch) <= limit


class _Controller:
    """Counts the records of each CreateTopics request."""

    def __init__(self, *, kraft: bool) -> None:
        versions = {API_DESCRIBE_QUORUM: (0, 2)} if kraft else {}
        self._connection = SimpleNamespace(api_versions=versions)
        self.requests: list[int] = []

    def connection(self) -> Any:
        return self._connection

    def controller_request(self, request: Any, **_: Any) -> Any:
        self.requests.append(sum(1 + topic.num_partitions + len(topic.configs) for topic in request.topics))
        answers = [
            SimpleNamespace(name=topic.name, topic_id=None, error_code=0, error_message=None)
            for topic in request.topics
        ]
        return SimpleNamespace(topics=answers)


@pytest.mark.parametrize(("kraft", "limit"), [(True, MAX_RECORDS_PER_REQUEST), (False, MAX_RECORDS_ZOOKEEPER)])
def test_no_request_is_too_much_for_a_controller(kraft: bool, limit: int) -> None:
    controller = _Controller(kraft=kraft)
    admin = TopicsAdmin(cast(Any, controller), "target")
    topics = [NewTopic(f"t{number:03d}", 100, 1, {"retention.ms": "1"}) for number in range(90)]
    topics.append(NewTopic("wide", 5_000, 1))
    answers = admin.create_topics(topics)
    assert len(answers) == 91
    assert max(size for size in controller.requests if size != 5_001) <= limit
    assert controller.requests.count(5_001) == 1


def test_a_fault_inside_a_broker_is_asked_again_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts throws; so does a policy with a bug, each time. What it did before it threw is not known."""
    codes: dict[str, list[int]] = {"starting": [-1, -1, 0], "made": [-1, 36], "policy": [-1] * 99}
    seconds = iter(range(1000))

    def send(batch: list[str]) -> dict[str, ItemError | None]:
        return {name: item_error(codes[name].pop(0), "java.lang.IllegalStateException") for name in batch}

    monkeypatch.setattr(wire_admin.time, "monotonic", lambda: float(next(seconds)))
    admin = AdminBase(cast(Any, SimpleNamespace(metadata=lambda _: None)), "target")
    admin._sleep = cast(Callable[[float], None], lambda _: None)
    found = admin.in_batches(["starting", "made", "policy"], send, done_codes=frozenset({36}))
    assert (found["starting"], found["made"]) == (None, None)
    assert str(found["policy"]) == "UNKNOWN_SERVER_ERROR: java.lang.IllegalStateException"
    assert 80 < len(codes["policy"]) < 99


def test_an_item_without_an_answer_is_not_asked_again() -> None:
    asked: list[list[str]] = []
    admin = AdminBase(cast(Any, SimpleNamespace()), "target")
    found = admin.in_batches(["a"], lambda batch: asked.append(batch) or {})  # type: ignore[func-returns-value]
    assert (str(found["a"]), len(asked)) == ("NO_ANSWER: the broker did not answer for this item", 1)


def test_a_fault_in_a_listing_is_transient() -> None:
    admin = AdminBase(cast(Any, SimpleNamespace()), "source")
    with pytest.raises(BrokerBusy, match=r"groups cannot be listed: UNKNOWN_SERVER_ERROR \(-1\)"):
        admin.check(-1, None, "groups cannot be listed")
    with pytest.raises(BrokerRefused, match="INVALID_REQUEST"):
        admin.check(42, None, "groups cannot be listed")


def test_retriable_items_are_sent_again_and_the_others_are_not() -> None:
    sent: list[list[str]] = []
    codes: dict[str, list[int]] = {"busy": [7, 41, 0], "bad": [40], "good": [0], "late": [7, 36]}

    def send(batch: list[str]) -> dict[str, ItemError | None]:
        sent.append(batch)
        return {name: item_error(codes[name].pop(0)) for name in batch}

    refreshed: list[Any] = []
    admin = AdminBase(cast(Any, SimpleNamespace(metadata=refreshed.append)), "target")
    admin._sleep = cast(Callable[[float], None], lambda _: None)
    found = admin.in_batches(["busy", "bad", "good", "late"], send, done_codes=frozenset({36}))
    assert sent == [["busy", "bad", "good", "late"], ["busy", "late"], ["busy"]]
    assert {name: error.code if error else 0 for name, error in found.items()} == {
        "busy": 0,
        "bad": 40,
        "good": 0,
        # It timed out and is there now: it was us.
        "late": 0,
    }
    assert refreshed == [[]]
