"""``python -m benchmarks [--quick] [--only SCENARIO ...]``: all copiers, one after the other, on the same data.

Each scenario ends with a file ``<scenario>.json``; the next run with ``--resume`` goes on behind it. A full run takes
about 45 minutes and 15 GB of disk. ``--quick`` writes to ``build/bench-quick`` and takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from benchmarks import clusters, fixtures
from benchmarks.measure import Content, CopyResult, measure_copy
from benchmarks.peers.base import ROOT, Task
from benchmarks.peers.registry import peers
from benchmarks.report import write
from benchmarks.scenarios import Kind, Scenario, scenarios
from benchmarks.summary import TAIL, against_aims, load, summarise
from benchmarks.tail import RATES, Tail, TailResult
from harness.brokers import KafkaCluster
from harness.processes import HarnessError

RESULTS = ROOT / "benchmarks" / "results"
QUICK_RESULTS = ROOT / "build" / "bench-quick"
#: Longest time of one copy after its first record; slower ones are measured on what they have done by then.
MAX_SECONDS = {True: 30.0, False: 90.0}
#: The copier of the run before the first that counts, and its longest time.
WARM_UP = "raw_limit"
#: Of other topics: brokers refuse batches with holes as they are, and committed records need a reader that knows.
WARM_UP_REBUILT = "ours_mapped"
WARM_UP_SECONDS = 20.0
_TOPIC_CONFIG = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "file.delete.delay.ms": "1000",
}


class Bench:
    """One run.

    :param folder: brokers' data and logs; removed at the end.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.options = options
        self.folder = folder
        self.results = QUICK_RESULTS if options.quick else RESULTS
        self.max_seconds = options.max_seconds or MAX_SECONDS[options.quick]
        self._machine = clusters.machine()  # before anything of ours runs
        self._begun = time.monotonic()
        self._stack = stack
        self._source: KafkaCluster | None = None
        self._targets: dict[int, KafkaCluster] = {}
        self.archive = stack.enter_context(clusters.archive(folder, options.archive))
        self.peers = peers(self.archive)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:6.0f} s  {text}", flush=True)

    @property
    def source(self) -> KafkaCluster:
        if self._source is None:
            self._source = clusters.source(self.folder)
            self._stack.enter_context(self._source)
        return self._source

    def target(self, brokers: int) -> KafkaCluster:
        """The target cluster of that size; the other one is stopped, so that it takes nothing."""
        if brokers not in self._targets:
            for cluster in self._targets.values():
                cluster.remove()
            self._targets = {brokers: clusters.target(self.folder, brokers)}
            self._stack.enter_context(self._targets[brokers])
        return self._targets[brokers]

    def scenario(self, scenario: Scenario) -> dict[str, Any]:
        """Fill the topic, let each peer copy it, remove it; the document of the scenario."""
        self.say(f"{scenario.name}: {scenario.title}")
        content = fixtures.fill(self.source, scenario, self.say)
        names = [name for name in scenario.peers if not self.options.peers or name in self.options.peers]
        self._warm_up(scenario, content)
        rows = [self._row(scenario, name, content) for name in names]
        document = {
            **self._about(scenario.name, scenario.title),
            "records": content.records,
            "stored_bytes": content.stored_bytes,
            "record_bytes": round(content.record_bytes, 1),
            "batch_bytes": fixtures.batch_bytes(self.source, scenario),
            "partitions": scenario.partitions,
            "target_brokers": scenario.target_brokers,
            "rows": rows,
        }
        delete_topic(self.source, scenario.name)
        return document

    def _warm_up(self, scenario: Scenario, content: Content) -> None:
        """A copy that does not count: the first one of all pays for the brokers' compilers and for cold memory."""
        self.say("  warming up (not counted)")
        name = WARM_UP if scenario.kind is Kind.PLAIN else WARM_UP_REBUILT
        self._row(scenario, name, content, max_seconds=WARM_UP_SECONDS)

    def _row(self, scenario: Scenario, name: str, content: Content, max_seconds: float | None = None) -> dict[str, Any]:
        """One peer; a failure is a row, too: the others go on."""
        peer = self.peers[name]()
        target = self.target(scenario.target_brokers)
        topic = f"{name}.{scenario.name}"
        folder = self.folder / f"{scenario.name}-{name}"
        target.create_topic(
            topic, scenario.partitions, replication_factor=min(3, scenario.target_brokers), config=_TOPIC_CONFIG
        )
        task = Task(
            source=self.source.bootstrap,
            target=target.bootstrap,
            topic=scenario.name,
            target_topic=topic,
            partitions=scenario.partitions,
            folder=folder,
            until=content.ends,
            read_committed=scenario.kind is Kind.TRANSACTIONAL,
            replication_factor=min(3, scenario.target_brokers),
        )
        # What the former one left to be written to disk must not slow this one down.
        os.sync()
        try:
            result = measure_copy(
                peer,
                task,
                content,
                max_seconds=max_seconds or self.max_seconds,
                say=lambda text: self.say(f"  {peer.title}: {text}"),
            )
        except (HarnessError, TimeoutError, ValueError) as error:
            self.say(f"  {peer.title}: {error}")
            self._keep_log(folder, f"{scenario.name}-{name}")
            return {"peer": name, "title": peer.title, "error": str(error).splitlines()[0]}
        finally:
            delete_topic(target, topic)
        self.say(f"  {line_of(result)}")
        if self.options.keep_logs:
            self._keep_log(folder, f"{scenario.name}-{name}")
        shutil.rmtree(folder, ignore_errors=True)
        return result.as_dict()

    def keep(self, name: str, run: Callable[[], dict[str, Any]], done: Callable[[Path], bool]) -> int:
        """Run a scenario and write its document; how many peers failed."""
        path = self.results / f"{name}.json"
        if self.options.resume and done(path):
            self.say(f"{name}: there already")
            return 0
        document = run()
        write_json(path, document)
        return sum("error" in row for row in document["rows"])

    def report(self) -> None:
        """Summary, page and chart of all results that are there now."""
        summary = summarise(load(self.results))
        write_json(self.results / "summary.json", summary)
        pages = self.results if self.options.quick else ROOT / "docs"
        write(self.results, pages / "benchmarks.md", pages / "benchmarks.png")
        for what, value, aim, met in against_aims(summary):
            if value is not None:
                self.say(f"{what}: {value:g} (aim {aim}){'' if met else '  MISSED'}")
        self.say(f"results: {self.results}, page: {pages / 'benchmarks.md'}")

    def tail(self) -> dict[str, Any]:
        """Tail latency of ours and of MirrorMaker 2 with and without linger; the document."""
        self.say("tail: latency at " + " and ".join(f"{rate:,}" for rate in RATES) + " records/s")
        seconds, warm_up = (8.0, 4.0) if self.options.quick else (25.0, 5.0)
        tail = Tail(self.source, self.target(1), self.folder / "tail", seconds, warm_up, self.say)
        ours, mm2 = self.peers["ours_direct"], self.peers["mm2_tuned"]
        measures: list[tuple[str, int, Callable[[], TailResult]]] = []
        for rate in RATES:
            measures += [
                ("direct_read", rate, partial(tail.direct_read, rate)),
                ("ours_direct", rate, partial(tail.peer, ours, rate)),
                ("mm2_tuned", rate, partial(tail.peer, mm2, rate, 0)),
                ("mm2_tuned", rate, partial(tail.peer, mm2, rate, 5)),
            ]
        found = []
        for name, rate, measure in measures:
            if self.options.peers and name not in self.options.peers:
                continue
            try:
                result = measure()
            except (HarnessError, ValueError, KafkaException) as error:
                self.say(f"  {name}: {error}")
                found.append({"peer": name, "title": name, "records_per_second": rate, "error": str(error)})
                continue
            linger = "" if result.linger_ms is None else f", linger {result.linger_ms} ms"
            self.say(
                f"  {result.title}{linger}, {rate:,} records/s: p50 {result.p50_ms:.1f} ms, p99 {result.p99_ms:.1f} ms"
            )
            found.append(result.as_dict())
        return {**self._about(TAIL, "tail latency"), "rows": found}

    def _about(self, name: str, title: str) -> dict[str, Any]:
        return {
            "version": 1,
            "scenario": name,
            "title": title,
            "kafka": {"source": clusters.SOURCE_VERSION, "target": clusters.TARGET_VERSION},
            "archive": self.archive.title,
            "machine": self._machine,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "quick": self.options.quick,
        }

    def _keep_log(self, folder: Path, name: str) -> None:
        kept = ROOT / "build" / "bench-logs" / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with_logs = shutil.ignore_patterns("archive", "journal", "references.json")
        if folder.is_dir():
            shutil.copytree(folder, kept, ignore=with_logs)


