"""The results page and its chart, made from the result files: ``python -m benchmarks.report [FOLDER]``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import ROOT
from benchmarks.scenarios import SCENARIOS
from benchmarks.summary import LIMITS, PROOFS, SCHEMAS, TAIL, Document, against_aims, load, rows, summarise

_ADD_A_PEER = """\
## Add a peer of your own

A peer is a class with three methods (`benchmarks/peers/base.py`, the protocol `Peer`):

```python
class MyCopier(ProcessPeer):
    name = "my_copier"  # letters, digits, underscores; the target topic is "my_copier.<topic>"
    title = "my copier"
    keeps_offsets = False  # True: complete when the target's end offsets are those of the source

    def command(self, task: Task) -> Sequence[str]:
        return ["my-copier", "--from", task.source, "--to", task.target, task.topic, task.target_topic]
```

`ProcessPeer` starts the command, measures CPU time and memory of all processes that come of it, and ends them. A peer
that is no child process implements `start(task)`, `stop()` and `measure()` itself. Then add a line to
`benchmarks/peers/registry.py` and the name to the scenarios' `peers` in `benchmarks/scenarios.py`, or give it on the
command line: `python -m benchmarks --only json_1mb --peers my_copier ours_direct`.
"""


def write(results: Path, page: Path, chart: Path) -> None:
    """Page and chart from the results in a folder."""
    documents = load(results)
    if documents:
        draw(documents, chart)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(documents, chart.name), encoding="utf-8")


def render(documents: Mapping[str, Document], chart: str) -> str:
    """The page, in Markdown."""
    parts = [
        "# Benchmarks",
        "All copiers in one run, one after the other, on the same brokers and the same data. `make bench` makes this "
        "page anew; `python -m benchmarks --quick` is a small run for development, whose figures mean little.",
        _machine(documents),
        *([f"![records per second of each copier]({chart})"] if documents else []),
        "## Against the aims",
        _aims(documents),
        "## What holds it back",
        _LIMITS,
        "## How it is measured",
        _HOW,
    ]
    for scenario in SCENARIOS:
        if scenario.name in documents:
            parts += [f"## {scenario.title[:1].upper()}{scenario.title[1:]}", _scenario(documents[scenario.name])]
    if TAIL in documents:
        parts += ["## Tail latency", _tail(documents[TAIL])]
    if PROOFS in documents:
        parts += ["## The content proofs", _proofs(documents[PROOFS])]
    if SCHEMAS in documents:
        parts += ["## Schemas", _schemas(documents[SCHEMAS])]
    return "\n\n".join([*parts, _ADD_A_PEER])


_LIMITS = """\
- **Full batches: the target broker.** Kafka decompresses every batch and checks every record of it before it is
  appended. On two processors shared by both brokers and the copier, the target took 1.4 to 1.6 of them while ours took
  0.2: the hand-made loop without any check is no faster. So the distance to MirrorMaker 2 is that between the broker's
  limit and a copier that takes the processors away from the broker; with brokers on machines of their own it
  should grow, which was not measured.
- **Processor time.** With full batches most of it is moving bytes between sockets, as the figure of the hand-made loop
  shows; the rest is some microseconds per batch and the work per request. Small batches have more of both per record.
  Those of a few records are joined (up to 64 KiB), which needs each record to be touched: some microseconds of Python,
  where librdkafka does it in C. Without that each would be an append of its own, as the hand-made loop shows.
- **Via S3.** The bytes are copied into segments, hashed (SHA-256, 0.7 s of a processor per GB here) and written (about
  2 s per GB into a folder in memory); here that happens on the processors that the brokers need.
- **Tail at 10,000 records/s.** Producer, consumer, both brokers and the copier share two processors, which are busy
  then: the consumer on the source, without any copier, shows how much of the figure is that. In one run, with other
  work beside it, the target took 0.83 of a processor, the source 0.47, the copier 0.21, the producer 0.13 and the
  reader 0.06, for 3,000 batches of about three records a second. What has gathered is
  joined, which took p50 from 91 to 30 ms.
- **Holes.** Each hole between two records costs control markers, a request of their own, which may go only when the
  records before it have been answered: equal offsets have this price, and `offsets.max_fill_time` limits it. With
  replication factor 3 each append and each marker waits for the followers; more partitions at a time hide that, eight
  do not. `mapped` leaves holes out: records of many runs go as one batch, and the table of runs is written ahead.
