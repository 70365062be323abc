"""What the soaks of mirrors share: faults by a seed, faults of brokers, and what must be there at the end."""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import Record, TopicPartitionKey, bounds, compare
from harness.faults.judge import Damage, judge_equal
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, KeptMirror
from tests.integration.mirrors.scenario_support import topics_of

#: A broker that has just started may not know its topics yet; librdkafka's producer would give up on them.
PATIENT = {"topic.metadata.propagation.max.ms": "3600000"}

#: For flows whose brokers are killed: a short slice also shortens the time after which a topic that is not there counts
#: as deleted, and a broker that has just started may not know its topics yet.
LONG_SLICES = {"tail": {"slice_seconds": 20}}

#: Makes a fault; False: there was nothing that could have failed.
Fault = Callable[[], bool | None]


@dataclass
class Soak:
    """Faults at random, which the seed repeats."""

    seed: int
    seconds: float
    choose: random.Random = field(init=False)
    kinds: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.choose = random.Random(self.seed)

    @classmethod
    def from_environment(cls, seconds: float) -> Soak:
        """A run with the seed and the length that the environment asks for; prints both.

        :param seconds: the length by default.
        """
        seed = int(os.environ.get("MIRROR_SOAK_SEED") or random.SystemRandom().randrange(1 << 32))
        soak = cls(seed, float(os.environ.get("MIRROR_SOAK_SECONDS") or seconds))
        print(f"MIRROR_SOAK_SEED={soak.seed} MIRROR_SOAK_SECONDS={soak.seconds:g}", flush=True)
        return soak

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.kinds.total()} faults {dict(sorted(self.kinds.items()))}"

    def run(self, faults: Mapping[str, Fault], check: Callable[[], None], pause_seconds: tuple[float, float]) -> None:
        """Make one fault after the other until the time is over, each kind once before any of them comes again.

        :param check: what must be true some time after each of them.
        :param pause_seconds: shortest and longest time between two faults.
        """
        self._began, next_ones = time.monotonic(), list[str]()
        while time.monotonic() < self._began + self.seconds:
            if not next_ones:
                next_ones = sorted(faults)
                self.choose.shuffle(next_ones)
            name = next_ones.pop()
            self.tell(name)
            if faults[name]() is False:
                self.tell("there was nothing to fail")
            else:
                self.kinds[name] += 1
            time.sleep(self.choose.uniform(*pause_seconds))
            check()

    def tell(self, what: str) -> None:
        """Print what happens, with the seconds since the first fault."""
        print(f"{time.monotonic() - self._began:6.0f} s: {what}", flush=True)

    def broker_faults(self, clusters: Sequence[KafkaCluster]) -> dict[str, Fault]:
        """Brokers are killed and frozen, one at a time."""

        def killed() -> None:
            cluster = self.choose.choice(clusters)
            index = self.choose.randrange(cluster.brokers)
            cluster.kill(index)
            time.sleep(self.choose.uniform(0, 3))
            cluster.restart(index)

        def frozen() -> None:
            cluster = self.choose.choice(clusters)
            index = self.choose.randrange(cluster.brokers)
            cluster.pause(index)
            time.sleep(self.choose.uniform(1, 8))
            cluster.resume(index)

        return {"broker killed": killed, "broker frozen": frozen}

    def group_fault(self, sites: Iterable[Site]) -> dict[str, Fault]:
        """All groups move forward or back."""

        def moved() -> None:
            for site in sites:
                site.move_group(self.choose.uniform(0.1, 0.9))

        return {"groups moved": moved}


@dataclass
class Site:
    """A cluster, what is written to it first, and a group that reads this."""

    alias: str
    cluster: KafkaCluster
    topics: Sequence[str]
    group: str
    producers: list[LiveProducer] = field(default_factory=list)

    def move_group(self, fraction: float) -> None:
        """Commit a fraction of each partition: 0 the log start, 1 the end."""
        config = self.cluster.client_config()
        commit_offsets(config, self.group, positions(config, self.topics, fraction))

    def acknowledged(self) -> dict[TopicPartitionKey, list[Record]]:
        """What its producers know to be there."""
        found: dict[TopicPartitionKey, list[Record]] = defaultdict(list)
        for producer in self.producers:
            for place, records in producer.acknowledged.items():
                found[place] += records
        return found

    def count(self) -> int:
        """Number of acknowledged records."""
        return sum(producer.count() for producer in self.producers)

    @classmethod
    def open(cls, opened: ExitStack, soak: Soak, alias: str, cluster: KafkaCluster, prefix: str) -> Site:
        """A site with one topic of two partitions, ``orders`` behind the prefix, and a producer that writes to it.

        :param opened: closes the producer.
        """
        topic = f"{prefix}orders"
        cluster.create_topics({topic: (2, {})})
        config, seed = {**cluster.client_config(), **PATIENT}, soak.choose.randrange(1 << 16)
        producer = opened.enter_context(LiveProducer(config, {topic: [0, 1]}, records_per_second=100, seed=seed))
        return cls(alias, cluster, [topic], f"{prefix}group.{alias}", [producer])


