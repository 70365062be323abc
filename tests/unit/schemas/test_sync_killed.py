"""A process is killed before each of its writes in turn; the next run ends where an undisturbed one does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from registry_world import Gate, Killed, World, avro, client, reference, run_gated, world

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.record.registry_settings import open_settings
from airflow_provider_kafka_migration.schemas import modes
from harness.fake_registry import FakeRegistry, Reply, Request

pytestmark = pytest.mark.slow

CART = '{"type":"record","name":"Cart","fields":[{"name":"o","type":"Order"}]}'


def section(id_mode: str) -> dict[str, Any]:
    return {
        "source": "env:SOURCE_REGISTRY",
        "target": "env:TARGET_REGISTRY",
        "ids": id_mode,
        "rename": {"subjects": {"b-cart": "carts"}},
        # One request at a time: the order of writes, and with it ids that the target assigns, must not vary.
        "max_parallel_requests": 1,
    }


def fill(source: FakeRegistry, target: FakeRegistry) -> None:
    """References, gaps, deletions, levels and modes on the source; a subject with a level and a mode on the target."""
    source.seed("a-order", avro("Order", "id"), id=10)
    source.seed("a-order", avro("Order", "id", "n", n=0), id=12, version=3)
    source.seed("a-order", avro("Order", "id", "m", m=0), id=13, version=4, deleted=True)
    source.seed("b-cart", CART, id=11, references=[reference("Order", "a-order", 3)])
    source.seed("c-gone", avro("Gone", "x"), id=14, deleted=True)
    source.seed("d-strict", avro("Strict", "x"), id=20)
    source.seed("d-strict", avro("Strict", "x", "must"), id=21, version=2)
    source.store.configs["a-order"] = {"compatibilityLevel": "FULL"}
    source.store.modes["a-order"] = "READONLY"
    target.store.configs["d-strict"] = {"compatibilityLevel": "FULL_TRANSITIVE"}
    target.store.modes["d-strict"] = "READWRITE"
    target.seed("foreign", avro("Foreign", "x"), id=5)


def attempt(folder: Path, source: FakeRegistry, target: FakeRegistry, gate: Gate, schemas: dict[str, Any]) -> bool:
    """One run; return whether it was killed."""
    try:
        run_gated(folder, client(source, "source"), client(target, "target"), gate, schemas)
    except Killed:
        return True
    return False


def outcome(folder: Path, target: FakeRegistry) -> tuple[dict[str, Any], list[Any]]:
    """What the target holds, and the map of ids."""
    document = SchemaIdMap.parse((folder / "store" / "m1" / "schemas" / "id-map.json").read_bytes())
    return target.state(), document.ids


@pytest.mark.parametrize(("id_mode", "is_vacant"), [("keep", False), ("keep", True), ("translate", False)])
def test_a_kill_before_each_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_mode: str, is_vacant: bool
) -> None:
    """In a vacant registry, all subjects get mode IMPORT at once by the mode of the registry."""
    schemas = section(id_mode)

    def filled(at: World) -> None:
        fill(at.source, at.target)
        if is_vacant:
            monkeypatch.setattr(modes, "VACANT_FROM", 2)
            del at.target.store.subjects["foreign"]

    with world(tmp_path / "whole", **schemas) as at:
        filled(at)
        whole = Gate(None)
        assert not attempt(tmp_path / "whole", at.source, at.target, whole, schemas)
        expected = outcome(tmp_path / "whole", at.target)
    assert expected[0]["modes"] == {"": "READWRITE", "a-order": "READONLY", "d-strict": "READWRITE"}
    assert expected[0]["configs"]["d-strict"] == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert whole.writes > 20
    assert any("Registry.set_mode (None, 'IMPORT')" in line for line in whole.log) is is_vacant
    for number in range(whole.writes):
        folder = tmp_path / f"kill-{number}"
        with world(folder, **schemas) as at:
            filled(at)
            assert attempt(folder, at.source, at.target, Gate(number), schemas), whole.log[number]
            again = Gate(None)
            assert not attempt(folder, at.source, at.target, again, schemas)
            assert outcome(folder, at.target) == expected, f"killed before write {number}: {whole.log[number]}"
            journal = at.context.journal
            journal.refresh()
            assert not open_settings(journal, "target", "mode"), whole.log[number]
            assert not open_settings(journal, "target", "config"), whole.log[number]


@pytest.mark.parametrize("id_mode", ["keep", "translate"])
def test_kills_one_after_the_other(tmp_path: Path, id_mode: str) -> None:
    """Runs that are killed while they continue, or put back, what others have left."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    schemas = section(id_mode)
    with world(tmp_path / "whole", **schemas) as at:
        fill(at.source, at.target)
        whole = Gate(None)
        attempt(tmp_path / "whole", at.source, at.target, whole, schemas)
        expected = outcome(tmp_path / "whole", at.target)
    folder = tmp_path / "killed"
    with world(folder, **schemas) as at:
        fill(at.source, at.target)
        kills = 0
        # A gate behind the last write would kill nobody.
        while attempt(folder, at.source, at.target, Gate(choice.randrange(6, whole.writes)), schemas):
            kills += 1
            assert kills < 60
        assert kills
        assert outcome(folder, at.target) == expected


