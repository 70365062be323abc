"""The trigger form and the spec agree."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.provider.params import (
    FIELDS,
    migration_params,
    params_from_spec,
    spec_from_params,
)
from airflow_provider_kafka_migration.provider.task import run_spec
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

REQUIRED = {"migration_id": "orders", "source": "kafka_a", "target": "kafka_b", "journal": "s3://bucket/prefix"}


def _run(conf: dict[str, Any]) -> dict[str, Any]:
    """What a task sees after Airflow has validated a run's conf."""
    params = ParamsDict(migration_params())
    params.update(conf)
    return dict(params.validate())


def test_required_fields_alone_give_the_model_defaults() -> None:
    spec = spec_from_params(_run(REQUIRED))
    expected = parse_spec(
        {
            "migration_id": "orders",
            "source": {"conn_id": "kafka_a"},
            "target": {"conn_id": "kafka_b"},
            "storage": {"journal": "s3://bucket/prefix"},
        }
    )
    assert spec == expected


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_form_insists_on_required_fields(missing: str) -> None:
    conf = {key: value for key, value in REQUIRED.items() if key != missing}
    with pytest.raises(Exception, match="no default value"):
        _run(conf)


def test_every_field_has_a_title_a_description_and_a_section() -> None:
    for name, param in migration_params().items():
        assert param.schema["title"], name
        assert param.schema["section"], name
        assert param.description or param.schema.get("description_md"), name


def test_fields_lead_to_existing_places_of_the_spec() -> None:
    known = MigrationSpec.model_json_schema()
    for field in FIELDS:
        node = known
        for part in field.path.split("."):
            node = node["properties"][part]
            reference = node.get("$ref")
            if reference:
                node = known["$defs"][reference.rpartition("/")[2]]


def test_more_wins_over_the_fields_and_merges_sections() -> None:
    params = _run(
        {
            **REQUIRED,
            "topics_include": ["orders.*"],
            "more": {"topics": {"exclude": ["orders.tmp"]}, "tail": {"drain_max_partition_lag": 7}},
        }
    )
    spec = spec_from_params(params)
    assert spec.topics.include == ["orders.*"]
    assert spec.topics.exclude == ["orders.tmp"]
    assert spec.tail.drain_max_partition_lag == 7


def test_spec_survives_the_way_through_a_trigger(minimal_spec: dict[str, Any]) -> None:
    minimal_spec |= {
        "groups": {"include": ["billing"]},
        "cutover": {"freeze": "webhook", "producer_freeze_webhook": "https://freeze.example/x"},
        "tail": {"drain_stable_window": "5s"},
    }
    spec = parse_spec(minimal_spec)
    assert spec_from_params(_run(params_from_spec(spec))) == spec
    assert spec_from_params(_run(params_from_spec(minimal_spec))) == spec


def test_all_mistakes_of_the_params_are_in_one_error() -> None:
    params = _run({**REQUIRED, "more": {"topic": {}, "seed": {"lanes": 0}}})
    with pytest.raises(SpecInvalid) as caught:
        spec_from_params(params)
    assert {mistake["path"] for mistake in caught.value.details["mistakes"]} == {"topic", "seed.lanes"}


def test_a_run_that_an_earlier_version_began_with_a_plain_secret_starts_its_tasks() -> None:
    """Airflow validates the conf at the start of each task: what lifts a freeze must get as far as its own code."""
    conf = {**REQUIRED, "freeze": "webhook", "freeze_webhook": "https://hooks.example/freeze?token=hunter2"}
    params = _run(conf)
    spec = run_spec(None, {"params": params}, recorded=True)  # type: ignore[arg-type]
    assert spec.cutover.producer_freeze_webhook == conf["freeze_webhook"]
    with pytest.raises(SpecInvalid, match="producer_freeze_webhook") as caught:
        spec_from_params(params)
    assert "hunter2" not in str(caught.value)


def test_bad_choice_is_refused_before_the_run_starts() -> None:
    with pytest.raises(Exception, match="carrier-pigeon"):
        _run({**REQUIRED, "seed_via": "carrier-pigeon"})
