"""The recipes of docs/spark.md: their specs are valid, and lead to the ``spark-submit`` that they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_kafka_migration.cli.runner import make_engine_of
from airflow_provider_kafka_migration.engines.base import SparkJob
from airflow_provider_kafka_migration.engines.find import BUILT_IN
from airflow_provider_kafka_migration.engines.submit import SubmitEngine
from airflow_provider_kafka_migration.lanes.spark_conf import unsafe_settings
from airflow_provider_kafka_migration.references.sealing import PublicKey
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "spark.md").read_text(encoding="utf-8")
RECIPE = re.compile(r"^```yaml\n(migration_id:.*?)^```", flags=re.MULTILINE | re.DOTALL)
RECIPES = RECIPE.findall(PAGE)
SPECS: dict[str, MigrationSpec] = {
    spec.spark.engine_args["master"].partition(":")[0]: spec
    for spec in (parse_spec(yaml.safe_load(text)) for text in RECIPES)
}


def section(page: str, anchor: str) -> str:
    """The text below the heading with this anchor, up to the next heading of its level or a higher one."""
    parts = re.split(r"^(#{2,3}) (.+)\n", page, flags=re.MULTILINE)
    headings = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    (first,) = [index for index, (_, title, _) in enumerate(headings) if title.lower().replace(" ", "-") == anchor]
    level = headings[first][0]
    last = next((index for index, one in enumerate(headings) if index > first and len(one[0]) <= len(level)), None)
    return "".join(text for _, _, text in headings[first:last])


def command(master: str) -> tuple[SubmitEngine, list[str]]:
    """The engine of a recipe, and the command with which it starts a seed."""
    spec = SPECS[master]
    engine = make_engine_of(spec, None)
    assert isinstance(engine, SubmitEngine)
    conf = {str(key): str(value) for key, value in spec.spark.conf.items()}
    job = SparkJob("orders", "seed", "seed-1", Path("/seed.py"), Path("/code.zip"), ("--token", "seed-1"), conf)
    return engine, engine.command(job)


def test_every_engine_has_a_recipe_to_which_the_page_leads() -> None:
    """The table of engines names each once, with a link to a section that has a spec of this engine."""
    rows = re.findall(r"^\| `(\w+)` \|.*?\]\(([\w.-]*)#([\w-]+)\) \|", section(PAGE, "engines"), flags=re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(BUILT_IN)
    for name, page, anchor in rows:
        text = section((DOCS / page).read_text(encoding="utf-8") if page else PAGE, anchor)
        specs = [parse_spec(yaml.safe_load(recipe)) for recipe in RECIPE.findall(text)]
        assert {spec.spark.engine for spec in specs} == {name}


def test_there_is_one_recipe_for_each_kind_of_cluster() -> None:
    assert sorted(SPECS) == ["k8s", "spark", "yarn"]
    assert len(RECIPES) == 3


@pytest.mark.parametrize("master", sorted(SPECS))
def test_what_all_recipes_need(master: str) -> None:
    spec = SPECS[master]
    engine, given = command(master)
    assert engine.detached == (master != "spark")
    assert ("--deploy-mode" in given) == engine.detached
    assert given[given.index("--master") + 1] == spec.spark.engine_args["master"]
    assert unsafe_settings({**spec.spark.conf, "spark.master": engine.master}) == []
    assert spec.spark.executor_references == "sealed"
    assert PublicKey.parse(spec.spark.sealing_key or "")


@pytest.mark.parametrize(
    ("master", "parts"),
    [
        ("spark", ["--total-executor-cores", "8", "--executor-memory", "512m"]),
        ("yarn", ["--archives", "dist/env.tar.gz#env", "spark.pyspark.python=./env/bin/python"]),
        ("k8s", ["spark.kubernetes.driver.secretKeyRef.KAFKA_MIGRATION_SEALING_KEY=kafka-migration:key"]),
    ],
)
def test_what_a_recipe_promises(master: str, parts: list[str]) -> None:
    _, given = command(master)
    assert [part for part in parts if part not in given] == []
