"""``python -m benchmarks.proofs [--records N] [--rounds N]``: how fast both content proofs read, and a plain consumer.

One copied topic, and by turns on it: the comparison by the code that copies, the independent proof on Spark's own Kafka
source, and Kafka's own ``ConsumerPerformance``, which only reads. Each reads both clusters; a record counts once, for
both of its sides. Results in ``benchmarks/results/proofs.json``; ``python -m benchmarks.report`` makes the page.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.compare.runner import LocalContentRunner
from airflow_provider_kafka_migration.documents.independent import IndependentJob
from airflow_provider_kafka_migration.documents.proof import ContentJob, ContentRange
from benchmarks import clusters, fixtures
from benchmarks.run import write_json
from benchmarks.scenarios import Scenario
from benchmarks.summary import PROOFS
from harness.brokers import KafkaCluster
from harness.copiers.copying import Copying
from harness.jars import kafka_jars
from harness.jars.spark_kafka_jars import jars
from harness.processes import HarnessError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).parent / "results"
RECORDS, ROUNDS = 3_000_000, 3
#: Of the raw proof, of Spark's tasks, and of the consumers: one for each cluster.
PARALLEL = 2
_CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
_JVM = ("-Xmx512m", "-server", "-Djava.awt.headless=true")


class Bench:
    """A copied topic."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, folder: Path, records: int) -> None:
        self.source, self.target, self.folder = source, target, folder
        title = "JSON of 670 B, lz4, 8 partitions, batches of 16 KB"
        self.scenario = Scenario("proofs", title, records, 670, 54, 8, ())
        self.content = fixtures.fill(source, self.scenario, say)
        self.copy = Copying(source, target, folder / "copy", [self.scenario.name], "proofs", lanes=PARALLEL)
        self.copy.run(max_concurrent_partitions=64)
        self.ranges = self._ranges()
        self._attempt = 0

    def _ranges(self) -> list[ContentRange]:
        ends = self.copy.clients.wire("target").list_offsets(list(self.copy.partitions), "latest")
        return [
            ContentRange(
                topic=key[0],
                target_topic=item.target_topic,
                partition=key[1],
                verdict=item.verdict,
                source_start_offset=item.source_start_offset,
                source_end_offset=ends[key],
                target_start_offset=item.target_start_offset,
                target_end_offset=ends[key],
            )
            for key, item in sorted(self.copy.partitions.items())
        ]

    def _job(self) -> dict[str, Any]:
        self._attempt += 1
        return {
            "migration_id": self.copy.migration_id,
            "attempt": self._attempt,
            "journal_location": self.copy.journal,
            "ranges": self.ranges,
        }

    def raw(self) -> float:
        """Seconds of the comparison by the code that copies."""
        began = time.monotonic()
        found = LocalContentRunner(self.copy.clients, threads=PARALLEL).run(ContentJob(**self._job()))
        seconds = time.monotonic() - began
        self._check(sum(content.compared for content in found if content.is_proven))
        return seconds

    def independent(self, spark: SparkSession) -> float:
        """Seconds of the independent proof, in a session that is there."""
        from airflow_provider_kafka_migration.spark import independent

        job, store = IndependentJob(**self._job()), self.copy.clients.store(self.copy.journal)
        began = time.monotonic()
        independent.prove(job, store, self.copy.clients, spark, slots=PARALLEL)
        seconds = time.monotonic() - began
        found = IndependentResults.of(job, store).read_all(job.ranges)
        self._check(sum(result.compared for result in found if not result.difference_count))
        return seconds

    def consumers(self) -> float:
        """Seconds in which two plain consumers, side by side, have read one cluster each."""
        config = self.folder / "consumer.properties"
        config.write_text("isolation.level=read_committed\nauto.offset.reset=earliest\n", encoding="utf-8")
        self._attempt += 1
        running = [self._consumer(cluster, config) for cluster in (self.source, self.target)]
        return max(self._fetch_seconds(process) for process in running)

    def _consumer(self, cluster: KafkaCluster, config: Path) -> subprocess.Popen[str]:
        command = [kafka_jars.java(), *_JVM, "-cp", kafka_jars.classpath(cluster.version), _CONSUMER]
        command += ["--bootstrap-server", cluster.bootstrap, "--topic", self.scenario.name]
        command += ["--messages", str(self.content.records), "--consumer.config", str(config)]
        command += ["--group", f"proofs-{self._attempt}", "--timeout", "60000"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _fetch_seconds(self, process: subprocess.Popen[str]) -> float:
        """Seconds of fetching, without the time in which a group forms."""
        out, err = process.communicate(timeout=600)
        rows = [row for row in csv.reader(out.splitlines(), skipinitialspace=True) if len(row) > 7]
        if process.returncode != 0 or len(rows) < 2:
            raise HarnessError(f"{_CONSUMER} ended with {process.returncode}:\n{out[-2000:]}{err[-2000:]}")
        row = dict(zip(rows[0], rows[-1], strict=True))
        self._check(int(row["data.consumed.in.nMsg"]))
        return int(row["fetch.time.ms"]) / 1000

    def _check(self, records: int) -> None:
        if records < self.content.records:
            raise HarnessError(f"{records:,} of {self.content.records:,} records were read, or equal")


def session(folder: Path) -> SparkSession:
    """A session of Spark in this process, with its Kafka source."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{PARALLEL}]").appName("proofs").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.local.dir", str(folder))
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    return builder.config("spark.jars", ",".join(str(jar) for jar in jars())).getOrCreate()


def measure(bench: Bench, rounds: int) -> list[dict[str, Any]]:
    """The rows of the results; all by turns, so that a machine that becomes busier hits each of them."""
    spark = session(bench.folder)
    first_seconds = bench.independent(spark)
    say(f"first query of a new JVM: {first_seconds:.1f} s")
    peers: dict[str, tuple[str, Callable[[], float]]] = {
        "consumer": ("plain Java consumers, one for each side", bench.consumers),
        "raw_proof": ("comparison by the code that copies", bench.raw),
        "independent_proof": ("independent proof", lambda: bench.independent(spark)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    loads = []
    for number in range(rounds):
        for name, (title, run) in peers.items():
            loads.append(os.getloadavg()[0])
            seconds[name].append(run())
            say(f"round {number + 1}: {title}: {seconds[name][-1]:.1f} s, load before {loads[-1]:.1f}")
    spark.stop()
    rows = [
        _row(name, title, bench.content.records, bench.content.record_bytes, seconds[name])
        for name, (title, _) in peers.items()
    ]
    first = _row(
        "independent_first",
        "independent proof, first query of a JVM",
        bench.content.records,
        bench.content.record_bytes,
        [first_seconds],
    )
    for row in [*rows, first]:
        row["of_consumer"] = round(row["records_per_second"] / rows[0]["records_per_second"], 3)
    return [*rows, first]


def _row(name: str, title: str, records: int, record_bytes: float, seconds: Sequence[float]) -> dict[str, Any]:
    middle = statistics.median(seconds)
    return {
        "peer": name,
        "title": title,
        "seconds": [round(item, 2) for item in seconds],
        "records_per_second": round(records / middle),
        "data_mb_per_second": round(records * record_bytes / middle / 1e6, 1),
    }


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proofs", description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help="of the brokers' data; default: the temporary folder")
    options = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-proofs-", dir=options.folder) as temporary:
        folder = Path(temporary)
        with clusters.source(folder) as source, clusters.target(folder) as target:
            bench = Bench(source, target, folder, options.records)
            rows = measure(bench, options.rounds)
    content = bench.content
    document = {
        "scenario": PROOFS,
        "title": bench.scenario.title,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {**clusters.machine(), "load_average": round(before, 1)},
        "load_after": round(os.getloadavg()[0], 1),
        "kafka": {"source": clusters.SOURCE_VERSION, "target": clusters.TARGET_VERSION},
        "records": content.records,
        "record_bytes": round(content.record_bytes, 1),
        "stored_bytes": content.stored_bytes,
        "partitions": bench.scenario.partitions,
        "parallel": PARALLEL,
        "rows": rows,
    }
    write_json(RESULTS / f"{PROOFS}.json", document)
    for row in rows:
        say(f"{row['title']}: {row['records_per_second']:,} records/s, {row['of_consumer']:.2f} of a plain consumer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