- **Memory** is highest where an archived segment becomes batches of one record each: about 850 bytes for each record
  beside its own, and a segment is decided as a whole."""

_HOW = """\
- Time runs from the first to the last record that is readable on the target, looked at every 10 ms over a connection
  of the benchmark's own; start-up is not counted, for no copier. A copy that takes too long is cut off, and its rate is
  that of what it has done.
- Before each scenario comes a copy that does not count: the first one of all pays for the compilers of the brokers'
  JVMs and for cold memory.
- CPU is that of all processes of the copier (user and system, from `/proc`) in the same time, for the whole topic.
  Memory is the resident size of all its processes; "worker" is what the largest one needed above its idle size.
- Source records are written by librdkafka and their batches multiplied; compacted and transactional topics are written
  record by record, and the log cleaner has been through.
- **Raw limit**: a hand-made loop of one process that fetches, patches batch headers and produces, without any check.
- **Ours, direct / via S3**: the lane's loop in one process, one thread, with the product's default settings but
  `seed.max_concurrent_partitions`: all partitions at a time, as the other copiers do.
  **In transactions**: the same loop with `offsets.mode: transactional`.
  **Ids rewritten**: the values begin with schema ids, which are translated (`schemas.ids: translate`).
  **Through Spark**: `spark-submit seed.py` on `local[2,4]`, two lanes; JVM and driver are counted, too. Where it has no
  row here, the figures of [Spark](spark.md#figures) are newer.
- **MirrorMaker 2**: Kafka's own artifacts as a dedicated node, only records (no checkpoints, heartbeats, syncs).
  Tuned: two tasks, and `target.producer.{compression.type=lz4, batch.size=65536, linger.ms=5,
  enable.idempotence=true, max.in.flight.requests.per.connection=5}`, `source.consumer.max.poll.records=5000`.
- **confluent-kafka loop**: consume, produce, poll; lz4, batches of 64 KiB, linger 5 ms, idempotent.
- Brokers: one source (ZooKeeper mode), one target (KRaft), 1 GiB heap each; data in memory for the
  results shown here (`--folder /dev/shm`), or else on the disk of the temporary folder. They
  share the processors with the copier, so a copier that needs less leaves more to them."""


def _machine(documents: Mapping[str, Document]) -> str:
    document = next((documents[s.name] for s in SCENARIOS if s.name in documents), None)
    if document is None:
        return "No results yet: `make bench` writes them."
    machine, kafka = document["machine"], document["kafka"]
    quick = " **This is a quick run: small data, not to be quoted.**" if document.get("quick") else ""
    return (
        f"Machine: {machine['cpus']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['system']}, Python "
        f"{machine['python']}; load before the run {machine['load_average']}. Kafka {kafka['source']} to "
        f"{kafka['target']}; segments went to {document['archive']}. {document['at']}.{quick}"
    )


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def _aims(documents: Mapping[str, Document]) -> str:
    """Each figure beside its aim, and what limits it: a figure without its limit says nothing to a reader elsewhere."""
    marks = {True: "reached", False: "not reached", None: "not measured"}
    lines = [
        [what, "" if value is None else f"{value:g}", aim, marks[met], LIMITS[what]]
        for what, value, aim, met in against_aims(summarise(documents))
    ]
    return _table(["what", "figure", "aim", "", "what limits it here"], lines)


def _scenario(document: Document) -> str:
    text = (
        f"{document['records']:,} records of {document['record_bytes']:.0f} B, {document['partitions']} partitions; "
        f"as stored {document['stored_bytes'] / 1e6:,.0f} MB in batches of {document['batch_bytes'] / 1024:,.0f} KiB"
    )
    head = ["copier", "records/s", "MB/s (data)", "seconds", "CPU s", "memory MiB", "worker MiB"]
    return text + "\n\n" + _table(head, [_line(row) for row in document["rows"]])


def _line(row: Mapping[str, Any]) -> list[str]:
    if "error" in row:
        return [row["title"], "failed", "", "", "", "", ""]
    worker = row["worker_peak_mib"]
    return [
        row["title"],
        f"{row['records_per_second']:,.0f}",
        f"{row['data_mb_per_second']:,.0f}",
        f"{row['seconds']:.1f}" + ("" if row["complete"] else " (cut off)"),
        f"{row['cpu_seconds']:.2f}",
        f"{row['peak_rss_mib']:,.0f}",
        "" if worker is None else f"+{worker:,.0f}",
    ]


def _tail(document: Document) -> str:
    head = ["copier", "records/s", "linger ms", "p50 ms", "p99 ms", "max ms"]
    lines = [
        [row["title"], f"{row['records_per_second']:,}", "failed", "", "", ""]
        if "error" in row
        else [
            row["title"],
            f"{row['records_per_second']:,}",
            "" if row["linger_ms"] is None else str(row["linger_ms"]),
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['max_ms']:.0f}",
        ]
        for row in document["rows"]
    ]
    text = (
        "From produce() on the source to the record in a consumer's hands on the target; 200-byte records over 8 "
        "partitions, a consumer that polls one record at a time. The producer lingers for 1 ms at 10,000 records/s."
    )
    return text + "\n\n" + _table(head, lines)


def _schemas(document: Document) -> str:
    head = ["registries", "ids", "subjects", "versions", "ours, s", "plain script, s", "ratios of the rounds"]
    lines = [
        [
            row["registries"],
            row["ids"],
            f"{row['subjects']:,}",
            f"{row['versions']:,}",
            f"{row['ours_seconds']:.1f}",
            f"{row['script_seconds']:.1f}",
            ", ".join(f"{ratio:.2f}" for ratio in row["ratios"]),
        ]
        for row in document["rows"]
    ]
    text = (
        "A copy into an empty registry, and a script that sends one GET and one POST for each version, with "
        f"{document['parallel_requests']} requests at a time each (`make bench-schemas`). The script knows nothing of "
        "levels, deletions, conflicts or kills. The load average before was "
        f"{document['machine']['load_average']}; only the ratio says something. On Apicurio the script cannot keep ids."
    )
    return text + "\n\n" + _table(head, lines)


_BUSY = (
    " **The machine was busy with other work: the ratios show the order of the readers, and the rates are not to be "
    "quoted.**"
)


def _proofs(document: Document) -> str:
    machine, kafka = document["machine"], document["kafka"]
    rounds = len(document["rows"][0]["seconds"])
    text = (
        f"{document['records']:,} records ({document['title']}; {document['stored_bytes'] / 1e6:,.0f} MB as stored) on "
        "both clusters, read by turns in one run of `python -m benchmarks.proofs`. A record counts once, for both of "
        "its sides. Two threads, two Spark tasks (`local[2]`), or two consumers (Kafka's `ConsumerPerformance` with "
        f"`read_committed`) ran on the processors that the brokers use, too; medians of {rounds} rounds. The "
        "comparison by the code that copies decodes no batch that is the same on both sides, as a consumer does with "
        "each; the independent proof decodes and digests every record. Spark's start is not in the figures. "
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['system']}; load before the run "
        f"{machine['load_average']}, after it {document['load_after']}. Kafka {kafka['source']} and {kafka['target']}. "
        f"{document['at']}." + (_BUSY if document["load_after"] > 2 * machine["cpus"] else "")
    )
    head = ["reader", "records/s", "MB/s (data)", "of a plain consumer", "seconds"]
    lines = [
        [
            row["title"],
            f"{row['records_per_second']:,}",
            f"{row['data_mb_per_second']:,.0f}",
            f"{row['of_consumer']:.2f}",
            ", ".join(f"{item:.1f}" for item in row["seconds"]),
        ]
        for row in document["rows"]
    ]
    return text + "\n\n" + _table(head, lines)


def draw(documents: Mapping[str, Document], path: Path) -> None:
    """Records per second of each peer, a group of bars per scenario."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [s for s in SCENARIOS if s.name in documents]
    names: dict[str, str] = {}
    for scenario in chosen:
        names |= {peer: str(row["title"]) for peer, row in rows(documents[scenario.name]).items()}
    figure, axes = pyplot.subplots(figsize=(11, 5.5))
    width = 0.8 / max(1, len(names))
    for index, (peer, title) in enumerate(names.items()):
        places = [number + index * width for number, s in enumerate(chosen) if peer in rows(documents[s.name])]
        rates = [rows(documents[s.name])[peer]["records_per_second"] for s in chosen if peer in rows(documents[s.name])]
        axes.bar(places, rates, width, label=title)
    axes.set_yscale("log")
    axes.set_ylabel("records per second (log scale)")
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(chosen))], [s.name for s in chosen])
    axes.grid(axis="y", alpha=0.3)
    if names:
        axes.legend(fontsize="small", ncols=2)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main() -> int:
    """Docs from ``benchmarks/results``, or a page beside the results of the folder that is named."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        write(folder, folder / "benchmarks.md", folder / "benchmarks.png")
    else:
        write(ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