def line_of(result: CopyResult) -> str:
    """A result for the terminal."""
    worker = f", worker +{result.worker_peak_mib:.0f} MiB" if result.worker_peak_mib is not None else ""
    return (
        f"{result.title:<28} {result.records_per_second / 1000:8,.0f} k rec/s  {result.stored_mb_per_second:6.0f} MB/s "
        f"{result.seconds:6.1f} s  CPU {result.cpu_seconds:6.2f} s  RSS {result.peak_rss_mib:5.0f} MiB{worker}"
        f"{'' if result.complete else '  (time was over)'}"
    )


def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic and wait for the broker's word; its files go a moment later."""
    admin = cluster.admin()  # must outlive the call
    for future in admin.delete_topics([topic], request_timeout=30).values():
        future.result()


def is_done(path: Path, scenario: Scenario) -> bool:
    """Whether a result file is there, of this size and with every peer's figures."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    rows = {row["peer"] for row in found.get("rows", []) if "error" not in row}
    return set(scenario.peers) <= rows and found.get("records", 0) >= 0.5 * scenario.records


def write_json(path: Path, document: Any) -> None:
    """Write a document so that no half of it is ever seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, results in build/bench-quick")
    parser.add_argument("--only", nargs="+", default=[], metavar="SCENARIO", help="these scenarios")
    parser.add_argument("--peers", nargs="+", default=[], metavar="PEER", help="these peers")
    parser.add_argument("--records", type=int, help="records per scenario, in place of its own number")
    parser.add_argument("--max-seconds", type=float, help="longest time of one copy")
    parser.add_argument("--resume", action="store_true", help="leave out scenarios whose results are there")
    parser.add_argument("--archive", choices=["auto", "versitygw", "moto", "folder"], default="auto")
    parser.add_argument("--folder", type=Path, help="where brokers keep their data; default: the temporary folder")
    parser.add_argument("--keep-logs", action="store_true", help="copy the peers' logs to build/bench-logs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a peer failed."""
    options = parse(arguments)
    try:
        chosen = scenarios(
            quick=options.quick, only=tuple(name for name in options.only if name != TAIL), records=options.records
        )
    except ValueError as error:
        print(f"{error}, {TAIL}", file=sys.stderr)
        return 2
    if options.only == [TAIL]:
        chosen = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kafka-migration-bench-", dir=options.folder) as name, ExitStack() as stack:
        bench = Bench(options, Path(name), stack)
        for scenario in chosen:
            failed += bench.keep(scenario.name, partial(bench.scenario, scenario), partial(is_done, scenario=scenario))
        if not options.only or TAIL in options.only:
            failed += bench.keep(TAIL, bench.tail, Path.exists)
        bench.report()
    return 1 if failed else 0
