"""Whether a proven range still says something of the target's log: another epoch, a lower end, an emptied log."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from content_support import compare, content_range, copy_of, log_of
from fake_partition import KEY, FakeClients, FakePartition
from id_support import SHIFT, at, map_document, prefixed, uses

from airflow_provider_kafka_migration.compare.proven import Anchor, grown, is_another_log, still_holds
from airflow_provider_kafka_migration.compare.runner import ContentChecker
from airflow_provider_kafka_migration.documents.proof import ContentJob, ProvenRange
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings, TopicIdSettings
from airflow_provider_kafka_migration.kafka.batches.api import Record
from airflow_provider_kafka_migration.kafka.wire import Wire
from airflow_provider_kafka_migration.storage.base import ObjectStore


def proven(wire: FakePartition, until: int) -> ProvenRange:
    log = log_of(until)
    piece = content_range(0, until)
    anchor = Anchor.below(cast(Wire, wire), KEY, until)
    return grown(None, piece, compare(log, copy_of(log), piece), anchor, (0, 0))


def is_another(wire: FakePartition, found: ProvenRange) -> bool:
    return is_another_log(cast(Wire, wire), found, *KEY)


def holds(wire: FakePartition, found: ProvenRange) -> bool:
    return still_holds(cast(Wire, wire), found, *KEY)


def test_a_range_holds_as_long_as_the_log_is_the_same() -> None:
    wire = FakePartition([3] * 60)
    found = proven(wire, 25)
    assert (found.anchor_offset, found.anchor_epoch) == (24, 3)
    assert holds(wire, found)
    assert not is_another(wire, found)
    assert not is_another(FakePartition([3] * 60, start_offset=40), found)
    assert holds(FakePartition([3] * 25 + [4] * 60), found), "another leader has gone on behind it"
    assert holds(FakePartition([3] * 60, start_offset=40), found), "what was deleted there was proven before"


@pytest.mark.parametrize(
    "now",
    [
        FakePartition([3] * 20 + [4] * 40),  # an unclean election: what was lost is written again under a newer epoch
        FakePartition([3] * 24),  # the log ends below the anchor
        FakePartition([3] * 10),  # far below it: the broker answers OFFSET_OUT_OF_RANGE
        FakePartition([]),  # emptied
        FakePartition([3] * 60, topic_id="id 2"),  # deleted and made again: its epochs begin at 0 again
        FakePartition([3] * 60, start_offset=40, topic_id="id 2"),
        FakePartition([3] * 60, topic_id=""),  # the topic is gone, or the broker does not tell
    ],
    ids=[
        "another epoch",
        "ends at the anchor",
        "ends below the anchor",
        "emptied",
        "new topic",
        "new topic, cut",
        "no id",
    ],
)
def test_a_range_does_not_hold_for_a_log_that_was_cut_or_written_again(now: FakePartition) -> None:
    found = proven(FakePartition([3] * 60), 25)
    assert not holds(now, found)
    assert is_another(now, found)


def test_a_range_without_an_anchor_holds_only_if_it_is_empty() -> None:
    wire = FakePartition([3] * 60)
    empty = grown(
        None, content_range(0, 0), compare(log_of(1), log_of(1), content_range(0, 0)), Anchor(topic_id="id 1"), (0, 0)
    )
    assert holds(wire, empty.model_copy(update={"target_end_offset": 0})) is True
    assert holds(wire, proven(wire, 25).model_copy(update={"anchor_offset": -1})) is False


def test_a_range_of_an_older_release_names_no_topic_and_is_not_trusted() -> None:
    wire = FakePartition([3] * 60)
    assert holds(wire, proven(wire, 25).model_copy(update={"target_topic_id": ""})) is False
    nameless = FakePartition([3] * 60, topic_id="")
    assert holds(nameless, proven(nameless, 25)) is False, "no id is not the same id"


def job(target_end: int, *, attempt: int = 1) -> ContentJob:
    return ContentJob(
        migration_id="m1",
        attempt=attempt,
        journal_location="file:///tmp",
        start_from_proven=True,
        ranges=[content_range(0, target_end)],
    )


def test_a_stored_result_is_used_only_after_a_look_at_the_anchor(local_store: ObjectStore) -> None:
    """The very same job, run again after its process died; the target was written again in between."""
    target = FakePartition([3] * 30)
    clients = FakeClients(FakePartition([1] * 30), target, local_store)

    def run() -> int:
        target.fetched.clear()
        with ContentChecker(job(30), clients, local_store) as checker:
            found = checker.check(content_range(0, 30))
        assert (found.is_proven, found.compared) == (True, 30)
        return len(set(target.fetched))

    assert run() == 30
    assert run() == 1, "the anchor"
    target.epochs = [3] * 20 + [4] * 10
    assert run() == 30
    target.topic_id = "id 2"
    assert run() == 30
    assert run() == 1


def test_a_range_grows_only_from_what_still_holds(local_store: ObjectStore) -> None:
    target = FakePartition([3] * 30)
    clients = FakeClients(FakePartition([1] * 60), target, local_store)
    with ContentChecker(job(30, attempt=0), clients, local_store) as checker:
        checker.check(content_range(0, 30))
        target.epochs = [5] * 60
        target.fetched.clear()
        assert checker.check(content_range(0, 60)).compared == 60
    assert set(target.fetched) >= set(range(30)), "compared from its start"


# -- schema ids ------------------------------------------------------------------------------------------------------


def id_job(target_end: int, settings: SchemaIdSettings | None, **update: object) -> ContentJob:
    return job(target_end).model_copy(update={"schema_ids": settings, **update})


def id_settings(*, rewrite: bool = True) -> SchemaIdSettings:
    return SchemaIdSettings(
        id_map_key="m1/schemas/id-map.json", topics={"orders": TopicIdSettings(parts="value", rewrite=rewrite)}
    )


def with_ids(shift: int = 0) -> Callable[[int], Record]:
    return lambda offset: at(offset, prefixed(offset % 3 + 1 + shift))


def test_a_proven_range_without_ids_is_compared_again(local_store: ObjectStore) -> None:
    """It was compared before the plan knew that the topic's records carry ids; none of its ids may be left out."""
    target = FakePartition([3] * 30, record=with_ids())
    clients = FakeClients(FakePartition([1] * 60, record=with_ids()), target, local_store)
    settings = id_settings(rewrite=False)
    with ContentChecker(id_job(30, None), clients, local_store) as checker:
        assert checker.check(content_range(0, 30)).schema_id_rule == ""
    with ContentChecker(id_job(30, settings), clients, local_store) as checker:
        target.fetched.clear()
        found = checker.check(content_range(0, 30))
        assert set(target.fetched) == set(range(30))
        assert uses(found) == [("value", "id32", number + 1, 10, number) for number in range(3)]
        target.epochs = [3] * 60
        target.fetched.clear()
        whole = checker.check(content_range(0, 60))
        assert set(target.fetched) == {59, 29, *range(30, 60)}, "the anchors, and what follows the proven range"
    assert (whole.is_proven, whole.compared) == (True, 60)
    assert uses(whole) == [("value", "id32", number + 1, 20, number) for number in range(3)]