@dataclass(frozen=True)
class Route:
    """Topics that a flow mirrors, and a group that reads them.

    :param names: topic on the source -> topic on the target.
    """

    source: Site
    target: Site
    names: Mapping[str, str]
    group: str

    @property
    def name(self) -> str:
        return f"{self.source.alias} -> {self.target.alias} of {', '.join(sorted(self.names))}"

    def copied(self) -> int:
        """The sum of the ends of what is on the target by now."""
        there = set(self.names.values()) & topics_of(self.target.cluster)
        found = bounds(self.target.cluster.client_config(), there) if there else {}
        return sum(part.end for numbers in found.values() for part in numbers.values())

    def is_complete(self) -> bool:
        """Whether the target has the ends of the source, and the group stands there on both."""
        there = self.target.cluster
        if not set(self.names.values()) <= topics_of(there):
            return False
        try:
            wanted = self._ends(self.source.cluster, {name: name for name in self.names}, self.names)
            own = {name: name for name in self.names.values()}
            if self._ends(there, own, own) != wanted:
                return False
            return committed_offsets(there.client_config(), self.group, self.names.values()) == wanted
        except KafkaException:
            return False  # a broker has just been started again

    @staticmethod
    def _ends(
        cluster: KafkaCluster, topics: Mapping[str, str], names: Mapping[str, str]
    ) -> dict[TopicPartitionKey, int]:
        found = bounds(cluster.client_config(), topics)
        return {(names[name], number): item.end for name, numbers in found.items() for number, item in numbers.items()}


def wait_written(sites: Sequence[Site], records: int) -> None:
    """Wait until so many more records are acknowledged at each site."""
    before = [site.count() for site in sites]
    wait_for(
        f"{records} more records at {', '.join(site.alias for site in sites)}",
        lambda: all(site.count() >= count + records for site, count in zip(sites, before, strict=True)),
        SECONDS,
    )


def kill_each(soak: Soak, mirrors: Sequence[KeptMirror], sites: Sequence[Site], routes: Sequence[Route]) -> None:
    """Kill each mirror once (SIGKILL), in the order of the seed, while it copies what is being written.

    It is started again when all sites have more records.
    """
    for mirror in soak.choose.sample(mirrors, len(mirrors)):
        for route in routes:
            if (route.source.alias, route.target.alias) == mirror.flow.aliases:
                copied = route.copied()
                wait_for(f"records of {route.name}", lambda r=route, c=copied: r.copied() > c, SECONDS)  # type: ignore[misc]
        mirror.kill()
        soak.kinds["mirror killed"] += 1
        soak.tell(f"SIGKILL of {mirror.name}")
        wait_written(sites, 100)
        mirror.look()


def mirror_fault(soak: Soak, mirrors: Sequence[KeptMirror]) -> dict[str, Fault]:
    """One of the mirrors is killed, and started again within seconds."""

    def killed() -> None:
        mirror = soak.choose.choice(mirrors)
        mirror.kill()
        time.sleep(soak.choose.uniform(0, 3))
        mirror.look()

    return {"mirror killed": killed}


def settle(
    soak: Soak, sites: Sequence[Site], routes: Sequence[Route], seconds: float, check: Callable[[], None]
) -> None:
    """Stop the producers, move the groups to the ends, and wait until each flow has everything.

    :param seconds: for each route.
    :param check: what must be true meanwhile.
    """
    for site in sites:
        for producer in site.producers:
            producer.freeze()
        site.move_group(1.0)
    for route in routes:

        def healed(route: Route = route) -> bool:
            check()
            return route.is_complete()

        wait_for(f"everything of {route.name}", healed, seconds, 1.0)
        soak.tell(f"{route.name} is complete")


def check_settled(sites: Sequence[Site], routes: Sequence[Route], part: str) -> Damage:
    """Check that contents and offsets are equal, acknowledged records are there once and in order, and no more topics.

    :param part: all names of topics that belong to the soak have it.
    :returns: the sum over all routes, without damage.
    """
    total = Damage()
    for route in routes:
        configs = (route.source.cluster.client_config(), route.target.cluster.client_config())
        total.add(judge_equal(*configs, route.names))
        assert not total.found, f"{route.name}: {total}"
        # It also compares log starts and partitions, and shows what differs.
        compare(*configs, route.names).check()
    for site in sites:
        acknowledged = site.acknowledged()
        assert acknowledged, f"nothing was written to {site.alias}"
        for place, records in acknowledged.items():
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets)), f"{site.alias} has {place} in another order than it was written"
        for cluster, names in _copies(site, routes):
            there = {(names[topic], number): found for (topic, number), found in acknowledged.items()}
            assert lost_records(cluster.client_config(), there) == []
    for site in sites:
        mirrored = {name for route in routes if route.target is site for name in route.names.values()}
        assert topics_of(site.cluster, part) == {*site.topics, *mirrored}, f"{site.alias}: no topic comes back"
    return total


def _copies(site: Site, routes: Sequence[Route]) -> Iterator[tuple[KafkaCluster, dict[str, str]]]:
    """Each cluster that has the topics of a site, over any number of flows, with their names there."""
    reached = [(site, {topic: topic for topic in site.topics})]
    while reached:
        there, names = reached.pop()
        yield there.cluster, names
        for route in routes:
            if route.source is there and set(names.values()) <= set(route.names):
                reached.append((route.target, {topic: route.names[name] for topic, name in names.items()}))
