"""Runs many random faults, and switches off each net.

``python -m harness.faults.soak --faults 300 --seed N [--brokers 3]``

Writes ``build/soak/summary.json`` after each part, so that an interrupted run has written its results. Exit code
0: no damage with all nets, and damage found without each of them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.faults.judge import Damage
from harness.faults.lab import FaultLab
from harness.faults.net_scenarios import NAMED_WITH_ALL_NETS, SCENARIOS, SWEEPING
from harness.faults.random_faults import FaultResult, FaultRun
from harness.faults.writers import THREE_YEARS_SECONDS

SUMMARY = Path("build/soak/summary.json")
FAULTS_PER_RUN = 40


def commit_of_tree() -> str:
    """Return the commit that runs, with a mark if files differ from it; empty outside of a Git checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


class Summary:
    """The results so far.

    :param path: of the summary file.
    :param target_version: Kafka's version of the target.
    """

    def __init__(self, path: Path, target_version: str) -> None:
        self._path = path
        self._tree = {"commit": commit_of_tree(), "target_version": target_version}
        self._damage = Damage()
        self._kinds: Counter[str] = Counter()
        self._seeds: list[int] = []
        self._nets: dict[str, bool] = {}
        self._with_nets: dict[str, str] = {}
        self._runs: list[dict[str, Any]] = []
        self._seconds = 0.0

    def add(self, result: FaultResult, brokers: int, age_seconds: float, via: str) -> None:
        """Add a random run."""
        self._damage.add(result.damage)
        self._kinds += result.kinds
        self._seeds.append(result.seed)
        self._seconds += result.seconds
        self._runs.append(
            {
                "seed": result.seed,
                "brokers": brokers,
                "age_days": round(age_seconds / 86_400),
                "via": via,
                "faults": result.faults,
                "records": result.damage.records,
                "seconds": round(result.seconds, 1),
            }
        )
        self.write()

    def add_net(self, name: str, with_it: Damage, without_it: Damage) -> None:
        """Add the results with a net and without it."""
        self._nets[name] = without_it.found
        said = "named" if with_it.named else "damage" if with_it.silent else ""
        self._with_nets[name] = said or ("downgraded" if with_it.downgraded else "exact")
        self.write()

    @property
    def is_good(self) -> bool:
        """Whether there was no damage with all nets, and damage was found without each."""
        wrong = {name: said for name, said in self._with_nets.items() if said != _expected(name)}
        return not (self._damage.silent or self._damage.named or wrong) and all(self._nets.values())

    def write(self) -> None:
        """Write the current state."""
        damage = self._damage
        content = {
            **self._tree,
            "faults": self._kinds.total(),
            "lost": damage.lost,
            "duplicated": damage.duplicated,
            "reordered": damage.reordered,
            "wrong_offsets": damage.wrong_offsets,
            "downgraded": damage.downgraded,
            "named": damage.named,
            "records": damage.records,
            "seconds": round(self._seconds, 1),
            "seeds": self._seeds,
            "kinds": dict(sorted(self._kinds.items())),
            "runs": self._runs,
            "nets": self._nets,
            "with_nets": self._with_nets,
            "where": damage.where,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _expected(net: str) -> str:
    return "named" if net in NAMED_WITH_ALL_NETS else "exact"


def random_runs(
    lab: FaultLab, summary: Summary, seed: int, faults: int, deadline: float, *, in_transactions: bool = False
) -> None:
    """Runs of some faults each: records alternately from today and three years ago, direct and through an archive."""
    made, number = 0, 0
    while made < faults and time.monotonic() < deadline:
        age_seconds = THREE_YEARS_SECONDS if number % 2 else 0.0
        via = "s3" if number % 4 >= 2 else "direct"
        run = FaultRun(
            lab,
            seed + number,
            min(FAULTS_PER_RUN, faults - made),
            age_seconds=age_seconds,
            via=via,
            with_topics=number % 3 == 2,
            in_transactions=in_transactions,
            max_seconds=max(1.0, deadline - time.monotonic()),
        )
        result = run.run()
        print(result.line(), flush=True)
        for line in result.damage.where:
            print("  ", line, flush=True)
        summary.add(result, lab.brokers, age_seconds, via)
        made += result.faults
        number += 1


def nets(lab: FaultLab, summary: Summary) -> None:
    """Switch off each net in turn."""
    for name, (off, scenario, brokers) in SCENARIOS.items():
        if brokers != lab.brokers:
            continue
        with_it, without_it = scenario(lab, []), scenario(lab, off)
        print(f"net {name}: with it {with_it}; without it {without_it}", flush=True)
        summary.add_net(name, with_it, without_it)


def main() -> int:
    """Run; the seed is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="of the target")
    parser.add_argument("--target-version", default="4.1.1", help="Kafka's version there")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no more faults after that")
    parser.add_argument("--in-transactions", action="store_true", help="the verdict transactional for all partitions")
    parser.add_argument("--no-nets", action="store_true", help="only random faults")
    parser.add_argument("--summary", type=Path, default=SUMMARY)
    parser.add_argument("--keep", action="store_true", help="keep the folder of brokers and copiers")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # brokers are stopped, folders removed
    seed = random.randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    summary = Summary(options.summary, options.target_version)
    deadline = time.monotonic() + options.minutes * 60
    target = {"brokers": options.brokers, "version": options.target_version}
    folder = Path(tempfile.mkdtemp(prefix="kafka-migration-soak-"))
    try:
        if not (options.no_nets or options.in_transactions):
            with FaultLab(folder / "nets", target_config=SWEEPING, **target) as lab:
                nets(lab, summary)
        if options.faults:
            with FaultLab(folder / "faults", **target) as lab:
                random_runs(lab, summary, seed, options.faults, deadline, in_transactions=options.in_transactions)
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{options.summary}: {'good' if summary.is_good else 'damage, or a net that was not missed'}")
    return 0 if summary.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
