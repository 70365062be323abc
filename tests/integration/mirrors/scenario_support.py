"""A mirror that runs in threads of the test, with topics of the test's own: what many scenarios share cheaply."""

from __future__ import annotations

import itertools
import json
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from airflow_provider_kafka_migration.cli.frame import Stop
from airflow_provider_kafka_migration.cli.mirrors.runner import MirrorRunner
from airflow_provider_kafka_migration.cli.runner import InProcessRunner
from airflow_provider_kafka_migration.errors import Interrupted
from airflow_provider_kafka_migration.journal.owner_process import OwnerProcess
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirror_maker.formats import Checkpoint
from airflow_provider_kafka_migration.mirror_maker.state_topics import StateTopics
from airflow_provider_kafka_migration.mirror_maker.state_writer import latest
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from harness.clients import commit_offsets, committed_offsets
from harness.compare import bounds, compare, read
from harness.processes import wait_for
from tests.integration.mirrors.mirror_support import SECONDS, Flow

Offsets = dict[tuple[str, int], int]


@dataclass
class Mirror:
    """A flow, run by threads of this process. What it is asked for by the command line reaches it, too."""

    flow: Flow
    error: BaseException | None = None
    _stop: Stop | None = None
    _thread: threading.Thread | None = None

    @contextmanager
    def opened(self, stop: Stop | None = None) -> Iterator[Migration]:
        resolver = Resolver()
        runner = InProcessRunner(resolver, lambda _: None, stop or Stop())
        migration = Migration.open(
            load_spec(self.flow.spec),
            "scenarios",
            resolver,
            actor="scenarios",
            kind="cli",
            process=OwnerProcess.of_this_process(),
            runner=runner,
            verifier=runner,
        )
        with migration:
            yield migration

    @contextmanager
    def reading(self) -> Iterator[PhaseContext]:
        """A context that only reads."""
        with self.opened() as migration, migration.reading() as context:
            yield context

    def state(self) -> State | None:
        with self.opened() as migration:
            return migration.status().state

    def start(self) -> None:
        """Run it, and wait until it mirrors."""
        self.begin()
        self.wait_mirrors()

    def wait_mirrors(self) -> None:
        """Wait until it mirrors."""

        def mirrors() -> bool:
            if self.error is not None:
                raise self.error
            return self.state() is State.TAIL

        wait_for(f"{self.flow.name} mirrors", mirrors, SECONDS, 0.3)

    def begin(self) -> None:
        """Run it."""
        self.error, self._stop = None, Stop()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name=self.flow.name, daemon=True)
        self._thread.start()

    def _run(self, stop: Stop) -> None:
        try:
            with self.opened(stop) as migration:
                MirrorRunner(migration, stop, on_result=lambda _: None).go()
                migration.release("the scenario's mirror has ended")
        except Interrupted:
            pass
        except BaseException as error:
            self.error = error

    def wait_end(self) -> None:
        """Wait until it ends by itself."""
        assert self._thread is not None
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), f"{self.flow.name} does not end"

    def stop(self) -> None:
        """Stop it as a signal would."""
        if self._thread is not None and self._stop is not None:
            self._stop.set()
            self.wait_end()
        self._thread = None


_numbers = itertools.count(1)