_CHILD = """
import os, signal, sys, json
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from registry_world import Gate, client, run_gated

class Remote:
    def __init__(self, url):
        self.url = url

gate = Gate(int(sys.argv[5]), kill=lambda: os.kill(os.getpid(), signal.SIGKILL))
run_gated(Path(sys.argv[2]), client(Remote(sys.argv[3]), "source"), client(Remote(sys.argv[4]), "target"), gate,
          json.loads(sys.argv[6]))
"""


def killed_child(folder: Path, at: World, kill_before: int, schemas: dict[str, Any]) -> None:
    """A process that synchronizes and kills itself before one of its writes."""
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            _CHILD,
            json.dumps([item for item in sys.path if item]),
            str(folder),
            at.source.url,
            at.target.url,
            str(kill_before),
            json.dumps(schemas),
        ],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr


def test_a_true_kill_of_the_process(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    schemas = section("keep")
    with world(tmp_path / "whole", **schemas) as at:
        fill(at.source, at.target)
        whole = Gate(None)
        attempt(tmp_path / "whole", at.source, at.target, whole, schemas)
        expected = outcome(tmp_path / "whole", at.target)
    registers = [number for number, line in enumerate(whole.log) if line.startswith("Registry.register")]
    kill_before = random.Random(seed).choice(registers)
    folder = tmp_path / "killed"
    with world(folder, **schemas) as at:
        fill(at.source, at.target)
        killed_child(folder, at, kill_before, schemas)
        assert "IMPORT" in at.target.state()["modes"].values()
        assert not attempt(folder, at.source, at.target, Gate(None), schemas)
        assert outcome(folder, at.target) == expected


def no_import_for_subjects(request: Request) -> Reply | None:
    """A registry that takes mode IMPORT for contexts and for itself, but not for single subjects."""
    scope = unquote(request.path).removeprefix("/mode")
    if request.method == "PUT" and request.body == {"mode": "IMPORT"} and scope[:1] == "/" and scope[-1:] != ":":
        return Reply.error(422, 42205, "Cannot import since found existing subjects")
    return None


@pytest.mark.parametrize(("scope", "former"), [("", "READWRITE"), (":.x:", None), (":.x:", "READWRITE")])
def test_a_true_kill_with_a_wider_scope_in_mode_import(tmp_path: Path, scope: str, former: str | None) -> None:
    """What is killed has opened a context, or the whole registry, to all clients; the next run closes it first."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    schemas = {key: value for key, value in section("keep").items() if key != "rename"}

    def fill_scope(at: World) -> None:
        at.target.before = no_import_for_subjects
        at.source.seed(f"{scope}a-value", avro("A", "x"), id=5, version=3)
        at.source.seed(f"{scope}a-value", avro("A", "x", "y", y=0), id=9, version=4, deleted=True)
        at.source.seed(f"{scope}b-value", avro("B", "x"), id=6)
        at.target.seed(f"{scope}foreign", avro("F", "x"), id=70)
        if scope and former:
            at.target.store.modes[scope] = former
        # Another scope with a mode of its own, which nobody may touch.
        at.target.store.modes[":.other:"] = "READONLY"

    with world(tmp_path / "whole", **schemas) as at:
        fill_scope(at)
        before = at.target.state()["modes"]
        whole = Gate(None)
        assert not attempt(tmp_path / "whole", at.source, at.target, whole, schemas)
        expected = outcome(tmp_path / "whole", at.target)
    assert expected[0]["modes"] == before
    registers = [number for number, line in enumerate(whole.log) if line.startswith("Registry.register")]
    assert len(registers) == 3
    folder = tmp_path / "killed"
    with world(folder, **schemas) as at:
        fill_scope(at)
        killed_child(folder, at, random.Random(seed).choice(registers), schemas)
        assert at.target.state()["modes"] == {**before, scope: "IMPORT"}
        at.target.requests.clear()
        assert not attempt(folder, at.source, at.target, Gate(None), schemas)
        first = at.target.writes[0]
        back = ("PUT", {"mode": former}) if former else ("DELETE", None)
        assert (unquote(first.path), (first.method, first.body)) == (f"/mode/{scope}".rstrip("/"), back)
        assert outcome(folder, at.target) == expected
        at.context.journal.refresh()
        assert not open_settings(at.context.journal, "target", "mode")
