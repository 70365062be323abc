"""Runs the soak in parts: ``scripts/soak.py [PART]``; ``help`` lists the parts. Without PART, all run in this order.

``FAULTS``, ``FAULTS_ON_THREE``, ``SEED`` and ``PYTEST_ARGS`` come from the environment, as ``make soak`` sets them. A
part that fails does not keep the others from running; the exit code says whether one has failed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: pytest's exit code if ``PYTEST_ARGS`` select none of the tests of a part.
NOTHING_SELECTED = 5


@dataclass(frozen=True)
class Part:
    """One part of the soak.

    :param what: a line for ``help``.
    :param paths: tests of which those with the marker ``soak`` run.
    :param command: what runs instead of tests.
    """

    what: str
    paths: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def _faults(variable: str, default: int, *more: str) -> tuple[str, ...]:
    seed = os.environ.get("SEED", "")
    count = os.environ.get(variable) or str(default)
    return (sys.executable, "-m", "harness.faults.soak", "--faults", count, *(("--seed", seed) if seed else ()), *more)


_ALL_EXAMPLES = ("-n", "2", "--dist", "loadfile", "-m", "hypothesis", "--hypothesis-profile=thorough")

PARTS = {
    "faults": Part("random faults on one broker, and each safeguard switched off", command=_faults("FAULTS", 300)),
    "faults-on-three": Part(
        "the same on a target of three brokers",
        command=_faults("FAULTS_ON_THREE", 60, "--brokers", "3", "--summary", "build/soak/summary-3-brokers.json"),
    ),
    "nets": Part("hard cases and safeguards, three brokers included", ("tests/integration/faults",)),
    "control": Part(
        "plan, precheck, topology and bad input: killed, and in every variant",
        ("tests/integration/control", "tests/integration/bad_input"),
    ),
    "copy": Part(
        "copies killed, stored in S3, in transactions, with schema ids, checked by Kafka's own tools",
        (
            "tests/integration/batches",
            "tests/integration/content",
            "tests/integration/copy",
            "tests/integration/transactional",
        ),
    ),
    "cutover": Part(
        "cutovers killed at every step, with every freeze and kind of group", ("tests/integration/cutover",)
    ),
    "commands": Part(
        "whole migrations and ways back by the command line",
        tuple(
            f"tests/integration/test_cli_{name}.py"
            for name in (
                "migration",
                "split",
                "transactional",
                "way_back",
                "way_back_kinds",
                "way_back_zombies",
            )
        ),
    ),
    "versions": Part(
        "whole migrations between the versions of Kafka that make test has no time for",
        ("tests/integration/test_versions.py",),
    ),
    "adoption": Part("copies of other tools taken over", ("tests/integration/adoption",)),
    "mirrors": Part(
        "mirrors in every topology, and next to MirrorMaker 2",
        ("tests/integration/mirrors", "tests/integration/mirror_maker"),
    ),
    "registries": Part("Apicurio in every variant", ("tests/integration/registry",)),
    "security": Part("logins, rights, certificates", ("tests/integration/security",)),
    "spark": Part(
        "Spark as a cluster: every series, standalone, Connect, YARN, machines lost", ("tests/integration/spark",)
    ),
    "airflow": Part(
        "the DAGs in a real Airflow: killed, rolled back, restarted", ("tests/e2e", "tests/integration/airflow")
    ),
    "celery": Part(
        "a migration in an Airflow with PostgreSQL, Redis and Celery, in an environment of its own",
        command=("make", "test-celery"),
    ),
    "releases": Part("each supported Airflow with its constraints, and the lowest versions", ("tests/releases",)),
    "harness": Part(
        "the harness itself", ("tests/integration/test_harness.py", "tests/integration/test_harness_load.py")
    ),
    "units": Part("unit tests that go through years or thousands", ("tests/unit",)),
    "engines": Part("the hooks of all providers, in an environment of their own", command=("make", "test-engines")),
    "properties": Part(
        "all property tests with 500 examples each", command=(sys.executable, "-m", "pytest", *_ALL_EXAMPLES)
    ),
}


def command_of(part: Part) -> list[str]:
    """Return the command of a part."""
    more = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    if part.paths:
        return [sys.executable, "-m", "pytest", "-m", "soak", *part.paths, *more]
    return [*part.command, *(more if "pytest" in part.command else [])]


def _help() -> int:
    width = max(map(len, PARTS))
    for name, part in PARTS.items():
        print(f"{name:{width}}  {part.what}")
    return 0


def main(wanted: list[str]) -> int:
    """Run the wanted parts, or all of them."""
    if wanted == ["help"]:
        return _help()
    if unknown := [name for name in wanted if name not in PARTS]:
        print(f"{unknown[0]} is not a part of the soak. These are:")
        return _help() or 2
    ended: dict[str, tuple[int, float]] = {}
    for name in wanted or PARTS:
        print(f"== {name}: {PARTS[name].what}", flush=True)
        began = time.monotonic()
        status = subprocess.run(command_of(PARTS[name]), cwd=ROOT, check=False).returncode
        if status == NOTHING_SELECTED and os.environ.get("PYTEST_ARGS"):
            status = 0
        ended[name] = (status, time.monotonic() - began)
    for name, (status, seconds) in ended.items():
        print(f"{name}: {'passed' if status == 0 else f'FAILED ({status})'} after {seconds / 60:.1f} min")
    return 1 if any(status for status, _ in ended.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
