"""The sizing page says what the benchmarks have measured and what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_kafka_migration.lanes import assignment, figures, job_progress, slices
from airflow_provider_kafka_migration.spec import parse_spec

DOCS = Path(__file__).parents[2] / "docs"
SIZING = (DOCS / "sizing.md").read_text(encoding="utf-8")
#: Row of the page -> heading of the benchmark, and the row of the copier.
ROWS = {
    "batches of 1 MB, lz4": ("JSON of 670 B, lz4, 8 partitions, batches of 1 MB", "ours, direct"),
    "batches of 64 KB, 64 partitions, lz4": ("JSON of 670 B, lz4, 64 partitions, batches of 64 KB", "ours, direct"),
    "batches of 16 KB, lz4": ("JSON of 670 B, lz4, 8 partitions, batches of 16 KB", "ours, direct"),
    "transactions of 400 records, equal offsets": (
        "Transactions of 400 records over 8 partitions, each tenth aborted, lz4",
        "ours, direct",
    ),
    "each record a batch of its own": ("JSON of 300 B, each a batch of its own, 8 partitions", "ours, direct"),
    "every second record compacted away, `mapped`": (
        "Every second record compacted away, lz4, 8 partitions",
        "ours, direct, mapped",
    ),
    "every second record compacted away, equal offsets": (
        "Every second record compacted away, lz4, 8 partitions",
        "ours, direct",
    ),
}


def cpu_per_gb(heading: str, copier: str) -> float:
    """Processor seconds per GB as stored that were copied until the end, or until the run was cut off."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    total = re.search(r"([\d,]+) records of .* as stored ([\d,]+) MB", section)
    line = next(line for line in section.splitlines() if line.startswith(f"| {copier} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert total is not None
    records, megabytes = (float(text.replace(",", "")) for text in total.groups())
    rate, seconds, cpu = float(cells[1].replace(",", "")), float(cells[3].split()[0]), float(cells[4])
    share = rate * seconds / records if "cut off" in cells[3] else 1.0
    return cpu / (megabytes / 1000 * share)


def shown(row: str, column: int) -> float:
    line = next(line for line in SIZING.splitlines() if line.startswith(f"| {row} |"))
    return float(line.strip("|").split("|")[column].strip().replace(",", ""))


@pytest.mark.parametrize("row", sorted(ROWS))
def test_processor_time_is_that_of_the_benchmarks(row: str) -> None:
    heading, copier = ROWS[row]
    assert shown(row, 1) == pytest.approx(cpu_per_gb(heading, copier), rel=0.15)
    if copier == "ours, direct":
        assert shown(row, 2) == pytest.approx(cpu_per_gb(heading, "ours, via S3"), rel=0.15)


def test_requests_are_those_of_the_intervals_in_the_code() -> None:
    gets = 1 / slices._ASK_SECONDS + 1 / assignment.ASK_SECONDS
    tail = gets + 1 / slices.StopOffsets._POLL_SECONDS
    assert shown("a lane of the seed", 1) == pytest.approx(gets, abs=0.05)
    assert shown("a lane of the tail", 1) == pytest.approx(tail, abs=0.05)
    assert shown("400 lanes of the tail", 1) == pytest.approx(400 * tail, rel=0.01)
    assert shown("a lane of the seed", 2) == pytest.approx(1 / figures.WRITE_SECONDS, abs=0.05)


def test_intervals_of_large_jobs_are_those_of_the_code() -> None:
    assert f"every {job_progress._LONGEST_PROGRESS_SECONDS:.0f} s" in SIZING
    small = job_progress._PROGRESS_SECONDS / job_progress._PROGRESS_SECONDS_PER_PARTITION
    assert 1_300 <= small < 1_400
    assert 10_000 * job_progress._PROGRESS_SECONDS_PER_PARTITION >= job_progress._LONGEST_PROGRESS_SECONDS
    assert job_progress._LONGEST_REFRESH_SECONDS == 10.0


def test_the_example_is_a_spec() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", SIZING, re.DOTALL)
    spec = parse_spec(
        {
            "migration_id": "orders",
            "source": {"conn_id": "a"},
            "target": {"conn_id": "b"},
            "storage": {"journal": "s3://bucket/x"},
            **yaml.safe_load(text),
        }
    )
    assert spec.seed.lanes * (spec.seed.max_bytes_per_second or 0) == pytest.approx(528e6, rel=0.05)
