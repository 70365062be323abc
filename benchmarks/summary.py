"""Sums the results up: ``summary.json``. Pure functions over the scenarios' documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: The scenario whose ratios are the headline.
HEADLINE = "json_1mb"
TAIL = "tail"
PROOFS = "proofs"
SCHEMAS = "schemas"
TAIL_RATE = 10_000
_OURS = "ours_"

Document = Mapping[str, Any]


def load(folder: Path) -> dict[str, Document]:
    """Scenario -> document, of all result files in a folder; half-written and foreign files are left out."""
    found: dict[str, Document] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(document, dict) and isinstance(document.get("rows"), list) and "scenario" in document:
            found[str(document["scenario"])] = document
    return found


def rows(document: Document | None) -> dict[str, Mapping[str, Any]]:
    """Peer -> its row, without those that failed."""
    return {row["peer"]: row for row in (document or {}).get("rows", []) if "error" not in row}


def ratio(above: Mapping[str, Any] | None, below: Mapping[str, Any] | None, key: str) -> float | None:
    """One figure of two rows by each other; None if one is not there, or nothing."""
    if above is None or below is None or not below.get(key) or above.get(key) is None:
        return None
    return round(float(above[key]) / float(below[key]), 2)


def summarise(documents: Mapping[str, Document]) -> dict[str, Any]:
    """The summary; what was not measured is None."""
    found = rows(documents.get(HEADLINE))
    ours, s3 = found.get("ours_direct"), found.get("ours_s3")
    mm2, raw = found.get("mm2_tuned"), found.get("raw_limit")
    return {
        "ratios": {
            "records_per_second_vs_mm2_tuned": ratio(ours, mm2, "records_per_second"),
            "cpu_seconds_mm2_tuned_vs_ours": ratio(mm2, ours, "cpu_seconds"),
            "raw_limit_direct": ratio(ours, raw, "records_per_second"),
            "raw_limit_s3": ratio(s3, raw, "records_per_second"),
        },
        "tail_ms": _tail(documents.get(TAIL)),
        "worker_peak_mib": _worker_peak(documents.values()),
    }


def _tail(document: Document | None) -> dict[str, float | None]:
    """Ours, and MirrorMaker 2 at its best setting, at the higher rate."""
    at_rate = [
        row
        for row in (document or {}).get("rows", [])
        if "error" not in row and row.get("records_per_second") == TAIL_RATE
    ]
    ours = next((row for row in at_rate if row["peer"] == "ours_direct"), None)
    mm2 = min((row for row in at_rate if row["peer"].startswith("mm2")), key=lambda row: row["p99_ms"], default=None)
    return {
        "p50": ours and ours["p50_ms"],
        "p99": ours and ours["p99_ms"],
        "mm2_p50": mm2 and mm2["p50_ms"],
        "mm2_p99": mm2 and mm2["p99_ms"],
    }


def _worker_peak(documents: Iterable[Document]) -> float | None:
    """The most that one of our workers has needed above its idle size, over all scenarios."""
    peaks = [
        row["worker_peak_mib"]
        for document in documents
        for name, row in rows(document).items()
        if name.startswith(_OURS) and row.get("worker_peak_mib") is not None
    ]
    return round(max(peaks), 1) if peaks else None


#: What keeps each figure from being better on a machine of two processors; what each of them was found by is on the
#: results page.
LIMITS = {
    "records per second, times MirrorMaker 2 tuned": (
        "the target broker: it decompresses and checks each batch, and takes 1.4 to 1.6 of the two processors"
    ),
    "CPU of MirrorMaker 2 tuned, times ours": "moving bytes between sockets, as a copier without any check does, too",
    "of the raw limit, direct": "the broker, as for the hand-made loop",
    "of the raw limit, via S3": "hashing and writing segments on the processors that the brokers need",
    "tail at 10,000 records/s, p50 in ms": "producer, consumer, two brokers and the copier share two processors",
    "tail at 10,000 records/s, p99 in ms": "the same, and the seam between two slices",
    "memory of a worker above idle, MiB": "an archived segment of one-record batches, decided as a whole",
}
#: (what, path into the summary, at least (True) or at most, aim)
AIMS = (
    ("records per second, times MirrorMaker 2 tuned", ("ratios", "records_per_second_vs_mm2_tuned"), True, 10.0),
    ("CPU of MirrorMaker 2 tuned, times ours", ("ratios", "cpu_seconds_mm2_tuned_vs_ours"), True, 40.0),
    ("of the raw limit, direct", ("ratios", "raw_limit_direct"), True, 0.9),
    ("of the raw limit, via S3", ("ratios", "raw_limit_s3"), True, 0.5),
    ("tail at 10,000 records/s, p50 in ms", ("tail_ms", "p50"), False, 5.0),
    ("tail at 10,000 records/s, p99 in ms", ("tail_ms", "p99"), False, 100.0),
    ("memory of a worker above idle, MiB", ("worker_peak_mib",), False, 256.0),
)


def against_aims(summary: Mapping[str, Any]) -> list[tuple[str, float | None, str, bool | None]]:
    """(what, figure, aim as text, met) for each aim; met is None where nothing was measured."""
    found = []
    for what, path, at_least, aim in AIMS:
        value: Any = summary
        for key in path:
            value = value[key]
        met = None if value is None else (value >= aim if at_least else value <= aim)
        found.append((what, value, f"{'≥' if at_least else '≤'} {aim:g}", met))
    return found
