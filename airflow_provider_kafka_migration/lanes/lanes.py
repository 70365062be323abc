"""Lanes: units of parallel work. A stable, size-balanced assignment of partitions."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from airflow_provider_kafka_migration.documents.plan import LanePlan
from airflow_provider_kafka_migration.kafka.wire import TopicPartition

#: An empty partition costs a little, too: it is looked at in each slice.
_BASE_BYTES = 64 * 1024


def assign_lanes(sizes: Mapping[TopicPartition, int], lanes: int) -> list[LanePlan]:
    """Largest first, each to the lightest lane; ties by name and lane, so equal input gives equal lanes.

    :param sizes: bytes by (topic, partition); below 0 where not known.
    """
    count = max(1, min(lanes, len(sizes)))
    members: list[list[TopicPartition]] = [[] for _ in range(count)]
    heap = [(0, lane) for lane in range(count)]
    for key, size in sorted(sizes.items(), key=lambda item: (-max(item[1], 0), item[0])):
        weight, lane = heapq.heappop(heap)
        members[lane].append(key)
        heapq.heappush(heap, (weight + max(size, 0) + _BASE_BYTES, lane))
    return [
        LanePlan(
            lane=lane,
            partitions=sorted(keys),
            size_bytes=sum(max(sizes[key], 0) for key in keys),
        )
        for lane, keys in enumerate(members)
    ]


def add_to_lanes(lanes: list[LanePlan], added: Mapping[TopicPartition, int]) -> list[LanePlan]:
    """New partitions join the lightest lane; what is assigned stays where it is."""
    weights = {lane.lane: lane.size_bytes + _BASE_BYTES * len(lane.partitions) for lane in lanes}
    members = {lane.lane: list(lane.partitions) for lane in lanes}
    sizes = {lane.lane: lane.size_bytes for lane in lanes}
    for key, size in sorted(added.items(), key=lambda item: (-max(item[1], 0), item[0])):
        lane = min(weights, key=lambda number: (weights[number], number))
        members[lane].append(key)
        sizes[lane] += max(size, 0)
        weights[lane] += max(size, 0) + _BASE_BYTES
    return [
        LanePlan(lane=number, partitions=sorted(members[number]), size_bytes=sizes[number])
        for number in sorted(members)
    ]
