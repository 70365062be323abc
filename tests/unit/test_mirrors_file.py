"""mirrors.yaml: several flows in one file, and all their mistakes in one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.spec.mirrors_file import is_of_mirrors, load_mirrors, parse_flows, parse_mirrors


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


def test_a_flow_that_is_not_enabled_is_left_out_and_changes_nothing_of_its_opposite() -> None:
    """The opposite flow may run already, and cannot change ``two_way``."""
    flows = parse_mirrors(file(flows={"a->b": {}, "b->a": {"enabled": False}}))
    assert list(flows) == ["a->b"]
    assert flows["a->b"].mirror.two_way
    merged = parse_mirrors(file(defaults=_MERGED, flows={"a->b": {}, "b->a": {"enabled": False}}))
    assert merged["a->b"].mirror.merges


def test_a_flow_that_can_only_go_one_way_may_have_an_opposite_that_is_not_enabled() -> None:
    for mirror in ({"naming": "identity"}, {"two_way": False}):
        flows = parse_mirrors(file(defaults={"mirror": mirror}, flows={"a->b": {}, "b->a": {"enabled": False}}))
        assert {name: spec.mirror.two_way for name, spec in flows.items()} == {"a->b": False}


def test_one_error_lists_the_mistakes_of_all_flows() -> None:
    flows = {"a->b": {"topics": {"includ": []}}, "a->d": {}, "ab": {}, "b->c": {"source": {"conn_id": "x"}}}
    with pytest.raises(SpecInvalid) as failure:
        parse_mirrors(file(flows=flows))
    paths = [item["path"] for item in failure.value.details["mistakes"]]
    assert paths == ["flows.a->b.topics.includ", "flows.a->d", "flows.ab", "flows.b->c"]
    assert "d not in clusters" in failure.value.what


def ring(*mirrors: dict[str, Any], names: tuple[str, ...] = ("a->b", "b->c", "c->a"), **topics: Any) -> list[str]:
    """The mistakes of a ring of all topics; each flow has keys of ``mirror``, and its prefix."""
    found = {}
    for name, mirror in zip(names, mirrors, strict=True):
        section: dict[str, Any] = {"include": [".*"], **topics}
        if mirror.get("naming") == "rename":
            section["rename"] = {"prefix": "m-"}
        found[name] = {"mirror": mirror, "topics": section}
    _, error = parse_flows(file(defaults={}, flows=found))
    return [] if error is None else [item["path"] for item in error.details["mistakes"]]


_RENAMED = {"naming": "rename"}
_KEPT = {"naming": "identity"}


def test_a_ring_in_which_names_grow_for_ever_is_refused() -> None:
    last = ["flows.c->a.mirror.naming"]
    assert ring(_RENAMED, _RENAMED, _RENAMED) == last
    assert ring(_KEPT, _KEPT, {}) == last
    assert ring({}, _RENAMED, {}) == last
    assert ring({"separator": "-"}, {}, {}) == last


def test_a_ring_that_comes_to_rest_is_not_refused() -> None:
    assert ring({}, {}, {}) == []
    # What it copies, the next one leaves out.
    assert ring(_RENAMED, _RENAMED, _RENAMED, exclude=["m-.*"]) == []
    assert ring(_RENAMED, _RENAMED, _RENAMED, include=["orders", "refunds"]) == []
    # One name in front is enough if it is that of a later target.
    assert ring(_KEPT, {}, {}) == []
    assert ring(_RENAMED, _RENAMED, names=("a->b", "b->c")) == []


def test_the_reason_names_the_first_steps() -> None:
    flow = {"mirror": _RENAMED, "topics": {"include": [".*"], "rename": {"prefix": "m-"}}}
    with pytest.raises(SpecInvalid) as failure:
        parse_mirrors(file(defaults={}, flows={"a->b": flow, "b->c": flow, "c->a": flow}))
    assert "(a: x -> b: m-x -> c: m-m-x -> a: m-m-m-x -> b: m-m-m-m-x ...)" in failure.value.what


def test_large_meshes_are_read_soon() -> None:
    aliases = [f"c{number}" for number in range(8)]
    flows: dict[str, Any] = {f"{one}->{two}": {} for one in aliases for two in aliases if one != two}
    clusters = {alias: {"conn_id": f"kafka_{alias}"} for alias in aliases}
    assert len(parse_mirrors(file(clusters=clusters, flows=flows))) == 56


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


def test_flows_without_mistakes_are_found_beside_others() -> None:
    """For DAGs of mirrors that run already; whoever runs one by hand hears of all mistakes."""
    flows = {"a->b": {}, "a->d": {}, "a->c": {"migration_id": "a-to-b"}}
    found, error = parse_flows(file(flows=flows))
    assert list(found) == ["a->b"]
    assert error is not None
    assert [item["path"] for item in error.details["mistakes"]] == ["flows.a->d", "flows.a->c.migration_id"]
    assert parse_flows(file())[1] is None


_EARLIER: dict[str, Any] = {"mirror": {"naming": "identity"}}


@pytest.mark.parametrize(
    ("later", "mistake"),
    [
        ({"topics": {"inklude": ["x"]}}, "topics.inklude"),
        ({}, "mirror.two_way"),
        ({"mirror": {"naming": "identity"}}, "mirror.two_way"),
    ],
)
@pytest.mark.parametrize("pair", [("b->a", "a->b"), ("a->b", "b->a")])
def test_an_opposite_flow_with_a_mistake_takes_nothing_away(
    pair: tuple[str, str], later: dict[str, Any], mistake: str
) -> None:
    """Of two flows that cannot go both ways, the one that is further down in the file is refused."""
    defaults = {"topics": {"include": ["orders"]}}
    found, error = parse_flows(file(defaults=defaults, flows={pair[0]: _EARLIER, pair[1]: later}))
    assert list(found) == [pair[0]]
    assert not found[pair[0]].mirror.two_way
    assert error is not None
    assert [item["path"] for item in error.details["mistakes"]] == [f"flows.{pair[1]}.{mistake}"]


def test_the_refused_one_of_two_directions_is_the_later_one_whichever_has_the_naming() -> None:
    found, error = parse_flows(file(defaults={}, flows={"a->b": {}, "b->a": _EARLIER, "b->c": {}, "c->b": {}}))
    assert {name: spec.mirror.two_way for name, spec in found.items()} == {"a->b": True, "b->c": True, "c->b": True}
    assert error is not None
    assert "it does not go together with a->b" in error.what


def test_a_mistake_in_one_direction_does_not_change_the_other_one() -> None:
    """Its mirror may still run: what was ``two_way`` stays so."""
    found, error = parse_flows(file(flows={"a->b": {}, "b->a": {"topics": {"inklude": ["x"]}}}))
    assert error is not None
    assert {name: spec.mirror.two_way for name, spec in found.items()} == {"a->b": True}


def test_a_later_flow_with_the_id_of_another_one_is_refused() -> None:
    found, error = parse_flows(file(flows={"b->c": {}, "a->b": {"migration_id": "b-to-c"}}))
    assert list(found) == ["b->c"]
    assert error is not None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"kind": "mirror"}, True),
        ({"flows": {}}, True),
        ({"clusters": {}}, True),
        ({"mirror": {}, "migration_id": "x"}, True),
        ({"migration_id": "x", "source": {}}, False),
        ({"kind": "migration"}, False),
        (None, False),
        ([], False),
    ],
)
def test_files_of_mirrors_are_known_by_their_keys(data: Any, expected: bool) -> None:
    assert is_of_mirrors(data) is expected


_MERGED: dict[str, Any] = {
    "mirror": {"naming": "identity", "sync_groups": False},
    "offsets": {"mode": "transactional"},
    "acls": {"policy": "skip", "quotas": "skip"},
}


def test_identity_in_both_directions_is_one_way_where_the_opposite_flow_is_not_there() -> None:
    flows = parse_mirrors(file(defaults=_MERGED, flows={"a->b": {}, "b->a": {}, "a->c": {}}))
    assert {name: spec.mirror.merges for name, spec in flows.items()} == {"a->b": True, "b->a": True, "a->c": False}


@pytest.mark.parametrize(
    ("later", "mistake"),
    [
        ({"mirror": {"naming": "default"}}, "mirror.naming"),
        ({"mirror": {"provenance_header": "x"}}, "mirror.provenance_header"),
        ({"mirror": {"max_hops": 1}}, "mirror.max_hops"),
        ({"offsets": {"mode": "auto"}}, "mirror.two_way"),
    ],
)
@pytest.mark.parametrize("pair", [("b->a", "a->b"), ("a->b", "b->a")])
def test_both_directions_mark_records_alike(pair: tuple[str, str], later: dict[str, Any], mistake: str) -> None:
    found, error = parse_flows(file(defaults=_MERGED, flows={pair[0]: {}, pair[1]: later}))
    assert list(found) == [pair[0]]
    assert found[pair[0]].mirror.merges, "it may run already"
    assert error is not None
    assert [item["path"] for item in error.details["mistakes"]] == [f"flows.{pair[1]}.{mistake}"]


# -- more than two clusters --------------------------------------------------------------------------------------------

_RING = {"a->b": {}, "b->c": {}, "c->a": {}}
_MESH = {"a->b": {}, "b->a": {}, "b->c": {}, "c->b": {}, "a->c": {}, "c->a": {}}


def _merged(**mirror: Any) -> dict[str, Any]:
    return {**_MERGED, "mirror": {**_MERGED["mirror"], **mirror}}


@pytest.mark.parametrize("defaults", [_MERGED, {"mirror": {"naming": "identity"}}])
def test_a_ring_that_marks_nothing_is_refused_where_it_closes(defaults: dict[str, Any]) -> None:
    found, error = parse_flows(file(defaults=defaults, flows=_RING))
    assert list(found) == ["a->b", "b->c"]
    assert error is not None
    assert [item["path"] for item in error.details["mistakes"]] == ["flows.c->a.mirror.two_way"]


def test_one_flow_of_a_ring_that_marks_nothing_is_refused() -> None:
    """Records of the cluster behind it would go round."""
    flows = {**_RING, "b->c": {"mirror": {"two_way": False}}}
    found, error = parse_flows(file(defaults=_merged(two_way=True), flows=flows))
    assert list(found) == ["a->b", "b->c"]
    assert error is not None


def test_a_ring_and_a_chain_whose_flows_all_mark_records() -> None:
    for flows in (_RING, {name: {} for name in list(_MESH)[:4]}):
        found = parse_mirrors(file(defaults=_merged(two_way=True), flows=flows))
        assert all(spec.mirror.merges for spec in found.values())
    assert len(parse_mirrors(file(defaults={}, flows=_RING))) == 3, "names tell cycles"


@pytest.mark.parametrize(("max_hops", "refused"), [(None, ["a->c", "c->a"]), (2, ["a->c", "c->a"]), (1, [])])
def test_a_mesh_copies_only_what_was_first_written_to_the_source(max_hops: int | None, refused: list[str]) -> None:
    found, error = parse_flows(file(defaults=_merged(max_hops=max_hops), flows=_MESH))
    assert sorted(_MESH.keys() - found.keys()) == refused
    mistakes = [] if error is None else [item["path"] for item in error.details["mistakes"]]
    assert mistakes == [f"flows.{name}.mirror.max_hops" for name in refused]


_TO_A_THIRD = {"a->b": {}, "b->a": {}, "a->c": {}, "b->c": {}}


def test_a_third_cluster_gets_each_record_of_two_merged_ones_once() -> None:
    found, error = parse_flows(file(defaults=_MERGED, flows=_TO_A_THIRD))
    assert sorted(_TO_A_THIRD.keys() - found.keys()) == ["b->c"]
    assert error is not None
    [mistake] = error.details["mistakes"]
    assert mistake["path"] == "flows.b->c.mirror.two_way"
    assert "by a->c and b->c" in mistake["reason"]
    # Either all of it from one of them, or from each what was first written there.
    assert len(parse_mirrors(file(defaults=_MERGED, flows={**_TO_A_THIRD, "b->c": {"enabled": False}}))) == 3
    own = {"mirror": {"two_way": True, "max_hops": 1}}
    assert len(parse_mirrors(file(defaults=_MERGED, flows={**_TO_A_THIRD, "a->c": own, "b->c": own}))) == 4


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (["orders"], ["payments"], 0),
        ([r"orders\..*"], [r"payments\..*", "invoices"], 0),
        (["orders", "payments"], ["payments"], 1),
        ([r"orders\..*"], [r"orders\.v1"], 1),
        (["orders"], ["orders?"], 1),
        (["orders"], ["payments|orders"], 1),
        (["orders"], ["(?i)ORDERS"], 1),
        (["a{0}orders"], ["orders"], 1),
        ([".*"], ["payments"], 1),
    ],
)
def test_flows_that_copy_different_topics_bring_nothing_twice(one: list[str], other: list[str], refused: int) -> None:
    flows = {**_TO_A_THIRD, "a->c": {"topics": {"include": one}}, "b->c": {"topics": {"include": other}}}
    found, _ = parse_flows(file(defaults=_MERGED, flows=flows))
    assert len(found) == len(flows) - refused


_FAN_IN: dict[str, Any] = {"a->c": {}, "b->c": {}}
_SAME_NAMES: dict[str, Any] = {"mirror": {"naming": "identity"}}


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (["orders"], ["payments"], []),
        ([r"orders\..*"], [r"payments\..*", "invoices"], []),
        (["orders"], ["orders"], ["b->c"]),
        ([".*"], ["payments"], ["b->c"]),
        (["orders.*"], ["orders-eu"], ["b->c"]),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "equal", "mapped"])
def test_two_clusters_have_no_equal_offsets_in_one_topic(
    one: list[str], other: list[str], refused: list[str], mode: str
) -> None:
    """Whichever flow comes second into a partition finds records of others there, and stops."""
    flows = {"a->c": {"topics": {"include": one}}, "b->c": {"topics": {"include": other}}}
    found, error = parse_flows(file(defaults={**_SAME_NAMES, "offsets": {"mode": mode}}, flows=flows))
    assert sorted(flows.keys() - found.keys()) == refused
    mistakes = [] if error is None else error.details["mistakes"]
    assert [item["path"] for item in mistakes] == [f"flows.{name}.topics.include" for name in refused]
    assert all("a->c and b->c may write to the same topics of c" in item["reason"] for item in mistakes)


def test_one_of_two_flows_into_a_topic_that_keeps_offsets_is_enough() -> None:
    in_transactions = {"offsets": {"mode": "transactional"}}
    for mixed in ({**_FAN_IN, "a->c": in_transactions}, {**_FAN_IN, "b->c": in_transactions}):
        found, error = parse_flows(file(defaults=_SAME_NAMES, flows=mixed))
        assert list(found) == ["a->c"]
        assert error is not None
    both = {**_SAME_NAMES, **in_transactions}
    assert list(parse_mirrors(file(defaults=both, flows=_FAN_IN))) == ["a->c", "b->c"]


def test_flows_that_bring_their_names_or_go_elsewhere_share_no_topic() -> None:
    assert len(parse_mirrors(file(defaults={}, flows=_FAN_IN))) == 2
    assert len(parse_mirrors(file(defaults=_SAME_NAMES, flows={"a->b": {}, "a->c": {}}))) == 2
    assert len(parse_mirrors(file(defaults=_SAME_NAMES, flows={"a->b": {}, "b->c": {}}))) == 2
    left_out = {**_FAN_IN, "b->c": {"enabled": False}}
    assert list(parse_mirrors(file(defaults=_SAME_NAMES, flows=left_out))) == ["a->c"]


def test_all_flows_that_mark_records_need_one_header() -> None:
    chain: dict[str, Any] = {name: {} for name in list(_MESH)[:4]}
    other = {"mirror": {"provenance_header": "x"}}
    found, error = parse_flows(file(defaults=_MERGED, flows={**chain, "b->c": other, "c->b": other}))
    assert list(found) == ["a->b", "b->a"]
    assert error is not None
    paths = [item["path"] for item in error.details["mistakes"]]
    assert paths == ["flows.b->c.mirror.provenance_header", "flows.c->b.mirror.provenance_header"]


@pytest.mark.parametrize("value", ["false", "no", 0, "off", False])
def test_what_a_person_means_as_no_leaves_a_flow_out(value: Any) -> None:
    assert list(parse_mirrors(file(flows={"a->b": {"enabled": value}, "a->c": {}}))) == ["a->c"]


@pytest.mark.parametrize("value", ["true", "yes", 1, None, True])
def test_what_a_person_means_as_yes_does_not(value: Any) -> None:
    assert list(parse_mirrors(file(flows={"a->b": {"enabled": value}}))) == ["a->b"]


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"flows": {"a->b": {"enabled": "nope"}}}, "flows.a->b.enabled", "true or false"),
        ({"flows": {"a->b": {"enable": False}}}, "flows.a->b.enable", "did you mean enabled?"),
        ({"defaults": {"mirror": None}, "flows": {"a->b": {}}}, "flows.a->b.mirror", "a section with keys is needed"),
        ({"defaults": {"source": {"conn_id": "x"}}}, "defaults.source", "has no effect: the file itself says this"),
        ({"default": {}}, "default", "did you mean defaults?"),
    ],
)
def test_what_a_person_gets_wrong_is_named(changes: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_mirrors(file(**changes))
    found = {item["path"]: item["reason"] for item in caught.value.details["mistakes"]}
    assert list(found) == [path]
    assert reason in found[path]


def test_a_key_without_effect_takes_no_flow_away() -> None:
    flows, error = parse_flows(file(defaults={"source": {"conn_id": "x"}}))
    assert sorted(flows) == ["a->b", "a->c", "b->a"]
    assert error is not None
