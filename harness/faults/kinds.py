"""The faults: each disturbs a run in its own way, and is over (or continues by itself) when its function returns."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from harness.brokers import KafkaCluster
from harness.copiers.copier_pool import Copier
from harness.faults.lab import FaultLab
from harness.faults.proxy import PRODUCE, WRITE_TXN_MARKERS

_PAUSE_SECONDS = 3.0
#: ElectLeaders: the kind of the election.
_PREFERRED = 0


class Run(Protocol):
    """The part of a run that faults can use."""

    lab: FaultLab
    rng: random.Random

    def copiers(self) -> list[Copier]:
        """The working copiers."""

    def freeze(self, copier: Copier) -> None:
        """Register a stopped copier; the run wakes it when its successor is far ahead."""

    def target_partitions(self) -> list[tuple[str, int]]:
        """All partitions."""


#: Causes the fault; returns False if it could affect nothing.
Fault = Callable[[Run], bool]


def kill_copier(run: Run) -> bool:
    """SIGKILL at a random moment."""
    found = run.copiers()
    if found:
        run.rng.choice(found).kill()
    return bool(found)


def freeze_copier(run: Run) -> bool:
    """SIGSTOP; a successor takes over and gets far ahead; SIGCONT."""
    found = run.copiers()
    if found:
        copier = run.rng.choice(found)
        copier.signal(signal.SIGSTOP)
        run.freeze(copier)
    return bool(found)


def drop_source(run: Run) -> bool:
    """All connections to the source are reset."""
    return run.lab.source.proxy.drop() > 0


def drop_target(run: Run) -> bool:
    """All connections to the target are reset."""
    return run.lab.target.proxy.drop() > 0


def lose_source_answers(run: Run) -> bool:
    """The source gets requests, but its responses are lost; then all connections are reset."""
    run.lab.source.proxy.lose_answers(run.rng.uniform(0.05, 0.5))
    return True


def lose_target_answers(run: Run) -> bool:
    """The target executes requests, but its responses are lost; then all connections are reset."""
    run.lab.target.proxy.lose_answers(run.rng.uniform(0.05, 0.5))
    return True


def late_request(run: Run) -> bool:
    """An append or a marker request is held back, its sender is killed, and the request arrives later."""
    key = run.rng.choice([PRODUCE, WRITE_TXN_MARKERS])
    held = run.lab.target.proxy.hold([key], skip=run.rng.randrange(5))(1.5)
    if held is None:
        return False
    # The sender is one of these; the others are killed with it.
    for copier in run.copiers():
        copier.kill()
    time.sleep(run.rng.uniform(0.0, 1.0))
    held.deliver()
    held.answered.wait(2)
    return True


def _restart(run: Run, cluster: KafkaCluster) -> bool:
    index = run.rng.randrange(cluster.brokers)
    cluster.kill(index)
    time.sleep(run.rng.uniform(0.0, 1.0))
    cluster.restart(index)
    return True


def kill_source_broker(run: Run) -> bool:
    """Kill a broker of the source with SIGKILL, and restart it."""
    return _restart(run, run.lab.source)


def kill_target_broker(run: Run) -> bool:
    """Kill a broker of the target with SIGKILL, and restart it."""
    return _restart(run, run.lab.target)


def stop_target_broker(run: Run) -> bool:
    """Stop a broker of the target in order, and restart it."""
    cluster = run.lab.target
    index = run.rng.randrange(cluster.brokers)
    cluster.stop_broker(index)
    cluster.restart(index)
    return True


def _pause(run: Run, cluster: KafkaCluster) -> bool:
    index = run.rng.randrange(cluster.brokers)
    cluster.pause(index)
    time.sleep(run.rng.uniform(0.2, _PAUSE_SECONDS if cluster.brokers == 1 else 2 * _PAUSE_SECONDS))
    cluster.resume(index)
    return True


def freeze_source_broker(run: Run) -> bool:
    """SIGSTOP a broker of the source for some seconds."""
    return _pause(run, run.lab.source)


def freeze_target_broker(run: Run) -> bool:
    """SIGSTOP a broker of the target for some seconds: it still gets requests, and executes them later."""
    return _pause(run, run.lab.target)


def move_leaders(run: Run) -> bool:
    """Other replicas lead: the order of the replicas changes, and the preferred ones are elected."""
    cluster = run.lab.target
    if cluster.brokers == 1:
        return False
    partitions = run.target_partitions()
    chosen = run.rng.sample(partitions, min(3, len(partitions)))
    reassign(cluster, {key: run.rng.sample([1, 2, 3], 3) for key in chosen})
    elect_preferred(cluster, chosen)
    return True


def reassign(cluster: KafkaCluster, replicas: Mapping[tuple[str, int], list[int]]) -> None:
    """Assign other replicas, or another order of replicas, to partitions, without waiting."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.alter_partition_reassignments(
            {TopicPartition(*key): brokers for key, brokers in replicas.items()}, timeout_ms=10_000
        )
    except KafkaError:
        pass  # an earlier reassignment is in progress, or the controller moves
    finally:
        admin.close()


