"""What an engine is given for a job, and what is only renewed while the job runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.engines.find import make_engine
from airflow_provider_kafka_migration.provider.engine_jobs import JobMaker
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.references.sealing import PrivateKey
from airflow_provider_kafka_migration.spec import parse_spec


def test_a_job_that_runs_is_renewed_and_not_built_again(minimal_spec: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "store"
    minimal_spec["storage"] = {"journal": store.as_uri()}
    arguments = {"master": "yarn", "deploy_mode": "cluster", "resource_manager": "rm:8088"}
    make = JobMaker(
        parse_spec(minimal_spec),
        Resolver({"airflow": lambda _: json.dumps({"bootstrap.servers": "a:1"})}),
        make_engine("submit", arguments),
        tmp_path / "private",
        public_key=PrivateKey.new().public.text,
    )
    with make(JobRef("seed", store.as_uri(), "orders/jobs/seed.json"), "seed-1") as job:
        assert job.py_files is not None
        assert job.py_files.exists()
        assert any(argument.startswith("sealed:") for argument in job.arguments)
    (renewal,) = store.rglob("*.renewal")
    before = renewal.read_bytes()
    with make(JobRef("seed", store.as_uri(), ""), "seed-1") as job:
        assert job.py_files is None
        assert renewal.read_bytes() != before
    assert not any(argument.startswith("sealed:") for argument in job.arguments)


def test_only_independent_jobs_get_the_kafka_connector(minimal_spec: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "store"
    minimal_spec |= {"storage": {"journal": store.as_uri()}}
    minimal_spec["spark"] = {"conf": {"spark.jars": "/own.jar"}, "kafka_connector": "/jars/a.jar,/jars/b.jar"}
    resolver = Resolver({"airflow": lambda _: json.dumps({"bootstrap.servers": "a:1"})})
    engine = make_engine("submit", {"master": "local[2,4]"})
    make = JobMaker(parse_spec(minimal_spec), resolver, engine, tmp_path / "private")
    jars, mains = {}, {}
    for name in ("verify", "independent", "compare-012345a", "compare-i012345"):
        with make(JobRef(name, store.as_uri(), f"orders/jobs/{name}.json"), f"{name}-1") as job:
            jars[name], mains[name] = job.conf["spark.jars"], job.main.name
    both = "/own.jar,/jars/a.jar,/jars/b.jar"
    assert list(jars.values()) == ["/own.jar", both, "/own.jar", both]
    assert list(mains.values()) == ["verify.py", "independent.py", "compare_mirror.py", "compare_mirror.py"]
