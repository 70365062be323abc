"""``python -m benchmarks.spark {start,seam,scale} [--other FOLDER]``: what Spark costs around the copying.

* ``start``: seconds from spark-submit until the first record is on the target, and until the job has ended, and the
  processor time of all of its processes;
* ``seam``: seconds between two slices of a lane of a tail;
* ``scale``: megabytes per second with 1, 2 and 4 executors, and with one process without Spark.

``--other`` is a checkout of another state of this project; both are measured by turns, on the same brokers and data.
Results in ``benchmarks/results/spark_{start,seam,scale}.json``, one document per run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import CopyJob, StopAt
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.spark.launch import build_py_files
from benchmarks import clusters
from benchmarks.run import write_json
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.processes import HarnessError
from harness.s3 import DATA_BUCKET, S3Server
from harness.spark.spark_cluster import SparkCluster

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PARTITIONS = 8
LANES = 4
MASTER = "local[2,4]"
RECORD_BYTES = 256
#: 38 MB: a copy of some seconds, so that the start is what is seen.
START_RECORDS = 148_800
SEAM_SLICE_SECONDS = 2
_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 600


@dataclass(frozen=True)
class Tree:
    """A checkout whose mains and package are run.

    :param name: in results: ``this`` or ``other``.
    """

    name: str
    folder: Path


class Bench:
    """Brokers, and copies with topics of their own."""

    def __init__(self, stack: ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spark-")))
        self.source: KafkaCluster = stack.enter_context(clusters.source(self.folder))
        self.target: KafkaCluster = stack.enter_context(clusters.target(self.folder))
        self.s3 = stack.enter_context(S3Server(self.folder / "s3"))
        self._count = 0

    def copying(self, records: int, record_bytes: int = RECORD_BYTES, **options: Any) -> Copying:
        """A copy of a new topic with so many records."""
        self._count += 1
        name = f"bench-{self._count}"
        self.source.create_topic(name, PARTITIONS)
        producer = Producer({"bootstrap.servers": self.source.bootstrap, "linger.ms": 20})
        payload = os.urandom(record_bytes)
        for number in range(records):
            producer.produce(name, payload, partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush(120)
        producer.flush(120)
        return Copying(self.source, self.target, self.folder / name, [name], name, lanes=LANES, **options)

    def through_s3(self, records: int) -> Copying:
        """A copy whose journal and segments are in S3."""
        references = {
            "source": {"bootstrap.servers": self.source.bootstrap},
            "target": {"bootstrap.servers": self.target.bootstrap},
            "storage": self.s3.config(),
        }
        location = f"s3://{DATA_BUCKET}/{self._count + 1}"
        return self.copying(records, via="s3", references=references, location=location)


def submit(copy: Copying, tree: Tree, main: str, master: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a main of a tree by spark-submit; its log is ``copy.folder/submit.log``."""
    conf = {"spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", master]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    command += [
        *options,
        str(tree.folder / "spark_jobs" / f"{main}.py"),
        *("--job-location", copy.journal, "--job-key", copy.job_key(main)),
        *("--references", str(copy.references_file)),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree.folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with (copy.folder / "submit.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=copy.folder)


class Ends:
    """Watches the end offsets of a target from a thread.

    :param wanted: sum of the end offsets at which the copy is complete.
    """

    def __init__(self, copy: Copying, wanted: int) -> None:
        self.first_seconds: float | None = None
        self.all_seconds: float | None = None
        self._copy = copy
        self._wanted = wanted
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        keys = list(self._copy.partitions)
        wire = self._copy.clients.wire("target")
        before = sum(item.target_start_offset for item in self._copy.partitions.values())
        is_last = False
        while not is_last:
            # One more look after the end: the last records may have come since the look before.
            is_last = self._stopped.wait(_POLL_SECONDS)
            copied = sum(wire.list_offsets(keys, "latest").values()) - before
            now = time.monotonic() - self._began
            if copied and self.first_seconds is None:
                self.first_seconds = now
            if copied >= self._wanted:
                self.all_seconds = now
                return

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()


def ended_well(copy: Copying, process: subprocess.Popen[bytes]) -> None:
    """Wait for the end.

    :raises HarnessError: it failed, or lasts too long.
    """
    try:
        status = process.wait(_LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise HarnessError(f"not within {_LONGEST_SECONDS} s") from None
    if status != 0:
        raise HarnessError((copy.folder / "submit.log").read_text(errors="replace")[-4000:])


def cpu_seconds() -> float:
    """Processor time of children that have ended, and of theirs: on a busy machine it says more than a clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def load_average() -> float:
    """Of the last minute: what else the machine does."""
    return round(os.getloadavg()[0], 1)


# -- start ------------------------------------------------------------------------------------------------------------


def measure_start(bench: Bench, tree: Tree) -> dict[str, Any]:
    """One seed of 38 MB through S3."""
    copy = bench.through_s3(START_RECORDS)
    copy.write_job("seed")
    load = load_average()
    ends = Ends(copy, START_RECORDS)
    began, used = time.monotonic(), cpu_seconds()
    process = submit(copy, tree, "seed", MASTER)
    try:
        ended_well(copy, process)
        seconds, used = time.monotonic() - began, cpu_seconds() - used
    finally:
        ends.stop()
    assert ends.first_seconds is not None
    return {
        "tree": tree.name,
        "first_record_seconds": round(ends.first_seconds, 1),
        "all_seconds": round(seconds, 1),
        "cpu_seconds": round(used, 1),
        "load_average": load,
    }


# -- seam -------------------------------------------------------------------------------------------------------------


def measure_seam(bench: Bench, tree: Tree, seconds: float = 40.0) -> dict[str, Any]:
    """A tail of short slices whose source brings nothing; leases tell when slices began and ended."""
    copy = bench.copying(PARTITIONS)
    stop_key = f"{copy.migration_id}/control/tail-stop.json"
    copy.write_job("tail", slice_seconds=SEAM_SLICE_SECONDS, stop_key=stop_key)
    load = load_average()
    process = submit(copy, tree, "tail", MASTER)
    seen: dict[Path, float] = {}
    deadline = time.monotonic() + _LONGEST_SECONDS
    first: float | None = None
    while time.monotonic() < deadline and (first is None or time.monotonic() - first < seconds):
        seen.update({path: path.stat().st_mtime for path in leases(copy) if path not in seen})
        first = time.monotonic() if first is None and seen else first
        time.sleep(_POLL_SECONDS)
    offsets = {f"{topic}-{number}": end for (topic, number), end in copy.stable_ends().items()}
    stop = StopAt(migration_id=copy.migration_id, offsets=offsets)
    copy.clients.store(copy.journal).put(stop_key, stop.canonical())
    ended_well(copy, process)
    gaps = sorted(seams(seen))
    return {
        "tree": tree.name,
        "seams": len(gaps),
        "median_seconds": round(statistics.median(gaps), 3),
        "p90_seconds": round(gaps[int(0.9 * (len(gaps) - 1))], 3),
        "load_average": load,
    }


def leases(copy: Copying) -> Iterator[Path]:
    """The lease files of a copy whose journal is a folder."""
    found = Path(copy.journal.removeprefix("file://")).glob("*/leases/*/*/*")
    return (path for path in found if path.stem.isdigit() and path.suffix in (".json", ".ended"))


def seams(seen: dict[Path, float]) -> Iterator[float]:
    """Seconds from the end of each slice to the beginning of the next one of its lane; the first ones do not count.

    Numbers of leases count down.
    """
    warm_up = 2
    lanes: dict[Path, dict[int, dict[str, float]]] = {}
    for path, at in seen.items():
        lanes.setdefault(path.parent, {}).setdefault(int(path.stem), {})[path.suffix] = at
    for slices in lanes.values():
        ordered = [slices[number] for number in sorted(slices, reverse=True)]
        for former, latter in list(itertools.pairwise(ordered))[warm_up:]:
            if ".ended" in former and ".json" in latter:
                yield latter[".json"] - former[".ended"]


# -- scale ------------------------------------------------------------------------------------------------------------


def measure_scale(bench: Bench, tree: Tree, executors: int, megabytes: int) -> dict[str, Any]:
    """One direct seed by so many executors of a core each on a standalone cluster; 0: one process without Spark."""
    record_bytes = 4096
    records = megabytes * 1_000_000 // record_bytes
    copy = bench.copying(records, record_bytes)
    job = copy.write_job("seed", slice_seconds=60)
    load = load_average()
    with _runner(bench, copy, job, tree, executors) as run:
        ends = Ends(copy, records)
        try:
            run()
        finally:
            ends.stop()
    assert ends.first_seconds is not None
    assert ends.all_seconds is not None
    copying = ends.all_seconds - ends.first_seconds
    return {
        "tree": tree.name,
        "executors": executors,
        "first_record_seconds": round(ends.first_seconds, 1),
        "megabytes_per_second": round(records * record_bytes / 1e6 / max(copying, _POLL_SECONDS), 1),
        "load_average": load,
    }


@contextmanager
def _runner(bench: Bench, copy: Copying, job: CopyJob, tree: Tree, executors: int) -> Iterator[Callable[[], object]]:
    if not executors:
        yield lambda: LocalRunner(Clients(copy.references or {}), threads=LANES).run(job)
        return
    folder = bench.folder / f"cluster-{copy.migration_id}"
    with SparkCluster(folder, workers=executors, worker_memory="640m") as cluster:
        options = [
            *("--py-files", str(build_py_files(copy.folder))),
            *("--conf", "spark.executor.memory=480m"),
            *("--conf", "spark.executor.cores=1"),
        ]
        yield lambda: ended_well(copy, submit(copy, tree, "seed", cluster.url, *options))


# -- command line -----------------------------------------------------------------------------------------------------


def rows_of(bench: Bench, trees: list[Tree], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows, trees and variants by turns; the first turn of start and seam compiles bytecode and does not count."""
    if options.what == "scale":
        for _ in range(options.rounds):
            for executors in (0, 1, 2, 4):
                yield measure_scale(bench, trees[0], executors, options.megabytes)
        return
    measure = measure_start if options.what == "start" else measure_seam
    for tree in trees:
        if options.what == "start":
            measure(bench, tree)
    for _ in range(options.rounds):
        for tree in trees:
            yield measure(bench, tree)


def main() -> int:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["start", "seam", "scale"])
    parser.add_argument("--other", type=Path, help="a checkout of another state of this project")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=400, help="of a copy of scale")
    options = parser.parse_args()
    trees = [Tree("this", ROOT)] + ([Tree("other", options.other.resolve())] if options.other else [])
    machine = clusters.machine()
    rows = []
    with ExitStack() as stack:
        bench = Bench(stack)
        for row in rows_of(bench, trees, options):
            rows.append(row)
            print(row, flush=True)
            # After each row: a run that is cut short has measured something, too.
            document = {"version": 1, "machine": machine, "master": MASTER, "lanes": LANES, "rows": rows}
            write_json(RESULTS / f"spark_{options.what}.json", document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
