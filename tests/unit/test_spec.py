"""The spec: defaults, all mistakes at once, durations, sizes, duplicate keys, JSON schema."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.spec import (
    OPTIONAL_SECTIONS,
    MigrationSpec,
    format_duration,
    json_schema,
    load_spec,
    parse_bytes,
    parse_duration,
    parse_spec,
)

CASES = Path(__file__).parents[1] / "cases" / "spec"


def minimal(**more: Any) -> dict[str, Any]:
    """The smallest spec that is right."""
    return {
        "migration_id": "orders-1",
        "source": {"conn_id": "kafka_source"},
        "target": {"conn_id": "kafka_target"},
        "storage": {"journal": "s3://bucket/migrations"},
        **more,
    }


def mistakes(data: Any) -> dict[str, str]:
    """Path -> reason of all mistakes found in ``data``."""
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(data)
    return {item["path"]: item["reason"] for item in caught.value.details["mistakes"]}


def test_minimal_spec_has_the_documented_defaults() -> None:
    spec = parse_spec(minimal())
    assert spec.seed.via == "s3"
    assert spec.seed.max_concurrent_partitions == 4
    assert spec.seed.segment_max_bytes == 32 * 1024 * 1024
    assert spec.tail.drain_max_partition_lag == 100
    assert spec.tail.drain_stable_window == timedelta(seconds=30)
    assert spec.offsets.mode == "auto"
    assert spec.cutover.sentinel == "record"
    assert spec.evidence.retention == timedelta(days=7 * 365)
    assert spec.storage.archive_location == "s3://bucket/migrations/archive"
    assert spec.storage.evidence_location == "s3://bucket/migrations/evidence"


def test_every_section_of_the_full_case_is_read() -> None:
    spec = load_spec(CASES / "full.yaml")
    written = yaml.safe_load((CASES / "full.yaml").read_text(encoding="utf-8"))
    left_out = {*OPTIONAL_SECTIONS, "kind", "mirror"}
    assert set(written) == set(type(spec).model_fields) - left_out, "the case must use every section"
    assert spec.storage.archive_location == "s3://migrations/orders-segments"
    assert spec.seed.max_bytes_per_second == 50_000_000
    assert spec.tail.drain_stable_window == timedelta(seconds=45)
    assert spec.approvals.response_timeout == timedelta(days=2)
    assert spec.topics.target_name("payments") == "payments.v2"


def test_a_dumped_spec_reads_back_equal() -> None:
    spec = load_spec(CASES / "full.yaml")
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_an_optional_section_is_read_and_written_only_where_it_is_there() -> None:
    spec = load_spec(CASES / "adopt.yaml")
    assert spec.adopt is not None
    assert spec.adopt.from_ == "mirrormaker2"
    assert spec.adopt.mirrormaker2.prefix == "mirrored-"
    dumped = spec.model_dump(mode="json")
    assert dumped["adopt"]["from"] == "mirrormaker2"
    assert parse_spec(dumped) == spec
    assert "adopt" not in parse_spec(minimal()).model_dump(mode="json"), "digests of earlier specs stay the same"


ADOPT_CONFLICTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"from": "way_back"}, {}, "adopt.migration_id"),
    ({"from": "comparison", "migration_id": "a"}, {}, "adopt.migration_id"),
    ({"from": "comparison", "mirrormaker2": {"source_alias": "a"}}, {}, "adopt.mirrormaker2"),
    ({"from": "redpanda_migrator"}, {}, "adopt.redpanda_migrator.group"),
    ({"from": "comparison", "map_below": "offset_syncs"}, {}, "adopt.map_below"),
    ({"from": "mirrormaker2", "mirrormaker2": {"prefix": "a"}}, {}, "adopt.mirrormaker2.prefix"),
    (
        {"from": "mirrormaker2", "mirrormaker2": {"replication_policy": "prefix"}},
        {},
        "adopt.mirrormaker2.prefix",
    ),
    ({"from": "comparison"}, {"offsets": {"on_source_truncation": "repair"}}, "offsets.on_source_truncation"),
    ({"from": "comparison"}, {"offsets": {"on_overtaken_tombstones": "repair"}}, "offsets.on_overtaken_tombstones"),
    ({"from": "comparison"}, {"offsets": {"on_foreign_writer": "note"}}, "offsets.on_foreign_writer"),
    ({"from": "comparison"}, {"offsets": {"mode": "transactional"}}, "offsets.mode"),
    (
        {"from": "comparison"},
        {"offsets": {"by_topic": [{"topics": ["a"], "mode": "transactional"}]}},
        "offsets.by_topic[0].mode",
    ),
    ({"from": "comparison"}, {"seed": {"via": "split"}}, "seed.via"),
]


@pytest.mark.parametrize(("adopt", "others", "path"), ADOPT_CONFLICTS, ids=[item[2] for item in ADOPT_CONFLICTS])
def test_conflicts_of_adopt_are_named(adopt: dict[str, Any], others: dict[str, Any], path: str) -> None:
    assert set(mistakes(minimal(adopt=adopt, **others))) == {path}


@pytest.mark.parametrize(
    "others",
    [{"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}, {"seed": {"via": "split"}}],
    ids=["mirror", "split"],
)
def test_an_early_sync_of_groups_is_refused_where_it_could_not_be(others: dict[str, Any]) -> None:
    assert set(mistakes(minimal(groups={"early_sync": True}, **others))) == {"groups.early_sync"}
    assert parse_spec(minimal(**others)).groups.early_sync is False


MIRROR: dict[str, Any] = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}


@pytest.mark.parametrize(
    ("others", "groups", "path"),
    [
        ({}, {}, "groups.on_deleted"),
        ({**MIRROR, "mirror": {**MIRROR["mirror"], "sync_groups": False}}, {}, "groups.on_deleted"),
        (MIRROR, {"deleted_after": "100ms"}, "groups.deleted_after"),
    ],
    ids=["migration", "no sync", "at once"],
)
def test_groups_are_deleted_by_mirrors_that_follow_them_only(
    others: dict[str, Any], groups: dict[str, Any], path: str
) -> None:
    assert set(mistakes(minimal(groups={"on_deleted": "repair", **groups}, **others))) == {path}
    assert parse_spec(minimal(groups={"on_deleted": "repair"}, **MIRROR)).groups.on_deleted == "repair"


def test_wrong_keys_of_adopt_are_named_with_its_conflicts() -> None:
    found = mistakes(minimal(adopt={"from": "way_back", "min_records": 0}))
    assert set(found) == {"adopt.min_records", "adopt.migration_id"}


def test_all_mistakes_come_in_one_error_with_their_paths() -> None:
    found = mistakes(
        minimal(
            migration_id="Not Good",
            topics={"include": ["("], "exlude": []},
            seed={"segment_max_bytes": "32 bananas", "max_concurrent_partitions": 0},
            tail={"drain_stable_window": "soon"},
            storage={"journal": "ftp://x"},
            cutover={"freeze": "webhook"},
        )
    )
    assert set(found) == {
        "migration_id",
        "topics.include[0]",
        "topics.exlude",
        "seed.segment_max_bytes",
        "seed.max_concurrent_partitions",
        "tail.drain_stable_window",
        "storage.journal",
        "cutover.producer_freeze_webhook",
    }
    assert "not a regular expression" in found["topics.include[0]"]
    assert "32MiB" in found["seed.segment_max_bytes"]
    assert "freeze: webhook" in found["cutover.producer_freeze_webhook"]


CONFLICTS = [
    ({"topics": {"include": ["a.*"], "exclude": ["b", ".*"]}}, "topics.exclude[1]", "nothing is left"),
    ({"topics": {"include": ["a"], "exclude": ["a", "b"]}}, "topics.exclude", "nothing is left"),
    ({"topics": {"rename": {"topics": {"a": "c", "b": "c"}}}}, "topics.rename.topics", "a and b would both become c"),
    ({"topics": {"rename": {"topics": {"a": "no blanks"}}}}, "topics.rename.topics.a", "not a valid topic name"),
    ({"topics": {"rename": {"topics": {"a": ".."}}}}, "topics.rename.topics.a", "not a valid topic name"),
    ({"topics": {"include": ["x"], "rename": {"topics": {"a": "b"}}}}, "topics.rename.topics.a", "not selected"),
    ({"acls": {"write_grants": "at_cutover", "policy": "skip"}}, "acls.write_grants", "copies none"),
    ({"acls": {"write_grants": "at_cutover", "target_auth": "iam"}}, "acls.write_grants", "to a person"),
    ({"acls": {"policy": "refuse", "target_auth": "iam"}}, "acls.policy", "every one would differ"),
    ({"acls": {"policy": "mirror_maker"}}, "acls.policy", "for mirrors"),
    ({"acls": {"users": {"ann": "hunter2"}}}, "acls.users.ann", "not a reference to a secret"),
    ({"cutover": {"freeze": "webhook"}}, "cutover.producer_freeze_webhook", "freeze: webhook"),
    ({"target": {"conn_id": "kafka_source"}}, "target.conn_id", "same connection"),
]

BOTH = {"source": "registry_source", "target": "registry_target"}
TOPIC = {"topic": "_schemas"}
#: Mistakes of the section ``schemas``, and of no other.
SCHEMAS_CONFLICTS: list[tuple[dict[str, Any], str, str]] = [
    ({"source": "r", "target": "r"}, "schemas.target", "same registry connection"),
    ({"source": "r"}, "schemas.target", "needs the registry of the target"),
    ({"target": "r"}, "schemas.source", "needs the registry of the source"),
    ({"ids": "keep"}, "schemas.ids", "no schemas move without"),
    ({"rename": {"prefix": "x."}}, "schemas.rename", "no schemas move without"),
    ({**BOTH, "source": "https://registry.example"}, "schemas.source", "not the name of a connection"),
    ({**BOTH, "target": "ann:hunter2@registry"}, "schemas.target", "not the name of a connection"),
    ({**BOTH, "ids": "keep", "strict": True}, "schemas.strict", "only applies where ids are rewritten"),
    ({**BOTH, "ids": "keep", "rewrite": "key"}, "schemas.rewrite", "only applies where ids are rewritten"),
    ({**BOTH, "ids": "keep", "normalize": True}, "schemas.normalize", "cannot keep its id"),
    (
        {**BOTH, "ids": "keep", "by_topic": [{"topics": ["a"], "rewrite": "none"}]},
        "schemas.by_topic[0].rewrite",
        "only applies where ids are rewritten",
    ),
    ({**TOPIC, "strict": True}, "schemas.strict", "schemas.topic keeps them"),
    ({**TOPIC, "rewrite": "value"}, "schemas.rewrite", "schemas.topic keeps them"),
    ({**TOPIC, "ids": "translate"}, "schemas.ids", "contradicts schemas.topic"),
    ({**TOPIC, "topic": "__schemas"}, "schemas.topic", "internal topic"),
    ({**TOPIC, "versions": "latest"}, "schemas.versions", "the whole registry moves"),
    ({**TOPIC, "include": ["a"]}, "schemas.include", "the whole registry moves"),
    ({**TOPIC, "normalize": True}, "schemas.normalize", "the whole registry moves"),
    ({**TOPIC, "source_registry": "readonly"}, "schemas.source_registry", "registry would start read-only"),
    (
        {**BOTH, **TOPIC, "source_registry": "readonly"},
        "schemas.source_registry",
        "registry would start read-only",
    ),
    (
        {**BOTH, "include": ["b"], "rename": {"subjects": {"a": "c"}}},
        "schemas.rename.subjects.a",
        "not in schemas.include",
    ),
    (
        {**BOTH, "contexts": "default", "rename": {"subjects": {":.x:a": "c"}}},
        "schemas.rename.subjects.:.x:a",
        ".x is not among them",
    ),
    ({**BOTH, "rename": {"subjects": {"a": ""}}}, "schemas.rename.subjects.a", "empty"),
    ({**BOTH, "rename": {"subjects": {"a": "c", "b": "c"}}}, "schemas.rename.subjects", "a and b would both become c"),
    ({**BOTH, "rename": {"prefix": "a:b"}}, "schemas.rename.prefix", "pattern"),
    ({**BOTH, "contexts": "some"}, "schemas.contexts", "write all, default, or a mapping"),
    ({**BOTH, "contexts": {}}, "schemas.contexts", "selects no context"),
    ({**BOTH, "contexts": {"payments": ".p"}}, "schemas.contexts", "begins with a dot"),
    ({**BOTH, "contexts": {".p": ":.p:"}}, "schemas.contexts", "begins with a dot"),
    ({**BOTH, "contexts": {".p": 3}}, "schemas.contexts", "not the name of a context"),
    ({**BOTH, "by_topic": [{"topics": [], "rewrite": "key"}]}, "schemas.by_topic[0].topics", "at least 1"),
    ({**BOTH, "by_topic": [{"topics": ["a"], "context": "p"}]}, "schemas.by_topic[0].context", "begins with a dot"),
    ({**BOTH, "interval": "0s"}, "schemas.interval", "at least 1s"),
    ({**BOTH, "interval": "soon"}, "schemas.interval", "a duration is a number"),
    ({**BOTH, "exclude": ["("]}, "schemas.exclude[0]", "not a regular expression"),
    ({**BOTH, "max_parallel_requests": 0}, "schemas.max_parallel_requests", "greater than or equal to 1"),
]


@pytest.mark.parametrize(("sections", "path", "reason"), CONFLICTS)
def test_keys_that_contradict_each_other_are_named(sections: dict[str, Any], path: str, reason: str) -> None:
    found = mistakes(minimal(**sections))
    assert set(found) == {path}
    assert reason in found[path]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(("schemas", "path", "reason"), SCHEMAS_CONFLICTS)
def test_mistakes_in_schemas_are_named(schemas: dict[str, Any], path: str, reason: str) -> None:
    found = mistakes(minimal(schemas=schemas))
    assert set(found) == {path}
    assert reason in found[path]
    assert "hunter2" not in str(found)


def test_copiers_of_a_split_seed_cannot_rewrite_ids() -> None:
    seed = {"via": "split"}
    found = mistakes(minimal(seed=seed, schemas={**BOTH, "ids": "translate"}))
    assert set(found) == {"schemas.ids"}
    for ids in ("keep", "auto"):
        assert parse_spec(minimal(seed=seed, schemas={**BOTH, "ids": ids})).schemas.ids == ids


def test_a_topic_of_the_registry_has_to_be_migrated() -> None:
    found = mistakes(minimal(topics={"include": ["orders"]}, schemas=TOPIC))
    assert found == {
        "schemas.topic": "the topic is not migrated, so the registry cannot move with it: not in topics.include"
    }
    both = parse_spec(minimal(schemas={**TOPIC, "source": "registry_source"})).schemas
    assert both.configured
    assert not both.copies


def test_a_wrong_key_in_schemas_does_not_hide_or_invent_contradictions() -> None:
    found = mistakes(minimal(schemas={**TOPIC, "rename": {"prefix": 3}, "strict": True, "versions": "latest"}))
    assert set(found) == {"schemas.rename.prefix", "schemas.strict", "schemas.versions"}
    assert set(mistakes(minimal(schemas={"source": 3, "ids": "keep"}))) == {"schemas.source"}


def test_no_schemas_move_by_default() -> None:
    schemas = parse_spec(minimal()).schemas
    assert not schemas.configured
    assert not schemas.copies


def test_subjects_are_selected_by_qualified_name_and_context() -> None:
    def why(subject: str, **keys: Any) -> str:
        return parse_spec(minimal(schemas={**BOTH, **keys})).schemas.why_left_out(subject)

    assert why("orders-value") == why(":.pay:orders-value") == ""
    assert why(":.pay:a", contexts="default") == "schemas.contexts: .pay is not among them"
    assert why("a", contexts={".pay": "."}) == "schemas.contexts: . is not among them"
    assert why(":.pay:a", contexts={".pay": "."}) == ""
    assert why(":.pay:a", include=["a"]) == "not in schemas.include"
    assert why(":.pay:a", exclude=[r":\.pay:.*"]) == r"schemas.exclude: :\.pay:.*"


def test_topics_have_their_own_rewrite_and_context() -> None:
    by_topic = [{"topics": ["a.*"], "rewrite": "key"}, {"topics": ["ab", "c"], "context": ".pay"}]
    schemas = parse_spec(minimal(schemas={**BOTH, "rewrite": "value", "by_topic": by_topic})).schemas
    assert [schemas.rewrite_of(topic) for topic in ("ab", "c", "d")] == ["key", "value", "value"]
    assert [schemas.context_of(topic) for topic in ("ab", "c", "d")] == [None, ".pay", None]


def test_contradictions_come_together_with_all_other_mistakes() -> None:
    found = mistakes(
        minimal(
            colour="red",
            seed={"lanes": "many"},
            topics={"include": ["a", "b"], "rename": {"topics": {"a": "c", "b": "c"}}},
            acls={"policy": "skip", "write_grants": "at_cutover", "users": {"ann": "plain"}},
        )
    )
    assert set(found) == {"colour", "seed.lanes", "topics.rename.topics", "acls.write_grants", "acls.users.ann"}
    with pytest.raises(ValidationError, match=r"acls\.write_grants"):
        MigrationSpec.model_validate(minimal(acls={"policy": "skip", "write_grants": "at_cutover"}))


def test_contradictions_are_told_although_their_section_has_another_mistake() -> None:
    """Nobody corrects a file, only to be told the next mistake of the same section."""
    found = mistakes(
        minimal(
            colour="red",
            target={"conn_id": "kafka_source", "colour": "red"},
            cutover={"freeze": "webhook", "max_producer_freeze": "soon", "drain_timeot": "1m"},
            topics={"include": ["a", "b"], "rename": {"prefix": "no blanks", "topics": {"a": ".", "b": "."}}},
            acls={"policy": "skip", "write_grants": "at_cutover", "users": {"ann": "plain"}, "target_auth": "none"},
        )
    )
    assert set(found) == {
        "colour",
        "target.colour",
        "target.conn_id",
        "cutover.producer_freeze_webhook",
        "cutover.max_producer_freeze",
        "cutover.drain_timeot",
        "topics.rename.prefix",
        "topics.rename.topics",
        "topics.rename.topics.a",
        "topics.rename.topics.b",
        "acls.write_grants",
        "acls.users.ann",
        "acls.target_auth",
    }


@pytest.mark.parametrize(
    "sections",
    [
        {"cutover": {"freeze": "webhook", "producer_freeze_webhook": "ftp://x"}},
        {"cutover": {"freeze": "wehbook"}},
        {"topics": {"include": ["("], "exclude": [".*x"]}},
        {"topics": {"include": ["a"], "exclude": ["("], "rename": {"topics": {"a": "b"}}}},
        {"acls": {"policy": "slip", "write_grants": "at_cutover"}},
        {"source": {"conn_id": ""}, "target": {"conn_id": ""}},
        {"source": "kafka", "target": "kafka"},
        {"cutover": ["freeze"]},
        {"acls": {"users": {"ann": 7}}},
        {"topics": {"rename": "new"}},
        {"topics": {"rename": {"topics": {"a": 7}}}},
    ],
    ids=str,
)
def test_a_key_that_is_a_mistake_itself_contradicts_nothing(sections: dict[str, Any]) -> None:
    assert len(mistakes(minimal(**sections))) == (2 if "source" in sections else 1)


def test_the_error_message_names_each_mistake_and_the_next_step() -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(minimal(colour="red", shape="round"), path="migration.yaml")
    text = str(caught.value)
    assert "2 mistakes" in text
    assert "colour" in text
    assert "shape" in text
    assert "path migration.yaml" in text
    assert "kafka-migration validate" in text


@pytest.mark.parametrize("data", [None, [], "text", 7])
def test_a_spec_that_is_no_mapping_is_refused(data: Any) -> None:
    assert "(whole spec)" in mistakes(data)


@pytest.mark.parametrize("missing", ["migration_id", "source", "target", "storage"])
def test_required_keys_are_named(missing: str) -> None:
    data = minimal()
    del data[missing]
    assert missing in mistakes(data)


def test_same_connection_on_both_sides_is_refused() -> None:
    assert "same connection" in mistakes(minimal(target={"conn_id": "kafka_source"}))["target.conn_id"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5m", 300), ("2h", 7200), ("7d", 604800), ("1w", 604800), ("1.5h", 5400), (12, 12)],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "-5s", -5, float("nan"), "5 parsecs", "1h30m", None, True, [1]])
def test_bad_durations(text: Any) -> None:
    with pytest.raises(ValueError, match="a duration is a number with a unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9999999999999y", 1e300, float("inf")])
def test_endless_durations_are_mistakes_and_no_crash(text: Any) -> None:
    assert "too long" in mistakes(minimal(tail={"drain_stable_window": text}))["tail.drain_stable_window"]


@given(st.integers(min_value=0, max_value=10**13))
def test_formatted_durations_read_back(microseconds: int) -> None:
    value = timedelta(microseconds=microseconds)
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "size"),
    [("32MiB", 32 * 1024**2), ("1GB", 10**9), ("1 KiB", 1024), ("17", 17), (5, 5), ("3gib", 3 * 1024**3)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5MiB", "-1", "5 stones", None, False])
def test_bad_sizes(text: Any) -> None:
    with pytest.raises(ValueError, match="a size is a whole number"):
        parse_bytes(text)


def test_selection_excludes_win_and_internal_topics_never_match() -> None:
    topics = parse_spec(
        minimal(topics={"include": ["orders.*", "__consumer_offsets"], "exclude": ["orders-tmp"]})
    ).topics
    assert topics.selects("orders-1")
    assert not topics.selects("orders-tmp")
    assert not topics.selects("__consumer_offsets")
    assert not topics.selects("payments")
    assert not topics.selects("my-orders"), "patterns match the whole name"


@pytest.mark.parametrize(
    ("include", "topic", "selected"),
    [
        ([".*"], "__debezium-heartbeat.shop", False),
        ([".*", "__debezium-heartbeat.*"], "__debezium-heartbeat.shop", True),
        (["__.*"], "__debezium-heartbeat.shop", True),
        (["__.*"], "__consumer_offsets", False),
        (["__transaction_state"], "__transaction_state", False),
        (["orders.*"], "orders.replica", False),
        (["orders\\.replica"], "orders.replica", True),
        (["orders.replica"], "orders.replica", True),
        (["_confluent-ksql.*"], "_confluent-ksql-default_command_topic", True),
        ([".*"], "kafka-migration-probe-0123456789ab", False),
        (["kafka-migration-probe-.*"], "kafka-migration-probe-0123456789ab", False),
        ([".*"], "mm2-offsets.a.internal", False),
        (["mm2-offsets\\..*\\.internal"], "mm2-offsets.a.internal", True),
    ],
)
def test_built_in_excludes_are_overridden_by_naming_a_topic(include: list[str], topic: str, selected: bool) -> None:
    section = parse_spec(minimal(topics={"include": include})).topics
    assert section.selects(topic) is selected
    assert bool(section.why_left_out(topic)) is not selected


def test_sink_connectors_are_moved_by_default_and_what_is_left_out_has_a_reason() -> None:
    groups = parse_spec(minimal()).groups
    assert groups.selects("connect-s3-sink")
    assert groups.why_left_out("console-consumer-77") == "groups.exclude: console-consumer-.*"
    chosen = parse_spec(minimal(groups={"include": ["a.*"]})).groups
    assert chosen.why_left_out("b") == "not in groups.include"


def test_duplicate_yaml_keys_are_refused_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("migration_id: a\nseed: {via: s3}\nmigration_id: b\n", encoding="utf-8")
    with pytest.raises(SpecInvalid) as caught:
        load_spec(file)
    assert "'migration_id' appears twice" in str(caught.value)
    assert "line 3" in str(caught.value)


def test_duplicate_keys_deep_inside_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("seed:\n  via: s3\n  via: direct\n", encoding="utf-8")
    with pytest.raises(SpecInvalid, match="'via' appears twice"):
        load_spec(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("? [1, 2]\n: 3\n", "a key must be plain text"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\n---\nb: 2\n", "single document"),
        ("\x00", "special characters"),
    ],
    ids=["list-as-key", "deep", "two-documents", "binary"],
)
def test_strange_yaml_is_a_spec_error(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "strange.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpecInvalid, match=reason):
        load_spec(file)


def test_yaml_anchors_and_merges_work(tmp_path: Path) -> None:
    file = tmp_path / "merge.yaml"
    file.write_text(
        "migration_id: merged\n"
        "source: &cluster {conn_id: one, name: brokers}\n"
        "target: {<<: *cluster, conn_id: two}\n"
        "storage: {journal: 'file:///tmp/journal'}\n",
        encoding="utf-8",
    )
    spec = load_spec(file)
    assert (spec.target.conn_id, spec.target.name) == ("two", "brokers")


def test_broken_yaml_and_missing_files_are_spec_errors(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("seed: [1, 2", encoding="utf-8")
    with pytest.raises(SpecInvalid, match="not valid YAML"):
        load_spec(broken)
    with pytest.raises(SpecInvalid, match="cannot be read"):
        load_spec(tmp_path / "absent.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("description: größer".encode("latin-1"))
    with pytest.raises(SpecInvalid, match="not UTF-8"):
        load_spec(latin)


def test_yaml_tags_run_no_code(tmp_path: Path) -> None:
    file = tmp_path / "evil.yaml"
    file.write_text("migration_id: !!python/object/apply:os.system ['true']\n", encoding="utf-8")
    with pytest.raises(SpecInvalid, match="not valid YAML"):
        load_spec(file)


def test_json_schema_is_valid_and_accepts_what_the_model_accepts() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    written = yaml.safe_load((CASES / "full.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(written, schema)
    jsonschema.validate(minimal(), schema)
    json.dumps(schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"seed": {"via": "pigeon"}},
        {"tail": {"drain_stable_window": "soon"}},
        {"seed": {"segment_max_bytes": "much"}},
        {"migration_id": "Not Good"},
    ],
    ids=["unknown-key", "enum", "duration", "size", "id"],
)
def test_json_schema_refuses_what_the_model_refuses(wrong: dict[str, Any]) -> None:
    assert mistakes(minimal(**wrong))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(minimal(**wrong), json_schema())


def test_every_field_of_the_spec_has_a_description() -> None:
    schema = json_schema()
    sections = {"MigrationSpec": schema, **schema["$defs"]}
    silent = [
        f"{name}.{field}"
        for name, section in sections.items()
        for field, facts in section.get("properties", {}).items()
        if not facts.get("description") and "$ref" not in facts
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("sections", "path", "reason"),
    [
        ({"topics": {"includ": ["a"]}}, "topics.includ", "did you mean include?"),
        ({"lanes": 3}, "lanes", "did you mean seed.lanes?"),
        ({"offset": {"mode": "equal"}}, "offset", "did you mean offsets?"),
        ({"adopt": {"form": "mirror"}}, "adopt.form", "did you mean from?"),
        ({"offsets": {"by_topic": [{"topics": ["a"], "mod": "equal"}]}}, "offsets.by_topic[0].mod", "mean mode?"),
        ({"approvals": {"xyzzy": 1}}, "approvals.xyzzy", "there are assigned_users, max_age, response_timeout"),
        (
            {"topology": {"replication_factor": -1}},
            "topology.replication_factor",
            "target_default (MirrorMaker 2's -1)",
        ),
        ({"topics": {"include": "orders.*"}}, "topics.include", "a list is needed: [a, b]"),
        ({"topology": None}, "topology", "a section with keys is needed"),
        ({"seed": [1]}, "seed", "a section with keys is needed"),
        ({"waive": "W017"}, "waive", "Codes of accepted precheck warnings"),
        ({"waive": {"W017": 3}}, "waive", "a mapping of code to reason"),
        ({"groups": {"include": [20260101]}}, "groups.include[0]", "put quotes round a number, a date"),
        (
            {"storage": {"journal": "s3://my_bucket/x"}},
            "storage.journal",
            "the name of a bucket has at least two lower",
        ),
        ({"topics": {"include": ["[a-z&&[^b]]+"]}}, "topics.include[0]", "has another meaning here"),
        ({"spark": {"conf": {"spark.executor.cores": 4}}}, "spark.conf.spark.executor.cores", "put quotes round a"),
        ({"acls": {"users": {"ann": 1}}}, "acls.users.ann", "put quotes round a number"),
        ({"id": "x"}, "id", "did you mean migration_id?"),
        ({"migration_id": "Orders 2026"}, "migration_id", "lower case letters, digits and . _ -"),
        (
            {"topics": {"include": ["\u201corders\u201d"]}},
            "topics.include[0]",
            "begins or ends with a typographic quote",
        ),
        ({"groups": {"exclude": ["\u2018a\u2019"]}}, "groups.exclude[0]", "begins or ends with a typographic quote"),
        ({"evidence": {"retention": "200y"}}, "evidence.retention", "at most 100y"),
    ],
)
def test_a_mistake_says_what_to_write_and_repeats_no_value(
    minimal_spec: dict[str, Any], sections: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_spec({**minimal_spec, **sections})
    mistakes = {item["path"]: item["reason"] for item in caught.value.details["mistakes"]}
    assert reason in mistakes[path]
    assert len([item for item in caught.value.details["mistakes"] if item["path"] == path]) == 1


RETIRED = [
    ("target", "admin_class", None, "team.Admin", "the brokers themselves"),
    ("target", "admin_wait", "60s", None, ""),
    ("validation", "content", "all", "some", "always compared"),
    ("validation", "count_tolerance", 0, 5, "must be equal"),
]


@pytest.mark.parametrize(("section", "key", "harmless", "other", "why"), RETIRED, ids=[item[1] for item in RETIRED])
def test_a_retired_key_is_ignored_or_named(section: str, key: str, harmless: Any, other: Any, why: str) -> None:
    """A key of an earlier version: its default changes nothing, all else is refused, except in recorded specs.

    The tasks that free producers read a spec as recorded, also after an update in the middle of a freeze.
    """
    for recorded in (False, True):
        plain = parse_spec(minimal(), recorded=recorded)
        data = minimal()
        data[section] = {**data.get(section, {}), key: harmless}
        assert parse_spec(data, recorded=recorded) == plain
        if other is not None:
            data[section][key] = other
            if recorded:
                assert parse_spec(data, recorded=True) == plain
                continue
            with pytest.raises(SpecInvalid, match=f"{section}.{key}: this key is gone, remove it: .*{why}"):
                parse_spec(data)
