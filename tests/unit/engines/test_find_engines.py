"""Engines by name: those of this package, and those of others by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.engines.base import ENTRY_POINT_GROUP, SparkEngine, arguments_of, is_elsewhere
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


ROLE = "arn:aws:iam::123456789012:role/spark"
CLUSTER = {"spark_version": "17.3.x-scala2.13", "num_workers": 1}
PLACES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "submit": ({"master": "yarn"}, {"master": "spark://m:7077", "resource_manager": "rm:8088", "namespace": "b"}),
    "emr_serverless": (
        {"application_id": "00fa", "execution_role_arn": ROLE},
        {"application_id": "00fb", "region": "b"},
    ),
    "emr_containers": (
        {"virtual_cluster_id": "0a", "release_label": "emr-7.0.0-latest", "execution_role_arn": ROLE},
        {"virtual_cluster_id": "0b", "region": "b"},
    ),
    "dataproc": ({"region": "europe-west1"}, {"region": "europe-west2", "project": "another", "conn_id": "b"}),
    "databricks": ({"new_cluster": CLUSTER}, {"conn_id": "b"}),
    "kubernetes": ({"image": "i"}, {"conn_id": "b", "namespace": "b"}),
}


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_change_of_place_is_noticed(name: str) -> None:
    """Else the next attempt looks for a job where it does not run, or submits its token a second time elsewhere."""
    given, changes = PLACES[name]
    engine = make_engine(name, given)
    then = arguments_of(engine, given)
    assert not is_elsewhere(engine, arguments_of(engine, given), then)
    for argument, value in changes.items():
        assert is_elsewhere(engine, {**then, argument: value}, then), argument
    assert sorted(engine.located_by) == sorted(changes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "argument", "accepted", "refused"),
    [
        ("dataproc", "runtime_version", ["2.2", "2.3.10", "2.12", "3.0", "10.1"], ["2.1", "1.2", "2"]),
        ("kubernetes", "spark_version", ["3.5.9", "4.0.1", "4.2.0-rc1"], ["3.4.4", "3.5", "2.4.8"]),
        (
            "databricks",
            "spark_version",
            ["15.4.x-scala2.12", "16.4.x-scala2.13", "17.3.x-scala2.13"],
            ["14.3.x-scala2.12"],
        ),
    ],
)
def test_spark_3_5_is_enough(name: str, argument: str, accepted: list[str], refused: list[str]) -> None:
    """The jobs are tasks of RDDs and ran on 3.5.9. Databricks' runtimes have the Python that we need since 15."""

    def make(version: str) -> SparkEngine:
        if name == "databricks":
            return make_engine(name, {"new_cluster": {**CLUSTER, argument: version}})
        return make_engine(name, {**PLACES[name][0], argument: version})

    for version in accepted:
        make(version)
    for version in refused:
        with pytest.raises(SpecInvalid, match=argument):
            make(version)


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
