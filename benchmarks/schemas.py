"""``python -m benchmarks.schemas [--subjects N]``: a copy of schemas, and the plain script that does the same requests.

The script reads each version of the source and registers it on the target: one GET and one POST each, with as many
requests at a time as the migration. It knows nothing of levels, deletions, gaps, conflicts, or kills. Where ids are
kept, it sets mode IMPORT for the whole registry. Both run one after the other on the same kind of registries,
freshly filled; the figure is the ratio.

* **simulated**: ``harness.fake_registry`` with Confluent's answers, in processes of its own. Each write takes some
  milliseconds longer, because Confluent's registry answers a write when its topic has it.
* **Apicurio**: real servers. Ids are kept by its own import, which no script of two requests has; the script registers
  there with new ids.

Results in ``benchmarks/results/schemas.json``; ``python -m benchmarks.report`` puts them onto the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote

import requests

from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.schemas.open import RegistryPair
from airflow_provider_kafka_migration.schemas.sync import synchronize
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore
from benchmarks import clusters
from benchmarks.run import write_json
from benchmarks.summary import SCHEMAS
from harness.processes import HarnessError
from harness.registries import ApicurioRegistry, SeedVersion, start_pair, stop_pair

RESULTS = Path(__file__).parent / "results" / "schemas.json"
PARALLEL = 10
ROUNDS = 3
#: Versions in one import of Apicurio, a multiple of the 11 that belong together.
_IMPORTED = 1_100
IdMode = Literal["keep", "translate"]


def versions(subjects: int) -> list[SeedVersion]:
    """One version of each subject, each tenth with a second one."""
    found = []
    for number in range(subjects):
        name = f"topic-{number:05d}-value"
        found.append(SeedVersion(name, 1, 2 * number + 1, _text(number, "x")))
        if number % 10 == 0:
            found.append(SeedVersion(name, 2, 2 * number + 2, _text(number, "x", "y")))
    return found


def _text(number: int, *fields: str) -> str:
    rows = [{"name": name, "type": "int", "default": 0} for name in fields]
    return json.dumps({"type": "record", "name": f"R{number}", "fields": rows})


# -- the two copies ---------------------------------------------------------------------------------------------------


def migrated(source: str, target: str, ids: IdMode, folder: Path) -> float:
    """Copy by a pass of a migration; return its seconds."""
    data = {
        "migration_id": "bench",
        "source": {"conn_id": "env:S"},
        "target": {"conn_id": "env:T"},
        "storage": {"journal": (folder / "store").as_uri()},
        "schemas": {"source": "env:A", "target": "env:B", "ids": ids, "max_parallel_requests": PARALLEL},
    }
    store = LocalStore(folder / "store")
    journal = Journal.create_or_open(store, "bench", Fingerprint("s", "t"), owner=Owner("cli", "bench", "bench"))
    unused: Any = None
    no_brokers: Any = SimpleNamespace(wire=None)
    context = PhaseContext(parse_spec(data), journal, no_brokers, no_brokers, store, store, store, unused)
    one, other = (Registry(RegistryAccess.from_dict({"url": url}), "source") for url in (source, target))
    with RegistryPair(one, other) as pair:
        began = time.monotonic()
        result = synchronize(context, pair, reason="schemas")
        seconds = time.monotonic() - began
    if result.failed or result.conflicts:
        raise HarnessError(f"not everything was copied: {result.failed[:1]} {result.conflicts[:1]}")
    return seconds


def scripted(source: str, target: str, ids: IdMode, chosen: list[SeedVersion]) -> float:
    """Copy as a plain script; return its seconds."""
    local = threading.local()

    def copy(items: list[SeedVersion]) -> None:
        session = local.__dict__.setdefault("session", requests.Session())
        for item in items:
            path = f"/subjects/{quote(item.subject, safe='')}/versions"
            body = session.get(f"{source}{path}/{item.version}", timeout=60).json()
            sent = {"schema": body["schema"], "schemaType": body.get("schemaType", "AVRO")}
            if ids == "keep":
                sent |= {"id": body["id"], "version": body["version"]}
            session.post(f"{target}{path}", json=sent, timeout=60).raise_for_status()

    began = time.monotonic()
    if ids == "keep":
        requests.put(f"{target}/mode?force=true", json={"mode": "IMPORT"}, timeout=60).raise_for_status()
    subjects: dict[str, list[SeedVersion]] = {}
    for item in chosen:
        subjects.setdefault(item.subject, []).append(item)
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(copy, subjects.values()))
    if ids == "keep":
        requests.put(f"{target}/mode", json={"mode": "READWRITE"}, timeout=60).raise_for_status()
    return time.monotonic() - began


# -- registries -------------------------------------------------------------------------------------------------------


@contextmanager
def simulated(write_ms: float) -> Iterator[str]:
    """A simulated registry in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "harness.fake_registry", "--write-ms", str(write_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def fill(url: str, chosen: list[SeedVersion]) -> None:
    """Register versions under their ids in a registry of Confluent's kind."""
    with requests.Session() as session:
        session.put(f"{url}/mode", json={"mode": "IMPORT"}, timeout=60).raise_for_status()
        for item in chosen:
            body = {"schema": item.text, "id": item.id, "version": item.version}
            session.post(f"{url}/subjects/{item.subject}/versions", json=body, timeout=60).raise_for_status()
        session.put(f"{url}/mode", json={"mode": "READWRITE"}, timeout=60).raise_for_status()


def _row(name: str, ids: IdMode, chosen: list[SeedVersion], pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """The round whose ratio is the median of all: (ours, script) in seconds."""
    ours, plain = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    return {
        "peer": f"{name}, {ids}",
        "registries": name,
        "ids": ids,
        "subjects": len({item.subject for item in chosen}),
        "versions": len(chosen),
        "ours_seconds": round(ours, 2),
        "script_seconds": round(plain, 2),
        "ratio": round(ours / plain, 2),
        "ratios": sorted(round(one / other, 2) for one, other in pairs),
    }


def on_simulated(chosen: list[SeedVersion], ids: IdMode, write_ms: float, folder: Path) -> dict[str, Any]:
    """A row with simulated registries."""
    pairs = []
    with ExitStack() as stack:
        source = stack.enter_context(simulated(0))
        fill(source, chosen)
        for number in range(ROUNDS):
            plain = scripted(source, stack.enter_context(simulated(write_ms)), ids, chosen)
            place = folder / f"simulated-{ids}-{number}"
            pairs.append((migrated(source, stack.enter_context(simulated(write_ms)), ids, place), plain))
    return _row(f"simulated, {write_ms:g} ms a write", ids, chosen, pairs)


def on_apicurio(chosen: list[SeedVersion], ids: IdMode, folder: Path) -> dict[str, Any]:
    """A row with real servers: one source, and an empty target for each copy."""
    pair = start_pair(folder / f"apicurio-{ids}")
    try:
        for begin in range(0, len(chosen), _IMPORTED):
            pair.source.seed(chosen[begin : begin + _IMPORTED])
        with ApicurioRegistry(folder / f"apicurio-{ids}-script") as other:
            plain = scripted(pair.source.url, other.url, "translate", chosen)
        ours = migrated(pair.source.url, pair.target.url, ids, folder / f"apicurio-store-{ids}")
    finally:
        stop_pair(pair)
    return _row("Apicurio", ids, chosen, [(ours, plain)])


def main() -> int:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=3_000)
    parser.add_argument(
        "--write-ms", type=float, default=10.0, help="what a write of a simulated registry takes longer"
    )
    parser.add_argument("--only", choices=("simulated", "apicurio"))
    options = parser.parse_args()
    machine = clusters.machine()
    chosen = versions(options.subjects)
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-schemas-") as name:
        modes: tuple[IdMode, ...] = ("keep", "translate")
        for ids in modes:
            if options.only != "apicurio":
                rows.append(on_simulated(chosen, ids, options.write_ms, Path(name)))
                print(rows[-1], flush=True)
            if options.only != "simulated":
                rows.append(on_apicurio(chosen, ids, Path(name)))
                print(rows[-1], flush=True)
    write_json(
        RESULTS, {"version": 1, "scenario": SCHEMAS, "machine": machine, "parallel_requests": PARALLEL, "rows": rows}
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
