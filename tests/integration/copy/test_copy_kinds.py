"""Every kind of source log ends on the target with equal content at equal offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.brokers import KafkaCluster
from harness.copying import Copying
from harness.load import load, tiny_topics

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_all_kinds_end_equal(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str], via: str
) -> None:
    topics = tiny_topics(unique_name("k") + ".")
    load(source_cluster, topics, seed=7)
    copy = copying([topic.name for topic in topics], lanes=2, via=via, job_fields={"segment_max_bytes": 20_000})
    progress = copy.run()
    assert progress["partitions_done"] == sum(topic.partitions for topic in topics)
    assert int(progress["holes"]) > 100  # compaction and transactions are in there
    comparison = copy.compare()
    comparison.check()
    assert {name: item.content_equal and item.offsets_equal for name, item in comparison.topics.items()} == {
        topic.name: True for topic in topics
    }


def test_a_second_seed_copies_nothing_and_reads_no_source_bytes(
    copying: Callable[..., Copying], source_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topics = tiny_topics(unique_name("k") + ".")[:2]
    load(source_cluster, topics, seed=8)
    copy = copying([topic.name for topic in topics], via="s3")
    first = copy.run()
    again = copy.run()
    assert int(first["records"]) > 0
    assert (again["records"], again["source_bytes"]) == (0, 0)
    copy.compare().check()