@dataclass
class Scene:
    """A running mirror, and what a scenario does with its clusters.

    :param transactional: producers write transactions, every third of them aborted.
    :param exactly_once: the mirror copies in transactions (``offsets.mode: transactional``): contents are equal,
        offsets are not. Positions of both sides are then compared by the number of records in front of them.
    """

    flow: Flow
    transactional: bool = False
    exactly_once: bool = False
    alias: str = "A"
    mirror: Mirror = field(init=False)

    def __post_init__(self) -> None:
        self.mirror = Mirror(self.flow)

    @property
    def source(self) -> KafkaCluster:
        return self.flow.source

    @property
    def target(self) -> KafkaCluster:
        return self.flow.target

    def name(self, stem: str) -> str:
        """A name that no other scenario of this mirror has."""
        return f"{self.flow.prefix}{stem}{next(_numbers)}"

    def create(self, stem: str, partitions: int = 2, config: Mapping[str, str] | None = None) -> str:
        """A topic on the source."""
        topic = self.name(stem)
        self.source.create_topics({topic: (partitions, dict(config or {}))})
        return topic

    def remote(self, topic: str) -> str:
        """Its name on the target."""
        return load_spec(self.flow.spec).topics.target_name(topic)

    def write(self, topic: str, partitions: Sequence[int], records: int = 10, codec: str = "none") -> None:
        """Write as many records into each of these partitions; committed ones."""
        if self.transactional:
            self._write_transactions(topic, partitions, records)
            return
        producer = Producer({**self.source.client_config(), "compression.type": codec, "linger.ms": 50})
        for partition in partitions:
            self._produce(producer, topic, partition, records, "")
        assert producer.flush(120) == 0

    def _write_transactions(self, topic: str, partitions: Sequence[int], records: int) -> None:
        producer = Producer({**self.source.client_config(), "transactional.id": self.name("writer")})
        producer.init_transactions(30)
        for number in range(3):
            is_aborted = number == 1
            producer.begin_transaction()
            for partition in partitions:
                # The first and the third are committed, with all records together.
                count = records // 2 if number == 0 else records - records // 2
                self._produce(producer, topic, partition, count, "aborted" if is_aborted else str(number))
            producer.abort_transaction(30) if is_aborted else producer.commit_transaction(30)

    @staticmethod
    def _produce(producer: Producer, topic: str, partition: int, records: int, mark: str) -> None:
        for _ in range(records):
            number = next(_numbers)
            producer.produce(topic, b"%d %s" % (number, mark.encode()), b"key %d" % (number % 7), partition)

    # -- what is mirrored ---------------------------------------------------------------------------------------------

    def ends(self, topic: str) -> Offsets:
        """Where a read_committed consumer of the source ends."""
        found = bounds(self.source.client_config(), [topic])[topic]
        return {(topic, number): item.end for number, item in found.items()}

    def wait_mirrored(self, *topics: str) -> None:
        """Until everything that is on the source now is on the target, at the same offsets if they are equal."""
        ends = {key: end for topic in topics for key, end in self.ends(topic).items()}

        def has_all() -> bool:
            if self.mirror.error is not None:
                raise self.mirror.error
            names = {self.remote(topic): topic for topic in topics}
            if not set(names) <= topics_of(self.target):
                return False
            try:
                reached = self._copied_ends(names) if self.exactly_once else self._log_ends(names)
            except KafkaException:
                return False  # a topic that has no leader yet
            return all(reached.get(key, 0) >= end for key, end in ends.items())

        wait_for(f"{', '.join(topics)} on the target", has_all, SECONDS, 0.2)
        if self.exactly_once:
            # The positions are committed with the records; markers arrive in the partitions one by one.
            wait_for(f"the commits of {', '.join(topics)}", lambda: not self.differences(*topics), SECONDS, 0.2)

    def _log_ends(self, names: Mapping[str, str]) -> Offsets:
        found = bounds(self.target.client_config(), names)
        return {(names[name], number): item.end for name, numbers in found.items() for number, item in numbers.items()}

    def _copied_ends(self, names: Mapping[str, str]) -> Offsets:
        """Source offsets, as the copies have committed them beside the records (docs/transactional.md)."""
        found = committed_offsets(self.target.client_config(), self.position_group, list(names))
        return {(names[name], number): offset for (name, number), offset in found.items()}

    @property
    def position_group(self) -> str:
        """The group on the target whose offsets are the positions of the copies in transactions."""
        return f"kafka-migration.{self.flow.name}"

    def check(self, *topics: str) -> None:
        """Contents are equal, and so are offsets, unless the mirror copies in transactions."""
        self.wait_mirrored(*topics)
        if self.exactly_once:
            assert self.differences(*topics) == []
            return
        names = {topic: self.remote(topic) for topic in topics}
        compare(self.source.client_config(), self.target.client_config(), names).check()

    def differences(self, *topics: str) -> list[str]:
        """Partitions that have other records on the target, or in another order; whatever their offsets."""
        there = read(self.target.client_config(), [self.remote(topic) for topic in topics])
        return [
            f"{topic}-{number}: {len(part.offsets)} records on the source, {len(copied.offsets)} on the target"
            for topic, numbers in read(self.source.client_config(), topics).items()
            for number, part in numbers.items()
            if (copied := there[self.remote(topic)][number]).digests != part.digests
        ]

    # -- positions on both sides --------------------------------------------------------------------------------------

    def places(self, offsets: Mapping[tuple[str, int], int]) -> Offsets:
        """What positions on the source have in common with their translations: see :meth:`places_of_copies`."""
        return self._places(self.source, offsets, {topic: topic for topic, _ in offsets})

    def places_of_copies(self, offsets: Mapping[tuple[str, int], int]) -> Offsets:
        """The offsets, if both sides have the same; otherwise the numbers of records in front of the positions.

        :param offsets: on the target, by the names of the source.
        """
        return self._places(self.target, offsets, {topic: self.remote(topic) for topic, _ in offsets})

    def _places(
        self, cluster: KafkaCluster, offsets: Mapping[tuple[str, int], int], names: Mapping[str, str]
    ) -> Offsets:
        if not self.exactly_once or not offsets:
            return dict(offsets)
        content = read(cluster.client_config(), names.values())
        found = {}
        for (topic, number), offset in offsets.items():
            part = content[names[topic]][number]
            assert part.log_start <= offset <= part.end, f"{names[topic]}-{number} ends at {part.end}, not at {offset}"
            found[topic, number] = bisect_left(part.offsets, offset)
        return found

    def troubles(self) -> dict[str, str]:
        """Source topic to the code of its trouble, as the status command shows it."""
        found = self.flow("status")["progress"]["tail"].get("troubles", [])
        return {item["topic"]: item["code"] for item in found}

    # -- groups -------------------------------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """On the source."""
        commit_offsets(self.source.client_config(), group, offsets)

    def on_target(self, group: str, *topics: str) -> Offsets:
        """What a group has committed on the target, by the names of the source."""
        names = {self.remote(topic): topic for topic in topics}
        found = committed_offsets(self.target.client_config(), group, list(names))
        return {(names[topic], number): offset for (topic, number), offset in found.items()}

    def wait_synced(self, group: str, wanted: Offsets, but: Sequence[str] = ()) -> None:
        """Until a group has exactly these positions on the target.

        :param but: further topics, in which it must have none.
        """
        wait_for(f"{group} on the target", lambda: self.has_positions(group, wanted, but), SECONDS, 0.3)

    def has_positions(self, group: str, wanted: Offsets, but: Sequence[str] = ()) -> bool:
        """Whether a group on the target continues where a group with these offsets continues on the source."""
        found = self.on_target(group, *{topic for topic, _ in wanted}, *but)
        return found.keys() == wanted.keys() and self.places_of_copies(found) == self.places(wanted)

    # -- state of MirrorMaker 2 ---------------------------------------------------------------------------------------

    @property
    def state_topics(self) -> StateTopics:
        return StateTopics(*self.flow.aliases)

    def check_checkpoint(self, group: str, topic: str, offset: int) -> int:
        """Check the checkpoint of partition 0: this offset of the source, and its translation, which is returned."""
        upstream, downstream = self.checkpoints()[group, self.remote(topic), 0]
        assert upstream == offset
        assert self.places_of_copies({(topic, 0): downstream}) == self.places({(topic, 0): offset})
        return downstream

    def checkpoints(self) -> dict[tuple[str, str, int], tuple[int, int]]:
        """(group, target topic, partition) -> (upstream, downstream offset), the newest."""
        with self.mirror.reading() as context:
            found = [
                Checkpoint.decode(*item) for item in latest(context.target.wire, self.state_topics.checkpoints).items()
            ]
        return {
            (item.group, item.topic, item.partition): (item.upstream_offset, item.downstream_offset) for item in found
        }


