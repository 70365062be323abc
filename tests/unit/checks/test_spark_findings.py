"""The precheck of Spark: what each fact of a probe means, and that no probe, or an old one, proves nothing."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.checks import spark
from airflow_provider_kafka_migration.documents.plan import Severity
from airflow_provider_kafka_migration.documents.spark_probe import ClockSpan, ProbeJob, SparkProbe
from airflow_provider_kafka_migration.lanes.libraries import (
    CONNECT_LIBRARIES,
    SHIPPED_LIBRARIES,
    requirements,
    shipped_requirements,
)
from airflow_provider_kafka_migration.lanes.spark_conf import is_local, unsafe_settings

CASES = Path(__file__).resolve().parents[2] / "cases" / "spark_probe" / "v1"
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
VERSIONS = {
    "boto3": "1.43.0",
    "cramjam": "2.14.0",
    "crc32c": "2.8",
    "kafka-python": "3.0.12",
    "pyarrow": "20.0.0",
    "pydantic": "2.12.0",
    "pynacl": "1.6.0",
    "rfc8785": "0.1.4",
    "urllib3": "2.5.0",
}
REFUSED = {"code": "BROKER_UNREACHABLE", "what": "the broker does not answer: timed out", "next_step": "open it"}


def machine(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "host": f"host-{name}",
        "python": "3.12.3",
        "package_version": __version__,
        "packages": VERSIONS,
        **more,
    }


def address(side: str, where: str, role: str = "advertised", error: Any = None) -> dict[str, Any]:
    return {"cluster": side, "address": where, "role": role, "error": error}


def probe(**more: Any) -> SparkProbe:
    return SparkProbe.model_validate(
        {
            "migration_id": "m",
            "kind": "probed",
            "master": "spark://h:7077",
            "airflow_package_version": __version__,
            "driver": machine("driver"),
            "executors": [machine("0"), machine("1")],
            **more,
        }
    )


def codes(seen: SparkProbe) -> list[str]:
    return [item.code for item in spark.judge(seen, NOW)]


def test_all_is_well() -> None:
    assert codes(probe()) == []


def test_the_bounds_are_those_of_the_distribution() -> None:
    assert set(requirements()) == {*SHIPPED_LIBRARIES.values(), *CONNECT_LIBRARIES.values()}
    assert set(VERSIONS) == set(requirements())


def test_what_is_shipped_has_its_bounds() -> None:
    """A cluster that installs it gets what copiers import, and what opens sealed references."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {Requirement(text) for text in project["dependencies"]}
    shipped = [Requirement(text) for text in shipped_requirements()]
    assert set(shipped) <= declared
    assert {item.name for item in shipped} == set(SHIPPED_LIBRARIES.values())


def test_another_version_of_this_package_blocks() -> None:
    (found,) = spark.judge(probe(executors=[machine("0"), machine("1", package_version="0.0.9")]), NOW)
    assert (found.code, found.severity) == ("B133", Severity.BLOCKER)
    assert found.seen == f"0.0.9 on executor 1 (host-1); Airflow's side has {__version__}"


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({"package_version": None, "package_error": "ModuleNotFoundError: x"}, "cannot be imported on executor 1"),
        ({"packages": {**VERSIONS, "cramjam": None}}, "cramjam is missing on executor 1 (host-1)"),
        ({"packages": {**VERSIONS, "kafka-python": "2.0.2"}}, "kafka-python 2.0.2 on executor 1"),
        ({"python": "3.9.1"}, "Python 3.9.1 on executor 1"),
    ],
)
def test_what_a_copier_imports_is_missing(more: dict[str, Any], seen: str) -> None:
    (found,) = spark.judge(probe(executors=[machine("0"), machine("1", **more)]), NOW)
    assert found.code == "B134"
    assert seen in found.seen


def test_an_unknown_version_is_said_to_be_unknown() -> None:
    assert codes(probe(executors=[machine("0", packages={**VERSIONS, "boto3": ""})])) == ["W141"]


def test_an_advertised_broker_that_one_executor_cannot_reach_blocks() -> None:
    well, ill = address("target", "b:9092"), address("target", "b:9092", error=REFUSED)
    seen = probe(executors=[machine("0", addresses=[well]), machine("1", addresses=[ill])])
    (found,) = spark.judge(seen, NOW)
    assert (found.code, found.subject, found.fix) == ("B135", "target b:9092", "open it")
    assert "from executor 1 (host-1)" in found.seen
    assert "executor 0" not in found.seen


def test_one_bootstrap_server_of_two_is_a_warning_and_the_only_one_blocks() -> None:
    away = address("source", "a:9092", "bootstrap", REFUSED)
    other = address("source", "b:9092", "bootstrap")
    assert codes(probe(executors=[machine("0", addresses=[away, other])])) == ["W142"]
    assert codes(probe(executors=[machine("0", addresses=[away])])) == ["B135"]


def test_a_bootstrap_server_that_answers_only_some_machines() -> None:
    away = address("source", "a:9092", "bootstrap", REFUSED)
    other = address("source", "b:9092", "bootstrap")
    seen = probe(executors=[machine("0", addresses=[away, other]), machine("1", addresses=[away])])
    assert codes(seen) == ["B135"], "the blocker names the address; a warning about it would only repeat that"