def test_a_partition_is_compared_under_the_stored_id_map(local_store: ObjectStore) -> None:
    source, target = FakePartition([1] * 30, record=with_ids()), FakePartition([3] * 30, record=with_ids(SHIFT))
    clients = FakeClients(source, target, local_store)
    with ContentChecker(id_job(30, id_settings()), clients, local_store) as checker:
        assert checker.check(content_range(0, 30)).difference_count == 30, "without a map, no id is known"
        local_store.put("m1/schemas/id-map.json", map_document([1, 2]).canonical())
        found = checker.check(content_range(0, 30))
        assert found.difference_count == 10, "of an id that the map does not have yet"
        assert {item.source_offset for item in found.differences} == set(range(2, 30, 3))
        local_store.put("m1/schemas/id-map.json", map_document([1, 2, 3]).canonical())
        found = checker.check(content_range(0, 30))
    assert found.is_proven
    assert found.schema_id_rule == "value, context ., rewritten"
    assert [use[:4] for use in uses(found)] == [("value", "id32", number, 10) for number in (1, 2, 3)]


@pytest.mark.parametrize("data", [b"{", b"[]"])
def test_an_id_map_that_cannot_be_read_leaves_the_partition_uncompared(local_store: ObjectStore, data: bytes) -> None:
    local_store.put("m1/schemas/id-map.json", data)
    source, target = FakePartition([1] * 30, record=with_ids()), FakePartition([3] * 30, record=with_ids(SHIFT))
    with ContentChecker(id_job(30, id_settings()), FakeClients(source, target, local_store), local_store) as checker:
        found = checker.check(content_range(0, 30))
    assert found.error is not None
    assert not found.is_equal
    assert "map of schema ids" in found.error["what"]
