"""mirrors.yaml: several flows in one file, and all their mistakes in one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.spec.mirrors_file import load_mirrors, parse_mirrors


def file(**changes: Any) -> dict[str, Any]:
    return {
        "clusters": {"a": {"conn_id": "kafka_a"}, "b": {"conn_id": "kafka_b"}, "c": {"conn_id": "env:C"}},
        "storage": {"journal": "s3://mirrors/journal"},
        "defaults": {"topics": {"include": ["orders"], "exclude": ["tmp"]}, "mirror": {"sync_groups": False}},
        "flows": {"a->b": {}, "b->a": None, "a->c": {"topics": {"include": ["x"]}, "mirror": {"sync_interval": "9s"}}},
        **changes,
    }


def test_a_flow_is_a_spec_of_the_defaults_and_its_own_keys() -> None:
    flows = parse_mirrors(file())
    assert list(flows) == ["a->b", "a->c", "b->a"]
    there = flows["a->c"]
    assert (there.topics.include, there.topics.exclude) == (["x"], ["tmp"])
    assert (there.mirror.sync_groups, there.mirror.sync_interval.total_seconds()) == (False, 9)
    assert (there.source.conn_id, there.source.name, there.target.conn_id) == ("kafka_a", "a", "env:C")
    assert there.mirror.known_aliases == ["b"]
    assert [flows[name].mirror.two_way for name in sorted(flows)] == [True, False, True]
    assert flows["a->b"].migration_id == "a-to-b"


def test_a_flow_that_is_not_enabled_is_left_out_and_makes_nothing_two_way() -> None:
    flows = parse_mirrors(file(flows={"a->b": {}, "b->a": {"enabled": False}}))
    assert list(flows) == ["a->b"]
    assert not flows["a->b"].mirror.two_way


def test_one_error_lists_the_mistakes_of_all_flows() -> None:
    flows = {"a->b": {"topics": {"includ": []}}, "a->d": {}, "ab": {}, "b->c": {"source": {"conn_id": "x"}}}
    with pytest.raises(SpecInvalid) as failure:
        parse_mirrors(file(flows=flows))
    paths = [item["path"] for item in failure.value.details["mistakes"]]
    assert paths == ["flows.a->b.topics.includ", "flows.a->d", "flows.ab", "flows.b->c"]
    assert "d not in clusters" in failure.value.what


def test_a_flow_never_runs_under_the_aliases_of_another_one() -> None:
    defaults = {"mirror": {"source_alias": "a", "target_alias": "b"}}
    assert sorted(parse_mirrors(file(defaults=defaults, flows={"a->b": {}}))) == ["a->b"]
    with pytest.raises(SpecInvalid, match=r"mirror\.source_alias differs from the name of the flow"):
        parse_mirrors(file(defaults=defaults, flows={"a->b": {}, "b->a": {}}))


def test_spaces_in_the_name_of_a_flow_hide_no_circle() -> None:
    flows = parse_mirrors(file(flows={"a -> b": {}, "b->a": {}}))
    assert [spec.mirror.two_way for spec in flows.values()] == [True, True]
    identity = {"mirror": {"naming": "identity"}}
    with pytest.raises(SpecInvalid, match="two_way"):
        parse_mirrors(file(defaults=identity, flows={"a -> b": {}, " b ->a": {}}))
    with pytest.raises(SpecInvalid, match="there twice"):
        parse_mirrors(file(flows={"a -> b": {}, "a->b": {}}))
    with pytest.raises(SpecInvalid, match="the opposite flow"):
        parse_mirrors(file(defaults={"mirror": {"two_way": False}}, flows={"a->b": {}, "b->a": {}}))


def test_two_flows_never_share_a_journal() -> None:
    clusters = {"a": {"conn_id": "x"}, "A": {"conn_id": "y"}, "b": {"conn_id": "z"}}
    with pytest.raises(SpecInvalid, match="set migration_id"):
        parse_mirrors(file(clusters=clusters, flows={"a->b": {}, "A->b": {}}))


@pytest.mark.parametrize(
    "change", [{"flows": {}}, {"clusters": {"a": {"conn_id": "x"}}}, {"flow": {}}, {"storage": None}]
)
def test_a_file_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid, match="mistake"):
        parse_mirrors(file(**change))


def test_a_key_that_appears_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mirrors.yaml"
    path.write_text("clusters: {}\nclusters: {}\n", encoding="utf-8")
    with pytest.raises(SpecInvalid, match="appears twice"):
        load_mirrors(path)