def test_storage_and_references() -> None:
    error = {"code": "STORAGE_REFUSED", "what": "denied", "next_step": "allow it"}
    seen = probe(
        executors=[
            machine("0", stores=[{"location": "s3://b/j", "error": error}]),
            machine("1", unresolved={"source": REFUSED}, not_looked_at={"source": "its reference ..."}),
        ]
    )
    assert codes(seen) == ["B137", "B136"]


def test_a_part_that_was_not_tried_is_named() -> None:
    (found,) = spark.judge(probe(executors=[machine("0", not_looked_at={"target": "no connection"})]), NOW)
    assert (found.code, found.seen) == ("W141", "target was not tried on executor 0 (host-0): no connection")


def test_an_object_left_behind_is_told() -> None:
    stores = [{"location": "s3://b/j", "left_behind": "m/precheck/x"}]
    (found,) = spark.judge(probe(executors=[machine("0", stores=stores)]), NOW)
    assert (found.code, found.severity) == ("I144", Severity.INFO)


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [
        (-1.0, 5.0, []),
        (1.5, 2.5, []),
        (2.5, 3.5, ["W140"]),
        (-9.0, -8.0, ["W140"]),
        (30.0, 31.0, ["B139"]),
        (-99.0, -30.0, ["B139"]),
    ],
)
def test_only_a_difference_that_is_certain_counts(low: float, high: float, code: list[str]) -> None:
    assert codes(probe(executors=[machine("0", clock={"low": low, "high": high})])) == code


def test_settings_and_executors_that_did_not_answer() -> None:
    seen = probe(unsafe_settings=["spark.speculation is true"], not_asked=["7"], executors_asked=5)
    found = spark.judge(seen, NOW)
    assert [item.code for item in found] == ["B138", "W141", "W143"]
    assert found[1].seen == "executors that did not answer: 7"
    assert found[2].seen == "5 executors are asked for, 2 answered"


def test_no_executor_is_no_good_sign() -> None:
    (found,) = spark.judge(probe(executors=[], not_asked_reason="PYTHON_VERSION_MISMATCH"), NOW)
    assert (found.code, found.seen) == ("B132", "no executor could be asked: PYTHON_VERSION_MISMATCH")


def test_a_probe_that_failed_shows_its_reason() -> None:
    error = {"code": "SPARK_SETTINGS_REFUSED", "what": "no", "next_step": "do"}
    (found,) = spark.judge(probe(kind="failed", driver=None, executors=[], error=error), NOW)
    assert (found.code, found.seen, found.fix) == ("B132", "[SPARK_SETTINGS_REFUSED] no", "do")


def test_a_local_master_is_judged_by_its_settings_alone() -> None:
    assert codes(probe(kind="local", driver=None, executors=[])) == []
    assert codes(probe(kind="local", driver=None, executors=[], unsafe_settings=["no retries"])) == ["B138"]


# -- settings and spans -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "word"),
    [
        ({"spark.master": "local[2]"}, "local[2,4]"),
        ({"spark.master": "local"}, "local[1,4]"),
        ({"spark.master": "spark://h:1", "spark.task.maxFailures": "1"}, "spark.task.maxFailures"),
        ({"spark.master": "spark://h:1", "spark.task.maxFailures": "many"}, "not a number"),
        ({"spark.speculation": "TRUE"}, "spark.speculation"),
        ({"spark.python.use.daemon": "false"}, "daemon"),
    ],
)
def test_unsafe_settings(conf: dict[str, str], word: str) -> None:
    (problem,) = unsafe_settings(conf)
    assert word in problem


def test_safe_settings() -> None:
    assert unsafe_settings({"spark.master": "local[*,4]", "spark.task.maxFailures": "1"}) == []
    assert unsafe_settings({"spark.master": "yarn"}) == []
    assert is_local("local[ 2 , 4 ]")
    assert not is_local("local-cluster[2,1,1024]")
    assert not is_local("spark://local:7077")


def test_spans() -> None:
    one, two = ClockSpan(low=-1.0, high=2.0), ClockSpan(low=1.0, high=5.0)
    assert ClockSpan.narrowest([one, two]) == ClockSpan(low=1.0, high=2.0)
    assert ClockSpan.narrowest([]) is None
    far = ClockSpan(low=9.0, high=9.5)
    assert ClockSpan.narrowest([one, far]) == far
    assert one.minus(two) == ClockSpan(low=-6.0, high=1.0)
    assert (one.least, two.least, ClockSpan(low=-3.0, high=-2.0).least) == (0.0, 1.0, -2.0)


# -- documents --------------------------------------------------------------------------------------------------------


def test_documents_of_the_first_version_are_still_read() -> None:
    result = (CASES / "result.json").read_bytes().strip()
    parsed = SparkProbe.parse(result)
    assert parsed.canonical() == result
    assert codes(parsed) == ["B135", "W141", "W143"]
    job = (CASES / "job.json").read_bytes().strip()
    assert ProbeJob.parse(job).canonical() == job