def topics_of(cluster: KafkaCluster, part: str = "") -> set[str]:
    """Names of topics with this part."""
    admin = cluster.admin()  # must outlive the call
    return {name for name in admin.list_topics(timeout=30).topics if part in name}


def file_reference(folder: Path, name: str, config: Mapping[str, str]) -> str:
    """A connection as a file that only its owner reads."""
    path = folder / f"{name}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(dict(config)), encoding="utf-8")
    return f"file:{path}"


def make_scene(
    request: pytest.FixtureRequest,
    folder: Path,
    clusters: tuple[KafkaCluster, KafkaCluster],
    configs: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
    *,
    transactional: bool = False,
    exactly_once: bool = False,
    **sections: Any,
) -> Scene:
    """A scene whose mirror has not started yet. Its names come from its folder, which is unique in a run."""
    stem = folder.name.replace("_", "-")
    keys = configs or (clusters[0].client_config(), clusters[1].client_config())
    connections = {
        side: {"conn_id": file_reference(folder, side, config)}
        for side, config in zip(("source", "target"), keys, strict=True)
    }
    aliases = (f"{stem}-a", f"{stem}-b")
    if exactly_once:
        # Slices that a transaction fits into on a busy machine, too.
        sections = {"offsets": {"mode": "transactional"}, "tail": {"slice_seconds": 5}, **sections}
    flow = Flow(*clusters, folder, f"{stem}-flow", f"{stem}.", aliases, {**connections, **sections})
    scene = Scene(flow, transactional, exactly_once)
    request.addfinalizer(scene.mirror.stop)
    return scene