def elect_preferred(cluster: KafkaCluster, partitions: list[tuple[str, int]]) -> None:
    """Elect the first replicas as leaders; ignore those that already lead."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.elect_leaders(_PREFERRED, topics, timeout_ms=10_000, raise_errors=False)
    except KafkaError:
        pass  # the controller moves
    finally:
        admin.close()


#: name -> (fault, weight, the part that it occupies)
KINDS: Mapping[str, tuple[Fault, float, str]] = {
    "kill_copier": (kill_copier, 5.0, ""),
    "freeze_copier": (freeze_copier, 2.0, ""),
    "drop_source": (drop_source, 1.0, ""),
    "drop_target": (drop_target, 1.5, ""),
    "lose_source_answers": (lose_source_answers, 0.5, "source network"),
    "lose_target_answers": (lose_target_answers, 1.5, "target network"),
    "late_request": (late_request, 1.5, "target network"),
    "kill_source_broker": (kill_source_broker, 0.3, "source"),
    "kill_target_broker": (kill_target_broker, 0.5, "target"),
    "stop_target_broker": (stop_target_broker, 0.2, "target"),
    "freeze_source_broker": (freeze_source_broker, 0.3, "source"),
    "freeze_target_broker": (freeze_target_broker, 0.5, "target"),
    "move_leaders": (move_leaders, 0.7, "target"),
}


class FaultMaker:
    """Causes random faults; long ones in the background, one at a time for each part that they occupy.

    :param kinds: names of :data:`KINDS` to choose from; None: all.
    """

    def __init__(self, run: Run, kinds: list[str] | None = None) -> None:
        self._run = run
        self._names = [name for name in (kinds or KINDS) if run.lab.brokers > 1 or name != "move_leaders"]
        self._executor = ThreadPoolExecutor(8)
        self._busy: dict[str, Future[bool]] = {}
        self._lock = threading.Lock()
        self._futures: list[tuple[str, Future[bool]]] = []
        self.made: dict[str, int] = {}

    def make(self) -> str | None:
        """Begin a random fault; return its name, or None if the part that it needs is occupied."""
        name = self._run.rng.choices(self._names, [KINDS[item][1] for item in self._names])[0]
        fault, _, resource = KINDS[name]
        if resource and (resource in self._busy and not self._busy[resource].done()):
            return None
        future = self._executor.submit(self._guarded, name, fault)
        if resource:
            self._busy[resource] = future
        self._futures.append((name, future))
        return name

    def _guarded(self, name: str, fault: Fault) -> bool:
        done = fault(self._run)
        if done:
            with self._lock:
                self.made[name] = self.made.get(name, 0) + 1
        return done

    @property
    def count(self) -> int:
        """Faults that are over and had an effect."""
        with self._lock:
            return sum(self.made.values())

    def finish(self) -> None:
        """Wait for all faults.

        :raises Exception: one of them failed, which is an error of the harness itself.
        """
        for _, future in self._futures:
            future.result(120)
        self._executor.shutdown()
