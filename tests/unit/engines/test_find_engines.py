"""Engines by name: those of this package, and those of others by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_kafka_migration.engines.base import ENTRY_POINT_GROUP, SparkEngine
from airflow_provider_kafka_migration.engines.find import BUILT_IN, engine_class, engine_names, make_engine
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.errors import EngineUnknown, SpecInvalid

MODULE = """\
class Engine:
    name = "third-party"
    detached = True

    def __init__(self, *, room):
        self.room = room

    def submit(self, job): return "1"
    def status(self, job_id): ...
    def cancel(self, job_id): ...
    def trigger(self, job_id): return None
    def links(self, job_id): return {}
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with engines, installed as pip does it."""
    (tmp_path / "their_engines.py").write_text(MODULE)
    folder = tmp_path / "their_engines-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-engines\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\nthird-party = their_engines:Engine\nbroken = their_engines:Missing\n"
        "submit = their_engines:Engine\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("their_engines", None)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_engine_of_this_package_can_be_imported(name: str) -> None:
    assert engine_class(name).name == name


@pytest.mark.usefixtures("third_party")
def test_an_engine_of_another_package_is_found_by_its_entry_point() -> None:
    assert {"submit", "third-party"} <= set(engine_names())
    engine = make_engine("third-party", {"room": "b"})
    assert isinstance(engine, SparkEngine)
    assert engine.room == "b"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("third_party")
def test_an_engine_of_this_package_cannot_be_replaced() -> None:
    assert engine_class("submit") is SubmitEngine


@pytest.mark.usefixtures("third_party")
def test_mistakes_are_named_without_values() -> None:
    with pytest.raises(EngineUnknown, match=r"'emr'; installed are .*submit, third-party"):
        make_engine("emr", {})
    with pytest.raises(EngineUnknown, match="'broken' cannot be imported from their_engines:Missing"):
        make_engine("broken", {})
    with pytest.raises(SpecInvalid, match="third-party does not take these arguments: chamber") as caught:
        make_engine("third-party", {"chamber": "s3cret"})
    assert "s3cret" not in str(caught.value)
    with pytest.raises(SpecInvalid, match="submit does not take these arguments: color"):
        make_engine("submit", {"color": "red"})
