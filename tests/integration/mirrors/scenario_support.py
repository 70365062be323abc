"""A mirror that runs in threads of the test, with topics of the test's own: what many scenarios share cheaply."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from airflow_provider_kafka_migration.cli.frame import Stop
from airflow_provider_kafka_migration.cli.mirror_runner import MirrorRunner
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
from harness.compare import bounds, compare
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
    """

    flow: Flow
    transactional: bool = False
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
        assert producer.flush(30) == 0

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
        """Until everything that is on the source now is on the target, at the same offsets."""
        ends = {key: end for topic in topics for key, end in self.ends(topic).items()}

        def has_all() -> bool:
            if self.mirror.error is not None:
                raise self.mirror.error
            names = {self.remote(topic) for topic in topics}
            if not names <= topics_of(self.target):
                return False
            try:
                there = bounds(self.target.client_config(), names)
            except KafkaException:
                return False  # a topic that has no leader yet
            return all(
                number in there[self.remote(topic)] and there[self.remote(topic)][number].end >= end
                for (topic, number), end in ends.items()
            )

        wait_for(f"{', '.join(topics)} on the target", has_all, SECONDS, 0.2)

    def check(self, *topics: str) -> None:
        """Contents and offsets are equal."""
        self.wait_mirrored(*topics)
        names = {topic: self.remote(topic) for topic in topics}
        compare(self.source.client_config(), self.target.client_config(), names).check()

    # -- groups -------------------------------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """On the source."""
        commit_offsets(self.source.client_config(), group, offsets)

    def on_target(self, group: str, *topics: str) -> Offsets:
        """What a group has committed on the target, by the names of the source."""
        names = {self.remote(topic): topic for topic in topics}
        found = committed_offsets(self.target.client_config(), group, list(names))
        return {(names[topic], number): offset for (topic, number), offset in found.items()}

    def wait_synced(self, group: str, wanted: Offsets) -> None:
        """Until a group has exactly these offsets on the target."""
        topics = {topic for topic, _ in wanted}
        wait_for(
            f"{group} on the target",
            lambda: self.on_target(group, *topics) == wanted,
            SECONDS,
            0.3,
        )

    # -- state of MirrorMaker 2 ---------------------------------------------------------------------------------------

    @property
    def state_topics(self) -> StateTopics:
        return StateTopics(*self.flow.aliases)

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
    flow = Flow(*clusters, folder, f"{stem}-flow", f"{stem}.", aliases, {**connections, **sections})
    scene = Scene(flow, transactional)
    request.addfinalizer(scene.mirror.stop)
    return scene
