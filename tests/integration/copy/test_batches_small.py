"""Producers that do not wait write a batch for each record: joined on the way, equal on the target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.brokers import KafkaCluster
from harness.compare import Record
from harness.load import write
from tests.integration.copy.conftest import MakeCopying
from tests.integration.copy.test_batches_codecs import CODECS, records_of_all_sizes
from tests.integration.copy.test_batches_holes import shapes

pytestmark = [pytest.mark.integration, pytest.mark.soak]

COUNT = 2_000


@pytest.mark.parametrize("via", ["direct", "s3"])
def test_batches_of_one_record(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    via: str,
) -> None:
    single = {**source_cluster.client_config(), "batch.num.messages": 1, "linger.ms": 0}
    topics = {codec: unique_name(f"single-{codec}") for codec in CODECS}
    for codec, topic in topics.items():
        source_cluster.create_topic(topic, 1, config={"retention.ms": "-1"})
        odd = records_of_all_sizes(codec, up_to=30_000)[:200]
        # Times go back and forth by years.
        plain = [
            (0, Record(-1, 1_700_000_000_000 - number * 86_400_000, b"%d" % number, b"v" * (number % 300)))
            for number in range(COUNT)
        ]
        write(single, topic, [*odd, *plain], codec=codec)
        assert len(shapes(source_cluster, topic)) == 200 + COUNT
    copy = copying(list(topics.values()), via=via)
    copy.run()
    copy.compare().check()
    for topic in topics.values():
        found = shapes(target_cluster, topic)
        assert sum(count for _, _, count in found) == 200 + COUNT
        assert len(found) < COUNT / 5
