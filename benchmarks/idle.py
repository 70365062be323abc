"""``python -m benchmarks.idle [--idle N]``: what partitions that bring nothing cost those that are busy.

A producer writes 1,000 records a second to eight partitions while one lane copies them: alone, and together with 1,000
partitions that nobody writes to. Latency from produce() to a consumer on the target, and the copier's processor time;
one row after the other on the same brokers. Results in ``benchmarks/results/idle.json``.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks import clusters
from benchmarks.run import write_json
from benchmarks.tail import PARTITIONS, Tail, percentile
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.processes import HarnessError

RESULTS = Path(__file__).parent / "results" / "idle.json"
RECORDS_PER_SECOND = 1_000
WARM_UP_SECONDS = 5.0


class Copier:
    """A copier process that tails some topics; what :class:`Tail` wants of a peer."""

    def __init__(self, copying: Copying) -> None:
        # One slice: at its end the worker prints a result for each partition, which nobody reads before it has ended.
        copying.write_job("tail", slice_seconds=600)
        self._process = copying.worker(0, "tail")
        self.cpu_seconds = 0.0

    def measure(self) -> None:
        """Raises when the copier has ended; notes its processor time."""
        if self._process.poll() is not None:
            raise HarnessError(f"the copier has ended with {self._process.returncode}")
        times = psutil.Process(self._process.pid).cpu_times()
        self.cpu_seconds = times.user + times.system

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired as error:  # pragma: no cover - a process that SIGKILL does not end
            raise HarnessError("the copier does not end") from error


def measure(
    source: KafkaCluster, target: KafkaCluster, folder: Path, idle: int, seconds: float, name: str
) -> dict[str, Any]:
    """A row: latencies and processor time beside ``idle`` partitions."""
    busy, topics = f"{name}.busy", [f"{name}.busy"]
    source.create_topic(busy, PARTITIONS)
    if idle:
        source.create_topic(f"{name}.idle", idle)
        topics.append(f"{name}.idle")
    copying = Copying(source, target, folder / name, topics, name)
    # A broker takes seconds to make a thousand logs; that is not what is measured.
    copying.clients.wire("target").list_offsets(list(copying.partitions), "log_end")
    copier = Copier(copying)
    tail = Tail(source, target, folder, seconds, WARM_UP_SECONDS, print)
    began = time.monotonic()
    try:
        latencies = sorted(tail.measured(busy, target.bootstrap, busy, RECORDS_PER_SECOND, copier.measure))
        copier.measure()
        lasted = time.monotonic() - began
    finally:
        copier.stop()
    return {
        "busy_partitions": PARTITIONS,
        "idle_partitions": idle,
        "records": len(latencies),
        "p50_ms": round(percentile(latencies, 0.5), 2),
        "p99_ms": round(percentile(latencies, 0.99), 2),
        "copier_cpus": round(copier.cpu_seconds / lasted, 3),
    }


def main() -> int:
    """Both rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=1_000, help="partitions that bring nothing")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each row is measured")
    options = parser.parse_args()
    machine = clusters.machine()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-idle-")))
        source = stack.enter_context(clusters.source(folder))
        target = stack.enter_context(clusters.target(folder))
        measure(source, target, folder, 0, 10.0, "warmup")
        rows = [measure(source, target, folder, idle, options.seconds, f"idle{idle}") for idle in (0, options.idle)]
    for row in rows:
        print(row, flush=True)
    write_json(
        RESULTS,
        {"version": 1, "machine": machine, "records_per_second": RECORDS_PER_SECOND, "rows": rows},
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
