"""Deliberate bugs: which unit test finds each of them? ``make mutants`` (ROOM=freeze: only that file).

``tests/mutants/ROOM.toml`` lists changes of code that decides about data, groups, access, a freeze, schemas, evidence
or mirrors. Each is made in a copy of the repository, where the room's unit tests run until the first of them fails. A
change that no test notices *survives*: a bug like it would reach real brokers. The result goes to
docs/results/mutants.json; the exit status is 1 if a change survives.

A file has the tests of its room, and one table per change::

    tests = ["tests/unit/freeze"]

    [[mutant]]
    id = "late-writes-open"
    file = "freeze/late_writes.py"
    find = "is_open = True"
    replace = "is_open = False"
    means = "an open transaction behind the boundary is not named before the clients switch"
    tests = ["tests/unit/freeze/test_late_writes.py"]   # optional: instead of the room's
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "airflow_provider_kafka_migration"
CATALOGUE = ROOT / "tests" / "mutants"
RESULT = ROOT / "docs" / "results" / "mutants.json"
#: A change may make a test wait for ever; that is noticed, too.
SECONDS = 600
_OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--durations=0")
_MARKS = "not integration and not e2e and not soak and not slow"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
#: pytest's exit status if tests were run and some failed, and if all passed.
_SOME_FAILED, _ALL_PASSED = 1, 0


@dataclass(frozen=True)
class Mutant:
    """One change.

    :param file: below the package.
    :param find: text that occurs once in the file.
    :param means: what the bug would do to a user.
    :param tests: what has to notice it.
    """

    id: str
    file: str
    find: str
    replace: str
    means: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """How a mutant ended.

    :param test: the first test that failed; ``(time)`` if the tests did not end; empty if it survives.
    """

    mutant: Mutant
    test: str


def catalogue(room: str = "") -> list[Mutant]:
    """Return the mutants of a room, or of all.

    :raises ValueError: an entry is not complete, an id occurs twice, or its text is not found once.
    """
    found: list[Mutant] = []
    for path in sorted(CATALOGUE.glob(f"{room or '*'}.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in data.get("mutant", ()):
            tests = tuple(entry.pop("tests", data["tests"]))
            found.append(Mutant(**entry, tests=tests))
    ids = [mutant.id for mutant in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"these ids occur twice: {', '.join(twice)}")
    for mutant in found:
        count = (ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.find)
        if count != 1:
            raise ValueError(f"{mutant.id}: its text occurs {count} times in {mutant.file}")
    return found


class Copies:
    """Copies of the repository, one for each thread that tries mutants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = threading.local()
        self._files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.split(b"\0")

    def mine(self) -> Path:
        """Return the copy of this thread."""
        if not hasattr(self._own, "path"):
            self._own.path = Path(tempfile.mkdtemp(dir=self._folder))
            for name in filter(None, self._files):
                source, copy = ROOT / name.decode(), self._own.path / name.decode()
                if source.exists():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, copy)
        path: Path = self._own.path
        return path


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a copy. Returns pytest's exit status and output; -1 if they did not end in time."""
    command = [sys.executable, "-m", "pytest", *_OPTIONS, "-m", _MARKS, "--hypothesis-profile=quick", *tests]
    environment = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout + done.stderr


def try_mutant(copies: Copies, mutant: Mutant) -> Verdict:
    """Make a change in this thread's copy, run its tests, and take the change back."""
    copy = copies.mine()
    path = copy / PACKAGE / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutant.find, mutant.replace), encoding="utf-8")
    try:
        status, output = run_tests(copy, mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if status == -1:
        return Verdict(mutant, "(time)")
    if status == _ALL_PASSED:
        return Verdict(mutant, "")
    failed = _FAILED.search(output)
    if status != _SOME_FAILED and failed is None:
        raise RuntimeError(f"{mutant.id}: pytest ended with {status}:\n{output[-2000:]}")
    return Verdict(mutant, failed[1] if failed else "(unknown)")


def check_tests(copies: Copies, mutants: Sequence[Mutant]) -> None:
    """Make sure that the tests pass without any change.

    :raises RuntimeError: some fail.
    """
    for tests in sorted({mutant.tests for mutant in mutants}):
        status, output = run_tests(copies.mine(), tests)
        if status != _ALL_PASSED:
            raise RuntimeError(f"{' '.join(tests)} fails without a change:\n{output[-3000:]}")


def tried(copies: Copies, mutants: Sequence[Mutant], workers: int) -> Iterator[Verdict]:
    """Yield the verdicts as they come, in the order of the list."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda mutant: try_mutant(copies, mutant), mutants)


def write_result(verdicts: Sequence[Verdict]) -> None:
    """Write the whole result."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    result = {
        "commit": commit.stdout.strip(),
        "killed": sum(bool(verdict.test) for verdict in verdicts),
        "survived": sorted(verdict.mutant.id for verdict in verdicts if not verdict.test),
        "killed_by": {verdict.mutant.id: verdict.test for verdict in verdicts if verdict.test},
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> int:
    """Try mutants and print what each test has found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", default="", help="only this file of tests/mutants")
    parser.add_argument("--id", default="", help="only ids that contain this text")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    mutants = [mutant for mutant in catalogue(given.room) if given.id in mutant.id]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = Copies(Path(folder))
        check_tests(copies, mutants)
        for verdict in tried(copies, mutants, given.workers):
            verdicts.append(verdict)
            print(f"{verdict.mutant.id:40} {verdict.test or 'SURVIVES: ' + verdict.mutant.means}", flush=True)
    survived = sum(not verdict.test for verdict in verdicts)
    print(f"{len(verdicts)} deliberate bugs: {len(verdicts) - survived} found, {survived} survive")
    if not given.room and not given.id:
        write_result(verdicts)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
